"""Databases for tests, each with the newest schema and empty tables: clones of one template, used again where that is safe.

To clone and drop a database takes longer than most tests. So what a test leaves behind is emptied and given to the next one,
unless somebody is still connected or anything but rows has changed (see `as_new.sql`): then it is dropped.
"""

from __future__ import annotations

import threading
import time
import uuid
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

import psycopg
from psycopg import sql

from counterfoil.stack.databases import database_url
from counterfoil.stack.home import Home
from counterfoil.stack.services import Urls

AS_NEW = Path(__file__).with_name("as_new.sql")
USES_MAX = 25
"""Then it holds enough dead versions of rows to be dropped."""
LEFT_WITHIN_S = 0.2
"""So long the server may take to notice that a client is gone; who is still there then is cut off, with the database."""

UNDURABLE = {
    "fsync": "off",
    "synchronous_commit": "off",
    "full_page_writes": "off",
    "autovacuum": "off",
    "scram_iterations": "1",
}
"""For the server that all tests share, which none kills: only one that is killed must keep what it has said. A password's
hash costs a client more than most of its queries, a test has ten connections, and the passwords guard empty tables."""


def prepare_template(urls: Urls, name: str) -> None:
    """Lets clones of this database be used again; from then on nobody may connect to it."""
    with psycopg.connect(urls.postgres_as(urls.user, urls.password, name), autocommit=True) as connection:
        connection.execute(AS_NEW.read_bytes())
        own = connection.pgconn.encrypt_password(urls.password.encode(), urls.user.encode(), b"scram-sha-256").decode()
        connection.execute(sql.SQL("ALTER ROLE {} PASSWORD {}").format(sql.Identifier(urls.user), sql.Literal(own)))
    with psycopg.connect(urls.postgres, autocommit=True) as connection:
        closed = sql.SQL("ALTER DATABASE {} ALLOW_CONNECTIONS false IS_TEMPLATE true")
        connection.execute(closed.format(sql.Identifier(name)))


@dataclass(slots=True)
class Clones:
    """The databases of one test process."""

    home: Home
    urls: Urls
    template: str
    _free: list[str] = field(default_factory=list)
    _uses: Counter[str] = field(default_factory=Counter)

    def take(self) -> str:
        """The name of a database that is as the template."""
        if self._free:
            return self._free.pop()
        name = f"cf_{uuid.uuid4().hex[:12]}"
        # WAL_LOG: half the time of FILE_COPY here, which forces two checkpoints.
        self._run("CREATE DATABASE {} TEMPLATE {} STRATEGY WAL_LOG", name, self.template)
        return name

    def give_back(self, name: str) -> None:
        """Whoever took it needs it no more."""
        self._uses[name] += 1
        if self._uses[name] < USES_MAX and self._is_left(name) and self._is_as_new(name):
            self._free.append(name)
        else:
            self._run("DROP DATABASE {} WITH (FORCE)", name)

    def _is_left(self, name: str) -> bool:
        pause, deadline = threading.Event(), time.monotonic() + LEFT_WITHIN_S
        with psycopg.connect(self.urls.postgres, autocommit=True) as connection:
            here = "SELECT FROM pg_stat_activity WHERE datname = %s LIMIT 1"
            while connection.execute(here, (name,)).rowcount:
                if time.monotonic() > deadline:
                    return False
                pause.wait(0.005)
        return True

    def _is_as_new(self, name: str) -> bool:
        url = database_url(self.home, self.urls, name, "owner")
        with psycopg.connect(url) as connection:
            row = connection.execute("SELECT cf_test.make_as_new()").fetchone()
        return row == (True,)

    def _run(self, statement: str, *names: str) -> None:
        with psycopg.connect(self.urls.postgres, autocommit=True) as connection:
            connection.execute(sql.SQL(statement).format(*map(sql.Identifier, names)))  # type: ignore[arg-type]
