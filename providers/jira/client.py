"""Decides how Jira Cloud is called and asked: one write an attempt, look-ups by label, then by entity property.

Jira has no idempotency key. A ticket gets our key as a label, which search finds, and as an entity property, which nobody
removes by accident; the request that creates the ticket sets both. So an empty label search is confirmed by reading the
project's recent tickets.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import timedelta
from typing import Any

from jira import JIRAError

from counterfoil.providers.contract import OTHER_KEY, Call
from counterfoil.providers.frame import each_found, found_or_unknown, judged_send, read_or_unreadable
from counterfoil.providers.jira.config import JiraConfig
from counterfoil.providers.jira.outcomes import (
    OPEN_PROPERTY,
    UNDO_PROPERTY,
    comment_done,
    comment_outcome,
    done_status,
    error_code,
    error_outcome,
    found,
    is_ours,
    label_of,
    moved,
    property_of,
    ticket_outcome,
)
from counterfoil.providers.jira.reads import JiraReads, open_client, properties_of, status_of
from counterfoil.providers.oneshot import OneShot
from counterfoil.providers.outcomes import (
    Absent,
    Finding,
    Found,
    Many,
    NotSent,
    Outcome,
    Reading,
    Rejected,
    Succeeded,
    Uncertain,
    Unknown,
    Unreadable,
    Version,
)
from counterfoil.providers.sanitise import clean_id

CLOCKS_APART = timedelta(minutes=5)
"""How far Jira's clock may be behind the ledger's, which stamped the first send."""
LABELS_MAX = 50
"""In one search: the query stays well below what a URL may hold."""
RECEIPTS_MAX = 20
_MAKES_TICKET = ("jira_create", "jira_stage")
_PREFERRED = ("won't do", "won’t do", "wont do", "won't fix", "cancelled", "canceled")


class JiraAdapter:
    """Calls one Jira Cloud site. Used by one thread at a time, in the process that made it."""

    def __init__(self, config: JiraConfig) -> None:
        self._config = config
        self._transport = OneShot()
        self._client: Any = open_client(config, self._transport)
        self._reads = JiraReads(self._client)

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
        """Two searches for all tickets of a project, one read for any other call; what fails is Unknown."""
        creates = [call for call in calls if call.tool in _MAKES_TICKET]
        findings: dict[str, Finding] = {}
        with self._transport.attempt(timeout_s=timeout_s, writes_max=0, request_s=self._config.timeout_s):
            for start in range(0, len(creates), LABELS_MAX):
                findings |= self._find_tickets(creates[start : start + LABELS_MAX])
            others = [call for call in calls if call.tool not in _MAKES_TICKET]
            return findings | each_found(others, self._find_other, name=error_code)

    def fetch(self, call: Call, receipt: str, *, timeout_s: float) -> Finding:
        """Reads the ticket or comment itself, which no index delays, and checks our key on it."""
        with self._transport.attempt(timeout_s=timeout_s, writes_max=0, request_s=self._config.timeout_s):
            try:
                return self._fetch(call, receipt)
            except Exception as exc:  # noqa: BLE001 - a failed reading says nothing, but for a 404 of the ticket's own
                missing = isinstance(exc, JIRAError) and error_code(exc) == "http_404"
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
        """Created in the staging status by one request: the queue never shows it."""
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
        if arguments.get("description"):
            fields["description"] = arguments["description"]
        reply = self._write("POST", "issue", {"fields": fields, "properties": [property_of(call)], **more})
        if reply.status_code != 201:
            return _unexpected(reply)
        made = reply.json()
        return ticket_outcome(made) if _was_moved(made) else Uncertain("not_staged")

    def _open(self, call: Call) -> Outcome:
        issue = self._issue_of(call)
        if issue is None:
            return NotSent("of_unresolved")
        already = self._opened(call, issue)
        if already is not None:
            return already
        to_queue = [t for t in self._reads.transitions(issue) if _leads_to(t, self._config.queue_status)]
        if not to_queue:
            return Rejected("no_queue_transition")
        return self._move(issue, to_queue[0], OPEN_PROPERTY, call, {})

    def _opened(self, call: Call, issue: str) -> Succeeded | Rejected | None:
        """Whether the ticket has left the staging status, by this call or a person's hand; None while it is there.

        Our property outlasts what people do with the ticket afterwards.
        """
        status, properties = self._reads.status_and_properties(issue, OPEN_PROPERTY)
        name = str(status["name"])
        if is_ours(properties, call.key, name=OPEN_PROPERTY):
            return moved(issue, name)
        if name == self._config.staging_status:
            return None
        return Rejected("ticket_closed") if done_status(status) is not None else moved(issue, name)

    def _close(self, call: Call) -> Outcome:
        issue = self._issue_of(call)
        if issue is None:
            return NotSent("of_unresolved")
        status = done_status(self._reads.status(issue))
        if status is not None:
            return moved(issue, status)
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
        body = {"body": call.arguments["body"], "properties": [property_of(call), internal]}
        reply = self._write("POST", f"issue/{call.arguments['issue']}/comment", body)
        return comment_outcome(reply.json()) if reply.status_code == 201 else _unexpected(reply)

    def _delete_comment(self, call: Call) -> Outcome:
        comment = self._comment_of(call)
        if comment is None:
            return NotSent("of_unresolved")
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

    def _issue_of(self, call: Call) -> str | None:
        """The ticket that this call is about: the receipt of the action undone, else the one that carries its key."""
        if call.of is None or call.of.receipt:
            return call.of.receipt if call.of else None
        key = call.of.key
        tickets = [t for t in self._reads.tickets_with_labels([key]) if _carries(t, key)]
        return clean_id(tickets[0].get("key")) if len(tickets) == 1 else None

    def _comment_of(self, call: Call) -> str | None:
        if call.of is None or call.of.receipt:
            return call.of.receipt if call.of else None
        matches = self._comments_with(call, call.of.key)
        return clean_id(matches[0]["id"]) if len(matches) == 1 else None

    def _comments_with(self, call: Call, key: str) -> list[dict[str, Any]]:
        comments = self._reads.comments(str(call.arguments["issue"]))
        return [comment for comment in comments if is_ours(properties_of(comment), key)]

    def _find_tickets(self, calls: Sequence[Call]) -> dict[str, Finding]:
        try:
            labelled = self._reads.tickets_with_labels([call.key for call in calls])
            findings = {call.action_id: self._ticket_finding(call, labelled) for call in calls}
        except Exception as exc:  # noqa: BLE001 - a failed look-up is never absence, whatever failed in it
            return {call.action_id: Unknown(error_code(exc)) for call in calls}
        unseen: defaultdict[str, list[Call]] = defaultdict(list)
        for call in calls:
            if isinstance(findings[call.action_id], Absent):
                unseen[str(call.arguments["project"])].append(call)
        for project, group in unseen.items():
            findings |= self._find_unlabelled(project, group)
        return findings

    def _find_unlabelled(self, project: str, calls: Sequence[Call]) -> dict[str, Finding]:
        """Somebody may have removed the label: the property tells."""
        times = [call.first_sent_at for call in calls]
        known = [at for at in times if at is not None]
        if len(known) < len(times):
            return {call.action_id: Unknown("no_send_time") for call in calls}
        try:
            recent = self._reads.tickets_since(project, min(known) - CLOCKS_APART)
            return {call.action_id: self._ticket_finding(call, recent) for call in calls}
        except Exception as exc:  # noqa: BLE001 - a failed look-up is never absence, whatever failed in it
            return {call.action_id: Unknown(error_code(exc)) for call in calls}

    def _ticket_finding(self, call: Call, tickets: Sequence[Mapping[str, object]]) -> Finding:
        matches = {str(t["id"]): t for t in tickets if _carries(t, call.key)}
        if not matches:
            return Absent()
        if len(matches) > 1:
            return Many(tuple(clean_id(t.get("key")) or "" for t in list(matches.values())[:RECEIPTS_MAX]))
        ticket = next(iter(matches.values()))
        fields, properties = ticket.get("fields"), properties_of(ticket)
        created = fields.get("created") if isinstance(fields, Mapping) else None
        finding = found(ticket_outcome(ticket), properties=properties, created=created)
        if call.tool == "jira_stage" and not self._was_staged(ticket):
            return replace(finding, outcome=Uncertain("not_staged"), as_intended=False)
        return finding

    def _was_staged(self, ticket: Mapping[str, object]) -> bool:
        """It waits there, or was opened or closed from there by one of our calls; else the team saw it too early."""
        status, properties = status_of(ticket), properties_of(ticket)
        waits = status["name"] == self._config.staging_status
        return waits or OPEN_PROPERTY in properties or UNDO_PROPERTY in properties

    def _find_other(self, call: Call) -> Finding:
        match call.tool:
            case "jira_open":
                return self._find_opened(call)
            case "jira_close":
                return self._find_closed(call)
            case "jira_comment":
                return _comment_finding(self._comments_with(call, call.key))
            case _:
                return self._find_deleted(call)

    def _fetch(self, call: Call, receipt: str) -> Finding:
        if call.tool in _MAKES_TICKET:
            ticket = self._reads.ticket(receipt)
            return self._ticket_finding(call, [ticket]) if _carries(ticket, call.key) else Unknown(OTHER_KEY)
        if call.tool == "jira_comment":
            named = [c for c in self._reads.comments(str(call.arguments["issue"])) if str(c["id"]) == receipt]
            ours = [comment for comment in named if is_ours(properties_of(comment), call.key)]
            return Unknown(OTHER_KEY) if named and not ours else _comment_finding(ours)
        about = self._comment_of(call) if call.tool == "jira_delete_comment" else self._issue_of(call)
        if about is not None and receipt != about:
            return Unknown(OTHER_KEY)
        return found_or_unknown(lambda: self._find_other(call), name=error_code)

    def _find_opened(self, call: Call) -> Finding:
        issue = self._issue_of(call)
        if issue is None:
            return Unknown("of_unresolved")
        outcome = self._opened(call, issue)
        return Absent() if outcome is None else Found(outcome)

    def _find_closed(self, call: Call) -> Finding:
        issue = self._issue_of(call)
        if issue is None:
            return Unknown("of_unresolved")
        status = done_status(self._reads.status(issue))
        return Absent() if status is None else Found(moved(issue, status))

    def _find_deleted(self, call: Call) -> Finding:
        """The whole list without the comment proves it gone; a 404 could be a missing permission."""
        if call.of is None or not call.of.receipt:
            return Unknown("of_unresolved")
        ids = {str(comment["id"]) for comment in self._reads.comments(str(call.arguments["issue"]))}
        return Absent() if call.of.receipt in ids else Found(comment_done(call.of.receipt))


def _issue_changed_by(call: Call) -> str | None:
    """The ticket that a call changes; None for one that makes a ticket, or whose ticket is not known."""
    if call.tool in ("jira_comment", "jira_delete_comment"):
        return clean_id(call.arguments.get("issue"))
    return call.of.receipt if call.of else None


def _comment_finding(matches: Sequence[Mapping[str, object]]) -> Finding:
    if not matches:
        return Absent()
    if len(matches) > 1:
        return Many(tuple(clean_id(comment["id"]) or "" for comment in matches[:RECEIPTS_MAX]))
    properties, created = properties_of(matches[0]), matches[0].get("created")
    return found(comment_outcome(matches[0]), properties=properties, created=created)


def _carries(ticket: Mapping[str, object], key: str) -> bool:
    """By label or by property: either is enough."""
    fields = ticket.get("fields")
    labels = fields.get("labels") if isinstance(fields, Mapping) else None
    labelled = isinstance(labels, list) and label_of(key) in labels
    return labelled or is_ours(properties_of(ticket), key)


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
