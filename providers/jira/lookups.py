"""Decides what became of a call in Jira: by the label, then by what else carries our key; a comment by its ticket's list.

Search lags. An empty search by label is therefore confirmed by the project's recent tickets, whose label somebody may have
removed: in Cloud their property tells, in Data Center their description. There somebody may have rewritten that as well, so
where our own account has made a ticket that carries nobody's key, a person decides.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import timedelta
from typing import Any

from counterfoil.providers.contract import OTHER_KEY, Call
from counterfoil.providers.frame import each_found, found_or_unknown, gone
from counterfoil.providers.jira.config import JiraConfig
from counterfoil.providers.jira.outcomes import (
    OPEN_PROPERTY,
    UNDO_PROPERTY,
    comment_done,
    comment_outcome,
    done_status,
    error_code,
    found,
    is_ours,
    keys_in,
    moved,
    property_keys,
    ticket_outcome,
    time_of,
)
from counterfoil.providers.jira.reads import JiraReads, fields_of, properties_of, status_of
from counterfoil.providers.outcomes import Absent, Finding, Found, Many, Rejected, Succeeded, Uncertain, Unknown
from counterfoil.providers.sanitise import clean_token

CLOCKS_APART = timedelta(minutes=5)
"""How far Jira's clock may be behind the ledger's, which stamped the first send."""
LABELS_MAX = 100
"""In one search, whose answer is a page then. Their query of 5 kB stays below the 8 kB that a URL may hold."""
RECEIPTS_MAX = 20
OTHER_TICKET = Rejected("other_ticket")
THROTTLED = Unknown("http_429")
"""Who is throttled asks no further."""
MAKES_TICKET = ("jira_create", "jira_stage")


class JiraLookups:
    """What Jira says of calls. `find` raises nothing; the others raise what the client raises, or Incomplete."""

    def __init__(self, reads: JiraReads, config: JiraConfig) -> None:
        self._reads = reads
        self._config = config

    def find(self, calls: Sequence[Call]) -> dict[str, Finding]:
        """A search for each hundred tickets, one more of a project for those that are not seen, one read for any other call;
        what fails is Unknown."""
        creates = [call for call in calls if call.tool in MAKES_TICKET]
        findings: dict[str, Finding] = {}
        for start in range(0, len(creates), LABELS_MAX):
            findings |= self._find_labelled(creates[start : start + LABELS_MAX])
            if findings[creates[start].action_id] == THROTTLED:
                findings |= {call.action_id: THROTTLED for call in creates[start:]}
                break
        unseen: defaultdict[str, list[Call]] = defaultdict(list)
        for call in creates:
            if findings[call.action_id] == Absent():
                unseen[str(call.arguments["project"])].append(call)
        for project, group in unseen.items():
            findings |= self._find_unlabelled(project, group)
        others = [call for call in calls if call.tool not in MAKES_TICKET]
        return findings | each_found(others, self._find_other, name=error_code)

    def fetch(self, call: Call, receipt: str) -> Finding:
        """The ticket or comment of this receipt, where it is the one that the call made or is about."""
        if call.tool in MAKES_TICKET:
            ticket = self._reads.ticket(receipt)
            return self._ticket_finding(call, [ticket]) if _carries(ticket, call.key) else Unknown(OTHER_KEY)
        if call.tool == "jira_comment":
            named = [c for c in self._reads.comments(str(call.arguments["issue"])) if str(c["id"]) == receipt]
            ours = [comment for comment in named if _is_our_comment(comment, call.key)]
            return Unknown(OTHER_KEY) if named and not ours else _comment_finding(ours)
        about = self.comment_of(call) if call.tool == "jira_delete_comment" else self.issue_of(call)
        if about is not None and receipt != about:
            return Unknown(OTHER_KEY)
        return found_or_unknown(lambda: self._find_other(call), name=error_code)

    def issue_of(self, call: Call) -> str | None:
        """The ticket that this call is about: the receipt of the action undone, else the one that carries its key."""
        if call.of is None or call.of.receipt:
            return call.of.receipt if call.of else None
        key = call.of.key
        tickets = [t for t in self._reads.tickets_with_labels([key]) if _carries(t, key)]
        return clean_token(tickets[0].get("key")) if len(tickets) == 1 else None

    def comment_of(self, call: Call) -> str | None:
        """The comment that this call is about, likewise."""
        if call.of is None or call.of.receipt:
            return call.of.receipt if call.of else None
        matches = self._comments_with(call, call.of.key)
        return clean_token(matches[0]["id"]) if len(matches) == 1 else None

    def opened(self, call: Call, issue: str) -> Succeeded | Rejected | None:
        """Whether the ticket has left the staging status, by this call or a person's hand; None while it is there.

        Our property outlasts what people do with the ticket afterwards.
        """
        ticket = self._reads.ticket(issue)
        status = status_of(ticket)
        name = str(status["name"])
        if is_ours(properties_of(ticket), call.key, name=OPEN_PROPERTY):
            return moved(issue, name)
        if not _is_of(ticket, call):
            return OTHER_TICKET
        if name == self._config.staging_status:
            return None
        return Rejected("ticket_closed") if done_status(status) is not None else moved(issue, name)

    def closed(self, call: Call, issue: str) -> Succeeded | Rejected | None:
        """Whether the ticket is done, by this call or a person's hand; None while it can be closed."""
        ticket = self._reads.ticket(issue)
        status = done_status(status_of(ticket))
        if not _is_of(ticket, call):
            return OTHER_TICKET
        return None if status is None else moved(issue, status)

    def is_another_comment(self, call: Call, comment: str) -> bool:
        """Whether the comment of this id is there, and not the one that the call is about."""
        key = call.of.key if call.of else ""
        named = [each for each in self._reads.comments(str(call.arguments["issue"])) if str(each["id"]) == comment]
        return any(not _is_our_comment(each, key) for each in named)

    def _comments_with(self, call: Call, key: str) -> list[dict[str, Any]]:
        comments = self._reads.comments(str(call.arguments["issue"]))
        return [comment for comment in comments if _is_our_comment(comment, key)]

    def _find_comment(self, call: Call) -> Finding:
        """In Data Center only the text tells: one of ours that was edited, and names nobody's key, may be this one."""
        comments = self._reads.comments(str(call.arguments["issue"]))
        finding = _comment_finding([comment for comment in comments if _is_our_comment(comment, call.key)])
        if self._config.is_cloud or not isinstance(finding, Absent):
            return finding
        edited = [c for c in comments if c.get("updated") != c.get("created") and not keys_in(c.get("body"))]
        recent = [comment for comment in edited if _is_as_new(comment.get("created"), call)]
        return _in_doubt("edited_comment") if recent and self._are_ours(recent, "author") else finding

    def _find_labelled(self, calls: Sequence[Call]) -> dict[str, Finding]:
        """What the label tells; a call of which only that is asked may have a ticket whose label somebody has removed."""
        try:
            labelled = _by_key(self._reads.tickets_with_labels([call.key for call in calls]))
            findings = {call.action_id: self._ticket_finding(call, labelled.get(call.key, [])) for call in calls}
        except Exception as exc:  # noqa: BLE001 - a failed look-up is never absence, whatever failed in it
            return {call.action_id: Unknown(error_code(exc)) for call in calls}
        hurried = [call for call in calls if call.presence_only and findings[call.action_id] == Absent()]
        return findings | {call.action_id: Absent(complete=False) for call in hurried}

    def _find_unlabelled(self, project: str, calls: Sequence[Call]) -> dict[str, Finding]:
        """Somebody may have removed the label: the property or the description tells."""
        untimed: dict[str, Finding] = {c.action_id: Unknown("no_send_time") for c in calls if c.first_sent_at is None}
        calls = [call for call in calls if call.first_sent_at is not None]
        if not calls:
            return untimed
        try:
            since = min(call.first_sent_at for call in calls if call.first_sent_at is not None)
            recent = self._reads.tickets_since(project, since - CLOCKS_APART)
            carrying = _by_key(recent)
            findings = {call.action_id: self._ticket_finding(call, carrying.get(call.key, [])) for call in calls}
            absent = [call for call in calls if isinstance(findings[call.action_id], Absent)]
            if absent and not self._config.is_cloud:
                findings |= self._doubted(absent, recent)
            return untimed | findings
        except Exception as exc:  # noqa: BLE001 - a failed look-up is never absence, whatever failed in it
            return untimed | {call.action_id: Unknown(error_code(exc)) for call in calls}

    def _doubted(self, calls: Sequence[Call], tickets: Sequence[Mapping[str, object]]) -> dict[str, Finding]:
        """The calls since whose send our own account has made a ticket on which nobody's key is left."""
        unmarked = [fields_of(ticket) for ticket in tickets if not _keys_on(ticket)]
        ours = [fields for fields in unmarked if self._are_ours([fields], "creator")]
        doubted = [call for call in calls if any(_is_as_new(fields.get("created"), call) for fields in ours)]
        return {call.action_id: _in_doubt("unmarked_ticket") for call in doubted}

    def _are_ours(self, items: Sequence[Mapping[str, object]], role: str) -> bool:
        """One of them is our own account's, as far as Jira tells whose it is: nobody can rewrite that."""
        names = {_name_of(item.get(role)) for item in items}
        return None in names or self._reads.own_name() in names

    def _ticket_finding(self, call: Call, tickets: Sequence[Mapping[str, object]]) -> Finding:
        matches = {str(t["id"]): t for t in tickets if _carries(t, call.key)}
        if not matches:
            return Absent()
        if len(matches) > 1:
            return Many(tuple(clean_token(t.get("key")) or "" for t in list(matches.values())[:RECEIPTS_MAX]))
        ticket = next(iter(matches.values()))
        created = fields_of(ticket).get("created")
        finding = found(ticket_outcome(ticket), properties=properties_of(ticket), created=created)
        # Jira gives a ticket that is moved to another project another key.
        was_moved = not str(ticket.get("key")).startswith(f"{call.arguments['project']}-")
        finding = replace(finding, renamed=was_moved)
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
                return self._find_comment(call)
            case _:
                return self._find_deleted(call)

    def _find_opened(self, call: Call) -> Finding:
        issue = self.issue_of(call)
        if issue is None:
            return Unknown("of_unresolved")
        return _moved_finding(self.opened(call, issue))

    def _find_closed(self, call: Call) -> Finding:
        issue = self.issue_of(call)
        if issue is None:
            return Unknown("of_unresolved")
        return _moved_finding(self.closed(call, issue))

    def _find_deleted(self, call: Call) -> Finding:
        """The whole list without the comment proves it gone; a 404 could be a missing permission."""
        if call.of is None or not call.of.receipt:
            return Unknown("of_unresolved")
        ids = {str(comment["id"]) for comment in self._reads.comments(str(call.arguments["issue"]))}
        return Absent() if call.of.receipt in ids else Found(gone(call, comment_done(call.of.receipt)), unkeyed=True)


