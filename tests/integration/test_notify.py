"""People are told what waits for them: once where all goes well, at least once whatever fails, and nothing that was said."""

from __future__ import annotations

import json
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from http.client import HTTPConnection
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from structlog.testing import capture_logs

from counterfoil.ledger import notices
from counterfoil.ledger.errors import ConfigError
from counterfoil.reconciler.hooks import Command, Hook, Webhook
from counterfoil.reconciler.notify import DELAY_MAX_S, PAUSE_S, Notifier

if TYPE_CHECKING:
    from tests.integration.conftest import Rows

AtOnce = Callable[[Sequence[Callable[[], Any]]], list[Any]]
SECRET = "the customer's secret"
TIMEOUT_S = 20.0
"""Of deliveries that are to work; nothing waits for it."""
DAY_S = 86_400.0


@dataclass
class Heard:
    """A hook that hears, or fails as it is told."""

    documents: list[dict[str, Any]] = field(default_factory=list)
    failing: str | None = None

    def deliver(self, document: bytes) -> str | None:
        self.documents.append(json.loads(document))
        return self.failing


@pytest.fixture
def notifier(rows: Rows) -> Callable[..., Notifier]:
    """Makes a reconciler's notifier, with a connection of its own."""

    def make(*hooks: Hook, **changes: Any) -> Notifier:
        given = {"timeout_s": TIMEOUT_S, "batch": 50, "remind_ratio": 0.8, **changes}
        return Notifier(ledger=rows.ledger("worker"), hooks=lambda: hooks, **given)

    return make


def propose(rows: Rows, **changes: Any) -> tuple[str, str]:
    """A gated call; (its action's id, its proposal's)."""
    arguments = json.dumps({"order_id": "1182", "text": SECRET})
    given = {"amount_minor": 500, "currency": "usd", "needs_approval": True, "arguments": arguments, **changes}
    action_id = rows.propose(**given)["action_id"]
    return action_id, f"P-{action_id[4:16].upper()}"


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


def script(folder: Path, code: str) -> tuple[str, ...]:
    """A program of a user's, as `[notify] command` names it."""
    path = folder / "hook.py"
    path.write_text(code)
    return (sys.executable, str(path))


def test_a_real_command(rows: Rows, notifier: Callable[..., Notifier], tmp_path: Path, monkeypatch: Any) -> None:
    """A program gets one JSON document on its standard input, and none of the worker's own secrets."""
    monkeypatch.setenv("COUNTERFOIL_DATABASE__URL", "postgresql://worker:s3cret@db/app")
    monkeypatch.setenv("HOOK_TOKEN", "its own")
    _, proposal_id = propose(rows)
    code = "import json, os, sys\njson.dump([json.load(sys.stdin), dict(os.environ)], open(sys.argv[1], 'w'))\n"
    command = (*script(tmp_path, code), str(tmp_path / "out.json"))
    assert notifier(Command(arguments=command, timeout_s=TIMEOUT_S)).tell() == 1
    heard, environment = json.loads((tmp_path / "out.json").read_text())
    assert heard["id"] == proposal_id
    assert environment["HOOK_TOKEN"] == "its own"
    assert "s3cret" not in str(environment)


@pytest.mark.parametrize(
    ("code", "told"),
    [
        ("import sys; sys.exit(3)", "exit_3"),
        ("import os; os.close(0)", None),
        ("import os, signal; os.kill(os.getpid(), signal.SIGTERM)", "exit_-15"),
        ("print('x' * 10_000_000)", None),
    ],
)
def test_how_a_command_ends(tmp_path: Path, code: str, told: str | None) -> None:
    """Only 0 is success; a command may say what it likes, and need not read."""
    hook = Command(arguments=script(tmp_path, code), timeout_s=TIMEOUT_S)
    assert hook.deliver(b"{}" * 100_000) == told


def test_a_command_that_is_not_there() -> None:
    """Is a code, no exception."""
    assert Command(arguments=("/nowhere/at-all",), timeout_s=TIMEOUT_S).deliver(b"{}") == "cannot_start"


def test_a_command_that_hangs_is_killed_with_its_children(tmp_path: Path) -> None:
    """It and the process that it has started are gone when the delivery ends."""
    child = f"import os, signal, time; open({str(tmp_path / 'child')!r}, 'w').write(str(os.getpid())); signal.pause()"
    code = f"import pathlib, signal, subprocess, sys\nsubprocess.Popen([sys.executable, '-c', {child!r}])\nsignal.pause()\n"
    assert Command(arguments=script(tmp_path, code), timeout_s=1.5).deliver(b"{}") == "timeout"
    pid = int((tmp_path / "child").read_text())
    until(lambda: not _runs(pid))


