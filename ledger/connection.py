"""Decides how a worker talks to Postgres: one autocommit connection, one statement a write, every loss of it told.

A statement that certainly did nothing (a conflict, a node that takes no writes) is run again, a few times. A lost
connection leaves the outcome of the running statement unknown: statements that may be repeated (all our compare-and-set
writes but the claim) are repeated on a new connection; for the claim the caller reads the row again.
"""

from __future__ import annotations

import random
import time
from collections.abc import Mapping
from typing import Any, Never

import psycopg
from psycopg.rows import dict_row

from counterfoil.ledger.address import Address, address_of
from counterfoil.ledger.connecting import LedgerConnection, connect
from counterfoil.ledger.errors import LedgerUnavailable, NotAllowed
from counterfoil.ledger.faults import Fault, fault_of, said_of
from counterfoil.ledger.queries import Query, load

Row = dict[str, Any]
"""One row of a query, by column name; the typed records of `claims` and `verdicts` are made from it."""

CONFLICTS_MAX = 5
"""Runs of one statement after serialisation failures or deadlocks; they end within milliseconds, so five are plenty."""

RECONNECTS_MAX = 3
"""Connections tried for one repeatable statement; a database that is away longer is an outage, told to the caller."""


_SQL = load("counterfoil.ledger", "sql/connection.sql")


class Ledger:
    """One connection to the ledger's database. Not thread-safe, not to be carried over a fork."""

    def __init__(
        self, database: str | Address, *, application_name: str = "counterfoil", needs_schema: bool = True
    ) -> None:
        """`needs_schema`: a schema that this version cannot use is refused at each connection, as `ConfigError`."""
        self._address = address_of(database)
        self._application_name = application_name
        self._needs_schema = needs_schema
        self._connection: LedgerConnection | None = None

    def rows(self, query: Query, params: Mapping[str, object], *, repeatable: bool = True) -> list[Row]:
        """Runs one statement in a transaction of its own and returns its rows.

        Raises `LedgerUnavailable` when the database cannot be reached or used, when the statement met nothing but
        conflicts, or (not `repeatable`) when the connection was lost while it ran, so that nobody knows whether it
        committed; `ConfigError` when the schema is another version's; `NotAllowed`.
        """
        for left in reversed(range(RECONNECTS_MAX)):
            try:
                return self._run(self.connected(), query, params)
            except psycopg.Error as error:
                fault = fault_of(error)
                if fault.drops:
                    self.close()
                if not fault.drops or not left or not (repeatable or fault.did_nothing):
                    _raise_told(error, fault, query)
        raise AssertionError("unreachable")

    def check_worker(self) -> str | None:
        """Before a relay, a worker or a listener begins: raises `ConfigError` or `NotAllowed` where it could do nothing
        here, ever. Returns why the database cannot be reached now, for which every process waits."""
        try:
            found = self.row(_SQL["worker_s_right"], {})
        except LedgerUnavailable as error:
            return str(error)
        assert found is not None
        if not found["is_worker"]:
            raise NotAllowed(
                f"login {found['login']} is not in the workers' group.",
                fix=f"`counterfoil db grant {found['login']} --as worker --tenant '*'`, or another login in [database] url.",
            )
        return None

    def row(self, query: Query, params: Mapping[str, object], *, repeatable: bool = True) -> Row | None:
        """The same for a statement that returns at most one row."""
        found = self.rows(query, params, repeatable=repeatable)
        assert len(found) <= 1, f"{query.name} returned {len(found)} rows"
        return found[0] if found else None

    def close(self) -> None:
        """Closes the connection; the next statement opens a new one."""
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.close()

    def connected(self) -> LedgerConnection:
        """The connection, opened if there is none. Raises `LedgerUnavailable` or `ConfigError`."""
        if self._connection is None or self._connection.closed:
            self._connection = connect(
                self._address,
                application_name=self._application_name,
                needs_schema=self._needs_schema,
                row_factory=dict_row,
            )
        return self._connection

    def _run(self, connection: LedgerConnection, query: Query, params: Mapping[str, object]) -> list[Row]:
        for left in reversed(range(CONFLICTS_MAX)):
            try:
                cursor = connection.execute(query.psycopg.encode(), params)
                return cursor.fetchall() if cursor.description is not None else []
            except psycopg.Error as error:
                if not left or fault_of(error) is not Fault.CONFLICT:
                    raise
                time.sleep(random.uniform(0.001, 0.020))
        raise AssertionError("unreachable")


def _raise_told(error: psycopg.Error, fault: Fault, query: Query) -> Never:
    """What is left of an error when nothing more is tried: ours are raised as they are."""
    match fault:
        case Fault.AWAY:
            raise LedgerUnavailable(
                f"the connection was lost while {query.name} ran; its outcome is unknown.",
                fix="The row is read again before anything is sent.",
            ) from error
        case Fault.CONFLICT:
            raise LedgerUnavailable(
                f"{query.name} met {CONFLICTS_MAX} conflicts in a row and changed nothing.",
                fix="Something holds the same rows for long: look for open transactions.",
            ) from error
        case Fault.READ_ONLY:
            raise LedgerUnavailable(
                f"the database takes no writes ({query.name} changed nothing).",
                fix="Is it a standby, or was it demoted? [database] url may name several hosts: HOST1,HOST2.",
            ) from error
        case Fault.BUSY | Fault.STALE:
            raise LedgerUnavailable(
                f"the database could not run {query.name}, which changed nothing: {said_of(error)}.",
                fix="It is tried again.",
            ) from error
        case Fault.REFUSED:
            raise NotAllowed(
                f"this database login has no right to that ({query.name}).",
                fix="Log in as a member of the right group: `counterfoil db check` shows which login this is. It is the"
                " one in COUNTERFOIL_DATABASE__URL where that is set, as in an agent's shell.",
            ) from error
        case _:
            raise error
