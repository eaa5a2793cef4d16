"""Decides what a worker does with one broker message: checks its shape, and hands it to the process's executor."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import structlog
from celery import Task, bootsteps, current_app, shared_task, signals

from counterfoil.ledger.claims import beat_heart
from counterfoil.ledger.connection import Ledger
from counterfoil.ledger.errors import ConfigError, LedgerUnavailable
from counterfoil.outbox.broker import EXECUTE, read_wake_ups
from counterfoil.workers.executor import Executor
from counterfoil.workers.points import points_from
from counterfoil.workers.process import Kept, is_ending, told

log: structlog.stdlib.BoundLogger = structlog.get_logger("counterfoil.worker")

HEARTBEAT_S = 5.0
"""A process tells that it is up at most this often; a stall is measured in minutes."""

IDLE_BEAT_S = 20.0
"""A worker without work tells so this often: who was silent for a minute is taken to be gone, and its queues for unserved."""


@dataclass(slots=True, kw_only=True)
class Heart:
    """Tells the ledger that a worker is up, and when it last claimed something."""

    worker: str
    monotonic: Callable[[], float] = time.monotonic
    _claimed: bool = False
    _beat_at: float = field(default=float("-inf"))

    def beat(self, ledger: Ledger, *, claimed: bool) -> None:
        """Writes at most once in `HEARTBEAT_S`; a claim in between is told by the next write."""
        self._claimed |= claimed
        if self.monotonic() - self._beat_at < HEARTBEAT_S:
            return
        amqp: Any = current_app.amqp
        beat_heart(ledger, worker=self.worker, queues=sorted(amqp.queues.consume_from), claimed=self._claimed)
        self._claimed, self._beat_at = False, self.monotonic()


@dataclass(frozen=True, slots=True)
class Hands:
    """What one process executes with."""

    executor: Executor
    heart: Heart


_hands: Kept[Hands] = Kept()


def execute(task: Task, wake_ups: object) -> None:
    """Executes the actions that a message names, as far as its time limit and the worker's life allow.

    Returns normally whatever happens: a message is never requeued, the outbox publishes what is not claimed again.
    """
    started_at = time.monotonic()
    with told(EXECUTE, _hands):
        try:
            read = read_wake_ups(wake_ups)
        except ValueError as error:
            log.error("message_refused", reason=str(error))
            return
        hands = _hands.get(lambda: _new_hands(task.request.hostname or "solo"))
        claimed = hands.executor.run(read, stop_at=started_at + task.app.conf.task_soft_time_limit)
        hands.heart.beat(hands.executor.ledger, claimed=claimed > 0)


execute_task = shared_task(name=EXECUTE, bind=True)(execute)


def _new_hands(node: str) -> Hands:
    """Made in the child, after the fork. The executor stops between two actions once the worker is asked to end."""
    from counterfoil.workers.celery_app import settings
    from counterfoil.workers.setup import executor_from

    worker, points = f"{node}/{os.getpid()}", points_from(os.environ)
    return Hands(executor_from(settings, worker=worker, points=points, stopping=is_ending), Heart(worker=node))


def _beat_idle(sender: object, **_: object) -> None:
    """A worker that claims nothing is seen, too. The connection is closed: later children must not inherit it."""
    from counterfoil.workers.celery_app import settings

    ledger = Ledger(settings.database_address(), application_name="counterfoil worker")
    try:
        Heart(worker=str(getattr(sender, "hostname", "solo"))).beat(ledger, claimed=False)
    except (LedgerUnavailable, ConfigError) as error:
        log.warning("ledger_unavailable", task="heartbeat", error=str(error))
    finally:
        ledger.close()


signals.worker_ready.connect(_beat_idle, weak=False)


class IdleBeats(bootsteps.StartStopStep):  # type: ignore[misc]  # Celery has no types
    """Beats in the worker's main process for as long as it is connected to the broker: work beats by itself."""

    requires = ("celery.worker.consumer.tasks:Tasks",)

    def __init__(self, parent: Any, **kwargs: Any) -> None:
        super().__init__(parent, **kwargs)
        self._entry: Any = None

    def start(self, parent: Any) -> None:
        """At each connection: the timers of the last one are gone with it."""
        self._entry = parent.timer.call_repeatedly(IDLE_BEAT_S, _beat_idle, (parent,))

    def stop(self, parent: Any) -> None:
        if self._entry is not None:
            self._entry.cancel()
