"""Every named query of the repository, against the real schema: it parses, keeps the rules, and finds its rows by index."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psycopg
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from counterfoil.ledger import keys
from counterfoil.ledger.claims import WakeUp, end_used_up, read_batch
from counterfoil.ledger.events import look_now_by_key
from counterfoil.ledger.queries import Query, load

if TYPE_CHECKING:
    from tests.integration.conftest import Rows

ROOT = Path(__file__).parents[2]
PACKAGES = ("ledger", "providers", "outbox", "workers", "reconciler", "console", "frameworks")


def query_files() -> list[tuple[str, str]]:
    """Package and path of each file with named queries, but for the test kit's, which replaces the clock."""
    folders = [ROOT / name for name in PACKAGES]
    folders += [
        path
        for path in (ROOT / "src" / "counterfoil").iterdir()
        if path.is_dir() and not path.is_symlink() and path.name != "testing"
    ]
    return [
        (f"counterfoil.{folder.name}", path.relative_to(folder).as_posix())
        for folder in folders
        for path in sorted(folder.rglob("*.sql"))
        if "-- name: " in path.read_text()
    ]


QUERIES: dict[str, Query] = {
    f"{package.removeprefix('counterfoil.')}/{file}:{name}": query
    for package, file in query_files()
    for name, query in load(package, file).items()
}

WIDE = re.compile(r"(?<![\w.])(now\(\)|clock_timestamp|statement_timestamp|transaction_timestamp|timeofday)|\b(current_timestamp|localtimestamp|current_date|current_time|localtime)\b", re.IGNORECASE)  # fmt: skip # noqa: E501
"""Every clock of Postgres but ours."""


@pytest.fixture
def rows(shared_rows: Rows) -> Rows:
    """One database for the module: every test here looks at rows of its own."""
    return shared_rows


def numbered(query: Query) -> str:
    """The statement with $1, $2, …, as the server itself takes it."""
    text = query.psycopg
    for number, name in enumerate(sorted(query.parameters), 1):
        text = text.replace(f"%({name})s", f"${number}")
    return text.replace("%%", "%")


def code(text: str) -> str:
    """SQL without its comments."""
    return re.sub(r"--[^\n]*", "", text)


def test_there_are_queries() -> None:
    """The tests below see the files that they are about."""
    assert {"ledger/sql/worker.sql:claim_if_ready", "ledger/sql/agent.sql:propose"} <= set(QUERIES)
    assert len(QUERIES) > 50


def test_every_query_prepares(rows: Rows) -> None:
    """The server accepts each query, and infers a type for each of its parameters."""
    refused: dict[str, str] = {}
    for name, query in QUERIES.items():
        result = rows.owner.pgconn.prepare(b"", numbered(query).encode())
        if result.status != psycopg.pq.ExecStatus.COMMAND_OK:
            refused[name] = result.error_message.decode()
            continue
        described = rows.owner.pgconn.describe_prepared(b"")
        assert described.nparams == len(query.parameters), name
        unknown = [n for n in range(described.nparams) if described.param_type(n) == 705]
        assert not unknown, (name, sorted(query.parameters))
    assert refused == {}


def test_no_parameter_is_left_as_text() -> None:
    """Each `:name` becomes a parameter in both drivers' styles; a cast beside it is written CAST(), which both read alike."""
    for name, query in QUERIES.items():
        words = set(re.findall(r"(?<![:\w]):(\w+)", re.sub(r"'[^']*'", "''", query.text)))
        assert words == query.parameters, name
        assert not re.search(r"(?<![:\w]):\w+::", query.text), name


@pytest.mark.parametrize(
    ("text", "psycopg_text", "parameters"),
    [
        ("SELECT :a, :sha256_of", "SELECT %(a)s, %(sha256_of)s", {"a", "sha256_of"}),
        ("SELECT '{}'::text[], :a", "SELECT '{}'::text[], %(a)s", {"a"}),
        ("SELECT 5 % :a, x LIKE 'a%'", "SELECT 5 %% %(a)s, x LIKE 'a%%'", {"a"}),
        ("SELECT 1 -- :no\n, :a;", "SELECT 1 \n, %(a)s", {"a"}),
    ],
)
def test_parameters(text: str, psycopg_text: str, parameters: set[str], tmp_path: Path, monkeypatch: Any) -> None:
    """A parameter is a colon and a lower-case name, digits allowed; casts, comments and percent signs are left alone."""
    package = f"queries_{abs(hash(text))}"
    (tmp_path / package).mkdir()
    (tmp_path / package / "__init__.py").touch()
    (tmp_path / package / "q.sql").write_text(f"-- name: it\n{text}\n")
    monkeypatch.syspath_prepend(tmp_path)
    query = load(package, "q.sql")["it"]
    assert (query.psycopg, query.parameters) == (psycopg_text, parameters)


