"""Calls of one model response: two wishes are two, one wish is one, however the calls run and whichever answer is lost."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any

import pytest

from counterfoil import ArgumentError, Counterfoil, NextStep, Result, Run, Status
from counterfoil.testing import World

if TYPE_CHECKING:
    from tests.acceptance.shop import Shop

Client = Callable[..., Counterfoil]
Working = Callable[[], AbstractContextManager[None]]


@pytest.fixture
def run(shop: Shop, client: Client) -> Iterator[Run]:
    with client().run("r1", tenant="acme", actor="bot") as run:
        yield run


def words(shop: Shop) -> list[str]:
    return sorted(effect[2] for effect in shop.effects)


@pytest.mark.parametrize("explicit", [True, False])
def test_two_references_of_a_turn_are_two_wishes(run: Run, shop: Shop, working: Working, explicit: bool) -> None:
    """Two refunds of one order in one response, in other words: both happen, and each call is told its own."""

    def call(ref: str) -> Result:
        seen = [] if explicit else None
        return run.call("refund", {"order": "1", "reason": ref}, turn="t1", ref=ref, seen=seen)

    with working(), ThreadPoolExecutor(2) as threads:
        answers = list(threads.map(call, ["late", "broken"]))
    assert [answer.status for answer in answers] == [Status.SUCCEEDED] * 2
    assert [answer.replayed for answer in answers] == [False] * 2
    assert [answer.arguments for answer in answers] == [None] * 2, "what was asked for is what ran"
    assert words(shop) == ["broken", "late"]


def test_identical_calls_of_a_turn_are_one_and_say_so(run: Run, world: World, shop: Shop) -> None:
    """The second of them is told that it did nothing new, also when the first one's end was told by then."""
    first = run.call("refund", {"order": "1"}, turn="t1", ref="a", wait_s=0)
    world.settle()
    told = run.call("refund", {"order": "1"}, turn="t1", ref="a", wait_s=0)
    second = run.call("refund", {"order": "1"}, turn="t1", ref="b", seen=str(told.seen), wait_s=0)
    assert (second.action_id, second.replayed) == (first.action_id, True)
    assert second.next_step is NextStep.ALREADY_DONE
    assert run.call("refund", {"order": "1"}, turn="t2", ref="a", seen=str(told.seen), wait_s=0).seq == 2
    world.settle()
    assert shop.count("refund") == 2


@pytest.mark.parametrize("turn", ["t1", None])
def test_twelve_calls_of_a_turn_through_four_threads(run: Run, shop: Shop, working: Working, turn: str | None) -> None:
    """Each is answered about its own: none is held back by what a parallel one was told meanwhile."""

    def call(number: int) -> Result:
        return run.call("refund", {"order": str(number)}, turn=turn, ref=f"call_{number}", wait_s=60)

    with working(), ThreadPoolExecutor(4) as threads:
        answers = list(threads.map(call, range(12)))
    assert [(answer.status, answer.next_step) for answer in answers] == [(Status.SUCCEEDED, NextStep.NONE)] * 12
    assert shop.count("refund") == 12


def test_a_response_that_was_lost_and_sampled_again_finds_what_it_began(run: Run, world: World, shop: Shop) -> None:
    """The process died with the first response. The next one says the same in other words: the same two effects."""
    for ref, reason in (("a", "late"), ("b", "broken")):
        run.call("refund", {"order": "1", "reason": reason}, turn="t1", ref=ref, seen=[], wait_s=0)
        world.settle()
    again = [
        run.call("refund", {"order": "1", "reason": reason}, turn="t2", ref=ref, seen=[], wait_s=0)
        for ref, reason in (("a", "late"), ("b", "it is broken"))
    ]
    assert [answer.status for answer in again] == [Status.SUCCEEDED] * 2
    assert {answer.action_id for answer in again} == {row["action_id"] for row in run.so_far()}
    assert words(shop) == ["broken", "late"]


