"""Many charges of one account that are asked about together, whose key is replaced by another account's meanwhile."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from counterfoil.reconciler import conclusions
from counterfoil.testing import World

CHARGE = {"customer": "cus_1", "amount_minor": 500, "currency": "usd"}
ORDERS = 8
MINUTES_S = 900.0


@pytest.mark.parametrize("fault", ["504_after_commit", "504_before_commit"])
def test_a_key_of_another_account(
    world: World, enqueue: Any, configure: Any, sql: Any, tmp_path: Path, fault: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing is sent again, and all are a person's within minutes, for that reason; not after an hour, as too old."""
    monkeypatch.setattr(conclusions, "JITTER_MAX", 0.0)  # they stay together, as of a larger backlog most do
    file = tmp_path / "stripe_key"
    file.write_text("sk_test_old")
    configure("stripe", api_key=None, api_key_file=file)
    world.sandbox.stripe.fault(fault, on="payment_intents.create", times=ORDERS)
    for order in range(ORDERS):
        enqueue("stripe_charge", CHARGE | {"order_id": str(order), "customer": f"cus_{order}"}, run=f"r{order}")
    world.work()
    file.write_text("sk_test_new")
    world.settle_within(MINUTES_S)
    assert sql("SELECT DISTINCT state, last_error_code FROM counterfoil.action") == [
        ("operator_review", "credentials_changed")
    ]
    assert len(world.sandbox.requests("stripe", "payment_intents.create")) == ORDERS