def _is_of(ticket: Mapping[str, object], call: Call) -> bool:
    """It carries the key of the action that the call is about. A ticket's name alone says little: a site that was restored or
    replaced gives it to another ticket."""
    if call.of is None:
        return False
    return _carries(ticket, call.of.key) or is_ours(properties_of(ticket), call.of.key, name=OPEN_PROPERTY)


def _moved_finding(outcome: Succeeded | Rejected | None) -> Finding:
    if outcome is None:
        return Absent()
    return _in_doubt(OTHER_TICKET.code) if outcome == OTHER_TICKET else Found(outcome, unkeyed=True)


def _comment_finding(matches: Sequence[Mapping[str, object]]) -> Finding:
    if not matches:
        return Absent()
    if len(matches) > 1:
        return Many(tuple(clean_token(comment["id"]) or "" for comment in matches[:RECEIPTS_MAX]))
    properties, created = properties_of(matches[0]), matches[0].get("created")
    return found(comment_outcome(matches[0]), properties=properties, created=created)


def _in_doubt(code: str) -> Found:
    """Nothing carries our key, and something may have: no further look-up will tell, so a person decides."""
    return Found(Uncertain(code), as_intended=False, unkeyed=True)


def _carries(ticket: Mapping[str, object], key: str) -> bool:
    """By label, property or description: one is enough."""
    return key in _keys_on(ticket) or is_ours(properties_of(ticket), key)


