"""Decides what an answer makes of a claimed action. The ledger refuses what a lost row or a doubt forbids.

While an earlier attempt is in doubt, an answer is evidence about its own attempt only: a refusal proves nothing about the
earlier one, so the row goes to the look-up instead of a negative end.
"""

from __future__ import annotations

import random
from collections.abc import Mapping
from dataclasses import dataclass
from typing import assert_never

import structlog

from counterfoil.ledger import claims, health
from counterfoil.ledger.canonical import canonical_json
from counterfoil.ledger.claims import ClaimedAction
from counterfoil.ledger.connection import Ledger
from counterfoil.ledger.errors import ArgumentError, LedgerUnavailable
from counterfoil.providers.outcomes import PRECONDITION_FAILED, Json, NotSent, Outcome, Rejected, Succeeded, Uncertain
from counterfoil.providers.transport import CONNECT_CODES
from counterfoil.workers.backoff import delay_s
from counterfoil.workers.policy import Policy

log: structlog.stdlib.BoundLogger = structlog.get_logger("counterfoil.settle")

ANSWERS = frozenset({"idempotency_key_in_use", "idempotency_mismatch", "not_done_yet", "unknown_status"})
"""Codes of `Uncertain` with which the provider has answered, about this call alone."""

OUR_BUG = "adapter_error"
"""Says nothing about the provider; see the executor."""

CODE_CHARS_MAX = 100
EVIDENCE_CHARS_MAX = 300


@dataclass(frozen=True, slots=True, kw_only=True)
class Settler:
    """Writes outcomes for one worker."""

    ledger: Ledger
    worker: str
    rng: random.Random

    def settle(self, action: ClaimedAction, outcome: Outcome, policy: Policy) -> None:
        """Writes the outcome to the row if this worker still holds it, and to its attempt in any case."""
        match outcome:
            case Succeeded():
                kept = self._succeeded(action, outcome)
            case Rejected():
                kept = self._rejected(action, outcome, policy)
            case NotSent():
                kept = self._not_sent(action, outcome, policy)
            case Uncertain():
                kept = self._uncertain(action, outcome)
            case _:
                assert_never(outcome)
        log.info(
            "settled",
            action_id=action.action_id,
            tool=action.tool,
            attempt=action.attempt_count,
            outcome=type(outcome).__name__.lower(),
            code=getattr(outcome, "code", None),
            row_kept=kept,
        )
        if policy.repeats_key:
            self._note(action, outcome)

    def _note(self, action: ClaimedAction, outcome: Outcome) -> None:
        """Of a tool without a look-up only its calls tell whether the provider answers."""
        failed: str | None = None
        match outcome:
            case Rejected(code) if outcome.retryable:  # a throttle answers nothing
                failed = code
            case Succeeded() | Rejected():
                pass
            case Uncertain(code) if code in ANSWERS:
                pass
            case Uncertain(code) if code != OUR_BUG:
                failed = code
            case NotSent(code) if code in CONNECT_CODES:
                failed = code
            case _:
                return
        try:
            health.note(self.ledger, action.provider, action.account, "send", failed=failed)
        except LedgerUnavailable:  # the outcome is written, and that is what counts
            log.warning("health_unwritten", provider=action.provider)

    def _succeeded(self, action: ClaimedAction, outcome: Succeeded) -> bool:
        result = result_text(outcome.fields)
        evidence = f"attempt {action.attempt_count}"
        if claims.settle_succeeded(
            self.ledger, action, receipt=outcome.id, result=result, evidence=evidence, worker=self.worker
        ):
            return True
        became = claims.apply_late_success(
            self.ledger, action, receipt=outcome.id, result=result, evidence=evidence, worker=self.worker
        )
        log.warning("late_success", action_id=action.action_id, tool=action.tool, became=became)
        return False

    def _rejected(self, action: ClaimedAction, outcome: Rejected, policy: Policy) -> bool:
        if outcome.code == PRECONDITION_FAILED and action.expected_resource_version and not action.in_doubt:
            return claims.settle_stale(self.ledger, action, code=outcome.code, worker=self.worker)
        last = action.attempt_count >= policy.attempts_max
        wait_s = self._delay_s(action.attempt_count, policy, outcome.retry_after_s)
        if action.in_doubt:
            return claims.settle_uncertain(
                self.ledger,
                action,
                outcome="rejected",
                code=_code(outcome.code),
                evidence=None,
                no_resend=last or not outcome.retryable,
                delay_s=wait_s,
                look_after_s=0,
                worker=self.worker,
            )
        retried = policy.retries(outcome)
        if retried and not last:
            return claims.settle_retryable(
                self.ledger,
                action,
                code=_code(outcome.code),
                field=outcome.field,
                evidence=None,
                delay_s=wait_s,
                worker=self.worker,
            )
        return claims.settle_failed(
            self.ledger,
            action,
            outcome="rejected",
            code=_code(outcome.code),
            error_code="attempts_exhausted" if retried else _code(outcome.code),
            field=outcome.field,
            reason="attempts exhausted" if retried else "refused",
            evidence=_code(outcome.code),
            worker=self.worker,
        )

    def _not_sent(self, action: ClaimedAction, outcome: NotSent, policy: Policy) -> bool:
        count = action.not_sent_count + 1
        wait_s = self._delay_s(count, policy, outcome.retry_after_s)
        if action.in_doubt:
            return claims.settle_uncertain(
                self.ledger,
                action,
                outcome="not_sent",
                code=_code(outcome.code),
                evidence=None,
                no_resend=count >= policy.not_sent_max,
                delay_s=wait_s,
                look_after_s=0,
                worker=self.worker,
            )
        if count < policy.not_sent_max:
            return claims.settle_not_sent(
                self.ledger, action, code=_code(outcome.code), evidence=None, delay_s=wait_s, worker=self.worker
            )
        return claims.settle_failed(
            self.ledger,
            action,
            outcome="not_sent",
            code=_code(outcome.code),
            error_code="not_sent_exhausted",
            field=None,
            reason="could not be sent",
            evidence=_code(outcome.code),
            worker=self.worker,
        )

    def _uncertain(self, action: ClaimedAction, outcome: Uncertain) -> bool:
        return claims.settle_uncertain(
            self.ledger,
            action,
            outcome="uncertain",
            code=_code(outcome.code),
            evidence=outcome.evidence[:EVIDENCE_CHARS_MAX],
            no_resend=False,
            delay_s=0,
            look_after_s=0,
            worker=self.worker,
        )

    def _delay_s(self, attempt: int, policy: Policy, retry_after_s: float | None) -> float:
        return delay_s(
            attempt,
            base_s=policy.backoff_base_s,
            cap_s=policy.backoff_cap_s,
            retry_after_s=retry_after_s,
            retry_after_cap_s=policy.retry_after_cap_s,
            rng=self.rng,
        )


def result_text(fields: Mapping[str, Json]) -> str:
    """The declared result fields as canonical JSON; `{}` when they cannot be kept, so that a success is always written."""
    try:
        return canonical_json(dict(fields))
    except ArgumentError as error:
        log.warning("result_dropped", code=error.code)
        return "{}"


def _code(code: str) -> str:
    return code[:CODE_CHARS_MAX]
