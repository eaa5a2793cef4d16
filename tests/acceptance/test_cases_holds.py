"""Handed cases of payments in two steps: an authorisation, and the capture that is about it."""

from __future__ import annotations

from typing import Any

import pytest
import requests

from counterfoil.ledger.canonical import canonical_json, sha256_of
from counterfoil.ledger.keys import action_id
from counterfoil.testing import World

HOLD = {"customer": "cus_1", "amount_minor": 500, "currency": "usd", "order_id": "1182"}
CAPTURE = "payment_intents.capture"


@pytest.fixture
def follow_up(world: World, sql: Any) -> Any:
    """Records a call that is about another action. The ledger takes such rows as counter-actions only, so it is one."""

    def record(tool: str, arguments: dict[str, object], of: str) -> str:
        spec = world.registry.get(tool)
        text = canonical_json(spec.validate(arguments))
        made = action_id("acme", "r1", "s1", 1, "undo")
        amount_minor, currency = spec.amount_of(spec.validate(arguments))
        sql(
            "INSERT INTO counterfoil.action (action_id, tenant, run, step, revision, phase, parent_action_id, actor, tool,"
            " tool_version, class, effect, target, provider, queue, arguments, arguments_sha256, audience, amount_minor,"
            " currency, state, ready_at, changed_by, change_reason) VALUES (%s, 'acme', 'r1', 's1', 1, 'undo', %s, 'bot',"
            " %s, 1, %s, %s, '1182', %s, %s, %s, %s, %s, %s, %s, 'ready', counterfoil.now(), 'test', 'by hand')",
            *(made, of, tool, spec.cls.value, spec.effect, spec.provider, spec.queue, text, sha256_of(text)),
            *(spec.audience_of(spec.validate(arguments)), amount_minor, currency),
        )
        return made

    return record


@pytest.mark.case("D13")
def test_capture_that_answers_already_captured(
    world: World, enqueue: Any, follow_up: Any, passed: Any, sql: Any
) -> None:
    """A capture lands late and its resend is refused as captured already: the look-up finds our own, nothing is refunded."""
    hold = enqueue("stripe_authorize", HOLD)
    world.settle()
    capture = follow_up("stripe_capture", {"order_id": "1182", "amount_minor": 500, "currency": "usd"}, of=hold)
    world.sandbox.stripe.fault("504_then_commit_after", on=CAPTURE, delay_s=1.5)
    world.sandbox.config(idem_ttl_s=0)
    assert world.work() == 1
    for _ in range(100):
        world.reconcile()
        if world.due():
            break
        world.advance(0.1)
    assert world.sandbox.count("charges") == 0, "the first request has not landed when the second is due"
    world.advance(1.5)
    world.settle()
    assert [request.status for request in world.sandbox.requests("stripe", CAPTURE)] == [504, 400]
    assert passed(capture)[-3:] == ["uncertain", "reconciling", "succeeded"]
    [(receipt, evidence)] = sql(
        "SELECT a.receipt, h.evidence FROM counterfoil.action AS a JOIN counterfoil.history AS h USING (action_id)"
        " WHERE action_id = %s AND h.to_state = 'succeeded'",
        capture,
    )
    assert ": found pi_" in evidence
    assert [effect.object_id for effect in world.sandbox.effects("charge")] == [receipt]
    assert (world.sandbox.count("charges"), world.sandbox.count("refunds")) == (1, 0)


@pytest.mark.case("D13")
def test_capture_by_somebody_else_is_a_person_s(world: World, enqueue: Any, follow_up: Any, sql: Any) -> None:
    """Our capture was lost before it landed, then a person captured by hand: no success of ours, no second attempt."""
    hold = enqueue("stripe_authorize", HOLD)
    world.settle()
    [(intent,)] = sql("SELECT receipt FROM counterfoil.action")
    capture = follow_up("stripe_capture", {"order_id": "1182", "amount_minor": 500, "currency": "usd"}, of=hold)
    world.sandbox.stripe.fault("504_before_commit", on=CAPTURE)
    assert world.work() == 1
    url = f"{world.sandbox.stripe.url}/v1/payment_intents/{intent}/capture"
    requests.post(url, headers={"Authorization": "Bearer sk_test_sandbox"}, timeout=3).raise_for_status()
    world.settle()
    assert sql("SELECT state, last_error_code FROM counterfoil.action WHERE action_id = %s", capture) == [
        ("operator_review", "mismatch")
    ]
    assert len(world.sandbox.requests("stripe", CAPTURE)) == 2, "ours and the person's"
    assert (world.sandbox.count("charges"), world.sandbox.count("refunds")) == (1, 0)


@pytest.mark.parametrize("fault", [None, "504_after_commit", "504_before_commit", "rst_after_commit"])
def test_what_was_only_prepared_is_taken_back(
    world: World, enqueue: Any, client: Any, sql: Any, fault: str | None
) -> None:
    """A hold is released and a staged ticket closed, each once, however the answers to taking back are lost."""
    enqueue("stripe_authorize", HOLD, step="hold")
    enqueue("jira_stage", {"project": "SUP", "summary": "Reship 1182", "order_id": "1182"}, step="ticket")
    world.settle()
    if fault is not None:
        world.sandbox.stripe.fault(fault, on="payment_intents.cancel")
        world.sandbox.jira.fault(fault, on="issue.transition")
    with client().run("r1", tenant="acme", actor="bot") as run:
        run.unwind("customer withdrew")
    world.settle()
    assert sql("SELECT state FROM counterfoil.run") == [("unwound",)]
    assert world.states() == {
        "stripe_authorize/hold/do": "compensated",
        "jira_stage/ticket/do": "compensated",
        "stripe_cancel/hold/undo": "succeeded",
        "jira_close/ticket/undo": "succeeded",
    }
    assert [effect.kind for effect in world.sandbox.stripe.effects()] == ["authorization", "cancellation"]
    assert [effect.kind for effect in world.sandbox.jira.effects()] == ["ticket", "transition"]
    assert world.sandbox.count("tickets_open") == 0
