"""Decides what a Linear issue and its comments do: created under an id of the caller's, moved, archived, deleted, filtered.

Every token is a workspace of its own. A list sees a write as late as a search elsewhere (`search_lag_s`); an issue that is
read by its id is as it is now. What a second creation under one id does, Linear does not say (`linear_duplicate_id`).
"""

from __future__ import annotations

import re
import uuid
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from counterfoil.sandbox.linear_errors import InputError
from counterfoil.sandbox.store import Store
from counterfoil.sandbox.wire import Json

ISSUE, COMMENT = "linear_issue", "linear_comment"
STATES = {
    "Triage": "triage",
    "Backlog": "backlog",
    "Todo": "unstarted",
    "In Progress": "started",
    "Done": "completed",
    "Canceled": "canceled",
    "Duplicate": "duplicate",
}
"""Every team's workflow, in order: name and type."""
FIRST_STATE = "Backlog"
_KEY = re.compile(r"cf-([0-9a-f]{32})")
_NAMES = uuid.UUID("6f1c2f5e-27a5-4c0b-8a44-3c1f2f1a9d10")
_TITLE_MAX = 512


def resolvers(store: Store, workspace: str) -> dict[str, Callable[..., Any]]:
    """The root fields of the schema, for one request."""
    world = _Workspace(store, workspace)
    return {
        "viewer": lambda _info: {"id": _id("viewer", workspace), "name": "Sandbox", "isMe": True},
        "teams": lambda _info, **given: _page(world.teams(), given, archived=True),
        "issue": lambda _info, id: world.shown(world.load(id)),  # noqa: A006 - the schema's name
        "issues": lambda _info, **given: _page([world.shown(i) for i in world.listed(ISSUE)], given),
        "comments": lambda _info, **given: _page([world.shown_comment(c) for c in world.listed(COMMENT)], given),
        "issueCreate": lambda _info, input: world.create(input),  # noqa: A006
        "issueUpdate": lambda _info, id, input: world.update(world.load(id), input),  # noqa: A006
        "issueArchive": lambda _info, id: world.archive(world.load(id), trash=False),  # noqa: A006
        "issueDelete": lambda _info, id: world.archive(world.load(id), trash=True),  # noqa: A006
        "commentCreate": lambda _info, input: world.comment(input),  # noqa: A006
        "commentDelete": lambda _info, id: world.delete_comment(id),  # noqa: A006
    }


