"""How an agent's process reaches the ledger: a pool, short statements, and every failure told as our own error.

No error carries a statement's parameters: they hold arguments.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import cache
from typing import NoReturn

from sqlalchemy import Connection, Engine, ExceptionContext, TextClause, create_engine, event, text
from sqlalchemy.exc import DBAPIError
from sqlalchemy.exc import TimeoutError as PoolTimeout

from counterfoil.ledger.address import Address
from counterfoil.ledger.connecting import SET_LOCAL, connect, left_s, within
from counterfoil.ledger.errors import (
    ConfigError,
    CounterfoilError,
    LedgerUnavailable,
    NotAllowed,
    NotFound,
    RunTakenOver,
    StepRace,
)
from counterfoil.ledger.faults import Fault, fault_of, said_of, sqlstate_of
from counterfoil.ledger.queries import Query

Row = Mapping[str, object]

RECONNECTS_MAX = 3
"""A pool's connections die together when the database restarts; the second try opens a new one."""

CONNECTIONS_MAX = 15
"""Of one process's own pool: statements are short, so that each serves many calls a second."""

OPERATION_S = 8.0
"""One read or one transaction takes at most this long in all, by this process's clock, whatever has become of the server:
new connections, repeats and the wait for a free one are within it. A call's own wait comes on top."""


class Transaction:
    """One open transaction; READ COMMITTED, so that each statement sees what was committed before it."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    def row(self, query: Query, params: Mapping[str, object]) -> Row | None:
        """The statement's only row, or None. Raises as `raise_told` does."""
        try:
            found = self._connection.execute(_clause(query), params).mappings().first()
        except DBAPIError as error:
            raise_told(error)
        return None if found is None else dict(found)

    def rows(self, query: Query, params: Mapping[str, object]) -> list[Row]:
        """All of the statement's rows. Raises as `raise_told` does."""
        try:
            return [dict(row) for row in self._connection.execute(_clause(query), params).mappings()]
        except DBAPIError as error:
            raise_told(error)

    def rollback(self) -> None:
        """Nothing of it happened; no statement may follow."""
        self._connection.rollback()


