"""What other limits would have meant for recorded attempts: the replay counts waits as the limits would have made them."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from counterfoil.people.replay import LESS_IS_MORE, REASONS, Tried, could_pass, replay, tried_of
from counterfoil.settings_providers import ProviderSettings
from counterfoil.workers.kinds import Kind, Result
from counterfoil.workers.limiter import Limits
from counterfoil.workers.setup import limits_of

LEASE_MS = 90_000.0
START = datetime(2026, 11, 30, 12, tzinfo=UTC)
AS_SHIPPED = limits_of(ProviderSettings())
WIDE = replace(AS_SHIPPED, rate_per_s=1e6, concurrency_max=10**6, tokens_max=1e9, failures_min=10**9, ratio_max=1.0,
               retries_per_min_min=1e9)  # fmt: skip


def tried(
    count: int,
    *,
    every_ms: float = 100.0,
    took_ms: float = 50.0,
    kind: Kind = Kind.FIRST,
    result: Result = Result.OK,
    tenant: str = "acme",
    from_ms: float = 1e12,
) -> list[Tried]:
    return [
        Tried(
            tenant=tenant,
            kind=kind,
            started_ms=from_ms + place * every_ms,
            finished_ms=from_ms + place * every_ms + took_ms,
            result=result,
        )
        for place in range(count)
    ]


def test_limits_that_bound_nothing_hold_nothing_back() -> None:
    """Whatever was recorded: without a limit in the way nothing would have waited."""
    told = replay(tried(50) + tried(50, kind=Kind.AFTER_TIMEOUT, result=Result.TIMEOUT), WIDE, lease_ms=LEASE_MS)
    assert (told.firsts, told.retries, told.firsts_waited, told.retries_waited, told.held) == (50, 50, 0, 0, 0)
    assert (told.openings, told.waited_ms_max) == (0, 0)


def test_a_rate_makes_a_line() -> None:
    """Twenty attempts within two seconds at one a second: nineteen wait in their order, the last for about 17 s."""
    told = replay(tried(20), replace(WIDE, rate_per_s=1.0), lease_ms=LEASE_MS)
    assert (told.firsts_waited, told.firsts_by, told.held) == (19, {"rate": 19}, 0)
    assert told.waited_ms_max == pytest.approx(19_000 - 1_900, abs=50)


def test_calls_in_flight() -> None:
    """Two at a time, each of a second, asked for every 100 ms: all but the first two wait for a place."""
    told = replay(tried(10, took_ms=1000.0), replace(WIDE, concurrency_max=2), lease_ms=LEASE_MS)
    assert told.firsts_by == {"concurrency": 8}
    assert told.held == 0


def test_the_budget_holds_retries_alone() -> None:
    """An empty bucket: every retry waits, no first attempt does."""
    both = tried(30) + tried(30, kind=Kind.AFTER_TIMEOUT, result=Result.TIMEOUT)
    told = replay(both, replace(WIDE, tokens_max=5.0, refill_per_min=0.0), lease_ms=LEASE_MS)
    assert (told.firsts_waited, told.retries_by, told.held) == (0, {"budget": 30}, 30)


def test_the_breaker_opens() -> None:
    """Ten time-outs in a second open it, and the rest of the second waits for it."""
    told = replay(tried(20, every_ms=50, result=Result.TIMEOUT), replace(WIDE, failures_min=10), lease_ms=LEASE_MS)
    assert told.openings >= 1
    assert told.firsts_by["breaker"] >= 5


def test_who_died_holds_a_place_until_its_lease_ends() -> None:
    """An attempt that nobody has finished reports nothing; its place in flight comes back with its lease."""
    dead = [replace(each, finished_ms=None) for each in tried(1)]
    told = replay([*dead, *tried(1, from_ms=1e12 + 1000)], replace(WIDE, concurrency_max=1), lease_ms=5_000.0)
    assert told.firsts_by == {"concurrency": 1}
    assert told.waited_ms_max == pytest.approx(4_000, abs=1_100)


def test_nothing_recorded() -> None:
    assert replay([], AS_SHIPPED, lease_ms=LEASE_MS).firsts == 0


def row(action: str, seconds: float, outcome: str | None, *, number: int = 1, more: bool = False) -> dict[str, Any]:
    at = START + timedelta(seconds=seconds)
    return {
        "action_id": action,
        "tenant": "acme",
        "number": number,
        "started_at": at,
        "finished_at": at + timedelta(seconds=1),
        "outcome": outcome,
        "has_more_to_come": more,
    }


def test_what_each_attempt_was() -> None:
    """Its own number and the attempt before it tell: first, after "not now" or no connection, or after an unknown outcome."""
    rows = [
        row("a", 0, "uncertain"),
        row("a", 1, "rejected", number=2),
        row("a", 2, "succeeded", number=3),
        row("b", 3, "not_sent"),
        row("b", 4, "succeeded"),
        row("c", 5, "succeeded", number=4),
        row("d", 6, "let_go"),
        row("d", 7, None),
        row("d", 8, "succeeded", number=2),
    ]
    assert [each.kind for each in tried_of(rows)] == [
        Kind.FIRST,
        Kind.AFTER_TIMEOUT,
        Kind.AFTER_THROTTLE,
        Kind.FIRST,
        Kind.AFTER_THROTTLE,
        Kind.AFTER_TIMEOUT,
        Kind.FIRST,
        Kind.FIRST,
        Kind.AFTER_TIMEOUT,
    ]


def test_what_came_of_each() -> None:
    """A refusal was "not now" if it was tried again or would have been; what was let go was never tried."""
    rows = [
        row("a", 0, "rejected"),
        row("a", 1, "rejected", number=2),
        row("b", 2, "rejected", more=True),
        row("c", 3, "uncertain"),
        row("d", 4, "not_sent"),
        row("e", 5, "let_go"),
        row("f", 6, "succeeded"),
        row("g", 7, None),
    ]
    assert [each.result for each in tried_of(rows)] == [
        Result.THROTTLE,
        Result.REFUSED,
        Result.THROTTLE,
        Result.TIMEOUT,
        Result.NOT_SENT,
        Result.UNUSED,
        Result.OK,
        Result.TIMEOUT,
    ]


@pytest.mark.parametrize("reason", REASONS)
def test_only_a_looser_limit_lets_counted_waits_pass(reason: str) -> None:
    """Each limit behind a reason, moved either way: looser, all of its waits could pass; tighter, none; never another's."""
    denied = {str(each): 7 for each in REASONS}
    for name in REASONS[reason]:  # type: ignore[index] - a key of it
        if name in ("tenant_share", "window_ms"):
            continue
        before = getattr(AS_SHIPPED, name)
        for factor in (0.5, 2.0):
            passes = could_pass(denied, AS_SHIPPED, replace(AS_SHIPPED, **{name: before * factor}))
            looser = (factor < 1) is (name in LESS_IS_MORE)
            assert passes == {each: 7 if looser and each == reason else 0 for each in REASONS}, (name, factor)


