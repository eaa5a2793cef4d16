"""A provider that shows effects an hour late: its rows get the time that absence takes, however unlucky the pauses are."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from counterfoil import tool
from counterfoil.testing import World


class Longest:
    """Every random pause is as long as it may be."""

    def uniform(self, least: float, most: float) -> float:
        return most


@pytest.mark.parametrize(("landing_max_s", "lookup_lag_s"), [(1200.0, 3000.0), (120.0, 7200.0), (7200.0, 60.0)])
def test_absence_is_earned_before_anybody_is_asked(
    world: World, enqueue: Any, use_tools: Any, passed: Any, landing_max_s: float, lookup_lag_s: float
) -> None:
    """The first call never arrived: after the window and its two absences it is sent again, and no person is asked."""
    calls: list[str] = []

    @tool(
        cls="reversible", effect="parcel", target="order", once_per=None, audience=["warehouse"], provider="warehouse",
        landing_max_s=landing_max_s, lookup_lag_s=lookup_lag_s, lookup=lambda key: [], undo=None,
    )  # fmt: skip
    def pack(order: str, *, key: str) -> dict[str, str]:
        """Pack an order."""
        calls.append(order)
        if len(calls) == 1:
            raise TimeoutError
        return {"id": "p1"}

    use_tools(pack)
    action_id = enqueue("pack", {"order": "1182"})
    made = world.reconciler
    conclusions = replace(made.look_ups.conclusions, rng=Longest())
    world._reconciler = replace(made, look_ups=replace(made.look_ups, conclusions=conclusions))
    world.settle_within(landing_max_s + 2 * lookup_lag_s - 60)
    for _ in range(30):  # the ticks go on, whether or not anything is due
        world.advance(15)
        world.reconcile()
    world.settle()
    assert "operator_review" not in passed(action_id)
    assert len(calls) == 2
