"""Code records an intent on a transaction of its own: both or neither, the same again, and nothing for a bad one."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import textwrap
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import psycopg
import pytest
from psycopg.rows import dict_row
from sqlalchemy import create_engine, event, text
from sqlalchemy.exc import DBAPIError
from sqlalchemy.ext.asyncio import AsyncSession, create_async_engine
from sqlalchemy.orm import Session, scoped_session, sessionmaker

from counterfoil import (
    ArgumentError,
    ConfigError,
    Counterfoil,
    IntentConflict,
    LedgerUnavailable,
    NotAllowed,
    Status,
    StepConflict,
    StepRace,
    tool,
)
from counterfoil.providers.registry import Registry
from counterfoil.providers.tool import SPEC_ATTRIBUTE

if TYPE_CHECKING:
    from tests.conftest import Database


@tool(cls="pure")
def search_orders(order_id: str) -> dict[str, str]:
    return {"order_id": order_id}


@tool(
    cls="compensatable", effect="shipment", target="order_id", once_per=None, audience=["warehouse"],
    undo="cancel_shipment", native_key_ttl_s=86400,
)  # fmt: skip
def create_shipment(order_id: str, sku: str = "std", note: str = "", *, key: str) -> dict[str, str]: ...  # type: ignore[empty-body]


@tool(
    cls="compensatable", effect="shipment", target="order_id", once_per=None, audience=["warehouse"], undo=None,
    native_key_ttl_s=86400,
)  # fmt: skip
def cancel_shipment(order_id: str, *, key: str, of: str) -> dict[str, str]: ...  # type: ignore[empty-body]


@tool(
    cls="compensatable", effect="charge", target="order_id", once_per="order_id", once_scope="tenant",
    audience=["customer"], undo="refund", native_key_ttl_s=86400, amount=("amount_minor", "currency"),
)  # fmt: skip
def charge(order_id: str, amount_minor: int, currency: str = "usd", *, key: str) -> dict[str, str]: ...  # type: ignore[empty-body]


@tool(
    cls="compensatable", effect="refund", target="order_id", once_per=None, audience=["customer"], undo=None,
    native_key_ttl_s=86400,
)  # fmt: skip
def refund(order_id: str, *, key: str, of: str) -> dict[str, str]: ...  # type: ignore[empty-body]


def registry() -> Registry:
    found = Registry()
    for function in (search_orders, create_shipment, cancel_shipment, charge, refund):
        found.add(getattr(function, SPEC_ATTRIBUTE))
    found.resolve()
    return found


class World:
    """A ledger, the application's own connections to it, and what they left in it."""

    def __init__(self, database: Database) -> None:
        self.database = database
        self.url = database.url("agent")
        self.engine = create_engine(self.url.replace("postgresql://", "postgresql+psycopg://", 1))
        self.statements: list[str] = []
        event.listen(self.engine, "before_cursor_execute", self._count)
        self.cf = Counterfoil(self.url, registry=registry())
        self.owner = psycopg.connect(database.url("owner"), autocommit=True, row_factory=dict_row)

    def _count(self, _connection: object, _cursor: object, statement: str, *_: object) -> None:
        self.statements.append(statement)

    def enqueue(self, conn: Any, tool: str = "create_shipment", /, arguments: object = None, **changes: Any) -> str:
        place = {"tenant": "acme", "run": "order-1", "step": "reship", "actor": "api", **changes}
        given: Any = {"order_id": "1"} if arguments is None else arguments
        return self.cf.enqueue(conn, tool, given, **place)

    def counts(self) -> tuple[int, int]:
        """(actions, wake-ups)"""
        row = self.owner.execute(
            "SELECT (SELECT count(*) FROM counterfoil.action) AS a, (SELECT count(*) FROM counterfoil.outbox) AS o"
        ).fetchone()
        assert row is not None
        return row["a"], row["o"]

    def action(self, action_id: str) -> dict[str, Any]:
        row = self.owner.execute("SELECT * FROM counterfoil.action WHERE action_id = %s", (action_id,)).fetchone()
        assert row is not None
        return row

    def psycopg(self) -> psycopg.Connection[Any]:
        return psycopg.connect(self.url)

    def close(self) -> None:
        self.owner.close()
        self.engine.dispose()
        self.cf.close()


