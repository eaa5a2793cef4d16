"""Decides which part of Jira's REST API exists here, under both of its versions: Cloud's or Data Center's."""

from __future__ import annotations

from counterfoil.sandbox import jira_issues as issues
from counterfoil.sandbox.jira_errors import base_url, error_body, refuse
from counterfoil.sandbox.jira_issues import ISSUE_TYPES
from counterfoil.sandbox.jira_search import search, search_by_offset
from counterfoil.sandbox.jira_site import is_cloud, user
from counterfoil.sandbox.store import Store
from counterfoil.sandbox.wire import Handler, Json, Provider, Reply, Request, Route

_FIELDS = ("summary", "description", "labels", "status", "issuetype", "project", "created", "updated", "resolution")


def _server_info(store: Store, request: Request) -> Reply:
    numbers: Json = {"version": "1001.0.0", "versionNumbers": [1001, 0, 0], "deploymentType": "Cloud"}
    if not is_cloud(store):  # which calls itself a server
        numbers = {"version": "9.12.15", "versionNumbers": [9, 12, 15], "deploymentType": "Server"}
    return Reply(200, {"baseUrl": base_url(request).split("/rest/")[0], **numbers})


def _fields(_store: Store, _request: Request) -> Reply:
    return Reply(200, [{"id": name, "key": name, "name": name.capitalize(), "custom": False} for name in _FIELDS])


def _project(store: Store, request: Request) -> Reply:
    key = request.match["project"].upper()
    if key not in store.config.projects:
        raise refuse(404, f"No project could be found with key '{key}'.")
    types = _types()
    self_url = f"{base_url(request)}/project/{key}"
    return Reply(200, {"id": "10000", "key": key, "name": key, "self": self_url, "issueTypes": types})


def _issue_types(_store: Store, _request: Request) -> Reply:
    return Reply(200, _types())


def _types() -> list[Json]:
    return [{"id": str(10_001 + number), "name": name, "subtask": False} for number, name in enumerate(ISSUE_TYPES)]


def _myself(store: Store, request: Request) -> Reply:
    return Reply(200, user(store, request))


def _not_found(_store: Store, _request: Request) -> Reply:
    raise refuse(404, "null for uri")


def _at(method: str, path: str, operation: str, handler: Handler) -> Route:
    return Route(method, "/rest/api/{v:[23]}/" + path, operation, handler)


JIRA = Provider(
    name="jira",
    error=error_body,
    routes=(
        _at("GET", "serverInfo", "server_info", _server_info),
        _at("GET", "myself", "myself", _myself),
        _at("GET", "field", "field.list", _fields),
        _at("GET", "issuetype", "issuetype.list", _issue_types),
        _at("GET", "project/{project}", "project.get", _project),
        _at("GET", "search/jql", "search", search),
        _at("POST", "search/jql", "search", search),
        _at("*", "search", "search_by_offset", search_by_offset),
        _at("POST", "issue", "issue.create", issues.create),
        _at("GET", "issue/{issue}", "issue.get", issues.retrieve),
        _at("PUT", "issue/{issue}", "issue.edit", issues.edit),
        _at("DELETE", "issue/{issue}", "issue.delete", issues.delete),
        _at("GET", "issue/{issue}/transitions", "issue.transitions", issues.list_transitions),
        _at("POST", "issue/{issue}/transitions", "issue.transition", issues.transition),
        _at("POST", "issue/{issue}/comment", "issue.comment", issues.add_comment),
        _at("GET", "issue/{issue}/comment", "issue.comments", issues.list_comments),
        _at("PUT", "issue/{issue}/comment/{id}", "issue.comment.edit", issues.edit_comment),
        _at("DELETE", "issue/{issue}/comment/{id}", "issue.comment.delete", issues.delete_comment),
        _at("GET", "comment/{id}/properties/{property}", "comment.property.get", issues.get_comment_property),
        _at("GET", "issue/{issue}/properties", "issue.property.list", issues.list_properties),
        _at("GET", "issue/{issue}/properties/{property}", "issue.property.get", issues.get_property),
        _at("PUT", "issue/{issue}/properties/{property}", "issue.property.set", issues.set_property),
        Route("*", "/{tail:.*}", "unknown", _not_found),
    ),
)
