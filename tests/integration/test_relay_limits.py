"""What the relay leaves in Postgres: by a provider's mode, by the fleet's limits, by how much the broker holds already."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing
from typing import TYPE_CHECKING

import pytest
from tests.integration.relaying import (
    Broker,
    broker,
    fill,
    kinds_in,
    outbox,
    owner_sql,
    relay_to,
    taken_by_workers,
)

from counterfoil.ledger import claims
from counterfoil.ledger.claims import WakeUp
from counterfoil.ledger.connection import Ledger
from counterfoil.outbox.gates import Gate
from counterfoil.outbox.relay import Relay

if TYPE_CHECKING:
    from tests.conftest import Database

__all__ = ["broker", "relay_to"]  # fixtures

PLENTY = 1_000_000


class Gates:
    """Gates that a test sets, and how often they were asked."""

    def __init__(self) -> None:
        self.gate = Gate(firsts=PLENTY, retries=PLENTY)
        self.asked: list[str] = []

    def __call__(self, provider: str) -> Gate:
        self.asked.append(provider)
        return self.gate


@pytest.fixture
def gates() -> Gates:
    return Gates()


def kinds(database: Database, broker: Broker, queue: str = "cf-a") -> set[tuple[bool, bool]]:
    """(is a retry, takes back) of what is in the broker."""
    return {(is_retry, takes_back) for _, is_retry, takes_back in kinds_in(database, broker.wake_ups(queue))}


def three_kinds(database: Database) -> None:
    """Two first attempts, two retries, two first attempts that take something back."""
    fill(database, 2)
    fill(database, 2, is_retry=True)
    fill(database, 2, takes_back=True)


def set_mode(database: Database, mode: str | None, provider: str = "a") -> None:
    owner_sql(database, "DELETE FROM counterfoil.provider_mode WHERE provider = %s", provider)
    if mode:
        owner_sql(database, "INSERT INTO counterfoil.provider_mode (provider, mode) VALUES (%s, %s)", provider, mode)


def test_nothing_of_a_paused_provider_leaves_postgres(
    database: Database, broker: Broker, relay_to: Callable[..., Relay]
) -> None:
    """While it is paused its queue is not touched, others are; from the resumption on all of it goes."""
    relay = relay_to(broker.url, broker.prefix)
    three_kinds(database)
    fill(database, 3, queue="cf-b")
    set_mode(database, "paused")
    assert relay.publish_due() == 3
    assert (len(broker.ids("cf-a")), len(broker.ids("cf-b"))) == (0, 3)
    assert {count for _, count, _ in outbox(database)[:6]} == {0}
    set_mode(database, None)
    assert relay.publish_due() == 6


@pytest.mark.parametrize("backlog", [2, 300])
def test_a_draining_provider_gets_what_was_begun_or_takes_back(
    database: Database, broker: Broker, relay_to: Callable[..., Relay], backlog: int
) -> None:
    """Retries, and first attempts that take something back, go; a first attempt of anything else waits, however many do."""
    relay = relay_to(broker.url, broker.prefix)
    fill(database, backlog)
    fill(database, 2, is_retry=True)
    fill(database, 2, takes_back=True)
    set_mode(database, "draining")
    assert relay.publish_due() == 4
    assert kinds(database, broker) == {(True, False), (False, True)}
    assert relay.publish_due() == 0


def test_an_open_breaker_holds_everything_and_is_asked_again_when_it_may_close(
    database: Database, broker: Broker, relay_to: Callable[..., Relay], gates: Gates
) -> None:
    """Nothing is published, and Redis is not asked, until the breaker's time is over."""
    now = [1000.0]
    relay = relay_to(broker.url, broker.prefix, gate=gates, monotonic=lambda: now[0])
    three_kinds(database)
    gates.gate = Gate(open_in_s=3.0, firsts=0, retries=0)
    assert [relay.publish_due() for _ in range(5)] == [0] * 5
    assert gates.asked == ["a"]
    gates.gate = Gate(firsts=PLENTY, retries=PLENTY)
    now[0] += 2.9
    assert relay.publish_due() == 0
    now[0] += 0.2
    assert relay.publish_due() == 6


def test_a_breaker_that_is_open_for_long_is_asked_now_and_then(
    database: Database, broker: Broker, relay_to: Callable[..., Relay], gates: Gates
) -> None:
    """A breaker of ten minutes that a person has reset lets the queue go within seconds."""
    now = [1000.0]
    relay = relay_to(broker.url, broker.prefix, gate=gates, monotonic=lambda: now[0])
    fill(database, 3)
    gates.gate = Gate(open_in_s=600.0, firsts=0, retries=0)
    assert relay.publish_due() == 0
    gates.gate = Gate(firsts=PLENTY, retries=PLENTY)
    now[0] += 6.0
    assert relay.publish_due() == 3


