"""A row that cannot be judged, a slow look-up, a login that lies: the others go on, and this one ends somewhere."""

from __future__ import annotations

import json
from datetime import datetime
from typing import Any

import psycopg
import pytest
import requests

from counterfoil.ledger import unwinds
from counterfoil.ledger.canonical import sha256_of
from counterfoil.ledger.keys import action_id
from counterfoil.providers.outcomes import Found, Rejected, Succeeded
from counterfoil.providers.tool import tool
from counterfoil.reconciler.setup import reconciler_from
from counterfoil.testing import World
from counterfoil.workers.admission import Unlimited

CHARGE = {"customer": "cus_1", "amount_minor": 500, "currency": "usd", "order_id": "1182"}
NOTE: dict[str, Any] = {
    "cls": "compensatable",
    "target": "order",
    "once_per": None,
    "audience": ["team"],
    "landing_max_s": 2.0,
}


@tool(effect="unnote", provider="notes", undo=None, uncertain="operator_review", **NOTE)
def unnote(order: str, *, of: str) -> dict[str, object]:
    """Never looked up."""
    return {"id": of}


def test_a_look_up_that_breaks_the_verdict_stops_nobody_else(world: World, enqueue, use_tools) -> None:
    """A look-up whose answer cannot be judged concerns its own row alone, also when that row is the first of each batch."""

    @tool(effect="note", provider="notes", undo="unnote", lookup=_naive_for_a, **NOTE)
    def note(order: str, *, key: str) -> dict[str, object]:
        """Its answer is always lost."""
        raise requests.ReadTimeout

    use_tools(note, unnote)
    enqueue("note", {"order": "a"}, "s1")
    enqueue("note", {"order": "b"}, "s2")
    world.work()
    for _ in range(10):
        world.advance(2)
        world.reconcile()
    assert world.states()["note/s2/do"] == "succeeded"
    assert world.states()["note/s1/do"] == "uncertain"


def _naive_for_a(order: str, key: str) -> object:
    return Found(Succeeded(key), created_at=datetime(2030, 1, 1) if order == "a" else None)


def test_a_slow_look_up_is_still_written(world: World, enqueue, use_tools) -> None:
    """Look-ups that take longer together than their lease are each written before it ends."""

    def find(order: str) -> object:
        world.advance(2.5)  # three of them outlast the lease
        other.sweep_leases()
        return {"id": order}

    @tool(effect="note", provider="notes", undo="unnote", lookup=find, **NOTE)
    def note(order: str) -> dict[str, object]:
        """Its answer is always lost."""
        raise requests.ReadTimeout

    use_tools(note, unnote)
    other = reconciler_from(world.settings, by="other", registry=world.registry, admission=Unlimited())
    for number in range(8):
        enqueue("note", {"order": str(number)}, f"s{number}")
    world.work()
    for _ in range(12):
        world.advance(1)
        world.reconcile()
    other.ledger.close()
    assert set(world.states().values()) == {"succeeded"}


def test_a_refusal_with_a_nul_in_its_field_is_still_a_refusal(world: World, enqueue, use_tools) -> None:
    """Whatever text a function puts into an outcome, it can be written."""

    @tool(effect="note", provider="notes", undo="unnote", uncertain="operator_review", **NOTE)
    def note(order: str) -> object:
        """Refuses."""
        return Rejected("no\x00", field="or\x00der\ud800")

    use_tools(note, unnote)
    enqueue("note", {"order": "a"})
    world.settle()
    assert world.states() == {"note/s1/do": "permanent_failure"}


def test_a_run_that_waits_keeps_no_other_from_its_turn(world: World, enqueue, sql, monkeypatch) -> None:
    """However many runs wait for somebody else, each of the others is visited, too."""
    monkeypatch.setattr(unwinds.runs_to_unwind, "__kwdefaults__", {"batch": 2})
    for run in ("r1", "r2", "r3"):
        enqueue("stripe_charge", {**CHARGE, "order_id": run}, run=run)
    sql(
        "UPDATE counterfoil.run SET state = 'unwinding', updated_at = counterfoil.now() - interval '1 day' WHERE run <> 'r3'"
    )
    sql("UPDATE counterfoil.run SET state = 'unwinding' WHERE run = 'r3'")
    sql("UPDATE counterfoil.action SET state = 'executing', fence = gen_random_uuid(), lease_until = 'infinity'"
        " WHERE run <> 'r3'")  # fmt: skip
    for _ in range(3):
        world.reconciler.unwind_runs()
    assert sql("SELECT state FROM counterfoil.run WHERE run = 'r3'") == [("unwound",)]


