"""The pause before the next attempt: full jitter, capped, with the provider's own wish as a capped floor."""

from __future__ import annotations

import math
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from counterfoil.workers.backoff import delay_s


def delays(attempt: int, *, n: int = 400, seed: int = 1, retry_after_s: float | None = None) -> list[float]:
    rng = random.Random(seed)
    return [
        delay_s(attempt, base_s=1, cap_s=300, retry_after_s=retry_after_s, retry_after_cap_s=900, rng=rng)
        for _ in range(n)
    ]


@pytest.mark.parametrize(("attempt", "ceiling_s"), [(1, 1), (2, 2), (3, 4), (9, 256), (10, 300), (10**6, 300)])
def test_full_jitter(attempt: int, ceiling_s: float) -> None:
    """Delays spread over the whole of 0 to the doubling ceiling, and never past the cap."""
    drawn = delays(attempt)
    assert 0 <= min(drawn) < ceiling_s * 0.05
    assert ceiling_s * 0.95 < max(drawn) <= ceiling_s


def test_the_generator_decides() -> None:
    """The same seed gives the same delays, and the process's own generator is left alone."""
    before = random.getstate()
    assert delays(3, seed=7) == delays(3, seed=7) != delays(3, seed=8)
    assert random.getstate() == before


@pytest.mark.case("E8")
def test_retry_after_is_a_floor() -> None:
    """No delay is shorter than what the provider asked for, and 600 s asked on a first attempt are exactly 600 s."""
    assert set(delays(1, retry_after_s=600)) == {600}
    assert min(delays(9, retry_after_s=100)) == 100
    assert max(delays(9, retry_after_s=100)) > 200


@pytest.mark.case("E2")
@pytest.mark.parametrize("asked", [901.0, 1e12, math.inf])
def test_retry_after_is_capped(asked: float) -> None:
    """A provider cannot park an action for longer than the cap."""
    assert set(delays(1, retry_after_s=asked)) == {900}


@pytest.mark.parametrize("asked", [None, 0.0, -5.0, math.nan, -math.inf])
def test_a_retry_after_that_asks_for_nothing(asked: float | None) -> None:
    """A missing, past or senseless Retry-After changes nothing."""
    assert delays(3, retry_after_s=asked) == delays(3)


@given(
    st.integers(1, 10**9),
    st.floats(0.001, 3600),
    st.floats(0.001, 3600),
    st.none() | st.floats(),
    st.floats(0.001, 3600),
    st.integers(),
)
def test_a_delay_is_always_bounded(
    attempt: int, base_s: float, cap_s: float, retry_after_s: float | None, retry_after_cap_s: float, seed: int
) -> None:
    """Whatever a provider answers, the delay is a finite number between 0 and the larger cap."""
    delay = delay_s(
        attempt,
        base_s=base_s,
        cap_s=cap_s,
        retry_after_s=retry_after_s,
        retry_after_cap_s=retry_after_cap_s,
        rng=random.Random(seed),
    )
    assert 0 <= delay <= max(cap_s, retry_after_cap_s)


@pytest.mark.parametrize("attempt", [0, -1])
def test_attempts_are_counted_from_one(attempt: int) -> None:
    """Attempt 0 is a bug of ours."""
    with pytest.raises(ValueError, match="from 1"):
        delays(attempt)
