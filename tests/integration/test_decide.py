"""The doors through which people decide: who may, what is refused, and that nobody gets around them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import psycopg
import pytest

from counterfoil.ledger import proposals as doors
from counterfoil.ledger.errors import NotAllowed, NotFound
from counterfoil.ledger.proposals import Answer, ProposalState

if TYPE_CHECKING:
    from tests.integration.conftest import Rows

ROLES = ("agent", "worker", "operator", "reader")
MOVE = "UPDATE counterfoil.action SET state = 'ready', ready_at = counterfoil.now() WHERE action_id = %(a)s"
DECIDE = "SELECT counterfoil.decide(%(p)s, 'approved', counterfoil.proposal_digest(%(p)s), 'alice', 'cli')"


@pytest.fixture
def rows(shared_rows: Rows) -> Rows:
    """One database for the module: every test here looks at rows of its own."""
    return shared_rows


@pytest.fixture(scope="module")
def logins(shared_rows: Rows) -> dict[str, psycopg.Connection[Any]]:
    """A connection for each role; agent acts for acme and globex, agent2 for globex alone."""
    return {role: shared_rows.connect(role) for role in (*ROLES, "agent2")}


def sqlstate(connection: psycopg.Connection[Any], query: str, params: Any = None) -> str | None:
    """None when the statement is accepted (and undone), else the SQLSTATE of its refusal."""
    try:
        with connection.transaction(force_rollback=True):
            connection.execute(query.encode(), params)
    except psycopg.Error as error:
        return error.sqlstate
    return None


def waiting(rows: Rows, run: str, **changes: object) -> tuple[str, str]:
    """An action that waits, and its proposal."""
    action_id = rows.propose(run=run, needs_approval=True, **changes)["action_id"]
    return action_id, rows.read(action_id)["proposal_id"]


def decide(rows: Rows, proposal: str, verdict: Any = "approved", **changes: Any) -> doors.Decided:
    ledger = rows.ledger("operator")
    digest = doors.read_proposal(ledger, proposal).digest
    return doors.decide(
        ledger, proposal, **{"verdict": verdict, "digest": digest, "by": "alice", "channel": "cli", **changes}
    )


FORGED = (
    "INSERT INTO counterfoil.approval (subject_id, action_id, tenant, digest, people, expires_at)"
    " VALUES (%(p)s, %(a)s, 'acme', repeat('0', 64), 1, counterfoil.now() + interval '1 day')",
    "INSERT INTO counterfoil.decision (subject_id, tenant, verdict, by_person, channel)"
    " VALUES (%(p)s, 'acme', 'approved', 'alice', 'cli')",
    "INSERT INTO counterfoil.proposal (proposal_id, tenant, run, actor, is_plan, expires_at)"
    " VALUES ('P-AAAAAAAAAAAA', 'acme', 'forged', 'bot', false, counterfoil.now())",
    "UPDATE counterfoil.proposal SET state = 'approved' WHERE proposal_id = %(p)s",
    "UPDATE counterfoil.proposal SET people = 1, expires_at = expires_at + interval '1 day' WHERE proposal_id = %(p)s",
    "UPDATE counterfoil.approval SET consumed_at = NULL",
    "UPDATE counterfoil.decision SET by_person = 'bob'",
    "DELETE FROM counterfoil.decision",
    "UPDATE counterfoil.action SET approval_id = 'apr_1' WHERE action_id = %(a)s",
    "INSERT INTO counterfoil.history (action_id, tenant, run, to_state, generation, attempt_count, db_role)"
    " VALUES (%(a)s, 'acme', 'forged', 'succeeded', 1, 1, 'w')",
    "UPDATE counterfoil.history SET changed_by = 'alice'",
)
"""Statements that would make it look as if a person had decided."""


@pytest.mark.parametrize("role", ROLES)
@pytest.mark.parametrize("statement", FORGED)
def test_nobody_forges_what_people_decide(
    rows: Rows, logins: dict[str, psycopg.Connection[Any]], role: str, statement: str
) -> None:
    """No login writes an approval, a decision, a proposal or history, or frees a waiting row, by a statement of its own."""
    action_id, proposal = waiting(rows, f"forged-{role}")
    assert sqlstate(logins[role], statement, {"a": action_id, "p": proposal}) == "42501"
    assert rows.read(action_id)["state"] == "awaiting_approval"


def test_only_operators_decide(rows: Rows, logins: dict[str, psycopg.Connection[Any]]) -> None:
    """Neither agent, worker nor reader reaches a door of people's, and a worker cannot free a waiting row by hand."""
    action_id, proposal = waiting(rows, "doors")
    given = {"a": action_id, "p": proposal}
    edit = f"SELECT counterfoil.edit_step(%(a)s, {', '.join(['NULL'] * 14)})"
    for role in ("agent", "worker", "reader"):
        assert sqlstate(logins[role], DECIDE, given) == "42501", role
        assert sqlstate(logins[role], edit, given) == "42501", role
        with pytest.raises(NotAllowed):
            doors.decide(
                rows.ledger(role), proposal, verdict="approved", digest="0" * 64, by="alice", channel="cli"
            )  # fmt: skip
    assert sqlstate(logins["worker"], MOVE, given) == "CF403"
    assert sqlstate(logins["agent"], "SELECT counterfoil.expire_proposals('me', 10)") == "42501"
    assert rows.read(action_id)["state"] == "awaiting_approval"


