"""The relay against real Postgres and Valkey: nothing is skipped, nothing is published twice, lost messages come again."""

from __future__ import annotations

import base64
import json
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import psycopg
import pytest
from tests.integration.relaying import Broker, agent, broker, claim, outbox, propose, relay_to, running, until

from counterfoil.ledger.claims import WakeUp
from counterfoil.outbox.broker import EXECUTE, read_wake_ups
from counterfoil.outbox.relay import Relay

if TYPE_CHECKING:
    from tests.conftest import Database

__all__ = ["agent", "broker", "relay_to"]  # fixtures


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
    for queue, backlog in [("cf-a", 3), ("cf-b", 25), ("cf-c", 100)]:
        with agent.transaction():
            for _ in range(backlog):
                propose(agent, queue=queue)
        relay.publish_due()
        sizes.append(sorted({len(json.loads(base64.b64decode(m["body"]))[0][0]) for m in broker.raw(queue)}))
    assert sizes == [[1], [1, 3], [10]]


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
