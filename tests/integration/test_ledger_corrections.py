"""The doors of corrections, against logins that may not and words that do not fit; and what SQL and Python both know."""

from __future__ import annotations

import hashlib
from contextlib import closing
from itertools import combinations
from typing import TYPE_CHECKING, Any

import psycopg
import pytest

from counterfoil.ledger import corrections
from counterfoil.ledger.corrections import Answer, Message
from counterfoil.ledger.errors import NotAllowed, NotFound
from counterfoil.ledger.keys import action_id
from counterfoil.ledger.unwind_steps import NOBODY, RANKS

if TYPE_CHECKING:
    from tests.integration.conftest import Rows

    from counterfoil.ledger.connection import Ledger

CALL = '{"arguments":{"order_id":"1182"},"tool":"tell"}'
DIGEST = hashlib.sha256(CALL.encode()).hexdigest()
ENDED = ("permanent_failure", "not_executed", "cancelled", "stale")


@pytest.fixture
def rows(shared_rows: Rows) -> Rows:
    """One database for the module: every test here looks at rows of its own."""
    return shared_rows


@pytest.fixture(scope="module")
def worker(shared_rows: Rows) -> Ledger:
    return shared_rows.ledger("worker")


@pytest.fixture(scope="module")
def operator(shared_rows: Rows) -> Ledger:
    return shared_rows.ledger("operator")


def letter(rows: Rows, run: str, state: str = "succeeded", **changes: Any) -> str:
    """A letter that customers have read, with a correction written down, of a run that is taken back."""
    given = {"compensation": None, "class": "irreversible", "correction": CALL, **changes}
    made = rows.build(state, run=run, **given)
    rows.owner.execute("UPDATE counterfoil.run SET state = 'unwinding' WHERE run = %s", (run,))
    return made


def queued(rows: Rows, worker: Ledger, run: str, **changes: Any) -> str:
    found = corrections.queue(worker, letter(rows, run, **changes), declared=False, by="w")
    assert found is not None
    return found


def message(run: str, step: str, revision: int = 1, **changes: Any) -> Message:
    arguments = '{"order_id":"1182"}'
    given: dict[str, Any] = {
        "action_id": action_id("acme", run, step, revision, "correct"),
        "tool": "tell",
        "tool_version": 1,
        "class_": "irreversible",
        "effect": "mail",
        "effect_scope": "run",
        "target": "1182",
        "provider": "mail",
        "account": "default",
        "queue": "cf-mail",
        "arguments": arguments,
        "arguments_sha256": hashlib.sha256(arguments.encode()).hexdigest(),
        "audience": ("customer",),
        "amount_minor": None,
        "currency": None,
        **changes,
    }
    return Message(**given)


def test_ranks_are_the_same_in_both(rows: Rows) -> None:
    """SQL ranks every mix of audiences as Python does, and both take the same for nobody."""
    names = (*RANKS, *NOBODY, "team")
    for size in range(len(names) + 1):
        for audience in combinations(names, size):
            expected = max((RANKS.get(name, 0) for name in audience), default=0)
            assert rows.one("SELECT counterfoil.rank_of(%s) AS r", list(audience))["r"] == expected, audience


@pytest.mark.parametrize(
    ("state", "changes", "declared", "expected"),
    [
        pytest.param("succeeded", {}, False, True, id="nothing takes it back"),
        pytest.param("succeeded", {"audience": ["agent"]}, True, False, id="nobody saw it"),
        pytest.param("succeeded", {"audience": []}, True, False, id="no audience"),
        pytest.param("succeeded", {"compensation": '{"arguments":{},"tool":"undo"}'}, True, False, id="has an undo"),
        pytest.param("compensated", {}, False, True, id="taken back, written down"),
        pytest.param("compensated", {"correction": None}, True, True, id="taken back, could not be written"),
        pytest.param("compensated", {"correction": None}, False, False, id="taken back, no correction"),
        pytest.param("compensated", {"audience": ["finance"]}, True, False, id="taken back, seen inside"),
        *(pytest.param(state, {}, True, False, id=state) for state in (*ENDED, "executing", "operator_review")),
    ],
)
def test_what_is_queued(
    rows: Rows, worker: Ledger, request: Any, state: str, changes: Any, declared: bool, expected: bool
) -> None:
    """Only what somebody saw and nothing takes back, or outsiders saw and was taken back; once."""
    about = letter(rows, f"q-{request.node.callspec.id}", state, **changes)
    first = corrections.queue(worker, about, declared=declared, by="w")
    assert (first is not None) == expected
    assert corrections.queue(worker, about, declared=declared, by="w2") == first
    count = rows.one("SELECT count(*) AS n FROM counterfoil.correction WHERE action_id = %s", about)["n"]
    assert count == int(expected)


