"""Decides when rows are a person's for their age alone, and when an outage is told: a row ages while its provider answers.

An outage hands nobody anything, neither while it lasts nor when it ends: the clock begins anew with the first answer.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import structlog

from counterfoil.ledger import alarms, health
from counterfoil.ledger.connection import Ledger
from counterfoil.ledger.health import Limit, Outage
from counterfoil.providers.contract import Contract, ToolClass
from counterfoil.providers.registry import Registry
from counterfoil.providers.spec import ToolSpec
from counterfoil.reconciler.conclusions import JITTER_MAX
from counterfoil.reconciler.verdict import ASK_LATER_MAX_S

log: structlog.stdlib.BoundLogger = structlog.get_logger("counterfoil.reconciler")

WINDOW_MARGIN_S = 60.0 + 2 * ASK_LATER_MAX_S * JITTER_MAX
"""Beyond the time in which absence can be earned: sweeps, and the pauses before the two look-ups that count, which may be
longer than wanted."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Escalation:
    """What waits for too long goes to a person; what keeps many rows waiting is told once."""

    ledger: Ledger
    registry: Registry
    contract: Callable[[ToolSpec], Contract]
    uncertain_max_s: Callable[[str], float]
    """By provider, in force at this moment."""
    by: str

    def sweep(self) -> int:
        """Opens and ends alarms, and hands rows over; returns how many rows."""
        for outage in health.open_outages(self.ledger):
            self._tell_begin(outage)
        for outage in health.end_outages(self.ledger):
            self._tell_end(outage)
        alarms.end_settled_unwinds(self.ledger)
        limits = self._limits()
        too_long = health.escalate_too_long(self.ledger, limits, by=self.by)
        if too_long:
            log.warning("uncertain_too_long", actions=too_long)
        unreachable = health.escalate_unreachable(self.ledger, limits, by=self.by)
        if unreachable:
            log.error("account_unreachable", actions=unreachable)
        return len(too_long) + len(unreachable)

    def _limits(self) -> list[Limit]:
        """For each tool with a look-up. Whatever is configured, a row gets the time in which its absence can be earned. What
        has no look-up is bounded by its key."""
        return [
            Limit(tool=spec.name, version=spec.version, limit_s=self._limit_s(spec, contract))
            for spec in self.registry
            if spec.cls is not ToolClass.PURE and (contract := self.contract(spec)).lookup
        ]

    def _limit_s(self, spec: ToolSpec, contract: Contract) -> float:
        earned_s = contract.landing_max_s + 2 * contract.lookup_lag_s + WINDOW_MARGIN_S
        return max(self.uncertain_max_s(spec.provider), earned_s)

    def _tell_begin(self, outage: Outage) -> None:
        provider, _, account = outage.subject.partition("/")
        code, waiting = health.describe(self.ledger, outage.subject)
        log.error(
            "provider_outage" if outage.kind == "outage" else "provider_unreachable",
            provider=provider,
            account=account,
            since=None if outage.since is None else outage.since.isoformat(),
            code=code,
            actions=waiting,
        )

    def _tell_end(self, outage: Outage) -> None:
        provider, _, account = outage.subject.partition("/")
        log.info(
            "provider_answers_again" if outage.answers else "outage_lapsed",
            provider=provider,
            account=account,
            lasted_s=None if outage.lasted_s is None else round(outage.lasted_s),
        )
