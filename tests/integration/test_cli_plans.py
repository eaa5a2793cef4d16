"""What the command line tells of a run that has staged: its pivot, what waits for a person, what stands and until when."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from counterfoil.cli.main import main

if TYPE_CHECKING:
    from tests.conftest import Database
    from tests.integration.conftest import Rows

Cli = Callable[..., str]
LAPSES = "2026-12-07T10:00:00Z"


@pytest.fixture
def cli(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Cli:
    """Runs one command in this process, in an empty folder, under a role's login; gives what it printed."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "counterfoil.toml").write_text('tools = ["counterfoil.providers.stripe.tools"]\n')

    def run(url: str, *argv: str) -> str:
        monkeypatch.setenv("COUNTERFOIL_DATABASE__URL", url)
        with pytest.raises(SystemExit) as ended:
            main(list(argv))
        assert not ended.value.code
        return capsys.readouterr().out

    return run


@pytest.fixture(scope="module")
def planned(clone_database: Callable[[], AbstractContextManager[Database]]) -> Iterator[Rows]:
    """`ticket-1` holds money and has a plan of one step; `plain` has staged nothing."""
    from tests.integration.conftest import Rows

    with clone_database() as database:
        rows = Rows(database)
        agent = rows.connect("agent")
        hold = {"run": "ticket-1", "step": "hold", "tool": "stripe_authorize", "staged": True, "class": "reversible"}
        action_id = rows.propose(agent, **hold)["action_id"]
        worker = rows.ledger("worker")
        claimed = rows.claimed(worker, action_id)
        assert rows.settle("succeeded", worker, claimed)
        rows.execute(action_id, f"""result = '{json.dumps({"capture_before": LAPSES})}'""")
        step = rows.identity(run="ticket-1", step="capture")["action_id"]
        agent.execute(
            "SELECT * FROM counterfoil.open_plan(%s, 'acme', 'ticket-1', 'bot', '', 1, 3600, NULL, 3, 'capture')",
            (plan_id(step),),
        )
        rows.propose(agent, run="ticket-1", step="capture", tool="stripe_capture", proposal=plan_id(step), place=1)
        rows.propose(agent, run="plain", step="charge", target="2")
        yield rows
        rows.close()


def plan_id(action_id: str) -> str:
    return f"P-{action_id[4:16].upper()}"


def shown(planned: Rows) -> str:
    return plan_id(planned.identity(run="ticket-1", step="capture")["action_id"])


def test_run_show_tells_the_plan(cli: Cli, planned: Rows) -> None:
    """Pivot, the number before it, the proposal with the command that shows it, and what is staged."""
    out = cli(planned.database.url("operator"), "run", "show", "ticket-1")
    said = dict(re.findall(r"^(\S.*?)  +(.+)$", out, re.MULTILINE))
    assert said["pivot"].startswith("ahead: until a person has decided")
    assert said["irreversible before it"] == "0"
    assert f"{shown(planned)} waits for a person (a plan of 1 step): expires in " in out
    assert f"counterfoil proposal show {shown(planned)}" in out
    [line] = [line for line in out.splitlines() if line.startswith("hold ") and "act_" in line and LAPSES in line]
    assert line.split()[1:5] == ["stripe_authorize", "1182", "succeeded", LAPSES]


@pytest.mark.parametrize(("role", "lapses"), [("operator", LAPSES), ("agent", LAPSES), ("reader", None)])
def test_run_show_in_json(cli: Cli, planned: Rows, role: str, lapses: str | None) -> None:
    """The same for programs; readers see that something is staged, and not what the provider has answered."""
    answer: Any = json.loads(cli(planned.database.url(role), "run", "show", "ticket-1", "--json"))
    assert (answer["pivot"], answer["irreversible_before_pivot"]) == ("ahead", 0)
    assert [(p["proposal_id"], p["steps"], p["is_plan"]) for p in answer["proposals"]] == [(shown(planned), 1, True)]
    assert [(s["step"], s["lapses_at"]) for s in answer["staged"]] == [("hold", lapses)]


def test_a_run_without_a_plan_says_nothing_of_one(cli: Cli, planned: Rows) -> None:
    """No pivot, no line about it."""
    out = cli(planned.database.url("reader"), "run", "show", "plain")
    assert "pivot" not in out
    assert "waits for a person" not in out


def test_run_list_has_the_number(cli: Cli, planned: Rows) -> None:
    """For every run, for every login; 0 where nothing was staged, and 1 where somebody has got round the door."""
    for role in ("reader", "operator", "agent"):
        rows: Any = json.loads(cli(planned.database.url(role), "run", "list", "--json"))
        assert {row["run"]: (row["pivot"], row["irreversible_before_pivot"]) for row in rows} == {
            "ticket-1": ("ahead", 0),
            "plain": (None, 0),
        }
    sneaked = planned.build("succeeded", run="ticket-1", **{"class": "irreversible", "effect": "mail"})
    planned.execute(sneaked, "first_sent_at = counterfoil.now()")
    out = cli(planned.database.url("reader"), "run", "list")
    [line] = [line for line in out.splitlines() if line.startswith("ticket-1")]
    assert line.split()[3:7] == ["open", "0", "ahead", "1"]
