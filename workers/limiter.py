"""Decides what one provider may be sent: retry budget, ratio cap, rate, calls in flight and breaker, as a model without I/O.

`admission.lua` is the same thing inside Redis, for the whole fleet, and a test holds the two against each other, so read this
one. A process uses it by itself while Redis is away, and `counterfoil budget` replays a day's attempts through it. Times are
milliseconds of one clock, which the caller gives.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from counterfoil.workers.kinds import Ask, Kind, Reason, Result

SLOT_MS = 5_000
MINUTE_SLOTS = 12
"""The ratio counts the last minute, in slots of five seconds."""

HEALTH_SLOTS = 10
"""The breaker's window is counted in tenths."""

HOUR_MS = 3_600_000
HOURS_KEPT = 25

BURST_S = 0.1
"""This much of a second's rate may go at once: a batch, and not a wave."""

RAMP_FACTOR = 1.2
RAMP_PER_OUTAGE = 10
RAMP_MAX_MS = 600_000
RAMP_MIN_PER_S = 5.0
"""After an outage the rate is held to 1.2 times what it was before, for ten times as long as the outage took, at most ten
minutes: what has waited goes out as a slope. Never below five a second, which is no load."""

WORKERS_MS = 60_000
"""A process that asked within the last minute belongs to the fleet."""

LEASE_MAX_MS = 600_000
"""No call in flight is believed in for longer."""

WAIT_MAX_MS = 60_000
TENANTS_MAX = 500
"""Buckets of tenants that are kept; those that lack least go first."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """One provider's limits; see `[providers.NAME]` for what they mean and why they are as they are."""

    tokens_max: float
    refill_per_success: float
    refill_per_min: float
    cost_after_timeout: float
    cost_after_throttle: float
    ratio_max: float
    retries_per_min_min: float
    tenant_share: float | None
    rate_per_s: float
    concurrency_max: int
    lookups_per_s: float
    failures_min: int
    failure_ratio: float
    window_ms: float
    open_ms: float
    open_max_ms: float

    def cost(self, kind: Kind) -> float:
        """What a retry of this kind must find in the bucket."""
        match kind:
            case Kind.AFTER_TIMEOUT:
                return self.cost_after_timeout
            case Kind.AFTER_THROTTLE:
                return self.cost_after_throttle
            case _:
                return 0.0

    def share(self, processes: int) -> Limits:
        """What one of so many processes may do by itself: its part of the rate, and no retry."""
        return replace(
            self, tokens_max=0.0, refill_per_min=0.0, tenant_share=None, rate_per_s=self.rate_per_s / max(1, processes)
        )


@dataclass(frozen=True, slots=True)
class Said:
    """The answer to one ask: go (no reason), or why not, and when to ask again at the earliest."""

    reason: Reason | None = None
    wait_ms: float = 0.0


