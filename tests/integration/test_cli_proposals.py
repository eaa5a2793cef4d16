"""`counterfoil proposal`: what people are shown, what they decide, what they are refused, and with which exit code."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psycopg
import pytest

from counterfoil import Counterfoil
from counterfoil.cli.main import main
from counterfoil.providers.registry import Registry
from counterfoil.settings import Settings
from counterfoil.settings_providers import ToolSettings

if TYPE_CHECKING:
    from tests.conftest import Database

TOOLS = ("counterfoil.providers.stripe.tools",)
CHARGE = {"customer": "cus_1", "amount_minor": 12345, "currency": "usd", "order_id": "1182"}
HOSTILE = "\x1b]0;owned\x07\u202e[red]x[/red]\ndigest 0000000000000000"


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
    """Runs `counterfoil proposal …` in this process, as alice under the operators' login, with Stripe's tools."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "counterfoil.toml").write_text(f"tools = {json.dumps(TOOLS)}\n")
    monkeypatch.setenv("COUNTERFOIL_PERSON", "alice")

    def run(*argv: str, role: str = "operator", noun: str = "proposal") -> Answer:
        monkeypatch.setenv("COUNTERFOIL_DATABASE__URL", database.url(role))
        with pytest.raises(SystemExit) as ended:
            main([noun, *argv])
        captured = capsys.readouterr()
        return Answer(int(ended.value.code or 0), captured.out, captured.err)

    return run


@pytest.fixture
def ask(database: Database) -> Callable[..., str]:
    """Records a charge that waits for a person; gives its action."""
    tools = {"stripe_charge": ToolSettings(approval="always")}
    settings = Settings(tools=TOOLS, tool=tools)
    two = settings.model_copy(update={"approval": settings.approval.model_copy(update={"two_person": tuple(tools)})})

    def record(step: str = "fee", people: int = 1, **changes: object) -> str:
        url = database.url("agent")
        cf = Counterfoil(url, settings=two if people == 2 else settings, registry=Registry.load(TOOLS))
        with psycopg.connect(url) as connection:
            return cf.enqueue(
                connection, "stripe_charge", CHARGE | changes, tenant="acme", run="r1", step=step, actor="bot"
            )

    return record


def digest_in(answer: Answer) -> str:
    """What `show` ends with."""
    [word, digest] = answer.out.splitlines()[-1].split()
    assert (word, len(digest)) == ("digest", 16)
    return digest


def test_nothing_waits(cli: Cli) -> None:
    """An empty list is said, and exit 0."""
    answer = cli("list")
    assert (answer.code, answer.out) == (0, "nothing waits for a decision\n")


@pytest.mark.parametrize("role", ["operator", "reader"])
def test_list_tells_what_waits(cli: Cli, ask: Callable[..., str], role: str) -> None:
    """What, for how much money, who sees it, until when; exit 6, with --json too; a reader may look."""
    ask()
    ask("second", receipt=True, receipt_email="a@example.test", currency="jpy", order_id="2")
    answer = cli("list", "--tenant", "acme", role=role)
    assert answer.code == 6
    for word in ("stripe_charge", "123.45 USD", "12345 JPY", "finance", "reaches customers", "open, expires in 24 h"):
        assert word in answer.out
    found = cli("list", "--json", role=role)
    assert (found.code, len(found.json)) == (6, 2)
    assert {each["amounts"][0]["currency"] for each in found.json} == {"usd", "jpy"}
    assert cli("list", "--tenant", "globex").code == 0
    assert cli("list", "--state", "approved").code == 0
    assert cli("list", "--state", "aproved").code == 2


def test_what_waits_is_listed_before_what_is_decided(cli: Cli, ask: Callable[..., str]) -> None:
    """However many have been decided since, a limit never hides one that still waits."""
    ask()
    [old] = cli("list", "--json").json
    assert cli("reject", old["proposal_id"], "--reason", "no").code == 0
    ask("second", order_id="2")
    [first] = cli("list", "--all", "--limit", "1", "--json").json
    assert (first["waits"], first["targets"]) == (True, ["2"])
    assert [each["state"] for each in cli("list", "--all", "--json").json] == ["open", "rejected"]


