"""The primary goes away and its standby takes over, in the middle of the work, under an address that names both hosts."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

import pytest
from tests.infra.brokers import Redis
from tests.infra.fleet import Fleet
from tests.infra.servers import LedgerAt, Place, Postgres, Standby, until

from counterfoil.sandbox.client import Sandbox
from counterfoil.stack.server import HOST


@dataclass(frozen=True, slots=True)
class Pair:
    """A primary with its standby, and a ledger on both."""

    primary: Postgres
    standby: Standby
    ledger: LedgerAt

    def as_url(self, role: str) -> str:
        """A URL with both hosts: whichever takes writes."""
        one = urlsplit(self.ledger.url(role))
        hosts = f"{HOST}:{self.primary.port},{HOST}:{self.standby.port}"
        return f"postgresql://{one.username}:{one.password}@{hosts}{one.path}?target_session_attrs=read-write"

    def as_words(self, role: str) -> str:
        """The same as libpq's words."""
        one = urlsplit(self.ledger.url(role))
        ports = f"{self.primary.port},{self.standby.port}"
        login = f"user={one.username} password={one.password} dbname={one.path[1:]}"
        return f"host={HOST},{HOST} port={ports} {login} target_session_attrs=read-write"

    def read_only(self) -> None:
        """The primary takes no writes any more and keeps its connections, as one that was demoted by hand."""
        self.primary.run("ALTER SYSTEM SET default_transaction_read_only = on", "SELECT pg_reload_conf()")
        writing = "SELECT FROM pg_stat_activity WHERE backend_xid IS NOT NULL"
        until(lambda: not self.primary.finds(writing), what="the end of the last write")


@pytest.fixture
def pair(place: Place) -> Iterator[Pair]:
    with Postgres(place) as primary:
        ledger = LedgerAt.made(primary)
        with Standby(place, primary) as standby:
            yield Pair(primary, standby, ledger)


@pytest.fixture
def broker(place: Place) -> Iterator[Redis]:
    with Redis(place) as started:
        yield started


@pytest.mark.infra(seconds=22)
@pytest.mark.parametrize("address", ["url", "words"])
def test_the_primary_is_killed(pair: Pair, broker: Redis, world: Sandbox, tmp_path: Path, address: str) -> None:
    """SIGKILL, and the standby is promoted: all processes go on there, by a URL or by libpq's words."""
    both = pair.as_url if address == "url" else pair.as_words
    with Fleet(tmp_path, both, pair.as_url, broker.url, world) as fleet, fleet.upset():
        pair.primary.kill()
        pair.standby.promote()


@pytest.mark.infra(seconds=22)
def test_the_primary_is_stopped(pair: Pair, broker: Redis, world: Sandbox, tmp_path: Path) -> None:
    """An orderly switch-over: every connection is told that the server shuts down."""
    with Fleet(tmp_path, pair.as_url, pair.as_url, broker.url, world) as fleet, fleet.upset():
        pair.primary.stop(signal.SIGINT)
        pair.standby.promote()


@pytest.mark.infra(seconds=22)
def test_the_primary_turns_read_only(pair: Pair, broker: Redis, world: Sandbox, tmp_path: Path) -> None:
    """It lives on and takes no writes: whoever is still connected to it leaves it for the new one."""
    with Fleet(tmp_path, pair.as_url, pair.as_url, broker.url, world) as fleet, fleet.upset():
        pair.read_only()
        pair.standby.promote()


@pytest.mark.infra(seconds=20)
def test_nobody_takes_writes_for_a_while(pair: Pair, broker: Redis, world: Sandbox, tmp_path: Path) -> None:
    """The same server turns read-only and back, without a standby's help: everybody waits for it, and nobody ends."""
    with Fleet(tmp_path, pair.ledger.url, pair.ledger.url, broker.url, world) as fleet, fleet.upset():
        pair.read_only()
        fleet.relay_says("ledger_outage_began")
        pair.primary.run("ALTER SYSTEM RESET default_transaction_read_only", "SELECT pg_reload_conf()")
