"""Every row of the verdict's rules, and the promises that hold whatever the row, contract and finding are."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from counterfoil.providers.contract import Contract
from counterfoil.providers.outcomes import Absent, Finding, Found, Many, Rejected, Succeeded, Uncertain, Unknown
from counterfoil.providers.reach import MOVED
from counterfoil.reconciler.verdict import (
    ASK_LATER_MAX_S,
    IDEMPOTENCY_MISMATCH,
    AskLater,
    Claimed,
    Fail,
    NotExecuted,
    Person,
    Resend,
    Settle,
    Verdict,
    ask_later_s,
    verdict,
)

T0 = datetime(2026, 3, 1, 12, tzinfo=UTC)
MARGIN_S = 21_600.0
SKEW_S = 60.0

EXACT = Contract(lookup=True, landing_max_s=100, on_absent="not_executed")
LAGGING = Contract(lookup=True, lookup_lag_s=50, landing_max_s=100, on_absent="not_executed")
NATIVE = Contract(native_key_ttl_s=86_400, lookup=True, landing_max_s=100, on_absent="not_executed")
NATIVE_BLIND = Contract(native_key_ttl_s=86_400, landing_max_s=100)
ONE_AT_A_TIME = replace(NATIVE, native_key_concurrent=False)
ONE_AT_A_TIME_BLIND = replace(NATIVE_BLIND, native_key_concurrent=False)
UNPROVED = replace(EXACT, absence_is_proof=False)
BLIND = Contract(landing_max_s=100)
SHY = Contract(lookup=True, landing_max_s=100)  # a person judges its absence

RECEIPT = Succeeded("pi_1")


def at(seconds: float) -> datetime:
    return T0 + timedelta(seconds=seconds)


def row(seconds: float = 10, /, **changes: Any) -> Claimed:
    """Sent at T0, quiet from T0, one attempt of three, claimed for a look-up `seconds` later."""
    claimed = Claimed(
        as_of=at(seconds),
        quiet_from=T0,
        first_sent_at=T0,
        absent_count=0,
        last_absent_at=None,
        attempt_count=1,
        attempts_max=3,
        no_resend=False,
        lookup_count=1,
        amount_minor=500,
        currency="usd",
        target="order-1",
        late_receipt=None,
        last_error_code=None,
    )
    return replace(claimed, **changes)


def seen_once(seconds: float, /, *, ago: float, **changes: Any) -> Claimed:
    """As `row`, with one counted absence `ago` seconds earlier."""
    return row(seconds, absent_count=1, last_absent_at=at(seconds - ago), **changes)


def judge(claimed: Claimed, contract: Contract, finding: Finding | None) -> Verdict:
    return verdict(claimed, contract, finding, ttl_margin_s=MARGIN_S, skew_s=SKEW_S)


LATE = replace(RECEIPT, id="pi_late")
LAST: dict[str, Any] = {"attempt_count": 3}
MISMATCHED: dict[str, Any] = {"last_error_code": IDEMPOTENCY_MISMATCH}
TTL_END = 86_400 - 21_600

TABLE: dict[str, tuple[Claimed, Contract, Finding | None, Verdict]] = {
    # a late receipt wins over everything
    "late receipt, absent": (row(late_receipt=LATE), EXACT, Absent(), Settle(LATE)),
    "late receipt, many": (row(late_receipt=LATE), EXACT, Many(("a", "b")), Settle(LATE)),
    "late receipt, failed": (row(late_receipt=LATE), EXACT, Found(Rejected("x")), Settle(LATE)),
    "late receipt, no look-up": (row(late_receipt=LATE), BLIND, None, Settle(LATE)),
    # found
    "found": (row(), EXACT, Found(RECEIPT), Settle(RECEIPT)),
    "found, all equal": (row(), EXACT, Found(RECEIPT, 500, "USD", "order-1", at(1)), Settle(RECEIPT)),
    "found, under no_resend": (row(no_resend=True), EXACT, Found(RECEIPT), Settle(RECEIPT)),
    "found, mismatched key": (row(**MISMATCHED), EXACT, Found(RECEIPT, 500), Settle(RECEIPT)),
    "found, other amount": (row(), EXACT, Found(RECEIPT, 501), Person("mismatch")),
    "found, amount 0": (row(), EXACT, Found(RECEIPT, 0), Person("mismatch")),
    "found, other currency": (row(), EXACT, Found(RECEIPT, 500, "eur"), Person("mismatch")),
    "found, other target": (row(), EXACT, Found(RECEIPT, target="order-2"), Person("mismatch")),
    "found, within skew": (row(), EXACT, Found(RECEIPT, created_at=at(-SKEW_S)), Settle(RECEIPT)),
    "found, too old": (row(), EXACT, Found(RECEIPT, created_at=at(-SKEW_S - 1)), Person("mismatch")),
    "found, intent without amount": (row(amount_minor=None, currency=None), EXACT, Found(RECEIPT, 1), Settle(RECEIPT)),
    "found, not as intended": (row(), EXACT, Found(RECEIPT, 500, as_intended=False), Person("mismatch")),
    "found unsettled, not as intended": (row(), EXACT, Found(Uncertain("x"), as_intended=False), Person("mismatch")),
    "found failed": (row(), EXACT, Found(Rejected("card_declined")), Fail("card_declined")),
    "found failed, other amount": (row(), EXACT, Found(Rejected("card_declined"), 501), Person("mismatch")),
    "found, still processing": (row(), EXACT, Found(Uncertain("processing")), AskLater("processing", 1, 0, None)),
    "processing ends the count": (
        seen_once(200, ago=20),
        EXACT,
        Found(Uncertain("processing")),
        AskLater("processing", 1, 0, None),
    ),
    # many, unknown
    "many": (row(), EXACT, Many(("a", "b")), Person("many_found")),
    "unknown": (row(), EXACT, Unknown("http_503"), AskLater("http_503", 1, 0, None)),
    "unknown keeps the count": (
        seen_once(200, ago=20),
        EXACT,
        Unknown("timeout"),
        AskLater("timeout", 1, 1, at(180)),
    ),
    "unknown never resends": (row(), NATIVE, Unknown("timeout"), AskLater("timeout", 1, 0, None)),
    # absent, the window
    "before the window": (row(50), EXACT, Absent(), AskLater("absent_too_early", 1, 0, None)),
    "the last instant of the window": (row(100), EXACT, Absent(), AskLater("absent_too_early", 1, 0, None)),
    "just after the window": (row(100.001), EXACT, Absent(), AskLater("absent_once", 1, 1, at(100.001))),
    "the lag is part of the window": (row(150), LAGGING, Absent(), AskLater("absent_too_early", 1, 0, None)),
    "after lag and landing": (row(150.001), LAGGING, Absent(), AskLater("absent_once", 50, 1, at(150.001))),
    "no known end of sending": (row(900, quiet_from=None), EXACT, Absent(), AskLater("absent_too_early", 1, 0, None)),
    # absent, two apart
    "too soon after the first": (seen_once(200, ago=0.5), EXACT, Absent(), AskLater("absent_once", 1, 1, at(199.5))),
    "too soon for the lag": (seen_once(300, ago=49), LAGGING, Absent(), AskLater("absent_once", 1, 1, at(251))),
    "a second apart": (seen_once(200, ago=1), EXACT, Absent(), Resend(ends_doubt=True)),
    "a lag apart": (seen_once(300, ago=50), LAGGING, Absent(), Resend(ends_doubt=True)),
    "the first was inside the window": (
        seen_once(120, ago=20),
        EXACT,
        Absent(),
        AskLater("absent_once", 1, 1, at(120)),
    ),
    "a count without a time": (row(200, absent_count=1), EXACT, Absent(), AskLater("absent_once", 1, 1, at(200))),
    # earned absence
    "earned, no_resend": (seen_once(200, ago=9, no_resend=True), EXACT, Absent(), Fail("absent")),
    "earned, no_resend, the key known with other parameters": (
        seen_once(200, ago=9, no_resend=True, last_error_code=IDEMPOTENCY_MISMATCH),
        EXACT,
        Absent(),
        Person(IDEMPOTENCY_MISMATCH),
    ),
    "earned, no_resend, last attempt": (seen_once(200, ago=9, no_resend=True, **LAST), EXACT, Absent(), Fail("absent")),
    "earned, mismatched key": (seen_once(200, ago=9, **MISMATCHED), EXACT, Absent(), Person(IDEMPOTENCY_MISMATCH)),
    "earned, attempts left": (seen_once(200, ago=9, attempt_count=2), EXACT, Absent(), Resend(ends_doubt=True)),
    "earned, last attempt": (seen_once(200, ago=9, **LAST), EXACT, Absent(), NotExecuted()),
    "earned, last attempt, person": (seen_once(200, ago=9, **LAST), SHY, Absent(), Person("absent")),
    "sent elsewhere, found": (row(moved=True), EXACT, Found(RECEIPT), Settle(RECEIPT)),
    "sent elsewhere, too early": (row(50, moved=True), EXACT, Absent(), AskLater("absent_too_early", 1, 0, None)),
    "sent elsewhere, earned": (seen_once(200, ago=9, moved=True), EXACT, Absent(), Person(MOVED)),
    "sent elsewhere, earned, no_resend": (
        seen_once(200, ago=9, moved=True, no_resend=True),
        EXACT,
        Absent(),
        Person(MOVED),
    ),
    "sent elsewhere, native key": (row(1, moved=True), NATIVE, Absent(), AskLater("absent_too_early", 1, 0, None)),
    "sent elsewhere, no look-up": (row(1, moved=True), NATIVE_BLIND, None, Person(MOVED)),
    "earned, but no proof": (seen_once(200, ago=9), UNPROVED, Absent(), Person("absent")),
    "earned, but no proof, no_resend": (seen_once(200, ago=9, no_resend=True), UNPROVED, Absent(), Person("absent")),
    "earned, native": (seen_once(200, ago=9), NATIVE, Absent(), Resend(ends_doubt=True)),
    "earned, past the ttl": (seen_once(90_000, ago=9), NATIVE, Absent(), Resend(ends_doubt=True)),
    # absent, not earned, native key
    "native key": (row(1), NATIVE, Absent(), Resend(ends_doubt=False)),
    "native key, counted once": (row(200), NATIVE, Absent(), Resend(ends_doubt=False)),
    "native key, last moment": (row(TTL_END - 1), NATIVE, Absent(), Resend(ends_doubt=False)),
    "native key, too old": (row(TTL_END), NATIVE, Absent(), AskLater("absent_once", 1, 1, at(TTL_END))),
    "native key, no attempt left": (row(1, **LAST), NATIVE, Absent(), AskLater("absent_too_early", 1, 0, None)),
    "native key, no_resend": (row(1, no_resend=True), NATIVE, Absent(), AskLater("absent_too_early", 1, 0, None)),
    "native key, mismatched": (row(1, **MISMATCHED), NATIVE, Absent(), AskLater("absent_too_early", 1, 0, None)),
    "native key, never sent": (row(1, first_sent_at=None), NATIVE, Absent(), AskLater("absent_too_early", 1, 0, None)),
    # a repeat that may meet the first request
    "one at a time, may land": (row(50), ONE_AT_A_TIME, Absent(), AskLater("absent_too_early", 1, 0, None)),
    "one at a time, last instant": (row(100), ONE_AT_A_TIME, Absent(), AskLater("absent_too_early", 1, 0, None)),
    "one at a time, has landed": (row(100.001), ONE_AT_A_TIME, Absent(), Resend(ends_doubt=False)),
    "one at a time, no known end": (
        row(900, quiet_from=None),
        ONE_AT_A_TIME,
        Absent(),
        AskLater("absent_too_early", 1, 0, None),
    ),
    "one at a time, no look-up": (row(40), ONE_AT_A_TIME_BLIND, None, AskLater("may_still_land", 61, 0, None)),
    "one at a time, no look-up, landed": (row(101), ONE_AT_A_TIME_BLIND, None, Resend(ends_doubt=False)),
    # no look-up
    "the resend is the look-up": (row(1), NATIVE_BLIND, None, Resend(ends_doubt=False)),
    "no look-up, too old": (row(TTL_END), NATIVE_BLIND, None, Person("no_lookup")),
    "no look-up, no attempt left": (row(1, **LAST), NATIVE_BLIND, None, Person("no_lookup")),
    "no look-up, no_resend": (row(1, no_resend=True), NATIVE_BLIND, None, Person("no_lookup")),
    "no look-up, mismatched": (row(1, **MISMATCHED), NATIVE_BLIND, None, Person(IDEMPOTENCY_MISMATCH)),
    "blind": (row(1), BLIND, None, Person("no_lookup")),
}


@pytest.mark.parametrize("name", TABLE)
def test_every_row_of_the_rules(name: str) -> None:
    """Each row of the rules gives exactly this verdict."""
    claimed, contract, finding, expected = TABLE[name]
    assert judge(claimed, contract, finding) == expected


def test_the_schedule_follows_the_lag() -> None:
    """Pauses double from a quarter of the lag, never under the base and never over ten minutes."""
    assert [ask_later_s(n, EXACT, 1) for n in (0, 1, 2, 3, 10, 11, 10**9)] == [1, 1, 2, 4, 512, 600, 600]
    assert [ask_later_s(n, replace(EXACT, lookup_lag_s=60), 1) for n in (1, 2, 3)] == [15, 30, 60]
    assert ask_later_s(1, EXACT, 0.2) == 0.2


def test_the_next_look_is_not_later_than_needed() -> None:
    """However many look-ups there were, the next comes right after the window opens, or when the second may count."""
    early = judge(row(90, lookup_count=12), EXACT, Absent())
    assert isinstance(early, AskLater)
    assert early.after_s == 11
    once = judge(row(101, lookup_count=12), EXACT, Absent())
    assert isinstance(once, AskLater)
    assert once.after_s == 1


def test_a_fast_base_shortens_the_pauses() -> None:
    """A smaller base asks sooner, but two counted absences stay a second apart."""
    found = Found(Uncertain("processing"))
    cases: list[tuple[Finding, Claimed, float]] = [
        (found, row(), 0.2),
        (Absent(), row(10), 0.2),
        (Absent(), row(101), 1.0),
    ]
    for finding, claimed, expected in cases:
        later = verdict(claimed, EXACT, finding, ttl_margin_s=MARGIN_S, skew_s=SKEW_S, base_s=0.2)
        assert isinstance(later, AskLater)
        assert later.after_s == expected


seconds = st.integers(0, 200_000)
contracts = st.builds(
    Contract,
    native_key_ttl_s=st.none() | st.sampled_from([7_200.0, 86_400.0]),
    native_key_concurrent=st.booleans(),
    lookup=st.just(True),
    lookup_lag_s=st.sampled_from([0.0, 0.5, 60.0, 3_600.0]),
    landing_max_s=st.sampled_from([2.0, 120.0]),
    absence_is_proof=st.booleans(),
    on_absent=st.sampled_from(["not_executed", "operator_review"]),
)
findings: st.SearchStrategy[Finding | None] = st.sampled_from(
    [
        None,
        Absent(),
        Many(("a", "b")),
        Unknown("timeout"),
        Found(RECEIPT),
        Found(RECEIPT, amount_minor=1),
        Found(Rejected("declined")),
        Found(Uncertain("processing")),
    ]
)


@st.composite
def rows(draw: st.DrawFn) -> Claimed:
    first = draw(seconds)
    quiet = first + draw(st.integers(0, 200))
    as_of = quiet + draw(st.integers(0, 400) | seconds)
    last = draw(st.none() | st.integers(first, as_of))
    return row(
        as_of,
        quiet_from=draw(st.sampled_from([at(quiet), None])),
        first_sent_at=at(first),
        absent_count=draw(st.integers(0, 3)),
        last_absent_at=None if last is None else at(last),
        attempt_count=draw(st.integers(0, 4)),
        no_resend=draw(st.booleans()),
        lookup_count=draw(st.integers(0, 100)),
        late_receipt=draw(st.sampled_from([None, None, None, LATE])),
        last_error_code=draw(st.sampled_from([None, "http_504", IDEMPOTENCY_MISMATCH])),
        moved=draw(st.sampled_from([False, False, True])),
    )


def window_end(claimed: Claimed, contract: Contract) -> datetime | None:
    if claimed.quiet_from is None:
        return None
    return claimed.quiet_from + timedelta(seconds=contract.landing_max_s + contract.lookup_lag_s)


def earned(claimed: Claimed, contract: Contract, finding: Finding | None) -> bool:
    """Two absences, both after the window, apart: said a second time and in other words than the code's."""
    end, last = window_end(claimed, contract), claimed.last_absent_at
    if end is None or last is None or finding != Absent() or claimed.absent_count < 1:
        return False
    apart = timedelta(seconds=max(contract.lookup_lag_s, 1))
    counts = end < last and end < claimed.as_of
    return counts and (claimed.as_of - last >= apart or claimed.absent_count >= 2)


