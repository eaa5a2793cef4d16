"""A ledger of an earlier revision, with calls under way in it, is brought to the newest: each ends as one effect."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import psycopg
import pytest
from alembic import command
from psycopg import sql as q
from tests.conftest import TEST_LOGINS

from counterfoil.ledger import migrate, roles
from counterfoil.stack.databases import database_url

if TYPE_CHECKING:
    from counterfoil.stack.home import Home
    from counterfoil.stack.services import Urls
    from counterfoil.testing import World

EARLIER = ("0004", "0005")
"""What the newest may find: 0005 wrote down where each request went, 0006 which wake-ups are retries."""
CHARGE = {"customer": "cus_1", "amount_minor": 500, "currency": "usd"}
OLD_TABLES = """
  SELECT c.relname, array_agg(a.attname::text ORDER BY a.attnum)
  FROM pg_class AS c JOIN pg_attribute AS a ON a.attrelid = c.oid AND a.attnum > 0 AND NOT a.attisdropped
  WHERE c.relnamespace = 'counterfoil'::regnamespace AND c.relkind IN ('r', 'p') AND NOT c.relispartition
    AND c.relname <> 'schema_version'
  GROUP BY 1 ORDER BY 1"""
COUNTERS = """
  SELECT c.relname, a.attname FROM pg_class AS c JOIN pg_attribute AS a ON a.attrelid = c.oid AND a.attidentity <> ''
  WHERE c.relnamespace = 'counterfoil'::regnamespace AND c.relkind IN ('r', 'p') AND NOT c.relispartition"""


@pytest.fixture(params=EARLIER)
def before(request: pytest.FixtureRequest) -> str:
    """The revision that is brought to the newest."""
    return str(request.param)


@pytest.fixture
def old_ledger(stack_home: Home, services: Urls, before: str) -> Iterator[str]:
    """The name of a database with the revision before."""
    name = f"cf_old_{uuid.uuid4().hex[:12]}"
    url = services.postgres_as(services.user, services.password, name)
    with psycopg.connect(services.postgres, autocommit=True) as connection:
        connection.execute(q.SQL("CREATE DATABASE {}").format(q.Identifier(name)))
        roles.create_groups(url)
        with migrate._connect(url) as migrated, migrate._config() as config:
            migrated.exec_driver_sql(f"SET ROLE {migrate.OWNER}")
            migrated.exec_driver_sql("CREATE SCHEMA counterfoil")
            config.attributes["connection"] = migrated
            command.upgrade(config, before)
            migrated.commit()
        yield name
        connection.execute(q.SQL("DROP DATABASE {} WITH (FORCE)").format(q.Identifier(name)))


def moved_over(new_url: str, old_url: str) -> None:
    """Writes every row into the older schema, without what that does not have."""
    with psycopg.connect(new_url) as new, psycopg.connect(old_url) as old:
        old.execute("SET session_replication_role = replica")
        for table, names in old.execute(OLD_TABLES).fetchall():
            columns = q.SQL(", ").join(map(q.Identifier, names))
            place = q.SQL("counterfoil.{}").format(q.Identifier(table))
            read = q.SQL("COPY (SELECT {} FROM {}) TO STDOUT").format(columns, place)
            write = q.SQL("COPY {} ({}) FROM STDIN").format(place, columns)
            with new.cursor().copy(read) as rows, old.cursor().copy(write) as copy:
                for row in rows:
                    copy.write(row)
        for table, name in old.execute(COUNTERS).fetchall():
            place, column = q.SQL("counterfoil.{}").format(q.Identifier(table)), q.Identifier(name)
            old.execute(
                q.SQL(
                    "SELECT setval(pg_get_serial_sequence({}, {}), (SELECT coalesce(max({}), 0) + 1 FROM {}))"
                ).format(f"counterfoil.{table}", name, column, place)
            )


def under_way(world: World, enqueue: Any) -> dict[str, str]:
    """Calls in six states; what each order's is."""
    orders = iter(range(1, 20))

    def charged() -> None:
        order = next(orders)
        enqueue("stripe_charge", {**CHARGE, "order_id": str(order)}, step=f"s{order}", run=f"r{order}")

    long = {"headers": {"Retry-After": "600"}}  # else it may be due again while the others are made
    for fault in (None, "504_after_commit", "504_before_commit", "429_retry_after"):
        if fault is not None:
            more = long if fault == "429_retry_after" else {}
            world.sandbox.stripe.fault(fault, on="payment_intents.create", **more)
        charged()
        world.work()
    with world.crash_after("before_settle"):
        charged()
        world.work()
    charged()
    return {name.split("/")[1]: state for name, state in world.states().items()}


def test_calls_under_way_outlast_the_upgrade(
    world: World, enqueue: Any, before: str, old_ledger: str, stack_home: Home, services: Urls, database: Any
) -> None:
    """Done, in doubt, refused for now, under way in a dead worker, and waiting: the newest version ends each, once."""
    assert under_way(world, enqueue) == {
        "s1": "succeeded",
        "s2": "uncertain",
        "s3": "uncertain",
        "s4": "retryable_failure",
        "s5": "executing",
        "s6": "ready",
    }
    old_url = database_url(stack_home, services, old_ledger, "owner")
    moved_over(database.url("owner"), old_url)
    assert migrate.upgrade(old_url) == migrate.status(old_url)[1] != before
    for login in TEST_LOGINS:
        for tenant in ("acme",) if login.tenants is None else login.tenants:
            roles.grant(old_url, login.name, as_=login.as_, tenant=tenant)
    worker_url = database_url(stack_home, services, old_ledger, "worker", logins=TEST_LOGINS)
    settings = world.settings
    world.settings = settings.model_copy(
        update={"database": settings.database.model_copy(update={"url": type(settings.database)(url=worker_url).url})}
    )
    world.owner_url = old_url
    world.restart()
    with psycopg.connect(old_url) as connection:
        reaches = connection.execute("SELECT DISTINCT reach IS NULL FROM counterfoil.action").fetchall()
        retries = connection.execute(
            "SELECT a.step, o.is_retry FROM counterfoil.outbox AS o JOIN counterfoil.action AS a USING (action_id)"
        ).fetchall()
    if before < "0005":
        assert reaches == [(True,)], "nobody has written down where these went"
    assert dict(retries) == {"s4": True, "s6": False}
    world.settle()
    assert set(world.states().values()) == {"succeeded"}
    assert world.sandbox.count("charges") == len(world.states()) == 6
