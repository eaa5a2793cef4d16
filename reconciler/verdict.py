"""Decides what one look-up means for one uncertain action: settle, fail, send again, ask later, or a person.

A pure function of the row as it was claimed, the tool's contract and the finding. It reads no clock: `as_of` is the time
of the claim, which is before the look-up began, and that is what the windows are measured against. Absence is earned,
never assumed: an empty look-up counts only when every request that was sent must have landed *and* become visible.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import assert_never

from counterfoil.providers.contract import Contract
from counterfoil.providers.outcomes import Absent, Finding, Found, Many, Rejected, Succeeded, Uncertain, Unknown
from counterfoil.providers.reach import MOVED

ABSENCES_NEEDED = 2
"""One empty answer may come from a lagging replica or a list being rewritten; two apart are not the same accident."""

ABSENCES_APART_MIN_S = 1.0
"""At least this long between two counted absences, even where the contract claims no lag."""

ASK_LATER_MAX_S = 600.0
"""An uncertain row is never left alone for longer than this."""

IDEMPOTENCY_MISMATCH = "idempotency_mismatch"
"""`last_error_code` of a row whose key the provider knows with other parameters: an earlier request exists there."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Claimed:
    """The row as the reconciler claimed it; times are aware, of the ledger's clock."""

    as_of: datetime
    """When the row was claimed: before the look-up began."""
    quiet_from: datetime | None
    """From here no worker of ours holds a connection that could still carry the request."""
    first_sent_at: datetime | None
    absent_count: int
    """Absences counted since the newest attempt was claimed."""
    last_absent_at: datetime | None
    """`as_of` of the newest counted absence."""
    attempt_count: int
    attempts_max: int
    no_resend: bool
    """Somebody asked for an end (cancel, deadline, refusal) while the row was in doubt."""
    lookup_count: int
    """Look-ups since the row became uncertain, this one included."""
    amount_minor: int | None
    currency: str | None
    target: str | None
    late_receipt: Succeeded | None
    """A success that some attempt recorded after it had lost the row."""
    last_error_code: str | None
    moved: bool = False
    """What was asked is not surely the place where the requests went: other address, login or secret."""


@dataclass(frozen=True, slots=True)
class Settle:
    """The effect exists: succeeded, with this receipt."""

    outcome: Succeeded


@dataclass(frozen=True, slots=True)
class Fail:
    """The effect does not exist and never will: permanent_failure."""

    code: str


@dataclass(frozen=True, slots=True)
class NotExecuted:
    """It was not done: not_executed. Absence is earned and no attempt is left, or (see `asked`) a person vouches for it."""

    code: str = "absent"
    reason: str = "absence earned, no attempt left"


@dataclass(frozen=True, slots=True)
class Resend:
    """Ready again, same key, same bytes. `ends_doubt` only where absence was earned; else the native key answers."""

    ends_doubt: bool


@dataclass(frozen=True, slots=True)
class AskLater:
    """Stays uncertain; look again `after_s` from now, and remember the absences counted so far."""

    code: str
    after_s: float
    absent_count: int
    last_absent_at: datetime | None


@dataclass(frozen=True, slots=True)
class Person:
    """Only a person can judge this: operator_review."""

    code: str


Verdict = Settle | Fail | NotExecuted | Resend | AskLater | Person


def verdict(
    row: Claimed,
    contract: Contract,
    finding: Finding | None,
    *,
    ttl_margin_s: float,
    skew_s: float,
    base_s: float = 1.0,
) -> Verdict:
    """What becomes of the row. `finding` is None where the tool has no look-up.

    `ttl_margin_s`: a native key is trusted until this long before its end. `skew_s`: how far the provider's clock may
    be behind ours. `base_s`: the shortest pause before another look-up (see `ask_later_s`).
    """
    if row.late_receipt is not None:
        return Settle(row.late_receipt)
    match finding:
        case None:
            return _without_lookup(row, contract, ttl_margin_s, base_s)
        case Found():
            return _found(row, contract, finding, skew_s, base_s)
        case Many():
            return Person("many_found")
        case Unknown(code):
            return AskLater(code, ask_later_s(row.lookup_count, contract, base_s), row.absent_count, row.last_absent_at)
        case Absent(complete):
            return _absent(row, contract, ttl_margin_s, base_s, counts=complete)
        case _:
            assert_never(finding)


