"""How people are told: a command or a webhook ends in time, whatever it does, and what it says is a code."""

from __future__ import annotations

import json
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from http.client import HTTPConnection
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from structlog.testing import capture_logs
from tests.integration.telling import TIMEOUT_S, notifier_of, propose

from counterfoil.reconciler.hooks import Command, Webhook
from counterfoil.reconciler.notify import Notifier

if TYPE_CHECKING:
    from tests.integration.conftest import Rows


@pytest.fixture
def notifier(rows: Rows) -> Callable[..., Notifier]:
    return notifier_of(rows)


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
        began = time.monotonic()
        until(lambda: time.monotonic() - began > 0.1)
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
