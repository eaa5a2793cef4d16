"""The one transport of the clients built on `requests`: one write an attempt, whole answers, all within its time."""

from __future__ import annotations

import logging
import socket
import ssl
import threading
import time
from pathlib import Path
from typing import Any

import pytest
import requests
from tests.unit.test_transport import LOOPBACK_PEM, OK, failure, peer, read_request

from counterfoil.providers.attempt import REPLY_BYTES_MAX, SecondWrite
from counterfoil.providers.oneshot import OneShot
from counterfoil.providers.outcomes import NotSent, Uncertain
from counterfoil.providers.transport import classify_exception, classify_status


def one_shot() -> tuple[requests.Session, OneShot]:
    session, transport = requests.Session(), OneShot()
    transport.mount_on(session)
    return session, transport


def test_a_second_write_is_refused() -> None:
    """A hidden retry raises instead of leaving; outside an attempt nothing leaves at all."""
    served: list[bytes] = []

    def answer(connection: socket.socket) -> None:
        served.append(read_request(connection))
        connection.sendall(OK.replace(b"\r\n\r\n", b"\r\nConnection: close\r\n\r\n"))

    session, transport = one_shot()
    with peer(answer) as port:
        url = f"http://127.0.0.1:{port}/"
        with transport.attempt(timeout_s=2, writes_max=1):
            assert not transport.wrote
            session.post(url)
            assert transport.wrote
            with pytest.raises(SecondWrite):
                session.post(url)
            assert session.get(url).text == "ok"
        with pytest.raises(requests.exceptions.ReadTimeout):
            session.get(url)
    assert len(served) == 2


def test_an_endless_reply_is_given_up() -> None:
    """A reply over 1 MiB is not read to its end, and proves nothing."""

    def flood(connection: socket.socket) -> None:
        read_request(connection)
        connection.sendall(b"HTTP/1.1 200 OK\r\n\r\n" + b"x" * (REPLY_BYTES_MAX + 1))

    session, transport = one_shot()
    with peer(flood) as port, transport.attempt(timeout_s=5, writes_max=1):
        exc = failure(lambda: session.post(f"http://127.0.0.1:{port}/"))
    assert classify_exception(exc) == Uncertain("reply_too_large", evidence="ReplyTooLarge")


def test_a_dripping_reply_is_bounded() -> None:
    """Bytes that arrive one by one cannot hold the worker longer than the attempt's time."""
    waiting = threading.Event()

    def drip(connection: socket.socket) -> None:
        read_request(connection)
        connection.sendall(b"HTTP/1.1 200 OK\r\n\r\n")
        for _ in range(200):
            connection.sendall(b"x")
            waiting.wait(0.02)

    session, transport = one_shot()
    with peer(drip) as port, transport.attempt(timeout_s=0.3, writes_max=1):
        outcome = classify_exception(failure(lambda: session.post(f"http://127.0.0.1:{port}/")))
        waiting.set()
    assert isinstance(outcome, Uncertain)
    assert outcome.code == "read_timeout"


def test_each_request_has_its_own_time() -> None:
    """Several requests may take longer together than one may; one that hangs ends at its own limit, and is the last."""
    waiting, served = threading.Event(), 0

    def answer(connection: socket.socket) -> None:
        nonlocal served
        served += 1
        read_request(connection)
        waiting.wait(0.2 if served < 4 else 5)
        connection.sendall(OK.replace(b"\r\n\r\n", b"\r\nConnection: close\r\n\r\n"))

    session, transport = one_shot()
    with peer(answer) as port, transport.attempt(timeout_s=60, writes_max=0, request_s=0.5):
        url = f"http://127.0.0.1:{port}/"
        assert [session.get(url).text for _ in range(3)] == ["ok"] * 3
        for _ in range(2):
            with pytest.raises(requests.exceptions.ReadTimeout):
                session.get(url)
        waiting.set()
    assert served == 4


