"""Decides whether a plan may be proposed, and at which places of the run its steps stand: pure, like the step rules. No I/O.

A plan is code's, not a model's: what stands in its way is raised and says what to do first, and nothing is recorded.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Literal

from counterfoil.ledger.errors import ArgumentError, CounterfoilError, LimitReached, NotAllowed, StepConflict
from counterfoil.ledger.states import NOTHING_DONE, UNSETTLED, State
from counterfoil.outbox.results import WAITS_FOR_PERSON
from counterfoil.outbox.run_view import ActionView, HandleView, RunView, WantedCall
from counterfoil.outbox.steps import ACTIONS, CALLS, UNDECIDED, Record, Refused, said_no, untold_ends

STEPS_MAX = 100
"""Nobody reads more than that before deciding."""

Decided = Literal["open", "approved", "rejected", "expired"]

Same = tuple[str, str, str | None]
"""What makes two steps the same one: tool, arguments' hash, and the action that it is about."""


@dataclass(frozen=True, slots=True)
class PlanStep:
    """One step as asked for; `of` is the action that it is about."""

    call: WantedCall
    of: str | None = None

    @property
    def same(self) -> Same:
        return self.call.tool, self.call.arguments_sha256, self.of


@dataclass(frozen=True, slots=True)
class RecordedPlan:
    """A plan of the run that waits for its decision, or that was approved or rejected or has expired; `steps` as they were
    proposed."""

    proposal_id: str
    decision: Decided
    steps: tuple[Same, ...]


@dataclass(frozen=True, slots=True)
class Existing:
    """The same plan is on record."""

    proposal_id: str


@dataclass(frozen=True, slots=True)
class Open:
    """A new plan: where each step stands, and the actions of the plan that it takes the place of."""

    places: tuple[Record, ...]
    replaced: tuple[str, ...] = ()


PlanDecision = Existing | Refused | Open


def decide_plan(
    view: RunView, plans: Sequence[RecordedPlan], steps: Sequence[PlanStep], handle: HandleView
) -> PlanDecision:
    """What becomes of the plan. `plans` are the run's, newest first."""
    if view.state != "open":
        return _refused(f"the run is {view.state}.", "Open a run with another id for new work.")
    if view.calls_count > handle.limits.calls_max:
        return Refused(LimitReached("the run has used up its calls.", limit=CALLS, fix=f"End it, or raise {CALLS}."))
    asked = tuple(step.same for step in steps)
    for plan in plans:
        if plan.steps == asked and not _was_told_to_be_in_vain(view, plan, handle):
            return Existing(plan.proposal_id)
        if plan.steps == asked and plan.decision == "rejected":
            return _refused(f"a reviewer has rejected this plan ({plan.proposal_id}).", _AFTER_A_NO)
    for i, step in enumerate(steps):
        for action in untold_ends(view, handle):
            if step.call.has_effect_of(action) and action.action_id not in (step.of, *handle.due):
                return _refused(
                    f"{action.action_id} has the effect of step {i}, and its caller was not told.", _READ_FIRST
                )
    replaced = [
        action
        for plan in plans
        if plan.decision in ("open", "expired")  # expired just now: nothing has made its steps stale yet
        for action in view.actions
        if action.proposal_id == plan.proposal_id and action.state in UNDECIDED
    ]
    standing = [action for action in view.actions if action not in replaced]
    error = _is_busy(standing, plans) or _first_refused(view, standing, steps)
    if error is None and sum(a.revision for a in view.actions) + len(steps) > handle.limits.actions_max:
        error = LimitReached("the run has too many actions.", limit=ACTIONS, fix=f"End it, or raise {ACTIONS}.")
    if error is not None:
        return Refused(error)
    placed = _places(view, replaced, steps)
    return placed if isinstance(placed, Refused) else Open(placed, tuple(action.action_id for action in replaced))


def _was_told_to_be_in_vain(view: RunView, plan: RecordedPlan, handle: HandleView) -> bool:
    """It was decided, has ended without any effect, and the caller knows: the same again is a new wish.

    A plan that was done in part is never proposed again as it stands: that would hold a step that was done. Its caller
    proposes what is left of it.
    """
    steps = [action for action in view.actions if action.proposal_id == plan.proposal_id]
    return plan.decision != "open" and all(
        handle.was_told(action) and action.state not in (State.SUCCEEDED, State.COMPENSATED) for action in steps
    )


