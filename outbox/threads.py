"""Decides where a call waits while an event loop goes on: in threads of our own, the same code as without a loop."""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from contextvars import copy_context
from typing import TypeVar

T = TypeVar("T")

THREADS_MAX = 64
"""Calls that wait at the same time; more wait for a thread, while their time runs. Each costs little: it sleeps mostly."""


class Threads:
    """One process's threads for waiting, apart from the event loop's own. Thread-safe; a forked child begins anew."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._pool: ThreadPoolExecutor | None = None
        self._pid = 0

    async def run(self, work: Callable[[], T], *, on_cancel: Callable[[Future[T]], None]) -> T:
        """Runs `work` in a thread and gives what it returns or raises.

        A cancelled caller stops waiting at once. Work that has begun goes on to its end; `on_cancel` is told of it, to
        see to what it returns. Work that has not begun never does.
        """
        future = self._executor().submit(copy_context().run, work)
        try:
            return await asyncio.wrap_future(future)
        except asyncio.CancelledError:
            on_cancel(future)
            raise

    def close(self) -> None:
        """Waits for nobody; threads end when their calls do."""
        with self._lock:
            pool, self._pool = self._pool, None
        if pool is not None and self._pid == os.getpid():
            pool.shutdown(wait=False)

    def _executor(self) -> ThreadPoolExecutor:
        with self._lock:
            if self._pool is None or self._pid != os.getpid():  # a parent's threads are not in the child
                self._pid = os.getpid()
                self._pool = ThreadPoolExecutor(THREADS_MAX, thread_name_prefix="counterfoil")
            return self._pool


def in_event_loop() -> bool:
    """Whether this thread runs an event loop, which nothing here may hold up."""
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return False
    return True