@pytest.mark.parametrize("interim", [102, 103])
def test_no_late_answer_is_heard_by_another_request(interim: int) -> None:
    """What an interim answer announced ends with its connection: the next request cannot get it as its own."""

    def announce(connection: socket.socket) -> None:
        if not read_request(connection).startswith(b"POST /first"):
            connection.sendall(OK)
            return
        connection.sendall(f"HTTP/1.1 {interim} Soon\r\n\r\n".encode())
        if connection.recv(65536):  # the next one, on this connection
            connection.sendall(OK.replace(b"ok", b"1."))

    session, transport = one_shot()
    with peer(announce) as port:
        with transport.attempt(timeout_s=2, writes_max=1):
            first = session.post(f"http://127.0.0.1:{port}/first")
            assert isinstance(classify_status(first.status_code), Uncertain)
        with transport.attempt(timeout_s=2, writes_max=1):
            assert session.post(f"http://127.0.0.1:{port}/second").text == "ok"


@pytest.mark.parametrize(
    ("head", "drop"),
    [
        (b"", b"HTTP/1.1 100 Continue\r\n\r\n"),
        (b"HTTP/1.1 200 OK\r\nX-Wait: ", b"."),
        (b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n", b"0"),
        (b"HTTP/1.1 200 OK\r\n\r\n", b"x"),
    ],
)
def test_an_answer_that_drips_is_cut_off(head: bytes, drop: bytes) -> None:
    """No part of an answer, interim ones included, may take longer than the attempt by coming in small pieces."""
    waiting = threading.Event()

    def drip(connection: socket.socket) -> None:
        read_request(connection)
        connection.sendall(head)
        for _ in range(200):
            connection.sendall(drop)
            waiting.wait(0.02)

    session, transport = one_shot()
    with peer(drip) as port, transport.attempt(timeout_s=0.3, writes_max=1):
        started = time.monotonic()
        outcome = classify_exception(failure(lambda: session.post(f"http://127.0.0.1:{port}/")))
        took_s = time.monotonic() - started
        waiting.set()
    assert isinstance(outcome, Uncertain)
    assert (outcome.code, took_s < 1.5) == ("read_timeout", True)


def test_nothing_is_sent_after_the_attempt_s_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """A connection that was long in coming carries no write: the lease that allowed it may have ended."""
    served: list[bytes] = []
    look_up = socket.getaddrinfo

    def slow(*args: Any, **more: Any) -> Any:
        threading.Event().wait(0.4)
        return look_up(*args, **more)

    monkeypatch.setattr(socket, "getaddrinfo", slow)
    session, transport = one_shot()
    server = peer(lambda connection: served.append(connection.recv(65536)))
    with server as port, transport.attempt(timeout_s=0.2, writes_max=1):
        outcome = classify_exception(failure(lambda: session.post(f"http://127.0.0.1:{port}/")))
    assert outcome == NotSent("connect_timeout")
    assert b"".join(served) == b""


def test_no_address_and_no_answer_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    """An address may hold arguments; urllib3 writes it down where an answer's headers are malformed, with the headers."""

    def malformed(connection: socket.socket) -> None:
        read_request(connection)
        connection.sendall(OK.replace(b"\r\n\r\n", b"\r\nprose without a colon\r\n\r\n"))

    session, transport = one_shot()
    with peer(malformed) as port, caplog.at_level(logging.DEBUG), transport.attempt(timeout_s=2, writes_max=1):
        assert session.post(f"http://127.0.0.1:{port}/customers/jo@example.com").text == "ok"
    assert "jo@example.com" not in caplog.text
    assert "prose" not in caplog.text


def test_an_encrypted_answer_is_cut_off(tmp_path: Path) -> None:
    """Under TLS, too, and what has arrived by then is no answer."""
    pem, tls = tmp_path / "loopback.pem", ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    pem.write_text(LOOPBACK_PEM)
    tls.load_cert_chain(pem)
    waiting = threading.Event()

    def drip(connection: socket.socket) -> None:
        with tls.wrap_socket(connection, server_side=True) as wrapped:
            read_request(wrapped)
            wrapped.sendall(b"HTTP/1.1 200 OK\r\n\r\n{}")
            for _ in range(200):
                wrapped.sendall(b" ")
                waiting.wait(0.02)

    session, transport = one_shot()
    session.verify = str(pem)
    with peer(drip) as port, transport.attempt(timeout_s=0.3, writes_max=1):
        started = time.monotonic()
        outcome = classify_exception(failure(lambda: session.post(f"https://127.0.0.1:{port}/")))
        took_s = time.monotonic() - started
        waiting.set()
    assert isinstance(outcome, Uncertain)
    assert (outcome.code, took_s < 1.5) == ("read_timeout", True)
