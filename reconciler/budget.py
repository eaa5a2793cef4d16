"""Decides how many requests look-ups may make now: what the fleet's own rate for them grants, less what was overspent."""

from __future__ import annotations

from dataclasses import dataclass, field

from counterfoil.workers.admission import Admission

REQUESTS_MAX = 200
"""Taken for one batch; more would be spent before anybody else is asked."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LookUpBudget:
    """One process's share of it. A batch may need more requests than one can tell beforehand: more pages, or a list for
    each row where a shared one did not help. What it made too many is taken from the next batches of that provider."""

    admission: Admission
    _owed: dict[str, int] = field(default_factory=dict)

    def take(self, provider: str, wanted: int) -> int:
        """Takes up to `wanted` requests; 0: the rows stay as they are, and are due again at the next tick."""
        owed = self._owed.get(provider, 0)
        granted = self.admission.look_ups(provider, min(wanted, REQUESTS_MAX) + owed).requests
        self._owed[provider] = max(0, owed - granted)
        return max(0, granted - owed)

    def spent(self, provider: str, *, granted: int, made: int) -> None:
        """What a batch has made of its grant."""
        self._owed[provider] = self._owed.get(provider, 0) + max(0, made - granted)

    def found(self, provider: str, effects: int) -> None:
        """So many timeouts were effects after all."""
        if effects:
            self.admission.found(provider, effects)
