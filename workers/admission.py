"""Decides which actions of a batch may be tried now, by what the whole fleet has done at their provider.

One round trip for a batch: `admission.lua` in Redis, with the rules of `limiter.py`. Redis is a hint here, too. While
it is away each process goes by its own share: first attempts within its part of the rate, no retry and no look-up, which
wait in Postgres; there, too, the caps on attempts and the deadlines are kept, whatever Redis says.
"""

from __future__ import annotations

import math
import random
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol
from uuid import uuid4

from counterfoil.ledger.claims import WaitingAction
from counterfoil.outbox.gates import Gate
from counterfoil.workers.kinds import Ask, Kind, Reason, Result
from counterfoil.workers.limiter import HOUR_MS, Limiter, Limits, Said
from counterfoil.workers.store import Store, StoreAway

__all__ = [
    "Admission",
    "Ask",
    "FleetAdmission",
    "Gate",
    "Granted",
    "Kind",
    "Peek",
    "Refusal",
    "Result",
    "Store",
    "StoreAway",
    "Ticket",
    "Unlimited",
]

AHEAD_S = 0.15
"""The relay publishes what the rate lets through within this, a few of its passes: workers would only put more back."""

AWAY_WAIT_S = 5.0
"""What meets an absent store looks again after this: a retry whether it is back, a first attempt for another process."""

PROBE_ANSWER_S = 0.2
"""While a call finds out whether a provider is back, the relay asks this often whether it has."""

REMEMBERED_S = 60.0
"""A process goes by what it has seen of a failing provider for so long when nobody else knows."""

FAILURES = frozenset({Result.TIMEOUT, Result.NOT_SENT, Result.THROTTLE})
"""Told at once, since the rest of the batch may depend on it; all else with the batch's end."""


@dataclass(frozen=True, slots=True)
class Refusal:
    """Why not now, and for how long at least."""

    reason: Reason
    wait_s: float


@dataclass(slots=True, kw_only=True)
class Ticket:
    """What one batch was allowed, until it is closed."""

    provider: str
    admitted: list[WaitingAction] = field(default_factory=list)
    refused: list[tuple[WaitingAction, Refusal]] = field(default_factory=list)
    ticket_id: str = field(default_factory=lambda: uuid4().hex)
    by_store: bool = False
    """The store took its cost, and gets its results; else this process's own share."""
    waiting: dict[str, Ask] = field(default_factory=dict)
    """Admitted and not reported yet, by action id."""
    told_at_end: list[tuple[Ask, Result]] = field(default_factory=list)


