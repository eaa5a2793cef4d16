"""Decides which due wake-ups one pass takes for publishing: all of a short queue, of a long one a few of each tenant.

Where all that is due fits, the longest waiting go. Else the relay walks over the queue's tenants and takes a few rows of
each, then the rest in equal parts, so that a tenant's single action waits for a walk, never for another's backlog. First
attempts and retries take turns at the first half of the room.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from counterfoil.ledger.claims import WakeUp
from counterfoil.ledger.connection import Ledger, Row
from counterfoil.ledger.queries import Query, load
from counterfoil.outbox.gates import Load, Room

QUEUES_MAX = 1000
"""Queues looked at in one pass, those waiting longest first."""

LOST_AFTER_MAX_S = 600.0
"""However often a wake-up was published for nothing, it is published again within this."""

SEEN_WITHIN_S = 60.0
"""A worker tells that it is up every few seconds; one that was silent for a minute is gone, or as good as gone."""

PER_TENANT = 5
"""Rows of one tenant in one walk: few, so that a walk is short; more than one, so that its statement is worth its price."""

TENANTS_MAX = 1000
"""Tenants that one walk visits: 10 ms. Of more, the next pass visits the next ones."""

WALKS_MAX = 6
"""Walks of one pass; two or three are enough, unless tenants run out of rows one after the other."""

NO_LIMIT = 2**31 - 1

_SQL = load("counterfoil.outbox", "sql/relay.sql")


@dataclass(frozen=True, slots=True, kw_only=True)
class Leased:
    """An outbox row that is this relay's to publish until its `not_before`."""

    outbox_id: int
    action_id: str
    generation: int
    publish_count: int

    @property
    def wake_up(self) -> WakeUp:
        return WakeUp(self.action_id, self.generation)


@dataclass(slots=True, kw_only=True)
class Leasing:
    """One relay's leases. Whatever becomes of the relay, a leased row is due again when its lease ends."""

    ledger: Ledger
    batch: int
    """Rows of one queue taken at a time, so that none waits for its publication for longer than a blink."""
    lost_after_s: float
    publishes_max: int
    _after: dict[tuple[str, bool], str] = field(default_factory=dict)
    """Where the walk over a queue's tenants goes on, by queue and kind."""
    _retries_first: bool = False

    def loads(self) -> list[Load]:
        """The queues with due rows, the longest waiting first."""
        params = {
            "batch": self.batch,
            "queues_max": QUEUES_MAX,
            "seen_within_s": SEEN_WITHIN_S,
            **self._timer,
        }
        return [Load(**row) for row in self.ledger.rows(_SQL["due_queues"], params)]

    def lease(self, load: Load, room: Room) -> list[Leased]:
        """At most a batch of rows, and at most what there is room for. Fewer, where another relay was faster."""
        rows = min(self.batch, room.rows)
        self._retries_first = not self._retries_first
        kinds = (True, False) if self._retries_first else (False, True)
        due = {False: min(load.due_firsts, room.firsts), True: min(load.due_retries, room.retries)}
        leased: list[Leased] = []
        for place, is_retry in enumerate(kinds):
            left = rows - len(leased)
            # The kind whose turn it is leaves the other one half of the room, if it wants it.
            share = left if place else max(left - due[not is_retry], (left + 1) // 2)
            wanted = min(due[is_retry], share)
            if wanted > 0:
                leased += self._lease_kind(load, room, is_retry=is_retry, rows=wanted)
        return leased

    def give_back(self, leased: Sequence[Leased]) -> None:
        """Due again at once, and not counted as published: an outage says nothing about the rows."""
        self.ledger.rows(
            _SQL["give_back"],
            {
                "outbox_ids": [row.outbox_id for row in leased],
                "generations": [row.generation for row in leased],
                "publish_counts": [row.publish_count for row in leased],
            },
        )

    def _lease_kind(self, load: Load, room: Room, *, is_retry: bool, rows: int) -> list[Leased]:
        if room.taking_back_only and not is_retry:
            return self._take("lease_taking_back", load, rows=rows)
        all_due = load.due_retries if is_retry else load.due_firsts
        if all_due <= rows:
            return self._take("lease_oldest", load, rows=rows, is_retry=is_retry)
        return self._lease_fairly(load, is_retry=is_retry, rows=rows)

    def _lease_fairly(self, load: Load, *, is_retry: bool, rows: int) -> list[Leased]:
        """A few rows of each tenant, then what is left in equal parts, until there is no room or nobody has any. Where there
        are too many tenants for one pass the longest waiting get the rest, and the next pass goes on from here."""
        leased: list[Leased] = []
        per_tenant = max(1, min(PER_TENANT, rows // 4))  # shorter steps where there is little room
        for _ in range(WALKS_MAX):
            from_first = not self._after.get((load.queue, is_retry))
            found, tenants = self._walk(load, is_retry=is_retry, rows=rows - len(leased), per_tenant=per_tenant)
            leased += found
            left, cut_short = rows - len(leased), bool(self._after[load.queue, is_retry])
            if not left:
                return leased
            if cut_short or (from_first and not found):
                break
            if from_first:
                per_tenant = max(per_tenant, -(-left // tenants))
        return leased + self._take("lease_oldest", load, rows=rows - len(leased), is_retry=is_retry)

    def _walk(self, load: Load, *, is_retry: bool, rows: int, per_tenant: int) -> tuple[list[Leased], int]:
        """What it found, and of how many tenants. Begins where the last one was cut short, by room or by tenants."""
        found = self._rows(
            "lease_fairly",
            load,
            rows=rows,
            is_retry=is_retry,
            after=self._after.get((load.queue, is_retry), ""),
            per_tenant=per_tenant,
            tenants_max=TENANTS_MAX,
        )
        self._after[load.queue, is_retry] = str(found[0]["next_after"])
        leased = [row for row in found if row["outbox_id"] is not None]
        return [_leased(row) for row in leased], len({row["tenant"] for row in leased})

    def _take(self, name: str, load: Load, **params: object) -> list[Leased]:
        return [_leased(row) for row in self._rows(name, load, **params)]

    def _rows(self, name: str, load: Load, **params: object) -> list[Row]:
        query: Query = _SQL[name]
        everything: dict[str, object] = {
            "queue": load.queue,
            # What was published that often is for the burial, unless nobody is there to claim anything.
            "publishes_below": self.publishes_max if load.is_served else NO_LIMIT,
            **self._timer,
            **params,
        }
        # Not repeatable: a second run would lease other rows and leave the first ones to their timer.
        return self.ledger.rows(query, everything, repeatable=False)

    @property
    def _timer(self) -> dict[str, object]:
        return {"lost_after_s": self.lost_after_s, "lost_after_max_s": LOST_AFTER_MAX_S}


def _leased(row: Row) -> Leased:
    return Leased(**{name: row[name] for name in ("outbox_id", "action_id", "generation", "publish_count")})