def test_decisions_are_append_only_for_the_owner_too(rows: Rows) -> None:
    """What people said is neither changed nor taken away, and an approval is never deleted, by the superuser either."""
    _, proposal = waiting(rows, "kept")
    assert decide(rows, proposal).answer is Answer.APPROVED
    for statement in (
        "UPDATE counterfoil.decision SET by_person = 'bob'",
        "DELETE FROM counterfoil.decision",
        "TRUNCATE counterfoil.decision",
        "DELETE FROM counterfoil.approval",
        "TRUNCATE counterfoil.approval",
    ):
        assert sqlstate(rows.owner, statement) == "CF403", statement


def test_another_tenants_proposal_is_not_there(rows: Rows, logins: dict[str, psycopg.Connection[Any]]) -> None:
    """A login of another tenant sees no proposal and no decision, and its operator cannot decide: not found."""
    action_id, proposal = waiting(rows, "theirs")
    for name in ("proposal", "action"):
        seen = logins["agent2"].execute(f"SELECT tenant FROM counterfoil.{name} WHERE tenant = 'acme'".encode())
        assert seen.fetchall() == [], name
    rows.owner.execute("UPDATE counterfoil.principal SET tenant_id = 'globex' WHERE role_name = 'cf_operator2'")
    theirs = rows.ledger("operator2")
    assert doors.list_proposals(theirs, state=None) == []
    with pytest.raises(NotFound):
        doors.read_proposal(theirs, proposal)
    for verdict in ("approved", "rejected"):
        with pytest.raises(NotFound):
            doors.decide(theirs, proposal, verdict=verdict, digest="0" * 64, by="eve", channel="cli")  # type: ignore[arg-type]
    assert rows.read(action_id)["state"] == "awaiting_approval"
    rows.owner.execute("UPDATE counterfoil.principal SET tenant_id = '*' WHERE role_name = 'cf_operator2'")


@pytest.mark.parametrize("digest", [None, "", "0123456789abcde", "0" * 16, "0" * 64, "%", "g" * 16])
def test_an_approval_repeats_the_digest(rows: Rows, digest: str | None) -> None:
    """None, one too short, another one: `changed`, and nothing is decided; any case of letters will do."""
    action_id, proposal = waiting(rows, f"digest-{digest}")
    assert decide(rows, proposal, digest=digest).answer is Answer.CHANGED
    assert rows.all("SELECT FROM counterfoil.decision WHERE subject_id = %s", proposal) == []
    whole = doors.read_proposal(rows.ledger("operator"), proposal).digest
    assert decide(rows, proposal, digest=whole[:16].upper()).answer is Answer.APPROVED
    assert rows.read(action_id)["state"] == "ready"


def test_a_decision_is_on_record(rows: Rows) -> None:
    """Who, when, why, by which channel and login, over which digest; the action's history names approval and person."""
    action_id, proposal = waiting(rows, "recorded")
    digest = doors.read_proposal(rows.ledger("operator"), proposal).digest
    decided = decide(rows, proposal, reason="fine", channel="console")
    assert (decided.by, decided.at is not None) == ("alice", True)
    [said] = doors.read_proposal(rows.ledger("operator"), proposal).decisions
    assert (said.verdict, said.digest, said.by_person, said.db_role) == ("approved", digest, "alice", "cf_operator")
    assert (said.channel, said.reason) == ("console", "fine")
    moved = rows.one("SELECT * FROM counterfoil.history WHERE action_id = %s AND to_state = 'ready'", action_id)
    assert (moved["changed_by"], moved["reason"], moved["evidence"]) == ("alice", "fine", "console")
    assert moved["approval_id"] == rows.read(action_id)["approval_id"] is not None
    assert moved["db_role"] == "cf_operator"


def test_a_rejection_needs_no_digest_and_sends_nothing(rows: Rows) -> None:
    """Saying no is safe over anything; over another digest than the given one it is refused."""
    action_id, proposal = waiting(rows, "no")
    assert decide(rows, proposal, "rejected", digest="f" * 16).answer is Answer.CHANGED
    assert decide(rows, proposal, "rejected", digest=None, reason="wrong").answer is Answer.REJECTED
    row = rows.read(action_id)
    assert (row["state"], row["last_error_code"], row["change_reason"]) == (
        "cancelled",
        "rejected_by_reviewer",
        "wrong",
    )
    late = decide(rows, proposal)
    assert (late.answer, late.by) == (Answer.DECIDED, "alice")


def test_a_run_that_is_taken_back_is_not_approved(rows: Rows) -> None:
    """While the run unwinds nothing more of it is approved."""
    _, proposal = waiting(rows, "back")
    rows.owner.execute("UPDATE counterfoil.run SET state = 'unwinding' WHERE run = 'back'")
    assert decide(rows, proposal).answer is Answer.UNWINDING


def test_list_and_prefix(rows: Rows) -> None:
    """Open ones by their expiry; an id by its first signs, if they are its alone."""
    late = waiting(rows, "listed", expiry_s=900.0)[1]
    soon = waiting(rows, "listed", expiry_s=60.0)[1]
    ledger = rows.ledger("reader")
    found = doors.list_proposals(ledger, run="listed")
    assert [each.proposal_id for each in found] == [soon, late]
    assert all(each.waits for each in found)
    assert doors.list_proposals(ledger, run="listed", state=ProposalState.APPROVED) == []
    assert doors.find_proposal(ledger, soon[:10]) == soon
    with pytest.raises(NotFound, match="several proposals begin"):
        doors.find_proposal(ledger, "P-")
    with pytest.raises(NotFound, match="no proposal"):
        doors.find_proposal(ledger, "P-1111")
