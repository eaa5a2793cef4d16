"""Plays a fleet through a provider's outage: simulated time, real admission.

Arrivals, relay, workers and look-ups are events of one simulated clock. What decides is the real thing: `FleetAdmission`
with its script in a real server, the relay's `room_in` and `Window`, and the backoff.
"""

from __future__ import annotations

import heapq
import itertools
import math
import random
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Literal

from amplification_peers import Budget

from counterfoil.ledger.claims import WaitingAction
from counterfoil.outbox.gates import Gate, Load, Window, room_in
from counterfoil.settings import Relay, Workers
from counterfoil.settings_providers import ProviderSettings
from counterfoil.workers.admission import Admission, Result, Ticket
from counterfoil.workers.backoff import delay_s

Fault = Literal["timeout", "5xx", "refused"]
"""How the provider fails: no answer at all, an error at once that proves nothing, or no connection."""

PROVIDER = "provider"
LATENCY_MEDIAN_S, LATENCY_SIGMA = 0.05, 0.4
STATEMENT_S = 0.003
"""A claim, a settle, a pass of the relay: a round trip to Postgres."""

LOOKUP_ROWS = 100
"""Actions that one request of a look-up asks about."""

HORIZON_S = 1200.0


@dataclass(slots=True)
class Action:
    """One effect that is wanted."""

    number: int
    arrived_at: float
    attempts: int = 0
    not_sent: int = 0
    succeeded_at: float = math.inf
    effects: int = 0

    @property
    def is_retry(self) -> bool:
        return self.attempts + self.not_sent > 0

    def waiting(self) -> WaitingAction:
        return WaitingAction(
            action_id=str(self.number),
            generation=1,
            tenant="acme",
            tool="tool",
            tool_version=1,
            provider=PROVIDER,
            account="default",
            attempt_count=self.attempts,
            not_sent_count=self.not_sent,
            in_doubt=False,
            state="ready",
        )


@dataclass(slots=True, kw_only=True)
class Played:
    """What a run came to. Times in seconds; the outage is from `began` to `ended`."""

    rate: float
    began: float
    ended: float
    actions: list[Action]
    attempts: list[float] = field(default_factory=list)
    """When each request was sent."""
    look_ups: int = 0


