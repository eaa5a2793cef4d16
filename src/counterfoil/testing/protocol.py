"""Plays what worker and reconciler do after an attempt, to its end: the verdict over the tool's contract, and its resends."""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import StrEnum
from typing import assert_never

from counterfoil.providers.outcomes import NotSent, Outcome, Rejected, Succeeded, Uncertain
from counterfoil.reconciler.verdict import (
    AskLater,
    Claimed,
    Fail,
    NotExecuted,
    Person,
    Resend,
    Settle,
    verdict,
)
from counterfoil.testing.stage import Stage, Violation

ATTEMPTS_MAX = 5
ROUNDS_MAX = 200
"""Look-ups; the schedule reaches a day long before."""
SKEW_S = 60.0
BACKOFF_S = 1.0


class End(StrEnum):
    """How an action ended."""

    SUCCEEDED = "succeeded"
    FAILED = "failed"
    """It was not done, and never will be."""
    PERSON = "person"


@dataclass(frozen=True)
class Ended:
    """How, with which code, and after how many attempts."""

    end: End
    code: str
    attempts: int


def carried_through(stage: Stage, outcome: Outcome) -> Ended:
    """What becomes of the action whose first attempt has just ended like this; the sandbox's clock is moved on."""
    in_doubt = False
    for attempt in range(1, ATTEMPTS_MAX + 1):
        match outcome:
            case Succeeded():
                return Ended(End.SUCCEEDED, "", attempt)
            case Rejected(code, retryable=False) if not in_doubt:
                return Ended(End.FAILED, code, attempt)
            case Rejected() | NotSent() if not in_doubt:
                wait_s = outcome.retry_after_s if isinstance(outcome, Rejected) else None
                stage.sandbox.advance(BACKOFF_S if wait_s is None else wait_s)
            case Rejected(code) | NotSent(code) | Uncertain(code):
                judged = _judged(stage, code, attempt)
                match judged:
                    case Settle():
                        return Ended(End.SUCCEEDED, "", attempt)
                    case Fail(code) | NotExecuted(code):
                        return Ended(End.FAILED, code, attempt)
                    case Person(code):
                        return Ended(End.PERSON, code, attempt)
                    case Resend(ends_doubt):
                        in_doubt = not ends_doubt
                    case _:
                        assert_never(judged)
            case _:
                assert_never(outcome)
        if attempt < ATTEMPTS_MAX:
            outcome = stage.send()
    return Ended(End.PERSON, "attempts_exhausted", ATTEMPTS_MAX)


def _judged(stage: Stage, code: str, attempt: int) -> Settle | Fail | NotExecuted | Resend | Person:
    """Looks up until the verdict is more than "ask later"."""
    contract, call = stage.contract, stage.call
    quiet_from = stage.now()
    amount, currency = stage.subject.spec.amount_of(call.arguments) if stage.subject.spec else (None, None)
    row = Claimed(
        as_of=quiet_from,
        quiet_from=quiet_from,
        first_sent_at=call.first_sent_at,
        absent_count=0,
        last_absent_at=None,
        attempt_count=attempt,
        attempts_max=ATTEMPTS_MAX,
        no_resend=False,
        lookup_count=0,
        amount_minor=amount,
        currency=currency,
        target=call.target,
        late_receipt=None,
        last_error_code=code,
    )
    for count in range(1, ROUNDS_MAX + 1):
        row = replace(row, as_of=stage.now(), lookup_count=count)
        finding = stage.lookup() if contract.lookup else None
        judged = verdict(row, contract, finding, ttl_margin_s=(contract.native_key_ttl_s or 0) / 4, skew_s=SKEW_S)
        if not isinstance(judged, AskLater):
            return judged
        row = replace(row, absent_count=judged.absent_count, last_absent_at=judged.last_absent_at)
        stage.sandbox.advance(judged.after_s)
    raise Violation("protocol", f"no end after {ROUNDS_MAX} look-ups")
