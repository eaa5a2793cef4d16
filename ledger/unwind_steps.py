"""Decides what an unwind has to do with one step, and in which order the steps come.

The order: effects that only the company saw first, then customers, the public, and what has legal weight, each the newest
first. A step that will be settled by itself (its look-up, its compensation) holds back those that come after it, so that
the order holds; what was withdrawn, looked up or taken back before it is not held. A step that waits for a person holds
back nothing: that may take days, and money that is out does not wait for them.

What was staged and then committed by a later step of the run (a hold captured, a ticket opened, a draft sent) is carried
on by that one: the later step is taken back, and the staged one goes with it. What nothing takes back, and somebody saw,
is a correction: a person decides whether those are told, in the same order.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from typing import Literal, assert_never

from counterfoil.ledger.states import UNSETTLED, State

NOBODY = frozenset({"agent"})
"""What only these see, nobody has seen."""

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
    """It stays done: a person gave its counter-action up or decided on its correction, or nobody has seen it."""
    CARRIED = "carried"
    """A later step is about it, and that one's turn comes first."""
    CORRECT = "correct"
    """Nothing takes it back and somebody saw it: a correction is to be queued, for a person."""
    CORRECTING = "correcting"
    """The message that a person has sent is under way."""


_TO_COME = frozenset(Standing) - {Standing.NOTHING, Standing.KEPT}
_ENDED = frozenset({State.PERMANENT_FAILURE, State.NOT_EXECUTED, State.CANCELLED, State.STALE})


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """One action of a run and, where there are any, its counter-action and its correction; nothing of what was said."""

    action_id: str
    tenant: str
    run: str
    step: str
    revision: int
    superseded: bool
    tool: str
    class_: str
    parent_id: str | None
    """The earlier action of the run that it is about."""
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
    correction_id: str | None
    correction_state: Literal["open", "sent", "dismissed"] | None
    message_id: str | None
    """The message that corrects it, as an action."""
    message_state: State | None
    message_error_code: str | None

    @property
    def rank(self) -> int:
        """How far out its audience is."""
        return max((RANKS.get(a, 0) for a in self.audience), default=0)


def standings(steps: Iterable[Step]) -> dict[str, Standing]:
    """What is to be done next with each step, by its action; `steps` are all those of a run, or of several."""
    later: defaultdict[str, list[Step]] = defaultdict(list)
    known = list(steps)
    for step in known:
        if step.parent_id is not None:
            later[step.parent_id].append(step)
    found: dict[str, Standing] = {}

    def of(step: Step) -> Standing:
        if step.action_id not in found:  # a step is older than those about it, so this ends
            found[step.action_id] = standing(step, [(child, of(child)) for child in later[step.action_id]])
        return found[step.action_id]

    # Newest first, or a long chain of steps would recurse as deep.
    newest_first = sorted(known, key=lambda step: step.created_at, reverse=True)
    return {step.action_id: of(step) for step in newest_first}


def standing(step: Step, about: Sequence[tuple[Step, Standing]] = ()) -> Standing:
    """What is to be done with the step next, given where the later steps stand that are `about` it."""
    if State.OPERATOR_REVIEW in (step.state, step.undo_state, step.message_state):
        return Standing.PERSON  # also of what is taken back: a counter-action that was given up may have happened too
    if step.state in UNSETTLED:
        is_withdrawn = step.state in WITHDRAWABLE and not step.in_doubt
        return Standing.WITHDRAW if is_withdrawn else Standing.EVIDENCE
    if step.state is not State.SUCCEEDED:
        return Standing.CORRECTING if step.message_state in UNSETTLED else Standing.NOTHING
    if step.undo_state is not None:
        return _under_counter_action(step, step.undo_state)
    carried = _carried(step, about)
    if carried is not None:
        return carried
    return _without_undo(step) if step.undo_tool is None or step.superseded else Standing.COMPENSATE


