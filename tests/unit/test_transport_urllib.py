"""Slack's wire, which replaces urllib's: what left, when, and what each broken connection proves, on real sockets."""

from __future__ import annotations

import http.client
import socket
import ssl
import threading
import time
from pathlib import Path

import pytest
from slack_sdk.errors import SlackApiError
from tests.unit.test_transport import (
    LOOPBACK_PEM,
    closed_port,
    finish,
    headers_then_stall,
    peer,
    read_request,
    reset,
    stall,
    truncate,
)

from counterfoil.providers.attempt import REPLY_BYTES_MAX, ReplyTooLarge, SecondWrite
from counterfoil.providers.contract import Call
from counterfoil.providers.outcomes import NotSent, Uncertain
from counterfoil.providers.slack.client import SlackAdapter
from counterfoil.providers.slack.config import SlackConfig
from counterfoil.providers.slack.wire import DeadlinePassed, Wire
from counterfoil.providers.transport import classify_exception

CALL = Call(
    action_id="act_1",
    tenant="acme",
    account="main",
    tool="slack_post",
    key="0" * 32,
    arguments={"channel": "C0123456789", "text": "Hello", "thread_ts": None, "audience": "customer"},
    target="C0123456789",
    first_sent_at=None,
)


def answer(body: bytes, status: str = "200 OK", more: str = "") -> bytes:
    return f"HTTP/1.1 {status}\r\n{more}Content-Length: {len(body)}\r\n\r\n".encode() + body


def whole_request(connection: socket.socket) -> bytes:
    """Headers and body: a peer that closes with a part unread resets the connection, and its answer may be lost."""
    data = read_request(connection)
    head, _, body = data.partition(b"\r\n\r\n")
    length = next(int(line[15:]) for line in head.lower().split(b"\r\n") if line.startswith(b"content-length:"))
    while len(body) < length and (more := connection.recv(65536)):
        body += more
    return head + body


def sent(base_url: str, timeout_s: float = 2.0) -> object:
    return SlackAdapter(SlackConfig(token="t", base_url=base_url)).send(CALL, timeout_s=timeout_s)


