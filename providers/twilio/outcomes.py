"""Decides what Twilio's messages and errors prove, and how our reference stands in a text. No client is imported here.

    status of the message                    a text sent at once          a scheduled one            its cancellation
    scheduled                                Uncertain                    Succeeded                  not done yet
    canceled                                 Rejected                     Rejected                   Succeeded
    accepted, queued, sending                Succeeded                    Uncertain                  Rejected
    sent, delivered, read                    Succeeded                    Succeeded (at its time)    Rejected
    failed, undelivered                      Rejected: it reached nobody  the same                   Rejected
    any other                                Uncertain                    Uncertain                  Uncertain

A message that was handed over may still fail later: that is another event, which no outcome here foresees.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from email.utils import parsedate_to_datetime
from json import loads

from counterfoil.providers.contract import Call
from counterfoil.providers.outcomes import (
    Absent,
    Finding,
    Found,
    Many,
    NotSent,
    Rejected,
    Succeeded,
    Uncertain,
    Unknown,
)
from counterfoil.providers.transport import REFUSALS, classify_exception, classify_status, retry_after_of

REFERENCE_HEX = 10
"""Of the key's digits: 40 bits, among the texts that one number ever got."""
LEAD_MIN = timedelta(minutes=15)
LEAD_MAX = timedelta(days=35)
"""Twilio's error 35114: a request arrives 15 minutes to 35 days before the message is due. (Newer pages say five.)"""
EARLY_MAX = timedelta(minutes=1)
"""A scheduled message that went out earlier than this before its time was not scheduled."""
RECEIPTS_MAX = 20
SID = re.compile(r"(?:SM|MM)[0-9a-f]{32}", re.ASCII)

_HANDED_OVER = frozenset({"sent", "delivered", "read"})
_UNDER_WAY = frozenset({"accepted", "queued", "sending"})
_LOST = frozenset({"failed", "undelivered"})
_NOT_SCHEDULED = frozenset({30409, 35115})
"""It is not waiting (any more), so it cannot be cancelled: perhaps because an earlier request of ours has cancelled it."""
_REFUSED: Mapping[int, tuple[str, str | None]] = {
    20003: ("unauthenticated", None),
    21211: ("invalid_number", "to"),
    21408: ("region_not_allowed", "to"),
    21602: ("invalid_body", "body"),
    21606: ("invalid_sender", None),
    21610: ("unsubscribed", "to"),
    21612: ("unreachable", "to"),
    21614: ("not_mobile", "to"),
    21617: ("too_long", "body"),
    35114: ("send_at_outside_window", "send_at"),
}
_CODES = range(10_000, 100_000)


@dataclass(frozen=True, slots=True)
class Reply:
    """An answer as it came over the wire."""

    status: int
    text: str
    headers: Mapping[str, str]

    def body(self) -> object:
        """The JSON in it, None where it is none."""
        try:
            return loads(self.text)
        except (ValueError, RecursionError):
            return None


def reference_of(key: str) -> str:
    """What ends the text of the call of that key, and is all that is looked for."""
    if len(key) < REFERENCE_HEX:
        raise ValueError("no key")
    return f" (ref {key[:REFERENCE_HEX]})"


def text_of(call: Call, *, reference: bool) -> str:
    """The text as it is sent: the recorded one, and the reference."""
    return f"{call.arguments['body']}{reference_of(call.key) if reference else ''}"


def lead_refusal(call: Call) -> Rejected | NotSent | None:
    """Why this call cannot be scheduled, by what is recorded alone: the same on every attempt."""
    if call.first_sent_at is None:
        return NotSent("no_first_sent_at")
    lead = _due_at(call) - call.first_sent_at
    return None if LEAD_MIN <= lead <= LEAD_MAX else Rejected("send_at_outside_window", field="send_at")


def message_outcome(message: object, call: Call) -> Succeeded | Rejected | Uncertain:
    """What the message's status says about the call that made it, or about its cancellation."""
    sid, status = sid_of(message), status_of(message)
    if sid is None or status is None:
        return Uncertain("malformed", evidence=type(message).__name__)
    done = Succeeded(sid, {"id": sid, "status": status})
    if call.tool == "sms_cancel":
        return _cancellation(done, status)
    scheduled = call.tool == "sms_schedule"
    if status in _LOST:
        return Rejected("undelivered")
    if status == "canceled":
        return Rejected("canceled")
    if status in _HANDED_OVER or (status == "scheduled" if scheduled else status in _UNDER_WAY):
        return done
    return Uncertain("not_scheduled" if scheduled and status in _UNDER_WAY else "other_status")


