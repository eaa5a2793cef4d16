"""The doors of people who move actions in review on: who may, in which state, on which evidence, and that all is answered."""

from __future__ import annotations

import uuid
from typing import TYPE_CHECKING, Any

import psycopg
import pytest

from counterfoil.ledger import claims, reviews, sweeps
from counterfoil.ledger.connection import Ledger
from counterfoil.ledger.errors import NotFound
from counterfoil.ledger.states import State
from counterfoil.ledger.verdicts import UncertainAction

if TYPE_CHECKING:
    from tests.integration.conftest import Rows

ASK = "SELECT answer, state, review_id FROM counterfoil.ask_provider(%s, %s, %s, 'alice', 'test', 'looked')"
GIVE_UP = "SELECT answer, state FROM counterfoil.give_up(%s, 'alice', 'test', 'looked', %s)"
ATTEMPTS = {
    "none": [],
    "let go": ["let_go", "not_sent"],
    "refused": ["rejected", "let_go", "rejected"],
    "unknown": ["rejected", "uncertain"],
    "no answer": [None],
    "refused after unknown": ["uncertain", "rejected"],
    "late success": ["uncertain", "succeeded"],
}
SENT = {"none": "nothing", "let go": "nothing", "refused": "refused", "late success": "happened"}


@pytest.fixture
def rows(shared_rows: Rows) -> Rows:
    """One database for the module: every test here looks at rows of its own."""
    return shared_rows


@pytest.fixture(scope="module")
def operator(shared_rows: Rows) -> psycopg.Connection[Any]:
    return shared_rows.connect("operator")


@pytest.fixture(scope="module")
def ledger(shared_rows: Rows) -> Ledger:
    return shared_rows.ledger()


def claimed_by(rows: Rows, ledger: Ledger, action_id: str, **changes: Any) -> UncertainAction:
    """The row as the reconciler claims it, after the sweep of leases."""
    assert action_id in sweeps.sweep_lapsed_leases(ledger, by="sweep")
    [claimed] = [c for c in rows.look(ledger, rows.read(action_id)["tool"], **changes) if c.action_id == action_id]
    return claimed


def in_review(rows: Rows, attempts: str = "no answer", **columns: Any) -> str:
    """A row in review, with these attempts."""
    outcomes = ATTEMPTS[attempts]
    counted = sum(outcome not in ("let_go", "not_sent") for outcome in outcomes)
    in_doubt = any(outcome in (None, "uncertain") for outcome in outcomes)
    action_id = rows.build("operator_review", **{"attempt_count": counted, "in_doubt": in_doubt, **columns})
    for number, outcome in enumerate(outcomes, 1):
        rows.owner.execute(
            "INSERT INTO counterfoil.attempt (attempt_id, action_id, tenant, number, worker, outcome, receipt)"
            " VALUES (%s, %s, 'acme', %s, 'w', %s, %s)",
            (uuid.uuid4(), action_id, number, outcome, "pi_late" if outcome == "succeeded" else None),
        )
    return action_id


def ask(connection: psycopg.Connection[Any], action_id: str, verb: str = "ask_again") -> Any:
    row = connection.execute(ASK.encode(), (action_id, verb, "pi_9")).fetchone()
    return None if row is None else (row["answer"], row["state"])


def give_up(connection: psycopg.Connection[Any], action_id: str, *, as_happened: bool = False) -> Any:
    row = connection.execute(GIVE_UP.encode(), (action_id, as_happened)).fetchone()
    return None if row is None else (row["answer"], row["state"])


@pytest.mark.parametrize("role", ["agent", "worker", "reader"])
def test_only_operators_come_in(rows: Rows, role: str) -> None:
    """No other login may call a door, write a request or answer one."""
    action_id, login = in_review(rows), rows.connect(role)
    for statement in (
        f"SELECT * FROM counterfoil.ask_provider('{action_id}', 'ask_again', NULL, 'bot', 'x', NULL)",
        f"SELECT * FROM counterfoil.give_up('{action_id}', 'bot', 'x', 'y', true)",
        f"INSERT INTO counterfoil.review (action_id, tenant, verb, by_person, channel)"
        f" VALUES ('{action_id}', 'acme', 'ask_again', 'bot', 'x')",
        "UPDATE counterfoil.review SET answer = 'succeeded', answered_at = counterfoil.now()",
    ):
        with pytest.raises(psycopg.errors.InsufficientPrivilege):
            login.execute(statement.encode())
    assert rows.read(action_id)["state"] == "operator_review"


