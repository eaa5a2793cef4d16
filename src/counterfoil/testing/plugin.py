"""Pytest fixtures for tests of agents: `counterfoil`, `counterfoil_url`, `sandbox` and `clock`. Needs the extra `local`.

Say `pytest_plugins = ["counterfoil.testing.plugin"]` in a conftest.py, or `pytest -p counterfoil.testing.plugin`. It is no
entry point: pytest would rewrite the assertions of the whole package then, for everybody who has it installed. Nothing is
imported or started before a test asks; Postgres and the sandbox then run once for the session, each test has a database
of its own and an empty sandbox.
"""

from __future__ import annotations

import tempfile
import uuid
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from counterfoil.sandbox.client import Sandbox
    from counterfoil.stack.home import Home
    from counterfoil.stack.services import Urls
    from counterfoil.testing.played import PlayedCounterfoil
    from counterfoil.testing.world import World

TENANTS = ("acme", "globex")
"""Whom an agent under test may act for."""

_TEMPLATE = "counterfoil_template"


@dataclass(frozen=True, slots=True)
class Clock:
    """The one clock of ledger and sandbox."""

    world: World

    def advance(self, seconds: float) -> None:
        """Moves it on; what is due then happens in the next `settle`, or while a call waits."""
        self.world.advance(seconds)


@pytest.fixture(scope="session")
def counterfoil_tools() -> Sequence[str]:
    """Modules with tools, beside those of the project's counterfoil.toml. Override it in a conftest.py."""
    return ()


@pytest.fixture(scope="session")
def counterfoil_doubles() -> Sequence[str]:
    """Doubles of your own for the sandbox, each `module:PROVIDER`. Override it in a conftest.py."""
    return ()


@pytest.fixture(scope="session")
def counterfoil_services() -> Iterator[tuple[Home, Urls]]:
    """Postgres and Valkey for the session, in a folder of their own."""
    try:
        from counterfoil.stack.databases import LOCAL_LOGINS, prepare_database
        from counterfoil.stack.home import home
        from counterfoil.stack.services import Services
    except ModuleNotFoundError as missing:
        pytest.fail(f"these fixtures need {missing.name}: pip install '.[local]' in Counterfoil's clone", pytrace=False)
    with tempfile.TemporaryDirectory(prefix="counterfoil-pytest-") as folder:
        Path(folder).chmod(0o755)  # as root the servers run as another user, who must get in; what is inside is closed
        own = home(Path(folder), environ={"COUNTERFOIL_HOME": f"{folder}/home"})
        try:
            urls = Services.start(own)
            prepare_database(own, urls, _TEMPLATE, TENANTS, logins=LOCAL_LOGINS)
            yield own, urls
        finally:
            Services.stop(own)


@pytest.fixture(scope="session")
def counterfoil_sandbox(
    tmp_path_factory: pytest.TempPathFactory, counterfoil_doubles: Sequence[str]
) -> Iterator[Sandbox]:
    """The sandbox of the session; its address is in COUNTERFOIL_SANDBOX_URL, as under `counterfoil up --env`."""
    from counterfoil.sandbox.process import running

    folder = tmp_path_factory.mktemp("sandbox")
    with pytest.MonkeyPatch.context() as environment, running(folder, providers=counterfoil_doubles) as started:
        environment.setenv("COUNTERFOIL_SANDBOX_URL", started.base_url)
        yield started


@pytest.fixture
def sandbox(counterfoil_sandbox: Sandbox) -> Sandbox:
    """The outside world, empty: `sandbox.stripe.fault("504_after_commit", on=…)`, `sandbox.stripe.count("charges")`."""
    counterfoil_sandbox.reset()
    return counterfoil_sandbox


@pytest.fixture
def counterfoil(
    counterfoil_services: tuple[Home, Urls],
    sandbox: Sandbox,
    counterfoil_tools: Sequence[str],
    request: pytest.FixtureRequest,
) -> Iterator[PlayedCounterfoil]:
    """A Counterfoil on a database of this test's own, in the project's configuration with every provider in the sandbox.

    The same as in an application; `settle()` and `crash_after(point)` besides. No call of it sleeps.
    """
    import psycopg
    from psycopg import sql

    from counterfoil.providers.registry import Registry
    from counterfoil.settings import Settings
    from counterfoil.settings_sources import read_file
    from counterfoil.stack.databases import LOCAL_LOGINS, database_url
    from counterfoil.stack.project import KEY_SECRET, MailUrls, write_config
    from counterfoil.testing.played import PlayedCounterfoil
    from counterfoil.testing.world import World

    (home, urls), name = counterfoil_services, f"cf_{uuid.uuid4().hex[:12]}"
    written = write_config(
        home,
        request.config.rootpath,
        sandbox_url=sandbox.base_url,
        mail=MailUrls(sandbox.smtp.url, sandbox.imap.url),
        fast=True,
        tools=counterfoil_tools,
    )
    with psycopg.connect(urls.postgres, autocommit=True) as connection:
        database = sql.Identifier(name)
        connection.execute(
            sql.SQL("CREATE DATABASE {} TEMPLATE {} STRATEGY WAL_LOG").format(database, sql.Identifier(_TEMPLATE))
        )
        given = read_file(written)
        secret = {"key_secret_file": str(home.path / "secrets" / KEY_SECRET)}
        given = {**given, "notify": {}}  # the project's is for people who have to act
        settings = Settings(**{**given, "database": {"url": database_url(home, urls, name, "worker"), **secret}})
        world = World(
            settings=settings,
            owner_url=database_url(home, urls, name, "owner"),
            sandbox=sandbox,
            registry=Registry.load(settings.tools, settings.http),
        )
        played = PlayedCounterfoil(database_url(home, urls, name, "app", logins=LOCAL_LOGINS), world=world)
        yield played
        played.close()
        world.close()
        connection.execute(sql.SQL("DROP DATABASE {} WITH (FORCE)").format(database))


@pytest.fixture
def counterfoil_url(counterfoil: PlayedCounterfoil) -> str:
    """A libpq URL of this test's database, for a handler's own connection or an application's engine.

    It is an agent's login: it records intents for the tenants of the tests and writes nothing else of the ledger. Its schema
    `app` is its own, for the application's tables.
    """
    return counterfoil.url


@pytest.fixture
def clock(counterfoil: PlayedCounterfoil) -> Clock:
    """The clock of ledger and sandbox, which `advance` moves together."""
    return Clock(counterfoil.world)