def _is_busy(standing: Sequence[ActionView], plans: Sequence[RecordedPlan]) -> CounterfoilError | None:
    """Nothing of the run may be on its way, and an approved plan goes to its end first."""
    decided = {plan.proposal_id for plan in plans if plan.decision != "open"}
    for action in standing:
        if action.proposal_id in decided and action.place is not None and not action.settled:
            return NotAllowed(
                f"the plan {action.proposal_id} is being carried out.", fix="Wait for its `result(wait_s=…)` first."
            )
    for action in standing:
        if action.state in UNSETTLED - UNDECIDED:
            return _in_the_way(action, "is not decided yet")
    return None


def _first_refused(view: RunView, standing: Sequence[ActionView], steps: Sequence[PlanStep]) -> CounterfoilError | None:
    """The first step that cannot be proposed now."""
    about: set[str] = set()
    once: set[str] = set()
    for i, step in enumerate(steps):
        error = _of_is_refused(i, step, view.actions, standing, about) or _call_is_refused(
            i, step, view, standing, once
        )
        if error is not None:
            return error
        about |= {step.of} if step.of is not None else set()
        once |= {step.call.once_key} if step.call.once_key is not None else set()
    return None


def _of_is_refused(
    i: int, step: PlanStep, actions: Sequence[ActionView], standing: Sequence[ActionView], about: Collection[str]
) -> CounterfoilError | None:
    """A step is about a succeeded action of this run, which no other step under way is about."""
    if step.of is None:
        return None
    path = f"$[{i}].of"
    if not any(action.action_id == step.of and action.state is State.SUCCEEDED for action in actions):
        return ArgumentError("is no succeeded action of this run.", path=path, code="not_succeeded")
    if step.of in about or any(a.parent_action_id == step.of and not a.settled for a in standing):
        return ArgumentError("is what another step is about already.", path=path, code="duplicate")
    return None


def _call_is_refused(
    i: int, step: PlanStep, view: RunView, standing: Sequence[ActionView], once: Collection[str]
) -> CounterfoilError | None:
    call = step.call
    no = said_no(view, call, in_plan=True)
    if no is not None:
        return NotAllowed(f"step {i} was rejected by a reviewer ({no.action_id}).", fix=_AFTER_A_NO)
    if call.once_key in once:
        return ArgumentError("may happen once, and stands in the plan twice.", path=f"$[{i}]", code="duplicate")
    for action in standing:
        if not action.settled and call.has_effect_of(action):
            return _in_the_way(action, f"has the effect of step {i} under way")
        is_done = not action.settled or action.state is State.SUCCEEDED
        if call.once_key is not None and action.once_key == call.once_key and is_done:
            return NotAllowed(f"step {i} may happen once: {action.action_id}.", fix="Leave it out of the plan.")
    return None


def _places(view: RunView, replaced: Sequence[ActionView], steps: Sequence[PlanStep]) -> tuple[Record, ...] | Refused:
    """Labels stand where they stood, a new revision in place of what did nothing; the others get the next numbers."""
    seq = max((action.seq or 0 for action in view.actions), default=0)
    number = max((int(action.step) for action in view.actions if action.step.isdecimal()), default=0)
    places: list[Record] = []
    for i, step in enumerate(steps):
        seq += 1
        label = step.call.step
        there = view.at(label)
        if label is None:
            number += 1
            places.append(Record(number, 1, seq))
        elif there is None:
            places.append(Record(label, 1, seq))
        elif (
            there.tool != step.call.tool or there.state not in NOTHING_DONE or not (there.settled or there in replaced)
        ):
            return Refused(
                StepConflict(
                    f"step {label!r} of this run is recorded with {there.tool!r}, {there.state} ({there.action_id}).",
                    fix=f"Use another label for step {i} of the plan.",
                )
            )
        else:
            places.append(Record(label, there.revision + 1, seq, supersedes=there.action_id))
    return tuple(places)


_READ_FIRST = "Read `run.so_far()`, then propose what is still to be done."
_AFTER_A_NO = (
    "The same is not proposed again, another plan once; after a second rejection a person decides how to go on."
)


def _in_the_way(action: ActionView, why: str) -> NotAllowed:
    if action.state in WAITS_FOR_PERSON:
        return NotAllowed(f"{action.action_id} {why}: a person decides on it.", fix="Come back when that is decided.")
    return NotAllowed(f"{action.action_id} {why}.", fix=f"Wait for it: `cf.result({action.action_id!r}, wait_s=…)`.")


def _refused(message: str, fix: str) -> Refused:
    return Refused(NotAllowed(message, fix=fix))