def test_another_tenant_s_operator(rows: Rows) -> None:
    """Whoever does not serve the action's tenant is told what one is told about an action that does not exist."""
    rows.owner.execute("UPDATE counterfoil.principal SET tenant_id = 'globex' WHERE role_name = 'cf_operator2'")
    action_id, stranger = in_review(rows), rows.connect("operator2")
    for asked in (action_id, "act_" + "z" * 26):
        assert ask(stranger, asked) is None
        assert give_up(stranger, asked, as_happened=True) is None
        with pytest.raises(NotFound):
            reviews.give_up(rows.ledger("operator2"), asked, by="x", channel="x", reason="x", as_happened=True)
    assert rows.read(action_id)["state"] == "operator_review"


@pytest.mark.parametrize("state", sorted(set(State) - {State.OPERATOR_REVIEW}))
def test_in_no_other_state(rows: Rows, operator: psycopg.Connection[Any], state: str) -> None:
    """A door leaves every row alone that is not in review, and tells its state."""
    action_id = rows.build(state)
    for verb in ("happened", "not_happened", "ask_again"):
        assert ask(operator, action_id, verb) == ("not_in_review", state)
    for as_happened in (True, False):
        assert give_up(operator, action_id, as_happened=as_happened) == ("not_in_review", state)
    assert rows.read(action_id)["state"] == state
    assert rows.all("SELECT FROM counterfoil.review WHERE action_id = %s", action_id) == []


@pytest.mark.parametrize("verb", ["happened", "not_happened", "ask_again"])
@pytest.mark.parametrize("no_resend", [True, False])
def test_a_request(rows: Rows, operator: psycopg.Connection[Any], ledger: Ledger, verb: str, no_resend: bool) -> None:
    """It puts the row on the way back to the look-ups, at once, on record; a person's word forbids a resend for ever."""
    action_id = in_review(rows, no_resend=no_resend, lookup_count=30, last_error_code="many_found")
    assert ask(operator, action_id, verb) == ("asked", "reconciling")
    row = rows.read(action_id)
    assert row["no_resend"] is (no_resend or verb != "ask_again")
    assert (row["in_doubt"], row["last_error_code"]) == (True, "many_found")
    claimed = claimed_by(rows, ledger, action_id, uncertain_after_s=1e6)
    assert (claimed.asked, claimed.asked_receipt, claimed.asked_by) == (
        verb,
        "pi_9" if verb == "happened" else None,
        "alice",
    )
    assert rows.verdict("resend", ledger, claimed) is (verb == "ask_again" and not no_resend)
    moved = rows.one(
        "SELECT changed_by, db_role, reason, evidence FROM counterfoil.history"
        " WHERE action_id = %s AND from_state = 'operator_review'",
        action_id,
    )
    assert (moved["changed_by"], moved["db_role"], moved["reason"]) == ("alice", "cf_operator", verb.replace("_", " "))
    assert "looked" in moved["evidence"]
    [request] = rows.all("SELECT * FROM counterfoil.review WHERE action_id = %s", action_id)
    assert (request["by_person"], request["channel"], request["db_role"], request["reason"]) == (
        *("alice", "test", "cf_operator", "looked"),
    )


def test_a_key_that_is_known_with_other_parameters(rows: Rows, operator: psycopg.Connection[Any]) -> None:
    """The one reason for a review that must outlast later ones: an earlier request exists, so nothing is sent again."""
    action_id = in_review(rows, last_error_code="idempotency_mismatch")
    assert ask(operator, action_id, "ask_again") == ("asked", "reconciling")
    assert rows.read(action_id)["no_resend"]


@pytest.mark.parametrize("attempts", ATTEMPTS)
@pytest.mark.parametrize("code", [None, "no_lookup", "absent", "mismatch", "many_found"])
@pytest.mark.parametrize("asked_before", [True, False])
def test_giving_up_takes_evidence(
    rows: Rows, operator: psycopg.Connection[Any], attempts: str, code: str | None, asked_before: bool
) -> None:
    """Failed only where every request was refused or never left and nothing was found, or where absence was earned; a
    recorded success is never given up; a request that came to nothing in between changes none of that."""
    changes = {"in_doubt": True} if asked_before else {}
    action_id = in_review(rows, attempts, last_error_code=code, **changes)
    sent = SENT.get(attempts, "unknown")
    backed = code not in ("mismatch", "many_found") if sent in ("nothing", "refused") else code == "absent"
    backed = backed and sent != "happened"
    unsent = sent == "nothing" and not asked_before
    expected = "permanent_failure" if backed else "nothing_sent" if unsent else "unverified_only"
    answer = give_up(operator, action_id)
    assert answer == (expected, "permanent_failure" if backed else "operator_review")
    row = rows.read(action_id)
    if backed:
        assert (row["last_error_code"], row["in_doubt"], row["receipt"]) == ("given_up", False, None)
        assert rows.one("SELECT counterfoil.decided_by_person(%s) AS x", action_id)["x"]
        return
    assert (row["state"], row["last_error_code"]) == ("operator_review", code)
    if unsent:
        assert give_up(operator, action_id, as_happened=True) == ("nothing_sent", "operator_review")
        return
    assert give_up(operator, action_id, as_happened=True) == ("succeeded", "succeeded")
    row = rows.read(action_id)
    assert (row["receipt"], row["in_doubt"]) == ("pi_late" if sent == "happened" else "unverified", False)
    assert row["result"] == "{}"
    assert ("unverified: alice says" in row["change_reason"]) is (sent != "happened")


