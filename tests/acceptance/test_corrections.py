"""What an unwind makes of effects that nothing takes back: a person decides what those are told who saw them."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import pytest
from tests.acceptance.office import NO_ADDRESS, Office

from counterfoil import Counterfoil
from counterfoil.providers.registry import Registry
from counterfoil.testing import World

if TYPE_CHECKING:
    pass

MAIL = {"order": "1182", "to": "c@example.com", "subject": "Your parcel"}
POINTS = ("before_claim", "after_claim", "before_settle", "after_settle")


@pytest.fixture
def office(world: World, use_tools: Callable[..., None], monkeypatch: pytest.MonkeyPatch) -> Office:
    """The world's only tools, which the command line loads, too."""
    made = Office(world)
    use_tools(*made.tools)
    monkeypatch.setattr(Registry, "load", classmethod(lambda cls, *_: world.registry))
    return made


@pytest.fixture
def open_ones(cli: Any) -> Callable[[], list[dict[str, Any]]]:
    """The corrections that wait, as `correction list` tells them."""

    def found() -> list[dict[str, Any]]:
        code, shown = cli("correction", "list", "--json")
        told: list[dict[str, Any]] = json.loads(shown)
        assert code == (6 if told else 0)
        return told

    return found


@pytest.fixture
def shown(cli: Any) -> Callable[[str], dict[str, Any]]:
    """A correction as `correction show` tells it."""
    return lambda name: json.loads(cli("correction", "show", name, "--json")[1])


@pytest.fixture
def mailed(world: World, office: Office, enqueue: Any, unwind: Any, open_ones: Any) -> str:
    """A run that has sent one mail is being taken back; its open correction."""
    enqueue("send_mail", MAIL, "mail")
    world.settle()
    unwind()
    world.settle()
    [correction] = open_ones()
    return str(correction["correction_id"])


def test_inside_silently_and_a_person_for_the_mail(
    world: World, office: Office, enqueue: Any, unwind: Any, run_state: Any, open_ones: Any, cli: Any
) -> None:
    """Ticket closed and charge refunded without a word; one correction waits for the mail, none for the charge."""
    enqueue("ticket", {"order": "1182"}, "ticket")
    enqueue("charge", {"order": "1182"}, "charge")
    enqueue("send_mail", MAIL, "mail")
    world.settle()
    code, plan = cli("run", "unwind", "r1", "--dry-run")
    assert (code, "goes to a person: nothing takes it back" in plan) == (0, True)
    handle = unwind()
    world.settle()
    assert office.undone() == ["charge 1182", "ticket 1182"]
    assert office.mail() == ["Your parcel"], "nobody is written to by itself"
    assert run_state() == "unwind_blocked"
    [waiting] = open_ones()
    assert (waiting["rank"], waiting["audience"], waiting["tool"]) == ("customer", ["customer"], "send_mail")
    stands = {step["step"]: (step["standing"], step["why"], step["correction_id"]) for step in handle.result().value}
    assert stands == {
        "ticket": ("nothing", None, None),
        "charge": ("nothing", None, None),
        "mail": ("person", "no_compensation", waiting["correction_id"]),
    }
    assert f"correction {waiting['correction_id']}" in cli("run", "show", "r1")[1]


def test_sent_once(world: World, office: Office, mailed: str, shown: Any, cli: Any, run_state: Any, sql: Any) -> None:
    """What was shown is sent as one message under a key of its own, and then the run is unwound."""
    told = shown(mailed)
    assert told["seen"]["arguments"] == MAIL
    assert (told["would_be_seen_by"], told["why_not"]) == (["customer"], None)
    assert told["call"] == {
        "tool": "send_mail",
        "arguments": {"order": "1182", "to": "customer-1182@example.com", "subject": "About 1182"},
    }
    assert told["digest"] == hashlib.sha256(
        sql("SELECT call FROM counterfoil.correction")[0][0].encode()).hexdigest()  # fmt: skip
    code, would = cli("correction", "send", mailed, "--dry-run")
    assert (code, told["digest"][:16] in would, office.mail()) == (0, True, ["Your parcel"])
    assert cli("correction", "send", mailed, "--digest", told["digest"][:16])[0] == 0
    assert cli("correction", "send", mailed, "--digest", told["digest"])[0] == 4, "a second click"
    world.settle()
    assert office.mail() == ["Your parcel", "About 1182"]
    assert len(set(office.keys_of_mail())) == 2
    assert run_state() == "unwound"
    [(phase, parent, needs_approval, consumed, verdict, channel)] = sql(
        "SELECT a.phase, p.tool, a.needs_approval, g.consumed_at IS NOT NULL, d.verdict, d.channel"
        " FROM counterfoil.action a JOIN counterfoil.action p ON p.action_id = a.parent_action_id"
        " JOIN counterfoil.approval g ON g.action_id = a.action_id JOIN counterfoil.decision d ON d.subject_id = g.subject_id"
    )
    assert (phase, parent, needs_approval, consumed) == ("correct", "send_mail", True, True)
    assert (verdict, channel) == ("sent", "cli")
    assert "was sent" in cli("run", "show", "r1")[1]


