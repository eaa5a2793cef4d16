"""Decides when a wake-up is published: whenever it is due, again and again, until a worker's claim deletes it.

Each pass leases due rows in short statements, as many as the fleet's limits leave and as workers claim within seconds, and
publishes them with no transaction open. Nothing is marked as sent: a lease that runs out is the lost-message timer. Any
number of relays may run at once.
"""

from __future__ import annotations

import random
import signal
import threading
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial

import structlog
from celery import Celery
from kombu.connection import Connection
from kombu.messaging import Producer

from counterfoil.entry import keep_to_our_own
from counterfoil.ledger.connection import Ledger
from counterfoil.ledger.errors import CounterfoilError
from counterfoil.ledger.faults import sqlstate_of
from counterfoil.logs import configure_logs
from counterfoil.outbox.broker import RECONCILE_QUEUE, WAKE_UPS_MAX, broker_app, send_wake_ups
from counterfoil.outbox.dead import Burial
from counterfoil.outbox.gates import Gate, GateOf, Load, Window, always_open, provider_of, room_in
from counterfoil.outbox.intake import Intake
from counterfoil.outbox.leasing import Leased, Leasing
from counterfoil.outbox.outages import Outage
from counterfoil.outbox.setup import door_rules
from counterfoil.providers.registry import Registry
from counterfoil.settings import Settings

log: structlog.stdlib.BoundLogger = structlog.get_logger("counterfoil.relay")

POLL_BUSY_S = 0.05
"""Pause after a pass that published something; the agent that waits for the result polls as fast."""

BURIAL_EVERY_S = 5.0
"""Dead wake-ups have waited for many minutes; each look costs a few small statements."""

GATE_SHUT_MAX_S = 5.0
"""A gate that is shut for longer is asked again after this: people may open it sooner."""

WINDOW_FIRST = 100
"""Rows that a queue may have in the broker before it is known how soon they are claimed."""

WAIT_SHARE = 0.25
"""The part of the lost-message timer that a row should wait in the broker at most, before the window shrinks."""


