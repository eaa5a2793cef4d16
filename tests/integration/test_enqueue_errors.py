"""Whose error it is: the application's own come out as they are, ours say what to do, and both keep their cause."""

from __future__ import annotations

import asyncio
import traceback
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import psycopg
import pytest
from sqlalchemy import ForeignKey, create_engine, event, text
from sqlalchemy.exc import DBAPIError, IntegrityError, ProgrammingError
from sqlalchemy.ext.asyncio import AsyncSession, async_scoped_session, async_sessionmaker, create_async_engine
from sqlalchemy.orm import DeclarativeBase, Mapped, Session, mapped_column, scoped_session, sessionmaker
from sqlalchemy.pool import NullPool
from tests.integration.model_calls import registry

from counterfoil import Counterfoil, CounterfoilError, LedgerUnavailable, NotAllowed, StepConflict
from counterfoil.outbox.pool import ConcealedError, raise_told

if TYPE_CHECKING:
    from tests.conftest import Database

SECRET = "4242 4242 4242 4242"
PLACE = {"tenant": "acme", "run": "order-1", "step": "reship", "actor": "shop"}
DRIVERS = ("psycopg", "asyncpg")


class Base(DeclarativeBase):
    """The application's own tables."""


class Order(Base):
    __tablename__ = "orders"
    id: Mapped[int] = mapped_column(primary_key=True)
    number: Mapped[str] = mapped_column(unique=True)
    customer_id: Mapped[int | None] = mapped_column(ForeignKey("customers.id"))


class Customer(Base):
    __tablename__ = "customers"
    id: Mapped[int] = mapped_column(primary_key=True)


class Missing(Base):
    __tablename__ = "never_made"
    id: Mapped[int] = mapped_column(primary_key=True)


class Forbidden(Base):
    __tablename__ = "not_ours"
    id: Mapped[int] = mapped_column(primary_key=True)


class App:
    """An application with tables of its own beside the ledger, under its agent's login."""

    def __init__(self, database: Database) -> None:
        with psycopg.connect(database.url("owner"), autocommit=True) as owner:
            owner.execute("CREATE SCHEMA app; GRANT USAGE ON SCHEMA app TO PUBLIC")
            for statement in (
                "CREATE TABLE app.customers (id int PRIMARY KEY)",
                "CREATE TABLE app.orders (id int PRIMARY KEY, number text UNIQUE,"
                " customer_id int REFERENCES app.customers DEFERRABLE)",
                "CREATE TABLE app.not_ours (id int PRIMARY KEY)",
                "GRANT SELECT, INSERT ON app.customers, app.orders TO PUBLIC",
            ):
                owner.execute(statement.encode())
        address = database.url("agent").split("://", 1)[1]
        self.urls = {driver: f"postgresql+{driver}://{address}" for driver in DRIVERS}
        self.engine = create_engine(self.urls["psycopg"], connect_args={"options": "-c search_path=app"})
        self.cf = Counterfoil(database.url("agent"), registry=registry())

    def async_engine(self, driver: str) -> Any:
        path = {"psycopg": {"options": "-c search_path=app"}, "asyncpg": {"server_settings": {"search_path": "app"}}}
        return create_async_engine(self.urls[driver], connect_args=path[driver], poolclass=NullPool)

    def enqueue(self, session: Any, **changes: Any) -> str:
        return self.cf.enqueue(session, "refund", {"order_id": "1", "reason": SECRET}, **{**PLACE, **changes})

    async def aenqueue(self, session: Any, **changes: Any) -> str:
        return await self.cf.aenqueue(session, "refund", {"order_id": "1", "reason": SECRET}, **{**PLACE, **changes})

    def close(self) -> None:
        self.engine.dispose()
        self.cf.close()


@pytest.fixture
def app(database: Database) -> Iterator[App]:
    made = App(database)
    yield made
    made.close()


def pending(session: Any, fault: str) -> type[DBAPIError]:
    """Adds rows that the database refuses; the application's own error."""
    if fault == "duplicate":
        session.add_all([Order(id=1, number="1"), Order(id=2, number="1")])
        return IntegrityError
    session.add(Missing(id=1) if fault == "missing table" else Forbidden(id=1))
    return ProgrammingError


FAULTS = ("duplicate", "missing table", "missing right")


@pytest.mark.parametrize("fault", FAULTS)
@pytest.mark.parametrize("scoped", [False, True])
def test_a_pending_row_s_error_is_the_application_s(app: App, fault: str, scoped: bool) -> None:
    """What a session flushes before our statement fails as it would without us, with its statement and its cause."""
    opened = scoped_session(sessionmaker(app.engine)) if scoped else Session(app.engine)
    kind = pending(opened, fault)
    with pytest.raises(kind) as caught:
        app.enqueue(opened)
    assert "INSERT INTO" in str(caught.value)
    assert caught.value.orig is not None
    opened.close()


