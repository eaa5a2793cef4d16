"""A worker believes its own registry: a row that says otherwise is not executed, it goes to a person."""

from __future__ import annotations

import psycopg
import pytest

from counterfoil.ledger.queries import Query
from counterfoil.settings import Settings
from counterfoil.testing import World

CHARGE = {"customer": "cus_1", "amount_minor": 500, "currency": "usd", "order_id": "1182"}


@pytest.mark.parametrize(
    "change",
    [
        "class = 'reversible'",
        "effect = 'nothing'",
        "target = 'other'",
        "amount_minor = 1",
        'compensation = \'{"arguments":{},"tool":"stripe_refund"}\'',
        "arguments = replace(arguments, '500', '900'), "
        "arguments_sha256 = encode(sha256(convert_to(replace(arguments, '500', '900'), 'UTF8')), 'hex')",
        "run = 'other'",
    ],
)
def test_a_forged_row_is_not_executed(world: World, database, enqueue, change: str) -> None:
    """Whatever of an intent was changed behind the ledger's back, nothing is sent and a person is asked."""
    enqueue("stripe_charge", CHARGE)
    with psycopg.connect(database.url("owner")) as connection:
        connection.execute("SET session_replication_role = replica")  # the triggers would refuse it
        connection.execute(f"UPDATE counterfoil.action SET {change}".encode())
    world.settle()
    assert list(world.states().values()) == ["operator_review"]
    assert world.sandbox.count("charges") == 0


def test_a_worker_without_credentials_leaves_the_action_to_others(world: World, enqueue) -> None:
    """A missing key of one provider is no attempt and no failure: the wake-up waits, the other provider's action runs."""
    whole, world.settings = world.settings, _without_stripe_key(world.settings)
    enqueue("stripe_charge", CHARGE, "s1")
    enqueue("jira_create", {"project": "SUP", "summary": "x", "order_id": "1182"}, "s2", "r2")
    world.work()
    assert world.states() == {"stripe_charge/s1/do": "ready", "jira_create/s2/do": "succeeded"}
    world.settings = whole
    world.restart()
    world.settle()  # the clock goes on to the postponed wake-up
    assert world.sandbox.count("charges") == 1
    assert set(world.states().values()) == {"succeeded"}


def test_what_no_worker_can_send_is_told_once(world: World, enqueue) -> None:
    """After a quarter of an hour one alarm names tool, version and account; it ends when a worker can send the charge."""
    whole, world.settings = world.settings, _without_stripe_key(world.settings)
    enqueue("stripe_charge", CHARGE)
    for _ in range(40):  # twenty minutes, in the steps in which the wake-up comes back
        world.work()
        world.reconcile()
        world.advance(31)
    assert _open_alarms(world) == ["no_worker stripe_charge/1/default"]
    world.settings = whole
    world.restart()
    world.settle()
    world.reconcile()
    assert world.sandbox.count("charges") == 1
    assert _open_alarms(world) == []


def test_what_is_in_doubt_and_no_worker_can_send_again_is_a_persons(world: World, enqueue) -> None:
    """Its key would tell what became of it, but no worker has the account any more: nobody else would ever move it on."""
    world.sandbox.stripe.fault("504_before_commit", on="payment_intents.create")
    enqueue("stripe_charge", CHARGE)
    world.work()
    world.advance(1)
    world.reconcile()
    assert list(world.states().values()) == ["ready"]  # the key may be repeated
    world.settings = _without_stripe_key(world.settings)
    world.restart()
    for _ in range(125):
        world.work()
        world.advance(31)
    world.reconcile()
    assert list(world.states().values()) == ["operator_review"]
    assert world.sandbox.count("charges") == 0


def test_what_is_held_back_is_not_lacking(world: World, enqueue) -> None:
    """One worker of a rollout lacked the account, then the provider was away for hours and nothing went out: the action is
    sent afterwards, once, and no person was asked."""
    world.sandbox.stripe.fault("504_before_commit", on="payment_intents.create")
    enqueue("stripe_charge", CHARGE)
    world.work()
    world.advance(1)
    world.reconcile()
    whole, world.settings = world.settings, _without_stripe_key(world.settings)
    world.restart()
    world.work()
    world.settings = whole
    world.restart()
    for _ in range(12):
        world.advance(600)
        world.reconcile()
    assert list(world.states().values()) == ["ready"]
    assert _open_alarms(world) == []
    world.settle()
    assert (list(world.states().values()), world.sandbox.count("charges")) == (["succeeded"], 1)


def _open_alarms(world: World) -> list[str]:
    statement = "SELECT kind || ' ' || subject AS alarm FROM counterfoil.alarm WHERE ended_at IS NULL"
    return [row["alarm"] for row in world.ledger.rows(Query("alarms", statement, statement, frozenset()), {})]


def _without_stripe_key(settings: Settings) -> Settings:
    stripe = settings.providers["stripe"].model_copy(update={"api_key": None})
    return settings.model_copy(update={"providers": {**settings.providers, "stripe": stripe}})
