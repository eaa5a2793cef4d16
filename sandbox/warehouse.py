"""Decides what the warehouse does: shipments with its own Idempotency-Key, and a reship that it refuses by default."""

from __future__ import annotations

from counterfoil.sandbox.store import Store
from counterfoil.sandbox.wire import Json, Provider, Refused, Reply, Request, Route

SHIPMENT = "shipment"


def _error(_status: int, code: str, message: str) -> Json:
    return {"error": code, "message": message}


def _refuse(status: int, code: str, message: str) -> Refused:
    return Refused(Reply(status, _error(status, code, message)))


def _reship(store: Store, request: Request) -> Reply:
    if store.config.reship == "reject":
        raise _refuse(422, "reship_rejected", "The order cannot be shipped again: no stock is reserved for it.")
    return _create(store, request)


def _create(store: Store, request: Request) -> Reply:
    """A key is unique for ever: the same key and body answer the first shipment, another body is a 422."""
    key = request.headers.get("idempotency-key")
    if key is not None and (known := store.get("shipment_key", key)) is not None:
        if known["body"] != request.body:
            raise _refuse(422, "idempotency_key_reused", "This key was used with another body.")
        return Reply(200, store.get(SHIPMENT, known["id"]), {"Idempotent-Replayed": "true"})
    shipment: Json = {**request.body, "id": store.new_id("shp_"), "status": "created", "key": key}
    shipment["created"] = store.now()
    store.put(SHIPMENT, shipment["id"], shipment, parent=key or "")
    if key is not None:
        store.put("shipment_key", key, {"id": shipment["id"], "body": request.body})
    store.record_effect("warehouse", "shipment", shipment["id"], key=key, data=request.body)
    return Reply(201, shipment)


def _list(store: Store, request: Request) -> Reply:
    key = request.query.get("key", [None])[0]
    return Reply(200, {"shipments": store.page(SHIPMENT, parent=key)})


def _retrieve(store: Store, request: Request) -> Reply:
    return Reply(200, _load(store, request))


def _cancel(store: Store, request: Request) -> Reply:
    """Cancelling twice is one effect."""
    shipment = _load(store, request)
    if shipment["status"] != "cancelled":
        shipment["status"] = "cancelled"
        store.put(SHIPMENT, shipment["id"], shipment)
        key = request.headers.get("idempotency-key")
        store.record_effect("warehouse", "shipment_cancellation", shipment["id"], key=key)
    return Reply(200, shipment)


def _load(store: Store, request: Request) -> Json:
    shipment = store.get(SHIPMENT, request.match["id"])
    if shipment is None:
        raise _refuse(404, "not_found", "No such shipment.")
    return shipment


def _not_found(_store: Store, _request: Request) -> Reply:
    raise _refuse(404, "not_found", "No such resource.")


WAREHOUSE = Provider(
    name="warehouse",
    error=_error,
    routes=(
        Route("POST", "/reship", "reship", _reship),
        Route("POST", "/shipments", "shipments.create", _create),
        Route("GET", "/shipments", "shipments.list", _list),
        Route("GET", "/shipments/{id}", "shipments.retrieve", _retrieve),
        Route("POST", "/shipments/{id}/cancel", "shipments.cancel", _cancel),
        Route("*", "/{tail:.*}", "unknown", _not_found),
    ),
)
