"""How code records an intent in a transaction of its own: one statement, and never a commit.

What `enqueue` returns exists exactly if the caller's transaction commits, with the wake-up that brings it to a worker.
"""

from __future__ import annotations

import sys
from collections.abc import Awaitable, Callable, Mapping
from datetime import datetime
from typing import TYPE_CHECKING, Any, TypeGuard, cast

import psycopg
from psycopg.rows import dict_row
from sqlalchemy import Connection, text
from sqlalchemy.exc import DBAPIError
from sqlalchemy.orm import Session, scoped_session

from counterfoil.ledger.errors import ArgumentError, ConfigError, IntentConflict, LimitReached, NotAllowed, StepConflict
from counterfoil.ledger.keys import ActionId, check_step_label
from counterfoil.ledger.queries import load
from counterfoil.outbox import backlog
from counterfoil.outbox.intents import DOOR_RULES, DoorRules, Intent, check_call, check_index_row, check_run
from counterfoil.outbox.pool import Row, raise_told
from counterfoil.providers.spec import ToolSpec

if TYPE_CHECKING:
    from sqlalchemy.ext.asyncio import AsyncConnection, AsyncSession, async_scoped_session

    AsyncAlchemy = AsyncSession | async_scoped_session[AsyncSession] | AsyncConnection
    AnyAsyncConnection = AsyncAlchemy | psycopg.AsyncConnection[Any]

SyncConnection = Session | scoped_session[Session] | Connection | psycopg.Connection[Any]

_PROPOSE = load("counterfoil.ledger", "sql/agent.sql")["propose"]
_CLAUSE = text(_PROPOSE.text)
_OURS = "counterfoil.propose("
_NOTHING = "SELECT 1"


def enqueue(
    conn: SyncConnection,
    spec: ToolSpec,
    arguments: str | bytes | Mapping[str, object],
    *,
    tenant: str,
    run: str,
    step: str,
    actor: str,
    not_before: datetime | None = None,
    resource_version: str | None = None,
    rules: DoorRules = DOOR_RULES,
) -> ActionId:
    """Records the call on the caller's transaction and returns its action's id; the caller commits.

    The same (tenant, run, step) is the same action, whoever enqueues it and however often; so is what the tool's
    `once_per` calls the same. `not_before` is the earliest time of the first attempt, with its time zone;
    `resource_version` the version of what it changes that the caller has seen. Raises `ArgumentError` before any statement;
    `IntentConflict` and `StepConflict` for a step that holds something else; `NotAllowed`, also while another tool has the
    same effect on the same target under way; `LimitReached` while the tenant has too much waiting; `StepRace` when the whole
    transaction must be run again; `LedgerUnavailable`.
    """
    intent = intent_of(
        spec,
        arguments,
        tenant=tenant,
        run=run,
        step=step,
        actor=actor,
        not_before=not_before,
        resource_version=resource_version,
        rules=rules,
    )
    row: Row | None
    if isinstance(conn, psycopg.Connection):
        if conn.pgconn.pipeline_status:  # the caller's own statements are answered first, outside of our translation
            psycopg.Cursor(conn).execute(_NOTHING).fetchone()
        try:
            cursor = psycopg.Cursor(conn, row_factory=dict_row)  # whatever the connection's own cursors are
            row = cursor.execute(_PROPOSE.psycopg.encode(), intent.parameters()).fetchone()
        except psycopg.Error as error:
            raise_told(error)
    elif isinstance(conn, Session | scoped_session | Connection):
        row = _executed(conn, intent)
    else:
        raise _no_connection(
            conn, "a Session, a Connection or a psycopg Connection; `aenqueue` takes their async forms"
        )
    return _recorded(intent, row, rules)


async def aenqueue(
    conn: AnyAsyncConnection,
    spec: ToolSpec,
    arguments: str | bytes | Mapping[str, object],
    *,
    tenant: str,
    run: str,
    step: str,
    actor: str,
    not_before: datetime | None = None,
    resource_version: str | None = None,
    rules: DoorRules = DOOR_RULES,
) -> ActionId:
    """`enqueue` on an AsyncSession, an AsyncConnection or a psycopg AsyncConnection."""
    intent = intent_of(
        spec,
        arguments,
        tenant=tenant,
        run=run,
        step=step,
        actor=actor,
        not_before=not_before,
        resource_version=resource_version,
        rules=rules,
    )
    row: Row | None
    if isinstance(conn, psycopg.AsyncConnection):
        if conn.pgconn.pipeline_status:
            await (await psycopg.AsyncCursor(conn).execute(_NOTHING)).fetchone()
        try:
            cursor = psycopg.AsyncCursor(conn, row_factory=dict_row)
            await cursor.execute(_PROPOSE.psycopg.encode(), intent.parameters())
            row = await cursor.fetchone()
        except psycopg.Error as error:
            raise_told(error)
    elif _is_async_alchemy(conn):
        row = await _run_sync(conn)(_executed, intent)
    else:
        raise _no_connection(conn, "an AsyncSession, an AsyncConnection or a psycopg AsyncConnection")
    return _recorded(intent, row, rules)


