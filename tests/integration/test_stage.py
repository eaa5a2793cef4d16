"""Staging: reversible forms only, a pivot that nothing goes past, and what else a call is told where people are concerned."""

from __future__ import annotations

from typing import Any

import psycopg
import pytest
from tests.integration.staging import Desk, Shop, desk, shop

from counterfoil import ArgumentError, IntentConflict, NextStep, NotAllowed, Status, Step

__all__ = ["desk", "shop"]  # fixtures


def test_what_is_staged_runs_now_and_puts_the_pivot_ahead(desk: Desk, shop: Shop) -> None:
    """It is an action like others, marked as staged; the same again is that one."""
    first = desk.run.stage("hold", {"order": "o1"}, wait_s=0)
    assert desk.one("SELECT staged, state FROM counterfoil.action") == {"staged": True, "state": "ready"}
    assert desk.one("SELECT pivot FROM counterfoil.run")["pivot"] == "ahead"
    desk.world.settle()
    again = desk.run.stage("hold", {"order": "o1", "amount": 9}, wait_s=0)
    assert (again.status, again.action_id, again.replayed) == (Status.SUCCEEDED, first.action_id, True)
    assert shop.happened == ["hold"]


@pytest.mark.parametrize(
    ("tool", "arguments", "path", "code"),
    [
        ("note", {"order": "o1"}, "tool", "not_reversible"),
        ("send", {"order": "o1"}, "tool", "not_reversible"),
        ("capture", {"order": "o1"}, "tool", "not_reversible"),
        ("search", {}, "tool", "not_reversible"),
        ("hold", {"amount": 500}, "$.order", "missing_argument"),
        ("hold", '{"order": "o1", "amount": "5"}', "$.amount", "invalid_int"),
    ],
)
def test_only_good_calls_of_reversible_tools_are_staged(
    desk: Desk, tool: str, arguments: Any, path: str, code: str
) -> None:
    """Code stages, so what is wrong is raised, before any row; the run has no pivot then."""
    with pytest.raises(ArgumentError) as raised:
        desk.run.stage(tool, arguments, wait_s=0)
    assert raised.value.path == path
    assert raised.value.code.startswith(code.partition("_")[0])
    assert desk.rows("SELECT FROM counterfoil.action") == []
    assert desk.one("SELECT pivot FROM counterfoil.run")["pivot"] is None


def test_nothing_goes_past_the_pivot(desk: Desk, shop: Shop) -> None:
    """Before the decision what commits is blocked, and reversible calls go on; after an approval it goes on, too."""
    hold = desk.staged("hold")
    blocked = desk.run.call("note", {"order": "o1"}, wait_s=0)
    assert (blocked.status, blocked.next_step, blocked.suspend) == (Status.BLOCKED, NextStep.END_TURN, False)
    draft = desk.staged("draft")
    plan = desk.run.propose([("capture", {"of": hold})])
    first = desk.one("SELECT action_id FROM counterfoil.action WHERE place = 1")["action_id"]
    blocked = desk.run.call("note", {"order": "o1"}, wait_s=0)
    assert (blocked.next_step, blocked.action_id, blocked.suspend) == (NextStep.PERSON, first, True)
    desk.decide(plan, digest=plan.digest)
    desk.world.settle()
    plan.result()
    assert desk.run.call("note", {"order": "o1"}, wait_s=0).status is Status.PENDING
    desk.world.settle()
    assert shop.happened == ["hold", "draft", "capture", "note"]
    assert draft is not None


def test_a_rejected_plan_leaves_the_pivot_ahead(desk: Desk) -> None:
    """A no to the plan is no yes to what the model would rather do."""
    hold = desk.staged("hold")
    plan = desk.run.propose([("capture", {"of": hold})])
    desk.decide(plan, "rejected")
    plan.result()
    blocked = desk.run.call("note", {"order": "o1"}, wait_s=0)
    assert (blocked.status, blocked.next_step) == (Status.BLOCKED, NextStep.END_TURN)


def test_a_child_waits_for_its_parent_s_pivot(desk: Desk) -> None:
    """What a sub-agent would commit waits, too; what it stages does not."""
    desk.staged("hold")
    child = desk.run.child("helper")
    blocked = child.call("note", {"order": "o1"}, wait_s=0)
    assert (blocked.status, blocked.next_step) == (Status.BLOCKED, NextStep.END_TURN)
    assert child.stage("draft", {"order": "o2"}, wait_s=0).status is Status.PENDING


def test_code_that_enqueues_is_refused_by_the_ledger(desk: Desk) -> None:
    """The rules are friendly, the database is the wall: `enqueue` before the pivot raises and says why."""
    desk.staged("hold")
    with psycopg.connect(desk.database.url("agent")) as conn, pytest.raises(NotAllowed, match="has staged") as raised:
        desk.cf.enqueue(conn, "note", {"order": "o1"}, tenant="acme", run="task", step="s", actor="a")
    assert "db grant" not in str(raised.value)


