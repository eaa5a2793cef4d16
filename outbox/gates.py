"""Decides what of a provider's queue is worth publishing now: what the fleet's limits leave, less what is on its way already.

Publishing more would only have the workers put it back, and would make the broker's queue long: what lies there is in
nobody's order but its own.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

QUEUE_PREFIX = "cf-"
"""A provider's queue is this and the provider's name."""

Held = Literal["paused", "draining", "breaker", "budget", "store_away", "high_water", "unserved"]
"""Why something of a queue is not claimed for now."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Gate:
    """What the fleet's limits leave room for. Publishing more would only have the workers put it back."""

    open_in_s: float = 0.0
    """Until then nothing; 0 = now."""
    firsts: int
    """First attempts that may go."""
    retries: int
    """Retries that may go besides."""
    known: bool = True
    """False: the store is away, so only first attempts go."""


GateOf = Callable[[str], Gate]
"""By provider. Takes nothing, so it may be asked as often as one likes."""


def always_open(provider: str) -> Gate:
    """No limits: for tests, and for programs that run workers without any."""
    return Gate(firsts=1_000_000, retries=1_000_000)


def provider_of(queue: str) -> str:
    """Whose queue it is."""
    return queue.removeprefix(QUEUE_PREFIX)


@dataclass(frozen=True, slots=True, kw_only=True)
class Load:
    """What stands in a queue, and what of it is in the broker."""

    queue: str
    mode: Literal["paused", "draining"] | None
    """None: running."""
    is_served: bool
    """A worker that takes this queue was seen within the last minute."""
    due_firsts: int
    due_retries: int
    """Due rows, counted up to one more than a batch."""
    in_flight: int
    """Published, and neither claimed nor due again. What a worker has put back does not count."""
    firsts_out: int
    retries_out: int
    """The same, but of the last `lost_after_s` only: older ones are lost, or will never be claimed."""
    longest_wait_s: float
    """For how long the oldest row that was published once has waited for its claim."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Room:
    """How many rows of each kind may leave the outbox now, and how many together."""

    rows: int
    firsts: int
    retries: int
    taking_back_only: bool = False
    """Of the firsts only what takes back or corrects something."""

    @property
    def is_none(self) -> bool:
        return self.rows <= 0 or (self.firsts <= 0 and self.retries <= 0)


def room_in(load: Load, gate: Gate, *, window: int) -> Room:
    """What may be published of a queue whose part in the broker may be `window` rows."""
    if load.mode == "paused" or gate.open_in_s > 0:
        return Room(rows=0, firsts=0, retries=0)
    left = max(0, window - load.in_flight)
    return Room(
        rows=left,
        firsts=max(0, min(left, gate.firsts - load.firsts_out)),
        retries=max(0, min(left, gate.retries - load.retries_out)) if gate.known else 0,
        taking_back_only=load.mode == "draining",
    )


def held_by(
    *, mode: str | None, due_retries: int, published: int, is_served: bool, gate: Gate | None, high_water: int
) -> list[Held]:
    """What keeps rows of a queue from being claimed, for people; without a gate, as far as Postgres knows."""
    held: list[Held] = []
    if mode == "paused":
        held.append("paused")
    elif mode == "draining":
        held.append("draining")
    if gate is not None and gate.open_in_s > 0:
        held.append("breaker")
    elif gate is not None and not gate.known:
        held.append("store_away")
    elif gate is not None and gate.retries <= 0 and due_retries:
        held.append("budget")
    if published >= high_water:
        held.append("high_water")
    if not is_served:
        held.append("unserved")
    return held


@dataclass(slots=True, kw_only=True)
class Window:
    """How many rows of one queue may lie in the broker: as many as are claimed within seconds, at most `rows_max`.

    A long queue in the broker is first come, first served: there one tenant's many rows would stand before another's one,
    and rows that merely wait would be published again as lost. So the window shrinks when a row waits for longer than
    `wait_max_s`, and grows again while all that it lets through is claimed at once.
    """

    rows_min: int
    rows_max: int
    wait_max_s: float
    rows: int
    """At present."""
    _was_full: bool = False
    _shrunk_at: float = float("-inf")

    def fit(self, load: Load, now: float) -> int:
        """The rows of this pass; `now` is monotonic, in seconds."""
        if load.longest_wait_s > self.wait_max_s:
            if now - self._shrunk_at >= self.wait_max_s:  # once for one queue that stands still, not once a pass
                self.rows = max(self.rows_min, min(self.rows, load.in_flight) // 2)
                self._shrunk_at = now
        elif self._was_full and load.in_flight * 2 <= self.rows:
            self.rows = min(self.rows_max, self.rows * 2)
        self._was_full = False
        return self.rows

    def took(self, load: Load, leased: int) -> None:
        """How many rows this pass has added; a window that was not filled has no reason to grow."""
        self._was_full = load.in_flight + leased >= self.rows
