"""Intents that other languages insert: the application's own transaction, the tools' own checks, an action or a refusal."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from itertools import product
from typing import TYPE_CHECKING, Annotated, Any

import psycopg
import pytest
from pydantic import AfterValidator

from counterfoil import Counterfoil, tool
from counterfoil.ledger.canonical import sha256_of
from counterfoil.ledger.connection import Ledger
from counterfoil.ledger.keys import action_id
from counterfoil.ledger.states import State
from counterfoil.outbox.intake import Intake
from counterfoil.outbox.results import result_of
from counterfoil.testing import World

if TYPE_CHECKING:
    from tests.conftest import Database

CHARGE = {"customer": "cus_1", "amount_minor": 500, "currency": "usd", "order_id": "1182"}
INSERT = """INSERT INTO counterfoil.intake (tenant, run, step, tool, arguments, actor, not_before)
            VALUES (%(tenant)s, %(run)s, %(step)s, %(tool)s, %(arguments)s, %(actor)s, %(not_before)s) RETURNING intake_id"""
ROW = {"tenant": "acme", "run": "order-1", "step": "fee", "tool": "stripe_charge", "arguments": json.dumps(CHARGE),
       "actor": "shop", "not_before": None}  # fmt: skip


@pytest.fixture
def agent(database: Database) -> Iterator[psycopg.Connection[Any]]:
    """An application's own connection, as any language has one."""
    with psycopg.connect(database.url("agent"), autocommit=True) as connection:
        yield connection


@pytest.fixture
def insert(agent: psycopg.Connection[Any]) -> Callable[..., int]:
    """Inserts one row and gives its number."""

    def one(**changes: Any) -> int:
        row = agent.execute(INSERT.encode(), {**ROW, **changes}).fetchone()
        assert row is not None
        return int(row[0])

    return one


@pytest.fixture
def told(agent: psycopg.Connection[Any]) -> Callable[[int], tuple[Any, ...]]:
    """What the application reads in its row: action, code, path."""

    def read(intake_id: int) -> tuple[Any, ...]:
        query = "SELECT action_id, error_code, error_path FROM counterfoil.intake WHERE intake_id = %s"
        row = agent.execute(query.encode(), (intake_id,)).fetchone()
        assert row is not None
        return row

    return read


def test_an_inserted_row_becomes_one_effect(world: World, insert: Any, told: Any, agent: Any, database: Any) -> None:
    """A plain INSERT becomes the action that `enqueue` would have recorded, and SQL alone tells what became of it."""
    number = insert()
    assert told(number) == (None, None, None)
    assert world.intake.take() == 1
    identity = action_id("acme", "order-1", "fee", 1, "do")
    assert told(number) == (identity, None, None)
    read = "SELECT status, next_step, value, code FROM counterfoil.result(%s)"
    assert agent.execute(read, (identity,)).fetchone() == ("pending", "wait", None, None)
    world.settle()
    status, next_step, value, code = agent.execute(read, (identity,)).fetchone()
    assert (status, next_step, code) == ("succeeded", "none", None)
    assert value["id"].startswith("pi_")
    assert world.sandbox.count("charges") == 1
    assert world.intake.take() == 0
    with psycopg.connect(database.url("agent2")) as other:
        assert other.execute(read, (identity,)).fetchall() == []


def test_the_row_is_part_of_the_application_s_transaction(
    world: World, database: Database, insert: Any, sql: Any
) -> None:
    """A rollback leaves no row and no action."""
    with psycopg.connect(database.url("agent")) as connection:
        connection.execute(INSERT.encode(), ROW)
        assert world.intake.take() == 0
        connection.rollback()
    world.settle()
    assert sql("SELECT (SELECT count(*) FROM counterfoil.intake), (SELECT count(*) FROM counterfoil.action)") == [
        (0, 0)
    ]


def test_another_tenant_is_refused_by_the_database(world: World, database: Database, insert: Any) -> None:
    """A login inserts for its own tenants only, sees its own rows only, and writes no outcome."""
    insert()
    with psycopg.connect(database.url("agent2"), autocommit=True) as other:
        with pytest.raises(psycopg.errors.InsufficientPrivilege):
            other.execute(INSERT.encode(), ROW)
        assert other.execute("SELECT count(*) FROM counterfoil.intake").fetchall() == [(0,)]
        with pytest.raises(psycopg.errors.InsufficientPrivilege):
            other.execute("INSERT INTO counterfoil.intake (action_id) VALUES ('act_x')")


