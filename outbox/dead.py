"""Decides when a wake-up is dead: published often, never claimed, although workers that take its queue are up.

Then something in the row stops each worker before its claim, and one more publication would stop one more. It moves to
`outbox_dead`, the action stays as it is, and a person returns it once the cause is gone. While nobody takes a queue its
rows are not at fault: that is one alarm for the queue, and what was published to nobody is not counted.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime

import structlog

from counterfoil.ledger.connection import Ledger
from counterfoil.ledger.queries import load
from counterfoil.outbox.leasing import SEEN_WITHIN_S

UNSERVED_PUBLISHES = 3
"""Published so often and not claimed, a row is worth asking whether anybody takes its queue: a minute, by default. A fleet
that starts takes less."""

BURIED_MAX = 500
"""Rows buried in one statement; the next one takes the rest."""

_SQL = load("counterfoil.outbox", "sql/dead.sql")

log: structlog.stdlib.BoundLogger = structlog.get_logger("counterfoil.relay")


@dataclass(frozen=True, slots=True, kw_only=True)
class Burial:
    """What each relay does now and then. Any number may do it at once."""

    ledger: Ledger
    publishes_max: int
    lost_after_s: float

    def visit(self) -> int:
        """Buries dead wake-ups, opens and ends the alarms about them and about queues that nobody takes; returns how many
        were buried."""
        self._tell_unserved()
        dead = self.ledger.rows(
            _SQL["bury"],
            {"publishes_max": self.publishes_max, "seen_within_s": SEEN_WITHIN_S, "batch": BURIED_MAX},
            repeatable=False,  # a second run could not tell what the first one has buried; the alarm does
        )
        for queue in sorted({row["queue"] for row in dead}):
            ids = [row["action_id"] for row in dead if row["queue"] == queue]
            log.error("wake_ups_died", queue=queue, actions=ids)
        self.ledger.rows(_SQL["end_dead"], {})
        return len(dead)

    def is_taken(self, queue: str) -> bool:
        """Whether a worker that takes this queue was up in the last minute."""
        row = self.ledger.row(_SQL["is_taken"], {"queue": queue, "seen_within_s": SEEN_WITHIN_S})
        assert row is not None
        taken: bool = row["taken"]
        return taken

    def _tell_unserved(self) -> None:
        """In this order: a queue whose alarm ends gets its rows counted anew before any is buried."""
        served = {"seen_within_s": SEEN_WITHIN_S, "lost_after_s": self.lost_after_s}
        for row in self.ledger.rows(_SQL["end_unserved"], served):
            log.info("queue_served_again", queue=row["queue"])
        publishes = min(UNSERVED_PUBLISHES, self.publishes_max)
        unserved = {"seen_within_s": SEEN_WITHIN_S, "publishes": publishes}
        for row in self.ledger.rows(_SQL["tell_unserved"], unserved):
            log.error("queue_unserved", queue=row["queue"])


@dataclass(frozen=True, slots=True, kw_only=True)
class ListedQueue:
    """A queue, for people. Counts are of the rows that the login may see."""

    queue: str
    mode: str | None
    mode_since: datetime | None
    due: int
    """Due, and not published yet or not any more."""
    due_retries: int
    """Those of them that were tried before."""
    later: int
    """Not due yet: put back, or wanted later."""
    published: int
    """In the broker, unless they were lost; not claimed."""
    due_since: datetime | None
    """The longest waiting of those that are due."""
    dead: int
    is_served: bool
    now: datetime


@dataclass(frozen=True, slots=True, kw_only=True)
class DeadWakeUp:
    """A wake-up that nobody could claim. `state` is its action's."""

    action_id: str
    tenant: str
    run: str
    tool: str
    queue: str
    publish_count: int
    waited_since: datetime
    died_at: datetime
    state: str
    now: datetime


def list_queues(ledger: Ledger, *, tenant: str | None = None) -> list[ListedQueue]:
    """Every queue with wake-ups, alive or dead; the longest waiting first."""
    params = {"tenant": tenant, "seen_within_s": SEEN_WITHIN_S}
    return [ListedQueue(**row) for row in ledger.rows(_SQL["list_queues"], params)]


def list_dead(
    ledger: Ledger,
    *,
    tenant: str | None = None,
    queue: str | None = None,
    action_ids: Sequence[str] | None = None,
    limit: int,
) -> list[DeadWakeUp]:
    """Dead wake-ups that this login may see, the longest dead first."""
    ids = None if action_ids is None else list(action_ids)
    params = {"tenant": tenant, "queue": queue, "action_ids": ids, "limit": limit}
    return [DeadWakeUp(**row) for row in ledger.rows(_SQL["list_dead"], params)]


def revive(ledger: Ledger, action_id: str) -> bool:
    """Returns a dead wake-up to the outbox, due now and counted anew. False: it is not dead (any more), or another
    tenant's. An operator's."""
    row = ledger.row(_SQL["revive"], {"action_id": action_id}, repeatable=False)
    assert row is not None
    revived: bool = row["revived"]
    return revived
