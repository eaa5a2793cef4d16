"""Decides what a Jira issue does: create, read, edit, move, comment, delete, properties. No deduplication of any kind."""

from __future__ import annotations

import re
import time
from typing import Any

from counterfoil.sandbox.jira_errors import base_url, document, listed, no_issue, refuse, refuse_fields
from counterfoil.sandbox.jira_site import index, is_cloud, user
from counterfoil.sandbox.jira_workflow import (
    FIRST_STATUS,
    is_open,
    resolution_of,
    status_json,
    target_of,
    transitions_from,
)
from counterfoil.sandbox.store import Store
from counterfoil.sandbox.wire import Json, Reply, Request

ISSUE, COMMENT = "issue", "comment"
ISSUE_TYPES = ("Task", "Bug", "Story", "Incident", "Support")
LABEL_OF_KEY = "cf-"

_FIRST_ID = 10_001
_TEXT_MAX, _LABEL_MAX = 255, 255
_SETTABLE = re.compile(
    r"(project|issuetype|summary|description|labels|priority|assignee|reporter|duedate|customfield_\d+)"
)


def create(store: Store, request: Request) -> Reply:
    fields, properties = _object(request.body, "fields"), _properties(request.body)
    project = _project(store, fields)
    issue_type = _issue_type(fields)
    if not isinstance(fields.get("summary"), str) or not fields["summary"].strip():
        raise refuse_fields(summary="You must specify a summary of the issue.")
    _check_fields(request, fields)
    status = FIRST_STATUS
    if not is_cloud(store):
        properties = {}  # Data Center does not promise to keep them, nor to move the new issue
    elif transition := request.body.get("transition"):
        status = _moved(status, transition)
    issue_id = str(store.next_number("issue", _FIRST_ID))
    now = store.now()
    issue: Json = {
        "id": issue_id,
        "key": f"{project}-{store.next_number(f'project:{project}', store.config.first_issue)}",
        "project": project,
        "issuetype": issue_type,
        "fields": {name: value for name, value in fields.items() if name not in ("project", "issuetype")},
        "status": status,
        "creator": user(store, request),
        "properties": properties,
        "created": now,
        "updated": now,
    }
    issue["fields"].setdefault("labels", [])
    store.put(ISSUE, issue_id, issue)
    store.put("issue_key", issue["key"], {"id": issue_id})
    _index(store, issue)
    key = _key_of(issue["fields"]["labels"], properties)
    store.record_effect("jira", "ticket", issue["key"], key=key, data={"status": status})
    return Reply(201, {"id": issue_id, "key": issue["key"], "self": f"{base_url(request)}/issue/{issue_id}"})


def retrieve(store: Store, request: Request) -> Reply:
    fields = listed(request.query.get("fields")) or ["*all"]
    properties = listed(request.query.get("properties"))
    return Reply(200, shown(store, request, load(store, request), fields, properties))


def edit(store: Store, request: Request) -> Reply:
    issue = load(store, request)
    fields, update = _object(request.body, "fields"), _object(request.body, "update")
    labels = _updated_labels(issue["fields"]["labels"], update)
    _check_fields(request, {**fields, "labels": fields.get("labels", labels)})
    issue["fields"] |= {"labels": labels, **fields}
    issue["properties"] |= _properties(request.body)
    _save(store, issue)
    return Reply(204)


def delete(store: Store, request: Request) -> Reply:
    issue = load(store, request)
    store.delete(ISSUE, issue["id"])
    store.delete("issue_key", issue["key"])
    index(store, ISSUE, issue["id"], None, [])
    store.record_effect("jira", "ticket_deletion", issue["key"])
    return Reply(204)


def list_transitions(store: Store, request: Request) -> Reply:
    return Reply(200, {"transitions": transitions_from(load(store, request)["status"])})


def transition(store: Store, request: Request) -> Reply:
    issue = load(store, request)
    before, after = issue["status"], _moved(issue["status"], request.body.get("transition"))
    comments = [entry.get("add") for entry in _object(request.body, "update").get("comment", [])]
    checked = [
        (entry, document(request, entry.get("body"), "comment")) for entry in comments if isinstance(entry, dict)
    ]
    issue["status"] = after
    if is_cloud(store):
        issue["properties"] |= _properties(request.body)
    _save(store, issue)
    key = _key_of([], _properties(request.body))
    store.record_effect("jira", "transition", issue["key"], key=key, data={"from": before, "to": after})
    for entry, body in checked:
        _add_comment(store, issue, body, entry, user(store, request))
    return Reply(204)


def add_comment(store: Store, request: Request) -> Reply:
    issue = load(store, request)
    if not request.body.get("body"):
        raise refuse_fields(comment="Comment body can not be empty!")
    body = document(request, request.body["body"], "comment")
    comment = _add_comment(store, issue, body, request.body, user(store, request))
    _save(store, issue)  # a comment updates its issue
    return Reply(201, _shown_comment(store, request, comment))


