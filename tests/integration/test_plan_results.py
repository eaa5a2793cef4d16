"""What the result of a plan tells: what counts as told, edits, unknown outcomes, withdrawals."""

from __future__ import annotations

from typing import Any

import pytest
from tests.integration.staging import Desk, Shop, desk, shop

from counterfoil import NextStep, Status

__all__ = ["desk", "shop"]  # fixtures


def test_results_of_a_plan_count_as_told(desk: Desk) -> None:
    """What `result` has shown is not shown again as unread; what it has not, is."""
    hold, draft = desk.staged("hold"), desk.staged("draft")
    plan = desk.run.propose([("capture", {"of": hold}), ("send", {"of": draft})])
    desk.decide(plan)
    desk.world.settle()
    unread = desk.run.call("note", {"order": "o7"}, wait_s=0)
    assert unread.next_step is NextStep.READ_UNSEEN
    run = desk.open(seen=desk.seen(hold, draft))
    run.propose([("capture", {"of": hold}), ("send", {"of": draft})]).result()
    assert run.call("note", {"order": "o8"}, wait_s=0).status is Status.PENDING


def test_an_edited_step_is_the_step_that_was_proposed(desk: Desk, shop: Shop) -> None:
    """A person edits the amount: the same plan is found, its old action's result follows, and what ran is shown."""
    hold = desk.staged("hold")
    plan = desk.run.propose([("capture", {"of": hold, "amount": 500})])
    old = desk.one("SELECT action_id FROM counterfoil.action WHERE tool = 'capture'")["action_id"]
    desk.edit(plan, old, {"amount": 300, "order": "o1"})
    assert desk.open().propose([("capture", {"of": hold, "amount": 500})]).id == plan.id
    waiting = desk.cf.result(old)
    assert (waiting.status, waiting.next_step) == (Status.AWAITING_APPROVAL, NextStep.END_TURN)
    assert desk.decide(plan) == "approved"
    desk.world.settle()
    told = desk.cf.result(old)
    assert (told.status, told.next_step, told.revision) == (Status.SUCCEEDED, NextStep.EDITED_BY_REVIEWER, 2)
    assert told.arguments == {"amount": 300, "order": "o1"}
    assert shop.amounts == [500, 300]
    value: Any = plan.result().value
    assert [step["arguments"] for step in value] == [{"amount": 300, "order": "o1"}]


def test_unknown_outcome_in_a_plan(desk: Desk, shop: Shop) -> None:
    """While a step's outcome is unknown the plan is uncertain and goes no further; evidence moves it on."""
    hold, draft = desk.staged("hold"), desk.staged("draft")
    plan = desk.run.propose([("capture", {"of": hold}), ("send", {"of": draft})])
    desk.decide(plan)
    shop.loses_answers = 1
    desk.world.work()
    told: Any = plan.result()
    assert (told.status, told.next_step) == (Status.UNCERTAIN, NextStep.WAIT)
    assert [step["status"] for step in told.value] == ["uncertain", "pending"]
    desk.world.settle()
    assert plan.result().status is Status.SUCCEEDED
    assert shop.happened.count("capture") == 1


@pytest.mark.parametrize("approved", [False, True])
def test_a_step_that_is_withdrawn_ends_the_plan(desk: Desk, shop: Shop, approved: bool) -> None:
    """Before and after the decision, as long as nothing was sent: nothing is, and nobody is asked any more."""
    hold, draft = desk.staged("hold"), desk.staged("draft")
    plan = desk.run.propose([("capture", {"of": hold}), ("send", {"of": draft})])
    if approved:
        desk.decide(plan)
    [send] = desk.rows("SELECT action_id FROM counterfoil.action WHERE place = 2")
    first = desk.one("SELECT action_id FROM counterfoil.action WHERE place = 1")["action_id"]
    desk.cf.cancel(first, "customer withdrew")
    desk.world.settle()
    told = plan.result()
    assert (told.status, told.code, told.suspend) == (Status.CANCELLED, desk.cf.result(first).code, False)
    assert desk.cf.result(send["action_id"]).code == "plan_stopped"
    assert shop.happened == ["hold", "draft"]
    assert desk.decide(plan) == "decided"
