"""PgBouncer between every process of the fleet and its Postgres, in both modes that can work, with its own defaults."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Literal

import pytest
from tests.infra.brokers import Redis
from tests.infra.fleet import Fleet
from tests.infra.servers import LedgerAt, PgBouncer, Place, Postgres

from counterfoil.sandbox.client import Sandbox

Mode = Literal["session", "transaction"]
MODES: tuple[Mode, ...] = ("session", "transaction")


@pytest.fixture(params=MODES)
def pooled(place: Place, world: Sandbox, tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Pooled]:
    with Postgres(place) as postgres, Redis(place) as broker:
        ledger = LedgerAt.made(postgres)
        with PgBouncer(place, postgres.urls, request.param, ledger.logins()) as pooler:

            def through(role: str) -> str:
                return ledger.url(role, through=pooler.urls)

            with Fleet(tmp_path, through, ledger.url, broker.url, world) as fleet:
                yield fleet, pooler


Pooled = tuple[Fleet, PgBouncer]


@pytest.mark.infra(seconds=18)
def test_all_goes_through_it(pooled: Pooled) -> None:
    """Agents, relay, workers and beat work as without it."""
    fleet, _ = pooled
    fleet.send()
    fleet.settle()


@pytest.mark.infra(seconds=25)
def test_it_restarts_in_the_middle(pooled: Pooled) -> None:
    """Killed and started again: every connection is made anew, and no statement that one of them had prepared is missed."""
    fleet, pooler = pooled
    with fleet.upset():
        pooler.kill()
        pooler.start()


@pytest.mark.infra(seconds=25)
def test_its_server_connections_are_replaced(pooled: Pooled, place: Place) -> None:
    """Postgres ends the pooler's connections, idle and busy ones: who was on one of them tries again on another."""
    fleet, _ = pooled
    with fleet.upset():
        for _ in range(3):
            ended = fleet.rows(
                "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
                " WHERE datname = current_database() AND usename <> current_user"
            )
            assert ended, "nobody was connected"
            fleet.wait_for_effects(fleet.effects() + 5)
