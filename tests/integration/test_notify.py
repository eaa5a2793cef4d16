"""People are told what waits for them: once where all goes well, at least once whatever fails, and nothing that was said."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import pytest
from structlog.testing import capture_logs
from tests.integration.telling import SECRET, TIMEOUT_S, Heard, notifier_of, propose

from counterfoil.ledger import notices
from counterfoil.ledger.errors import ConfigError
from counterfoil.reconciler.hooks import Hook
from counterfoil.reconciler.notify import DELAY_MAX_S, PAUSE_S, Notifier

if TYPE_CHECKING:
    from tests.integration.conftest import Rows


AtOnce = Callable[[Sequence[Callable[[], Any]]], list[Any]]

DAY_S = 86_400.0


@pytest.fixture
def notifier(rows: Rows) -> Callable[..., Notifier]:
    return notifier_of(rows)


def decide(rows: Rows, proposal_id: str, verdict: str, by: str = "mia") -> str:
    """A person's decision by the operators' door, over what stands there."""
    operator = rows.connect("operator")
    row = operator.execute(
        "SELECT answer FROM counterfoil.decide(%s, %s, counterfoil.proposal_digest(%s), %s, 'cli')",
        (proposal_id, verdict, proposal_id, by),
    ).fetchone()
    assert row is not None
    return str(row["answer"])


def expire(rows: Rows) -> list[Any]:
    """What beat does about time; the subjects that have expired."""
    return rows.connect("worker").execute("SELECT * FROM counterfoil.expire_proposals('beat', 100)").fetchall()


def kinds(heard: Heard) -> list[tuple[str, str]]:
    return [(document["kind"], document["why"]) for document in heard.documents]


def test_nothing_configured_writes_nothing(rows: Rows, notifier: Callable[..., Notifier]) -> None:
    """Without a hook a tick tells nobody and leaves no row."""
    propose(rows)
    assert notifier().tell() == 0
    assert rows.all("SELECT FROM counterfoil.notice") == []


def test_an_address_that_cannot_be_read_ends_no_other_tick(rows: Rows) -> None:
    """A secret file that is not there is an error in the log, at each tick, and nothing else."""

    def away() -> Sequence[Hook]:
        raise ConfigError("notify.url_file: it is not there.", key="notify.url_file")

    propose(rows)
    with capture_logs() as logs:
        made = Notifier(ledger=rows.ledger("worker"), hooks=away, timeout_s=1.0, batch=1, remind_ratio=1.0)
        assert made.tell() == 0
    assert [(entry["event"], entry["setting"]) for entry in logs] == [("notify_unusable", "notify.url_file")]


def test_a_new_proposal_is_told_once(rows: Rows, notifier: Callable[..., Notifier]) -> None:
    """Whatever number of ticks: one document, with ids, sums and what to type, and nothing that was said."""
    action_id, proposal_id = propose(rows, run="ticket-1182")
    heard = Heard()
    assert [notifier(heard).tell(), notifier(heard).tell()] == [1, 0]
    proposal = rows.one("SELECT created_at, expires_at FROM counterfoil.proposal WHERE proposal_id = %s", proposal_id)
    iso = {name: proposal[name].isoformat().replace("+00:00", "Z") for name in proposal}
    assert heard.documents == [
        {
            "notice": f"proposal:{proposal_id}:{iso['created_at']}",
            "kind": "proposal",
            "id": proposal_id,
            "tenant": "acme",
            "run": "ticket-1182",
            "why": "new",
            "since": iso["created_at"],
            "expires_at": iso["expires_at"],
            "subject": None,
            "steps": 1,
            "tool": "stripe_charge",
            "effect": "charge",
            "amount_minor": 500,
            "currency": "usd",
            "audience": ["customer"],
            "command": f"counterfoil proposal show {proposal_id}",
        }
    ]
    assert action_id not in json.dumps(heard.documents)


def test_a_decided_proposal_is_told_to_nobody(rows: Rows, notifier: Callable[..., Notifier]) -> None:
    """What was decided between recording and telling is not told, and waits no more."""
    _, proposal_id = propose(rows)
    heard = Heard(failing="exit_1")
    notifier(heard).tell()
    assert decide(rows, proposal_id, "rejected") == "rejected"
    rows.database.advance(PAUSE_S + 1)
    heard.failing = None
    assert notifier(heard).tell() == 0
    assert len(heard.documents) == 1
    assert rows.all("SELECT FROM counterfoil.notice WHERE told_at IS NULL") == []


def test_one_more_person_is_told_anew(rows: Rows, notifier: Callable[..., Notifier]) -> None:
    """After the first of two approvals the same proposal is told again, saying that one more is needed."""
    _, proposal_id = propose(rows, people=2)
    heard = Heard()
    notifier(heard).tell()
    assert decide(rows, proposal_id, "approved") == "one_more"
    notifier(heard).tell()
    notifier(heard).tell()
    assert kinds(heard) == [("proposal", "new"), ("proposal", "one_more")]
    assert len({document["notice"] for document in heard.documents}) == 2


def test_one_reminder_and_then_the_expiry(rows: Rows, notifier: Callable[..., Notifier]) -> None:
    """At four fifths of its time one reminder; when nobody has decided until the end, that is told, too, once."""
    propose(rows)
    heard = Heard()
    notifier(heard).tell()
    rows.database.advance(0.8 * DAY_S - 60)
    assert notifier(heard).tell() == 0
    rows.database.advance(120)
    assert [notifier(heard).tell(), notifier(heard).tell()] == [1, 0]
    rows.database.advance(0.2 * DAY_S)
    assert expire(rows)
    assert [notifier(heard).tell(), notifier(heard).tell()] == [1, 0]
    assert kinds(heard) == [("proposal", "new"), ("expiring", "expiring"), ("expired", "undecided")]
    assert [d["command"].split()[1] for d in heard.documents] == ["proposal"] * 3


def test_no_reminder_when_none_is_wanted(rows: Rows, notifier: Callable[..., Notifier]) -> None:
    """With a ratio of 1 there is none, to the last minute."""
    propose(rows)
    heard = Heard()
    notifier(heard, remind_ratio=1.0).tell()
    rows.database.advance(DAY_S - 60)
    assert notifier(heard, remind_ratio=1.0).tell() == 0


def test_an_approval_that_nobody_claimed_in_time_is_told(rows: Rows, notifier: Callable[..., Notifier]) -> None:
    """Approved, never begun, stale: whoever approved it hears that it did not happen."""
    _, proposal_id = propose(rows)
    assert decide(rows, proposal_id, "approved") == "approved"
    rows.database.advance(DAY_S + 1)
    assert expire(rows)
    heard = Heard()
    assert [notifier(heard).tell(), notifier(heard).tell()] == [1, 0]
    assert kinds(heard) == [("expired", "unclaimed")]
    assert heard.documents[0]["id"] == proposal_id


def test_what_expired_long_ago_is_not_told(rows: Rows, notifier: Callable[..., Notifier]) -> None:
    """Whoever sets a hook up hears of what waits, not of the past."""
    propose(rows)
    rows.database.advance(DAY_S + 1)
    assert expire(rows)
    rows.database.advance(DAY_S + 1)
    assert notifier(Heard()).tell() == 0


def test_actions_in_review_and_corrections(rows: Rows, notifier: Callable[..., Notifier]) -> None:
    """An action in review and an open correction are told with the verb that shows each; asked again, told again."""
    worker = rows.ledger("worker")
    action_id = rows.propose(run="reviewed")["action_id"]
    rows.settle("person", worker, rows.claimed(worker, action_id))
    told = rows.build("succeeded", audience=["customer"])
    correction_id = f"C-{told[4:16].upper()}"
    rows.all(
        "INSERT INTO counterfoil.correction (correction_id, action_id, tenant, run, audience, rank)"
        " VALUES (%s, %s, 'acme', 'r1', '{customer}', 1) RETURNING 1",
        correction_id,
        told,
    )
    heard = Heard()
    assert [notifier(heard).tell(), notifier(heard).tell()] == [2, 0]
    by_kind = {document["kind"]: document for document in heard.documents}
    assert (by_kind["review"]["id"], by_kind["review"]["why"]) == (action_id, "policy_mismatch")
    assert by_kind["review"]["command"] == f"counterfoil review show {action_id}"
    assert by_kind["correction"]["command"] == f"counterfoil correction show {correction_id}"
    assert (by_kind["correction"]["audience"], by_kind["correction"]["why"]) == (["customer"], "new")

    asked = (
        "INSERT INTO counterfoil.review (action_id, tenant, verb, by_person, channel) VALUES (%s, 'acme', 'ask_again',"
    )
    rows.all(f"{asked} 'mia', 'cli') RETURNING 1", action_id)
    assert [r["kind"] for r in rows.all("SELECT kind FROM counterfoil.waiting_for_people")] == ["correction"]
    rows.all("UPDATE counterfoil.review SET answered_at = counterfoil.now(), answer = 'absent_too_early' RETURNING 1")
    assert notifier(heard).tell() == 1, "the answer left it in review: it waits again"
    assert heard.documents[-1]["id"] == action_id


def test_a_plan_is_one_notice(rows: Rows, notifier: Callable[..., Notifier]) -> None:
    """Of a plan: how many steps and how much money, no single tool; who sees any of it."""
    agent = rows.connect("agent")
    rows.propose(agent, run="planned", step="staged", target="t0", **{"class": "reversible", "staged": True})
    step = rows.identity(run="planned", step="commit-1")
    proposal_id = f"P-{step['action_id'][4:16].upper()}"
    agent.execute(
        "SELECT * FROM counterfoil.open_plan(%s, 'acme', 'planned', 'bot', '', 1, 3600, NULL, 3, 'commit-1')",
        (proposal_id,),
    )
    for place, audience in ((1, "finance"), (2, "customer")):
        # fmt: off
        rows.propose(agent, run="planned", step=f"commit-{place}", target=f"t{place}", proposal=proposal_id, place=place,
                     needs_approval=True, amount_minor=200, currency="usd", audience=[audience])
        # fmt: on
    heard = Heard()
    assert notifier(heard).tell() == 1
    document = heard.documents[0]
    assert (document["steps"], document["tool"], document["effect"]) == (2, None, None)
    assert (document["amount_minor"], document["currency"]) == (400, "usd")
    assert document["audience"] == ["customer", "finance"]


def test_a_failing_hook_is_tried_again_later_and_later(rows: Rows, notifier: Callable[..., Notifier]) -> None:
    """30 s, 60 s, 120 s …, an hour at most; between that nothing is tried, whatever the number of ticks; then it is told."""
    propose(rows)
    heard = Heard(failing="exit_1")
    delay_s = PAUSE_S
    for tries in range(1, 12):
        with capture_logs() as logs:
            assert [notifier(heard).tell(), notifier(heard).tell()] == [0, 0]
        assert len(heard.documents) == tries
        failed = [entry for entry in logs if entry["event"] == "notice_failed"]
        assert [(entry["code"], entry["tries"]) for entry in failed] == [("exit_1", tries)]
        assert SECRET not in str(logs)
        rows.database.advance(delay_s - 5)
        assert notifier(heard).tell() == 0
        rows.database.advance(6)
        delay_s = min(delay_s * 2, DELAY_MAX_S)
    heard.failing = None
    assert notifier(heard).tell() == 1
    assert len({document["notice"] for document in heard.documents}) == 1


def test_a_failing_hook_holds_the_others_back_for_a_while(rows: Rows, notifier: Callable[..., Notifier]) -> None:
    """One failure ends the tick; the notices behind it, and one that comes later, wait half a minute, not its hours."""
    for number in range(3):
        propose(rows, run=f"r{number}")
    heard = Heard(failing="timeout")
    notifier(heard).tell()
    propose(rows, run="later")
    notifier(heard).tell()
    assert len(heard.documents) == 1
    later = "UPDATE counterfoil.notice SET tries = 9, next_try_at = counterfoil.now() + interval '1 hour'"
    rows.owner.execute(f"{later} WHERE tries = 1".encode())
    rows.database.advance(PAUSE_S + 1)
    heard.failing = None
    assert notifier(heard).tell() == 3


def test_one_that_is_never_taken_holds_the_others_back_once(rows: Rows, notifier: Callable[..., Notifier]) -> None:
    """A receiver refuses one notice for ever: those behind it are told after half a minute, before it is tried again."""
    propose(rows, run="refused")
    propose(rows, run="fine")

    class Picky(Heard):
        def deliver(self, document: bytes) -> str | None:
            super().deliver(document)
            return "http_400" if self.documents[-1]["run"] == "refused" else None

    heard = Picky()
    assert notifier(heard).tell() == 0
    rows.database.advance(PAUSE_S + 1)
    assert notifier(heard).tell() == 1
    assert [document["run"] for document in heard.documents] == ["refused", "fine", "refused"]


def test_a_tick_ends_in_time(rows: Rows, notifier: Callable[..., Notifier]) -> None:
    """A slow hook that takes each notice gets no new one once the tick's time is over; the next tick goes on."""
    for number in range(3):
        propose(rows, run=f"r{number}")
    clock = [0.0]

    class Slow(Heard):
        def deliver(self, document: bytes) -> str | None:
            clock[0] += 6.0
            return super().deliver(document)

    heard = Slow()
    assert notifier(heard, timeout_s=10.0, monotonic=lambda: clock[0]).tell() == 2
    assert notifier(heard, timeout_s=10.0, monotonic=lambda: clock[0]).tell() == 1
    assert notifier(Heard(), batch=2).tell() == 0


