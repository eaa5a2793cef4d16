"""Decides nothing itself: judges what look-ups found, by the pure verdict, and writes what that says, fenced.

A verdict is written once, by whoever still holds the row's token.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import assert_never

import structlog

from counterfoil.ledger import verdicts
from counterfoil.ledger.canonical import load_stored
from counterfoil.ledger.connection import Ledger
from counterfoil.ledger.verdicts import FoundRow, LaterRow, UncertainAction
from counterfoil.providers.contract import Contract
from counterfoil.providers.outcomes import Finding, Found, Many, Succeeded, Unknown
from counterfoil.providers.spec import ToolSpec
from counterfoil.reconciler import asked
from counterfoil.reconciler.asked import BackToReview
from counterfoil.reconciler.health import Health
from counterfoil.reconciler.verdict import (
    ASK_LATER_MAX_S,
    AskLater,
    Claimed,
    Fail,
    NotExecuted,
    Person,
    Resend,
    Settle,
    Verdict,
    absence_decides,
    verdict,
)
from counterfoil.workers.backoff import delay_s
from counterfoil.workers.policy import Policy, limits_for
from counterfoil.workers.settle import result_text

log: structlog.stdlib.BoundLogger = structlog.get_logger("counterfoil.reconciler")

JITTER_MAX = 0.25
"""A look-up is put off by up to so much of its delay more, so that rows which turned uncertain together are not all due
together for ever. Never less: a window that must pass is not shortened."""

LAPSED = "lease_lapsed"
"""`last_error_code` of a row whose worker did not live to report a timeout: nothing was taken from the budget for it."""


TOGETHER_MAX = 250
"""Rows in one statement: well below a second, and few that are written one by one where one of them cannot be."""


@dataclass(frozen=True, slots=True)
class AskedAbout:
    """A row, and what was found about it. `moved`: what was asked is not the place where the requests went."""

    action: UncertainAction
    finding: Finding | None
    moved: bool


@dataclass(frozen=True, slots=True)
class _Judged:
    action: UncertainAction
    finding: Finding | None
    said: Verdict | asked.AskedVerdict
    evidence: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Conclusions:
    """What findings mean for their rows, written down."""

    ledger: Ledger
    policy: Callable[[str], Policy]
    contract: Callable[[ToolSpec], Contract]
    ttl_margin_s: Callable[[ToolSpec], float]
    health: Health
    base_s: float
    """The shortest pause between two look-ups of a row."""
    skew_s: float
    """How far a provider's clock may be from the ledger's when a found object's age is compared with the first send."""
    by: str
    rng: random.Random

    def needs_presence_only(self, spec: ToolSpec, action: UncertainAction, *, moved: bool) -> bool:
        """Only what is there matters to the verdict on this row, whatever else a look-up may not find. `moved`: as far as can
        be told before it is asked about."""
        if action.asked is not None or action.attempt_count > 1:
            return False
        contract = self.contract(spec)
        row = _claimed(action, self._limits(action, contract), moved=moved)
        return not absence_decides(row, contract, self.ttl_margin_s(spec))

    def conclude(self, spec: ToolSpec, found: Sequence[AskedAbout]) -> int:
        """Writes what the findings of one claim's rows mean; how many timeouts it settled as effects. One that cannot be
        judged is asked for again, and stops no other row."""
        judged = [self._judge(spec, each) for each in found]
        written = self._write_together(judged)
        effects = 0
        for each in judged:
            action, said = each.action, each.said
            is_written = action.action_id in written or self._write_alone(each)
            log.info(
                "looked_up",
                action_id=action.action_id,
                tool=action.tool,
                look_up=action.lookup_count,
                finding=type(each.finding).__name__.lower(),
                verdict=type(said).__name__.lower(),
                written=is_written,
            )
            is_effect = isinstance(said, Settle) and action.late_receipt is None and action.last_error_code != LAPSED
            effects += is_written and is_effect
        return effects

    def _write_alone(self, judged: _Judged) -> bool:
        """Writes one verdict; a row of which the ledger refuses it is asked about until it is a person's by its age."""
        action = judged.action
        try:
            return self.write(action, judged.said, judged.evidence)
        except verdicts.Unwritable as error:
            log.error("verdict_refused", action_id=action.action_id, tool=action.tool, error=str(error))
            self._ask_again(action, "verdict_refused", str(error), after_s=ASK_LATER_MAX_S)
            return False

    def _judge(self, spec: ToolSpec, asked_about: AskedAbout) -> _Judged:
        action, finding, moved = asked_about.action, asked_about.finding, asked_about.moved
        try:
            said = self._verdict(spec, action, finding, moved=moved)
        except Exception as error:  # noqa: BLE001 - an adapter's answer of a form that nobody foresaw proves nothing
            log.error("verdict_failed", action_id=action.action_id, tool=action.tool, error=type(error).__name__)
            finding = Unknown(type(error).__name__)
            said = self._verdict(spec, action, finding, moved=moved)
        return _Judged(action, finding, said, evidence_of(action, finding))

    def _write_together(self, judged: Sequence[_Judged]) -> frozenset[str]:
        """The two verdicts of which there may be very many, each by one statement; the ids of the rows that it wrote."""
        found, later = [], []
        for each in judged:
            match each.said:
                case Settle(outcome):
                    result = result_text(outcome.fields)
                    row = FoundRow(action=each.action, receipt=outcome.id, result=result, evidence=each.evidence)
                    found.append(row)
                case AskLater(code, after_s, absent_count, last_absent_at):
                    later.append(
                        LaterRow(
                            action=each.action,
                            after_s=self._later_s(after_s),
                            absent_count=absent_count,
                            last_absent_at=last_absent_at,
                            reason=code,
                            evidence=each.evidence,
                        )
                    )
                case _:
                    pass
        written: frozenset[str] = frozenset()
        for start in range(0, len(found), TOGETHER_MAX):
            written |= (
                verdicts.succeeded_all(self.ledger, found[start : start + TOGETHER_MAX], by=self.by) or frozenset()
            )
        for start in range(0, len(later), TOGETHER_MAX):
            written |= (
                verdicts.ask_later_all(self.ledger, later[start : start + TOGETHER_MAX], by=self.by) or frozenset()
            )
        return written

    def _verdict(
        self, spec: ToolSpec, action: UncertainAction, finding: Finding | None, *, moved: bool
    ) -> Verdict | asked.AskedVerdict:
        said = self._judged(spec, action, finding, moved=moved)
        return said if action.asked is None else asked.in_the_end(said, finding, lookup_count=action.lookup_count)

    def _judged(
        self, spec: ToolSpec, action: UncertainAction, finding: Finding | None, *, moved: bool
    ) -> Verdict | asked.AskedVerdict:
        contract = self.contract(spec)
        row = _claimed(action, self._limits(action, contract), moved=moved)
        match action.asked:
            case "happened":
                return asked.happened(row, finding, receipt=action.asked_receipt or "", skew_s=self.skew_s)
            case "not_happened":
                return asked.not_happened(
                    row,
                    contract,
                    finding,
                    said_at=action.asked_at or action.as_of,
                    skew_s=self.skew_s,
                    base_s=self.base_s,
                )
            case "ask_again" | None:
                return verdict(
                    row,
                    contract,
                    finding,
                    ttl_margin_s=self.ttl_margin_s(spec),
                    skew_s=self.skew_s,
                    base_s=self.base_s,
                )
            case _:
                assert_never(action.asked)

    def _limits(self, action: UncertainAction, contract: Contract) -> Policy:
        """Repeats of a key that are the only look-up are no attempts, until the provider has answered others for long."""
        policy = self.policy(action.provider)
        limits = limits_for(policy, contract, in_doubt=True)
        if action.attempt_count < policy.attempts_max or not limits.repeats_key:
            return limits
        too_long = self.health.took_too_long(action.provider, action.account, since=action.first_sent_at)
        return policy if too_long else limits

    def write(self, action: UncertainAction, said: Verdict | asked.AskedVerdict, evidence: str) -> bool:
        """Writes one verdict; False: somebody else has moved the row on."""
        ledger, by = self.ledger, self.by
        match said:
            case Settle(outcome):
                return verdicts.succeeded(
                    ledger, action, receipt=outcome.id, result=result_text(outcome.fields), evidence=evidence, by=by
                )
            case Fail(code):
                return verdicts.failed(ledger, action, code=code, reason="found out", evidence=evidence, by=by)
            case NotExecuted(code, reason):
                return verdicts.not_executed(ledger, action, code=code, reason=reason, evidence=evidence, by=by)
            case Resend(ends_doubt):
                reason = "absence earned" if ends_doubt else "the key answers a resend"
                return (
                    verdicts.resend(
                        ledger,
                        action,
                        ends_doubt=ends_doubt,
                        delay_s=self._delay_s(action),
                        reason=reason,
                        evidence=evidence,
                        by=by,
                    )
                    or verdicts.unapproved(ledger, action, evidence=evidence, by=by)
                    or self._ask_again(action, "resend_forbidden", evidence)
                )
            case AskLater(code, after_s, absent_count, last_absent_at):
                return verdicts.ask_later(
                    ledger,
                    action,
                    after_s=self._later_s(after_s),
                    absent_count=absent_count,
                    last_absent_at=last_absent_at,
                    reason=code,
                    evidence=evidence,
                    by=by,
                )
            case Person(code):
                return verdicts.to_person(ledger, action, code=code, reason=code, evidence=evidence, by=by)
            case BackToReview(answer, counts_from, why):
                if counts_from is not None:
                    evidence = f"{evidence}; counts from {counts_from.isoformat()}"
                return verdicts.back_to_review(ledger, action, answer=answer, code=why, evidence=evidence, by=by)
            case _:
                assert_never(said)

    def _delay_s(self, action: UncertainAction) -> float:
        policy = self.policy(action.provider)
        return delay_s(
            max(1, action.attempt_count),
            base_s=policy.backoff_base_s,
            cap_s=policy.backoff_cap_s,
            retry_after_cap_s=policy.retry_after_cap_s,
            rng=self.rng,
        )

    def _later_s(self, after_s: float) -> float:
        return after_s * self.rng.uniform(1.0, 1.0 + JITTER_MAX)

    def _ask_again(self, action: UncertainAction, reason: str, evidence: str, *, after_s: float | None = None) -> bool:
        """As soon as may be, or after so long; say, under the `no_resend` of a cancel that came during the look-up."""
        return verdicts.ask_later(
            self.ledger,
            action,
            after_s=self._later_s(self.base_s if after_s is None else after_s),
            absent_count=action.absent_count,
            last_absent_at=action.last_absent_at,
            reason=reason,
            evidence=evidence,
            by=self.by,
        )


