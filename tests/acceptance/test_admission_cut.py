"""What the fleet's limits know of a batch that ends in an exception: what was sent counts, and nothing else stays taken."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from counterfoil.ledger import claims
from counterfoil.ledger.errors import LedgerUnavailable
from counterfoil.testing import World
from counterfoil.workers import executor as executing
from counterfoil.workers.admission import FleetAdmission
from counterfoil.workers.fleet_limits import Limits
from counterfoil.workers.setup import limits_of

CHARGE = {"customer": "cus_1", "amount_minor": 500, "currency": "usd"}


@pytest.fixture
def limited(world: World) -> Callable[..., FleetAdmission]:
    """Lets the world's worker go by these limits."""

    def limit(**changes: Any) -> FleetAdmission:
        limits: Limits = replace(limits_of(world.settings.provider("stripe")), **changes)
        admission = FleetAdmission(limits=lambda _: limits, worker="w", store=None, monotonic=world._monotonic)
        world._executor = replace(world.executor, admission=admission)
        return admission

    return limit


def away(*_: Any, **__: Any) -> None:
    raise LedgerUnavailable("the connection was lost", fix="")


def test_an_outcome_that_cannot_be_written_counts(
    world: World, enqueue: Any, limited: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Provider and database are away: the call that timed out opens the breaker, so the next message sends nothing."""
    limited(failures_min=1)
    world.sandbox.stripe.fault("504_before_commit", times=None)
    for order in ("1", "2"):
        enqueue("stripe_charge", CHARGE | {"order_id": order}, run=order)
    first, second = world.due()
    monkeypatch.setattr(executing, "SETTLE_TRIES_MAX", 1)
    monkeypatch.setattr(type(world.executor.settler), "settle", away)
    with pytest.raises(LedgerUnavailable):
        world.deliver([first])
    world.deliver([second])
    assert len(world.sandbox.requests("stripe", "payment_intents.create")) == 1


def test_what_was_admitted_is_returned(
    world: World, enqueue: Any, limited: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The database is lost while what was refused is put back: the batch's call in flight and its share of the rate are
    free again, and the next message is sent."""
    limited(concurrency_max=1, rate_per_s=10.0)  # one at a time: the second of a batch is refused
    for order in ("1", "2"):
        enqueue("stripe_charge", CHARGE | {"order_id": order}, run=order)
    wake_ups = world.due()
    with monkeypatch.context() as patch:
        patch.setattr(claims, "postpone_wakeup", away)
        with pytest.raises(LedgerUnavailable):
            world.deliver(wake_ups)
    world.deliver(wake_ups)
    assert world.sandbox.count("charges") == 1
