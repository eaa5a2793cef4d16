"""`counterfoil config show --origin`: what people have changed beside what is configured."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from counterfoil.cli.main import main

if TYPE_CHECKING:
    from tests.integration.conftest import Rows

NOWHERE = "postgresql://nobody:s3cret@127.0.0.1:1/none"
Shown = Callable[..., Any]


@pytest.fixture
def shown(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Shown:
    """What `config show --origin` prints at this database."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("COUNTERFOIL_CONFIG", raising=False)
    Path("counterfoil.toml").write_text("[providers.stripe]\nrate_per_s = 30\n")

    def run(url: str, *argv: str) -> Any:
        monkeypatch.setenv("COUNTERFOIL_DATABASE__URL", url)
        with pytest.raises(SystemExit) as ended:
            main(["config", "show", "--origin", *argv])
        assert not ended.value.code
        return capsys.readouterr().out

    return run


def row(answer: str, key: str) -> Any:
    return next(each for each in json.loads(answer)["settings"] if each["key"] == key)


def test_a_change_is_told_with_what_is_configured(shown: Shown, rows: Rows) -> None:
    """Id, person and time of the change in force; the configured value and its place beside it."""
    rows.owner.execute(
        "INSERT INTO counterfoil.setting_change (key, value, reason, by_person, channel) VALUES"
        " ('providers.stripe.rate_per_s', '10', 'r', 'ada', 'cli'), ('providers.jira.rate_per_s', '2', 'r', 'bob', 'cli'),"
        " ('providers.stripe.timeout_s', '80', 'r', 'ada', 'cli'), ('providers.stripe.mode', '\"paused\"', 'r', 'ada', 'cli')"
    )
    url = rows.database.url("reader")
    answer = shown(url, "--json")
    changed = row(answer, "providers.stripe.rate_per_s")
    assert (changed["value"], changed["kind"], changed["change"]["by"]) == (10, "change", "ada")
    assert changed["configured"] == {"value": 30, "kind": "file", "from": "counterfoil.toml:2"}
    assert row(answer, "providers.jira.rate_per_s")["configured"]["kind"] == "default"
    unusable = row(answer, "providers.stripe.timeout_s")
    assert (unusable["value"], unusable["kind"]) == (20, "default")
    assert row(answer, "database.url")["from"] == "COUNTERFOIL_DATABASE__URL"
    assert "change 1 by ada" in shown(url)
    assert "configured 30 (counterfoil.toml:2)" in shown(url)


def test_without_the_database_the_rest_is_told(shown: Shown) -> None:
    """An outage hides no setting, shows no password, and is told."""
    answer = json.loads(shown(NOWHERE, "--json"))
    assert answer["changes_unknown"].startswith("cannot connect to the database: ")
    assert any(each["key"] == "workers.lease_s" for each in answer["settings"])
    text = shown(NOWHERE)
    assert "what people have changed is not known here: cannot connect" in text
    assert "s3cret" not in text


def test_who_serves_one_tenant_is_told_what_is_hidden(shown: Shown, rows: Rows) -> None:
    """A login that sees no changes does not read as if there were none."""
    rows.owner.execute("UPDATE counterfoil.principal SET tenant_id = 'acme' WHERE role_name = 'cf_reader'")
    answer = json.loads(shown(rows.database.url("reader"), "--json"))
    assert answer["changes_unknown"] == "this login does not serve all tenants."
