"""The demo's own tools: what a shop would write beside the shipped ones for Stripe and Jira.

The warehouse is the sandbox's; a real shop would take its address from its own configuration.
"""

from __future__ import annotations

import os
from typing import Annotated

import requests
from pydantic import Field

from counterfoil.providers.tool import tool

OrderId = Annotated[str, Field(min_length=1, max_length=64)]
Note = Annotated[str, Field(max_length=200)]


@tool(cls="pure")
def search_orders(order_id: OrderId) -> dict[str, str]:
    """Look an order up."""
    return {"order_id": order_id, "customer": "cus_1182", "status": "lost in transit"}


@tool(
    cls="compensatable",
    provider="warehouse",
    effect="shipment",
    target="order_id",
    once_per="order_id",
    audience=["warehouse"],
    undo="warehouse_cancel",
    lookup="find_shipment",
    native_key_ttl_s=86400,
)
def warehouse_reship(order_id: OrderId, note: Note = "", *, key: str) -> dict[str, object]:
    """Ship an order again."""
    return _post("/reship", {"order_id": order_id}, key)


def find_shipment(key: str) -> dict[str, object] | list[dict[str, object]] | None:
    """The shipment that carries our key."""
    reply = requests.get(f"{_warehouse()}/shipments", params={"key": key}, timeout=3, allow_redirects=False)
    reply.raise_for_status()
    found: list[dict[str, object]] = reply.json()["shipments"]
    return found[0] if len(found) == 1 else found or None


@tool(
    cls="compensatable",
    provider="warehouse",
    effect="shipment",
    target="order_id",
    once_per=None,
    audience=["warehouse"],
    undo=None,
    uncertain="operator_review",
)
def warehouse_cancel(order_id: OrderId, *, key: str, of: str) -> dict[str, object]:
    """Take a shipment back."""
    shipment = find_shipment(of)
    if not isinstance(shipment, dict):
        raise LookupError("there is no such shipment")
    return _post(f"/shipments/{shipment['id']}/cancel", {"order_id": order_id}, key)


def _post(path: str, body: dict[str, object], key: str) -> dict[str, object]:
    reply = requests.post(
        _warehouse() + path, json=body, headers={"Idempotency-Key": key}, timeout=3, allow_redirects=False
    )
    reply.raise_for_status()
    answer: dict[str, object] = reply.json()
    return answer


def _warehouse() -> str:
    return os.environ["COUNTERFOIL_SANDBOX_URL"] + "/warehouse"
