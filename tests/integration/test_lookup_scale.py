"""Look-ups of many uncertain rows: what they cost at the provider and in the database, who waits, and what stops them."""

from __future__ import annotations

import importlib.util
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psycopg
import pytest

from counterfoil.ledger import verdicts
from counterfoil.ledger.queries import load
from counterfoil.providers.registry import Registry
from counterfoil.reconciler.budget import LookUpBudget
from counterfoil.reconciler.setup import reconciler_from
from counterfoil.sandbox.client import Sandbox
from counterfoil.sandbox.process import start
from counterfoil.settings import Settings
from counterfoil.workers.admission import Granted, Unlimited

if TYPE_CHECKING:
    from tests.conftest import Database
    from tests.integration.conftest import Rows

    from counterfoil.testing import World

ROOT = Path(__file__).parents[2]
TOOLS = ("counterfoil.providers.stripe.tools", "counterfoil.providers.jira.tools")
SETTLED = 50_000


def _bench() -> Any:
    """`bench/backlog.py`, which is no package's."""
    spec = importlib.util.spec_from_file_location("backlog", ROOT / "bench" / "backlog.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["backlog"] = module
    spec.loader.exec_module(module)
    return module


backlog = _bench()


@dataclass
class Purse(Unlimited):
    """Grants what it holds, and remembers what was asked and told."""

    holds: int = 1_000_000
    wanted: list[int] = field(default_factory=list)
    effects: int = 0

    def look_ups(self, provider: str, wanted: int) -> Granted:
        granted = min(wanted, self.holds)
        self.holds -= granted
        self.wanted.append(wanted)
        return Granted(requests=granted, wait_s=0.0 if granted == wanted else 1.0)

    def found(self, provider: str, effects: int) -> None:
        self.effects += effects


@dataclass
class Fleet:
    """What a reconciler with a purse has done with a backlog."""

    owner: psycopg.Connection[Any]
    sandbox: Sandbox
    purse: Purse

    def states(self, provider: str, tenant: str = "acme") -> Counter[str]:
        found = self.owner.execute(
            "SELECT state FROM counterfoil.action WHERE provider = %s AND tenant = %s", (provider, tenant)
        )
        return Counter(state for (state,) in found)

    def calls(self) -> Counter[str]:
        return Counter(request.operation for request in self.sandbox.requests())


def a_backlog(provider: str = "stripe", rows: int = 40, **given: Any) -> Any:
    ended_at = datetime.now(UTC) - timedelta(minutes=given.pop("minutes_ago", 15))
    return backlog.Backlog(**{"provider": provider, "rows": rows, "landed": 1.0, "ended_at": ended_at, **given})


@pytest.fixture(scope="module")
def swept(
    clone_database: Callable[[], AbstractContextManager[Database]], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Fleet]:
    """Two thousand rows, of which all tickets and half of the payments have happened, after one sweep."""
    backlogs = [
        a_backlog("stripe", 1000, landed=0.5),
        a_backlog("jira", 1000),
        a_backlog("stripe", 1, tenant="globex", minutes_ago=3),
    ]
    folder = tmp_path_factory.mktemp("fleet")
    backlog.fill_sandbox(folder / "sandbox", *backlogs)
    process = start(folder / "sandbox")
    with clone_database() as database, psycopg.connect(database.url("owner"), autocommit=True) as owner:
        for each in backlogs:
            backlog.fill_ledger(database.url("owner"), each)
        secret = folder / "key"
        secret.write_bytes(b"0123456789abcdef0123456789abcdef")
        sandbox, purse = process.control, Purse()
        settings = Settings(
            tools=TOOLS,
            database={"url": database.url("worker"), "key_secret_file": secret},
            providers={
                "stripe": {"base_url": sandbox.stripe.url, "api_key": backlog.API_KEY},
                "jira": {"server": sandbox.jira.url, "email": "bot@example.test", "token": "t"},
            },
        )
        reconciler = reconciler_from(settings, by="r", registry=Registry.load(TOOLS), admission=purse)
        reconciler.look_ups.sweep(budget_s=120)
        yield Fleet(owner, sandbox, purse)
        reconciler.ledger.close()
    process.stop()


@pytest.fixture
def fleet(world: World, database: Database) -> Iterator[Fleet]:
    """Forty payments of which none has happened."""
    backlog.fill_ledger(database.url("owner"), a_backlog())
    purse = Purse()
    world._reconciler = reconciler_from(world.settings, by="r", registry=world.registry, admission=purse)
    with psycopg.connect(database.url("owner"), autocommit=True) as owner:
        yield Fleet(owner, world.sandbox, purse)


def test_a_request_answers_a_hundred(swept: Fleet) -> None:
    """2,001 rows: hardly more requests than pages of a hundred."""
    calls = swept.calls()
    assert set(calls) == {"payment_intents.list", "search"}
    assert calls.total() <= 2001 / 100 * 1.1 + 4, calls


def test_every_row_has_its_outcome(swept: Fleet) -> None:
    """What happened is succeeded; what was not seen is sent again under its key, still in doubt; asking has done nothing."""
    assert swept.states("jira") == {"succeeded": 1000}
    assert swept.states("stripe") == {"succeeded": 500, "ready": 500}
    assert swept.states("stripe", "globex") == {"succeeded": 1}
    rows = swept.owner.execute("SELECT DISTINCT in_doubt, absent_count FROM counterfoil.action WHERE state = 'ready'")
    assert rows.fetchall() == [(True, 0)]
    receipts = dict(
        swept.owner.execute("SELECT key, receipt FROM counterfoil.action WHERE receipt IS NOT NULL").fetchall()
    )
    assert receipts == {effect.key: effect.object_id for effect in swept.sandbox.effects()}


def test_the_budget_hears_of_it(swept: Fleet) -> None:
    """No request went out that was not taken from the purse, but for a page or two; every timeout found out is told."""
    granted = 1_000_000 - swept.purse.holds
    assert granted <= swept.calls().total() + 15
    assert swept.calls().total() <= granted + 4
    assert swept.purse.effects == 1501


def test_an_empty_purse_leaves_rows_as_they_are(world: World, fleet: Fleet) -> None:
    """Nothing is asked, claimed or counted; with a little, as much is looked up as it pays for."""
    fleet.purse.holds = 0
    assert world.reconciler.sweep_uncertain() == 0
    untouched = fleet.owner.execute("SELECT DISTINCT state, lookup_count, fence FROM counterfoil.action").fetchall()
    assert untouched == [("uncertain", 0, None)]
    assert fleet.calls().total() == 0
    fleet.purse.holds = 5
    assert world.reconciler.sweep_uncertain() == 40
    assert fleet.states("stripe") == {"ready": 40}


def test_what_was_overspent_is_paid_first() -> None:
    """A batch that needed more requests than it was granted costs the next ones of that provider theirs."""
    purse = Purse(holds=20)
    budget = LookUpBudget(admission=purse)
    assert budget.take("stripe", 1) == 1
    budget.spent("stripe", granted=1, made=16)
    assert budget.take("jira", 1) == 1, "another provider owes nothing"
    assert budget.take("stripe", 2) == 2
    assert purse.wanted == [1, 1, 17]
    budget.spent("stripe", granted=2, made=6)
    assert budget.take("stripe", 3) == 0, "one was left, and four are owed"
    purse.holds = 10
    assert budget.take("stripe", 3) == 3
    assert purse.wanted[-1] == 6


def test_the_secret_is_read_before_and_after(world: World, fleet: Fleet) -> None:
    """Where a batch is asked is looked at twice, whatever its size: right before it is claimed and when it was asked."""
    look_ups = world.reconciler.look_ups
    asked: list[str] = []

    def adapter(spec: Any, account: str) -> Any:
        asked.append(spec.name)
        return look_ups.adapter(spec, account)

    replace(look_ups, adapter=adapter).sweep(budget_s=5)
    assert asked == ["stripe_charge", "stripe_charge"]
    assert fleet.states("stripe") == {"ready": 40}


def test_delays_are_never_shortened(world: World, fleet: Fleet) -> None:
    """Rows that are to be asked about later are spread over a quarter of the delay, all of them after it."""
    base_s = world.settings.reconciler.lookup_base_s
    fleet.sandbox.stripe.fault("429_bare", times=None)
    before = datetime.now(UTC)
    assert world.reconciler.sweep_uncertain() == 40
    after = datetime.now(UTC)
    times = [at for (at,) in fleet.owner.execute("SELECT next_lookup_at FROM counterfoil.action").fetchall()]
    assert min(times) >= before + timedelta(seconds=base_s)
    assert max(times) <= after + timedelta(seconds=1.25 * base_s)
    assert len(set(times)) > 20


def test_nobody_waits_behind_anothers_backlog(rows: Rows) -> None:
    """A tenant's one row is in the first batch, however many older ones another has; the rest of it is the other's."""
    run = "INSERT INTO counterfoil.run (tenant, run, actor) VALUES (%s, 'r1', 'bot') ON CONFLICT DO NOTHING"
    rows.owner.execute(run, ("acme",))
    backlog.fill_ledger(rows.database.url("owner"), a_backlog(rows=300))
    for number in range(2):
        backlog.fill_ledger(
            rows.database.url("owner"), a_backlog(rows=1, tenant=("globex", "initech")[number], minutes_ago=2)
        )
    ledger = rows.ledger()
    first = rows.look(ledger, "stripe_charge", batch=10)
    assert Counter(action.tenant for action in first) == {"acme": 8, "globex": 1, "initech": 1}
    oldest = rows.all("SELECT action_id FROM counterfoil.action WHERE tenant = 'acme' ORDER BY first_sent_at LIMIT 8")
    assert {row["action_id"] for row in oldest} == {a.action_id for a in first if a.tenant == "acme"}
    assert len(rows.look(ledger, "stripe_charge", batch=1000)) == 292


def test_groups_are_told_by_their_longest_due(rows: Rows) -> None:
    """Each tool, version and account with rows that are due for a look-up, and only those that this process has."""
    for tool, seconds in (("stripe_charge", 60), ("jira_create", 90), ("slack_post", 99)):
        made = [rows.build("uncertain", tool=tool) for _ in range(2)]
        rows.build("uncertain", tool=tool, account="other")
        rows.execute(made[0], f"next_lookup_at = counterfoil.now() - interval '{seconds} seconds'")
        rows.execute(made[1], "next_lookup_at = counterfoil.now() + interval '1 hour'")
    known = [("stripe_charge", 1), ("jira_create", 1), ("jira_create", 2)]
    groups = verdicts.due_groups(rows.ledger(), tools=known, batch=100, uncertain_after_s=0)
    assert [(group.tool, group.account, group.due) for group in groups[:2]] == [
        ("jira_create", "default", 1),
        ("stripe_charge", "default", 1),
    ]
    assert {group.name for group in groups[2:]} == {("jira_create", 1, "other"), ("stripe_charge", 1, "other")}
    assert verdicts.due_groups(rows.ledger(), tools=known, batch=100, uncertain_after_s=600) == []


def test_two_reconcilers_take_different_rows(rows: Rows, at_once: Callable[..., list[Any]]) -> None:
    """Claims of one group at the same time share its rows, and none is claimed twice."""
    backlog.fill_ledger(rows.database.url("owner"), a_backlog(rows=60))
    ledgers = [rows.ledger() for _ in range(3)]
    taken = at_once([lambda ledger=ledger: rows.look(ledger, "stripe_charge", batch=20) for ledger in ledgers])
    ids = [action.action_id for batch in taken for action in batch]
    assert len(ids) == len(set(ids)) >= 20


def test_one_that_cannot_be_written_stops_the_statement_only(rows: Rows) -> None:
    """A receipt that the ledger refuses among many: none of them is written, and nothing is lost."""
    for _ in range(3):
        rows.build("uncertain")
    ledger = rows.ledger()
    claimed = rows.look(ledger, "stripe_charge")
    found = [verdicts.FoundRow(action=each, receipt="pi_1", result="{}", evidence="e") for each in claimed]
    refused = [*found[:2], replace(found[2], receipt="x" * 256)]
    assert verdicts.succeeded_all(ledger, refused, by="r") is None
    assert {rows.read(each.action_id)["state"] for each in claimed} == {"reconciling"}
    rows.execute(claimed[0].action_id, "fence = gen_random_uuid()")
    assert verdicts.succeeded_all(ledger, found, by="r") == {each.action_id for each in claimed[1:]}
    assert rows.read(claimed[0].action_id)["state"] == "reconciling"


def test_settled_rows_cost_nothing(rows: Rows) -> None:
    """Beside 50,000 settled rows the group and its claim are found through the index of uncertain ones, at the same cost."""
    backlog.fill_ledger(rows.database.url("owner"), a_backlog(rows=200))
    before = {name: _cost(rows, name) for name in ("due_groups", "claim_uncertain")}
    rows.owner.execute("SET session_replication_role = replica")
    rows.owner.execute(
        f"INSERT INTO counterfoil.action (action_id, tenant, run, step, revision, phase, actor, tool, tool_version, class,"
        f" effect, target, provider, account, queue, arguments, arguments_sha256, state, receipt)"
        f" SELECT 'act_' || left(translate(md5(n::text), '0189', 'ghij'), 26), 'acme', 'stripe', 'x' || n, 1, 'do', 'bot',"
        f" 'stripe_charge', 1, 'compensatable', 'charge', 'o' || n, 'stripe', 'default', 'cf-stripe', '{{}}',"
        f" encode(sha256('{{}}'), 'hex'), 'succeeded', 'pi_1'"
        f" FROM generate_series(1, {SETTLED}) AS n".encode()
    )
    rows.owner.execute("SET session_replication_role = origin")
    rows.owner.execute("ANALYZE counterfoil.action")
    for name, (blocks, _) in before.items():
        after, plan = _cost(rows, name)
        assert "Seq Scan on action" not in plan, plan
        assert after <= 2 * blocks + 50, (name, blocks, after)


def _cost(rows: Rows, name: str) -> tuple[int, str]:
    """Blocks touched by the statement, and its plan; what it changes is undone."""
    given: dict[str, object] = {"tools": ["stripe_charge"], "versions": [1], "batch": 100, "uncertain_after_s": 0.0}
    given |= {"tool": "stripe_charge", "version": 1, "account": "default", "lease_s": 60.0, "by": "r"}
    given |= {"fence": "00000000-0000-0000-0000-000000000001"}
    query = load("counterfoil.ledger", "sql/reconciler.sql")[name]
    with rows.owner.transaction(force_rollback=True):
        explained = rows.owner.execute(
            b"EXPLAIN (ANALYZE, BUFFERS, FORMAT JSON) " + query.psycopg.encode(), given
        ).fetchone()
    assert explained is not None
    [top] = explained["QUERY PLAN"]
    plan = top["Plan"]
    return plan["Shared Hit Blocks"] + plan["Shared Read Blocks"], _told(plan)


def _told(plan: dict[str, Any]) -> str:
    """The plan's nodes with their tables, one a line."""
    line = f"{plan['Node Type']} on {plan.get('Relation Name', '')} {plan.get('Index Name', '')}"
    return "\n".join([line, *(_told(part) for part in plan.get("Plans", ()))])
