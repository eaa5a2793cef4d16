"""A model's call while the database is lost or is none, and mistakes of the code around it."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import psycopg
import pytest
from tests.integration.model_calls import (
    World,
    registry,
)

from counterfoil import (
    ArgumentError,
    ConfigError,
    Counterfoil,
    LedgerUnavailable,
    NotAllowed,
    Status,
)
from counterfoil.ledger.connecting import LedgerConnection, connect
from counterfoil.ledger.queries import load
from counterfoil.outbox.pool import LedgerPool

if TYPE_CHECKING:
    from tests.conftest import Database

_LOGIN = load("counterfoil.cli", "sql/check.sql")["check_login"]


@pytest.fixture
def world(database: Database) -> Iterator[World]:
    world = World(database)
    yield world
    world.close()


def test_lost_connection_in_a_call_is_survived(world: World) -> None:
    """Every connection of the pool dies: the same call finds what it had recorded, and a new one is recorded once."""
    run = world.run()
    first = run.call("refund", {"order_id": "o1"}, wait_s=0)
    _end_connections(world)
    assert run.call("refund", {"order_id": "o1"}, wait_s=0).action_id == first.action_id
    world.succeed(first.action_id)
    _end_connections(world)
    assert world.cf.result(str(first.action_id)).status is Status.SUCCEEDED
    run.call("refund", {"order_id": "o1"})
    _end_connections(world)
    assert run.call("refund", {"order_id": "o2"}, wait_s=0).seq == 2
    assert world.actions() == 2


@pytest.mark.case("I3")
@pytest.mark.parametrize("landed", [True, False])
def test_answer_to_commit_is_lost(world: World, monkeypatch: pytest.MonkeyPatch, landed: bool) -> None:
    """Whether the COMMIT that was not answered had landed or not, the call is recorded once, and finds itself."""
    import sqlalchemy

    run = world.run()
    commit = sqlalchemy.Connection.commit
    lost: list[int] = []

    def lose_first(connection: sqlalchemy.Connection) -> None:
        if not lost:
            lost.append(1)
            if landed:
                commit(connection)
            raise sqlalchemy.exc.OperationalError(
                "COMMIT", {}, psycopg.OperationalError("server closed the connection")
            )
        commit(connection)

    monkeypatch.setattr(sqlalchemy.Connection, "commit", lose_first)
    result = run.call("refund", {"order_id": "o1"}, wait_s=0)
    assert lost
    assert (result.status, result.seq) == (Status.PENDING, 1)
    assert world.actions() == 1


def test_unreachable_database_says_cause_and_fix() -> None:
    """No server: what was tried and what to look at, without the password."""
    cf = Counterfoil("postgresql://agent:hunter2@127.0.0.1:9/app", registry=registry())
    with pytest.raises(LedgerUnavailable, match="refused") as down:
        cf.run("r", tenant="acme", actor="bot")
    assert "url" in down.value.fix
    assert "hunter2" not in str(down.value) + str(down.value.__cause__)


@pytest.mark.parametrize("url", ["mysql://u:hunter2@h/db", "postgresql://u:hunter2@h:no/db?bad", "u:hunter2 = x"])
def test_url_that_is_none_is_refused_without_its_password(url: str) -> None:
    """A URL that libpq cannot read is a mistake in the configuration, told without quoting it."""
    with pytest.raises((ConfigError, LedgerUnavailable)) as refusal:
        Counterfoil(url, registry=registry()).run("r", tenant="acme", actor="bot")
    assert "hunter2" not in str(refusal.value) + str(refusal.value.__cause__)


def test_mistakes_of_code_are_raised(world: World) -> None:
    """An unknown tool names the nearest; a label, ref or id that cannot be stored, and a wrong role, are refused."""
    run = world.run()
    with pytest.raises(ConfigError, match="create_ticket"):
        run.call("create_tickets", {})
    for names in ({"step": "7"}, {"step": ""}, {"ref": "r" * 401}, {"repeat": "\0"}):
        with pytest.raises(ArgumentError):
            run.call("refund", {"order_id": "o1"}, **names)  # type: ignore[arg-type]
    with pytest.raises(ArgumentError):
        world.run("")
    worker = Counterfoil(world.database.url("worker"), registry=registry())
    with pytest.raises(NotAllowed, match="--as agent"):
        worker.run("r", tenant="acme", actor="bot")
    worker.close()
    assert world.actions() == 0


def test_database_without_a_ledger_says_what_to_run(world: World) -> None:
    """A database that was never upgraded names the command."""
    name = "postgres"
    url = world.database.urls.postgres_as(world.database.urls.user, world.database.urls.password, name)
    cf = Counterfoil(url, registry=registry())
    with pytest.raises(ConfigError, match="db upgrade"):
        cf.run("r", tenant="acme", actor="bot")
    cf.close()


def test_a_pool_closed_in_the_middle_of_a_call_leaves_no_connection(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A thread that a framework's time limit abandoned may outlive `close`: its connection ends when it is done."""
    made: list[LedgerConnection] = []

    def noted(*args: Any, **kwargs: Any) -> LedgerConnection:
        made.append(connect(*args, **kwargs))
        return made[-1]

    monkeypatch.setattr("counterfoil.outbox.pool.connect", noted)
    pool, begun, closed = LedgerPool(world.database.url("agent")), threading.Event(), threading.Event()

    def works() -> None:
        with pool.transaction() as transaction:
            begun.set()
            closed.wait(60)
            transaction.rollback()

    thread = threading.Thread(target=works)
    thread.start()
    assert begun.wait(60)
    pool.close()
    assert [connection.closed for connection in made] == [False], "what is in use goes on"
    closed.set()
    thread.join(60)
    assert [connection.closed for connection in made] == [True]
    assert pool.row(_LOGIN, {}), "it can be used again"
    assert [connection.closed for connection in made] == [True, True], (
        "by what was abandoned, maybe: nothing stays open"
    )


def _end_connections(world: World) -> None:
    world.owner.execute(
        "SELECT pg_terminate_backend(pid, 5000) FROM pg_stat_activity"
        " WHERE application_name = 'counterfoil-agent' AND datname = current_database()"
    )
