"""Who may do what: every role, table and verb; every function; every move; and no way from one tenant to another."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import psycopg
import pytest
from psycopg import sql

from counterfoil.ledger.keys import action_id
from counterfoil.ledger.states import ARROWS, State

if TYPE_CHECKING:
    from tests.integration.conftest import Rows

ROLES = ("agent", "worker", "operator", "reader")

# S select, s some columns of it, I insert, U update, u some columns of it, D delete, T truncate, . nothing
MATRIX = """
table             agent  worker  operator  reader
principal         .      .       .         .
run               S      Su      S         S
action            S      Su      S         s
step_ref          S      .       .         .
attempt           S      SIu     S         s
attempt_default   .      .       .         .
attempt_MONTH     .      .       .         .
history           S      S       S         s
history_default   .      .       .         .
history_MONTH     .      .       .         .
outbox            .      SIu     S         S
worker_heartbeat  .      SIUD    S         S
intake            SI     Su      S         s
schema_version    S      S       S         S
actions           S      S       S         S
open_work         S      S       S         S
waiting_for_people .     S       S         S
proposal          S      S       S         s
decision          .      S       S         s
approval          .      S       S         .
review            .      S       S         s
correction        s      S       S         s
notice            .      SIu     S         .
effect_lock       .      .       .         .
"""

UPDATABLE = {
    ("worker", "run"): "state updated_at",
    ("worker", "action"): "state fence ready_at lease_until quiet_from first_sent_at last_sent_at attempt_count"
    " not_sent_count in_doubt no_resend absent_count last_absent_at uncertain_since lookup_count next_lookup_at key"
    " key_version receipt result last_error_code last_error_field changed_by change_reason change_evidence"
    " expected_resource_version reach",
    ("worker", "attempt"): "finished_at outcome code evidence receipt result",
    ("worker", "outbox"): "not_before publish_count",
    ("worker", "intake"): "taken_at action_id error_code error_path",
    ("worker", "worker_heartbeat"): "worker queues started_at seen_at last_claim_at",
    ("worker", "notice"): "tries next_try_at in_hand_until told_at",
}

HIDDEN_FROM_READERS = {
    "action": "arguments arguments_sha256 arguments_codec compensation receipt result once_key repeat_reason key key_version"
    " reach fence edited_from expected_resource_version approval_id once_held last_absent_at last_error_field changed_by"
    " change_reason change_evidence correction",
    "attempt": "evidence receipt result",
    "intake": "arguments error_path",
    "history": "evidence approval_id",
    "proposal": "note",
    "decision": "digest reason",
    "review": "receipt reason evidence",
    "correction": "call",
}

FUNCTIONS = """
function        agent  worker  operator  reader
now             x      x       x         x
my_tenants      x      x       x         x
arrows          x      x       x         .
open_run        x      .       .         .
lock_and_read   x      .       .         .
propose         x      .       .         .
add_ref         x      .       .         .
propose_intake  .      x       .         .
result          x      .       x         .
look_now        x      .       x         .
look_now_by_key .      x       .         .
close_run       x      .       x         .
request_cancel  x      x       x         .
request_unwind  x      .       x         .
propose_undo    .      x       .         .
finish_unwind   .      x       .         .
make_partitions .      x       .         .
check_principal .      .       .         .
action_id_of    .      .       .         .
once_taken_by   .      .       .         .
decided_by_person x    x       x         x
undo_tool_of    x      x       x         x
run_reopened    .      .       .         .
action_account  .      .       .         .
action_in_review .     .       .         .
sent_of         .      .       x         .
may_give_up     .      .       x         .
ask_provider    .      .       x         .
give_up         .      .       x         .
review_follow   .      .       .         .
rank_of         .      .       .         .
is_carried_on   .      x       .         .
is_kept         .      x       .         .
queue_correction .     x       .         .
correction_follow .    .       .         .
my_correction   .      .       .         .
edit_correction .      .       x         .
dismiss_correction .   .       x         .
send_correction .      .       x         .
action_guard    .      .       .         .
action_follow   .      .       .         .
refuse_change   .      .       .         .
open_plan       x      .       .         .
check_place     .      .       .         .
carry_approval  .      .       .         .
effect_taken_by .      .       .         .
pivot_of        x      x       x         .
prune_effect_locks .   x       .         .
netstring       x      x       x         .
intent_digest   x      x       x         .
proposal_digest x      x       x         .
is_carried      x      x       x         .
approval_gate   .      .       .         .
plan_follow     .      .       .         .
serves          .      .       .         .
decide          .      .       x         .
person_key      .      .       .         .
edit_step       .      .       x         .
expire_proposal .      .       .         .
expire_proposals .     x       .         .
as_edited       x      .       x         .
irreversible_before_pivot x x  x         x
prune_notices   .      x       .         .
"""

DECIDED_BY_A_PERSON = {("awaiting_approval", "ready")} | {
    ("operator_review", target.value) for target in ARROWS[State.OPERATOR_REVIEW]
}

MOVE = """
UPDATE counterfoil.action
SET state = %(to)s, fence = gen_random_uuid(), ready_at = counterfoil.now(), uncertain_since = counterfoil.now(),
    lease_until = CASE WHEN %(to)s IN ('executing', 'reconciling') THEN counterfoil.now() + interval '1 minute' END,
    next_lookup_at = counterfoil.now(), receipt = coalesce(receipt, 'pi_1'), changed_by = 'someone'
