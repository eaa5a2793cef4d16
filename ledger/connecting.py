"""The one way to Postgres: every process connects here, with the same parameters and a bound on each wait.

The bound is this process's own clock, so that it holds for a server that is stopped and not gone, whose kernel goes on
answering. What lasts for a session is set only where the session is ours: behind a pooler the next transaction may run on
another server connection, and this one is handed to somebody else.
"""

from __future__ import annotations

import math
import os
import time
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, TypeVar

import psycopg
from psycopg.conninfo import conninfo_to_dict
from psycopg.rows import tuple_row

from counterfoil.ledger.address import Address, address_of
from counterfoil.ledger.errors import ConfigError, LedgerUnavailable
from counterfoil.ledger.faults import said_of
from counterfoil.ledger.queries import load
from counterfoil.ledger.schema import check_schema

T = TypeVar("T")

CONNECT_S = 5
"""For each host, unless the address has a `connect_timeout`; an answer to a new connection takes milliseconds."""

STATEMENT_S = 15
"""The server ends a statement of ours that runs for longer; the longest are sweeps of some hundred milliseconds."""

IDLE_S = 60
"""The server ends a transaction of a client that has fallen silent, since it may hold the run's lock."""

ANSWER_S = 20.0
"""The client ends its wait for one answer: later than the server's own limit, so that it speaks first if it can."""

PARAMETERS: dict[str, Any] = {
    "client_encoding": "utf8",  # PGCLIENTENCODING is another program's
    # A host that vanishes without a word is noticed by the kernel within half a minute, not within hours.
    "keepalives": 1,
    "keepalives_idle": 10,
    "keepalives_interval": 5,
    "keepalives_count": 3,
    "tcp_user_timeout": 20_000,
}

SET_LOCAL = (
    f"SET LOCAL statement_timeout = '{STATEMENT_S}s'; SET LOCAL idle_in_transaction_session_timeout = '{IDLE_S}s'"
)
"""Behind a pooler, the first statement of a transaction that holds a lock while its client thinks."""

_SQL = load("counterfoil.ledger", "sql/connection.sql")

_ends_at: ContextVar[float] = ContextVar("counterfoil_ends_at", default=math.inf)


class AnswerOverdue(psycopg.OperationalError):
    """The server took longer to answer than this process waits. Whether the statement took effect is unknown."""


class LedgerConnection(psycopg.Connection[Any]):
    """A connection whose every wait ends by this process's clock. One that overran is closed."""

    answer_s: float = ANSWER_S
    is_pooled: bool = False
    """Something between us and Postgres hands server connections around: nothing may last for a session."""

    def wait(self, gen: Generator[Any, Any, T], *args: Any, **kwargs: Any) -> T:
        """Waits as psycopg does, until the answer is there or overdue."""
        wait: Any = super().wait
        try:
            return wait(_until(gen, min(time.monotonic() + self.answer_s, _ends_at.get())), *args, **kwargs)  # type: ignore[no-any-return]
        except AnswerOverdue:
            self.pgconn.finish()  # what comes yet would be taken for the answer to something else
            raise


@contextmanager
def within(seconds: float) -> Iterator[None]:
    """Ends every wait of this thread's statements, and of new connections, after `seconds` in all."""
    token = _ends_at.set(min(_ends_at.get(), time.monotonic() + seconds))
    try:
        yield
    finally:
        _ends_at.reset(token)


def left_s() -> float:
    """Seconds until the bound that holds here; infinite where none does."""
    return max(0.0, _ends_at.get() - time.monotonic())


