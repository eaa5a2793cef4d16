"""Decides what Jira's answers and errors prove, and how our key is written on a ticket. No client is imported here."""

from __future__ import annotations

import re
from collections.abc import Mapping
from datetime import datetime

from counterfoil.providers.contract import Call
from counterfoil.providers.outcomes import Found, NotSent, Rejected, Succeeded, Uncertain
from counterfoil.providers.sanitise import clean_text, clean_token
from counterfoil.providers.transport import classify_exception, classify_status, retry_after_of

PROPERTY = "counterfoil"
"""The entity property, on a ticket or a comment, that names the call that made it: {"key": …, "target": …}."""
UNDO_PROPERTY = "counterfoil_undo"
OPEN_PROPERTY = "counterfoil_open"
"""Names the call that put a staged ticket into the queue: the request that moves it writes this."""

_MARK = re.compile(r"\bcf-([0-9a-f]{32})\b")
_ARGUMENT_OF_FIELD = {"issuetype": "issue_type", "comment": "body"}


def label_of(key: str) -> str:
    """The label that search finds. Only our hex key goes in: a label takes no spaces, and tenants' names stay out."""
    return f"cf-{key}"


def marked(text: object, key: str) -> str:
    """A description or comment that ends with our key: in Data Center the second place where it is looked for."""
    return f"{text}\n\n{label_of(key)}" if text else label_of(key)


def keys_in(text: object) -> frozenset[str]:
    """The keys that a description or comment names."""
    return frozenset(_MARK.findall(text)) if isinstance(text, str) else frozenset()


def property_of(call: Call) -> dict[str, object]:
    """The property that a write sets together with its effect, in the same request."""
    return {"key": PROPERTY, "value": {"key": call.key, "target": call.target}}


def is_ours(properties: Mapping[str, object], key: str, *, name: str = PROPERTY) -> bool:
    """These properties, by name, hold our key."""
    value = properties.get(name)
    return isinstance(value, Mapping) and value.get("key") == key


def property_keys(properties: Mapping[str, object]) -> frozenset[str]:
    """The key that these properties hold, if any."""
    value = properties.get(PROPERTY)
    key = value.get("key") if isinstance(value, Mapping) else None
    return frozenset({key}) if isinstance(key, str) else frozenset()


def ticket_outcome(answer: object) -> Succeeded | Uncertain:
    """A new ticket needs both its id and its key."""
    if isinstance(answer, Mapping):
        issue_id, key = clean_token(answer.get("id")), clean_token(answer.get("key"))
        if issue_id is not None and key is not None:
            return Succeeded(key, {"id": issue_id, "key": key})
    return Uncertain("malformed", evidence=type(answer).__name__)


def comment_outcome(answer: object) -> Succeeded | Uncertain:
    """A new comment needs its id."""
    receipt = clean_token(answer.get("id")) if isinstance(answer, Mapping) else None
    return Uncertain("malformed", evidence=type(answer).__name__) if receipt is None else comment_done(receipt)


def comment_done(receipt: str) -> Succeeded:
    return Succeeded(receipt, {"id": receipt})


def moved(issue: str, status: str) -> Succeeded:
    """The ticket is, or was put, in this status."""
    return Succeeded(issue, {"key": issue, "status": clean_text(status)})


def done_status(status: object) -> str | None:
    """The status's name when its category is done, else None."""
    if not isinstance(status, Mapping):
        return None
    category = status.get("statusCategory")
    is_done = isinstance(category, Mapping) and category.get("key") == "done"
    return str(status.get("name")) if is_done else None


def time_of(text: object) -> datetime | None:
    """A time as Jira writes it; None for anything else."""
    try:
        return datetime.strptime(str(text), "%Y-%m-%dT%H:%M:%S.%f%z")
    except ValueError:
        return None


def found(outcome: Succeeded | Uncertain, *, properties: Mapping[str, object], created: object) -> Found:
    """The finding for the one ticket or comment that carries our key."""
    value = properties.get(PROPERTY)
    target = value.get("target") if isinstance(value, Mapping) else None
    return Found(outcome, target=target if isinstance(target, str) else None, created_at=time_of(created))


def error_outcome(exc: Exception, call: Call, *, retry_after_cap_s: float) -> NotSent | Rejected | Uncertain:
    """What an exception out of the jira client proves about the write that was made."""
    status = getattr(exc, "status_code", None)
    if not isinstance(status, int):
        return classify_exception(exc)
    reply = getattr(exc, "response", None)
    headers = getattr(reply, "headers", None)
    if status != 429 and not is_jira_s_own(exc):
        return Uncertain(f"http_{status}", evidence=f"HTTP {status}")
    wait_s = retry_after_of(headers, cap_s=retry_after_cap_s) if isinstance(headers, Mapping) else None
    outcome = classify_status(status, retry_after_s=wait_s)
    if isinstance(outcome, Rejected) and not outcome.retryable:
        return Rejected(outcome.code, field=_field(reply, call))
    return outcome


def is_jira_s_own(exc: Exception) -> bool:
    """The error is in a form of Jira's: a gateway before it answers with pages of its own."""
    body = _body(getattr(exc, "response", None))
    return any(name in body for name in ("errorMessages", "errors", "message"))


def error_code(exc: Exception) -> str:
    """A short name for a failed read."""
    status = getattr(exc, "status_code", None)
    return f"http_{status}" if isinstance(status, int) else type(exc).__name__


def _field(reply: object, call: Call) -> str | None:
    """The argument that Jira's first field error is about."""
    errors = _body(reply).get("errors")
    first = next(iter(errors), None) if isinstance(errors, Mapping) else None
    name = _ARGUMENT_OF_FIELD.get(str(first), str(first))
    return name if name in call.arguments else None


def _body(reply: object) -> Mapping[str, object]:
    """The JSON object of a reply, {} for anything else."""
    try:
        body = reply.json()  # type: ignore[attr-defined]
    except (AttributeError, ValueError):
        return {}
    return body if isinstance(body, Mapping) else {}