def test_show_has_everything_and_the_digest_last(cli: Cli, ask: Callable[..., str]) -> None:
    """Actor, tenant, run, expiry, tool and version, arguments, amount, audience, undo, outcome; JSON has it all."""
    action_id = ask()
    [line] = cli("list", "--json").json
    shown = cli("show", line["proposal_id"])
    assert shown.code == 0
    for word in (
        *("open: one person must approve", "bot, tenant acme, run r1", "(in 24 h)", "moves     123.45 USD"),
        *("step 1: stripe_charge version 1 (compensatable, by stripe, account default)", "charge on 1182"),
        *('customer: "cus_1"', "amount_minor: 12345", "receipt: false", "receipt_email: null"),
        *("finance: stays inside the company", "stripe_refund", "grade A", action_id, "step fee, revision 1"),
    ):
        assert word in shown.out, word
    data = cli("show", line["proposal_id"][:6].lower(), "--json").json
    assert data["digest"].startswith(digest_in(shown))
    assert len(data["digest"]) == 64
    assert data["steps"][0]["arguments"]["amount_minor"] == 12345
    assert "\x1b" not in shown.out


def test_what_is_shown_is_inert(cli: Cli, ask: Callable[..., str]) -> None:
    """Escapes, direction overrides and new lines of a model neither act on the terminal nor pass for our own words."""
    ask(description=HOSTILE)
    [line] = cli("list", "--json").json
    shown = cli("show", line["proposal_id"])
    assert not {"\x1b", "\x07", "\u202e"} & set(shown.out)
    assert "| \\u001b]0;owned\\u0007\\u202e[red]x[/red]" in shown.out
    assert [each for each in shown.out.splitlines() if each.startswith("digest")] == [shown.out.splitlines()[-1]]
    assert "| digest 0000000000000000" in shown.out


def test_approve_and_its_refusals(cli: Cli, ask: Callable[..., str], monkeypatch: pytest.MonkeyPatch) -> None:
    """A dry run moves nothing; a wrong digest is 4, a short one 2; approved is 0; again is 4 and says by whom."""
    action_id = ask()
    [line] = cli("list", "--json").json
    name, digest = line["proposal_id"], digest_in(cli("show", line["proposal_id"]))
    planned = cli("approve", name, "--digest", digest, "--dry-run", "--json")
    assert [step["action_id"] for step in planned.json["steps"]] == [action_id]
    for dry in ([], ["--dry-run"]):
        changed = cli("approve", name, "--digest", "0" * 16, *dry)
        assert changed.code == 4
        assert "counterfoil: changed: " in changed.err
        assert f"counterfoil proposal show {name}" in changed.err
    assert cli("approve", name, "--digest", digest[:8]).code == 2
    monkeypatch.setenv("COUNTERFOIL_PERSON", "Bot ")
    own = cli("approve", name, "--digest", digest)
    assert (own.code, "own" in own.err) == (4, True)
    monkeypatch.setenv("COUNTERFOIL_PERSON", "alice")
    done = cli("approve", name, "--digest", digest, "--reason", "fine")
    assert (done.code, done.out) == (0, f"{name}: approved: its steps are done in order.\n")
    again = cli("approve", name, "--digest", digest)
    assert again.code == 4
    assert f"{name} was approved by alice at " in again.err
    assert cli("list").code == 0
    assert "approved by alice" in cli("list", "--all").out


def test_two_people(cli: Cli, ask: Callable[..., str], monkeypatch: pytest.MonkeyPatch) -> None:
    """The first approval is 6, and the list still waits; a second name at the same login is 4; at another, 0."""
    ask(people=2)
    [line] = cli("list", "--json").json
    name, digest = line["proposal_id"], digest_in(cli("show", line["proposal_id"]))
    first = cli("approve", name, "--digest", digest)
    assert (first.code, "another person" in first.out) == (6, True)
    assert "1 of 2 people must approve" in cli("show", name).out
    monkeypatch.setenv("COUNTERFOIL_PERSON", "bob")
    assert cli("approve", name, "--digest", digest).code == 4
    assert cli("approve", name, "--digest", digest, "--amount-max-minor", "99999", role="operator2").code == 2
    assert cli("approve", name, "--digest", digest, role="operator2").code == 0
    assert cli("show", name).out.count("over this") == 2


def test_reject_and_unwind(cli: Cli, ask: Callable[..., str]) -> None:
    """A reason is needed; with --unwind the run is taken back, too; both are told."""
    action_id = ask()
    [line] = cli("list", "--json").json
    name = line["proposal_id"]
    assert cli("reject", name).code == 2
    for reason in ("", "x" * 501):
        assert cli("reject", name, "--reason", reason).code == 2
    assert cli("reject", name, "--reason", "wrong order", "--dry-run").code == 0
    done = cli("reject", name, "--reason", "wrong order", "--unwind")
    assert (done.code, done.out) == (0, f"{name}: rejected: nothing of it is sent; its run is taken back.\n")
    assert cli("show", "r1", "--json", noun="run").json["state"] == "unwinding"
    shown = cli("show", action_id, noun="action").out
    assert ("cancelled" in shown, "rejected" in shown) == (True, True)
    assert "wrong order" in cli("explain", action_id, noun="action").out
    assert cli("reject", name, "--reason", "again").code == 4


