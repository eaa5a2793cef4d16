"""What the unwind may read and write: the runs to take back, their steps, and counter-actions recorded before."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from counterfoil.ledger.connection import Ledger
from counterfoil.ledger.queries import load
from counterfoil.ledger.states import State
from counterfoil.ledger.unwind_steps import Step

_SQL = load("counterfoil.ledger", "sql/unwind.sql")
_CANCEL = load("counterfoil.ledger", "sql/reconciler.sql")["request_cancel"]

RunState = Literal["open", "closed", "unwinding", "unwind_blocked", "unwound"]


@dataclass(frozen=True, slots=True)
class UnwindingRun:
    """A run that is being taken back."""

    tenant: str
    run: str
    state: RunState


@dataclass(frozen=True, slots=True)
class TreeRun:
    """The run of an unwind or a child run below it."""

    tenant: str
    run: str
    parent_run: str | None
    state: RunState


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
    account: str
    queue: str
    arguments: str
    arguments_sha256: str
    audience: tuple[str, ...]
    amount_minor: int | None
    currency: str | None


def runs_to_unwind(ledger: Ledger, *, batch: int = 100) -> list[UnwindingRun]:
    """Takes up to `batch` runs that are being taken back, those first that nobody has taken for the longest time."""
    return [UnwindingRun(**row) for row in ledger.rows(_SQL["runs_to_unwind"], {"batch": batch})]


def tree_of_run(ledger: Ledger, *, tenant: str, run: str) -> list[TreeRun]:
    """The run and the child runs below it, children before their parents."""
    return [TreeRun(**row) for row in ledger.rows(_SQL["tree_of_run"], {"tenant": tenant, "run": run})]


def steps_of_run(ledger: Ledger, *, tenant: str, run: str) -> list[Step]:
    """The actions of the run and of the child runs below it, in the order they were recorded."""
    return [step_of(row) for row in ledger.rows(_SQL["steps_of_run"], {"tenant": tenant, "run": run})]


def step_of(row: Mapping[str, Any]) -> Step:
    """A step from a row of `steps_of_run`."""
    return Step(
        **dict(row)
        | {
            "state": State(row["state"]),
            "audience": tuple(row["audience"]),
            "undo_state": State(row["undo_state"]) if row["undo_state"] else None,
            "message_state": State(row["message_state"]) if row["message_state"] else None,
        }
    )


def compensation_of(ledger: Ledger, action_id: str) -> str:
    """What takes the action back, as it was written down before its call: canonical JSON, `{}` for nothing."""
    row = ledger.row(_SQL["read_compensation"], {"action_id": action_id})
    return str(row["compensation"]) if row and row["compensation"] else "{}"


def withdraw(ledger: Ledger, action_id: str, *, by: str) -> State | None:
    """Cancels an action that was never sent; of any other that is unsettled nothing is sent again."""
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
            "account": intent.account,
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
    """succeeded → compensated, if its counter-action has succeeded, or what carries it on is compensated."""
    return ledger.row(_SQL["mark_compensated"], {"action_id": action_id, "by": by}) is not None


def review_undo(ledger: Ledger, undo_id: str, *, by: str) -> bool:
    """A counter-action that has ended without an effect → operator_review, unless a person has put it there."""
    return ledger.row(_SQL["review_undo"], {"undo_id": undo_id, "by": by}) is not None


def set_state(ledger: Ledger, run: UnwindingRun | TreeRun, state: Literal["unwinding", "unwind_blocked"]) -> bool:
    """unwind_blocked while a person has to decide something of the run, unwinding while all goes on by itself.

    Either is visited again. False when the run is in `state`, or has been moved meanwhile.
    """
    if run.state == state or run.state not in ("unwinding", "unwind_blocked"):
        return False
    params = {"tenant": run.tenant, "run": run.run, "from_state": run.state, "to_state": state}
    return ledger.row(_SQL["set_run_state"], params) is not None


def finish_unwind(ledger: Ledger, run: UnwindingRun | TreeRun) -> bool:
    """unwound, if by now nothing of the run or its children is unsettled, and all that it did is taken back, but for
    what a person leaves as it is."""
    return ledger.row(_SQL["finish_unwind"], {"tenant": run.tenant, "run": run.run}) == {"finished": True}