def test_no_other_clock() -> None:
    """No SQL of ours reads a clock but counterfoil.now(), whose definition alone names statement_timestamp()."""
    files = [path for name in PACKAGES for path in (ROOT / name).rglob("*") if path.suffix in (".sql", ".py")]
    files += [path for path in (ROOT / "src" / "counterfoil").rglob("*.py") if not path.is_symlink()]
    found = []
    for path in files:
        text = code(path.read_text()) if path.suffix == ".sql" else path.read_text()
        found += [
            (path.relative_to(ROOT).as_posix(), m.group()) for m in WIDE.finditer(text) if not _is_python(path, text, m)
        ]
    assert found == [("ledger/migrations/sql/0001_a_tables.sql", "statement_timestamp")]


def _is_python(path: Path, text: str, match: re.Match[str]) -> bool:
    """A word of Python's own prose or code: only what a string literal with SQL around it holds is SQL."""
    line = text[text.rfind("\n", 0, match.start()) + 1 : text.find("\n", match.end())]
    return path.suffix == ".py" and not re.search(r"\b(SELECT|UPDATE|INSERT|DELETE|WHERE|SET|VALUES|interval)\b", line)


def test_every_move_says_who_and_why() -> None:
    """Each statement that sets an action's state sets `changed_by` and `change_reason` too; the trigger copies them."""
    migration = "".join(path.read_text() for path in sorted((ROOT / "ledger/migrations/sql").glob("*.sql")))
    statements = {name: query.text for name, query in QUERIES.items()}
    statements |= {f"migration {n}": text for n, text in enumerate(code(migration).split(";"))}
    moves = 0
    for name, text in statements.items():
        for update in re.findall(r"UPDATE\s+counterfoil\.action\b.*?(?=\bUPDATE\s+counterfoil|$)", text, re.DOTALL):
            assignments = re.split(r"\bWHERE\b|\bRETURNING\b", update)[0]
            if re.search(r"\bstate\s*=", assignments):
                moves += 1
                assert re.search(r"\bchanged_by\s*=", assignments), name
                assert re.search(r"\bchange_reason\s*=", assignments), name
    assert moves > 25


NAMES = st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]), min_size=1, max_size=40)


def test_database_computes_python_s_action_ids(rows: Rows) -> None:
    """`action_id_of` and `counterfoil.ledger.keys` give the same id for every tenant, run, step, revision and phase."""

    @settings(max_examples=150, deadline=None)
    @given(
        NAMES,
        NAMES,
        st.one_of(st.integers(1, 10**6), NAMES),
        st.integers(1, 2**31 - 1),
        st.sampled_from(["do", "undo"]),
    )
    def same(tenant: str, run: str, step: str | int, revision: int, phase: keys.Phase) -> None:
        if isinstance(step, str) and step.isdecimal():
            return  # no label: `check_step_label` refuses it
        row = rows.one(
            "SELECT counterfoil.action_id_of(%s, %s, %s, %s, %s) AS id", tenant, run, str(step), revision, phase
        )
        assert row["id"] == keys.action_id(tenant, run, step, revision, phase)

    same()


SETTLED, OPEN = 50_000, 200

FILL = f"""
INSERT INTO counterfoil.run (tenant, run, actor, state)
SELECT 'acme', 'big-' || n, 'bot', 'closed' FROM generate_series(0, {SETTLED // 20}) AS n;
INSERT INTO counterfoil.action (action_id, tenant, run, step, revision, phase, actor, tool, tool_version, class, effect,
  target,
  provider, queue,
  arguments, arguments_sha256, once_key, key, key_version, state, generation, attempt_count, receipt, ready_at, fence,
  lease_until, in_doubt, uncertain_since, next_lookup_at, deadline_at, cancel_requested_at)
SELECT 'act_' || translate(lpad(to_hex(n), 26, '0'), '0189', 'ghij'), 'acme', 'big-' || n / 20, 's' || n, 1, 'do', 'bot',
  'stripe_charge', 1, 'compensatable', 'charge', 't' || n, 'stripe', 'cf-stripe', '{{}}', encode(sha256('{{}}'), 'hex'),
  'once-' || n, 'key-' || n, 1, state, 1, 1, CASE WHEN state = 'succeeded' THEN 'pi_' || n END, counterfoil.now(),
  CASE WHEN state IN ('executing', 'reconciling') THEN gen_random_uuid() END,
  CASE WHEN state IN ('executing', 'reconciling') THEN counterfoil.now() END, state IN ('uncertain', 'reconciling'),
  CASE WHEN state = 'uncertain' THEN counterfoil.now() END, CASE WHEN state = 'uncertain' THEN counterfoil.now() END,
  CASE WHEN n % 3 = 0 THEN counterfoil.now() END, CASE WHEN n % 7 = 0 THEN counterfoil.now() END
FROM (SELECT n, CASE WHEN n <= {SETTLED} THEN (ARRAY['succeeded', 'permanent_failure', 'cancelled'])[1 + n % 3]
                     ELSE (ARRAY['ready', 'executing', 'uncertain', 'reconciling', 'retryable_failure'])[1 + n % 5]
                     END AS state
      FROM generate_series(1, {SETTLED + OPEN}) AS n) AS made;
INSERT INTO counterfoil.outbox (action_id, generation, tenant, queue, not_before)
SELECT action_id, 1, tenant, queue, counterfoil.now() FROM counterfoil.action
WHERE run LIKE 'big-%' AND state IN ('ready', 'retryable_failure');
INSERT INTO counterfoil.attempt (attempt_id, action_id, tenant, number, worker)
SELECT gen_random_uuid(), action_id, tenant, 1, 'w' FROM counterfoil.action WHERE run LIKE 'big-%';
INSERT INTO counterfoil.history (action_id, tenant, run, at, to_state, generation, attempt_count, db_role)
SELECT action_id, tenant, run, updated_at, state, 1, 1, 'w' FROM counterfoil.action WHERE run LIKE 'big-%';
ANALYZE counterfoil.run, counterfoil.action, counterfoil.attempt, counterfoil.history, counterfoil.outbox;
"""

