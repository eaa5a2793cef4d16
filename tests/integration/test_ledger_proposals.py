"""What is recorded when many propose at once, again, differently, or in place of an earlier revision."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

import psycopg
import pytest

from counterfoil.ledger import claims
from counterfoil.ledger.connection import Ledger

if TYPE_CHECKING:
    from tests.integration.conftest import Rows

AtOnce = Callable[[Sequence[Callable[[], Any]]], list[Any]]

RACERS = 20


@pytest.fixture
def rows(shared_rows: Rows) -> Rows:
    """One database for the module: every test here looks at rows of its own."""
    return shared_rows


@pytest.fixture(scope="module")
def ledgers(shared_rows: Rows) -> list[Ledger]:
    """Workers' connections, one for each racer, already open."""
    made = [shared_rows.ledger() for _ in range(RACERS)]
    for ledger in made:
        claims.beat_heart(ledger, worker="w", queues=["cf-stripe"], claimed=False)
    return made


def test_twenty_proposals_of_one_step(rows: Rows, at_once: AtOnce) -> None:
    """Twenty proposals of the same step: one row, twenty equal answers, one wake-up, no deadlock."""
    agents = [rows.connect("agent") for _ in range(RACERS)]
    for number in range(3):
        answers = at_once(
            [partial(rows.propose, agent, run=f"race{number}", step="pay", once_key=f"k{number}") for agent in agents]
        )
        assert sum(answer["created"] for answer in answers) == 1
        assert len({(a["action_id"], a["tool"], a["arguments_sha256"], a["state"]) for a in answers}) == 1
        assert {answer["found_by"] for answer in answers} == {None, "step"}
        assert rows.wake_ups(answers[0]["action_id"]) == [1]
        assert rows.history(answers[0]["action_id"]) == [(None, "ready")]


def test_twenty_steps_with_one_once_key(rows: Rows, at_once: AtOnce) -> None:
    """The same once-key from twenty runs at once: one action, which all the others are told."""
    agents = [rows.connect("agent") for _ in range(RACERS)]
    answers = at_once(
        [
            partial(rows.propose, agent, run=f"once{n}", step="ship", once_key="order-1")
            for n, agent in enumerate(agents)
        ]
    )
    assert [answer["found_by"] for answer in answers].count("once") == RACERS - 1
    assert len({answer["action_id"] for answer in answers}) == 1


def test_same_step_with_other_arguments(rows: Rows) -> None:
    """The recorded intent wins: the answer is the recorded hash and tool, and nothing of the row has changed."""
    first = rows.propose(run="other", step="pay")
    before = rows.read(first["action_id"])
    again = rows.propose(run="other", step="pay", arguments='{"order_id":"9"}', tool="stripe_refund", ref="r1")
    assert (again["created"], again["found_by"]) == (False, "step")
    assert (again["arguments_sha256"], again["tool"]) == (before["arguments_sha256"], before["tool"])
    assert rows.read(first["action_id"]) == before
    assert rows.all("SELECT FROM counterfoil.step_ref WHERE run = 'other'") == []


@pytest.mark.case("C7")
def test_rolled_back_caller_leaves_nothing(rows: Rows) -> None:
    """The caller's transaction decides: rolled back, neither action nor wake-up nor history; committed, all of them."""
    agent = rows.connect("agent")
    with agent.transaction(force_rollback=True):
        action_id = rows.propose(agent, run="c7", step="pay")["action_id"]
    assert rows.all("SELECT FROM counterfoil.action WHERE action_id = %s", action_id) == []
    assert (rows.wake_ups(action_id), rows.history(action_id)) == ([], [])
    with agent.transaction():
        assert rows.propose(agent, run="c7", step="pay")["action_id"] == action_id
    assert (rows.wake_ups(action_id), rows.history(action_id)) == ([1], [(None, "ready")])


@pytest.mark.case("C1")
def test_wake_up_of_a_late_commit_is_found(rows: Rows) -> None:
    """A transaction that took its outbox id first and committed last loses nothing: rows are found by what is due."""
    slow, fast = rows.connect("agent"), rows.connect("agent")
    slow.autocommit = False
    late = rows.propose(slow, run="c1", step="slow")["action_id"]
    early = rows.propose(fast, run="c1b", step="fast")["action_id"]
    due = "SELECT action_id FROM counterfoil.outbox WHERE not_before <= counterfoil.now() ORDER BY outbox_id"
    seen = [row["action_id"] for row in rows.all(due)]
    assert early in seen
    assert late not in seen
    slow.commit()
    seen = [row["action_id"] for row in rows.all(due)]
    assert seen.index(late) < seen.index(early)


def test_repeatable_read_caller_is_told_to_retry(rows: Rows) -> None:
    """A caller whose snapshot is older than the run, the step or the once-key gets 40001, and the truth when it retries."""
    old = rows.connect("agent")
    old.isolation_level = psycopg.IsolationLevel.REPEATABLE_READ
    rows.propose(run="rr", step="first")
    taken: dict[str, dict[str, Any]] = {
        "run": {"run": "rr-new", "step": "pay"},
        "step": {"run": "rr", "step": "pay"},
        "once": {"run": "rr", "step": "ship", "once_key": "rr-1"},
    }
    asked = {**taken, "once": {"run": "rr", "step": "elsewhere", "once_key": "rr-1"}}
    for what in taken:
        with old.transaction(force_rollback=True):
            old.execute("SELECT count(*) FROM counterfoil.action")  # takes the snapshot
            made = rows.propose(**taken[what])
            assert made["created"], what
            with pytest.raises(psycopg.errors.SerializationFailure):
                rows.propose(old, **asked[what])
        with old.transaction():
            again = rows.propose(old, **asked[what])
        assert (again["created"], again["action_id"]) == (False, made["action_id"]), what


