"""A cancel at any moment of an action's life: what was not sent is not sent, what was sent is still found out."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import psycopg
import pytest
import requests

from counterfoil import Counterfoil
from counterfoil.ledger.queries import load
from counterfoil.outbox.results import Status
from counterfoil.providers.tool import tool
from counterfoil.testing import World

if TYPE_CHECKING:
    from tests.acceptance.conftest import Broker
    from tests.conftest import Database

CHARGE = {"customer": "cus_1", "amount_minor": 500, "currency": "usd", "order_id": "1182"}
HISTORY = load("counterfoil.ledger", "sql/agent.sql")["read_history"]
DOORS = ("handle", "command line", "SQL")


@pytest.fixture
def cancel(client: Any, cli: Any, ask: Any) -> Callable[[str, str], None]:
    """Cancels an action by one of the doors."""

    def by(door: str, action_id: str) -> None:
        match door:
            case "handle":
                client().cancel(action_id, "wrong order")
            case "command line":
                code, said = cli("action", "cancel", action_id, "--reason", "wrong order")
                assert code == 0, said
            case _:
                ask(f"SELECT counterfoil.request_cancel('{action_id}', 'me', 'wrong order')")

    return by


@pytest.fixture
def ask(database: Database) -> Callable[[str], Any]:
    """One statement under the agents' login."""

    def run(statement: str) -> Any:
        with psycopg.connect(database.url("agent")) as connection:
            row = connection.execute(statement.encode()).fetchone()
            return row and row[0]

    return run


@pytest.mark.case("B5")
@pytest.mark.parametrize("door", DOORS)
def test_cancelled_while_all_workers_are_down(
    world: World, enqueue: Any, broker: Broker, cancel: Any, passed: Any, door: str
) -> None:
    """Published to the broker, cancelled before a worker comes up, by any door: nothing is sent, then or ever."""
    action_id = enqueue("stripe_charge", CHARGE)
    assert broker.relay().publish_due() == 1
    cancel(door, action_id)
    [wake_ups] = broker.take_all("stripe")
    assert world.deliver(wake_ups) == 0
    world.settle()
    assert passed(action_id) == ["ready", "cancelled"]
    assert world.sandbox.requests() == []
    assert world.sandbox.count("charges") == 0


@pytest.mark.case("B5")
@pytest.mark.parametrize("door", DOORS)
def test_cancelled_while_it_is_being_sent(
    world: World, client: Any, enqueue: Any, cancel: Any, cli: Any, sql: Any, door: str
) -> None:
    """The cancel is recorded and told as such, and the outcome of what was on the wire is recorded, too."""
    action_id = enqueue("stripe_charge", CHARGE)
    with world.frozen_at("before_settle"):
        cancel(door, action_id)
        told = client().cancel(action_id, "again")
        assert (told.status, told.code) == (Status.PENDING, "cancel_requested")
    world.settle()
    assert client().result(action_id).status is Status.SUCCEEDED
    assert sql("SELECT from_state, to_state, reason FROM counterfoil.history ORDER BY history_id")[2:] == [
        ("executing", "executing", "cancel requested: wrong order"),
        ("executing", "succeeded", "succeeded"),
    ]
    assert world.sandbox.count("charges") == len(world.sandbox.requests("stripe", "payment_intents.create")) == 1
    assert "cancel requested: wrong order" in cli("action", "show", action_id)[1]
    assert cli("run", "show", "r1")[0] == 0


@pytest.mark.parametrize(
    ("fault", "ends", "effects"),
    [
        pytest.param("429_bare", "cancelled", 0, id="refused for now"),
        pytest.param("504_after_commit", "succeeded", 1, id="done, answer lost"),
        pytest.param("504_before_commit", "permanent_failure", 0, id="not done, answer lost"),
        pytest.param("504_then_commit_after", "succeeded", 1, id="lands late"),
    ],
)
def test_a_cancel_during_the_call_forbids_a_second_one(
    world: World, client: Any, enqueue: Any, fault: str, ends: str, effects: int
) -> None:
    """Whatever the one request comes to, it is the only one; evidence says how the action ended."""
    late = {"delay_s": 1.5} if fault == "504_then_commit_after" else {}
    world.sandbox.stripe.fault(fault, on="payment_intents.create", **late)
    action_id = enqueue("stripe_charge", CHARGE)
    with world.frozen_at("before_settle"):
        client().cancel(action_id, "wrong order")
    world.settle()
    assert world.states() == {"stripe_charge/s1/do": ends}
    assert world.sandbox.count("charges") == effects
    assert len(world.sandbox.requests("stripe", "payment_intents.create")) == 1


@pytest.mark.parametrize("fault", ["504_after_commit", "504_before_commit"])
def test_cancelled_in_doubt(world: World, client: Any, enqueue: Any, fault: str) -> None:
    """In doubt, about to be sent again by its key: the cancel stops the resend, and a look-up decides."""
    world.sandbox.stripe.fault(fault, on="payment_intents.create")
    world.sandbox.stripe.fault("search_500", on="payment_intents.list")
    action_id = enqueue("stripe_charge", CHARGE)
    world.work()
    told = client().cancel(action_id, "wrong order")
    assert (told.status, told.code) == (Status.UNCERTAIN, "cancel_requested")
    world.settle()
    effects = int(fault == "504_after_commit")
    assert world.states() == {"stripe_charge/s1/do": "succeeded" if effects else "permanent_failure"}
    assert world.sandbox.count("charges") == effects
    assert len(world.sandbox.requests("stripe", "payment_intents.create")) == 1


def test_cancelled_in_doubt_without_a_look_up(world: World, client: Any, enqueue: Any, use_tools: Any) -> None:
    """Nobody can find out, and the resend that would have told is forbidden: a person decides."""
    sent = []

    @tool(cls="compensatable", provider="blind", effect="order", target="order", once_per=None, audience=["team"],
          undo="unorder", native_key_ttl_s=86400)  # fmt: skip
    def order(order: str, *, key: str) -> dict[str, object]:
        """Its answer is always lost."""
        sent.append(key)
        raise requests.ReadTimeout

    @tool(cls="compensatable", provider="blind", effect="unorder", target="order", once_per=None, audience=["team"],
          undo=None, uncertain="operator_review")  # fmt: skip
    def unorder(order: str, *, of: str) -> dict[str, object]:
        """Never called."""
        raise AssertionError

    use_tools(order, unorder)
    action_id = enqueue("order", {"order": "1182"})
    world.work()
    client().cancel(action_id, "wrong order")
    world.settle()
    assert world.states() == {"order/s1/do": "operator_review"}
    assert len(sent) == 1


def test_a_settled_action_stays_and_says_so(world: World, client: Callable[..., Counterfoil], enqueue: Any) -> None:
    """Cancelling what has succeeded changes nothing, writes no history, and the answer is its result."""
    action_id = enqueue("stripe_charge", CHARGE)
    world.settle()
    before = world.ledger.rows(HISTORY, {"action_id": action_id})
    told = client().cancel(action_id, "too late")
    assert (told.status, told.code) == (Status.SUCCEEDED, None)
    assert world.ledger.rows(HISTORY, {"action_id": action_id}) == before
    world.settle()
    assert world.sandbox.counts()["refunds"] == 0
