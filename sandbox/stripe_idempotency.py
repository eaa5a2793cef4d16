"""Decides what Stripe answers to an Idempotency-Key that it has seen before: replay, mismatch, or in use.

Rules (Stripe's API reference, "Idempotent requests"): any POST; one result per account and key, kept once execution has
begun, failures included; a refused parameter, 401, 409 and 429 are not kept; forgotten after a day (`idem_ttl_s`), and
then the same key executes again.
"""

from __future__ import annotations

import hashlib
import json

from counterfoil.sandbox.store import Store
from counterfoil.sandbox.stripe_errors import error_body
from counterfoil.sandbox.wire import Reply, Request

_KEY_CHARS_MAX = 255
_MISMATCH = (
    "Keys for idempotent requests can only be used with the same parameters they were first used with. "
    "Try using a key other than '{key}' if you meant to execute a different request."
)
_OTHER_PATH = "Keys for idempotent requests can only be used for the same endpoint they were first used for ('{path}')."
_IN_USE = (
    "There is currently another in-progress request using this Idempotent Key (that probably means you submitted twice, "
    "and the other request is still going through): {key}. Please try again later."
)


class StripeIdempotency:
    """Stripe's v1 idempotency layer over the store."""

    def begin(self, store: Store, request: Request) -> Reply | None:
        key = _key(request)
        if key is None:
            return None
        if len(key) > _KEY_CHARS_MAX:
            return Reply(400, error_body(400, "", "Idempotency-Key must be at most 255 characters."))
        store.db.execute(
            "DELETE FROM idempotency WHERE account = ? AND key = ? AND created <= ?",
            (request.account, key, store.now() - store.config.idem_ttl_s),
        )
        row = store.db.execute(
            "SELECT fingerprint, path, state, status, headers, body FROM idempotency WHERE account = ? AND key = ?",
            (request.account, key),
        ).fetchone()
        if row is None:
            store.db.execute(
                "INSERT INTO idempotency (account, key, fingerprint, path, state, created)"
                " VALUES (?, ?, ?, ?, 'in_flight', ?)",
                (request.account, key, _fingerprint(request), request.path, store.now()),
            )
            return None
        fingerprint, path, state, status, headers, body = row
        if path != request.path:
            return Reply(400, error_body(400, "idempotency_error", _OTHER_PATH.format(path=path)))
        if fingerprint != _fingerprint(request):
            return Reply(400, error_body(400, "idempotency_error", _MISMATCH.format(key=key)))
        if state == "in_flight":
            return Reply(409, error_body(409, "idempotency_key_in_use", _IN_USE.format(key=key)))
        first = json.loads(headers)
        replay = {"Idempotent-Replayed": "true", "Original-Request": first.get("Request-Id", "")}
        kept = {name: value for name, value in first.items() if name != "Request-Id"}
        return Reply(status, body, {**kept, **replay})

    def finish(self, store: Store, request: Request, reply: Reply, *, executed: bool) -> None:
        key = _key(request)
        if key is None:
            return
        if executed or reply.status in (402, 404):
            store.db.execute(
                "UPDATE idempotency SET state = 'done', status = ?, headers = ?, body = ? WHERE account = ? AND key = ?",
                (reply.status, json.dumps(dict(reply.headers)), reply.encoded(), request.account, key),
            )
        else:
            store.db.execute("DELETE FROM idempotency WHERE account = ? AND key = ?", (request.account, key))


def _key(request: Request) -> str | None:
    return request.headers.get("idempotency-key") if request.method == "POST" else None


def _fingerprint(request: Request) -> str:
    canonical = json.dumps([request.method, request.path, request.body], sort_keys=True)
    return hashlib.sha256(canonical.encode()).hexdigest()
