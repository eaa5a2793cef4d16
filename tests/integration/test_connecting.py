"""How every process reaches Postgres: its parameters, a bound on each wait, what a pooler or a demoted node changes."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, closing, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psycopg
import pytest
from psycopg import sql
from psycopg.rows import tuple_row
from sqlalchemy import Engine, create_engine
from sqlalchemy.exc import DBAPIError
from tests.integration.model_calls import registry

from counterfoil import ConfigError, Counterfoil, LedgerUnavailable, NotAllowed, Result
from counterfoil.ledger import connecting, migrate, roles
from counterfoil.ledger.address import Address
from counterfoil.ledger.claims import beat_heart
from counterfoil.ledger.connecting import AnswerOverdue, connect, within
from counterfoil.ledger.connection import Ledger
from counterfoil.ledger.queries import load
from counterfoil.ledger.schema import SCHEMA, comment_of
from counterfoil.outbox.pool import LedgerPool
from counterfoil.outbox.relay import Relay

if TYPE_CHECKING:
    from tests.conftest import Database

_LOGIN = load("counterfoil.cli", "sql/check.sql")["check_login"]
ORDER = {"order_id": "o1"}


@contextmanager
def _as_agents(url: str) -> Iterator[Any]:
    pool = LedgerPool(url)
    with pool._connected("AUTOCOMMIT") as connection:
        yield connection.connection.driver_connection
    pool.close()


@contextmanager
def _as_migrations(url: str) -> Iterator[Any]:
    with migrate._connect(url) as connection:
        yield connection.connection.driver_connection


WAYS: dict[str, Callable[[str], AbstractContextManager[Any]]] = {
    "workers": lambda url: closing(Ledger(url).connected()),
    "agents": _as_agents,
    "migrations": _as_migrations,
    "roles": lambda url: closing(roles._connect(url)),
}


@pytest.mark.parametrize("way", WAYS)
def test_every_process_connects_alike(way: str, database: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    """A silent host is noticed, text is UTF-8 whatever the environment says, and no startup parameter is a pooler's bane."""
    monkeypatch.setenv("PGCLIENTENCODING", "SQL_ASCII")
    with WAYS[way](database.url("owner")) as connection:
        given = connection.info.get_parameters()
        assert (given["tcp_user_timeout"], given["keepalives_idle"], given["keepalives_count"]) == ("20000", "10", "3")
        assert given["connect_timeout"] == "5"
        assert "options" not in given
        assert connection.info.encoding == "utf-8"
        said = connection.cursor(row_factory=tuple_row).execute("SHOW statement_timeout").fetchone()
        assert said == ("0" if way == "migrations" else "15s",)


def test_a_session_that_is_not_ours_is_left_alone(database: Database) -> None:
    """Where a pooler is said to be, nothing is set for the session and no statement gets a name."""
    with connect(Address(database.url("agent"), "transaction"), application_name="test") as connection:
        assert connection.is_pooled
        assert connection.prepare_threshold is None
        assert connection.execute("SHOW statement_timeout").fetchone() == ("0",)
    with connect(Address(database.url("agent")), application_name="test") as connection:
        assert not connection.is_pooled, "found out by the process id that the server gives"


def test_a_transaction_behind_a_pooler_has_its_limits(database: Database) -> None:
    """A client that falls silent with the run's lock in its hands is ended by the server."""
    pool = LedgerPool(Address(database.url("agent"), "transaction"))
    with pool.transaction() as transaction:
        found = transaction._connection.exec_driver_sql(
            "SELECT current_setting('statement_timeout'), current_setting('idle_in_transaction_session_timeout')"
        ).one()
        assert tuple(found) == ("15s", "1min")
    pool.close()


