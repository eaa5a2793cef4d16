"""`counterfoil outbox`: what waits and why, and dead wake-ups that a person returns."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any
from uuid import uuid4

import pytest
from tests.integration.relaying import fill, heartbeat, owner_sql

from counterfoil.cli import outbox
from counterfoil.cli.main import main
from counterfoil.ledger.claims import WaitingAction
from counterfoil.settings import Settings
from counterfoil.workers.admission import FleetAdmission, Store
from counterfoil.workers.kinds import Result
from counterfoil.workers.setup import limits_of

if TYPE_CHECKING:
    from tests.conftest import Database
    from tests.integration.conftest import Rows


@dataclass(frozen=True)
class Answer:
    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        return json.loads(self.out)


Cli = Callable[..., Answer]


@pytest.fixture
def cli(
    database: Database,
    valkey: tuple[str, str],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> Cli:
    """Runs one command in this process, under a reader's login or another's."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    monkeypatch.delenv("COUNTERFOIL_CONFIG", raising=False)
    (tmp_path / "counterfoil.toml").write_text("[relay]\nhigh_water = 3\n")

    def run(*argv: str, role: str = "operator", **environ: str) -> Answer:
        with monkeypatch.context() as patched:
            patched.setenv("COUNTERFOIL_DATABASE__URL", database.url(role))
            for name, value in environ.items():
                patched.setenv(f"COUNTERFOIL_{name}", value)
            with pytest.raises(SystemExit) as ended:
                main(["outbox", *argv])
        captured = capsys.readouterr()
        return Answer(int(ended.value.code or 0), captured.out, captured.err)

    return run


def bury(rows: Rows, *ids: str) -> None:
    """What the relay does with rows that nobody can claim."""
    rows.owner.execute(
        "WITH gone AS (DELETE FROM counterfoil.outbox WHERE action_id = ANY (%s) RETURNING *)"
        " INSERT INTO counterfoil.outbox_dead (action_id, generation, tenant, queue, publish_count, waited_since)"
        " SELECT action_id, generation, tenant, queue, 8, created_at FROM gone",
        (list(ids),),
    )


def retry() -> WaitingAction:
    return WaitingAction(
        action_id=uuid4().hex, generation=1, tenant="acme", tool="a", tool_version=1, provider="a", account="default",
        attempt_count=1, not_sent_count=0, in_doubt=False, state="ready",
    )  # fmt: skip


def queues(answer: Answer) -> dict[str, dict[str, Any]]:
    assert answer.code == 0, answer.err
    return {row["queue"]: row for row in answer.json}


def test_every_verb_has_an_example() -> None:
    """The help of each verb shows at least one command line to copy."""
    for command in outbox.app.registered_commands:
        assert "\n    counterfoil outbox " in (command.callback.__doc__ or "")  # type: ignore[union-attr]


def test_list_shows_each_queue_with_what_holds_it_back(cli: Cli, database: Database) -> None:
    """Due, retries, later, in the broker: counted; pause, high water and a missing worker: named. A reader may see it."""
    fill(database, 4, due_in_s=-120.0)
    fill(database, 2, is_retry=True)
    fill(database, 1, due_in_s=3600.0)
    fill(database, 3, due_in_s=10.0, publish_count=1)
    fill(database, 1, queue="cf-b")
    owner_sql(database, "INSERT INTO counterfoil.provider_mode (provider, mode) VALUES ('b', 'paused')")
    heartbeat(database, "cf-b")
    shown = queues(cli("list", "--json", role="reader"))
    assert [*shown] == ["cf-a", "cf-b"], "the longest waiting first"
    counts = {name: shown["cf-a"][name] for name in ("due", "due_retries", "later", "published", "dead")}
    assert counts == {"due": 6, "due_retries": 2, "later": 1, "published": 3, "dead": 0}
    assert shown["cf-a"]["held_by"] == ["high_water", "unserved"]
    assert (shown["cf-b"]["mode"], shown["cf-b"]["held_by"]) == ("paused", ["paused"])
    text = cli("list").out
    assert "high water; no worker takes it" in text
    assert "2 min ago" in text


def test_list_tells_of_the_fleet_s_limits_and_prints_nothing_else(
    cli: Cli, database: Database, valkey: tuple[str, str]
) -> None:
    """With the Redis of the limits at hand nothing is held; with one that is away that is said, and JSON stays JSON."""
    fill(database, 2, is_retry=True)
    heartbeat(database, "cf-a")
    url, prefix = valkey
    known = cli("list", "--json", BROKER__URL=url, BROKER__KEY_PREFIX=prefix)
    assert queues(known)["cf-a"]["held_by"] == []
    away = cli("list", "--json", ADMISSION__URL="redis://127.0.0.1:1/0")
    assert queues(away)["cf-a"]["held_by"] == ["store_away"]
    assert "admission_store_away" in away.err


