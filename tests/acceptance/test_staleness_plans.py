"""Stale state in a plan of Stripe and Jira: whose hand makes a step stale, and what becomes of the steps after it."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import pytest
import requests
from tests.acceptance.drafts import approve_newest

from counterfoil.providers.registry import Registry
from counterfoil.testing import World

if TYPE_CHECKING:
    from tests.conftest import Database

Sql = Callable[..., list[tuple[Any, ...]]]

HOLD = {"customer": "cus_1", "amount_minor": 500, "currency": "usd", "order_id": "1182"}
TICKET = {"project": "SUP", "summary": "Reship 1182", "order_id": "1182"}


@pytest.fixture
def approve(database: Database) -> Callable[[], str]:
    """Alice approves the newest proposal; what the door answers."""
    return lambda: approve_newest(database.url("operator"))


@pytest.fixture
def plan(world: World, client: Any, working: Any) -> Callable[[], None]:
    """Holds money, stages a ticket, and proposes to capture, then to open; versions are read."""

    def make() -> None:
        with working(), client().run("r1", tenant="acme", actor="bot") as run:
            hold = run.stage("stripe_authorize", HOLD)
            ticket = run.stage("jira_stage", TICKET)
            run.propose(
                [
                    (
                        "stripe_capture",
                        {"order_id": "1182", "amount_minor": 500, "currency": "usd", "of": hold.action_id},
                    ),
                    ("jira_open", {"order_id": "1182", "of": ticket.action_id}),
                ]
            )
        world.settle()

    return make


def stripe_by_hand(world: World, verb: str) -> None:
    [hold] = world.sandbox.stripe.effects("authorization")
    url = f"{world.sandbox.stripe.url}/v1/payment_intents/{hold.object_id}/{verb}"
    requests.post(url, headers={"Authorization": "Bearer sk_test_sandbox"}, timeout=3).raise_for_status()


def jira_by_hand(world: World) -> None:
    [ticket] = world.sandbox.jira.effects("ticket")
    url = f"{world.sandbox.jira.url}/rest/api/2/issue/{ticket.object_id}/comment"
    world.advance(1)
    requests.post(url, json={"body": "Wait."}, auth=("ann", "x"), timeout=3).raise_for_status()


def states(world: World) -> list[str]:
    """Of the plan's two steps."""
    rows = world.states().items()
    return [state for name, state in rows if name.startswith(("stripe_capture", "jira_open"))]


def test_a_plan_on_what_nobody_has_touched(world: World, plan: Any, approve: Any, sql: Sql) -> None:
    """What our own calls do elsewhere makes no step stale: captured, then opened; both versions were in the digest."""
    plan()
    assert states(world) == ["awaiting_approval", "proposed"]
    versions = [v for (v,) in sql("SELECT expected_resource_version FROM counterfoil.action WHERE place IS NOT NULL")]
    assert all(versions)
    assert len(versions) == 2
    assert approve() == "approved"
    world.settle()
    assert states(world) == ["succeeded", "succeeded"]
    assert (world.sandbox.count("charges"), world.sandbox.count("transitions")) == (1, 1)


@pytest.mark.parametrize("verb", ["cancel", "capture"])
def test_a_hold_that_somebody_ended_by_hand(world: World, plan: Any, approve: Any, sql: Sql, verb: str) -> None:
    """Released or captured at the dashboard after the approval: no capture of ours, and the plan's rest stops."""
    plan()
    assert approve() == "approved"
    stripe_by_hand(world, verb)
    charges = world.sandbox.count("charges")
    captures = len(world.sandbox.requests("stripe", "payment_intents.capture"))
    world.settle()
    assert states(world) == ["stale", "cancelled"]
    assert sql("SELECT last_error_code FROM counterfoil.action WHERE place IS NOT NULL ORDER BY place") == [
        ("resource_changed",),
        ("plan_stopped",),
    ]
    assert world.sandbox.count("charges") == charges
    assert len(world.sandbox.requests("stripe", "payment_intents.capture")) == captures
    assert world.sandbox.count("transitions") == 0


def test_a_later_step_goes_stale(world: World, plan: Any, approve: Any) -> None:
    """Somebody writes on the staged ticket after the approval: the capture is done, the ticket is left to people."""
    plan()
    assert approve() == "approved"
    jira_by_hand(world)
    world.settle()
    assert states(world) == ["succeeded", "stale"]
    assert (world.sandbox.count("charges"), world.sandbox.count("transitions")) == (1, 0)


def test_taking_back_does_not_go_stale(world: World, plan: Any, approve: Any, unwind: Any) -> None:
    """Everything has changed since: the refund is made and the ticket closed all the same."""
    plan()
    assert approve() == "approved"
    world.settle()
    jira_by_hand(world)
    unwind()
    world.settle()
    assert (world.sandbox.count("refunds"), world.sandbox.count("tickets_open")) == (1, 0)


def test_counter_actions_read_no_version() -> None:
    """The shipped tools that unwinds use read no version, those that a plan commits do."""
    shipped = Registry.load(["counterfoil.providers.stripe.tools", "counterfoil.providers.jira.tools"])
    read = {spec.name for spec in shipped if spec.resource_version}
    assert read == {"stripe_capture", "jira_open"}
    assert read.isdisjoint({str(spec.undo) for spec in shipped})
