"""A queue's tenants side by side: who has much waiting delays nobody else, and the relay's statements stay cheap."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, closing
from typing import TYPE_CHECKING, Any

import psycopg
import pytest
from tests.integration.relaying import (
    Broker,
    broker,
    fill,
    kinds_in,
    owner_sql,
    relay_to,
    taken_by_workers,
)

from counterfoil.ledger.claims import WakeUp
from counterfoil.ledger.connection import Ledger
from counterfoil.ledger.queries import Query, load
from counterfoil.outbox.gates import Room
from counterfoil.outbox.leasing import TENANTS_MAX, Leasing
from counterfoil.outbox.relay import Relay

if TYPE_CHECKING:
    from tests.conftest import Database

__all__ = ["broker", "relay_to"]  # fixtures


def tenants(database: Database, wake_ups: list[WakeUp]) -> list[str]:
    return [tenant for tenant, _, _ in kinds_in(database, wake_ups)]


def test_a_tenant_with_much_waiting_delays_another_s_action_by_seconds(
    database: Database, broker: Broker, relay_to: Callable[..., Relay]
) -> None:
    """Behind 5,000 rows of another tenant, a fleet that does 20 a second does a new single action within 5 s."""
    relay, per_s, waiting = relay_to(broker.url, broker.prefix, chunk_max=10), 20, list[WakeUp]()
    fill(database, 5000, tenant="noisy", due_in_s=-3600.0)
    waited_s = None
    for second in range(16):
        if second == 8:
            fill(database, 1, tenant="quiet")
        relay.publish_due()
        waiting += broker.wake_ups()
        broker.client.delete(broker.prefix + "cf-a")
        done, waiting = waiting[:per_s], waiting[per_s:]
        if "quiet" in tenants(database, done):
            waited_s = second - 8 + 1
            break
        taken_by_workers(database, done)
        database.advance(1.0)
    assert waited_s is not None
    assert waited_s <= 5


@pytest.mark.parametrize("is_retry", [False, True])
def test_tenants_get_equal_parts_of_what_there_is_room_for(
    database: Database, broker: Broker, relay_to: Callable[..., Relay], is_retry: bool
) -> None:
    """Of three tenants with 300 rows each, the one that came an hour before gets no more than the others."""
    relay = relay_to(broker.url, broker.prefix, high_water=24)
    for place, tenant in enumerate(("acme", "globex", "initech")):
        fill(database, 300, tenant=tenant, is_retry=is_retry, due_in_s=-3600.0 + place)
    seen: Counter[str] = Counter()
    for _ in range(10):
        relay.publish_due()
        seen.update(tenants(database, broker.wake_ups()))
        taken_by_workers(database, broker.wake_ups())
        broker.client.delete(broker.prefix + "cf-a")
    assert seen.total() == 10 * 24
    assert min(seen[tenant] for tenant in ("acme", "globex", "initech")) >= 75


def test_room_that_nobody_else_wants_is_all_taken(
    database: Database, broker: Broker, relay_to: Callable[..., Relay]
) -> None:
    """A single tenant's backlog fills each pass although a walk takes a few rows of each tenant only."""
    relay = relay_to(broker.url, broker.prefix)
    fill(database, 300)
    fill(database, 1, tenant="globex")
    assert relay.publish_due() == 100
    assert Counter(tenants(database, broker.wake_ups())) == {"acme": 99, "globex": 1}


