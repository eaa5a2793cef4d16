"""Decides what other limits would have meant for a provider's recorded attempts. Pure: a model of the limits, no store.

The attempts are asked for again at their times, each as a batch of its own; those that have to wait go in their order, first
attempts and retries of each tenant apart, and what came of each is what was recorded. So it shows which attempts would have
waited, not what else would then have happened: a provider that is asked less may answer better.
"""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from counterfoil.workers.kinds import Ask, Kind, Reason, Result
from counterfoil.workers.limiter import Limiter, Limits

AFTER_MS = 60_000.0
"""What still waits so long after the last attempt is told as still waiting: its end is not in the record."""

BEFORE_MS = 1_000.0
"""It begins so long before the first attempt, so that its rate has room for as much at once as it may have."""

ASKS_MAX = 1_000_000
"""Of one replay, all attempts together; some seconds."""

REASONS: Mapping[Reason, frozenset[str]] = {
    "breaker": frozenset({"failures_min", "failure_ratio", "window_ms", "open_ms", "open_max_ms"}),
    "concurrency": frozenset({"concurrency_max"}),
    "rate": frozenset({"rate_per_s"}),
    "budget": frozenset(
        {
            "tokens_max",
            "refill_per_success",
            "refill_per_min",
            "cost_after_timeout",
            "cost_after_throttle",
            "tenant_share",
        }
    ),
    "ratio": frozenset({"ratio_max", "retries_per_min_min"}),
}
"""Which limits are behind which reason to wait."""

LESS_IS_MORE = frozenset({"cost_after_timeout", "cost_after_throttle", "open_ms", "open_max_ms"})
"""Limits that let more through when they are lower; a window may do either."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Tried:
    """One recorded attempt. Times in milliseconds."""

    tenant: str
    kind: Kind
    started_ms: float
    finished_ms: float | None
    """None: nobody has told (a worker died), so its lease ends by itself."""
    result: Result


@dataclass(slots=True, kw_only=True)
class Told:
    """What one set of limits would have meant."""

    firsts: int = 0
    retries: int = 0
    firsts_waited: int = 0
    """First attempts that would have had to wait at least once."""
    retries_waited: int = 0
    firsts_by: dict[str, int] = field(default_factory=dict)
    """The first reason of each."""
    retries_by: dict[str, int] = field(default_factory=dict)
    waited_ms_max: float = 0.0
    """The longest wait of one that went in the end."""
    held: int = 0
    """Still waiting at the end."""
    openings: int = 0
    """Times that the breaker would have opened."""


def tried_of(rows: Sequence[Mapping[str, Any]]) -> list[Tried]:
    """Attempts from rows (action_id, tenant, number, started_at, finished_at, outcome, has_more_to_come), oldest first.

    What each was, first attempt or retry and after what, is told by the one before it of the same action.
    """
    last_of = {row["action_id"]: place for place, row in enumerate(rows)}
    before: dict[str, str | None] = {}
    found = []
    for place, row in enumerate(rows):
        action_id, outcome = row["action_id"], row["outcome"]
        found.append(
            Tried(
                tenant=row["tenant"],
                kind=_kind(row["number"], action_id in before, before.get(action_id)),
                started_ms=_ms(row["started_at"]),
                finished_ms=None if row["finished_at"] is None else _ms(row["finished_at"]),
                result=_result(outcome, has_more=place != last_of[action_id] or bool(row["has_more_to_come"])),
            )
        )
        if outcome != "let_go":
            before[action_id] = outcome
    return found


def replay(tried: Sequence[Tried], limits: Limits, *, lease_ms: float) -> Told:
    """Asks a fleet's limits for each attempt again. Begins with a full budget and a closed breaker."""
    replayed = _Replay(limits=limits, lease_ms=lease_ms, tried=[t for t in tried if t.result is not Result.UNUSED])
    if replayed.tried:
        replayed.run()
    return replayed.told


_END, _ARRIVAL, _AGAIN = range(3)
"""What happens, in its order at one time: a call ends, an attempt is wanted, the first of a line asks again."""

_Line = tuple[bool, str]
"""First attempts or retries of one tenant, which wait in order."""


