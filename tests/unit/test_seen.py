"""Tokens of told ends, and what a handle remembers where none is given back."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from counterfoil.ledger.errors import ArgumentError
from counterfoil.ledger.keys import action_id
from counterfoil.outbox.memory import Memory
from counterfoil.outbox.seen import NOTHING, TOKENS_MAX, read_tokens, told

IDS = [action_id("acme", "r1", number, 1, "do") for number in range(1, 6)]
ENDS = st.lists(st.tuples(st.sampled_from(IDS), st.integers(1, 9)), max_size=5)


def token(*ends: tuple[str, int], turn: str = "") -> str:
    return told(ends, turn).token("acme", "r1")


@given(ENDS, ENDS)
def test_tokens_join(first: list[tuple[str, int]], second: list[tuple[str, int]]) -> None:
    """Any number may be handed back, in any order: what one of them tells is told, and the later end of two."""
    joined = read_tokens([token(*first), token(*second)], "acme", "r1")
    assert joined == read_tokens([token(*second), token(*first)], "acme", "r1")
    assert joined == read_tokens(joined.token("acme", "r1"), "acme", "r1")
    for action, count in [*dict(first).items(), *dict(second).items()]:
        assert joined.has(action, count)
    for action in IDS:
        highest = max((dict(ends).get(action, 0) for ends in (first, second)), default=0)
        assert not joined.has(action, highest + 1)


def test_an_end_that_has_changed_was_not_told() -> None:
    """The count of settled moves names the end; without any there is none."""
    seen = read_tokens(token((IDS[0], 1)), "acme", "r1")
    assert seen.has(IDS[0], 1)
    assert not seen.has(IDS[0], 2)
    assert not seen.has(IDS[1], 1)
    assert told([(IDS[0], 0)]) == NOTHING


def test_an_end_counts_before_another_turn_only() -> None:
    """Within the turn that told it the model did not know it yet; told in two turns, it was known in both."""
    first, second = token((IDS[0], 1), turn="t1"), token((IDS[0], 1), turn="t2")
    assert read_tokens(first, "acme", "r1").before("t1") == NOTHING
    for turn in ("t2", ""):
        assert read_tokens(first, "acme", "r1").before(turn).has(IDS[0], 1)
    assert read_tokens([first, second], "acme", "r1").before("t1").has(IDS[0], 1)
    assert read_tokens([first, token((IDS[0], 2), turn="t2")], "acme", "r1").before("t2") == NOTHING


WHOLE = token((IDS[0], 1), (IDS[1], 3))


@pytest.mark.parametrize(
    ("given_back", "code"),
    [
        (WHOLE[:-1], "malformed_token"),
        (WHOLE[1:], "malformed_token"),
        (WHOLE[:-4], "malformed_token"),
        (WHOLE + "A", "malformed_token"),
        (WHOLE.upper(), "malformed_token"),
        (WHOLE.replace("seen1-", "seen2-"), "malformed_token"),
        ("seen1-é", "malformed_token"),
        ("seen1-" + "A" * 70_000, "malformed_token"),
        ("3", "malformed_token"),
        (3, "no_token"),
        (None, "no_token"),
        ([3], "no_token"),
        (b"seen1-", "no_token"),
        ({"seen": WHOLE}, "no_token"),
        ([WHOLE] * (TOKENS_MAX + 1), "too_many"),
        (told([(IDS[0], 1)]).token("acme", "r2"), "foreign_token"),
        (told([(IDS[0], 1)]).token("globex", "r1"), "foreign_token"),
        (told([]).token("ac", "mer1"), "foreign_token"),
    ],
)
def test_what_is_no_token_of_the_run_is_refused(given_back: Any, code: str) -> None:
    """Cut, changed, of another kind, or another run's: the caller's mistake, and nothing counts as told."""
    with pytest.raises(ArgumentError) as caught:
        read_tokens(given_back, "acme", "r1")
    assert (caught.value.path, caught.value.code) == ("seen", code)


def test_a_transcript_without_answers_tells_nothing() -> None:
    """No token, an empty one, or one without an end."""
    for nothing in ("", (), [""], token()):
        assert read_tokens(nothing, "acme", "r1") == NOTHING


def test_ends_that_are_not_on_record_are_named() -> None:
    """Of another action, or a later end of one that is."""
    seen = read_tokens(token((IDS[0], 2), (IDS[1], 1)), "acme", "r1")
    assert len(seen.beyond(NOTHING)) == 2
    assert len(seen.beyond(told([(IDS[0], 1), (IDS[1], 1)]))) == 1
    assert not seen.beyond(told([(IDS[0], 2), (IDS[1], 5)]))


def test_a_token_of_two_hundred_ends_is_short() -> None:
    """As many as a run has by default: under 4 kB, however old the run is."""
    many = [(action_id("acme", "r1", number, 1, "do"), 1) for number in range(1, 201)]
    assert len(token(*many)) < 4096


def test_without_tokens_an_end_counts_from_the_next_call_on() -> None:
    """Not when it is handed out: a call that began before does not know it, and tells it of no parallel one as lost."""
    memory = Memory("acme", "r1", ())
    first, second = memory.arrive(None), memory.arrive(None)
    memory.expect(first, IDS[0])
    assert memory.due(second) == {IDS[0]}
    memory.leave(first, [(IDS[0], 1)])
    third = memory.arrive(None)
    assert memory.due(second) == {IDS[0]}, "also when another call has begun since"
    assert (second.had, third.had.has(IDS[0], 1)) == (NOTHING, True)
    assert memory.due(third) == frozenset()


def test_with_tokens_nothing_else_counts() -> None:
    """What was handed out before counts for calls without tokens only; an answer that nobody took counts for none."""
    memory = Memory("acme", "r1", token((IDS[0], 1)))
    memory.leave(memory.arrive(None), [(IDS[1], 1)])
    memory.leave(memory.arrive(None))
    assert memory.arrive([]).had == NOTHING
    explicit = memory.arrive(token((IDS[2], 1))).had
    assert (explicit.has(IDS[2], 1), explicit.has(IDS[0], 1)) == (True, False)
    memory.ack(token((IDS[3], 1)))
    implicit = memory.arrive(None).had
    assert [implicit.has(action, 1) for action in IDS] == [True, True, True, True, False]


def test_what_a_call_of_a_turn_was_told_does_not_count_for_the_others_of_it() -> None:
    """Also where the handle remembers it, and no token is given."""
    memory = Memory("acme", "r1", ())
    memory.leave(memory.arrive(None, "t1"), [(IDS[0], 1)])
    assert memory.arrive(None, "t1").had.before("t1") == NOTHING
    assert memory.arrive(None, "t2").had.before("t2").has(IDS[0], 1)
