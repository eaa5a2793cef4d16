"""Requests of people through kills, races and unwinds: answered in the end, once, and never with a second effect."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from functools import partial
from typing import TYPE_CHECKING, Any

import pytest
import requests
from tests.acceptance.doubts import CHARGE, LANDED_S, charge_ids, doubt, sends, shown, state_of, to_review
from tests.acceptance.test_plans import committed, staged

from counterfoil import Counterfoil, Status
from counterfoil.ledger import reviews
from counterfoil.ledger.connection import Ledger
from counterfoil.providers.outcomes import Found, Uncertain, Unknown
from counterfoil.testing import World
from counterfoil.testing.world import Crash

if TYPE_CHECKING:
    from tests.conftest import Database


@pytest.fixture
def doubted(world: World, enqueue: Any, sql: Any) -> Any:
    """See `doubt`."""
    return partial(doubt, world, enqueue, sql)


@pytest.mark.parametrize("point", ["claimed", "looked"])
def test_the_reconciler_dies(
    world: World, doubted: Any, cli: Any, sql: Any, monkeypatch: pytest.MonkeyPatch, point: str
) -> None:
    """Killed before or after it asked the provider, its lease ends and the next one answers; still one effect."""
    action_id = doubted()
    [receipt] = charge_ids(world)
    cli("review", "happened", action_id, "--receipt", receipt, "--wait-s", "0")
    look_ups = world.reconciler.look_ups
    killed, name = (type(look_ups), "_ask") if point == "claimed" else (type(look_ups.conclusions), "conclude")

    def die(*_: object) -> None:
        raise Crash

    with monkeypatch.context() as patched:
        patched.setattr(killed, name, die)
        with pytest.raises(Crash):
            world.reconcile()
    world.restart()
    assert state_of(sql, action_id)[0] == "reconciling"
    assert shown(cli, action_id)["requests"][-1]["answer"] is None
    world.settle()
    assert shown(cli, action_id)["requests"][-1]["answer"] == "succeeded"
    assert state_of(sql, action_id) == ("succeeded", receipt)
    assert (world.sandbox.count("charges"), sends(world)) == (1, 1)


def test_two_operators_at_once(world: World, doubted: Any, database: Database, sql: Any) -> None:
    """Of two who speak at once one is heard; the other is told that it is not in review any more."""
    for number in range(5):
        action_id = doubted(step=f"s{number}", order_id=str(number))

        def speak(verb: Any, action_id: str = action_id) -> str | None:
            with closing(Ledger(database.url("operator"))) as ledger:
                said = reviews.ask_provider(
                    ledger, action_id, verb=verb, receipt="pi_none", by=verb, channel="test", reason=None
                )
                return said.answer

        with ThreadPoolExecutor(2) as threads:
            answers = sorted(map(str, threads.map(speak, ("happened", "not_happened"))))
        assert answers == ["asked", "not_in_review"]
        assert len(sql("SELECT FROM counterfoil.review WHERE action_id = %s", action_id)) == 1


def test_a_late_receipt_answers_a_request(world: World, enqueue: Any, cli: Any, sql: Any) -> None:
    """A worker that was frozen comes back with its receipt while a person waits: that settles the row and the request."""
    action_id = enqueue("stripe_charge", CHARGE)
    with world.frozen_at("before_settle") as thaw:
        world.advance(60)
        world.reconciler.sweep_leases()
        to_review(sql, action_id)
        cli("review", "not-happened", action_id, "--wait-s", "0")
        thaw()
    assert state_of(sql, action_id)[0] == "succeeded"
    assert shown(cli, action_id)["requests"][-1]["answer"] == "found"
    world.settle()
    assert (world.sandbox.count("charges"), sends(world)) == (1, 1)


@pytest.mark.parametrize("finding", [Unknown("outage"), Found(Uncertain("processing"))], ids=["away", "processing"])
@pytest.mark.parametrize("verb", ["ask-again", "not-happened"])
def test_every_request_is_answered(
    world: World, doubted: Any, cli: Any, sql: Any, monkeypatch: pytest.MonkeyPatch, verb: str, finding: Any
) -> None:
    """A provider that is away, or at work on it, for ever: in review again within the hour; nothing may call it failed."""
    action_id = doubted()
    adapter = type(world.reconciler.look_ups.adapter(world.registry.get("stripe_charge", None), "default"))
    monkeypatch.setattr(adapter, "lookup", lambda _, calls, **__: {call.action_id: finding for call in calls})
    cli("review", verb, action_id, "--wait-s", "0")
    world.settle(at_most_s=3600)
    assert shown(cli, action_id)["requests"][-1]["answer"] == "unknown"
    assert state_of(sql, action_id)[0] == "operator_review"
    assert cli("review", "give-up", action_id, "--reason", "enough")[0] == 4
    assert (world.sandbox.count("charges"), sends(world)) == (1, 1)


VERBS = (("happened", "--receipt", "pi_none"), ("happened", "--receipt", "REAL"), ("not-happened",), ("ask-again",))


@pytest.mark.parametrize(
    "fault", ["504_before_commit", "504_after_commit", "504_then_commit_after", "rst_after_commit"]
)
def test_never_a_second_effect(world: World, doubted: Any, cli: Any, sql: Any, fault: str) -> None:
    """Whatever two verbs follow each other, early or late: at most one effect, none sent again after a person's word, and
    an action that has ended says what the provider says."""
    for number, (first, second) in enumerate(itertools.product(VERBS, VERBS)):
        wait_s = LANDED_S if (number + len(fault)) % 2 else 0.0
        action_id = doubted(fault, f"s{number}", order_id=str(number))
        before = sends(world)
        [[key]] = sql("SELECT key FROM counterfoil.action WHERE action_id = %s", action_id)
        for verb in (first, second):
            real = next((effect.object_id for effect in world.sandbox.effects("charge", key)), "pi_0")
            cli("review", verb[0], action_id, "--wait-s", "0", *(real if word == "REAL" else word for word in verb[1:]))
            world.reconcile()
            world.advance(wait_s)
        if "ask-again" not in (first[0], second[0]):
            world.work()
            assert sends(world) == before, (first, second)
        world.settle()
        world.advance(LANDED_S)
        made = [effect.object_id for effect in world.sandbox.effects("charge", key)]
        assert len(made) <= 1, (first, second)
        state, receipt = state_of(sql, action_id)
        assert state in ("succeeded", "not_executed", "permanent_failure", "operator_review"), (first, second)
        if state != "operator_review":
            assert made == ([receipt] if state == "succeeded" else []), (first, second)


def test_a_step_in_review_while_its_run_is_taken_back(
    world: World, doubted: Any, unwind: Any, cli: Any, run_state: Any
) -> None:
    """A blocked unwind goes on by itself once a person's word is borne out: what had happened is refunded, once."""
    action_id = doubted()
    unwind()
    world.settle()
    assert run_state() == "unwind_blocked"
    cli("review", "happened", action_id, "--receipt", charge_ids(world)[0], "--wait-s", "0")
    world.settle()
    assert run_state() == "unwound"
    assert (world.sandbox.count("charges"), world.sandbox.count("refunds"), sends(world)) == (1, 1, 1)


