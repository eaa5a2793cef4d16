"""What the suite does at a warehouse: by a person's own function, and by tables of the configuration."""

from __future__ import annotations

import tomllib
from datetime import datetime
from pathlib import Path
from typing import Any

import requests
from tests.conformance.subjects.subject import Subject

from counterfoil.providers.contract import Adapter
from counterfoil.providers.http.client import HttpAdapter
from counterfoil.providers.http.config import HttpConfig
from counterfoil.providers.registry import adapter_of
from counterfoil.providers.tool import SPEC_ATTRIBUTE, tool
from counterfoil.sandbox.client import Sandbox
from counterfoil.settings import Settings

HTTP = Settings(**tomllib.loads((Path(__file__).parents[1] / "http_tools.toml").read_text())).http
OWN_TIMEOUT_S = 0.4


def adapter(sandbox: Sandbox) -> Adapter:
    return HttpAdapter(HttpConfig(base_url=sandbox.warehouse.url, tools=HTTP))


def own_function(sandbox: Sandbox) -> Adapter:
    return adapter_of(warehouse_tool(sandbox.warehouse.url))


def warehouse_tool(url: str) -> Any:
    """A person's own function, as in the README."""

    def find(key: str, *, sent_at: datetime) -> list[dict[str, object]]:
        answer = requests.get(f"{url}/shipments", params={"key": key}, timeout=2, allow_redirects=False)
        answer.raise_for_status()
        found: list[dict[str, object]] = answer.json()["shipments"]
        return found

    def ship(order_id: str, sku: str, *, key: str) -> dict[str, object]:
        answer = requests.post(
            f"{url}/shipments",
            json={"order": order_id, "sku": sku},
            headers={"Idempotency-Key": key},
            timeout=OWN_TIMEOUT_S,
            allow_redirects=False,
        )
        answer.raise_for_status()
        shipment: dict[str, object] = answer.json()
        return shipment

    declare = tool(
        cls="reversible",
        effect="shipment",
        target="order_id",
        audience=[],
        undo=None,
        lookup=find,
        native_key_ttl_s=3600,
    )
    return getattr(declare(ship), SPEC_ATTRIBUTE)


SUBJECTS = (
    Subject(
        name="ship",
        tool=warehouse_tool("http://127.0.0.1:9"),  # what it declares; `adapter` makes the one that is called
        arguments={"order_id": "1182", "sku": "kettle"},
        target="1182",
        provider="warehouse",
        adapter=own_function,
        operation="shipments.create",
        effect="shipment",
        deduplicates=True,
        lookup_operation="shipments.list",
    ),
    Subject(
        name="http_ship",
        arguments={"order_id": "1182", "sku": "kettle"},
        target="1182",
        provider="warehouse",
        adapter=adapter,
        operation="shipments.create",
        effect="shipment",
        deduplicates=True,
        lookup_operation="shipments.list",
        other={"sku": "mug"},
    ),
    Subject(
        name="http_unship",
        arguments={"order_id": "1182"},
        target="1182",
        provider="warehouse",
        adapter=adapter,
        operation="shipments.cancel",
        effect="shipment_cancellation",
        after="http_ship",
        deduplicates=True,
        lookup_operation="shipments.retrieve",
    ),
)
