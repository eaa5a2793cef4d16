"""Where an `async def` tool runs: one loop for the process, a bounded wait, and nothing left on its way."""

from __future__ import annotations

import asyncio
import multiprocessing
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from counterfoil.ledger.errors import ToolDefinitionError
from counterfoil.providers import coroutines
from counterfoil.providers.coroutines import CoroutineTimeout, run
from counterfoil.providers.tool import tool


async def loop_of() -> int:
    return id(asyncio.get_running_loop())


def test_one_loop_for_all_threads_of_a_process() -> None:
    """A client that is kept at module level has one loop for its connections."""
    with ThreadPoolExecutor(4) as threads:
        loops = set(threads.map(lambda _: run(loop_of()), range(8)))
    assert loops == {run(loop_of())}


def _child(pipe: Any) -> None:
    pipe.send(run(asyncio.sleep(0, "in the child")))


def test_a_forked_child_has_a_loop_of_its_own() -> None:
    """The parent's has no thread there."""
    run(loop_of())
    context = multiprocessing.get_context("fork")
    ours, theirs = context.Pipe()
    child = context.Process(target=_child, args=(theirs,))
    child.start()
    assert ours.poll(60)
    assert ours.recv() == "in the child"
    child.join(60)
    assert child.exitcode == 0


def test_what_takes_too_long_is_cancelled_and_has_ended() -> None:
    """The wait is over when nothing of it is on its way any more."""
    ended = threading.Event()

    async def slow() -> None:
        try:
            await asyncio.sleep(3600)
        finally:
            ended.set()

    with pytest.raises(CoroutineTimeout):
        run(slow(), timeout_s=0.05)
    assert ended.is_set()


def test_its_own_exception_comes_out_as_it_is() -> None:
    """With its cause, by which it is judged."""

    async def fails() -> None:
        raise ConnectionError("lost") from OSError("reset")

    with pytest.raises(ConnectionError) as caught:
        run(fails(), timeout_s=5)
    assert isinstance(caught.value.__cause__, OSError)


def test_an_interrupt_of_the_waiting_thread_ends_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """A soft time limit or Ctrl-C while it waits: the coroutine is cancelled before the exception goes on."""
    ended, began = threading.Event(), threading.Event()

    async def slow() -> None:
        began.set()
        try:
            await asyncio.sleep(3600)
        finally:
            ended.set()

    class Limit(Exception):
        pass

    submitted = asyncio.run_coroutine_threadsafe

    def interrupted(*given: Any) -> Any:
        future = submitted(*given)
        assert began.wait(60)

        def result() -> None:
            raise Limit

        future.result = result  # type: ignore[method-assign,assignment]
        return future

    monkeypatch.setattr(coroutines.asyncio, "run_coroutine_threadsafe", interrupted)
    with pytest.raises(Limit):
        run(slow())
    assert ended.is_set()


def test_a_generator_is_no_tool() -> None:
    """The refusal says how to write it."""
    with pytest.raises(ToolDefinitionError, match="yield nothing"):

        @tool(cls="pure")
        async def stream(order: str) -> Any:
            yield order
