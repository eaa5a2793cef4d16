"""A tool that is a table of the configuration acts as one that is code does; the oracle is the warehouse's own store."""

from __future__ import annotations

import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from counterfoil.providers.registry import Registry
from counterfoil.settings import FAST_PROVIDER, Settings
from counterfoil.settings_providers import ProviderSettings
from counterfoil.testing import World

TABLES = tomllib.loads((Path(__file__).parents[1] / "conformance" / "http_tools.toml").read_text())
SHIP = {"order_id": "1182", "sku": "kettle"}


@pytest.fixture
def http(world: World) -> World:
    """The fleet with the tables, the warehouse in the sandbox; nobody has written a line of code for it."""
    tables = Settings(**TABLES).http
    warehouse = ProviderSettings(base_url=world.sandbox.warehouse.url, **FAST_PROVIDER)
    changes: dict[str, Any] = {"http": tables, "providers": {**world.settings.providers, "warehouse": warehouse}}
    world.settings = world.settings.model_copy(update=changes)
    world.registry = Registry.load(world.settings.tools, tables)
    return world


@pytest.mark.parametrize(
    "fault", [None, "504_after_commit", "504_before_commit", "rst_after_commit", "409_in_use", "slow"]
)
def test_one_effect_whatever_the_gateway_says(http: World, enqueue: Callable[..., str], fault: str | None) -> None:
    """Under each lie of the gateway the action ends succeeded with exactly one shipment."""
    if fault:
        more: dict[str, Any] = {"delay_s": 4.0} if fault == "slow" else {}
        http.sandbox.fault(fault, operation="shipments.create", **more)
    enqueue("http_ship", SHIP, "s1")
    http.settle()
    assert http.states() == {"http_ship/s1/do": "succeeded"}
    assert http.sandbox.count("shipments") == 1


@pytest.mark.parametrize("point", ["after_claim", "before_settle"])
def test_a_kill(http: World, enqueue: Callable[..., str], point: Any) -> None:
    """A worker that dies around the request leaves one shipment and a succeeded row."""
    enqueue("http_ship", SHIP, "s1")
    with http.crash_after(point):
        http.settle()
    assert http.crashes == [point]
    assert http.states() == {"http_ship/s1/do": "succeeded"}
    assert http.sandbox.count("shipments") == 1


def test_a_foreign_key_is_for_a_person(http: World, enqueue: Callable[..., str]) -> None:
    """The key's mismatch is neither a refusal nor a reason for another key: what is found decides, else a person."""
    http.sandbox.fault("answer", operation="shipments.create", status=422, times=None)
    enqueue("http_ship", SHIP, "s1")
    http.settle()
    assert http.states() == {"http_ship/s1/do": "operator_review"}
    assert http.sandbox.count("shipments") == 0
    assert len(http.sandbox.requests("warehouse", "shipments.create")) == 1


@pytest.mark.parametrize("fault", [None, "504_after_commit"])
def test_an_unwind_takes_it_back(http: World, enqueue: Callable[..., str], unwind: Any, fault: str | None) -> None:
    """The undo's table gets the receipt of what it takes back; one cancellation, whatever the gateway says."""
    enqueue("http_ship", SHIP, "s1")
    http.settle()
    if fault:
        http.sandbox.fault(fault, operation="shipments.cancel")
    unwind()
    http.settle()
    assert http.states() == {"http_ship/s1/do": "compensated", "http_unship/s1/undo": "succeeded"}
    assert len(http.sandbox.effects("shipment_cancellation")) == 1


@pytest.mark.parametrize(
    "change", [{"key_header": "X-Request-Id"}, {"key_format": "quoted"}, {"path": "/shipments?v=2"}]
)
def test_a_table_that_changes_while_in_doubt(
    http: World, enqueue: Callable[..., str], sql: Any, change: dict[str, str]
) -> None:
    """What makes the request is other than when it was sent: the API would not know the key again, so a person decides."""
    ship = TABLES["http"]["http_ship"]
    blind = {name: value for name, value in ship.items() if name != "lookup"}

    def use(table: dict[str, Any]) -> None:
        tables = Settings(**{**TABLES, "http": {**TABLES["http"], "http_ship": table}}).http
        http.settings = http.settings.model_copy(update={"http": tables})
        http.registry = Registry.load(http.settings.tools, tables)
        http.restart()

    use(blind)
    http.sandbox.fault("504_after_commit", operation="shipments.create")
    enqueue("http_ship", SHIP, "s1")
    http.work()
    use({**blind, **change})
    http.settle()
    assert sql("SELECT state, last_error_code FROM counterfoil.action") == [("operator_review", "credentials_changed")]
    assert http.sandbox.count("shipments") == 1
