"""What the unwind may read and write: the runs to take back, their steps, and counter-actions recorded before."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Literal

from counterfoil.ledger.connection import Ledger
from counterfoil.ledger.queries import load
from counterfoil.ledger.states import State

_SQL = load("counterfoil.ledger", "sql/unwind.sql")
_CANCEL = load("counterfoil.ledger", "sql/reconciler.sql")["request_cancel"]

RunState = Literal["open", "closed", "unwinding", "unwind_blocked", "unwound"]


@dataclass(frozen=True, slots=True)
class UnwindingRun:
    """A run that is being taken back."""

    tenant: str
    run: str
    state: RunState


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """One action of a run and, where one was recorded, its counter-action."""

    action_id: str
    tenant: str
    run: str
    step: str
    revision: int
    superseded: bool
    tool: str
    tool_version: int
    class_: str
    state: State
    in_doubt: bool
    audience: tuple[str, ...]
    compensation: str | None
    created_at: datetime
    undo_id: str | None
    undo_state: State | None


@dataclass(frozen=True, slots=True, kw_only=True)
class UndoIntent:
    """A counter-action to record; its tool is the one that the undone action wrote down."""

    action_id: str
    parent: str
    tool_version: int
    class_: str
    effect: str
    target: str
    provider: str
    queue: str
    arguments: str
    arguments_sha256: str
    audience: tuple[str, ...]
    amount_minor: int | None
    currency: str | None


def runs_to_unwind(ledger: Ledger, *, batch: int = 100) -> list[UnwindingRun]:
    """Takes up to `batch` runs that are being taken back, those first that nobody has taken for the longest time."""
    return [UnwindingRun(**row) for row in ledger.rows(_SQL["runs_to_unwind"], {"batch": batch})]


def steps_of_run(ledger: Ledger, run: UnwindingRun) -> list[Step]:
    """The run's actions in the order they were recorded."""
    return [
        Step(
            **{("class_" if name == "class" else name): value for name, value in row.items()}
            | {
                "state": State(row["state"]),
                "audience": tuple(row["audience"]),
                "undo_state": State(row["undo_state"]) if row["undo_state"] else None,
            }
        )
        for row in ledger.rows(_SQL["steps_of_run"], {"tenant": run.tenant, "run": run.run})
    ]


def withdraw(ledger: Ledger, action_id: str, *, by: str) -> State | None:
    """Cancels an action that was never sent; one in doubt goes to its look-up, never to be sent again."""
    row = ledger.row(_CANCEL, {"action_id": action_id, "by": by, "reason": "unwind"})
    return State(row["state"]) if row and row["state"] else None


def propose_undo(ledger: Ledger, intent: UndoIntent, *, by: str) -> bool:
    """Records the counter-action; False when it stands already or its action has not succeeded."""
    row = ledger.row(
        _SQL["propose_undo"],
        {
            "action_id": intent.action_id,
            "parent": intent.parent,
            "by": by,
            "tool_version": intent.tool_version,
            "class": intent.class_,
            "effect": intent.effect,
            "target": intent.target,
            "provider": intent.provider,
            "queue": intent.queue,
            "arguments": intent.arguments,
            "arguments_sha256": intent.arguments_sha256,
            "audience": list(intent.audience),
            "amount_minor": intent.amount_minor,
            "currency": intent.currency,
        },
    )
    return bool(row and row["created"])


def mark_compensated(ledger: Ledger, action_id: str, *, by: str) -> bool:
    """succeeded → compensated, if its counter-action has succeeded."""
    return ledger.row(_SQL["mark_compensated"], {"action_id": action_id, "by": by}) is not None


def block_unwind(ledger: Ledger, run: UnwindingRun) -> bool:
    """The run waits for a person; it is visited again, after the others."""
    return (
        ledger.row(
            _SQL["set_run_state"],
            {"tenant": run.tenant, "run": run.run, "from_state": run.state, "to_state": "unwind_blocked"},
        )
        is not None
    )


def finish_unwind(ledger: Ledger, run: UnwindingRun) -> bool:
    """unwound, if nothing of the run is unsettled or succeeded by now."""
    return ledger.row(_SQL["finish_unwind"], {"tenant": run.tenant, "run": run.run}) == {"finished": True}
