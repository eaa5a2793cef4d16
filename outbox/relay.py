"""Decides when a wake-up is published: whenever it is due, again and again, until a worker's claim deletes it.

Each pass leases due rows in one short statement a queue, and publishes them with no transaction open. Nothing is marked as
sent: a lease that runs out is the lost-message timer. Any number of relays may run at once.
"""

from __future__ import annotations

import random
import signal
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field

import structlog
from celery import Celery
from kombu.connection import Connection
from kombu.messaging import Producer

from counterfoil.ledger.claims import WakeUp
from counterfoil.ledger.connection import Ledger
from counterfoil.ledger.errors import LedgerUnavailable
from counterfoil.ledger.queries import load
from counterfoil.logs import configure_logs
from counterfoil.outbox.broker import WAKE_UPS_MAX, broker_app, send_wake_ups
from counterfoil.outbox.intake import Intake
from counterfoil.outbox.setup import door_rules
from counterfoil.providers.registry import Registry
from counterfoil.settings import Settings

_SQL = load("counterfoil.outbox", "sql/relay.sql")

log: structlog.stdlib.BoundLogger = structlog.get_logger("counterfoil.relay")

QUEUES_MAX = 1000
"""Queues looked at in one pass, those waiting longest first."""

POLL_BUSY_S = 0.05
"""Pause after a pass that published something; the agent that waits for the result polls as fast."""

PAUSE_FIRST_S = 1.0
PAUSE_MAX_S = 30.0
"""How long an outage keeps the relay from trying again: doubled from the first to the last of these, with jitter."""

LOST_AFTER_MAX_S = 600.0
"""However often a wake-up was published for nothing, it is published again within this."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Leased:
    """An outbox row that is this relay's to publish until its `not_before`."""

    outbox_id: int
    action_id: str
    generation: int
    publish_count: int

    @property
    def wake_up(self) -> WakeUp:
        return WakeUp(self.action_id, self.generation)


