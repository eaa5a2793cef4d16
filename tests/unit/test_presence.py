"""Look-ups that only have to show what is there: they change no verdict, and their emptiness is never counted."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st
from tests.unit.test_asked import row as asked_row
from tests.unit.test_verdict import EXACT, MARGIN_S, NATIVE, T0, at, contracts, judge, row, rows, seen_once

from counterfoil.providers.contract import Contract
from counterfoil.providers.outcomes import Absent
from counterfoil.reconciler.asked import BackToReview, not_happened
from counterfoil.reconciler.verdict import AskLater, Claimed, Fail, NotExecuted, Resend, absence_decides

UNREAD = Absent(complete=False)


@given(rows(), contracts)
def test_where_absence_does_not_decide_it_makes_no_difference(claimed: Claimed, contract: Contract) -> None:
    """A look-up that read less leads to what one that read everything would: nothing is lost by reading less."""
    if not absence_decides(claimed, contract, MARGIN_S):
        assert judge(claimed, contract, UNREAD) == judge(claimed, contract, Absent())


@given(rows(), contracts, st.booleans())
def test_what_was_not_read_never_counts(claimed: Claimed, contract: Contract, moved: bool) -> None:
    """Whatever the row: no end of the doubt, no failure, no count comes of an absence that was not read to the end."""
    claimed = replace(claimed, late_receipt=None, moved=moved)
    said = judge(claimed, contract, UNREAD)
    assert not isinstance(said, Fail | NotExecuted)
    assert said != Resend(ends_doubt=True)
    if isinstance(said, AskLater):
        assert (said.absent_count, said.last_absent_at) == (claimed.absent_count, claimed.last_absent_at)


def test_when_everything_must_be_read() -> None:
    """An absence matters once the window is open, but not where the key is repeated next in any case."""
    assert not absence_decides(row(100), EXACT, MARGIN_S)
    assert not absence_decides(row(900, quiet_from=None), EXACT, MARGIN_S)
    assert absence_decides(row(100.001), EXACT, MARGIN_S)
    assert not absence_decides(row(200), NATIVE, MARGIN_S)
    assert absence_decides(row(200, attempt_count=3), NATIVE, MARGIN_S)
    assert absence_decides(row(200, no_resend=True), NATIVE, MARGIN_S)
    assert absence_decides(seen_once(200, ago=9), NATIVE, MARGIN_S)


def test_a_person_is_not_answered_by_it() -> None:
    """Who says that it did not happen is told that it is not known, not that it was confirmed."""
    said = not_happened(asked_row(1000), EXACT, UNREAD, said_at=T0, skew_s=60, base_s=1)
    assert said == BackToReview("unknown")
    assert at(0) == T0
