"""The broker is a Redis that is reached by TLS, by a socket, as a confined user, or that is a replica, full or replaced."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from urllib.parse import quote

import pytest
from tests.infra.brokers import Certificates, Redis, Sentinel
from tests.infra.fleet import PREFIX, Fleet, Url
from tests.infra.servers import READY_S, Place, until

from counterfoil.sandbox.client import Sandbox

AWAY_S = 10.0
"""How long the server is a replica: longer than any client's patience with one command."""

Made = Callable[[str], Fleet]


@pytest.fixture
def fleet_at(ledger: Url, world: Sandbox, tmp_path: Path) -> Made:
    """A fleet with the broker at this address."""
    return lambda broker_url: Fleet(tmp_path, ledger, ledger, broker_url, world)


@pytest.fixture
def certificates(place: Place) -> Certificates:
    return Certificates.made(place, "ca")


@pytest.fixture
def broker(place: Place) -> Iterator[Redis]:
    with Redis(place) as started:
        yield started


def check_config(fleet: Fleet) -> subprocess.CompletedProcess[str]:
    """`counterfoil config check --connect` in the fleet's folder."""
    words = [sys.executable, "-m", "counterfoil.cli", "config", "check", "--connect"]
    return subprocess.run(
        words, cwd=fleet.folder, env=fleet.environ(), capture_output=True, text=True, timeout=READY_S, check=False
    )


@pytest.mark.infra(seconds=11)
@pytest.mark.parametrize(
    "spelling",
    [
        "?ssl_cert_reqs=CERT_REQUIRED&ssl_ca_certs={ca}",
        "?ssl_cert_reqs=required&ssl_ca_certs={ca}",
        "?ssl_cert_reqs=none",
    ],
    ids=["celery", "redis-py", "unverified"],
)
def test_tls(place: Place, certificates: Certificates, fleet_at: Made, spelling: str) -> None:
    """The server takes TLS alone, and the address says so as Celery spells it or as redis-py does: counters included."""
    with Redis(place, tls=certificates) as broker:
        url = broker.url + spelling.format(ca=quote(str(certificates.ca), safe="/"))
        with fleet_at(url) as fleet:
            checked = check_config(fleet)
            assert checked.returncode == 0, checked.stdout + checked.stderr
            fleet.send()
            fleet.settle()
            fleet.counts_together()
        keys = broker.command("KEYS", "*")
        assert [key for key in keys if not key.startswith(PREFIX)] == []


@pytest.mark.infra(seconds=6)
@pytest.mark.parametrize("reqs", ["CERT_REQUIRED", "required"])
def test_a_server_whose_ca_is_another_is_refused(
    place: Place, certificates: Certificates, fleet_at: Made, reqs: str
) -> None:
    """Nothing is sent to it; `config check --connect` and the relay's log name the certificate; the relay waits."""
    other = Certificates.made(place, "another-ca")
    with Redis(place, tls=certificates) as broker:
        fleet = fleet_at(f"{broker.url}?ssl_cert_reqs={reqs}&ssl_ca_certs={other.ca}")
        try:
            fleet.configure()
            checked = check_config(fleet)
            assert checked.returncode == 5, checked.stdout + checked.stderr
            assert "certificate" in (checked.stdout + checked.stderr).lower()
            fleet.cf = fleet.agent()
            fleet.send(2)
            relay = fleet.begin("relay", "-m", "counterfoil.cli", "relay")
            fleet.relay_says("outage_began")
            assert "certificate" in relay.log.read_text().lower()
            assert broker.command("DBSIZE") == 0
        finally:
            fleet.__exit__()


@pytest.mark.infra(seconds=12)
def test_a_user_who_is_confined_to_our_prefix(broker: Redis, fleet_at: Made) -> None:
    """An ACL of our keys and channels, without what is dangerous, is enough: nothing else is tried."""
    with fleet_at(broker.grant("counterfoil", PREFIX)) as fleet:
        fleet.send()
        fleet.settle()
        fleet.counts_together()
        denied = broker.command("ACL", "LOG")
        assert denied == [], denied


@pytest.mark.infra(seconds=5)
@pytest.mark.parametrize("lacks", ["patterns", "keys"])
def test_a_right_that_is_missing_is_told_before_the_start(broker: Redis, fleet_at: Made, lacks: str) -> None:
    """One line, and where the rights are listed."""
    fleet = fleet_at(broker.grant("counterfoil", PREFIX))
    fleet.configure()
    rules = ("resetchannels", f"&{PREFIX}*") if lacks == "patterns" else ("resetkeys", "~other:*")
    broker.command("ACL", "SETUSER", "counterfoil", *rules)
    checked = check_config(fleet)
    assert (checked.returncode, checked.stdout) == (5, "")
    assert "docs/production.md" in checked.stderr
    assert len(checked.stderr.splitlines()) == 2


@pytest.mark.infra(seconds=10)
@pytest.mark.parametrize("spelling", ["celery", "redis-py"])
def test_unix_socket(broker: Redis, fleet_at: Made, spelling: str) -> None:
    """Without TCP, as either spells it."""
    with fleet_at(broker.celery_socket_url if spelling == "celery" else broker.socket_url) as fleet:
        fleet.send()
        fleet.settle()
        fleet.counts_together()


@pytest.mark.infra(seconds=22)
def test_a_replica_for_a_while(broker: Redis, fleet_at: Made) -> None:
    """Each write is refused as READONLY, reads that block among them, for ten seconds: everybody waits, and goes on."""
    with fleet_at(broker.url) as fleet, fleet.upset():
        broker.command("REPLICAOF", "127.0.0.1", 1)
        fleet.outlast(AWAY_S)
        broker.command("REPLICAOF", "NO", "ONE")


@pytest.mark.infra(seconds=17)
def test_no_memory_left(broker: Redis, fleet_at: Made) -> None:
    """Each write is refused as OOM until there is memory again."""
    with fleet_at(broker.url) as fleet, fleet.upset():
        broker.command("CONFIG", "SET", "maxmemory", 1)
        fleet.send(10)
        fleet.relay_says("outage_began")
        fleet.outlast(AWAY_S / 2)
        broker.command("CONFIG", "SET", "maxmemory", 0)


@pytest.mark.infra(seconds=40)
@pytest.mark.parametrize("spelling", ["one", "list"])
def test_sentinel(place: Place, fleet_at: Made, spelling: str) -> None:
    """The master is killed and its replica takes over; the old one comes back as a replica. One Sentinel, or a list."""
    with (
        Redis(place, "first") as first,
        Redis(place, "second", replica_of=first) as second,
        Sentinel(place, first) as sentinel,
        fleet_at(sentinel.url if spelling == "one" else sentinel.listed_url) as fleet,
        fleet.upset(),
    ):
        first.kill()
        sentinel.wait_for(second)
        first.start()
        until(lambda: first.command("ROLE")[0] == "slave", what="the old master's demotion")


@pytest.mark.infra(seconds=17)
def test_killed_and_empty(broker: Redis, fleet_at: Made) -> None:
    """SIGKILL, away for some seconds, and back with nothing of what it held."""
    with fleet_at(broker.url) as fleet, fleet.upset():
        broker.kill()
        fleet.outlast(AWAY_S / 2)
        broker.start()
