"""Decides that a session with a mail server or mailbox ends at its time, however slowly the other side speaks.

A timeout of the socket begins anew with every byte: a server that drips would hold the worker for ever. So a timer shuts the
connection down, in the middle of a TLS handshake, too.
"""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Sequence
from contextlib import suppress
from types import TracebackType
from typing import Any, Self

_Address = tuple[int, int, int, str, Any]
"""As the name service gives it; the last part is what is connected to."""


class Cut:
    """The time of one session, which begins now; used as a context manager around all of it."""

    def __init__(self, timeout_s: float) -> None:
        self._until = time.monotonic() + timeout_s
        self._twin: socket.socket | None = None
        self._timer = threading.Timer(max(0.0, timeout_s), self._cut)
        self._timer.daemon = True

    def __enter__(self) -> Self:
        self._timer.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, exc: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._timer.cancel()
        if self._twin is not None:
            self._twin.close()

    @property
    def in_time(self) -> bool:
        return time.monotonic() < self._until

    def left_s(self) -> float:
        """Seconds that are left, more than 0. Raises TimeoutError where none are."""
        left_s = self._until - time.monotonic()
        if left_s <= 0:
            raise TimeoutError
        return left_s

    def connect(self, host: str, port: int) -> socket.socket:
        """The session's connection, before any TLS; whoever wraps it is cut all the same. Of several addresses each gets its
        share of the time, so that one that hangs does not stand for all, and all of them together take no longer."""
        connection = self._reached(socket.getaddrinfo(host, port, type=socket.SOCK_STREAM))
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)  # what is written apart waits for no answer
        self._twin = connection.dup()  # the client's own object may be replaced, and detached, at any moment
        left_s = self._until - time.monotonic()
        if left_s <= 0:  # the timer may have found nothing to shut down
            connection.close()
            raise TimeoutError
        connection.settimeout(left_s)
        return connection

    def _reached(self, addresses: Sequence[_Address]) -> socket.socket:
        """A connection to the first address that takes one; else what the last one said."""
        for left, (_, _, _, _, address) in zip(reversed(range(len(addresses))), addresses, strict=True):
            try:
                return socket.create_connection(address[:2], timeout=self.left_s() / (left + 1))
            except OSError:
                if not left:
                    raise
        raise OSError("no address")

    def _cut(self) -> None:
        if self._twin is not None:
            with suppress(OSError):
                self._twin.shutdown(socket.SHUT_RDWR)
