"""How beat sends its ticks, and how it ends when it is told to, wherever the signal meets it."""

from __future__ import annotations

import signal
from types import FrameType
from typing import Any

import structlog
from celery.beat import Scheduler
from kombu.transport.virtual import Channel as VirtualChannel

from counterfoil.outbox.broker import RECONCILE_QUEUE

log: structlog.stdlib.BoundLogger = structlog.get_logger("counterfoil.beat")

TICKS_MAX = 50
"""Ticks that may wait in the broker. More only say the same: a worker that comes back would work through a day of them,
the oldest first, while an outcome that is unknown waits behind them."""


class BoundedScheduler(Scheduler):  # type: ignore[misc]  # Celery has no types
    """Celery's scheduler in memory; a tick is left out while enough of them wait. No clock of another host is asked."""

    _is_full = False

    def apply_async(self, entry: Any, producer: Any = None, advance: bool = True, **kwargs: Any) -> Any:
        """Sends the tick, or leaves it out; both count as its turn."""
        is_full = entry.options.get("queue") == RECONCILE_QUEUE and self._waiting(producer) >= TICKS_MAX
        if is_full != self._is_full:
            self._is_full = is_full
            log.warning("ticks_wait" if is_full else "ticks_taken_again", queue=RECONCILE_QUEUE, ticks_max=TICKS_MAX)
        if is_full:
            return self.reserve(entry) if advance else None
        return super().apply_async(entry, producer=producer, advance=advance, **kwargs)

    def _waiting(self, producer: Any) -> int:
        """How many messages the queue holds; 0 where there is none yet."""
        channel = producer.connection.channel()  # one of its own: a refusal closes it
        try:
            # kombu looks for Redis' queue under a name without our prefix when it is asked passively.
            is_passive = not isinstance(channel, VirtualChannel)
            return int(channel.queue_declare(queue=RECONCILE_QUEUE, passive=is_passive).message_count)
        except producer.connection.channel_errors:
            return 0  # whatever else is wrong is told by the send
        finally:
            channel.close()


def end_when_told(sender: Any, **_: object) -> None:
    """Beat's own handler raises SystemExit wherever it is. In the middle of a send the client's clean-up may put another
    exception in its place, which beat logs, and goes on. So its loop is told, too."""
    handlers = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)}

    def end(number: int, frame: FrameType | None) -> None:
        sender.stop()
        handler = handlers[signal.Signals(number)]
        if callable(handler):
            handler(number, frame)

    for number in handlers:
        signal.signal(number, end)
