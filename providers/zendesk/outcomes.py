"""Decides what Zendesk's answers and errors prove, and how our key is written on a ticket. No client is imported here."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any

from counterfoil.providers.contract import OTHER_KEY, Call
from counterfoil.providers.outcomes import (
    PRECONDITION_FAILED,
    Absent,
    Finding,
    Found,
    Many,
    NotSent,
    Rejected,
    Succeeded,
    Uncertain,
    Version,
)
from counterfoil.providers.sanitise import clean_id, clean_text
from counterfoil.providers.transport import REFUSALS, classify_exception, classify_status, retry_after_of

KEY = "counterfoil_key"
TARGET = "counterfoil_target"
"""In an audit's custom metadata, which a write sets together with its effect, and nobody can edit afterwards."""
DONE = ("solved", "closed")
STATUSES = ("new", "open", "pending", "hold", *DONE)
"""Zendesk's own; an account's custom ones each belong to one of them, which this field says."""
NOT_SOLVED = Uncertain("not_solved")
RECEIPTS_MAX = 20

_STAMP = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ")
_ARGUMENT_OF_FIELD = {"comment": "body", "subject": "subject", "id": "ticket"}


def external_id_of(key: str) -> str:
    """What the list by external id finds. Not unique at Zendesk, and people can edit it: audits have the last word."""
    return f"cf-{key}"


def metadata_of(call: Call) -> dict[str, object]:
    """What the audit of this call's write will say."""
    return {KEY: call.key, TARGET: call.target}


def number_of(item: object) -> str | None:
    """An object's id as text; Zendesk's ids are numbers."""
    value = item.get("id") if isinstance(item, Mapping) else None
    is_number = isinstance(value, int) and not isinstance(value, bool) and value > 0
    return clean_id(str(value)) if is_number else None


def ticket_outcome(ticket: object, *, named: str | None = None) -> Succeeded | Uncertain:
    """A ticket needs its id, that of `named` where one was written to, and a status."""
    receipt, status = number_of(ticket), ticket.get("status") if isinstance(ticket, Mapping) else None
    if receipt is None or status not in STATUSES or named not in (None, receipt):
        return Uncertain("malformed", evidence=type(ticket).__name__)
    return done(receipt, status)


def created_outcome(ticket: object, key: str) -> Succeeded | Uncertain:
    """A ticket that was made under this key shows it."""
    shown = ticket.get("external_id") if isinstance(ticket, Mapping) else None
    outcome = ticket_outcome(ticket)
    is_other = isinstance(outcome, Succeeded) and shown != external_id_of(key)
    return Uncertain(OTHER_KEY) if is_other else outcome


def solved_outcome(ticket: object, *, named: str) -> Succeeded | Uncertain:
    """A ticket that was to be solved shows that it is; a field that may not be set is left out without an error."""
    outcome = ticket_outcome(ticket, named=named)
    if not isinstance(outcome, Succeeded) or outcome.fields["status"] in DONE:
        return outcome
    return NOT_SOLVED


def solves(audit: Mapping[str, object]) -> bool:
    """This audit has moved its ticket to an end."""
    events = audit.get("events")
    changes = [event for event in events if isinstance(event, Mapping)] if isinstance(events, list) else []
    return any(change.get("field_name") == "status" and change.get("value") in DONE for change in changes)


def done(receipt: str, status: str) -> Succeeded:
    return Succeeded(receipt, {"id": receipt, "status": clean_text(status)})


def comment_outcome(audit: object, *, public: bool) -> Succeeded | Uncertain:
    """The one comment of an audit, which must be for the audience that was asked for."""
    events = audit.get("events") if isinstance(audit, Mapping) else None
    if not isinstance(events, list):
        return Uncertain("malformed", evidence=type(audit).__name__)
    comments = [event for event in events if isinstance(event, Mapping) and event.get("type") == "Comment"]
    receipt = number_of(comments[0]) if len(comments) == 1 else None
    if receipt is None:
        return Uncertain("no_comment")
    if comments[0].get("public") is not public:
        return Uncertain("other_audience")
    return Succeeded(receipt, {"id": receipt})


def is_ours(audit: Mapping[str, object], key: str) -> bool:
    """This audit was written by the call of that key."""
    return bool(key) and _custom(audit).get(KEY) == key


