"""Decides what one provider's limits are for the whole fleet, for one process of it, and right after an outage."""

from __future__ import annotations

from dataclasses import dataclass, replace

from counterfoil.workers.kinds import Kind, Reason

RAMP_FACTOR = 1.12
RAMP_MIN_PER_S = 5.0
"""After an outage the rate is held to 1.12 times what it was before. With what may go at once, a tenth of a second's rate, no
second sees more than 1.25 times as many calls as before. Never below five a second, which is no load."""

AWAY_FACTOR = 0.9
"""Processes that do not hear of each other meet by chance: together a little less than usual, so that no second has more."""

AWAY_OPEN_MAX_MS = 30_000
"""A process by itself stays away from a failing provider for at most this long."""


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

    def share(self, processes: int, usual_per_s: float) -> Limits:
        """What one of so many processes may do by itself: its part of the usual rate (0 = unknown), and no retry. Its part of
        the failures is an outage to it, and of the probes it makes its part, too."""
        parts = max(1, processes)
        open_ms = max(self.open_ms, min(self.open_ms * parts, AWAY_OPEN_MAX_MS))
        usual = max(RAMP_MIN_PER_S, usual_per_s * AWAY_FACTOR) if usual_per_s > 0 else self.rate_per_s
        return replace(
            self,
            tokens_max=0.0,
            refill_per_min=0.0,
            tenant_share=None,
            rate_per_s=min(self.rate_per_s, usual) / parts,
            failures_min=max(1, round(self.failures_min / parts)),
            open_ms=open_ms,
            open_max_ms=max(self.open_max_ms, open_ms),
        )

    def ramp_per_s(self, usual_per_s: float) -> float:
        """The rate after an outage, or after what was known of it is lost."""
        if usual_per_s <= 0:
            return self.rate_per_s
        return min(self.rate_per_s, max(RAMP_MIN_PER_S, usual_per_s * RAMP_FACTOR))


@dataclass(frozen=True, slots=True)
class Said:
    """The answer to one ask: go (no reason), or why not, and when to ask again at the earliest."""

    reason: Reason | None = None
    wait_ms: float = 0.0


@dataclass(frozen=True, slots=True)
class Recalled:
    """What a process remembers of a provider, for a store that has lost it."""

    born: float
    """Of the store's state that it remembers."""
    usual_per_s: float
    failing: bool
