"""Decides what Resend answers to an Idempotency-Key that it has seen before.

Documented: a key is kept for 24 hours (`resend_idem_ttl_s`), and the same mail again gets the first one's id; another mail
is refused, and so is a twin while the first is under way. Not documented is whether a 500 is kept (the fault `500_stored`
keeps one).
"""

from __future__ import annotations

import hashlib
import json

from counterfoil.sandbox.store import Store
from counterfoil.sandbox.wire import Json, Reply, Request

KEY_CHARS_MAX = 256

_NAMES = {
    400: "validation_error",
    401: "missing_api_key",
    403: "invalid_api_key",
    404: "not_found",
    405: "method_not_allowed",
    409: "concurrent_idempotent_requests",
    422: "missing_required_field",
    429: "rate_limit_exceeded",
    451: "security_error",
}


def error_body(status: int, code: str, message: str) -> Json:
    """`code` is one of Resend's names, or what the status usually has."""
    known = code if code in (*_NAMES.values(), "invalid_idempotent_request", "invalid_idempotency_key") else None
    return {"statusCode": status, "message": message, "name": known or _NAMES.get(status, "application_error")}


class ResendIdempotency:
    """Resend's idempotency layer over the store."""

    def begin(self, store: Store, request: Request) -> Reply | None:
        key = _key(request)
        if key is None:
            return None
        if not 1 <= len(key) <= KEY_CHARS_MAX:
            return Reply(400, error_body(400, "invalid_idempotency_key", "The key must be between 1-256 chars."))
        account = f"resend:{request.account}"
        store.db.execute(
            "DELETE FROM idempotency WHERE account = ? AND key = ? AND created <= ?",
            (account, key, store.now() - store.config.resend_idem_ttl_s),
        )
        row = store.db.execute(
            "SELECT fingerprint, state, status, body FROM idempotency WHERE account = ? AND key = ?", (account, key)
        ).fetchone()
        if row is None:
            store.db.execute(
                "INSERT INTO idempotency (account, key, fingerprint, path, state, created)"
                " VALUES (?, ?, ?, ?, 'in_flight', ?)",
                (account, key, _fingerprint(request), request.path, store.now()),
            )
            return None
        fingerprint, state, status, body = row
        if fingerprint != _fingerprint(request):
            return Reply(409, error_body(409, "invalid_idempotent_request", "Same key, different request payload."))
        if state == "in_flight":
            return Reply(409, error_body(409, "", "Same key while the original request is still in progress."))
        return Reply(status, body)

    def finish(self, store: Store, request: Request, reply: Reply, *, executed: bool) -> None:
        key = _key(request)
        if key is None:
            return
        account = f"resend:{request.account}"
        if executed:
            store.db.execute(
                "UPDATE idempotency SET state = 'done', status = ?, headers = '{}', body = ?"
                " WHERE account = ? AND key = ? AND state = 'in_flight'",
                (reply.status, reply.encoded(), account, key),
            )
        else:
            store.db.execute("DELETE FROM idempotency WHERE account = ? AND key = ?", (account, key))


def _key(request: Request) -> str | None:
    return request.headers.get("idempotency-key") if request.operation == "emails.send" else None


def _fingerprint(request: Request) -> str:
    return hashlib.sha256(json.dumps(request.body, sort_keys=True).encode()).hexdigest()
