"""Decides how long an outage keeps the relay from trying again: doubled from a second to half a minute, with jitter."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass

PAUSE_FIRST_S = 1.0
PAUSE_MAX_S = 30.0


@dataclass(slots=True)
class Outage:
    """Counts failures in a row; from the `failures_max`th on it lasts for a while, longer each time."""

    failures_max: int
    monotonic: Callable[[], float]
    failures: int = 0
    open_until: float = 0.0

    @property
    def lasts(self) -> bool:
        return self.monotonic() < self.open_until

    @property
    def left_s(self) -> float:
        return max(0.0, self.open_until - self.monotonic())

    def fail(self) -> bool:
        """One more failure; True when it is the one that begins an outage."""
        self.failures += 1
        beyond = self.failures - self.failures_max
        if beyond >= 0:
            pause_s = min(PAUSE_MAX_S, PAUSE_FIRST_S * 2.0 ** min(beyond, 10))
            self.open_until = self.monotonic() + pause_s * random.uniform(0.8, 1.2)
        return beyond == 0

    def succeed(self) -> bool:
        """All is well; True when that ends an outage."""
        ended = self.failures >= self.failures_max
        self.failures, self.open_until = 0, 0.0
        return ended
