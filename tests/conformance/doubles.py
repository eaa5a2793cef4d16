"""Somebody's own double: parcels found by our reference through an index that may lag; a key is kept for an hour."""

from __future__ import annotations

from counterfoil.sandbox.store import Store
from counterfoil.sandbox.wire import Json, Provider, Refused, Reply, Request, Route

KEY_TTL_S = 3600
HEAVY_G = 30_000


def _error(_status: int, code: str, message: str) -> Json:
    return {"error": code, "message": message}


def _create(store: Store, request: Request) -> Reply:
    key = request.headers.get("idempotency-key")
    known = store.get("parcel_key", key) if key else None
    if known is not None and known["at"] + KEY_TTL_S > store.now():
        if known["body"] != request.body:
            raise Refused(Reply(422, _error(422, "key_reused", "This key was used with another body.")))
        return Reply(200, store.get("parcel", known["id"]))
    booked = request.body["weight_g"] <= HEAVY_G
    parcel = {**request.body, "id": store.new_id("par_"), "status": "booked" if booked else "refused"}
    store.put("parcel", parcel["id"], parcel)
    store.index("parcels", "parcel", parcel["id"], parcel, [parcel["reference"], parcel["order_id"]])
    if key:
        store.put("parcel_key", key, {"id": parcel["id"], "body": request.body, "at": store.now()})
    if booked:
        store.record_effect("parcels", "parcel", parcel["id"], key=parcel["reference"])
    return Reply(201, parcel)


def _list(store: Store, request: Request) -> Reply:
    [reference] = request.query.get("reference", [""])
    return Reply(200, {"parcels": store.indexed("parcel", terms=[reference])})


PARCELS = Provider(
    name="parcels",
    error=_error,
    routes=(
        Route("POST", "/parcels", "parcels.create", _create),
        Route("GET", "/parcels", "parcels.list", _list),
    ),
)
BAD_NAME = Provider(name="_sandbox", error=_error, routes=())
