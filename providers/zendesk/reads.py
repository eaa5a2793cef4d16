"""Decides how zenpy is opened, and how Zendesk is read: whole answers or an exception, never a half list."""

from __future__ import annotations

import logging
from typing import Any
from urllib.parse import urlsplit

import requests
from zenpy import Zenpy
from zenpy.lib.api import TicketApi

from counterfoil.providers.oneshot import OneShot
from counterfoil.providers.zendesk.config import ZendeskConfig
from counterfoil.providers.zendesk.outcomes import external_id_of, is_ours, number_of

PAGE_SIZE = 100
PAGES_MAX = 20


class Incomplete(Exception):
    """The answer is malformed, or longer than `PAGES_MAX` pages: it proves nothing."""


class OneAnswer(requests.Session):
    """Sends our key, and hands zenpy no 429: it would wait in the worker and send again, without end."""

    def __init__(self) -> None:
        super().__init__()
        self.key: str | None = None
        """Goes out as the Idempotency-Key of the next requests; only a ticket's creation takes one."""
        self.reply: requests.Response | None = None
        """The last answer: zenpy gives back an object, a generator or a raw response, by what it recognises."""

    def request(self, method: str | bytes, url: str | bytes, *args: Any, **more: Any) -> requests.Response:
        self.reply = None
        if self.key is not None:
            more["headers"] = {**(more.get("headers") or {}), "Idempotency-Key": self.key}
        reply = super().request(method, url, *args, **more)
        if reply.status_code == 429:
            raise requests.HTTPError("HTTP 429", response=reply)
        self.reply = reply
        return reply


class Tickets(TicketApi):
    """zenpy's ticket calls, at the address of a configuration; zenpy itself takes one only from the process's variables."""

    netloc = ""

    @property
    def base_url(self) -> str:
        return self.netloc


def open_tickets(config: ZendeskConfig, transport: OneShot) -> tuple[Any, OneAnswer]:
    """zenpy's ticket calls and their session: nothing is cached, and each request is sent once.

    By default zenpy repeats a PUT three times (three more mails to a customer), waits out every 429, follows redirects,
    and answers a second read within 30 s from its cache.
    """
    logging.getLogger("zenpy").setLevel(logging.WARNING)  # below that it logs whole requests
    session = OneAnswer()
    login: dict[str, Any] = (
        {"email": config.email, "token": config.token} if config.email else {"oauth_token": config.token}
    )
    client: Any = Zenpy(subdomain="-", session=session, disable_cache=True, timeout=config.timeout_s, **login)
    transport.mount_on(session)
    where = urlsplit(config.server)
    shared = {"domain": "-", "subdomain": "-", "session": session, "timeout": config.timeout_s, "cache": client.cache}
    off = {"ratelimit": None, "ratelimit_budget": None, "ratelimit_request_interval": 0}
    make: Any = Tickets
    tickets: Any = make({**shared, **off})
    tickets.netloc, tickets.protocol = where.netloc, where.scheme
    tickets.api_prefix = f"{where.path.strip('/')}/api/v2".lstrip("/")
    return tickets, session


class ZendeskReads:
    """The reads that sends and look-ups share. Raises what zenpy raises, or Incomplete."""

    def __init__(self, tickets: Any) -> None:
        self._tickets = tickets

    def ticket(self, number: str) -> dict[str, Any]:
        """The ticket itself, which no index delays."""
        found = self._get(self._tickets.endpoint(id=number)).get("ticket")
        if not isinstance(found, dict) or number_of(found) != number or not isinstance(found.get("status"), str):
            raise Incomplete("malformed")
        return found

    def tickets_of(self, key: str) -> list[dict[str, Any]]:
        """The tickets with the external id of this key; of more than a page the first, which is several all the same."""
        wanted = external_id_of(key)
        found = self._page(self._tickets.endpoint(external_id=wanted), "tickets", None)[0]
        if any(ticket.get("external_id") != wanted for ticket in found):
            raise Incomplete("unfiltered")
        return found

    def audits(self, number: str) -> list[dict[str, Any]]:
        """Everything that was ever done to the ticket, oldest first."""
        audits: list[dict[str, Any]] = []
        cursor: str | None = None
        for _ in range(PAGES_MAX):
            items, cursor = self._page(self._tickets.endpoint.audits(id=number), "audits", cursor)
            audits += items
            if cursor is None:
                return audits
        raise Incomplete("too_many_pages")

    def audits_of(self, number: str, key: str) -> list[dict[str, Any]]:
        """The ticket's audits that carry this key."""
        return [audit for audit in self.audits(number) if is_ours(audit, key)]

    def _page(self, endpoint: Any, name: str, cursor: str | None) -> tuple[list[dict[str, Any]], str | None]:
        """One page, and the cursor of the next; by our own cursor, never by a URL that the answer names."""
        page = self._get(endpoint, **{"page[size]": str(PAGE_SIZE)}, **({"page[after]": cursor} if cursor else {}))
        items, meta = page.get(name), page.get("meta")
        if not isinstance(items, list) or not all(number_of(item) for item in items) or not isinstance(meta, dict):
            raise Incomplete("malformed")
        match meta.get("has_more"), meta.get("after_cursor"):
            case False, _:
                return items, None
            case True, str(after) if after:
                return items, after
            case _:
                raise Incomplete("malformed")

    def _get(self, endpoint: Any, **params: str) -> dict[str, Any]:
        reply = self._tickets._get(self._tickets._build_url(endpoint), raw_response=True, params=params)
        body = reply.json() if reply.status_code == 200 else None
        if not isinstance(body, dict):
            raise Incomplete("malformed")
        return body