def test_staging_anew_needs_a_new_decision(desk: Desk) -> None:
    """A plan was decided over what stood staged: what is staged afterwards changes the digest, and puts the pivot ahead."""
    hold = desk.staged("hold")
    plan = desk.run.propose([("capture", {"of": hold})])
    seen = plan.digest
    desk.staged("draft")
    assert plan.digest != seen
    assert desk.decide(plan, digest=seen) == "changed"
    assert desk.decide(plan) == "approved"
    desk.world.settle()
    plan.result()
    desk.run.stage("draft", {"order": "o5"}, wait_s=0)
    assert desk.one("SELECT pivot FROM counterfoil.run")["pivot"] == "ahead"


# What another run of the tenant has under way


def test_an_effect_of_another_run_holds_a_call_back(desk: Desk, shop: Shop) -> None:
    """Two tools with one effect in the tenant exclude each other: the second waits, and goes on after the first."""
    first = desk.open("other").call("pay", {"order": "o1"}, wait_s=0)
    held = desk.run.call("pay_by_cheque", {"order": "o1"}, wait_s=0)
    assert (held.status, held.next_step, held.action_id) == (Status.BLOCKED, NextStep.WAIT, first.action_id)
    assert desk.run.call("pay_by_cheque", {"order": "o1"}, wait_s=0.1).status is Status.BLOCKED, "it has waited"
    assert desk.one("SELECT calls_count FROM counterfoil.run WHERE run = 'task'")["calls_count"] == 2
    desk.world.settle()
    assert desk.run.call("pay_by_cheque", {"order": "o1"}, wait_s=0).status is Status.PENDING
    desk.world.settle()
    assert shop.happened == ["pay", "pay_by_cheque"]


def test_enqueue_names_what_has_the_effect(desk: Desk) -> None:
    """Code gets an error with the action to wait for; the same step again is still its own action."""
    conn = psycopg.connect(desk.database.url("agent"), autocommit=True)
    names = {"tenant": "acme", "actor": "a", "step": "s"}
    first = desk.cf.enqueue(conn, "pay", {"order": "o1"}, run="one", **names)
    with pytest.raises(NotAllowed, match=first):
        desk.cf.enqueue(conn, "pay_by_cheque", {"order": "o1"}, run="two", **names)
    assert desk.cf.enqueue(conn, "pay", {"order": "o1"}, run="one", **names) == first
    desk.world.settle()
    assert desk.cf.enqueue(conn, "pay_by_cheque", {"order": "o1"}, run="two", **names) != first
    conn.close()


def test_an_inserted_row_whose_effect_is_taken(desk: Desk) -> None:
    """From another language the refusal is a code in the row, with the action that is in the way."""
    first = desk.open("one").call("pay", {"order": "o1"}, wait_s=0)
    with psycopg.connect(desk.database.url("agent")) as conn:
        conn.execute(
            "INSERT INTO counterfoil.intake (tenant, run, step, tool, arguments, actor)"
            """ VALUES ('acme', 'two', 's', 'pay_by_cheque', '{"order": "o1"}', 'a')"""
        )
    assert desk.world.intake.take() == 1
    row = desk.one("SELECT action_id, error_code FROM counterfoil.intake")
    assert row == {"action_id": first.action_id, "error_code": "effect_taken"}
    assert len(desk.rows("SELECT FROM counterfoil.action")) == 1


# What reviewers have edited


def asked(desk: Desk, amount_step: str | None = None) -> str:
    told = desk.run.call("ask", {"order": "o1"}, step=amount_step, wait_s=0)
    assert (told.status, told.suspend) == (Status.AWAITING_APPROVAL, True)
    assert told.proposal_id == f"P-{str(told.action_id)[4:16].upper()}"
    return str(told.action_id)


class Single:
    """The proposal of a single call, as `Desk` takes one."""

    def __init__(self, desk: Desk, action_id: str) -> None:
        self.id = f"P-{action_id[4:16].upper()}"
        self._desk = desk

    @property
    def digest(self) -> str:
        digest: str = self._desk.one("SELECT counterfoil.proposal_digest(%s) AS d", self.id)["d"]
        return digest


@pytest.mark.parametrize("step", [None, "question"])
def test_a_model_s_repeat_finds_what_the_reviewer_wrote(desk: Desk, shop: Shop, step: str | None) -> None:
    """Edited to another target: the model's own words still mean that action, while it waits and when it is done."""
    old = asked(desk, step)
    single: Any = Single(desk, old)
    new = desk.edit(single, old, {"order": "o2"})
    again = desk.run.call("ask", {"order": "o1"}, step=step, wait_s=0)
    assert (again.action_id, again.status, again.arguments) == (new, Status.AWAITING_APPROVAL, {"order": "o2"})
    assert desk.decide(single) == "approved"
    desk.world.settle()
    done = desk.run.call("ask", {"order": "o1"}, step=step, wait_s=0)
    assert (done.action_id, done.next_step, done.arguments) == (new, NextStep.EDITED_BY_REVIEWER, {"order": "o2"})
    assert shop.happened == ["ask"]


