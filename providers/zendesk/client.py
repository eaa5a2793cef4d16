"""Decides how Zendesk is called and asked: one write an attempt, with our key in it; look-ups by external id and audits.

A ticket's creation carries our key as Zendesk's own Idempotency-Key, as its external id, and in its audit's metadata. An
update has no key of Zendesk's: the audit that it makes holds ours, and is read from the ticket itself, without a lag.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from zenpy.lib.api_objects import Comment, Ticket

from counterfoil.providers.contract import OTHER_KEY, Call
from counterfoil.providers.frame import each_found, judged_send, read_or_unreadable
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
    Uncertain,
    Unknown,
    Unreadable,
)
from counterfoil.providers.zendesk.config import ZendeskConfig
from counterfoil.providers.zendesk.outcomes import (
    DONE,
    NOT_SOLVED,
    RECEIPTS_MAX,
    comment_finding,
    comment_outcome,
    condition_of,
    created_outcome,
    done,
    error_code,
    error_outcome,
    external_id_of,
    is_ours,
    metadata_of,
    number_of,
    solved_outcome,
    solves,
    ticket_finding,
    version_of,
)
from counterfoil.providers.zendesk.reads import ZendeskReads, open_tickets

_NUMBER = re.compile(r"[1-9][0-9]{0,17}", re.ASCII)
_COMMENTS = ("zendesk_note", "zendesk_reply")


class ZendeskAdapter:
    """Calls one Zendesk account. Used by one thread at a time, in the process that made it."""

    def __init__(self, config: ZendeskConfig) -> None:
        self._config = config
        self._transport = OneShot()
        self._tickets, self._session = open_tickets(config, self._transport)
        self._reads = ZendeskReads(self._tickets)

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
        """The external id of a ticket, the audits of what is done to one; what fails is Unknown."""
        with self._transport.attempt(timeout_s=timeout_s, writes_max=0, request_s=self._config.timeout_s):
            return each_found(calls, self._find, name=error_code)

    def fetch(self, call: Call, receipt: str, *, timeout_s: float) -> Finding:
        """Reads the ticket or comment of that number, and checks our key on it."""
        if not _NUMBER.fullmatch(receipt):
            return Absent()
        with self._transport.attempt(timeout_s=timeout_s, writes_max=0, request_s=self._config.timeout_s):
            try:
                return self._fetch(call, receipt)
            except Exception as exc:  # noqa: BLE001 - a failed reading says nothing, but for a 404 of the ticket's own
                missing = type(exc).__name__ == "RecordNotFoundException" and error_code(exc) == "http_404"
                return Absent() if missing else Unknown(error_code(exc))

    def version(self, call: Call, *, timeout_s: float) -> Reading:
        """The ticket's last update, by one GET; what makes a ticket has none."""
        number = _changed_by(call)
        if number is None:
            return Unreadable("no_version")
        with self._transport.attempt(timeout_s=timeout_s, writes_max=0):
            return read_or_unreadable(
                lambda: version_of(self._reads.ticket(number)) or Unreadable("malformed"), name=error_code
            )

    def _send(self, call: Call) -> Outcome:
        match call.tool:
            case "zendesk_create":
                return self._create(call)
            case "zendesk_note" | "zendesk_reply":
                return self._comment(call)
            case "zendesk_solve":
                return self._solve(call)
            case _:
                return NotSent("unknown_tool")

    def _create(self, call: Call) -> Outcome:
        ticket = Ticket(
            subject=call.arguments["subject"],
            comment=Comment(body=call.arguments["body"], public=False),
            external_id=external_id_of(call.key),
            metadata=metadata_of(call),
        )
        self._session.key = call.key
        try:
            self._tickets.create(ticket)
        finally:
            self._session.key = None
        answer = self._answer(201)
        return answer if isinstance(answer, Uncertain) else created_outcome(answer.get("ticket"), call.key)

    def _comment(self, call: Call) -> Outcome:
        public = call.tool == "zendesk_reply"
        comment = Comment(body=call.arguments["body"], public=public)
        answer = self._update(call, str(call.arguments["ticket"]), comment=comment)
        if isinstance(answer, Uncertain):
            return answer
        audit = answer.get("audit")
        if not isinstance(audit, Mapping) or not is_ours(audit, call.key):
            return Uncertain("malformed", evidence=type(audit).__name__)
        return comment_outcome(audit, public=public)

    def _solve(self, call: Call) -> Outcome:
        number = self._ticket_of(call)
        if number is None:
            return NotSent("of_unresolved")
        ticket = self._reads.ticket(number)
        status = ticket["status"]
        if not self._is_of(call, ticket, number):
            return Rejected("other_ticket")
        if status in DONE:
            return done(number, status)
        reason = call.arguments.get("reason")
        more = {"comment": Comment(body=reason, public=False)} if reason else {}
        answer = self._update(call, number, status="solved", **more)
        return answer if isinstance(answer, Uncertain) else solved_outcome(answer.get("ticket"), named=number)

    def _update(self, call: Call, number: str, **changes: object) -> Mapping[str, Any] | Uncertain:
        more = {**changes, **condition_of(call)}
        self._tickets.update(Ticket(id=int(number), metadata=metadata_of(call), **more))
        return self._answer(200)

    def _answer(self, status: int) -> Mapping[str, Any] | Uncertain:
        """The body of the answer to the write; zenpy also returns without an exception where there is none."""
        reply = self._session.reply
        if reply is None or reply.status_code != status:
            code = "no_answer" if reply is None else f"http_{reply.status_code}"
            return Uncertain(code, evidence=code)
        body = reply.json()
        return body if isinstance(body, Mapping) else Uncertain("malformed", evidence=type(body).__name__)

    def _find(self, call: Call) -> Finding:
        if call.tool == "zendesk_create":
            found = self._reads.tickets_of(call.key)
            if len(found) > 1:
                return Many(tuple(number_of(ticket) or "" for ticket in found[:RECEIPTS_MAX]))
            return self._made(call, found[0]) if found else Absent()
        if call.tool in _COMMENTS:
            audits = self._reads.audits_of(str(call.arguments["ticket"]), call.key)
            return comment_finding(audits, public=call.tool == "zendesk_reply")
        return self._find_solved(call)

    def _made(self, call: Call, ticket: Mapping[str, Any]) -> Finding:
        return ticket_finding(ticket, self._reads.audits_of(number_of(ticket) or "", call.key))

    def _find_solved(self, call: Call) -> Finding:
        """Solved by whomever, or by this call and opened again since: a customer's answer opens a solved ticket."""
        number = self._ticket_of(call)
        if number is None:
            return Unknown("of_unresolved")
        ticket = self._reads.ticket(number)
        status = ticket["status"]
        if not self._is_of(call, ticket, number):
            return Found(Uncertain("other_ticket"), as_intended=False, unkeyed=True)
        if status in DONE:
            return Found(done(number, status), unkeyed=True)
        audits = self._reads.audits_of(number, call.key)
        if not audits:
            return Absent()
        return Found(done(number, status)) if any(map(solves, audits)) else Found(NOT_SOLVED, as_intended=False)

    def _fetch(self, call: Call, receipt: str) -> Finding:
        if call.tool == "zendesk_create":
            ticket = self._reads.ticket(receipt)
            finding = self._made(call, ticket)
            ours = finding.as_intended if isinstance(finding, Found) else False
            return finding if ours or ticket.get("external_id") == external_id_of(call.key) else Unknown(OTHER_KEY)
        if call.tool in _COMMENTS:
            audits = self._reads.audits(str(call.arguments["ticket"]))
            named = [audit for audit in audits if _holds(audit, receipt)]
            ours_named = [audit for audit in named if is_ours(audit, call.key)]
            if named and not ours_named:
                return Unknown(OTHER_KEY)
            return comment_finding(ours_named, public=call.tool == "zendesk_reply")
        about = self._ticket_of(call)
        return Unknown(OTHER_KEY) if about is not None and receipt != about else self._find_solved(call)

    def _is_of(self, call: Call, ticket: Mapping[str, Any], number: str) -> bool:
        """The ticket carries the key of the action that the call is about: in another account its number is another's."""
        key = "" if call.of is None else call.of.key
        return ticket.get("external_id") == external_id_of(key) or bool(self._reads.audits_of(number, key))

    def _ticket_of(self, call: Call) -> str | None:
        """The ticket that this call is about: the receipt of the action undone, else the one that carries its key."""
        if call.of is None:
            return None
        if call.of.receipt:
            return call.of.receipt if _NUMBER.fullmatch(call.of.receipt) else None
        found = self._reads.tickets_of(call.of.key)
        number = number_of(found[0]) if len(found) == 1 else None
        return number if number is not None and self._reads.audits_of(number, call.of.key) else None


def _changed_by(call: Call) -> str | None:
    """The ticket that a call changes; None for one that makes a ticket, or whose ticket is not known."""
    number = call.arguments.get("ticket") if call.tool in _COMMENTS else call.of.receipt if call.of else None
    return number if isinstance(number, str) and _NUMBER.fullmatch(number) else None


def _holds(audit: Mapping[str, Any], comment: str) -> bool:
    """One of the audit's events is the comment of that number."""
    events = audit.get("events")
    return isinstance(events, list) and any(number_of(e) == comment for e in events if e.get("type") == "Comment")
