"""What others do at a provider is no late effect of ours: a definite refusal stays one, whoever then does it by hand."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import requests
from tests.acceptance.people import Person

from counterfoil.testing import World

CHARGE = {"customer": "cus_1", "amount_minor": 500, "currency": "usd", "order_id": "1182"}
BY_HAND = {"amount": "500", "currency": "usd", "customer": "cus_1", "confirm": "true", "payment_method": "pm_card_visa"}


@pytest.fixture
def by_hand(world: World) -> Callable[..., None]:
    """A person does something in Stripe's Dashboard."""

    def do(path: str, **fields: str) -> None:
        url = f"{world.sandbox.stripe.url}/v1/payment_intents{path}"
        login = {"Authorization": "Bearer sk_test_sandbox"}
        requests.post(url, headers=login, data=fields, timeout=3).raise_for_status()

    return do


@pytest.fixture
def alice(database: Any, world: World) -> Iterator[Person]:
    """A person at the operators' login."""
    made = Person(database.url("operator"), world.registry, "alice")
    yield made
    made.ledger.close()


def let_watch(world: World) -> int:
    """The requests that a day of the watch makes."""
    before = len(world.sandbox.requests())
    for _ in range(4):
        world.advance(43_200)
        world.reconcile()
    return len(world.sandbox.requests()) - before


def test_a_charge_by_hand(world: World, enqueue: Any, by_hand: Any) -> None:
    """A charge is refused for good, and a person makes one: the row stays what it is, and blocks nothing of its run."""
    world.sandbox.stripe.fault("answer", on="payment_intents.create", status=400)
    enqueue("stripe_charge", CHARGE)
    world.settle()
    by_hand("", **BY_HAND)
    assert let_watch(world) > 0
    assert world.states() == {"stripe_charge/s1/do": "permanent_failure"}


def test_a_capture_by_hand(world: World, client: Any, alice: Person, by_hand: Any, sql: Any) -> None:
    """Likewise a capture: what the payment shows then is not that our capture has landed."""
    run = client().run("r1", tenant="acme", actor="bot")
    run.stage("stripe_authorize", CHARGE, step="hold", wait_s=0)
    world.settle()
    hold = run.stage("stripe_authorize", CHARGE, step="hold").action_id
    plan = run.propose([("stripe_capture", {"of": hold, "order_id": "1182"})])
    world.settle()
    world.sandbox.stripe.fault("answer", on="payment_intents.capture", status=400)
    alice.approve(plan.id)
    world.settle()
    [(intent,)] = sql("SELECT receipt FROM counterfoil.action WHERE action_id = %s", hold)
    [state] = [state for name, state in world.states().items() if name.startswith("stripe_capture")]
    assert state == "permanent_failure"
    by_hand(f"/{intent}/capture")
    assert let_watch(world) > 0
    [state] = [state for name, state in world.states().items() if name.startswith("stripe_capture")]
    assert (state, world.sandbox.count("charges")) == ("permanent_failure", 1)


def test_a_charge_without_our_key_after_a_doubt(world: World, enqueue: Any, client: Any, by_hand: Any) -> None:
    """Was its outcome unknown once, a charge of the same money without anybody's key may be it: a person looks."""
    world.sandbox.stripe.fault("504_before_commit", on="payment_intents.create")
    action_id = enqueue("stripe_charge", CHARGE)
    assert world.work() == 1
    client().cancel(action_id, "wrong order")
    world.settle()
    assert world.states() == {"stripe_charge/s1/do": "permanent_failure"}
    by_hand("", **BY_HAND)
    assert let_watch(world) > 0
    assert world.states() == {"stripe_charge/s1/do": "operator_review"}
