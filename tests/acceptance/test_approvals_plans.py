"""What people see of a plan, and what comes of an edit of one of its steps."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from tests.acceptance.people import Person

from counterfoil.ledger.errors import DecisionRefused
from counterfoil.ledger.proposals import Answer
from counterfoil.testing import World

HOLD = {"customer": "cus_1", "amount_minor": 500, "currency": "usd", "order_id": "1182"}
TICKET = {"project": "SUP", "summary": "Re-ship 1182", "order_id": "1182"}


@pytest.fixture
def alice(database: Any, world: World) -> Iterator[Person]:
    """A person at the operators' login."""
    made = Person(database.url("operator"), world.registry, "alice")
    yield made
    made.ledger.close()


@pytest.fixture
def plan(client: Any, world: World) -> Any:
    """A hold and a ticket that no queue shows; a plan to capture and to open."""
    run = client().run("ticket-1182", tenant="acme", actor="bot")
    staged = []
    for tool, arguments in (("stripe_authorize", HOLD), ("jira_stage", TICKET)):
        run.stage(tool, arguments, step=tool, wait_s=0)
        world.settle()
        staged.append(run.stage(tool, arguments, step=tool).action_id)
    steps = [
        ("stripe_capture", {"of": staged[0], "order_id": "1182"}),
        ("jira_open", {"of": staged[1], "order_id": "1182"}),
    ]
    return run.propose(steps, note="parcel lost")


def test_a_plan_is_shown_with_what_stands_staged(plan: Any, world: World, alice: Person, cli: Any) -> None:
    """Before a worker has read the hold's version it cannot be approved; then both steps, what is held, and until when."""
    unread = alice.show(plan.id)
    assert unread.unread
    with pytest.raises(DecisionRefused) as early:
        alice.approve(plan.id)
    assert early.value.code == "version_unread"
    world.settle()
    shown = alice.show(plan.id)
    assert (shown.unread, shown.digest == unread.digest) == (False, False)
    assert [each.step.tool for each in shown.steps] == ["stripe_capture", "jira_open"]
    assert [each.step.tool for each in shown.staged] == ["stripe_authorize", "jira_stage"]
    assert shown.staged[0].lapses_at is not None
    assert shown.totals == {"usd": 500}
    code, page = cli("proposal", "show", plan.id)
    assert code == 0
    for word in (
        "| parcel lost",
        "staged: stripe_authorize",
        "step 2: jira_open",
        "moves",
        "5.00 USD",
    ):
        assert word in page, word
    assert page.splitlines()[-1] == f"digest {shown.digest_shown}"
    code, listed = cli("proposal", "list")
    assert (code, "stripe_capture, jira_open" in listed, "5.00 USD" in listed) == (6, True, True)


def test_an_edited_step_of_a_plan(plan: Any, world: World, alice: Person) -> None:
    """A person lowers the capture: its version is read again, the new digest is approved, and 300 is taken, once."""
    world.settle()
    old = alice.show(plan.id).digest
    edited = alice.edit(plan.id, 1, amount_minor=300, currency="usd")
    assert edited.shown.unread
    world.settle()
    with pytest.raises(DecisionRefused) as refused:
        alice.approve(plan.id, old)
    assert refused.value.code == "changed"
    shown = alice.show(plan.id)
    assert shown.totals == {"usd": 300}
    assert alice.approve(plan.id, shown.digest).answer is Answer.APPROVED
    world.settle()
    assert [effect.amount for effect in world.sandbox.effects("charge")] == [300]
    assert len(world.sandbox.effects("transition")) == 1
    told = plan.result()
    assert (told.status, [step["status"] for step in told.value]) == ("succeeded", ["succeeded", "succeeded"])
