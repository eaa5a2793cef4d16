"""What a look-up makes of a person's word: every row of the rules, and that none of them ever sends again."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from counterfoil.providers.contract import OTHER_KEY, Contract
from counterfoil.providers.outcomes import Absent, Finding, Found, Many, Rejected, Succeeded, Uncertain, Unknown
from counterfoil.reconciler.asked import AskedVerdict, BackToReview, happened, not_happened
from counterfoil.reconciler.verdict import AskLater, Claimed, Fail, NotExecuted, Person, Settle

T0 = datetime(2026, 3, 1, 12, tzinfo=UTC)
EXACT = Contract(lookup=True, landing_max_s=100)
LAGGING = Contract(lookup=True, lookup_lag_s=50, landing_max_s=100)
NATIVE_BLIND = Contract(native_key_ttl_s=86_400, landing_max_s=100)
BLIND = Contract(landing_max_s=100)
DONE = Succeeded("pi_1")
LATE = Succeeded("pi_late")
WORD = NotExecuted("not_happened", "a person's word; nobody can be asked")
BOTH = NotExecuted("absent", "a person's word, and absent")


def at(seconds: float) -> datetime:
    return T0 + timedelta(seconds=seconds)


def row(seconds: float = 1000, /, **changes: Any) -> Claimed:
    """Sent and quiet at T0, the only attempt; claimed for this look-up `seconds` later."""
    claimed = Claimed(
        as_of=at(seconds),
        quiet_from=T0,
        first_sent_at=T0,
        absent_count=0,
        last_absent_at=None,
        attempt_count=1,
        attempts_max=3,
        no_resend=True,
        lookup_count=1,
        amount_minor=500,
        currency="usd",
        target="order-1",
        late_receipt=None,
        last_error_code=None,
    )
    return replace(claimed, **changes)


def said_it_happened(claimed: Claimed, finding: Finding | None, receipt: str = "pi_1") -> AskedVerdict:
    return happened(claimed, finding, receipt=receipt, skew_s=60)


def said_it_did_not(
    claimed: Claimed, contract: Contract, finding: Finding | None, said_at: datetime | None = None
) -> AskedVerdict:
    """Said right before the look-up, unless `said_at` says when."""
    return not_happened(claimed, contract, finding, said_at=said_at or claimed.as_of, skew_s=60, base_s=1)


@pytest.mark.parametrize(
    ("finding", "expected"),
    [
        (None, BackToReview("cannot_verify")),
        (Absent(), BackToReview("not_found")),
        (Unknown(OTHER_KEY), BackToReview("other_key")),
        (Unknown("http_500"), BackToReview("unknown")),
        (Many(("pi_1", "pi_2")), Person("many_found")),
        (Found(DONE), Settle(DONE)),
        (Found(DONE, amount_minor=500, currency="USD", target="order-1", created_at=T0), Settle(DONE)),
        (Found(DONE, amount_minor=499), Person("mismatch")),
        (Found(DONE, currency="eur"), Person("mismatch")),
        (Found(DONE, target="order-2"), Person("mismatch")),
        (Found(DONE, created_at=at(-61)), Person("mismatch")),
        (Found(DONE, as_intended=False), Person("mismatch")),
        (Found(Rejected("card_declined")), BackToReview("failed_there")),
        (Found(Uncertain("processing")), BackToReview("unknown", code="found_unsettled")),
    ],
)
def test_said_to_have_happened(finding: Finding | None, expected: AskedVerdict) -> None:
    """Only an object that is ours, as intended, and by its status done makes a success; time plays no part in it."""
    for seconds in (1, 1000):
        assert said_it_happened(row(seconds), finding) == expected


def test_said_to_have_happened_as_a_late_receipt_says() -> None:
    """The receipt that an attempt has recorded needs no provider; another object beside it makes two."""
    late = row(late_receipt=LATE)
    assert said_it_happened(late, Unknown("http_500"), "pi_late") == Settle(LATE)
    assert said_it_happened(late, Found(DONE)) == Person("many_found")
    assert said_it_happened(late, Absent()) == BackToReview("not_found")


@pytest.mark.parametrize(
    ("seconds", "contract", "finding", "expected"),
    [
        (100, EXACT, Absent(), BackToReview("too_early", at(100))),
        (100.001, EXACT, Absent(), BOTH),
        (150, LAGGING, Absent(), BackToReview("too_early", at(150))),
        (151, LAGGING, Absent(), BOTH),
        (100, BLIND, None, BackToReview("too_early", at(100))),
        (101, BLIND, None, WORD),
        (100, NATIVE_BLIND, None, BackToReview("too_early", at(100))),
        (101, NATIVE_BLIND, None, WORD),
        (1000, EXACT, Unknown("http_500"), BackToReview("unknown")),
        (1000, EXACT, Many(("a", "b")), Person("many_found")),
        (1, EXACT, Found(DONE), Settle(DONE)),
        (1000, EXACT, Found(DONE, amount_minor=499), Person("mismatch")),
        (1, EXACT, Found(Rejected("card_declined")), Fail("card_declined")),
        (1000, EXACT, Found(Uncertain("processing")), AskLater("processing", 1.0, 0, None)),
    ],
)
def test_said_not_to_have_happened(
    seconds: float, contract: Contract, finding: Finding | None, expected: AskedVerdict
) -> None:
    """What the provider holds wins; nothing there, or nobody to ask, counts strictly after the window."""
    assert said_it_did_not(row(seconds), contract, finding) == expected


@pytest.mark.parametrize("contract", [BLIND, NATIVE_BLIND])
def test_a_word_counts_as_of_when_it_was_given(contract: Contract) -> None:
    """Where nobody can be asked, a word given inside the window is too early, however late the reconciler reads it."""
    assert said_it_did_not(row(1000), contract, None, at(100)) == BackToReview("too_early", at(100))
    assert said_it_did_not(row(1000), contract, None, at(101)) == WORD
    assert said_it_did_not(row(1000), EXACT, Absent(), at(1)) == BOTH, "the provider was asked after it"


def test_said_not_to_have_happened_against_a_late_receipt() -> None:
    """An attempt that recorded a receipt is evidence, whatever the look-up shows."""
    assert said_it_did_not(row(late_receipt=LATE), EXACT, Absent()) == Settle(LATE)
    assert said_it_did_not(row(late_receipt=LATE), BLIND, None) == Settle(LATE)


def test_without_an_end_of_the_window_nothing_counts() -> None:
    """A row of which it is not known when its connections ended is never called not executed."""
    assert said_it_did_not(row(quiet_from=None), EXACT, Absent()) == BackToReview("too_early")


OUTCOMES: st.SearchStrategy[Any] = st.sampled_from([DONE, Rejected("declined"), Uncertain("processing")])
FINDINGS: st.SearchStrategy[Finding | None] = st.one_of(
    st.sampled_from([None, Absent(), Unknown("x"), Unknown(OTHER_KEY), Many(("a", "b"))]),
    st.builds(Found, OUTCOMES, amount_minor=st.sampled_from([None, 500, 1]), as_intended=st.booleans()),
)
ROWS = st.builds(
    row,
    st.floats(0, 1000),
    quiet_from=st.sampled_from([None, T0]),
    late_receipt=st.sampled_from([None, LATE]),
    attempt_count=st.integers(0, 3),
    no_resend=st.booleans(),
)


@given(claimed=ROWS, finding=FINDINGS, contract=st.sampled_from([EXACT, LAGGING, NATIVE_BLIND, BLIND]))
def test_a_word_alone_proves_nothing(claimed: Claimed, finding: Finding | None, contract: Contract) -> None:
    """Whatever row and finding: no success without an object or receipt, no not-executed inside the window or against what
    was found, and no verdict that sends."""
    words: list[Callable[[], AskedVerdict]] = [
        lambda: said_it_happened(claimed, finding),
        lambda: said_it_did_not(claimed, contract, finding),
    ]
    for word in words:
        said = word()
        assert type(said) in (Settle, Fail, NotExecuted, AskLater, Person, BackToReview)
        if isinstance(said, Settle):
            proofs = [claimed.late_receipt, finding.outcome if isinstance(finding, Found) else None]
            assert said.outcome in proofs
        if isinstance(said, NotExecuted):
            assert finding in (None, Absent())
            assert claimed.quiet_from is not None
            assert (claimed.as_of - claimed.quiet_from).total_seconds() > contract.landing_max_s + contract.lookup_lag_s
            assert claimed.late_receipt is None