@pytest.fixture
def world(database: Database) -> Iterator[World]:
    world = World(database)
    yield world
    world.close()


OPEN: dict[str, Callable[[World], AbstractContextManager[Any]]] = {
    "Session": lambda world: Session(world.engine),
    "Connection": lambda world: world.engine.connect(),
    "psycopg": lambda world: world.psycopg(),
}


@pytest.fixture(params=sorted(OPEN))
def opened(request: pytest.FixtureRequest) -> Callable[[World], AbstractContextManager[Any]]:
    return OPEN[request.param]


@pytest.mark.case("C7")
def test_rolled_back_with_the_callers_transaction(
    world: World, opened: Callable[[World], AbstractContextManager[Any]]
) -> None:
    """The caller rolls back after enqueue: no action, no wake-up; it commits: both."""
    with opened(world) as conn:
        world.enqueue(conn)
        conn.rollback()
        assert world.counts() == (0, 0)
        action_id = world.enqueue(conn)
        assert world.counts() == (0, 0), "it committed by itself"
        conn.commit()
    assert world.counts() == (1, 1)
    assert world.cf.result(action_id).status is Status.PENDING


@pytest.mark.case("C7")
@pytest.mark.case("I3")
def test_committed_and_died_at_once_is_recorded_and_loads_no_worker_library(world: World) -> None:
    """A process that commits and dies leaves action and wake-up; it has loaded no broker client and no provider's SDK."""
    script = textwrap.dedent("""
        import os, sys
        from counterfoil import tool
        light = {"sqlalchemy", "psycopg"} & set(sys.modules)
        assert not light, f"declaring a tool loads {light}"

        @tool(cls="reversible", effect="note", target="order_id", audience=["staff"], native_key_ttl_s=86400)
        def add_note(order_id: str, *, key: str) -> dict: ...

        import psycopg
        from counterfoil import Counterfoil
        from counterfoil.providers.registry import Registry
        tools = Registry()
        tools.add(add_note.__counterfoil_tool__)
        tools.resolve()
        cf = Counterfoil(sys.argv[1], registry=tools)
        with psycopg.connect(sys.argv[1]) as conn:
            cf.enqueue(conn, "add_note", {"order_id": "1"}, tenant="acme", run="r", step="note", actor="api")
            conn.commit()
            cf.run("r", tenant="acme", actor="api").call("add_note", {"order_id": "1"}, wait_s=0)
            heavy = {"celery", "redis", "kombu", "stripe", "jira", "requests", "zenpy"} & set(sys.modules)
            print(f"loaded {sorted(heavy)}", flush=True)
            os._exit(9)
        """)
    died = subprocess.run(
        [sys.executable, "-c", script, world.url], check=False, capture_output=True, text=True, timeout=60
    )
    assert (died.returncode, died.stdout.strip()) == (9, "loaded []"), died.stderr
    assert world.counts() == (1, 1)


def test_one_statement_and_no_commit(world: World) -> None:
    """Enqueue costs the caller's transaction exactly one statement."""
    with Session(world.engine) as session:
        session.execute(text("SELECT 1"))
        world.statements.clear()
        world.enqueue(session)
        assert len(world.statements) == 1
        assert session.in_transaction()
        session.rollback()


def test_flasks_scoped_session_is_a_session(world: World) -> None:
    """The session that web frameworks hand out is taken like the session behind it."""
    scoped = scoped_session(sessionmaker(world.engine))
    world.enqueue(scoped)
    scoped.commit()
    scoped.remove()
    assert world.counts() == (1, 1)