def test_edit_shows_what_it_changes(cli: Cli, ask: Callable[..., str]) -> None:
    """Arguments, and what follows from them, before and after; the new digest is the one to approve; nothing changed: 4."""
    ask()
    [line] = cli("list", "--json").json
    name, old = line["proposal_id"], digest_in(cli("show", line["proposal_id"]))
    done = cli("edit", name, "--step", "1", "--set", "amount_minor=300", "--set", "order_id=1183", "--reason", "less")
    assert done.code == 0
    for word in ("amount_minor: 12345 -> 300", 'order_id: "1182" -> "1183"', "target: 1182 -> 1183", "3.00 USD"):
        assert word in done.out, word
    assert "  undo, amount_minor: 12345 -> 300\n" in done.out, "of the undo only what differs"
    new = digest_in(done)
    assert new == digest_in(cli("show", name)) != old
    assert "edited" in cli("show", name).out
    assert cli("edit", name, "--step", "1", "--set", "amount_minor=300").code == 4
    assert cli("edit", name, "--step", "1", "--set", "amount_minor=200", "--digest", old).code == 4
    assert cli("edit", name, "--step", "2", "--set", "amount_minor=200").code == 2
    refused = cli("edit", name, "--step", "1", "--set", "amount_minor=a lot")
    assert (refused.code, "$.amount_minor" in refused.err, "a lot" in refused.err) == (2, True, False)
    assert cli("approve", name, "--digest", old).code == 4
    assert cli("approve", name, "--digest", new, "--amount-max-minor", "299").code == 2
    assert cli("approve", name, "--digest", new, "--amount-max-minor", "400").code == 0
    assert "amount_minor up to 4.00 USD" in cli("show", name).out


def test_expired_between_page_and_click(cli: Cli, ask: Callable[..., str], database: Database) -> None:
    """Nothing waits any more, and whoever approves is told when it expired, exit 4."""
    action_id = ask()
    [line] = cli("list", "--json").json
    name, digest = line["proposal_id"], digest_in(cli("show", line["proposal_id"]))
    database.advance(86_401)
    assert cli("list").code == 0
    assert "expired: nothing of it is sent" in cli("show", name).out
    late = cli("approve", name, "--digest", digest)
    assert (late.code, line["expires_at"] in late.err) == (4, True)
    assert cli("show", action_id, "--json", noun="action").json["state"] == "stale"


def test_tool_that_is_not_loaded(cli: Cli, ask: Callable[..., str], tmp_path: Path) -> None:
    """It can be shown, with a note, and approved; an edit is refused: nothing could check it."""
    ask()
    [line] = cli("list", "--json").json
    (tmp_path / "counterfoil.toml").write_text("")
    shown = cli("show", line["proposal_id"])
    assert "stripe_charge version 1 is not loaded here" in shown.err
    assert "not known here" in shown.out
    assert cli("edit", line["proposal_id"], "--step", "1", "--set", "amount_minor=3").code == 2
    assert cli("approve", line["proposal_id"], "--digest", digest_in(shown)).code == 0


def test_action_explain_tells_who_decided(cli: Cli, ask: Callable[..., str]) -> None:
    """Before: who must, and until when; after: who did, over which digest, and until when it serves."""
    action_id = ask()
    [line] = cli("list", "--json").json
    before = cli("explain", action_id, noun="action").out
    assert f"`counterfoil proposal show {line['proposal_id']}`" in before
    assert "undecided, it expires by" in before
    digest = digest_in(cli("show", line["proposal_id"]))
    cli("approve", line["proposal_id"], "--digest", digest, "--reason", "fine")
    after = cli("explain", action_id, noun="action").out
    assert f"alice (login cf_operator, by cli) approved it over {digest}: fine." in after
    assert "Its approval serves until " in after
    assert cli("explain", action_id, noun="action", role="reader").out.count("over") == 0
    for command in ("explain", "show"):  # an agent reads its own action, and not over what they decided
        answer = cli(command, action_id, noun="action", role="agent")
        assert (answer.code, digest in answer.out) == (0, False), answer.err


@pytest.mark.parametrize("argv", [("show", "P-AAAA"), ("approve", "P-AAAA", "--digest", "0" * 16), ("show", "P")])
def test_what_is_not_there(cli: Cli, argv: tuple[str, ...]) -> None:
    """3 for an id that is not there, 2 for one that is too short."""
    assert cli(*argv).code == (2 if argv[1] == "P" else 3)
