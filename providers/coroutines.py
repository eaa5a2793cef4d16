"""Runs what an `async def` tool returns: on one event loop for the process, in a thread of its own, for as long as it lives.

An async client with its pool of connections can so be kept at module level, as in an application. Forked children begin anew.
"""

from __future__ import annotations

import asyncio
import inspect
import os
import threading
from collections.abc import Callable, Coroutine, Mapping
from typing import Any, TypeVar

T = TypeVar("T")

ENDS_WITHIN_S = 5.0
"""A coroutine that is cancelled has this long to close what it holds."""

_lock = threading.Lock()
_loops: dict[int, asyncio.AbstractEventLoop] = {}
"""By process: a parent's loop has no thread in its child."""


class CoroutineTimeout(Exception):
    """It took longer than its call may, and was cancelled. What it had sent by then nobody knows."""


def called(
    function: Callable[..., object], arguments: Mapping[str, object], *, timeout_s: float | None = None
) -> object:
    """What the function returns; of a coroutine, what it comes to (`run`)."""
    answer = function(**arguments)
    return run(answer, timeout_s=timeout_s) if inspect.iscoroutine(answer) else answer


def run(coroutine: Coroutine[Any, Any, T], *, timeout_s: float | None = None) -> T:
    """What the coroutine returns or raises; the calling thread waits. Not for the loop's own thread.

    After `timeout_s` it is cancelled, and `CoroutineTimeout` raised. An exception that meets the waiting thread (a time limit
    of Celery's, Ctrl-C) cancels it, too, and is raised once it has ended, so that nothing of it is still on its way.
    """
    ended = threading.Event()

    async def whole() -> T:
        limit = asyncio.timeout(timeout_s)
        try:
            async with limit:
                return await coroutine
        except TimeoutError as error:
            if limit.expired():
                raise CoroutineTimeout from error
            raise  # a client's own
        finally:
            ended.set()

    future = asyncio.run_coroutine_threadsafe(whole(), _loop())
    try:
        return future.result()
    except BaseException:
        if not future.done():
            future.cancel()
            ended.wait(ENDS_WITHIN_S)
        raise


def _loop() -> asyncio.AbstractEventLoop:
    with _lock:
        loop = _loops.get(os.getpid())
        if loop is None:
            loop = asyncio.new_event_loop()
            _loops.clear()
            _loops[os.getpid()] = loop
            threading.Thread(target=loop.run_forever, name="counterfoil-coroutines", daemon=True).start()
        return loop
