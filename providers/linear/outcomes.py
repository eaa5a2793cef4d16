"""Decides what Linear's answers prove, and how our key is written on what we make. No client is imported here.

GraphQL answers with HTTP 200 whatever happened, so that the errors' codes decide, never their prose:

    AUTHENTICATION_ERROR, FORBIDDEN         refused
    GRAPHQL_VALIDATION_FAILED               refused: the document did not fit the schema, nothing was executed
    INPUT_ERROR that names an argument      refused, unless that argument is the id
    INPUT_ERROR that names none             uncertain: a repeated id says the same
    RATELIMITED, HTTP 429                   refused for now
    every other, and any data beside errors uncertain
"""

from __future__ import annotations

import hashlib
import json
import re
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from counterfoil.providers.contract import Call
from counterfoil.providers.outcomes import Absent, Finding, Found, Many, Rejected, Succeeded, Uncertain
from counterfoil.providers.sanitise import clean_text, clean_token
from counterfoil.providers.transport import retry_after_of

RECEIPTS_MAX = 20
CLOSED_TYPES = frozenset({"completed", "canceled", "duplicate"})
"""The types of the workflow states in which nobody works on an issue any more."""

_READABLE_STATUSES = frozenset({200, 400, 401, 403, 404, 422})
"""Linear's own refusals come with these; with any other a gateway may have taken part."""
_REFUSALS = {
    "AUTHENTICATION_ERROR": "unauthenticated",
    "FORBIDDEN": "forbidden",
    "GRAPHQL_VALIDATION_FAILED": "invalid_request",
}
_ARGUMENT_OF_FIELD = {
    "teamId": "team",
    "title": "title",
    "description": "description",
    "issueId": "issue",
    "body": "body",
}
"""The input fields that a refusal may name, and the arguments that they are; `id` is none of them."""
_KNOWN_CODES = frozenset({*_REFUSALS, "INPUT_ERROR", "RATELIMITED", "INTERNAL_SERVER_ERROR", "BAD_USER_INPUT"})
_PREFERRED = ("canceled", "cancelled", "won't do", "won’t do", "wont do")


@dataclass(frozen=True, slots=True)
class Answer:
    """One answer of Linear's; `body` is None where it is no JSON."""

    status: int
    headers: Mapping[str, str]
    body: object


def id_of(key: str) -> str:
    """The id that we give to what the call of this key makes: a UUID v4, as Linear takes it."""
    return str(uuid.UUID(bytes=hashlib.sha256(f"linear {key}".encode()).digest()[:16], version=4))


def mark_of(call: Call) -> str:
    """The last line of what this call writes: our key, and a digest of all that was asked for.

    People may edit the text around it, and Linear may write it differently: the mark alone tells that it was this call.
    """
    asked = json.dumps([call.tool, call.target, call.arguments], sort_keys=True, separators=(",", ":"))
    return f"cf-{call.key}-{hashlib.sha256(f'{call.key} {asked}'.encode()).hexdigest()[:16]}"


MARK = re.compile(r"cf-[0-9a-f]{32}-[0-9a-f]{16}", re.ASCII)
"""What `mark_of` makes."""


def marked(text: object, call: Call) -> str:
    """The text with the mark of this call in a line of its own."""
    return f"{text}\n\n`{mark_of(call)}`" if text else f"`{mark_of(call)}`"


def carries(text: object, key: str) -> bool:
    """The call of this key has written that text, or something in it."""
    return bool(key) and isinstance(text, str) and f"cf-{key}-" in text


def data_of(answer: Answer) -> Mapping[str, Any] | None:
    """The data of an answer without any error; None for every other answer."""
    body = answer.body
    if answer.status != 200 or not isinstance(body, Mapping) or body.get("errors"):
        return None
    data = body.get("data")
    return data if isinstance(data, Mapping) else None


def codes_of(answer: Answer) -> list[tuple[str, Mapping[str, Any]]]:
    """(code, error) for each error; empty where the answer is not in Linear's own form."""
    errors = answer.body.get("errors") if isinstance(answer.body, Mapping) else None
    if not isinstance(errors, list) or not all(isinstance(error, Mapping) for error in errors):
        return []
    return [(_code(error), error) for error in errors]


