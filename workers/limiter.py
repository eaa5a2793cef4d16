"""Decides what one provider may be sent: retry budget, ratio cap, rate, calls in flight and breaker, as a model without I/O.

`admission.lua` is the same thing inside Redis, for the whole fleet, and a test holds the two against each other, so read this
one. A process uses it by itself while Redis is away, and `counterfoil budget` replays a day's attempts through it. Times are
milliseconds of one clock, which the caller gives.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from counterfoil.workers.fleet_limits import Limits, Recalled, Said
from counterfoil.workers.kinds import Ask, Kind, Result

__all__ = ["HOUR_MS", "Limiter", "Limits", "Recalled", "Said"]

SLOT_MS = 5_000
MINUTE_SLOTS = 12
"""The ratio counts the last minute, in slots of five seconds."""

HEALTH_SLOTS = 10
"""The breaker's window is counted in tenths."""

HOUR_MS = 3_600_000
HOURS_KEPT = 25

LOOK_BURST_S = 5.0
"""Look-ups come with the sweep's ticks: what one tick of the usual length may ask waits for it."""

BURST_S = 0.1
"""This much of a second's rate may go at once: a batch, and not a wave."""

RAMP_PER_OUTAGE = 10
RAMP_MAX_MS = 600_000
"""After an outage the rate is held to about what it was before, for ten times as long as it took, at most ten minutes:
what has waited goes out as a slope."""

RUN_FACTOR = 2
"""The breaker opens, too, when this many times `failures_min` calls in a row have failed, whatever the window still remembers
of better times: a busy fleet would else send hundreds into an outage."""

WORKERS_MS = 60_000
"""A process that asked within the last minute belongs to the fleet."""

LEASE_MAX_MS = 600_000
"""No call in flight is believed in for longer."""