@dataclass(slots=True)
class _Breaker:
    """Counts failures in a row; from the second on (`failures_max`) it is open for a while, longer each time."""

    failures_max: int
    monotonic: Callable[[], float]
    failures: int = 0
    open_until: float = 0.0

    @property
    def is_open(self) -> bool:
        return self.monotonic() < self.open_until

    @property
    def left_s(self) -> float:
        return max(0.0, self.open_until - self.monotonic())

    def fail(self) -> bool:
        """One more failure; True when it is the one that begins an outage."""
        self.failures += 1
        beyond = self.failures - self.failures_max
        if beyond >= 0:
            pause_s = min(PAUSE_MAX_S, PAUSE_FIRST_S * 2.0 ** min(beyond, 10))
            self.open_until = self.monotonic() + pause_s * random.uniform(0.8, 1.2)
        return beyond == 0

    def succeed(self) -> bool:
        """All is well; True when that ends an outage."""
        ended = self.failures >= self.failures_max
        self.failures, self.open_until = 0, 0.0
        return ended


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
    poll_s: float = 0.5
    """The longest pause while nothing is due."""
    intake: Intake | None = None
    """Takes in what other languages have written down, before each pass."""
    monotonic: Callable[[], float] = time.monotonic
    _connection: Connection | None = None
    _broker: _Breaker = field(init=False)
    _ledger_breaker: _Breaker = field(init=False)
    _queues: dict[str, _Breaker] = field(init=False, default_factory=dict)

    def __post_init__(self) -> None:
        if not 1 <= self.chunk_max <= WAKE_UPS_MAX:
            raise ValueError(f"chunk_max is 1 to {WAKE_UPS_MAX}")
        self._broker = _Breaker(2, self.monotonic)  # one failure may be a stale connection: the next pass has a new one
        self._ledger_breaker = _Breaker(1, self.monotonic)

    def run(self, stop: threading.Event) -> None:
        """Takes in and publishes what is due until `stop` is set; outages of broker and database are waited for, not raised.

        Sees `stop` between two queues, so it ends within one broker timeout.
        """
        pause_s = POLL_BUSY_S
        while not stop.is_set():
            moved = self._pass_safely(stop)
            pause_s = POLL_BUSY_S if moved else min(self.poll_s, pause_s * 2)
            if moved < self.batch:  # else there is more: no pause
                stop.wait(max(pause_s * random.uniform(0.8, 1.2), self._broker.left_s, self._ledger_breaker.left_s))

    def publish_due(self, stop: threading.Event | None = None) -> int:
        """One pass over all queues with due wake-ups; returns how many were published.

        A queue that fails does not delay the others; when the broker itself fails the pass ends. Raises
        `LedgerUnavailable`; what was leased then is published when its lease ends.
        """
        published = 0
        for row in self.ledger.rows(_SQL["due_queues"], {"queues_max": QUEUES_MAX}):
            if self._broker.is_open or (stop is not None and stop.is_set()):
                break
            published += self._publish_queue(row["queue"])
        return published

    def close(self) -> None:
        """Closes both connections."""
        self._drop_connection()
        self.ledger.close()

    def _pass_safely(self, stop: threading.Event) -> int:
        try:
            taken = self.intake.take() if self.intake is not None else 0
            published = self.publish_due(stop)
        except LedgerUnavailable as error:
            if self._ledger_breaker.fail():
                log.error("ledger_outage_began", error=error.message)
            return 0
        if self._ledger_breaker.succeed():
            log.info("ledger_outage_ended")
        return max(taken, published)

    def _publish_queue(self, queue: str) -> int:
        """Leases and publishes up to a batch of one queue; 0 when its breaker is open or publishing failed."""
        breaker = self._queues.get(queue)
        if breaker is not None and breaker.is_open:
            return 0
        leased = self._lease(queue)
        if not leased:
            return 0  # another relay was faster
        try:
            self._publish(queue, leased)
        except Exception as error:  # noqa: BLE001 - whatever it is, all, some or none may have landed: nothing is marked
            self._failed(queue, error)
            self._give_back(leased)
            return 0
        self._succeeded(queue)
        log.debug("published", queue=queue, actions=len(leased))
        return len(leased)

    def _lease(self, queue: str) -> list[_Leased]:
        rows = self.ledger.rows(
            _SQL["lease_due"],
            {
                "queue": queue,
                "batch": self.batch,
                "lost_after_s": self.lost_after_s,
                "lost_after_max_s": LOST_AFTER_MAX_S,
            },
            repeatable=False,  # a second run would lease other rows and leave the first ones to their timer
        )
        return [_Leased(**row) for row in rows]

    def _publish(self, queue: str, leased: Sequence[_Leased]) -> None:
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

    def _give_back(self, leased: Sequence[_Leased]) -> None:
        """Due again at once: the breaker, not the rows, waits for the broker."""
        self.ledger.rows(
            _SQL["give_back"],
            {
                "outbox_ids": [row.outbox_id for row in leased],
                "generations": [row.generation for row in leased],
                "publish_counts": [row.publish_count for row in leased],
            },
        )

    def _failed(self, queue: str, error: Exception) -> None:
        """The broker answered and refused (a matter of this queue), or it did not answer (a matter of all of them)."""
        cause = type(error.__cause__ or error).__name__
        if self._refused(error):
            breaker = self._queues.setdefault(queue, _Breaker(1, self.monotonic))
            if breaker.fail():
                log.error("queue_outage_began", queue=queue, error=cause)
        elif self._broker.fail():
            log.error("broker_outage_began", error=cause)
        self._drop_connection()

    def _succeeded(self, queue: str) -> None:
        if self._broker.succeed():
            log.info("broker_outage_ended")
        breaker = self._queues.pop(queue, None)
        if breaker is not None and breaker.succeed():
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


def run_relay(settings: Settings) -> None:
    """`counterfoil relay`: relays until SIGTERM or SIGINT, finishes its batch and returns."""
    configure_logs()
    stop = threading.Event()
    app = broker_app(url=settings.broker_url(), key_prefix=settings.broker.key_prefix, queues=())
    ledger = Ledger(settings.database_url(), application_name="counterfoil relay")
    relay = Relay(
        ledger,
        app,
        lost_after_s=settings.relay.lost_after_s,
        chunk_max=settings.relay.chunk_max,
        poll_s=settings.relay.poll_s,
        intake=Intake(ledger=ledger, registry=Registry.load(settings.tools, settings.http), rules=door_rules(settings)),
    )
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: stop.set())
    log.info("relay_started", chunk_max=relay.chunk_max, lost_after_s=relay.lost_after_s)
    try:
        relay.run(stop)
    finally:
        relay.close()
    log.info("relay_stopped")


def _chunks(leased: Sequence[_Leased], chunk_max: int) -> Iterator[Sequence[_Leased]]:
    """A few rows go one by one, so that every idle worker gets one; a backlog fills the messages."""
    size = min(chunk_max, -(-len(leased) // chunk_max))
    for start in range(0, len(leased), size):
        yield leased[start : start + size]