@pytest.mark.parametrize("wrong", ["engine", "async", "none"])
def test_what_is_no_connection_is_refused_in_words(world: World, wrong: str) -> None:
    """An engine, an async session or nothing in place of the connection: told what to pass."""
    conn = {"engine": world.engine, "async": AsyncSession(), "none": None}[wrong]
    with pytest.raises(ConfigError, match="Session"):
        world.enqueue(conn)
    assert world.counts() == (0, 0)


def test_same_step_is_the_same_action(world: World, opened: Callable[[World], AbstractContextManager[Any]]) -> None:
    """A retried request gets the recorded action: key order and white space do not matter, nor JSON text or object."""
    with opened(world) as conn:
        first = world.enqueue(conn, arguments={"order_id": "1", "sku": "a"})
        conn.commit()
        again = world.enqueue(conn, arguments='{ "sku": "a",\n "order_id": "1" }')
        conn.commit()
    assert first == again
    assert world.counts() == (1, 1)


def test_other_arguments_and_other_tools_are_conflicts(
    world: World, opened: Callable[[World], AbstractContextManager[Any]]
) -> None:
    """A recorded intent never changes; the conflict names its action, and the caller's transaction can go on."""
    with opened(world) as conn:
        first = world.enqueue(conn)
        with pytest.raises(IntentConflict) as conflict:
            world.enqueue(conn, arguments={"order_id": "2"})
        with pytest.raises(StepConflict):
            world.enqueue(conn, "charge", arguments={"order_id": "1", "amount_minor": 5})
        other = world.enqueue(conn, step="second")
        conn.commit()
    assert conflict.value.action_id == first
    assert other != first
    assert world.counts() == (2, 2)


@pytest.mark.case("A7")
def test_twenty_threads_enqueue_one_step(world: World) -> None:
    """Twenty transactions propose the same step at the same time: one row, twenty equal answers, no deadlock."""
    barrier = threading.Barrier(20)

    def propose(_: int) -> str:
        with world.psycopg() as conn:
            barrier.wait(20)
            return world.enqueue(conn)

    with ThreadPoolExecutor(20) as threads:
        answers = set(threads.map(propose, range(20)))
    assert len(answers) == 1
    assert world.counts() == (1, 1)


def test_once_per_in_the_tenant_finds_the_action_of_another_run(world: World) -> None:
    """A tool that may happen once per order is recorded once, whichever run or step asks; another order is another one."""
    with world.psycopg() as conn:
        first = world.enqueue(conn, "charge", {"order_id": "1", "amount_minor": 5}, step="a")
        again = world.enqueue(conn, "charge", {"order_id": "1", "amount_minor": 7}, step="b", run="order-1-again")
        other = world.enqueue(conn, "charge", {"order_id": "2", "amount_minor": 5}, step="c")
    assert first == again != other
    assert world.counts() == (2, 2)


def test_snapshot_older_than_the_step_is_a_race(world: World) -> None:
    """A REPEATABLE READ caller that cannot see what decides the step is told to run its transaction again; then it works."""
    engine = world.engine.execution_options(isolation_level="REPEATABLE READ")
    with Session(engine) as session, world.psycopg() as other:
        session.execute(text("SELECT count(*) FROM counterfoil.action"))
        first = world.enqueue(other)
        other.commit()
        with pytest.raises(StepRace):
            world.enqueue(session)
        session.rollback()
        assert world.enqueue(session) == first


def test_closed_run_and_foreign_tenant_are_not_allowed(world: World) -> None:
    """A run that is closed takes no new action, and a login acts for its own tenants only."""
    world.cf.run("order-1", tenant="acme", actor="api").finish()
    with world.psycopg() as conn, pytest.raises(NotAllowed, match="closed"):
        world.enqueue(conn)
    with psycopg.connect(world.database.url("agent2")) as conn, pytest.raises(NotAllowed, match="tenant"):
        world.enqueue(conn)
    assert world.counts() == (0, 0)


