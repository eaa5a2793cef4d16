"""Decides that one attempt is one write on the wire, within its time, with a reply of at most 1 MiB.

The clients' own retries and redirects are switched off where each client is made; this is the belt to those braces. It
is mounted on the client's `requests.Session`, so a write that it did not see did not leave. Loaded in workers only.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import requests
import urllib3
from requests.adapters import HTTPAdapter

REPLY_BYTES_MAX = 1 << 20
CONNECT_TIMEOUT_S = 3.05
"""A little more than a TCP retransmission (3 s)."""
_CHUNK_BYTES = 1 << 16
_READS_MAX = REPLY_BYTES_MAX
_SAFE_METHODS = frozenset({"GET", "HEAD", "OPTIONS"})


class SecondWrite(RuntimeError):
    """The client wanted to send another write in the same attempt: a hidden retry."""


class ReplyTooLarge(RuntimeError):
    """The reply is larger than `REPLY_BYTES_MAX`; it was not read to its end."""


class DeadlinePassed(requests.exceptions.ReadTimeout):
    """The attempt's time was used up before this request, or while its reply dripped in."""


class OneShot(HTTPAdapter):
    """The transport of one client. Used by one thread at a time; every request needs an open `attempt`."""

    def __init__(self) -> None:
        super().__init__(max_retries=0, pool_connections=1, pool_maxsize=1)
        self.wrote = False
        """A write was handed to the network in the present attempt. False proves that none left."""
        self._writes_left = 0
        self._deadline_s = 0.0
        self._request_s = 0.0

    @contextmanager
    def attempt(self, *, timeout_s: float, writes_max: int, request_s: float | None = None) -> Iterator[OneShot]:
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

    def mount_on(self, session: requests.Session) -> None:
        """Takes over the session: no redirects, no environment proxies, no netrc."""
        session.max_redirects = 0
        session.trust_env = False
        session.mount("http://", self)
        session.mount("https://", self)

    def send(self, request: requests.PreparedRequest, *args: Any, **more: Any) -> requests.Response:
        """Sends within what is left of the attempt (the client's own `timeout` is ignored) and reads the reply."""
        left_s = min(self._request_s, self._deadline_s - time.monotonic())
        if left_s <= 0:
            raise DeadlinePassed("no time left for this request", request=request)
        if self._writes(request):
            if self._writes_left < 1:
                raise SecondWrite(f"a further {request.method} was refused")
            self._writes_left -= 1
            self.wrote = True
        more |= {"stream": True, "timeout": (min(CONNECT_TIMEOUT_S, left_s), left_s)}
        until_s = time.monotonic() + left_s
        try:
            reply = super().send(request, *args, **more)
            reply._content = self._body(reply, until_s)
        except (requests.exceptions.Timeout, urllib3.exceptions.TimeoutError):
            self._deadline_s = 0.0
            raise
        return reply

    def _writes(self, request: requests.PreparedRequest) -> bool:
        """Whether the request may change anything; in doubt it does."""
        return request.method not in _SAFE_METHODS

    def _body(self, reply: requests.Response, until_s: float) -> bytes:
        body = bytearray()
        for _ in range(_READS_MAX):
            chunk = reply.raw.read1(_CHUNK_BYTES, decode_content=True)
            if not chunk:
                return bytes(body)
            body += chunk
            if len(body) > REPLY_BYTES_MAX:
                reply.close()
                raise ReplyTooLarge("the reply is over 1 MiB")
            if time.monotonic() > until_s:
                reply.close()
                raise DeadlinePassed("the reply did not end in time", request=reply.request)
        reply.close()
        raise ReplyTooLarge("the reply came in too many pieces")