@given(rows(), contracts, findings)
def test_promises(claimed: Claimed, contract: Contract, finding: Finding | None) -> None:
    """No end and no fresh send before absence is earned, no resend where it is forbidden or the key may be forgotten."""
    result = judge(claimed, contract, finding)
    sure = earned(claimed, contract, finding)
    match result:
        case Resend(ends_doubt):
            assert not claimed.no_resend
            assert not claimed.moved
            assert claimed.attempt_count < claimed.attempts_max
            assert claimed.last_error_code != IDEMPOTENCY_MISMATCH
            assert ends_doubt == sure
            assert contract.absence_is_proof or not ends_doubt
            if not sure:
                assert contract.native_key_ttl_s is not None
                assert claimed.first_sent_at is not None
                age_s = (claimed.as_of - claimed.first_sent_at).total_seconds()
                assert age_s + MARGIN_S < contract.native_key_ttl_s
                if not contract.native_key_concurrent:
                    assert claimed.quiet_from is not None
                    assert claimed.as_of > claimed.quiet_from + timedelta(seconds=contract.landing_max_s)
        case NotExecuted():
            assert sure
            assert contract.absence_is_proof
            assert not claimed.moved
            assert contract.on_absent == "not_executed"
        case Fail(code):
            assert (code == "absent" and sure and contract.absence_is_proof and claimed.no_resend) or finding == Found(
                Rejected("declined")
            )
        case AskLater():
            assert not sure
            assert 1 <= result.after_s <= ASK_LATER_MAX_S
            assert result.absent_count <= claimed.absent_count or (result.absent_count, finding) == (1, Absent())
        case Settle(outcome):
            assert outcome == claimed.late_receipt or (claimed.late_receipt is None and finding == Found(RECEIPT))
        case Person():
            assert finding != Unknown("timeout")
    if claimed.late_receipt is not None:
        assert result == Settle(claimed.late_receipt)