@dataclass(slots=True)
class Relay:
    """One relay: a ledger connection, a broker connection, one thread."""

    ledger: Ledger
    app: Celery
    lost_after_s: float
    """Unclaimed for this long after its publication, a wake-up is published again; doubled each time, up to 600 s."""
    chunk_max: int = 10
    """Actions in one message when there is a backlog."""
    batch: int = 100
    """Rows of one queue leased at a time, so that none waits for its publication for longer than a blink."""
    high_water: int = 400
    """Rows of one queue in the broker at most: published, and neither claimed nor put back."""
    publishes_max: int = 8
    """Published so often under the eyes of workers and never claimed, a wake-up is dead."""
    gate: GateOf = always_open
    """What the fleet's limits leave of a provider's queue."""
    poll_s: float = 0.5
    """The longest pause while nothing is due."""
    intake: Intake | None = None
    """Takes in what other languages have written down, before each pass."""
    notify: Callable[[], int] | None = None
    """Tells people what waits for them. That is the workers' business, until there are none: then it is this relay's."""
    monotonic: Callable[[], float] = time.monotonic
    _connection: Connection | None = None
    _broker: Outage = field(init=False)
    _ledger_outage: Outage = field(init=False)
    _queues: dict[str, Outage] = field(init=False, default_factory=dict)
    _windows: dict[str, Window] = field(init=False, default_factory=dict)
    _shut: dict[str, tuple[Gate, float]] = field(init=False, default_factory=dict)
    """Gates that are shut, and when they are asked again."""
    _leasing: Leasing = field(init=False)
    _burial: Burial = field(init=False)
    _bury_at: float = field(init=False, default=float("-inf"))

    def __post_init__(self) -> None:
        if not 1 <= self.chunk_max <= WAKE_UPS_MAX:
            raise ValueError(f"chunk_max is 1 to {WAKE_UPS_MAX}")
        self._broker = Outage(2, self.monotonic)  # one failure may be a stale connection: the next pass has a new one
        self._ledger_outage = Outage(1, self.monotonic)
        self._leasing = Leasing(
            ledger=self.ledger, batch=self.batch, lost_after_s=self.lost_after_s, publishes_max=self.publishes_max
        )
        self._burial = Burial(ledger=self.ledger, publishes_max=self.publishes_max, lost_after_s=self.lost_after_s)

    def run(self, stop: threading.Event) -> None:
        """Takes in and publishes what is due until `stop` is set; outages of broker and database are waited for, not raised.

        Sees `stop` between two queues, so it ends within one broker timeout.
        """
        pause_s = POLL_BUSY_S
        while not stop.is_set():
            moved = self._pass_safely(stop)
            pause_s = POLL_BUSY_S if moved else min(self.poll_s, pause_s * 2)
            if moved < self.batch:  # else there is more: no pause
                stop.wait(max(pause_s * random.uniform(0.8, 1.2), self._broker.left_s, self._ledger_outage.left_s))

    def publish_due(self, stop: threading.Event | None = None) -> int:
        """One pass over all queues with due wake-ups; returns how many were published.

        A queue that fails does not delay the others; when the broker itself fails the pass ends. Raises
        `LedgerUnavailable`; what was leased then is published when its lease ends.
        """
        published = 0
        for load in self._leasing.loads():
            if self._broker.lasts or (stop is not None and stop.is_set()):
                break
            published += self._publish_queue(load)
        return published

    def bury(self) -> int:
        """Takes dead wake-ups out, and tells of queues that nobody takes; returns how many were buried. Raises
        `LedgerUnavailable`."""
        return self._burial.visit()

    def close(self) -> None:
        """Closes both connections."""
        self._drop_connection()
        self.ledger.close()

    def _pass_safely(self, stop: threading.Event) -> int:
        try:
            taken = self.intake.take() if self.intake is not None else 0
            published = self.publish_due(stop)
            if self.monotonic() >= self._bury_at:
                self._visit()
        except Exception as error:  # noqa: BLE001 - everybody depends on this loop: it ends only when it is told to
            if self._ledger_outage.fail():
                log.error("ledger_outage_began", error=_said(error))
            return 0
        if self._ledger_outage.succeed():
            log.info("ledger_outage_ended")
        return max(taken, published)

    def _visit(self) -> None:
        self._bury_at = self.monotonic() + BURIAL_EVERY_S * random.uniform(0.8, 1.2)
        if not self._broker.lasts:
            self.bury()
        if self.notify is not None and not self._burial.is_taken(RECONCILE_QUEUE):
            self.notify()

    def _publish_queue(self, load: Load) -> int:
        """Leases and publishes up to a batch of one queue; 0 when something holds it back or publishing failed."""
        outage = self._queues.get(load.queue)
        if outage is not None and outage.lasts:
            return 0
        leased = self._lease(load)
        if not leased:
            return 0  # no room, or another relay was faster
        try:
            self._publish(load.queue, leased)
        except Exception as error:  # noqa: BLE001 - whatever it is, all, some or none may have landed: nothing is marked
            self._failed(load.queue, error)
            self._leasing.give_back(leased)
            return 0
        self._succeeded(load.queue)
        log.debug("published", queue=load.queue, actions=len(leased))
        return len(leased)

    def _lease(self, load: Load) -> list[Leased]:
        """What the provider's mode, the fleet's limits and the window leave, in a fair order."""
        if load.mode == "paused":
            return []
        window = self._windows.setdefault(load.queue, self._new_window())
        room = room_in(load, self._gate_of(load.queue), window=window.fit(load, self.monotonic()))
        leased = [] if room.is_none else self._leasing.lease(load, room)
        window.took(load, len(leased))
        return leased

    def _gate_of(self, queue: str) -> Gate:
        now = self.monotonic()
        gate, until = self._shut.get(queue, (None, 0.0))
        if gate is None or now >= until:
            gate = self.gate(provider_of(queue))
            if gate.open_in_s > 0:
                self._shut[queue] = gate, now + min(gate.open_in_s, GATE_SHUT_MAX_S)
            else:
                self._shut.pop(queue, None)
        return gate

    def _new_window(self) -> Window:
        """Never so small that idle workers find nothing."""
        return Window(
            rows=min(self.high_water, WINDOW_FIRST),
            rows_min=min(self.high_water, 2 * self.chunk_max),
            rows_max=self.high_water,
            wait_max_s=self.lost_after_s * WAIT_SHARE,
        )

    def _publish(self, queue: str, leased: Sequence[Leased]) -> None:
        """One message a chunk, all in one round trip where the transport can (else one a message)."""
        producer = self._producer()
        with producer.batch(max_size=self.batch):
            for chunk in _chunks(leased, self.chunk_max):
                send_wake_ups(
                    self.app,
                    producer,
                    queue=queue,
                    wake_ups=[row.wake_up for row in chunk],
                    publish_count=chunk[0].publish_count,
                )

    def _failed(self, queue: str, error: Exception) -> None:
        """The broker answered and refused (a matter of this queue), or it did not answer (a matter of all of them)."""
        cause = _root_of(error)
        if self._refused(error):
            if self._queues.setdefault(queue, Outage(1, self.monotonic)).fail():
                log.error("queue_outage_began", queue=queue, error=cause)
        elif self._broker.fail():
            log.error("broker_outage_began", error=cause)
        self._drop_connection()

    def _succeeded(self, queue: str) -> None:
        if self._broker.succeed():
            log.info("broker_outage_ended")
        outage = self._queues.pop(queue, None)
        if outage is not None and outage.succeed():
            log.info("queue_outage_ended", queue=queue)

    def _refused(self, error: Exception) -> bool:
        connection = self._connection
        lost = connection.recoverable_connection_errors if connection is not None else ()
        refused = connection.recoverable_channel_errors if connection is not None else ()
        cause = error.__cause__ or error
        return isinstance(cause, refused) and not isinstance(cause, lost)

    def _producer(self) -> Producer:
        if self._connection is None:
            self._connection = self.app.connection_for_write()
        return self.app.amqp.Producer(self._connection, auto_declare=False)

    def _drop_connection(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            with suppress(Exception):  # it is broken already, and a new one is opened for the next message
                connection.release()


def run_relay(settings: Settings, *, gate: GateOf = always_open, notify: Callable[[Ledger], int] | None = None) -> None:
    """`counterfoil relay`: relays until SIGTERM or SIGINT, finishes its batch and returns.

    `gate`: what the fleet's limits leave of a provider's queue; without one everything goes. `notify` tells people what
    waits for them, over the relay's connection, while no worker is up to do it.
    """
    configure_logs()
    keep_to_our_own()
    stop = threading.Event()
    broker = settings.broker
    app = broker_app(url=settings.broker_url(), key_prefix=broker.key_prefix, queue_type=broker.queue_type, queues=())
    ledger = Ledger(settings.database_address(), application_name="counterfoil relay")
    relay = Relay(
        ledger,
        app,
        lost_after_s=settings.relay.lost_after_s,
        chunk_max=settings.relay.chunk_max,
        poll_s=settings.relay.poll_s,
        high_water=settings.relay.high_water,
        publishes_max=settings.relay.publishes_max,
        gate=gate,
        notify=None if notify is None else partial(notify, ledger),
        intake=Intake(ledger=ledger, registry=Registry.load(settings.tools, settings.http), rules=door_rules(settings)),
    )
    try:
        away = ledger.check_worker()
        if away is not None:
            log.error("ledger_unavailable", error=away)
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, lambda *_: stop.set())
        log.info("relay_started", chunk_max=relay.chunk_max, lost_after_s=relay.lost_after_s)
        relay.run(stop)
    finally:
        relay.close()
    log.info("relay_stopped")


def _said(error: Exception) -> str:
    """An unforeseen error is told by its kind and place: its text may hold a row's arguments."""
    if isinstance(error, CounterfoilError):
        return str(error)
    at = traceback.extract_tb(error.__traceback__)[-1]
    return f"{type(error).__name__} {sqlstate_of(error)} at {at.filename}:{at.lineno}"


def _root_of(error: BaseException) -> str:
    """What the client says at the bottom of it, a wrong CA say; it names hosts, and no password."""
    while error.__cause__ is not None:
        error = error.__cause__
    return f"{type(error).__name__}: {' '.join(str(error).split())[:200]}"


def _chunks(leased: Sequence[Leased], chunk_max: int) -> Iterator[Sequence[Leased]]:
    """A few rows go one by one, so that every idle worker gets one; a backlog fills the messages."""
    size = min(chunk_max, -(-len(leased) // chunk_max))
    for start in range(0, len(leased), size):
        yield leased[start : start + size]
