"""Decides what Zendesk answers to an Idempotency-Key of a ticket's creation that it has seen before.

Documented: only a creation takes one; the first answer is kept for two hours (`zendesk_idem_ttl_s`) and then the same key
executes again; other parameters are refused; `x-idempotency-lookup` says miss or hit. Not documented is what a twin meets
while the first is under way (`zendesk_in_flight`), nor whether a 500 is kept (the fault `500_stored` keeps one).
"""

from __future__ import annotations

import hashlib
import json

from counterfoil.sandbox.store import Store
from counterfoil.sandbox.wire import Reply, Request
from counterfoil.sandbox.zendesk_errors import error_body

_ACCOUNT = "zendesk"
"""One account, whoever's token asks."""


class ZendeskIdempotency:
    """Zendesk's idempotency layer over the store."""

    def begin(self, store: Store, request: Request) -> Reply | None:
        key = _key(request)
        if key is None:
            return None
        store.db.execute(
            "DELETE FROM idempotency WHERE account = ? AND key = ? AND created <= ?",
            (_ACCOUNT, key, store.now() - store.config.zendesk_idem_ttl_s),
        )
        row = store.db.execute(
            "SELECT fingerprint, state, status, body FROM idempotency WHERE account = ? AND key = ?", (_ACCOUNT, key)
        ).fetchone()
        if row is None:
            store.db.execute(
                "INSERT INTO idempotency (account, key, fingerprint, path, state, created)"
                " VALUES (?, ?, ?, ?, 'in_flight', ?)",
                (_ACCOUNT, key, _fingerprint(request), request.path, store.now()),
            )
            return None
        fingerprint, state, status, body = row
        if fingerprint != _fingerprint(request):
            message = "Request parameters don't match the given idempotency key"
            return Reply(400, error_body(400, "IdempotentRequestError", message))
        if state == "in_flight":
            twin = Reply(409, error_body(409, "Conflict", "A request with this idempotency key is in progress"))
            return twin if store.config.zendesk_in_flight == "conflict" else None
        return Reply(status, body, {"x-idempotency-lookup": "hit"})

    def finish(self, store: Store, request: Request, reply: Reply, *, executed: bool) -> None:
        key = _key(request)
        if key is None:
            return
        if executed:
            store.db.execute(
                "UPDATE idempotency SET state = 'done', status = ?, headers = '{}', body = ?"
                " WHERE account = ? AND key = ? AND state = 'in_flight'",
                (reply.status, reply.encoded(), _ACCOUNT, key),
            )
        else:
            store.db.execute("DELETE FROM idempotency WHERE account = ? AND key = ?", (_ACCOUNT, key))


def _key(request: Request) -> str | None:
    return request.headers.get("idempotency-key") if request.operation == "tickets.create" else None


def _fingerprint(request: Request) -> str:
    return hashlib.sha256(json.dumps(request.body, sort_keys=True).encode()).hexdigest()
