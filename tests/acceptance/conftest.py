"""Fixtures of the acceptance tests: an application that enqueues, a broker that is read by hand, connections that are cut."""

from __future__ import annotations

import base64
import json
import select
import socket
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit, urlunsplit

import psycopg
import pytest
import redis
import requests
from tests.acceptance.shop import Shop

from counterfoil import Counterfoil, Of, tool
from counterfoil.cli.main import main
from counterfoil.ledger.claims import WakeUp
from counterfoil.ledger.connection import Ledger
from counterfoil.outbox.broker import broker_app, read_wake_ups
from counterfoil.outbox.relay import Relay
from counterfoil.outbox.unwinding import Unwind
from counterfoil.providers.registry import Registry
from counterfoil.testing import World
from counterfoil.workers.points import no_points

if TYPE_CHECKING:
    from tests.conftest import Database


@pytest.fixture
def client(world: World, database: Database) -> Iterator[Callable[..., Counterfoil]]:
    """Makes applications' clients with the world's tools, under the login of a role or at a URL."""
    made: list[Counterfoil] = []

    def make(role: str = "agent", url: str | None = None) -> Counterfoil:
        made.append(Counterfoil(url or database.url(role), settings=world.settings, registry=world.registry))
        return made[-1]

    yield make
    for each in made:
        each.close()


@pytest.fixture
def enqueue(client: Callable[..., Counterfoil], database: Database) -> Callable[..., str]:
    """Records one call in a transaction of its own."""

    def record(tool: str, arguments: Any, step: str = "s1", run: str = "r1", tenant: str = "acme") -> str:
        with psycopg.connect(database.url("agent")) as connection:
            return client().enqueue(connection, tool, arguments, tenant=tenant, run=run, step=step, actor="bot")

    return record


@pytest.fixture
def sql(database: Database) -> Callable[..., list[tuple[Any, ...]]]:
    """Runs one statement as the owner and commits; gives the rows."""

    def run(statement: str, *params: object) -> list[tuple[Any, ...]]:
        with psycopg.connect(database.url("owner")) as connection:
            cursor = connection.execute(statement.encode(), params or None)
            return cursor.fetchall() if cursor.description is not None else []

    return run


@pytest.fixture
def passed(sql: Callable[..., list[tuple[Any, ...]]]) -> Callable[[str], list[str]]:
    """The states that an action went through, in order."""
    return lambda action_id: [
        state
        for (state,) in sql(
            "SELECT to_state FROM counterfoil.history WHERE action_id = %s ORDER BY history_id", action_id
        )
    ]


@pytest.fixture
def use_tools(world: World) -> Callable[..., None]:
    """Gives the world these decorated functions as its only tools; before its first worker is made."""

    def use(*functions: Any) -> None:
        world.registry = Registry()
        for function in functions:
            world.registry.add(function.__counterfoil_tool__)
        world.registry.resolve()

    return use


@pytest.fixture
def configure(world: World) -> Callable[..., None]:
    """Changes one provider's settings for every worker that is made from now on."""

    def change(provider: str, **changes: object) -> None:
        providers = world.settings.providers
        changed = type(providers[provider])(**(providers[provider].model_dump() | changes))
        world.settings = world.settings.model_copy(update={"providers": {**providers, provider: changed}})

    return change


@pytest.fixture
def other_worker(world: World, configure: Callable[..., None]) -> Callable[..., int]:
    """Delivers what is due to a new worker, whose provider is configured otherwise; gives the number of claims."""

    def work(name: str, provider: str, **changes: object) -> int:
        before = world.settings
        configure(provider, **changes)
        worker = world.new_worker(name, no_points)
        world.settings = before
        try:
            return worker.run(world.due(), stop_at=float("inf"))
        finally:
            worker.ledger.close()

    return work


@pytest.fixture
def shop(use_tools: Callable[..., None]) -> Shop:
    """The world's only tools."""
    made = Shop()
    use_tools(*made.tools)
    return made


@pytest.fixture
def working(world: World) -> Callable[[], AbstractContextManager[None]]:
    """Within the block the fleet works in a thread of its own, as fast as it can."""

    @contextmanager
    def run() -> Iterator[None]:
        stop = threading.Event()

        def work() -> None:
            while not stop.wait(0.01):
                world.work()
                world.reconcile()

        with ThreadPoolExecutor(1) as threads:
            done = threads.submit(work)
            try:
                yield
            finally:
                stop.set()
                done.result(20)

    return run