def refusal(answer: Answer, call: Call, *, first: str, retry_after_cap_s: float) -> Rejected | Uncertain:
    """What an answer that is no success proves about the write that it answers; `first` is the mutation's first field."""
    codes = codes_of(answer)
    evidence = _evidence(answer, codes)
    if _has_data(answer) or any(_came_later(answer, error, first) for _, error in codes):
        return Uncertain("partial", evidence=evidence)
    if answer.status == 429 or (_is_readable(answer, codes) and all(code == "RATELIMITED" for code, _ in codes)):
        wait_s = retry_after_of(answer.headers, cap_s=retry_after_cap_s)
        return Rejected("rate_limited", retryable=True, retry_after_s=wait_s)
    if not _is_readable(answer, codes):
        return Uncertain("malformed" if answer.status == 200 else f"http_{answer.status}", evidence=evidence)
    refused = [_refused(code, error, call) for code, error in codes]
    definite = [each for each in refused if each is not None]
    return definite[0] if len(definite) == len(refused) else Uncertain("provider_error", evidence=evidence)


def issue_made(payload: object, *, wanted: str) -> Succeeded | Uncertain:
    """The answer to a creation: done, and under the id that we gave it."""
    issue = payload.get("issue") if _is_success(payload) and isinstance(payload, Mapping) else None
    if not isinstance(issue, Mapping):
        return Uncertain("malformed", evidence=type(payload).__name__)
    if issue.get("id") != wanted:
        return Uncertain("other_id")
    return issue_done(issue)


def issue_done(issue: Mapping[str, Any]) -> Succeeded | Uncertain:
    """An issue needs its id and its identifier."""
    issue_id, identifier = clean_token(issue.get("id")), clean_token(issue.get("identifier"))
    if issue_id is None or identifier is None:
        return Uncertain("malformed", evidence=type(issue).__name__)
    return Succeeded(identifier, {"id": issue_id, "identifier": identifier})


def issue_finding(call: Call, issues: Sequence[Mapping[str, Any]]) -> Finding:
    """What the issues with our id or our mark say about a creation."""
    return _finding(call, issues, "description", "identifier")


def comment_made(payload: object, *, wanted: str) -> Succeeded | Uncertain:
    """The answer to a comment: done, and under the id that we gave it."""
    comment = payload.get("comment") if _is_success(payload) and isinstance(payload, Mapping) else None
    if not isinstance(comment, Mapping):
        return Uncertain("malformed", evidence=type(payload).__name__)
    return comment_done(wanted) if comment.get("id") == wanted else Uncertain("other_id")


def comment_done(receipt: str) -> Succeeded:
    return Succeeded(receipt, {"id": receipt})


def comment_finding(call: Call, comments: Sequence[Mapping[str, Any]]) -> Finding:
    """What the comments with our id or our mark say; one on another issue is not what was asked for."""
    return _finding(call, comments, "body", "id")


def comment_deleted(payload: object, *, wanted: str) -> Succeeded | Uncertain:
    """The answer to a deletion: done, and of that comment."""
    if not isinstance(payload, Mapping) or not _is_success(payload) or payload.get("entityId") != wanted:
        return Uncertain("malformed", evidence=type(payload).__name__)
    return comment_done(wanted)


def closed_as(issue: Mapping[str, Any]) -> str | None:
    """How an issue is closed: the name of its state, or that it is archived or in the trash; None for an open one."""
    if issue["state"]["type"] in CLOSED_TYPES:
        return str(issue["state"]["name"])
    if issue.get("trashed"):
        return "trashed"
    return "archived" if issue.get("archivedAt") else None


def closed(issue: Mapping[str, Any], state: str) -> Succeeded:
    """The issue is, or was put, in this state."""
    identifier = clean_token(issue["identifier"]) or ""
    return Succeeded(identifier, {"identifier": identifier, "state": clean_text(state)})


