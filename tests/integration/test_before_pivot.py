"""Irreversible effects before a run's pivot: the door keeps the number at 0, and where it was got round the number tells."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any

import psycopg
import pytest

from counterfoil.ledger import sweeps
from counterfoil.ledger.connection import Ledger

if TYPE_CHECKING:
    from tests.conftest import Database
    from tests.integration.conftest import Rows

SENT: dict[str, Any] = {"class": "irreversible", "effect": "mail"}


@pytest.fixture
def rows(shared_rows: Rows) -> Rows:
    """One database for the module: every test here looks at runs of its own."""
    return shared_rows


@pytest.fixture(scope="module")
def ledger(shared_rows: Rows) -> Ledger:
    return shared_rows.ledger()


def before_pivot(rows: Rows, run: str) -> int:
    """The number, as a dashboard reads it."""
    reader = rows.connect("reader")
    row = reader.execute("SELECT counterfoil.irreversible_before_pivot('acme', %s) AS n", (run,)).fetchone()
    reader.close()
    assert row is not None
    return int(row["n"])


def stage(rows: Rows, run: str, step: str = "draft") -> None:
    """The run stages something: from now on its pivot is ahead."""
    rows.propose(run=run, step=step, target=f"{run}-{step}", effect="draft", staged=True, **{"class": "reversible"})


def open_plan(rows: Rows, run: str, *steps: str) -> str:
    """A plan of irreversible steps; its id."""
    first = rows.identity(run=run, step=steps[0])["action_id"]
    proposal_id = f"P-{first[4:16].upper()}"
    agent = rows.connect("agent")
    query = "SELECT * FROM counterfoil.open_plan(%s, 'acme', %s, 'bot', '', 1, 3600, NULL, 3, %s)"
    agent.execute(query, (proposal_id, run, steps[0]))
    for place, step in enumerate(steps, 1):
        target = f"{run}-{step}"
        rows.propose(agent, run=run, step=step, target=target, proposal=proposal_id, place=place, **SENT)
    agent.close()
    return proposal_id


def approve(rows: Rows, proposal_id: str) -> None:
    operator = rows.connect("operator")
    query = "SELECT answer FROM counterfoil.decide(%s, 'approved', counterfoil.proposal_digest(%s), 'mia', 'cli')"
    row = operator.execute(query.encode(), (proposal_id, proposal_id)).fetchone()
    operator.close()
    assert row == {"answer": "approved"}


def send(rows: Rows, ledger: Ledger, run: str, step: str) -> str:
    """A worker's call that succeeds; the action's id."""
    action_id = rows.identity(run=run, step=step)["action_id"]
    claimed = rows.claimed(ledger, action_id)
    assert rows.settle("succeeded", ledger, claimed)
    return str(action_id)


def sneak(rows: Rows, run: str, state: str = "succeeded", step: str | None = None) -> str:
    """What no door does: an irreversible effect of the run, sent now, written by the database's owner."""
    columns = {**SENT, **({"step": step} if step else {})}
    action_id = rows.build(state, run=run, **columns)
    rows.execute(action_id, "first_sent_at = counterfoil.now(), created_at = counterfoil.now()")
    return action_id


def test_a_run_that_never_stages_has_none(rows: Rows, ledger: Ledger) -> None:
    """Without a pivot nothing is before it."""
    rows.propose(run="plain", step="mail", **SENT)
    send(rows, ledger, "plain", "mail")
    assert before_pivot(rows, "plain") == 0
    assert before_pivot(rows, "no such run") == 0


def test_the_door_keeps_it_0(rows: Rows, ledger: Ledger) -> None:
    """A run that has staged is refused every irreversible call until its plan is approved; then the plan's steps run."""
    stage(rows, "kept")
    with pytest.raises(psycopg.Error) as refused:
        rows.propose(run="kept", step="mail", **SENT)
    assert refused.value.sqlstate == "CF403"
    proposal_id = open_plan(rows, "kept", "mail", "second")
    with pytest.raises(psycopg.Error) as refused:
        rows.propose(run="kept", step="other", **SENT)
    assert refused.value.sqlstate == "CF403"
    assert rows.claim(ledger, rows.identity(run="kept", step="mail")["action_id"]) is None
    approve(rows, proposal_id)
    for step in ("mail", "second"):
        send(rows, ledger, "kept", step)
        assert before_pivot(rows, "kept") == 0


