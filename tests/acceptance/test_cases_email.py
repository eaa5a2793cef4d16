"""E-mail end to end: one mail or a person, the bytes that were approved on every attempt, and the correction afterwards."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from typing import Any

import pytest
from tests.acceptance.people import Person

from counterfoil import Counterfoil
from counterfoil.ledger.errors import IntentConflict
from counterfoil.ledger.proposals import Answer
from counterfoil.providers import messages
from counterfoil.providers.email.tools import email_correction, email_send
from counterfoil.providers.registry import Registry
from counterfoil.settings_providers import ProviderSettings
from counterfoil.testing import World

MAIL = {"to": "jo@example.com", "subject": "Your order", "body": "It is on its way.", "reference": "1182"}
DATED = {**MAIL, "body": {"template": "Dear $name, it left us at $now.", "values": {"name": "Jo"}}}


@pytest.fixture
def mailing(world: World, use_tools: Callable[..., None], monkeypatch: pytest.MonkeyPatch) -> World:
    """A world whose tools are e-mail's, also on the command line, and whose mail server is the sandbox."""
    use_tools(email_send, email_correction)
    monkeypatch.setattr(Registry, "load", classmethod(lambda cls, *_: world.registry))
    fast = world.settings.providers["jira"].model_dump(exclude={"staging_transition"})
    own = {"server": world.sandbox.smtp.url, "email": "shop@example.org", "username": "shop", "token": "sandbox"}
    slow = {"backoff_base_s": 60, "backoff_cap_s": 300}  # a Date tells seconds apart, so attempts are
    server = ProviderSettings.model_validate({**fast, **own, **slow})
    world.settings = world.settings.model_copy(update={"providers": {**world.settings.providers, "email": server}})
    return world


@pytest.fixture
def alice(database: Any, mailing: World) -> Iterator[Person]:
    person = Person(database.url("operator"), mailing.registry, "alice")
    yield person
    person.ledger.close()


@pytest.fixture
def approved(mailing: World, enqueue: Any, alice: Person) -> Callable[[], str]:
    """One mail that a person has approved and nobody has sent yet: its action."""

    def approve() -> str:
        action_id: str = enqueue("email_send", MAIL, "mail")
        mailing.settle()
        assert mailing.sandbox.smtp.requests() == [], "nothing leaves before a person has said yes"
        [proposal] = alice.waiting()
        assert alice.approve(proposal).answer is Answer.APPROVED
        return action_id

    return approve


def ended(sql: Any, action_id: str) -> tuple[str, str | None]:
    [row] = sql("SELECT state, last_error_code FROM counterfoil.action WHERE action_id = %s", action_id)
    return row  # type: ignore[no-any-return]


