"""Payments whose metadata somebody has emptied: what may be ours is not paid, and not given back, a second time."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
import requests

if TYPE_CHECKING:
    from counterfoil.testing import World

CHARGE = {"customer": "cus_1", "amount_minor": 500, "currency": "usd", "order_id": "1182"}
HEADERS = {"Authorization": "Bearer sk_test_sandbox"}
A_DAY_S = 25 * 3600
"""Longer than Stripe keeps an Idempotency-Key."""


def called(world: World, path: str, **form: str) -> Any:
    """What a person does in Stripe's Dashboard, by its API."""
    reply = requests.post(f"{world.sandbox.stripe.url}/v1/{path}", data=form, headers=HEADERS, timeout=3)
    reply.raise_for_status()
    return reply.json()


def emptied(world: World, effect: str, path: str) -> None:
    """Takes our key off the newest object."""
    made = world.sandbox.effects(effect)[-1].object_id
    assert "counterfoil_key" not in called(world, f"{path}/{made}", **{"metadata[counterfoil_key]": ""})["metadata"]


@pytest.mark.parametrize(("tool", "effect"), [("stripe_charge", "charge"), ("stripe_authorize", "authorization")])
def test_a_charge_without_our_key_is_not_made_twice(
    world: World, enqueue: Any, sql: Any, tool: str, effect: str
) -> None:
    """The answer is lost, the key wiped, and Stripe has forgotten the header's: a person decides, nothing is sent again."""
    world.sandbox.stripe.fault("504_after_commit", on="payment_intents.create")
    enqueue(tool, CHARGE)
    world.work()
    emptied(world, effect, "payment_intents")
    world.advance(A_DAY_S)
    world.settle()
    assert sql("SELECT state FROM counterfoil.action") == [("operator_review",)]
    assert len(world.sandbox.requests("stripe", "payment_intents.create")) == world.sandbox.count(f"{effect}s") == 1


def test_a_refund_without_our_key_is_not_made_twice(world: World, enqueue: Any, client: Any, sql: Any) -> None:
    """Likewise for the money that goes back."""
    enqueue("stripe_charge", CHARGE)
    world.settle()
    world.sandbox.stripe.fault("504_after_commit", on="refunds.create")
    client().run("r1", tenant="acme", actor="bot").unwind("wrong order")
    world.reconciler.unwind_runs()
    world.work()
    emptied(world, "refund", "refunds")
    world.advance(A_DAY_S)
    world.settle()
    assert sql("SELECT state FROM counterfoil.action WHERE phase = 'undo'") == [("operator_review",)]
    assert len(world.sandbox.requests("stripe", "refunds.create")) == world.sandbox.count("refunds") == 1


@pytest.mark.parametrize(
    "other",
    [
        pytest.param({"amount": "600"}, id="amount"),
        pytest.param({"currency": "eur"}, id="currency"),
        pytest.param({"metadata[counterfoil_order]": "7"}, id="order"),
        pytest.param({"metadata[counterfoil_key]": "0" * 32}, id="key"),
    ],
)
def test_another_payment_stands_in_nobody_s_way(world: World, enqueue: Any, other: dict[str, str]) -> None:
    """A payment by hand of the same minutes that differs in anything is not ours: the lost charge is made."""
    world.sandbox.stripe.fault("504_before_commit", on="payment_intents.create")
    enqueue("stripe_charge", CHARGE)
    world.work()
    form = {
        "amount": "500",
        "currency": "usd",
        "customer": "cus_1",
        "payment_method": "pm_card_visa",
        "confirm": "true",
    }
    called(world, "payment_intents", **form | {"automatic_payment_methods[enabled]": "true"} | other)
    world.advance(A_DAY_S)
    world.settle()
    assert world.states() == {"stripe_charge/s1/do": "succeeded"}
    assert world.sandbox.count("charges") == 2
