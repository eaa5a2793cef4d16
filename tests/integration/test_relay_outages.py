"""The relay while its broker or its database is away, refuses, hangs or drops a connection: nothing is lost, or counted."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

import psycopg
import pytest
from tests.integration.relaying import Broker, agent, broker, claim, outbox, propose, relay_to, running, until

from counterfoil.ledger.connection import Ledger
from counterfoil.outbox.relay import Relay
from counterfoil.stack.home import Home, home
from counterfoil.stack.valkey import Valkey

if TYPE_CHECKING:
    from tests.conftest import Database

__all__ = ["agent", "broker", "relay_to"]  # fixtures


class Proxy:
    """Stands between client and server; once armed it forwards so many bytes and then drops the connection."""

    def __init__(self, url: str) -> None:
        parts = urlsplit(url)
        self._target = (parts.hostname, parts.port)
        self._server = socket.create_server(("127.0.0.1", 0))
        self.url = url.replace(f":{parts.port}/", f":{self._server.getsockname()[1]}/")
        self.cut_after: int | None = None
        threading.Thread(target=self._accept, daemon=True).start()

    def close(self) -> None:
        self._server.shutdown(socket.SHUT_RDWR)
        self._server.close()

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._server.accept()
            except OSError:
                return
            upstream = socket.create_connection(self._target)
            threading.Thread(target=self._pump, args=(client, upstream, True), daemon=True).start()
            threading.Thread(target=self._pump, args=(upstream, client, False), daemon=True).start()

    def _pump(self, source: socket.socket, sink: socket.socket, outward: bool) -> None:
        try:
            while data := source.recv(65536):
                if outward and self.cut_after is not None and b"LPUSH" in data:
                    sink.sendall(data[: self.cut_after])
                    self.cut_after = None
                    break
                sink.sendall(data)
        except OSError:
            pass
        for end in (source, sink):
            with suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)
            end.close()


@pytest.fixture
def proxy(valkey: tuple[str, str]) -> Iterator[Proxy]:
    made = Proxy(valkey[0])
    yield made
    made.close()


@pytest.fixture
def own_valkey() -> Iterator[tuple[Valkey, str]]:
    """A Valkey that a test may stop and freeze, running, and its URL."""
    folder = Path(tempfile.mkdtemp(prefix="counterfoil-relay-"))
    folder.chmod(0o755)
    made: Home = home(folder, environ={"COUNTERFOIL_HOME": str(folder / "home")})
    server = Valkey(made)
    server.launch()
    yield server, f"redis://:{made.secret('valkey')}@127.0.0.1:{server.wait()}/0"
    process = server.process()
    if process is not None:
        process.resume()
    server.stop()
    shutil.rmtree(folder)


@pytest.mark.case("C2")
def test_publishing_that_fails_halfway(
    database: Database,
    agent: psycopg.Connection[Any],
    broker: Broker,
    proxy: Proxy,
    relay_to: Callable[..., Relay],
) -> None:
    """Of ten messages some land before the connection drops: each is claimed once, and the other queue does not wait."""
    relay = relay_to(proxy.url, broker.prefix, chunk_max=10)
    propose(agent, queue="cf-warm")
    relay.publish_due()
    ten = [propose(agent, queue="cf-a") for _ in range(10)]
    other = propose(agent, queue="cf-b")
    proxy.cut_after = 4500
    assert relay.publish_due() == 1
    assert 0 < len(broker.ids("cf-a")) < 10
    assert broker.ids("cf-b") == [other]
    assert [publish_count for identity, publish_count, _ in outbox(database) if identity in ten] == [0] * 10
    assert relay.publish_due() == 10
    assert set(broker.ids("cf-a")) == set(ten)
    ledger = Ledger(database.url("worker"))
    claimed = Counter(wake_up.action_id for wake_up in broker.wake_ups("cf-a") if claim(ledger, wake_up))
    ledger.close()
    assert claimed == Counter(ten)


def test_queue_that_refuses_does_not_delay_others(
    agent: psycopg.Connection[Any], broker: Broker, relay_to: Callable[..., Relay]
) -> None:
    """While the broker refuses every message of one queue, the others are published in the same pass, again and again."""
    broker.client.set(broker.prefix + "cf-a", "not a list")
    relay = relay_to(broker.url, broker.prefix)
    refused = propose(agent, queue="cf-a")
    for _ in range(4):
        other = propose(agent, queue="cf-b")
        assert relay.publish_due() == 1
        assert broker.ids("cf-b")[-1] == other
    broker.client.delete(broker.prefix + "cf-a")
    with running(relay):
        until(lambda: refused in broker.ids("cf-a"))


def test_broker_that_is_down_and_comes_back(
    database: Database,
    agent: psycopg.Connection[Any],
    own_valkey: tuple[Valkey, str],
    relay_to: Callable[..., Relay],
    capfd: pytest.CaptureFixture[str],
) -> None:
    """A relay that starts before its broker publishes once that is there; the outage counts nothing and is told once."""
    server, url = own_valkey
    server.stop()
    identity = propose(agent)
    told: list[str] = []

    def was_told(event: str) -> bool:
        told.append(capfd.readouterr().out)
        return event in "".join(told)

    with running(relay_to(url, "cf-", poll_s=0.05)):
        until(lambda: was_told("broker_outage_began"))
        [(_, publish_count, wait_s)] = outbox(database)
        assert publish_count == 0
        assert wait_s < 1, "the row waits for the broker, not for the timer of 20 s"
        server.launch()
        server.wait()
        broker = Broker(url, "cf-")
        until(lambda: broker.ids() == [identity])
        broker.client.close()
        until(lambda: was_told("broker_outage_ended"))
    assert "".join(told).count("broker_outage_began") == 1


def test_hung_broker_blocks_for_one_timeout(
    agent: psycopg.Connection[Any], own_valkey: tuple[Valkey, str], relay_to: Callable[..., Relay]
) -> None:
    """A broker that takes connections and never answers holds the relay for its timeout, then the row is due again."""
    server, url = own_valkey
    relay = relay_to(url, "cf-", socket_timeout_s=0.5)
    propose(agent)
    assert relay.publish_due() == 1
    process = server.process()
    assert process is not None
    process.suspend()
    hung = [propose(agent) for _ in range(3)]
    began = time.monotonic()
    assert relay.publish_due() == 0
    assert relay.publish_due() == 0
    assert time.monotonic() - began < 5
    with running(relay):  # stops although the broker hangs
        pass
    process.resume()
    broker = Broker(url, "cf-")
    with running(relay):
        until(lambda: set(hung) <= set(broker.ids()))
    broker.client.close()


def test_ledger_that_drops_connections(
    database: Database, agent: psycopg.Connection[Any], broker: Broker, relay_to: Callable[..., Relay]
) -> None:
    """A relay whose database connections are cut goes on with new ones."""
    with running(relay_to(broker.url, broker.prefix, poll_s=0.05)):
        for _ in range(3):
            with psycopg.connect(database.url("owner")) as owner:
                owner.execute(
                    "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE usename = 'cf_worker'"
                    " AND datname = current_database()"
                )
            identity = propose(agent)
            until(lambda identity=identity: identity in broker.ids())


def test_relay_process_ends_on_sigterm(
    database: Database, agent: psycopg.Connection[Any], broker: Broker, tmp_path: Path
) -> None:
    """The relay as a process of its own publishes from its configuration alone, and SIGTERM ends it with 0."""
    clean = {name: value for name, value in os.environ.items() if not name.startswith("COUNTERFOIL_")}
    configured = {
        "COUNTERFOIL_DATABASE__URL": database.url("worker"),
        "COUNTERFOIL_BROKER__URL": broker.url,
        "COUNTERFOIL_BROKER__KEY_PREFIX": broker.prefix,
    }
    code = (
        "from counterfoil.outbox.relay import run_relay\n"
        "from counterfoil.settings import Settings\n"
        "run_relay(Settings.load())"
    )
    identity = propose(agent)
    with subprocess.Popen([sys.executable, "-c", code], cwd=tmp_path, env=clean | configured) as process:
        until(lambda: broker.ids() == [identity])
        process.terminate()
        assert process.wait(timeout=10) == 0