def test_a_half_open_breaker_gets_one_probe(
    database: Database, broker: Broker, relay_to: Callable[..., Relay], gates: Gates
) -> None:
    """One first attempt lies in the broker at a time: the next goes when that one was taken, not with the next pass."""
    relay = relay_to(broker.url, broker.prefix, gate=gates)
    fill(database, 300)
    gates.gate = Gate(firsts=1, retries=0)
    assert [relay.publish_due() for _ in range(3)] == [1, 0, 0]
    taken_by_workers(database, broker.wake_ups())
    assert [relay.publish_due() for _ in range(2)] == [1, 0]


def test_a_row_that_nobody_can_claim_is_no_probe(
    database: Database, broker: Broker, relay_to: Callable[..., Relay], gates: Gates
) -> None:
    """A lost message, or one that no worker can claim, does not keep a half-open breaker from its probe for minutes."""
    relay = relay_to(broker.url, broker.prefix, gate=gates)
    fill(database, 1, publish_count=5, due_in_s=290.0)  # published 30 s ago for the fifth time: due after 320 s
    fill(database, 3)
    gates.gate = Gate(firsts=1, retries=0)
    assert relay.publish_due() == 1


@pytest.mark.parametrize("gate", [Gate(firsts=PLENTY, retries=0), Gate(firsts=PLENTY, retries=PLENTY, known=False)])
@pytest.mark.parametrize("backlog", [2, 300])
def test_without_a_budget_only_first_attempts_leave(
    database: Database, broker: Broker, relay_to: Callable[..., Relay], gates: Gates, gate: Gate, backlog: int
) -> None:
    """Retries wait in Postgres when the budget is empty, and when nobody knows whether it is; first attempts do not."""
    relay = relay_to(broker.url, broker.prefix, gate=gates)
    fill(database, backlog, is_retry=True, due_in_s=-3600.0)
    fill(database, 5)
    gates.gate = gate
    assert relay.publish_due() == 5
    assert kinds(database, broker) == {(False, False)}
    gates.gate = Gate(firsts=PLENTY, retries=7)
    assert relay.publish_due() == min(backlog, 7)


def test_first_attempts_and_retries_take_turns_where_there_is_little_room(
    database: Database, broker: Broker, relay_to: Callable[..., Relay]
) -> None:
    """Neither a backlog of first attempts nor one of retries keeps the other kind from the broker."""
    relay = relay_to(broker.url, broker.prefix, high_water=1)
    fill(database, 200)
    fill(database, 200, is_retry=True, due_in_s=-3600.0)
    seen = []
    for _ in range(6):
        assert relay.publish_due() == 1
        [(_, is_retry, _)] = kinds_in(database, [broker.wake_ups()[-1]])
        seen.append(is_retry)
        taken_by_workers(database, broker.wake_ups())
    assert seen.count(True) == 3


def test_no_more_than_the_high_water_mark_lies_in_the_broker(
    database: Database, broker: Broker, relay_to: Callable[..., Relay]
) -> None:
    """Two relays publish up to the mark together, then as many as workers take or put back; nothing twice."""
    relays = [relay_to(broker.url, broker.prefix, high_water=50, batch=20) for _ in range(2)]
    fill(database, 1000)
    while sum(relay.publish_due() for relay in relays):
        pass
    assert len(broker.ids()) == 50
    taken_by_workers(database, broker.wake_ups()[:10])
    with closing(Ledger(database.url("worker"))) as ledger:
        for wake_up in broker.wake_ups()[10:25]:
            claims.postpone_wakeup(ledger, wake_up, delay_s=30.0)
    while sum(relay.publish_due() for relay in relays):
        pass
    assert len(broker.ids()) == len(set(broker.ids())) == 50 + 10 + 15


def test_a_deep_backlog_is_hardly_ever_published_again(
    database: Database, broker: Broker, relay_to: Callable[..., Relay]
) -> None:
    """Rows that wait for a slow fleet, ten a second, are not taken for lost: less than 1 % are published twice."""
    relay, backlog, per_s = relay_to(broker.url, broker.prefix, chunk_max=10), 500, 10
    fill(database, backlog)
    published = 0
    waiting: list[WakeUp] = []
    for _ in range(backlog // per_s + 20):  # a second each
        relay.publish_due()
        waiting += broker.wake_ups()
        published += len(broker.ids())
        broker.client.delete(broker.prefix + "cf-a")
        done, waiting = waiting[:per_s], waiting[per_s:]
        taken_by_workers(database, done)
        database.advance(1.0)
    assert outbox(database) == []
    assert backlog <= published < backlog * 1.01