@pytest.mark.parametrize(
    ("changes", "code", "path"),
    [
        pytest.param({"arguments": "no json"}, "invalid_json", "$", id="no JSON"),
        pytest.param({"arguments": "[]"}, "not_an_object", "$", id="no object"),
        pytest.param({"arguments": json.dumps(CHARGE | {"amount_minor": "5"})}, "invalid_argument", "$.amount_minor"),
        pytest.param({"arguments": json.dumps(CHARGE | {"key": "k"})}, "reserved_argument", "$.key"),
        pytest.param({"tool": "stripe_charg"}, "unknown_tool", None),
        pytest.param({"tool": "stripe_refund"}, "undo_tool", "$"),
        pytest.param({"step": "7"}, "digits_only", "step"),
    ],
)
def test_a_bad_row_is_told_and_stops_no_other(
    world: World, insert: Any, told: Any, changes: Any, code: str, path: str | None
) -> None:
    """What no check lets through is written into its row, once, and the rows behind it go on."""
    bad, good = insert(**changes), insert(step="other")
    assert world.intake.take() == 2
    assert told(bad) == (None, code, path)
    assert told(good)[0] is not None
    assert world.intake.take() == 0
    world.settle()
    assert world.sandbox.count("charges") == 1


def explode(value: str) -> str:
    """A check of a tool author's that has a bug."""
    raise RuntimeError(value)


def test_a_tool_s_own_error_concerns_its_row_alone(world: World, use_tools: Any, insert: Any, told: Any) -> None:
    """Whatever a tool author's check raises, the row is refused and the relay goes on."""

    @tool(cls="reversible", effect="note", target="order", once_per=None, audience=["team"], provider="shop",
          uncertain="operator_review")  # fmt: skip
    def note(order: Annotated[str, AfterValidator(explode)]) -> object:
        """Never gets that far."""
        raise AssertionError(order)

    use_tools(note)
    number = insert(tool="note", arguments='{"order": "1"}')
    assert world.intake.take() == 1
    assert told(number) == (None, "tool_error", None)


def test_the_same_step_is_the_same_action(world: World, insert: Any, told: Any) -> None:
    """A row that is inserted again finds its action; with other arguments or another tool it is refused, naming it."""
    numbers = [insert(), insert(), insert(arguments=json.dumps(CHARGE | {"amount_minor": 1}))]
    ticket = json.dumps({"project": "SUP", "summary": "x", "order_id": "1182"})
    numbers.append(insert(tool="jira_create", arguments=ticket))
    world.intake.take()
    identity = action_id("acme", "order-1", "fee", 1, "do")
    assert [told(number)[:2] for number in numbers] == [
        (identity, None),
        (identity, None),
        (identity, "intent_conflict"),
        (identity, "step_conflict"),
    ]
    world.settle()
    assert world.sandbox.count("charges") == 1
    assert world.sandbox.count("tickets_created") == 0


def test_a_run_that_takes_no_action_is_told(world: World, insert: Any, told: Any, agent: Any) -> None:
    """A row for a run that unwinds is refused in the row, and nothing is sent."""
    world.intake.take()
    agent.execute("SELECT counterfoil.open_run('acme', 'order-1', 'shop')")
    agent.execute("SELECT counterfoil.request_unwind('acme', 'order-1', 'enough')")
    number = insert()
    world.settle()
    assert told(number) == (None, "not_allowed", None)
    assert world.sandbox.requests() == []


def test_not_before_is_kept(world: World, agent: Any, insert: Any, sql: Any) -> None:
    """The earliest time of the first attempt is the row's."""
    insert(not_before="2030-01-01T00:00:00Z")
    world.intake.take()
    assert sql("SELECT ready_at = '2030-01-01T00:00:00Z' FROM counterfoil.action") == [(True,)]


def test_several_relays_take_each_row_once(world: World, database: Database, insert: Any, sql: Any) -> None:
    """Three relays that take the same rows at the same moment make one action of each, and wait for nobody."""
    for number in range(15):
        insert(run=f"order-{number}")
    barrier = threading.Barrier(3, timeout=20)

    def take(_: int) -> int:
        relay = Intake(ledger=Ledger(database.url("worker")), registry=world.registry)
        barrier.wait()
        taken = relay.take()
        relay.ledger.close()
        return taken

    with ThreadPoolExecutor(3) as threads:
        list(threads.map(take, range(3)))
    assert world.intake.take() == 0
    assert sql("SELECT count(*), count(DISTINCT i.action_id), count(DISTINCT a.action_id) FROM counterfoil.intake AS i"
               " JOIN counterfoil.action AS a USING (action_id)") == [(15, 15, 15)]  # fmt: skip


def test_a_relay_that_dies_has_done_both_or_nothing(
    world: World, insert: Any, told: Any, proxy_to: Any, database: Any
) -> None:
    """Whether the answer or the request of the one statement is lost, the next pass ends with one action, told in the row."""
    for step, passes in (("answer lost", None), ("request lost", 10)):
        number = insert(step=step, run=step)
        proxy = proxy_to(database.url("worker"))
        relay = Intake(ledger=Ledger(proxy.url), registry=world.registry)
        proxy.cut(b"propose_intake", passes=passes)
        relay.take()  # the ledger's connection runs the statement again
        relay.ledger.close()
        assert proxy.cuts == 1
        assert told(number) == (action_id("acme", step, step, 1, "do"), None, None)
    assert set(world.states()) == {"stripe_charge/answer lost/do", "stripe_charge/request lost/do"}