def _under_counter_action(step: Step, state: State) -> Standing:
    if state is State.SUCCEEDED:
        return Standing.COMPENSATED
    if state in UNSETTLED:
        return Standing.COMPENSATING
    if state is State.PERMANENT_FAILURE and step.undo_by_person:
        return Standing.KEPT
    if state is State.NOT_EXECUTED and step.undo_by_person:
        return Standing.COMPENSATE  # a person says that it did not happen: once more, under a new key
    return Standing.REFUSED


def _carried(step: Step, about: Sequence[tuple[Step, Standing]]) -> Standing | None:
    """Where the step stands because of later steps about it; None: it is taken back as if they had never been.

    Only a reversible step is carried on, by one that is not: a note about a ticket takes nothing of the ticket back with it.
    """
    if any(there in _TO_COME for _, there in about):
        return Standing.CARRIED
    if step.class_ != "reversible":
        return None
    carriers = [(later, there) for later, there in about if later.class_ != "reversible"]
    if any(there is Standing.KEPT for _, there in carriers):
        return Standing.KEPT
    if any(later.state is State.COMPENSATED for later, _ in carriers):
        return Standing.COMPENSATED
    return None


def _without_undo(step: Step) -> Standing:
    match step.correction_state:
        case None:
            unseen = not step.superseded and NOBODY.issuperset(step.audience)
            return Standing.KEPT if unseen else Standing.CORRECT
        case "open":
            return Standing.PERSON
        case "dismissed":
            return Standing.KEPT
        case "sent":
            return Standing.KEPT if step.message_state is State.SUCCEEDED else Standing.CORRECTING
        case never:
            assert_never(never)


def why(step: Step, there: Standing) -> str | None:
    """A code for what a person has to decide about the step, or why it stays done; None elsewhere."""
    if there is Standing.KEPT:
        return _why_kept(step)
    if there is not Standing.PERSON:
        return None
    if step.state is State.OPERATOR_REVIEW:
        return step.last_error_code or "outcome_in_review"
    if step.message_state is State.OPERATOR_REVIEW:
        return step.message_error_code or "correction_in_review"
    if step.undo_state is not None:
        return step.undo_error_code or "compensation_in_review"
    return "replaced" if step.superseded else "no_compensation"


def _why_kept(step: Step) -> str:
    if step.undo_state is not None:
        return "given_up"
    if step.correction_state is not None:
        return f"correction_{step.correction_state}"
    return "unseen" if step.undo_tool is None and NOBODY.issuperset(step.audience) else "carried"


def in_order(steps: Sequence[Step]) -> list[Step]:
    """The order in which steps are taken back."""
    newest_first = sorted(steps, key=lambda s: (s.created_at, s.action_id), reverse=True)
    return sorted(newest_first, key=lambda s: s.rank)


def told(steps: Iterable[Step]) -> list[dict[str, str | None]]:
    """Where each step stands, in the order of the unwind, for whoever asked for it; ids, names and codes only."""
    known = list(steps)
    stand = standings(known)
    return [
        {
            "action_id": step.action_id,
            "run": step.run,
            "step": step.step,
            "tool": step.tool,
            "state": step.state.value,
            "standing": stand[step.action_id].value,
            "why": why(step, stand[step.action_id]),
            "undo_tool": step.undo_tool,
            "undo_id": step.undo_id,
            "correction_id": step.correction_id,
            "correction": step.correction_state,
            "message_id": step.message_id,
            "carried_on_by": _carried_on_by(step, known),
        }
        for step in in_order(known)
    ]


def _carried_on_by(step: Step, steps: Sequence[Step]) -> str | None:
    """The later step that is taken back instead of this one."""
    if step.class_ != "reversible" or step.undo_id is not None:
        return None
    later = (s for s in steps if s.parent_id == step.action_id and s.class_ != "reversible" and s.state not in _ENDED)
    return next((s.action_id for s in later), None)


def worst(*progress: Progress) -> Progress:
    """What all of them together wait for."""
    return max(progress, key=("done", "waiting", "blocked").index)
