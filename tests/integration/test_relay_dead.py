"""Wake-ups that nobody can claim: they die once, are told, and come back by a person's word. A queue without workers is no
fault of its rows."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing
from threading import Thread
from typing import TYPE_CHECKING, Any

import psycopg
import pytest
from tests.integration.relaying import (
    Broker,
    agent,
    broker,
    claim,
    fill,
    heartbeat,
    outbox,
    owner_sql,
    propose,
    relay_to,
    until,
)

from counterfoil.ledger import claims, sweeps
from counterfoil.ledger.claims import WakeUp
from counterfoil.ledger.connection import Ledger
from counterfoil.ledger.queries import load
from counterfoil.outbox.dead import SEEN_WITHIN_S, list_dead, revive
from counterfoil.outbox.relay import Relay

if TYPE_CHECKING:
    from tests.conftest import Database

__all__ = ["agent", "broker", "relay_to"]  # fixtures

PUBLISHES_MAX = 3
LONG_S = 700.0
"""Longer than any lost-message timer."""


def publish(database: Database, relay: Relay, broker: Broker, times: int, *, served: bool = True) -> list[int]:
    """Publishes what is due, and loses it, so often; how many went each time. A worker beats all the while if `served`."""
    seen = []
    for _ in range(times):
        if served:
            heartbeat(database, "cf-a")
        relay.bury()
        seen.append(relay.publish_due())
        broker.client.delete(broker.prefix + "cf-a")
        database.advance(LONG_S)
    return seen


def alarms(database: Database) -> list[tuple[str, str, bool]]:
    """(kind, subject, is open) in the order they were raised."""
    return owner_sql(  # type: ignore[return-value]
        database, "SELECT kind, subject, ended_at IS NULL FROM counterfoil.alarm ORDER BY alarm_id"
    )


def state_of(database: Database, action_id: str) -> str:
    [(state,)] = owner_sql(database, "SELECT state FROM counterfoil.action WHERE action_id = %s", action_id)
    return str(state)


def dead(database: Database) -> list[str]:
    with closing(Ledger(database.url("reader"))) as ledger:
        return [each.action_id for each in list_dead(ledger, limit=10)]


@pytest.fixture
def relay(broker: Broker, relay_to: Callable[..., Relay]) -> Relay:
    return relay_to(broker.url, broker.prefix, publishes_max=PUBLISHES_MAX)


def die(database: Database, relay: Relay, broker: Broker) -> None:
    """What is due is published until it is dead."""
    publish(database, relay, broker, PUBLISHES_MAX)
    heartbeat(database, "cf-a")
    assert relay.bury()


def test_what_no_worker_can_claim_dies_and_its_action_stays(
    database: Database, agent: psycopg.Connection[Any], broker: Broker, relay: Relay
) -> None:
    """Published three times under a worker's eyes: out of the outbox, one alarm for the queue, the action ready as before,
    and nothing brings it back by itself."""
    ids = [propose(agent) for _ in range(2)]
    assert publish(database, relay, broker, PUBLISHES_MAX + 2) == [2, 2, 2, 0, 0]
    assert outbox(database) == []
    assert sorted(dead(database)) == sorted(ids)
    assert {state_of(database, each) for each in ids} == {"ready"}
    assert alarms(database) == [("outbox_dead", "cf-a", True)]
    with closing(Ledger(database.url("worker"))) as ledger:
        assert sweeps.rescue_lost_wakeups(ledger, older_s=0.0) == []


def test_a_dead_wake_up_is_revived_and_claimed_once(
    database: Database, agent: psycopg.Connection[Any], broker: Broker, relay: Relay
) -> None:
    """It is due at once and counted anew; one claim, no second effect; with the last dead one the alarm ends."""
    action_id = propose(agent)
    die(database, relay, broker)
    with closing(Ledger(database.url("operator"))) as operator:
        assert [revive(operator, action_id) for _ in range(2)] == [True, False]
    assert relay.bury() == 0
    assert alarms(database) == [("outbox_dead", "cf-a", False)]
    assert relay.publish_due() == 1
    assert [count for _, count, _ in outbox(database)] == [1]
    assert [claim(relay.ledger, wake_up) for wake_up in broker.wake_ups() * 2] == [True, False]


def test_a_message_of_a_dead_wake_up_may_still_be_claimed(
    database: Database, agent: psycopg.Connection[Any], broker: Broker, relay: Relay
) -> None:
    """A late message of it finds the action ready: it is claimed, and is dead no more."""
    action_id = propose(agent)
    die(database, relay, broker)
    assert claim(relay.ledger, WakeUp(action_id, 1))
    assert dead(database) == []
    relay.bury()
    assert alarms(database) == [("outbox_dead", "cf-a", False)]


def test_while_nobody_takes_a_queue_none_of_its_rows_dies(
    database: Database, agent: psycopg.Connection[Any], broker: Broker, relay: Relay
) -> None:
    """Ten publications to nobody: one alarm, no burial. Once a worker is up they count as none, and the alarm ends."""
    propose(agent)
    assert publish(database, relay, broker, 10, served=False) == [1] * 10
    assert dead(database) == []
    assert alarms(database) == [("queue_unserved", "cf-a", True)]
    heartbeat(database, "cf-b")
    assert relay.bury() == 0
    assert alarms(database) == [("queue_unserved", "cf-a", True)], "a worker of another queue does not serve this one"
    heartbeat(database, "cf-a")
    relay.bury()
    assert alarms(database) == [("queue_unserved", "cf-a", False)]
    [(_, count, due_in_s)] = outbox(database)
    assert count == 1
    assert due_in_s <= 20
    database.advance(LONG_S)
    assert publish(database, relay, broker, PUBLISHES_MAX) == [1] * (PUBLISHES_MAX - 1) + [0]
    assert len(dead(database)) == 1


def test_a_worker_that_was_silent_for_a_minute_is_gone(
    database: Database, agent: psycopg.Connection[Any], broker: Broker, relay: Relay
) -> None:
    """Its heartbeat of then buries nothing."""
    propose(agent)
    heartbeat(database, "cf-a")
    publish(database, relay, broker, PUBLISHES_MAX + 1, served=False)
    assert LONG_S > SEEN_WITHIN_S
    assert relay.bury() == 0
    assert dead(database) == []


def test_a_fleet_that_starts_raises_no_alarm(
    database: Database, agent: psycopg.Connection[Any], broker: Broker, relay_to: Callable[..., Relay]
) -> None:
    """Rows that were published before the first worker is up, and are published once more, are not worth one."""
    relay = relay_to(broker.url, broker.prefix)
    propose(agent)
    publish(database, relay, broker, 2, served=False)
    relay.bury()
    assert alarms(database) == []


def test_what_is_held_by_a_pause_does_not_die(
    database: Database, agent: psycopg.Connection[Any], broker: Broker, relay: Relay
) -> None:
    """Workers refuse what a paused provider would get: that says nothing about the row, which goes on after the pause."""
    propose(agent)
    publish(database, relay, broker, PUBLISHES_MAX)
    owner_sql(database, "INSERT INTO counterfoil.provider_mode (provider, mode) VALUES ('a', 'paused')")
    heartbeat(database, "cf-a")
    assert relay.bury() == 0
    owner_sql(database, "DELETE FROM counterfoil.provider_mode")
    assert relay.bury() == 1


def test_what_workers_put_back_never_dies(
    database: Database, agent: psycopg.Connection[Any], broker: Broker, relay: Relay
) -> None:
    """A worker had it in hand and said "later", each time: it is published for as long as that goes on."""
    action_id = propose(agent)
    for _ in range(3 * PUBLISHES_MAX):
        assert publish(database, relay, broker, 1) == [1]
        claims.postpone_wakeup(relay.ledger, WakeUp(action_id, 1), delay_s=1.0)
        database.advance(2.0)
    assert dead(database) == []


def test_relays_that_bury_at_once_bury_each_row_once(
    database: Database, broker: Broker, relay_to: Callable[..., Relay], at_once: Callable[..., list[Any]]
) -> None:
    """Three relays, forty dead rows, one alarm."""
    relays = [relay_to(broker.url, broker.prefix, publishes_max=PUBLISHES_MAX) for _ in range(3)]
    fill(database, 40, publish_count=PUBLISHES_MAX)
    heartbeat(database, "cf-a")
    assert sum(at_once([relay.bury for relay in relays])) == 40
    assert owner_sql(database, "SELECT count(*) FROM counterfoil.outbox_dead") == [(40,)]
    assert alarms(database) == [("outbox_dead", "cf-a", True)]


def test_a_claim_at_the_moment_of_the_burial_leaves_nothing_dead(
    database: Database, agent: psycopg.Connection[Any], broker: Broker, relay: Relay
) -> None:
    """Whoever is first: the action is executing, and neither a wake-up nor a dead one is left of it."""
    action_id = propose(agent)
    publish(database, relay, broker, PUBLISHES_MAX)
    heartbeat(database, "cf-a")
    bury = load("counterfoil.outbox", "sql/dead.sql")["bury"]
    with psycopg.connect(database.url("worker")) as burying, closing(Ledger(database.url("worker"))) as ledger:
        params = {"publishes_max": PUBLISHES_MAX, "seen_within_s": SEEN_WITHIN_S, "batch": 10}
        assert burying.execute(bury.psycopg.encode(), params).rowcount == 1
        claimed = list[bool]()
        thread = Thread(target=lambda: claimed.append(claim(ledger, WakeUp(action_id, 1))))
        thread.start()
        waits = "SELECT FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'"
        until(lambda: owner_sql(database, waits))
        burying.commit()
        thread.join(timeout=10)
    assert claimed == [True]
    assert state_of(database, action_id) == "executing"
    assert outbox(database) == []
    assert dead(database) == []
