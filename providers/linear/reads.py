"""Decides how Linear is asked: one POST a document, a reading whole or an exception, never a half list."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Mapping, Sequence
from datetime import datetime
from http.cookiejar import DefaultCookiePolicy
from typing import Any

import requests

from counterfoil.providers.contract import Call
from counterfoil.providers.linear.config import LinearConfig
from counterfoil.providers.linear.documents import (
    BEFORE_ISSUE,
    FIND_COMMENTS,
    FIND_ISSUES,
    FIND_MANY_COMMENTS,
    FIND_MANY_ISSUES,
    READ_ISSUE,
    READS,
)
from counterfoil.providers.linear.outcomes import MARK, Answer, codes_of, data_of, id_of, mark_of
from counterfoil.providers.oneshot import OneShot
from counterfoil.providers.transport import answered_at

RATE_LIMITED = "rate_limited"
CALLS_MAX = 100
"""Asked about at once: their issues, twice over, fit into one answer."""


class Incomplete(Exception):
    """The answer to a reading is malformed, or has errors: it proves nothing. `code` is ours, `headers` are the answer's."""

    def __init__(self, code: str, headers: Mapping[str, str] | None = None) -> None:
        super().__init__(code)
        self.code = code
        self.headers: Mapping[str, str] = headers or {}


class NoSuchIssue(Exception):
    """Linear has no issue of that id or identifier, or shows it to us no more."""


class GraphQLOneShot(OneShot):
    """Every document is a POST: a reading is what is exactly one of our documents for reading, all else is a write."""

    def _writes(self, request: requests.PreparedRequest) -> bool:
        try:
            document = json.loads(request.body or b"")["query"]
        except (ValueError, KeyError, TypeError):
            return True
        return not isinstance(document, str) or document not in READS


def open_session(config: LinearConfig, transport: OneShot) -> requests.Session:
    """A session that sends each request once, with the credentials of this configuration and no cookies."""
    session = requests.Session()
    session.headers.clear()
    session.headers.update(
        {
            "Accept": "application/json",
            "Authorization": config.authorization,
            "Content-Type": "application/json",
            "User-Agent": "counterfoil",
        }
    )
    session.cookies.set_policy(DefaultCookiePolicy(allowed_domains=()))
    transport.mount_on(session)
    return session


class LinearReads:
    """The readings that sends and look-ups share. Raises what requests raises, Incomplete, or NoSuchIssue."""

    def __init__(self, session: requests.Session, url: str) -> None:
        self._session, self._url = session, url
        self.now: datetime | None = None
        """Linear's own time, as of the last answer; None where it did not say it."""

    def post(self, document: str, variables: Mapping[str, object]) -> Answer:
        """One document, once; whatever is answered."""
        body = json.dumps({"query": document, "variables": variables})
        reply = self._session.post(self._url, data=body, allow_redirects=False)
        self.now = answered_at(reply.headers)
        try:
            parsed: object = reply.json()
        except (ValueError, RecursionError):
            parsed = None
        return Answer(reply.status_code, reply.headers, parsed)

    def before_issue(self, call: Call) -> tuple[str | None, list[dict[str, Any]]]:
        """The id of the team that a creation names, None for no such team; and what has the creation's id already."""
        team = call.arguments["team"]
        data = self._ask(BEFORE_ISSUE, {"team": team, "id": id_of(call.key)})
        teams = _nodes(data, "teams", id=str, key=str)
        if len(teams) > 1 or any(each["key"] != team for each in teams):
            raise Incomplete("unfiltered")
        return (teams[0]["id"] if teams else None), _issues(data)

    def issues_of(self, call: Call) -> list[dict[str, Any]]:
        """Every issue with the call's id or mark, archived ones and those in the trash too."""
        data = self._ask(FIND_ISSUES, {"id": id_of(call.key), "mark": mark_of(call)})
        return _ours(call, _issues(data), "description")

    def comments_of(self, call: Call) -> list[dict[str, Any]]:
        """Every comment with the call's id or mark."""
        data = self._ask(FIND_COMMENTS, {"id": id_of(call.key), "mark": mark_of(call)})
        return _ours(call, _comments(data), "body")

    def issues_of_all(self, calls: Sequence[Call]) -> list[list[dict[str, Any]]]:
        """Of each call what `issues_of` gives, by one request. Raises Incomplete also where they are too many for that."""
        data = self._ask(FIND_MANY_ISSUES, {"filter": _filter(calls, "description")})
        return _each_ones(calls, _issues(data), "description", data.get("issues"))

    def comments_of_all(self, calls: Sequence[Call]) -> list[list[dict[str, Any]]]:
        """Of each call what `comments_of` gives, likewise."""
        data = self._ask(FIND_MANY_COMMENTS, {"filter": _filter(calls, "body")})
        return _each_ones(calls, _comments(data), "body", data.get("comments"))

    def issue(self, name: str, *, comment: str) -> tuple[dict[str, Any], dict[str, Any] | None]:
        """The issue of that id or identifier as it is now, with the states that close it, and a comment by its id."""
        data = self._ask(READ_ISSUE, {"issue": name, "comment": comment})
        issue, comments = _checked_issue(data.get("issue")), _comments(data)
        if len(comments) > 1 or any(each["id"] != comment for each in comments):
            raise Incomplete("unfiltered")
        _nodes(issue.get("team"), "states", id=str, name=str, type=str, position=(int, float))
        return issue, comments[0] if comments else None

    def _ask(self, document: str, variables: Mapping[str, object]) -> Mapping[str, Any]:
        answer = self.post(document, variables)
        data = data_of(answer)
        if data is not None:
            return data
        codes = codes_of(answer)
        if answer.status == 429 or any(code == "RATELIMITED" for code, _ in codes):
            raise Incomplete(RATE_LIMITED, answer.headers)
        of_issue = all(code == "INPUT_ERROR" and error.get("path") == ["issue"] for code, error in codes)
        if codes and of_issue and answer.status in (200, 400):
            raise NoSuchIssue
        raise Incomplete("malformed" if answer.status == 200 else f"http_{answer.status}", answer.headers)


