"""Taking a run back: in which order, what a person has to decide and what goes on meanwhile. Effects are the sandbox's."""

from __future__ import annotations

import json
from contextlib import closing
from typing import TYPE_CHECKING, Any

import psycopg
import pytest
import requests

from counterfoil.ledger import unwinds
from counterfoil.ledger.connection import Ledger
from counterfoil.ledger.unwind_steps import told
from counterfoil.outbox.results import NextStep, Status
from counterfoil.providers.registry import Registry
from counterfoil.testing import World

if TYPE_CHECKING:
    from tests.conftest import Database

CHARGE = {"customer": "cus_1", "amount_minor": 500, "currency": "usd"}
TICKET = {"project": "SUP", "summary": "Refund for order 1182", "order_id": "1182"}
DISPUTED = {"error": {"type": "invalid_request_error", "code": "charge_disputed", "message": "is disputed"}}
DECISIONS = ("happened", "gave up", "did not happen")


def tick(world: World, times: int = 8) -> None:
    """Workers and reconciler get their turns; no time passes."""
    for _ in range(times):
        world.work()
        world.reconcile()
        world.reconciler.unwind_runs()


def test_inside_first_the_newest_first(
    world: World, database: Database, ship: Any, unwind: Any, taken_back: Any, run_state: Any
) -> None:
    """Four ranks: what the company alone saw, customers, the public, legal weight; within a rank the newest first."""
    for order, who in [
        ("public", "public"),
        ("team-1", "team"),
        ("legal", "legal"),
        ("customer-1", "customer"),
        ("team-2", "finance"),
        ("customer-2", "customer"),
    ]:
        ship(order, who)
    with psycopg.connect(database.url("operator")) as connection:
        answers = connection.execute(
            "SELECT d.answer FROM counterfoil.proposal AS p, LATERAL counterfoil.decide("
            " p.proposal_id, 'approved', counterfoil.proposal_digest(p.proposal_id), 'alice', 'cli') AS d"
        ).fetchall()
    assert answers == [("approved",)] * 2
    world.settle()
    unwind()
    world.settle()
    assert taken_back() == ["team-2", "team-1", "customer-2", "customer-1", "public", "legal"]
    assert run_state() == "unwound"


@pytest.mark.case("F4")
@pytest.mark.parametrize("decision", DECISIONS)
def test_a_compensation_that_is_refused_for_good(
    world: World, enqueue: Any, unwind: Any, decide: Any, cli: Any, run_state: Any, decision: str
) -> None:
    """The second of four is disputed: the others go on, it goes to a person, and nothing is repeated after the decision."""
    enqueue("jira_create", TICKET, "ticket")
    for order in "abc":
        enqueue("stripe_charge", CHARGE | {"order_id": order}, order)
    world.settle()
    world.sandbox.stripe.fault("answer", on="refunds.create", nth=2, status=400, body=DISPUTED)
    handle = unwind()
    world.settle()
    assert run_state() == "unwind_blocked"
    assert world.states()["stripe_refund/b/undo"] == "operator_review"
    counts = world.sandbox.counts()
    assert (counts["charges"], counts["refunds"], counts["tickets_open"]) == (3, 2, 0)
    answer = handle.result()
    assert (answer.status, answer.next_step, answer.suspend) == (Status.BLOCKED, NextStep.PERSON, True)
    [waiting] = [step for step in answer.value if step["standing"] != "nothing"]
    assert (waiting["step"], waiting["standing"], waiting["why"]) == ("b", "person", "charge_disputed")
    code, shown = cli("run", "unwind", "r1", "--wait", "5")
    assert code == 6
    assert "stripe_refund (charge_disputed)" in shown
    requests_before = world.sandbox.requests()
    world.settle()
    assert world.sandbox.requests() == requests_before, "while it waits, nothing is tried"

    decide(decision, "stripe_refund")
    world.settle()
    assert run_state() == "unwound"
    again = decision == "did not happen"
    assert world.sandbox.count("refunds") == (3 if again else 2)
    assert len(world.sandbox.requests("stripe", "refunds.create")) == (4 if again else 3)
    assert world.sandbox.requests("jira") == [r for r in requests_before if r.provider == "jira"]
    assert world.states()["stripe_charge/b/do"] == ("succeeded" if decision == "gave up" else "compensated")
    assert handle.result(wait_s=5).status is Status.SUCCEEDED
    code, shown = cli("run", "show", "r1", "--json")
    standings = {step["step"]: step["standing"] for step in json.loads(shown)["unwind"]}
    assert standings["b"] == ("kept" if decision == "gave up" else "nothing")