def test_worker_login_cannot_enqueue(world: World) -> None:
    """A connection under another role is told which role it needs."""
    with psycopg.connect(world.database.url("worker")) as conn, pytest.raises(NotAllowed, match="--as agent"):
        world.enqueue(conn)


@pytest.mark.case("I3")
def test_connection_lost_in_commit(world: World, opened: Callable[[World], AbstractContextManager[Any]]) -> None:
    """The connection is lost in COMMIT: whether or not it landed, enqueuing again gives the same row, once."""
    with opened(world) as conn:
        first = world.enqueue(conn)
        _terminate(world, conn)
        with pytest.raises((psycopg.OperationalError, DBAPIError)):
            conn.commit()
    assert world.counts() == (0, 0)
    for _ in range(2):  # the second stands for a commit that landed although the caller lost the answer
        with opened(world) as conn:
            assert world.enqueue(conn) == first
            conn.commit()
    assert world.counts() == (1, 1)


def test_connection_lost_before_the_statement(
    world: World, opened: Callable[[World], AbstractContextManager[Any]]
) -> None:
    """A connection that is gone is an outage, and the message holds no argument."""
    with opened(world) as conn:
        world.enqueue(conn, step="before")
        _terminate(world, conn)
        with pytest.raises(LedgerUnavailable) as lost:
            world.enqueue(conn, arguments={"order_id": "secret-order"})
        conn.rollback() if not isinstance(conn, psycopg.Connection) else conn.close()
    assert "secret-order" not in str(lost.value)
    assert "secret-order" not in str(lost.value.__cause__)


@pytest.mark.case("C9")
def test_twenty_kilobytes_of_arguments(world: World) -> None:
    """Long arguments are recorded as they are: the wake-up carries none of them."""
    note = "ü" * 10_000
    with world.psycopg() as conn:
        action_id = world.enqueue(conn, arguments={"order_id": "1", "note": note})
    assert note in world.action(action_id)["arguments"]
    assert world.counts() == (1, 1)


@pytest.mark.parametrize(
    ("arguments", "path", "code"),
    [
        ({"order_id": "a\0b"}, "$.order_id", "nul"),
        ({"order_id": float("nan")}, "$.order_id", "not_finite"),
        ({"order_id": "\ud800"}, "$.order_id", "lone_surrogate"),
        ('{"order_id": "1", "order_id": "2"}', "$.order_id", "duplicate_key"),
        ({"order_id": datetime.now(UTC)}, "$.order_id", "not_json"),
        ({"order_id": "1", "note": "x" * 1_000_000}, "$.note", "too_large"),
        ("[" * 2000 + "]" * 2000, "$", "too_deep"),
        ({"order_id": "1", "step": "s"}, "$.step", "reserved_argument"),
        ({"order_id": 1}, "$.order_id", "invalid_argument"),
        ({}, "$.order_id", "missing_argument"),
    ],
)
def test_bad_argument_is_refused_before_any_statement(world: World, arguments: object, path: str, code: str) -> None:
    """What cannot be recorded never reaches the database."""
    with Session(world.engine) as session:
        with pytest.raises(ArgumentError) as refusal:
            world.enqueue(session, arguments=arguments)
        assert (refusal.value.path, refusal.value.code) == (path, code)
        assert not session.in_transaction()
    assert world.statements == []


@pytest.mark.parametrize(
    "changes",
    [
        {"step": "12"},
        {"step": ""},
        {"tenant": ""},
        {"run": "r" * 401},
        {"run": "𝄞" * 400, "step": "𝄞" * 200, "tenant": "acme" * 40},
        {"actor": "a\0"},
        {"not_before": datetime(2030, 1, 1)},
    ],
)
def test_bad_place_is_refused_before_any_statement(world: World, changes: dict[str, Any]) -> None:
    """Ids that could not be stored or told apart, and a time without its zone, are the caller's mistake."""
    with Session(world.engine) as session, pytest.raises(ArgumentError):
        world.enqueue(session, **changes)
    assert world.statements == []


