"""Decides what `counterfoil up` starts, in which order, and under whose login each process works.

    with LocalStack(Path.cwd()) as stack:            # servers, ledger, sandbox, relay, worker, beat; seconds when cold
        stack.env_for("agent")                       # what an agent's process needs
        stack.children.kill("worker", signal.SIGKILL)
        stack.poll()                                 # restarts the dead, and wants to be called every now and then

The demo and the long tests drive this same object.
"""

from __future__ import annotations

import os
import sys
import time
import urllib.error
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import LiteralString, Self

import psycopg

from counterfoil.providers.registry import Registry
from counterfoil.sandbox.client import Sandbox
from counterfoil.settings import Settings
from counterfoil.settings_sources import SANDBOX_VARIABLE
from counterfoil.stack.children import Child, Supervisor
from counterfoil.stack.databases import LOCAL_LOGINS, database_url, prepare_database
from counterfoil.stack.errors import AlreadyUp, StackError
from counterfoil.stack.home import Home, home, write_private
from counterfoil.stack.processes import end, recall, remember
from counterfoil.stack.project import MailUrls, config_path, write_config
from counterfoil.stack.server import HOST, free_port, is_free
from counterfoil.stack.services import Services, Urls

DATABASE = "counterfoil"

READY_WAIT_S = 30.0
"""Celery takes two seconds to start, more on a busy machine."""

INDEX_LAG_S = 1.0
"""How long the sandbox's searches lag; below what the fast profile allows for."""

STOP_WAIT_S = 45.0
"""What `down` gives the process of `up` to end its children, each of which has its own grace."""

REVIVE_EVERY_S = 1.0
"""How often the servers are looked at; one that dies at once is not launched more often than this."""

