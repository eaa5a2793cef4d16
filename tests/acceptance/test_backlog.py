"""A tenant with too much waiting records nothing more; it loses nothing that it has, and nobody else waits for it."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

import psycopg
import pytest
from sqlalchemy import create_engine, event, text
from tests.acceptance.people import Person

from counterfoil import Counterfoil, LimitReached, NextStep, NotAllowed, Result, Run, Status
from counterfoil.outbox.backlog import SETTING
from counterfoil.outbox.intake import FULL_FOR_S, Intake
from counterfoil.outbox.setup import door_rules
from counterfoil.settings import Limits, Settings
from counterfoil.testing import World

if TYPE_CHECKING:
    from tests.conftest import Database

CHARGE = {"customer": "cus_1", "amount_minor": 500, "currency": "usd"}
FULL = (Status.BLOCKED, NextStep.LIMIT_REACHED, SETTING)
WAITING_MAX = 3


@dataclass
class Door:
    """A client of the two tenants, whose cap is `WAITING_MAX`."""

    world: World
    database: Database
    cf: Counterfoil

    def run(self, name: str, tenant: str = "acme") -> Run:
        return self.cf.run(name, tenant=tenant, actor="bot")

    def call(self, order: str, tenant: str = "acme") -> Result:
        """One charge in a run of its own; it does not wait."""
        arguments = {**CHARGE, "order_id": order}
        return self.run(f"run-{order}", tenant).call("stripe_charge", arguments, wait_s=0)

    def enqueue(self, conn: Any, order: str, tenant: str = "acme", **more: Any) -> str:
        place = {"tenant": tenant, "run": f"run-{order}", "step": "fee", "actor": "bot", **more}
        return self.cf.enqueue(conn, "stripe_charge", {**CHARGE, "order_id": order}, **place)

    def fill(self, tenant: str = "acme", waiting: int = WAITING_MAX) -> list[str]:
        with psycopg.connect(self.database.url("agent")) as connection:
            return [self.enqueue(connection, f"full-{n}", tenant) for n in range(waiting)]


@pytest.fixture
def door(world: World, database: Database) -> Iterator[Door]:
    world.settings = world.settings.model_copy(update={"limits": Limits(waiting_per_tenant_max=WAITING_MAX)})
    cf = Counterfoil(database.url("agent"), settings=world.settings, registry=world.registry)
    yield Door(world, database, cf)
    cf.close()


def told(result: Result) -> tuple[Status, NextStep, str | None]:
    return result.status, result.next_step, result.code


def test_a_full_tenant_is_refused_and_another_is_not(door: Door, sql: Any) -> None:
    """The call after the last place is blocked, names the cap and leaves no row; it goes through once something is done."""
    assert [door.call(f"o{n}").status for n in range(WAITING_MAX)] == [Status.PENDING] * WAITING_MAX
    refused = door.call("o9")
    assert told(refused) == FULL
    assert (refused.action_id, refused.suspend) == (None, False)
    assert door.call("o9", "globex").status is Status.PENDING
    assert sql("SELECT tenant, count(*) FROM counterfoil.action GROUP BY 1 ORDER BY 1") == [("acme", 3), ("globex", 1)]
    door.world.settle()
    assert door.call("o9").status is Status.PENDING
    door.world.settle()
    assert door.world.sandbox.count("charges") == WAITING_MAX + 2


def test_what_is_recorded_is_still_found(door: Door, sql: Any) -> None:
    """A full tenant's calls that mean a recorded action get it: ended or waiting, a model's or code's."""
    door.call("o1")
    door.world.settle()
    comment = ("jira_comment", {"issue": "SUP-1", "body": "Called."})  # may be repeated, so only its step is recorded
    place = {"tenant": "acme", "run": "comments", "step": "called", "actor": "bot"}
    with psycopg.connect(door.database.url("agent")) as connection:
        commented = door.cf.enqueue(connection, *comment, **place)
    waiting = door.fill(waiting=WAITING_MAX - 1)
    assert door.call("o1").status is Status.SUCCEEDED
    assert door.fill(waiting=WAITING_MAX - 1) == waiting
    with psycopg.connect(door.database.url("agent")) as connection:
        assert door.enqueue(connection, "full-0", step="other") == waiting[0], "happens once"
        assert door.cf.enqueue(connection, *comment, **place) == commented
        with pytest.raises(LimitReached):
            door.cf.enqueue(connection, *comment, **place | {"step": "again"})
    assert sql("SELECT count(*) FROM counterfoil.action") == [(1 + WAITING_MAX,)]


