"""Decides what a live test does at a provider: one effect, found by its key, taken back; all through the real adapter."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime

from counterfoil.providers.contract import Adapter, Call, Of
from counterfoil.providers.outcomes import Found, Json, Succeeded
from counterfoil.providers.registry import Registry, adapter_of
from counterfoil.providers.spec import ToolSpec
from counterfoil.settings import Settings
from counterfoil.workers.clients import client_config

TIMEOUT_S = 20.0
ASKED_MAX = 60


@dataclass(frozen=True, kw_only=True)
class Trip:
    """A tool of one provider that can be taken back, and the tool that does it."""

    provider: str
    tool: str
    arguments: Callable[[Mapping[str, str]], dict[str, Json]]
    """Of the values that the environment gives, and of `order_id`, which is new each time."""


def round_trip(trip: Trip, settings: Settings, values: Mapping[str, str], *, wait: Callable[[], object]) -> None:
    """Makes the effect, finds it by its key, takes it back and finds that; `wait` is called between two look-ups."""
    registry = Registry.load([f"counterfoil.providers.{trip.provider}.tools"])
    spec = registry.get(trip.tool)
    adapter = adapter_of(spec, client_config(spec, "default", settings))
    key = uuid.uuid4().hex
    call = _call(spec, key, trip.arguments({**values, "order_id": f"live-{key[:12]}"}))
    made = adapter.send(call, timeout_s=TIMEOUT_S)
    assert isinstance(made, Succeeded), made
    _found(adapter, call, made.id, wait)
    compensation = spec.compensation_of(call.arguments, call.action_id)
    assert compensation is not None
    undo = registry.get(str(compensation["tool"]))
    given = compensation["arguments"]
    assert isinstance(given, dict)
    of = Of(action_id=call.action_id, tool=call.tool, key=key, receipt=made.id, arguments=call.arguments)
    back = _call(undo, uuid.uuid4().hex, given, of=of)
    taken_back = adapter.send(back, timeout_s=TIMEOUT_S)
    assert isinstance(taken_back, Succeeded), taken_back
    _found(adapter, back, taken_back.id, wait)


def _call(spec: ToolSpec, key: str, arguments: Mapping[str, Json], *, of: Of | None = None) -> Call:
    checked = spec.validate(arguments)
    return Call(
        action_id=f"act_{key[:12]}",
        tenant="live",
        account="default",
        tool=spec.name,
        key=key,
        arguments=checked,
        target=spec.target_of(checked),
        first_sent_at=datetime.now(UTC),
        of=of,
    )


def _found(adapter: Adapter, call: Call, receipt: str, wait: Callable[[], object]) -> None:
    """The look-up comes to find the very effect that the send has told of."""
    finding = None
    for _ in range(ASKED_MAX):
        finding = adapter.lookup([call], timeout_s=TIMEOUT_S)[call.action_id]
        if isinstance(finding, Found):
            break
        wait()
    assert isinstance(finding, Found), finding
    assert isinstance(finding.outcome, Succeeded), finding
    assert finding.outcome.id == receipt
    assert finding.as_intended
