"""A function of an application's own as a tool, as README shows it; its API is the sandbox's warehouse."""

from __future__ import annotations

import os
from typing import Any

from counterfoil import Of, tool

WAREHOUSE = os.environ.get("COUNTERFOIL_SANDBOX_URL", "http://127.0.0.1:9") + "/warehouse"


@tool(
    cls="compensatable",
    effect="shipment",
    target="order_id",
    once_per="order_id",
    audience=["warehouse"],
    native_key_ttl_s=86400,
    lookup="find_shipments",
    undo="cancel_shipment",
)
def create_shipment(order_id: str, sku: str, *, key: str) -> dict[str, Any]:
    """Ship an order."""
    return ask("POST", "/shipments", key, json={"order": order_id, "sku": sku})


@tool(
    cls="compensatable",
    effect="shipment",
    target="order_id",
    once_per=None,
    audience=["warehouse"],
    lookup="find_cancelled",
    undo=None,
)
def cancel_shipment(order_id: str, *, key: str, of: Of) -> dict[str, Any]:
    """Take a shipment back."""
    return ask("POST", f"/shipments/{of.receipt}/cancel", key)


def find_shipments(key: str) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = ask("GET", "/shipments", key, params={"key": key})["shipments"]
    return found


def find_cancelled(of: Of) -> list[dict[str, Any]]:
    return [shipment for shipment in find_shipments(of.key) if shipment["status"] == "cancelled"]


def ask(method: str, path: str, key: str, **more: Any) -> dict[str, Any]:
    import requests  # workers alone

    reply = requests.request(
        method, WAREHOUSE + path, headers={"Idempotency-Key": key}, timeout=3, allow_redirects=False, **more
    )
    reply.raise_for_status()
    answer: dict[str, Any] = reply.json()
    return answer