def connect(
    database: str | Address,
    *,
    application_name: str,
    needs_schema: bool = True,
    limits: bool = True,
    autocommit: bool = True,
    row_factory: Any = tuple_row,
) -> LedgerConnection:
    """A new connection, to a host that takes writes where several are named.

    `limits`: statements have the server's and the client's limits (a migration has neither). Raises `LedgerUnavailable`;
    `ConfigError` for an address that libpq cannot read and, with `needs_schema`, for a schema that this version cannot use.
    """
    address = address_of(database)
    if left_s() <= 0:
        raise LedgerUnavailable("the database did not answer in time.", fix="The same call again is safe.")
    try:
        connection = LedgerConnection.connect(
            address.libpq,
            autocommit=True,
            application_name=application_name[:63],
            **PARAMETERS,
            **_for_hosts(address, left_s()),
        )
        try:
            _introduced(connection, address, limits=limits, needs_schema=needs_schema)
            connection.autocommit = autocommit
            connection.row_factory = row_factory
            return connection
        except BaseException:
            connection.close()
            raise
    except psycopg.ProgrammingError:
        problem = ConfigError(
            "the database URL cannot be read.",
            key="database.url",
            fix="postgresql://LOGIN:PASSWORD@HOST:5432/DATABASE; special characters of a password are percent-encoded.",
        )
    except psycopg.Error as error:
        raise LedgerUnavailable(
            f"cannot connect to the database: {said_of(error)}.", fix="Is it running, and is [database] url right?"
        ) from error
    raise problem  # outside the handler: libpq quotes the URL with its password


def _introduced(connection: LedgerConnection, address: Address, *, limits: bool, needs_schema: bool) -> None:
    """Finds out who serves this connection and which schema is there; sets the limits where the session is ours."""
    said = connection.execute(_SQL["introduce"].psycopg.encode()).fetchone()
    assert said is not None
    pid, has_ledger, comment = said
    is_direct = pid == connection.info.backend_pid
    connection.is_pooled = not is_direct if address.pooler == "auto" else address.pooler == "transaction"
    if connection.is_pooled:
        connection.prepare_threshold = None  # a name would be looked up on another server connection
    elif limits:
        set_limits = {"statement_ms": str(STATEMENT_S * 1000), "idle_ms": str(IDLE_S * 1000)}
        connection.execute(_SQL["set_limits"].psycopg.encode(), set_limits)
    if not limits:
        connection.answer_s = math.inf
    if needs_schema:
        check_schema(has_ledger=has_ledger, comment=comment)


def _for_hosts(address: Address, left_s: float) -> dict[str, Any]:
    """Where several hosts are named, the one that takes writes is meant, unless the address says otherwise; each of them
    gets its part of what is left of a bound."""
    known = {name: os.environ.get(variable) for name, variable in _LIBPQ_VARIABLES.items()}
    known |= conninfo_to_dict(address.libpq)  # type: ignore[arg-type]
    hosts = str(known.get("host") or "")
    if "@" in hosts:
        raise psycopg.ProgrammingError  # the end of a password that is not percent-encoded
    count = max(hosts.count(","), str(known.get("hostaddr") or "").count(",")) + 1
    given = str(known.get("connect_timeout") or "")
    if given and not given.isdigit():
        raise psycopg.ProgrammingError
    connect_s = int(given or 0) or CONNECT_S
    wants_writes = count > 1 and not known.get("target_session_attrs")
    return {
        "connect_timeout": math.ceil(max(2, min(connect_s, left_s / count))),  # libpq's own least is 2
        **({"target_session_attrs": "read-write"} if wants_writes else {}),
    }


_LIBPQ_VARIABLES = {
    "host": "PGHOST",
    "hostaddr": "PGHOSTADDR",
    "target_session_attrs": "PGTARGETSESSIONATTRS",
    "connect_timeout": "PGCONNECT_TIMEOUT",
}
"""What libpq reads where the address leaves it out."""


def _until(gen: Generator[Any, Any, T], end: float) -> Generator[Any, Any, T]:
    """Hands on what the driver waits for. It is woken up ten times a second, also when nothing comes."""
    try:
        wanted = next(gen)
        while True:
            ready = yield wanted
            if not ready and time.monotonic() >= end:
                raise AnswerOverdue("the server did not answer in time")
            wanted = gen.send(ready)
    except StopIteration as done:
        return done.value  # type: ignore[no-any-return]
