"""Two who want the same row: real connections that start together, one winner, and the loser changes nothing."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

import psycopg
import pytest

from counterfoil.ledger import claims, sweeps
from counterfoil.ledger.claims import WakeUp
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


def test_one_of_twenty_claims(rows: Rows, ledgers: list[Ledger], at_once: AtOnce) -> None:
    """Twenty claimers of one row: one gets it, one attempt is counted and recorded, the wake-up is gone."""
    for _ in range(3):
        action_id = rows.build("ready", attempt_count=0)
        found = at_once([partial(rows.claim, ledger, action_id) for ledger in ledgers])
        won = [claimed for claimed in found if claimed is not None]
        assert len(won) == 1
        row = rows.read(action_id)
        assert (row["state"], row["attempt_count"], row["fence"]) == ("executing", 1, won[0].fence)
        attempts = rows.all("SELECT attempt_id, number FROM counterfoil.attempt WHERE action_id = %s", action_id)
        assert attempts == [{"attempt_id": won[0].fence, "number": 1}]
        assert rows.wake_ups(action_id) == []


@pytest.mark.parametrize(
    ("what", "change"),
    {
        "generation": "generation = generation + 1",
        "later": "ready_at = counterfoil.now() + interval '1 minute'",
        "deadline": "deadline_at = counterfoil.now()",
        "cancel": "cancel_requested_at = counterfoil.now()",
        "used up": "attempt_count = 5",
        "state": "state = 'succeeded', receipt = 'pi_1'",
    }.items(),
)
def test_claim_is_refused(rows: Rows, ledgers: list[Ledger], what: str, change: str) -> None:
    """Each condition of the claim alone keeps the row, and an old message (generation) finds nothing."""
    for state in ("ready", "retryable_failure"):
        action_id = rows.build(state, attempt_count=0)
        wake_up = WakeUp(action_id, rows.read(action_id)["generation"])
        assert [w.action_id for w in claims.read_batch(ledgers[0], [wake_up])] == [action_id]
        rows.execute(action_id, change)
        before = rows.read(action_id)
        assert rows.claim(ledgers[0], action_id, wake_up=wake_up) is None
        assert rows.read(action_id) == before
        assert rows.all("SELECT FROM counterfoil.attempt WHERE action_id = %s", action_id) == []


def test_read_batch_keeps_the_message_s_order(rows: Rows, ledgers: list[Ledger]) -> None:
    """The claimable rows of a message come in the message's order, others and old generations are left out."""
    ids = [rows.build("ready") for _ in range(6)]
    wake_ups = [WakeUp(action_id, 1) for action_id in reversed(ids)]
    others = [WakeUp(rows.build("uncertain"), 1), WakeUp(rows.build("ready"), 7), WakeUp("act_" + "q" * 26, 1)]
    assert [w.action_id for w in claims.read_batch(ledgers[0], [*others, *wake_ups])] == list(reversed(ids))
    assert claims.read_batch(ledgers[0], []) == []


def test_first_key_wins(rows: Rows, ledgers: list[Ledger]) -> None:
    """The key that the first claim wrote stays through a later claim under another secret."""
    action_id = rows.build("ready", attempt_count=0, key=None)
    first = rows.claimed(ledgers[0], action_id, key="1" * 32)
    assert claims.let_go(ledgers[0], first, code="shutdown", delay_s=0.0, worker="w")
    again = rows.claimed(ledgers[1], action_id, key="2" * 32, key_version=2)
    assert (first.key, again.key, rows.read(action_id)["key_version"]) == ("1" * 32, "1" * 32, 1)


def test_claim_against_cancel(rows: Rows, ledgers: list[Ledger], at_once: AtOnce) -> None:
    """Either the cancel withdraws the row and nobody has it, or the claim wins and no resend is possible any more."""
    agents = [rows.connect("agent") for _ in range(4)]
    cancel = "SELECT counterfoil.request_cancel(%s, 'user', 'changed my mind') AS state"
    for _ in range(5):
        action_id = rows.build("ready", attempt_count=0)

        def ask(agent: psycopg.Connection[Any], action_id: str = action_id) -> str:
            row = agent.execute(cancel.encode(), (action_id,)).fetchone()
            assert row is not None
            return str(row["state"])

        answers = at_once(
            [*(partial(ask, a) for a in agents), *(partial(rows.claim, x, action_id) for x in ledgers[:4])]
        )
        won = [claimed for claimed in answers[4:] if claimed is not None]
        row = rows.read(action_id)
        assert row["cancel_requested_at"] is not None
        assert (len(won), row["state"], row["no_resend"]) in ((0, "cancelled", False), (1, "executing", True))
        assert set(answers[:4]) == {row["state"]}
        if won:
            assert claims.let_go(ledgers[0], won[0], code="shutdown", delay_s=0.0, worker="w")
            assert rows.claim(ledgers[0], action_id) is None
            assert action_id in sweeps.finish_cancels(ledgers[0], by="beat")
            assert rows.read(action_id)["state"] == "cancelled"


def test_cancel_in_doubt_leaves_it_to_evidence(rows: Rows, ledgers: list[Ledger]) -> None:
    """A cancel never ends what may have happened: the row turns uncertain, may not be resent, and a verdict says what is."""
    action_id = rows.build("ready", in_doubt=True, tool="cancel_doubt", uncertain_since="1 second ago", attempt_count=1)
    cancel = rows.connect("agent").execute("SELECT counterfoil.request_cancel(%s, 'u', 'r') AS state", (action_id,))
    assert cancel.fetchone() == {"state": "uncertain"}
    [action] = rows.look(ledgers[0], "cancel_doubt")
    assert action.no_resend
    assert not rows.verdict("resend", ledgers[0], action)
    assert rows.verdict("failed", ledgers[0], action)


