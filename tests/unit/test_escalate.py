"""For how long a row may stay uncertain, by its tool."""

from __future__ import annotations

from typing import Any

import pytest

from counterfoil.ledger import alarms, health
from counterfoil.ledger.health import Limit, Outage
from counterfoil.providers.registry import Registry
from counterfoil.reconciler.escalate import WINDOW_MARGIN_S, Escalation

SHIPPED = ("counterfoil.providers.stripe.tools", "counterfoil.providers.resend.tools")


def test_limits(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of tools with a look-up: as configured for the provider, and never less than their absence takes to be earned. What
    has none is bounded by its key."""
    seen: list[Limit] = []

    def escalated(_ledger: Any, limits: list[Limit], **_more: Any) -> list[str]:
        seen[:] = limits
        return []

    def nothing(_ledger: Any) -> list[Outage]:
        return []

    for name in ("open_outages", "end_outages"):
        monkeypatch.setattr(health, name, nothing)
    monkeypatch.setattr(alarms, "end_settled_unwinds", lambda _ledger: 0)
    monkeypatch.setattr(health, "escalate_too_long", escalated)
    monkeypatch.setattr(health, "escalate_unreachable", lambda *_args, **_more: [])
    registry = Registry.load(SHIPPED)
    for configured_s in (3600.0, 1.0):
        Escalation(
            ledger=None,  # type: ignore[arg-type]
            registry=registry,
            contract=lambda spec: spec.contract,
            uncertain_max_s={"stripe": configured_s, "resend": 1.0}.__getitem__,
            by="beat",
        ).sweep()
        limits = {limit.tool: limit.limit_s for limit in seen}
        contract = registry.get("stripe_charge", 1).contract
        earned_s = contract.landing_max_s + 2 * contract.lookup_lag_s + WINDOW_MARGIN_S
        assert limits["stripe_charge"] == max(configured_s, earned_s)
        assert "resend_send" not in limits