LISTINGS = ("ledger/sql/agent.sql:list_actions", "ledger/sql/agent.sql:list_runs", "cli/", "demo/")
"""For people: not on the path of any action."""


@pytest.fixture(scope="module")
def big(shared_rows: Rows) -> Rows:
    """Fifty thousand settled actions and a few open ones."""
    shared_rows.owner.execute("SET session_replication_role = replica")
    shared_rows.owner.execute(FILL.encode())
    shared_rows.owner.execute("SET session_replication_role = origin")
    return shared_rows


def scanned(plan: dict[str, Any]) -> set[str]:
    """The tables that the plan reads from end to end."""
    found = {plan["Relation Name"]} if plan["Node Type"] == "Seq Scan" else set()
    return found.union(*(scanned(child) for child in plan.get("Plans", [])))


def test_no_query_reads_a_big_table_from_end_to_end(big: Rows) -> None:
    """The plan that serves any parameters uses an index on every table that grows, for every query but people's lists."""
    counted = big.all("SELECT relname, reltuples FROM pg_class WHERE relnamespace = 'counterfoil'::regnamespace")
    large = {row["relname"] for row in counted if row["reltuples"] > 1000}
    assert {re.sub(r"_\d{6}$", "", name) for name in large} >= {"action", "run", "attempt", "history"}
    read: dict[str, set[str]] = {}
    for name, query in QUERIES.items():
        row = big.owner.execute(f"EXPLAIN (GENERIC_PLAN, FORMAT JSON) {numbered(query)}".encode()).fetchone()
        assert row is not None
        read[name] = scanned(row["QUERY PLAN"][0]["Plan"]) & large
    assert {name: tables for name, tables in read.items() if tables and not name.startswith(LISTINGS)} == {}


def test_no_function_reads_a_big_table_from_end_to_end(big: Rows) -> None:
    """Claim, propose, cancel and the other doors finish without one sequential scan of a table that grows."""
    worker, agent = big.ledger(), big.connect("agent")
    ids = [
        row["action_id"]
        for row in big.all("SELECT action_id FROM counterfoil.action WHERE state = 'ready' AND run LIKE 'big-%'")
    ]
    free = next(i for i in ids if big.read(i)["deadline_at"] is None and big.read(i)["cancel_requested_at"] is None)

    def scans() -> dict[str, int]:
        found = big.all(
            "SELECT pg_stat_force_next_flush(), relname, seq_scan FROM pg_stat_user_tables WHERE schemaname = 'counterfoil'"
        )
        return {
            row["relname"]: row["seq_scan"]
            for row in found
            if row["relname"].split("_")[0] in ("action", "run", "attempt", "history")
        }

    def forget() -> None:
        """A backend reports its counts when it is idle; closing it makes it report."""
        worker.close()
        agent.execute("SELECT pg_stat_force_next_flush()")

    forget()
    before = scans()
    assert read_batch(worker, [WakeUp(i, 1) for i in ids])
    assert big.claim(worker, free) is not None
    assert not end_used_up(worker, ids[0], attempts_max=5, worker="w")
    for _ in range(8):
        look_now_by_key(
            worker, provider="stripe", accounts=["default"], keys=["key-7", "key-8"], targets=["t7", "t50003"]
        )
    for number in range(8):  # enough for the plans of the functions' own statements to turn generic
        big.propose(agent, run="new", step=f"n{number}", once_key=f"once-{number + 7}", seq=number + 1)
        big.propose(agent, run="new", step=f"m{number}", once_key=f"new-{number}", ref=f"r{number}", seq=number + 101)
        agent.execute("SELECT counterfoil.open_run('acme', 'new', 'bot')")
        agent.execute("SELECT counterfoil.lock_and_read('acme', 'new', %s)", (number + 1,))
        agent.execute("SELECT counterfoil.request_cancel(%s, 'u', 'r')", (ids[number],))
        agent.execute("SELECT counterfoil.look_now(%s)", (ids[number],))
        agent.execute("SELECT counterfoil.add_ref('acme', 'new', 't', 'r', %s, '')", (ids[number],))
    forget()
    after = scans()
    assert {name: after[name] - before[name] for name in before if after[name] != before[name]} == {}
