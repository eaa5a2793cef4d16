"""Postgres and Valkey of one home as one thing: started together, found again, stopped together."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import get_args

from counterfoil.stack.home import Home, PostgresMajor
from counterfoil.stack.postgres import SECRET as POSTGRES_SECRET
from counterfoil.stack.postgres import SUPERUSER, Postgres
from counterfoil.stack.server import HOST
from counterfoil.stack.valkey import SECRET as VALKEY_SECRET
from counterfoil.stack.valkey import Valkey


@dataclass(frozen=True, slots=True, kw_only=True)
class Urls:
    """How to reach the services. Holds passwords, which its repr leaves out."""

    host: str
    port: int
    user: str
    """Postgres' superuser."""
    password: str = field(repr=False)
    valkey: str = field(repr=False)
    """`redis://:password@127.0.0.1:port/0`"""

    @property
    def postgres(self) -> str:
        """The superuser's libpq URL of the database `postgres`."""
        return self.postgres_as(self.user, self.password, "postgres")

    def postgres_as(self, user: str, password: str, database: str) -> str:
        """A libpq URL of this server; user and password must be URL-safe, as ours are."""
        return f"postgresql://{user}:{password}@{self.host}:{self.port}/{database}"


class Services:
    """The two servers of a home. Any number of processes may call these at the same time."""

    @staticmethod
    def start(home: Home) -> Urls:
        """Start what is not running, wait until both answer (at most 60 s each) and tell where they are. Idempotent.

        Servers are shared by all processes of the home and outlive the caller, even a killed one: only `stop` ends
        them. Raises StackError, which names the log to read.
        """
        postgres, valkey = Postgres(home), Valkey(home)
        with home.lock():
            valkey.launch()  # first, so that it starts while initdb runs
            postgres.launch()
            valkey_port = valkey.wait()
            return _urls(home, postgres.wait(), valkey_port)

    @staticmethod
    def last(home: Home) -> Urls | None:
        """Where the servers are, or were when they last ran; starts nothing. None if they never ran."""
        postgres_port, valkey_port = Postgres(home).port, Valkey(home).port
        return _urls(home, postgres_port, valkey_port) if postgres_port and valkey_port else None

    @staticmethod
    def running(home: Home) -> bool:
        """Whether both servers are alive; says nothing about whether they answer."""
        return Postgres(home).process() is not None and Valkey(home).process() is not None

    @staticmethod
    def revive(home: Home) -> list[str]:
        """Launch again what has died, on the port where everybody looks for it; the names of what was launched.

        Does not wait until it answers. While somebody else has the port, nothing is launched.
        """
        dead = [server for server in (Postgres(home), Valkey(home)) if server.process() is None]
        if not dead:
            return []
        with home.lock():
            return [server.program for server in dead if server.relaunch()]

    @staticmethod
    def stop(home: Home) -> None:
        """Stop this home's servers, in every Postgres version, and no others; data stays. Idempotent.

        Raises StackError if one cannot be ended.
        """
        with home.lock():
            Valkey(home).stop()
            for major in get_args(PostgresMajor):
                Postgres(replace(home, postgres_major=major)).stop()


def _urls(home: Home, postgres_port: int, valkey_port: int) -> Urls:
    return Urls(
        host=HOST,
        port=postgres_port,
        user=SUPERUSER,
        password=home.secret(POSTGRES_SECRET),
        valkey=f"redis://:{home.secret(VALKEY_SECRET)}@{HOST}:{valkey_port}/0",
    )