Say = Callable[[str], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Choices:
    """What may be chosen about a stack."""

    tools: Sequence[str] = ()
    """Modules to load beside the project's own `tools`, or beside the shipped ones where it names none."""
    fast: bool = True
    """The fast profile: seconds instead of minutes, and providers are the sandbox alone."""
    workers: int = 2
    """Processes that act: calls in flight at the same time."""
    tenants: Sequence[str] = ("acme",)
    """Whom the agent's login may act for."""
    worker_env: Mapping[str, str] = field(default_factory=dict)
    """Further variables for the worker's process: a point to crash at, in the demo and in tests."""


class LocalStack:
    """Everything that runs for one project. Start, poll and stop it from one thread that lives as long as it does."""

    def __init__(self, project: Path, choices: Choices | None = None, *, say: Say = lambda _line: None) -> None:
        self.project = project.resolve()
        self.choices = choices or Choices()
        self.home = home(self.project)
        self._say = say
        self._urls: Urls | None = None
        self._sandbox_port = self._smtp_port = self._imap_port = 0
        self._revive_at = 0.0
        self._children: Supervisor | None = None
        self._lock: AbstractContextManager[None] | None = None

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def start(self) -> None:
        """Start everything and wait until the worker answers; nothing is left running when that fails.

        Raises AlreadyUp, or StackError or ConfigError, which name what to look at. `say` hears of each part as it is
        ready.
        """
        self._lock = _take_lock(self.home)
        try:
            self._configure()
            self._urls = Services.start(self.home)
            self._say(f"Postgres {self.home.postgres_major} and Valkey answer")
            prepare_database(self.home, self._urls, DATABASE, self.choices.tenants, logins=LOCAL_LOGINS)
            self._say(f"database {DATABASE} is migrated, with a login for each role")
            self._start_children()
        except BaseException:
            self.stop()
            raise

    def stop(self) -> None:
        """Stop the children, last first, then the servers. Data stays. Idempotent."""
        if self._lock is None:
            return
        if self._children is not None:
            self._children.stop()
        Services.stop(self.home)
        for file in (_record(self.home), _ready(self.home)):
            file.unlink(missing_ok=True)
        lock, self._lock = self._lock, None
        lock.__exit__(None, None, None)

    def poll(self) -> list[str]:
        """Restart what has died and whose backoff is over; the names of the restarted. Does not wait for any of it."""
        return [*self._revive_servers(), *self.children.poll()]

    @property
    def children(self) -> Supervisor:
        """sandbox, relay, worker, beat."""
        if self._children is None:
            raise StackError("The local stack was not started.")
        return self._children

    @property
    def sandbox_url(self) -> str:
        """The outside world: providers under `/stripe`, `/jira` …, its control under `/_sandbox/`."""
        return f"http://{HOST}:{self._sandbox_port}"

    @property
    def broker_url(self) -> str:
        """Valkey's URL, with its password."""
        return self._running().valkey

    def database_url(self, role: str) -> str:
        """The ledger's libpq URL for agent, worker, operator, reader or owner, with its password."""
        return database_url(self.home, self._running(), DATABASE, role)

    def env_for(self, role: str) -> dict[str, str]:
        """The variables under which a process works in this role. Only a worker's name the broker."""
        return env_for(self.home, self._running(), role)

    def settings_for(self, role: str) -> Settings:
        """The settings that a process of this role has."""
        return Settings.load(environ={**os.environ, **self.env_for(role)})

    def _revive_servers(self) -> list[str]:
        if time.monotonic() < self._revive_at:
            return []
        self._revive_at = time.monotonic() + REVIVE_EVERY_S
        return Services.revive(self.home)

    def _running(self) -> Urls:
        if self._urls is None:
            raise StackError("The local stack was not started.")
        return self._urls

    def _configure(self) -> None:
        """Write the children's configuration. A mistake in it, or in a tool, is told here, before anything runs."""
        self._sandbox_port = _remembered_port(_sandbox_port(self.home))
        self._smtp_port = _remembered_port(self.home.run / "smtp.port")
        self._imap_port = _remembered_port(self.home.run / "imap.port")
        choices = self.choices
        path = write_config(
            self.home,
            self.project,
            sandbox_url=self.sandbox_url,
            mail=MailUrls(f"smtp://{HOST}:{self._smtp_port}", f"imap://{HOST}:{self._imap_port}"),
            fast=choices.fast,
            tools=choices.tools,
        )
        settings = Settings.load(path)
        settings.check_secret_files()
        Registry.load(settings.tools, settings.http)

    def _list_children(self) -> list[Child]:
        """In this order: who is asked comes before who asks."""
        python, env = sys.executable, self.env_for("worker")
        celery = [python, "-m", "celery", "-A", "counterfoil.workers"]
        quiet = ["--without-gossip", "--without-mingle", "--loglevel", "WARNING"]  # no worker asks for other workers
        worker = [*celery, "worker", "-c", str(self.choices.workers), "-n", "worker@%h", *quiet]
        data = self.home.path / "sandbox"
        ports = ["--port", str(self._sandbox_port)]
        ports += ["--smtp-port", str(self._smtp_port), "--imap-port", str(self._imap_port)]
        sandbox = [python, "-m", "counterfoil.sandbox", *ports, "--data", str(data)]
        return [
            self._child("sandbox", sandbox, {}),
            self._child("relay", [python, "-m", "counterfoil.cli", "relay"], env),
            self._child("worker", worker, {**env, **self.choices.worker_env}),
            self._child("beat", [*celery, "beat", "--loglevel", "WARNING"], env),
        ]

    def _child(self, name: str, argv: list[str], env: Mapping[str, str]) -> Child:
        return Child(name, argv, env, self.home.log / f"{name}.log")

    def _start_children(self) -> None:
        sandbox = Sandbox(self.sandbox_url)
        self._children = Supervisor(self._list_children(), self.home)
        with psycopg.connect(self.database_url("owner"), autocommit=True) as connection:
            started_at = connection.execute("SELECT counterfoil.now()").fetchone()
            self._children.start()
            deadline = time.monotonic() + READY_WAIT_S
            self._wait("sandbox", lambda: _answers(sandbox), deadline)
            sandbox.config(search_lag_s={"stripe": INDEX_LAG_S, "jira": INDEX_LAG_S})
            self._say(f"sandbox answers on {self.sandbox_url}")
            self._wait("relay", lambda: _finds(connection, _RELAY_IS_CONNECTED), deadline)
            self._wait("worker", lambda: _finds(connection, _WORKER_HAS_BEATEN, started_at), deadline)
        if self.children.poll() or self.children.pid("beat") is None:
            self._refuse("beat")
        self._say(f"relay, {self.choices.workers} worker processes and beat are at work")

    def _wait(self, name: str, is_ready: Callable[[], bool], deadline: float) -> None:
        while not is_ready():
            if self.children.pid(name) is None or time.monotonic() > deadline:
                self._refuse(name)
            time.sleep(0.05)

    def _refuse(self, name: str) -> None:
        log = self.home.log / f"{name}.log"
        why, fix = last_words(log)
        raise StackError(f"{name} does not start: {why}", fix=f"{fix}See {log}.")


def env_for(home: Home, urls: Urls, role: str) -> dict[str, str]:
    """What `LocalStack.env_for` gives, for a stack that another process has started."""
    env = {
        "COUNTERFOIL_CONFIG": str(config_path(home)),
        "COUNTERFOIL_DATABASE__URL": database_url(home, urls, DATABASE, role, logins=LOCAL_LOGINS),
        SANDBOX_VARIABLE: f"http://{HOST}:{_sandbox_port(home).read_text()}",
    }
    if role == "worker":
        env["COUNTERFOIL_BROKER__URL"] = urls.valkey
    return env


def places(home: Home) -> dict[str, str]:
    """Where the parts of this home's stack are, without a password."""
    urls = Services.last(home)
    if urls is None:
        raise StackError("The local stack was not started.")
    broker = urls.valkey.rpartition("@")[2]
    return {
        "ledger": f"postgresql://cf_agent@{urls.host}:{urls.port}/{DATABASE}",
        "broker": f"redis://{broker}",
        "sandbox": f"http://{HOST}:{(home.run / 'sandbox.port').read_text()}",
        "config": str(config_path(home)),
        "logs": str(home.log),
    }


def announce(stack: LocalStack) -> None:
    """Leave word that this process keeps the stack and that it is ready, for `down`, `--detach` and `--env`."""
    remember(_record(stack.home), os.getpid())
    write_private(_ready(stack.home), str(os.getpid()))


def keeper(home: Home) -> int | None:
    """The process that keeps this home's stack and has said that it is ready; None = there is none."""
    process = recall(_record(home), lambda _process: True)
    try:
        return process.pid if process is not None and int(_ready(home).read_text()) == process.pid else None
    except (FileNotFoundError, ValueError):
        return None


def stop_stack(home: Home) -> bool:
    """End the process that keeps the stack, and the servers, whoever started them; whether anything was running.

    Raises StackError if a process cannot be ended.
    """
    process = recall(_record(home), lambda _process: True)
    was_running = process is not None or Services.running(home)
    if process is not None and not end([process], [(15, STOP_WAIT_S)]):
        raise StackError(f"The process of `counterfoil up` does not end; its id is {process.pid}.")
    for child in home.run.glob("child-*.json"):  # where the system does not end them with their parent
        orphan = recall(child, lambda _process: True)
        if orphan is not None:
            end([orphan], [(15, 5.0), (9, 5.0)])
    for file in (_record(home), _ready(home)):
        file.unlink(missing_ok=True)
    Services.stop(home)
    return was_running


def last_words(log: Path) -> tuple[str, str]:
    """The last line of a log that says something, and the fix behind it, if our own command has named one; capped."""
    lines: list[str] = []
    with suppress(OSError):
        lines = [line.strip() for line in log.read_text(errors="replace")[-4000:].splitlines() if line.strip()]
    fix = lines.pop().removeprefix(_FIX)[:300] + " " if len(lines) > 1 and lines[-1].startswith(_FIX) else ""
    return (lines[-1].removeprefix("counterfoil: ")[:300] if lines else "it has written nothing."), fix


_FIX = "fix: "


_RELAY_IS_CONNECTED = (
    "SELECT FROM pg_stat_activity WHERE datname = current_database() AND application_name = 'counterfoil relay'"
)

_WORKER_HAS_BEATEN = "SELECT FROM counterfoil.worker_heartbeat WHERE seen_at >= %s"
"""A worker says so when it is ready to take messages; one of an earlier start does not count."""


def _finds(connection: psycopg.Connection, query: LiteralString, params: Sequence[object] | None = None) -> bool:
    return connection.execute(query, params).rowcount > 0


def _take_lock(home: Home) -> AbstractContextManager[None]:
    lock = home.lock("up", wait_s=0.0)
    try:
        lock.__enter__()
    except StackError as error:
        raise AlreadyUp("the local stack of this folder is already up.", fix="`counterfoil down` stops it.") from error
    return lock


def _answers(sandbox: Sandbox) -> bool:
    try:
        sandbox.now()
    except (urllib.error.URLError, OSError):
        return False
    return True


def _remembered_port(file: Path) -> int:
    """A port of the sandbox's last start if it is free: what was pasted into a shell stays right."""
    with suppress(FileNotFoundError, ValueError):
        port = int(file.read_text())
        if is_free(port):
            return port
    port = free_port()
    write_private(file, str(port))
    return port


def _sandbox_port(home: Home) -> Path:
    return home.run / "sandbox.port"


def _record(home: Home) -> Path:
    return home.run / "up.json"


def _ready(home: Home) -> Path:
    return home.run / "up.ready"
