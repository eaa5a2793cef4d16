"""Decides how Jira is called: one write an attempt, which carries our key to where look-ups find it.

Jira has no idempotency key. In Cloud a ticket gets ours as a label, which search finds, and as an entity property, which
nobody removes by accident. Data Center promises neither to take properties with a creation nor to list them: there the key
is a label and the last line of the description. Either way the request that makes the ticket writes both.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from jira import JIRAError

from counterfoil.providers.contract import Call
from counterfoil.providers.frame import judged_send, read_or_unreadable
from counterfoil.providers.jira.config import JiraConfig
from counterfoil.providers.jira.lookups import LABELS_MAX, MAKES_TICKET, JiraLookups
from counterfoil.providers.jira.outcomes import (
    OPEN_PROPERTY,
    UNDO_PROPERTY,
    comment_done,
    comment_outcome,
    done_status,
    error_code,
    error_outcome,
    is_jira_s_own,
    label_of,
    marked,
    moved,
    property_of,
    ticket_outcome,
)
from counterfoil.providers.jira.reads import JiraReads, open_client
from counterfoil.providers.oneshot import OneShot
from counterfoil.providers.outcomes import (
    Absent,
    Finding,
    NotSent,
    Outcome,
    Reading,
    Rejected,
    Uncertain,
    Unknown,
    Unreadable,
    Version,
)
from counterfoil.providers.sanitise import clean_token

_PREFERRED = ("won't do", "won’t do", "wont do", "won't fix", "cancelled", "canceled")


class JiraAdapter:
    """Calls one Jira site. Used by one thread at a time, in the process that made it."""

    def __init__(self, config: JiraConfig) -> None:
        self._config = config
        self._transport = OneShot()
        self._client: Any = open_client(config, self._transport)
        self._reads = JiraReads(self._client, is_cloud=config.is_cloud)
        self._lookups = JiraLookups(self._reads, config)

    def send(self, call: Call, *, timeout_s: float) -> Outcome:
        """Makes the one write of this attempt, after the reads that it needs."""
        with self._transport.attempt(timeout_s=timeout_s, writes_max=1) as transport:
            return judged_send(
                lambda: self._send(call),
                lambda exc: error_outcome(exc, call, retry_after_cap_s=self._config.retry_after_cap_s),
                wrote=lambda: transport.wrote,
                name=error_code,
            )

    def lookup(self, calls: Sequence[Call], *, timeout_s: float) -> Mapping[str, Finding]:
        """A search for each hundred tickets, one more of a project for those that are not seen, one read for any other call;
        what fails is Unknown."""
        with self._transport.attempt(timeout_s=timeout_s, writes_max=0, request_s=self._config.timeout_s):
            return self._lookups.find(calls)

    def rows_a_request(self, tool: str) -> int:
        """The labels of one search, for what makes tickets."""
        return LABELS_MAX if tool in MAKES_TICKET else 1

    def fetch(self, call: Call, receipt: str, *, timeout_s: float) -> Finding:
        """Reads the ticket or comment itself, which no index delays, and checks our key on it."""
        with self._transport.attempt(timeout_s=timeout_s, writes_max=0, request_s=self._config.timeout_s):
            try:
                return self._lookups.fetch(call, receipt)
            except Exception as exc:  # noqa: BLE001 - a failed reading says nothing, but for a 404 of the ticket's own
                missing = isinstance(exc, JIRAError) and error_code(exc) == "http_404" and is_jira_s_own(exc)
                return Absent() if missing else Unknown(error_code(exc))

    def version(self, call: Call, *, timeout_s: float) -> Reading:
        """The ticket's last update and status, by one GET; what makes a ticket has none."""
        issue = _issue_changed_by(call)
        if issue is None:
            return Unreadable("no_version")
        with self._transport.attempt(timeout_s=timeout_s, writes_max=0):
            return read_or_unreadable(lambda: Version(self._reads.version(issue)), name=error_code)

    def _send(self, call: Call) -> Outcome:
        match call.tool:
            case "jira_create":
                return self._create(call, {})
            case "jira_stage":
                return self._stage(call)
            case "jira_open":
                return self._open(call)
            case "jira_close":
                return self._close(call)
            case "jira_comment":
                return self._comment(call)
            case "jira_delete_comment":
                return self._delete_comment(call)
            case _:
                return NotSent("unknown_tool")

    def _stage(self, call: Call) -> Outcome:
        """Created in the staging status by one request, which Data Center does not offer: the queue never shows it."""
        if not self._config.is_cloud:
            return Rejected("no_staging_in_data_center")
        if self._config.staging_transition is None:
            return Rejected("no_staging_transition")
        return self._create(call, {"transition": {"id": self._config.staging_transition}})

    def _create(self, call: Call, more: Mapping[str, object]) -> Outcome:
        arguments = call.arguments
        fields: dict[str, object] = {
            "project": {"key": arguments["project"]},
            "issuetype": {"name": arguments["issue_type"]},
            "summary": arguments["summary"],
            "labels": [label_of(call.key)],
        }
        if not self._config.is_cloud:
            fields["description"] = marked(arguments.get("description"), call.key)
        elif arguments.get("description"):
            fields["description"] = arguments["description"]
        reply = self._write("POST", "issue", {"fields": fields, "properties": [property_of(call)], **more})
        if reply.status_code != 201:
            return _unexpected(reply)
        made = reply.json()
        return ticket_outcome(made) if _was_moved(made) else Uncertain("not_staged")

    def _open(self, call: Call) -> Outcome:
        issue = self._lookups.issue_of(call)
        if issue is None:
            return NotSent("of_unresolved")
        already = self._lookups.opened(call, issue)
        if already is not None:
            return already
        to_queue = [t for t in self._reads.transitions(issue) if _leads_to(t, self._config.queue_status)]
        if not to_queue:
            return Rejected("no_queue_transition")
        return self._move(issue, to_queue[0], OPEN_PROPERTY, call, {})

    def _close(self, call: Call) -> Outcome:
        issue = self._lookups.issue_of(call)
        if issue is None:
            return NotSent("of_unresolved")
        already = self._lookups.closed(call, issue)
        if already is not None:
            return already
        chosen = _closing(self._reads.transitions(issue))
        if chosen is None:
            return Rejected("no_done_transition")
        reason = call.arguments.get("reason")
        update = {"update": {"comment": [{"add": {"body": reason}}]}} if reason else {}
        return self._move(issue, chosen, UNDO_PROPERTY, call, update)

    def _move(
        self, issue: str, transition: Mapping[str, Any], name: str, call: Call, more: Mapping[str, object]
    ) -> Outcome:
        """Moves the ticket and writes our key into its property of this name, by one request."""
        properties = [{"key": name, "value": {"key": call.key}}]
        body = {"transition": {"id": transition["id"]}, "properties": properties, **more}
        reply = self._write("POST", f"issue/{issue}/transitions", body)
        return moved(issue, str(transition["to"].get("name"))) if reply.status_code == 204 else _unexpected(reply)

    def _comment(self, call: Call) -> Outcome:
        internal = {"key": "sd.public.comment", "value": {"internal": True}}  # a service desk shows it to agents only
        text = call.arguments["body"] if self._config.is_cloud else marked(call.arguments["body"], call.key)
        body: dict[str, object] = {"body": text, "properties": [property_of(call), internal]}
        reply = self._write("POST", f"issue/{call.arguments['issue']}/comment", body)
        return comment_outcome(reply.json()) if reply.status_code == 201 else _unexpected(reply)

    def _delete_comment(self, call: Call) -> Outcome:
        comment = self._lookups.comment_of(call)
        if comment is None:
            return NotSent("of_unresolved")
        if self._lookups.is_another_comment(call, comment):
            return Rejected("other_comment")
        try:
            reply = self._write("DELETE", f"issue/{call.arguments['issue']}/comment/{comment}", None)
        except JIRAError as exc:
            if exc.status_code == 404:
                return Uncertain("already_gone", evidence="HTTP 404")
            raise
        return comment_done(comment) if reply.status_code == 204 else _unexpected(reply)

    def _write(self, method: str, path: str, body: Mapping[str, object] | None) -> Any:
        data = None if body is None else json.dumps(body)
        return self._client._session.request(method, self._client._get_url(path), data=data)