@pytest.mark.parametrize(
    ("name", "code"), [("search_orders", "pure_tool"), ("cancel_shipment", "undo_tool"), ("charge", "invalid_argument")]
)
def test_call_that_makes_no_action_is_refused(world: World, name: str, code: str) -> None:
    """A pure tool, a counter-action, a currency that is none: no row."""
    arguments = {"order_id": "1", "amount_minor": 5, "currency": "euro"} if name == "charge" else {"order_id": "1"}
    with world.psycopg() as conn, pytest.raises(ArgumentError) as refusal:
        world.enqueue(conn, name, arguments)
    assert refusal.value.code == code
    assert world.counts() == (0, 0)


def test_unknown_tool_names_the_nearest(world: World) -> None:
    """A mistyped tool is told the name that was meant."""
    with world.psycopg() as conn, pytest.raises(ConfigError, match="create_shipment"):
        world.enqueue(conn, "create_shipmnt")


def test_row_holds_what_follows_from_the_call(world: World) -> None:
    """Target, amount, audience and the compensation are written down with the intent; `not_before` delays the wake-up."""
    due = datetime(2040, 1, 2, 3, 4, 5, tzinfo=UTC)
    with world.psycopg() as conn:
        money = world.enqueue(
            conn, "charge", {"order_id": "1", "amount_minor": 2**40, "currency": "USD"}, not_before=due
        )
        parcel = world.enqueue(conn, step="parcel")
    row = world.action(money)
    assert (row["target"], row["amount_minor"], row["currency"], row["audience"]) == ("1", 2**40, "usd", ["customer"])
    assert (row["compensation"], row["ready_at"], row["seq"]) == (
        '{"arguments":{"order_id":"1"},"tool":"refund"}',
        due,
        None,
    )
    assert world.action(parcel)["compensation"] == '{"arguments":{"order_id":"1"},"tool":"cancel_shipment"}'
    assert world.action(parcel)["queue"] == "cf-test_enqueue"


def test_async_session_and_async_psycopg(world: World) -> None:
    """`aenqueue` records through both kinds of async connection, and finds what the sync one recorded."""

    async def main() -> set[str]:
        found: set[str] = set()
        place: dict[str, Any] = {"tenant": "acme", "run": "order-1", "step": "reship", "actor": "api"}
        engine = create_async_engine(world.url.replace("postgresql://", "postgresql+psycopg://", 1))
        async with AsyncSession(engine) as session:
            found.add(await world.cf.aenqueue(session, "create_shipment", {"order_id": "1"}, **place))
            await session.commit()
            with pytest.raises(IntentConflict):
                await world.cf.aenqueue(session, "create_shipment", {"order_id": "2"}, **place)
        await engine.dispose()
        async with await psycopg.AsyncConnection.connect(world.url) as conn:
            found.add(await world.cf.aenqueue(conn, "create_shipment", {"order_id": "1"}, **place))
            with pytest.raises(ConfigError):
                await world.cf.aenqueue(world.owner, "create_shipment", {"order_id": "1"}, **place)  # type: ignore[arg-type]
        return found

    found = asyncio.run(main())
    with world.psycopg() as conn:
        assert found == {world.enqueue(conn)}
    assert world.counts() == (1, 1)


def _terminate(world: World, conn: Any) -> None:
    """The server ends this connection, as in a failover."""
    if isinstance(conn, psycopg.Connection):
        pid = conn.info.backend_pid
    else:
        pid = conn.execute(text("SELECT pg_backend_pid()")).scalar_one()
    world.owner.execute("SELECT pg_terminate_backend(%s, 5000)", (pid,))
