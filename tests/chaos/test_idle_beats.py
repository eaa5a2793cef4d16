"""A worker that has nothing to do: who looks for somebody to take a queue must see it all the same."""

from __future__ import annotations

import pytest
import redis
from tests.chaos.test_workers import Site, broker_url, site, until, valkey_server, world

__all__ = ["broker_url", "site", "valkey_server", "world"]  # fixtures

pytestmark = pytest.mark.chaos


def test_an_idle_worker_is_seen_before_and_after_it_loses_the_broker(site: Site) -> None:
    """Without one message its heartbeat goes on, also when each connection to the broker was cut and made anew."""
    (site.folder / "quick.py").write_text(
        "from counterfoil.workers import app, tasks\nassert app\ntasks.IDLE_BEAT_S = 0.1\n"
    )
    worker = site.worker("-c", "1", app="quick")

    def seen() -> object:
        return site.rows("SELECT worker, queues, seen_at FROM counterfoil.worker_heartbeat")

    first = seen()
    until(lambda: seen() != first)
    with redis.Redis.from_url(site.broker_url) as client:
        client.client_kill_filter(_type="normal", skipme=True)
        until(lambda: worker.says("Connection to broker lost"))
    lost = seen()
    until(lambda: seen() != lost)
    again = seen()
    until(lambda: seen() != again)
    assert site.rows("SELECT worker, queues, last_claim_at FROM counterfoil.worker_heartbeat") == [
        ("w@test", ["cf-reconcile", "cf-stripe"], None)
    ]