@pytest.mark.parametrize("driver", DRIVERS)
@pytest.mark.parametrize("fault", FAULTS)
@pytest.mark.parametrize("scoped", [False, True])
def test_the_same_in_an_async_session(app: App, driver: str, fault: str, scoped: bool) -> None:
    """AsyncSession and its scoped form, over psycopg and asyncpg."""

    async def main() -> None:
        engine = app.async_engine(driver)
        made = async_sessionmaker(engine)
        opened: Any = async_scoped_session(made, scopefunc=asyncio.current_task) if scoped else AsyncSession(engine)
        kind = pending(opened, fault)
        with pytest.raises(kind) as caught:
            await app.aenqueue(opened)
        assert "INSERT INTO" in str(caught.value)
        await opened.close()
        await engine.dispose()

    asyncio.run(main())


def test_what_is_pending_is_written_before_the_intent_and_not_where_the_application_forbids_it(app: App) -> None:
    """As for any statement of a session: `autoflush` decides, for the session and for a block."""
    with Session(app.engine) as session:
        session.add(Order(id=1, number="1"))
        app.enqueue(session)
        assert not session.new
        session.add(Order(id=2, number="1"))
        with session.no_autoflush:
            assert app.enqueue(session)
        assert session.new
        session.rollback()
    with Session(app.engine, autoflush=False) as session:
        session.add(Order(id=1, number="1"))
        app.enqueue(session)
        assert session.new


@pytest.mark.parametrize("way", ["psycopg", "Session", "AsyncSession/psycopg", "AsyncSession/asyncpg"])
def test_a_transaction_that_had_failed_before_is_said_to_be_the_caller_s(
    app: App, database: Database, way: str
) -> None:
    """Postgres takes nothing after an error; ours is not the first one."""
    if way == "psycopg":
        with psycopg.connect(database.url("agent")) as conn:
            with pytest.raises(psycopg.errors.DivisionByZero):
                conn.execute("SELECT 1/0")
            with pytest.raises(CounterfoilError, match="your transaction had failed before"):
                app.enqueue(conn)
    elif way == "Session":
        with Session(app.engine) as session:
            with pytest.raises(DBAPIError):
                session.execute(text("SELECT 1/0"))
            with pytest.raises(CounterfoilError, match="your transaction had failed before"):
                app.enqueue(session)
    else:

        async def main() -> None:
            engine = app.async_engine(way.partition("/")[2])
            async with AsyncSession(engine) as session:
                with pytest.raises(DBAPIError):
                    await session.execute(text("SELECT 1/0"))
                with pytest.raises(CounterfoilError, match="your transaction had failed before"):
                    await app.aenqueue(session)
            await engine.dispose()

        asyncio.run(main())


@pytest.mark.parametrize("driver", DRIVERS)
def test_refusals_say_the_same_over_every_driver(app: App, database: Database, driver: str) -> None:
    """The login, the run's state, and what to do, as psycopg tells them; each with the driver's error as its cause."""
    run = app.cf.run("closed", tenant="acme", actor="shop")
    run.finish()

    async def refused(**changes: Any) -> tuple[str, str]:
        engine = app.async_engine(driver)
        async with AsyncSession(engine) as session:
            with pytest.raises(NotAllowed) as caught:
                await app.aenqueue(session, **changes)
        await engine.dispose()
        cause = caught.value.__cause__
        assert cause is not None
        return str(caught.value), str(getattr(cause, "sqlstate", None) or getattr(cause, "pgcode", None))

    login = database.url("agent").split("://")[1].split(":")[0]
    told, state = asyncio.run(refused(tenant="strangers"))
    assert (state, login in told, "db grant" in told) == ("CF403", True, True), told
    told, state = asyncio.run(refused(run="closed"))
    assert (state, told) == ("CF403", "run is closed: no new action.")


@pytest.mark.parametrize("driver", DRIVERS)
def test_everything_of_an_intent_passes_every_driver(app: App, database: Database, driver: str) -> None:
    """Times, lists, numbers and nulls; the same step is the same action, another tool's is a conflict."""

    async def main() -> list[str]:
        engine = app.async_engine(driver)
        async with AsyncSession(engine) as session:
            session.add(Order(id=1, number="1"))
            when = datetime(2031, 1, 2, 3, 4, 5, tzinfo=UTC)
            first = await app.aenqueue(session, not_before=when)
            assert await app.aenqueue(session, not_before=when) == first
            await session.commit()
            with pytest.raises(StepConflict):
                await app.cf.aenqueue(session, "send_mail", {"order_id": "1"}, **PLACE)
            second = await app.aenqueue(session, step="rolled back")
            await session.rollback()
        await engine.dispose()
        return [first, second]

    first, _ = asyncio.run(main())
    with psycopg.connect(database.url("owner")) as owner:
        rows = owner.execute(
            "SELECT action_id, audience, extract(year FROM ready_at) FROM counterfoil.action"
        ).fetchall()
    assert rows == [(first, ["customer"], 2031)]


