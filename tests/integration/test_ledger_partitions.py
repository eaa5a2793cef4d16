"""Months that nobody made, schemas that two make at once: nothing fails and nothing is lost."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

import psycopg
import pytest
from psycopg import sql

from counterfoil.ledger import claims, migrate, roles, sweeps
from counterfoil.ledger.connection import Ledger

if TYPE_CHECKING:
    from tests.integration.conftest import Rows

    from counterfoil.stack.services import Urls

AtOnce = Callable[[Sequence[Callable[[], Any]]], list[Any]]

DAY_S = 86_400
PARTITIONS = """
SELECT c.relname AS name, pg_get_expr(c.relpartbound, c.oid) AS bound, c.relrowsecurity AS secured
FROM pg_class AS c WHERE c.relnamespace = 'counterfoil'::regnamespace AND c.relispartition AND c.relkind = 'r' ORDER BY 1
"""


def months(rows: Rows, table: str) -> list[str]:
    """The months that have a partition, as YYYYMM."""
    names = [row["name"] for row in rows.all(PARTITIONS)]
    return [name[-6:] for name in names if name.startswith(f"{table}_") and name[-6:].isdigit()]


def month(rows: Rows, ahead: int) -> str:
    row = rows.one(
        "SELECT to_char(counterfoil.now() AT TIME ZONE 'UTC' + make_interval(months => %s), 'YYYYMM') AS m", ahead
    )
    return str(row["m"])


def far_ahead(rows: Rows) -> None:
    """Moves the ledger's clock to the middle of a month that has no partition."""
    row = rows.one(
        "SELECT extract(epoch FROM date_trunc('month', counterfoil.now()) + interval '4 months 14 days'"
        " - counterfoil.now())::float8 AS seconds"
    )
    rows.database.advance(row["seconds"])


def test_first_migration_makes_three_months(rows: Rows) -> None:
    """A new ledger has DEFAULT and this month's and the next two months' partitions, bounded in UTC, all secured."""
    wanted = [month(rows, ahead) for ahead in range(3)]
    assert months(rows, "attempt") == months(rows, "history") == wanted
    with rows.owner.transaction():
        rows.owner.execute("SET LOCAL TimeZone = 'Pacific/Auckland'")
        rows.owner.execute("SELECT counterfoil.make_partitions(4)")
    with rows.owner.transaction():
        rows.owner.execute("SET LOCAL TimeZone = 'UTC'")
        found = rows.all(PARTITIONS)
    assert len(found) == 12
    for row in found:
        assert row["secured"], row["name"]
        assert row["bound"] == "DEFAULT" or row["bound"].count("-01 00:00:00+00") == 2, row


def test_default_catches_a_month_that_was_not_made(rows: Rows) -> None:
    """With no partition for the month, propose, claim and settle work; their attempt and history lie in DEFAULT."""
    far_ahead(rows)
    action_id = rows.propose()["action_id"]
    worker = rows.ledger()
    action = rows.claimed(worker, action_id)
    assert claims.settle_succeeded(worker, action, receipt="pi_1", result="{}", evidence=None, worker="w")
    assert rows.history(action_id) == [(None, "ready"), ("ready", "executing"), ("executing", "succeeded")]
    assert len(rows.all("SELECT FROM counterfoil.history_default WHERE action_id = %s", action_id)) == 3
    attempt = rows.one("SELECT outcome, attempt_id FROM counterfoil.attempt_default")
    assert (attempt["outcome"], attempt["attempt_id"]) == ("succeeded", action.fence)
    for role in ("agent", "operator", "reader"):
        for name in ("attempt_default", "history_default"):
            with pytest.raises(psycopg.errors.InsufficientPrivilege):
                rows.connect(role).execute(f"SELECT action_id FROM counterfoil.{name}".encode())


def test_month_whose_rows_lie_in_default_stays_there(rows: Rows) -> None:
    """A month that DEFAULT has taken is left to it, for each table by itself; the months after it are made."""
    far_ahead(rows)
    action_id = rows.propose()["action_id"]
    made = sweeps.make_partitions(rows.ledger(), ahead=2)
    this, *later = (month(rows, ahead) for ahead in range(3))
    assert set(made) == {f"attempt_{this}", *(f"{table}_{m}" for table in ("attempt", "history") for m in later)}
    assert rows.history(action_id) == [(None, "ready")]
    rows.claimed(rows.ledger(), action_id)
    assert len(rows.history(action_id)) == 2
    assert len(rows.all(f"SELECT FROM counterfoil.attempt_{this}")) == 1


def test_rows_go_to_their_month(rows: Rows) -> None:
    """What is written in a month that has a partition lies there, and DEFAULT stays empty."""
    rows.claimed(rows.ledger(), rows.propose()["action_id"])
    this = month(rows, 0)
    for table in ("attempt", "history"):
        assert rows.all(f"SELECT FROM counterfoil.{table}_default") == []
        assert rows.all(f"SELECT FROM counterfoil.{table}_{this}") != []
    with pytest.raises(psycopg.errors.InsufficientPrivilege):
        rows.connect("agent").execute(f"SELECT FROM counterfoil.history_{this}".encode())


