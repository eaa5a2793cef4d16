"""One conversation, several web workers: one after the other, and whoever comes too late records nothing."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

import pytest

from counterfoil import Counterfoil, RunBusy, RunTakenOver, Status
from counterfoil.testing import World

if TYPE_CHECKING:
    from tests.acceptance.shop import Shop

CHAT = {"tenant": "acme", "actor": "bot"}


def test_two_messages_of_one_user_are_worked_on_one_after_the_other(
    world: World, client: Callable[..., Counterfoil], shop: Shop
) -> None:
    """Six workers at one moment: none takes the run over from another, and each finds the transcript of those before."""
    barrier, transcript, inside, most = threading.Barrier(6), [""], [], []

    def serve(number: int) -> Status:
        barrier.wait(20)
        with client().conversation("chat-1", wait_s=60, **CHAT) as run:
            inside.append(number)
            most.append(len(inside))
            told = run.call(
                "refund", {"order": str(number)}, turn=f"m{number}", ref="call_0", seen=transcript, wait_s=0
            )
            world.settle()
            told = run.call(
                "refund", {"order": str(number)}, turn=f"m{number}", ref="call_0", seen=transcript, wait_s=0
            )
            transcript.append(str(told.seen))
            inside.remove(number)
            return told.status

    with ThreadPoolExecutor(6) as threads:
        assert list(threads.map(serve, range(6))) == [Status.SUCCEEDED] * 6
    assert most == [1] * 6
    assert shop.count("refund") == 6


def test_a_worker_that_waits_too_long_is_told(world: World, client: Callable[..., Counterfoil], shop: Shop) -> None:
    """`RunBusy`, with what to answer; the run stays the other one's, and is free at the end of its block."""
    with client().conversation("chat-1", **CHAT) as run:
        with pytest.raises(RunBusy, match="another process"), client().conversation("chat-1", wait_s=0, **CHAT):
            pass
        with client().conversation("chat-2", wait_s=0, **CHAT):
            pass
        assert run.call("refund", {"order": "1"}, wait_s=0).status is Status.PENDING
    with client().conversation("chat-1", wait_s=0, **CHAT):
        pass


def test_a_worker_that_takes_too_long_is_taken_over(
    world: World, client: Callable[..., Counterfoil], shop: Shop
) -> None:
    """After `hold_s` the next one goes on. The slow one records nothing any more, and ends nobody's hold but its own."""
    quick = client().conversation("chat-1", wait_s=0, **CHAT)
    with client().conversation("chat-1", hold_s=30, **CHAT) as slow:
        world.advance(31)
        run = quick.__enter__()
        with pytest.raises(RunTakenOver):
            slow.call("refund", {"order": "1"}, wait_s=0)
    with pytest.raises(RunBusy), client().conversation("chat-1", wait_s=0, **CHAT):
        pass
    assert run.call("refund", {"order": "1"}, wait_s=0).status is Status.PENDING
    quick.__exit__(None, None, None)
    with client().conversation("chat-1", wait_s=0, **CHAT):
        pass


def test_an_error_in_the_block_frees_the_run(world: World, client: Callable[..., Counterfoil], shop: Shop) -> None:
    """As does a closed run, which takes no call."""
    with pytest.raises(ZeroDivisionError), client().conversation("chat-1", **CHAT):
        raise ZeroDivisionError
    with client().conversation("chat-1", wait_s=0, **CHAT) as run:
        run.finish()


def test_in_an_event_loop(world: World, client: Callable[..., Counterfoil], shop: Shop) -> None:
    """`async with` waits without holding up the loop; a cancelled one leaves nothing held."""
    cf = client()

    async def main() -> list[Any]:
        async with cf.conversation("chat-1", **CHAT) as run:
            waits = asyncio.create_task(_enter(cf))
            await asyncio.sleep(0.2)
            told = await run.acall("refund", {"order": "1"}, wait_s=0)
            waits.cancel()
            with pytest.raises(asyncio.CancelledError):
                await waits
        async with cf.conversation("chat-1", wait_s=20, **CHAT) as again:
            return [told.status, await again.aso_far()]

    status, so_far = asyncio.run(main())
    assert status is Status.PENDING
    assert [told["status"] for told in so_far] == ["pending"]


async def _enter(cf: Counterfoil) -> None:
    async with cf.conversation("chat-1", wait_s=20, **CHAT):
        raise AssertionError("it is another's")