def test_no_tenant_fills_the_batch(world: World, insert: Any, told: Any) -> None:
    """One pass takes rows of every tenant, however many one of them has inserted before."""
    for number in range(25):
        insert(run=f"order-{number}")
    other = insert(tenant="globex")
    assert world.intake.take() == 21
    assert told(other)[0] is not None


def test_a_relay_serves_the_tenants_of_its_login(world: World, insert: Any, told: Any, sql: Any) -> None:
    """A relay that is granted one tenant leaves the others' rows to others."""
    sql("UPDATE counterfoil.principal SET tenant_id = 'globex' WHERE role_name = 'cf_worker'")
    mine, other = insert(), insert(tenant="globex")
    assert world.intake.take() == 1
    assert told(other)[0] is not None
    assert told(mine) == (None, None, None)


def test_a_relay_cannot_make_an_intent_up(world: World, insert: Any, sql: Any) -> None:
    """The intent that a relay records for a row is the row's: another run, tool, actor or revision is refused."""
    number = insert()
    text = json.dumps(CHARGE)
    for changes in (
        {"run": "other"},
        {"actor": "mallory"},
        {"tool": "jira_create"},
        {"tenant": "globex"},
        {"revision": 2},
    ):
        values = {"tenant": "acme", "run": "order-1", "step": "fee", "revision": 1, "actor": "shop",
                  "tool": "stripe_charge"} | changes  # fmt: skip
        place = [values[name] for name in ("tenant", "run", "step", "revision")]
        with (
            psycopg.connect(world.settings.database_address().url.replace("+psycopg", "")) as worker,
            pytest.raises(psycopg.errors.DatabaseError) as refused,
        ):
            worker.execute(
                "SELECT counterfoil.propose_intake(%(intake_id)s, %(id)s, %(tenant)s, %(run)s, %(step)s, NULL,"
                " %(revision)s, %(actor)s, %(tool)s, 1, 'compensatable', 'charge', '1182', 'stripe', 'default',"
                " 'cf-stripe', %(text)s, %(sha256)s, '{}', NULL)",
                {**values, "intake_id": number, "id": action_id(*place, "do"), "text": text, "sha256": sha256_of(text)},  # type: ignore[arg-type]
            )
        assert refused.value.sqlstate == "CF403", changes
    assert sql("SELECT count(*) FROM counterfoil.action") == [(0,)]


def test_the_running_relay_takes_rows_in(world: World, insert: Any, told: Any, broker: Any, database: Any) -> None:
    """A relay that runs publishes an inserted row's action within a second, with nobody waking it."""
    relay, stop = broker.relay(poll_s=0.5), threading.Event()
    relay.intake = Intake(ledger=relay.ledger, registry=world.registry)
    running = threading.Thread(target=relay.run, args=(stop,))
    running.start()
    try:
        number, began, message = insert(), time.monotonic(), None
        pause = threading.Event()
        while message is None and time.monotonic() - began < 5:
            pause.wait(0.02)
            message = broker.take("stripe")
        assert message is not None
        assert time.monotonic() - began < 2, "a second, and a slow machine"
        assert [wake_up.action_id for wake_up in broker.read(message)] == [told(number)[0]]
    finally:
        stop.set()
        running.join(20)


CODES = (None, "rejected_by_reviewer", "edited_by_reviewer", "invalid_number", "no such thing!", "x" * 101)


def test_sql_tells_what_python_tells(
    client: Callable[..., Counterfoil], database: Database, world: World, enqueue: Any
) -> None:
    """`counterfoil.result` gives each state and code the words that `cf.result` gives."""
    identity = enqueue("stripe_charge", CHARGE)
    with psycopg.connect(database.url("owner"), autocommit=True) as owner:
        owner.execute("SET session_replication_role = replica")
        for name in ("lease", "fence", "receipt", "uncertain", "ready"):
            owner.execute(f"ALTER TABLE counterfoil.action DROP CONSTRAINT action_{name}".encode())
        for state, code, edited in product(State, CODES, (None, "act_" + "b" * 26)):
            changed = {"last_error_code": code, "edited_from": edited, "change_reason": "wrong order"}
            owner.execute(
                "UPDATE counterfoil.action SET state = %(state)s, last_error_code = %(last_error_code)s,"
                ' edited_from = %(edited_from)s, change_reason = %(change_reason)s, result = \'{"id":"r"}\'',
                {"state": state.value, **changed},
            )
            row = owner.execute(
                "SELECT status, next_step, value, code FROM counterfoil.result(%s)", (identity,)
            ).fetchone()
            columns = dict.fromkeys(("last_error_field", "seq", "step", "revision", "arguments"))
            told = result_of({**columns, "action_id": identity, "state": state, "result": '{"id":"r"}', **changed})
            assert row == (told.status.value, told.next_step.value, told.value, told.code), (state, changed)