def test_made_partitions_are_append_only(rows: Rows) -> None:
    """A partition made later refuses UPDATE, DELETE and TRUNCATE of history as the first ones do."""
    far_ahead(rows)
    made = sweeps.make_partitions(rows.ledger(), ahead=0)
    rows.propose()
    for name in (name for name in made if name.startswith("history")):
        for statement in ("UPDATE {} SET reason = 'x'", "DELETE FROM {}", "TRUNCATE {}"):
            with pytest.raises(psycopg.DatabaseError) as refused:
                rows.owner.execute(sql.SQL(statement).format(sql.Identifier("counterfoil", name)))
            assert refused.value.sqlstate == "CF403", (name, statement)


def test_make_partitions_again_and_at_once(rows: Rows, at_once: AtOnce) -> None:
    """Any number of beats make each partition once; asking again makes none; what is asked for is bounded."""
    workers = [rows.ledger() for _ in range(6)]
    made = at_once([partial(sweeps.make_partitions, worker, ahead=8) for worker in workers])
    names = [name for names in made for name in names]
    assert len(names) == len(set(names)) == 2 * 6
    assert sweeps.make_partitions(workers[0], ahead=8) == []
    sweeps.make_partitions(workers[0], ahead=1000)
    assert len(months(rows, "history")) == 25


def test_make_partitions_while_actions_run(rows: Rows, at_once: AtOnce) -> None:
    """Making partitions while DEFAULT is being written to neither fails nor loses a move."""
    far_ahead(rows)
    agents = [rows.connect("agent") for _ in range(4)]
    workers = [rows.ledger() for _ in range(4)]

    def live(agent: psycopg.Connection[Any], worker: Ledger, number: int) -> list[str]:
        ids = []
        for step in range(5):
            ids.append(rows.identity(run=f"live{number}", step=f"s{step}")["action_id"])
            _propose_until_done(rows, agent, f"live{number}", f"s{step}")
            key = uuid.uuid4().hex
            action = claims.claim_if_ready(
                worker, claims.WakeUp(ids[-1], 1), fence=uuid.uuid4(), lease_s=60.0, key=key, key_version=1, reach="",
                attempts_max=5,
                worker="w",
            )  # fmt: skip
            assert action is not None
            assert claims.settle_succeeded(worker, action, receipt="pi", result="{}", evidence=None, worker="w")
        return ids

    makers = [rows.ledger() for _ in range(2)]
    lives = [partial(live, agent, worker, n) for n, (agent, worker) in enumerate(zip(agents, workers, strict=True))]
    answers = at_once([*lives, *(partial(sweeps.make_partitions, maker, ahead=3) for maker in makers)])
    for action_id in (action_id for ids in answers[:4] for action_id in ids):
        assert [to for _, to in rows.history(action_id)] == ["ready", "executing", "succeeded"]
        assert (
            len(rows.all("SELECT FROM counterfoil.attempt WHERE action_id = %s AND outcome = 'succeeded'", action_id))
            == 1
        )


def _propose_until_done(rows: Rows, agent: psycopg.Connection[Any], run: str, step: str) -> None:
    """As a caller does: a deadlock or serialisation failure undid the transaction, so it is run again."""
    for left in reversed(range(5)):
        try:
            rows.propose(agent, run=run, step=step)
            return
        except (psycopg.errors.DeadlockDetected, psycopg.errors.SerializationFailure):
            if not left:
                raise


@pytest.fixture
def empty_database(services: Urls) -> Iterator[str]:
    """The superuser's URL of a database without a ledger."""
    name = f"cf_empty_{uuid.uuid4().hex[:12]}"
    with psycopg.connect(services.postgres, autocommit=True) as connection:
        connection.execute(sql.SQL("CREATE DATABASE {}").format(sql.Identifier(name)))
        yield services.postgres_as(services.user, services.password, name)
        connection.execute(sql.SQL("DROP DATABASE {} WITH (FORCE)").format(sql.Identifier(name)))


def test_upgrade_twice_and_at_once(empty_database: str, at_once: AtOnce) -> None:
    """Groups and schema are made by several at once and again: each gets the newest revision, and the owner owns it all."""
    at_once([partial(roles.create_groups, empty_database)] * 3)
    assert migrate.status(empty_database)[0] is None
    revisions = at_once([partial(migrate.upgrade, empty_database)] * 3)
    assert revisions == [migrate.status(empty_database)[1]] * 3
    assert migrate.upgrade(empty_database) == revisions[0]
    assert migrate.status(empty_database) == (revisions[0], revisions[0])
    with psycopg.connect(empty_database) as connection:
        owners = connection.execute(
            "SELECT DISTINCT relowner::regrole::text FROM pg_class WHERE relnamespace = 'counterfoil'::regnamespace"
        ).fetchall()
        assert owners == [("counterfoil_owner",)]


def test_upgrade_without_the_right(rows: Rows) -> None:
    """A login that cannot become the owner is told so, and the password is not in the text."""
    for role in ("worker", "agent"):
        with pytest.raises(migrate.NotAllowed, match="may not act as counterfoil_owner"):
            migrate.upgrade(rows.database.url(role))
