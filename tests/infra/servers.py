"""Real servers on loopback that a test may freeze, kill and bring back: their life, and Postgres with its pooler.

Each has a folder, a log and a port of its own, runs as an unprivileged user where we are root, and is gone at the end, with
all its processes, however the test ends. The brokers are in `brokers`.
"""

from __future__ import annotations

import os
import random
import shutil
import signal
import subprocess
import tempfile
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, Self

import psutil
import psycopg
import pytest

from counterfoil.stack.binaries import postgres_bin
from counterfoil.stack.databases import LOGINS, database_url, prepare_database
from counterfoil.stack.home import Home, home
from counterfoil.stack.server import HOST, is_free
from counterfoil.stack.services import Urls

READY_S = 120.0
"""A server answers within seconds; a busy machine may need longer."""

SYSTEM_PATH = "/usr/local/bin:/usr/bin:/bin:/usr/local/sbin:/usr/sbin:/sbin"
"""Debian keeps daemons in sbin, which a user's PATH need not name."""


def until(condition: Callable[[], object], within_s: float = READY_S, *, what: str = "the condition") -> None:
    """Waits until the condition holds."""
    pause, deadline = threading.Event(), time.monotonic() + within_s
    while not condition():
        assert time.monotonic() < deadline, f"{what} did not come true within {within_s:.0f} s"
        pause.wait(0.05)


def program(name: str) -> str:
    """The path of a server's program; the test skips where it is not installed."""
    found = shutil.which(name, path=SYSTEM_PATH)
    if found is None:
        pytest.skip(f"{name} is not installed: `.ci/servers` installs it, as root")
    return found


def own_port() -> int:
    """A free port below those that outgoing connections take: a server that was killed gets it again."""
    tries = random.SystemRandom().sample(range(20_000, 32_000), 100)
    return next(port for port in tries if is_free(port))


@dataclass(frozen=True, slots=True)
class Place:
    """A folder for servers, which they may enter as the user they run as."""

    path: Path
    home: Home
    """Whose binaries, user and passwords they have."""

    def folder(self, name: str) -> Path:
        """A new folder that belongs to that user."""
        made = self.path / name
        made.mkdir(mode=0o700)
        self.give(made)
        return made

    def write(self, file: Path, text: str) -> Path:
        """A file that this user alone reads and writes."""
        file.write_text(text)
        file.chmod(0o600)
        self.give(file)
        return file

    def give(self, path: Path) -> None:
        if self.home.user is not None:
            os.chown(path, self.home.user.uid, self.home.user.gid)


@contextmanager
def new_place() -> Iterator[Place]:
    """A place with a short path: a Unix socket's must not be long."""
    path = Path(tempfile.mkdtemp(prefix="cf-infra-"))
    path.chmod(0o755)  # as root the servers run as another user, who must get in; what is inside is closed
    try:
        yield Place(path, home(path, environ={**os.environ, "COUNTERFOIL_HOME": str(path / "home")}))
    finally:
        shutil.rmtree(path)


