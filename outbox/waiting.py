"""Decides how a caller waits for an action: by reading its row now and then, with no transaction open in between."""

from __future__ import annotations

import math
import threading
import time
from collections import OrderedDict
from contextlib import AbstractContextManager

from counterfoil.ledger.connecting import within
from counterfoil.ledger.errors import NotFound
from counterfoil.ledger.queries import load
from counterfoil.ledger.states import SETTLED, State
from counterfoil.outbox.pool import OPERATION_S, LedgerPool, Row
from counterfoil.outbox.results import ANSWERED

POLL_FIRST_S = 0.05
POLL_LAST_S = 0.5
"""Most providers answer within a second; after that, half a second more or less is nobody's concern."""

LOOK_EVERY_S = 2.0
"""An uncertain row is asked for at most this often on behalf of this process's callers, however they poll."""

WAIT_S_MAX = 3600.0
_LOOKED_MAX = 1000

_SQL = load("counterfoil.ledger", "sql/agent.sql")


class Deadline:
    """When a wait ends: at most an hour from its beginning, or as soon as its caller gives up. Thread-safe."""

    def __init__(self, wait_s: float) -> None:
        self._end = time.monotonic() + (0.0 if math.isnan(wait_s) else min(max(wait_s, 0.0), WAIT_S_MAX))
        self._given_up = threading.Event()

    @property
    def left_s(self) -> float:
        """Seconds to wait yet; 0 when the wait is over."""
        return 0.0 if self._given_up.is_set() else max(0.0, self._end - time.monotonic())

    def bounds(self) -> AbstractContextManager[None]:
        """Within the block no statement is waited for beyond the end and the seconds that one operation may take."""
        return within(self._end + OPERATION_S - time.monotonic())

    def pause(self, pause_s: float) -> None:
        """Sleeps for `pause_s`, and never beyond the end."""
        self._given_up.wait(min(pause_s, self.left_s))

    def give_up(self) -> None:
        """The wait is over now."""
        self._given_up.set()


class Waiter:
    """Waits for actions on behalf of one process. Thread-safe."""

    def __init__(self, pool: LedgerPool) -> None:
        self._pool = pool
        self._lock = threading.Lock()
        self._looked: OrderedDict[str, float] = OrderedDict()

    def until_answered(
        self, action_id: str, until: Deadline, *, tenant: str | None = None, for_person: bool = False
    ) -> Row:
        """The row once it is settled or waits for a person (`for_person`: waits for that, too), else as it is at `until`.

        Where a reviewer has put another revision in its place, it is that one's row. An uncertain row is looked up at the
        provider now instead of on its schedule. Raises `NotFound`, also for a row of
        another tenant than `tenant`.
        """
        ends = SETTLED if for_person else ANSWERED
        pause_s = POLL_FIRST_S
        while True:  # ends at `until`, which is at most an hour away
            row = self._pool.row(_SQL["read_result"], {"action_id": action_id})
            if row is None or tenant not in (None, row["tenant"]):
                raise NotFound(f"there is no action {action_id} that this login may see.")
            self.look(row)
            if row["state"] in ends or not until.left_s:
                return row
            until.pause(pause_s)
            pause_s = min(pause_s * 1.5, POLL_LAST_S)

    def look(self, row: Row) -> None:
        """Has an uncertain action looked up at the provider now, unless that was asked for a moment ago."""
        action_id = str(row["action_id"])
        if row["state"] == State.UNCERTAIN and self._may_look(action_id):
            self._pool.row(_SQL["look_now"], {"action_id": action_id})

    def _may_look(self, action_id: str) -> bool:
        now = time.monotonic()
        with self._lock:
            if now - self._looked.get(action_id, -math.inf) < LOOK_EVERY_S:
                return False
            self._looked[action_id] = now
            self._looked.move_to_end(action_id)
            if len(self._looked) > _LOOKED_MAX:
                self._looked.popitem(last=False)
            return True
