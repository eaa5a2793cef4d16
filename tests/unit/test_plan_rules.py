"""The rules for plans, one by one: which plan is on record, what stands in the way, where the steps stand."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from counterfoil.ledger.errors import ArgumentError, CounterfoilError, LimitReached, NotAllowed, StepConflict
from counterfoil.ledger.states import SETTLED, State
from counterfoil.outbox.plan_rules import Existing, Open, PlanDecision, PlanStep, RecordedPlan, decide_plan
from counterfoil.outbox.plans import _at
from counterfoil.outbox.run_view import ActionView, HandleView, Limits, RunView, WantedCall
from counterfoil.outbox.seen import Seen, told
from counterfoil.outbox.steps import Record, Refused
from counterfoil.providers.contract import ToolClass

S = State


def known(number: int) -> Seen:
    """The ends of actions 1 to `number`, as they are."""
    return told((f"a{n}", 1) for n in range(1, number + 1))


KNOWN = known(9)
HAD = HandleView(told=KNOWN)


def row(number: int, state: State = S.SUCCEEDED, **changes: Any) -> ActionView:
    """Action `a<number>`; by default a hold on order o<number>."""
    given: dict[str, Any] = {
        "action_id": f"a{number}",
        "step": str(number),
        "seq": number,
        "revision": 1,
        "tool": "hold",
        "effect": "hold",
        "target": f"o{number}",
        "state": state,
        "arguments_sha256": "asked",
        "ends_count": 1,
        **changes,
    }
    return ActionView(**given)


def step(tool: str = "capture", of: str | None = None, **changes: Any) -> PlanStep:
    given: dict[str, Any] = {"target": "o1", "arguments_sha256": "asked", "effect": tool, **changes}
    return PlanStep(WantedCall(tool=tool, cls=ToolClass.COMPENSATABLE, gated=True, **given), of)


def planned(number: int, state: State, place: int, **changes: Any) -> ActionView:
    """A step of the plan P-1."""
    given: dict[str, Any] = {"tool": "capture", "effect": "capture", "place": place, "proposal_id": "P-1", **changes}
    return row(number, state, **given)


def met(
    *steps: PlanStep,
    rows: tuple[ActionView, ...] = (),
    plans: tuple[RecordedPlan, ...] = (),
    handle: HandleView = HAD,
    **run: Any,
) -> PlanDecision:
    view = RunView(**{"state": "open", "calls_count": 1, "actions": rows, **run})
    return decide_plan(view, plans, steps, handle)


def refused(decision: PlanDecision, kind: type[Exception], *words: str) -> None:
    assert isinstance(decision, Refused), decision
    assert type(decision.error) is kind
    assert all(word in str(decision.error) for word in words), decision.error


ASKED = (("capture", "asked", None),)
OPEN = RecordedPlan("P-1", decision="open", steps=ASKED)
APPROVED = replace(OPEN, decision="approved")


def test_steps_get_the_next_numbers_in_their_order() -> None:
    """Numbers and seqs go on where the run is; a label stands under its own name."""
    assert met(step(), step("open", step="open it"), step("send"), rows=(row(1), row(4, step="named"))) == Open(
        (Record(2, 1, 5), Record("open it", 1, 6), Record(3, 1, 7))
    )


@pytest.mark.parametrize(
    ("run", "error"),
    [({"state": "closed"}, NotAllowed), ({"state": "unwinding"}, NotAllowed), ({"calls_count": 1001}, LimitReached)],
)
def test_a_run_that_takes_no_call_takes_no_plan(run: dict[str, Any], error: type[CounterfoilError]) -> None:
    """Closed, unwinding, or in a loop."""
    refused(met(step(), **run), error)


def test_the_same_steps_are_the_same_plan() -> None:
    """While it waits, is carried out or is done, whatever else of the run is under way; other steps are another plan."""
    waiting = (planned(2, S.AWAITING_APPROVAL, 1), row(3, S.UNCERTAIN))
    assert met(step(), rows=waiting, plans=(OPEN,)) == Existing("P-1")
    for state in (S.READY, S.UNCERTAIN, S.OPERATOR_REVIEW, S.SUCCEEDED, S.COMPENSATED):
        assert met(step(), rows=(planned(2, state, 1),), plans=(APPROVED,)) == Existing("P-1")
    waiting = waiting[:1]
    for other in (step(arguments_sha256="new"), step("open"), step(of="a1")):
        decision = met(other, rows=(row(1), *waiting), plans=(OPEN,))
        assert isinstance(decision, Open)
        assert decision.replaced == ("a2",)


def test_a_plan_in_vain_is_the_same_until_its_caller_knows() -> None:
    """Whoever begins anew is told that nothing was done; whoever was told may want the same again."""
    steps = (("capture", "asked", None), ("send", "asked", None))
    plan = RecordedPlan("P-1", decision="approved", steps=steps)
    rows = (planned(2, S.PERMANENT_FAILURE, 1), planned(3, S.CANCELLED, 2, tool="send", effect="send"))
    asked = (step(), step("send"))
    assert met(*asked, rows=rows, plans=(plan,), handle=HandleView(told=known(2))) == Existing("P-1")
    assert met(*asked, rows=rows, plans=(plan,)) == Open((Record(4, 1, 4), Record(5, 1, 5)))
    stale = tuple(replace(action, state=S.STALE) for action in rows)
    expired = replace(plan, decision="expired")
    assert met(*asked, rows=stale, plans=(expired,), handle=HandleView(told=known(2))) == Existing("P-1")
    assert isinstance(met(*asked, rows=stale, plans=(expired,)), Open)


@pytest.mark.parametrize("state", [S.SUCCEEDED, S.COMPENSATED])
def test_a_plan_that_was_done_in_part_is_never_proposed_again_as_it_stands(state: State) -> None:
    """Told or not: its caller proposes what is left, or the done step would be done again."""
    steps = (("capture", "asked", None), ("send", "asked", None))
    plan = RecordedPlan("P-1", decision="approved", steps=steps)
    for last in (S.PERMANENT_FAILURE, S.CANCELLED, state):
        rows = (planned(2, state, 1), planned(3, last, 2, tool="send", effect="send"))
        for handle in (HAD, HandleView()):
            assert met(step(), step("send"), rows=rows, plans=(plan,), handle=handle) == Existing("P-1")
        assert isinstance(met(step("send"), rows=rows, plans=(plan,)), Open)


def test_no_plan_holds_what_has_ended_and_its_caller_was_not_told() -> None:
    """That may be what a step wants, in other words. What the step is about, and what the caller has replaced, is not."""
    done = row(2, tool="capture", effect="capture", target="o1")
    refused(met(step("send"), step(), rows=(row(1), done), handle=HandleView()), NotAllowed, "a2", "step 1", "so_far")
    assert isinstance(met(step(), rows=(row(1), done), handle=HandleView(told=known(2))), Open)
    assert isinstance(met(step(of="a2"), rows=(row(1), done), handle=HandleView()), Open)
    for other in (replace(done, target="o2"), replace(done, seq=None)):
        assert isinstance(met(step(), rows=(row(1), other), handle=HandleView()), Open)
    own = replace(done, state=S.CANCELLED, last_error_code="superseded")
    assert isinstance(met(step(), rows=(row(1), own), handle=HandleView()), Open)


def test_an_approved_plan_goes_to_its_end_first() -> None:
    """Another plan while one is carried out is refused, by name; one that is done stands in nobody's way."""
    rows = (planned(2, S.SUCCEEDED, 1), planned(3, S.PROPOSED, 2))
    refused(met(step("other"), rows=rows, plans=(APPROVED,)), NotAllowed, "P-1")
    assert isinstance(met(step("other"), rows=rows[:1], plans=(APPROVED,)), Open)