def evidence_of(action: UncertainAction, finding: Finding | None) -> str:
    """One line for the history: which look-up, as of when, and what it showed; receipts and codes only."""
    match finding:
        case Found(outcome):
            shown = outcome.id if isinstance(outcome, Succeeded) else f"as {outcome.code}"
        case Many(receipts):
            shown = ",".join(receipts)
        case Unknown(code):
            shown = code
        case _:
            shown = ""
    name = "no look-up" if finding is None else type(finding).__name__.lower()
    asked_by = f"; asked by {action.asked_by}" if action.asked_by is not None else ""
    return f"look-up {action.lookup_count} as of {action.as_of.isoformat()}: {name} {shown}".strip()[:500] + asked_by


def _claimed(action: UncertainAction, policy: Policy, *, moved: bool) -> Claimed:
    late = None
    if action.late_receipt is not None:
        late = Succeeded(action.late_receipt, load_stored(action.late_result or "{}"))
    return Claimed(
        as_of=action.as_of,
        quiet_from=action.quiet_from,
        first_sent_at=action.first_sent_at,
        absent_count=action.absent_count,
        last_absent_at=action.last_absent_at,
        attempt_count=action.attempt_count,
        attempts_max=policy.attempts_max,
        no_resend=action.no_resend,
        lookup_count=action.lookup_count,
        amount_minor=action.amount_minor,
        currency=action.currency,
        target=action.target,
        late_receipt=late,
        last_error_code=action.last_error_code,
        moved=moved,
    )