def test_no_connection_is_not_sent(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody listens, no such name, or no answer to the first packet: no byte of the request has left."""
    assert sent(f"http://127.0.0.1:{closed_port()}/api/") == NotSent("before_write_ConnectionRefusedError")
    assert sent("http://nowhere.invalid/api/") == NotSent("before_write_gaierror")

    def slow(*_args: object, **_more: object) -> socket.socket:
        raise TimeoutError

    monkeypatch.setattr(socket, "create_connection", slow)
    assert sent("http://127.0.0.1:1/api/") == NotSent("before_write_DeadlinePassed")


@pytest.mark.parametrize("base_url", ["ftp://127.0.0.1/api/", "https:///api/", "file:///etc/passwd"])
def test_what_is_no_address_is_not_sent(base_url: str) -> None:
    """Nothing but HTTP is spoken, whatever schemes urllib knows."""
    assert isinstance(sent(base_url), NotSent)


def test_a_failed_handshake_is_not_sent(tmp_path: Path) -> None:
    """A peer that speaks no TLS, whose certificate nobody vouches for, or that hangs: the request is not written."""
    pem = tmp_path / "cert.pem"
    pem.write_text(LOOPBACK_PEM)
    server = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    server.load_cert_chain(pem)

    def handshake(connection: socket.socket) -> None:
        with server.wrap_socket(connection, server_side=True) as wrapped:
            wrapped.recv(1)

    def speaks_plainly(connection: socket.socket) -> None:
        connection.sendall(answer(b"{}"))
        connection.recv(65536)

    for behaviour in (handshake, speaks_plainly, stall):
        with peer(behaviour) as port:
            assert isinstance(sent(f"https://127.0.0.1:{port}/api/", 0.5), NotSent), behaviour


@pytest.mark.parametrize(
    ("behaviour", "code"),
    [
        (reset, "exception"),
        (finish, "connection_lost"),
        (truncate, "connection_lost"),
        (stall, "read_timeout"),
        (headers_then_stall, "read_timeout"),
    ],
)
def test_a_connection_that_breaks_later_is_uncertain(behaviour: object, code: str) -> None:
    """Once the request has left, no end of its connection says what became of it."""
    with peer(behaviour) as port:  # type: ignore[arg-type]
        outcome = sent(f"http://127.0.0.1:{port}/api/", 0.5)
    assert isinstance(outcome, Uncertain)
    assert outcome.code == code


def test_a_reply_that_drips_ends_with_the_attempt() -> None:
    """A byte now and then keeps no worker: headers and body share the attempt's time."""

    def drip(connection: socket.socket) -> None:
        whole_request(connection)
        connection.sendall(b"HTTP/1.1 200 OK\r\n")
        stopped = threading.Event()
        for _ in range(200):
            connection.sendall(b"X")
            stopped.wait(0.05)

    with peer(drip) as port:
        began = time.monotonic()
        outcome = sent(f"http://127.0.0.1:{port}/api/", 0.4)
    assert isinstance(outcome, Uncertain)
    assert outcome.code == "read_timeout"
    assert time.monotonic() - began < 3


def test_a_reply_of_more_than_a_mebibyte_is_not_read() -> None:
    """The reply's size is bounded, and a success that is too large is none."""

    def flood(connection: socket.socket) -> None:
        whole_request(connection)
        connection.sendall(answer(b'{"ok": true, "x": "' + b"x" * REPLY_BYTES_MAX + b'"}'))

    with peer(flood) as port:
        outcome = sent(f"http://127.0.0.1:{port}/api/")
    assert isinstance(outcome, Uncertain)
    assert outcome.code == "reply_too_large"


@pytest.mark.parametrize("status", ["301 Moved", "302 Found", "303 See Other", "307 Again", "308 Again"])
def test_no_redirect_is_followed(status: str) -> None:
    """urllib follows a 302 as a GET, and a sign-on page's answer would become a success."""
    arrived: list[bytes] = []

    def redirect(connection: socket.socket) -> None:
        arrived.append(whole_request(connection))
        connection.sendall(answer(b"", status, "Location: /elsewhere\r\n"))

    with peer(redirect) as port:
        outcome = sent(f"http://127.0.0.1:{port}/api/")
    assert isinstance(outcome, Uncertain)
    assert outcome.code == f"http_{status[:3]}"
    assert len(arrived) == 1


def test_one_write_an_attempt_and_none_outside() -> None:
    """A second write is refused before it connects, reads are not; without an attempt nothing is sent."""
    arrived: list[bytes] = []

    def greet(connection: socket.socket) -> None:
        arrived.append(whole_request(connection))
        connection.sendall(answer(b'{"ok": true}'))

    with peer(greet) as port:
        wire = Wire(SlackConfig(token="t", base_url=f"http://127.0.0.1:{port}/api/"))
        with pytest.raises(DeadlinePassed):
            wire.auth_test()
        with wire.attempt(timeout_s=2, writes_max=1):
            wire.auth_test()
            assert not wire.wrote
            wire.chat_postMessage(channel="C0123456789", text="Hello")
            assert wire.wrote
            with pytest.raises(SecondWrite):
                wire.chat_postMessage(channel="C0123456789", text="Hello")
            wire.conversations_info(channel="C0123456789")
        with wire.attempt(timeout_s=2, writes_max=0), pytest.raises(SecondWrite):
            wire.chat_delete(channel="C0123456789", ts="1.2")
    assert len(arrived) == 3


def test_after_a_timeout_nothing_more_is_sent() -> None:
    """Who hangs once is not asked again in the same attempt."""
    with peer(stall) as port:
        wire = Wire(SlackConfig(token="t", base_url=f"http://127.0.0.1:{port}/api/"))
        with wire.attempt(timeout_s=5, writes_max=1, request_s=0.2):
            began = time.monotonic()
            for _ in range(2):
                with pytest.raises(DeadlinePassed):
                    wire.auth_test()
            assert time.monotonic() - began < 2
            assert not wire.wrote


def test_the_table_has_http_client_s_exceptions() -> None:
    """What http.client raises has its code in the one table; a class that is not on it is uncertain all the same."""
    for exc in (http.client.RemoteDisconnected(), http.client.IncompleteRead(b"", 3)):
        assert classify_exception(exc) == Uncertain("connection_lost", evidence=type(exc).__name__)
    assert classify_exception(DeadlinePassed()) == Uncertain("read_timeout", evidence="DeadlinePassed")
    assert classify_exception(ReplyTooLarge()) == Uncertain("reply_too_large", evidence="ReplyTooLarge")
    assert isinstance(classify_exception(http.client.BadStatusLine("x")), Uncertain)
    assert isinstance(classify_exception(SlackApiError("x", {})), Uncertain)