def _issue_changed_by(call: Call) -> str | None:
    """The ticket that a call changes; None for one that makes a ticket, or whose ticket is not known."""
    if call.tool in ("jira_comment", "jira_delete_comment"):
        return clean_token(call.arguments.get("issue"))
    return call.of.receipt if call.of else None


def _closing(transitions: Sequence[Mapping[str, Any]]) -> Mapping[str, Any] | None:
    """The move to a done status, "Won't do" before any other; None where the workflow has none."""
    closing = [t for t in transitions if isinstance(t.get("to"), dict) and done_status(t["to"]) is not None]
    wanted = [t for t in closing if str(t["to"].get("name")).casefold() in _PREFERRED]
    return next(iter([*wanted, *closing]), None)


def _leads_to(transition: Mapping[str, Any], status: str) -> bool:
    to = transition.get("to")
    return isinstance(to, dict) and to.get("name") == status


def _was_moved(made: object) -> bool:
    """A creation says in a part of its answer whether the transition that it asked for was made; no part, no failure."""
    nested = made.get("transition") if isinstance(made, Mapping) else None
    status = nested.get("status") if isinstance(nested, Mapping) else None
    return not isinstance(status, int) or 200 <= status < 300


def _unexpected(reply: Any) -> Outcome:
    return Uncertain(f"http_{reply.status_code}", evidence=f"HTTP {reply.status_code}")