def test_a_run_that_goes_on_queues_nothing(rows: Rows, worker: Ledger) -> None:
    """Without an unwind there is nothing to correct."""
    about = letter(rows, "goes-on")
    rows.owner.execute("UPDATE counterfoil.run SET state = 'open' WHERE run = 'goes-on'")
    assert corrections.queue(worker, about, declared=True, by="w") is None


@pytest.mark.parametrize(
    ("door", "arguments"),
    [
        ("edit_correction", "('%s', '{}', 'x', 'cli', NULL)"),
        ("dismiss_correction", "('%s', 'x', 'cli', NULL)"),
        ("queue_correction", "('%s', 'x', true)"),
    ],
)
def test_whose_doors_they_are(rows: Rows, worker: Ledger, door: str, arguments: str) -> None:
    """People decide, workers queue; nobody else, and nobody by hand."""
    name = queued(rows, worker, f"doors-{door}")
    owner = "worker" if door == "queue_correction" else "operator"
    for role in {"agent", "worker", "operator", "reader"} - {owner}:
        with pytest.raises(psycopg.errors.InsufficientPrivilege):
            rows.connect(role).execute(f"SELECT counterfoil.{door}{arguments % name}".encode())
    for role in ("agent", "worker", "operator", "reader"):
        for statement in (
            "UPDATE counterfoil.correction SET state = 'dismissed'",
            "DELETE FROM counterfoil.correction",
        ):
            with pytest.raises(psycopg.errors.InsufficientPrivilege):
                rows.connect(role).execute(statement.encode())


def test_another_tenant_s(rows: Rows, worker: Ledger) -> None:
    """An operator of other tenants neither sees nor decides it; an agent of the tenant reads no word of it."""
    name = queued(rows, worker, "tenants")
    rows.owner.execute("DELETE FROM counterfoil.principal WHERE role_name = 'cf_operator2'")
    rows.owner.execute("INSERT INTO counterfoil.principal (role_name, tenant_id) VALUES ('cf_operator2', 'globex')")
    with closing(rows.ledger("operator2")) as other:
        assert corrections.list_corrections(other) == []
        with pytest.raises(NotFound):
            corrections.find_correction(other, name)
        for ask in (
            lambda: corrections.dismiss(other, name, by="eve", channel="cli"),
            lambda: corrections.edit(other, name, call=CALL, by="eve", channel="cli"),
            lambda: corrections.send(other, name, message("tenants", "s"), digest=DIGEST, by="eve", channel="cli"),
        ):
            with pytest.raises(NotFound):
                ask()
    agent = rows.connect("agent")
    assert agent.execute("SELECT state FROM counterfoil.correction WHERE correction_id = %s", (name,)).fetchone()
    for column in ("call", "audience", "decided_by"):
        with pytest.raises(psycopg.errors.InsufficientPrivilege):
            agent.execute(f"SELECT {column} FROM counterfoil.correction".encode())
    with closing(rows.ledger("reader")) as reader, pytest.raises(NotAllowed):
        corrections.read_correction(reader, name)


def test_only_what_was_shown_is_sent(rows: Rows, worker: Ledger, operator: Ledger) -> None:
    """Another text, tool, place or digest than the one that was shown records nothing."""
    name = queued(rows, worker, "shown", step="s")
    other = '{"order_id":"9"}'
    attempts = {
        "arguments": message(
            "shown", "s", arguments=other, arguments_sha256=hashlib.sha256(other.encode()).hexdigest()
        ),
        "tool": message("shown", "s", tool="shout"),
        "revision": message("shown", "s", 2),
        "step": message("shown", "t"),
    }
    for what, made in attempts.items():
        answered = corrections.send(operator, name, made, digest=DIGEST, by="alice", channel="cli")
        assert answered.answer is Answer.CHANGED, what
    for digest in (DIGEST[:15], "", "0" * 64, DIGEST[1:]):
        answered = corrections.send(operator, name, message("shown", "s"), digest=digest, by="alice", channel="cli")
        assert answered.answer is Answer.CHANGED, digest
    assert rows.all("SELECT FROM counterfoil.action WHERE run = 'shown' AND phase = 'correct'") == []
    assert rows.all("SELECT FROM counterfoil.decision WHERE subject_id = %s", name) == []
    own = corrections.send(operator, name, message("shown", "s"), digest=DIGEST, by="BOT", channel="cli")
    assert own.answer is Answer.OWN
    sent = corrections.send(
        operator, name, message("shown", "s"), digest=DIGEST[:16].upper(), by="alice", channel="cli"
    )
    assert (sent.answer, sent.sent_as) == (Answer.SENT, message("shown", "s").action_id)
    again = corrections.send(operator, name, message("shown", "s"), digest=DIGEST, by="bob", channel="cli")
    assert (again.answer, again.by) == (Answer.DECIDED, "alice")


