"""The command line over a real ledger: what it answers, what it refuses, and with which exit code."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psycopg
import pytest
from tests.integration.terminal import Cli, terminal

from counterfoil.cli.words import MEANS
from counterfoil.ledger import verdicts
from counterfoil.ledger.queries import load
from counterfoil.ledger.states import UNSETTLED, State

if TYPE_CHECKING:
    from tests.integration.conftest import Rows


NOWHERE = "postgresql://nobody:s3cret@127.0.0.1:1/none"

HOSTILE = "o-1\x1b]0;owned\x07\x1b[2J[red]x[/red]\u202e\nact_fake"


@pytest.fixture
def cli(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Cli:
    return terminal(monkeypatch, tmp_path, capsys)


def test_what_is_not_there_is_3(cli: Cli, rows: Rows) -> None:
    """Actions and runs that do not exist, or that the login may not see."""
    url = rows.database.url("operator")
    for argv in (("action", "show", "act_nope"), ("run", "show", "nope"), ("run", "unwind", "nope")):
        answer = cli(*argv, url=url)
        assert (answer.code, answer.out) == (3, "")
    made = rows.build("ready")
    assert cli("action", "show", made, url=rows.database.url("agent2")).code == 3, "another tenant's"


def test_a_database_without_a_ledger_says_how_to_make_one(cli: Cli, services: Any) -> None:
    """The database answers but has no schema: exit 2."""
    for argv in (("action", "list"), ("db", "check")):
        answer = cli(*argv, url=services.postgres)
        assert answer.code == 2
        assert "counterfoil db upgrade" in answer.err


@pytest.mark.parametrize("argv", [("action", "cancel"), ("run", "unwind"), ("run", "cancel")])
def test_a_login_without_the_right_is_4(cli: Cli, rows: Rows, argv: tuple[str, ...]) -> None:
    """A reader may look, not act; nothing has changed afterwards."""
    made = rows.build("ready")
    answer = cli(*argv, made if argv[0] == "action" else "r1", url=rows.database.url("reader"))
    assert (answer.code, answer.out) == (4, "")
    assert rows.read(made)["state"] == "ready"
    assert rows.one("SELECT state FROM counterfoil.run")["state"] == "open"


def test_a_reader_gets_lists_and_states_but_no_arguments(cli: Cli, rows: Rows) -> None:
    """`show` works for a reader; `--arguments` is refused with 4 and prints nothing of them."""
    made = rows.build("succeeded", arguments='{"order_id":"private"}')
    url = rows.database.url("reader")
    assert [row["action_id"] for row in cli("action", "list", "--json", url=url).json] == [made]
    shown = cli("action", "show", made, "--json", url=url)
    assert shown.json["means"] == MEANS[State.SUCCEEDED]
    assert "private" not in shown.out
    assert "private" not in cli("action", "show", made, url=url).out
    refused = cli("action", "show", made, "--arguments", url=url)
    assert refused.code == 4
    assert "private" not in refused.out + refused.err
    assert cli("action", "show", made, "--arguments", "--json", url=rows.database.url("operator")).json[
        "arguments"
    ] == {"order_id": "private"}


@pytest.mark.parametrize("state", sorted(State))
def test_every_state_is_told_in_words_with_what_comes_next(cli: Cli, rows: Rows, state: State) -> None:
    """No state is shown by its name alone, and none that is unsettled is told to be settled."""
    shown = cli("action", "show", rows.build(state), "--json", url=rows.database.url("reader")).json
    assert shown["means"] == MEANS[state]
    assert (shown["next"] == "nothing: settled") is (state not in UNSETTLED)


@pytest.mark.parametrize("state", sorted(State))
def test_every_state_is_explained(cli: Cli, rows: Rows, state: State) -> None:
    """In sentences, and as JSON with a time for each that has one; a person is named where one must act."""
    made = rows.build(state)
    url = rows.database.url("reader")
    explained = cli("action", "explain", made, "--json", url=url).json
    assert explained["action_id"] == made
    assert explained["state"].startswith(f"{state}: ")
    assert all(sentence["text"].endswith(".") for sentence in explained["known"] + explained["next"])
    plain = cli("action", "explain", made, url=url).out
    waits = state in (State.OPERATOR_REVIEW, State.AWAITING_APPROVAL, State.PROPOSED)
    assert plain.endswith("Who must act\n  Nobody.\n") is not waits


def test_an_explanation_knows_the_contract_and_the_evidence(cli: Cli, rows: Rows) -> None:
    """Windows come from the configuration here; receipts in the evidence only for logins that may read receipts."""
    Path("counterfoil.toml").write_text('tools = ["counterfoil.providers.stripe.tools"]\n')
    made = rows.build("uncertain", arguments='{"order_id":"private"}')
    rows.execute(made, "quiet_from = counterfoil.now(), first_sent_at = counterfoil.now()")
    ledger = rows.ledger()
    [looked] = rows.look(ledger, "stripe_charge")
    operator, reader = rows.database.url("operator"), rows.database.url("reader")
    under_way = cli("action", "explain", made, url=operator).out
    assert "Look-up 1, as of this time, is under way." in under_way
    assert "what was sent needs up to 120 s to land." in under_way
    assert "its key is trusted to answer a resend." in under_way
    evidence = "look-up 1 as of 2026-11-30T10:00:00+00:00: found pi_private"
    verdicts.succeeded(ledger, looked, receipt="pi_private", result="{}", evidence=evidence, by="beat")
    assert "found it (pi_private): it is done." in cli("action", "explain", made, url=operator).out
    seen = cli("action", "explain", made, url=reader).out
    assert "Look-up 1, as of this time, found it: it is done." in seen
    assert "private" not in seen
    assert "found it (pi_private): it is done." in cli("action", "explain", made, url=rows.database.url("agent")).out


def test_an_explanation_without_the_tool_says_so(cli: Cli, rows: Rows) -> None:
    """A tool that is not loaded here, or cannot be: what the ledger knows is told all the same."""
    made = rows.build("uncertain")
    for tools in ("[]", '["counterfoil.providers.nowhere"]'):
        Path("counterfoil.toml").write_text(f"tools = {tools}\n")
        answer = cli("action", "explain", made, url=rows.database.url("reader"))
        assert answer.code == 0
        assert "Its tool is not loaded here, so its windows are not known here." in answer.out


def test_a_run_is_drawn_over_time(cli: Cli, rows: Rows, monkeypatch: pytest.MonkeyPatch) -> None:
    """In plain ASCII outside a terminal, no wider than COLUMNS; the table and the JSON stay."""
    made = rows.build("ready")
    rows.settle("uncertain", rows.ledger(), rows.claimed(rows.ledger(), made))
    monkeypatch.setenv("COLUMNS", "80")
    shown = cli("run", "show", "r1", url=rows.database.url("reader"))
    picture = shown.out[: shown.out.index("STEP")].splitlines()
    [line] = [line for line in picture if line.endswith("  uncertain")]
    assert line.startswith("s1 stripe_charge")
    assert re.search(r"1#*%+  uncertain$", line)
    assert max(map(len, picture)) <= 80
    assert shown.out.isascii()
    assert made in shown.out
    assert cli("run", "show", "r1", "--json", url=rows.database.url("reader")).json["actions"][0]["action_id"] == made


def test_hostile_text_is_inert(cli: Cli, rows: Rows) -> None:
    """Control characters, direction overrides, line breaks and markup in a target reach no terminal."""
    made = rows.build("ready", target=HOSTILE, step="s[bold]1\x1b[0m")
    for argv in (
        ("action", "list"),
        ("action", "show", made),
        ("action", "explain", made),
        ("run", "show", "r1"),
        ("run", "unwind", "r1", "--dry-run"),
    ):
        answer = cli(*argv, url=rows.database.url("operator"))
        assert answer.code == 0
        assert not set(answer.out) & set("\x1b\x07\u202e\r")
        assert not any(line.startswith("act_fake") for line in answer.out.splitlines())
    assert "[red]x[/red]" in cli("action", "list", url=rows.database.url("reader")).out
    listed = cli("action", "list", "--json", url=rows.database.url("reader"))
    assert listed.out.isascii()
    assert listed.json[0]["target"] == HOSTILE


def test_tenants_are_kept_apart(cli: Cli, rows: Rows) -> None:
    """--tenant filters lists, and decides where two tenants have a run of the same id."""
    rows.build("ready", tenant="acme")
    rows.build("ready", tenant="globex")
    url = rows.database.url("operator")
    assert len(cli("action", "list", "--json", url=url).json) == 2
    [listed] = cli("action", "list", "--tenant", "globex", "--json", url=url).json
    assert listed["tenant"] == "globex"
    answer = cli("run", "unwind", "r1", url=url)
    assert answer.code == 2
    assert "acme, globex" in answer.err
    assert cli("run", "unwind", "r1", "--tenant", "globex", url=url).code == 0
    states = rows.all("SELECT tenant, state FROM counterfoil.run ORDER BY tenant")
    assert [(row["tenant"], row["state"]) for row in states] == [("acme", "open"), ("globex", "unwinding")]


@pytest.mark.parametrize(
    ("state", "code", "after"),
    [
        ("ready", 0, "cancelled"),
        ("executing", 0, "executing"),
        ("uncertain", 0, "uncertain"),
        ("operator_review", 6, "operator_review"),
        ("succeeded", 4, "succeeded"),
    ],
)
def test_cancel_withdraws_only_what_was_not_sent(cli: Cli, rows: Rows, state: str, code: int, after: str) -> None:
    """What may have been sent stays in doubt and is never sent again; what is settled is refused."""
    made = rows.build(state, tool="stripe_charge")
    answer = cli("action", "cancel", made, "--reason", "wrong order", url=rows.database.url("operator"))
    row = rows.read(made)
    assert (answer.code, row["state"]) == (code, after)
    assert row["no_resend"] is (state in ("executing", "uncertain", "operator_review"))
    if after == "cancelled":
        assert row["change_reason"] == "wrong order"


def test_dry_runs_change_nothing_and_name_each_step(cli: Cli, rows: Rows) -> None:
    """The plans of unwind and cancel: what each step would meet, and not a row is different."""
    made = {state: rows.build(state) for state in ("ready", "uncertain", "operator_review", "succeeded", "cancelled")}
    rows.build("succeeded", compensation=None)
    url, before = rows.database.url("operator"), rows.all("SELECT action_id, state, updated_at FROM counterfoil.action")
    unwind = cli("run", "unwind", "r1", "--dry-run", "--json", url=url).json
    found = {step["action_id"]: (step["standing"], step["why"], step["undo_tool"]) for step in unwind["steps"]}
    assert [found[made[state]][0] for state in made] == ["withdraw", "evidence", "person", "compensate", "nothing"]
    assert found[made["succeeded"]] == ("compensate", None, "stripe_refund")
    assert ("correct", None, None) in found.values()
    said = cli("run", "unwind", "r1", "--dry-run", url=url).out
    for words in (
        "withdrawn: nothing was sent",
        "compensated by stripe_refund",
        "goes to a person: nothing takes it back",
    ):
        assert words in said
    cancel = cli("run", "cancel", "r1", "--dry-run", "--json", url=url)
    would = {step["action_id"]: step["would"] for step in cancel.json["steps"]}
    assert [would[made[state]] for state in made] == ["withdraw", *["send nothing again"] * 2, "leave", "leave"]
    assert cancel.code == 6, "one of its steps waits for a person"
    assert rows.all("SELECT action_id, state, updated_at FROM counterfoil.action") == before
    assert rows.one("SELECT state FROM counterfoil.run")["state"] == "open"


def test_cancelling_a_run_closes_it_first(cli: Cli, rows: Rows) -> None:
    """What was not sent is withdrawn, what was done stays done, and the run takes nothing more."""
    waiting, done = rows.build("ready"), rows.build("succeeded")
    assert cli("run", "cancel", "r1", url=rows.database.url("operator")).code == 0
    assert (rows.read(waiting)["state"], rows.read(done)["state"]) == ("cancelled", "succeeded")
    assert rows.one("SELECT state FROM counterfoil.run")["state"] == "closed"


def test_db_check_tells_role_tenants_and_schema(cli: Cli, rows: Rows) -> None:
    """Each login learns its own; one in no group is refused."""
    shown = cli("db", "check", "--json", url=rows.database.url("agent")).json
    assert (shown["groups"], sorted(shown["tenants"])) == (["counterfoil_agent"], ["acme", "globex"])
    assert shown["schema"]
    assert cli("db", "check", url=rows.database.url("worker")).code == 0


def test_db_grant_refuses_what_does_not_exist(cli: Cli, rows: Rows) -> None:
    """An unknown group or login ends with 2, and no principal was written."""
    url = rows.database.url("owner")
    before = rows.all("SELECT * FROM counterfoil.principal")
    assert cli("db", "grant", "cf_agent", "--as", "boss", "--tenant", "acme", url=url).code == 2
    assert cli("db", "grant", "nobody_here", "--as", "agent", "--tenant", "acme", url=url).code == 2
    assert cli("db", "grant", "cf_agent", "--as", "agent", "--tenant", "x", url=rows.database.url("agent")).code == 4
    assert rows.all("SELECT * FROM counterfoil.principal") == before


def test_config_check_reaches_database_and_broker(cli: Cli, rows: Rows, valkey: tuple[str, str]) -> None:
    """--connect: exit 5 and one line for each that is away, the fleet's counters too (2: no Redis at all); no password."""
    url = rows.database.url("worker")
    assert cli("config", "check", "--connect", url=url, COUNTERFOIL_BROKER__URL=valkey[0]).code == 0
    away = cli("config", "check", "--connect", url=url, COUNTERFOIL_BROKER__URL="redis://:s3cret@127.0.0.1:1/0")
    assert (away.code, away.out) == (5, "")
    assert away.err.startswith("counterfoil: broker_unavailable: ")
    assert "s3cret" not in away.err
    assert len(away.err.splitlines()) == 2
    assert cli("config", "check", "--connect", url=NOWHERE, COUNTERFOIL_BROKER__URL=valkey[0]).code == 5
    both = {"COUNTERFOIL_BROKER__URL": valkey[0], "COUNTERFOIL_ADMISSION__URL": valkey[0]}
    assert (
        "database, broker and the fleet's counters answer" in cli("config", "check", "--connect", url=url, **both).out
    )
    for wrong, code in (("redis://:s3cret@127.0.0.1:1/0", 5), ("http://:s3cret@127.0.0.1:1", 2)):
        alone = cli("config", "check", "--connect", url=url, **{**both, "COUNTERFOIL_ADMISSION__URL": wrong})
        assert (alone.code, alone.out) == (code, "")
        assert "ADMISSION__URL" in alone.err or "[admission] url" in alone.err
        assert "s3cret" not in alone.err


@pytest.mark.parametrize("file", ["sql/show.sql", "sql/check.sql"])
def test_every_query_of_the_command_line_prepares(rows: Rows, file: str) -> None:
    """Against the real schema, under the reader's login but for what is said in an action."""
    for name, query in load("counterfoil.cli", file).items():
        role = "operator" if name in ("said_in_action", "proved_in_action", "results_of_staged") else "reader"
        with psycopg.connect(rows.database.url(role)) as connection:
            connection.execute(query.psycopg.encode(), dict.fromkeys(query.parameters), prepare=True)
