"""Handed cases about approvals: what was shown is what runs, one decision stands, and values are not each other's like."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from threading import Barrier
from typing import Any

import psycopg
import pytest
from pydantic import JsonValue
from tests.acceptance.people import Person

from counterfoil import tool
from counterfoil.ledger.errors import ArgumentError, DecisionRefused
from counterfoil.ledger.proposals import Answer
from counterfoil.settings_providers import ToolSettings
from counterfoil.testing import World

CHARGE = {"customer": "cus_1", "amount_minor": 500, "currency": "usd", "order_id": "1182"}
TICKET = {"project": "SUP", "summary": "Re-ship", "order_id": "1182"}
ROUNDS = 50


@pytest.fixture
def person(database: Any, world: World) -> Iterator[Callable[..., Person]]:
    """Makes a person: a name, and a login."""
    made: list[Person] = []

    def make(name: str = "alice", role: str = "operator") -> Person:
        made.append(Person(database.url(role), world.registry, name))
        return made[-1]

    yield make
    for each in made:
        each.ledger.close()


@pytest.fixture
def gated(world: World) -> World:
    """A world in which each charge and ticket needs an approval."""
    tools = {name: ToolSettings(approval="always") for name in ("stripe_charge", "jira_create")}
    world.settings = world.settings.model_copy(update={"tool": tools})
    return world


@pytest.mark.case("G1")
def test_another_amount_than_the_approved_one(gated: World, enqueue: Any, person: Any, sql: Any, database: Any) -> None:
    """500 is approved, and the row says 700 then: refused by the trigger, and by the claim where triggers were off."""
    enqueue("stripe_charge", CHARGE)
    [proposal] = person().waiting()
    assert person().approve(proposal).answer is Answer.APPROVED
    change = (
        "UPDATE counterfoil.action SET amount_minor = 700, arguments = replace(arguments, '500', '700'),"
        " arguments_sha256 = encode(sha256(convert_to(replace(arguments, '500', '700'), 'UTF8')), 'hex')"
    )
    with pytest.raises(psycopg.DatabaseError) as refused:
        sql(change)
    assert refused.value.sqlstate == "CF451"
    with psycopg.connect(database.url("owner")) as connection:
        connection.execute("SET session_replication_role = replica")
        connection.execute(change.encode())
    gated.settle()
    assert gated.sandbox.count("charges") == 0
    assert sql("SELECT count(*) FROM counterfoil.approval WHERE consumed_at IS NOT NULL") == [(0,)]


@pytest.mark.case("G1")
def test_another_tool_uses_the_approval(gated: World, enqueue: Any, person: Any, sql: Any) -> None:
    """The approval of a charge is put on a ticket, of the same run and of another: refused, whoever writes it."""
    enqueue("stripe_charge", CHARGE)
    [proposal] = person().waiting()
    for run in ("r1", "r2"):
        enqueue("jira_create", TICKET, step="ticket", run=run)
    person().approve(proposal)
    [(approval,)] = sql("SELECT approval_id FROM counterfoil.approval")
    take = "UPDATE counterfoil.action SET state = 'ready', approval_id = %s WHERE tool = 'jira_create' AND run = %s"
    for run in ("r1", "r2"):
        with pytest.raises(psycopg.DatabaseError) as refused:
            sql(take, approval, run)
        assert refused.value.sqlstate == "CF403"
    gated.settle()
    assert (gated.sandbox.count("tickets_created"), gated.sandbox.count("charges")) == (0, 1)


@pytest.mark.case("G1")
def test_only_the_frameworks_call_id_changed(gated: World, client: Any, person: Any) -> None:
    """The agent asks again in the next turn, under another call id: it is the approved action, and nobody is asked."""
    run = client().run("r1", tenant="acme", actor="bot")
    asked = run.call("stripe_charge", CHARGE, ref="turn1:call_0", wait_s=0)
    assert asked.status == "awaiting_approval"
    [proposal] = person().waiting()
    person().approve(proposal)
    gated.settle()
    again = run.call("stripe_charge", dict(reversed(CHARGE.items())), ref="turn2:call_7", wait_s=0)
    assert (again.status, again.action_id) == ("succeeded", asked.action_id)
    assert person().waiting() == []
    assert gated.sandbox.count("charges") == 1


@pytest.mark.case("G3")
def test_approved_and_rejected_at_the_same_moment(gated: World, enqueue: Any, person: Any, sql: Any) -> None:
    """Fifty times: one decision stands, the other person is told who decided, and only what was approved is done."""
    alice, bob = person("alice"), person("bob", "operator2")
    for number in range(ROUNDS):
        enqueue("stripe_charge", CHARGE | {"order_id": f"o{number}"}, run=f"r{number}")
    barrier = Barrier(2, timeout=20)

    def at_once(decide: Callable[[str], object], proposal: str) -> object:
        barrier.wait()
        try:
            return decide(proposal)
        except DecisionRefused as refused:
            return refused

    def approve(proposal: str) -> object:
        return alice.approve(proposal, digests[proposal])

    digests = {proposal: alice.show(proposal).digest for proposal in alice.waiting()}
    assert len(digests) == ROUNDS
    stand: list[str] = []
    with ThreadPoolExecutor(2) as threads:
        for proposal in digests:
            both = [threads.submit(at_once, decide, proposal) for decide in (approve, bob.reject)]
            answers = [each.result(30) for each in both]
            [refused] = [each for each in answers if isinstance(each, DecisionRefused)]
            winner = "bob" if refused is answers[0] else "alice"
            assert refused.code == "decided"
            verdict = {"alice": "approved", "bob": "rejected"}[winner]
            assert f"was {verdict} by {winner} at " in refused.message
            stand.append(verdict)
    gated.settle()
    assert gated.sandbox.count("charges") == stand.count("approved")
    assert sql("SELECT count(*) FROM counterfoil.decision") == [(ROUNDS,)]


@pytest.fixture
def noted(world: World, use_tools: Any) -> list[dict[str, JsonValue]]:
    """A gated tool with one argument of each kind; what it was really called with."""
    ran: list[dict[str, JsonValue]] = []

    @tool(cls="irreversible", effect="note", target="order", audience=["team"], once_per=None, approval="always",
          uncertain="operator_review", provider="notes")  # fmt: skip
    def note(order: str, notify: bool, count: float = 0, text: str = "", free: JsonValue = None) -> dict[str, str]:
        """Tell the team."""
        ran.append({"notify": notify, "count": count, "text": text, "free": free})
        return {"id": f"n{len(ran)}"}

    use_tools(note)
    return ran


@pytest.mark.case("G5")
def test_values_that_look_alike_are_not_the_approved_ones(
    world: World, client: Any, person: Any, noted: list[dict[str, JsonValue]]
) -> None:
    """{"notify": true} is approved: 1, "true" and 1.0 are refused, and another text in a free argument is another call."""
    run = client().run("r1", tenant="acme", actor="bot")
    given: dict[str, Any] = {"order": "1", "notify": True, "free": True}
    asked = run.call("note", given, step="tell", wait_s=0)
    assert asked.status == "awaiting_approval"
    for other in (1, 1.0, "true", "1", 0, None):
        refused = run.call("note", given | {"notify": other}, step="tell", wait_s=0)
        assert (refused.status, refused.code, refused.field) == ("failed", "invalid_argument", "notify")
    [proposal] = person().waiting()
    person().approve(proposal)
    for other in (1, 1.0, "true", "1"):
        other_call = run.call("note", given | {"free": other}, step="tell", wait_s=0)
        assert other_call.action_id == asked.action_id  # what is recorded under the label runs, and is shown
        assert other_call.arguments == {"count": 0, "notify": True, "order": "1", "text": "", "free": True}
    world.settle()
    assert noted == [{"notify": True, "count": 0.0, "text": "", "free": True}]


@pytest.mark.case("G5")
def test_the_one_rule_for_numbers(
    world: World, client: Any, person: Any, enqueue: Any, noted: list[dict[str, JsonValue]]
) -> None:
    """1 and 1.0 are one number and one text, so one call; "1" is a text; the order of keys is nothing."""
    given: dict[str, Any] = {"order": "1", "notify": True, "count": 1, "text": "1", "free": {"a": 1, "b": 2.0}}
    first = enqueue("note", given)
    same = {"free": {"b": 2, "a": 1.0}, "text": "1", "count": 1.0, "notify": True, "order": "1"}
    assert enqueue("note", same) == first
    assert len(person().waiting()) == 1
    for name, other in (("count", "1"), ("text", 1)):
        with pytest.raises(ArgumentError):
            enqueue("note", given | {name: other})
    [proposal] = person().waiting()
    person().approve(proposal)
    assert enqueue("note", same) == first
    world.settle()
    assert noted == [{"notify": True, "count": 1.0, "text": "1", "free": {"a": 1, "b": 2}}]