def test_what_a_turn_s_own_answers_tell_was_not_known_when_its_calls_were_written(
    run: Run, world: World, shop: Shop
) -> None:
    """A call of a lost response is done. The next response begins with another tool, which is told of that, and repeats the
    call in other words: it was written before anybody could read the answer, so it is the same wish."""
    run.call("refund", {"order": "1", "reason": "late"}, turn="t1", ref="a", seen=[], wait_s=0)
    world.settle()
    fee = run.call("charge_fee", {"order": "1"}, turn="t2", ref="a", seen=[], wait_s=0)
    assert fee.next_step is NextStep.READ_UNSEEN
    refund = run.call("refund", {"order": "1", "reason": "too late"}, turn="t2", ref="b", seen=str(fee.seen), wait_s=0)
    assert (refund.status, refund.replayed) == (Status.SUCCEEDED, True)
    tokens = [str(fee.seen), str(refund.seen)]
    assert run.call("charge_fee", {"order": "1"}, turn="t3", ref="a", seen=tokens, wait_s=0).status is Status.PENDING
    assert shop.count("refund") == 1


def test_a_reference_belongs_to_its_turn(run: Run, world: World, shop: Shop) -> None:
    """`call_0` of another turn is another call; within its turn it stays what it was, whatever its words."""
    first = run.call("refund", {"order": "1", "reason": "late"}, turn="t1", ref="call_0", wait_s=0)
    world.settle()
    told = run.call("refund", {"order": "1", "reason": "too late"}, turn="t1", ref="call_0", wait_s=0)
    assert (told.action_id, told.status) == (first.action_id, Status.SUCCEEDED)
    again = run.call("refund", {"order": "1", "reason": "too late"}, turn="t1", ref="call_0", seen=told.seen, wait_s=0)
    assert again.action_id == first.action_id
    other = run.call("refund", {"order": "1", "reason": "late"}, turn="t2", ref="call_0", seen=told.seen, wait_s=0)
    assert (other.action_id != first.action_id, other.replayed) == (True, False)
    world.settle()
    assert shop.count("refund") == 2


def test_a_turn_needs_references(run: Run) -> None:
    """Without one, two wishes of a turn could not be told apart."""
    with pytest.raises(ArgumentError, match="ref"):
        run.call("refund", {"order": "1"}, turn="t1", wait_s=0)
    with pytest.raises(ArgumentError, match="turn"):
        run.call("refund", {"order": "1"}, turn="", ref="a", wait_s=0)


PROMISES: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "the same words": ({}, {}),
    "a turn": ({}, {"turn": "t1"}),
    "unique references": ({"refs_unique": True}, {}),
    "tokens": ({}, {"seen": ()}),
}


@pytest.mark.parametrize("promise", PROMISES)
@pytest.mark.parametrize("way", ["to_thread", "acall"])
def test_a_thread_that_a_time_limit_has_abandoned(
    world: World, client: Client, shop: Shop, way: str, promise: str
) -> None:
    """The answer comes a moment later, to nobody; the framework's retry, under the same reference, is one effect."""
    opening, calling = PROMISES[promise]
    reworded = "late parcel" if promise == "the same words" else "the parcel was late"

    async def main() -> list[Result | None]:
        async with client().run("r1", tenant="acme", actor="bot", **opening) as run:

            def call(reason: str) -> Awaitable[Result]:
                arguments, names = {"order": "1", "reason": reason}, {"ref": "call_1", "wait_s": 20, **calling}
                if way == "acall":
                    return run.acall("refund", arguments, **names)
                return asyncio.to_thread(run.call, "refund", arguments, **names)

            async def limited(reason: str, limit_s: float) -> Result | None:
                try:
                    return await asyncio.wait_for(call(reason), limit_s)
                except TimeoutError:
                    return None

            first = await limited("late parcel", 0.3)
            await asyncio.to_thread(world.settle)
            while run._memory._visits:  # until the abandoned call has seen the end, too
                await asyncio.sleep(0.05)
            return [first, await limited(reworded, 20)]

    first, second = asyncio.run(main())
    assert first is None
    assert second is not None
    assert (second.status, second.replayed) == (Status.SUCCEEDED, True)
    world.settle()
    assert shop.count("refund") == 1
