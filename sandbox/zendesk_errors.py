"""Decides the shape of Zendesk's errors."""

from __future__ import annotations

from counterfoil.sandbox.wire import Json, Refused, Reply

_NAMES = {400: "BadRequest", 403: "Forbidden", 404: "RecordNotFound", 422: "RecordInvalid"}


def error_body(status: int, code: str, message: str) -> Json:
    return {"error": code or _NAMES.get(status, "Error"), "description": message}


def refuse(status: int, message: str, *, code: str = "") -> Refused:
    return Refused(Reply(status, error_body(status, code, message)))


def invalid(**details: str) -> Refused:
    """A 422 that names fields."""
    body = error_body(422, "", "Record validation errors")
    return Refused(Reply(422, {**body, "details": {name: [{"description": why}] for name, why in details.items()}}))