def test_tenants_whose_rows_are_for_later_do_not_hold_up_the_walk(
    database: Database, broker: Broker, relay_to: Callable[..., Relay]
) -> None:
    """With 20,000 tenants that wait for next week each pass is full, and a walk has been everywhere after 21 of them."""
    relay = relay_to(broker.url, broker.prefix, batch=20)
    fill(database, 20_000, tenant="later", tenants=20_000, due_in_s=7 * 86_400.0)
    fill(database, 4_000, tenant="a-noisy-one", due_in_s=-3600.0)
    fill(database, 1, tenant="zoe")
    owner_sql(database, "ANALYZE counterfoil.outbox")
    for _ in range(20_002 // TENANTS_MAX + 1):
        assert relay.publish_due() == 20
        there = tenants(database, broker.wake_ups())
        taken_by_workers(database, broker.wake_ups())
        broker.client.delete(broker.prefix + "cf-a")
        if "zoe" in there:
            return
    pytest.fail("the walk has not been everywhere")


def test_relays_side_by_side_lease_different_rows(database: Database) -> None:
    """Two relays that walk at the same moment take no row twice, and neither waits for the other."""
    fill(database, 2_000, tenant="t", tenants=40)
    with closing(Ledger(database.url("worker"))) as mine, psycopg.connect(database.url("worker")) as other:
        query = load("counterfoil.outbox", "sql/relay.sql")["lease_fairly"]
        params = {**VALUES, "rows": 100, "is_retry": False}
        open_still = other.execute(query.psycopg.encode(), params).fetchall()
        found = mine.rows(query, params)
        assert len(open_still) == len(found) == 100
        assert not {row[0] for row in open_still} & {row["outbox_id"] for row in found}


VALUES: dict[str, object] = {
    "queue": "cf-a",
    "after": "",
    "per_tenant": 5,
    "tenants_max": TENANTS_MAX,
    "rows": 100,
    "publishes_below": 8,
    "lost_after_s": 20.0,
    "lost_after_max_s": 600.0,
    "seen_within_s": 60.0,
    "batch": 100,
    "queues_max": 1000,
    "publishes": 3,
    "publishes_max": 8,
}
HOT: dict[str, tuple[Query, dict[str, object]]] = {
    f"{name} {kind}".strip(): (query, {"is_retry": kind == "retries"})
    for file in ("sql/relay.sql", "sql/dead.sql")
    for name, query in load("counterfoil.outbox", file).items()
    if name not in {"give_back", "list_queues", "list_dead", "revive", "end_dead"}
    for kind in (("firsts", "retries") if "is_retry" in query.parameters else ("",))
}
"""Whatever the relay runs by itself, but for two that go by keys."""


@pytest.fixture(scope="module", params=["as it is", "as it was"])
def big(
    clone_database: Callable[[], AbstractContextManager[Database]], request: pytest.FixtureRequest
) -> Iterator[Database]:
    """100,000 due first attempts of one tenant before 200 of others, 20,000 retries, 400 rows in the broker. The planner
    knows it as it is, or as it was when there was that one tenant alone."""
    with clone_database() as database:
        fill(database, 100_000, tenant="noisy", due_in_s=-3600.0)
        owner_sql(database, "ANALYZE counterfoil.outbox")
        fill(database, 200, tenant="quiet", tenants=200)
        fill(database, 20_000, tenant="again", tenants=50, is_retry=True, due_in_s=-1800.0)
        fill(database, 50, tenant="noisy", takes_back=True)
        fill(database, 400, tenant="noisy", due_in_s=10.0, publish_count=1)
        fill(database, 3_000, queue="cf-b", tenant="t", tenants=30)
        if request.param == "as it is":
            owner_sql(database, "ANALYZE counterfoil.outbox")
        yield database


def plan_of(database: Database, query: Query, how: str, params: dict[str, object]) -> dict[str, Any]:
    """The plan, and where it is run, what it did; nothing stays of it."""
    with psycopg.connect(database.url("owner")) as owner:
        owner.execute("SET plan_cache_mode = force_generic_plan")
        owner.execute("SET jit = off")
        given = {name: {**VALUES, **params}[name] for name in query.parameters}
        cursor = owner.execute(f"EXPLAIN ({how}, FORMAT JSON) {query.psycopg}".encode(), given, prepare=True)
        row = cursor.fetchone()
        owner.rollback()
    assert row is not None
    plan: dict[str, Any] = row[0][0]
    return plan


def nodes(plan: dict[str, Any]) -> Iterator[dict[str, Any]]:
    yield plan
    for child in plan.get("Plans", []):
        yield from nodes(child)


@pytest.mark.parametrize("name", HOT)
def test_no_statement_of_the_relay_reads_the_outbox_from_end_to_end(big: Database, name: str) -> None:
    """Each goes by index, and touches a number of pages that does not follow from the backlog of 123,650 rows."""
    query, params = HOT[name]
    plan = plan_of(big, query, "ANALYZE, BUFFERS", params)["Plan"]
    read = [node for node in nodes(plan) if node["Node Type"] == "Seq Scan" and node["Relation Name"] == "outbox"]
    assert read == []
    touched = plan["Shared Hit Blocks"] + plan["Shared Read Blocks"]
    assert touched < 4_000, (touched, json.dumps(plan)[:2000])
    removed = sum(node.get("Rows Removed by Filter", 0) * node["Actual Loops"] for node in nodes(plan))
    assert removed < 2_000, removed


def test_a_walk_over_a_big_outbox_is_fair(big: Database) -> None:
    """Of 200 rows that are taken at once the tenant with 100,000 has five, and 195 others have one."""
    with closing(Ledger(big.url("worker"))) as ledger:
        leasing = Leasing(ledger=ledger, batch=200, lost_after_s=20.0, publishes_max=8)
        [there] = [each for each in leasing.loads() if each.queue == "cf-a"]
        assert (there.due_firsts, there.due_retries, there.in_flight) == (201, 201, 400)
        leased = leasing.lease(there, Room(rows=200, firsts=200, retries=0))
    seen = Counter(tenants(big, [row.wake_up for row in leased]))
    assert (seen["noisy"], len(seen)) == (5, 196)
