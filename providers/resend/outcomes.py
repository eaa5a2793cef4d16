"""Decides what Resend's answers prove, by the names of its errors, and what a mail's status says. No client is imported here.

Every error of Resend's has a `name` ("Errors" in its API reference). A name that is not listed here, and a refusal without
one, which is a gateway's, prove nothing:

    409 invalid_idempotent_request       the key was used with another mail     Uncertain, idempotency_mismatch
    409 concurrent_idempotent_requests   the first request is still under way   Uncertain, idempotency_key_in_use
    429                                  refused for now                        Rejected, retryable
    the names in `REFUSED`               refused for good                       Rejected
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from datetime import datetime

from counterfoil.providers.contract import OTHER_KEY, Call
from counterfoil.providers.outcomes import Absent, Finding, Found, Rejected, Succeeded, Uncertain, Unknown

KEY_TAG = "counterfoil_key"
"""The tag that carries our key. A mail that is read may show its tags: Resend's own client for Node calls them optional."""

REFUSED: Mapping[str, frozenset[int]] = {
    "invalid_access": frozenset({422}),
    "invalid_api_key": frozenset({401, 403}),
    "invalid_attachment": frozenset({422}),
    "invalid_from_address": frozenset({403, 422}),
    "invalid_idempotency_key": frozenset({400}),
    "invalid_parameter": frozenset({422}),
    "invalid_region": frozenset({422}),
    "invalid_to_address": frozenset({403, 422}),
    "method_not_allowed": frozenset({405}),
    "missing_api_key": frozenset({401}),
    "missing_required_field": frozenset({422}),
    "missing_required_fields": frozenset({422}),
    "not_found": frozenset({404}),
    "restricted_api_key": frozenset({401, 403}),
    "validation_error": frozenset({400, 401, 403, 422}),
}
"""The refusals for good, each with the statuses that Resend documents, or has documented, for it."""

QUOTAS = ("daily_quota_exceeded", "monthly_quota_exceeded")

ACCEPTED = frozenset(
    {"queued", "sent", "delivered", "delivery_delayed", "bounced", "complained", "opened", "clicked", "unsubscribed"}
)
"""`last_event` of a mail that Resend has taken to send. A mail that bounced was sent, too: no mailbox was there."""
NEVER_SENT = frozenset({"failed", "canceled", "suppressed"})

_ID = re.compile(r"[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}", re.ASCII)


def is_id(text: object) -> bool:
    """Resend's ids of mails are UUIDs."""
    return isinstance(text, str) and _ID.fullmatch(text) is not None


def answered(status: int, body: bytes, *, wait_s: float | None) -> Succeeded | Rejected | Uncertain:
    """What the answer to the call's own request proves."""
    evidence = f"HTTP {status}"
    answer = parsed(body)
    receipt = answer.get("id")
    if status == 200:
        if isinstance(receipt, str) and is_id(receipt):
            return Succeeded(receipt, {"id": receipt})
        return Uncertain("malformed", evidence=evidence)
    name = name_of(answer)
    if status == 429:
        code = name if name in QUOTAS else "rate_limited"
        return Rejected(code, retryable=True, retry_after_s=wait_s)
    match status, name:
        case 409, "invalid_idempotent_request":
            return Uncertain("idempotency_mismatch", evidence=evidence)
        case 409, "concurrent_idempotent_requests":
            return Uncertain("idempotency_key_in_use", evidence=evidence)
        case _ if status in REFUSED.get(name, ()):
            return Rejected(name)
        case _:
            return Uncertain(f"http_{status}", evidence=evidence)


def fetched(call: Call, receipt: str, status: int, body: bytes) -> Finding:
    """What the mail that a person has named shows: ours only where its tags say so, and they must be shown to say it."""
    mail = parsed(body)
    if status == 404 and name_of(mail) == "not_found":
        return Absent()
    if status != 200 or mail.get("object") != "email" or mail.get("id") != receipt:
        return Unknown(_reading_code(status, name_of(mail)))
    keys = _keys(mail)
    if not keys:
        return Unknown("key_not_shown")
    if keys != [call.key]:
        return Unknown(OTHER_KEY)
    sent_as_asked = mail.get("to") == [call.arguments["to"]] and mail.get("subject") == call.arguments["subject"]
    return Found(_status_of(mail, receipt), created_at=_time_of(mail.get("created_at")), as_intended=sent_as_asked)


def parsed(body: bytes) -> Mapping[str, object]:
    """The body as a JSON object, {} for anything else."""
    try:
        parsed: object = json.loads(body)
    except (ValueError, RecursionError):
        return {}
    return parsed if isinstance(parsed, dict) else {}


def name_of(answer: Mapping[str, object]) -> str:
    """The error's name in Resend's own form, "" for any other body."""
    name = answer.get("name")
    return name if isinstance(name, str) and "message" in answer else ""


def _reading_code(status: int, name: str) -> str:
    """Why a mail could not be read: Resend's word where it is a listed one, as for a key that may only send."""
    if status == 200:
        return "malformed"
    return name if status in REFUSED.get(name, ()) else f"http_{status}"


def _status_of(mail: Mapping[str, object], receipt: str) -> Succeeded | Rejected | Uncertain:
    event = mail.get("last_event")
    if event in ACCEPTED:
        return Succeeded(receipt, {"id": receipt})
    if isinstance(event, str) and event in NEVER_SENT:
        return Rejected(event)
    return Uncertain("unknown_status")


def _keys(mail: Mapping[str, object]) -> list[object]:
    """The values of our tag, in case that there are several."""
    tags = mail.get("tags")
    if not isinstance(tags, list):
        return []
    return [tag.get("value") for tag in tags if isinstance(tag, Mapping) and tag.get("name") == KEY_TAG]


def _time_of(text: object) -> datetime | None:
    try:
        time = datetime.fromisoformat(text) if isinstance(text, str) else None
    except ValueError:
        return None
    return time if time is not None and time.tzinfo is not None else None
