"""`counterfoil tool list` and `tool check` about autonomy: the level of each tool, why, and which bounds are missing."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from counterfoil.cli.main import main

Cli = Callable[..., str]

SHIPPED = 'tools = ["counterfoil.providers.stripe.tools", "counterfoil.providers.jira.tools"]\n'


@pytest.fixture
def cli(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Cli:
    """Runs one command under a configuration; what it printed."""
    monkeypatch.chdir(tmp_path)

    def run(config: str, *argv: str) -> str:
        (tmp_path / "counterfoil.toml").write_text(SHIPPED + config)
        with pytest.raises(SystemExit) as ended:
            main(list(argv))
        assert not ended.value.code
        return capsys.readouterr().out

    return run


def levels(cli: Cli, config: str) -> dict[str, str]:
    tools: Any = json.loads(cli(config, "tool", "list", "--json"))
    return {tool["name"]: tool["autonomy"] for tool in tools}


def test_the_shipped_tools(cli: Cli) -> None:
    """Nothing configured: tickets alone; commits only by a plan; a charge as far as its audience goes."""
    found = levels(cli, "")
    assert {name for name, level in found.items() if level == "person"} == {"stripe_capture", "jira_open"}
    assert {name for name, level in found.items() if level == "bounded"} == {"stripe_charge"}
    assert set(found.values()) == {"alone", "bounded", "person"}


def test_the_configuration_tightens(cli: Cli) -> None:
    """Approvals, caps and two persons change the level; the effect's cap that of each of its tools."""
    config = '[approval]\ntwo_person = ["stripe_capture"]\naudiences_always = ["public", "legal", "support_team"]\n'
    found = levels(cli, config + "[tool.stripe_charge]\napproval = 'always'\n[effect.charge]\ncount_per_run_max = 2\n")
    assert (found["stripe_charge"], found["stripe_capture"]) == ("person", "two_persons")
    assert (found["jira_create"], found["stripe_authorize"]) == ("person", "bounded")


def test_reasons_stand_below_the_table(cli: Cli) -> None:
    """With --reasons each level is explained in short sentences; without, the table alone."""
    config = "[tool.stripe_charge]\napproval_above_minor = 5000\n"
    out = cli(config, "tool", "list", "--reasons")
    block = out.partition("\nstripe_charge: bounded\n")[2].partition("\n\n")[0]
    assert [line.strip() for line in block.splitlines()] == [
        "compensatable: taken back by stripe_refund",
        "grade A: the provider knows a repeat by our key for 1 d",
        "seen by whom its arguments say",
        "where that is legal or public a person approves",
        "above 5000 minor units, or where the amount is unknown, a person approves",
    ]
    plain = cli(config, "tool", "list")
    assert "grade A" not in plain
    assert plain.splitlines()[0].split()[-1] == "AUTONOMY"


def test_a_tool_is_shown_as_a_model_sees_it(cli: Cli) -> None:
    """Its arguments, which are needed, and their defaults; --json is the schema that `Counterfoil.schemas` has."""
    lines = [line.split() for line in cli("", "tool", "show", "stripe_charge").splitlines() if line]
    assert ["customer", "yes"] in [line[:2] for line in lines]
    assert ["receipt", "no,"] in [line[:2] for line in lines]
    schema: Any = json.loads(cli("", "tool", "show", "stripe_charge", "--json"))
    assert schema["name"] == "stripe_charge"
    assert {"customer", "amount_minor"} <= set(schema["parameters"]["required"])


def test_check_warns_of_missing_bounds(cli: Cli) -> None:
    """Of amounts that nobody has bounded, with the setting that would; a stated bound ends the warning."""
    said = "no bound on the amount: set [tool.stripe_charge] approval_above_minor"
    assert f"warning: stripe_charge: {said}" in cli("", "tool", "check").splitlines()
    answer: Any = json.loads(cli("", "tool", "check", "stripe_charge", "--json"))
    assert answer == {"checked": ["stripe_charge"], "warnings": [{"tool": "stripe_charge", "warning": said}]}
    assert said not in cli("[tool.stripe_charge]\napproval_above_minor = 5000\n", "tool", "check")


HTTP = """
[providers.crm]
base_url = "https://crm.example"
[http.crm_note]
provider = "crm"
description = "Write a note."
class = "irreversible"
effect = "crm_note"
target = "customer"
audience = ["support_team"]
once_per = []
path = "/notes"
key_ttl_s = 86400
arguments.customer = { type = "string", max_length = 40 }
"""


def test_a_table_of_the_configuration_is_a_tool(cli: Cli) -> None:
    """`tool list` and `tool check` show it with its grade and autonomy, `config check` counts it."""
    (found,) = [tool for tool in json.loads(cli(HTTP, "tool", "list", "--json")) if tool["name"] == "crm_note"]
    assert {name: found[name] for name in ("provider", "class", "grade", "autonomy", "undo")} == {
        "provider": "crm",
        "class": "irreversible",
        "grade": "A",
        "autonomy": "person",
        "undo": None,
    }
    assert "1 tools fit their configuration: crm_note" in cli(HTTP, "tool", "check", "crm_note")
    assert "crm_note" in json.loads(cli(HTTP, "config", "check", "--json"))["tools"]
    assert "http.crm_note.key_ttl_s = 86400" in cli(HTTP, "config", "show")