class LedgerPool:
    """Connections to the ledger. Thread-safe; in a forked child it begins anew and leaves the parent's alone."""

    def __init__(self, database: Engine | str | Address) -> None:
        """`database` is the application's own engine, or an address for an engine of ours (5 to 15 connections)."""
        self._is_ours = isinstance(database, str | Address)
        if isinstance(database, str | Address):
            database = _engine(database)
        if not isinstance(database, Engine):
            raise ConfigError(
                f"a {type(database).__name__} is no database.", key="database", fix="Pass an Engine or a URL."
            )
        if database.dialect.name != "postgresql":
            raise ConfigError(f"the ledger is in Postgres, not in {database.dialect.name}.", key="database.url")
        self._engine = database
        self._pid = os.getpid()
        self._free = threading.BoundedSemaphore(CONNECTIONS_MAX)
        self._is_closed = False

    def rows(self, query: Query, params: Mapping[str, object]) -> list[Row]:
        """Runs one repeatable statement, with no transaction left open. Raises as `raise_told` does."""
        with within(OPERATION_S):
            for left in reversed(range(RECONNECTS_MAX)):
                try:
                    with self._connected("AUTOCOMMIT") as connection:
                        return [dict(row) for row in connection.execute(_clause(query), params).mappings()]
                except (DBAPIError, PoolTimeout) as error:
                    if not left or not (isinstance(error, DBAPIError) and fault_of(error.orig).drops):
                        raise_told(error)
        raise AssertionError("unreachable")

    def row(self, query: Query, params: Mapping[str, object]) -> Row | None:
        """The same for a statement that returns at most one row."""
        found = self.rows(query, params)
        assert len(found) <= 1, f"{query.name} returned {len(found)} rows"
        return found[0] if found else None

    @contextmanager
    def transaction(self) -> Iterator[Transaction]:
        """Commits at the end of the block, rolls back when it raises. A lost COMMIT is `LedgerUnavailable`, too."""
        try:
            with within(OPERATION_S), self._connected("READ COMMITTED") as connection:
                if getattr(connection.connection.driver_connection, "is_pooled", False):
                    connection.exec_driver_sql(SET_LOCAL)
                yield Transaction(connection)
                connection.commit()
        except (DBAPIError, PoolTimeout) as error:
            raise_told(error)

    def close(self) -> None:
        """Closes what is idle, and what is in use as soon as it is given back. What is used later is closed at once: it may
        be a call that a cancelled task has abandoned. An application's own engine is left alone."""
        if self._is_ours:
            self._is_closed = True
            self._engine.dispose()

    @contextmanager
    def _connected(self, isolation_level: str) -> Iterator[Connection]:
        if self._is_ours and self._pid != os.getpid():
            self._engine.dispose(close=False)  # the sockets are the parent's, and so are those who hold the semaphore
            self._pid, self._free = os.getpid(), threading.BoundedSemaphore(CONNECTIONS_MAX)
        pool = self._engine.pool
        try:
            with self._place(), self._engine.connect() as connection:
                try:
                    yield connection.execution_options(isolation_level=isolation_level)
                except (DBAPIError, CounterfoilError) as error:  # the latter from the former: `raise_told`
                    if fault_of(error.orig if isinstance(error, DBAPIError) else error.__cause__).drops:
                        connection.invalidate()  # also where the driver knows nothing of it: a node that takes no writes
                    raise
        finally:
            if self._is_closed:
                pool.dispose()
                self._engine.pool.dispose()

    @contextmanager
    def _place(self) -> Iterator[None]:
        """One of our pool's connections, which is waited for within the bound; an own engine waits as it is told to."""
        if not self._is_ours:
            yield
            return
        free = self._free
        if not free.acquire(timeout=min(left_s(), OPERATION_S)):
            raise LedgerUnavailable(
                f"none of this process's {CONNECTIONS_MAX} connections became free.", fix="The same call again is safe."
            )
        try:
            yield
        finally:
            free.release()


def raise_told(error: Exception) -> NoReturn:
    """Raises what a database error means to the caller.

    `NotAllowed` (tenant, role, or the run takes no action), `RunTakenOver`, `StepRace` (run the transaction again),
    `LedgerUnavailable`, `ConfigError` (no ledger there), else a plain `CounterfoilError` with the SQLSTATE. The driver's
    error is its cause, unless that one's text may hold a row of ours.
    """
    if isinstance(error, PoolTimeout):
        raise LedgerUnavailable("no connection of the pool became free.", fix="Use a larger pool.") from error
    cause = error.orig if isinstance(error, DBAPIError) else error
    # Not from `error`: SQLAlchemy's text quotes the parameters.
    raise _told(cause) from _harmless(cause)


class ConcealedError(Exception):
    """What may be said of a driver's error whose text may quote arguments: SQLSTATE, constraint, `said` if that is safe."""

    def __init__(self, sqlstate: str, kind: str, constraint: str | None, said: str | None = None) -> None:
        where = f", constraint {constraint}" if constraint else ""
        super().__init__(f"{kind}, SQLSTATE {sqlstate or 'none'}{where}" + (f": {said}" if said else ""))
        self.sqlstate = sqlstate


def _harmless(cause: BaseException | None) -> BaseException | None:
    """The driver's error where its text is about names, logins and connections; else what may be said of it.

    Its CONTEXT holds a statement's parameters where `log_parameter_max_length_on_error` is set, whatever the SQLSTATE.
    """
    state = sqlstate_of(cause)
    tells_no_rows = state[:2] in _TELLS_NO_ROWS
    if cause is None or not state or (tells_no_rows and _diagnosis(cause, "context") is None):
        return cause
    said = _diagnosis(cause, "message_primary") if tells_no_rows else None
    return ConcealedError(state, type(cause).__name__, _diagnosis(cause, "constraint_name"), said)


_TELLS_NO_ROWS = ("08", "25", "28", "3D", "3F", "40", "42", "53", "55", "57", "CF")
"""Classes of SQLSTATE whose messages quote no value: connections, transactions, logins, names; and our own functions'."""