@dataclass(slots=True)
class Limiter:
    """One provider's state. Every method takes the limits in force, so that a change counts at once."""

    born: float
    tokens: float
    tokens_at: float
    rate: float = 1.0
    """Calls that may go at once."""
    rate_at: float = 0.0
    look: float = 1.0
    look_at: float = 0.0
    tenants: dict[str, tuple[float, float]] = field(default_factory=dict)
    """Buckets that are not full, with when they were counted."""
    leases: dict[str, float] = field(default_factory=dict)
    workers: dict[str, float] = field(default_factory=dict)
    minute: dict[int, tuple[float, float]] = field(default_factory=dict)
    """First attempts and retries by slot."""
    health: dict[int, tuple[float, float]] = field(default_factory=dict)
    """Answers and failures by slot."""
    breaker: str = "closed"
    opened_at: float = 0.0
    open_until: float = 0.0
    openings: int = 0
    base_per_s: float = 0.0
    probe: str = ""
    probe_until: float = 0.0
    ramp_until: float = 0.0
    hours: dict[int, dict[str, float]] = field(default_factory=dict)

    @classmethod
    def fresh(cls, now: float, limits: Limits) -> Limiter:
        """A provider about which nothing is known: a full bucket, a closed breaker."""
        return cls(born=now, tokens=limits.tokens_max, tokens_at=now, rate_at=now, look_at=now)

    # What is asked of it

    def admit(
        self, now: float, limits: Limits, *, ticket: str, worker: str, lease_ms: float, asks: Sequence[Ask]
    ) -> list[Said]:
        """An answer for each ask of one batch, in order. What goes takes its rate and cost; the batch takes one lease."""
        self._turn(now, limits)
        self.workers[worker] = now
        closed = self._closed(now, limits, ticket)
        said = []
        for ask in asks:
            answer = closed or self._one(now, limits, ask)
            if answer.reason is None:
                self._take(now, limits, ask)
                if self.breaker == "half":
                    self.probe, self.probe_until = ticket, now + lease_ms
                    closed = Said("breaker", limits.open_ms)
                self.leases[ticket] = now + min(lease_ms, LEASE_MAX_MS)
            else:
                self._count(now, answer.reason)
            said.append(answer)
        return said

    def report(
        self, now: float, limits: Limits, *, ticket: str, results: Sequence[tuple[Ask, Result]], done: bool
    ) -> bool:
        """What came of a batch's calls; False: the breaker is open, nothing more of it should be tried."""
        self._turn(now, limits)
        for ask, result in results:
            self._settle(now, limits, ask, result)
            self._judge(now, limits, ticket, result)
        if done:
            self.leases.pop(ticket, None)
            if self.probe == ticket:
                self.probe, self.probe_until = "", 0.0
        return self.breaker == "closed"

    def look_up(self, now: float, limits: Limits, wanted: int) -> tuple[int, float]:
        """How many of the wanted look-up requests may be made now, and how long until the next may."""
        self._turn(now, limits)
        granted = min(wanted, math.floor(self.look))
        self.look -= granted
        wait_ms = 0.0 if granted == wanted else math.ceil((1 - min(self.look, 1)) * 1000 / limits.lookups_per_s)
        return granted, wait_ms

    def found(self, now: float, limits: Limits, effects: int) -> None:
        """So many timeouts were successes after all: their cost is given back."""
        self._turn(now, limits)
        self._give(now, limits, None, limits.cost_after_timeout * effects)

    def seen(self, now: float, limits: Limits) -> dict[str, Any]:
        """What there is to see, as plain values."""
        self._turn(now, limits)
        firsts, retries = self._last_minute()
        return {
            "breaker": self.breaker,
            "open_in_ms": self._open_in(now),
            "tokens": self.tokens,
            "rate": self.rate,
            "rate_per_s": self._rate_per_s(now, limits),
            "look": self.look,
            "in_flight": len(self.leases),
            "processes": len(self.workers),
            "firsts": firsts,
            "retries": retries,
            "hours": {str(hour): dict(counts) for hour, counts in self.hours.items()},
        }

    # Time passes

    def _turn(self, now: float, limits: Limits) -> None:
        """Forgets what is over and refills. A clock that was set back freezes nothing: no time lies ahead for long."""
        self.tokens_at, self.rate_at, self.look_at = (
            min(at, now) for at in (self.tokens_at, self.rate_at, self.look_at)
        )
        self.born, self.opened_at = min(self.born, now), min(self.opened_at, now)
        self.open_until = min(self.open_until, now + limits.open_max_ms)
        self.ramp_until = min(self.ramp_until, now + RAMP_MAX_MS)
        self.probe_until = min(self.probe_until, now + LEASE_MAX_MS)
        self.leases = {k: until for k, until in self.leases.items() if now < until <= now + LEASE_MAX_MS}
        self.workers = {k: at for k, at in self.workers.items() if now - WORKERS_MS < at <= now}
        slot = math.floor(now / SLOT_MS)
        self.minute = {k: v for k, v in self.minute.items() if slot - MINUTE_SLOTS < k <= slot}
        slot = math.floor(now * HEALTH_SLOTS / limits.window_ms)
        self.health = {k: v for k, v in self.health.items() if slot - HEALTH_SLOTS < k <= slot}
        hour = math.floor(now / HOUR_MS)
        self.hours = {k: v for k, v in self.hours.items() if hour - HOURS_KEPT < k <= hour}
        earned = (now - self.tokens_at) * limits.refill_per_min / 60_000
        self.tokens, self.tokens_at = min(limits.tokens_max, self.tokens + earned), now
        per_s = self._rate_per_s(now, limits)
        self.rate = min(max(1.0, per_s * BURST_S), self.rate + (now - self.rate_at) * per_s / 1000)
        self.look = min(max(1.0, limits.lookups_per_s), self.look + (now - self.look_at) * limits.lookups_per_s / 1000)
        self.rate_at = self.look_at = now
        if self.breaker == "open" and now >= self.open_until:
            self.breaker, self.probe, self.probe_until = "half", "", 0.0

    def _rate_per_s(self, now: float, limits: Limits) -> float:
        if now < self.ramp_until:
            return min(limits.rate_per_s, max(RAMP_MIN_PER_S, self.base_per_s * RAMP_FACTOR))
        return limits.rate_per_s

    # May it go?

    def _closed(self, now: float, limits: Limits, ticket: str) -> Said | None:
        """What holds the whole batch back, if anything does."""
        open_in = self._open_in(now)
        if open_in > 0:
            return Said("breaker", math.ceil(min(open_in, limits.open_max_ms)))
        if ticket not in self.leases and len(self.leases) >= limits.concurrency_max:
            return Said("concurrency", math.ceil(min(min(self.leases.values()) - now, 1_000)))
        return None

    def _open_in(self, now: float) -> float:
        """Until the breaker lets something through: 0 while it is closed, or half-open without a probe under way."""
        match self.breaker:
            case "open":
                return max(0.0, self.open_until - now)
            case "half":
                return max(0.0, self.probe_until - now)
            case _:
                return 0.0

    def _one(self, now: float, limits: Limits, ask: Ask) -> Said:
        if self.rate < 1:
            return Said("rate", math.ceil((1 - self.rate) * 1000 / self._rate_per_s(now, limits)))
        if ask.kind is Kind.FIRST or self.breaker == "half":  # a probe is one call, whatever the budget says
            return Said()
        cost = limits.cost(ask.kind)
        lacks = cost - min(self.tokens, self._tenant(now, limits, ask.tenant))
        if lacks > 0:
            per_ms = limits.refill_per_min / 60_000
            return Said(
                "budget", min(max(1_000, math.ceil(lacks / per_ms)), WAIT_MAX_MS) if per_ms > 0 else WAIT_MAX_MS
            )
        firsts, retries = self._last_minute()
        if retries + 1 > max(limits.ratio_max * firsts, limits.retries_per_min_min):
            return Said("ratio", SLOT_MS)
        return Said()

    def _take(self, now: float, limits: Limits, ask: Ask) -> None:
        self.rate -= 1
        self._give(now, limits, ask.tenant, -limits.cost(ask.kind))
        is_first = ask.kind is Kind.FIRST
        slot = math.floor(now / SLOT_MS)
        firsts, retries = self.minute.get(slot, (0.0, 0.0))
        self.minute[slot] = (firsts + is_first, retries + (not is_first))
        self._count(now, "firsts" if is_first else "retries")

    def _last_minute(self) -> tuple[float, float]:
        return sum(firsts for firsts, _ in self.minute.values()), sum(retries for _, retries in self.minute.values())

    # The bucket

    def _tenant(self, now: float, limits: Limits, tenant: str) -> float:
        if limits.tenant_share is None:
            return limits.tokens_max
        most = limits.tokens_max * limits.tenant_share
        tokens, at = self.tenants.get(tenant, (most, now))
        return min(most, tokens + (now - min(at, now)) * limits.refill_per_min * limits.tenant_share / 60_000)

    def _give(self, now: float, limits: Limits, tenant: str | None, tokens: float) -> None:
        """Adds (or, below zero, takes) tokens: never below none, never above what there may be."""
        self.tokens = min(limits.tokens_max, max(0.0, self.tokens + tokens))
        if tenant is None or limits.tenant_share is None:
            return
        most = limits.tokens_max * limits.tenant_share
        left = min(most, max(0.0, self._tenant(now, limits, tenant) + tokens))
        self.tenants.pop(tenant, None)
        if left < most:
            self.tenants[tenant] = (left, now)
        if len(self.tenants) > TENANTS_MAX:
            del self.tenants[max(self.tenants, key=lambda name: (self.tenants[name][0], name))]

    def _settle(self, now: float, limits: Limits, ask: Ask, result: Result) -> None:
        cost = limits.cost(ask.kind)
        match result:
            case Result.OK:
                self._give(now, limits, ask.tenant, 2 * cost + limits.refill_per_success)
            case Result.REFUSED:
                self._give(now, limits, ask.tenant, 2 * cost)
            case Result.TIMEOUT if ask.kind is Kind.FIRST:
                self._give(now, limits, ask.tenant, -limits.cost_after_timeout)
            case Result.THROTTLE | Result.NOT_SENT if ask.kind is Kind.FIRST:
                self._give(now, limits, ask.tenant, -limits.cost_after_throttle)
            case Result.UNUSED:
                self._give(now, limits, ask.tenant, cost)
                self.rate = min(max(1.0, self._rate_per_s(now, limits) * BURST_S), self.rate + 1)
                slot = math.floor(now / SLOT_MS)
                firsts, retries = self.minute.get(slot, (0.0, 0.0))
                is_first = ask.kind is Kind.FIRST
                self.minute[slot] = (max(0.0, firsts - is_first), max(0.0, retries - (not is_first)))
            case _:
                pass  # a retry that failed keeps what it had taken

    # The breaker

    def _judge(self, now: float, limits: Limits, ticket: str, result: Result) -> None:
        if result is Result.UNUSED:
            return
        bad = result in (Result.TIMEOUT, Result.NOT_SENT)
        if self.breaker == "half" and self.probe == ticket:
            if bad:
                self._open(now, limits)
            else:
                self._close(now)
        elif self.breaker == "closed":
            slot = math.floor(now * HEALTH_SLOTS / limits.window_ms)
            good_count, bad_count = self.health.get(slot, (0.0, 0.0))
            self.health[slot] = (good_count + (not bad), bad_count + bad)
            answers = sum(good for good, _ in self.health.values())
            failures = sum(bad for _, bad in self.health.values())
            if failures >= limits.failures_min and failures >= limits.failure_ratio * (answers + failures):
                self._open(now, limits)

    def _open(self, now: float, limits: Limits) -> None:
        if self.breaker == "closed":
            self.opened_at, self.openings = now, 0
            if now >= self.ramp_until:  # else the rate of before the last outage is the better measure
                calls = sum(self._last_minute())
                self.base_per_s = calls * 1000 / max(1_000, min(now - self.born, SLOT_MS * MINUTE_SLOTS))
        self.openings += 1
        self.breaker, self.probe, self.probe_until = "open", "", 0.0
        self.open_until = now + min(limits.open_max_ms, limits.open_ms * 2 ** min(self.openings - 1, 20))

    def _close(self, now: float) -> None:
        self.breaker, self.probe, self.probe_until, self.openings = "closed", "", 0.0, 0
        self.health = {}
        self.ramp_until = now + min(RAMP_PER_OUTAGE * (now - self.opened_at), RAMP_MAX_MS)

    def _count(self, now: float, what: str) -> None:
        counts = self.hours.setdefault(math.floor(now / HOUR_MS), {})
        counts[what] = counts.get(what, 0) + 1