def test_a_share_of_tenants_taken_away_is_looser() -> None:
    """Without a share a tenant may take all of the bucket."""
    shared = replace(AS_SHIPPED, tenant_share=0.2)
    assert could_pass({"budget": 3}, shared, AS_SHIPPED) == {"budget": 3}
    assert could_pass({"budget": 3}, AS_SHIPPED, shared) == {"budget": 0}


def test_every_limit_has_a_reason() -> None:
    """A limit that is added is behind one of the reasons, or bounds look-ups only."""
    named = set().union(*REASONS.values())
    assert set(Limits.__dataclass_fields__) - named == {"lookups_per_s"}


@given(
    kinds=st.lists(st.sampled_from(Kind), min_size=1, max_size=40),
    results=st.lists(st.sampled_from(Result), min_size=1, max_size=7),
    rate=st.floats(0.1, 50),
    tokens=st.floats(0, 100),
    flight=st.integers(1, 5),
)
def test_every_attempt_is_counted_once(
    kinds: list[Kind], results: list[Result], rate: float, tokens: float, flight: int
) -> None:
    """Whatever the limits: each is a first attempt or a retry, has at most one first reason, and the replay ends."""
    recorded = [
        Tried(
            tenant=f"t{place % 3}",
            kind=kind,
            started_ms=1e12 + 80.0 * place,
            finished_ms=1e12 + 80.0 * place + 300,
            result=results[place % len(results)],
        )
        for place, kind in enumerate(kinds)
    ]
    limits = replace(AS_SHIPPED, rate_per_s=rate, tokens_max=tokens, concurrency_max=flight)
    told = replay(recorded, limits, lease_ms=LEASE_MS)
    counted = [each for each in recorded if each.result is not Result.UNUSED]
    assert told.firsts == sum(each.kind is Kind.FIRST for each in counted)
    assert told.retries == len(counted) - told.firsts
    assert sum(told.firsts_by.values()) == told.firsts_waited <= told.firsts
    assert sum(told.retries_by.values()) == told.retries_waited <= told.retries
    assert told.held <= told.firsts_waited + told.retries_waited