def _told(cause: BaseException | None) -> CounterfoilError:
    state = sqlstate_of(cause)
    said = _diagnosis(cause, "message_primary") or "refused by the ledger"
    match state:
        case "CF403":
            return NotAllowed(
                f"{said}.", fix="A login gets a tenant by `counterfoil db grant`." if said.startswith("login ") else ""
            )
        case "CF404":
            return NotFound(f"{said}.")
        case "CF410":
            return RunTakenOver(f"{said}.", fix="Stop here: the other handle goes on with it.")
        case "25P02":
            return CounterfoilError(
                "your transaction had failed before this call, so Postgres takes no statement of it.",
                fix="Its first error is the cause; roll back, and begin again.",
            )
    why = "it did not answer" if cause is None else said_of(cause)
    match fault_of(cause):
        case Fault.CONFLICT:
            return StepRace("another transaction decided this step at the same time.", fix="Run the transaction again.")
        case Fault.REFUSED if state == "42501":
            return NotAllowed(
                "this login is not in the agents' role.",
                fix="`counterfoil db grant LOGIN --as agent --tenant TENANT`.",
            )
        case Fault.NO_LEDGER if state == "42703":
            return ConfigError(
                "this database's ledger is another version's.", key="database.url", fix="Run `counterfoil db upgrade`."
            )
        case Fault.NO_LEDGER:
            return ConfigError("this database has no ledger.", key="database.url", fix="Run `counterfoil db upgrade`.")
        case Fault.STALE:
            return LedgerUnavailable(
                f"what this connection had prepared is not there: {why}.",
                fix="Behind a pooler a connection of your own prepares nothing: psycopg.connect(…, prepare_threshold=None).",
            )
        case Fault.READ_ONLY:
            return LedgerUnavailable(
                "the database takes no writes, so nothing was recorded.",
                fix="Is it a standby, or was it demoted? [database] url may name several hosts: HOST1,HOST2.",
            )
        case Fault.OURS if not _is_lost_by_asyncpg(cause):
            return CounterfoilError(
                f"the ledger refused a statement (SQLSTATE {state or 'none'}, {type(cause).__name__})."
            )
    return LedgerUnavailable(
        f"the database cannot be used now: {why}.", fix="Is it running, and is [database] url right?"
    )


def _diagnosis(cause: BaseException | None, name: str) -> str | None:
    """A field of the server's error: psycopg's `diag` has it, or the error of asyncpg that SQLAlchemy's stands for.

    The messages of our own functions name logins and states only.
    """
    found = getattr(getattr(cause, "diag", None), name, None)
    inner = getattr(cause, "__cause__", None)
    if found is None and inner is not None:
        found = getattr(inner, "message" if name == "message_primary" else name, None)
    return None if found is None else str(found)


def _is_lost_by_asyncpg(cause: BaseException | None) -> bool:
    """A closed or broken connection, for which asyncpg has no SQLSTATE."""
    names = {kind.__name__ for error in (cause, getattr(cause, "__cause__", None)) for kind in type(error).__mro__}
    return not sqlstate_of(cause) and bool(names & {"InterfaceError", "OSError"}) and "AsyncAdapt" in repr(type(cause))


def _engine(address: str | Address) -> Engine:
    """libpq reads the address itself, so that agents and workers may share one, sockets and several hosts included."""
    engine = create_engine(
        "postgresql+psycopg://",
        creator=lambda: connect(address, application_name="counterfoil-agent"),
        hide_parameters=True,
        pool_use_lifo=True,
        pool_size=5,
        max_overflow=CONNECTIONS_MAX - 5,
        pool_timeout=OPERATION_S,
    )

    def drop_all(context: ExceptionContext) -> None:
        """The others of the pool were made at the same host, and before."""
        context.is_disconnect |= fault_of(context.original_exception).drops

    event.listen(engine, "handle_error", drop_all)
    return engine


@cache
def _clause(query: Query) -> TextClause:
    return text(query.text)