def test_supersede(rows: Rows) -> None:
    """A new revision puts aside one that did nothing: withdrawn if it waited, kept as it is if it had ended."""
    for state, then in (("awaiting_approval", "cancelled"), ("proposed", "cancelled"), ("stale", "stale")):
        old = rows.build(state, run="sup", step=state, once_key=f"sup-{state}", once_held=state != "stale")
        made = rows.propose(run="sup", step=state, revision=2, supersedes=old, once_key=f"sup-{state}")
        assert (made["created"], made["state"]) == (True, "ready")
        row = rows.read(old)
        assert (row["state"], row["superseded_by"]) == (then, made["action_id"])
    assert rows.read(old)["once_held"] is False


def test_supersede_of_what_may_have_happened(rows: Rows) -> None:
    """A revision that may have done something stays, and is the answer."""
    for state in (
        "ready",
        "executing",
        "retryable_failure",
        "uncertain",
        "reconciling",
        "operator_review",
        "succeeded",
    ):
        old = rows.build(state, run="sup2", step=state)
        before = rows.read(old)
        answer = rows.propose(run="sup2", step=state, revision=2, supersedes=old)
        assert (answer["created"], answer["action_id"]) == (False, old)
        assert rows.read(old) == before


def test_supersede_against_approval(rows: Rows, at_once: AtOnce) -> None:
    """A reviewer approves while code supersedes: one of the two revisions can run, never both."""
    operator = rows.connect("operator")
    approve = """SELECT d.answer FROM counterfoil.decide(
                   %(p)s, 'approved', counterfoil.proposal_digest(%(p)s), 'alice', 'cli') AS d"""
    for number in range(5):
        step = f"n{number}"
        old = rows.propose(run="sup3", step=step, needs_approval=True)["action_id"]
        proposal = rows.read(old)["proposal_id"]
        made, decided = at_once(
            [
                partial(rows.propose, run="sup3", step=step, revision=2, supersedes=old, arguments="{}"),
                lambda proposal=proposal: operator.execute(approve.encode(), {"p": proposal}).fetchone(),
            ]
        )
        states = {
            row["revision"]: row["state"]
            for row in rows.all("SELECT * FROM counterfoil.action WHERE run = 'sup3' AND step = %s", step)
        }
        assert states == ({1: "cancelled", 2: "ready"} if made["created"] else {1: "ready"})
        assert decided == {"answer": "decided" if made["created"] else "approved"}


def test_once_key_is_free_after_an_end_and_taken_again_when_found(rows: Rows) -> None:
    """An action that ended without effect frees its once-key; found after all, it is the answer again, superseded or not."""
    old = rows.build("ready", run="once-a", step="ship", once_key="order-7")
    assert rows.propose(run="once-b", step="ship", once_key="order-7")["action_id"] == old
    rows.owner.execute("UPDATE counterfoil.action SET state = 'cancelled' WHERE action_id = %s", (old,))
    second = rows.propose(run="once-b", step="ship", once_key="order-7")
    assert second["created"]
    rows.owner.execute("UPDATE counterfoil.action SET state = 'cancelled' WHERE action_id = %s", (second["action_id"],))
    rows.owner.execute("UPDATE counterfoil.action SET state = 'operator_review' WHERE action_id = %s", (old,))
    for run, step in (("once-c", "ship"), ("once-d", "ship")):
        answer = rows.propose(run=run, step=step, once_key="order-7")
        assert (answer["created"], answer["found_by"], answer["action_id"]) == (False, "once", old)
    rows.owner.execute("UPDATE counterfoil.action SET state = 'succeeded', receipt = 'x' WHERE action_id = %s", (old,))
    revised = rows.propose(run="once-b", step="ship", revision=2, supersedes=second["action_id"], once_key="order-7")
    assert (revised["found_by"], revised["action_id"]) == ("once", old)
    assert rows.read(second["action_id"])["superseded_by"] is None


def test_runs_opened_at_once_have_one_owner(rows: Rows, at_once: AtOnce) -> None:
    """Each opening takes a new epoch; only the newest handle may go on."""
    agents = [rows.connect("agent") for _ in range(8)]
    answers = at_once(
        [lambda a=a: a.execute("SELECT * FROM counterfoil.open_run('acme', 'owned', 'bot')").fetchone() for a in agents]
    )
    assert sorted(answer["epoch"] for answer in answers) == list(range(1, 9))
    for epoch in range(1, 8):
        with pytest.raises(psycopg.DatabaseError) as old:
            agents[0].execute("SELECT * FROM counterfoil.lock_and_read('acme', 'owned', %s)", (epoch,))
        assert old.value.sqlstate == "CF410"
    row = agents[0].execute("SELECT * FROM counterfoil.lock_and_read('acme', 'owned', 8)").fetchone()
    assert row is not None
    assert (row["state"], row["calls_count"], row["actions"], row["refs"]) == ("open", 1, [], [])


def test_closed_or_unwinding_run_takes_nothing(rows: Rows) -> None:
    """After close or unwind no new action is recorded; what is recorded stays."""
    agent = rows.connect("agent")
    for run, door in (("shut", "close_run('acme', 'shut')"), ("back", "request_unwind('acme', 'back', 'r')")):
        rows.propose(run=run, step="a")
        agent.execute(f"SELECT counterfoil.{door}".encode())
        for step in ("a", "b"):
            with pytest.raises(psycopg.DatabaseError) as refused:
                rows.propose(run=run, step=step)
            assert refused.value.sqlstate == "CF403"