@dataclass(frozen=True)
class _Workspace:
    """One workspace's objects."""

    store: Store
    account: str

    def create(self, given: Json) -> Json:
        team = self._team(given["teamId"])
        title, state = given.get("title"), self._state(team, given.get("stateId"))
        if not isinstance(title, str) or not 0 < len(title.strip()) <= _TITLE_MAX:
            raise InputError("title must be shorter than or equal to 512 characters", "title")
        issue_id, known = self._new_id(ISSUE, given.get("id"))
        fields = {"title": title, "description": given.get("description"), "state": state or FIRST_STATE}
        if known is not None:
            return self._saved(known | fields)
        number, now = self.store.next_number(f"linear:{self.account}:{team}", 1), self._now()
        identifier = f"{team}-{number}"
        issue: Json = {
            "id": issue_id,
            "identifier": identifier,
            "number": number,
            "team": team,
            "previousIdentifiers": [],
        }
        issue |= {**fields, "trashed": None, "archivedAt": None, "createdAt": now}
        answer = self._saved(issue)
        key = _key_of(issue["description"])
        self.store.record_effect("linear", "issue", identifier, key=key, data={"state": issue["state"]})
        return answer

    def update(self, issue: Json, given: Json) -> Json:
        before, team = issue["state"], issue["team"]
        changes: Json = {name: given[name] for name in ("title", "description") if name in given}
        if "teamId" in given:
            team = self._team(given["teamId"])
        state = self._state(team, given.get("stateId")) or before
        if team != issue["team"]:
            number = self.store.next_number(f"linear:{self.account}:{team}", 1)
            old = [*issue["previousIdentifiers"], issue["identifier"]]
            changes |= {"previousIdentifiers": old, "identifier": f"{team}-{number}", "number": number, "team": team}
        answer = self._saved(issue | changes | {"state": state})
        if STATES[state] == "canceled" != STATES[before]:
            data = {"from": before, "to": state}
            self.store.record_effect("linear", "issue_cancellation", issue["identifier"], data=data)
        return answer

    def archive(self, issue: Json, *, trash: bool) -> Json:
        answer = self._saved(issue | {"archivedAt": self._now(), "trashed": trash or None})
        return {"success": True, "lastSyncId": 0, "entity": answer["issue"]}

    def comment(self, given: Json) -> Json:
        body = given.get("body")
        if not isinstance(body, str) or not body.strip():
            raise InputError("body should not be empty", "body")
        issue = self.load(given.get("issueId") or "", argument="issueId")
        comment_id, known = self._new_id(COMMENT, given.get("id"))
        now = self._now()
        comment = {
            "createdAt": now,
            **(known or {}),
            "id": comment_id,
            "issue": issue["id"],
            "body": body,
            "updatedAt": now,
        }
        self._put(COMMENT, comment)
        if known is None:
            data = {"issue": issue["identifier"]}
            self.store.record_effect("linear", "comment", comment_id, key=_key_of(body), data=data)
        return {"success": True, "lastSyncId": 0, "comment": self.shown_comment(comment)}

    def delete_comment(self, comment_id: str) -> Json:
        if self.store.get(COMMENT, comment_id, account=self.account) is None:
            raise InputError("Entity not found: Comment")
        self.store.delete(COMMENT, comment_id, account=self.account)
        self.store.index("linear", COMMENT, comment_id, None, account=self.account)
        self.store.record_effect("linear", "comment_deletion", comment_id)
        return {"success": True, "lastSyncId": 0, "entityId": comment_id}

    def load(self, name: str, *, argument: str | None = None) -> Json:
        """The issue of that id or identifier, an earlier one too, as it is now."""
        issue = self.store.get(ISSUE, name, account=self.account)
        if issue is None:
            every = self.store.page(ISSUE, account=self.account)
            named = [i for i in every if name.upper() in (i["identifier"], *i["previousIdentifiers"])]
            issue = named[0] if named else None
        if issue is None:
            raise InputError("Entity not found: Issue", argument)
        return issue

    def listed(self, kind: str) -> list[Json]:
        """As lists see them, newest first."""
        return sorted(self.store.indexed(kind, account=self.account), key=lambda o: o["createdAt"], reverse=True)

    def teams(self) -> list[Json]:
        return [self._shown_team(key) for key in self.store.config.linear_teams]

    def shown(self, issue: Json) -> Json:
        url = f"https://linear.app/sandbox/issue/{issue['identifier']}"
        shown = {
            "state": _shown_state(issue["team"], issue["state"]),
            "team": self._shown_team(issue["team"]),
            "url": url,
        }
        return {**issue, **shown}

    def shown_comment(self, comment: Json) -> Json:
        issue = self.load(comment["issue"])
        url = f"https://linear.app/sandbox/issue/{issue['identifier']}#comment-{comment['id'][:8]}"
        return {**comment, "issue": self.shown(issue), "url": url, "archivedAt": None}

    def _new_id(self, kind: str, wanted: str | None) -> tuple[str, Json | None]:
        """The new object's id, and the object that is there already where it is to be written over."""
        if wanted is None:
            return str(uuid.uuid4()), None
        if not _is_uuid4(wanted):
            raise InputError("id must be a UUID", "id")
        known = self.store.get(kind, wanted, account=self.account)
        if known is None:
            return wanted, None
        match self.store.config.linear_duplicate_id:
            case "error":
                raise InputError("Entity already exists")
            case "overwrite":
                return wanted, known
            case "second":
                return str(uuid.uuid4()), None

    def _saved(self, issue: Json) -> Json:
        issue = issue | {"updatedAt": self._now()}
        self._put(ISSUE, issue)
        return {"success": True, "lastSyncId": 0, "issue": self.shown(issue)}

    def _put(self, kind: str, item: Json) -> None:
        self.store.put(kind, item["id"], item, account=self.account)
        self.store.index("linear", kind, item["id"], item, account=self.account)

    def _team(self, team_id: str) -> str:
        for key in self.store.config.linear_teams:
            if _id("team", key) == team_id:
                return key
        raise InputError("teamId must be a UUID of a team", "teamId")

    def _state(self, team: str, state_id: str | None) -> str | None:
        if state_id is None:
            return None
        for name in STATES:
            if _id("state", team, name) == state_id:
                return name
        raise InputError("stateId is no state of the issue's team", "stateId")

    def _shown_team(self, key: str) -> Json:
        states = [_shown_state(key, name) for name in STATES]
        return {
            "id": _id("team", key),
            "key": key,
            "name": key.title(),
            "states": lambda _info, **given: _page(states, given, archived=True),
        }

    def _now(self) -> str:
        at = datetime.fromtimestamp(self.store.now(), UTC)
        return at.isoformat(timespec="milliseconds").replace("+00:00", "Z")


def _page(items: list[Json], given: Mapping[str, Any], *, archived: bool = False) -> Json:
    """The first of those that match the filter; archived ones only where they are asked for."""
    wanted = given.get("filter") or {}
    most = given.get("first", 50)
    seen = [i for i in items if archived or given.get("includeArchived") or not i["archivedAt"]]
    found = [item for item in seen if _matches(item, wanted)]
    return {"nodes": found[:most], "pageInfo": {"hasNextPage": len(found) > most, "endCursor": None}}


def _matches(item: Json, wanted: Mapping[str, Any]) -> bool:
    for name, condition in wanted.items():
        if name == "and":
            holds = all(_matches(item, each) for each in condition)
        elif name == "or":
            holds = any(_matches(item, each) for each in condition)
        elif isinstance(item[name], dict):
            holds = _matches(item[name], condition)
        else:
            holds = all(_compares(item[name], how, value) for how, value in condition.items())
        if not holds:
            return False
    return True


def _compares(have: Any, how: str, value: Any) -> bool:
    match how:
        case "eq":
            return bool(have == value)
        case "neq":
            return bool(have != value)
        case "in":
            return have in value
        case "nin":
            return have not in value
        case "contains":
            return value in (have or "")
        case _:  # null
            return (have is None) is value


def _shown_state(team: str, name: str) -> Json:
    position = float(list(STATES).index(name))
    return {"id": _id("state", team, name), "name": name, "type": STATES[name], "position": position}


def _id(*names: str) -> str:
    """An id that is the same in every sandbox."""
    return str(uuid.uuid5(_NAMES, "/".join(names)))


def _is_uuid4(text: str) -> bool:
    try:
        return str(uuid.UUID(text)) == text and uuid.UUID(text).version == 4
    except ValueError:
        return False


def _key_of(text: str | None) -> str | None:
    found = _KEY.search(text or "")
    return found[1] if found else None