@dataclass(slots=True, kw_only=True)
class Fleet:
    """One run. `admissions`: one for each worker, or `budgets` where each goes by its own."""

    rate: float
    began: float
    ended: float
    fault: Fault
    seed: int
    settings: ProviderSettings
    workers: int
    admissions: Sequence[Admission] = ()
    relay: Admission | None = None
    """The relay's and the reconciler's view of the same limits."""
    budgets: Sequence[Budget] = ()
    at: Sequence[tuple[float, Callable[[], None]]] = ()
    """What else happens, and when."""
    recovery_s: float = HORIZON_S
    """A backlog that is still there so long after the outage is not waited for."""
    progress: Callable[[float, int], None] = lambda now, backlog: None
    now: float = 0.0

    _rng: random.Random = field(init=False)
    _events: list[tuple[float, int, Callable[[], None]]] = field(init=False, default_factory=list)
    _order: itertools.count[int] = field(init=False, default_factory=itertools.count)
    _due: dict[bool, list[tuple[float, int]]] = field(init=False, default_factory=lambda: {False: [], True: []})
    _out: dict[int, tuple[float, bool]] = field(init=False, default_factory=dict)
    _messages: deque[list[Action]] = field(init=False, default_factory=deque)
    _idle: list[int] = field(init=False, default_factory=list)
    _uncertain: deque[tuple[float, Action]] = field(init=False, default_factory=deque)
    _open: int = field(init=False, default=0)
    _arriving: bool = field(init=False, default=True)
    _window: Window = field(init=False)
    _retries_first: bool = field(init=False, default=False)
    played: Played = field(init=False)

    def __post_init__(self) -> None:
        self._rng = random.Random(self.seed)
        self._window = Window(rows=100, rows_min=40, rows_max=Relay().high_water, wait_max_s=5.0)
        self.played = Played(rate=self.rate, began=self.began, ended=self.ended, actions=[])

    def play(self) -> Played:
        """Until the backlog is gone, and then until every action has succeeded."""
        self._idle = list(range(self.workers))
        self._rng.shuffle(self._idle)
        for at, what in self.at:
            self._after(at, what)
        self._after(0.0, self._arrive)
        self._after(0.0, lambda: self._relay_pass(0.05))
        self._after(1.0, self._look_up)
        self._after(1.0, self._watch)
        while self._events and (self._arriving or self._open):
            self.now, _, what = heapq.heappop(self._events)
            what()
            if self.now > self.ended + 2 * HORIZON_S:
                break
        return self.played

    def _after(self, seconds: float, what: Callable[[], None]) -> None:
        heapq.heappush(self._events, (self.now + seconds, next(self._order), what))

    # What arrives, and where it waits

    def _arrive(self) -> None:
        """Evenly, each within its own place: a steady rate, and not a metronome."""
        if not self._arriving:
            return
        action = Action(number=len(self.played.actions), arrived_at=self.now)
        self.played.actions.append(action)
        self._open += 1
        self._wait(action, 0.0)
        place = len(self.played.actions) / self.rate + self._rng.uniform(0.0, 0.9 / self.rate)
        self._after(max(0.0, place - self.now), self._arrive)

    def _watch(self) -> None:
        """Arrivals end ten seconds after the backlog, or when the recovery has been watched for long enough."""
        self.progress(self.now, self._open)
        if self.now > self.ended and (self._open <= self.rate or self.now > self.ended + self.recovery_s):
            self._after(10.0, self._stop)
        else:
            self._after(1.0, self._watch)

    def _stop(self) -> None:
        self._arriving = False

    def _wait(self, action: Action, seconds: float) -> None:
        self._out.pop(action.number, None)
        heapq.heappush(self._due[action.is_retry], (self.now + seconds, action.number))

    # The relay

    def _relay_pass(self, pause_s: float) -> None:
        moved = 0
        due = {kind: bool(rows) and rows[0][0] <= self.now for kind, rows in self._due.items()}
        if any(due.values()):
            moved = self._publish(self._gate())
        pause_s = 0.05 if moved else min(Relay().poll_s, pause_s * 2)
        busy = moved >= 100
        self._after(
            STATEMENT_S + (0.0 if busy else pause_s * self._rng.uniform(0.8, 1.2)), lambda: self._relay_pass(pause_s)
        )

    def _gate(self) -> Gate:
        if self.relay is None:
            return Gate(firsts=1_000_000, retries=1_000_000)
        return self.relay.gate(PROVIDER)

    def _publish(self, gate: Gate) -> int:
        recent = [kind for at, kind in self._out.values() if at > self.now - Relay().lost_after_s]
        load = Load(
            queue="cf-provider",
            mode=None,
            is_served=True,
            due_firsts=len(self._due[False]),
            due_retries=len(self._due[True]),
            in_flight=len(self._out),
            firsts_out=recent.count(False),
            retries_out=recent.count(True),
            longest_wait_s=max((self.now - at for at, _ in self._out.values()), default=0.0),
        )
        room = room_in(load, gate, window=self._window.fit(load, self.now))
        rows, left = min(100, room.rows), {False: room.firsts, True: room.retries}
        leased: list[Action] = []
        self._retries_first = not self._retries_first
        for kind in (self._retries_first, not self._retries_first):
            take = min(left[kind], rows - len(leased))
            while take > 0 and self._due[kind] and self._due[kind][0][0] <= self.now:
                action = self.played.actions[heapq.heappop(self._due[kind])[1]]
                self._out[action.number] = (self.now, kind)
                leased.append(action)
                take -= 1
        self._window.took(load, len(leased))
        size = max(1, min(Relay().chunk_max, -(-len(leased) // Relay().chunk_max)))
        for start in range(0, len(leased), size):
            self._messages.append(leased[start : start + size])
        self._hand_out()
        return len(leased)

    def _hand_out(self) -> None:
        while self._messages and self._idle:
            worker, message = self._idle.pop(0), self._messages.popleft()
            stop_at = self.now + Workers().soft_limit_s
            self._after(STATEMENT_S, lambda w=worker, m=message, s=stop_at: self._take(w, m, s))  # type: ignore[misc]

    def _free(self, worker: int) -> None:
        self._idle.append(worker)
        self._hand_out()

    # The workers

    def _take(self, worker: int, message: list[Action], stop_at: float) -> None:
        for action in message:  # claimed, put off or put back: no longer on its way
            self._out[action.number] = (self.now, action.is_retry)
        if self.budgets:
            self._next(worker, list(message), stop_at, None)
            return
        needs_s = self.settings.timeout_s + Workers().pause_allowance_s
        lease_s = min(len(message) * (needs_s + Workers().guard_s), max(stop_at - self.now, 1.0))
        ticket = self.admissions[worker].admit(PROVIDER, [action.waiting() for action in message], lease_s=lease_s)
        for row, refusal in ticket.refused:
            self._wait(self.played.actions[int(row.action_id)], refusal.wait_s * self._rng.uniform(1.0, 1.5))
        self._next(worker, [self.played.actions[int(row.action_id)] for row in ticket.admitted], stop_at, ticket)

    def _next(self, worker: int, rest: list[Action], stop_at: float, ticket: Ticket | None) -> None:
        """One call after the other; what no time is left for goes back."""
        needs_s = self.settings.timeout_s + Workers().pause_allowance_s
        while rest and ticket is None and not self._may_go(worker, rest[0]):
            action = rest.pop(0)
            self._wait(action, self._backoff_s(action))
        if not rest or self.now + needs_s > stop_at:
            for action in rest:
                self._wait(action, 0.0)
            if ticket is not None:
                self.admissions[worker].close(ticket)
            self._free(worker)
            return
        action = rest.pop(0)
        self._out.pop(action.number, None)
        row, was_retry = action.waiting(), action.is_retry
        took_s, result = self._answer()
        self.played.attempts.append(self.now)
        if result is Result.NOT_SENT:
            action.not_sent += 1
        else:
            action.attempts += 1

        def answered() -> None:
            self._settle(action, result)
            if ticket is None:
                self._tell_budget(worker, was_retry, result)
            elif not self.admissions[worker].report(ticket, row, result):
                for left in rest:
                    self._wait(left, 0.0)
                rest.clear()
            self._after(2 * STATEMENT_S, lambda: self._next(worker, rest, stop_at, ticket))

        self._after(took_s, answered)

    def _answer(self) -> tuple[float, Result]:
        latency_s = min(LATENCY_MEDIAN_S * math.exp(self._rng.gauss(0, LATENCY_SIGMA)), self.settings.timeout_s)
        if not self.began <= self.now < self.ended:
            return latency_s, Result.OK
        match self.fault:
            case "timeout":
                return self.settings.timeout_s, Result.TIMEOUT
            case "5xx":
                return latency_s, Result.TIMEOUT
            case "refused":
                return 0.001, Result.NOT_SENT

    def _settle(self, action: Action, result: Result) -> None:
        if result is Result.OK:
            action.effects += 1
            action.succeeded_at = self.now
            self._open -= 1
        elif result is Result.TIMEOUT and not self.budgets:
            self._uncertain.append((self.now + 5.0, action))
        else:
            self._wait(action, self._backoff_s(action))

    def _backoff_s(self, action: Action) -> float:
        return delay_s(
            max(1, action.attempts + action.not_sent),
            base_s=self.settings.backoff_base_s,
            cap_s=self.settings.backoff_cap_s,
            retry_after_cap_s=self.settings.retry_after_cap_s,
            rng=self._rng,
        )

    # Budgets of one process

    def _may_go(self, worker: int, action: Action) -> bool:
        if action.is_retry:
            return self.budgets[worker].may_retry(self.now, after_timeout=self.fault == "timeout")
        self.budgets[worker].first(self.now)
        return True

    def _tell_budget(self, worker: int, was_retry: bool, result: Result) -> None:
        budget = self.budgets[worker]
        if result is Result.OK:
            budget.succeeded(cost=budget.cost(after_timeout=self.fault == "timeout") if was_retry else 0.0)

    # The reconciler

    def _look_up(self) -> None:
        """Every five seconds what is due, as far as the limit on look-ups goes. They work, and find no effect."""
        due = sum(1 for at, _ in self._uncertain if at <= self.now)
        if due and self.relay is not None:
            granted = self.relay.look_ups(PROVIDER, -(-due // LOOKUP_ROWS)).requests
            self.played.look_ups += granted
            for _ in range(min(due, granted * LOOKUP_ROWS)):
                _, action = self._uncertain.popleft()
                self._wait(action, self._backoff_s(action))
        self._after(5.0, self._look_up)