WAIT_MAX_MS = 60_000
TENANTS_MAX = 500
"""Buckets of tenants that are kept; those that lack least go first."""


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
    minute: dict[int, tuple[float, float, float]] = field(default_factory=dict)
    """First attempts, retries and calls that were answered well, by slot."""
    health: dict[int, tuple[float, float]] = field(default_factory=dict)
    """Answers and failures by slot."""
    run: float = 0.0
    """Failures since the last answer."""
    good_at: float = 0.0
    """When it last answered."""
    breaker: str = "closed"
    opened_at: float = 0.0
    open_until: float = 0.0
    openings: int = 0
    base_per_s: float = 0.0
    """What was usual before the outage; 0 = unknown."""
    probe: str = ""
    """The newest one's ticket."""
    probe_until: float = 0.0
    """No other one before."""
    probes: dict[str, float] = field(default_factory=dict)
    """All that may still be answered."""
    ramp_until: float = 0.0
    hours: dict[int, dict[str, float]] = field(default_factory=dict)

    @classmethod
    def fresh(cls, now: float, limits: Limits) -> Limiter:
        """A provider about which nothing is known: a full bucket, a closed breaker."""
        return cls(born=now, tokens=limits.tokens_max, tokens_at=now, rate_at=now, look_at=now)

    # What is asked of it

    def admit(
        self,
        now: float,
        limits: Limits,
        *,
        ticket: str,
        worker: str,
        lease_ms: float,
        asks: Sequence[Ask],
        recalled: Recalled | None = None,
    ) -> list[Said]:
        """An answer for each ask of one batch, in order. What goes takes its rate and cost; the batch takes one lease."""
        self._turn(now, limits)
        self.workers[worker] = now
        if recalled is not None and recalled.born != self.born:
            self._recall(now, limits, recalled)
        closed = self._closed(now, limits, ticket)
        said = []
        for ask in asks:
            answer = closed or self._one(now, limits, ask)
            if answer.reason is None:
                self._take(now, limits, ask)
                if self.breaker == "half":
                    # one that hangs must not keep the next from finding out that the provider is back
                    self.probe, self.probe_until = ticket, now + min(lease_ms, limits.open_max_ms)
                    self.probes[ticket] = now + min(lease_ms, LEASE_MAX_MS)
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
            self.probes.pop(ticket, None)
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
            "born": self.born,
            "usual_per_s": self.usual_per_s(now),
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

    def usual_per_s(self, now: float) -> float:
        """Calls per second that the provider has answered while it was well: half of the last minute's slots had more. 0 =
        unknown. The slot that has just begun says nothing yet."""
        if self.breaker != "closed" or now < self.ramp_until:
            return self.base_per_s
        newest = math.floor(now / SLOT_MS)
        answered = sorted(counts[2] for slot, counts in self.minute.items() if slot < newest and counts[2] > 0)
        return answered[len(answered) // 2] * 1000 / SLOT_MS if answered else 0.0

    def trip(self, now: float, limits: Limits) -> None:
        """Opens the breaker on what is known from elsewhere."""
        self._turn(now, limits)
        if self.breaker == "closed":
            self._open(now, limits)

    # Time passes

    def _turn(self, now: float, limits: Limits) -> None:
        """Forgets what is over and refills. A clock that was set back freezes nothing: no time lies ahead for long."""
        self.tokens_at, self.rate_at, self.look_at = (
            min(at, now) for at in (self.tokens_at, self.rate_at, self.look_at)
        )
        self.born, self.opened_at, self.good_at = (min(at, now) for at in (self.born, self.opened_at, self.good_at))
        self.open_until = min(self.open_until, now + limits.open_max_ms)
        self.ramp_until = min(self.ramp_until, now + RAMP_MAX_MS)
        self.probe_until = min(self.probe_until, now + LEASE_MAX_MS)
        self.leases = {k: until for k, until in self.leases.items() if now < until <= now + LEASE_MAX_MS}
        self.probes = {k: until for k, until in self.probes.items() if now < until <= now + LEASE_MAX_MS}
        self.workers = {k: at for k, at in self.workers.items() if now - WORKERS_MS < at <= now}
        slot = math.floor(now / SLOT_MS)
        self.minute = {k: v for k, v in self.minute.items() if slot - MINUTE_SLOTS < k <= slot}
        slot = math.floor(now * HEALTH_SLOTS / limits.window_ms)
        self.health = {k: v for k, v in self.health.items() if slot - HEALTH_SLOTS < k <= slot}
        hour = math.floor(now / HOUR_MS)
        self.hours = {k: v for k, v in self.hours.items() if hour - HOURS_KEPT < k <= hour}
        earned = (now - self.tokens_at) * limits.refill_per_min / 60_000
        self.tokens, self.tokens_at = min(limits.tokens_max, max(0.0, self.tokens) + earned), now
        per_s = self._rate_per_s(now, limits)
        self.rate = min(max(1.0, per_s * BURST_S), max(0.0, self.rate) + (now - self.rate_at) * per_s / 1000)
        look = max(0.0, self.look) + (now - self.look_at) * limits.lookups_per_s / 1000
        self.look = min(max(1.0, limits.lookups_per_s * LOOK_BURST_S), look)
        self.rate_at = self.look_at = now
        if self.breaker == "open" and now >= self.open_until:
            self.breaker, self.probe, self.probe_until = "half", "", 0.0

    def _rate_per_s(self, now: float, limits: Limits) -> float:
        return limits.ramp_per_s(self.base_per_s) if now < self.ramp_until else limits.rate_per_s

    def _recall(self, now: float, limits: Limits, recalled: Recalled) -> None:
        """The store has lost what it knew, perhaps amid an outage: what it does not know it takes from whoever does."""
        if recalled.failing and self.opened_at <= 0 and self.good_at <= 0:
            self._open(now, limits)
        if recalled.usual_per_s > 0 and self.base_per_s <= 0 and self.usual_per_s(now) <= 0:
            self.base_per_s, self.ramp_until = recalled.usual_per_s, now + RAMP_MAX_MS

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
        if ask.kind is Kind.FIRST:
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
        self._tally(now, is_first, not is_first, 0)
        self._count(now, "firsts" if is_first else "retries")

    def _tally(self, now: float, firsts: float, retries: float, answered: float) -> None:
        slot = math.floor(now / SLOT_MS)
        counts = self.minute.get(slot, (0.0, 0.0, 0.0))
        self.minute[slot] = (
            max(0.0, counts[0] + firsts),
            max(0.0, counts[1] + retries),
            counts[2] + answered,
        )

    def _last_minute(self) -> tuple[float, float]:
        counts = self.minute.values()
        return sum(firsts for firsts, _, _ in counts), sum(retries for _, retries, _ in counts)

    # The bucket

    def _tenant(self, now: float, limits: Limits, tenant: str) -> float:
        if limits.tenant_share is None:
            return limits.tokens_max
        most = limits.tokens_max * limits.tenant_share
        tokens, at = self.tenants.get(tenant, (most, now))
        if at > now:  # the clock was set back: nothing would refill it until then
            return most
        return min(most, max(0.0, tokens) + (now - at) * limits.refill_per_min * limits.tenant_share / 60_000)

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
        if result in (Result.OK, Result.REFUSED):
            self._tally(now, 0, 0, 1)
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
                is_first = ask.kind is Kind.FIRST
                self._tally(now, -is_first, -(not is_first), 0)
                self._count(now, "firsts" if is_first else "retries", -1)
            case _:
                pass  # a retry that failed keeps what it had taken

    # The breaker

    def _judge(self, now: float, limits: Limits, ticket: str, result: Result) -> None:
        if result is Result.UNUSED:
            return
        bad = result in (Result.TIMEOUT, Result.NOT_SENT)
        if self.breaker == "half" and ticket in self.probes:
            if not bad:
                self._close(now)
            elif self.probe == ticket:  # an older one that hung says how it was when it began
                self._open(now, limits)
        elif self.breaker == "closed":
            slot = math.floor(now * HEALTH_SLOTS / limits.window_ms)
            good_count, bad_count = self.health.get(slot, (0.0, 0.0))
            self.health[slot] = (good_count + (not bad), bad_count + bad)
            answers = sum(good for good, _ in self.health.values())
            failures = sum(bad for _, bad in self.health.values())
            self.run = self.run + 1 if bad else 0.0
            if not bad:
                self.good_at = now
            if self.run >= RUN_FACTOR * limits.failures_min or (
                failures >= limits.failures_min and failures >= limits.failure_ratio * (answers + failures)
            ):
                self._open(now, limits)

    def _open(self, now: float, limits: Limits) -> None:
        if self.breaker == "closed":
            self.base_per_s = self.usual_per_s(now)  # in a ramp still the rate of before the last outage
            # calls that hang are noticed late: it began when the last answer came
            self.opened_at = self.good_at if 0 < now - self.good_at <= RAMP_MAX_MS else now
            self.openings = 0
        self.openings += 1
        self.breaker, self.probe, self.probe_until, self.probes = "open", "", 0.0, {}
        self.open_until = now + min(limits.open_max_ms, limits.open_ms * 2 ** min(self.openings - 1, 20))

    def _close(self, now: float) -> None:
        self.breaker, self.probe, self.probe_until, self.probes, self.openings = "closed", "", 0.0, {}, 0
        self.health, self.run, self.good_at = {}, 0.0, now
        ramp_ms = min(RAMP_PER_OUTAGE * (now - self.opened_at), RAMP_MAX_MS)
        self.ramp_until = max(self.ramp_until, now + ramp_ms)

    def _count(self, now: float, what: str, by: int = 1) -> None:
        counts = self.hours.setdefault(math.floor(now / HOUR_MS), {})
        counts[what] = max(0, counts.get(what, 0) + by)
