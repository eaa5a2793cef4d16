"""When a settled action is looked up again, and what each finding means for it; pure."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from counterfoil.ledger.states import State
from counterfoil.providers.outcomes import Absent, Finding, Found, Many, Rejected, Succeeded, Uncertain, Unknown
from counterfoil.reconciler.watched import (
    APART_MIN_S,
    OVERTIME,
    Duplicate,
    FoundAfterAll,
    Meaning,
    NothingNew,
    Unanswered,
    again_s,
    meaning,
    next_visit_s,
)

DAY_S = 86_400.0
NEGATIVE = (State.PERMANENT_FAILURE, State.NOT_EXECUTED, State.CANCELLED, State.STALE)
POSITIVE = (State.SUCCEEDED, State.COMPENSATED)
OURS, OTHER = Found(Succeeded("pi_1")), Found(Succeeded("pi_2"))


def visits(watch_s: float, *, was_in_doubt: bool, first_s: float) -> list[float]:
    """The ages of all look-ups of a row that are in time, each answered."""
    ages = [first_s]
    while (following := next_visit_s(ages[-1], watch_s, was_in_doubt=was_in_doubt)) is not None:
        ages.append(following)
    return ages


def test_a_row_that_was_in_doubt_is_looked_up_six_times() -> None:
    """Soon at first, then ever more seldom, and at the end of the day."""
    assert visits(DAY_S, was_in_doubt=True, first_s=60) == [60, 300, 1800, 7200, 28_800, DAY_S]


def test_a_row_that_was_never_in_doubt_is_looked_up_twice() -> None:
    """Nothing of it is on its way, so a third of the look-ups is enough."""
    assert visits(DAY_S, was_in_doubt=False, first_s=1800) == [1800, DAY_S]


def test_a_short_watch_ends_with_one_look_up() -> None:
    """A first look-up that comes after the watch's end is the last one, too."""
    assert visits(30, was_in_doubt=True, first_s=60) == [60]


@given(st.floats(0, 3 * DAY_S), st.floats(1, 30 * DAY_S), st.booleans())
def test_the_last_look_up_is_at_the_end_or_later(age_s: float, watch_s: float, was_in_doubt: bool) -> None:
    """However late look-ups come, none is planned beyond the watch's end, and none ends the watch before it."""
    following = next_visit_s(age_s, watch_s, was_in_doubt=was_in_doubt)
    if age_s >= watch_s:
        assert following is None
    else:
        assert following is not None
        assert age_s < following <= watch_s
        assert following == watch_s or following >= age_s + APART_MIN_S


@given(st.floats(0, 3 * DAY_S), st.floats(60, 30 * DAY_S))
def test_a_failed_look_up_is_repeated_for_a_bounded_time(age_s: float, watch_s: float) -> None:
    """It is repeated within the hour, until twice the watch's length: nobody asks a dead provider for ever."""
    again = again_s(age_s, watch_s)
    if age_s >= OVERTIME * watch_s:
        assert again is None
    else:
        assert again is not None
        assert 300 <= round(again - age_s) <= 3600


def test_a_provider_that_is_away_for_two_days_is_asked_few_times() -> None:
    """About a hundred look-ups of one row at most."""
    age_s: float | None = 60.0
    asked = 0
    while age_s is not None:
        asked += 1
        age_s = again_s(age_s, DAY_S)
    assert asked < 100


@pytest.mark.parametrize("state", NEGATIVE)
@pytest.mark.parametrize(
    ("finding", "said"),
    [
        (OURS, FoundAfterAll("found_after_all", "pi_1")),
        (Found(Uncertain("processing")), FoundAfterAll("found_after_all", "as processing")),
        (Many(("pi_1", "pi_2")), FoundAfterAll("many_found", "pi_1,pi_2")),
        (Found(Rejected("declined")), NothingNew()),
        (Absent(), NothingNew()),
        (Unknown("timeout"), Unanswered("timeout")),
    ],
)
def test_what_had_ended_without_an_effect(state: State, finding: Finding, said: Meaning) -> None:
    """An object under its key is a person's, whether it is done or under way; a failed one is what the state says."""
    assert meaning(state, None, finding, moved=False) == said


@pytest.mark.parametrize("state", NEGATIVE)
def test_what_does_not_show_its_key(state: State) -> None:
    """It may be its late effect where its outcome was unknown once; after definite refusals it is another's doing."""
    finding = Found(Succeeded("pi_1"), unkeyed=True)
    assert meaning(state, None, finding, moved=False) == FoundAfterAll("found_after_all", "pi_1")
    assert meaning(state, None, finding, moved=False, was_in_doubt=False) == NothingNew()
    assert meaning(state, None, OURS, moved=False, was_in_doubt=False) == FoundAfterAll("found_after_all", "pi_1")


@pytest.mark.parametrize("state", POSITIVE)
def test_what_is_done_whoever_did_it_is_no_second_effect(state: State) -> None:
    """An issue that is closed, under the name that it got by a move: nothing there is another object of ours."""
    assert meaning(state, "SUP-1", Found(Succeeded("OPS-7"), unkeyed=True), moved=False) == NothingNew()


@pytest.mark.parametrize("state", POSITIVE)
@pytest.mark.parametrize(
    ("finding", "said"),
    [
        (OURS, NothingNew()),
        (OTHER, Duplicate("pi_2")),
        (Many(("pi_1", "pi_2")), Duplicate("pi_1,pi_2")),
        (Many(("pi_1", "pi_1")), NothingNew()),
        (Found(Uncertain("processing")), NothingNew()),
        (Found(Rejected("canceled")), NothingNew()),
        (Absent(), NothingNew()),
        (Unknown("timeout"), Unanswered("timeout")),
    ],
)
def test_what_has_succeeded_or_was_taken_back(state: State, finding: Finding, said: Meaning) -> None:
    """Its own object may still be there or be gone; only another one is a second effect."""
    assert meaning(state, "pi_1", finding, moved=False) == said


@pytest.mark.parametrize(
    ("state", "said"),
    [
        (State.SUCCEEDED, NothingNew()),
        (State.COMPENSATED, Duplicate("1700.1")),
        (State.CANCELLED, FoundAfterAll("found_after_all", "1700.1")),
    ],
)
def test_what_the_provider_calls_by_another_id(state: State, said: Meaning) -> None:
    """A scheduled message that was posted is the one on record, unless that one was taken back."""
    assert meaning(state, "Q1", Found(Succeeded("1700.1"), renamed=True), moved=False) == said


@pytest.mark.parametrize(("finding", "twice"), [(OTHER, False), (Many(("pi_1", "pi_2")), True)])
def test_a_success_that_only_a_person_vouches_for(finding: Finding, twice: bool) -> None:
    """It has no receipt to compare: what is found is it, and two are one too many."""
    assert isinstance(meaning(State.SUCCEEDED, None, finding, moved=False), Duplicate) is twice


@pytest.mark.parametrize("state", [*NEGATIVE, *POSITIVE])
@pytest.mark.parametrize("finding", [Absent(), Found(Rejected("declined")), Found(Uncertain("processing")), OTHER])
def test_asked_elsewhere(state: State, finding: Finding) -> None:
    """What another account does not show proves nothing; what it shows under the key counts."""
    here, there = (meaning(state, "pi_1", finding, moved=moved) for moved in (False, True))
    assert there == (Unanswered("credentials_changed") if here == NothingNew() else here)
