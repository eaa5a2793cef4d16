"""PgBouncer between every process of the fleet and its Postgres, in both modes that can work, with its own defaults."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, closing, contextmanager
from pathlib import Path
from typing import Literal

import pytest
from tests.infra.brokers import Redis
from tests.infra.fleet import Fleet
from tests.infra.servers import LedgerAt, PgBouncer, Place, Postgres

from counterfoil.ledger import migrate, roles
from counterfoil.ledger.connection import Ledger
from counterfoil.ledger.schema import SCHEMA
from counterfoil.sandbox.client import Sandbox

Mode = Literal["session", "transaction"]
Pooled = Callable[[Mode, str], AbstractContextManager[tuple[Fleet, PgBouncer]]]
MODES: tuple[Mode, ...] = ("session", "transaction")


@pytest.fixture
def pooled(place: Place, world: Sandbox, tmp_path: Path) -> Iterator[Pooled]:
    """A fleet behind a pooler in this mode, with what the configuration says of it."""
    with Postgres(place) as postgres, Redis(place) as broker:
        ledger = LedgerAt.made(postgres)

        @contextmanager
        def fleet_behind(mode: Mode, said: str = "") -> Iterator[tuple[Fleet, PgBouncer]]:
            settings = {"database": {"pooler": said}} if said else {}
            with PgBouncer(place, postgres.urls, mode, ledger.logins()) as pooler:

                def through(role: str) -> str:
                    return ledger.url(role, through=pooler.urls)

                with Fleet(tmp_path, through, ledger.url, broker.url, world, settings=settings) as fleet:
                    yield fleet, pooler

        yield fleet_behind


@pytest.mark.infra(seconds=10)
@pytest.mark.parametrize("said", ["", "as it is"], ids=["found-out", "configured"])
@pytest.mark.parametrize("mode", MODES)
def test_all_goes_through_it(pooled: Pooled, mode: Mode, said: str) -> None:
    """Agents, relay, workers and beat work as without it, whether they find it out or are told."""
    with pooled(mode, said and mode) as (fleet, _):
        fleet.send()
        fleet.settle()


@pytest.mark.infra(seconds=10)
@pytest.mark.parametrize("mode", MODES)
def test_it_restarts_in_the_middle(pooled: Pooled, mode: Mode) -> None:
    """Killed and started again: every connection is made anew, and no statement that one of them had prepared is missed."""
    with pooled(mode, "") as (fleet, pooler), fleet.upset():
        pooler.kill()
        pooler.start()


@pytest.mark.infra(seconds=12)
@pytest.mark.parametrize("mode", MODES)
def test_its_server_connections_are_replaced(pooled: Pooled, mode: Mode) -> None:
    """Postgres ends the pooler's connections, idle and busy ones: who was on one of them tries again on another."""
    ours = "FROM pg_stat_activity WHERE datname = current_database() AND usename <> current_user"
    with pooled(mode, "") as (fleet, _), fleet.upset():
        for _ in range(3):
            assert fleet.rows(f"SELECT pg_terminate_backend(pid) {ours}"), "nobody was connected"
            fleet.wait_for_effects(fleet.effects() + 3)


@pytest.mark.infra(seconds=10)
@pytest.mark.parametrize("mode", MODES)
def test_the_schema_is_made_through_it(place: Place, mode: Mode) -> None:
    """Groups, migrations by four at once, and a grant: no lock and no role outlasts its transaction."""
    with Postgres(place) as postgres:
        postgres.run("CREATE DATABASE app", "CREATE ROLE app_worker LOGIN PASSWORD 'x'")
        with PgBouncer(place, postgres.urls, mode, {}) as pooler:
            owner = pooler.urls.postgres_as("postgres", postgres.urls.password, "app")
            roles.create_groups(owner)
            with ThreadPoolExecutor(4) as threads:
                assert set(threads.map(migrate.upgrade, [owner] * 4)) == {SCHEMA}
            roles.grant(owner, "app_worker", as_="worker", tenant="*")
            with closing(Ledger(owner)) as ledger:
                assert ledger.connected().is_pooled
                assert ledger.check_worker() is None
