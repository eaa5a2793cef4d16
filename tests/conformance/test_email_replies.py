"""A mail server that speaks out of turn: only what it says after the final dot is its answer to the message."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime

import pytest

from counterfoil.providers.contract import Call
from counterfoil.providers.email.client import EmailAdapter
from counterfoil.providers.email.config import EmailConfig
from counterfoil.providers.outcomes import NotSent, Outcome, Rejected, Succeeded

CALL = Call(
    action_id="act_1",
    tenant="acme",
    account="default",
    tool="email_send",
    key="e1" * 16,
    arguments={"to": "jo@example.com", "subject": "Your order", "body": "It is on its way.", "reference": "1182"},
    target="jo@example.com",
    first_sent_at=datetime(2026, 11, 30, 10, 0, tzinfo=UTC),
)


@contextmanager
def server(to_data: bytes, to_dot: bytes, taken: list[bytes]) -> Iterator[int]:
    """A server that says `to_data` at once to DATA and `to_dot` after the dot; what came whole is `taken`."""

    def serve(listener: socket.socket) -> None:
        try:
            client, _ = listener.accept()
        except OSError:  # nobody came
            return
        with client, client.makefile("rb") as lines:
            client.sendall(b"220 ready\r\n")
            message: list[bytes] | None = None
            for line in lines:
                if message is None:
                    message = [] if line == b"DATA\r\n" else None
                    client.sendall(to_data if message is not None else b"250 ok\r\n")
                elif line == b".\r\n":
                    taken.append(b"".join(message))
                    message = None
                    client.sendall(to_dot)
                else:
                    message.append(line)

    with socket.create_server(("127.0.0.1", 0)) as listener:
        thread = threading.Thread(target=serve, args=(listener,))
        thread.start()
        try:
            yield listener.getsockname()[1]
        finally:
            listener.shutdown(socket.SHUT_RDWR)
            thread.join()


@pytest.mark.parametrize(
    ("to_data", "to_dot", "outcome", "is_taken"),
    [
        (b"354 go\r\n", b"250 ok\r\n", Succeeded, True),
        (b"354 go\r\n", b"554 no\r\n", Rejected("dot_554"), True),
        (b"354 go\r\n250 ok\r\n", b"554 no\r\n", NotSent("body_250"), False),
        (b"354 go\r\n354 go\r\n", b"250 ok\r\n", NotSent("body_354"), False),
        (b"354 go\r\n552 too large\r\n", b"250 ok\r\n", Rejected("body_552"), False),
        (b"354 go\r\n452 full\r\n", b"250 ok\r\n", Rejected("body_452", retryable=True), False),
        (b"354 go\r\n421 closing\r\n", b"250 ok\r\n", Rejected("body_421", retryable=True), False),
    ],
)
def test_a_reply_before_the_dot_is_no_answer_to_it(
    to_data: bytes, to_dot: bytes, outcome: Outcome | type[Outcome], is_taken: bool
) -> None:
    """A stray 250 is no acceptance: the message is not ended then, so nobody has taken it."""
    taken: list[bytes] = []
    with server(to_data, to_dot, taken) as port:
        config = EmailConfig(host="127.0.0.1", port=port, tls="none", sender="shop@example.org")
        got = EmailAdapter(config).send(CALL, timeout_s=5)
    assert isinstance(got, outcome) if isinstance(outcome, type) else got == outcome
    assert bool(taken) is is_taken