def test_cancel_during_a_lookup_forbids_the_resend(rows: Rows, ledgers: list[Ledger]) -> None:
    """A cancel that arrives while the look-up is under way is seen by the verdict's own statement."""
    action_id = rows.build("uncertain", tool="cancel_lookup")
    [action] = rows.look(ledgers[0], "cancel_lookup")
    assert not action.no_resend
    rows.connect("agent").execute("SELECT counterfoil.request_cancel(%s, 'u', 'r')", (action_id,))
    assert not rows.verdict("resend", ledgers[0], action)
    assert rows.read(action_id)["state"] == "reconciling"


def test_sweep_against_settle(rows: Rows, ledgers: list[Ledger], at_once: AtOnce) -> None:
    """Of a lapsed lease either the sweep or the settle moves the row; the attempt's success is recorded in both cases."""
    for _ in range(5):
        action_id = rows.build("ready", attempt_count=0)
        action = rows.claimed(ledgers[0], action_id, lease_s=0.0)
        sweep = [partial(sweeps.sweep_lapsed_leases, ledger, by="beat") for ledger in ledgers[1:4]]
        settled, *swept = at_once([partial(rows.settle, "succeeded", ledgers[0], action), *sweep])
        assert settled + sum(action_id in ids for ids in swept) == 1
        state = rows.read(action_id)["state"]
        assert state == ("succeeded" if settled else "uncertain")
        attempt = rows.one("SELECT outcome, receipt FROM counterfoil.attempt WHERE attempt_id = %s", action.fence)
        assert attempt == {"outcome": "succeeded", "receipt": "pi_1"}


def test_sweeps_of_lapsed_leases(rows: Rows, ledgers: list[Ledger]) -> None:
    """A lapsed lease ends in uncertain, never ready, and the landing window still begins at the lease's end."""
    executing = rows.build("executing", lease_until="1 second ago", quiet_from="1 second ago")
    looking = rows.build("reconciling", lease_until="1 second ago", uncertain_since="1 second ago", absent_count=1)
    alive = [rows.build("executing"), rows.build("reconciling")]
    before = {action_id: rows.read(action_id) for action_id in (executing, looking)}
    assert {executing, looking} <= set(sweeps.sweep_lapsed_leases(ledgers[0], by="beat"))
    for action_id, was in before.items():
        row = rows.read(action_id)
        assert (row["state"], row["in_doubt"], row["lease_until"]) == ("uncertain", True, None)
        assert row["quiet_from"] == was["quiet_from"]
        assert row["absent_count"] == was["absent_count"]
        assert row["next_lookup_at"] <= row["updated_at"]
    assert [rows.read(action_id)["state"] for action_id in alive] == ["executing", "reconciling"]


def test_reconcilers_take_disjoint_rows(rows: Rows, ledgers: list[Ledger], at_once: AtOnce) -> None:
    """Any number of reconcilers at once: each due row is looked up by exactly one of them."""
    due = {rows.build("uncertain", tool="disjoint") for _ in range(30)}
    found = at_once([partial(rows.look, ledger, "disjoint", 8) for ledger in ledgers[:6]])
    taken = [action.action_id for batch in found for action in batch]
    assert len(taken) == len(set(taken))
    assert set(taken) <= due
    rest = [action.action_id for _ in range(5) for action in rows.look(ledgers[0], "disjoint", 8)]
    assert sorted(taken + rest) == sorted(due)


def test_lookup_waits_for_its_time(rows: Rows, ledgers: list[Ledger]) -> None:
    """A row younger than the threshold, not due, or of a tool that this process lacks is not taken."""
    young = rows.build("uncertain", tool="waits")
    rows.build("uncertain", tool="waits", next_lookup_at="in 60 seconds")
    rows.build("uncertain", tool="waits_not")
    assert rows.look(ledgers[0], "waits", uncertain_after_s=30.0) == []
    assert [a.action_id for a in rows.look(ledgers[0], "waits")] == [young]


def test_lost_wake_up_is_put_back_once(rows: Rows, ledgers: list[Ledger], at_once: AtOnce) -> None:
    """Claimable rows without a wake-up get one, whoever else looks at the same time; others get none."""
    lost = [rows.build("ready"), rows.build("retryable_failure")]
    rows.owner.execute("DELETE FROM counterfoil.outbox WHERE action_id = ANY (%s)", (lost,))
    found = at_once([partial(sweeps.rescue_lost_wakeups, ledger, older_s=0.0) for ledger in ledgers[:4]])
    assert sorted(action_id for ids in found for action_id in ids) == sorted(lost)
    assert [rows.wake_ups(a) for a in lost] == [[1], [1]]
    assert sweeps.rescue_lost_wakeups(ledgers[0], older_s=0.0) == []


def test_postponed_wake_up_is_not_an_attempt(rows: Rows, ledgers: list[Ledger]) -> None:
    """A worker without the tool gives the wake-up back; an old message postpones nothing."""
    action_id = rows.build("ready", attempt_count=0)
    due = "SELECT not_before <= counterfoil.now() AS due FROM counterfoil.outbox WHERE action_id = %s"
    claims.postpone_wakeup(ledgers[0], WakeUp(action_id, 0), delay_s=30.0)
    assert rows.one(due, action_id)["due"]
    claims.postpone_wakeup(ledgers[0], WakeUp(action_id, 1), delay_s=30.0)
    assert not rows.one(due, action_id)["due"]
    assert rows.read(action_id)["attempt_count"] == 0