def error_code(exc: Exception) -> str:
    """A short name for a failed reading."""
    return exc.code if isinstance(exc, Incomplete) else type(exc).__name__


def _ours(call: Call, items: list[dict[str, Any]], text_field: str) -> list[dict[str, Any]]:
    """The items, each of which must have the id or the mark that was asked for."""
    wanted, mark = id_of(call.key), mark_of(call)
    if any(item["id"] != wanted and mark not in (item[text_field] or "") for item in items):
        raise Incomplete("unfiltered")
    return items


def _filter(calls: Sequence[Call], text_field: str) -> dict[str, Any]:
    """By the ids and marks of all calls."""
    marks = [{text_field: {"contains": mark_of(call)}} for call in calls]
    return {"or": [{"id": {"in": [id_of(call.key) for call in calls]}}, *marks]}


def _each_ones(
    calls: Sequence[Call], items: list[dict[str, Any]], text_field: str, connection: object
) -> list[list[dict[str, Any]]]:
    """The items of each call; every item must be one's, and all of them must be there."""
    about = connection.get("pageInfo") if isinstance(connection, Mapping) else None
    if not isinstance(about, Mapping) or about.get("hasNextPage") is not False:
        raise Incomplete("too_many")
    by_mark: defaultdict[str, list[dict[str, Any]]] = defaultdict(list)
    by_id: defaultdict[str, list[dict[str, Any]]] = defaultdict(list)
    for item in items:
        by_id[item["id"]].append(item)
        for mark in set(MARK.findall(item[text_field] or "")):
            by_mark[mark].append(item)
    found = []
    for call in calls:
        marked = [item for item in by_mark[mark_of(call)] if item["id"] != id_of(call.key)]
        found.append([*by_id[id_of(call.key)], *marked])
    claimed = {id(item) for each in found for item in each}
    if any(id(item) not in claimed for item in items):
        raise Incomplete("unfiltered")
    return found


def _issues(data: Mapping[str, Any]) -> list[dict[str, Any]]:
    return [_checked_issue(issue) for issue in _nodes(data, "issues")]


def _checked_issue(issue: object) -> dict[str, Any]:
    if not isinstance(issue, dict) or not isinstance(issue.get("state"), dict):
        raise Incomplete("malformed")
    _check(issue, id=str, identifier=str, createdAt=str, description=(str, type(None)))
    _check(issue["state"], name=str, type=str)
    return issue


def _comments(data: Mapping[str, Any]) -> list[dict[str, Any]]:
    return _nodes(data, "comments", id=str, body=str, createdAt=str)


def _nodes(data: object, connected: str, /, **fields: type | tuple[type, ...]) -> list[dict[str, Any]]:
    connection = data.get(connected) if isinstance(data, Mapping) else None
    nodes = connection.get("nodes") if isinstance(connection, Mapping) else None
    if not isinstance(nodes, list):
        raise Incomplete("malformed")
    for node in nodes:
        _check(node, **fields)
    return nodes


def _check(item: object, **fields: type | tuple[type, ...]) -> None:
    if not isinstance(item, Mapping) or not all(isinstance(item.get(name), kind) for name, kind in fields.items()):
        raise Incomplete("malformed")