def test_nothing_begins_once_the_run_is_taken_back(world: World, enqueue, ask, sql) -> None:
    """From the moment that a run's unwind is asked for, no waiting action of it is claimed any more."""
    enqueue("stripe_charge", CHARGE)
    ask("SELECT counterfoil.request_unwind('acme', 'r1', 'enough')")
    assert world.work() == 0
    world.settle()
    assert world.states() == {"stripe_charge/s1/do": "cancelled"}
    assert sql("SELECT state FROM counterfoil.run") == [("unwound",)]


def test_an_unwind_waits_for_open_transactions(world: World, client, database, ask, sql) -> None:
    """An action whose transaction was open when the unwind was asked for is withdrawn, not forgotten and sent later."""
    with psycopg.connect(database.url("agent")) as connection:
        client().enqueue(connection, "stripe_charge", CHARGE, tenant="acme", run="r1", step="s0", actor="bot")
    with psycopg.connect(database.url("agent")) as connection:
        client().enqueue(connection, "stripe_charge", CHARGE | {"order_id": "2"}, tenant="acme", run="r1", step="s1",
                         actor="bot")  # fmt: skip
        ask("SELECT counterfoil.request_unwind('acme', 'r1', 'enough')")
        world.settle()
        assert sql("SELECT state FROM counterfoil.run") == [("unwinding",)]
    world.settle()
    assert sql("SELECT state FROM counterfoil.run") == [("unwound",)]
    assert set(world.states().values()) == {"cancelled"}
    assert world.sandbox.count("charges") == 0


def test_a_worker_of_one_tenant_still_carries_out_cancels(world: World, enqueue, ask, sql) -> None:
    """Which tenants a worker's login was granted for decides nothing: it serves all, so no cancel waits for ever."""
    sql("DELETE FROM counterfoil.principal WHERE role_name = 'cf_worker'")
    enqueue("stripe_charge", CHARGE)
    with world.frozen_at("after_claim") as thaw:
        ask("SELECT counterfoil.request_cancel(action_id, 'bot', 'no') FROM counterfoil.action")
        world.advance(5)  # the lease is too short for the call now: let go
        thaw()
    world.settle()
    assert world.states() == {"stripe_charge/s1/do": "cancelled"}


def test_a_tool_that_is_gone_leaves_its_doubt_to_a_person(world: World, enqueue, use_tools) -> None:
    """No other version judges a row; when nobody has looked at it for an hour, a person must."""

    def never(key: str) -> object:
        raise AssertionError("another version's look-up")

    made: list[Any] = []
    for version, find in ((1, lambda key: None), (2, never)):

        @tool(effect="note", provider="notes", undo="unnote", version=version, lookup=find, **NOTE)
        def note(order: str, *, key: str) -> dict[str, object]:
            """Its answer is always lost."""
            raise requests.ReadTimeout

        made.append(note)
    use_tools(made[0], unnote)
    enqueue("note", {"order": "a"})
    world.work()
    world.close()
    world._executor = world._reconciler = None
    use_tools(made[1], unnote)
    world.advance(60)
    world.reconcile()
    assert world.states() == {"note/s1/do": "uncertain"}
    world.advance(3600)
    world.reconcile()
    assert world.states() == {"note/s1/do": "operator_review"}


@pytest.fixture
def ask(database):
    """Runs one statement under an agent's login."""

    def run(statement: str) -> None:
        with psycopg.connect(database.url("agent")) as connection:
            connection.execute(statement.encode())

    return run


