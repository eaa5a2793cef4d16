"""Decides when a settled action is looked up again, and what a look-up means for it. Pure.

Nothing here sends anything, and no state changes but one: what had ended without an effect and has one goes to a person.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, assert_never

from counterfoil.ledger.states import State
from counterfoil.providers.outcomes import Absent, Finding, Found, Many, Rejected, Succeeded, Uncertain, Unknown
from counterfoil.providers.reach import MOVED

VISITS_S = (60.0, 300.0, 1800.0, 7200.0, 28_800.0)
"""Ages at which a row that was in doubt is looked up: most late effects are minutes late, the last ones hours. Then once
more at the end of the watch. The first is the database's, too (`action_watch`)."""

CLEAR_VISITS_S = (1800.0,)
"""The same for a row that was never in doubt. Each of its requests got a definite answer, so nothing is on its way: this
finds an answer that was wrong, for a third of the requests."""

APART_MIN_S = 60.0
"""At least this long between two look-ups of a row, however late the first one came."""

AGAIN_MIN_S, AGAIN_SHARE, AGAIN_MAX_S = 300.0, 1 / 8, 3600.0
"""A look-up that failed is repeated after an eighth of the row's age, between these: an outage of hours is no reason to
ask hundreds of times."""

HAPPENED = frozenset({State.SUCCEEDED, State.COMPENSATED})
"""Of these an effect is on record."""

OVERTIME = 2.0
"""A row whose look-ups keep failing is given up at twice the watch's length."""


@dataclass(frozen=True, slots=True)
class NothingNew:
    """The provider shows what the row's state says."""


@dataclass(frozen=True, slots=True)
class Unanswered:
    """This proves nothing, so it does not count: `code` says why."""

    code: str


@dataclass(frozen=True, slots=True)
class FoundAfterAll:
    """It had ended without an effect, and the provider holds one: a person's."""

    code: Literal["found_after_all", "many_found"]
    shown: str


@dataclass(frozen=True, slots=True)
class Duplicate:
    """The provider holds another effect under the key than the one on record: an alarm, the state stays."""

    shown: str


Meaning = NothingNew | Unanswered | FoundAfterAll | Duplicate


def meaning(state: State, receipt: str | None, finding: Finding, *, moved: bool, was_in_doubt: bool = True) -> Meaning:
    """What the finding means for a settled row. `receipt`: of the effect on record; None: there is none, or only a person
    vouches for it. `moved`: what was asked is not surely where its requests went, so that what was not seen there says
    nothing; what was seen under its key does. Of a row that was never in doubt each request was refused for sure: what does
    not show its key then is somebody else's doing."""
    said = _seen(state, receipt, finding)
    is_unkeyed = isinstance(finding, Found) and finding.unkeyed
    if is_unkeyed and (isinstance(said, Duplicate) or (isinstance(said, FoundAfterAll) and not was_in_doubt)):
        said = NothingNew()
    return Unanswered(MOVED) if moved and isinstance(said, NothingNew) else said


def _seen(state: State, receipt: str | None, finding: Finding) -> Meaning:
    match finding:
        case Unknown(code):
            return Unanswered(code)
        case Absent():
            return NothingNew()
        case Found(outcome):
            return _seen_one(state, receipt, finding, outcome)
        case Many(receipts):
            if state in HAPPENED:
                return _other(receipts, receipt)
            return FoundAfterAll("many_found", ",".join(receipts))
        case _:
            assert_never(finding)


def _seen_one(state: State, receipt: str | None, finding: Found, outcome: Succeeded | Rejected | Uncertain) -> Meaning:
    match outcome:
        case Rejected():  # it is there, and has no effect
            return NothingNew()
        case Succeeded() if finding.renamed and state is State.SUCCEEDED:
            return NothingNew()
        case Succeeded(found):
            return _other((found,), receipt) if state in HAPPENED else FoundAfterAll("found_after_all", found)
        case Uncertain(code):  # still being processed there: what that becomes, a person's look-ups find out
            return NothingNew() if state in HAPPENED else FoundAfterAll("found_after_all", f"as {code}")
        case _:
            assert_never(outcome)


def _other(found: tuple[str, ...], receipt: str | None) -> NothingNew | Duplicate:
    """Whether one of these is a second effect. What is on record may still be seen, taken back or not.

    Without a receipt there is nothing to compare: then two are one too many.
    """
    effects = set(found)
    if receipt is None:
        return Duplicate(",".join(found)) if len(effects) > 1 else NothingNew()
    return Duplicate(",".join(found)) if effects - {receipt} else NothingNew()


def next_visit_s(age_s: float, watch_s: float, *, was_in_doubt: bool) -> float | None:
    """At which age the row is looked up next, after a look-up at `age_s` was answered; None: that was the last one.

    Never later than the watch's end, so that the last look-up is at or after it.
    """
    if age_s >= watch_s:
        return None
    visits_s = VISITS_S if was_in_doubt else CLEAR_VISITS_S
    return min(watch_s, next((at_s for at_s in visits_s if at_s >= age_s + APART_MIN_S), watch_s))


def again_s(age_s: float, watch_s: float) -> float | None:
    """At which age a look-up that failed at `age_s` is repeated; None: it is given up."""
    if age_s >= OVERTIME * watch_s:
        return None
    return age_s + min(max(age_s * AGAIN_SHARE, AGAIN_MIN_S), AGAIN_MAX_S)