def test_nothing_was_sent(rows: Rows, operator: psycopg.Connection[Any]) -> None:
    """Of what never left nobody is asked: it cannot have happened, and that it did not is settled on the spot."""
    for attempts in ("none", "let go"):
        action_id = in_review(rows, attempts, last_error_code="policy_mismatch")
        assert ask(operator, action_id, "happened") == ("nothing_sent", "operator_review")
        assert ask(operator, action_id, "ask_again") == ("nothing_sent", "operator_review")
        assert ask(operator, action_id, "not_happened") == ("not_executed", "not_executed")
        [request] = rows.all("SELECT answer FROM counterfoil.review WHERE action_id = %s", action_id)
        assert request["answer"] == "not_executed"
    asked = in_review(rows, "refused")
    assert ask(operator, asked, "not_happened") == ("asked", "reconciling")


WAYS_OUT = ("succeeded", "failed", "not_executed", "resend", "person", "back_to_review")


@pytest.mark.parametrize("verb", ["happened", "not_happened", "ask_again"])
@pytest.mark.parametrize("way", [*WAYS_OUT, "ask_later", "late_success", "orphaned"])
def test_every_way_out_answers(
    rows: Rows, operator: psycopg.Connection[Any], ledger: Ledger, verb: str, way: str
) -> None:
    """Whatever ends the look-ups answers the request in the same statement; what only asks later leaves it open."""
    action_id = in_review(rows)
    ask(operator, action_id, verb)
    if way == "orphaned":
        sweeps.sweep_lapsed_leases(ledger, by="sweep")
        moved = action_id in sweeps.hand_orphans_to_person(ledger, known=[], older_s=0, by="b")
    elif way == "late_success":
        late: Any = claims.ClaimedAction.__new__(claims.ClaimedAction)
        object.__setattr__(late, "action_id", action_id)
        object.__setattr__(late, "fence", uuid.uuid4())
        became = claims.apply_late_success(ledger, late, receipt="pi_1", result="{}", evidence=None, worker="w")
        moved = became == "settled"
    else:
        moved = rows.verdict(way, ledger, claimed_by(rows, ledger, action_id))
    assert moved is (way != "resend" or verb == "ask_again")
    [request] = rows.all("SELECT answer, answered_at FROM counterfoil.review WHERE action_id = %s", action_id)
    done = "found" if verb == "not_happened" else "succeeded"
    answers = dict.fromkeys(("succeeded", "late_success"), done) | {
        "failed": "permanent_failure",
        "not_executed": "not_executed",
        "resend": "ready" if moved else None,
        "person": "r",
        "back_to_review": "unknown",
        "ask_later": None,
        "orphaned": "tool_unknown",
    }
    assert request["answer"] == answers[way]
    assert (request["answered_at"] is None) is (answers[way] is None)
    said_so = way == "not_executed" and verb == "not_happened"
    assert rows.one("SELECT counterfoil.decided_by_person(%s) AS x", action_id)["x"] is said_so
    if answers[way] == "unknown":
        assert ask(operator, action_id, verb) == ("asked", "reconciling"), "once it is answered, the next one may ask"


def test_it_s_a_person_s_decision_for_every_login(
    rows: Rows, operator: psycopg.Connection[Any], ledger: Ledger
) -> None:
    """Agents and readers, who may not read requests, see all the same that a person has decided."""
    action_id = in_review(rows)
    ask(operator, action_id, "not_happened")
    assert rows.verdict("not_executed", ledger, claimed_by(rows, ledger, action_id))
    query = "SELECT counterfoil.decided_by_person(%s) AS x"
    for role, sees in {"agent": True, "agent2": False, "reader": True, "worker": True, "operator": True}.items():
        row = rows.connect(role).execute(query.encode(), (action_id,)).fetchone()
        assert row is not None
        assert row["x"] is sees, role
