"""Handed cases of Zendesk: a creation whose first request is still under way, and a long wait that it asks for."""

from __future__ import annotations

from typing import Any

import pytest

from counterfoil.providers.zendesk import tools
from counterfoil.testing import World

TICKET = {"subject": "Refund for order 1182", "body": "The parcel was lost.", "order_id": "1182"}
CREATE, STATE = "tickets.create", "zendesk_create/s1/do"


@pytest.fixture(autouse=True)
def zendesk(use_tools: Any) -> None:
    """The world's tools are Zendesk's."""
    use_tools(tools.zendesk_create, tools.zendesk_note, tools.zendesk_reply, tools.zendesk_solve)


@pytest.mark.case("E6")
def test_409_on_a_creation_after_a_timeout(world: World, enqueue: Any, configure: Any, passed: Any) -> None:
    """The creation outlasts the client, its repeat meets 409: uncertain both times, then found by the external id."""
    configure("zendesk", timeout_s=1.0, landing_max_s=2)  # the request takes longer than the contract says
    world.sandbox.config(search_lag_s={"zendesk": 0})
    world.sandbox.zendesk.fault("slow", on=CREATE, delay_s=40)
    action_id = enqueue("zendesk_create", TICKET)
    assert world.work() == 1
    assert world.states() == {STATE: "uncertain"}, "the client gave up"
    for _ in range(100):
        world.reconcile()
        if world.work():
            break
        world.advance(0.5)
    assert [request.status for request in world.sandbox.requests("zendesk", CREATE)[1:]] == [409]
    assert world.states() == {STATE: "uncertain"}, "a 409 refuses nothing here"
    assert world.sandbox.count("zendesk_tickets") == 0, "the first request is still running"
    world.advance(40)
    world.settle()
    assert world.states() == {STATE: "succeeded"}
    assert world.sandbox.count("zendesk_tickets") == 1
    creates, lists = (world.sandbox.requests("zendesk", name) for name in (CREATE, "tickets.list"))
    assert len({request.headers["idempotency-key"] for request in creates}) == 1
    assert len({request.body for request in creates}) == 1
    assert len(creates) == 2, "no third request: the look-up told"
    assert passed(action_id)[-2:] == ["reconciling", "succeeded"]
    [ticket] = world.sandbox.effects("ticket", provider="zendesk")
    assert f"external_id=cf-{ticket.key}" in lists[-1].query


def test_a_creation_that_outlasts_the_client_is_one_ticket(world: World, enqueue: Any, configure: Any) -> None:
    """Where Zendesk would run a twin of what is under way, none is sent: the key waits until the first has landed."""
    configure("zendesk", timeout_s=1.0, landing_max_s=120)
    world.sandbox.config(search_lag_s={"zendesk": 0}, zendesk_in_flight="execute")
    world.sandbox.zendesk.fault("slow", on=CREATE, delay_s=40)
    enqueue("zendesk_create", TICKET)
    world.work()
    for _ in range(20):
        world.reconcile()
        world.work()
        world.advance(1)
    assert len(world.sandbox.requests("zendesk", CREATE)) == 1
    world.settle()
    assert world.states() == {STATE: "succeeded"}
    assert (world.sandbox.count("zendesk_tickets"), len(world.sandbox.requests("zendesk", CREATE))) == (1, 1)


def test_a_creation_that_never_ran_is_repeated_under_its_key(world: World, enqueue: Any, configure: Any) -> None:
    """Not for ever: when nothing can be under way any more, the key is repeated, long before absence is earned."""
    configure("zendesk", landing_max_s=120)
    world.sandbox.zendesk.fault("504_before_commit", on=CREATE)
    enqueue("zendesk_create", TICKET)
    started = world.moved_s
    world.settle()
    assert world.states() == {STATE: "succeeded"}
    assert (world.sandbox.count("zendesk_tickets"), len(world.sandbox.requests("zendesk", CREATE))) == (1, 2)
    assert 120 < world.moved_s - started < 300


