"""The relay against real Postgres and Valkey: nothing is skipped, nothing waits for another queue, outages lose nothing."""

from __future__ import annotations

import base64
import json
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
from contextlib import contextmanager, suppress
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit
from uuid import uuid4

import psycopg
import pytest
import redis

from counterfoil.ledger import claims
from counterfoil.ledger.canonical import canonical_json, sha256_of
from counterfoil.ledger.claims import WakeUp
from counterfoil.ledger.connection import Ledger
from counterfoil.ledger.keys import action_id
from counterfoil.ledger.queries import load
from counterfoil.outbox.broker import EXECUTE, broker_app, read_wake_ups
from counterfoil.outbox.relay import Relay
from counterfoil.stack.home import Home, home
from counterfoil.stack.valkey import Valkey

if TYPE_CHECKING:
    from tests.conftest import Database

PROPOSE = load("counterfoil.ledger", "sql/agent.sql")["propose"]
_steps = count(1)


def propose(connection: psycopg.Connection[Any], *, queue: str = "cf-a", arguments: object = None) -> str:
    """Records one ready action of tenant acme in the caller's transaction; gives its id."""
    step = f"step-{next(_steps)}"
    text = canonical_json(arguments or {"order": step})
    identity = action_id("acme", "run", step, 1, "do")
    values: dict[str, object] = dict.fromkeys(PROPOSE.parameters)
    values |= {
        "action_id": identity,
        "tenant": "acme",
        "run": "run",
        "step": step,
        "revision": 1,
        "actor": "bot",
        "tool": "a_tool",
        "tool_version": 1,
        "class": "compensatable",
        "effect": "thing",
        "target": step,
        "provider": queue.removeprefix("cf-"),
        "account": "default",
        "queue": queue,
        "arguments": text,
        "arguments_sha256": sha256_of(text),
        "audience": [],
        "needs_approval": False,
        "staged": False,
        "reads_version": False,
        "effect_scope": "run",
    }
    connection.execute(PROPOSE.psycopg.encode(), values)
    return str(identity)


def until(condition: Callable[[], object], within_s: float = 10.0) -> None:
    """Waits until the condition holds."""
    pause, deadline = threading.Event(), time.monotonic() + within_s
    while not condition():
        assert time.monotonic() < deadline, "the condition did not come true in time"
        pause.wait(0.01)


class Broker:
    """What lies in a broker's lists, read without Celery."""

    def __init__(self, url: str, prefix: str) -> None:
        self.url, self.prefix = url, prefix
        self.client: redis.Redis = redis.Redis.from_url(url)

    def raw(self, queue: str) -> list[dict[str, Any]]:
        return [json.loads(message) for message in self.client.lrange(self.prefix + queue, 0, -1)]  # type: ignore[union-attr]

    def wake_ups(self, queue: str = "cf-a") -> list[WakeUp]:
        """The wake-ups in the list's messages, oldest first, through the worker's own check."""
        bodies = [json.loads(base64.b64decode(message["body"])) for message in reversed(self.raw(queue))]
        return [wake_up for [[args], _, _] in bodies for wake_up in read_wake_ups(args)]

    def ids(self, queue: str = "cf-a") -> list[str]:
        return [wake_up.action_id for wake_up in self.wake_ups(queue)]


@pytest.fixture
def broker(valkey: tuple[str, str]) -> Iterator[Broker]:
    made = Broker(*valkey)
    yield made
    made.client.close()


@pytest.fixture
def agent(database: Database) -> Iterator[psycopg.Connection[Any]]:
    with psycopg.connect(database.url("agent"), autocommit=True) as connection:
        yield connection


@pytest.fixture
def relay_to(database: Database) -> Iterator[Callable[..., Relay]]:
    """Makes relays of this test's database; closes them afterwards."""
    made: list[Relay] = []

    def make(url: str, prefix: str, **options: Any) -> Relay:
        app = broker_app(url=url, key_prefix=prefix, queues=[], socket_timeout_s=options.pop("socket_timeout_s", 10))
        made.append(Relay(Ledger(database.url("worker")), app, **{"lost_after_s": 20.0, **options}))
        return made[-1]

    yield make
    for relay in made:
        relay.close()


@contextmanager
def running(relay: Relay) -> Iterator[None]:
    """The relay's loop in a thread of its own; it must end by itself within a broker timeout."""
    stop = threading.Event()
    thread = threading.Thread(target=relay.run, args=(stop,))
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join(timeout=5)
        assert not thread.is_alive(), "the relay does not stop"


def claim(ledger: Ledger, wake_up: WakeUp) -> bool:
    """Whether this wake-up lets a worker act: the number of claims is the number of effects."""
    claimed = claims.claim_if_ready(
        ledger, wake_up, fence=uuid4(), lease_s=90, key=uuid4().hex, key_version=1, reach="", attempts_max=5, worker="w"
    )
    return claimed is not None


def outbox(database: Database) -> list[tuple[str, int, float]]:
    """(action id, publish count, seconds until due) of every wake-up."""
    with psycopg.connect(database.url("owner")) as connection:
        return connection.execute(
            "SELECT action_id, publish_count, extract(epoch FROM not_before - counterfoil.now())::float8"
            " FROM counterfoil.outbox ORDER BY outbox_id"
        ).fetchall()


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