def intent_of(
    spec: ToolSpec,
    arguments: str | bytes | Mapping[str, object],
    *,
    tenant: str,
    run: str,
    step: str,
    actor: str,
    not_before: datetime | None = None,
    resource_version: str | None = None,
    rules: DoorRules = DOOR_RULES,
) -> Intent:
    """What would be recorded for a call that code names itself. Raises `ArgumentError`."""
    check_run(tenant, run, actor)
    check_index_row(tenant, run, check_step_label(step), path="step")
    if not_before is not None and not_before.tzinfo is None:
        raise ArgumentError("has no time zone", path="not_before", code="no_time_zone")
    call = check_call(
        spec, arguments, tenant=tenant, run=run, actor=actor, rules=rules, expected_version=resource_version
    )
    return call.at(step, not_before=not_before)


def _recorded(intent: Intent, row: Row | None, rules: DoorRules) -> ActionId:
    """The id of the action that stands for the intent: its own, or the one that was there."""
    assert row is not None
    if row["found_by"] == "waiting":
        rules.backlog.is_full(intent.tenant)
        raise LimitReached(
            f"tenant {intent.tenant!r} has {rules.backlog.waiting_max} actions waiting.",
            limit=backlog.SETTING,
            fix="Try again when some are done. Your transaction holds nothing of this call.",
        )
    found = ActionId(str(row["action_id"]))
    if row["found_by"] == "step":
        if row["tool"] != intent.tool:
            raise StepConflict(
                f"step {intent.step!r} of this run is recorded with tool {row['tool']!r}, not {intent.tool!r}.",
                fix="Use another step name for another call.",
            )
        if row["arguments_sha256"] != intent.arguments_sha256:
            raise IntentConflict(
                f"step {intent.step!r} of this run is recorded with other arguments ({found}).",
                action_id=found,
                fix="Use another step name for another call; a recorded intent never changes.",
            )
    if row["found_by"] == "effect":
        raise NotAllowed(
            f"{row['tool']!r} has the same effect on the same target under way ({found}).",
            fix=f"Wait for its end, `cf.result({str(found)!r}, wait_s=…)`, then decide whether this is still wanted.",
        )
    return found


def _executed(conn: Session | scoped_session[Session] | Connection, intent: Intent) -> Row | None:
    """Our statement's row. A session's pending rows are flushed before it, so their errors come out as they are: only what
    our own statement meets is ours to tell."""
    if isinstance(conn, Connection):
        return _told(conn, intent)
    if conn.autoflush:
        conn.flush()
    with conn.no_autoflush:
        return _told(conn, intent)


def _told(conn: Session | scoped_session[Session] | Connection, intent: Intent) -> Row | None:
    try:
        return _as_dict(conn.execute(_CLAUSE, intent.parameters()).mappings().first())
    except DBAPIError as error:
        if error.statement is not None and _OURS not in error.statement:
            raise  # a hook of the application's ran it, such as `after_begin`
        raise_told(error)


def _run_sync(conn: AsyncAlchemy) -> Callable[..., Awaitable[Row | None]]:
    """Calls a function with the plain form of the connection; a scoped session has no such method of its own."""
    registry: Callable[[], AsyncSession] | None = getattr(conn, "registry", None)
    return cast("AsyncSession", conn if registry is None else registry()).run_sync


def _is_async_alchemy(conn: object) -> TypeGuard[AsyncAlchemy]:
    """Asked without loading SQLAlchemy's asyncio part, which needs greenlet: whoever has such an object has loaded it."""
    loaded = sys.modules.get("sqlalchemy.ext.asyncio")
    return loaded is not None and isinstance(
        conn, loaded.AsyncSession | loaded.async_scoped_session | loaded.AsyncConnection
    )


def _as_dict(row: Mapping[Any, Any] | None) -> Row | None:
    return None if row is None else dict(row)


def _no_connection(conn: object, wanted: str) -> ConfigError:
    return ConfigError(f"{type(conn).__name__} is no connection to record on.", fix=f"Pass {wanted}.")