def test_dismissed(world: World, office: Office, mailed: str, cli: Any, run_state: Any, open_ones: Any) -> None:
    """A person leaves it unsaid: no message, the run is unwound, and nothing can be sent of it any more."""
    assert cli("correction", "dismiss", mailed, "--reason", "told them by phone")[0] == 0
    world.settle()
    assert (run_state(), office.mail(), open_ones()) == ("unwound", ["Your parcel"], [])
    assert cli("correction", "send", mailed, "--digest", "0" * 16)[0] == 4
    assert cli("correction", "dismiss", mailed, "--reason", "again")[0] == 4
    assert cli("correction", "edit", mailed, "--set", "subject=x")[0] == 4
    shown = cli("run", "show", "r1")[1]
    assert f"stays done: {mailed} was dismissed" in shown
    assert cli("correction", "list", "--all")[1].count("dismissed") == 1


def test_edited_before_it_is_sent(
    world: World, office: Office, mailed: str, shown: Any, cli: Any, run_state: Any
) -> None:
    """The tool checks what a person writes; what was shown before the edit is not sent any more."""
    before = shown(mailed)["digest"]
    assert cli("correction", "edit", mailed, "--set", "subject=Please ignore our mail")[0] == 0
    assert cli("correction", "edit", mailed, "--set", "colour=red")[0] == 2
    assert cli("correction", "edit", mailed)[0] == 2
    assert cli("correction", "edit", mailed, "--tool", "take_back", "--set", "order=1")[0] == 2
    assert cli("correction", "send", mailed, "--digest", before)[0] == 4
    world.settle()
    assert (office.mail(), run_state()) == (["Your parcel"], "unwind_blocked")
    after = shown(mailed)
    assert [d["verdict"] for d in after["decisions"]] == ["edited"]
    assert cli("correction", "send", mailed, "--digest", after["digest"])[0] == 0
    world.settle()
    assert office.mail() == ["Your parcel", "Please ignore our mail"]
    assert run_state() == "unwound"


@pytest.mark.parametrize("call", ["{}", '{"tool":"send_mail"}', '{"arguments":[],"tool":7}'])
def test_what_an_agent_wrote_past_the_front_door(mailed: str, shown: Any, cli: Any, sql: Any, call: str) -> None:
    """A call that is none counts as unwritten: it is listed and shown, and a person writes it."""
    sql("UPDATE counterfoil.correction SET call = %s", call)
    assert shown(mailed)["call"] is None
    assert cli("correction", "show", mailed)[0] == 0
    assert cli("correction", "send", mailed, "--digest", shown(mailed)["digest"])[0] == 4
    words = ("--set", "order=1182", "--set", "to=c@example.com", "--set", "subject=Sorry")
    assert cli("correction", "edit", mailed, "--tool", "send_mail", *words)[0] == 0
    assert cli("correction", "send", mailed, "--digest", shown(mailed)["digest"])[0] == 0


def test_too_few_digits_and_somebody_else_s_text(
    world: World, office: Office, mailed: str, shown: Any, cli: Any
) -> None:
    """Fewer than 16 digits, or digits of another text, send nothing."""
    digest = shown(mailed)["digest"]
    assert cli("correction", "send", mailed, "--digest", digest[:15])[0] == 2
    assert cli("correction", "send", mailed, "--digest", "f" * 64)[0] == 4
    assert cli("correction", "send", mailed)[0] == 2
    for unset in ("", " ", "C-"):
        assert cli("correction", "send", unset, "--digest", digest)[0] == 2, "a script's empty variable"
        assert cli("correction", "dismiss", unset, "--reason", "no")[0] == 2
    world.settle()
    assert office.mail() == ["Your parcel"]