class Server(ABC):
    """One server for the length of a `with` block; in between it may be stopped and started again, on the same port."""

    def __init__(self, place: Place, name: str) -> None:
        self.place = place
        self.name = name
        self.folder = place.folder(name)
        self.log = place.path / f"{name}.log"
        self.port = own_port()
        self._popen: subprocess.Popen[bytes] | None = None

    @abstractmethod
    def argv(self) -> Sequence[str]:
        """The command line."""

    @abstractmethod
    def answers(self) -> bool:
        """Whether it serves a client now."""

    @abstractmethod
    def prepare(self) -> None:
        """Makes its data and configuration, once."""

    def environ(self) -> Mapping[str, str]:
        """Its variables beside PATH and HOME."""
        return {}

    def __enter__(self) -> Self:
        self.prepare()
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()

    def start(self) -> None:
        """Starts it and waits until it answers."""
        self._popen = self.spawn(self.argv())
        until(lambda: self.answers() or not self.is_alive(), what=f"{self.name}'s first answer")
        assert self.is_alive(), f"{self.name} does not start:\n{self.last_words()}"

    def stop(self, number: int = signal.SIGTERM) -> None:
        """Asks it to end, and waits until it has."""
        assert self._popen is not None
        self._popen.send_signal(number)
        self._popen.wait(timeout=READY_S)

    def kill(self) -> None:
        """SIGKILL to all its processes, frozen ones too."""
        processes = self.processes()
        for process in processes:
            with suppress(psutil.NoSuchProcess):
                process.kill()
        if self._popen is not None:
            self._popen.wait(timeout=READY_S)
        psutil.wait_procs(processes, timeout=READY_S)

    def pause(self) -> None:
        """SIGSTOP to all its processes: the kernel still takes connections and bytes, and nobody answers them."""
        for process in self.processes():
            with suppress(psutil.NoSuchProcess):
                process.suspend()

    def resume(self) -> None:
        for process in self.processes():
            with suppress(psutil.NoSuchProcess):
                process.resume()

    @contextmanager
    def frozen(self) -> Iterator[None]:
        """Paused for the length of the block."""
        self.pause()
        try:
            yield
        finally:
            self.resume()

    def processes(self) -> list[psutil.Process]:
        """The server and its children, the one that makes children first."""
        if self._popen is None or self._popen.poll() is not None:
            return []
        main = psutil.Process(self._popen.pid)
        return [main, *main.children(recursive=True)]

    def is_alive(self) -> bool:
        return self._popen is not None and self._popen.poll() is None

    def last_words(self) -> str:
        return "\n".join(self.log.read_text(errors="replace").splitlines()[-20:])

    def spawn(self, argv: Sequence[str]) -> subprocess.Popen[bytes]:
        """Starts a program as the place's user; it dies with us."""
        bound = shutil.which("setpriv")
        user = self.place.home.user
        with self.log.open("ab") as log:
            return subprocess.Popen(
                [bound, "--pdeathsig", "KILL", *argv] if bound else list(argv),
                cwd=self.folder,
                env={"PATH": SYSTEM_PATH, "LC_ALL": "C", "TZ": "UTC", "HOME": str(self.folder), **self.environ()},
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                umask=0o077,
                user=user.uid if user else None,
                group=user.gid if user else None,
                extra_groups=[] if user else None,
            )

    def finish(self, argv: Sequence[str]) -> None:
        """Runs one of the server's other programs to its end."""
        assert self.spawn(argv).wait(timeout=READY_S) == 0, f"{argv[0]} failed:\n{self.last_words()}"


POSTGRES = {
    "listen_addresses": HOST,
    "unix_socket_directories": "",
    "max_connections": "200",
    "timezone": "UTC",
    "hot_standby": "on",
    "wal_keep_size": "256MB",
    "fsync": "off",  # its processes are killed, the machine is not
    "log_error_verbosity": "terse",
}


class Postgres(Server):
    """A Postgres of the local stack's version. `SUPERUSER` has the password `place.home.secret("postgres")`."""

    def __init__(self, place: Place, name: str = "postgres") -> None:
        super().__init__(place, name)
        self.data = self.folder / "data"
        self._bin = postgres_bin(place.home)
        self._password = place.home.secret("postgres")

    @property
    def urls(self) -> Urls:
        """Where it is, as the stack's functions are told."""
        return Urls(host=HOST, port=self.port, user="postgres", password=self._password, valkey="")

    @property
    def url(self) -> str:
        """The superuser's, of the database `postgres`."""
        return self.urls.postgres

    def argv(self) -> list[str]:
        settings = [part for name, value in POSTGRES.items() for part in ("-c", f"{name}={value}")]
        return [str(self._bin / "postgres"), "-D", str(self.data), "-p", str(self.port), *settings]

    def prepare(self) -> None:
        password = self.place.write(self.folder / "password", self._password)
        auth = ("--username=postgres", f"--pwfile={password}", "--auth=scram-sha-256")
        locale = ("--encoding=UTF8", "--locale=C.UTF-8", "--no-sync")
        self.finish([str(self._bin / "initdb"), f"--pgdata={self.data}", *auth, *locale])

    def answers(self) -> bool:
        try:
            psycopg.connect(self.url, connect_timeout=2).close()
        except psycopg.OperationalError:
            return False
        return True

    def stop(self, number: int = signal.SIGINT) -> None:
        """Fast: clients are cut off, and what was committed has reached the standby."""
        super().stop(number)

    def run(self, *statements: str) -> None:
        """Each in a transaction of its own, as the superuser."""
        with psycopg.connect(self.url, autocommit=True) as connection:
            for statement in statements:
                connection.execute(statement.encode())

    def finds(self, query: str) -> bool:
        with psycopg.connect(self.url, autocommit=True) as connection:
            return connection.execute(query.encode()).rowcount > 0


