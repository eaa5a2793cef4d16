"""Decides the shape of Slack's answers: `ok`, and an error's name in place of an HTTP status."""

from __future__ import annotations

from email.utils import formatdate
from typing import Any

from counterfoil.sandbox.store import Store
from counterfoil.sandbox.wire import Json, Refused, Reply

_NAMES = {
    400: "invalid_arguments",
    401: "invalid_auth",
    403: "missing_scope",
    404: "channel_not_found",
    408: "request_timeout",
    429: "ratelimited",
    503: "service_unavailable",
}


def error_body(status: int, _code: str, _message: str) -> Json:
    """The error that Slack would name with such a status."""
    return {"ok": False, "error": _NAMES.get(status, "internal_error")}


def answered(store: Store, **fields: Any) -> Reply:
    """A success, with the sandbox's own time as the server's."""
    return Reply(200, {"ok": True, **fields}, {"Date": formatdate(store.now(), usegmt=True)})


def refuse(error: str, *, status: int = 200, retry_after_s: int | None = None) -> Refused:
    headers = {} if retry_after_s is None else {"Retry-After": str(retry_after_s)}
    return Refused(Reply(status, {"ok": False, "error": error}, headers))
