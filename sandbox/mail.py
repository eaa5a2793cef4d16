"""Decides what the mail service does: every accepted POST is one message that a customer has read. No deduplication."""

from __future__ import annotations

from counterfoil.sandbox.store import Store
from counterfoil.sandbox.wire import Json, Provider, Reply, Request, Route

MESSAGE = "message"


def _error(_status: int, code: str, message: str) -> Json:
    return {"error": code, "message": message}


def _send(store: Store, request: Request) -> Reply:
    if not isinstance(request.body.get("to"), str) or "@" not in request.body["to"]:
        return Reply(422, _error(422, "invalid_recipient", "`to` must be an e-mail address."))
    key = request.headers.get("idempotency-key") or request.body.get("key")
    message: Json = {**request.body, "id": store.new_id("msg_"), "key": key, "sent": store.now()}
    store.put(MESSAGE, message["id"], message, parent=message["to"])
    store.record_effect("mail", "customer_message", message["id"], key=key, data={"to": message["to"]})
    return Reply(201, message)


def _list(store: Store, request: Request) -> Reply:
    """Newest first; `?to=` and `?key=` narrow."""
    to, key = (request.query.get(name, [None])[0] for name in ("to", "key"))
    messages = store.page(MESSAGE, parent=to)
    return Reply(200, {"messages": [message for message in messages if key in (None, message["key"])]})


def _not_found(_store: Store, _request: Request) -> Reply:
    return Reply(404, _error(404, "not_found", "No such resource."))


MAIL = Provider(
    name="mail",
    error=_error,
    routes=(
        Route("POST", "", "messages.send", _send),
        Route("GET", "", "messages.list", _list),
        Route("*", "/{tail:.*}", "unknown", _not_found),
    ),
)
