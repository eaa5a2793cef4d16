"""Decides how an agent under test waits: what it waits for is worked off in its own thread, and time is moved, not spent."""

from __future__ import annotations

import threading
from contextlib import AbstractContextManager
from dataclasses import replace

from counterfoil.client import Counterfoil
from counterfoil.outbox.pool import Row
from counterfoil.outbox.waiting import Deadline, Waiter
from counterfoil.testing.world import World
from counterfoil.workers.points import Point


class PlayedCounterfoil(Counterfoil):
    """A Counterfoil whose relay, worker and reconciler are `world`, and run while a call waits, or in `settle`.

    A call returns as soon as nothing moves any more within its `wait_s` of the moved clock, and so never sleeps.
    """

    def __init__(self, database: str, *, world: World) -> None:
        super().__init__(database, settings=world.settings, registry=world.registry)
        self.url = database
        """Where it connects, under an agent's login with a schema of its own: for handlers that open their own connection."""
        self.world = world
        self._playing = threading.Lock()
        self._waiter = _PlayedWaiter(self)
        self._shared = replace(self._shared, waiter=self._waiter)

    def settle(self) -> None:
        """Works everything off, moving the clock where all wait for a time. What waits for a person stays."""
        with self._playing:
            self.world.settle()

    def settle_within(self, seconds: float) -> None:
        """Works off what moves within these seconds of the clock."""
        with self._playing:
            self.world.settle_within(seconds)

    def crash_after(self, point: Point, *, tool: str = "", times: int = 1) -> AbstractContextManager[None]:
        """Within the block the worker dies at `point`, as by `kill -9`, `times` times; then a new one takes over."""
        return self.world.crash_after(point, tool=tool, times=times)


class _PlayedWaiter(Waiter):
    """Plays the world in place of the pause between two readings."""

    def __init__(self, played: PlayedCounterfoil) -> None:
        super().__init__(played._pool)
        self._played = played

    def until_answered(
        self, action_id: str, until: Deadline, *, tenant: str | None = None, for_person: bool = False
    ) -> Row:
        """The row as it is once nothing moves any more within the wait."""
        if until.left_s:
            self._played.settle_within(until.left_s)
            until.give_up()
        return super().until_answered(action_id, until, tenant=tenant, for_person=for_person)
