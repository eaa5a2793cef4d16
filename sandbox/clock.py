"""Decides what time it is in the sandbox: the real clock plus an offset, and every wait is on that time."""

from __future__ import annotations

import asyncio
import heapq
import itertools
import time
from collections.abc import Callable


class Clock:
    """Virtual time in seconds since the epoch; it never goes backwards except by a reset.

    A wait or a late landing ends at its virtual time: when that much real time has passed or the clock was advanced past
    it, whichever comes first.
    """

    def __init__(self, offset_s: float = 0.0) -> None:
        self.offset_s = offset_s
        self._due: list[tuple[float, int, Callable[[], None]]] = []
        self._tie = itertools.count()

    def now(self) -> float:
        return time.time() + self.offset_s

    def advance(self, seconds: float) -> None:
        """Moves the time on and runs, in order, whatever has become due before it returns."""
        self.offset_s += seconds
        self._run_due()

    def call_at(self, when: float, action: Callable[[], None]) -> None:
        """Runs `action` once at virtual time `when`, on the event loop."""
        heapq.heappush(self._due, (when, next(self._tie), action))
        # A timer may fire a hair early by the other clock; the small excess saves a second timer.
        asyncio.get_running_loop().call_later(max(0.0, when - self.now()) + 0.001, self._run_due)

    async def sleep(self, seconds: float) -> None:
        if seconds <= 0:
            return
        done = asyncio.get_running_loop().create_future()
        self.call_at(self.now() + seconds, lambda: None if done.done() else done.set_result(None))
        await done

    def reset(self) -> None:
        """Back to real time; waits end at once, so that nothing of before hangs."""
        due, self._due = self._due, []
        self.offset_s = 0.0
        for _, _, action in sorted(due):
            action()

    def _run_due(self) -> None:
        while self._due and self._due[0][0] <= self.now():
            heapq.heappop(self._due)[2]()