@dataclass(frozen=True, slots=True, kw_only=True)
class Granted:
    """Requests of look-ups that may be made now; `wait_s` until more are."""

    requests: int
    wait_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class HourSeen:
    """What was admitted and refused in one hour. `denied` by reason; a row that asks again is counted again."""

    hour_ms: int
    firsts: int
    retries: int
    denied: dict[str, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class Peek:
    """One provider's limits as they stand, for people."""

    breaker: str
    open_in_s: float
    tokens: float
    tokens_max: float
    rate_per_s: float
    """In force: after an outage less than configured, for a while."""
    in_flight: int
    processes: int
    firsts_last_minute: int
    retries_last_minute: int
    hours: tuple[HourSeen, ...]
    """At most the last 25, oldest first."""


class Admission(Protocol):
    """Used by one thread at a time."""

    def admit(self, provider: str, batch: Sequence[WaitingAction], *, lease_s: float) -> Ticket:
        """What of the batch may be tried now. The ticket holds one of the provider's calls in flight for `lease_s`, or
        until it is closed."""
        ...

    def report(self, ticket: Ticket, action: WaitingAction, result: Result) -> bool:
        """What came of it. False: the breaker has opened, so nothing more of the batch should be tried."""
        ...

    def close(self, ticket: Ticket) -> None:
        """The batch is done; what was not reported was not tried."""
        ...

    def look_ups(self, provider: str, wanted: int) -> Granted:
        """Takes up to `wanted` requests of look-ups from the provider's own rate for them; none while the store is away."""
        ...

    def found(self, provider: str, effects: int) -> None:
        """Look-ups have found so many effects of attempts that had timed out: their cost is returned."""
        ...

    def gate(self, provider: str) -> Gate:
        """What is worth publishing; takes nothing."""
        ...


class Unlimited:
    """Admits everything: for tests in one process, where nothing but the ledger's own limits is of interest."""

    def admit(self, provider: str, batch: Sequence[WaitingAction], *, lease_s: float) -> Ticket:
        return Ticket(provider=provider, admitted=list(batch))

    def report(self, ticket: Ticket, action: WaitingAction, result: Result) -> bool:
        return True

    def close(self, ticket: Ticket) -> None:
        pass

    def look_ups(self, provider: str, wanted: int) -> Granted:
        return Granted(requests=wanted, wait_s=0)

    def found(self, provider: str, effects: int) -> None:
        pass

    def gate(self, provider: str) -> Gate:
        return Gate(firsts=1_000_000, retries=1_000_000)


@dataclass(slots=True)
class _Memory:
    """What one process knows of a provider, should the store lose it."""

    processes: int = 0
    """Of the fleet; 0 = unknown."""
    born: float = 0.0
    usual_per_s: float = 0.0
    failed_at: float = float("-inf")
    """When this process's last call failed; long ago = it did not."""
    held_at: float = float("-inf")
    """When the breaker was last said to be open."""

    def hear(self, said: dict[str, Any]) -> None:
        self.born, self.usual_per_s = said["born"], said["usual_per_s"]


@dataclass(slots=True, kw_only=True)
class FleetAdmission:
    """The fleet's limits, as one process sees them."""

    limits: Callable[[str], Limits]
    """In force now, by provider."""
    worker: str
    store: Store | None
    """None: there is none, and this process goes by the limits as if it were the fleet."""
    monotonic: Callable[[], float] = time.monotonic
    _own: dict[str, Limiter] = field(default_factory=dict)
    _memory: dict[str, _Memory] = field(default_factory=dict)

    def admit(self, provider: str, batch: Sequence[WaitingAction], *, lease_s: float) -> Ticket:
        """See `Admission`."""
        ticket, asks = Ticket(provider=provider), [Ask(kind_of(action), action.tenant) for action in batch]
        lease_ms = min(lease_s, 600.0) * 1000
        memory, now_s = self._of(provider), self.monotonic()
        try:
            said = self._ask(
                "admit",
                provider,
                ticket=ticket.ticket_id,
                worker=self.worker,
                lease_ms=lease_ms,
                asks=[[ask.kind, ask.tenant] for ask in asks],
                recalled=[memory.born, memory.usual_per_s, now_s - memory.failed_at < REMEMBERED_S],
            )
            memory.processes = said["processes"]
            memory.hear(said)
            self._own.pop(provider, None)
            ticket.by_store = True
            answers = [Said(reason or None, wait_ms) for reason, wait_ms in said["said"]]
            memory.held_at = now_s if any(answer.reason == "breaker" for answer in answers) else float("-inf")
        except StoreAway:
            limiter, now, limits = self._share(provider)
            answers = limiter.admit(
                now, limits, ticket=ticket.ticket_id, worker=self.worker, lease_ms=lease_ms, asks=asks
            )
        for action, ask, answer in zip(batch, asks, answers, strict=True):
            if answer.reason is None:
                ticket.admitted.append(action)
                ticket.waiting[action.action_id] = ask
            else:
                wait_s = answer.wait_ms / 1000
                if not ticket.by_store and self.store is not None:
                    wait_s = AWAY_WAIT_S if ask.kind is not Kind.FIRST else min(wait_s, AWAY_WAIT_S)
                ticket.refused.append((action, Refusal(answer.reason, wait_s)))
        return ticket

    def report(self, ticket: Ticket, action: WaitingAction, result: Result) -> bool:
        """See `Admission`."""
        ticket.told_at_end.append((ticket.waiting.pop(action.action_id), result))
        if result is not Result.UNUSED:
            failed = result in (Result.TIMEOUT, Result.NOT_SENT)
            self._of(ticket.provider).failed_at = self.monotonic() if failed else float("-inf")
        return True if result not in FAILURES else self._tell(ticket, done=False)

    def close(self, ticket: Ticket) -> None:
        """See `Admission`."""
        ticket.told_at_end.extend((ask, Result.UNUSED) for ask in ticket.waiting.values())
        ticket.waiting.clear()
        if ticket.admitted:
            self._tell(ticket, done=True)

    def look_ups(self, provider: str, wanted: int) -> Granted:
        """See `Admission`."""
        try:
            said = self._ask("look_up", provider, wanted=wanted)
            return Granted(requests=int(said["granted"]), wait_s=said["wait_ms"] / 1000)
        except StoreAway:
            if self.store is not None:
                return Granted(requests=0, wait_s=AWAY_WAIT_S)
            limiter, now, limits = self._share(provider)
            granted, wait_ms = limiter.look_up(now, limits, wanted)
            return Granted(requests=granted, wait_s=wait_ms / 1000)

    def found(self, provider: str, effects: int) -> None:
        """See `Admission`."""
        try:
            self._ask("found", provider, effects=effects)
        except StoreAway:
            limiter, now, limits = self._share(provider)
            limiter.found(now, limits, effects)

    def gate(self, provider: str) -> Gate:
        """See `Admission`."""
        try:
            seen, limits = self._ask("seen", provider), self.limits(provider)
            self._of(provider).hear(seen)
        except StoreAway:
            if self.store is not None:  # the processes keep to their shares: this is what all of them may do together
                per_s = self.limits(provider).ramp_per_s(self._of(provider).usual_per_s)
                return Gate(firsts=max(1, math.floor(per_s * AHEAD_S)), retries=0, known=False)
            limiter, now, limits = self._share(provider)
            seen = limiter.seen(now, limits)
        open_in_s = seen["open_in_ms"] / 1000
        if open_in_s > 0:
            soon_s = PROBE_ANSWER_S if seen["breaker"] == "half" else open_in_s
            return Gate(open_in_s=min(open_in_s, soon_s), firsts=0, retries=0)
        room = max(1, math.floor(seen["rate"] + seen["rate_per_s"] * AHEAD_S))
        cheapest = max(min(limits.cost_after_throttle, limits.cost_after_timeout), 1e-9)
        ratio_room = max(limits.ratio_max * seen["firsts"], limits.retries_per_min_min) - seen["retries"]
        retries = max(0, math.floor(min(room, seen["tokens"] / cheapest, ratio_room)))
        if seen["breaker"] == "half":
            return Gate(firsts=1, retries=min(1, retries))
        return Gate(firsts=room, retries=retries)

    def peek(self, provider: str) -> Peek | None:
        """What there is to see; None while the store is away."""
        try:
            seen = self._ask("seen", provider)
        except StoreAway:
            return None
        hours = sorted((int(hour), counts) for hour, counts in dict(seen["hours"]).items())
        return Peek(
            breaker=seen["breaker"],
            open_in_s=seen["open_in_ms"] / 1000,
            tokens=seen["tokens"],
            tokens_max=self.limits(provider).tokens_max,
            rate_per_s=seen["rate_per_s"],
            in_flight=seen["in_flight"],
            processes=seen["processes"],
            firsts_last_minute=int(seen["firsts"]),
            retries_last_minute=int(seen["retries"]),
            hours=tuple(_hour(hour, counts) for hour, counts in hours),
        )

    def _tell(self, ticket: Ticket, *, done: bool) -> bool:
        """Tells what is untold to whoever admitted it. A store that is gone meanwhile misses it: its leases end by
        themselves, and this process's own breaker learns of the failures."""
        results, ticket.told_at_end = ticket.told_at_end, []
        if ticket.by_store:
            try:
                said = self._ask(
                    "report",
                    ticket.provider,
                    ticket=ticket.ticket_id,
                    results=[[ask.kind, ask.tenant, result] for ask, result in results],
                    done=done,
                )
                return bool(said["go_on"])
            except StoreAway:
                results = [(ask, result) for ask, result in results if result is not Result.UNUSED]
        limiter, now, limits = self._share(ticket.provider)
        return limiter.report(now, limits, ticket=ticket.ticket_id, results=results, done=done)

    def _ask(self, op: str, provider: str, **asked: Any) -> Any:
        if self.store is None:
            raise StoreAway
        return self.store.ask(op, provider, self.limits(provider), asked)

    def _of(self, provider: str) -> _Memory:
        return self._memory.setdefault(provider, _Memory())

    def _share(self, provider: str) -> tuple[Limiter, float, Limits]:
        """What this process may do by itself. A fleet of which nothing is known is taken to be as large as it may be."""
        limits, now_s = self.limits(provider), self.monotonic()
        if self.store is None:
            return self._own.setdefault(provider, Limiter.fresh(now_s * 1000, limits)), now_s * 1000, limits
        memory = self._of(provider)
        limits = limits.share(memory.processes or limits.concurrency_max, memory.usual_per_s)
        own = self._own.get(provider)
        if own is None:
            own = self._own[provider] = Limiter.fresh(now_s * 1000, limits)
            own.rate = random.random()  # or all processes would begin with a call in the same moment
            if now_s - max(memory.failed_at, memory.held_at) < REMEMBERED_S:
                own.trip(now_s * 1000, limits)
        return own, now_s * 1000, limits


def kind_of(action: WaitingAction) -> Kind:
    """What trying it now would be, by the row."""
    if action.state == "retryable_failure":
        return Kind.AFTER_THROTTLE
    if action.attempt_count > 0 or action.in_doubt:
        return Kind.AFTER_TIMEOUT
    return Kind.AFTER_THROTTLE if action.not_sent_count > 0 else Kind.FIRST


def _hour(hour: int, counts: dict[str, float]) -> HourSeen:
    denied = {name: int(n) for name, n in counts.items() if name not in ("firsts", "retries")}
    return HourSeen(
        hour_ms=hour * HOUR_MS,
        firsts=int(counts.get("firsts", 0)),
        retries=int(counts.get("retries", 0)),
        denied=denied,
    )