def test_a_wait_ends_by_our_own_clock(database: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever the server does: the statement's connection is closed, since an answer yet to come would be another's."""
    with connect(database.url("agent"), application_name="test") as connection:
        connection.answer_s = 0.3
        with pytest.raises(AnswerOverdue):
            connection.execute("SELECT pg_sleep(60)")
        assert connection.closed
    monkeypatch.setattr(connecting.LedgerConnection, "answer_s", 0.3)
    ledger = Ledger(database.url("agent"))
    sleeps = _LOGIN.__class__(
        name="sleeps", text="SELECT pg_sleep(60)", psycopg="SELECT pg_sleep(60)", parameters=frozenset()
    )
    with pytest.raises(LedgerUnavailable, match=r"outcome is unknown|cannot connect"):
        ledger.rows(sleeps, {})
    ledger.close()


def test_a_bound_holds_for_all_that_is_within_it(database: Database) -> None:
    """Repeats and new connections included; an inner bound never widens an outer one."""
    pool = LedgerPool(database.url("agent"))
    begun = time.monotonic()
    with within(0.5), within(60), pytest.raises(LedgerUnavailable), pool.transaction() as transaction:
        transaction._connection.exec_driver_sql("SELECT pg_sleep(60)")
    with within(0), pytest.raises(LedgerUnavailable, match="in time"):
        connect(database.url("agent"), application_name="test")
    assert time.monotonic() - begun < 30
    pool.close()


def test_a_call_whose_row_is_locked_returns_and_its_repeat_meets_the_same_row(database: Database) -> None:
    """The database hangs for a call: it is told within seconds, nothing is recorded twice."""
    cf = Counterfoil(database.url("agent"), registry=registry())
    run = cf.run("r", tenant="acme", actor="bot")
    with psycopg.connect(database.url("owner")) as blocker:
        blocker.execute("LOCK TABLE counterfoil.run")
        with pytest.raises(LedgerUnavailable):
            run.call("refund", ORDER, wait_s=0)
        with pytest.raises(LedgerUnavailable):
            asyncio.run(run.acall("refund", ORDER, wait_s=0))
        blocker.rollback()
        first = run.call("refund", ORDER, wait_s=0)
        assert run.call("refund", ORDER, wait_s=0).action_id == first.action_id
        count = blocker.execute("SELECT count(*) FROM counterfoil.action").fetchone()
        assert count == (1,)
    cf.close()


@pytest.fixture
def demoted(database: Database) -> Callable[[str, bool], None]:
    """Makes a login's connections those of a node that takes no writes, or ends that for new ones."""
    name = database.name

    def change(login: str, is_demoted: bool) -> None:
        with psycopg.connect(database.url("owner"), autocommit=True) as owner:
            verb = "SET default_transaction_read_only = on" if is_demoted else "RESET default_transaction_read_only"
            owner.execute(f"ALTER ROLE {login} IN DATABASE {name} {verb}".encode())
            if is_demoted:
                owner.execute(
                    "SELECT pg_terminate_backend(pid, 5000) FROM pg_stat_activity WHERE usename = %s", [login]
                )

    return change


@pytest.mark.parametrize("own_engine", [False, True])
def test_an_agent_leaves_a_node_that_takes_no_writes(
    database: Database, demoted: Callable[[str, bool], None], *, own_engine: bool
) -> None:
    """While it is the only one, the caller is told so; as soon as another answers, every connection is one to that."""
    url = database.url("agent")
    engine = create_engine(url.replace("postgresql://", "postgresql+psycopg://")) if own_engine else url
    cf = Counterfoil(engine, registry=registry())
    cf.run("r", tenant="acme", actor="bot")
    demoted("cf_agent", True)
    with pytest.raises(LedgerUnavailable, match=r"takes no writes|cannot be used"):
        cf.run("r", tenant="acme", actor="bot")
    demoted("cf_agent", False)
    assert cf.run("r", tenant="acme", actor="bot").call("refund", ORDER, wait_s=0).action_id
    cf.close()
    if isinstance(engine, Engine):
        engine.dispose()


def test_a_worker_leaves_it_too(database: Database) -> None:
    """A statement that was refused did nothing, so that even one that may not be repeated is tried elsewhere."""
    ledger = Ledger(database.url("worker"))
    ledger.connected().execute("SET default_transaction_read_only = on")
    beat_heart(ledger, worker="w", queues=["q"], claimed=False)
    ledger.connected().execute("SET default_transaction_read_only = on")
    heartbeat = load("counterfoil.ledger", "sql/worker.sql")["heartbeat"]
    ledger.rows(heartbeat, {"worker": "w", "queues": ["q"], "claimed": False}, repeatable=False)
    ledger.close()


def test_the_relay_outlives_what_the_database_says(database: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    """A node that takes no writes, a lost prepared statement, a fault of ours: each is an outage, and ends."""
    said: list[BaseException] = [
        psycopg.errors.ReadOnlySqlTransaction(),
        psycopg.errors.InvalidSqlStatementName(),
        psycopg.errors.FeatureNotSupported(),
        psycopg.errors.UndefinedColumn(),
        ConfigError("the schema is another's"),
        KeyError("ours"),
    ]
    stop, seen = threading.Event(), []

    def publish(self: Relay, stop: threading.Event | None = None) -> int:
        if not said:
            assert stop is not None
            stop.set()
            return 0
        seen.append(said.pop(0))
        self._ledger_outage.open_until = 0.0
        raise seen[-1]

    monkeypatch.setattr(Relay, "publish_due", publish)
    monkeypatch.setattr("counterfoil.outbox.outages.PAUSE_FIRST_S", 0.01)
    relay = Relay(Ledger(database.url("worker")), None, lost_after_s=20)  # type: ignore[arg-type]
    relay.run(stop)
    relay.close()
    assert len(seen) == 6


@pytest.mark.parametrize("comment", [None, comment_of("0001", "0001"), comment_of("9999", "9998")])
def test_each_process_compares_the_schema_at_each_connection(
    database: Database, comment: str | None, tmp_path: Path
) -> None:
    """Agents, workers and the relay say which way to go, before a statement fails on a column that is not there."""
    with psycopg.connect(database.url("owner"), autocommit=True) as owner:
        owner.execute(sql.SQL("COMMENT ON SCHEMA counterfoil IS {}").format(comment))
    cf = Counterfoil(database.url("agent"), registry=registry())
    with pytest.raises(ConfigError, match="the ledger's schema is at"):
        cf.run("r", tenant="acme", actor="bot")
    cf.close()
    with pytest.raises(ConfigError, match="the ledger's schema is at"):
        Ledger(database.url("worker")).connected()
    environ = {
        **{name: value for name, value in os.environ.items() if not name.startswith("COUNTERFOIL_")},
        "COUNTERFOIL_DATABASE__URL": database.url("worker"),
        "COUNTERFOIL_BROKER__URL": "redis://127.0.0.1:1/0",
    }
    relay = [sys.executable, "-m", "counterfoil.cli", "relay"]
    ended = subprocess.run(relay, cwd=tmp_path, env=environ, check=False, capture_output=True, text=True, timeout=120)
    assert (ended.returncode, "the ledger's schema is at" in ended.stderr) == (2, True), ended.stderr
    if comment != comment_of("9999", "9998"):
        roles.create_groups(database.url("owner"))
        migrate.upgrade(database.url("owner"))
        cf.run("r", tenant="acme", actor="bot")
        cf.close()


@pytest.mark.parametrize(("encoding", "locale"), [("SQL_ASCII", "C"), ("LATIN1", "C")])
def test_a_database_of_another_encoding_is_refused(database: Database, encoding: str, locale: str) -> None:
    """With the statement that makes a good one: arguments may hold any text."""
    name = f"{database.name}_e"
    create = sql.SQL("CREATE DATABASE {} TEMPLATE template0 ENCODING {} LOCALE {}").format(
        sql.Identifier(name), encoding, locale
    )
    with psycopg.connect(database.url("owner"), autocommit=True) as owner:
        owner.execute(create)
        try:
            url = database.url("owner").replace(f"/{database.name}", f"/{name}")
            with pytest.raises(ConfigError, match=encoding) as refused:
                migrate.upgrade(url)
            assert "ENCODING 'UTF8'" in refused.value.fix
            with pytest.raises(ConfigError, match="no ledger"):
                Counterfoil(url, registry=registry()).run("r", tenant="acme", actor="bot")
        finally:
            owner.execute(sql.SQL("DROP DATABASE {} WITH (FORCE)").format(sql.Identifier(name)))


def test_a_relay_under_an_agent_s_login_does_not_begin(database: Database) -> None:
    """Nor a worker: each of its tasks would fail. A database that is away is waited for."""
    with closing(Ledger(database.url("agent"))) as ledger, pytest.raises(NotAllowed, match="workers' group") as refused:
        ledger.check_worker()
    assert "db grant cf_agent --as worker" in refused.value.fix
    with closing(Ledger(database.url("worker"))) as ledger:
        assert ledger.check_worker() is None
    with closing(Ledger("postgresql://127.0.0.1:1/none")) as ledger:
        assert "cannot connect" in str(ledger.check_worker())


def test_a_server_that_is_too_old_is_refused(database: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    """Before the first migration fails on its syntax."""
    monkeypatch.setattr(migrate, "POSTGRES_MIN", 99)
    with pytest.raises(ConfigError, match="99 or newer"):
        migrate.upgrade(database.url("owner"))


def test_a_pool_without_a_free_connection_is_waited_for_within_the_bound(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And no longer by repeating: a call has its seconds once."""
    monkeypatch.setattr("counterfoil.outbox.pool.CONNECTIONS_MAX", 1)
    pool = LedgerPool(database.url("agent"))
    begun = time.monotonic()
    with pool.transaction(), within(0.3):
        for _ in range(3):
            with pytest.raises(LedgerUnavailable, match=r"became free|in time"):
                pool.rows(_LOGIN, {})
    assert time.monotonic() - begun < 6
    assert pool.row(_LOGIN, {})
    pool.close()


def test_an_application_s_engine_is_its_own(database: Database) -> None:
    """`close` leaves its connections alone, which it may be using."""
    engine = create_engine(database.url("agent").replace("postgresql://", "postgresql+psycopg://"))
    cf = Counterfoil(engine, registry=registry())
    cf.run("r", tenant="acme", actor="bot")
    before = engine.pool
    cf.close()
    assert engine.pool is before
    assert engine.pool.checkedin() == 1  # type: ignore[attr-defined]
    engine.dispose()


def test_calls_that_wait_for_a_thread_have_the_same_bound(database: Database) -> None:
    """More calls at once than there are threads, of a database that does not answer: none waits for the others' turns."""
    cf = Counterfoil(database.url("agent"), registry=registry())
    action = cf.run("r", tenant="acme", actor="bot").call("refund", ORDER, wait_s=0).action_id

    async def main() -> list[BaseException | Result]:
        return await asyncio.gather(*(cf.aresult(str(action)) for _ in range(130)), return_exceptions=True)

    with psycopg.connect(database.url("owner")) as blocker:
        blocker.execute("LOCK TABLE counterfoil.action")
        begun = time.monotonic()
        told = asyncio.run(main())
        took_s = time.monotonic() - begun
    assert {type(each) for each in told} == {LedgerUnavailable}
    assert took_s < 16, "two turns would take sixteen seconds, three twenty-four"
    cf.close()


def test_an_upgrade_waits_for_another_whatever_the_login_s_limit(database: Database) -> None:
    """A login's own statement_timeout is for statements of every day."""
    roles.create_groups(database.url("owner"))
    with psycopg.connect(database.url("owner"), autocommit=True) as holder, ThreadPoolExecutor(1) as thread:
        holder.execute(f"ALTER DATABASE {database.name} SET statement_timeout = '1s'".encode())
        with holder.transaction():
            holder.execute("SELECT pg_advisory_xact_lock(hashtext('counterfoil.migrate'))")
            upgrade = thread.submit(migrate.upgrade, database.url("owner"))
            with pytest.raises(TimeoutError):
                upgrade.result(timeout=3)
        assert upgrade.result(timeout=60) == SCHEMA


@pytest.mark.parametrize("error", [psycopg.errors.AdminShutdown(), psycopg.errors.QueryCanceled(), AnswerOverdue()])
def test_an_upgrade_that_is_cut_off_says_so(error: psycopg.Error) -> None:
    """And that nothing of the step is kept."""
    told = migrate._refused(DBAPIError("CREATE TABLE …", {}, error))
    assert isinstance(told, LedgerUnavailable)
    assert "run it again" in told.fix
