"""The command line before it reaches a ledger: what it refuses, in which words, and with which exit code."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from tests.integration.terminal import Cli, terminal

from counterfoil.cli.main import EXTRAS, main
from counterfoil.ledger.errors import CounterfoilError

NOWHERE = "postgresql://nobody:s3cret@127.0.0.1:1/none"


@pytest.fixture
def cli(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Cli:
    return terminal(monkeypatch, tmp_path, capsys)


@pytest.mark.parametrize("argv", [("--help",), ("run", "--help"), ("action", "show", "--help")])
def test_help_loads_nothing_that_takes_time(argv: tuple[str, ...]) -> None:
    """Help imports no celery, stripe, alembic or psycopg."""
    code = (
        "import sys\nfrom counterfoil.cli.main import main\n"
        f"try:\n    main({list(argv)!r})\nexcept SystemExit as end:\n    assert not end.code\n"
        "slow = {'celery', 'kombu', 'stripe', 'jira', 'alembic', 'sqlalchemy', 'psycopg', 'rich', 'psutil'}\n"
        "print('loaded:', sorted(slow & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "loaded: []"


def test_version(cli: Cli) -> None:
    """The installed version, and done."""
    answer = cli("--version")
    assert (answer.code, answer.out) == (0, "counterfoil 0.1.0\n")


def test_every_verb_has_an_example() -> None:
    """The help of each verb shows at least one command line to copy."""
    from counterfoil.cli import (
        action,
        alarm,
        budget,
        config,
        correction,
        db,
        outbox,
        proposal,
        provider,
        review,
        run,
        tool,
    )
    from counterfoil.cli.main import app

    nouns = (action, alarm, budget, config, correction, db, outbox, proposal, provider, review, run, tool)
    for noun in (*(each.app for each in nouns), app):
        for command in noun.registered_commands:
            assert command.callback is not None
            assert "\n    counterfoil " in (command.callback.__doc__ or ""), command.callback.__name__


@pytest.mark.parametrize("verb", [("action", "list"), ("run", "list"), ("action", "show", "act_" + "a" * 26)])
def test_a_database_that_is_away_is_one_line_and_5(cli: Cli, verb: tuple[str, ...]) -> None:
    """No traceback, no password, exit code 5."""
    answer = cli(*verb, url=NOWHERE)
    assert answer.code == 5
    assert answer.out == ""
    assert answer.err.splitlines() == [
        "counterfoil: ledger_unavailable: cannot connect to the database: connection to server at"
        ' "127.0.0.1", port 1 failed: Connection refused.',
        "  fix: Is it running, and is [database] url right?",
    ]


def test_debug_shows_the_traceback(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    """With --debug, anywhere on the line, the error itself comes through."""
    monkeypatch.setenv("COUNTERFOIL_DATABASE__URL", NOWHERE)
    with pytest.raises(CounterfoilError):
        main(["action", "list", "--debug"])


def test_no_database_at_all_says_what_to_set(cli: Cli) -> None:
    """Without configuration and without a local stack: exit 2, and nothing is made in the folder."""
    answer = cli("action", "list")
    assert answer.code == 2
    assert "no database is configured" in answer.err
    assert "counterfoil up" in answer.err
    assert list(Path().iterdir()) == []


def test_a_wrong_key_is_answered_with_the_nearest(cli: Cli) -> None:
    """An unknown setting ends with 2 and names the one that was meant."""
    Path("counterfoil.toml").write_text("[workers]\nlease_seconds = 9\n")
    answer = cli("config", "check")
    assert answer.code == 2
    assert "workers.lease_seconds is no setting" in answer.err
    assert "lease_s" in answer.err.splitlines()[1]


@pytest.mark.parametrize(
    ("written", "fix"),
    [
        ('[approval]\naudiences_always = "public"\n', 'In square brackets, each in quotes: ["…", "…"].'),
        ('[tool.stripe_charge]\napproval = "never"\n', "ask for more approvals than a tool's code, never for fewer."),
    ],
)
def test_a_wrong_value_is_answered_with_what_it_takes(cli: Cli, written: str, fix: str) -> None:
    """A text where a list stands, a permission where only a demand can stand: exit 2, and what to write instead."""
    Path("counterfoil.toml").write_text(written)
    answer = cli("config", "check")
    assert answer.code == 2
    assert fix in answer.err.splitlines()[1]


def test_a_notify_command_that_is_not_here_is_warned_of(cli: Cli) -> None:
    """It need not be where the check runs, but on the workers' machines: sound, with a warning."""
    Path("counterfoil.toml").write_text('[notify]\ncommand = ["/nowhere/page-someone"]\n')
    answer = cli("config", "check")
    assert answer.code == 0
    assert "warning: notify.command: /nowhere/page-someone is not found on this machine" in answer.out
    assert len(cli("config", "check", "--json").json["warnings"]) == 1


