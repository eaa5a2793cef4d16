"""Servers that are there and say nothing: agents are told within their own patience and ten seconds, and nothing is lost."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from tests.infra.brokers import Redis
from tests.infra.fleet import Fleet
from tests.infra.servers import LedgerAt, PgBouncer, Place, Postgres
from tests.infra.silence import fall_silent, in_namespace

from counterfoil.sandbox.client import Sandbox
from counterfoil.sandbox.process import running


@pytest.fixture
def postgres(place: Place) -> Iterator[Postgres]:
    with Postgres(place) as started:
        yield started


@pytest.fixture
def broker(place: Place) -> Iterator[Redis]:
    with Redis(place) as started:
        yield started


@pytest.mark.infra(seconds=50)
def test_postgres_is_frozen(postgres: Postgres, broker: Redis, world: Sandbox, tmp_path: Path) -> None:
    """SIGSTOP: its connections stay, new ones are taken by the kernel, and no byte comes back."""
    ledger = LedgerAt.made(postgres)
    with Fleet(tmp_path, ledger.url, ledger.url, broker.url, world) as fleet:
        fall_silent(fleet, postgres.pause, postgres.resume)


@pytest.mark.infra(seconds=50)
def test_the_pooler_is_frozen(place: Place, postgres: Postgres, broker: Redis, world: Sandbox, tmp_path: Path) -> None:
    """The same of PgBouncer, while Postgres behind it is well."""
    ledger = LedgerAt.made(postgres)
    with PgBouncer(place, postgres.urls, "transaction", ledger.logins()) as pooler:

        def through(role: str) -> str:
            return ledger.url(role, through=pooler.urls)

        with Fleet(tmp_path, through, ledger.url, broker.url, world) as fleet:
            fall_silent(fleet, pooler.pause, pooler.resume)


@pytest.mark.infra(seconds=50)
def test_the_broker_is_frozen(postgres: Postgres, broker: Redis, world: Sandbox, tmp_path: Path) -> None:
    """No agent notices: what it asks for is recorded, and done when Redis is back."""
    ledger = LedgerAt.made(postgres)
    with Fleet(tmp_path, ledger.url, ledger.url, broker.url, world) as fleet:
        fall_silent(fleet, broker.pause, broker.resume, may_fail=False)


@pytest.mark.infra(seconds=50)
def test_the_network_is_gone(place: Place, tmp_path: Path) -> None:
    """Packets vanish, without a FIN or a reset: what the kernel would wait out for a quarter of an hour."""

    def body(set_loopback: Callable[[str], None]) -> None:
        (tmp_path / "sandbox").mkdir()
        with Postgres(place) as postgres, Redis(place) as broker, running(tmp_path / "sandbox") as world:
            ledger = LedgerAt.made(postgres)
            with Fleet(tmp_path, ledger.url, ledger.url, broker.url, world) as fleet:
                fall_silent(fleet, lambda: set_loopback("down"), lambda: set_loopback("up"))

    in_namespace(body)
