"""An action from its proposal to the provider and back, through lies and kills; the oracle is the sandbox's own store."""

from __future__ import annotations

from contextlib import closing

import pytest

from counterfoil.ledger.connection import Ledger
from counterfoil.ledger.queries import load

_AGENT = load("counterfoil.ledger", "sql/agent.sql")


CHARGE = {"customer": "cus_1", "amount_minor": 500, "currency": "usd", "order_id": "1182"}
TICKET = {"project": "SUP", "summary": "Refund for order 1182", "order_id": "1182"}


@pytest.mark.parametrize(
    ("tool", "arguments", "operation", "kind"),
    [
        ("stripe_charge", CHARGE, "payment_intents.create", "charges"),
        ("jira_create", TICKET, "issue.create", "tickets_created"),
    ],
)
@pytest.mark.parametrize(
    "fault", [None, "504_after_commit", "504_before_commit", "rst_after_commit", "empty_2xx", "html_2xx"]
)
def test_one_effect_whatever_the_gateway_says(world, enqueue, tool, arguments, operation, kind, fault) -> None:
    """Under each lie of the gateway the action ends succeeded with exactly one durable effect."""
    if fault:
        world.sandbox.fault(fault, operation=operation)
    enqueue(tool, arguments, "s1")
    world.settle()
    assert world.states() == {f"{tool}/s1/do": "succeeded"}
    assert world.sandbox.count(kind) == 1


@pytest.mark.parametrize("point", ["before_claim", "after_claim", "before_settle", "after_settle"])
@pytest.mark.parametrize(
    ("tool", "arguments", "kind"), [("stripe_charge", CHARGE, "charges"), ("jira_create", TICKET, "tickets_created")]
)
def test_a_kill_at_each_point(world, enqueue, tool, arguments, kind, point) -> None:
    """A worker that dies at any point leaves one effect and a succeeded row."""
    enqueue(tool, arguments, "s1")
    with world.crash_after(point):
        world.settle()
    assert world.crashes == [point]
    assert world.states() == {f"{tool}/s1/do": "succeeded"}
    assert world.sandbox.count(kind) == 1


def test_unwind_takes_back_what_happened_once(world, database, enqueue) -> None:
    """An unwound run has refunded its charge and closed its ticket, once each."""
    url = database.url("agent")
    enqueue("jira_create", TICKET, "ticket")
    enqueue("stripe_charge", CHARGE, "fee")
    world.settle()
    with closing(Ledger(url)) as ledger:
        ledger.rows(_AGENT["request_unwind"], {"tenant": "acme", "run": "r1", "reason": "warehouse refused"})
    world.settle()
    counts = world.sandbox.counts()
    assert (counts["charges"], counts["refunds"], counts["tickets_created"], counts["tickets_open"]) == (1, 1, 1, 0)
    assert world.states() == {
        "jira_create/ticket/do": "compensated",
        "stripe_charge/fee/do": "compensated",
        "stripe_refund/fee/undo": "succeeded",
        "jira_close/ticket/undo": "succeeded",
    }