@pytest.mark.case("E8")
def test_retry_after_600(world: World, enqueue: Any, sql: Any) -> None:
    """429 with Retry-After 600: the worker is free for another call at once, and the row is claimable 600 s later."""
    world.sandbox.zendesk.fault("429_retry_after", on=CREATE, headers={"Retry-After": "600"})
    enqueue("zendesk_create", TICKET)
    assert world.work() == 1
    row = sql(
        "SELECT state, lease_until, extract(epoch FROM ready_at - counterfoil.now())::float8 FROM counterfoil.action"
    )
    assert [(state, lease) for state, lease, _ in row] == [("retryable_failure", None)]
    assert 590 < row[0][2] <= 600
    enqueue("zendesk_create", TICKET | {"order_id": "1183"}, step="s2", run="r2")
    assert world.work() == 1, "the worker that met it takes the next call, and only that"
    assert world.states() == {STATE: "retryable_failure", "zendesk_create/s2/do": "succeeded"}
    world.advance(580)
    assert world.work() == 0
    world.advance(20)
    assert world.work() == 1
    assert set(world.states().values()) == {"succeeded"}
    assert len(world.sandbox.requests("zendesk", CREATE)) == 3
    assert world.sandbox.count("zendesk_tickets") == 2


@pytest.mark.parametrize(
    "fault", ["504_after_commit", "rst_after_commit", "rst_before_commit", "504_then_commit_after"]
)
def test_a_lost_answer_is_one_ticket(world: World, enqueue: Any, fault: str) -> None:
    """Whatever became of the answer, and whenever the creation landed: one ticket, and the row says which."""
    world.sandbox.zendesk.fault(fault, on=CREATE)
    enqueue("zendesk_create", TICKET)
    world.settle()
    assert world.states() == {STATE: "succeeded"}
    assert world.sandbox.count("zendesk_tickets") == 1


@pytest.mark.parametrize("fault", ["504_after_commit", "fin_after_commit", "stall_headers", "rst_before_commit"])
def test_a_lost_answer_is_one_note(world: World, enqueue: Any, configure: Any, fault: str) -> None:
    """An update has no key of Zendesk's: the audits of the ticket tell, and there is one note."""
    configure("zendesk", timeout_s=1.0)
    enqueue("zendesk_create", TICKET)
    world.settle()
    world.sandbox.zendesk.fault(fault, on="tickets.update")
    enqueue("zendesk_note", {"ticket": "1", "body": "Called the carrier."}, step="s2")
    world.settle()
    assert world.states() == {STATE: "succeeded", "zendesk_note/s2/do": "succeeded"}
    assert world.sandbox.count("zendesk_notes") == 1
    assert world.sandbox.count("zendesk_mails") == 0


def test_a_reply_waits_for_a_person(world: World, enqueue: Any) -> None:
    """What the customer reads is sent by nobody's word but a person's."""
    enqueue("zendesk_create", TICKET)
    world.settle()
    enqueue("zendesk_reply", {"ticket": "1", "body": "We send you another."}, step="s2")
    world.settle()
    assert world.states() == {STATE: "succeeded", "zendesk_reply/s2/do": "awaiting_approval"}
    assert world.sandbox.count("zendesk_mails") == 0


@pytest.mark.parametrize("fault", [None, "504_after_commit"])
def test_an_unwind_solves_the_ticket(world: World, enqueue: Any, unwind: Any, fault: str | None) -> None:
    """What a run opened is solved once when the run is taken back, and no customer is told."""
    enqueue("zendesk_create", TICKET)
    world.settle()
    if fault:
        world.sandbox.zendesk.fault(fault, on="tickets.update")
    unwind()
    world.settle()
    assert world.states() == {STATE: "compensated", "zendesk_solve/s1/undo": "succeeded"}
    assert world.sandbox.count("zendesk_solved") == 1
    assert len(world.sandbox.requests("zendesk", "tickets.update")) == 1
    assert world.sandbox.count("zendesk_mails") == 0