def test_enqueue_is_refused_and_the_transaction_goes_on(door: Door, sql: Any) -> None:
    """The exception has a code and names the setting; the application's own work, and what it enqueued before, commits."""
    door.fill(waiting=WAITING_MAX - 1)
    engine = create_engine(door.database.url("agent").replace("postgresql://", "postgresql+psycopg://", 1))
    with engine.begin() as connection:
        kept = door.enqueue(connection, "last")
        with pytest.raises(LimitReached) as caught:
            door.enqueue(connection, "too-much")
        assert connection.execute(text("SELECT 1")).scalar() == 1
    engine.dispose()
    assert (caught.value.code, caught.value.limit) == ("limit_reached", SETTING)
    assert isinstance(caught.value, NotAllowed)
    assert sql("SELECT count(*), count(*) FILTER (WHERE action_id = %s) FROM counterfoil.action", kept) == [(3, 1)]
    assert sql("SELECT count(*) FROM counterfoil.run WHERE run = 'run-too-much'") == [(0,)]
    with psycopg.connect(door.database.url("agent")) as connection:
        door.enqueue(connection, "other", "globex")


def test_aenqueue_is_refused(door: Door) -> None:
    """The async door keeps to the same cap."""
    door.fill()

    async def record() -> None:
        async with await psycopg.AsyncConnection.connect(door.database.url("agent")) as connection:
            place = {"tenant": "acme", "run": "r", "step": "s", "actor": "bot"}
            await door.cf.aenqueue(connection, "stripe_charge", {**CHARGE, "order_id": "o1"}, **place)

    with pytest.raises(LimitReached):
        asyncio.run(record())


def test_stage_and_propose_are_refused(door: Door, sql: Any) -> None:
    """Nothing is staged, and no plan is opened, since both would end as wake-ups of a tenant that has too many."""
    run = door.run("plan")
    held = run.stage("stripe_authorize", {**CHARGE, "order_id": "o1"}, wait_s=0)
    door.world.settle()
    run.ack(str(door.cf.result(str(held.action_id)).seen))
    door.fill()
    assert told(run.stage("stripe_authorize", {**CHARGE, "order_id": "o2"}, wait_s=0)) == FULL
    with pytest.raises(LimitReached) as caught:
        run.propose([("stripe_capture", {"of": held.action_id})])
    assert caught.value.limit == SETTING
    assert sql("SELECT count(*) FROM counterfoil.proposal") == [(0,)]
    door.world.settle()
    assert run.propose([("stripe_capture", {"of": held.action_id})]).id


def test_a_full_tenant_can_take_back_what_it_did(door: Door) -> None:
    """An unwind's counter-actions are recorded and done, however much is waiting."""
    run = door.run("undone")
    assert run.call("stripe_charge", {**CHARGE, "order_id": "o1"}, wait_s=0).status is Status.PENDING
    door.world.settle()
    later = datetime.now(UTC) + timedelta(days=30)
    with psycopg.connect(door.database.url("agent")) as connection:
        for n in range(WAITING_MAX):
            door.enqueue(connection, f"later-{n}", not_before=later)
    assert told(door.call("o2")) == FULL
    run.unwind("customer withdrew")
    door.world.settle_within(60)
    assert door.world.sandbox.counts()["refunds"] == 1


def test_what_a_person_has_approved_is_not_refused(door: Door) -> None:
    """It was recorded while there was room; its wake-up is made whatever the tenant has waiting by then."""
    gated = Settings.model_validate(
        {**door.world.settings.model_dump(), "tool": {"jira_create": {"approval": "always"}}}
    )
    cf = Counterfoil(door.database.url("agent"), settings=gated, registry=door.world.registry)
    ticket = {"project": "SUP", "summary": "Order", "order_id": "o1"}
    asked = cf.run("asks", tenant="acme", actor="bot").call("jira_create", ticket, wait_s=0)
    cf.close()
    assert asked.proposal_id is not None
    door.fill()
    person = Person(door.database.url("operator"), door.world.registry, "alice")
    assert person.approve(asked.proposal_id).answer == "approved"
    person.ledger.close()
    door.world.settle()
    assert door.world.sandbox.counts()["tickets_created"] == 1


