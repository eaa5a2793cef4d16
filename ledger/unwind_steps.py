"""Decides what an unwind has to do with one step, and in which order the steps come.

The order: effects that only the company saw first, then customers, the public, and what has legal weight, each the newest
first. A step that will be settled by itself (its look-up, its compensation) holds back those that come after it, so that
the order holds; what was withdrawn, looked up or taken back before it is not held. A step that waits for a person holds
back nothing: that may take days, and money that is out does not wait for them.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from typing import Literal

from counterfoil.ledger.states import UNSETTLED, State

RANKS: Mapping[str, int] = {"customer": 1, "public": 2, "legal": 3}
"""Audiences outside the company, by blast radius; every other audience is inside, rank 0."""

WITHDRAWABLE = frozenset({State.PROPOSED, State.AWAITING_APPROVAL, State.READY, State.RETRYABLE_FAILURE})
"""Nothing of these is on the wire; those in doubt go to their look-up instead of being cancelled."""

Progress = Literal["done", "waiting", "blocked"]
"""`waiting` goes on by itself, `blocked` when a person has decided."""


class Standing(StrEnum):
    """What an unwind has to do with a step."""

    NOTHING = "nothing"
    """Settled: it had no effect, or is taken back."""
    WITHDRAW = "withdraw"
    """Nothing was sent."""
    EVIDENCE = "evidence"
    """It may have been sent: its outcome is waited for, and nothing is sent again."""
    COMPENSATE = "compensate"
    """It has succeeded and has a counter-action, which comes when it is its turn."""
    COMPENSATING = "compensating"
    """The counter-action is under way, or its outcome is being looked up."""
    COMPENSATED = "compensated"
    """The counter-action has succeeded; to be written down on the step."""
    REFUSED = "refused"
    """The counter-action has ended without an effect; to be handed to a person."""
    PERSON = "person"
    """Only a person moves it on."""
    KEPT = "kept"
    """A person gave its counter-action up: it stays done."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """One action of a run and, where one was recorded, its counter-action; nothing of what was said in them."""

    action_id: str
    tenant: str
    run: str
    step: str
    revision: int
    superseded: bool
    tool: str
    state: State
    in_doubt: bool
    cancel_requested: bool
    last_error_code: str | None
    audience: tuple[str, ...]
    undo_tool: str | None
    """The tool that takes it back; None: nothing was written down that could."""
    created_at: datetime
    undo_id: str | None
    undo_state: State | None
    undo_revision: int | None
    undo_error_code: str | None
    undo_by_person: bool
    """A person has put the counter-action where it stands."""


def standing(step: Step) -> Standing:
    """What is to be done with the step next."""
    if State.OPERATOR_REVIEW in (step.state, step.undo_state):
        return Standing.PERSON  # also of what is taken back: a counter-action that was given up may have happened too
    if step.state in UNSETTLED:
        is_withdrawn = step.state in WITHDRAWABLE and not step.in_doubt
        return Standing.WITHDRAW if is_withdrawn else Standing.EVIDENCE
    if step.state is not State.SUCCEEDED:
        return Standing.NOTHING
    match step.undo_state:
        case None:
            return Standing.PERSON if step.undo_tool is None or step.superseded else Standing.COMPENSATE
        case State.SUCCEEDED:
            return Standing.COMPENSATED
        case state if state in UNSETTLED:
            return Standing.COMPENSATING
        case State.PERMANENT_FAILURE if step.undo_by_person:
            return Standing.KEPT
        case State.NOT_EXECUTED if step.undo_by_person:
            return Standing.COMPENSATE  # a person says that it did not happen: once more, under a new key
        case _:
            return Standing.REFUSED


def why(step: Step) -> str | None:
    """A code for what a person has to decide about the step; None where nobody has to."""
    if standing(step) is not Standing.PERSON:
        return None
    if step.state is State.OPERATOR_REVIEW:
        return step.last_error_code or "outcome_in_review"
    if step.undo_state is not None:
        return step.undo_error_code or "compensation_in_review"
    return "replaced" if step.superseded else "no_compensation"


def in_order(steps: Sequence[Step]) -> list[Step]:
    """The order in which steps are taken back."""
    newest_first = sorted(steps, key=lambda s: (s.created_at, s.action_id), reverse=True)
    return sorted(newest_first, key=lambda s: max((RANKS.get(a, 0) for a in s.audience), default=0))


def told(steps: Iterable[Step]) -> list[dict[str, str | None]]:
    """Where each step stands, in the order of the unwind, for whoever asked for it; ids, names and codes only."""
    return [
        {
            "action_id": step.action_id,
            "run": step.run,
            "step": step.step,
            "tool": step.tool,
            "state": step.state.value,
            "standing": standing(step).value,
            "why": why(step),
            "undo_tool": step.undo_tool,
            "undo_id": step.undo_id,
        }
        for step in in_order(list(steps))
    ]


def worst(*progress: Progress) -> Progress:
    """What all of them together wait for."""
    return max(progress, key=("done", "waiting", "blocked").index)
