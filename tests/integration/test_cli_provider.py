"""`counterfoil provider`: who may be sent what, and that pausing, draining and resuming do what they say."""

from __future__ import annotations

import json
import sys
import threading
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psycopg
import pytest
import redis

from counterfoil.cli import provider
from counterfoil.cli.main import main
from counterfoil.ledger.states import State

if TYPE_CHECKING:
    from tests.conftest import Database
    from tests.integration.conftest import Rows

CONFIG = 'tools = ["counterfoil.providers.stripe.tools"]\n[providers.warehouse]\nbase_url = "http://127.0.0.1:1"\n'


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
def cli(database: Database, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Cli:
    """Runs one command in this process as Ada, under an operator's login or another's."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    monkeypatch.setenv("COUNTERFOIL_PERSON", "ada")
    monkeypatch.delenv("COUNTERFOIL_CONFIG", raising=False)
    (tmp_path / "counterfoil.toml").write_text(CONFIG)

    def run(*argv: str, role: str = "operator") -> Answer:
        monkeypatch.setenv("COUNTERFOIL_DATABASE__URL", database.url(role))
        with pytest.raises(SystemExit) as ended:
            main(["provider", *argv])
        captured = capsys.readouterr()
        return Answer(int(ended.value.code or 0), captured.out, captured.err)

    return run


def listed(cli: Cli, name: str = "stripe", role: str = "reader") -> Any:
    return next(each for each in cli("list", "--json", role=role).json if each["provider"] == name)


def test_list_shows_who_stopped_what_and_what_stands_there(cli: Cli, rows: Rows) -> None:
    """Providers of tables, tools and rows, with mode, person, reason and counts, for a reader."""
    for state in (
        "ready",
        "retryable_failure",
        "executing",
        "uncertain",
        "reconciling",
        "operator_review",
        "succeeded",
    ):
        rows.build(state, receipt="pi_1" if state == "succeeded" else None)
    rows.build("ready", provider="jira", queue="cf-jira", attempt_count=1)
    cli("pause", "stripe", "--reason", "they asked")
    found = {each["provider"]: each for each in cli("list", "--json", role="reader").json}
    assert list(found) == ["jira", "stripe", "warehouse"]
    stripe = found["stripe"]
    assert (stripe["mode"], stripe["by"], stripe["reason"]) == ("paused", "ada", "they asked")
    counts = {name: stripe[name] for name in provider.COUNTS}
    assert counts == {
        "ready": 1,
        "retryable_failure": 1,
        "executing": 1,
        "uncertain": 2,
        "operator_review": 1,
        "begun": 4,
    }
    assert (found["jira"]["mode"], found["jira"]["begun"]) == ("running", 1)
    assert found["warehouse"]["since"] is None
    line = next(line for line in cli("list", role="reader").out.splitlines() if line.startswith("stripe"))
    assert "paused" in line
    assert "they asked" in line


def test_a_paused_provider_is_claimed_nothing_of_until_it_is_resumed(cli: Cli, rows: Rows) -> None:
    """Pause holds in the claim, and says so; resume lets the same row go; both are kept with person and reason."""
    action, worker = rows.build("ready"), rows.ledger()
    assert cli("pause", "stripe", "--reason", "they asked").out == "stripe is paused: 1 ready\n"
    assert rows.claim(worker, action) is None
    answer = cli("resume", "stripe", "--reason", "they are back", "--json")
    assert (answer.json["mode"], answer.json["ready"]) == ("running", 1)
    assert rows.claim(worker, action) is not None
    kept = rows.all("SELECT value, by_person, channel, reason FROM counterfoil.setting_change ORDER BY change_id")
    assert [tuple(row.values()) for row in kept] == [
        ('"paused"', "ada", "cli", "they asked"),
        ('"running"', "ada", "cli", "they are back"),
    ]


def test_a_pause_survives_a_flush_of_redis(cli: Cli, rows: Rows, valkey: tuple[str, str]) -> None:
    """The broker and its counters may lose everything: what is paused stays so."""
    url, prefix = valkey
    action = rows.build("ready")
    cli("pause", "stripe", "--reason", "they asked")
    with redis.Redis.from_url(url) as store:
        store.set(f"{prefix}admission:stripe", "x")
        for key in store.scan_iter(f"{prefix}*"):
            store.delete(key)
    assert rows.claim(rows.ledger(), action) is None
    assert listed(cli)["mode"] == "paused"


def test_a_draining_provider_is_sent_what_was_begun(cli: Cli, rows: Rows) -> None:
    """New rows wait; what was tried before, or takes something back, is claimed."""
    new, tried = rows.build("ready"), rows.build("retryable_failure", key_version=1)
    unsent = rows.build("ready", not_sent_count=1)
    undo = rows.build("ready", phase="undo", parent_action_id=rows.build("succeeded"))
    assert "3 begun and not finished" in cli("drain", "stripe", "--reason", "maintenance").out
    worker = rows.ledger()
    assert rows.claim(worker, new) is None
    assert [rows.claim(worker, each) is not None for each in (tried, unsent, undo)] == [True] * 3


def test_drain_waits_until_nothing_begun_is_unfinished(cli: Cli, rows: Rows, monkeypatch: pytest.MonkeyPatch) -> None:
    """It tells how far it is, and ends when the last one is settled; new rows and reviews are not waited for."""
    monkeypatch.setattr(provider, "POLL_S", 0.01)
    rows.build("ready")
    rows.build("operator_review")
    action = rows.build("executing")
    told = threading.Event()
    monkeypatch.setattr(provider, "note", lambda text: (told.set(), progress.append(text)))
    progress: list[str] = []

    def finish() -> None:
        told.wait(10)
        with psycopg.connect(rows.database.url("owner")) as owner:
            owner.execute("SET session_replication_role = replica")
            owner.execute(
                "UPDATE counterfoil.action SET state = 'stale', fence = NULL, lease_until = NULL WHERE action_id = %s",
                (action,),
            )

    other = threading.Thread(target=finish)
    other.start()
    answer = cli("drain", "stripe", "--reason", "maintenance", "--wait", "20", "--json")
    other.join()
    assert (answer.code, answer.json["begun"], answer.json["ready"]) == (0, 0, 1)
    assert progress == ["stripe: 1 begun and not finished (1 ready, 1 executing, 1 in review)"]


def test_a_drain_that_is_not_done_in_time_goes_on(cli: Cli, rows: Rows, monkeypatch: pytest.MonkeyPatch) -> None:
    """Exit 6, and the provider is still draining."""
    monkeypatch.setattr(provider, "POLL_S", 0.01)
    rows.build("uncertain")
    assert cli("drain", "stripe", "--reason", "maintenance", "--wait", "0.05").code == 6
    assert listed(cli)["mode"] == "draining"


@pytest.mark.parametrize(
    ("name", "fix"), [("strip", "Did you mean stripe?"), ("zzz", "Known here: stripe, warehouse.")]
)
def test_an_unknown_provider_is_refused(cli: Cli, rows: Rows, name: str, fix: str) -> None:
    """A typing mistake pauses nothing and says what was meant: exit 3."""
    answer = cli("pause", name, "--reason", "they asked")
    assert answer.code == 3
    assert answer.err.splitlines() == [f"counterfoil: not_found: there is no provider {name!r}.", f"  fix: {fix}"]
    assert rows.all("SELECT * FROM counterfoil.setting_change") == []


def test_a_machine_without_the_tools_pauses_too(cli: Cli, rows: Rows) -> None:
    """Whoever is called at night need not have the agents' code: rows and tables name the provider."""
    Path("counterfoil.toml").write_text('tools = ["not_installed_here"]\n')
    rows.build("ready")
    assert cli("pause", "stripe", "--reason", "they asked").code == 0
    assert listed(cli)["mode"] == "paused"


@pytest.mark.parametrize("role", ["reader", "worker", "agent"])
def test_others_may_not(cli: Cli, rows: Rows, role: str) -> None:
    """Only an operator changes what a provider may be sent: exit 4, nothing changed."""
    answer = cli("pause", "stripe", "--reason", "mine", role=role)
    assert answer.code == 4, answer.err
    assert rows.all("SELECT * FROM counterfoil.provider_mode") == []


def test_an_operator_of_one_tenant_may_not(cli: Cli, rows: Rows) -> None:
    """A pause holds for every tenant, so it needs a login that serves them all."""
    rows.owner.execute("UPDATE counterfoil.principal SET tenant_id = 'acme' WHERE role_name = 'cf_operator'")
    answer = cli("pause", "stripe", "--reason", "mine")
    assert answer.code == 4
    assert "settings of the fleet are changed by an operator of all tenants" in answer.err
    assert rows.all("SELECT * FROM counterfoil.provider_mode") == []


def test_begun_is_what_a_draining_provider_is_sent(cli: Cli, rows: Rows) -> None:
    """The count that `drain --wait` waits for and the claim agree about every kind of claimable row."""
    made: dict[str, bool] = {}
    for state in (State.READY, State.RETRYABLE_FAILURE):
        for more in (
            {"attempt_count": 0},
            {"attempt_count": 1, "key_version": 1},
            {"attempt_count": 0, "not_sent_count": 2},
        ):
            made[rows.build(state, **more)] = True
    cli("drain", "stripe", "--reason", "maintenance")
    counted = listed(cli)["begun"]
    worker = rows.ledger()
    claimed = [action for action in made if rows.claim(worker, action) is not None]
    assert counted == len(claimed) == 4