def test_a_message_is_no_other_action_s(rows: Rows, worker: Ledger, operator: Ledger) -> None:
    """Its approval is single and of exactly this message; the row says who, and it has one wake-up."""
    name = queued(rows, worker, "bound", step="s")
    sent = corrections.send(operator, name, message("bound", "s"), digest=DIGEST, by="alice", channel="cli")
    assert sent.sent_as is not None
    row = rows.read(sent.sent_as)
    assert (row["state"], row["phase"], row["needs_approval"], row["changed_by"]) == ("ready", "correct", True, "alice")
    assert rows.wake_ups(sent.sent_as) == [1]
    assert rows.history(sent.sent_as) == [(None, "awaiting_approval"), ("awaiting_approval", "ready")]
    approval = rows.one("SELECT * FROM counterfoil.approval WHERE action_id = %s", sent.sent_as)
    assert (approval["subject_id"], approval["people"], approval["consumed_at"]) == (name, 1, None)
    assert rows.claim(worker, sent.sent_as) is not None
    approval = rows.one("SELECT * FROM counterfoil.approval WHERE action_id = %s", sent.sent_as)
    assert approval["consumed_at"] is not None


@pytest.mark.parametrize("ended", ENDED)
def test_open_again_and_taken_again(rows: Rows, worker: Ledger, operator: Ledger, ended: str) -> None:
    """A message without an effect leaves it open; while that is doubted it is not; it is the next revision then."""
    run = f"again-{ended}"
    name = queued(rows, worker, run, step="s")
    sent = corrections.send(operator, name, message(run, "s"), digest=DIGEST, by="alice", channel="cli")

    def stands() -> tuple[str, str | None]:
        found = corrections.read_correction(operator, name)
        return found.state.value, found.decided_by

    rows.owner.execute(
        "UPDATE counterfoil.action SET state = 'executing', fence = gen_random_uuid(),"
        " lease_until = counterfoil.now() WHERE action_id = %s",
        (sent.sent_as,),
    )
    if ended in ("not_executed", "cancelled"):
        before = {"not_executed": ("uncertain", "reconciling"), "cancelled": ("retryable_failure",)}[ended]
    else:
        before = ()
    for state in (*before, ended):
        rows.owner.execute(
            "UPDATE counterfoil.action SET state = %(state)s, uncertain_since = counterfoil.now(),"
            " next_lookup_at = counterfoil.now(), ready_at = counterfoil.now(),"
            " lease_until = CASE WHEN %(state)s = 'reconciling' THEN counterfoil.now() END, changed_by = 'w'"
            " WHERE action_id = %(id)s",
            {"state": state, "id": sent.sent_as},
        )
    assert stands() == ("open", None)
    rows.owner.execute(
        "UPDATE counterfoil.action SET state = 'operator_review', changed_by = 'watch' WHERE action_id = %s",
        (sent.sent_as,),
    )
    assert stands() == ("sent", "watch")
    answered = corrections.send(operator, name, message(run, "s", 2), digest=DIGEST, by="alice", channel="cli")
    assert answered.answer is Answer.DECIDED
    rows.owner.execute(
        "UPDATE counterfoil.action SET state = 'permanent_failure', changed_by = 'bob' WHERE action_id = %s",
        (sent.sent_as,),
    )
    assert stands() == ("open", None)
    assert corrections.read_correction(operator, name).next_revision == 2
    answered = corrections.send(operator, name, message(run, "s", 2), digest=DIGEST, by="alice", channel="cli")
    assert answered.answer is Answer.SENT


def test_what_a_person_may_write(rows: Rows, worker: Ledger, operator: Ledger) -> None:
    """No door takes what is no JSON object; what is written is on record under its digest, and is what is sent."""
    name = queued(rows, worker, "written", step="s", correction=None)
    unwritten = corrections.send(operator, name, message("written", "s"), digest="0" * 16, by="alice", channel="cli")
    assert unwritten.answer is Answer.UNWRITTEN
    for call in ("", "[]", "tell them", '{"a":' + '"x"' * 1 + "", '{"a":"' + "x" * 66_000 + '"}'):
        with pytest.raises(psycopg.DatabaseError) as refused:
            corrections.edit(operator, name, call=call, by="alice", channel="cli")
        assert refused.value.sqlstate == "CF403", call[:20]
    assert corrections.edit(operator, name, call=CALL, by="alice", channel="cli").answer is Answer.EDITED
    [said] = corrections.read_correction(operator, name).decisions
    assert (said.verdict, said.digest, said.by_person, said.db_role) == ("edited", DIGEST, "alice", "cf_operator")
    sent = corrections.send(operator, name, message("written", "s"), digest=DIGEST, by="alice", channel="cli")
    assert sent.answer is Answer.SENT
    late = corrections.edit(operator, name, call=CALL, by="bob", channel="cli")
    assert (late.answer, late.by) == (Answer.DECIDED, "alice")