def test_a_compensation_that_was_done_twice_after_all(
    world: World, ship: Any, unwind: Any, decide: Any, sql: Any, run_state: Any
) -> None:
    """A first counter-action that a person took for not done comes up again: the run is blocked until it is decided."""
    ship("a")
    world.settle()
    world.sandbox.warehouse.fault("answer", on="shipments.cancel", status=403)
    handle = unwind()
    world.settle()
    decide("did not happen", "cancel_shipment")
    world.settle()
    assert run_state() == "unwound"
    found = "state = 'operator_review', last_error_code = 'found_after_all', changed_by = 'watch'"
    sql(f"UPDATE counterfoil.action SET {found} WHERE phase = 'undo' AND superseded_by IS NOT NULL")
    world.settle()
    assert run_state() == "unwind_blocked"
    [step] = handle.result().value
    assert (step["state"], step["standing"], step["why"]) == ("compensated", "person", "found_after_all")
    decide("happened", "cancel_shipment")
    world.settle()
    assert run_state() == "unwound"


def test_what_nothing_takes_back_is_a_person_s(
    world: World, ship: Any, unwind: Any, taken_back: Any, run_state: Any
) -> None:
    """An irreversible step blocks the run and holds up no other step."""
    ship("old")
    ship("letter", tool="send_letter")
    ship("new")
    world.settle()
    handle = unwind()
    world.settle()
    assert run_state() == "unwind_blocked"
    assert taken_back() == ["new", "old"]
    stands = {step["step"]: (step["standing"], step["why"]) for step in handle.result().value}
    assert stands == {"new": ("nothing", None), "old": ("nothing", None), "letter": ("person", "no_compensation")}


@pytest.mark.parametrize("happened", [True, False])
def test_an_outcome_that_a_person_decides(
    world: World, ship: Any, unwind: Any, decide: Any, sql: Any, taken_back: Any, run_state: Any, happened: bool
) -> None:
    """A step in review holds up no other; after the decision the unwind goes on: what had happened is taken back."""
    ship("old")
    ship("doubted")
    world.sandbox.warehouse.fault("504_after_commit", on="shipments.create", times=1, nth=2)
    world.work()
    sql("UPDATE counterfoil.action SET state = 'operator_review', changed_by = 'escalate' WHERE state = 'uncertain'")
    ship("new")
    unwind()
    world.settle()
    assert run_state() == "unwind_blocked"
    assert (taken_back(), world.states()["create_shipment/new/do"]) == (["old"], "cancelled")
    [receipt] = [e.object_id for e in world.sandbox.effects("shipment") if e.data["order"] == "doubted"]
    decide("happened" if happened else "did not happen", "create_shipment", receipt)
    world.settle()
    assert run_state() == "unwound"
    assert taken_back() == (["old", "doubted"] if happened else ["old"])


def test_an_open_outcome_holds_back_what_comes_after_it(
    world: World, ship: Any, unwind: Any, taken_back: Any, run_state: Any
) -> None:
    """While one step is unknown, those before it in the order are taken back and those after it wait."""
    ship("customer", "customer")
    ship("old")
    world.work()
    world.sandbox.warehouse.fault("504_after_commit", on="shipments.create")
    world.sandbox.warehouse.fault("lookup_429", times=None)
    ship("doubted")
    world.work()
    ship("new")
    world.work()
    handle = unwind()
    tick(world)
    world.advance(5)
    assert handle.result().status is Status.PENDING
    tick(world)
    assert taken_back() == ["new"]
    assert run_state() == "unwinding"
    world.sandbox.clear_faults()
    world.settle()
    assert taken_back() == ["new", "doubted", "old", "customer"]
    assert run_state() == "unwound"


@pytest.mark.parametrize(
    "fault", ["504_after_commit", "504_before_commit", "rst_after_commit", "504_then_commit_after", "empty_2xx"]
)
def test_a_compensation_whose_outcome_is_unknown(
    world: World, enqueue: Any, unwind: Any, run_state: Any, fault: str
) -> None:
    """It is looked up like any action: one refund, one ticket closed, whatever the gateway said."""
    late = {"delay_s": 1.5} if fault == "504_then_commit_after" else {}
    enqueue("jira_create", TICKET, "ticket")
    enqueue("stripe_charge", CHARGE | {"order_id": "1182"}, "fee")
    world.settle()
    world.sandbox.stripe.fault(fault, on="refunds.create", **late)
    world.sandbox.jira.fault(fault, on="issue.transition", **late)
    unwind()
    world.settle()
    counts = world.sandbox.counts()
    assert (counts["charges"], counts["refunds"], counts["tickets_created"], counts["tickets_open"]) == (1, 1, 1, 0)
    assert run_state() == "unwound"


def test_refunded_by_somebody_else(world: World, enqueue: Any, unwind: Any, decide: Any, run_state: Any) -> None:
    """ "Already refunded", and the refund is not ours: a person decides, and there is no second refund."""
    enqueue("stripe_charge", CHARGE | {"order_id": "1182"}, "fee")
    world.settle()
    [charge] = world.sandbox.effects("charge")
    by_hand = requests.post(
        f"{world.sandbox.stripe.url}/v1/refunds",
        data={"payment_intent": charge.object_id},
        headers={"Authorization": "Bearer sk_test_sandbox"},
        timeout=5,
    )
    assert by_hand.status_code == 200, by_hand.text
    unwind()
    world.settle()
    assert world.states()["stripe_refund/fee/undo"] == "operator_review"
    assert run_state() == "unwind_blocked"
    decide("happened", "stripe_refund")
    world.settle()
    assert run_state() == "unwound"
    assert world.sandbox.count("refunds") == 1