@pytest.mark.parametrize("verb", ["not-happened", "happened", "give-up"])
def test_an_undo_in_review(world: World, ship: Any, unwind: Any, cli: Any, sql: Any, run_state: Any, verb: str) -> None:
    """A compensation that was refused: done once more under a new key, verified as done by hand, or given up."""
    ship("a")
    world.settle()
    world.sandbox.warehouse.fault("answer", on="shipments.cancel", status=403)
    unwind()
    world.settle()
    [[undo]] = sql("SELECT action_id FROM counterfoil.action WHERE phase = 'undo' AND state = 'operator_review'")
    world.advance(60)
    match verb:
        case "happened":
            [shipment] = world.sandbox.effects("shipment")
            url = f"{world.sandbox.warehouse.url}/shipments/{shipment.object_id}/cancel"
            requests.post(url, headers={"Idempotency-Key": "by hand"}, timeout=3).raise_for_status()
            cli("review", verb, undo, "--receipt", shipment.object_id, "--wait-s", "0")
        case "not-happened":
            cli("review", verb, undo, "--wait-s", "0")
        case _:
            assert cli("review", verb, undo, "--reason", "carrier has it")[0] == 0
    world.settle()
    assert run_state() == "unwound"
    assert len(world.sandbox.effects("shipment_cancellation")) == (0 if verb == "give-up" else 1)
    [[state]] = sql("SELECT state FROM counterfoil.action WHERE phase = 'do'")
    assert state == ("succeeded" if verb == "give-up" else "compensated")


def test_an_unverified_success_is_taken_back_by_its_key(
    world: World, doubted: Any, unwind: Any, cli: Any, sql: Any, run_state: Any
) -> None:
    """What a person vouched for has no receipt: its refund finds the payment by its key, and refunds that one."""
    action_id = doubted()
    assert cli("review", "give-up", action_id, "--as-happened", "--reason", "on the statement")[0] == 0
    assert state_of(sql, action_id) == ("succeeded", "unverified")
    unwind()
    world.settle()
    assert run_state() == "unwound"
    assert (world.sandbox.count("charges"), world.sandbox.count("refunds")) == (1, 1)


@pytest.mark.parametrize("verb", ["happened", "give-up", "not-happened"])
def test_a_step_of_a_plan_in_review(
    world: World, client: Callable[..., Counterfoil], cli: Any, sql: Any, monkeypatch: pytest.MonkeyPatch, verb: str
) -> None:
    """An approved plan goes on with its next step once a person's word about one is borne out, and stops where it did not
    happen; nothing is committed twice."""
    plan = staged(client().run("ticket-1182", tenant="acme", actor="bot"), world)
    monkeypatch.setenv("COUNTERFOIL_PERSON", "alice")
    assert cli("proposal", "approve", plan.id, "--digest", plan.digest[:16])[0] == 0
    fault = "504_before_commit" if verb == "not-happened" else "504_after_commit"
    world.sandbox.stripe.fault(fault, on="payment_intents.capture")
    assert world.work() == 1
    [[capture]] = sql("SELECT action_id FROM counterfoil.action WHERE tool = 'stripe_capture'")
    to_review(sql, capture)
    world.settle()
    assert committed(world) == (verb != "not-happened", 0), "what is in review holds up the plan"
    match verb:
        case "happened":
            [[hold]] = sql("SELECT receipt FROM counterfoil.action WHERE tool = 'stripe_authorize'")
            cli("review", verb, capture, "--receipt", hold, "--wait-s", "0")
        case "not-happened":
            world.advance(LANDED_S)
            cli("review", verb, capture, "--wait-s", "0")
        case _:
            assert cli("review", verb, capture, "--as-happened", "--reason", "on the statement")[0] == 0
    world.settle()
    stopped = verb == "not-happened"
    assert committed(world) == ((0, 0) if stopped else (1, 1))
    assert len(world.sandbox.requests("stripe", "payment_intents.capture")) == 1
    assert (plan.result().status is Status.SUCCEEDED) is not stopped
