"""Decides that one attempt is one write on Slack's wire, within its time, with a reply of at most 1 MiB.

slack-sdk speaks through urllib, which follows redirects, takes proxies from the environment, and wraps a connection that
broke while the request was written in the same URLError as one that was never made. So the one method in which the SDK
touches the network is replaced: it connects first, and only then writes. The SDK still builds requests and reads answers.
"""

from __future__ import annotations

import http.client
import logging
import socket
import ssl
import threading
import time
from contextlib import suppress
from typing import Any
from urllib.parse import urlsplit
from urllib.request import Request

from slack_sdk import WebClient

from counterfoil.providers.attempt import CONNECT_TIMEOUT_S, REPLY_BYTES_MAX, OneAttempt, ReplyTooLarge
from counterfoil.providers.slack.config import SlackConfig

READS = frozenset(
    {
        "auth.test",
        "conversations.info",
        "conversations.history",
        "conversations.replies",
        "chat.scheduledMessages.list",
    }
)
"""Every call is a POST, so these alone count as reads."""


class DeadlinePassed(TimeoutError):
    """The attempt's time was used up before this request, or while it was made."""


class Wire(WebClient, OneAttempt):
    """slack-sdk's client. Used by one thread at a time; every request needs an open `attempt`."""

    def __init__(self, config: SlackConfig) -> None:
        WebClient.__init__(self, token=config.token, base_url=config.base_url, retry_handlers=[], logger=_silent())
        self.proxy = None  # it has read the environment's
        OneAttempt.__init__(self)
        self._tls = ssl.create_default_context()

    def _perform_urllib_http_request_internal(self, url: str, req: Request) -> dict[str, Any]:
        """One exchange; any status is an answer, a redirect too."""
        left_s = self._left_s()
        if left_s <= 0:
            raise DeadlinePassed("no time left for this request")
        writes = urlsplit(url).path.rpartition("/")[2] not in READS
        if writes:
            self._spend_write("write")
        until_s = time.monotonic() + left_s
        connection = self._connection(url, min(CONNECT_TIMEOUT_S, left_s))
        # A timeout of the socket begins anew with every byte: a server that drips would hold the worker for ever.
        cut = threading.Timer(left_s, _cut, (connection,))
        cut.daemon = True
        cut.start()
        try:
            connection.connect()
            left_s = until_s - time.monotonic()
            if left_s <= 0:
                raise TimeoutError
            connection.sock.settimeout(left_s)
            self._count()
            self.wrote = self.wrote or writes
            answer = _exchange(connection, req)
            if time.monotonic() >= until_s:  # what was cut may look like the end
                raise TimeoutError
            return answer
        except (OSError, http.client.HTTPException) as exc:
            if isinstance(exc, TimeoutError) or time.monotonic() >= until_s:
                self._end()
                raise DeadlinePassed("the request did not end in time") from exc
            raise
        finally:
            cut.cancel()
            connection.close()

    def _connection(self, url: str, connect_s: float) -> http.client.HTTPConnection:
        parts = urlsplit(url)
        if parts.scheme == "https" and parts.hostname:
            return http.client.HTTPSConnection(parts.hostname, parts.port, timeout=connect_s, context=self._tls)
        if parts.scheme == "http" and parts.hostname:
            return http.client.HTTPConnection(parts.hostname, parts.port, timeout=connect_s)
        raise ValueError("no address of an API")


def _exchange(connection: http.client.HTTPConnection, req: Request) -> dict[str, Any]:
    headers = {**dict(req.header_items()), "Connection": "close"}
    connection.request("POST", req.selector, body=req.data, headers=headers)
    reply = connection.getresponse()
    body = reply.read(REPLY_BYTES_MAX + 1)
    if len(body) > REPLY_BYTES_MAX:
        raise ReplyTooLarge("the reply is over 1 MiB")
    if reply.length:  # what its headers have promised and did not come
        raise http.client.IncompleteRead(b"", reply.length)
    return {"status": reply.status, "headers": reply.headers, "body": body.decode()}


def _cut(connection: http.client.HTTPConnection) -> None:
    sock = connection.sock
    if sock is not None:
        with suppress(OSError):
            sock.shutdown(socket.SHUT_RDWR)


def _silent() -> logging.Logger:
    """The SDK logs whole requests below WARNING and whole answers above."""
    logger = logging.getLogger(f"{__name__}.sdk")
    logger.setLevel(logging.CRITICAL + 1)
    return logger