def test_a_call_that_waits_follows_the_reviewer(desk: Desk) -> None:
    """Whoever reads the old action's result, from Python or SQL, reads what stands for it now."""
    old = asked(desk)
    single: Any = Single(desk, old)
    new = desk.edit(single, old, {"order": "o2"})
    newest = desk.edit(single, new, {"order": "o3"})
    told = desk.cf.result(old)
    assert (told.action_id, told.revision, told.arguments) == (newest, 3, {"order": "o3"})
    assert desk.decide(single, "rejected", reason="not now") == "rejected"
    told = desk.cf.result(old)
    assert (told.code, told.value) == ("rejected_by_reviewer", {"reason": "not now"})
    row = desk.one("SELECT status, next_step, value, code FROM counterfoil.result(%s)", old)
    assert row == {
        "status": "cancelled",
        "next_step": "rejected_by_reviewer",
        "value": {"reason": "not now"},
        "code": "rejected_by_reviewer",
    }


def test_cancel_reaches_what_the_reviewer_wrote(desk: Desk, shop: Shop) -> None:
    """Whoever holds the old id withdraws what stands for it: nobody can approve it any more."""
    old = asked(desk)
    single: Any = Single(desk, old)
    desk.edit(single, old, {"order": "o2"})
    assert desk.cf.cancel(old, "customer withdrew").status is Status.CANCELLED
    assert desk.decide(single) == "decided"
    desk.world.settle()
    assert shop.happened == []


def test_a_request_that_is_repeated_after_an_edit(desk: Desk) -> None:
    """The same enqueue is no conflict: what it asked for was edited by a person; other arguments are one."""
    conn = psycopg.connect(desk.database.url("agent"), autocommit=True)
    names = {"tenant": "acme", "actor": "a", "step": "s", "run": "other"}
    old = desk.cf.enqueue(conn, "ask", {"order": "o1"}, **names)
    single: Any = Single(desk, old)
    new = desk.edit(single, old, {"order": "o2"})
    assert desk.cf.enqueue(conn, "ask", {"order": "o1"}, **names) == new
    assert desk.cf.enqueue(conn, "ask", {"order": "o2"}, **names) == new
    with pytest.raises(IntentConflict):
        desk.cf.enqueue(conn, "ask", {"order": "o3"}, **names)
    conn.close()


# Versions that the caller has seen


def test_a_version_that_the_caller_has_seen_is_recorded(desk: Desk, shop: Shop) -> None:
    """Given by `call`, `stage`, `enqueue` or a plan's step, nobody reads it first, and it decides at the effect."""
    first = desk.run.call("amend", {"order": "o1"}, resource_version="7", wait_s=0)
    with psycopg.connect(desk.database.url("agent")) as conn:
        names = {"tenant": "acme", "run": "other", "step": "s", "actor": "a"}
        desk.cf.enqueue(conn, "amend", {"order": "o2"}, resource_version="6", **names)
    read = "SELECT target, expected_resource_version AS version, state FROM counterfoil.action ORDER BY target"
    assert [tuple(row.values()) for row in desk.rows(read)] == [("o1", "7", "ready"), ("o2", "6", "ready")]
    desk.world.settle()
    desk.run.ack(desk.seen(str(first.action_id)))
    desk.run.stage("amend", {"order": "o3"}, resource_version="5", step="late", wait_s=0)
    desk.world.settle()
    assert [row["state"] for row in desk.rows(read)] == ["succeeded", "stale", "stale"]
    desk.run.propose([Step("amend", {"order": "o4"}, resource_version="7")])
    assert desk.rows(read)[-1] == {"target": "o4", "version": "7", "state": "awaiting_approval"}
    assert shop.happened == ["amend"]


def test_a_call_whose_version_is_still_to_be_read_is_pending(desk: Desk, shop: Shop) -> None:
    """It waits for a worker to read it, then goes on by itself."""
    told = desk.run.call("amend", {"order": "o1"}, wait_s=0)
    assert (told.status, told.next_step) == (Status.PENDING, NextStep.WAIT)
    assert desk.one("SELECT state FROM counterfoil.action")["state"] == "proposed"
    desk.world.settle()
    assert desk.cf.result(str(told.action_id)).status is Status.SUCCEEDED


@pytest.mark.parametrize(("tool", "version"), [("note", "7"), ("amend", ""), ("amend", "v" * 256)])
def test_a_version_is_code_s_mistake(desk: Desk, tool: str, version: str) -> None:
    """A model gives none, so a bad one is raised by `call`, too."""
    with pytest.raises(ArgumentError) as raised:
        desk.run.call(tool, {"order": "o1"}, resource_version=version, wait_s=0)
    assert raised.value.path == "resource_version"