@given(rows(), contracts)
def test_the_window_is_strict(claimed: Claimed, contract: Contract) -> None:
    """At the exact end of the window an empty look-up does not count; a microsecond later it does."""
    end = window_end(replace(claimed, quiet_from=T0), contract)
    assert end is not None
    base = replace(claimed, quiet_from=T0, first_sent_at=None, late_receipt=None, absent_count=0, last_absent_at=None)
    at_end = judge(replace(base, as_of=end), contract, Absent())
    after = judge(replace(base, as_of=end + timedelta(microseconds=1)), contract, Absent())
    assert isinstance(at_end, AskLater)
    assert at_end.absent_count == 0
    assert isinstance(after, AskLater)
    assert after.absent_count == 1


@given(rows(), contracts)
def test_asking_again_as_told_ends_it(claimed: Claimed, contract: Contract) -> None:
    """A row whose every look-up is empty leaves doubt after a bounded number of look-ups, each no later than told."""
    current = replace(claimed, quiet_from=claimed.as_of, late_receipt=None, absent_count=0, last_absent_at=None)
    for _ in range(40):
        result = judge(current, contract, Absent())
        if not isinstance(result, AskLater):
            return
        current = replace(
            current,
            as_of=current.as_of + timedelta(seconds=result.after_s),
            absent_count=result.absent_count,
            last_absent_at=result.last_absent_at,
            lookup_count=current.lookup_count + 1,
        )
    pytest.fail("still asking after 40 look-ups")
