"""Decides how Jira is read: whole answers or an exception, never a half list that looks like absence."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any
from urllib.parse import quote

from jira import JIRA

from counterfoil.providers.jira.config import JiraConfig
from counterfoil.providers.jira.outcomes import OPEN_PROPERTY, PROPERTY, UNDO_PROPERTY, label_of, time_of
from counterfoil.providers.oneshot import OneShot
from counterfoil.providers.sanitise import clean_token

WEST_OF_UTC = timedelta(hours=12)
"""JQL reads a date in the account's time zone, which is at most this far behind UTC."""
PAGE_SIZE = 100
PAGES_MAX = 20
FIELDS = ("labels", "created", "status")
FIELDS_DATA_CENTER = (*FIELDS, "description", "creator")
PROPERTIES = f"{PROPERTY},{OPEN_PROPERTY},{UNDO_PROPERTY}"
"""What is read of a ticket to tell whether it is ours, and what became of it."""


class Incomplete(Exception):
    """The answer is malformed, or longer than `PAGES_MAX` pages: it proves nothing."""


def open_client(config: JiraConfig, transport: OneShot) -> Any:
    """A jira client that sends each request once: by default it repeats every verb, POST too, and follows redirects."""
    login = config.email if config.is_cloud else config.username
    client: Any = JIRA(
        server=config.server,
        basic_auth=(login, config.token) if login else None,
        token_auth=None if login else config.token,
        get_server_info=False,
        max_retries=0,
        timeout=config.timeout_s,
        logging=False,  # it logs replies that it cannot read
    )
    transport.mount_on(client._session)
    # Where it does not say Cloud, enhanced_search_issues returns None without asking.
    client.deploymentType = "Cloud" if config.is_cloud else "Server"
    client._fields_cache_value = {"labels": "labels"}  # we use field ids: no need to ask for their names first
    return client


class JiraReads:
    """The reads that sends and look-ups share. Raises what the client raises, or Incomplete."""

    def __init__(self, client: Any, *, is_cloud: bool) -> None:
        self._client = client
        self._is_cloud = is_cloud
        self._fields = FIELDS if is_cloud else FIELDS_DATA_CENTER
        self._own_name: str | None = None

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

    def version(self, issue: str) -> str:
        """Changes with whatever anybody does to the ticket: when it was last updated, in UTC, and its status's id.

        In UTC because Jira writes times in the account's own zone, which somebody may change.
        """
        ticket = self.get(f"issue/{issue}", fields="status,updated")
        status, updated = status_of(ticket), time_of(fields_of(ticket).get("updated"))
        status_id = clean_token(status.get("id"))
        if updated is None or status_id is None:
            raise Incomplete("malformed")
        return f"{updated.astimezone(UTC).isoformat(timespec='milliseconds')} in status {status_id[:64]}"

    def ticket(self, issue: str) -> dict[str, object]:
        """One ticket, by a key that a person may have typed, read from itself, with what a search gives of it."""
        ticket = self.get(f"issue/{quote(issue, safe='')}", fields=",".join(self._fields), properties=PROPERTIES)
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

    def own_name(self) -> str:
        """The login name of the account that asks, which stays with this client's credentials; Data Center's only."""
        if self._own_name is None:
            name = self.get("myself").get("name")
            if not isinstance(name, str) or not name:
                raise Incomplete("malformed")
            self._own_name = name
        return self._own_name

    def get(self, path: str, **params: str) -> dict[str, object]:
        """One JSON object."""
        answer = self._client._session.get(self._client._get_url(path), params=params).json()
        if not isinstance(answer, dict):
            raise Incomplete("malformed")
        return answer

    def _search(self, jql: str, *, back_to: datetime | None = None) -> list[dict[str, object]]:
        found: list[dict[str, object]] = []
        pages = self._pages(jql) if self._is_cloud else self._pages_by_offset(jql)
        for tickets, ended in pages:
            found += tickets
            if ended or (back_to is not None and _ends_before(found, back_to)):
                return found
        raise Incomplete("too_many_pages")

    def _pages(self, jql: str) -> Iterator[tuple[list[dict[str, Any]], bool]]:
        """At most `PAGES_MAX` pages of Cloud's search, each by the token of the one before, with whether it is the last."""
        token: str | None = None
        for _ in range(PAGES_MAX):
            tickets, token = self._page(jql, token)
            yield tickets, token is None
            if token is None:
                return

    def _page(self, jql: str, token: str | None) -> tuple[list[dict[str, Any]], str | None]:
        page = self._client.enhanced_search_issues(
            jql,
            nextPageToken=token,
            maxResults=PAGE_SIZE,
            fields=list(self._fields),
            properties=PROPERTIES,
            json_result=True,
        )
        if not isinstance(page, dict):
            raise Incomplete("no_search")
        tickets, following = _items(page, "issues"), page.get("nextPageToken")
        ended = following is None and page.get("isLast", True) is True
        if not ended and not isinstance(following, str):
            raise Incomplete("malformed")
        return tickets, following

    def _pages_by_offset(self, jql: str) -> Iterator[tuple[list[dict[str, Any]], bool]]:
        """At most `PAGES_MAX` pages of Data Center's search, which may be shorter than asked for.

        Each may come from another node with an index of its own: where they do not agree on how many tickets there are, one
        may have slipped through between two pages.
        """
        start, total = 0, None
        for _ in range(PAGES_MAX):
            page = self._client.search_issues(
                jql, startAt=start, maxResults=PAGE_SIZE, fields=list(self._fields), json_result=True
            )
            if not isinstance(page, dict) or not isinstance(page.get("total"), int) or page.get("startAt") != start:
                raise Incomplete("malformed")
            tickets = _items(page, "issues")
            start, before, total = start + len(tickets), total, page["total"]
            if before not in (None, total) or (not tickets and start < total):
                raise Incomplete("changed_between_pages")
            yield tickets, start >= total
            if start >= total:
                return


def _ends_before(tickets: Sequence[Mapping[str, object]], time: datetime) -> bool:
    """Whether the last of these, newest first, says that it was created before that time."""
    created = time_of(fields_of(tickets[-1]).get("created")) if tickets else None
    return created is not None and created < time


def properties_of(item: Mapping[str, object]) -> dict[str, object]:
    """An item's properties by name; tickets give a mapping, comments a list."""
    properties = item.get("properties")
    if isinstance(properties, list):
        return {str(p.get("key")): p.get("value") for p in properties if isinstance(p, dict)}
    return properties if isinstance(properties, dict) else {}


def fields_of(ticket: Mapping[str, object]) -> Mapping[str, object]:
    """A ticket's fields, {} where it has none."""
    fields = ticket.get("fields")
    return fields if isinstance(fields, Mapping) else {}


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
