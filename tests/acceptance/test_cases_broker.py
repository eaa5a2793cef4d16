"""Handed cases of broker and relay: messages that come twice, late, or not at all."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import textwrap
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, contextmanager
from typing import TYPE_CHECKING, Any

import psycopg
import pytest
from sqlalchemy import Engine, create_engine, text
from sqlalchemy.orm import Session

from counterfoil import Counterfoil
from counterfoil.outbox.relay import Relay
from counterfoil.testing import World
from counterfoil.workers.points import no_points

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.acceptance.conftest import Broker, Proxy
    from tests.conftest import Database

CHARGE = {"customer": "cus_1", "amount_minor": 500, "currency": "usd", "order_id": "1182"}
TICKET = {"project": "SUP", "summary": "Refund for order 1182", "order_id": "1182"}

EVER = float("inf")


@contextmanager
def workers(world: World, count: int) -> Iterator[list[Any]]:
    """So many workers at once, each with a connection of its own."""
    made = [world.new_worker(f"w{number}", no_points) for number in range(count)]
    yield made
    for worker in made:
        worker.ledger.close()


@pytest.mark.case("B1")
def test_backoff_longer_than_the_visibility_timeout(world: World, enqueue: Any, broker: Broker) -> None:
    """A message that the broker gives to four workers every 3 s of a 10 s backoff starts nothing; no message has an ETA."""
    world.sandbox.stripe.fault("429_retry_after", on="payment_intents.create", headers={"Retry-After": "10"})
    enqueue("stripe_charge", CHARGE)
    relay = broker.relay()
    assert relay.publish_due() == 1
    first = broker.take("stripe")
    assert first is not None
    assert first["headers"]["eta"] is None
    wake_ups = broker.read(first)
    with workers(world, 4) as four:
        assert four[0].run(wake_ups, stop_at=EVER) == 1
        for _ in range(3):
            world.advance(3)
            assert [worker.run(wake_ups, stop_at=EVER) for worker in four] == [0] * 4
            assert relay.publish_due() == 0
        world.advance(1.1)
        assert relay.publish_due() == 1
        second = broker.take("stripe")
        assert second is not None
        assert second["headers"]["eta"] is None
        with ThreadPoolExecutor(4) as pool:
            claimed = pool.map(lambda worker: worker.run(wake_ups + broker.read(second), stop_at=EVER), four)
            assert sum(claimed) == 1
    assert world.states() == {"stripe_charge/s1/do": "succeeded"}
    assert world.sandbox.count("charges") == 1
    assert len(world.sandbox.requests("stripe", "payment_intents.create")) == 2


@pytest.mark.case("B3")
@pytest.mark.parametrize(
    ("point", "through"),
    [
        pytest.param("before_claim", ["ready", "executing", "succeeded"], id="before-claim"),
        pytest.param("after_claim", ["ready", "executing", "uncertain", "reconciling"], id="before-call"),
        pytest.param("before_settle", ["ready", "executing", "uncertain", "reconciling"], id="after-call"),
        pytest.param("after_settle", ["ready", "executing", "succeeded"], id="after-settle"),
    ],
)
@pytest.mark.parametrize(
    ("tool", "arguments", "operation", "kind"),
    [
        pytest.param("stripe_charge", CHARGE, "payment_intents.create", "charges", id="stripe"),
        pytest.param("jira_create", TICKET, "issue.create", "tickets_created", id="jira"),
    ],
)
def test_worker_killed_at_a_point(
    world: World,
    enqueue: Any,
    passed: Any,
    tool: str,
    arguments: Any,
    operation: str,
    kind: str,
    point: Any,
    through: list[str],
) -> None:
    """Killed before the claim: done once; in between: uncertain, reconciled, done or found once; after it: nothing more."""
    action_id = enqueue(tool, arguments)
    message = world.due()
    with world.crash_after(point):
        world.deliver(message)
    assert world.crashes == [point]
    sent = len(world.sandbox.requests(operation=operation))
    assert sent == (point in ("before_settle", "after_settle"))
    for _ in range(2):
        world.deliver(message)
    if point != "before_claim":
        assert len(world.sandbox.requests(operation=operation)) == sent, "redelivered before it was reconciled"
    world.settle()
    world.deliver(message)
    assert passed(action_id)[: len(through)] == through
    assert passed(action_id)[-1] == "succeeded"
    assert world.sandbox.count(kind) == len(world.sandbox.requests(operation=operation)) == 1


@pytest.mark.case("C1")
def test_earlier_row_that_commits_later(
    world: World, client: Callable[..., Counterfoil], database: Database, broker: Broker, sql: Any
) -> None:
    """A takes the lower outbox id, B commits first and is relayed; A commits: both are published, and both have an effect."""
    cf, relay = client(), broker.relay()
    place = {"tenant": "acme", "step": "s1", "actor": "bot"}
    with psycopg.connect(database.url("agent")) as early, psycopg.connect(database.url("agent")) as late:
        a = cf.enqueue(early, "stripe_charge", CHARGE, run="r-a", **place)
        b = cf.enqueue(late, "stripe_charge", CHARGE, run="r-b", **place)
        late.commit()
        assert relay.publish_due() == 1
        [first] = broker.take_all("stripe")
        assert [wake_up.action_id for wake_up in first] == [b]
        early.commit()
    ids = dict(sql("SELECT action_id, outbox_id FROM counterfoil.outbox"))
    assert ids[a] < ids[b]
    assert world.deliver(first) == 1
    assert world.sandbox.count("charges") == 1
    assert relay.publish_due() == 1
    [second] = broker.take_all("stripe")
    assert world.deliver(second) == 1
    assert world.sandbox.count("charges") == 2
    assert relay.publish_due() == 0


@pytest.mark.case("C2")
def test_publishing_that_breaks_in_the_middle(
    world: World, enqueue: Any, broker: Broker, proxy_to: Callable[[str], Proxy]
) -> None:
    """The broker's connection ends amid ten messages: the other queue does not wait, and all ten are done once."""
    proxy = proxy_to(broker.url)
    relay = broker.relay(proxy.url)
    warm_up = enqueue("stripe_charge", CHARGE, "warm-up")
    assert relay.publish_due() == 1
    ten = [enqueue("stripe_charge", CHARGE | {"order_id": f"{n}"}, f"s{n}") for n in range(10)]
    enqueue("jira_create", TICKET, "ticket")
    proxy.cut(b"LPUSH", passes=4500)
    assert relay.publish_due() == 1, "the ticket's"
    assert proxy.cuts == 1
    landed = broker.take_all("stripe")
    assert 0 < len(landed) - 1 < 10, "in the middle"
    assert relay.publish_due() == 10
    messages = [*landed, *broker.take_all("stripe"), *broker.take_all("jira")]
    for message in messages:
        world.deliver(message)
    assert {wake_up.action_id for message in messages for wake_up in message} >= {warm_up, *ten}
    assert set(world.states().values()) == {"succeeded"}
    counts = world.sandbox.counts()
    assert (counts["charges"], counts["tickets_created"]) == (11, 1)


