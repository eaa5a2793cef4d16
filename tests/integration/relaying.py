"""What the tests of the relay share: rows to relay, a look into the broker, and relays that are closed afterwards."""

from __future__ import annotations

import base64
import json
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from itertools import count
from typing import TYPE_CHECKING, Any
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
from counterfoil.outbox.broker import broker_app, read_wake_ups
from counterfoil.outbox.relay import Relay

if TYPE_CHECKING:
    from tests.conftest import Database

PROPOSE = load("counterfoil.ledger", "sql/agent.sql")["propose"]
_steps = count(1)


def propose(
    connection: psycopg.Connection[Any], *, queue: str = "cf-a", arguments: object = None, tenant: str = "acme"
) -> str:
    """Records one ready action in the caller's transaction; gives its id."""
    step = f"step-{next(_steps)}"
    text = canonical_json(arguments or {"order": step})
    identity = action_id(tenant, "run", step, 1, "do")
    values: dict[str, Any] = dict.fromkeys(PROPOSE.parameters)
    values |= {
        "action_id": identity,
        "tenant": tenant,
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


def fill(
    database: Database,
    rows: int,
    *,
    tenant: str = "acme",
    queue: str = "cf-a",
    is_retry: bool = False,
    takes_back: bool = False,
    due_in_s: float = -1.0,
    publish_count: int = 0,
    tenants: int = 1,
) -> None:
    """Wake-ups without actions, as many as one likes; `tenants` > 1: of tenant-0, tenant-1, … in turn."""
    start = next(_filled) * 1_000_000
    with psycopg.connect(database.url("owner")) as owner:
        owner.execute(
            "INSERT INTO counterfoil.outbox (action_id, generation, tenant, queue, not_before, is_retry, takes_back,"
            " publish_count)"
            " SELECT 'act_' || translate(lpad(to_hex(n), 26, 'a'), '0189', 'ghij'), 1,"
            "   CASE WHEN %(tenants)s = 1 THEN %(tenant)s ELSE %(tenant)s || '-' || n %% %(tenants)s END, %(queue)s,"
            "   counterfoil.now() + %(due_in_s)s * interval '1 second', %(is_retry)s, %(takes_back)s, %(publish_count)s"
            " FROM generate_series(%(start)s::int, %(start)s::int + %(rows)s::int - 1) AS n",
            {
                "start": start,
                "rows": rows,
                "tenant": tenant,
                "tenants": tenants,
                "queue": queue,
                "due_in_s": due_in_s,
                "is_retry": is_retry,
                "takes_back": takes_back,
                "publish_count": publish_count,
            },
        )


_filled = count(1)


def taken_by_workers(database: Database, wake_ups: list[WakeUp]) -> None:
    """What a claim does to the outbox: the wake-ups are gone."""
    with psycopg.connect(database.url("owner")) as owner:
        owner.execute("DELETE FROM counterfoil.outbox WHERE action_id = ANY (%s)", ([w.action_id for w in wake_ups],))


def kinds_in(database: Database, wake_ups: list[WakeUp]) -> list[tuple[str, bool, bool]]:
    """(tenant, is a retry, takes back) of each of these wake-ups."""
    with psycopg.connect(database.url("owner")) as owner:
        return owner.execute(
            "SELECT tenant, is_retry, takes_back FROM counterfoil.outbox"
            " JOIN unnest(%s::text[]) WITH ORDINALITY AS m (action_id, place) USING (action_id) ORDER BY place",
            ([w.action_id for w in wake_ups],),
        ).fetchall()


def heartbeat(database: Database, *queues: str) -> None:
    """A worker that takes these queues is up, as of now."""
    with closing(Ledger(database.url("worker"))) as ledger:
        claims.beat_heart(ledger, worker="w@test", queues=queues, claimed=False)


def owner_sql(database: Database, query: str, *params: object) -> list[tuple[Any, ...]]:
    """One statement as the owner, and its rows."""
    with psycopg.connect(database.url("owner"), autocommit=True) as owner:
        cursor = owner.execute(query.encode(), params or None)
        return cursor.fetchall() if cursor.description is not None else []
