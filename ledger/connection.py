"""Decides how a worker talks to Postgres: one autocommit connection, one statement a write, every loss of it told.

A statement that fails with a serialisation failure or a deadlock has done nothing and is run again, a few times. A lost
connection leaves the outcome of the running statement unknown: statements that may be repeated (all our compare-and-set
writes but the claim) are repeated on a new connection; for the claim the caller reads the row again.
"""

from __future__ import annotations

import random
import time
from collections.abc import Mapping
from typing import Any

import psycopg
from psycopg.rows import dict_row

from counterfoil.ledger.errors import LedgerUnavailable, NotAllowed
from counterfoil.ledger.queries import Query

Row = dict[str, Any]
"""One row of a query, by column name; the typed records of `claims` and `verdicts` are made from it."""

CONFLICTS_MAX = 5
"""Runs of one statement after serialisation failures or deadlocks; they end within milliseconds, so five are plenty."""

RECONNECTS_MAX = 3
"""Connections tried for one repeatable statement; a database that is away longer is an outage, told to the caller."""

_OPTIONS = "-c statement_timeout=15000 -c idle_in_transaction_session_timeout=60000"


class Ledger:
    """One connection to the ledger's database. Not thread-safe, not to be carried over a fork."""

    def __init__(self, url: str, *, application_name: str = "counterfoil") -> None:
        self._url = url.replace("postgresql+psycopg://", "postgresql://")
        self._application_name = application_name
        self._connection: psycopg.Connection[Row] | None = None

    def rows(self, query: Query, params: Mapping[str, object], *, repeatable: bool = True) -> list[Row]:
        """Runs one statement in a transaction of its own and returns its rows.

        Raises `LedgerUnavailable` when the database cannot be reached, when the statement met nothing but conflicts, or
        (not `repeatable`) when the connection was lost while it ran, so that nobody knows whether it committed.
        """
        for left in reversed(range(RECONNECTS_MAX if repeatable else 1)):
            try:
                return self._run(self._connected(), query, params)
            except (psycopg.OperationalError, psycopg.InterfaceError) as error:
                self.close()
                if not left:
                    raise LedgerUnavailable(
                        f"the connection was lost while {query.name} ran; its outcome is unknown.",
                        fix="The row is read again before anything is sent.",
                    ) from error
        raise AssertionError("unreachable")

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

    def _connected(self) -> psycopg.Connection[Row]:
        if self._connection is None or self._connection.closed:
            try:
                self._connection = psycopg.Connection[Row].connect(
                    self._url,
                    autocommit=True,
                    row_factory=dict_row,
                    connect_timeout=5,
                    application_name=self._application_name,
                    options=_OPTIONS,
                    # A host that vanishes without a word is noticed within half a minute, not within hours.
                    keepalives_idle=10,
                    keepalives_interval=5,
                    keepalives_count=3,
                    tcp_user_timeout=20_000,
                )
            except psycopg.OperationalError as error:
                raise LedgerUnavailable(
                    "cannot connect to the database.", fix="Is it running, and is [database] url right?"
                ) from error
        return self._connection

    def _run(self, connection: psycopg.Connection[Row], query: Query, params: Mapping[str, object]) -> list[Row]:
        for left in reversed(range(CONFLICTS_MAX)):
            try:
                cursor = connection.execute(query.psycopg.encode(), params)
                return cursor.fetchall() if cursor.description is not None else []
            except (psycopg.errors.SerializationFailure, psycopg.errors.DeadlockDetected) as error:
                if not left:
                    raise LedgerUnavailable(
                        f"{query.name} met {CONFLICTS_MAX} conflicts in a row and changed nothing.",
                        fix="Something holds the same rows for long: look for open transactions.",
                    ) from error
                time.sleep(random.uniform(0.001, 0.020))
            except psycopg.errors.InsufficientPrivilege as error:
                raise NotAllowed(
                    f"this database login has no right to that ({query.name}).",
                    fix="Log in as a member of the right group: `counterfoil db check` shows which login this is. It is the"
                    " one in COUNTERFOIL_DATABASE__URL where that is set, as in an agent's shell.",
                ) from error
        raise AssertionError("unreachable")