def edit_comment(store: Store, request: Request) -> Reply:
    issue, comment = load(store, request), store.get(COMMENT, request.match["id"])
    if comment is None or comment["issue"] != issue["id"]:
        raise refuse(404, "Can not find a comment for the id.")
    comment |= {"body": document(request, request.body.get("body"), "comment"), "updated": store.now()}
    store.put(COMMENT, comment["id"], comment)
    _save(store, issue)
    return Reply(200, _shown_comment(store, request, comment))


def delete_comment(store: Store, request: Request) -> Reply:
    issue, comment = load(store, request), store.get(COMMENT, request.match["id"])
    if comment is None or comment["issue"] != issue["id"]:
        raise refuse(404, "Can not find a comment for the id.")
    store.delete(COMMENT, comment["id"])
    _save(store, issue)
    store.record_effect("jira", "comment_deletion", comment["id"])
    return Reply(204)


def list_comments(store: Store, request: Request) -> Reply:
    issue = load(store, request)
    comments = [_shown_comment(store, request, comment) for comment in _comments(store, issue)]
    start = int((request.query.get("startAt") or ["0"])[0])
    most = int((request.query.get("maxResults") or ["5000"])[0])
    page = comments[start : start + most]
    return Reply(200, {"startAt": start, "maxResults": most, "total": len(comments), "comments": page})


def get_comment_property(store: Store, request: Request) -> Reply:
    comment = store.get(COMMENT, request.match["id"])
    if comment is None:
        raise refuse(404, "Can not find a comment for the id.")
    return _property(comment["properties"], request.match["property"])


def list_properties(store: Store, request: Request) -> Reply:
    issue, base = load(store, request), base_url(request)
    keys = [{"key": name, "self": f"{base}/issue/{issue['id']}/properties/{name}"} for name in issue["properties"]]
    return Reply(200, {"keys": keys})


def get_property(store: Store, request: Request) -> Reply:
    return _property(load(store, request)["properties"], request.match["property"])


def set_property(store: Store, request: Request) -> Reply:
    issue, name = load(store, request), request.match["property"]
    existed = name in issue["properties"]
    issue["properties"][name] = request.body
    _save(store, issue)
    return Reply(200 if existed else 201)


def load(store: Store, request: Request) -> Json:
    """The issue that the path names by key or id."""
    issue = by_name(store, request.match["issue"])
    if issue is None:
        raise no_issue()
    return issue


def by_name(store: Store, name: str) -> Json | None:
    """The issue with this key or id, as the store has it now."""
    known = {"id": name} if name.isdigit() else store.get("issue_key", name.upper())
    return store.get(ISSUE, known["id"]) if known else None


def count_open(store: Store) -> int:
    return sum(is_open(issue["status"]) for issue in store.page(ISSUE, limit=1_000_000))


def shown(store: Store, request: Request, issue: Json, fields: list[str], properties: list[str]) -> Json:
    """The issue as Jira sends it, with these fields (`*all`, `*navigable`, `-name`) and these properties."""
    every = _all_fields(issue, base_url(request))
    whole = bool({"*all", "*navigable"} & set(fields))
    chosen = {name: value for name, value in every.items() if (whole or name in fields) and f"-{name}" not in fields}
    if "*all" in fields or "comment" in fields:
        comments = [_shown_comment(store, request, comment) for comment in _comments(store, issue)]
        chosen["comment"] = {"comments": comments, "total": len(comments)}
    sent: Json = {"id": issue["id"]}
    if fields not in ([], ["id"]):
        sent |= {"key": issue["key"], "self": f"{base_url(request)}/issue/{issue['id']}", "fields": chosen}
    if properties:
        have = issue["properties"]
        sent["properties"] = {name: have[name] for name in have if name in properties or "*all" in properties}
    return sent


def timestamp(seconds: float) -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(seconds)) + f".{int(seconds % 1 * 1000):03d}+0000"


def _all_fields(issue: Json, base: str) -> Json:
    key, status, type_id = issue["project"], status_json(issue["status"]), _type_id(issue["issuetype"])
    return {
        "description": None,
        **issue["fields"],
        "project": {"self": f"{base}/project/10000", "key": key, "name": key, "id": "10000"},
        "issuetype": {"self": f"{base}/issuetype/{type_id}", "name": issue["issuetype"], "id": type_id},
        "status": {"self": f"{base}/status/{status['id']}", **status},
        "resolution": resolution_of(issue["status"]),
        "creator": issue["creator"],
        "created": timestamp(issue["created"]),
        "updated": timestamp(issue["updated"]),
    }


def _save(store: Store, issue: Json) -> None:
    issue["updated"] = store.now()
    store.put(ISSUE, issue["id"], issue)
    _index(store, issue)


def _index(store: Store, issue: Json) -> None:
    terms = [f"label={label}" for label in issue["fields"]["labels"]]
    index(store, ISSUE, issue["id"], issue, [*terms, f"key={issue['key']}"])