def test_at_most_a_batch_a_tick(rows: Rows, notifier: Callable[..., Notifier]) -> None:
    """The rest is the next tick's."""
    for number in range(3):
        propose(rows, run=f"r{number}")
    heard = Heard()
    assert [notifier(heard, batch=2).tell(), notifier(heard, batch=2).tell()] == [2, 1]


def test_two_reconcilers_tell_once(rows: Rows, notifier: Callable[..., Notifier], at_once: AtOnce) -> None:
    """Six reconcilers at one moment, ten proposals: each is told once."""
    for number in range(10):
        propose(rows, run=f"r{number}")
    heard = Heard()
    made = [notifier(heard) for _ in range(6)]
    assert sum(at_once([each.tell for each in made])) == 10
    assert len({document["id"] for document in heard.documents}) == len(heard.documents) == 10


def test_one_hook_is_at_work_at_a_time(rows: Rows, notifier: Callable[..., Notifier]) -> None:
    """While a slow hook has a notice, ticks of other processes tell nothing: it costs one process, not all of them."""
    propose(rows, run="r1")
    propose(rows, run="r2")
    others: list[int] = []

    class Slow(Heard):
        def deliver(self, document: bytes) -> str | None:
            propose(rows, run=f"meanwhile-{len(others)}")
            others.append(notifier(Heard()).tell())
            return super().deliver(document)

    assert notifier(Slow(), batch=2).tell() == 2
    assert others == [0, 0]
    assert notifier(Heard()).tell() == 2, "what came meanwhile waits no longer than that"