WHERE action_id = %(id)s
"""


@pytest.fixture
def rows(shared_rows: Rows) -> Rows:
    """One database for the module: every test here looks at rows of its own."""
    return shared_rows


@pytest.fixture(scope="module")
def logins(shared_rows: Rows) -> dict[str, psycopg.Connection[Any]]:
    """A connection for each role; agent acts for acme and globex, agent2 for globex alone."""
    return {role: shared_rows.connect(role) for role in (*ROLES, "agent2")}


def table(text: str) -> dict[str, dict[str, str]]:
    """The rows of a table written above, by their first cell; each with its cells by column name."""
    head, *lines = (line.split() for line in text.strip().splitlines())
    return {name: dict(zip(head[1:], cells, strict=True)) for name, *cells in lines}


def sqlstate(connection: psycopg.Connection[Any], query: str | sql.Composed, params: Any = None) -> str | None:
    """None when the statement is accepted (and undone), else the SQLSTATE of its refusal."""
    try:
        with connection.transaction(force_rollback=True):
            connection.execute(query.encode() if isinstance(query, str) else query, params)
    except psycopg.Error as error:
        return error.sqlstate
    return None


def columns_of(rows: Rows, name: str) -> list[str]:
    found = rows.all(
        "SELECT attname FROM pg_attribute WHERE attrelid = ('counterfoil.' || %s)::regclass AND attnum > 0"
        " AND NOT attisdropped ORDER BY attnum",
        name,
    )
    return [row["attname"] for row in found]


def may(connection: psycopg.Connection[Any], statement: str, name: str, column: str = "") -> bool:
    """Whether Postgres would run the statement for this login; EXPLAIN checks rights and runs nothing."""
    query = sql.SQL(statement).format(table=sql.Identifier("counterfoil", name), column=sql.Identifier(column))  # type: ignore[arg-type]
    answer = sqlstate(connection, query)
    assert answer in (None, "42501", "428C9"), (statement, name, column, answer)  # 428C9: an identity column
    return answer != "42501"


def cell(some: list[bool], letter: str) -> str:
    return letter.upper() if some and all(some) else letter.lower() if any(some) else ""


def test_every_table_and_verb(rows: Rows, logins: dict[str, psycopg.Connection[Any]]) -> None:
    """Each role has exactly the rights of the matrix on each relation of the schema, found out by trying."""
    relations = [
        row["relname"]
        for row in rows.all(
            "SELECT relname FROM pg_class WHERE relnamespace = 'counterfoil'::regnamespace AND relkind IN ('r', 'p', 'v')"
        )
    ]
    found: dict[str, dict[str, str]] = {}
    updatable: dict[tuple[str, str], str] = {}
    for name in relations:
        columns = columns_of(rows, name)
        is_table = name not in ("actions", "open_work", "waiting_for_people")
        row: dict[str, str] = {}
        for role in ROLES:
            login = logins[role]
            selects = [may(login, "EXPLAIN SELECT {column} FROM {table}", name, column) for column in columns]
            text = cell(selects, "S")
            if is_table:
                text += "I" * may(login, "EXPLAIN INSERT INTO {table} DEFAULT VALUES", name)
                updates = [may(login, "EXPLAIN UPDATE {table} SET {column} = DEFAULT", name, c) for c in columns]
                text += cell(updates, "U")
                text += "D" * may(login, "EXPLAIN DELETE FROM {table}", name)
                truncate = sql.SQL("TRUNCATE {}").format(sql.Identifier("counterfoil", name))
                text += "T" * (sqlstate(login, truncate) != "42501")
                if any(updates):
                    updatable[role, name] = " ".join(c for c, yes in zip(columns, updates, strict=True) if yes)
            row[role] = text or "."
        key = name if not name[-6:].isdigit() else f"{name[:-6]}MONTH"
        assert found.setdefault(key, row) == row
    assert found == table(MATRIX)
    assert {k: set(v.split()) for k, v in updatable.items()} == {k: set(v.split()) for k, v in UPDATABLE.items()}


def test_readers_see_what_happened_not_what_was_said(rows: Rows, logins: dict[str, psycopg.Connection[Any]]) -> None:
    """A reader is refused each column that holds arguments, compensation, receipt, result, key or evidence."""
    for name, hidden in HIDDEN_FROM_READERS.items():
        for column in columns_of(rows, name):
            refused = not may(logins["reader"], "EXPLAIN SELECT {column} FROM {table}", name, column)
            assert refused == (column in hidden.split()), (name, column)


def test_every_function(rows: Rows, logins: dict[str, psycopg.Connection[Any]]) -> None:
    """Each role may execute exactly the functions of the table; those that write run with a fixed search_path."""
    functions = rows.all(
        "SELECT oid, proname, prosecdef, proconfig FROM pg_proc WHERE pronamespace = 'counterfoil'::regnamespace"
    )
    assert len(functions) == len({row["proname"] for row in functions}), (
        "a second function of a name would escape this test"
    )
    found = {
        row["proname"]: {
            role: "x"
            if rows.one(
                "SELECT has_function_privilege(%s, %s::oid, 'EXECUTE') AS may", logins[role].info.user, row["oid"]
            )["may"]
            else "."
            for role in ROLES
        }
        for row in functions
    }
    assert found == table(FUNCTIONS)
    for row in functions:
        if row["prosecdef"]:
            assert row["proconfig"] == ["search_path=pg_catalog, pg_temp"], row["proname"]


def test_public_has_nothing(rows: Rows) -> None:
    """No relation, column, function or the schema itself is open to PUBLIC, nor will a later function be."""
    for query in (
        "SELECT relname AS name, relacl AS acl FROM pg_class WHERE relnamespace = 'counterfoil'::regnamespace",
        "SELECT proname AS name, coalesce(proacl, acldefault('f', proowner)) AS acl FROM pg_proc"
        " WHERE pronamespace = 'counterfoil'::regnamespace",
        "SELECT nspname AS name, nspacl AS acl FROM pg_namespace WHERE nspname = 'counterfoil'",
        "SELECT attname AS name, attacl AS acl FROM pg_attribute a JOIN pg_class c ON c.oid = a.attrelid"
        " WHERE c.relnamespace = 'counterfoil'::regnamespace",
    ):
        assert rows.all(f"SELECT name FROM ({query}) AS x, aclexplode(acl) AS a WHERE a.grantee = 0") == []
    with rows.owner.transaction(force_rollback=True):
        rows.owner.execute("SET LOCAL ROLE counterfoil_owner")
        rows.owner.execute("CREATE FUNCTION counterfoil.later() RETURNS integer LANGUAGE sql AS 'SELECT 1'")
        assert not rows.one("SELECT has_function_privilege('public', 'counterfoil.later()', 'EXECUTE') AS may")["may"]


@pytest.fixture(scope="module")
def door(shared_rows: Rows) -> str:
    """A definer function that makes any move: what a door with a mistake in it could do under an operator's login."""
    body = MOVE.replace("%(to)s", "p_to").replace("%(id)s", "p_id")
    shared_rows.owner.execute(
        "CREATE FUNCTION public.door(p_to text, p_id text) RETURNS void LANGUAGE sql SECURITY DEFINER"
        f" SET search_path = pg_catalog, pg_temp AS $$ {body} $$".encode()
    )
    return "SELECT public.door(%(to)s, %(id)s)"


