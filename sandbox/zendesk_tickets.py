"""Decides what a Zendesk ticket does: created, read, updated with a comment; each write is an audit, each public one a mail.

A creation is deduplicated by its Idempotency-Key alone: an external id may be given twice. An update has no key at all.
"""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

from counterfoil.sandbox.store import Store
from counterfoil.sandbox.wire import Json, Reply, Request
from counterfoil.sandbox.zendesk_errors import invalid, refuse

TICKET, AUDIT = "zendesk_ticket", "zendesk_audit"
STATUSES = ("new", "open", "pending", "hold", "solved", "closed")
KEY_NAME = "counterfoil_key"
_AUTHOR = 7001
_SETTABLE = ("subject", "status", "external_id", "priority", "tags")


def create(store: Store, request: Request) -> Reply:
    given = _given(request)
    comment = _comment(given)
    if comment is None:
        raise invalid(base="Description: cannot be blank")
    _check_status(given)
    number, now = store.next_number("zendesk:ticket", 1), _text(store.now())
    ticket: Json = {"subject": "", "status": "new", "external_id": None, "priority": None, "tags": []}
    ticket |= {name: given[name] for name in _SETTABLE if name in given}
    ticket |= {"id": number, "description": comment["body"], "requester_id": _AUTHOR}
    ticket |= {"created_at": now, "updated_at": now}
    audit = _audit(
        store, ticket, given, comment, [{"type": "Create", "field_name": "status", "value": ticket["status"]}]
    )
    _save(store, ticket)
    store.record_effect("zendesk", "ticket", str(number), key=_key_of(given), data={"status": ticket["status"]})
    _tell_customer(store, ticket, given, comment)
    return Reply(201, {"ticket": ticket, "audit": audit}, {"x-idempotency-lookup": "miss"})


def update(store: Store, request: Request) -> Reply:
    ticket, given = _load(store, request), _given(request)
    comment = _comment(given)
    _check_status(given)
    if given.get("safe_update") and given.get("updated_stamp") != ticket["updated_at"]:
        raise refuse(409, "Safe Update prevented the update due to outdated ticket data", code="UpdateConflict")
    if ticket["status"] == "closed":
        raise invalid(status="closed prevents ticket update")
    before = ticket["status"]
    changed = {name: given[name] for name in _SETTABLE if name in given}
    events = [
        {"type": "Change", "field_name": name, "value": value, "previous_value": ticket[name]}
        for name, value in changed.items()
        if ticket[name] != value
    ]
    ticket |= {**changed, "updated_at": _text(store.now())}
    audit = _audit(store, ticket, given, comment, events)
    _save(store, ticket)
    key, number = _key_of(given), str(ticket["id"])
    if ticket["status"] == "solved" != before:
        store.record_effect("zendesk", "solution", number, key=key, data={"from": before})
    if comment is not None:
        kind = "reply" if comment["public"] else "note"
        store.record_effect("zendesk", kind, str(comment["id"]), key=key, data={"ticket": number})
    _tell_customer(store, ticket, given, comment)
    return Reply(200, {"ticket": ticket, "audit": audit})


def retrieve(store: Store, request: Request) -> Reply:
    return Reply(200, {"ticket": _load(store, request)})


def list_tickets(store: Store, request: Request) -> Reply:
    """All tickets, or those of an external id, which appear as late as in a search (`search_lag_s`)."""
    wanted = (request.query.get("external_id") or [None])[0]
    if wanted is None:
        return _page(request, "tickets", list(reversed(store.page(TICKET))))
    found = [ticket for ticket in store.indexed(TICKET, terms=[wanted]) if ticket["external_id"] == wanted]
    return _page(request, "tickets", sorted(found, key=lambda ticket: int(ticket["id"])))


def list_audits(store: Store, request: Request) -> Reply:
    ticket = _load(store, request)
    return _page(request, "audits", list(reversed(store.page(AUDIT, parent=str(ticket["id"])))))


def list_comments(store: Store, request: Request) -> Reply:
    ticket = _load(store, request)
    audits = reversed(store.page(AUDIT, parent=str(ticket["id"])))
    comments = [event for audit in audits for event in audit["events"] if event["type"] == "Comment"]
    return _page(request, "comments", comments)


def _page(request: Request, name: str, items: list[Json]) -> Reply:
    """A page of `page[size]` items after the cursor, which is the number of items before it."""
    size = min(int((request.query.get("page[size]") or ["100"])[0]), 100)
    start = int((request.query.get("page[after]") or ["0"])[0])
    after = start + size
    more = after < len(items)
    meta: Json = {"has_more": more, "after_cursor": str(after) if more else None, "before_cursor": None}
    return Reply(200, {name: items[start:after], "meta": meta, "links": {"next": None, "prev": None}})


def _given(request: Request) -> Json:
    given = request.body.get("ticket")
    if not isinstance(given, dict):
        raise refuse(400, "Invalid attribute: ticket")
    return given


def _comment(given: Json) -> Json | None:
    """The comment to add; public unless it says otherwise, as at Zendesk."""
    comment: Any = given.get("comment")
    if comment is None:
        return None
    if not isinstance(comment, dict) or not isinstance(comment.get("body"), str) or not comment["body"].strip():
        raise invalid(comment="Comment: cannot be blank")
    return {"type": "Comment", "public": bool(comment.get("public", True)), "body": comment["body"]}


def _check_status(given: Json) -> None:
    if "status" in given and given["status"] not in STATUSES:
        raise invalid(status="Status: is not valid")


def _audit(store: Store, ticket: Json, given: Json, comment: Json | None, events: list[Json]) -> Json:
    """Written once, with the write's own metadata; nobody can edit it."""
    number = store.next_number("zendesk:audit", 500_001)
    if comment is not None:
        comment |= {"id": store.next_number("zendesk:event", 900_001), "author_id": _AUTHOR, "audit_id": number}
        events = [comment, *events]
    for event in events:
        if "id" not in event:
            event["id"] = store.next_number("zendesk:event", 900_001)
    audit: Json = {
        "id": number,
        "ticket_id": ticket["id"],
        "created_at": _text(store.now()),
        "author_id": _AUTHOR,
        "metadata": {"system": {}, "custom": given.get("metadata") or {}},
        "events": events,
    }
    store.put(AUDIT, str(number), audit, parent=str(ticket["id"]))
    return audit


def _tell_customer(store: Store, ticket: Json, given: Json, comment: Json | None) -> None:
    """Zendesk's usual trigger: the requester gets a mail for every public comment."""
    if comment is not None and comment["public"]:
        data = {"comment": comment["id"]}
        store.record_effect("zendesk", "customer_mail", str(ticket["id"]), key=_key_of(given), data=data)


def _save(store: Store, ticket: Json) -> None:
    number = str(ticket["id"])
    store.put(TICKET, number, ticket)
    store.index("zendesk", TICKET, number, ticket, [ticket["external_id"]] if ticket["external_id"] else [])


def _load(store: Store, request: Request) -> Json:
    ticket = store.get(TICKET, request.match["id"])
    if ticket is None:
        raise refuse(404, "Not found")
    return ticket


def _key_of(given: Json) -> str | None:
    metadata = given.get("metadata")
    key = metadata.get(KEY_NAME) if isinstance(metadata, dict) else None
    return key if isinstance(key, str) else None


def _text(seconds: float) -> str:
    """To the second, as Zendesk writes times."""
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
