"""Each level of autonomy against the fleet: what `tool list` says that a tool does alone is what it does."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import psycopg
import pytest
import requests

from counterfoil import Counterfoil, Of, tool
from counterfoil.cli.tool import autonomy_of
from counterfoil.providers.autonomy import Level
from counterfoil.settings import Approval
from counterfoil.settings_providers import ToolSettings
from counterfoil.testing import World

WEEK_S = 7 * 86_400.0


@pytest.fixture
def house(world: World, use_tools: Callable[..., None], database: Any) -> House:
    """A warehouse's tools, one a level or more."""
    use_tools(*warehouse_tools(world.sandbox.warehouse.url))
    return House(world, database)


def warehouse_tools(url: str) -> tuple[Any, ...]:
    """Each ships something; what the warehouse counts is the effect."""

    def ship(order: str, key: str | None) -> dict[str, Any]:
        headers = {"Idempotency-Key": key} if key is not None else {}
        reply = requests.post(f"{url}/shipments", json={"order": order}, headers=headers, timeout=3)
        reply.raise_for_status()
        answer: dict[str, Any] = reply.json()
        return answer

    def find(key: str) -> list[dict[str, Any]]:
        reply = requests.get(f"{url}/shipments", params={"key": key}, timeout=3)
        reply.raise_for_status()
        found: list[dict[str, Any]] = reply.json()["shipments"]
        return found

    def cancelled(of: Of) -> list[dict[str, Any]]:
        return [shipment for shipment in find(of.key) if shipment["status"] == "cancelled"]

    def seen_by(arguments: Mapping[str, Any]) -> list[str]:
        return [str(arguments["who"])]

    # fmt: off
    shape: dict[str, Any] = {"provider": "warehouse", "target": "order", "once_per": None, "landing_max_s": 2.0,
                             "audience": ["team"]}
    found: dict[str, Any] = {**shape, "cls": "compensatable", "lookup": find, "undo": "take_back"}
    letter: dict[str, Any] = {**shape, "cls": "irreversible", "lookup": find}
    # fmt: on

    @tool(cls="pure")
    def count(order: str) -> dict[str, int]:
        return {"shipments": len(requests.get(f"{url}/shipments", timeout=3).json()["shipments"])}

    @tool(effect="parcel", **found)
    def parcel(order: str, *, key: str) -> dict[str, Any]:
        return ship(order, key)

    @tool(effect="priced", amount="price", **found)
    def priced(order: str, price: int, currency: str = "usd", *, key: str) -> dict[str, Any]:
        return ship(order, key)

    @tool(effect="shown", **{**found, "audience": seen_by})
    def shown(order: str, who: str, *, key: str) -> dict[str, Any]:
        return ship(order, key)

    @tool(effect="letter", approval="never", **letter)
    def unasked(order: str, *, key: str) -> dict[str, Any]:
        return ship(order, key)

    @tool(effect="contract", **letter)
    def contract(order: str, *, key: str) -> dict[str, Any]:
        return ship(order, key)

    @tool(effect="blind", uncertain="operator_review", undo="take_back", **{**shape, "cls": "compensatable"})
    def blind(order: str) -> dict[str, Any]:
        return ship(order, None)

    @tool(effect="taking_back", undo=None, **{**shape, "cls": "compensatable", "lookup": cancelled})
    def take_back(order: str, *, key: str, of: Of) -> dict[str, Any]:
        reply = requests.post(f"{url}/shipments/{of.receipt}/cancel", headers={"Idempotency-Key": key}, timeout=3)
        reply.raise_for_status()
        answer: dict[str, Any] = reply.json()
        return answer

    return count, parcel, priced, shown, unasked, contract, blind, take_back


class House:
    """One test's world with these tools, and its people."""

    def __init__(self, world: World, database: Any) -> None:
        self.world, self._database = world, database

    def level(self, name: str) -> Level:
        """What `tool list` says."""
        return autonomy_of(self.world.registry.get(name), self.world.registry, self.world.settings).level

    def configure(self, **changes: Any) -> None:
        """Before the first worker and client are made."""
        self.world.settings = self.world.settings.model_copy(update=changes)

    @property
    def shipped(self) -> int:
        return self.world.sandbox.count("shipments")

    @property
    def asked(self) -> int:
        """How many people were ever asked."""
        with psycopg.connect(self._database.url("owner")) as owner:
            row = owner.execute(
                "SELECT (SELECT count(*) FROM counterfoil.proposal) + count(*) FROM counterfoil.history"
                " WHERE to_state = 'operator_review'"
            ).fetchone()
        assert row is not None
        return int(row[0])

    def approve(self, action_id: str) -> str:
        with psycopg.connect(self._database.url("operator"), autocommit=True) as operator:
            row = operator.execute(
                "SELECT d.answer FROM counterfoil.action AS a, counterfoil.decide(a.proposal_id, 'approved',"
                " counterfoil.proposal_digest(a.proposal_id), 'mia', 'cli') AS d WHERE a.action_id = %s",
                (action_id,),
            ).fetchone()
        assert row is not None
        return str(row[0])


Client = Callable[..., Counterfoil]


def called(client: Client, name: str, *, run: str = "r1", seen: Any = (), **arguments: Any) -> Any:
    """One call of an agent that does not wait."""
    with client().run(run, tenant="acme", actor="bot", seen=seen) as handle:
        return handle.call(name, {"order": "1182", **arguments}, wait_s=0)


def test_free_runs_at_once_and_leaves_no_row(house: House, client: Client) -> None:
    """A pure tool answers in the caller's process; the ledger knows of no action."""
    assert house.level("count") is Level.FREE
    assert called(client, "count").value == {"shipments": 0}
    assert house.world.states() == {}