def test_every_move_and_role(rows: Rows, logins: dict[str, psycopg.Connection[Any]], door: str) -> None:
    """Decisions are the operator's, through doors; other moves the worker's; both may withdraw a row or call it uncertain."""
    for source, targets in ARROWS.items():
        for target in targets:
            move = {"to": target, "id": rows.build(source)}
            answer = {role: sqlstate(logins[role], MOVE, move) for role in ROLES}
            decision = (source, target) in DECIDED_BY_A_PERSON
            expired = target == State.STALE and source in (State.PROPOSED, State.AWAITING_APPROVAL)
            safe = target in (State.CANCELLED, State.UNCERTAIN)
            assert answer == {
                "agent": "42501",
                "reader": "42501",
                "worker": "CF403" if decision else None,
                "operator": "42501",
            }, (source, target)
            through = sqlstate(logins["operator"], door, move)
            assert through == (None if decision or safe or expired else "CF403"), (source, target)


def test_operator_never_claims(rows: Rows, logins: dict[str, psycopg.Connection[Any]], door: str) -> None:
    """No door of an operator reaches executing, and no statement of a worker leaves operator_review."""
    for state in set(State) - {State.EXECUTING}:
        expected = "CF403" if State.EXECUTING in ARROWS[state] else "CF409"
        assert sqlstate(logins["operator"], door, {"to": "executing", "id": rows.build(state)}) == expected, state
    review = rows.build("operator_review", in_doubt=True)
    for target in set(State) - {State.OPERATOR_REVIEW}:
        assert sqlstate(logins["worker"], MOVE, {"to": target, "id": review}) in ("CF403", "CF409"), target