class Broker:
    """The test's lists in Valkey: relays fill them, the test takes the messages out as a worker would."""

    def __init__(self, database: Database, url: str, prefix: str) -> None:
        self.url = url
        self._database, self._prefix = database, prefix
        self._client: redis.Redis = redis.Redis.from_url(url)
        self._relays: list[Relay] = []

    def relay(self, url: str | None = None, **options: Any) -> Relay:
        """A relay of its own, by way of `url`."""
        app = broker_app(url=url or self.url, key_prefix=self._prefix, queues=[], socket_timeout_s=5)
        self._relays.append(Relay(Ledger(self._database.url("worker")), app, **{"lost_after_s": 20.0, **options}))
        return self._relays[-1]

    def take(self, provider: str) -> dict[str, Any] | None:
        """The oldest message of the provider's queue; it is gone then."""
        message = self._client.rpop(f"{self._prefix}cf-{provider}")
        return None if message is None else json.loads(message)  # type: ignore[arg-type]

    def take_all(self, provider: str) -> list[list[WakeUp]]:
        """The wake-ups of every message there is, oldest message first."""
        return [self.read(message) for message in iter(lambda: self.take(provider), None)]

    @staticmethod
    def read(message: dict[str, Any]) -> list[WakeUp]:
        """The wake-ups in a message, through the worker's own check."""
        [[wake_ups], _, _] = json.loads(base64.b64decode(message["body"]))
        return read_wake_ups(wake_ups)

    def close(self) -> None:
        for relay in self._relays:
            relay.close()
        self._client.close()


@pytest.fixture
def broker(database: Database, valkey: tuple[str, str]) -> Iterator[Broker]:
    made = Broker(database, *valkey)
    yield made
    made.close()


class Proxy:
    """Stands between a client and Postgres or Valkey, and cuts a connection in the middle of what is said on it."""

    def __init__(self, url: str) -> None:
        parts = urlsplit(url)
        self._server = (parts.hostname, parts.port)
        self._listener = socket.create_server(("127.0.0.1", 0))
        here = f"127.0.0.1:{self._listener.getsockname()[1]}"
        self.url = urlunsplit(parts._replace(netloc=f"{parts.netloc.rpartition('@')[0]}@{here}"))
        if parts.scheme.startswith("postgres"):  # in plain text, so that statements can be recognised
            self.url += ("&" if parts.query else "?") + "sslmode=disable&gssencmode=disable"
        self._armed: list[tuple[bytes, int | None]] = []
        self.cuts = 0
        threading.Thread(target=self._accept, daemon=True).start()

    def cut(self, text: bytes, *, passes: int | None, times: int = 1) -> None:
        """The next `times` packets with this text: so many bytes of each pass, and the connection ends.

        None: all of it passes, Postgres commits, and only its answer is lost.
        """
        self._armed += [(text, passes)] * times

    def close(self) -> None:
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()

    def _accept(self) -> None:
        while True:  # ends with `close`
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            threading.Thread(target=self._forward, args=(client,), daemon=True).start()

    def _forward(self, client: socket.socket) -> None:
        with client, socket.create_connection(self._server, timeout=20) as server:
            while True:  # ends with either connection
                for source in select.select([client, server], [], [])[0]:
                    data = source.recv(1 << 20)
                    armed = next((a for a in self._armed if source is client and a[0] in data), None)
                    if armed is not None:
                        self._armed.remove(armed)
                        server.sendall(data[: armed[1]])
                        if armed[1] is None:
                            _read_until_idle(server)
                        self.cuts += 1
                        return
                    if not data:
                        return
                    (server if source is client else client).sendall(data)


def _read_until_idle(server: socket.socket) -> None:
    """Until Postgres says that no transaction is open: by then it has committed."""
    answer = b""
    while not answer.endswith(b"Z\x00\x00\x00\x05I"):
        data = server.recv(1 << 20)
        assert data, "Postgres closed the connection itself"
        answer += data


@pytest.fixture
def proxy_to() -> Iterator[Callable[[str], Proxy]]:
    """Makes a proxy to a server's URL."""
    made: list[Proxy] = []

    def make(url: str) -> Proxy:
        made.append(Proxy(url))
        return made[-1]

    yield make
    for proxy in made:
        proxy.close()