def _by_key(tickets: Sequence[Mapping[str, object]]) -> dict[str, list[Mapping[str, object]]]:
    """The tickets by each key that they carry, as `_carries` sees it."""
    carrying: defaultdict[str, list[Mapping[str, object]]] = defaultdict(list)
    for ticket in tickets:
        for key in _keys_on(ticket) | property_keys(properties_of(ticket)):
            carrying[key].append(ticket)
    return carrying


def _keys_on(ticket: Mapping[str, object]) -> frozenset[str]:
    """The keys in its labels and, where it was read, its description."""
    fields = fields_of(ticket)
    labels = fields.get("labels")
    return keys_in(" ".join(map(str, labels)) if isinstance(labels, list) else "") | keys_in(fields.get("description"))


def _is_our_comment(comment: Mapping[str, object], key: str) -> bool:
    return is_ours(properties_of(comment), key) or key in keys_in(comment.get("body"))


def _is_as_new(created: object, call: Call) -> bool:
    """It may have been made by this call, as far as its time tells."""
    at = time_of(created)
    return at is None or call.first_sent_at is None or at >= call.first_sent_at - CLOCKS_APART


def _name_of(user: object) -> object:
    """A user's login name, None where it is not told."""
    return user.get("name") if isinstance(user, Mapping) else None
