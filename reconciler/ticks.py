"""What beat runs: each tick is idempotent, bounded in time, and harmless when two beats run it at once."""

from __future__ import annotations

from dataclasses import dataclass

import structlog

from counterfoil.ledger import sweeps
from counterfoil.ledger.connection import Ledger
from counterfoil.reconciler.lookups import LookUps, known_tools
from counterfoil.reconciler.unwind import Unwinder

log: structlog.stdlib.BoundLogger = structlog.get_logger("counterfoil.reconciler")

ORPHAN_AFTER_S = 3600.0
"""A look-up that is due for this long: every process that had the row's tool is gone. Longer than any deployment."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Reconciler:
    """The ticks of one process. Used by one thread at a time, made after the fork."""

    ledger: Ledger
    look_ups: LookUps
    unwinder: Unwinder
    by: str
    lost_after_s: float
    """A claimable row without a wake-up is rescued once it has been due for this long."""
    sweep_budget_s: float
    """How long one tick may go on with look-ups; what is left is the next tick's."""

    def sweep_leases(self) -> int:
        """executing and reconciling past their lease → uncertain."""
        moved = sweeps.sweep_lapsed_leases(self.ledger, by=self.by)
        if moved:
            log.warning("leases_lapsed", actions=len(moved))
        return len(moved)

    def sweep_uncertain(self) -> int:
        """Asks the providers about uncertain rows that are due, and writes the verdicts."""
        return self.look_ups.sweep(budget_s=self.sweep_budget_s)

    def rescue(self) -> int:
        """What nobody moves on any more: claimable rows without a wake-up (our bug, so it is told as an error) get one,
        uncertain rows of a tool that nobody has go to a person."""
        rescued = sweeps.rescue_lost_wakeups(self.ledger, older_s=self.lost_after_s)
        if rescued:
            log.error("wake_ups_rescued", actions=rescued)
        known = known_tools(self.look_ups.registry)
        orphans = sweeps.hand_orphans_to_person(self.ledger, known=known, older_s=ORPHAN_AFTER_S, by=self.by)
        if orphans:
            log.error("tools_unknown", actions=orphans)
        return len(rescued) + len(orphans)

    def expire(self) -> int:
        """Deadlines and cancels that waited for their row."""
        expired = sweeps.expire_past_deadline(self.ledger, by=self.by)
        return len(expired) + len(sweeps.finish_cancels(self.ledger, by=self.by))

    def unwind_runs(self) -> int:
        """Takes runs back, a step at each visit."""
        return self.unwinder.visit_all()

    def make_partitions(self) -> int:
        """The partitions of the next months."""
        return len(sweeps.make_partitions(self.ledger))
