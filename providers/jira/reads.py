"""Decides how Jira is read: whole answers or an exception, never a half list that looks like absence."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any
from urllib.parse import quote

from jira import JIRA

from counterfoil.providers.jira.config import JiraConfig
from counterfoil.providers.jira.outcomes import OPEN_PROPERTY, PROPERTY, UNDO_PROPERTY, label_of, time_of
from counterfoil.providers.oneshot import OneShot
from counterfoil.providers.sanitise import clean_id

WEST_OF_UTC = timedelta(hours=12)
"""JQL reads a date in the account's time zone, which is at most this far behind UTC."""
PAGE_SIZE = 100
PAGES_MAX = 20
FIELDS = ("labels", "created", "status")
PROPERTIES = f"{PROPERTY},{OPEN_PROPERTY},{UNDO_PROPERTY}"
"""What is read of a ticket to tell whether it is ours, and what became of it."""


class Incomplete(Exception):
    """The answer is malformed, or longer than `PAGES_MAX` pages: it proves nothing."""


def open_client(config: JiraConfig, transport: OneShot) -> Any:
    """A jira client that sends each request once: by default it repeats every verb, POST too, and follows redirects."""
    client: Any = JIRA(
        server=config.server,
        basic_auth=(config.email, config.token),
        get_server_info=False,
        max_retries=0,
        timeout=config.timeout_s,
        logging=False,  # it logs replies that it cannot read
    )
    transport.mount_on(client._session)
    client.deploymentType = "Cloud"  # else enhanced_search_issues returns None without asking
    client._fields_cache_value = {"labels": "labels"}  # we use field ids: no need to ask for their names first
    return client


class JiraReads:
    """The reads that sends and look-ups share. Raises what the client raises, or Incomplete."""

    def __init__(self, client: Any) -> None:
        self._client = client

    def tickets_with_labels(self, keys: Sequence[str]) -> list[dict[str, object]]:
        """Every ticket that carries the label of one of these keys, as far as the index knows."""
        labels = ", ".join(f'"{label_of(key)}"' for key in keys)
        return self._search(f"labels in ({labels}) ORDER BY created")

    def tickets_since(self, project: str, since: datetime) -> list[dict[str, object]]:
        """Every ticket of the project created since `since`, and some older ones, as far as the index knows.

        The query alone would give half a day too many. Newest first, so that reading ends where `since` is reached.
        """
        bound = (since - WEST_OF_UTC).astimezone(UTC).strftime("%Y-%m-%d %H:%M")
        return self._search(f'project = "{project}" AND created >= "{bound}" ORDER BY created DESC', back_to=since)

    def status(self, issue: str) -> dict[str, object]:
        """The ticket's status, read from the ticket itself."""
        return status_of(self.get(f"issue/{issue}", fields="status"))

    def status_and_properties(self, issue: str, name: str) -> tuple[dict[str, object], dict[str, object]]:
        """The ticket's status, and its properties of this name, in one reading."""
        ticket = self.get(f"issue/{issue}", fields="status", properties=name)
        return status_of(ticket), properties_of(ticket)

    def version(self, issue: str) -> str:
        """Changes with whatever anybody does to the ticket: when it was last updated, in UTC, and its status's id.

        In UTC because Jira writes times in the account's own zone, which somebody may change.
        """
        ticket = self.get(f"issue/{issue}", fields="status,updated")
        fields, status = ticket.get("fields"), status_of(ticket)
        updated = time_of(fields.get("updated")) if isinstance(fields, Mapping) else None
        status_id = clean_id(status.get("id"))
        if updated is None or status_id is None:
            raise Incomplete("malformed")
        return f"{updated.astimezone(UTC).isoformat(timespec='milliseconds')} in status {status_id[:64]}"

    def ticket(self, issue: str) -> dict[str, object]:
        """One ticket, by a key that a person has typed, with what a search gives of it."""
        ticket = self.get(f"issue/{quote(issue, safe='')}", fields=",".join(FIELDS), properties=PROPERTIES)
        if not ticket.get("id"):
            raise Incomplete("malformed")
        return ticket

    def transitions(self, issue: str) -> list[dict[str, Any]]:
        """The moves that the ticket's workflow allows now."""
        return _items(self.get(f"issue/{issue}/transitions"), "transitions")

    def comments(self, issue: str) -> list[dict[str, Any]]:
        """Every comment of the ticket, with properties."""
        comments: list[dict[str, Any]] = []
        for _ in range(PAGES_MAX):
            page = self.get(
                f"issue/{issue}/comment", expand="properties", startAt=str(len(comments)), maxResults=str(PAGE_SIZE)
            )
            items, total = _items(page, "comments"), page.get("total")
            if not isinstance(total, int):
                raise Incomplete("malformed")
            comments += items
            if len(comments) >= total:
                return comments
            if not items:
                raise Incomplete("malformed")
        raise Incomplete("too_many_pages")

    def get(self, path: str, **params: str) -> dict[str, object]:
        """One JSON object."""
        answer = self._client._session.get(self._client._get_url(path), params=params).json()
        if not isinstance(answer, dict):
            raise Incomplete("malformed")
        return answer

    def _search(self, jql: str, *, back_to: datetime | None = None) -> list[dict[str, object]]:
        found: list[dict[str, object]] = []
        token: str | None = None
        for _ in range(PAGES_MAX):
            page = self._client.enhanced_search_issues(
                jql,
                nextPageToken=token,
                maxResults=PAGE_SIZE,
                fields=list(FIELDS),
                properties=PROPERTIES,
                json_result=True,
            )
            if not isinstance(page, dict):
                raise Incomplete("no_search")
            found += _items(page, "issues")
            token = page.get("nextPageToken")
            if token is None and page.get("isLast", True) is True:
                return found
            if back_to is not None and _ends_before(found, back_to):
                return found
            if not isinstance(token, str):
                raise Incomplete("malformed")
        raise Incomplete("too_many_pages")


def _ends_before(tickets: Sequence[Mapping[str, object]], time: datetime) -> bool:
    """Whether the last of these, newest first, says that it was created before that time."""
    fields = tickets[-1].get("fields") if tickets else None
    created = time_of(fields.get("created")) if isinstance(fields, Mapping) else None
    return created is not None and created < time


def properties_of(item: Mapping[str, object]) -> dict[str, object]:
    """An item's properties by name; tickets give a mapping, comments a list."""
    properties = item.get("properties")
    if isinstance(properties, list):
        return {str(p.get("key")): p.get("value") for p in properties if isinstance(p, dict)}
    return properties if isinstance(properties, dict) else {}


def status_of(ticket: Mapping[str, object]) -> dict[str, object]:
    """The status among a ticket's fields, with a name. Raises Incomplete."""
    fields = ticket.get("fields")
    status = fields.get("status") if isinstance(fields, dict) else None
    if not isinstance(status, dict) or not isinstance(status.get("name"), str):
        raise Incomplete("malformed")
    return status


def _items(page: Mapping[str, object], name: str) -> list[dict[str, Any]]:
    items = page.get(name)
    if not isinstance(items, list) or not all(isinstance(item, dict) and item.get("id") for item in items):
        raise Incomplete("malformed")
    return items
