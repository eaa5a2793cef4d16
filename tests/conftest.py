"""What every test may use: one real Postgres and Valkey for the whole run, a database for each test.

`services` starts them once, for all xdist workers together; `database` is as new as the migrated template, with a login for
each role; `valkey` is the shared server and a key prefix of the test's own. Nothing starts before a test asks for it.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import uuid
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from unittest.mock import patch

import pytest
from tests import run_folder
from tests.clones import UNDURABLE, Clones, prepare_template
from tests.run_folder import FOLDER_VARIABLE

from counterfoil.providers.registry import Registry
from counterfoil.sandbox.client import Sandbox
from counterfoil.settings import Settings
from counterfoil.stack import postgres
from counterfoil.stack.databases import LOGINS, Login, database_url, prepare_database
from counterfoil.stack.home import Home
from counterfoil.stack.services import Services, Urls
from counterfoil.testing import World, advance_ledger

TEMPLATE = "cf_template"
TEST_LOGINS = (
    *LOGINS,
    Login("agent2", "cf_agent2", "agent", ("globex",)),
    Login("operator2", "cf_operator2", "operator", ("*",)),
)

MADE_HERE = pytest.StashKey[Path]()
"""The run's folder, where it is this process that has made it."""


def pytest_configure(config: pytest.Config) -> None:
    """The controller names one folder for the run, unless it was given one whose services it may use."""
    # A shell has its background jobs ignore SIGINT, and whatever the tests start would inherit that.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    if FOLDER_VARIABLE not in os.environ:
        config.stash[MADE_HERE] = run_folder.make()


def pytest_unconfigure(config: pytest.Config) -> None:
    """Whoever has made the folder ends it, after all workers are gone."""
    if MADE_HERE in config.stash:
        run_folder.remove(config.stash[MADE_HERE])


@dataclass(frozen=True, slots=True)
class Database:
    """A database of the test's own, with the ledger's newest schema and empty tables."""

    name: str
    home: Home
    urls: Urls

    def url(self, role: str) -> str:
        """The libpq URL for owner (superuser), agent (acme, globex), agent2 (globex), worker, operator(2) or reader."""
        return database_url(self.home, self.urls, self.name, role, logins=TEST_LOGINS)

    def advance(self, seconds: float) -> None:
        """Moves this ledger's clock on."""
        advance_ledger(self.url("owner"), seconds)


@pytest.fixture(scope="session")
def stack_home() -> Home:
    """The home of this run's services."""
    return run_folder.home_in(Path(os.environ[FOLDER_VARIABLE]))


@pytest.fixture(scope="session")
def services(stack_home: Home) -> Urls:
    """The run's Postgres and Valkey; never stop them in a test, kill them in a home of your own."""
    with patch.dict(postgres.SETTINGS, UNDURABLE):
        return Services.start(stack_home)


@pytest.fixture(scope="session")
def template_database(stack_home: Home, services: Urls) -> str:
    """The name of the migrated database that others are cloned from; nobody may connect to it."""
    with stack_home.lock("template"):
        ready = stack_home.run / "template-ready"
        if not ready.exists():
            prepare_database(stack_home, services, TEMPLATE, ("acme", "globex"), logins=TEST_LOGINS)
            prepare_template(services, TEMPLATE)
            ready.touch()
    return TEMPLATE


@pytest.fixture(scope="session")
def clone_database(
    stack_home: Home, services: Urls, template_database: str
) -> Callable[[], AbstractContextManager[Database]]:
    """Gives a database of one's own, and takes it back at the end whoever is still connected."""
    clones = Clones(stack_home, services, template_database)

    @contextmanager
    def clone() -> Iterator[Database]:
        name = clones.take()
        yield Database(name, stack_home, services)
        clones.give_back(name)

    return clone


@pytest.fixture
def database(clone_database: Callable[[], AbstractContextManager[Database]]) -> Iterator[Database]:
    """A database of this test's own."""
    with clone_database() as clone:
        yield clone


@pytest.fixture
def valkey(services: Urls) -> tuple[str, str]:
    """The URL of the shared Valkey, and a prefix for this test's keys and queues."""
    return services.valkey, f"cf-test-{uuid.uuid4().hex[:12]}-"


@pytest.fixture(scope="session")
def sandbox_process(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The base URL of this test process's own sandbox, the outside world."""
    data = tmp_path_factory.mktemp("sandbox")
    command = [sys.executable, "-m", "counterfoil.sandbox", "--port", "0", "--data", str(data), "--with-stdin"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        yield process.stdout.readline().split()[-1]
        process.communicate()


@pytest.fixture
def sandbox(sandbox_process: str) -> Sandbox:
    """An empty outside world with its usual index lag of a second."""
    world = Sandbox(sandbox_process)
    world.reset()
    world.config(search_lag_s={"stripe": 1, "jira": 1, "zendesk": 1, "slack": 1})
    return world


SHIPPED_TOOLS = ("counterfoil.providers.stripe.tools", "counterfoil.providers.jira.tools")


@pytest.fixture
def settings(database: Database, sandbox: Sandbox, tmp_path: Path) -> Settings:
    """A worker's settings: the fast profile, every provider in the sandbox."""
    secret = tmp_path / "key"
    secret.write_bytes(b"0123456789abcdef0123456789abcdef")
    return Settings(
        profile="fast",
        tools=SHIPPED_TOOLS,
        database={"url": database.url("worker"), "key_secret_file": secret},
        providers={
            "stripe": {"base_url": sandbox.stripe.url, "api_key": "sk_test_sandbox"},
            "jira": {
                "server": sandbox.jira.url,
                "email": "bot@example.test",
                "token": "t",
                "staging_transition": "51",
            },
            "zendesk": {"server": sandbox.zendesk.url, "email": "bot@example.test", "token": "t"},
            "slack": {"base_url": f"{sandbox.slack.url}/api/", "token": "t"},
            "linear": {"base_url": sandbox.linear.url, "api_key": "lin_api_t"},
        },
    )


@pytest.fixture
def world(settings: Settings, database: Database, sandbox: Sandbox) -> Iterator[World]:
    """The fleet in this process; see `counterfoil.testing.World`."""
    made = World(
        settings=settings,
        owner_url=database.url("owner"),
        sandbox=sandbox,
        registry=Registry.load(SHIPPED_TOOLS),
    )
    yield made
    made.close()