@pytest.fixture
def forge(database):
    """Records a row through the agents' door as no client of ours would: by SQL, under an agent's login."""

    def record(tool_name: str, arguments: str, *, run: str = "forged", **changes: Any) -> str:
        given: dict[str, Any] = {
            "p_action_id": action_id("acme", run, "s1", 1, "do"), "p_tenant": "acme", "p_run": run, "p_step": "s1",
            "p_seq": None, "p_revision": 1, "p_actor": "mallory", "p_tool": tool_name, "p_tool_version": 1,
            "p_class": "compensatable", "p_effect": "ticket", "p_target": "1182", "p_provider": "jira",
            "p_account": "default", "p_queue": "cf-jira", "p_arguments": arguments,
            "p_arguments_sha256": sha256_of(arguments), "p_audience": [], "p_compensation": None, **changes,
        }  # fmt: skip
        named = ", ".join(f"{name} => %({name})s" for name in given)
        # The door lets in what is no JSON object from nobody: that is written by the database's owner.
        unreadable = {n: given[n] for n in ("p_arguments", "p_compensation") if not is_object(given[n])}
        placed = {**given, **dict.fromkeys(unreadable, "{}"), "p_arguments_sha256": given["p_arguments_sha256"]}
        if "p_arguments" in unreadable:
            placed["p_arguments_sha256"] = sha256_of("{}")
        with psycopg.connect(database.url("agent")) as connection:
            row = connection.execute(f"SELECT action_id FROM counterfoil.propose({named})".encode(), placed).fetchone()
        assert row is not None
        with psycopg.connect(database.url("owner")) as owner:
            owner.execute("SET LOCAL session_replication_role = replica")
            owner.execute(
                "UPDATE counterfoil.action SET arguments = %(p_arguments)s, arguments_sha256 = %(p_arguments_sha256)s,"
                " compensation = %(p_compensation)s WHERE action_id = %(id)s",
                {**given, "id": row[0]},
            )
        return str(row[0])

    return record


def is_object(text: object) -> bool:
    """Or nothing at all."""
    try:
        return text is None or isinstance(json.loads(str(text)), dict)
    except ValueError:
        return False


@pytest.mark.parametrize("arguments", ["[]", "no json", '{"order_id":"1182"}', '{"order_id":"1182","x":1}'])
def test_forged_arguments_are_no_trap(world: World, enqueue, forge, sql, arguments) -> None:
    """Arguments that the tool's model refuses are never sent, go to a person, and blind no look-up of other rows."""
    forge("jira_create", arguments)
    enqueue("jira_create", {"project": "SUP", "summary": "x", "order_id": "1182"}, run="r2")
    world.sandbox.jira.fault("504_after_commit", on="issue.create")
    world.settle(at_most_s=3600)
    states = dict(sql("SELECT run, state FROM counterfoil.action"))
    assert states == {"forged": "operator_review", "r2": "succeeded"}
    assert world.sandbox.count("tickets_created") == 1


def test_a_forged_compensation_stops_no_other_unwind(world: World, enqueue, forge, sql) -> None:
    """A run whose compensation cannot be read is a person's; the unwind of every other run goes on."""
    text = '{"issue_type":"Task","order_id":"1182","project":"SUP","summary":"x","description":""}'
    forge("jira_create", text, p_compensation="no json")
    enqueue("stripe_charge", CHARGE, run="r2")
    world.settle()
    sql("UPDATE counterfoil.run SET state = 'unwinding'")
    world.settle()
    assert sql("SELECT run, state FROM counterfoil.run ORDER BY run") == [
        ("forged", "unwind_blocked"),
        ("r2", "unwound"),
    ]


def test_a_compensation_is_the_tools_own(world: World, enqueue, forge, sql) -> None:
    """What takes an action back is what its tool declares, whatever the agent's login has written down."""
    text = '{"issue_type":"Task","order_id":"1182","project":"SUP","summary":"x","description":""}'
    forge("jira_create", text, p_compensation='{"arguments":{"order_id":"1182"},"tool":"stripe_refund"}')
    world.settle()
    sql("UPDATE counterfoil.run SET state = 'unwinding'")
    world.settle()
    assert sql("SELECT state FROM counterfoil.run") == [("unwind_blocked",)]
    assert "stripe_refund/s1/undo" not in world.states()


def test_an_approval_cannot_be_declared_away(world: World, forge, use_tools) -> None:
    """The worker derives the need of an approval itself: without one an irreversible call goes to a person unsent."""
    sent = []

    @tool(cls="irreversible", effect="ticket", target="order", once_per=None, audience=["team"], provider="notes",
          uncertain="operator_review")  # fmt: skip
    def wire_money(order: str) -> dict[str, object]:
        """Cannot be taken back."""
        sent.append(order)
        return {"id": order}

    use_tools(wire_money)
    forge("wire_money", '{"order":"1182"}', p_class="irreversible", p_provider="notes", p_needs_approval=False)
    world.settle()
    assert sent == []
    assert set(world.states().values()) == {"operator_review"}
