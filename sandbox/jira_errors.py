"""Decides the shape of Jira's errors, and reads what a request names."""

from __future__ import annotations

from typing import Any

from counterfoil.sandbox.wire import Json, Refused, Reply, Request


def error_body(_status: int, _code: str, message: str) -> Json:
    return {"errorMessages": [message], "errors": {}}


def refuse(status: int, message: str) -> Refused:
    return Refused(Reply(status, error_body(status, "", message)))


def refuse_fields(**errors: str) -> Refused:
    """A 400 that names fields."""
    return Refused(Reply(400, {"errorMessages": [], "errors": errors}))


def no_issue() -> Refused:
    return refuse(404, "Issue does not exist or you do not have permission to see it.")


def listed(value: Any) -> list[str]:
    """`["a,b", "c"]`, `"a,b,c"` and `["a", "b", "c"]` alike; Jira takes all three."""
    given = value if isinstance(value, list) else [value] if value is not None else []
    return [part.strip() for entry in given for part in str(entry).split(",") if part.strip()]


def document(request: Request, value: Any, field: str) -> Any:
    """A text body as this version of the API wants it: a string in v2, an Atlassian document in v3."""
    if request.match["v"] == "3" and not (isinstance(value, dict) and value.get("type") == "doc"):
        raise refuse_fields(
            **{field: "Operation value must be an Atlassian Document (see the Atlassian Document Format)"}
        )
    if request.match["v"] == "2" and not isinstance(value, str):
        raise refuse_fields(**{field: "Operation value must be a string"})
    return value


def base_url(request: Request) -> str:
    return f"http://{request.headers.get('host', '127.0.0.1')}/jira/rest/api/{request.match['v']}"
