"""Decides when a door asks the ledger whether a tenant has too much waiting: now and then, since counting has its price."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field

SETTING = "limits.waiting_per_tenant_max"

COUNTED_EVERY_S = 1.0
"""An answer of "there is room" is believed for this long; other processes may record meanwhile."""

SHARE = 100
"""And for this part of the cap: a process records no more than a hundredth of it between two counts."""

TENANTS_MAX = 10_000
"""Tenants remembered; then all are forgotten, which costs a count each."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Backlog:
    """The cap on one tenant's waiting wake-ups, as one process keeps it. Thread-safe; a race costs one count more.

    A soft cap: each process may go beyond it by a hundredth, and by what the others record within a second. A cap below 100
    is counted at each call, and exact but for calls at the same moment.
    """

    waiting_max: int = 10_000
    monotonic: Callable[[], float] = time.monotonic
    _believed: dict[str, tuple[float, int]] = field(default_factory=dict, repr=False, compare=False)
    """By tenant: until when there is room, and for how many calls more."""

    def to_count(self, tenant: str) -> int | None:
        """What the ledger is to compare the tenant's backlog with, in the statement that records a call; None: not now."""
        now = self.monotonic()
        until, calls = self._believed.get(tenant, (now, 0))
        if calls > 0 and now < until:
            self._believed[tenant] = until, calls - 1
            return None
        if len(self._believed) >= TENANTS_MAX:
            self._believed.clear()
        self._believed[tenant] = now + COUNTED_EVERY_S, self.waiting_max // SHARE
        return self.waiting_max

    def is_full(self, tenant: str) -> None:
        """The ledger has said so: the tenant's next call is counted, too."""
        self._believed.pop(tenant, None)
