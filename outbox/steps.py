"""Decides which recorded action a call means, or that it is a new one: the step rules, first match wins. No I/O.

A model repeats, rewords and loses its calls, and gives no place in the plan. What it means is decided from the ledger, under
the run's lock, by the rules in `RULES`. A label comes from code and names a place for ever, so a labelled call is never
taken for another one: to it the rules that guess (2, 4) do not apply, and those that would join it to another action block.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass, field

from counterfoil.ledger.errors import CounterfoilError, NotAllowed, StepConflict
from counterfoil.ledger.states import NOTHING_DONE, SETTLED, UNSETTLED, State
from counterfoil.outbox.results import WAITS_FOR_PERSON, NextStep
from counterfoil.providers.contract import ToolClass


@dataclass(frozen=True, slots=True, kw_only=True)
class ActionView:
    """One recorded action of the run, the newest revision of its step."""

    action_id: str
    step: str
    seq: int | None
    """Its place among the run's results; None for a step that code enqueued."""
    revision: int
    tool: str
    effect: str
    target: str
    state: State
    arguments_sha256: str
    once_key: str | None = None
    last_error_code: str | None = None
    rejected_before: tuple[str, ...] = ()
    """Arguments' hashes of the step's earlier revisions that a reviewer has rejected."""
    edited_before: tuple[tuple[str, str], ...] = ()
    """(target, arguments' hash) of the revisions that reviewers have put this one in the place of."""
    proposal_id: str | None = None
    place: int | None = None
    """Its place in a plan."""
    parent_action_id: str | None = None
    """The action that it is about."""

    @property
    def settled(self) -> bool:
        return self.state in SETTLED

    @property
    def rejected(self) -> tuple[str, ...]:
        """Arguments' hashes of all revisions that a reviewer has rejected."""
        return (*self.rejected_before, *self.asked_for) if self._is_rejected else self.rejected_before

    @property
    def rejections(self) -> int:
        """How often a reviewer has said no."""
        return len(self.rejected_before) + self._is_rejected

    @property
    def _is_rejected(self) -> bool:
        return self.state is State.CANCELLED and self.last_error_code == REJECTED

    @property
    def asked_for(self) -> tuple[str, ...]:
        """Arguments' hashes that stand for it: its own, and what was asked for before a reviewer edited it."""
        return (*(sha256 for _, sha256 in self.edited_before), self.arguments_sha256)

    @property
    def targets(self) -> frozenset[str]:
        """Its target, and that of what was asked for before a reviewer edited it."""
        return frozenset({self.target, *(target for target, _ in self.edited_before)})


@dataclass(frozen=True, slots=True, kw_only=True)
class RunView:
    """The run as read under its lock, this call counted. Actions in the order of their recording."""

    state: str
    calls_count: int
    actions: tuple[ActionView, ...] = ()
    refs: tuple[tuple[str, str], ...] = ()
    """(ref, action id), oldest first."""
    pivot: str | None = None
    """`ahead`: the run, or one above it, has staged, and nobody has decided on its plan yet; `passed`: somebody has."""

    def at(self, step: str | None) -> ActionView | None:
        return next((action for action in self.actions if action.step == step), None)


@dataclass(frozen=True, slots=True, kw_only=True)
class WantedCall:
    """What is asked for. `step` is a label from code, `ref` a framework's name for the call."""

    tool: str
    effect: str
    target: str
    cls: ToolClass
    arguments_sha256: str
    once_key: str | None = None
    step: str | None = None
    ref: str | None = None
    repeat: str | None = None
    staged: bool = False
    gated: bool = False
    """A person must approve it."""

    def is_same_as(self, action: ActionView) -> bool:
        """Same tool and same target: what a reworded or repeated call has in common with the first."""
        return self.tool == action.tool and self.target in action.targets

    def has_effect_of(self, action: ActionView) -> bool:
        """Same effect and same target, by whichever tool."""
        return self.effect == action.effect and self.target in action.targets


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """Caps on one run."""

    calls_max: int = 1000
    actions_max: int = 200
    refs_per_step_max: int = 50
    proposals_open_max: int = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class HandleView:
    """What this handle's caller knew when the call arrived.

    `seen` and `had`: results that the caller has written down. `due`: results that a call of this handle returns or has
    just returned, so that the parallel calls of one turn do not take each other's results for lost ones.
    """

    seen: int = 0
    had: Collection[str] = ()
    due: Collection[str] = ()
    refs_unique: bool = False
    """The adapter promises that it never uses a ref for two calls."""
    limits: Limits = field(default=Limits())

    def has_had(self, action: ActionView) -> bool:
        return action.action_id in self.had or (action.seq is not None and action.seq <= self.seen)


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
            return decision
    raise AssertionError("unreachable")


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
    """2. A framework's reference seen before, if its result is still to be had: references repeat in later turns."""
    if call.ref is None or call.step is not None:
        return None
    known = {action_id for ref, action_id in view.refs if ref == call.ref}
    for action in reversed(view.actions):
        is_known = action.action_id in known and call.is_same_as(action)
        if is_known and (handle.refs_unique or not handle.has_had(action)):
            return Attach(action.action_id)
    return None


def _call_is_unsettled(view: RunView, call: WantedCall, _handle: HandleView) -> Decision | None:
    """3. The same call is under way: that action, whatever the new words."""
    for action in reversed(view.actions):
        if not action.settled and call.is_same_as(action):
            return Attach(action.action_id) if call.step is None else blocked_by(action.action_id, action.state)
    return None


def _result_was_not_had(view: RunView, call: WantedCall, handle: HandleView) -> Decision | None:
    """4. The same call has ended and this caller has not had the result: the oldest such result, one for each call."""
    if call.step is not None:
        return None
    for action in view.actions:
        if action.settled and call.is_same_as(action) and not handle.has_had(action):
            return Attach(action.action_id)
    return None


def _effect_is_unsettled(view: RunView, call: WantedCall, _handle: HandleView) -> Decision | None:
    """3, the rest. Another way to the same effect is under way, such as the step of a plan that commits what was staged: it
    comes first. (After 4, which does nothing: whoever begins anew is told what it has staged.)"""
    for action in reversed(view.actions):
        if not action.settled and call.has_effect_of(action):
            return blocked_by(action.action_id, action.state)
    return None


def _results_are_unseen(view: RunView, call: WantedCall, handle: HandleView) -> Decision | None:
    """5. Other results that this caller has not had: all of them, before it acts on what it does not know."""
    unseen = tuple(
        action.action_id
        for action in view.actions
        if action.settled
        and action.seq is not None
        and action.step != call.step
        and action.action_id not in handle.due
        and not handle.has_had(action)
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
    _call_is_unsettled,
    _result_was_not_had,
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
PROPOSALS_OPEN = "limits.proposals_open_per_run_max"
ACTIONS = "limits.actions_per_run_max"

REJECTED = "rejected_by_reviewer"
"""The code of an action that a reviewer has cancelled."""

UNDECIDED = frozenset({State.PROPOSED, State.AWAITING_APPROVAL})
"""Nothing of these may be sent yet."""

_COMMITS = (ToolClass.COMPENSATABLE, ToolClass.IRREVERSIBLE)


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
