"""Decides which results a run handle's caller has had: those handed out before its next call, or acknowledged."""

from __future__ import annotations

import threading
from collections.abc import Iterable


class Memory:
    """What one handle has told its caller. In this process only: a new handle begins at its `seen`. Thread-safe."""

    def __init__(self, seen: int) -> None:
        self._lock = threading.Lock()
        self._seen = seen
        self._had: set[str] = set()
        self._awaited: dict[str, int] = {}
        self._returned: set[str] = set()
        self._shown: set[str] = set()

    def arrive(self) -> tuple[int, frozenset[str]]:
        """A call begins, so its caller has written down all that was handed out before: (`seen`, had)."""
        with self._lock:
            self._had |= self._returned | self._shown
            self._returned.clear()
            self._shown.clear()
            return self._seen, frozenset(self._had)

    def ack(self, seq: int) -> None:
        """The caller has written down the results up to `seq`."""
        with self._lock:
            self._seen = max(self._seen, seq)

    def due(self) -> frozenset[str]:
        """Actions whose results a call of this handle waits for, or has just returned."""
        with self._lock:
            return frozenset(self._returned).union(self._awaited)

    def expect(self, action_id: str) -> None:
        """A call begins to wait for this result; end with `hand_out`."""
        with self._lock:
            self._awaited[action_id] = self._awaited.get(action_id, 0) + 1

    def hand_out(self, action_id: str, *, settled: bool) -> None:
        """The waiting call returns. Only a settled result counts as handed out."""
        with self._lock:
            self._awaited[action_id] -= 1
            if not self._awaited[action_id]:
                del self._awaited[action_id]
            if settled:
                self._returned.add(action_id)

    def show(self, action_ids: Iterable[str]) -> None:
        """Settled results that are told on the way; had at the next call, like the others."""
        with self._lock:
            self._shown.update(action_ids)
