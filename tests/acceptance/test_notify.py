"""From an agent's call to a person's terminal: what a run leaves for people is told, and what must be 0 is watched."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psycopg
import pytest
from structlog.testing import capture_logs
from tests.acceptance.shop import Shop

from counterfoil import Counterfoil
from counterfoil.settings_notify import Notify
from counterfoil.testing import World

Client = Callable[..., Counterfoil]
APPEND = "import sys\nwith open(sys.argv[1], 'a') as out:\n    out.write(sys.stdin.read() + '\\n')\n"


@pytest.fixture
def told(world: World, tmp_path: Path) -> Callable[[], list[dict[str, Any]]]:
    """A program of the house writes down what it is told; gives that."""
    heard, program = tmp_path / "heard", tmp_path / "hook.py"
    program.write_text(APPEND)
    command = (sys.executable, str(program), str(heard))
    world.settings = world.settings.model_copy(update={"notify": Notify(command=command, timeout_s=10)})
    return lambda: [json.loads(line) for line in heard.read_text().splitlines()] if heard.exists() else []


def test_a_call_that_waits_and_an_outcome_in_review(
    world: World, shop: Shop, client: Client, told: Callable[[], list[dict[str, Any]]], sql: Callable[..., Any]
) -> None:
    """A gated call and an action that only a person moves on: each is told once, with the verb that shows it."""
    with client().run("r1", tenant="acme", actor="bot") as run:
        asked = run.call("ask_customer", {"order": "1182", "text": "private"}, wait_s=0)
    world.settle()
    world.settle()
    [proposal] = told()
    assert proposal["command"] == f"counterfoil proposal show {asked.proposal_id}"
    assert "private" not in json.dumps(proposal)

    with client().run("r2", tenant="acme", actor="bot") as run:
        noted = run.call("send_note", {"order": "1183"}, wait_s=0)
    sql("SET session_replication_role = replica; UPDATE counterfoil.action SET audience = '{}' WHERE run = 'r2'")
    world.settle()
    world.settle()
    assert [(d["kind"], d["id"]) for d in told()[1:]] == [("review", noted.action_id)]
    assert told()[1]["why"] == "policy_mismatch"
    assert shop.effects == []


def test_a_plan_that_nobody_decides(world: World, client: Client, told: Callable[[], list[dict[str, Any]]]) -> None:
    """New, a reminder, expired: told in that order; nothing of it was sent."""
    order = {"customer": "cus_1182", "amount_minor": 500, "currency": "usd", "order_id": "1182"}
    with client().run("ticket-1182", tenant="acme", actor="bot") as run:
        hold = run.stage("stripe_authorize", order, wait_s=0)
        world.settle()
        proposal = run.propose([("stripe_capture", {"order_id": "1182", "of": hold.action_id})])
    world.settle()
    world.advance(0.9 * world.settings.approval.expiry_s)
    world.settle()
    world.advance(0.2 * world.settings.approval.expiry_s)
    world.settle()
    assert [(d["kind"], d["id"]) for d in told()] == [
        (kind, proposal.id) for kind in ("proposal", "expiring", "expired")
    ]
    assert world.sandbox.count("charges") == 0


def test_what_was_sent_before_the_pivot_is_an_error_in_the_log(world: World, client: Client, database: Any) -> None:
    """A run that has staged and, by raw SQL, sent what nothing takes back: the reconciler says so, with the number."""
    order = {"customer": "cus_1182", "amount_minor": 500, "currency": "usd", "order_id": "1182"}
    with client().run("ticket-1182", tenant="acme", actor="bot") as run:
        run.stage("stripe_authorize", order, wait_s=0)
    world.settle()
    with capture_logs() as logs:
        world.reconciler.rescue()
    assert [entry for entry in logs if entry["event"] == "irreversible_before_pivot"] == []
    with psycopg.connect(database.url("owner")) as owner:
        owner.execute("SET session_replication_role = replica")
        owner.execute("UPDATE counterfoil.action SET class = 'irreversible'")
    with capture_logs() as logs:
        world.reconciler.rescue()
    [said] = [entry for entry in logs if entry["event"] == "irreversible_before_pivot"]
    assert (said["log_level"], said["run"], said["actions"]) == ("error", "ticket-1182", 1)
