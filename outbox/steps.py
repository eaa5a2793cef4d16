"""Decides which recorded action a call means, or that it is a new one: the step rules, first match wins. No I/O.

A model repeats, rewords and loses its calls, and gives no place in the plan. What it means is decided from the ledger, under
the run's lock, by the rules in `RULES`. A label comes from code and names a place for ever, so a labelled call is never
taken for another one: to it the rules that guess (2, 3) do not apply, and those that would join it to another action block.

What the caller has been told is a set of ends (`seen`), so an action whose end it was never told is what its next same call
means. tests/unit/test_told.py and test_turns.py try these rules with every death and every lost answer.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from counterfoil.ledger.errors import CounterfoilError, NotAllowed, StepConflict
from counterfoil.ledger.states import NOTHING_DONE, UNSETTLED, State
from counterfoil.outbox.results import WAITS_FOR_PERSON, NextStep
from counterfoil.outbox.run_view import ActionView, HandleView, RunView, WantedCall
from counterfoil.providers.contract import ToolClass


@dataclass(frozen=True, slots=True)
class Refused:
    """A mistake of the caller's code, to be raised."""

    error: CounterfoilError


@dataclass(frozen=True, slots=True)
class Attach:
    """The call means this recorded action."""

    action_id: str
    already_done: bool = False


@dataclass(frozen=True, slots=True)
class Blocked:
    """Nothing is recorded. `by` is the action to wait for, None where waiting does not help."""

    next_step: NextStep
    by: str | None = None
    limit: str | None = None
    """The setting of the cap that is reached."""

    @property
    def waits(self) -> bool:
        """The other action will move on by itself."""
        return self.by is not None and self.next_step is NextStep.WAIT


@dataclass(frozen=True, slots=True)
class ReadUnseen:
    """Nothing is recorded: these results come first."""

    action_ids: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Record:
    """A new action at this place."""

    step: str | int
    revision: int
    seq: int
    supersedes: str | None = None


Decision = Refused | Attach | Blocked | ReadUnseen | Record
Rule = Callable[[RunView, WantedCall, HandleView], Decision | None]


def decide(view: RunView, call: WantedCall, handle: HandleView) -> Decision:
    """What becomes of the call. The last rule always matches."""
    for rule in RULES:
        decision = rule(view, call, handle)
        if decision is not None:
            return _bounded(view, call, handle, decision)
    raise AssertionError("unreachable")


def _bounded(view: RunView, call: WantedCall, handle: HandleView, decision: Decision) -> Decision:
    """An action takes so many references, each wording counted, and no more: one not kept would not find it again."""
    if isinstance(decision, Attach) and call.ref is not None:
        known = {
            (take.turn, take.ref, take.arguments_sha256) for take in view.takes if take.action_id == decision.action_id
        }
        is_known = (call.turn, call.ref, call.arguments_sha256) in known
        if not is_known and len(known) >= handle.limits.refs_per_step_max:
            return Blocked(NextStep.LIMIT_REACHED, limit=REFS)
    return decision


def _run_takes_no_call(view: RunView, _call: WantedCall, handle: HandleView) -> Decision | None:
    """0. The run unwinds or is closed, or has used up its calls. (An old epoch is refused by the lock itself.)"""
    if view.state != "open":
        return Refused(NotAllowed(f"the run is {view.state}.", fix="Open a run with another id for new work."))
    if view.calls_count > handle.limits.calls_max:
        return Blocked(NextStep.LIMIT_REACHED, limit=CALLS)
    return None


def _label_is_recorded(view: RunView, call: WantedCall, _handle: HandleView) -> Decision | None:
    """1. A label: its newest revision, unless that one did nothing and something else is wanted (then rule 9 revises)."""
    if call.step is None:
        return None
    there = view.at(call.step)
    if there is None:
        last = next((a for a in reversed(view.actions) if a.seq is not None), None)
        return blocked_by(last.action_id, last.state) if last is not None and not last.settled else None
    if there.tool != call.tool:
        return Refused(
            StepConflict(
                f"step {call.step!r} of this run is recorded with tool {there.tool!r}, not {call.tool!r}.",
                fix="Use another label.",
            )
        )
    return None if _may_be_revised(there, call) else Attach(there.action_id)