def ask_later_s(lookup_count: int, contract: Contract, base_s: float) -> float:
    """The pause after look-up number `lookup_count`: doubles from a quarter of the contract's lag, at least `base_s`.

    No lag: 1, 2, 4 … 512, 600 s. A lag of 60 s: 15, 30, 60 … 480, 600 s. A quarter, since most effects are visible long
    before the declared worst case; doubling, since a provider that is down needs few questions.
    """
    start_s = max(base_s, contract.lookup_lag_s / 4)
    return min(start_s * 2.0 ** min(max(lookup_count - 1, 0), 32), ASK_LATER_MAX_S)


def _without_lookup(row: Claimed, contract: Contract, ttl_margin_s: float, base_s: float) -> Verdict:
    """The resend under a native key is the look-up: the provider answers it from its store."""
    if _may_repeat_key(row, contract, ttl_margin_s):
        lands_in_s = _lands_in_s(row, contract)
        if lands_in_s is None:
            return Resend(ends_doubt=False)
        return AskLater(
            "may_still_land", min(lands_in_s + base_s, ASK_LATER_MAX_S), row.absent_count, row.last_absent_at
        )
    if row.moved:
        return Person(MOVED)
    return Person(IDEMPOTENCY_MISMATCH if row.last_error_code == IDEMPOTENCY_MISMATCH else "no_lookup")


def _found(row: Claimed, contract: Contract, found: Found, skew_s: float, base_s: float) -> Verdict:
    if not matches_intent(row, found, skew_s):
        return Person("mismatch")
    match found.outcome:
        case Succeeded():
            return Settle(found.outcome)
        case Rejected(code):
            return Fail(code)
        case Uncertain(code):  # it exists and is still being processed, so absences counted before were wrong
            return AskLater(code, ask_later_s(row.lookup_count, contract, base_s), 0, None)
        case _:
            assert_never(found.outcome)


def matches_intent(row: Claimed, found: Found, skew_s: float) -> bool:
    """Whether what was found is what was meant: compares what both sides state. Currencies differ in case."""
    if not found.as_intended:
        return False
    if None not in (row.amount_minor, found.amount_minor) and row.amount_minor != found.amount_minor:
        return False
    if row.currency and found.currency and row.currency.lower() != found.currency.lower():
        return False
    if None not in (row.target, found.target) and row.target != found.target:
        return False
    if row.first_sent_at is not None and found.created_at is not None:
        return found.created_at >= row.first_sent_at - timedelta(seconds=skew_s)
    return True


def absence_decides(row: Claimed, contract: Contract, ttl_margin_s: float) -> bool:
    """Whether it matters that a look-up reads everything where it finds nothing. It does not while an absence would be too
    early to count, nor where a repeat of the key is the next step whether or not one was counted: the provider's own store
    then tells."""
    opens_in_s = window_opens_in_s(row, row.as_of, contract)
    if opens_in_s is None or opens_in_s >= 0:
        return False
    repeats = _may_repeat_key(row, contract, ttl_margin_s) and _lands_in_s(row, contract) is None
    return not (repeats and row.absent_count == 0)


