"""What beat runs: each tick is idempotent, bounded in time, and harmless when two beats run it at once."""

from __future__ import annotations

from dataclasses import dataclass

import structlog

from counterfoil.ledger import alarms, notices, sweeps
from counterfoil.ledger.connection import Ledger
from counterfoil.reconciler.escalate import Escalation
from counterfoil.reconciler.lookups import LookUps, known_tools
from counterfoil.reconciler.notify import Notifier
from counterfoil.reconciler.unwind import Unwinder
from counterfoil.reconciler.versions import VersionReads
from counterfoil.reconciler.watch import Watch

log: structlog.stdlib.BoundLogger = structlog.get_logger("counterfoil.reconciler")

ORPHAN_AFTER_S = 3600.0
"""A look-up that is due for this long: every process that had the row's tool is gone. Longer than any deployment."""

LACKING_AFTER_S = 900.0
"""Workers had an action, and none its tool, version or account: longer than it takes to replace them one after another."""

LACKING_HELD_S = 300.0
"""An action that was not published for this long after it was due is held back: by a pause, a limit or an outage."""

NOTICES_S = 90 * 86_400.0
"""Told notices are kept for a quarter: long enough to answer who was told."""

PIVOT_WITHIN_S = 3600.0
"""Runs that were called since then are looked at for what they sent too early; told once a tick for as long."""

EFFECT_LOCKS_S = 86_400.0
"""A lock is taken for as long as one proposal's transaction; rows of yesterday only cost room."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Reconciler:
    """The ticks of one process. Used by one thread at a time, made after the fork."""

    ledger: Ledger
    look_ups: LookUps
    versions: VersionReads
    unwinder: Unwinder
    notifier: Notifier
    watcher: Watch
    escalation: Escalation
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

    def read_versions(self) -> int:
        """proposed rows get the version of what they are about, and move on."""
        return self.versions.sweep(budget_s=self.sweep_budget_s)

    def watch(self) -> int:
        """Looks up again what has ended, for a day: what is found after all is told."""
        return self.watcher.visit(budget_s=self.sweep_budget_s)

    def rescue(self) -> int:
        """What nobody moves on any more: claimable rows without a wake-up (our bug, so it is told as an error) get one,
        uncertain rows of a tool that nobody has go to a person, as does in time what is in doubt and no worker can send
        again. And what must be 0: irreversible effects that were sent before their run's pivot."""
        rescued = sweeps.rescue_lost_wakeups(self.ledger, older_s=self.lost_after_s)
        if rescued:
            log.error("wake_ups_rescued", actions=rescued)
        known = known_tools(self.look_ups.registry)
        orphans = sweeps.hand_orphans_to_person(self.ledger, known=known, older_s=ORPHAN_AFTER_S, by=self.by)
        if orphans:
            log.error("tools_unknown", actions=orphans)
        sweeps.forget_lacking(self.ledger, held_s=LACKING_HELD_S)
        for subject in alarms.keep_alarms(
            self.ledger, "no_worker", sweeps.tools_lacking(self.ledger, older_s=LACKING_AFTER_S)
        ):
            log.error("no_worker", tool=subject)
        lacking = sweeps.hand_lacking_to_person(self.ledger, older_s=ORPHAN_AFTER_S, by=self.by)
        if lacking:
            log.error("no_worker_in_doubt", actions=lacking)
        for early in sweeps.sent_before_pivot(self.ledger, within_s=PIVOT_WITHIN_S):
            log.error("irreversible_before_pivot", tenant=early.tenant, run=early.run, actions=early.actions)
        return len(rescued) + len(orphans) + len(lacking)

    def escalate(self) -> int:
        """Tells outages, and hands what stays uncertain for too long to a person, while its provider answers."""
        return self.escalation.sweep()

    def expire(self) -> int:
        """Deadlines, decisions that came too late or never, and cancels that waited for their row."""
        expired = sweeps.expire_past_deadline(self.ledger, by=self.by)
        undecided = sweeps.expire_proposals(self.ledger, by=self.by)
        if undecided:
            log.warning("approvals_expired", subjects=undecided)
        return len(expired) + len(undecided) + len(sweeps.finish_cancels(self.ledger, by=self.by))

    def unwind_runs(self) -> int:
        """Takes runs back, a step at each visit."""
        return self.unwinder.visit_all()

    def notify(self) -> int:
        """Tells people what waits for them."""
        return self.notifier.tell()

    def make_partitions(self) -> int:
        """The partitions of the next months; and, as seldom, unwanted locks of effects and old notices go."""
        sweeps.prune_effect_locks(self.ledger, older_s=EFFECT_LOCKS_S)
        notices.prune(self.ledger, older_s=NOTICES_S)
        return len(sweeps.make_partitions(self.ledger))