def test_a_ticket_that_was_closed_by_hand(world: World, enqueue: Any, unwind: Any, run_state: Any) -> None:
    """What is closed already is taken back: nothing is written, and the run is unwound."""
    enqueue("jira_create", TICKET, "ticket")
    world.settle()
    [ticket] = world.sandbox.effects("ticket")
    where = f"{world.sandbox.jira.url}/rest/api/2/issue/{ticket.data.get('key', ticket.object_id)}/transitions"
    login = ("bot@example.test", "t")
    offered = requests.get(where, auth=login, timeout=5).json()["transitions"]
    [done] = [t["id"] for t in offered if t["to"]["statusCategory"]["key"] == "done"][:1]
    assert requests.post(where, json={"transition": {"id": done}}, auth=login, timeout=5).status_code == 204
    before = len(world.sandbox.requests("jira", "issue.transition"))
    unwind()
    world.settle()
    assert world.sandbox.count("tickets_open") == 0
    assert len(world.sandbox.requests("jira", "issue.transition")) == before
    assert run_state() == "unwound"


@pytest.mark.parametrize("tool", ["stripe_charge", "jira_create"])
def test_a_request_that_lands_during_the_unwind(
    world: World, enqueue: Any, unwind: Any, passed: Any, run_state: Any, tool: str
) -> None:
    """The first look-ups find nothing, then the lost request lands: never sent again, it is found, and taken back."""
    world.sandbox.fault("504_then_commit_after", delay_s=1.8, method="POST")
    action_id = enqueue(tool, CHARGE | {"order_id": "1182"} if tool == "stripe_charge" else TICKET)
    world.work()
    unwind()
    world.settle()
    counts = world.sandbox.counts()
    assert run_state() == "unwound"
    assert passed(action_id)[-2:] == ["succeeded", "compensated"]
    assert passed(action_id).count("ready") == 1
    assert (counts["charges"] + counts["tickets_created"], counts["refunds"] + counts["tickets_open"]) == (
        1,
        1 if tool == "stripe_charge" else 0,
    )


def test_a_compensation_whose_tool_is_gone(
    world: World, ship: Any, unwind: Any, cli: Any, taken_back: Any, run_state: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A reconciler without the tool blocks the run and says why; one that has it goes on."""
    ship("a")
    world.settle()
    unwind()
    with monkeypatch.context() as patched:
        patched.setattr(Registry, "find", lambda *_: None)
        world.reconciler.unwind_runs()
    assert run_state() == "unwind_blocked"
    assert "a compensation cannot be built" in cli("run", "show", "r1")[1]
    world.settle()
    assert (run_state(), taken_back()) == ("unwound", ["a"])


def test_a_reader_is_told_all_of_it(world: World, ship: Any, unwind: Any, database: Database) -> None:
    """A login that may not read what was said learns of each step where it stands, and by what it is taken back."""
    ship("a")
    ship("letter", tool="send_letter")
    world.settle()
    unwind()
    world.settle()
    with closing(Ledger(database.url("reader"))) as ledger:
        steps = told(unwinds.steps_of_run(ledger, tenant="acme", run="r1"))
    assert [(step["step"], step["standing"], step["undo_tool"]) for step in steps] == [
        ("a", "nothing", "cancel_shipment"),
        ("letter", "person", None),
    ]


def test_the_plan_changes_nothing_and_then_comes_true(
    world: World, ship: Any, cli: Any, sql: Any, taken_back: Any
) -> None:
    """--dry-run names each step in the order in which the unwind then takes it; --wait sees its end."""
    ship("customer", "customer")
    ship("old")
    ship("new")
    world.settle()
    ship("unsent")
    code, shown = cli("run", "unwind", "r1", "--dry-run", "--json")
    plan = [(step["step"], step["standing"]) for step in json.loads(shown)["steps"]]
    assert plan == [("unsent", "withdraw"), *((order, "compensate") for order in ("new", "old", "customer"))]
    assert (code, sql("SELECT state FROM counterfoil.run")) == (0, [("open",)])
    assert cli("run", "unwind", "r1")[0] == 0
    world.settle()
    assert taken_back() == ["new", "old", "customer"]
    code, shown = cli("run", "unwind", "r1", "--wait", "5", "--json")
    assert (code, json.loads(shown)["state"]) == (0, "unwound")
    code, shown = cli("run", "show", "r1")
    assert (shown.count("taken back  act_"), shown.count("withdrawn   act_")) == (3, 1)
