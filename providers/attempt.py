"""Decides what one attempt may do on the wire: its reads and one write, all within its time. No client is imported here."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Self

REPLY_BYTES_MAX = 1 << 20
CONNECT_TIMEOUT_S = 3.05
"""A little more than a TCP retransmission (3 s)."""


class SecondWrite(RuntimeError):
    """The client wanted to send another write in the same attempt: a hidden retry."""


class ReplyTooLarge(RuntimeError):
    """The reply is larger than `REPLY_BYTES_MAX`; it was not read to its end."""


class Requests:
    """Requests that were handed to the network while somebody counted."""

    def __init__(self) -> None:
        self.made = 0


_counted: ContextVar[Requests | None] = ContextVar("counted", default=None)


@contextmanager
def requests_counted() -> Iterator[Requests]:
    """Counts the requests of every transport of this thread within the block."""
    count = Requests()
    token = _counted.set(count)
    try:
        yield count
    finally:
        _counted.reset(token)


class OneAttempt:
    """What a client's transport keeps of the attempt under way. Used by one thread at a time; closed until opened."""

    def __init__(self) -> None:
        self.wrote = False
        """A write was handed to the network in the present attempt. False proves that none left."""
        self._writes_left = 0
        self._deadline_s = 0.0
        self._request_s = 0.0

    @contextmanager
    def attempt(self, *, timeout_s: float, writes_max: int, request_s: float | None = None) -> Iterator[Self]:
        """Opens the door for reads and `writes_max` writes, all within `timeout_s`, each within `request_s`.

        After a request that timed out there is no other: who hangs once is not asked again in the same attempt.
        """
        self.wrote, self._writes_left = False, writes_max
        self._deadline_s = time.monotonic() + timeout_s
        self._request_s = timeout_s if request_s is None else request_s
        try:
            yield self
        finally:
            self._writes_left, self._deadline_s = 0, 0.0

    def _left_s(self) -> float:
        """What the next request may take; 0 or less: there is none."""
        return min(self._request_s, self._deadline_s - time.monotonic())

    def _count(self) -> None:
        """One more request goes out; called by every transport, for each."""
        count = _counted.get()
        if count is not None:
            count.made += 1

    def _spend_write(self, what: str) -> None:
        """Takes one of the attempt's writes. Raises SecondWrite."""
        if self._writes_left < 1:
            raise SecondWrite(f"a further {what} was refused")
        self._writes_left -= 1

    def _end(self) -> None:
        """No further request in this attempt."""
        self._deadline_s = 0.0