def _absent(row: Claimed, contract: Contract, ttl_margin_s: float, base_s: float, *, counts: bool) -> Verdict:
    opens_in_s = window_opens_in_s(row, row.as_of, contract)
    if opens_in_s is None or opens_in_s >= 0:  # strictly after: at the last instant it may still appear
        code, count, counted_at = "absent_too_early", row.absent_count, row.last_absent_at
        wanted_s = ASK_LATER_MAX_S if opens_in_s is None else opens_in_s + base_s
        wanted_s = min(wanted_s, ask_later_s(row.lookup_count, contract, base_s))
    elif not counts:
        code, count, counted_at = "not_seen", row.absent_count, row.last_absent_at
        wanted_s = ask_later_s(row.lookup_count, contract, base_s)
    else:
        count, counted_at = _count_absence(row, contract)
        if count >= ABSENCES_NEEDED:
            return _absence_earned(row, contract)
        code = "absent_once"
        wanted_s = max(base_s, _apart_s(contract) - (row.as_of - counted_at).total_seconds())
    if _may_repeat_key(row, contract, ttl_margin_s) and _lands_in_s(row, contract) is None:
        return Resend(ends_doubt=False)
    return AskLater(code, min(wanted_s, ASK_LATER_MAX_S), count, counted_at)


def _absence_earned(row: Claimed, contract: Contract) -> Verdict:
    if row.last_error_code == IDEMPOTENCY_MISMATCH:  # the provider knows the key and shows nothing under it
        return Person(IDEMPOTENCY_MISMATCH)
    if row.moved:
        return Person(MOVED)
    if not contract.absence_is_proof:
        return Person("absent")
    if row.no_resend:
        return Fail("absent")
    if row.attempt_count < row.attempts_max:
        return Resend(ends_doubt=True)
    match contract.on_absent:
        case "not_executed":
            return NotExecuted()
        case "operator_review":
            return Person("absent")
        case _:
            assert_never(contract.on_absent)


def window_opens_in_s(row: Claimed, at: datetime, contract: Contract) -> float | None:
    """Seconds from `at` until everything sent has landed and is visible; negative = past; None = no end is known."""
    if row.quiet_from is None:
        return None
    window = timedelta(seconds=contract.landing_max_s) + timedelta(seconds=contract.lookup_lag_s)
    return (row.quiet_from + window - at).total_seconds()  # whole microseconds: exact at the last instant


def _count_absence(row: Claimed, contract: Contract) -> tuple[int, datetime]:
    """The absences that count, this one included, and when the newest was; one too soon after another adds nothing."""
    earlier = row.last_absent_at
    opens_in_s = None if earlier is None else window_opens_in_s(row, earlier, contract)
    if row.absent_count < 1 or earlier is None or opens_in_s is None or opens_in_s >= 0:
        return 1, row.as_of  # what was counted before the newest attempt's window opened proves nothing about it
    if (row.as_of - earlier).total_seconds() < _apart_s(contract):
        return row.absent_count, earlier
    return row.absent_count + 1, row.as_of


def _apart_s(contract: Contract) -> float:
    return max(contract.lookup_lag_s, ABSENCES_APART_MIN_S)


def _lands_in_s(row: Claimed, contract: Contract) -> float | None:
    """Seconds until a repeat of the key can meet no request under way; None = it may be sent now."""
    if contract.native_key_concurrent:
        return None
    if row.quiet_from is None:
        return ASK_LATER_MAX_S
    left_s = (row.quiet_from + timedelta(seconds=contract.landing_max_s) - row.as_of).total_seconds()
    return None if left_s < 0 else left_s


def _may_repeat_key(row: Claimed, contract: Contract, ttl_margin_s: float) -> bool:
    """Whether a repeat of the key is surely still answered from the provider's store when it arrives there."""
    if contract.native_key_ttl_s is None or row.first_sent_at is None:
        return False
    if row.moved or row.no_resend or row.last_error_code == IDEMPOTENCY_MISMATCH:
        return False
    if row.attempt_count >= row.attempts_max:
        return False
    return (row.as_of - row.first_sent_at).total_seconds() + ttl_margin_s < contract.native_key_ttl_s