@pytest.mark.case("E10")
def test_a_template_that_renders_the_time(
    mailing: World, client: Callable[..., Counterfoil], alice: Person, sql: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The text is made once, at the proposal: it is what the person is shown, and every attempt sends the same bytes."""
    times = iter(datetime(2026, 11, 30, hour, tzinfo=UTC) for hour in range(9, 20))
    monkeypatch.setattr(messages, "clock", lambda: next(times))
    run = client().run("r1", tenant="acme", actor="bot")
    asked = run.call("email_send", DATED, wait_s=0)
    [(stored,)] = sql("SELECT arguments FROM counterfoil.action")
    assert json.loads(stored)["body"] == "Dear Jo, it left us at 2026-11-30 09:00 UTC."
    assert run.call("email_send", DATED, wait_s=0).action_id == asked.action_id, "rendered at ten, and the same mail"
    [proposal] = alice.waiting()
    assert alice.approve(proposal).answer is Answer.APPROVED
    mailing.sandbox.smtp.fault("answer", on="dot", status=451, times=3)
    mailing.settle()
    assert run.call("email_send", DATED, wait_s=0).status == "succeeded"
    mailing.settle()
    assert mailing.moved_s > 2, "attempts were seconds apart"
    sent = [str(attempt.body) for attempt in mailing.sandbox.smtp.requests("dot")]
    assert (len(sent), len(set(sent))) == (4, 1)
    assert "it left us at 2026-11-30 09:00 UTC." in sent[0]
    assert sql("SELECT arguments FROM counterfoil.action") == [(stored,)]
    assert mailing.sandbox.count("emails") == 1


@pytest.mark.case("E10")
def test_a_label_holds_its_first_rendering(
    mailing: World, enqueue: Any, sql: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Code that enqueues the same label again, with a text of a later time, is told so; nothing is recorded beside it."""
    times = iter(datetime(2026, 11, 30, hour, tzinfo=UTC) for hour in range(9, 20))
    monkeypatch.setattr(messages, "clock", lambda: next(times))
    enqueue("email_send", DATED, "mail")
    with pytest.raises(IntentConflict):
        enqueue("email_send", DATED, "mail")
    [(stored,)] = sql("SELECT arguments FROM counterfoil.action")
    assert "09:00 UTC" in stored


@pytest.mark.parametrize(("fault", "commit"), [("drop", True), ("rst", False), ("garbage", True)])
def test_a_lost_reply_goes_to_a_person(
    mailing: World, approved: Callable[[], str], sql: Any, fault: str, commit: bool
) -> None:
    """Whether the server has taken it or not: no second message ever leaves by itself."""
    mailing.sandbox.smtp.fault(fault, on="dot", commit=commit)
    action_id = approved()
    mailing.settle()
    assert ended(sql, action_id)[0] == "operator_review"
    assert len(mailing.sandbox.smtp.requests("dot")) == 1
    assert mailing.sandbox.count("emails") == int(commit)


@pytest.mark.parametrize("phase", ["connect", "auth", "rcpt", "data"])
def test_a_fault_before_the_message_costs_time_only(
    mailing: World, approved: Callable[[], str], sql: Any, phase: str
) -> None:
    """Nothing was sent, so it is tried again, more often than there are attempts, until the one message is accepted."""
    for fault in ("drop", "rst", "garbage"):
        mailing.sandbox.smtp.fault(fault, on=phase, times=3)
    action_id = approved()
    mailing.settle()
    assert ended(sql, action_id)[0] == "succeeded"
    assert mailing.sandbox.count("emails") == 1
    assert len(mailing.sandbox.smtp.requests("connect")) == 10


@pytest.mark.parametrize("point", ["after_claim", "before_settle", "after_settle"])
def test_a_worker_that_dies(mailing: World, approved: Callable[[], str], sql: Any, point: Any) -> None:
    """Wherever it dies: one message, or none and a person who decides."""
    action_id = approved()
    with mailing.crash_after(point):
        mailing.settle()
    assert ended(sql, action_id)[0] == ("succeeded" if point == "after_settle" else "operator_review")
    assert mailing.sandbox.count("emails") == (0 if point == "after_claim" else 1)
    assert len(mailing.sandbox.smtp.requests("dot")) <= 1


def test_a_refused_recipient_is_final(mailing: World, approved: Callable[[], str], sql: Any) -> None:
    """The server knows no such mailbox: that is the end of it, and the code says who was refused."""
    mailing.sandbox.smtp.fault("answer", on="rcpt", status=550)
    action_id = approved()
    mailing.settle()
    assert ended(sql, action_id) == ("permanent_failure", "rcpt_550")
    assert mailing.sandbox.count("emails") == 0


def test_the_correction_of_a_mail(mailing: World, approved: Callable[[], str], unwind: Any, cli: Any, sql: Any) -> None:
    """Taking the run back writes to nobody; what a person sends then goes to the same reader, once."""
    approved()
    mailing.settle()
    unwind()
    mailing.settle()
    assert mailing.sandbox.count("emails") == 1
    code, listed = cli("correction", "list", "--json")
    assert code == 6
    [waiting] = json.loads(listed)
    name = waiting["correction_id"]
    shown = json.loads(cli("correction", "show", name, "--json")[1])
    code, _ = cli("correction", "send", name, "--digest", shown["digest"])
    assert code == 0
    mailing.settle()
    first, second = mailing.sandbox.smtp.effects("email")
    assert second.data["to"] == first.data["to"] == "jo@example.com"
    assert "Subject: Correction: Your order" in second.data["raw"]
    assert first.key != second.key
