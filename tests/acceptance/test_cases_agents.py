"""Handed cases of the agent's side: connections that drop, and names that a model must not give."""

from __future__ import annotations

import socket
from collections.abc import Callable
from typing import Any

import pytest

from counterfoil import ArgumentError, Counterfoil
from counterfoil.ledger.keys import action_id, provider_key
from counterfoil.testing import World

CHARGE = {"customer": "cus_1", "amount_minor": 500, "currency": "usd", "order_id": "1182"}
TICKET = {"project": "SUP", "summary": "Refund for order 1182", "order_id": "1182"}

both = pytest.mark.parametrize(
    ("tool", "arguments", "operation", "kind"),
    [
        pytest.param("stripe_charge", CHARGE, "payment_intents.create", "charges", id="stripe"),
        pytest.param("jira_create", TICKET, "issue.create", "tickets_created", id="jira"),
    ],
)


@pytest.mark.case("A9")
@both
def test_connection_that_drops_before_the_first_byte(
    world: World, enqueue: Any, other_worker: Any, sql: Any, tool: str, arguments: Any, operation: str, kind: str
) -> None:
    """(a) A refused connection sent nothing: no doubt, the attempt is given back, and the next one is the only request."""
    enqueue(tool, arguments)
    provider, _, _ = tool.partition("_")
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))  # nobody listens, and nobody else gets the port
        address = f"http://127.0.0.1:{closed.getsockname()[1]}"
        assert other_worker("w1", provider, **{"server" if provider == "jira" else "base_url": address}) == 1
    row = sql("SELECT state, attempt_count, not_sent_count, in_doubt FROM counterfoil.action")
    assert row == [("ready", 0, 1, False)]
    assert world.sandbox.requests() == []
    world.settle()
    assert world.states() == {f"{tool}/s1/do": "succeeded"}
    assert world.sandbox.count(kind) == len(world.sandbox.requests(operation=operation)) == 1


@pytest.mark.case("A9")
@pytest.mark.parametrize(
    "fault",
    [
        pytest.param("rst_mid_request", id="b-within-the-body"),
        pytest.param("rst_before_commit", id="b-reset-and-undone"),
        pytest.param("rst_after_commit", id="b-reset-and-done"),
        pytest.param("fin_after_commit", id="b-closed-and-done"),
        pytest.param("stall_headers", id="c-after-the-status-line"),
        pytest.param("stall_body", id="c-within-the-answer"),
        pytest.param("truncate_body", id="c-answer-cut-short"),
    ],
)
@both
def test_connection_that_drops_after_the_body(
    world: World, enqueue: Any, sql: Any, tool: str, arguments: Any, operation: str, kind: str, fault: str
) -> None:
    """(b), (c) A connection lost after the body or the status line proves nothing: uncertain, in doubt, then one effect."""
    world.sandbox.fault(fault, operation=operation, delay_s=0.05)
    enqueue(tool, arguments)
    world.work()
    assert sql("SELECT state, attempt_count, in_doubt FROM counterfoil.action") == [("uncertain", 1, True)]
    assert world.work() == 0, "nobody may claim it"
    world.settle()
    assert world.states() == {f"{tool}/s1/do": "succeeded"}
    assert world.sandbox.count(kind) == 1


RESERVED = ("idempotency_key", "action_id", "tenant_id", "tenant", "run_id", "step", "key", "of")


@pytest.mark.case("A11")
def test_identity_among_a_models_arguments(world: World, enqueue: Any, client: Callable[..., Counterfoil]) -> None:
    """A model that gives an identity is refused before and after the call; the key stays the ledger's, the effect one."""
    with client().run("r1", tenant="acme", actor="bot") as run:
        for name in RESERVED:
            mine = CHARGE | {name: "act_" + "a" * 26}
            refused = run.call("stripe_charge", mine, wait_s=0)
            assert (refused.status, refused.code, refused.field) == ("failed", "reserved_argument", name)
            assert refused.action_id is None
            with pytest.raises(ArgumentError) as error:
                enqueue("stripe_charge", mine)
            assert (error.value.path, error.value.code) == (f"$.{name}", "reserved_argument")
        assert world.states() == {}
        recorded = run.call("stripe_charge", CHARGE, wait_s=0)
        world.settle()
        for name in RESERVED:
            refused = run.call("stripe_charge", CHARGE | {name: recorded.action_id}, wait_s=0)
            assert (refused.code, refused.field) == ("reserved_argument", name)
        world.settle()
    assert recorded.action_id == action_id("acme", "r1", 1, 1, "do")
    [charge] = world.sandbox.effects("charge")
    assert charge.key == provider_key(world.settings.key_secret(), "acme", "stripe_charge", recorded.action_id)
