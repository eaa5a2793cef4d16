"""Decides the shape of Twilio's errors."""

from __future__ import annotations

from counterfoil.sandbox.wire import Json, Refused, Reply

_CODES = {400: 21601, 401: 20003, 403: 20005, 404: 20404, 429: 20429}


def error_body(status: int, code: str, message: str) -> Json:
    number = int(code) if code.isdigit() else _CODES.get(status, 20500)
    return {"code": number, "message": message, "more_info": f"https://example.test/errors/{number}", "status": status}


def refuse(status: int, code: int, message: str) -> Refused:
    return Refused(Reply(status, error_body(status, str(code), message)))