def comment_finding(audits: Sequence[Mapping[str, object]], *, public: bool) -> Finding:
    """What the audits that carry our key say about the note or reply."""
    if not audits:
        return Absent()
    if len(audits) > 1:
        return Many(tuple(number_of(audit) or "" for audit in audits[:RECEIPTS_MAX]))
    return _found(comment_outcome(audits[0], public=public), audits[0])


def ticket_finding(ticket: Mapping[str, object], audits: Sequence[Mapping[str, object]]) -> Finding:
    """What the one ticket with our external id is: ours only where its first audit says so, and told nobody outside."""
    if not audits:
        return Found(Uncertain("other_origin"), as_intended=False)
    comment = comment_outcome(audits[0], public=False)
    return _found(comment if isinstance(comment, Uncertain) else ticket_outcome(ticket), audits[0])


def version_of(ticket: Mapping[str, object]) -> Version | None:
    """When the ticket was last updated, to the second as Zendesk has it, and its status for the person who decides."""
    stamp, status = ticket.get("updated_at"), ticket.get("status")
    if not isinstance(stamp, str) or not _STAMP.fullmatch(stamp) or not isinstance(status, str):
        return None
    return Version(f"{stamp} {clean_text(status, chars_max=64)}")


def condition_of(call: Call) -> dict[str, object]:
    """What makes Zendesk refuse the update when the ticket is no longer what the call was decided on."""
    if call.expected_version is None:
        return {}
    return {"safe_update": True, "updated_stamp": call.expected_version.partition(" ")[0]}


def error_outcome(exc: Exception, call: Call, *, retry_after_cap_s: float) -> NotSent | Rejected | Uncertain:
    """What an exception out of zenpy proves about the write that was made.

    A refusal counts only in Zendesk's own form. A 409 is a refusal only where it answers our condition: to a creation it
    may mean that the same key is under way.
    """
    reply: Any = getattr(exc, "response", None)
    status = getattr(reply, "status_code", None)
    if not isinstance(status, int):
        return classify_exception(exc)
    if status == 429:
        return classify_status(status, retry_after_s=retry_after_of(reply.headers, cap_s=retry_after_cap_s))
    body = _error_body(reply)
    unsure = Uncertain(f"http_{status}", evidence=f"{type(exc).__name__} HTTP {status}")
    match status, body.get("error"):
        case _, None:
            return unsure
        case _, "IdempotentRequestError":
            return Uncertain("idempotency_mismatch", evidence=unsure.evidence)
        case 409, "UpdateConflict" if call.expected_version is not None:
            return Rejected(PRECONDITION_FAILED)
        case _ if status in REFUSALS:
            return Rejected(REFUSALS[status], field=_field(body, call))
        case _:
            return unsure


def error_code(exc: Exception) -> str:
    """A short name for a failed read."""
    status = getattr(getattr(exc, "response", None), "status_code", None)
    return f"http_{status}" if isinstance(status, int) else type(exc).__name__


def _found(outcome: Succeeded | Uncertain, audit: Mapping[str, object]) -> Found:
    target, created = _custom(audit).get(TARGET), audit.get("created_at")
    return Found(
        outcome,
        target=target if isinstance(target, str) else None,
        created_at=_time_of(created),
        as_intended=isinstance(outcome, Succeeded),
    )


def _custom(audit: Mapping[str, object]) -> Mapping[str, object]:
    metadata = audit.get("metadata")
    custom = metadata.get("custom") if isinstance(metadata, Mapping) else None
    return custom if isinstance(custom, Mapping) else {}


def _time_of(text: object) -> datetime | None:
    return datetime.fromisoformat(text) if isinstance(text, str) and _STAMP.fullmatch(text) else None


def _error_body(reply: Any) -> Mapping[str, object]:
    """The body of a reply in Zendesk's own form, {} for a gateway's page."""
    try:
        body = reply.json()
    except ValueError:
        return {}
    return body if isinstance(body, Mapping) else {}


def _field(body: Mapping[str, object], call: Call) -> str | None:
    """The argument that the first of Zendesk's `details` is about."""
    details = body.get("details")
    name = next(iter(details), None) if isinstance(details, Mapping) else None
    name = _ARGUMENT_OF_FIELD.get(str(name), str(name))
    return name if name in call.arguments else None
