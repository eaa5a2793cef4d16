"""What a worker may still do with a row that it had: too late, without the fence, or with nothing sent."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import pytest

from counterfoil.ledger import claims, sweeps
from counterfoil.ledger.claims import ClaimedAction
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


def stale_copy(action: ClaimedAction) -> ClaimedAction:
    """The action as a worker holds it that never had the row."""
    values = {name: getattr(action, name) for name in ClaimedAction.__dataclass_fields__}
    return ClaimedAction(**{**values, "fence": uuid.uuid4()})


@pytest.mark.parametrize("in_doubt", [False, True])
def test_settle_without_the_fence_changes_nothing(rows: Rows, ledgers: list[Ledger], in_doubt: bool) -> None:
    """Each settle by a worker that never had, or no longer has, the row is refused and leaves every byte as it was."""
    for name in rows.settles():
        action_id = rows.build("ready", in_doubt=in_doubt, uncertain_since="1 second ago", attempt_count=0)
        old = rows.claimed(ledgers[0], action_id)
        assert claims.let_go(ledgers[0], old, code="shutdown", delay_s=0.0, worker="w")
        holder = rows.claimed(ledgers[1], action_id)
        before, history = rows.read(action_id), rows.history(action_id)
        attempt = "SELECT * FROM counterfoil.attempt WHERE attempt_id = %s"
        held = rows.one(attempt, holder.fence)
        assert not rows.settle(name, ledgers[0], old), name
        assert not rows.settle(name, ledgers[0], stale_copy(holder)), name
        assert (rows.read(action_id), rows.history(action_id)) == (before, history), name
        assert rows.one(attempt, holder.fence) == held, name


def test_verdict_without_the_fence_changes_nothing(rows: Rows, ledgers: list[Ledger]) -> None:
    """A verdict of a look-up whose lease lapsed, even when another look-up holds the row, is refused."""
    for name in rows.verdicts():
        action_id = rows.build("uncertain", tool=f"fence_{name}")
        [old] = rows.look(ledgers[0], f"fence_{name}")
        rows.execute(action_id, "lease_until = counterfoil.now()")
        assert action_id in sweeps.sweep_lapsed_leases(ledgers[0], by="beat")
        assert not rows.verdict(name, ledgers[0], old), name
        [new] = rows.look(ledgers[1], f"fence_{name}")
        before = rows.read(action_id)
        assert not rows.verdict(name, ledgers[0], old), name
        assert rows.read(action_id) == before
        assert rows.verdict(name, ledgers[1], new), name


LATE = {
    "uncertain": ("settled", "succeeded"),
    "reconciling": ("settled", "succeeded"),
    "ready": ("to_verdict", "uncertain"),
    "retryable_failure": ("to_verdict", "uncertain"),
    "executing": ("to_verdict", "executing"),
    "permanent_failure": ("to_person", "operator_review"),
    "not_executed": ("to_person", "operator_review"),
    "cancelled": ("to_person", "operator_review"),
    "stale": ("to_person", "operator_review"),
    "succeeded": ("kept", "succeeded"),
    "compensated": ("kept", "compensated"),
    "operator_review": ("kept", "operator_review"),
    "awaiting_approval": ("kept", "awaiting_approval"),
}


@pytest.mark.parametrize("in_doubt", [False, True])
def test_late_success(rows: Rows, ledgers: list[Ledger], in_doubt: bool) -> None:
    """A success that is learnt after the row was lost reaches the row in every state, and never overwrites a receipt."""
    for state, (answer, then) in LATE.items():
        if state == "uncertain" and not in_doubt:
            continue
        action = rows.claimed(ledgers[0], rows.build("ready", attempt_count=0))
        assert rows.settle("succeeded", ledgers[0], stale_copy(action), receipt="pi_late") is False
        claims.record_attempt(
            ledgers[0], action, outcome="succeeded", code=None, evidence=None, receipt="pi_late", result="{}"
        )
        rows.execute(
            action.action_id,
            f"state = '{state}', in_doubt = {in_doubt}, uncertain_since = counterfoil.now(), fence = gen_random_uuid(),"
            f" next_lookup_at = counterfoil.now(),"
            f" lease_until = CASE WHEN '{state}' IN ('executing', 'reconciling') THEN counterfoil.now() END,"
            f" receipt = CASE WHEN '{state}' IN ('succeeded', 'compensated') THEN 'pi_first' END",
        )
        late = claims.apply_late_success(ledgers[0], action, receipt="pi_late", result="{}", evidence=None, worker="w")
        row = rows.read(action.action_id)
        assert (late, row["state"]) == (answer, then), state
        receipt = {"settled": "pi_late", "kept": "pi_first" if then in ("succeeded", "compensated") else None}
        assert row["receipt"] == receipt.get(answer), state


def test_late_success_reaches_the_verdict(rows: Rows, ledgers: list[Ledger]) -> None:
    """A late success of attempt 1 is what the verdict reads, also when attempt 2 was under way and is refused."""
    action_id = rows.build("ready", attempt_count=0, tool="late_verdict")
    first = rows.claimed(ledgers[0], action_id, lease_s=0.0)
    assert action_id in sweeps.sweep_lapsed_leases(ledgers[0], by="beat")
    [action] = rows.look(ledgers[1], "late_verdict")
    assert rows.verdict("resend", ledgers[1], action)
    second = rows.claimed(ledgers[1], action_id)
    assert not rows.settle("succeeded", ledgers[0], first, receipt="pi_1st")
    late = claims.apply_late_success(ledgers[0], first, receipt="pi_1st", result="{}", evidence=None, worker="w")
    assert late == "to_verdict"
    assert not rows.settle("failed", ledgers[1], second), "a refusal of attempt 2 proves nothing about attempt 1"
    assert rows.settle("uncertain", ledgers[1], second, outcome="rejected", code="declined")
    [action] = rows.look(ledgers[1], "late_verdict")
    assert (action.late_receipt, action.no_resend) == ("pi_1st", True)


def test_late_success_does_not_doubt_its_own_attempt(rows: Rows, ledgers: list[Ledger]) -> None:
    """A worker that still holds the row settles it; telling its own success as a late one changes nothing."""
    action = rows.claimed(ledgers[0], rows.build("ready", attempt_count=0))
    before = rows.read(action.action_id)
    late = claims.apply_late_success(ledgers[0], action, receipt="pi_1", result="{}", evidence=None, worker="w")
    assert (late, rows.read(action.action_id)) == ("kept", before)
    assert rows.settle("succeeded", ledgers[0], action)


def test_late_failure_changes_nothing(rows: Rows, ledgers: list[Ledger]) -> None:
    """A refusal learnt after the lease lapsed is written on its attempt and leaves the row uncertain."""
    action = rows.claimed(ledgers[0], rows.build("ready", attempt_count=0), lease_s=0.0)
    assert action.action_id in sweeps.sweep_lapsed_leases(ledgers[0], by="beat")
    before = rows.read(action.action_id)
    for settle in ("failed", "retryable", "not_sent", "let_go", "person", "stale", "refused_stale"):
        assert not rows.settle(settle, ledgers[0], action)
    assert rows.read(action.action_id) == before
    attempt = rows.one("SELECT outcome FROM counterfoil.attempt WHERE attempt_id = %s", action.fence)
    assert attempt["outcome"] == "rejected"


def test_attempt_is_given_back(rows: Rows, ledgers: list[Ledger]) -> None:
    """Let go, or not sent, at the first attempt: no attempt counted and never sent; later, the first sending stays."""
    for settle in ("let_go", "not_sent"):
        action_id = rows.build("ready", attempt_count=0)
        assert rows.settle(settle, ledgers[0], rows.claimed(ledgers[0], action_id))
        row = rows.read(action_id)
        assert (row["state"], row["attempt_count"], row["first_sent_at"]) == ("ready", 0, None)
        assert row["not_sent_count"] == (settle == "not_sent")
        rows.execute(action_id, "ready_at = counterfoil.now()")
        refused = rows.claimed(ledgers[0], action_id)
        assert rows.settle("retryable", ledgers[0], refused)
        sent_at = rows.read(action_id)["first_sent_at"]
        assert sent_at == refused.first_sent_at
        rows.execute(action_id, "ready_at = counterfoil.now()")
        assert rows.settle(settle, ledgers[0], rows.claimed(ledgers[0], action_id))
        row = rows.read(action_id)
        assert (row["attempt_count"], row["first_sent_at"]) == (1, sent_at)


def test_let_go_in_doubt(rows: Rows, ledgers: list[Ledger]) -> None:
    """Let go in doubt: the doubt and the first sending stay; where no resend is allowed, evidence decides, not ready."""
    for no_resend, then in ((False, "ready"), (True, "uncertain")):
        action_id = rows.build(
            "ready", in_doubt=True, attempt_count=0, first_sent_at="1 second ago", uncertain_since="1 second ago"
        )
        sent_at = rows.read(action_id)["first_sent_at"]
        action = rows.claimed(ledgers[0], action_id)
        rows.execute(action_id, f"no_resend = {no_resend}")
        assert rows.settle("let_go", ledgers[0], action)
        row = rows.read(action_id)
        assert (row["state"], row["in_doubt"], row["attempt_count"], row["first_sent_at"]) == (then, True, 0, sent_at)


def test_in_doubt_a_refusal_settles_uncertain_only(rows: Rows, ledgers: list[Ledger]) -> None:
    """While an earlier attempt is in doubt, no settle but success and uncertain ends the attempt (let-go apart)."""
    refused = {"retryable", "failed", "not_sent", "person", "stale", "refused_stale"}
    for name in rows.settles():
        action = rows.claimed(ledgers[0], rows.build("ready", in_doubt=True, uncertain_since="1 second ago"))
        assert rows.settle(name, ledgers[0], action) == (name not in refused), name
    action = rows.claimed(ledgers[0], rows.build("ready"))
    assert not rows.settle("hold", ledgers[0], action), "nothing to find out about a row without doubt"


def test_attempts_used_up(rows: Rows, ledgers: list[Ledger]) -> None:
    """Without an attempt left a refused row has failed, and one in doubt goes to evidence with no resend."""
    plain, doubt = (
        rows.build("retryable_failure", attempt_count=5),
        rows.build("retryable_failure", attempt_count=5, in_doubt=True),
    )
    fresh = rows.build("retryable_failure", attempt_count=4)
    used_up = [claims.end_used_up(ledgers[0], a, attempts_max=5, worker="w") for a in (plain, doubt, fresh)]
    assert used_up == [True, True, False]
    states = [(rows.read(a)["state"], rows.read(a)["no_resend"]) for a in (plain, doubt, fresh)]
    assert states == [("permanent_failure", False), ("uncertain", True), ("retryable_failure", False)]


def test_deadline(rows: Rows, ledgers: list[Ledger]) -> None:
    """Past its deadline a row that did nothing is stale, one in doubt goes to evidence, and a running one is left alone."""
    past = {"deadline_at": "2020-01-01"}
    stale = [rows.build(s, **past) for s in ("proposed", "awaiting_approval", "ready", "retryable_failure")]
    doubt = [
        rows.build(s, in_doubt=True, uncertain_since="1 second ago", **past) for s in ("ready", "retryable_failure")
    ]
    left = {s: rows.build(s, **past) for s in ("executing", "uncertain", "reconciling", "operator_review")}
    expired = set(sweeps.expire_past_deadline(ledgers[0], by="beat"))
    assert expired >= {*stale, *doubt}
    assert expired.isdisjoint(left.values())
    assert {rows.read(a)["state"] for a in stale} == {"stale"}
    assert {(rows.read(a)["state"], rows.read(a)["no_resend"]) for a in doubt} == {("uncertain", True)}
    assert all(rows.read(a)["state"] == s for s, a in left.items())


def test_late_success_reopens_an_unwound_run(rows: Rows, ledgers: list[Ledger]) -> None:
    """When an action of an unwound run turns out to have succeeded, its run unwinds again."""
    rows.build("uncertain", run="late", tool="late_run")
    [action] = rows.look(ledgers[0], "late_run")
    rows.owner.execute("UPDATE counterfoil.run SET state = 'unwound' WHERE run = 'late'")
    assert rows.verdict("succeeded", ledgers[0], action)
    assert rows.one("SELECT state FROM counterfoil.run WHERE run = 'late'")["state"] == "unwinding"
