"""Decides what the warehouse does: shipments with its own Idempotency-Key, and a reship that it refuses by default."""

from __future__ import annotations

from weakref import WeakKeyDictionary

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
    key = _key_of(request)
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
        store.record_effect("warehouse", "shipment_cancellation", shipment["id"], key=_key_of(request))
    return Reply(200, shipment)


def _key_of(request: Request) -> str | None:
    """The header's text, or the string that it quotes, as the draft of the header's standard has it."""
    key = request.headers.get("idempotency-key")
    quoted = key is not None and len(key) > 2 and key[0] == key[-1] == '"'
    return key[1:-1] if quoted and key else key


class _InFlight:
    """While the first request of a key is under way, another with it is a 409; the handler itself keeps what was answered.

    In memory of this process: a sandbox that dies forgets what was under way, as it never happened.
    """

    def __init__(self) -> None:
        self._keys: WeakKeyDictionary[Store, set[tuple[int, str]]] = WeakKeyDictionary()

    def begin(self, store: Store, request: Request) -> Reply | None:
        key, under_way = _key_of(request), self._keys.setdefault(store, set())
        if key is None or request.method == "GET":
            return None
        if (store.generation, key) in under_way:
            return Reply(409, _error(409, "idempotency_key_in_use", "The first request with this key is under way."))
        under_way.add((store.generation, key))
        return None

    def finish(self, store: Store, request: Request, reply: Reply, *, executed: bool) -> None:
        del reply, executed
        self._keys.setdefault(store, set()).discard((store.generation, _key_of(request) or ""))


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
    idempotency=_InFlight(),
    routes=(
        Route("POST", "/reship", "reship", _reship),
        Route("POST", "/shipments", "shipments.create", _create),
        Route("GET", "/shipments", "shipments.list", _list),
        Route("GET", "/shipments/{id}", "shipments.retrieve", _retrieve),
        Route("POST", "/shipments/{id}/cancel", "shipments.cancel", _cancel),
        Route("*", "/{tail:.*}", "unknown", _not_found),
    ),
)