def _ref_is_known(view: RunView, call: WantedCall, handle: HandleView) -> Decision | None:
    """2. A reference seen before. In the same words it is that action for ever. In other words only if that must be one wish:
    its end was not told yet, or the reference cannot stand for two (its turn is given, or the caller promises it)."""
    if call.ref is None or call.step is not None:
        return None
    known = [
        (take, action)
        for take in reversed(view.takes)
        if (take.turn, take.ref) == (call.turn, call.ref)
        and (action := view.with_id(take.action_id)) is not None
        and call.is_same_as(action)
    ]
    for take, action in known:
        if call.is_identical_to(action, take):
            return Attach(action.action_id)
    for _, action in known:
        if call.turn or handle.refs_unique or not handle.was_told(action):
            return Attach(action.action_id)
    return None


def _end_was_not_told(view: RunView, call: WantedCall, handle: HandleView) -> Decision | None:
    """3. The same call has an end that this caller was not told, or has none yet: the oldest such action, one for each call.

    Within a turn each reference is another wish: identical words are one action; other words take an action that no other
    reference of the turn has taken, the one with these words first.
    """
    if call.step is not None:
        return None
    others = [take for take in view.takes if call.turn and take.turn == call.turn and take.ref != call.ref]
    for take in others:
        action = view.with_id(take.action_id)
        if action is not None and call.is_identical_to(action, take):  # also where that one took it in other words
            return Attach(action.action_id)
    taken = {take.action_id for take in others}
    untold = [
        action
        for action in view.actions
        if call.is_same_as(action) and not handle.was_told(action) and action.action_id not in taken
    ]
    same_words = [action for action in untold if call.turn and call.is_identical_to(action)]
    return Attach((same_words or untold)[0].action_id) if untold else None


def _effect_is_unsettled(view: RunView, call: WantedCall, _handle: HandleView) -> Decision | None:
    """3, the rest. The same effect is under way in another way, such as the step of a plan that commits what was staged, or
    as another wish of this turn: it comes first."""
    for action in reversed(view.actions):
        if not action.settled and call.has_effect_of(action):
            return blocked_by(action.action_id, action.state)
    return None


def _results_are_unseen(view: RunView, call: WantedCall, handle: HandleView) -> Decision | None:
    """5. Other ends that this caller was not told: all of them, before it acts on what it does not know. What parallel calls
    of the turn have begun is theirs to tell."""
    parallel = view.taken_in(call.turn).union(handle.due)
    unseen = tuple(
        action.action_id
        for action in untold_ends(view, handle)
        if action.step != call.step and action.action_id not in parallel
    )
    return ReadUnseen(unseen) if unseen else None


def _once_is_taken(view: RunView, call: WantedCall, _handle: HandleView) -> Decision | None:
    """6. Live or done under the same `once_per` in this run. (Elsewhere in the tenant: the ledger's unique index.)"""
    if call.once_key is None or call.repeat is not None:
        return None
    for action in view.actions:
        if action.once_key == call.once_key and (not action.settled or action.state is State.SUCCEEDED):
            return Attach(action.action_id, already_done=True)
    return None


def _reviewer_said_no(view: RunView, call: WantedCall, _handle: HandleView) -> Decision | None:
    """7. A reviewer has rejected this effect on this target: one more proposal, with other arguments; then a person's
    turn, so that nobody is asked until they tire."""
    no = said_no(view, call)
    return None if no is None else Blocked(NextStep.PERSON, by=no.action_id)


def _pivot_is_ahead(view: RunView, call: WantedCall, _handle: HandleView) -> Decision | None:
    """Before its pivot the run takes reversible calls only: what it has staged is committed by the plan that a person decides
    on, and nothing goes past that. (Plans are recorded by rules of their own.)"""
    if view.pivot != "ahead" or call.cls not in _COMMITS:
        return None
    planned = [action for action in view.actions if action.place is not None and action.state in UNDECIDED]
    if not planned:
        return Blocked(NextStep.END_TURN)
    return Blocked(NextStep.PERSON, by=min(planned, key=lambda action: action.place or 0).action_id)