def test_history_names_the_login_that_moved(rows: Rows, logins: dict[str, psycopg.Connection[Any]]) -> None:
    """`db_role` is the session's login, also through a definer function and whatever the statement claims."""
    action_id = rows.propose(run="named")["action_id"]
    logins["agent"].execute("SELECT counterfoil.request_cancel(%s, 'worker', 'no longer needed')", (action_id,))
    found = rows.all(
        "SELECT db_role, changed_by, reason FROM counterfoil.history WHERE action_id = %s ORDER BY history_id",
        action_id,
    )
    assert [row["db_role"] for row in found] == [logins["agent"].info.user] * 2
    assert (found[1]["changed_by"], found[1]["reason"]) == ("worker", "no longer needed")


def test_worker_cannot_make_an_undo_up(rows: Rows, logins: dict[str, psycopg.Connection[Any]]) -> None:
    """A worker records only the recorded counter-action of a succeeded action whose run unwinds, once."""
    undo = """SELECT counterfoil.propose_undo(%s, %s, 'w', 1, 'compensatable', 'refund', '1182', 'stripe', 'default',
              'cf-stripe', '{}', encode(sha256('{}'), 'hex'), '{}', NULL, NULL) AS created"""

    def created(parent: str, undo_id: str | None = None) -> bool:
        """Under the id that follows from the undone action, unless another is given."""
        undo_id = undo_id or undo_of(parent)
        row = logins["worker"].execute(undo.encode(), (undo_id, parent)).fetchone()
        assert row is not None
        return bool(row["created"])

    def undo_of(parent: str) -> str:
        found = rows.all("SELECT run, step FROM counterfoil.action WHERE action_id = %s", parent)
        return action_id("acme", found[0]["run"], found[0]["step"], 1, "undo") if found else "act_" + "c" * 26

    succeeded = rows.build("succeeded", run="undone")
    assert not created(succeeded), "its run does not unwind"
    rows.owner.execute("UPDATE counterfoil.run SET state = 'unwinding' WHERE run = 'undone'")
    assert not created(rows.build("uncertain", run="undone"))
    assert not created(rows.build("succeeded", run="undone", compensation=None))
    assert not created("act_" + "z" * 26)
    assert not created(succeeded, "act_" + "c" * 26), "an id that does not follow from the action's"
    assert created(succeeded)
    assert not created(succeeded)
    again = action_id("acme", "undone", rows.read(succeeded)["step"], 2, "undo")
    assert not created(succeeded, again), "one live undo a step"
    row = rows.read(undo_of(succeeded))
    assert (row["tool"], row["phase"], row["state"], row["tenant"]) == ("stripe_refund", "undo", "ready", "acme")


def test_views_run_with_the_reader_s_rights(rows: Rows) -> None:
    """Both views are security_invoker, so that row-level security and column rights hold behind them."""
    found = rows.all(
        "SELECT relname, reloptions FROM pg_class WHERE relnamespace = 'counterfoil'::regnamespace AND relkind = 'v'"
    )
    assert {row["relname"]: row["reloptions"] for row in found} == {
        "actions": ["security_invoker=true"],
        "open_work": ["security_invoker=true"],
        "waiting_for_people": ["security_invoker=true"],
    }


def test_every_table_with_a_tenant_has_row_security(rows: Rows) -> None:
    """A table that names a tenant, a partition included, has row-level security; a partition has no policy of its own."""
    found = rows.all(
        "SELECT c.relname, c.relrowsecurity, c.relispartition, count(p.oid) AS policies FROM pg_class AS c"
        " JOIN pg_attribute AS a ON a.attrelid = c.oid AND a.attname IN ('tenant', 'tenant_id')"
        " LEFT JOIN pg_policy AS p ON p.polrelid = c.oid"
        " WHERE c.relnamespace = 'counterfoil'::regnamespace AND c.relkind IN ('r', 'p') GROUP BY c.oid"
    )
    assert len(found) >= 7 + 2 * 4
    for row in found:
        assert row["relrowsecurity"], row["relname"]
        assert row["policies"] == (0 if row["relispartition"] or row["relname"] == "principal" else 2), row["relname"]


def test_definer_functions_name_their_objects(rows: Rows) -> None:
    """No function of the schema reads a table by its bare name, which a search_path could point elsewhere."""
    names = [
        row["relname"]
        for row in rows.all("SELECT relname FROM pg_class WHERE relnamespace = 'counterfoil'::regnamespace")
    ]
    for row in rows.all("SELECT proname, prosrc FROM pg_proc WHERE pronamespace = 'counterfoil'::regnamespace"):
        for word in ("FROM", "INTO", "UPDATE", "JOIN"):
            for name in names:
                assert f"{word} {name} " not in row["prosrc"], (row["proname"], name)
