"""Decides what searches return: the late index, but in Cloud the store itself for issues to reconcile."""

from __future__ import annotations

from typing import Any

from counterfoil.sandbox.jira_errors import listed, refuse
from counterfoil.sandbox.jira_issues import ISSUE, by_name, shown
from counterfoil.sandbox.jira_jql import Query, parse
from counterfoil.sandbox.jira_site import indexed, is_cloud
from counterfoil.sandbox.store import Store
from counterfoil.sandbox.wire import Json, Reply, Request

_PAGE_DEFAULT, _PAGE_MAX, _OFFSET_PAGE_MAX, _RECONCILE_MAX = 50, 5000, 1000, 50


def search(store: Store, request: Request) -> Reply:
    """By query (GET) or body (POST). `reconcileIssues` names up to 50 issue ids that are read without lag."""
    if not is_cloud(store):
        raise refuse(404, "null for uri")
    given = request.query if request.method == "GET" else request.body
    found = _found(store, given, listed(given.get("reconcileIssues")))
    start, most = _page(given)
    page = found[start : start + most]
    fields, properties = listed(given.get("fields")), listed(given.get("properties"))
    answer: Json = {"issues": [shown(store, request, issue, fields, properties) for issue in page]}
    answer["isLast"] = start + most >= len(found)
    if not answer["isLast"]:
        answer["nextPageToken"] = f"from-{start + most}"
    return Reply(200, answer)


def search_by_offset(store: Store, request: Request) -> Reply:
    """Data Center's search, which Cloud has removed. It shows no properties."""
    if is_cloud(store):
        raise refuse(
            410,
            "The requested API has been removed. Please migrate to the /rest/api/3/search/jql API. A full migration"
            " guideline is available at https://developer.atlassian.com/changelog/#CHANGE-2046",
        )
    given = request.query if request.method == "GET" else request.body
    found = _found(store, given, [])
    start, most = int(_one(given, "startAt", 0)), min(int(_one(given, "maxResults", _PAGE_DEFAULT)), _OFFSET_PAGE_MAX)
    if start < 0 or most < 0:
        raise refuse(400, "startAt and maxResults must not be negative.")
    fields = listed(given.get("fields")) or ["*navigable"]
    issues = [shown(store, request, issue, fields, []) for issue in found[start : start + most]]
    page = {"startAt": start, "maxResults": most, "total": len(found), "issues": issues}
    return Reply(200, {"expand": "schema,names", **page})


def _found(store: Store, given: Json, reconcile: list[str]) -> list[Json]:
    """What the query matches, in its order."""
    query = parse(str(_one(given, "jql", "")))
    for clause in query.clauses:
        unknown = [key for key in clause.values if clause.field == "project" and not _is_project(store, key)]
        if unknown:
            raise refuse(400, f"The value '{unknown[0]}' does not exist for the field 'project'.")
    issues = _visible(store, query, reconcile)
    found = [issue for issue in issues if query.matches(issue, store.now())]
    query.sort(found)
    return found


def _visible(store: Store, query: Query, reconcile: list[str]) -> list[Json]:
    if len(reconcile) > _RECONCILE_MAX:
        raise refuse(400, f"reconcileIssues takes at most {_RECONCILE_MAX} issue ids.")
    seen = {issue["id"]: issue for issue in indexed(store, ISSUE, _terms(query))}
    for issue_id in reconcile:
        now = by_name(store, issue_id)
        seen.pop(issue_id, None)
        if now is not None:
            seen[now["id"]] = now
    return list(seen.values())


def _terms(query: Query) -> list[str]:
    """Index terms of which every match has one; none where the query has no such clause."""
    for clause in query.clauses:
        if clause.field == "labels" and clause.op in ("=", "in"):
            return [f"label={label}" for label in clause.values]
    return []


def _page(given: Json) -> tuple[int, int]:
    most = int(_one(given, "maxResults", _PAGE_DEFAULT))
    token = str(_one(given, "nextPageToken", "from-0"))
    if not 1 <= most <= _PAGE_MAX or not token.removeprefix("from-").isdigit():
        raise refuse(400, "maxResults or nextPageToken is invalid.")
    return int(token.removeprefix("from-")), most


def _one(given: Json, name: str, default: Any) -> Any:
    value = given.get(name, default)
    return value[0] if isinstance(value, list) and value else value


def _is_project(store: Store, key: str) -> bool:
    return key.upper() in store.config.projects or key == "10000"