def test_message_holds_ids_and_nothing_else(
    agent: psycopg.Connection[Any], broker: Broker, relay_to: Callable[..., Relay]
) -> None:
    """A message carries action ids and generations: no argument, no ETA, no retry, no reply."""
    identity = propose(agent, arguments={"email": "secret@example.com"})
    assert relay_to(broker.url, broker.prefix).publish_due() == 1
    [message] = broker.raw("cf-a")
    assert json.loads(base64.b64decode(message["body"]))[:2] == [[[[identity, 1]]], {}]
    headers = message["headers"]
    assert (headers["task"], headers["id"], headers["argsrepr"]) == (EXECUTE, f"{identity}:1:1", "-")
    assert headers["eta"] is None
    assert headers["expires"] is None
    assert "secret" not in json.dumps(message) + base64.b64decode(message["body"]).decode()


@pytest.mark.case("C1")
def test_late_commit_of_an_earlier_row_is_published(
    database: Database, agent: psycopg.Connection[Any], broker: Broker, relay_to: Callable[..., Relay]
) -> None:
    """A wake-up with a lower id that commits after later ones were published is published all the same."""
    relay = relay_to(broker.url, broker.prefix)
    with psycopg.connect(database.url("agent")) as slow:
        propose(agent, queue="cf-b")  # the run's row, which both would wait for
        early = propose(slow)
        late = propose(agent)
        relay.publish_due()
        assert broker.ids() == [late]
        slow.commit()
    relay.publish_due()
    assert broker.ids() == [late, early]


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


@pytest.mark.case("C3")
def test_three_relays_publish_each_row_once(
    database: Database, agent: psycopg.Connection[Any], broker: Broker, relay_to: Callable[..., Relay]
) -> None:
    """Three relays at once publish each of 200 rows exactly once within its lease."""
    with agent.transaction():
        rows = [propose(agent, queue=f"cf-{'ab'[number % 2]}") for number in range(200)]
    relays = [relay_to(broker.url, broker.prefix, batch=20) for _ in range(3)]
    barrier = threading.Barrier(3)

    def work(relay: Relay) -> None:
        barrier.wait()
        until(lambda: relay.publish_due() == 0)

    threads = [threading.Thread(target=work, args=(relay,)) for relay in relays]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert Counter(broker.ids("cf-a") + broker.ids("cf-b")) == Counter(rows)
    assert {publish_count for _, publish_count, _ in outbox(database)} == {1}


@pytest.mark.case("C9")
def test_large_arguments_are_found_by_polling(
    agent: psycopg.Connection[Any], broker: Broker, relay_to: Callable[..., Relay]
) -> None:
    """20 kB of arguments are enqueued like any others, and an idle relay finds them within one poll."""
    with running(relay_to(broker.url, broker.prefix, poll_s=0.3)):
        threading.Event().wait(0.5)  # it polls as rarely as it ever does
        began = time.monotonic()
        identity = propose(agent, arguments={"body": "x" * 20_000})
        until(lambda: broker.ids() == [identity])
        assert time.monotonic() - began < 0.3 * 1.2 + 0.5


def test_unclaimed_wakeup_is_published_again_ever_later(
    database: Database, agent: psycopg.Connection[Any], broker: Broker, relay_to: Callable[..., Relay]
) -> None:
    """A message that was lost is published again after 20 s, 40 s … 600 s at most; claiming ends it."""
    identity = propose(agent)
    relay = relay_to(broker.url, broker.prefix)
    waits = []
    for _ in range(7):
        assert relay.publish_due() == 1
        broker.client.delete(broker.prefix + "cf-a")
        assert relay.publish_due() == 0
        [(_, _, wait_s)] = outbox(database)
        waits.append(round(wait_s))
        database.advance(wait_s + 1)
    assert waits == [20, 40, 80, 160, 320, 600, 600]
    assert claim(relay.ledger, WakeUp(identity, 1))
    assert outbox(database) == []
    assert relay.publish_due() == 0


def test_chunks_grow_with_the_backlog(
    agent: psycopg.Connection[Any], broker: Broker, relay_to: Callable[..., Relay]
) -> None:
    """A few actions travel alone, so that idle workers share them; a backlog fills the messages."""
    relay = relay_to(broker.url, broker.prefix, chunk_max=10, batch=100)
    sizes = []
    for backlog in (3, 25, 100):
        with agent.transaction():
            for _ in range(backlog):
                propose(agent)
        relay.publish_due()
        sizes.append(sorted({len(json.loads(base64.b64decode(m["body"]))[0][0]) for m in broker.raw("cf-a")}))
        broker.client.delete(broker.prefix + "cf-a")
    assert sizes == [[1], [1, 3], [10]]


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
        assert wait_s <= 0, "the row waits for the broker, not for a timer"
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


@pytest.mark.parametrize("module", ["counterfoil.outbox", "counterfoil.workers", "counterfoil.workers.executor"])
def test_celery_is_loaded_by_its_own_modules_alone(module: str) -> None:
    """An agent's process, and the executor in one, load neither Celery nor the redis client."""
    code = f"import sys, {module}; sys.exit(bool({{'celery', 'kombu', 'redis'}} & sys.modules.keys()))"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


@pytest.mark.parametrize(
    "message",
    [
        None,
        "act_" + "a" * 26,
        [],
        [["act_" + "a" * 26, 1]] * 101,
        [["act_" + "a" * 25, 1]],
        [["act_" + "a" * 26, "1"]],
        [["act_" + "a" * 26, True]],
        [["act_" + "a" * 26, -1]],
        [["act_" + "a" * 26, 2**31]],
        [["act_" + "a" * 26, 1, 2]],
        [{"act_" + "a" * 26: 1}],
    ],
)
def test_forged_messages_are_refused(message: object) -> None:
    """Whatever is not a list of 1 to 100 ids with generations is refused before the ledger is asked."""
    with pytest.raises(ValueError, match=r"message|wake-up"):
        read_wake_ups(message)
