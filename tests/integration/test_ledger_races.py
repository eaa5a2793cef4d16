"""Two who want the same row: real connections that start together, one winner, and the loser changes nothing."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

import psycopg
import pytest

from counterfoil.ledger import claims, sweeps, verdicts
from counterfoil.ledger.claims import ClaimedAction, WakeUp
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


def succeed(ledger: Ledger, action: ClaimedAction, receipt: str = "pi_1") -> bool:
    return claims.settle_succeeded(ledger, action, receipt=receipt, result="{}", evidence=None, worker="w")


def be_unsure(ledger: Ledger, action: ClaimedAction, **changes: Any) -> bool:
    given: dict[str, Any] = {"outcome": "uncertain", "code": "timeout", "no_resend": False, "delay_s": 0.0, **changes}
    return claims.settle_uncertain(ledger, action, evidence=None, look_after_s=0.0, worker="w", **given)


def look(
    ledger: Ledger, tool: str = "stripe_charge", batch: int = 100, **changes: Any
) -> list[verdicts.UncertainAction]:
    given: dict[str, Any] = {"fence": uuid.uuid4(), "lease_s": 60.0, "uncertain_after_s": 0.0, "by": "beat", **changes}
    return verdicts.claim_uncertain(ledger, tools=[tool], batch=batch, **given)


def stale_copy(action: ClaimedAction) -> ClaimedAction:
    """The action as a worker holds it that never had the row."""
    values = {name: getattr(action, name) for name in ClaimedAction.__dataclass_fields__}
    return ClaimedAction(**{**values, "fence": uuid.uuid4()})


SETTLES: dict[str, Callable[[Ledger, ClaimedAction], bool]] = {
    "succeeded": succeed,
    "retryable": lambda ledger, a: claims.settle_retryable(
        ledger, a, code="429", field=None, evidence=None, delay_s=1.0, worker="w"
    ),
    "failed": lambda ledger, a: claims.settle_failed(
        ledger, a, outcome="rejected", code="x", error_code="x", field=None, reason="refused", evidence=None, worker="w"
    ),
    "uncertain": be_unsure,
    "not_sent": lambda ledger, a: claims.settle_not_sent(
        ledger, a, code="connect", evidence=None, delay_s=1.0, worker="w"
    ),
    "let_go": lambda ledger, a: claims.let_go(ledger, a, code="shutdown", delay_s=0.0, worker="w"),
    "hold": lambda ledger, a: claims.hold_for_evidence(ledger, a, code="key_too_old", worker="w"),
    "person": lambda ledger, a: claims.hand_to_person(ledger, a, code="policy_mismatch", evidence=None, worker="w"),
}

VERDICTS: dict[str, Callable[[Ledger, verdicts.UncertainAction], bool]] = {
    "succeeded": lambda ledger, a: verdicts.succeeded(ledger, a, receipt="pi_2", result="{}", evidence="e", by="b"),
    "failed": lambda ledger, a: verdicts.failed(ledger, a, code="declined", reason="r", evidence="e", by="b"),
    "not_executed": lambda ledger, a: verdicts.not_executed(ledger, a, evidence="e", by="b"),
    "resend": lambda ledger, a: verdicts.resend(
        ledger, a, ends_doubt=True, delay_s=0.0, reason="r", evidence="e", by="b"
    ),
    "ask_later": lambda ledger, a: verdicts.ask_later(
        ledger, a, after_s=1.0, absent_count=1, last_absent_at=None, reason="r", evidence="e", by="b"
    ),
    "person": lambda ledger, a: verdicts.to_person(ledger, a, code="many", reason="r", evidence="e", by="b"),
}


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
    [action] = look(ledgers[0], "cancel_doubt")
    assert action.no_resend
    assert not VERDICTS["resend"](ledgers[0], action)
    assert VERDICTS["failed"](ledgers[0], action)


def test_cancel_during_a_lookup_forbids_the_resend(rows: Rows, ledgers: list[Ledger]) -> None:
    """A cancel that arrives while the look-up is under way is seen by the verdict's own statement."""
    action_id = rows.build("uncertain", tool="cancel_lookup")
    [action] = look(ledgers[0], "cancel_lookup")
    assert not action.no_resend
    rows.connect("agent").execute("SELECT counterfoil.request_cancel(%s, 'u', 'r')", (action_id,))
    assert not VERDICTS["resend"](ledgers[0], action)
    assert rows.read(action_id)["state"] == "reconciling"


