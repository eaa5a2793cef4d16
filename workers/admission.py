"""Decides which actions of a batch may be tried now, by what the whole fleet has done at their provider.

One round trip for a batch: `admission.lua` in Redis, with the rules of `limiter.py`. Redis is a hint here, too. While
it is away each process goes by its own share: first attempts within its part of the rate, no retry and no look-up, which
wait in Postgres; there, too, the caps on attempts and the deadlines are kept, whatever Redis says.
"""

from __future__ import annotations

import json
import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from importlib.resources import files
from typing import Any, Protocol
from uuid import uuid4

import redis
import structlog
from redis.backoff import NoBackoff
from redis.retry import Retry

from counterfoil.ledger.claims import WaitingAction
from counterfoil.outbox.gates import Gate
from counterfoil.workers.kinds import Ask, Kind, Reason, Result
from counterfoil.workers.limiter import HOUR_MS, Limiter, Limits, Said

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
    "Ticket",
    "Unlimited",
]

log: structlog.stdlib.BoundLogger = structlog.get_logger("counterfoil.admission")

AHEAD_S = 0.5
"""The relay publishes what the rate lets through within this: more would only be put back by the workers."""

AWAY_WAIT_S = 5.0
"""A retry that meets an absent store looks again after this."""

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


class StoreAway(Exception):
    """The store did not answer, or not as it should."""


@dataclass(slots=True, kw_only=True)
class Store:
    """The script in Redis. Leaves a store that failed alone for a while, so that no batch waits for it."""

    url: str
    key_prefix: str
    timeout_s: float
    retry_after_s: float
    monotonic: Callable[[], float] = time.monotonic
    now_ms: Callable[[], float] | None = None
    """Tests and simulations only: else the server's clock counts."""
    _script: Any = None
    _away_until: float = float("-inf")
    _is_away: bool = False

    def ask(self, op: str, provider: str, limits: Limits, asked: dict[str, Any]) -> Any:
        """One round trip. Raises `StoreAway`."""
        if self.monotonic() < self._away_until:
            raise StoreAway
        now = "" if self.now_ms is None else repr(self.now_ms())
        try:
            said = self._loaded()(
                keys=[f"{self.key_prefix}admission:{provider}"],
                args=[op, json.dumps(_plain(limits)), json.dumps(asked), now],
            )
            answer = json.loads(said)
        except (redis.RedisError, OSError, ValueError) as error:
            self._gone(type(error).__name__)
            raise StoreAway from error
        if self._is_away:
            self._is_away = False
            log.info("admission_store_back")
        return answer

    def close(self) -> None:
        """Ends the connection; the next ask opens one."""
        script, self._script = self._script, None
        if script is not None:
            script.registered_client.close()

    def _loaded(self) -> Any:
        if self._script is None:
            client = redis.Redis.from_url(
                self.url,
                socket_timeout=self.timeout_s,
                socket_connect_timeout=self.timeout_s,
                retry=Retry(NoBackoff(), 0),
            )
            text = (files("counterfoil.workers") / "admission.lua").read_text(encoding="utf-8")
            self._script = client.register_script(text)
        return self._script

    def _gone(self, why: str) -> None:
        self._away_until = self.monotonic() + self.retry_after_s
        if not self._is_away:
            self._is_away = True
            log.error("admission_store_away", error=why)


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
    _processes: dict[str, int] = field(default_factory=dict)
    """Of the fleet, when the store was last heard of."""

    def admit(self, provider: str, batch: Sequence[WaitingAction], *, lease_s: float) -> Ticket:
        """See `Admission`."""
        ticket, asks = Ticket(provider=provider), [Ask(kind_of(action), action.tenant) for action in batch]
        lease_ms = min(lease_s, 600.0) * 1000
        try:
            said = self._ask(
                "admit",
                provider,
                ticket=ticket.ticket_id,
                worker=self.worker,
                lease_ms=lease_ms,
                asks=[[ask.kind, ask.tenant] for ask in asks],
            )
            self._processes[provider] = said["processes"]
            ticket.by_store = True
            answers = [Said(reason or None, wait_ms) for reason, wait_ms in said["said"]]
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
                away = not ticket.by_store and ask.kind is not Kind.FIRST
                ticket.refused.append((action, Refusal(answer.reason, AWAY_WAIT_S if away else wait_s)))
        return ticket

    def report(self, ticket: Ticket, action: WaitingAction, result: Result) -> bool:
        """See `Admission`."""
        ticket.told_at_end.append((ticket.waiting.pop(action.action_id), result))
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
            seen, limits, known = self._ask("seen", provider), self.limits(provider), True
        except StoreAway:
            limiter, now, limits = self._share(provider)
            seen, known = limiter.seen(now, limits), self.store is None
        if seen["open_in_ms"] > 0:
            return Gate(open_in_s=seen["open_in_ms"] / 1000, firsts=0, retries=0, known=known)
        if seen["breaker"] == "half":
            return Gate(firsts=1, retries=1, known=known)
        room = max(1, math.floor(seen["rate"] + seen["rate_per_s"] * AHEAD_S))
        cheapest = max(min(limits.cost_after_throttle, limits.cost_after_timeout), 1e-9)
        ratio_room = max(limits.ratio_max * seen["firsts"], limits.retries_per_min_min) - seen["retries"]
        retries = max(0, math.floor(min(room, seen["tokens"] / cheapest, ratio_room)))
        return Gate(firsts=room, retries=retries, known=known)

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

    def _share(self, provider: str) -> tuple[Limiter, float, Limits]:
        """What this process may do by itself. A fleet of which nothing is known is taken to be as large as it may be."""
        limits, now = self.limits(provider), self.monotonic() * 1000
        if self.store is not None:
            limits = limits.share(self._processes.get(provider, limits.concurrency_max))
        return self._own.setdefault(provider, Limiter.fresh(now, limits)), now, limits


def kind_of(action: WaitingAction) -> Kind:
    """What trying it now would be, by the row."""
    if action.state == "retryable_failure":
        return Kind.AFTER_THROTTLE
    if action.attempt_count > 0 or action.in_doubt:
        return Kind.AFTER_TIMEOUT
    return Kind.AFTER_THROTTLE if action.not_sent_count > 0 else Kind.FIRST


def _plain(limits: Limits) -> dict[str, Any]:
    return {name: getattr(limits, name) for name in limits.__dataclass_fields__}


def _hour(hour: int, counts: dict[str, float]) -> HourSeen:
    denied = {name: int(n) for name, n in counts.items() if name not in ("firsts", "retries")}
    return HourSeen(
        hour_ms=hour * HOUR_MS,
        firsts=int(counts.get("firsts", 0)),
        retries=int(counts.get("retries", 0)),
        denied=denied,
    )
