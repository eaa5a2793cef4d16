"""Decides what the mail service does: messages that a customer has read once they are accepted, and drafts that nobody has.

A message that is sent directly is never deduplicated. A draft's creation and its sending take a key of their own, which is
kept for ever: the same request again has no second effect. Every message can be looked up by the key that it went out under.
"""

from __future__ import annotations

from counterfoil.sandbox.store import Store
from counterfoil.sandbox.wire import Json, Provider, Refused, Reply, Request, Route

MESSAGE = "message"
DRAFT = "draft"
_DRAFT_KEY = "draft_key"
_REPLAYED = {"Idempotent-Replayed": "true"}


def count_drafts(store: Store) -> int:
    """Drafts that wait: neither sent nor deleted."""
    return sum(draft["status"] == "draft" for draft in store.page(DRAFT, limit=1_000_000))


def _error(_status: int, code: str, message: str) -> Json:
    return {"error": code, "message": message}


def _refuse(status: int, code: str, message: str) -> Refused:
    return Refused(Reply(status, _error(status, code, message)))


def _send(store: Store, request: Request) -> Reply:
    _check_recipient(request.body)
    return Reply(201, _deliver(store, request.body, _key_of(request)))


def _list(store: Store, request: Request) -> Reply:
    """Newest first; `?to=` and `?key=` narrow."""
    to, key = (request.query.get(name, [None])[0] for name in ("to", "key"))
    messages = store.page(MESSAGE, parent=to)
    return Reply(200, {"messages": [message for message in messages if key in (None, message["key"])]})


def _create_draft(store: Store, request: Request) -> Reply:
    """The same key and body answer the first draft, as it is now; another body is a 422."""
    key = _key_of(request)
    if key is not None and (known := store.get(_DRAFT_KEY, key)) is not None:
        if known["body"] != request.body:
            raise _refuse(422, "idempotency_key_reused", "This key was used with another body.")
        return Reply(200, store.get(DRAFT, known["id"]), _REPLAYED)
    _check_recipient(request.body)
    draft: Json = {**request.body, "id": store.new_id("drf_"), "status": "draft", "key": key, "created": store.now()}
    draft["version"] = 1
    store.put(DRAFT, draft["id"], draft, parent=key or "")
    if key is not None:
        store.put(_DRAFT_KEY, key, {"id": draft["id"], "body": request.body})
    store.record_effect("mail", "draft", draft["id"], key=key, data={"to": draft["to"]})
    return Reply(201, draft)


def _list_drafts(store: Store, request: Request) -> Reply:
    """Newest first, sent and deleted ones too; `?key=` narrows."""
    return Reply(200, {"drafts": store.page(DRAFT, parent=request.query.get("key", [None])[0])})


def _retrieve_draft(store: Store, request: Request) -> Reply:
    return Reply(200, _load_draft(store, request))


def _edit_draft(store: Store, request: Request) -> Reply:
    """A person's hand in the mail program: other contents, another version."""
    draft = _load_draft(store, request)
    if draft["status"] != "draft":
        raise _refuse(409, "no_draft", "Only what waits can be edited.")
    draft |= {name: request.body[name] for name in ("to", "subject", "body") if name in request.body}
    draft["version"] += 1
    store.put(DRAFT, draft["id"], draft)
    return Reply(200, draft)


def _delete_draft(store: Store, request: Request) -> Reply:
    """Deleting twice is one effect; what was sent cannot be deleted."""
    draft = _load_draft(store, request)
    if draft["status"] == "sent":
        raise _refuse(409, "already_sent", "This draft was sent.")
    if draft["status"] == "draft":
        draft |= {"status": "deleted", "version": draft["version"] + 1}
        store.put(DRAFT, draft["id"], draft)
        store.record_effect("mail", "draft_deletion", draft["id"], key=_key_of(request), data={"to": draft["to"]})
    return Reply(200, draft)


def _send_draft(store: Store, request: Request) -> Reply:
    """One message for each draft: the key that it went out under answers that message, another one is a 409.

    With `If-Match`, only this version of the draft is sent; any other is a 412.
    """
    draft, key = _load_draft(store, request), _key_of(request)
    if draft["status"] == "deleted":
        raise _refuse(410, "draft_deleted", "This draft was deleted.")
    if draft["status"] == "sent":
        message = store.get(MESSAGE, draft["message"]) or {}
        if key is None or message["key"] != key:
            raise _refuse(409, "already_sent", "This draft was sent.")
        return Reply(200, message, _REPLAYED)
    if request.headers.get("if-match") not in (None, str(draft["version"])):
        raise _refuse(412, "other_version", "This draft was edited.")
    content = {name: value for name, value in draft.items() if name not in ("status", "created", "version")}
    message = _deliver(store, {**content, "draft": draft["id"]}, key)
    sent = {"status": "sent", "message": message["id"], "version": draft["version"] + 1}
    store.put(DRAFT, draft["id"], {**draft, **sent})
    return Reply(201, message)


def _deliver(store: Store, content: Json, key: str | None) -> Json:
    message: Json = {**content, "id": store.new_id("msg_"), "key": key, "sent": store.now()}
    store.put(MESSAGE, message["id"], message, parent=message["to"])
    store.record_effect("mail", "customer_message", message["id"], key=key, data={"to": message["to"]})
    return message


def _load_draft(store: Store, request: Request) -> Json:
    draft = store.get(DRAFT, request.match["id"])
    if draft is None:
        raise _refuse(404, "not_found", "No such draft.")
    return draft


def _check_recipient(body: Json) -> None:
    if not isinstance(body.get("to"), str) or "@" not in body["to"]:
        raise _refuse(422, "invalid_recipient", "`to` must be an e-mail address.")


def _key_of(request: Request) -> str | None:
    """The header's, else the body's."""
    key: str | None = request.headers.get("idempotency-key") or request.body.get("key")
    return key


def _not_found(_store: Store, _request: Request) -> Reply:
    raise _refuse(404, "not_found", "No such resource.")


MAIL = Provider(
    name="mail",
    error=_error,
    routes=(
        Route("POST", "", "messages.send", _send),
        Route("GET", "", "messages.list", _list),
        Route("POST", "/drafts", "drafts.create", _create_draft),
        Route("GET", "/drafts", "drafts.list", _list_drafts),
        Route("GET", "/drafts/{id}", "drafts.retrieve", _retrieve_draft),
        Route("PUT", "/drafts/{id}", "drafts.edit", _edit_draft),
        Route("DELETE", "/drafts/{id}", "drafts.delete", _delete_draft),
        Route("POST", "/drafts/{id}/send", "drafts.send", _send_draft),
        Route("*", "/{tail:.*}", "unknown", _not_found),
    ),
)
