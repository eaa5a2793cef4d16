"""Decides what a look-up means for an action that a person has said something about: settled, or back to that person.

A pure function, like the verdict. A person's word is checked against the provider and never leads to a second send: it
settles the action where the evidence agrees, or where nobody could give any, and everything else is told to the person.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Literal, assert_never

from counterfoil.providers.contract import OTHER_KEY, Contract
from counterfoil.providers.outcomes import Absent, Finding, Found, Many, Rejected, Succeeded, Uncertain, Unknown
from counterfoil.reconciler.verdict import (
    AskLater,
    Claimed,
    Fail,
    NotExecuted,
    Person,
    Resend,
    Settle,
    ask_later_s,
    matches_intent,
    window_opens_in_s,
)

Answer = Literal[
    "not_found", "other_key", "mismatch", "many_found", "failed_there", "unknown", "cannot_verify", "too_early"
]
"""Why an action is in review again."""


@dataclass(frozen=True, slots=True)
class BackToReview:
    """What the person said was not borne out: operator_review again, with this answer."""

    answer: Answer
    counts_from: datetime | None = None
    """From when on the same answer of the provider would count, where time is all that is missing."""
    code: str | None = None
    """Why the row is in review from now on; None: as before."""


FOUND_UNSETTLED = "found_unsettled"
"""`last_error_code` of a row whose object is there and not done yet: nothing may call it failed."""

LOOK_UPS_MAX = 12
"""Look-ups for one request that fail or find it unfinished, half an hour and more; then its person is told so."""

AskedVerdict = Settle | Fail | NotExecuted | AskLater | Person | BackToReview
"""Never a resend."""


def happened(row: Claimed, finding: Finding | None, *, receipt: str, skew_s: float) -> AskedVerdict:
    """A person says that it happened, as the object `receipt` of the provider; `finding` is what was fetched under that.

    None: this tool's objects can be neither fetched nor looked up.
    """
    late = row.late_receipt
    if late is not None and late.id == receipt:
        return Settle(late)
    match finding:
        case None:
            return BackToReview("cannot_verify")
        case Absent():
            return BackToReview("not_found")
        case Unknown(code):
            return BackToReview("other_key" if code == OTHER_KEY else "unknown")
        case Many():
            return Person("many_found")
        case Found(outcome):
            if not matches_intent(row, finding, skew_s):
                return Person("mismatch")
            return Person("many_found") if late is not None else _fetched(outcome)
        case _:
            assert_never(finding)


def _fetched(outcome: Succeeded | Rejected | Uncertain) -> AskedVerdict:
    """The named object is ours and as intended; its status says whether it happened."""
    match outcome:
        case Succeeded():
            return Settle(outcome)
        case Rejected():
            return BackToReview("failed_there")
        case Uncertain():
            return BackToReview("unknown", code=FOUND_UNSETTLED)
        case _:
            assert_never(outcome)


def in_the_end(said: AskedVerdict | Resend, finding: Finding | None, *, lookup_count: int) -> AskedVerdict | Resend:
    """What `said` is, unless the look-ups of this request could go on for ever: nobody else may speak meanwhile.

    An absence ends by itself: its window opens.
    """
    if isinstance(said, AskLater) and isinstance(finding, Found | Unknown) and lookup_count >= LOOK_UPS_MAX:
        return BackToReview("unknown", code=FOUND_UNSETTLED if isinstance(finding, Found) else None)
    return said


def not_happened(
    row: Claimed, contract: Contract, finding: Finding | None, *, said_at: datetime, skew_s: float, base_s: float
) -> AskedVerdict:
    """A person says that it did not happen; the provider is asked once more, and what it holds wins.

    Where nobody can be asked (`finding` is None), the person's word counts if every request must have landed by `said_at`,
    when it was given: what lands later the person has not seen, however late the reconciler comes. A tool that has a
    native key and no look-up is such a one: only a resend would ask, and that is what is not wanted.
    """
    if row.late_receipt is not None:
        return Settle(row.late_receipt)
    match finding:
        case None:
            said = NotExecuted("not_happened", "a person's word; nobody can be asked")
            return _once_open(row, min(said_at, row.as_of), contract, said)
        case Absent(complete=True):
            return _once_open(row, row.as_of, contract, NotExecuted("absent", "a person's word, and absent"))
        case Unknown() | Absent():
            return BackToReview("unknown")
        case Many():
            return Person("many_found")
        case Found(outcome):
            if not matches_intent(row, finding, skew_s):
                return Person("mismatch")
            return _held(row, contract, outcome, base_s)
        case _:
            assert_never(finding)


def _held(row: Claimed, contract: Contract, outcome: Succeeded | Rejected | Uncertain, base_s: float) -> AskedVerdict:
    """The provider holds it after all: what its status says, wins."""
    match outcome:
        case Succeeded():
            return Settle(outcome)
        case Rejected(code):
            return Fail(code)
        case Uncertain(code):  # still being processed there: the look-ups go on until that has ended
            return AskLater(code, ask_later_s(row.lookup_count, contract, base_s), 0, None)
        case _:
            assert_never(outcome)


def _once_open(row: Claimed, at: datetime, contract: Contract, said: NotExecuted) -> NotExecuted | BackToReview:
    """`at`: when it was looked, by whoever did."""
    opens_in_s = window_opens_in_s(row, at, contract)
    if opens_in_s is None:
        return BackToReview("too_early")
    if opens_in_s >= 0:  # strictly after: at the last instant it may still appear
        return BackToReview("too_early", at + timedelta(seconds=opens_in_s))
    return said
