"""Decides how long an action waits before its next attempt; the wait itself is a column in Postgres, never a sleep."""

from __future__ import annotations

import random

from tenacity import RetryCallState, Retrying
from tenacity.wait import wait_exponential, wait_random_exponential


class _FullJitter(wait_random_exponential):
    """tenacity's full jitter, drawn from a generator that a test can seed (tenacity draws from the process's own)."""

    def __init__(self, rng: random.Random, *, base_s: float, cap_s: float) -> None:
        super().__init__(multiplier=base_s, max=cap_s)
        self.rng = rng

    def __call__(self, retry_state: RetryCallState) -> float:
        return self.rng.uniform(self.min, wait_exponential.__call__(self, retry_state))


def delay_s(
    attempt: int,
    *,
    base_s: float,
    cap_s: float,
    retry_after_s: float | None = None,
    retry_after_cap_s: float,
    rng: random.Random,
) -> float:
    """Seconds until the attempt after number `attempt` (from 1) may start.

    Uniform between 0 and min(cap_s, base_s · 2^(attempt-1)): full jitter spreads a fleet best after a shared outage.
    What the provider asked for (`retry_after_s`) is a floor under it, up to `retry_after_cap_s`: no answer can park an
    action for ever, and one that is no positive number asks for nothing.
    """
    if attempt < 1:
        raise ValueError("attempts are counted from 1")
    call = RetryCallState(Retrying(), None, (), {})
    call.attempt_number = attempt
    jittered_s = _FullJitter(rng, base_s=base_s, cap_s=cap_s)(call)
    if retry_after_s is not None and retry_after_s > 0:  # false for NaN
        return max(jittered_s, min(retry_after_s, retry_after_cap_s))
    return jittered_s