@pytest.fixture
def cli(
    database: Database, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> Callable[..., tuple[int, str]]:
    """Runs one command of the command line in this process, as an operator; its exit code and what it printed."""

    def run(*argv: str) -> tuple[int, str]:
        capsys.readouterr()  # what the test's workers have logged
        with monkeypatch.context() as patched:
            patched.chdir(tmp_path)
            patched.setenv("COUNTERFOIL_DATABASE__URL", database.url("operator"))
            with pytest.raises(SystemExit) as ended:
                main(list(argv))
        return int(ended.value.code or 0), capsys.readouterr().out

    return run


@pytest.fixture
def ship(world: World, use_tools: Callable[..., None], enqueue: Callable[..., str]) -> Callable[..., str]:
    """Records a shipment for the audience `who`, which `cancel_shipment` takes back; in a run and step of its own."""
    url = world.sandbox.warehouse.url

    def post(path: str, key: str, **more: Any) -> dict[str, object]:
        headers = {"Idempotency-Key": key}
        reply = requests.post(url + path, headers=headers, timeout=3, allow_redirects=False, **more)
        reply.raise_for_status()
        answer: dict[str, object] = reply.json()
        return answer

    def shipments(key: str) -> list[dict[str, object]]:
        reply = requests.get(f"{url}/shipments", params={"key": key}, timeout=3)
        reply.raise_for_status()
        found: list[dict[str, object]] = reply.json()["shipments"]
        return found

    def cancelled(of: Of) -> list[dict[str, object]]:
        return [shipment for shipment in shipments(of.key) if shipment["status"] == "cancelled"]

    shape: dict[str, Any] = {"provider": "warehouse", "target": "order", "once_per": None, "landing_max_s": 2.0}

    @tool(
        cls="compensatable",
        effect="shipment",
        audience=lambda a: [str(a["who"])],
        lookup=shipments,
        undo="cancel_shipment",
        **shape,
    )
    def create_shipment(order: str, who: str = "team", *, key: str) -> dict[str, object]:
        """Ship an order."""
        return post("/shipments", key, json={"order": order})

    @tool(cls="compensatable", effect="cancellation", audience=["team"], lookup=cancelled, undo=None, **shape)
    def cancel_shipment(order: str, *, key: str, of: Of) -> dict[str, object]:
        """Take a shipment back."""
        return post(f"/shipments/{of.receipt}/cancel", key)

    @tool(cls="irreversible", effect="letter", audience=["customer"], approval="never", lookup=shipments, **shape)
    def send_letter(order: str, *, key: str) -> dict[str, object]:
        """Tell the customer; nothing takes that back."""
        return post("/shipments", key, json={"order": order})

    use_tools(create_shipment, cancel_shipment, send_letter)

    def record(order: str, who: str = "team", run: str = "r1", tool: str = "create_shipment") -> str:
        return enqueue(tool, {"order": order} | ({"who": who} if tool == "create_shipment" else {}), order, run)

    return record


@pytest.fixture
def taken_back(world: World) -> Callable[[], list[str]]:
    """The orders whose shipments were really cancelled, in that order, once for each time."""

    def orders() -> list[str]:
        order_of = {effect.object_id: effect.data["order"] for effect in world.sandbox.effects("shipment")}
        return [order_of[effect.object_id] for effect in world.sandbox.effects("shipment_cancellation")]

    return orders


@pytest.fixture
def unwind(client: Callable[..., Counterfoil]) -> Callable[..., Unwind]:
    """Asks for a run to be taken back."""

    def ask(run: str = "r1") -> Unwind:
        return client().run(run, tenant="acme", actor="bot").unwind("customer withdrew")

    return ask


DECISIONS = {
    "happened": "state = 'succeeded', receipt = %(receipt)s",
    "gave up": "state = 'permanent_failure', in_doubt = false",
    "did not happen": "state = 'not_executed', in_doubt = false",
}


@pytest.fixture
def decide(database: Database) -> Callable[..., None]:
    """A person's decision about the one action of `tool` that is in review, written by the owner: no other login may."""

    def by_owner(decision: str, tool: str, receipt: str = "by_hand") -> None:
        with psycopg.connect(database.url("owner")) as connection:
            moved = connection.execute(
                f"UPDATE counterfoil.action SET {DECISIONS[decision]}, changed_by = 'alice', change_reason = 'looked'"
                " WHERE state = 'operator_review' AND tool = %(tool)s".encode(),
                {"receipt": receipt, "tool": tool},
            )
            assert moved.rowcount == 1

    return by_owner


@pytest.fixture
def run_state(sql: Callable[..., list[tuple[Any, ...]]]) -> Callable[..., str]:
    """A run's state."""
    return lambda run="r1": sql("SELECT state FROM counterfoil.run WHERE run = %s", run)[0][0]
