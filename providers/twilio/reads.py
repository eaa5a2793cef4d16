"""Decides how Twilio's client is opened, and how Twilio is read: whole answers or an exception, never a half list."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any
from urllib.parse import parse_qs, urlsplit

import requests
from twilio.http import HttpClient
from twilio.http.response import Response
from twilio.rest import Client

from counterfoil.providers.oneshot import OneShot
from counterfoil.providers.twilio.config import TwilioConfig
from counterfoil.providers.twilio.outcomes import Reply, sid_of, status_of

PAGE_SIZE = 80
"""Of the longest texts, written with escapes, as many as surely fit into the 1 MiB that is read of a reply."""
PAGES_MAX = 20
_SILENT = logging.getLogger(f"{__name__}.silent")
_NO_ENVIRONMENT = {"TWILIO_REGION": "", "TWILIO_EDGE": ""}


class Incomplete(Exception):
    """The answer is malformed, or longer than `PAGES_MAX` pages: it proves nothing."""


class OneAnswer(HttpClient):
    """Twilio's own way to replace its HTTP client: ours sends through `OneShot`, logs nothing, and keeps the answer."""

    def __init__(self, transport: OneShot) -> None:
        super().__init__(_SILENT, False, None)
        self._session = requests.Session()
        transport.mount_on(self._session)
        self.reply: Reply | None = None
        """The last answer, None while there is none: the client's exceptions drop its headers."""

    def request(
        self,
        method: str,
        uri: str,
        params: dict[str, object] | None = None,
        data: dict[str, object] | None = None,
        headers: dict[str, str] | None = None,
        auth: tuple[str, str] | None = None,
        timeout: float | None = None,
        allow_redirects: bool = False,
    ) -> Response:
        del timeout, allow_redirects
        self.reply = None
        given: Any = {"params": params, "data": data, "headers": headers, "auth": auth}
        answer = self._session.request(method, uri, allow_redirects=False, **given)
        answer.encoding = "utf-8"
        self.reply = Reply(answer.status_code, answer.text, dict(answer.headers))
        return Response(answer.status_code, answer.text, dict(answer.headers))


def open_client(config: TwilioConfig, transport: OneShot) -> tuple[Client, OneAnswer]:
    """Twilio's client at the address of a configuration; it reads none of the process's variables."""
    http = OneAnswer(transport)
    client = Client(
        config.username or config.account_sid,
        config.token,
        config.account_sid,
        http_client=http,
        environment=_NO_ENVIRONMENT,
    )
    if config.base_url is not None:
        client.api.base_url = config.base_url
    return client, http


class TwilioReads:
    """The reads that sends and look-ups share. Raises what the client raises, or Incomplete."""

    def __init__(self, client: Client, http: OneAnswer) -> None:
        self._client, self._http = client, http

    def message(self, sid: str) -> Mapping[str, Any]:
        """The message itself."""
        self._client.messages(sid).fetch()
        body = self._body()
        if body.get("sid") != sid or not _is_message(body):
            raise Incomplete("malformed")
        return body

    def messages_to(self, number: str) -> list[Mapping[str, Any]]:
        """Every message that this number was ever sent, in no certain order.

        Not narrowed by sender or time: one that waits has neither yet, and what Twilio's filters then do, it does not say.
        """
        found: list[Mapping[str, Any]] = []
        at: dict[str, str] = {}
        for _ in range(PAGES_MAX):
            self._client.messages.page(to=number, page_size=PAGE_SIZE, **at)
            body = self._body()
            items = body.get("messages")
            if not isinstance(items, list) or not all(_is_message(item) for item in items):
                raise Incomplete("malformed")
            if any(item["to"] != number for item in items):
                raise Incomplete("unfiltered")
            found += items
            if "next_page_uri" not in body:
                raise Incomplete("malformed")
            if body["next_page_uri"] is None:
                return found
            at = _next_page(body["next_page_uri"])
        raise Incomplete("too_many_pages")

    def _body(self) -> dict[str, Any]:
        reply = self._http.reply
        body = reply.body() if reply is not None and reply.status == 200 else None
        if not isinstance(body, dict):
            raise Incomplete("malformed")
        return body


def _is_message(item: object) -> bool:
    """It has its id and status, its number, and a text, which may be empty."""
    return (
        isinstance(item, Mapping)
        and sid_of(item) is not None
        and status_of(item) is not None
        and isinstance(item.get("to"), str)
        and isinstance(item.get("body", 0), str | None)
    )


def _next_page(uri: object) -> dict[str, str]:
    """The cursor of the next page; the address that the answer names is not followed."""
    query = parse_qs(urlsplit(uri).query) if isinstance(uri, str) else {}
    token, number = query.get("PageToken"), query.get("Page")
    if not token or not number:
        raise Incomplete("malformed")
    return {"page_token": token[0], "page_number": number[0]}