def test_a_row_behind_the_door_makes_it_1(rows: Rows, ledger: Ledger) -> None:
    """An effect that raw SQL has put there before the pivot counts, before the approval and after it."""
    stage(rows, "sneaked")
    assert before_pivot(rows, "sneaked") == 0
    sneak(rows, "sneaked")
    assert before_pivot(rows, "sneaked") == 1
    approve(rows, open_plan(rows, "sneaked", "mail"))
    send(rows, ledger, "sneaked", "mail")
    assert before_pivot(rows, "sneaked") == 1
    sneak(rows, "sneaked")
    assert before_pivot(rows, "sneaked") == 1, "after the pivot it is none"


@pytest.mark.parametrize(
    ("state", "counts"),
    [
        ("executing", True),
        ("uncertain", True),
        ("operator_review", True),
        ("permanent_failure", False),
        ("not_executed", False),
        ("cancelled", False),
        ("stale", False),
    ],
)
def test_what_counts_is_what_may_have_happened(rows: Rows, state: str, counts: bool) -> None:
    """What may have had its effect counts, what surely had none does not."""
    stage(rows, f"may-{state}")
    sneak(rows, f"may-{state}", state)
    assert before_pivot(rows, f"may-{state}") == counts


def test_what_was_sent_before_the_run_staged_counts(rows: Rows, ledger: Ledger) -> None:
    """A model that mails first and stages then has reordered the plan: nothing forbids it, the number tells."""
    rows.propose(run="reordered", step="mail", **SENT)
    send(rows, ledger, "reordered", "mail")
    stage(rows, "reordered")
    assert before_pivot(rows, "reordered") == 1


def test_child_runs_count(rows: Rows) -> None:
    """What a child run has sent is before its parent's pivot, too."""
    stage(rows, "parent")
    sneak(rows, "parent/child")
    assert before_pivot(rows, "parent") == 0
    rows.owner.execute("UPDATE counterfoil.run SET parent_run = 'parent' WHERE run = 'parent/child'")
    assert before_pivot(rows, "parent") == 1
    assert before_pivot(rows, "parent/child") == 0, "it has no pivot of its own"


def test_a_second_pivot_blames_nothing_of_the_first(rows: Rows, ledger: Ledger) -> None:
    """A run may stage again: what its first plan has sent, and calls between the two, are none; a new sneaked one is."""
    stage(rows, "twice")
    approve(rows, open_plan(rows, "twice", "mail"))
    send(rows, ledger, "twice", "mail")
    rows.propose(run="twice", step="between", target="b", **SENT)
    send(rows, ledger, "twice", "between")
    stage(rows, "twice", "draft 2")
    assert before_pivot(rows, "twice") == 0
    sneak(rows, "twice")
    assert before_pivot(rows, "twice") == 1
    approve(rows, open_plan(rows, "twice", "mail 2"))
    send(rows, ledger, "twice", "mail 2")
    assert before_pivot(rows, "twice") == 1


def test_a_plan_s_step_that_nobody_approved_counts(rows: Rows) -> None:
    """Sent without the approval of its plan, which only the database's owner can do."""
    stage(rows, "unapproved")
    open_plan(rows, "unapproved", "mail")
    action_id = rows.identity(run="unapproved", step="mail")["action_id"]
    rows.execute(action_id, "state = 'succeeded', receipt = 'r', first_sent_at = counterfoil.now()")
    assert before_pivot(rows, "unapproved") == 1


@pytest.fixture
def alone(clone_database: Callable[[], AbstractContextManager[Database]]) -> Iterator[Rows]:
    """A database without the other tests' runs."""
    from tests.integration.conftest import Rows

    with clone_database() as database:
        made = Rows(database)
        yield made
        made.close()


def test_the_reconciler_finds_such_runs(alone: Rows) -> None:
    """Runs with a pivot that were called of late, and only those with a number above 0."""
    ledger = alone.ledger()
    stage(alone, "good")
    stage(alone, "bad")
    sneak(alone, "bad")
    found = sweeps.sent_before_pivot(ledger, within_s=3600)
    assert [(early.tenant, early.run, early.actions) for early in found] == [("acme", "bad", 1)]
    alone.database.advance(3601)
    assert sweeps.sent_before_pivot(ledger, within_s=3600) == []
