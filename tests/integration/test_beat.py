"""Beat's ticks where no worker takes them: they say the same, so that a few are enough."""

from __future__ import annotations

from typing import Any

import redis

from counterfoil.outbox.broker import RECONCILE_QUEUE, broker_app
from counterfoil.reconciler.schedule import beat_schedule
from counterfoil.settings import Settings
from counterfoil.workers.beat import TICKS_MAX, BoundedScheduler


def test_ticks_do_not_pile_up_and_do_not_expire(valkey: tuple[str, str]) -> None:
    """A day without workers leaves fifty; each is taken whatever the worker's clock says, and then there is room again."""
    url, prefix = valkey
    app = broker_app(url=url, key_prefix=prefix, queues=[RECONCILE_QUEUE], beat_schedule=beat_schedule(Settings()))
    scheduler: Any = BoundedScheduler(app=app)
    entries = list(scheduler.schedule.values())
    key = f"{prefix}{RECONCILE_QUEUE}"
    with redis.Redis.from_url(url) as client, app.connection_for_read() as connection:
        for _ in range(3):
            for _ in range(TICKS_MAX):
                for entry in entries:
                    scheduler.apply_entry(entry, producer=scheduler.producer)
            assert client.llen(key) == TICKS_MAX
            queue = connection.SimpleQueue(app.conf.task_queues[0])
            for _ in range(TICKS_MAX):
                message = queue.get(timeout=60)
                assert message.headers["expires"] is None
                message.ack()
            queue.close()
            assert client.llen(key) == 0
    scheduler.close()
    app.close()