def _run_is_busy(view: RunView, call: WantedCall, _handle: HandleView) -> Decision | None:
    """8. Another action of the run is not decided yet. One that waits for an approval holds back only what cannot be undone
    for free."""
    for action in view.actions:
        if action.state in UNSETTLED - UNDECIDED:
            return blocked_by(action.action_id, action.state)
    if call.cls in _COMMITS:
        for action in view.actions:
            if action.state in UNDECIDED:
                return blocked_by(action.action_id, action.state)
    return None


def _proposals_are_open(view: RunView, call: WantedCall, handle: HandleView) -> Decision | None:
    """As many proposals of the run wait for people as one task may ask of them."""
    waiting = {action.proposal_id for action in view.actions if action.state in UNDECIDED and action.proposal_id}
    if call.gated and len(waiting) >= handle.limits.proposals_open_max:
        return Blocked(NextStep.LIMIT_REACHED, limit=PROPOSALS_OPEN)
    return None


def _new_action(view: RunView, call: WantedCall, handle: HandleView) -> Decision | None:
    """9. A new revision under the label, a new label, or the next number."""
    if sum(action.revision for action in view.actions) >= handle.limits.actions_max:
        return Blocked(NextStep.LIMIT_REACHED, limit=ACTIONS)
    seq = 1 + max((action.seq or 0 for action in view.actions), default=0)
    if call.step is None:
        numbers = [int(action.step) for action in view.actions if action.step.isdecimal()]
        return Record(1 + max(numbers, default=0), 1, seq)
    there = view.at(call.step)
    if there is None:
        return Record(call.step, 1, seq)
    return Record(call.step, there.revision + 1, seq, supersedes=there.action_id)


RULES: tuple[Rule, ...] = (
    _run_takes_no_call,
    _label_is_recorded,
    _ref_is_known,
    _end_was_not_told,
    _effect_is_unsettled,
    _results_are_unseen,
    _once_is_taken,
    _reviewer_said_no,
    _pivot_is_ahead,
    _run_is_busy,
    _proposals_are_open,
    _new_action,
)

CALLS = "limits.calls_per_run_max"
REFS = "limits.refs_per_step_max"
PROPOSALS_OPEN = "limits.proposals_open_per_run_max"
ACTIONS = "limits.actions_per_run_max"

UNDECIDED = frozenset({State.PROPOSED, State.AWAITING_APPROVAL})
"""Nothing of these may be sent yet."""

_COMMITS = (ToolClass.COMPENSATABLE, ToolClass.IRREVERSIBLE)


def untold_ends(view: RunView, handle: HandleView) -> list[ActionView]:
    """Results of the run's calls that its caller does not know yet. What code enqueued is not among them."""
    return [
        action
        for action in view.actions
        if action.has_end_to_tell and action.seq is not None and not handle.was_told(action)
    ]


def said_no(view: RunView, call: WantedCall, *, in_plan: bool = False) -> ActionView | None:
    """The rejected action for which this call is not proposed again: the same arguments, or the second rejection.

    Of a plan that was rejected nobody knows which step was meant, so a step may stand once more `in_plan`, in another one.
    """
    about_it = [action for action in view.actions if call.has_effect_of(action) and action.rejected]
    same = any(
        call.tool == action.tool and call.arguments_sha256 in action.rejected
        for action in about_it
        if action.place is None or not in_plan
    )
    return about_it[-1] if same or sum(action.rejections for action in about_it) > 1 else None


def _may_be_revised(there: ActionView, call: WantedCall) -> bool:
    """It ended, surely without an effect, and the same words would not end the same."""
    if there.state not in NOTHING_DONE or not there.settled:
        return False
    return there.state is State.STALE or call.arguments_sha256 not in there.asked_for


def blocked_by(action_id: str, state: State) -> Blocked:
    """Held back until that action moves on, by itself or by a person."""
    return Blocked(NextStep.PERSON if state in WAITS_FOR_PERSON else NextStep.WAIT, by=action_id)