def test_retries_at_their_part_of_the_calls_are_not_said_to_lack_budget(
    cli: Cli, database: Database, valkey: tuple[str, str]
) -> None:
    """Tokens are left, and retries have had their part of the minute's calls: `ratio` holds the queue back, not `budget`."""
    fill(database, 2, is_retry=True)
    heartbeat(database, "cf-a")
    url, prefix = valkey
    limits = replace(limits_of(Settings.load(None, {}).provider("a")), rate_per_s=100_000)  # a burst is no subject here
    store = Store(url=url, key_prefix=prefix, timeout_s=5, retry_after_s=0)
    admission = FleetAdmission(limits=lambda _: limits, worker="w", store=store)
    for _ in range(int(limits.retries_per_min_min)):
        ticket = admission.admit("a", [retry()], lease_s=60)
        admission.report(ticket, ticket.admitted[0], Result.OK)
        admission.close(ticket)
    store.close()
    listed = cli("list", "--json", BROKER__URL=url, BROKER__KEY_PREFIX=prefix)
    assert queues(listed)["cf-a"]["held_by"] == ["ratio"]
    shown = cli("list", BROKER__URL=url, BROKER__KEY_PREFIX=prefix)
    assert "retries are at their part of a minute's calls" in shown.out
    assert shown.err == "", "an answer and no log"


def test_a_tenant_s_login_sees_its_own(cli: Cli, rows: Rows) -> None:
    """Counts and dead wake-ups of another tenant are not shown to it; --tenant narrows to one."""
    rows.owner.execute(
        "UPDATE counterfoil.principal SET tenant_id = 'acme' WHERE role_name IN ('cf_operator', 'cf_reader')"
    )
    mine, other = rows.build("ready"), rows.build("ready", tenant="globex")
    assert queues(cli("list", "--json", role="reader"))["cf-stripe"]["due"] == 1
    bury(rows, mine, other)
    assert [row["action_id"] for row in cli("list", "--dead", "--json", role="reader").json] == [mine]
    assert cli("revive", other).code == 3
    everything = cli("list", "--dead", "--json", role="operator2").json
    assert {row["action_id"] for row in everything} == {mine, other}
    assert [
        row["action_id"] for row in cli("list", "--dead", "--tenant", "globex", "--json", role="operator2").json
    ] == [other]


def test_dead_ones_are_listed_and_wait_for_a_person(cli: Cli, rows: Rows) -> None:
    """Exit 6 while there are any, as wherever something waits for a person; in the queues' list they are counted."""
    assert (cli("list", "--dead").code, cli("list", "--dead").out) == (0, "nothing is dead\n")
    dead = rows.build("ready")
    bury(rows, dead)
    answer = cli("list", "--dead", "--json")
    assert answer.code == 6
    [row] = answer.json
    assert (row["action_id"], row["queue"], row["publish_count"], row["state"]) == (dead, "cf-stripe", 8, "ready")
    assert dead in cli("list", "--dead").out
    assert queues(cli("list", "--json"))["cf-stripe"]["dead"] == 1


def test_revive_returns_those_that_are_named(cli: Cli, rows: Rows) -> None:
    """By id, by queue, or all; --dry-run changes nothing; what is returned is due, and is not dead any more."""
    ids = [rows.build("ready") for _ in range(3)] + [rows.build("ready", queue="cf-jira", provider="jira")]
    bury(rows, *ids)
    would = cli("revive", "--all-dead", "--dry-run", "--json").json
    assert (sorted(would["would_revive"]), would["revived"]) == (sorted(ids), [])
    assert rows.all("SELECT FROM counterfoil.outbox") == []
    assert cli("revive", ids[0]).out == f"{ids[0]}: revived (stripe_charge, cf-stripe)\n"
    assert cli("revive", "--queue", "cf-jira", "--json").json["revived"] == [ids[3]]
    assert sorted(cli("revive", "--all-dead", "--json").json["revived"]) == sorted(ids[1:3])
    found = rows.all("SELECT action_id, publish_count FROM counterfoil.outbox WHERE not_before <= counterfoil.now()")
    assert {row["action_id"]: row["publish_count"] for row in found} == dict.fromkeys(ids, 0)
    assert cli("revive", "--all-dead").out == "nothing is dead\n"


def test_revive_of_what_is_not_dead_revives_nothing(cli: Cli, rows: Rows) -> None:
    """One wrong id among right ones: exit 3, and all stay dead."""
    dead, alive = rows.build("ready"), rows.build("ready")
    bury(rows, dead)
    answer = cli("revive", dead, alive)
    assert answer.code == 3
    assert alive in answer.err
    assert cli("list", "--dead").code == 6


@pytest.mark.parametrize("argv", [(), ("act_1", "--all-dead"), ("--queue", "cf-a", "--all-dead")])
def test_revive_says_which(cli: Cli, argv: tuple[str, ...]) -> None:
    """Without a choice, and with two, nothing is done: exit 2."""
    answer = cli("revive", *argv)
    assert answer.code == 2
    assert "--all-dead" in answer.err


@pytest.mark.parametrize("role", ["reader", "worker", "agent"])
def test_only_an_operator_revives(cli: Cli, rows: Rows, role: str) -> None:
    """Any other login is refused with 4, and the wake-up stays dead."""
    dead = rows.build("ready")
    bury(rows, dead)
    assert cli("revive", dead, role=role).code == 4
    assert rows.all("SELECT FROM counterfoil.outbox") == []