@pytest.mark.parametrize("in_doubt", [False, True])
def test_settle_without_the_fence_changes_nothing(rows: Rows, ledgers: list[Ledger], in_doubt: bool) -> None:
    """Each settle by a worker that never had, or no longer has, the row is refused and leaves every byte as it was."""
    for name, settle in SETTLES.items():
        action_id = rows.build("ready", in_doubt=in_doubt, uncertain_since="1 second ago", attempt_count=0)
        old = rows.claimed(ledgers[0], action_id)
        assert claims.let_go(ledgers[0], old, code="shutdown", delay_s=0.0, worker="w")
        holder = rows.claimed(ledgers[1], action_id)
        before, history = rows.read(action_id), rows.history(action_id)
        attempt = "SELECT * FROM counterfoil.attempt WHERE attempt_id = %s"
        held = rows.one(attempt, holder.fence)
        assert not settle(ledgers[0], old), name
        assert not settle(ledgers[0], stale_copy(holder)), name
        assert (rows.read(action_id), rows.history(action_id)) == (before, history), name
        assert rows.one(attempt, holder.fence) == held, name


def test_verdict_without_the_fence_changes_nothing(rows: Rows, ledgers: list[Ledger]) -> None:
    """A verdict of a look-up whose lease lapsed, even when another look-up holds the row, is refused."""
    for name, verdict in VERDICTS.items():
        action_id = rows.build("uncertain", tool=f"fence_{name}")
        [old] = look(ledgers[0], f"fence_{name}")
        rows.execute(action_id, "lease_until = counterfoil.now()")
        assert action_id in sweeps.sweep_lapsed_leases(ledgers[0], by="beat")
        assert not verdict(ledgers[0], old), name
        [new] = look(ledgers[1], f"fence_{name}")
        before = rows.read(action_id)
        assert not verdict(ledgers[0], old), name
        assert rows.read(action_id) == before
        assert verdict(ledgers[1], new), name


def test_sweep_against_settle(rows: Rows, ledgers: list[Ledger], at_once: AtOnce) -> None:
    """Of a lapsed lease either the sweep or the settle moves the row; the attempt's success is recorded in both cases."""
    for _ in range(5):
        action_id = rows.build("ready", attempt_count=0)
        action = rows.claimed(ledgers[0], action_id, lease_s=0.0)
        sweep = [partial(sweeps.sweep_lapsed_leases, ledger, by="beat") for ledger in ledgers[1:4]]
        settled, *swept = at_once([partial(succeed, ledgers[0], action), *sweep])
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
    found = at_once([partial(look, ledger, "disjoint", 8) for ledger in ledgers[:6]])
    taken = [action.action_id for batch in found for action in batch]
    assert len(taken) == len(set(taken))
    assert set(taken) <= due
    rest = [action.action_id for _ in range(5) for action in look(ledgers[0], "disjoint", 8)]
    assert sorted(taken + rest) == sorted(due)


def test_lookup_waits_for_its_time(rows: Rows, ledgers: list[Ledger]) -> None:
    """A row younger than the threshold, not due, or of a tool that this process lacks is not taken."""
    young = rows.build("uncertain", tool="waits")
    rows.build("uncertain", tool="waits", next_lookup_at="in 60 seconds")
    rows.build("uncertain", tool="waits_not")
    assert look(ledgers[0], "waits", uncertain_after_s=30.0) == []
    assert [a.action_id for a in look(ledgers[0], "waits")] == [young]


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
    approve = """UPDATE counterfoil.action SET state = 'ready', ready_at = counterfoil.now(), approval_id = 'apr'
                 WHERE action_id = %s AND state = 'awaiting_approval' AND superseded_by IS NULL"""
    for number in range(5):
        old = rows.build("awaiting_approval", run="sup3", step=f"n{number}")
        answer, _ = at_once(
            [
                partial(rows.propose, run="sup3", step=f"n{number}", revision=2, supersedes=old),
                partial(operator.execute, approve.encode(), (old,)),
            ]
        )
        states = {
            row["revision"]: row["state"]
            for row in rows.all("SELECT * FROM counterfoil.action WHERE run = 'sup3' AND step = %s", f"n{number}")
        }
        assert states == ({1: "cancelled", 2: "ready"} if answer["created"] else {1: "ready"})


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
        assert succeed(ledgers[0], stale_copy(action), "pi_late") is False
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
    [action] = look(ledgers[1], "late_verdict")
    assert VERDICTS["resend"](ledgers[1], action)
    second = rows.claimed(ledgers[1], action_id)
    assert not succeed(ledgers[0], first, "pi_1st")
    late = claims.apply_late_success(ledgers[0], first, receipt="pi_1st", result="{}", evidence=None, worker="w")
    assert late == "to_verdict"
    assert not SETTLES["failed"](ledgers[1], second), "a refusal of attempt 2 proves nothing about attempt 1"
    assert be_unsure(ledgers[1], second, outcome="rejected", code="declined")
    [action] = look(ledgers[1], "late_verdict")
    assert (action.late_receipt, action.no_resend) == ("pi_1st", True)