@pytest.mark.parametrize("dies", ["before", "after"])
def test_a_reconciler_that_dies_is_followed_by_another(
    rows: Rows, notifier: Callable[..., Notifier], dies: str
) -> None:
    """Killed with a notice in hand, before or after telling it: told again once the claim is over, so at least once."""
    propose(rows)
    heard = Heard()

    class Dies(Heard):
        def deliver(self, document: bytes) -> str | None:
            if dies == "after":
                heard.deliver(document)
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        notifier(Dies()).tell()
    assert notifier(heard).tell() == 0, "the claim of the dead one still holds"
    rows.database.advance(TIMEOUT_S + PAUSE_S + 1)
    assert notifier(heard).tell() == 1
    assert len(heard.documents) == (2 if dies == "after" else 1)
    assert notifier(heard).tell() == 0


@pytest.mark.parametrize("broken", [0, 1])
def test_both_hooks_must_take_it(rows: Rows, notifier: Callable[..., Notifier], broken: int) -> None:
    """One that fails, the first or the second, silences no other; then both get it again; told is what both have taken."""
    propose(rows)
    hooks = [Heard(), Heard()]
    hooks[broken].failing = "cannot_start"
    assert notifier(*hooks).tell() == 0
    assert [len(hook.documents) for hook in hooks] == [1, 1]
    hooks[broken].failing = None
    rows.database.advance(PAUSE_S + 1)
    assert notifier(*hooks).tell() == 1
    assert [len(hook.documents) for hook in hooks] == [2, 2]


def test_old_notices_go(rows: Rows, notifier: Callable[..., Notifier]) -> None:
    """After a quarter what waits no more is forgotten; what still waits is kept, and so it is not told again."""
    _, decided = propose(rows, run="decided")
    worker = rows.ledger("worker")
    in_review = rows.propose(run="reviewed", step="note", target="2")["action_id"]
    rows.settle("person", worker, rows.claimed(worker, in_review))
    heard = Heard()
    assert notifier(heard).tell() == 2
    assert decide(rows, decided, "rejected") == "rejected"
    rows.database.advance(29 * DAY_S)
    assert notices.prune(worker, older_s=0) == 0, "thirty days are the least"
    rows.database.advance(62 * DAY_S)
    assert notices.prune(worker, older_s=90 * DAY_S) == 1
    assert [row["subject_id"] for row in rows.all("SELECT subject_id FROM counterfoil.notice")] == [in_review]
    assert notifier(heard).tell() == 0