@pytest.mark.parametrize("state", [state for state in State if state not in SETTLED])
def test_nothing_of_the_run_may_be_on_its_way(state: State) -> None:
    """What is not decided yet comes first; what waits for a person's approval is no hindrance."""
    decision = met(step("open"), rows=(row(1), row(2, state)))
    if state in (S.PROPOSED, S.AWAITING_APPROVAL):
        assert isinstance(decision, Open)
    else:
        refused(decision, NotAllowed, "a2", "person" if state is S.OPERATOR_REVIEW else "wait_s")


def test_of_is_a_succeeded_action_of_the_run_that_no_other_step_is_about() -> None:
    """One to one: not another run's, not a failed one, not twice in the plan, not what another step has under way."""
    assert isinstance(met(step(of="a1"), rows=(row(1),)), Open)
    for state in set(State) - {S.SUCCEEDED}:
        if state in SETTLED:
            refused(met(step(of="a1"), rows=(row(1, state),)), ArgumentError, "$[0].of")
    refused(met(step(of="a9"), rows=(row(1),)), ArgumentError, "$[0].of")
    refused(met(step("open", of="a1"), step("send", of="a1"), rows=(row(1),)), ArgumentError, "$[1].of")
    about = row(2, S.AWAITING_APPROVAL, tool="open", effect="opening", parent_action_id="a1")
    refused(met(step(of="a1"), rows=(row(1), about)), ArgumentError, "$[0].of")
    assert isinstance(met(step(of="a1"), rows=(row(1), replace(about, state=S.CANCELLED))), Open)
    replaced = planned(2, S.AWAITING_APPROVAL, 1, parent_action_id="a1")
    assert isinstance(met(step("open", of="a1"), rows=(row(1), replaced), plans=(OPEN,)), Open)