def closing_state(states: Sequence[Mapping[str, Any]]) -> str | None:
    """The id of the state of type `canceled` to move to: one of the usual name before any other, else the first."""
    ordered = sorted(states, key=lambda state: state["position"])
    usual = [state for state in ordered if state["name"].casefold() in _PREFERRED]
    return next((str(state["id"]) for state in [*usual, *ordered] if state["type"] == "canceled"), None)


def is_on(comment: Mapping[str, Any], identifier: object) -> bool:
    """The comment is on the issue of that identifier, which may be one from before the issue changed its team."""
    issue = comment.get("issue")
    if not isinstance(issue, Mapping):
        return False
    earlier = issue.get("previousIdentifiers")
    return issue.get("identifier") == identifier or (isinstance(earlier, list) and identifier in earlier)


def _finding(call: Call, items: Sequence[Mapping[str, Any]], text_field: str, receipt_field: str) -> Finding:
    if not items:
        return Absent()
    if len(items) > 1:
        return Many(tuple(clean_token(item[receipt_field]) or "" for item in items[:RECEIPTS_MAX]))
    item = items[0]
    text = item[text_field]
    exact = isinstance(text, str) and mark_of(call) in text
    if exact and text_field == "body":
        exact = is_on(item, call.arguments["issue"])
    if not exact:
        other = Uncertain("other_content" if carries(text, call.key) else "other_origin")
        return Found(other, created_at=_time_of(item["createdAt"]), as_intended=False)
    made = issue_done(item) if text_field == "description" else comment_done(str(item["id"]))
    renamed = bool(item.get("previousIdentifiers"))  # it was moved to another team
    return Found(made, target=call.target, created_at=_time_of(item["createdAt"]), renamed=renamed)


def _refused(code: str, error: Mapping[str, Any], call: Call) -> Rejected | None:
    if code in _REFUSALS:
        return Rejected(_REFUSALS[code])
    named = _named(error) if code == "INPUT_ERROR" else []
    if not named or any(name not in _ARGUMENT_OF_FIELD for name in named):
        return None
    argument = _ARGUMENT_OF_FIELD[named[0]]
    return Rejected("invalid_request", field=argument if argument in call.arguments else None)


def _named(error: Mapping[str, Any]) -> list[str]:
    """The input fields that the error is about; empty where one of them cannot be read."""
    extensions = error.get("extensions")
    failures = extensions.get("validationErrors") if isinstance(extensions, Mapping) else None
    if not isinstance(failures, list):
        return []
    names = [failure.get("property") for failure in failures if isinstance(failure, Mapping)]
    known = [name for name in names if isinstance(name, str)]
    return known if len(known) == len(failures) else []


def _code(error: Mapping[str, Any]) -> str:
    extensions = error.get("extensions")
    code = extensions.get("code") if isinstance(extensions, Mapping) else None
    return code if isinstance(code, str) else ""


def _is_readable(answer: Answer, codes: Sequence[tuple[str, object]]) -> bool:
    return bool(codes) and answer.status in _READABLE_STATUSES


def _has_data(answer: Answer) -> bool:
    """Something was executed: a field of the data is not null."""
    data = answer.body.get("data") if isinstance(answer.body, Mapping) else None
    return isinstance(data, Mapping) and any(value is not None for value in data.values())


def _came_later(answer: Answer, error: Mapping[str, Any], first: str) -> bool:
    """The error may have come after the first field was executed, although no data is shown of that: it is of a field
    after it, or of a part of its answer."""
    path = error.get("path")
    if path is None:
        return isinstance(answer.body, Mapping) and "data" in answer.body
    return bool(path != [first])


def _evidence(answer: Answer, codes: Sequence[tuple[str, object]]) -> str:
    known = [code for code, _ in codes[:3] if code in _KNOWN_CODES]
    return " ".join([f"HTTP {answer.status}", *known])


def _is_success(payload: object) -> bool:
    return isinstance(payload, Mapping) and payload.get("success") is True


def _time_of(text: object) -> datetime | None:
    try:
        at = datetime.fromisoformat(str(text))
    except ValueError:
        return None
    return at if at.tzinfo is not None else None