class Standby(Postgres):
    """A streaming standby. While it is there, the primary commits nothing that the standby does not have: no failover
    loses what a caller was told."""

    def __init__(self, place: Place, primary: Postgres, name: str = "standby") -> None:
        super().__init__(place, name)
        self.primary = primary

    def environ(self) -> Mapping[str, str]:
        return {"PGPASSWORD": self._password}

    def prepare(self) -> None:
        source = ("-h", HOST, "-p", str(self.primary.port), "-U", "postgres")
        copy = ("-D", str(self.data), "-X", "stream", "-c", "fast", "-R", "--no-sync")
        self.finish([str(self._bin / "pg_basebackup"), *source, *copy])

    def start(self) -> None:
        super().start()
        self.primary.run("ALTER SYSTEM SET synchronous_standby_names = '*'", "SELECT pg_reload_conf()")
        until(lambda: self.primary.finds("SELECT FROM pg_stat_replication WHERE sync_state = 'sync'"))

    def promote(self) -> None:
        """It is a primary when this returns."""
        self.run("SELECT pg_promote()")
        until(lambda: self.finds("SELECT WHERE NOT pg_is_in_recovery()"))


class PgBouncer(Server):
    """PgBouncer with its own defaults: no startup parameter is ignored, a pool for each login and database."""

    def __init__(self, place: Place, target: Urls, mode: Literal["session", "transaction"], logins: Mapping[str, str]):
        """`logins` are the passwords by name: it logs in to both sides with them."""
        super().__init__(place, f"pgbouncer-{mode}")
        self._program = program("pgbouncer")
        self._mode = mode
        self._logins = {**logins, target.user: target.password}
        self._target = target

    @property
    def urls(self) -> Urls:
        target = self._target
        return Urls(host=HOST, port=self.port, user=target.user, password=target.password, valkey=target.valkey)

    @property
    def url(self) -> str:
        return self.urls.postgres

    def prepare(self) -> None:
        users = "".join(f'"{name}" "{password}"\n' for name, password in self._logins.items())
        lines = [
            "[databases]",
            f"* = host={HOST} port={self._target.port}",
            "[pgbouncer]",
            f"listen_addr = {HOST}",
            f"listen_port = {self.port}",
            "unix_socket_dir =",
            "auth_type = scram-sha-256",
            f"auth_file = {self.place.write(self.folder / 'users.txt', users)}",
            f"pool_mode = {self._mode}",
        ]
        self.place.write(self.folder / "pgbouncer.ini", "\n".join([*lines, ""]))

    def argv(self) -> list[str]:
        return [self._program, str(self.folder / "pgbouncer.ini")]

    def answers(self) -> bool:
        try:
            psycopg.connect(self.url, connect_timeout=2).close()
        except psycopg.OperationalError:
            return False
        return True


@dataclass(frozen=True, slots=True)
class LedgerAt:
    """A ledger on a Postgres of the test's own: the URL of each role, here and through whatever stands before it."""

    home: Home
    urls: Urls
    name: str

    @classmethod
    def made(cls, postgres: Postgres) -> LedgerAt:
        """The newest schema with a login for each role; the agent's acts for `acme`."""
        made = cls(postgres.place.home, postgres.urls, "counterfoil")
        prepare_database(made.home, made.urls, made.name, ("acme",))
        return made

    def url(self, role: str, *, through: Urls | None = None) -> str:
        """The libpq URL of agent, worker, operator, reader or owner."""
        return database_url(self.home, through or self.urls, self.name, role)

    def logins(self) -> dict[str, str]:
        """The passwords of its logins by name."""
        return {login.name: self.home.secret(login.name) for login in LOGINS}
