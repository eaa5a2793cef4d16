"""What one run handle's caller has been told, where it hands no token back: ends count from the handle's next call on.

That survives the caller's death, since a new handle begins at the token that it is opened with. It does not survive an answer
that is lost on its way; a caller that gives `seen` with each call needs nothing of this.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable
from dataclasses import dataclass, field

from counterfoil.outbox.seen import NOTHING, Seen, Tokens, read_tokens, told


@dataclass(eq=False, slots=True)
class Visit:
    """One call on its way through a handle, and what its caller had been told when it arrived."""

    had: Seen
    turn: str = ""
    awaits: set[str] = field(default_factory=set)
    due: set[str] = field(default_factory=set)
    """Actions whose ends were handed to parallel calls of the handle meanwhile."""


class Memory:
    """Of one handle, in this process only. Thread-safe."""

    def __init__(self, tenant: str, run: str, seen: Tokens) -> None:
        """Raises `ArgumentError` for a token that is malformed or another run's."""
        self._lock = threading.Lock()
        self._key = tenant, run
        self._had = read_tokens(seen, tenant, run)
        self._handed = NOTHING
        self._visits: set[Visit] = set()

    def arrive(self, seen: Tokens | None, turn: str = "") -> Visit:
        """A call begins; end with `leave`. `seen` is all that counts as told; None: whatever was handed out before.

        Raises `ArgumentError` as above.
        """
        given = None if seen is None else read_tokens(seen, *self._key)
        with self._lock:
            if given is None:
                self._had = self._had.joined(self._handed)
                self._handed = NOTHING
            else:
                self._had = self._had.joined(given)
            visit = Visit(self._had if given is None else given, turn)
            self._visits.add(visit)
            return visit

    def ack(self, seen: Tokens) -> None:
        """The caller has written down the ends in these tokens. Raises `ArgumentError` as above."""
        given = read_tokens(seen, *self._key)
        with self._lock:
            self._had = self._had.joined(given)

    def expect(self, visit: Visit, action_id: str) -> None:
        """The call waits for this action, so its end is this call's to tell."""
        with self._lock:
            visit.awaits.add(action_id)

    def due(self, visit: Visit) -> frozenset[str]:
        """Actions whose ends parallel calls of the handle tell, or have told since this one arrived."""
        with self._lock:
            return frozenset(visit.due).union(*(other.awaits for other in self._visits if other is not visit))

    def leave(self, visit: Visit, ends: Iterable[tuple[str, int]] = ()) -> None:
        """The call returns with these ends, (action id, count of settled moves); none: nobody takes its answer."""
        handed = tuple(ends)
        with self._lock:
            self._visits.discard(visit)
            self._handed = self._handed.joined(told(handed, visit.turn))
            for other in self._visits:
                other.due.update(action_id for action_id, _ in handed)

    def show(self, ends: Iterable[tuple[str, int]]) -> None:
        """Ends that are told beside a call; they count from the next one on, like the others."""
        shown = told(ends)
        with self._lock:
            self._handed = self._handed.joined(shown)