def test_late_success_does_not_doubt_its_own_attempt(rows: Rows, ledgers: list[Ledger]) -> None:
    """A worker that still holds the row settles it; telling its own success as a late one changes nothing."""
    action = rows.claimed(ledgers[0], rows.build("ready", attempt_count=0))
    before = rows.read(action.action_id)
    late = claims.apply_late_success(ledgers[0], action, receipt="pi_1", result="{}", evidence=None, worker="w")
    assert (late, rows.read(action.action_id)) == ("kept", before)
    assert succeed(ledgers[0], action)


def test_late_failure_changes_nothing(rows: Rows, ledgers: list[Ledger]) -> None:
    """A refusal learnt after the lease lapsed is written on its attempt and leaves the row uncertain."""
    action = rows.claimed(ledgers[0], rows.build("ready", attempt_count=0), lease_s=0.0)
    assert action.action_id in sweeps.sweep_lapsed_leases(ledgers[0], by="beat")
    before = rows.read(action.action_id)
    for settle in ("failed", "retryable", "not_sent", "let_go", "person"):
        assert not SETTLES[settle](ledgers[0], action)
    assert rows.read(action.action_id) == before
    attempt = rows.one("SELECT outcome FROM counterfoil.attempt WHERE attempt_id = %s", action.fence)
    assert attempt["outcome"] == "rejected"


def test_attempt_is_given_back(rows: Rows, ledgers: list[Ledger]) -> None:
    """Let go, or not sent, at the first attempt: no attempt counted and never sent; later, the first sending stays."""
    for settle in ("let_go", "not_sent"):
        action_id = rows.build("ready", attempt_count=0)
        assert SETTLES[settle](ledgers[0], rows.claimed(ledgers[0], action_id))
        row = rows.read(action_id)
        assert (row["state"], row["attempt_count"], row["first_sent_at"]) == ("ready", 0, None)
        assert row["not_sent_count"] == (settle == "not_sent")
        rows.execute(action_id, "ready_at = counterfoil.now()")
        refused = rows.claimed(ledgers[0], action_id)
        assert SETTLES["retryable"](ledgers[0], refused)
        sent_at = rows.read(action_id)["first_sent_at"]
        assert sent_at == refused.first_sent_at
        rows.execute(action_id, "ready_at = counterfoil.now()")
        assert SETTLES[settle](ledgers[0], rows.claimed(ledgers[0], action_id))
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
        assert SETTLES["let_go"](ledgers[0], action)
        row = rows.read(action_id)
        assert (row["state"], row["in_doubt"], row["attempt_count"], row["first_sent_at"]) == (then, True, 0, sent_at)


def test_in_doubt_a_refusal_settles_uncertain_only(rows: Rows, ledgers: list[Ledger]) -> None:
    """While an earlier attempt is in doubt, no settle but success and uncertain ends the attempt (let-go apart)."""
    refused = {"retryable", "failed", "not_sent", "person"}
    for name, settle in SETTLES.items():
        action = rows.claimed(ledgers[0], rows.build("ready", in_doubt=True, uncertain_since="1 second ago"))
        assert settle(ledgers[0], action) == (name not in refused), name
    action = rows.claimed(ledgers[0], rows.build("ready"))
    assert not SETTLES["hold"](ledgers[0], action), "nothing to find out about a row without doubt"


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