def test_what_a_reviewer_rejected_is_not_proposed_again() -> None:
    """A single call that was rejected is no step of a plan, with the same arguments; with others it is, once."""
    no = row(2, S.CANCELLED, tool="capture", effect="capture", target="o1", last_error_code="rejected_by_reviewer")
    refused(met(step(), rows=(no,)), NotAllowed, "a2")
    assert isinstance(met(step(arguments_sha256="new"), rows=(no,)), Open)
    again = replace(no, action_id="a3", step="3", arguments_sha256="new")
    refused(met(step(arguments_sha256="newer"), rows=(no, again)), NotAllowed)


def test_a_rejected_plan_is_answered_by_another_one() -> None:
    """The same list never again; one that differs may hold steps of it, once; after the second rejection none."""
    no = planned(2, S.CANCELLED, 1, target="o1", last_error_code="rejected_by_reviewer")
    plan = replace(OPEN, decision="rejected")
    assert met(step(), rows=(no,), plans=(plan,), handle=HandleView()) == Existing("P-1"), "it was not told yet"
    refused(met(step(), rows=(no,), plans=(plan,)), NotAllowed, "P-1")
    assert isinstance(met(step(), step("send"), rows=(no,), plans=(plan,)), Open)
    again = replace(no, action_id="a3", step="3", proposal_id="P-2")
    refused(met(step(), step("open"), rows=(no, again), plans=(plan,)), NotAllowed, "step 0")
    assert isinstance(met(step("open"), rows=(no, again), plans=(plan,)), Open), "nobody has rejected that"


def test_what_may_happen_once_stands_once() -> None:
    """Not twice in the plan, not what has happened; what failed may be proposed, and so may what the plan replaces."""
    refused(met(step(once_key="k"), step("other", once_key="k")), ArgumentError, "$[1]")
    refused(met(step(once_key="k"), rows=(row(1, once_key="k"),)), NotAllowed, "a1")
    assert isinstance(met(step(once_key="k"), rows=(row(1, S.NOT_EXECUTED, once_key="k"),)), Open)
    replaced = planned(2, S.AWAITING_APPROVAL, 1, once_key="k")
    assert isinstance(met(step("other", once_key="k"), rows=(replaced,), plans=(OPEN,)), Open)


def test_an_effect_that_waits_for_its_own_approval_is_not_planned_again() -> None:
    """Else a person would be asked twice for one thing."""
    single = row(1, S.AWAITING_APPROVAL, tool="pay", effect="capture", proposal_id="P-9")
    refused(met(step(), rows=(single,)), NotAllowed, "a1", "person")


def test_labels_are_revised_where_nothing_was_done() -> None:
    """A failed step, and one of the plan that is replaced; another tool, or what was done, is a conflict."""
    failed = row(1, S.PERMANENT_FAILURE, tool="capture", step="take", revision=2)
    assert met(step(step="take"), rows=(failed,)) == Open((Record("take", 3, 2, supersedes="a1"),))
    replaced = planned(2, S.AWAITING_APPROVAL, 1, step="take")
    decision = met(step(step="take"), step("send"), rows=(replaced,), plans=(OPEN,))
    assert decision == Open((Record("take", 2, 3, supersedes="a2"), Record(1, 1, 4)), ("a2",))
    refused(met(step("open", step="take"), rows=(failed,)), StepConflict, "take")
    refused(met(step(step="take"), rows=(replace(failed, state=S.SUCCEEDED),)), StepConflict, "a1")


def test_a_plan_counts_as_its_steps() -> None:
    """The cap on a run's actions holds for all of them together, revisions counted."""
    handle = HandleView(told=KNOWN, limits=Limits(actions_max=4))
    assert isinstance(met(step(), step("open"), rows=(row(1, revision=2),), handle=handle), Open)
    refused(met(step(), step("open"), rows=(row(1, revision=3),), handle=handle), LimitReached)


def test_a_step_that_is_refused_keeps_its_reason() -> None:
    """At its place in the list, with the sentence of the tool's own validator, which no message holds."""
    error = _at(2, ArgumentError("the value is refused.", path="$.words", code="invalid_argument", reason="is a card"))
    assert (error.path, error.reason) == ("$[2].words", "is a card")
