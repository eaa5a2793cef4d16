"""Whatever a budget's figures are, a retry is let through in the end, unless they say that there shall be none."""

from __future__ import annotations

from typing import Any

import pytest

from counterfoil.settings_providers import ProviderSettings, RetryBudget
from counterfoil.workers.kinds import Ask, Kind, Result
from counterfoil.workers.limiter import Limiter
from counterfoil.workers.setup import limits_of

DAY_MS = 86_400_000.0


def goes_within_a_day(**budget: Any) -> bool:
    """One call of a quiet provider times out; nothing else is ever called. Whether its retry is admitted by and by."""
    limits = limits_of(ProviderSettings(retry_budget=RetryBudget(**budget)))
    limiter, first, retry = Limiter.fresh(0, limits), Ask(Kind.FIRST, "acme"), Ask(Kind.AFTER_TIMEOUT, "acme")
    limiter.admit(0, limits, ticket="t1", worker="w", lease_ms=1000, asks=[first])
    limiter.report(0, limits, ticket="t1", results=[(first, Result.TIMEOUT)], done=True)
    return any(
        limiter.admit(DAY_MS * part / 100, limits, ticket="t2", worker="w", lease_ms=1000, asks=[retry])[0].reason
        is None
        for part in range(1, 101)
    )


@pytest.mark.parametrize(
    "budget",
    [
        {},
        {"tokens_max": 7},
        {"tenant_share": 0.01},
        {"tokens_max": 100, "tenant_share": 0.29, "cost_after_timeout": 29},  # 100 × 0.29 is a little less than 29
        {"cost_after_timeout": 1000},
        {"retries_per_min_min": 0},
        {"retries_per_min_min": 0.5, "ratio_max": 0},
    ],
)
def test_a_retry_goes_in_the_end(budget: dict[str, Any]) -> None:
    """A full bucket, or a tenant's full part of it, pays for one retry, and a quiet minute has room for one."""
    assert goes_within_a_day(**budget)


@pytest.mark.parametrize("budget", [{"tokens_max": 0}, {"tenant_share": 0}, {"retries_per_min_min": 0, "ratio_max": 0}])
def test_there_may_be_none(budget: dict[str, Any]) -> None:
    """Nothing to spend, or nothing allowed, is no retry."""
    assert not goes_within_a_day(**budget)