def test_a_large_cap_holds_for_every_call_while_it_is_reached(door: Door, sql: Any) -> None:
    """A cap that is not counted at each call: after the first refusal every further one is refused, by each door."""
    held = door.run("staging").stage("stripe_authorize", {**CHARGE, "order_id": "o1"}, wait_s=0)
    door.world.settle()
    sql(
        "INSERT INTO counterfoil.outbox (action_id, generation, tenant, queue, not_before, is_retry) SELECT 'act_' || n, 1,"
        " 'acme', 'cf-q' || n %% 3, counterfoil.now(), n %% 2 = 0 FROM generate_series(1, %s) AS n",
        500,
    )
    large = door.world.settings.model_copy(update={"limits": Limits(waiting_per_tenant_max=500)})
    door.cf = Counterfoil(door.database.url("agent"), settings=large, registry=door.world.registry)
    run = door.cf.run("staging", tenant="acme", actor="bot", seen=str(door.cf.result(str(held.action_id)).seen))
    for n in range(4):
        assert told(door.call(f"call-{n}")) == FULL
        with psycopg.connect(door.database.url("agent")) as connection, pytest.raises(LimitReached):
            door.enqueue(connection, f"enqueued-{n}")
        with pytest.raises(LimitReached):
            run.propose([("stripe_capture", {"of": held.action_id})])
        assert told(run.stage("stripe_authorize", {**CHARGE, "order_id": f"o{n}-2"}, wait_s=0)) == FULL
    assert sql("SELECT count(*) FROM counterfoil.action") == [(1,)]
    sql("DELETE FROM counterfoil.outbox WHERE queue = 'cf-q1'")
    assert [door.call(f"call-{n}").status for n in range(3)] == [Status.PENDING] * 3
    door.cf.close()


def test_rows_of_the_intake_wait(door: Door, sql: Any) -> None:
    """A full tenant's rows stay where they are, in nobody's way, and are taken when there is room."""
    door.fill()
    insert = (
        "INSERT INTO counterfoil.intake (tenant, run, step, tool, arguments, actor) "
        "VALUES (%s, %s, 'fee', 'stripe_charge', %s, 'shop')"
    )
    with psycopg.connect(door.database.url("agent")) as connection:
        for tenant, n in (*(("acme", n) for n in range(4)), ("globex", 9)):
            connection.execute(insert.encode(), (tenant, f"in-{n}", json.dumps({**CHARGE, "order_id": f"in-{n}"})))
    now = [0.0]
    intake = Intake(
        ledger=door.world.ledger,
        registry=door.world.registry,
        rules=door_rules(door.world.settings),
        batch=2,
        per_tenant=2,
        monotonic=lambda: now[0],
    )
    waiting = "SELECT tenant, count(*) FROM counterfoil.intake WHERE taken_at IS NULL GROUP BY 1 ORDER BY 1"
    assert intake.take() == 2, "the full tenant's, which fill the batch"
    assert intake.take() == 1
    assert sql(waiting) == [("acme", 4)]
    assert intake.take() == 0, "they are left alone for a while"
    for _ in range(4):
        door.world.work()
        now[0] += FULL_FOR_S
        intake.take()
    assert sql(waiting) == []
    assert sql("SELECT count(*) FROM counterfoil.intake WHERE error_code IS NOT NULL") == [(0,)]
    door.world.settle()
    assert door.world.sandbox.count("charges") == WAITING_MAX + 5


def test_the_cap_costs_a_call_no_statement(door: Door) -> None:
    """The tenant is counted inside the statement that records: `run.call` stays at two."""
    statements: list[str] = []
    run = door.run("counted")
    event.listen(door.cf._pool._engine, "before_cursor_execute", lambda *args: statements.append(args[2]))
    run.call("stripe_charge", {**CHARGE, "order_id": "o1"}, wait_s=0)
    asked = [name for statement in statements for name in ("lock_and_read", "propose", "outbox") if name in statement]
    assert asked == ["lock_and_read", "propose"]
