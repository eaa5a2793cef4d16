"""Stage, one approval, commit, with the shipped tools: what a person decided on happens, in its order, once."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, get_args

import psycopg
import pytest

from counterfoil import Counterfoil, Proposal, Result, Run, Status
from counterfoil.testing import World
from counterfoil.workers.points import Point

if TYPE_CHECKING:
    from tests.conftest import Database

HOLD = {"customer": "cus_1", "amount_minor": 500, "currency": "usd", "order_id": "1182"}
TICKET = {"project": "SUP", "summary": "Reship 1182", "order_id": "1182"}
DECLINED = {"error": {"type": "card_error", "code": "card_declined", "decline_code": "expired_card"}}


@pytest.fixture
def run(client: Callable[..., Counterfoil]) -> Run:
    return client().run("ticket-1182", tenant="acme", actor="bot")


@pytest.fixture
def decide(database: Database) -> Callable[..., str]:
    """A person decides, over the digest as it is now."""

    def by_alice(proposal: Proposal, verdict: str = "approved", reason: str | None = None) -> str:
        with psycopg.connect(database.url("operator")) as connection:
            row = connection.execute(
                "SELECT answer FROM counterfoil.decide(%s, %s, %s, 'alice', 'test', %s)",
                (proposal.id, verdict, proposal.digest, reason),
            ).fetchone()
        assert row is not None
        return str(row[0])

    return by_alice


def stage(run: Run, world: World, tool: str, arguments: Mapping[str, object]) -> Result:
    """Stages, and asks again after the fleet has worked."""
    told = run.stage(tool, arguments, wait_s=0)
    if told.status is Status.PENDING:
        world.settle()
        told = run.stage(tool, arguments, wait_s=0)
    assert told.status is Status.SUCCEEDED
    return told


def staged(run: Run, world: World) -> Proposal:
    """A hold and a staged ticket, and the plan that captures the one and opens the other."""
    hold, ticket = stage(run, world, "stripe_authorize", HOLD), stage(run, world, "jira_stage", TICKET)
    plan = run.propose(
        [("stripe_capture", {"of": hold.action_id}), ("jira_open", {"of": ticket.action_id})], note="parcel was lost"
    )
    world.settle()  # a worker reads the ticket's version
    return plan


def committed(world: World) -> tuple[int, int]:
    """(charges, tickets that were opened for the team)."""
    return world.sandbox.count("charges"), len(world.sandbox.effects("transition"))


def test_approved_plan_is_carried_out_in_order(run: Run, world: World, decide: Any) -> None:
    """Before the decision nothing is committed; after it the capture, then the ticket, by themselves, once each."""
    plan = staged(run, world)
    waiting = plan.result()
    assert (waiting.status, waiting.suspend, waiting.proposal_id) == (Status.AWAITING_APPROVAL, True, plan.id)
    assert committed(world) == (0, 0)
    assert decide(plan) == "approved"
    assert plan.result().status is Status.PENDING
    world.settle()
    assert committed(world) == (1, 1)
    told: Any = plan.result()
    assert told.status is Status.SUCCEEDED
    assert [(step["tool"], step["status"]) for step in told.value] == [
        ("stripe_capture", "succeeded"),
        ("jira_open", "succeeded"),
    ]
    assert told.value[0]["value"]["amount"] == 500
    kinds = [effect.kind for effect in world.sandbox.effects() if effect.kind in ("charge", "transition")]
    assert kinds == ["charge", "transition"]
    world.settle()
    assert committed(world) == (1, 1)


def test_rejected_plan_commits_nothing(run: Run, world: World, decide: Any) -> None:
    """A no: the reason is told, nothing was committed, and the same is not proposed again."""
    plan = staged(run, world)
    assert decide(plan, "rejected", "wrong order") == "rejected"
    world.settle()
    told = plan.result()
    assert (told.status, told.code, told.value) == (
        Status.CANCELLED,
        "rejected_by_reviewer",
        {"reason": "wrong order"},
    )
    assert committed(world) == (0, 0)


@pytest.mark.parametrize("tool", ["stripe_capture", "jira_open"])
@pytest.mark.parametrize("point", get_args(Point))
def test_crash_while_a_plan_is_carried_out(run: Run, world: World, decide: Any, point: Point, tool: str) -> None:
    """A worker that dies at any point of either step: still one charge and one open ticket."""
    plan = staged(run, world)
    decide(plan)
    with world.crash_after(point, tool=tool):
        world.settle()
    assert world.crashes == [point]
    assert committed(world) == (1, 1)
    assert plan.result().status is Status.SUCCEEDED


def test_a_step_that_fails_stops_the_plan(run: Run, world: World, decide: Any) -> None:
    """The card is declined at the capture: the ticket is not opened, and the result says which step it was."""
    plan = staged(run, world)
    decide(plan)
    world.sandbox.stripe.fault("answer", on="payment_intents.capture", body=DECLINED, status=402)
    world.settle()
    told: Any = plan.result()
    assert (told.status, committed(world)) == (Status.FAILED, (0, 0))
    assert [step["status"] for step in told.value] == ["failed", "cancelled"]
    assert told.code == told.value[0]["code"]


def test_run_is_found_again_after_a_crash_of_the_agent(
    client: Callable[..., Counterfoil], world: World, decide: Any
) -> None:
    """An agent that begins anew, before and after the decision, stages nothing twice and finds its proposal."""
    plans = []
    for begin in range(3):
        run = client().run("ticket-1182", tenant="acme", actor="bot")
        plans.append(staged(run, world))
        if begin == 1:
            decide(plans[0])
            world.settle()
    assert len({plan.id for plan in plans}) == 1
    assert world.sandbox.count("tickets_created") == 1
    assert committed(world) == (1, 1)
    assert plans[-1].result().status is Status.SUCCEEDED
