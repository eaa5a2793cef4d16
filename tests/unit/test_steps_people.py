"""The step rules where people are concerned: a pivot that is ahead, a reviewer's edits and rejections, open proposals."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from counterfoil.ledger.states import State
from counterfoil.outbox.results import NextStep
from counterfoil.outbox.run_view import ActionView, HandleView, Limits, RunView, WantedCall
from counterfoil.outbox.seen import Seen, told
from counterfoil.outbox.steps import RULES, Attach, Blocked, Decision, Record, decide
from counterfoil.providers.contract import ToolClass

C = ToolClass


def known(number: int) -> Seen:
    """The ends of actions 1 to `number`, as they are."""
    return told((f"a{n}", 1) for n in range(1, number + 1))


KNOWN = known(9)
HAD = HandleView(told=KNOWN)


def row(number: int, state: State = State.SUCCEEDED, **changes: Any) -> ActionView:
    """Action `a<number>`: a staged ticket of order o1, unless told otherwise."""
    given: dict[str, Any] = {
        "action_id": f"a{number}",
        "step": str(number),
        "seq": number,
        "revision": 1,
        "tool": "stage_ticket",
        "effect": "ticket",
        "target": "o1",
        "state": state,
        "arguments_sha256": "asked",
        "ends_count": 1,
        **changes,
    }
    return ActionView(**given)


def wanted(cls: ToolClass = C.COMPENSATABLE, **changes: Any) -> WantedCall:
    given: dict[str, Any] = {"tool": "pay", "effect": "payment", "target": "o1", "arguments_sha256": "asked", **changes}
    return WantedCall(cls=cls, **given)


def met(*rows: ActionView, call: WantedCall, pivot: str | None = None, handle: HandleView = HAD) -> Decision:
    return decide(RunView(state="open", calls_count=1, actions=rows, pivot=pivot), call, handle)


@pytest.mark.parametrize("cls", [C.COMPENSATABLE, C.IRREVERSIBLE])
def test_nothing_goes_past_a_pivot_that_is_ahead(cls: ToolClass) -> None:
    """With something staged and no plan open, what commits ends the turn; a run that never stages and one that is past
    its pivot take it at once."""
    assert met(row(1), call=wanted(cls), pivot="ahead") == Blocked(NextStep.END_TURN)
    assert met(call=wanted(cls), pivot="ahead") == Blocked(NextStep.END_TURN), "staged by a run above"
    assert met(row(1), call=wanted(cls), pivot=None) == Record(2, 1, 2)
    assert met(row(1), call=wanted(cls), pivot="passed") == Record(2, 1, 2)


@pytest.mark.parametrize("step", [None, "label"])
def test_reversible_calls_go_on_before_the_pivot(step: str | None) -> None:
    """Staging goes on, by number and by label."""
    call = wanted(C.REVERSIBLE, staged=True, step=step)
    assert met(row(1), call=call, pivot="ahead") == Record(step or 2, 1, 2)


def test_an_open_plan_is_named_by_its_first_step() -> None:
    """While people decide on the plan, what commits is theirs: `person`, and by the first step of the plan."""
    plan = [
        row(2, State.AWAITING_APPROVAL, tool="open", effect="opening", place=1, proposal_id="P-1"),
        row(3, State.PROPOSED, tool="send", effect="mail", place=2, proposal_id="P-1"),
    ]
    for order in (plan, plan[::-1]):
        assert met(row(1), *order, call=wanted(), pivot="ahead") == Blocked(NextStep.PERSON, by="a2")
    ended = [replace(step, state=State.CANCELLED) for step in plan]
    assert met(row(1), *ended, call=wanted(), pivot="ahead") == Blocked(NextStep.END_TURN)


def test_a_recorded_call_is_told_before_the_pivot_is_asked() -> None:
    """Replays are no new actions: a label and a lost result are answered, and so is what may happen once."""
    done = row(1, tool="pay", effect="payment", step="fee", once_key="k")
    assert met(done, call=wanted(step="fee"), pivot="ahead") == Attach("a1")
    assert met(done, call=wanted(), pivot="ahead", handle=HandleView()) == Attach("a1")
    assert met(done, call=wanted(once_key="k"), pivot="ahead") == Attach("a1", already_done=True)


def test_what_was_staged_is_told_again_while_its_commit_waits() -> None:
    """An agent that begins anew gets its staged result, although a step of the plan has the same effect under way; once
    it had that, the step comes first."""
    staged = row(1, effect="charge", tool="hold")
    capture = row(2, State.AWAITING_APPROVAL, effect="charge", tool="capture", place=1, proposal_id="P-1")
    again = wanted(C.REVERSIBLE, tool="hold", effect="charge", staged=True)
    assert met(staged, capture, call=again, pivot="ahead", handle=HandleView()) == Attach("a1")
    assert met(staged, capture, call=again, pivot="ahead") == Blocked(NextStep.PERSON, by="a2")


EDITED = {"arguments_sha256": "edited", "edited_before": (("o1", "asked"),), "revision": 2, "tool": "pay"}


def test_a_reviewer_s_edit_stands_for_the_call_that_it_has_replaced() -> None:
    """The same call again is the edited action, also where the edit has another target; the edited one is the call, too."""
    waiting = row(1, State.AWAITING_APPROVAL, effect="payment", target="o2", **EDITED)
    assert met(waiting, call=wanted()) == Attach("a1")
    assert met(waiting, call=wanted(target="o2")) == Attach("a1")
    done = replace(waiting, state=State.SUCCEEDED)
    assert met(done, call=wanted(), handle=HandleView()) == Attach("a1")
    assert met(waiting, call=wanted(tool="pay_fast")) == Blocked(NextStep.PERSON, by="a1"), "the same effect"


def test_a_label_with_an_edited_failure_is_revised_by_new_words_only() -> None:
    """What the caller had asked for first is no new wish, other arguments are."""
    failed = row(1, State.PERMANENT_FAILURE, effect="payment", step="fee", **EDITED)
    assert met(failed, call=wanted(step="fee")) == Attach("a1")
    other = wanted(step="fee", arguments_sha256="new")
    assert met(failed, call=other) == Record("fee", 3, 2, supersedes="a1")


def test_a_rejected_edit_rejects_what_was_asked_for_first() -> None:
    """Neither the edited arguments nor those before are proposed again; others are, once."""
    no = row(1, State.CANCELLED, effect="payment", last_error_code="rejected_by_reviewer", **EDITED)
    for sha256 in ("asked", "edited"):
        assert met(no, call=wanted(arguments_sha256=sha256)) == Blocked(NextStep.PERSON, by="a1")
    assert met(no, call=wanted(arguments_sha256="new")) == Record(2, 1, 2)
    twice = replace(no, action_id="a2", step="2", seq=2, arguments_sha256="new")
    assert met(no, twice, call=wanted(arguments_sha256="newer")) == Blocked(NextStep.PERSON, by="a2")


def test_a_run_asks_people_for_a_few_things_at_once() -> None:
    """Gated calls beyond the cap are refused; the steps of a plan are one proposal; decided ones count no more."""
    limits = HandleView(told=KNOWN, limits=Limits(proposals_open_max=2))
    single = row(1, State.AWAITING_APPROVAL, effect="note", target="o3", proposal_id="P-1")
    plan = [row(n, State.PROPOSED, effect="mail", target="o4", place=n, proposal_id="P-2") for n in (2, 3)]
    gated = wanted(C.REVERSIBLE, gated=True)
    assert met(single, *plan, call=gated, handle=limits) == Blocked(
        NextStep.LIMIT_REACHED, limit="limits.proposals_open_per_run_max"
    )
    assert met(single, *plan, call=wanted(C.REVERSIBLE), handle=limits) == Record(4, 1, 4), "it asks nobody"
    assert met(*plan, call=gated, handle=limits) == Record(4, 1, 4)
    decided = replace(single, state=State.CANCELLED)
    assert met(decided, *plan, call=gated, handle=limits) == Record(4, 1, 4)


def test_every_rule_says_what_it_is_for() -> None:
    """The list of rules can be read as the specification."""
    assert all(rule.__doc__ for rule in RULES)