def test_an_unknown_tool_is_answered_with_the_nearest(cli: Cli) -> None:
    """`tool check` of a name that is not there: exit 3 and the nearest name; in the configuration: exit 2."""
    tools = 'tools = ["counterfoil.providers.stripe.tools"]\n'
    Path("counterfoil.toml").write_text(tools)
    answer = cli("tool", "check", "stripe_chrge")
    assert (answer.code, answer.out) == (3, "")
    assert "stripe_charge" in answer.err
    Path("counterfoil.toml").write_text(tools + "[tool.stripe_refunds]\napproval = 'always'\n")
    answer = cli("config", "check")
    assert answer.code == 2
    assert "stripe_refund" in answer.err.splitlines()[1]


def test_a_module_that_is_not_there_is_2(cli: Cli) -> None:
    """A typing mistake in `tools` is a configuration mistake, not a traceback."""
    Path("counterfoil.toml").write_text('tools = ["counterfoil.providers.strpe.tools"]\n')
    answer = cli("tool", "list")
    assert answer.code == 2
    assert "counterfoil.providers.strpe" in answer.err
    assert "Traceback" not in answer.err


def test_tools_beside_the_configuration_are_found(cli: Cli) -> None:
    """Modules in the working directory load, as under celery; they come last, so they hide nothing."""
    Path("my_tools_of_this_test.py").write_text(
        "from counterfoil.providers.tool import tool\n\n"
        "@tool(cls='irreversible', effect='mail', target='order_id', once_per='order_id', audience=['customer'],"
        " uncertain='operator_review', approval='never')\n"
        "def mail_send(order_id: str) -> dict:\n    return {}\n"
    )
    Path("counterfoil.toml").write_text('tools = ["my_tools_of_this_test"]\n')
    [shown] = cli("tool", "list", "--json").json
    assert (shown["name"], shown["grade"], shown["approval"]) == ("mail_send", "D", "never")
    plain = cli("tool", "list").out
    assert "mail_send" in plain
    assert "never" in plain


@pytest.mark.parametrize("package", ["celery", "psutil", "aiohttp"])
def test_a_missing_extra_says_how_to_get_it(cli: Cli, monkeypatch: pytest.MonkeyPatch, package: str) -> None:
    """A package that an extra brings is asked for by the extra's name, exit 2."""

    def refuse() -> None:
        raise ModuleNotFoundError(f"No module named {package!r}", name=f"{package}.inner")

    monkeypatch.setattr("counterfoil.cli.place.load_settings", lambda _config: refuse())
    answer = cli("config", "show")
    assert answer.code == 2
    assert f"'.[{EXTRAS[package]}]'" in answer.err


@pytest.mark.parametrize("argv", [("bogus",), ("action", "list", "--bogus"), ("action", "show"), ("db", "grant", "x")])
def test_usage_mistakes_are_2(cli: Cli, argv: tuple[str, ...]) -> None:
    """Unknown nouns and options, and missing arguments."""
    answer = cli(*argv)
    assert (answer.code, answer.out) == (2, "")


def test_a_state_that_is_none_is_refused(cli: Cli) -> None:
    """`--state` takes the ledger's states alone; a typing mistake does not show an empty list."""
    assert cli("action", "list", "--state", "sucess").code == 2


def test_db_roles_prints_sql_without_a_database(cli: Cli) -> None:
    """For an administrator to read: needs no connection."""
    answer = cli("db", "roles", "--sql", "--database", 'a"b')
    assert answer.code == 0
    assert '"a""b"' in answer.out


def test_config_show_hides_what_holds_a_password(cli: Cli) -> None:
    """URLs and keys are stars, in both forms."""
    Path("counterfoil.toml").write_text('[providers.stripe]\napi_key = "sk_live_abc"\n')
    for form in ((), ("--json",)):
        answer = cli("config", "show", *form, url=NOWHERE)
        assert answer.code == 0
        assert "s3cret" not in answer.out
        assert "sk_live_abc" not in answer.out
        assert "lease_s" in answer.out


@pytest.mark.parametrize(
    ("table", "key", "told"),
    [
        ("[effect.chrage]\ncount_per_day_max = 5", "effect.chrage", "'charge'"),
        ("[tool.stripe_chrage]\ncount_per_day_max = 5", "tool.stripe_chrage", "'stripe_charge'"),
        ("[tool.jira_close]\namount_per_day_max_minor = 5", "tool.jira_close.amount_per_day_max_minor", "amount"),
        ("[effect.charge]\ncount_per_day_max = 5", None, ""),
    ],
)
def test_config_check_refuses_caps_of_nothing(cli: Cli, table: str, key: str | None, told: str) -> None:
    """A cap that would stop nothing, as after a slip of the pen, or everything, is no sound configuration."""
    tools = '["counterfoil.providers.stripe.tools", "counterfoil.providers.jira.tools"]'
    Path("counterfoil.toml").write_text(f"tools = {tools}\n{table}\n")
    answer = cli("config", "check", url=NOWHERE)
    assert answer.code == (0 if key is None else 2)
    assert key is None or (key in answer.err and told in answer.err)


def test_an_unexpected_error_names_its_type_alone(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its message may hold a row's arguments: exit 1, no traceback, no message."""
    monkeypatch.setattr("counterfoil.cli.place.load_settings", lambda _config: 1 // 0 or {"private": 1})
    answer = cli("config", "show")
    assert answer.code == 1
    assert answer.err.startswith("counterfoil: error: unexpected ZeroDivisionError.")
    assert "Traceback" not in answer.err