@dataclass(slots=True, kw_only=True)
class _Replay:
    limits: Limits
    lease_ms: float
    tried: Sequence[Tried]
    told: Told = field(default_factory=Told)
    limiter: Limiter = field(init=False)
    events: list[tuple[float, int, int]] = field(default_factory=list)
    """(time, what, the attempt's place or the line's number): a heap."""
    lines: dict[_Line, deque[int]] = field(default_factory=dict)
    names: list[_Line] = field(default_factory=list)
    reasons: dict[_Line, str] = field(default_factory=dict)
    """Why the first of each line waits."""
    asks: int = 0

    def run(self) -> None:
        self.limiter = Limiter.fresh(self.tried[0].started_ms - BEFORE_MS, self.limits)
        self.events = [(each.started_ms, _ARRIVAL, place) for place, each in enumerate(self.tried)]
        heapq.heapify(self.events)
        until_ms = max(each.started_ms for each in self.tried) + AFTER_MS
        while self.events and self.events[0][0] <= until_ms and self.asks < ASKS_MAX:
            now, what, place = heapq.heappop(self.events)
            if what == _END:
                self._end(now, place)
            elif what == _ARRIVAL:
                self._arrive(now, place)
            else:
                self._go_on(now, self.names[place])
        self.told.held = sum(len(line) for line in self.lines.values())

    def _end(self, now: float, place: int) -> None:
        each, was_open = self.tried[place], self.limiter.breaker == "open"
        results = [(Ask(each.kind, each.tenant), each.result)]
        self.limiter.report(now, self.limits, ticket=str(place), results=results, done=True)
        self.told.openings += self.limiter.breaker == "open" and not was_open

    def _arrive(self, now: float, place: int) -> None:
        each = self.tried[place]
        name = (each.kind is Kind.FIRST, each.tenant)
        if name not in self.lines:
            self.lines[name] = deque()
            self.names.append(name)
        line = self.lines[name]
        line.append(place)
        if len(line) == 1:
            self._go_on(now, name)
        _count(self.told, each, self.reasons[name] if line else None)

    def _go_on(self, now: float, name: _Line) -> None:
        """Lets as many of the line go as may; the next one asks again when it was told to."""
        line = self.lines[name]
        while line:
            each, self.asks = self.tried[line[0]], self.asks + 1
            said = self.limiter.admit(
                now,
                self.limits,
                ticket=str(line[0]),
                worker="",
                lease_ms=self.lease_ms,
                asks=[Ask(each.kind, each.tenant)],
            )[0]
            if said.reason is not None:
                self.reasons[name] = said.reason
                heapq.heappush(self.events, (now + max(1.0, said.wait_ms), _AGAIN, self.names.index(name)))
                return
            self.told.waited_ms_max = max(self.told.waited_ms_max, now - each.started_ms)
            if each.finished_ms is not None:
                heapq.heappush(self.events, (now + max(0.0, each.finished_ms - each.started_ms), _END, line[0]))
            line.popleft()


def could_pass(denied: Mapping[str, int], now: Limits, then: Limits) -> dict[str, int]:
    """Of the refusals that were counted, how many would have passed at most, by reason: all where a limit behind the reason
    lets more through than it does now, else none. A row that asks again is counted again."""
    looser = {reason for reason, names in REASONS.items() if _is_looser(names, now, then)}
    return {reason: count if reason in looser else 0 for reason, count in denied.items()}


def _is_looser(names: frozenset[str], now: Limits, then: Limits) -> bool:
    for name in names:
        before, after = getattr(now, name), getattr(then, name)
        if before == after:
            continue
        if name == "window_ms":
            return True
        before, after = (float("inf") if value is None else value for value in (before, after))  # no share: all of it
        if (after < before) is (name in LESS_IS_MORE):
            return True
    return False


def _count(told: Told, each: Tried, reason: str | None) -> None:
    is_first = each.kind is Kind.FIRST
    if is_first:
        told.firsts += 1
        told.firsts_waited += reason is not None
    else:
        told.retries += 1
        told.retries_waited += reason is not None
    if reason is not None:
        by = told.firsts_by if is_first else told.retries_by
        by[reason] = by.get(reason, 0) + 1


def _kind(number: int, seen: bool, before: str | None) -> Kind:
    """What went before is unknown where it was earlier than what was read, or nobody told: then the dearer is taken."""
    if seen:
        return Kind.AFTER_THROTTLE if before in ("rejected", "not_sent") else Kind.AFTER_TIMEOUT
    return Kind.FIRST if number <= 1 else Kind.AFTER_TIMEOUT


def _result(outcome: str | None, *, has_more: bool) -> Result:
    match outcome:
        case "succeeded":
            return Result.OK
        case "rejected":
            return Result.THROTTLE if has_more else Result.REFUSED
        case "not_sent":
            return Result.NOT_SENT
        case "let_go":
            return Result.UNUSED
        case _:
            return Result.TIMEOUT


def _ms(at: datetime) -> float:
    return at.timestamp() * 1000