def test_a_connection_that_is_lost_is_told_over_asyncpg(app: App, database: Database) -> None:
    """As over psycopg: unavailable, and the same call again is safe."""

    async def main() -> None:
        engine = app.async_engine("asyncpg")
        async with AsyncSession(engine) as session:
            [pid] = (await session.execute(text("SELECT pg_backend_pid()"))).one()
            with psycopg.connect(database.url("owner"), autocommit=True) as owner:
                owner.execute("SELECT pg_terminate_backend(%s)", (pid,))
            with pytest.raises(LedgerUnavailable):
                await app.aenqueue(session)
        await engine.dispose()

    asyncio.run(main())


def test_a_row_of_ours_reaches_no_traceback(app: App, database: Database) -> None:
    """A refused row would be quoted by the driver, with its arguments: the cause says SQLSTATE and constraint instead."""
    with psycopg.connect(database.url("owner"), autocommit=True) as owner:
        owner.execute("ALTER TABLE counterfoil.action ADD CONSTRAINT none CHECK (length(arguments) < 3) NOT VALID")
    calls: list[Callable[[], object]] = [lambda: _by_session(app), lambda: _by_psycopg(app, database)]
    for call in calls:
        with pytest.raises(CounterfoilError) as caught:
            call()
        assert isinstance(caught.value.__cause__, ConcealedError)
        told = "".join(traceback.format_exception(caught.value))
        assert ("constraint none" in told, SECRET in told) == (True, False)


def _by_session(app: App) -> None:
    with Session(app.engine) as session:
        app.enqueue(session)


def _by_psycopg(app: App, database: Database) -> None:
    with psycopg.connect(database.url("agent")) as conn:
        app.enqueue(conn)


def test_causes_are_kept() -> None:
    """The driver's own error where its text is about names and logins."""
    cause = psycopg.errors.UndefinedFunction("function counterfoil.propose does not exist")
    with pytest.raises(CounterfoilError) as caught:
        raise_told(cause)
    assert caught.value.__cause__ is cause


@pytest.mark.parametrize("form", ["sync", "async"])
def test_what_a_pipeline_held_before_is_the_application_s(app: App, database: Database, form: str) -> None:
    """psycopg's pipeline mode answers earlier statements when ours is fetched: their errors come out as they are."""
    right, wrong = "INSERT INTO app.orders VALUES (1, '1', NULL)", "INSERT INTO never_made VALUES (1)"

    def piped(statement: str) -> str:
        with psycopg.connect(database.url("agent")) as conn, conn.pipeline():
            conn.execute(statement.encode())
            return app.enqueue(conn)

    async def apiped(statement: str) -> str:
        async with await psycopg.AsyncConnection.connect(database.url("agent")) as conn, conn.pipeline():
            await conn.execute(statement.encode())
            return await app.aenqueue(conn)

    run: Callable[[str], str] = piped if form == "sync" else lambda statement: asyncio.run(apiped(statement))
    with pytest.raises(psycopg.errors.UndefinedTable, match="never_made"):
        run(wrong)
    assert run(right)


def test_a_hook_s_error_is_the_application_s(app: App) -> None:
    """A session's `after_begin`, such as one that sets the user for row-level security, runs within our statement."""
    with Session(app.engine) as session:
        event.listen(session, "after_begin", lambda _, __, conn: conn.execute(text("SELECT my_app.set_user()")))
        with pytest.raises(ProgrammingError, match="set_user"):
            app.enqueue(session)


@pytest.mark.parametrize("fault", ["another tenant", "time limit"])
def test_parameters_that_postgres_is_told_to_report_reach_no_traceback(
    app: App, database: Database, fault: str
) -> None:
    """With `log_parameter_max_length_on_error` set, CONTEXT quotes a statement's parameters, whatever went wrong."""
    with psycopg.connect(database.url("owner")) as lock, psycopg.connect(database.url("agent")) as conn:
        conn.execute("SET log_parameter_max_length_on_error = -1")
        if fault == "time limit":
            lock.execute("LOCK TABLE counterfoil.action IN ACCESS EXCLUSIVE MODE")
            conn.execute("SET statement_timeout = '200ms'")
        with pytest.raises(CounterfoilError) as caught:
            app.enqueue(conn, tenant="strangers" if fault == "another tenant" else "acme")
    told = "".join(traceback.format_exception(caught.value))
    assert ("order-1" in told, SECRET in told) == (False, False)
    assert ("may not act" in told) == (fault == "another tenant")
