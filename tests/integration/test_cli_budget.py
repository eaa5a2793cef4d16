"""`counterfoil budget`: what is shown of a fleet's limits, what changes them, and what a change would have meant."""

from __future__ import annotations

import io
import json
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any
from uuid import uuid4

import pytest

from counterfoil.cli.main import main
from counterfoil.ledger.claims import WaitingAction
from counterfoil.settings import Settings
from counterfoil.workers.admission import FleetAdmission, Store
from counterfoil.workers.kinds import Result
from counterfoil.workers.setup import limits_of

if TYPE_CHECKING:
    from tests.conftest import Database
    from tests.integration.conftest import Rows

NOWHERE = "redis://127.0.0.1:1/0"
CONFIG = """tools = ["counterfoil.providers.stripe.tools"]
[broker]
url = "{url}"
key_prefix = "{prefix}"
[providers.stripe]
rate_per_s = 100000
[providers.stripe.retry_budget]
tokens_max = 100
[providers.stripe.breaker]
open_s = 60
open_max_s = 60
"""


@dataclass(frozen=True)
class Answer:
    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        return json.loads(self.out)


Cli = Callable[..., Answer]
Spend = Callable[..., None]


@pytest.fixture
def cli(
    database: Database,
    valkey: tuple[str, str],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> Cli:
    """Runs one command in this process as Ada, under an operator's login or another's."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    monkeypatch.setenv("COUNTERFOIL_PERSON", "ada")
    monkeypatch.delenv("COUNTERFOIL_CONFIG", raising=False)
    (tmp_path / "counterfoil.toml").write_text(CONFIG.format(url=valkey[0], prefix=valkey[1]))

    def run(*argv: str, role: str = "operator", stdin: str = "", **env: str) -> Answer:
        with monkeypatch.context() as patched:
            patched.setattr(sys, "stdin", io.StringIO(stdin))
            for name, value in {"COUNTERFOIL_DATABASE__URL": database.url(role), **env}.items():
                patched.setenv(name, value)
            with pytest.raises(SystemExit) as ended:
                main(["budget", *argv])
        captured = capsys.readouterr()
        return Answer(int(ended.value.code or 0), captured.out, captured.err)

    return run


@pytest.fixture
def spend(valkey: tuple[str, str]) -> Spend:
    """Has a worker ask the fleet's limits for stripe, and report what came of it."""
    settings = Settings.load(Path("counterfoil.toml"), {})

    now_ms = time.time() * 1000 - 2000

    def ask(firsts: int, result: Result, *, retries: int = 0) -> None:
        nonlocal now_ms
        store = Store(url=valkey[0], key_prefix=valkey[1], timeout_s=5, retry_after_s=0, now_ms=lambda: now_ms)
        admission = FleetAdmission(limits=lambda name: limits_of(settings.provider(name)), worker="w", store=store)
        admission.close(admission.admit("stripe", [], lease_s=60))
        now_ms += 500  # by then the rate has room for a batch
        batch = [_waiting(attempts=int(place >= firsts)) for place in range(firsts + retries)]
        ticket = admission.admit("stripe", batch, lease_s=60)
        for action in list(ticket.admitted):
            admission.report(ticket, action, result)
        admission.close(ticket)
        store.close()

    return ask


def _waiting(attempts: int) -> WaitingAction:
    return WaitingAction(
        action_id=uuid4().hex, generation=1, tenant="acme", tool="stripe_charge", tool_version=1, provider="stripe",
        account="default", attempt_count=attempts, not_sent_count=0, in_doubt=False, state="ready",
    )  # fmt: skip


def in_force(cli: Cli, key: str, role: str = "reader") -> Any:
    page = cli("list", "stripe", "--json", role=role).json[0]
    return next(each for each in page["settings"] if each["key"] == key)


def test_list_shows_what_was_spent(cli: Cli, spend: Spend) -> None:
    """Tokens, first attempts, retries and refusals by reason, as the store has counted them; for a reader."""
    spend(3, Result.OK)
    spend(2, Result.TIMEOUT)
    spend(0, Result.TIMEOUT, retries=20)
    page = cli("list", "stripe", "--json", role="reader").json[0]
    assert (page["store"], page["breaker"], page["tokens_max"], page["in_flight"]) == ("answers", "open", 100, 0)
    assert page["last_24_h"] == {"firsts": 5, "retries": 8, "denied": {"budget": 12}}
    assert page["tokens"] < 1
    shown = cli("list", "stripe", role="reader").out
    assert "budget 12" in shown
    assert "8 of 10 in a minute" in shown
    assert "open, one call in" in shown
    line = next(line for line in cli("list", role="reader").out.splitlines() if line.startswith("stripe"))
    assert "5 + 8" in line
    assert "of 100" in line


def test_without_the_store_the_limits_are_shown(cli: Cli) -> None:
    """A store that is away hides no limit, breaks no JSON, and is told."""
    away = {"COUNTERFOIL_BROKER__URL": NOWHERE}
    answer = cli("list", "stripe", "--json", role="reader", **away)
    page = answer.json[0]
    assert (answer.code, page["store"], page["tokens"], page["tokens_max"]) == (0, "away", None, 100)
    for argv in (("list",), ("list", "stripe")):
        assert "the store of the fleet's counters does not answer" in cli(*argv, role="reader", **away).out
    none = {"COUNTERFOIL_BROKER__URL": "amqp://127.0.0.1:1//"}
    assert "there is no store of the fleet's counters" in cli("list", role="reader", **none).out


def test_a_change_is_in_force_and_says_by_whom(cli: Cli, rows: Rows) -> None:
    """`set` changes several keys at once; `list` shows new and configured value, who, when, why; `reset` ends it."""
    answer = cli("set", "stripe", "rate_per_s=10", "retry_budget.tokens_max=50", "--reason", "they halved it", "--json")
    assert [(c["key"], c["before"], c["value"]) for c in answer.json["changed"]] == [
        ("rate_per_s", 100_000, 10),
        ("retry_budget.tokens_max", 100, 50),
    ]
    shown = in_force(cli, "rate_per_s")
    assert (shown["value"], shown["configured"], shown["change"]["by_person"]) == (10, 100_000, "ada")
    assert shown["change"]["reason"] == "they halved it"
    assert "they halved it" in cli("list", "stripe", role="reader").out
    assert cli("reset", "stripe", "rate_per_s").out.startswith("stripe rate_per_s: 10 -> 100000\n")
    shown = in_force(cli, "rate_per_s")
    assert (shown["value"], shown["change"]) == (100_000, None)
    assert in_force(cli, "retry_budget.tokens_max")["value"] == 50
    kept = cli("history", "stripe", "--json", role="reader").json
    assert [(c["name"], c["value"], c["by_person"]) for c in kept] == [
        ("rate_per_s", None, "ada"),
        ("retry_budget.tokens_max", "50", "ada"),
        ("rate_per_s", "10", "ada"),
    ]
    assert "as configured" in cli("history", role="reader").out


def test_the_store_is_asked_under_the_changed_limits(cli: Cli, spend: Spend) -> None:
    """What a person has set is what the counters are shown against."""
    spend(1, Result.OK)
    cli("set", "stripe", "retry_budget.tokens_max=7")
    page = cli("list", "stripe", "--json", role="reader").json[0]
    assert page["tokens"] == page["tokens_max"] == 7


@pytest.mark.parametrize("nested", [True, False])
def test_values_from_a_document(cli: Cli, tmp_path: Path, nested: bool) -> None:
    """A file or standard input holds a JSON object, tables nested or dotted; what the command line says wins."""
    document = {"retry_budget": {"tokens_max": 9}} if nested else {"retry_budget.tokens_max": 9}
    text = json.dumps({**document, "rate_per_s": 5})
    (tmp_path / "limits.json").write_text(text)
    cli("set", "stripe", "rate_per_s=6", "--from", "limits.json" if nested else "-", stdin=text)
    assert in_force(cli, "retry_budget.tokens_max")["value"] == 9
    assert in_force(cli, "rate_per_s")["value"] == 6


@pytest.mark.parametrize(
    ("argv", "code", "says"),
    [
        (("stripe", "rate_per_s=-1"), 2, "providers.stripe.rate_per_s: expected greater than 0."),
        (("stripe", "rate_per_s=NaN"), 2, "no value is NaN or infinite"),
        (("stripe", "rate_per_s=Infinity"), 2, "no value is NaN or infinite"),
        (("stripe", "rate_per_s=fast"), 2, "providers.stripe.rate_per_s"),
        (("stripe", "attempts_max=true"), 2, "expected a number, not true or false"),
        (("stripe", "timeout_s=80"), 2, "workers.lease_s must be more than providers.stripe.timeout_s"),
        (("stripe", "tokens_max=5"), 2, "Did you mean retry_budget.tokens_max?"),
        (("stripe", "base_url=http://elsewhere.example"), 2, "base_url is not changed while processes run"),
        (("stripe", "mode=paused"), 2, "mode is not changed while processes run"),
        (("stripe", "rate_per_s"), 2, "is not KEY=VALUE"),
        (("stripe", "rate_per_s=1", "rate_per_s=2"), 2, "given twice"),
        (("stripe",), 2, "at least one KEY=VALUE"),
        (("stripe", "--from", "missing.json"), 2, "cannot be read"),
        (("stripe", "--from", "-"), 2, "a JSON object"),
        (("strip", "rate_per_s=1"), 3, "Did you mean stripe?"),
        (("stripe", "rate_per_s=1", "--reason", "x" * 600), 2, "reason"),
    ],
)
def test_what_does_not_hold_together_changes_nothing(
    cli: Cli, rows: Rows, argv: tuple[str, ...], code: int, says: str
) -> None:
    """Wrong keys, values, names and combinations are refused with their place and the nearest name, all or nothing."""
    answer = cli("set", *argv, "--json")
    assert (answer.code, answer.out) == (code, "")
    assert says in answer.err
    assert rows.all("SELECT * FROM counterfoil.setting_change") == []


def test_one_bad_value_spoils_the_lot(cli: Cli, rows: Rows) -> None:
    """A good value beside a bad one is not put in force."""
    assert cli("set", "stripe", "rate_per_s=5", "attempts_max=0").code == 2
    assert rows.all("SELECT * FROM counterfoil.setting_change") == []


@pytest.mark.parametrize("role", ["reader", "worker", "agent"])
def test_others_may_not(cli: Cli, rows: Rows, role: str) -> None:
    """Only operators of all tenants change limits."""
    assert cli("set", "stripe", "rate_per_s=5", role=role).code == 4
    assert rows.all("SELECT * FROM counterfoil.setting_change") == []


def test_who_serves_one_tenant_is_told_what_is_hidden(cli: Cli, rows: Rows) -> None:
    """Such a login sees no changes; the list does not pretend that there are none."""
    cli("set", "stripe", "rate_per_s=5")
    rows.owner.execute("UPDATE counterfoil.principal SET tenant_id = 'acme' WHERE role_name = 'cf_reader'")
    page = cli("list", "stripe", "--json", role="reader").json[0]
    assert page["sees_changes"] is False
    assert "does not serve all tenants" in cli("list", role="reader").out
    assert "only those of this login's tenants" in cli("list", "--what-if", "stripe", "rate_per_s=1", role="reader").out


def test_a_change_that_an_upgrade_cannot_use_is_told(cli: Cli, rows: Rows) -> None:
    """What a newer version has set, or the configuration no longer allows, stands in the list as left out, and why."""
    rows.owner.execute(
        "INSERT INTO counterfoil.setting_change (key, value, reason, by_person, channel) VALUES"
        " ('providers.stripe.timeout_s', '85', 'r', 'bob', 'cli'), ('providers.stripe.new_key', '1', 'r', 'bob', 'cli')"
    )
    shown = in_force(cli, "timeout_s")
    assert (shown["value"], shown["change"], shown["ignored"]["value"]) == (20, None, "85")
    assert "workers.lease_s must be more than" in shown["ignored"]["why"]
    assert in_force(cli, "new_key")["ignored"]["why"]
    assert cli("list", "stripe", role="reader").out.count("is left out") == 2
    assert cli("set", "stripe", "rate_per_s=5").code == 0  # what was wrong before does not stop other changes


def attempts(rows: Rows, count: int, *, outcome: str = "succeeded", every_s: float = 0.1, number: int = 1) -> None:
    """Recorded attempts of stripe, the newest a minute ago."""
    action = rows.build("succeeded")
    now = rows.one("SELECT counterfoil.now() AS now")["now"]
    for place in range(count):
        at = now - timedelta(seconds=60 + every_s * (count - place))
        each = action if number > 1 else rows.build("succeeded")
        rows.owner.execute(
            "INSERT INTO counterfoil.attempt (attempt_id, action_id, tenant, number, worker, started_at, finished_at,"
            " outcome) VALUES (%s, %s, 'acme', %s, 'w', %s, %s, %s)",
            (uuid4(), each, number, at, at + timedelta(seconds=0.05), outcome),
        )


def test_what_if_replays_what_was_recorded(cli: Cli, rows: Rows) -> None:
    """Twenty attempts at ten a second: none waits under the configured rate, nearly all do at one; nothing is changed."""
    attempts(rows, 20)
    told = cli("list", "--what-if", "stripe", "rate_per_s=1", "--json", role="reader").json
    assert (told["now"]["firsts"], told["now"]["firsts_waited"]) == (20, 0)
    assert (told["then"]["firsts_waited"], told["then"]["firsts_by"]) == (19, {"rate": 19})
    assert 15_000 < told["then"]["waited_ms_max"] < 20_000
    assert told["is_capped"] is False
    assert told["not_known"]
    shown = cli("set", "stripe", "rate_per_s=1", "--dry-run").out
    assert "19 (rate 19)" in shown
    assert "Not known:" in shown
    assert rows.all("SELECT * FROM counterfoil.setting_change") == []


def test_what_if_of_a_smaller_budget(cli: Cli, rows: Rows) -> None:
    """Retries after timeouts: with a bucket that holds half a retry's cost all but one would have waited for the budget."""
    attempts(rows, 6, outcome="uncertain", number=2)
    told = cli("set", "stripe", "retry_budget.tokens_max=5", "--dry-run", "--json").json
    assert (told["now"]["retries"], told["now"]["retries_waited"]) == (6, 0)
    assert told["then"]["retries_by"] == {"budget": 5}
    assert told["then"]["firsts"] == 0


def test_what_if_counts_what_could_have_passed(cli: Cli, spend: Spend) -> None:
    """Of the waits that the store has counted, those of a limit that would be looser, and no others."""
    spend(0, Result.TIMEOUT, retries=20)
    wider = cli("list", "--what-if", "stripe", "retry_budget.tokens_max=1000", "--json").json
    assert (wider["waits_counted"], wider["waits_that_could_pass"]) == ({"budget": 10}, {"budget": 10})
    narrower = cli("list", "--what-if", "stripe", "retry_budget.tokens_max=10", "--json").json
    assert narrower["waits_that_could_pass"] == {"budget": 0}
    assert "at most: 10 of 10 for budget" in cli("list", "--what-if", "stripe", "retry_budget.tokens_max=1000").out


def test_what_if_is_bounded_and_says_so(cli: Cli, rows: Rows, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of more attempts than are replayed at once only the newest are, and since when is told."""
    monkeypatch.setattr("counterfoil.cli.budget.ATTEMPTS_MAX", 5)
    attempts(rows, 20)
    told = cli("list", "--what-if", "stripe", "rate_per_s=1", "--json").json
    assert (told["now"]["firsts"], told["is_capped"]) == (5, True)
    since = datetime.fromisoformat(told["from"])
    assert datetime.now(UTC) - since < timedelta(seconds=70)
    assert "only the newest of them" in cli("list", "--what-if", "stripe", "rate_per_s=1").out


def test_what_if_without_a_past(cli: Cli, rows: Rows) -> None:
    """Nothing recorded is no error."""
    assert cli("list", "--what-if", "stripe", "rate_per_s=1").code == 0
    assert cli("list", "--what-if", "stripe").code == 2
    assert cli("list", "stripe", "rate_per_s=1").code == 2