def message_finding(messages: Sequence[Mapping[str, object]], call: Call) -> Finding:
    """What the texts to this call's number say: one with our reference is ours, two are a person's.

    The text alone, without its reference, is nobody's proof: it may be another call's. Nor is a list in which a text of
    that time cannot be read (some accounts keep none).
    """
    ours = [m for m in messages if str(m["body"]).endswith(reference_of(call.key))]
    if len(ours) > 1:
        return Many(tuple(str(m["sid"]) for m in ours[:RECEIPTS_MAX]))
    if ours:
        return _found(ours[0], call)
    for message in messages:
        created = time_of(message.get("date_created"))
        if call.first_sent_at is not None and created is not None and created < call.first_sent_at - EARLY_MAX:
            continue
        if not message["body"]:
            return Unknown("text_not_kept")
        if message["body"] == call.arguments["body"]:
            return Found(Uncertain("no_reference"), as_intended=False, unkeyed=True)
    return Absent()


def cancellation_finding(message: Mapping[str, object], call: Call) -> Finding:
    """What the message itself says about its cancellation."""
    outcome = message_outcome(message, call)
    if status_of(message) == "scheduled":
        return Absent()
    return Found(outcome, target=str(message.get("to")), unkeyed=True)


def error_outcome(exc: Exception, reply: Reply | None, *, retry_after_cap_s: float) -> NotSent | Rejected | Uncertain:
    """What an exception out of the client proves about the write; `reply` is the answer to it, if there was one.

    A refusal counts only in Twilio's own form, with a code of Twilio's and the status repeated.
    """
    if reply is None:
        return classify_exception(exc)
    if reply.status == 429:
        return classify_status(429, retry_after_s=retry_after_of(reply.headers, cap_s=retry_after_cap_s))
    code = _error_number(reply)
    if code is None or reply.status not in REFUSALS:
        return Uncertain(f"http_{reply.status}", evidence=f"{type(exc).__name__} HTTP {reply.status}")
    if code in _NOT_SCHEDULED:
        return Uncertain("not_scheduled", evidence=f"code {code}")
    short, field = _REFUSED.get(code, (REFUSALS[reply.status], None))
    return Rejected(short, field=field)


def sid_of(message: object) -> str | None:
    """A message's id."""
    sid = message.get("sid") if isinstance(message, Mapping) else None
    return sid if isinstance(sid, str) and SID.fullmatch(sid) else None


def status_of(message: object) -> str | None:
    """A message's status, None for no short word."""
    status = message.get("status") if isinstance(message, Mapping) else None
    return status if isinstance(status, str) and re.fullmatch(r"[a-z_]{1,32}", status) else None


def time_of(text: object) -> datetime | None:
    """A time as Twilio writes it, such as `Mon, 30 Nov 2026 15:00:00 +0000`."""
    try:
        moment = parsedate_to_datetime(text) if isinstance(text, str) else None
    except ValueError:
        return None
    return moment.replace(tzinfo=UTC) if moment is not None and moment.tzinfo is None else moment


def _cancellation(done: Succeeded, status: str) -> Succeeded | Rejected | Uncertain:
    if status == "canceled":
        return done
    return Rejected("too_late") if status in _UNDER_WAY | _HANDED_OVER | _LOST else Uncertain("other_status")


def _found(message: Mapping[str, object], call: Call) -> Found:
    """Ours by its reference; as intended only with the whole text, and not before its time."""
    sent = time_of(message.get("date_sent"))
    early = call.tool == "sms_schedule" and sent is not None and sent < _due_at(call) - EARLY_MAX
    return Found(
        message_outcome(message, call),
        target=str(message["to"]),
        created_at=time_of(message.get("date_created")),
        as_intended=message["body"] == text_of(call, reference=True) and not early,
    )


def _due_at(call: Call) -> datetime:
    return datetime.strptime(str(call.arguments["send_at"]), "%Y-%m-%dT%H:%M:%S%z")


def _error_number(reply: Reply) -> int | None:
    """The code of an error in Twilio's own form."""
    body = reply.body()
    if not isinstance(body, Mapping) or body.get("status") != reply.status:
        return None
    code = body.get("code")
    return code if isinstance(code, int) and not isinstance(code, bool) and code in _CODES else None