@pytest.mark.parametrize(
    "fault",
    [("answer", {"status": 429, "times": 2}), ("504_after_commit", {"times": 1}), ("504_before_commit", {"times": 1})],
)
def test_alone_retries_and_finds_out_by_itself(house: House, client: Client, fault: tuple[str, Any]) -> None:
    """Refused for now, or answered by a lying gateway: one shipment, and no person was asked."""
    assert house.level("parcel") is Level.ALONE
    name, more = fault
    house.world.sandbox.warehouse.fault(name, on="shipments.create", **more)
    called(client, "parcel")
    house.world.settle()
    assert list(house.world.states().values()) == ["succeeded"]
    assert (house.shipped, house.asked) == (1, 0)


def test_bounded_by_an_amount(house: House, client: Client) -> None:
    """Up to the amount alone; above it a person is asked, and nothing is sent before."""
    house.configure(tool={"priced": ToolSettings(approval_above_minor=1000)})
    assert house.level("priced") is Level.BOUNDED
    called(client, "priced", price=1000)
    house.world.settle()
    assert (house.shipped, house.asked) == (1, 0)
    above = called(client, "priced", run="r2", price=1001)
    house.world.settle()
    assert (above.status, house.shipped, house.asked) == ("awaiting_approval", 1, 1)
    assert house.approve(above.action_id) == "approved"
    house.world.settle()
    assert house.shipped == 2


def test_bounded_by_its_audience(house: House, client: Client) -> None:
    """Where its arguments say that the public sees it, a person is asked."""
    assert house.level("shown") is Level.BOUNDED
    called(client, "shown", who="team")
    house.world.settle()
    assert (house.shipped, house.asked) == (1, 0)
    assert called(client, "shown", run="r2", who="public").status == "awaiting_approval"
    house.world.settle()
    assert (house.shipped, house.asked) == (1, 1)


def test_bounded_as_a_bulk(house: House, client: Client) -> None:
    """Irreversible and unasked: the first of a run alone, the second is a bulk's and waits for a person."""
    assert house.level("unasked") is Level.BOUNDED
    first = called(client, "unasked")
    house.world.settle()
    assert (house.shipped, house.asked) == (1, 0)
    second = called(client, "unasked", seen=client().result(first.action_id).seen, order="1183")
    house.world.settle()
    assert (second.status, house.shipped, house.asked) == ("awaiting_approval", 1, 1)


def test_bounded_by_a_cap(house: House, client: Client) -> None:
    """Beyond the cap nothing is sent."""
    house.configure(tool={"parcel": ToolSettings(count_per_run_max=1)})
    assert house.level("parcel") is Level.BOUNDED
    first = called(client, "parcel")
    house.world.settle()
    second = called(client, "parcel", seen=client().result(first.action_id).seen, order="1183")
    house.world.settle()
    assert (second.status, second.next_step) == ("blocked", "limit_reached")
    assert house.shipped == 1


@pytest.mark.parametrize(("fault", "shipped"), [("504_after_commit", 1), ("504_before_commit", 0)])
def test_once_stops_at_a_person_and_sends_nothing_again(house: House, client: Client, fault: str, shipped: int) -> None:
    """A blind tool acts alone; after an unknown outcome there is one request for ever, whether or not it had its effect."""
    assert house.level("blind") is Level.ONCE
    house.world.sandbox.warehouse.fault(fault, on="shipments.create", times=1)
    called(client, "blind")
    house.world.settle()
    house.world.advance(WEEK_S)
    house.world.settle()
    assert list(house.world.states().values()) == ["operator_review"]
    assert house.shipped == shipped
    assert len(house.world.sandbox.warehouse.requests("shipments.create")) == 1


def test_once_acts_alone_where_the_outcome_is_known(house: House, client: Client) -> None:
    """Nobody is asked about a blind tool whose answer arrives."""
    called(client, "blind")
    house.world.settle()
    assert (list(house.world.states().values()), house.shipped, house.asked) == (["succeeded"], 1, 0)


@pytest.mark.parametrize(
    ("name", "configured"), [("contract", {}), ("parcel", {"tool": {"parcel": ToolSettings(approval="always")}})]
)
def test_person_approves_each_call(house: House, client: Client, name: str, configured: dict[str, Any]) -> None:
    """Nothing is sent before a person has approved it; then it is, once."""
    house.configure(**configured)
    assert house.level(name) is Level.PERSON
    answer = called(client, name)
    house.world.settle()
    assert (answer.status, house.shipped) == ("awaiting_approval", 0)
    assert house.approve(answer.action_id) == "approved"
    house.world.settle()
    assert house.shipped == 1


def test_two_persons(house: House, client: Client) -> None:
    """One approval is not enough, however often the same person gives it."""
    house.configure(approval=Approval(two_person=("contract",)))
    assert house.level("contract") is Level.TWO_PERSONS
    answer = called(client, "contract")
    assert [house.approve(answer.action_id), house.approve(answer.action_id)] == ["one_more", "same_person"]
    house.world.settle()
    assert list(house.world.states().values()) == ["awaiting_approval"]
    assert house.shipped == 0


def test_a_counter_action_undoes_alone(house: House, client: Client) -> None:
    """When the run is taken back, without a person; an agent's own call of it is refused."""
    assert house.level("take_back") is Level.ALONE
    called(client, "parcel")
    house.world.settle()
    assert called(client, "take_back", run="r2").status == "failed"
    with client().run("r1", tenant="acme", actor="bot") as handle:
        handle.unwind("customer withdrew")
    house.world.settle()
    assert len(house.world.sandbox.effects("shipment_cancellation")) == 1
    assert house.asked == 0
