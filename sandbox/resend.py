"""Decides which part of Resend's API exists here: a mail is accepted once for each key, and can be read by its id."""

from __future__ import annotations

import uuid
from datetime import UTC, datetime

from counterfoil.sandbox.resend_idempotency import ResendIdempotency, error_body
from counterfoil.sandbox.store import Store
from counterfoil.sandbox.wire import Provider, Refused, Reply, Request, Route

MAIL = "resend_email"
_REQUIRED = ("from", "to", "subject")


def _refuse(status: int, code: str, message: str) -> Refused:
    return Refused(Reply(status, error_body(status, code, message)))


def _send(store: Store, request: Request) -> Reply:
    body = request.body
    for name in _REQUIRED:
        if not body.get(name):
            raise _refuse(422, "missing_required_field", f"Missing `{name}` field.")
    to = [body["to"]] if isinstance(body["to"], str) else body["to"]
    if not all(isinstance(each, str) and "@" in each for each in to):
        raise _refuse(422, "validation_error", "Invalid `to` field.")
    mail_id, created = str(uuid.uuid4()), datetime.fromtimestamp(store.now(), UTC).isoformat(sep=" ")
    mail = {**body, "object": "email", "id": mail_id, "to": to, "created_at": created, "last_event": "delivered"}
    store.put(MAIL, mail_id, mail, account=request.account)
    key = request.headers.get("idempotency-key")
    data = {"to": to[0], "subject": body["subject"], "text": body.get("text"), "account": request.account}
    for _ in to:
        store.record_effect("resend", "email", mail_id, key=key, data=data)
    return Reply(200, {"id": mail_id})


def _retrieve(store: Store, request: Request) -> Reply:
    mail = store.get(MAIL, request.match["id"], account=request.account)
    if mail is None:
        raise _refuse(404, "not_found", "Email not found")
    hidden = ("headers",) if store.config.resend_tags == "shown" else ("headers", "tags")
    return Reply(200, {name: value for name, value in mail.items() if name not in hidden})


def _not_found(_store: Store, _request: Request) -> Reply:
    raise _refuse(404, "not_found", "The requested endpoint does not exist.")


def _admit(request: Request) -> Reply | None:
    """Any key is valid; two keys are two accounts. One that begins with `re_send_` may only send."""
    scheme, _, key = request.headers.get("authorization", "").partition(" ")
    if scheme != "Bearer" or not key:
        return Reply(401, error_body(401, "missing_api_key", "Missing API key in the authorization header."))
    if key.startswith("re_send_") and request.operation != "emails.send":
        restricted = {"statusCode": 401, "name": "restricted_api_key", "message": "This API key may only send emails."}
        return Reply(401, restricted)
    return None


RESEND = Provider(
    name="resend",
    error=error_body,
    admit=_admit,
    idempotency=ResendIdempotency(),
    routes=(
        Route("POST", "/emails", "emails.send", _send),
        Route("GET", "/emails/{id}", "emails.retrieve", _retrieve),
        Route("*", "/{tail:.*}", "unknown", _not_found),
    ),
)