@pytest.mark.case("C2")
def test_relay_that_dies_in_the_middle(
    world: World, enqueue: Any, broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A relay is killed amid a batch of ten and gives nothing back: the timer publishes all again, and each is done once."""
    for n in range(10):
        enqueue("stripe_charge", CHARGE | {"order_id": f"{n}"}, f"s{n}")

    class Killed(BaseException):
        pass

    def die(self: Relay, queue: str, leased: Any) -> None:
        publish(self, queue, leased[:5])
        raise Killed

    publish = Relay._publish
    with monkeypatch.context() as patch:
        patch.setattr(Relay, "_publish", die)
        relay = broker.relay(lost_after_s=2.0)
        with pytest.raises(Killed):
            relay.publish_due()
    landed = broker.take_all("stripe")
    assert sum(map(len, landed)) == 5
    relay = broker.relay(lost_after_s=2.0)
    assert relay.publish_due() == 0, "another relay's lease"
    world.advance(2.1)
    assert relay.publish_due() == 10
    for message in [*landed, *broker.take_all("stripe")]:
        world.deliver(message)
    assert list(world.states().values()) == ["succeeded"] * 10
    assert world.sandbox.count("charges") == 10


@pytest.mark.case("C3")
def test_three_relays_and_two_workers(
    world: World, client: Callable[..., Counterfoil], database: Database, broker: Broker
) -> None:
    """Three relays at once publish 200 rows, two workers take the messages as they come: 200 effects."""
    cf = client()
    with psycopg.connect(database.url("agent")) as connection:
        for n in range(200):
            arguments = CHARGE | {"order_id": f"{n}"}
            cf.enqueue(connection, "stripe_charge", arguments, tenant="acme", run="r1", step=f"s{n}", actor="bot")
    relays = [broker.relay(batch=20) for _ in range(3)]
    published, stop, start = threading.Event(), threading.Event(), threading.Barrier(5, timeout=20)

    def relay_all(relay: Relay) -> int:
        """Until all is published: a full window is no end, workers empty it."""
        start.wait()
        relayed = 0
        with psycopg.connect(database.url("reader"), autocommit=True) as reader:
            while reader.execute("SELECT FROM counterfoil.outbox WHERE publish_count = 0 LIMIT 1").rowcount:
                relayed += relay.publish_due()
                assert not stop.wait(0.01)
        return relayed

    def work(worker: Any) -> int:
        start.wait()
        claimed = 0
        while not stop.is_set():
            message = broker.take("stripe")
            if message is not None:
                claimed += worker.run(broker.read(message), stop_at=EVER)
            elif published.is_set():
                break
            else:
                published.wait(0.01)
        return claimed

    with workers(world, 2) as two, ThreadPoolExecutor(5) as pool:
        working = [pool.submit(work, worker) for worker in two]
        relaying = [pool.submit(relay_all, relay) for relay in relays]
        try:
            assert sum(each.result(timeout=60) for each in relaying) == 200
            published.set()
            assert sum(each.result(timeout=60) for each in working) == 200
        finally:
            stop.set()
    assert set(world.states().values()) == {"succeeded"}
    charges = world.sandbox.effects("charge")
    assert len(charges) == len({charge.key for charge in charges}) == 200


OPEN: dict[str, Callable[[Engine], AbstractContextManager[Any]]] = {
    "session": Session,
    "sqlalchemy": lambda engine: engine.connect(),
    "psycopg": lambda engine: psycopg.connect(engine.url.render_as_string(hide_password=False).replace("+psycopg", "")),
}


@pytest.mark.case("C7")
@pytest.mark.parametrize("kind", sorted(OPEN))
def test_callers_transaction_that_rolls_back(
    world: World, client: Callable[..., Counterfoil], database: Database, sql: Any, kind: str
) -> None:
    """Order, action and wake-up are one transaction: rolled back there are none and no effect; committed there are all."""
    sql("CREATE TABLE public.orders (id text); GRANT ALL ON public.orders TO PUBLIC")
    everything = (
        "SELECT (SELECT count(*) FROM public.orders), (SELECT count(*) FROM counterfoil.action),"
        " (SELECT count(*) FROM counterfoil.outbox)"
    )
    engine = create_engine(database.url("agent").replace("postgresql://", "postgresql+psycopg://"))
    cf, insert = client(), "INSERT INTO public.orders VALUES ('1182')"
    place = {"tenant": "acme", "run": "r1", "step": "s1", "actor": "bot"}
    with OPEN[kind](engine) as conn:
        conn.execute(insert if kind == "psycopg" else text(insert))
        rolled_back = cf.enqueue(conn, "stripe_charge", CHARGE, **place)
        conn.rollback()
        world.settle()
        assert sql(everything) == [(0, 0, 0)]
        assert world.sandbox.requests() == []
        conn.execute(insert if kind == "psycopg" else text(insert))
        assert cf.enqueue(conn, "stripe_charge", CHARGE, **place) == rolled_back
        conn.commit()
    engine.dispose()
    assert sql(everything) == [(1, 1, 1)]
    world.settle()
    assert world.sandbox.count("charges") == 1


@pytest.mark.case("C7")
@pytest.mark.parametrize("commits", [True, False])
def test_caller_that_dies_at_its_commit(world: World, database: Database, sql: Any, commits: bool) -> None:
    """A process that is killed right after its commit leaves action and wake-up, and one effect; right before it, nothing."""
    script = textwrap.dedent(f"""
        import os, signal, sys
        import psycopg
        from counterfoil import Counterfoil
        from counterfoil.providers.registry import Registry

        cf = Counterfoil(sys.argv[1], registry=Registry.load(["counterfoil.providers.stripe.tools"]))
        connection = psycopg.connect(sys.argv[1])
        cf.enqueue(connection, "stripe_charge", {CHARGE!r}, tenant="acme", run="r1", step="s1", actor="bot")
        if {commits}:
            connection.commit()
        os.kill(os.getpid(), signal.SIGKILL)
    """)
    died = subprocess.run(
        [sys.executable, "-c", script, database.url("agent")], check=False, capture_output=True, timeout=60, env=_env()
    )
    assert died.returncode == -signal.SIGKILL, died.stderr
    counts = "SELECT (SELECT count(*) FROM counterfoil.action), (SELECT count(*) FROM counterfoil.outbox)"
    assert sql(counts) == [(1, 1) if commits else (0, 0)]
    world.settle()
    assert world.sandbox.count("charges") == commits


@pytest.mark.case("C9")
def test_twenty_kilobytes_of_arguments(world: World, enqueue: Any, broker: Broker) -> None:
    """20 kB of arguments are enqueued like any others, found by polling within one interval, and sent whole."""
    poll_s, description = 1.0, "ü" * 10_000
    relay, stop = broker.relay(poll_s=poll_s), threading.Event()
    thread = threading.Thread(target=relay.run, args=(stop,))
    thread.start()
    try:
        enqueue("jira_create", TICKET | {"description": description})
        began = time.monotonic()
        while (message := broker.take("jira")) is None and time.monotonic() - began < 20:
            stop.wait(0.01)
        found_after_s = time.monotonic() - began
    finally:
        stop.set()
        thread.join(10)
    assert not thread.is_alive()
    assert message is not None
    assert found_after_s < poll_s * 1.2 + 1.0, "an interval with its jitter, and a second for a busy machine"
    assert len(str(message)) < 3000, "the message carries none of it"
    assert world.deliver(broker.read(message)) == 1
    [request] = world.sandbox.requests("jira", "issue.create")
    assert json.loads(request.body or "")["fields"]["description"] == description
    assert world.sandbox.count("tickets_created") == 1


def _env() -> dict[str, str]:
    return {name: value for name, value in os.environ.items() if not name.startswith("COUNTERFOIL_")}
