"""Who may do what with the schema: every role, table, column and verb, and every function, found out by trying."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import psycopg
import pytest
from psycopg import sql

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
outbox            .      SIuD    S         S
outbox_dead       .      SI      S         S
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
setting_change    .      S       S         S
provider_mode     .      S       S         S
provider_health   .      SIu     S         S
alarm             .      SIu     S         s
"""

UPDATABLE = {
    ("worker", "run"): "state updated_at",
    ("worker", "action"): "state fence ready_at lease_until quiet_from first_sent_at last_sent_at attempt_count"
    " not_sent_count in_doubt no_resend absent_count last_absent_at uncertain_since lookup_count next_lookup_at key"
    " key_version receipt result last_error_code last_error_field changed_by change_reason change_evidence"
    " expected_resource_version reach watch_at watch_count",
    ("worker", "attempt"): "finished_at outcome code evidence receipt result",
    ("worker", "outbox"): "not_before publish_count lacking_since",
    ("worker", "intake"): "taken_at action_id error_code error_path",
    ("worker", "worker_heartbeat"): "worker queues started_at seen_at last_claim_at",
    ("worker", "notice"): "tries next_try_at in_hand_until told_at",
    ("worker", "provider_health"): "answered_at answering_since failing_since failed_at failed_count last_code",
    ("worker", "alarm"): "ended_at",
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
    "alarm": "evidence end_reason",
}

FUNCTIONS = """
function        agent  worker  operator  reader
now             x      x       x         x
my_tenants      x      x       x         x
arrows          x      x       x         .
open_run        x      .       .         .
lock_and_read   x      .       .         .
note_proposal   x      .       .         .
hold_run        x      .       .         .
release_run     x      .       .         .
report_lost_time x     .       .         .
count_end       .      .       .         .
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
change_settings .      .       x         .
revive          .      .       x         .
action_watch    .      .       .         .
has_waiting     .      .       .         .
settle_alarm    .      .       x         .
"""


@pytest.fixture
def rows(shared_rows: Rows) -> Rows:
    """One database for the module: every test here looks at rows of its own."""
    return shared_rows


@pytest.fixture(scope="module")
def logins(shared_rows: Rows) -> dict[str, psycopg.Connection[Any]]:
    """A connection for each role."""
    return {role: shared_rows.connect(role) for role in ROLES}


def sqlstate(connection: psycopg.Connection[Any], query: str | sql.Composed, params: Any = None) -> str | None:
    """None when the statement is accepted (and undone), else the SQLSTATE of its refusal."""
    try:
        with connection.transaction(force_rollback=True):
            connection.execute(query.encode() if isinstance(query, str) else query, params)
    except psycopg.Error as error:
        return error.sqlstate
    return None


def table(text: str) -> dict[str, dict[str, str]]:
    """The rows of a table written above, by their first cell; each with its cells by column name."""
    head, *lines = (line.split() for line in text.strip().splitlines())
    return {name: dict(zip(head[1:], cells, strict=True)) for name, *cells in lines}


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