def test_the_actor_does_not_decide(
    world: World, office: Office, mailed: str, shown: Any, cli: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever goes by the actor's name cannot send what the actor wrote."""
    monkeypatch.setenv("COUNTERFOIL_PERSON", " Bot")
    assert cli("correction", "send", mailed, "--digest", shown(mailed)["digest"])[0] == 4
    world.settle()
    assert office.mail() == ["Your parcel"]


def test_a_message_that_was_refused_is_open_again(
    world: World, office: Office, mailed: str, shown: Any, cli: Any, run_state: Any, open_ones: Any, sql: Any
) -> None:
    """Refused for good, its correction waits once more, and the next message is the next revision under another key."""
    world.sandbox.mail.fault("answer", on="messages.send", status=403)
    assert cli("correction", "send", mailed, "--digest", shown(mailed)["digest"])[0] == 0
    world.settle()
    assert (run_state(), [c["correction_id"] for c in open_ones()]) == ("unwind_blocked", [mailed])
    assert cli("correction", "send", mailed, "--digest", shown(mailed)["digest"])[0] == 0
    world.settle()
    assert office.mail() == ["Your parcel", "About 1182"]
    assert run_state() == "unwound"
    revisions = sql("SELECT revision, state FROM counterfoil.action WHERE phase = 'correct' ORDER BY revision")
    assert revisions == [(1, "permanent_failure"), (2, "succeeded")]
    assert len(set(sql("SELECT key FROM counterfoil.action WHERE phase = 'correct'"))) == 2


def test_approved_and_never_claimed(
    world: World, office: Office, mailed: str, shown: Any, cli: Any, open_ones: Any, run_state: Any
) -> None:
    """Without a worker for a day the decision lapses: nothing is sent, and the correction waits once more."""
    assert cli("correction", "send", mailed, "--digest", shown(mailed)["digest"])[0] == 0
    world.advance(86_401)
    world.settle()
    assert office.mail() == ["Your parcel"]
    assert ([c["correction_id"] for c in open_ones()], run_state()) == ([mailed], "unwind_blocked")


def test_found_after_all(
    world: World,
    office: Office,
    mailed: str,
    shown: Any,
    cli: Any,
    open_ones: Any,
    run_state: Any,
    sql: Any,
    decide: Any,
) -> None:
    """While it is not sure that a message that ended without effect stayed unsent, nobody can send a second one."""
    world.sandbox.mail.fault("answer", on="messages.send", status=403)
    assert cli("correction", "send", mailed, "--digest", shown(mailed)["digest"])[0] == 0
    world.settle()
    sql("UPDATE counterfoil.action SET state = 'operator_review', changed_by = 'watch' WHERE phase = 'correct'")
    assert open_ones() == []
    assert cli("correction", "send", mailed, "--digest", shown(mailed)["digest"])[0] == 4
    world.settle()
    assert run_state() == "unwind_blocked"
    sql("UPDATE counterfoil.action SET state = 'succeeded', receipt = 'msg_1' WHERE phase = 'correct'")
    world.settle()
    assert (run_state(), open_ones(), office.mail()) == ("unwound", [], ["Your parcel"])


def test_visited_again_and_again(
    world: World, office: Office, mailed: str, unwind: Any, sql: Any, cli: Any, run_state: Any
) -> None:
    """A run that is visited, asked for and finished more than once has one correction, decided once."""
    for _ in range(3):
        unwind()
        world.settle()
    assert cli("correction", "dismiss", mailed, "--reason", "no")[0] == 0
    for _ in range(3):
        unwind()
        world.settle()
    assert sql("SELECT count(*), min(state) FROM counterfoil.correction") == [(1, "dismissed")]
    assert (run_state(), office.mail()) == ("unwound", ["Your parcel"])


@pytest.mark.parametrize(("receipt", "open_then"), [(True, 1), (False, 0)])
def test_a_refund_is_told_only_to_whom_the_charge_was_told(
    world: World, office: Office, enqueue: Any, unwind: Any, run_state: Any, open_ones: Any, cli: Any, shown: Any,
    receipt: bool, open_then: int,
) -> None:  # fmt: skip
    """With a receipt a person may write a line, and the run is unwound all the same; without one there is nothing to say."""
    enqueue("charge", {"order": "1182", "receipt": receipt}, "charge")
    world.settle()
    unwind()
    world.settle()
    assert (office.undone(), run_state()) == (["charge 1182"], "unwound")
    waiting = open_ones()
    assert len(waiting) == open_then
    for each in waiting:
        assert f"taken back; correction {each['correction_id']} is open" in cli("run", "show", "r1")[1]
        assert (
            cli("correction", "send", each["correction_id"], "--digest", shown(each["correction_id"])["digest"])[0] == 0
        )
        world.settle()
        assert (office.mail(), run_state()) == (["About 1182"], "unwound")


def test_a_correction_that_could_not_be_written(
    world: World, office: Office, enqueue: Any, unwind: Any, open_ones: Any, cli: Any, shown: Any, run_state: Any
) -> None:
    """The charge of an order without an address: a person writes the correction anew, with a tool of their choice."""
    enqueue("charge", {"order": NO_ADDRESS, "receipt": True}, "charge")
    world.settle()
    unwind()
    world.settle()
    [waiting] = open_ones()
    name = waiting["correction_id"]
    assert shown(name)["call"] is None
    assert "nobody has written what to say" in cli("correction", "show", name)[1]
    assert cli("correction", "send", name, "--digest", "0" * 16)[0] == 4
    assert cli("correction", "edit", name, "--set", "subject=Refunded")[0] == 2, "said with which tool?"
    written = ("--tool", "send_mail", "--set", "order=9", "--set", "to=j@example.com", "--set", "subject=Refunded")
    assert cli("correction", "edit", name, *written)[0] == 0
    assert cli("correction", "send", name, "--digest", shown(name)["digest"][:20])[0] == 0
    world.settle()
    assert (office.mail(), run_state()) == (["Refunded"], "unwound")


@pytest.mark.parametrize("order", ["1182", NO_ADDRESS])
def test_what_cannot_be_corrected_needs_a_person_first(
    world: World, office: Office, client: Callable[..., Counterfoil], order: str
) -> None:
    """`approval="never"`, and a correction that these arguments do not fill: the call waits for an approval."""
    run = client().run("r1", tenant="acme", actor="bot")
    answer = run.call("send_mail", {**MAIL, "order": order}, wait_s=0)
    world.settle()
    assert answer.status == ("awaiting_approval" if order == NO_ADDRESS else "pending")
    assert office.mail() == ([] if order == NO_ADDRESS else ["Your parcel"])


def test_nobody_saw_it(world: World, office: Office, enqueue: Any, unwind: Any, run_state: Any, open_ones: Any) -> None:
    """An irreversible note that only the agent reads stays, and nobody is asked anything."""
    enqueue("memo", {"order": "1182"}, "memo")
    world.settle()
    handle = unwind()
    world.settle()
    assert (run_state(), open_ones()) == ("unwound", [])
    [step] = handle.result().value
    assert (step["state"], step["standing"], step["why"]) == ("succeeded", "kept", "unseen")


def test_listed_by_how_far_it_went(
    world: World, office: Office, enqueue: Any, client: Callable[..., Counterfoil], sql: Any, cli: Any, open_ones: Any
) -> None:
    """Customers before the public, whichever was first; a child run's are taken back with its parent."""
    parent = client().run("r1", tenant="acme", actor="bot")
    parent.child("a").call("send_mail", MAIL, wait_s=0)
    world.settle()
    enqueue("send_mail", {**MAIL, "subject": "Second"}, "late", "r1")
    world.settle()
    sql("ALTER TABLE counterfoil.action DISABLE TRIGGER action_guard")
    sql("UPDATE counterfoil.action SET audience = '{public}' WHERE run = 'r1/a'")
    sql("ALTER TABLE counterfoil.action ENABLE TRIGGER action_guard")
    parent.unwind("stop")
    world.settle()
    assert [(c["rank"], c["run"]) for c in open_ones()] == [("customer", "r1"), ("public", "r1/a")]
    assert sql("SELECT run, state FROM counterfoil.run ORDER BY run") == [
        ("r1", "unwind_blocked"),
        ("r1/a", "unwind_blocked"),
    ]
    for each in open_ones():
        assert cli("correction", "dismiss", each["correction_id"], "--reason", "no")[0] == 0
    world.settle()
    assert sql("SELECT DISTINCT state FROM counterfoil.run") == [("unwound",)]


def test_a_tool_that_is_not_loaded_here(
    world: World, office: Office, mailed: str, shown: Any, cli: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is shown, with why it cannot be sent from here; it can be dismissed."""
    digest = shown(mailed)["digest"]
    monkeypatch.setattr(Registry, "load", classmethod(lambda cls, *_: Registry()))
    assert "send_mail" in shown(mailed)["why_not"]
    assert "cannot be sent" in cli("correction", "show", mailed)[1]
    assert cli("correction", "send", mailed, "--digest", digest)[0] == 2
    assert cli("correction", "dismiss", mailed, "--reason", "no")[0] == 0