def test_a_tick_that_is_cut_short_leaves_no_command(tmp_path: Path) -> None:
    """A time limit that is raised in the middle of a delivery ends the command, too."""
    code = f"import os, signal; open({str(tmp_path / 'pid')!r}, 'w').write(str(os.getpid())); signal.pause()"
    hook = Command(arguments=script(tmp_path, code), timeout_s=TIMEOUT_S)

    def limit(_signal: int, _frame: object) -> None:
        raise InterruptedError

    before = signal.signal(signal.SIGALRM, limit)
    try:
        signal.setitimer(signal.ITIMER_REAL, 1.5)
        with pytest.raises(InterruptedError):
            hook.deliver(b"{}")
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
    pid = int((tmp_path / "pid").read_text())
    until(lambda: not _runs(pid))


@dataclass
class Receiver:
    """A local HTTP server that plays the other side of a webhook."""

    url: str
    answers: list[int]
    heard: list[tuple[str, str, dict[str, str], Any]] = field(default_factory=list)


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    """Answers the statuses of `answers`, then 200; 302 leads back to itself."""

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            made.heard.append(("POST", self.path, dict(self.headers), json.loads(body)))
            self.send_response(made.answers.pop(0) if made.answers else 200)
            self.send_header("Location", "/elsewhere")
            self.send_header("Content-Length", "0")
            self.end_headers()

        def do_GET(self) -> None:
            made.heard.append(("GET", self.path, dict(self.headers), None))
            self.send_response(200)
            self.end_headers()

        def log_request(self, code: object = "-", size: object = "-") -> None:
            """Says nothing."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    made = Receiver(f"http://127.0.0.1:{server.server_port}/hooks/T1?token=s3cret", [])
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    yield made
    server.shutdown()
    thread.join()
    server.server_close()


def test_a_real_webhook(
    rows: Rows, notifier: Callable[..., Notifier], receiver: Receiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One POST with the document, past any proxy of the environment; the address is in no log."""
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:1")
    monkeypatch.setenv("HTTP_PROXY", "http://127.0.0.1:1")
    _, proposal_id = propose(rows)
    with capture_logs() as logs:
        assert notifier(Webhook(url=receiver.url, timeout_s=TIMEOUT_S)).tell() == 1
    [(verb, path, headers, body)] = receiver.heard
    assert (verb, path, headers["Content-Type"]) == ("POST", "/hooks/T1?token=s3cret", "application/json")
    assert body["id"] == proposal_id
    assert "s3cret" not in str(logs)


@pytest.mark.parametrize("status", [302, 307, 401, 429, 500])
def test_only_2xx_is_success_and_no_redirect_is_followed(receiver: Receiver, status: int) -> None:
    """Any other status is a failure; the address in it is not called."""
    receiver.answers = [status]
    assert Webhook(url=receiver.url, timeout_s=TIMEOUT_S).deliver(b"{}") == f"http_{status}"
    assert len(receiver.heard) == 1


def test_a_webhook_that_is_away(unused_port: int) -> None:
    """Nobody listens: a code."""
    assert Webhook(url=f"http://127.0.0.1:{unused_port}/", timeout_s=TIMEOUT_S).deliver(b"{}") == "unreachable"


def test_a_name_that_takes_too_long_to_resolve(receiver: Receiver, monkeypatch: pytest.MonkeyPatch) -> None:
    """Connected only when the time was over: nothing is posted, since nobody would cut an answer that drips."""
    real = HTTPConnection.connect

    def connect(self: HTTPConnection) -> None:
        time.sleep(0.3)
        real(self)

    monkeypatch.setattr(HTTPConnection, "connect", connect)
    assert Webhook(url=receiver.url, timeout_s=0.1).deliver(b"{}") == "timeout"
    assert receiver.heard == []


@pytest.mark.parametrize("drips", [False, True])
def test_a_webhook_that_hangs_or_drips_is_cut(drips: bool) -> None:
    """Silence, or a byte now and then for ever: the delivery ends after its timeout, not after the last byte."""
    stop = threading.Event()
    with socket.create_server(("127.0.0.1", 0)) as server:

        def drip() -> None:
            connection, _ = server.accept()
            with connection, suppress(OSError):
                while not stop.wait(0.1):
                    if drips:
                        connection.sendall(b"H")

        thread = threading.Thread(target=drip)
        thread.start()
        began = time.monotonic()
        url = f"http://127.0.0.1:{server.getsockname()[1]}/"
        assert Webhook(url=url, timeout_s=0.5).deliver(b"{}") == "timeout"
        assert time.monotonic() - began < 5
        stop.set()
        thread.join()


@pytest.fixture
def unused_port() -> int:
    """A port on which nobody listens."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def until(holds: Callable[[], bool], *, within_s: float = 10.0) -> None:
    """Waits for a condition, with a deadline."""
    waiter, deadline = threading.Event(), time.monotonic() + within_s
    while not holds():
        assert time.monotonic() < deadline
        waiter.wait(0.02)


def _runs(pid: int) -> bool:
    """Whether the process is there and no zombie."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False
