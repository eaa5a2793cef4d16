"""How an agent's process reaches the ledger: a pool, short statements, and every failure told as our own error.

No error carries a statement's parameters: they hold arguments.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import cache
from typing import NoReturn

import psycopg
from sqlalchemy import Connection, Engine, TextClause, create_engine, text
from sqlalchemy.exc import DBAPIError
from sqlalchemy.exc import TimeoutError as PoolTimeout

from counterfoil.ledger.errors import (
    ConfigError,
    CounterfoilError,
    LedgerUnavailable,
    NotAllowed,
    NotFound,
    RunTakenOver,
    StepRace,
)
from counterfoil.ledger.queries import Query

Row = Mapping[str, object]

RECONNECTS_MAX = 3
"""A pool's connections die together when the database restarts; the second try opens a new one."""

_OPTIONS = "-c statement_timeout=15000 -c idle_in_transaction_session_timeout=60000"


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

    def __init__(self, database: Engine | str) -> None:
        """`database` is the application's own engine, or a libpq URL for an engine of ours (5 to 15 connections)."""
        if isinstance(database, str):
            database = _engine(database)
        if not isinstance(database, Engine):
            raise ConfigError(
                f"a {type(database).__name__} is no database.", key="database", fix="Pass an Engine or a URL."
            )
        if database.dialect.name != "postgresql":
            raise ConfigError(f"the ledger is in Postgres, not in {database.dialect.name}.", key="database.url")
        self._engine = database
        self._pid = os.getpid()

    def rows(self, query: Query, params: Mapping[str, object]) -> list[Row]:
        """Runs one repeatable statement, with no transaction left open. Raises as `raise_told` does."""
        for left in reversed(range(RECONNECTS_MAX)):
            try:
                with self._connected("AUTOCOMMIT") as connection:
                    return [dict(row) for row in connection.execute(_clause(query), params).mappings()]
            except (DBAPIError, PoolTimeout) as error:
                if not (left and isinstance(error, DBAPIError) and error.connection_invalidated):
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
            with self._connected("READ COMMITTED") as connection:
                yield Transaction(connection)
                connection.commit()
        except (DBAPIError, PoolTimeout) as error:
            raise_told(error)

    def close(self) -> None:
        """Closes what is idle, and what is in use as soon as it is given back; the pool can be used again."""
        pool = self._engine.pool
        self._engine.dispose()
        pool.dispose()  # what was given back while the engine let go of it

    @contextmanager
    def _connected(self, isolation_level: str) -> Iterator[Connection]:
        if self._pid != os.getpid():
            self._engine.dispose(close=False)  # the sockets are the parent's
            self._pid = os.getpid()
        pool = self._engine.pool
        try:
            with self._engine.connect() as connection:
                yield connection.execution_options(isolation_level=isolation_level)
        finally:
            if self._engine.pool is not pool:
                pool.dispose()  # closed meanwhile, by another thread: nobody takes a connection out of this one again


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
    state = _sqlstate(cause)
    tells_no_rows = state[:2] in _TELLS_NO_ROWS
    if cause is None or not state or (tells_no_rows and _diagnosis(cause, "context") is None):
        return cause
    said = _diagnosis(cause, "message_primary") if tells_no_rows else None
    return ConcealedError(state, type(cause).__name__, _diagnosis(cause, "constraint_name"), said)


_TELLS_NO_ROWS = ("08", "25", "28", "3D", "3F", "40", "42", "53", "55", "57", "CF")
"""Classes of SQLSTATE whose messages quote no value: connections, transactions, logins, names; and our own functions'."""


def _told(cause: BaseException | None) -> CounterfoilError:
    state = _sqlstate(cause)
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
        case "40001" | "40P01":
            return StepRace("another transaction decided this step at the same time.", fix="Run the transaction again.")
        case "25P02":
            return CounterfoilError(
                "your transaction had failed before this call, so Postgres takes no statement of it.",
                fix="Its first error is the cause; roll back, and begin again.",
            )
        case "42501":
            return NotAllowed(
                "this login is not in the agents' role.",
                fix="`counterfoil db grant LOGIN --as agent --tenant TENANT`.",
            )
        case "3F000" | "42883" | "42P01":
            return ConfigError("this database has no ledger.", key="database.url", fix="Run `counterfoil db upgrade`.")
    lost = isinstance(cause, psycopg.OperationalError | psycopg.InterfaceError) and not state
    if lost or state[:2] in ("08", "28", "53", "55", "57", "3D") or _is_lost_by_asyncpg(cause):
        why = " ".join((_diagnosis(cause, "message_primary") or str(cause)).split())[:300]
        return LedgerUnavailable(
            f"the database cannot be used now: {why}.", fix="Is it running, and is [database] url right?"
        )
    return CounterfoilError(f"the ledger refused a statement (SQLSTATE {state or 'none'}, {type(cause).__name__}).")


def _sqlstate(cause: BaseException | None) -> str:
    return str(getattr(cause, "sqlstate", None) or getattr(cause, "pgcode", None) or "")


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
    return not _sqlstate(cause) and bool(names & {"InterfaceError", "OSError"}) and "AsyncAdapt" in repr(type(cause))


def _engine(url: str) -> Engine:
    """libpq reads the URL itself, so that agents and workers may share one, sockets and several hosts included."""
    address = url.replace("postgresql+psycopg://", "postgresql://", 1)

    def connect() -> psycopg.Connection[object]:
        try:
            return psycopg.connect(address, connect_timeout=5, application_name="counterfoil-agent", options=_OPTIONS)
        except psycopg.ProgrammingError:
            problem = "the database URL cannot be read."
        raise ConfigError(problem, key="database.url")  # outside the handler: libpq quotes the URL with its password

    return create_engine("postgresql+psycopg://", creator=connect, hide_parameters=True, pool_use_lifo=True)


@cache
def _clause(query: Query) -> TextClause:
    return text(query.text)
