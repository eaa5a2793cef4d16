"""Decides that one attempt is one write on the wire, within its time, with a reply of at most 1 MiB.

The clients' own retries and redirects are switched off where each client is made; this is the belt to those braces. It
is mounted on the client's `requests.Session`, so a write that it did not see did not leave. Loaded in workers only.

Time is kept by a timer that cuts the connection: a socket's own timeout begins anew with every byte, and no timeout bounds
how long a name is looked up. A connection that was long in coming carries nothing. One on which something may still be
said is not used again: its next words would be taken for the answer to another request.
"""

from __future__ import annotations

import logging
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

import requests
import urllib3
from requests.adapters import HTTPAdapter
from urllib3.connection import HTTPConnection, HTTPSConnection
from urllib3.connectionpool import HTTPConnectionPool, HTTPSConnectionPool
from urllib3.exceptions import ConnectTimeoutError

from counterfoil.providers.attempt import CONNECT_TIMEOUT_S, REPLY_BYTES_MAX, OneAttempt, ReplyTooLarge

ALLOWANCE_S = 0.1
"""How much later than the socket's own timeout a connection is cut."""
logging.getLogger("urllib3").setLevel(logging.ERROR)  # below that it logs addresses, and headers that it cannot read
_CHUNK_BYTES = 1 << 16
_READS_MAX = REPLY_BYTES_MAX
_SAFE_METHODS = frozenset({"GET", "HEAD", "OPTIONS"})


class DeadlinePassed(requests.exceptions.ReadTimeout):
    """The attempt's time was used up before this request, or while its reply dripped in."""


class _Line:
    """The connection of the request under way, and when it is cut. Shared with the timer's thread."""

    def __init__(self) -> None:
        self.until_s = 0.0
        self.heard: HTTPConnection | None = None
        self.sock: socket.socket | None = None
        """What the connection was heard on; the connection itself gives it up where its answer ends with it."""
        self.is_over = False

    @property
    def is_cut(self) -> bool:
        """The answer that was being heard was cut off."""
        return self.is_over and self.heard is not None

    def hears(self, connection: HTTPConnection) -> None:
        """An answer is expected on this connection. Raises TimeoutError where it is too late for one."""
        self.heard, self.sock = connection, connection.sock
        if self.is_over:
            raise TimeoutError

    @contextmanager
    def open_for(self, left_s: float) -> Iterator[None]:
        """Whatever is said in here is cut off after `left_s`, and a little for the socket's own timeout to come first."""
        self.until_s, self.is_over = time.monotonic() + left_s, False
        self.heard = self.sock = None
        timer = threading.Timer(left_s + ALLOWANCE_S, self._cut)
        timer.daemon = True
        timer.start()
        try:
            yield
        finally:
            timer.cancel()

    def close(self) -> None:
        """Ends the connection, for the other side as well, wherever it is kept."""
        if self.heard is not None:
            self.heard.close()

    def _cut(self) -> None:
        self.is_over = True
        sock = self.sock
        if sock is not None:
            with suppress(OSError):
                socket.socket.shutdown(sock, socket.SHUT_RDWR)  # that of a TLS socket would unwrap it under its reader


def _pools(line: _Line) -> dict[str, type[HTTPConnectionPool]]:
    """urllib3's own, with connections that `line` knows of, and that carry nothing once its time has passed."""

    def in_time(connection: HTTPConnection) -> None:
        if time.monotonic() > line.until_s:
            connection.close()
            raise ConnectTimeoutError(connection, "connected too late")

    class Plain(HTTPConnection):
        def connect(self) -> None:
            super().connect()
            in_time(self)

        def getresponse(self) -> Any:
            line.hears(self)
            return super().getresponse()

    class Tls(HTTPSConnection):
        def connect(self) -> None:
            super().connect()
            in_time(self)

        def getresponse(self) -> Any:
            line.hears(self)
            return super().getresponse()

    class PlainPool(HTTPConnectionPool):
        ConnectionCls: Any = Plain

    class TlsPool(HTTPSConnectionPool):
        ConnectionCls: Any = Tls

    return {"http": PlainPool, "https": TlsPool}


class OneShot(HTTPAdapter, OneAttempt):
    """The transport of one client. Used by one thread at a time; every request needs an open `attempt`."""

    def __init__(self) -> None:
        HTTPAdapter.__init__(self, max_retries=0, pool_connections=1, pool_maxsize=1)
        OneAttempt.__init__(self)
        self._line = _Line()
        self.poolmanager.pool_classes_by_scheme = _pools(self._line)

    def mount_on(self, session: requests.Session) -> None:
        """Takes over the session: no redirects, no environment proxies, no netrc."""
        session.max_redirects = 0
        session.trust_env = False
        session.mount("http://", self)
        session.mount("https://", self)

    def send(self, request: requests.PreparedRequest, *args: Any, **more: Any) -> requests.Response:
        """Sends within what is left of the attempt (the client's own `timeout` is ignored) and reads the reply."""
        left_s = self._left_s()
        if left_s <= 0:
            raise DeadlinePassed("no time left for this request", request=request)
        if self._writes(request):
            self._spend_write(str(request.method))
            self.wrote = True
        self._count()
        more |= {"stream": True, "timeout": (min(CONNECT_TIMEOUT_S, left_s), left_s)}
        try:
            with self._line.open_for(left_s):
                reply = self._answer(request, *args, **more)
        except (requests.exceptions.Timeout, urllib3.exceptions.TimeoutError):
            self._end()
            raise
        if not 200 <= reply.status_code < 500:
            self._line.close()  # an interim answer, or a gateway's: the real one may still come on this connection
        return reply

    def _answer(self, request: requests.PreparedRequest, *args: Any, **more: Any) -> requests.Response:
        """The whole answer. What was cut off is none, however complete it looks."""
        try:
            reply = super().send(request, *args, **more)
            reply._content = self._body(reply)
        except Exception as exc:
            if self._line.is_cut:
                raise DeadlinePassed("the reply did not end in time", request=request) from exc
            raise
        if self._line.is_cut:
            raise DeadlinePassed("the reply did not end in time", request=request)
        return reply

    def _writes(self, request: requests.PreparedRequest) -> bool:
        """Whether the request may change anything; in doubt it does."""
        return request.method not in _SAFE_METHODS

    def _body(self, reply: requests.Response) -> bytes:
        body = bytearray()
        for _ in range(_READS_MAX):
            chunk = reply.raw.read1(_CHUNK_BYTES, decode_content=True)
            if not chunk:
                return bytes(body)
            body += chunk
            if len(body) > REPLY_BYTES_MAX:
                reply.close()
                raise ReplyTooLarge("the reply is over 1 MiB")
        reply.close()
        raise ReplyTooLarge("the reply came in too many pieces")
