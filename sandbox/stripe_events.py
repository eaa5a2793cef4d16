"""Decides which events `GET /v1/events` lists: what happened to objects, and which request caused it, a little late."""

from __future__ import annotations

from typing import Any

from counterfoil.sandbox.store import Store
from counterfoil.sandbox.stripe_errors import integer, listing, only, page_bounds, refuse
from counterfoil.sandbox.wire import Json, Reply, Request

EVENT = "event"
LAG = "stripe_events"
"""The name of their lag among the settings."""
_TYPES_MAX = 20
_KEPT_S = 30 * 24 * 3600


def record_event(store: Store, request: Request, kind: str, item: Json) -> None:
    """Notes that this happened to the object, in the transaction that does it."""
    method_with_key = request.method == "POST"
    event: Json = {
        "id": store.new_id("evt_"),
        "object": "event",
        "api_version": "2026-10-28.endive",
        "created": int(store.now()),
        "data": {"object": item},
        "livemode": False,
        "pending_webhooks": 0,
        "request": {
            "id": store.new_id("req_") if method_with_key else None,
            "idempotency_key": request.headers.get("idempotency-key") if method_with_key else None,
        },
        "type": kind,
    }
    visible_at = store.now() + store.config.search_lag(LAG)[1]
    store.put(EVENT, event["id"], {"visible_at": visible_at, "event": event}, account=request.account)
    store.announce("stripe", event)


def list_events(store: Store, request: Request) -> Reply:
    """Newest first, of the last 30 days, as far as they have got here."""
    query = request.query
    only(query, frozenset({"type", "types", "created", "limit", "starting_after", "expand", "delivery_success"}))
    types = list(query.get("types", {}).values()) + ([query["type"]] if "type" in query else [])
    if len(types) > _TYPES_MAX or ("type" in query and "types" in query):
        raise refuse(400, "", "Give type, or types with up to 20 names.", param="types")
    limit = integer(query, "limit", 10)
    bounds: dict[str, Any] = {**page_bounds(query), "limit": 1_000_000}
    bounds["created_min"] = max(bounds.get("created_min", 0), int(store.now()) - _KEPT_S)
    kept = store.page(EVENT, account=request.account, **bounds)
    seen = [row["event"] for row in kept if row["visible_at"] <= store.now()]
    wanted = [event for event in seen if not types or event["type"] in types]
    return Reply(200, listing("/v1/events", wanted[: limit + 1], limit))