def _project(store: Store, fields: Json) -> str:
    given = fields.get("project")
    key = given.get("key") if isinstance(given, dict) else None
    if isinstance(given, dict) and given.get("id") == "10000":
        key = store.config.projects[0]
    if key not in store.config.projects:
        raise refuse_fields(project="valid project is required")
    return str(key)


def _issue_type(fields: Json) -> str:
    given = fields.get("issuetype")
    given = given if isinstance(given, dict) else {}
    for name in ISSUE_TYPES:
        if given.get("name") == name or given.get("id") == _type_id(name):
            return name
    raise refuse_fields(issuetype="Specify a valid issue type")


def _type_id(name: str) -> str:
    return str(10_001 + ISSUE_TYPES.index(name))


def _check_fields(request: Request, fields: Json) -> None:
    errors: dict[str, str] = {}
    for name in fields:
        if not _SETTABLE.fullmatch(name):
            errors[name] = f"Field '{name}' cannot be set. It is not on the appropriate screen, or unknown."
    summary = fields.get("summary", "")
    if not isinstance(summary, str) or "\n" in summary:
        errors["summary"] = "The summary is invalid because it contains newline characters."
    elif len(summary) > _TEXT_MAX:
        errors["summary"] = "Summary can't exceed 255 characters."
    labels = fields.get("labels", [])
    if not isinstance(labels, list) or any(not isinstance(label, str) or not label for label in labels):
        errors["labels"] = "Labels must be a list of strings."
    else:
        for label in labels:
            if any(char.isspace() for char in label):
                errors["labels"] = f"The label '{label}' contains spaces which is invalid."
            elif len(label) > _LABEL_MAX:
                errors["labels"] = f"The label '{label}' exceeds the maximum length of {_LABEL_MAX} characters."
    if errors:
        raise refuse_fields(**errors)
    if fields.get("description") is not None:
        document(request, fields["description"], "description")


def _updated_labels(labels: list[str], update: Json) -> list[str]:
    result = list(labels)
    for change in update.get("labels", []):
        for verb, label in change.items():
            if verb == "set":
                result = list(label)
            elif verb == "add" and label not in result:
                result.append(label)
            elif verb == "remove" and label in result:
                result.remove(label)
    return result


def _moved(status: str, posted: Any) -> str:
    transition_id = str(posted.get("id")) if isinstance(posted, dict) else ""
    target = target_of(status, transition_id)
    if target is None:
        raise refuse(
            400,
            "It seems that you have tried to perform a workflow operation that is not valid for the current state of"
            f" this issue: transition {transition_id or 'without id'} from {status}.",
        )
    return target


def _object(body: Json, name: str) -> Json:
    value = body.get(name, {})
    if not isinstance(value, dict):
        raise refuse(400, f"{name} must be an object.")
    return value


def _properties(posted: Json) -> Json:
    given = posted.get("properties") or []
    if not isinstance(given, list) or any(not isinstance(p, dict) or not p.get("key") for p in given):
        raise refuse(400, "properties must be a list of objects with key and value.")
    return {entry["key"]: entry.get("value") for entry in given}


def _property(properties: Json, name: str) -> Reply:
    if name not in properties:
        raise refuse(404, f"The property {name} does not exist.")
    return Reply(200, {"key": name, "value": properties[name]})


def _add_comment(store: Store, issue: Json, body: Any, posted: Json, author: Json) -> Json:
    now = store.now()
    comment = {
        "id": str(store.next_number("comment", _FIRST_ID)),
        "issue": issue["id"],
        "author": author,
        "body": body,
        "visibility": posted.get("visibility"),
        "properties": _properties(posted),
        "created": now,
        "updated": now,
    }
    store.put(COMMENT, comment["id"], comment, parent=issue["id"])
    key = _key_of([], comment["properties"])  # also where they are not shown
    store.record_effect("jira", "comment", comment["id"], key=key, data={"issue": issue["key"]})
    return comment


def _comments(store: Store, issue: Json) -> list[Json]:
    return store.page(COMMENT, parent=issue["id"], limit=5000)[::-1]


def _shown_comment(store: Store, request: Request, comment: Json) -> Json:
    properties = [{"key": name, "value": value} for name, value in comment["properties"].items()]
    sent: Json = {
        "id": comment["id"],
        "self": f"{base_url(request)}/issue/{comment['issue']}/comment/{comment['id']}",
        "author": comment["author"],
        "body": comment["body"],
        "created": timestamp(comment["created"]),
        "updated": timestamp(comment["updated"]),
    }
    if is_cloud(store):  # Data Center's lists are not known to show them
        sent["properties"] = properties
    if comment["visibility"]:
        sent["visibility"] = comment["visibility"]
    return sent


def _key_of(labels: list[str], properties: Json) -> str | None:
    """The caller's key for the effect: its `cf-` label, else the `key` in the value of any property."""
    for label in labels:
        if label.startswith(LABEL_OF_KEY):
            return label.removeprefix(LABEL_OF_KEY)
    keys = [value.get("key") for value in properties.values() if isinstance(value, dict)]
    return next((key for key in keys if isinstance(key, str)), None)
