"""Calls from an event loop: the same answers, a loop that goes on, and nothing lost or doubled by a cancelled task."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable
from contextlib import AbstractContextManager, suppress
from typing import TYPE_CHECKING, Any

import pytest

from counterfoil import Counterfoil, NotAllowed, NotFound, Result, Run, RunTakenOver, Status
from counterfoil.outbox.calling import Calls
from counterfoil.outbox.threads import THREADS_MAX
from counterfoil.testing import World

if TYPE_CHECKING:
    from tests.acceptance.shop import Shop

Working = Callable[[], AbstractContextManager[None]]


@pytest.fixture
def cf(shop: Shop, client: Callable[..., Counterfoil]) -> Counterfoil:
    """The application's client."""
    return client()


def opened(cf: Counterfoil, run: str = "r1") -> Run:
    return cf.run(run, tenant="acme", actor="bot")


def test_parallel_calls_of_a_turn_queue_up(shop: Shop, cf: Counterfoil, working: Working, sql: Any) -> None:
    """Three calls that are gathered are done one after the other, each answered about itself, while the loop goes on."""

    async def turn() -> tuple[list[Result], int]:
        ticks = 0

        async def tick() -> None:
            nonlocal ticks
            while True:  # ends when it is cancelled
                await asyncio.sleep(0.005)
                ticks += 1

        async with opened(cf) as run:
            ticking = asyncio.create_task(tick())
            results = await asyncio.gather(*(run.acall("refund", {"order": order}, ref=order) for order in "123"))
            ticking.cancel()
        return results, ticks

    with working():
        results, ticks = asyncio.run(turn())
    assert [(result.status, result.arguments) for result in results] == [(Status.SUCCEEDED, None)] * 3
    assert sorted(str(result.seq) for result in results) == ["1", "2", "3"]
    assert sorted(shop.effects) == [("refund", order, "500") for order in "123"]
    assert ticks >= 5
    assert sql("SELECT calls_count FROM counterfoil.run") == [(3,)]


def test_seventy_waiting_calls_starve_nobody(world: World, cf: Counterfoil) -> None:
    """While more calls wait than there are threads, the loop's own threads are free, and no call's time begins anew."""

    async def turn() -> tuple[float, float]:
        async with opened(cf) as run:
            began = time.monotonic()
            calls = [asyncio.create_task(run.acall("refund", {"order": "1"}, wait_s=2)) for _ in range(THREADS_MAX + 6)]
            await asyncio.sleep(0.3)
            asked = time.monotonic()
            await asyncio.gather(*(asyncio.to_thread(threading.get_ident) for _ in range(5)))
            free_after_s = time.monotonic() - asked
            statuses = {result.status for result in await asyncio.gather(*calls)}
        assert statuses == {Status.PENDING}
        return free_after_s, time.monotonic() - began

    free_after_s, all_s = asyncio.run(turn())
    assert free_after_s < 1
    assert all_s < 10, "those that waited for a thread did not begin their time anew"
    assert world.states() == {"refund/1/do": "ready"}


def test_a_cancelled_call_loses_and_doubles_nothing(world: World, shop: Shop, cf: Counterfoil, sql: Any) -> None:
    """What a cancelled task has recorded goes on; the same call finds it, and only the next one is another wish."""

    async def turn() -> tuple[float, list[Result]]:
        async with opened(cf) as run:
            call = asyncio.create_task(run.acall("refund", {"order": "1"}))
            while not await asyncio.to_thread(sql, "SELECT 1 FROM counterfoil.action"):
                await asyncio.sleep(0.01)
            asked = time.monotonic()
            await cancelled(call)
            waited_s = time.monotonic() - asked
            await asyncio.to_thread(world.settle)
            return waited_s, [await run.acall("refund", {"order": "1"}, wait_s=0) for _ in range(2)]

    waited_s, (same, other) = asyncio.run(turn())
    assert waited_s < 1
    assert (same.status, same.seq, same.replayed) == (Status.SUCCEEDED, 1, True)
    assert (other.status, other.seq) == (Status.PENDING, 2)
    assert shop.count("refund") == 1


def test_a_result_that_reached_nobody_was_not_had(
    world: World, shop: Shop, cf: Counterfoil, working: Working, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Cancelled between the thread's answer and its delivery, the result is told again: one effect, not two."""
    answered, outcome = threading.Event(), Calls._outcome

    def told(*given: Any) -> Any:
        try:
            return outcome(*given)
        finally:
            answered.set()

    async def turn() -> Result:
        async with opened(cf) as run:
            call = asyncio.create_task(run.acall("refund", {"order": "1"}))
            await asyncio.sleep(0)
            assert answered.wait(20), "the loop stands still meanwhile, so nothing is delivered"
            await cancelled(call)
            return await run.acall("refund", {"order": "1"})

    monkeypatch.setattr(Calls, "_outcome", told)
    with working():
        again = asyncio.run(turn())
    assert (again.status, again.seq, again.replayed) == (Status.SUCCEEDED, 1, True)
    assert shop.effects == [("refund", "1", "500")]


def test_a_call_that_had_no_thread_yet_is_never_made(
    world: World, cf: Counterfoil, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A task that is cancelled before its call began leaves no trace."""
    monkeypatch.setattr("counterfoil.outbox.threads.THREADS_MAX", 1)

    async def turn() -> None:
        async with opened(cf) as run:
            first = asyncio.create_task(run.acall("refund", {"order": "1"}, wait_s=1))
            second = asyncio.create_task(run.acall("send_note", {"order": "2"}, wait_s=0))
            await asyncio.sleep(0.1)
            await cancelled(second)
            assert (await first).status is Status.PENDING

    asyncio.run(turn())
    assert world.states() == {"refund/1/do": "ready"}


def test_the_loop_opens_a_run_in_a_thread(world: World, cf: Counterfoil, client: Any) -> None:
    """`async with`, or else the first call, opens the run and takes it over; refusals come where it is opened."""
    older = opened(cf)

    async def turn() -> None:
        run = opened(cf)
        await older.acall("refund", {"order": "1"}, wait_s=0)  # not opened yet, so nothing is taken over
        await run.acall("refund", {"order": "1"}, wait_s=0)
        with pytest.raises(RunTakenOver):
            await older.acall("refund", {"order": "1"}, wait_s=0)
        async with run.child("a") as child:
            assert (await child.acall("refund", {"order": "2"}, wait_s=0)).seq == 1
        with pytest.raises(NotAllowed):
            async with client("agent2").run("r1", tenant="acme", actor="bot"):
                raise AssertionError("not this tenant's login")

    asyncio.run(turn())


def test_waiting_for_a_result(world: World, cf: Counterfoil, working: Working) -> None:
    """`aresult` waits for the end like `result`, and a cancelled caller stops the waiting."""

    async def turn() -> Result:
        async with opened(cf) as run:
            asked = await run.acall("refund", {"order": "1"}, wait_s=0)
        assert asked.action_id is not None
        waiting = asyncio.create_task(cf.aresult(asked.action_id, wait_s=3600))
        await asyncio.sleep(0.1)
        await cancelled(waiting)
        with pytest.raises(NotFound):
            await cf.aresult(asked.action_id, tenant="globex")
        with working():
            return await cf.aresult(asked.action_id, wait_s=20)

    assert asyncio.run(turn()).status is Status.SUCCEEDED


async def cancelled(task: asyncio.Task[Any]) -> None:
    """Cancels the task and waits until it has ended so."""
    task.cancel()
    with suppress(asyncio.CancelledError):
        await task
    assert task.cancelled()
