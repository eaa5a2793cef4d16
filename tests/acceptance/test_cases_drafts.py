"""Drafts end to end: staged in the team's mailbox, put before a person, sent word for word once, or taken back."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from tests.acceptance.people import Person
from tests.mailbox import MailProgram

from counterfoil import Proposal, Run
from counterfoil.ledger.proposals import Answer
from counterfoil.providers.email.tools import email_correction, email_discard, email_draft, email_send, email_send_draft
from counterfoil.providers.registry import Registry
from counterfoil.settings_providers import ProviderSettings
from counterfoil.testing import World

MAIL = {"to": "jo@example.com", "subject": "Your order", "body": "It is on its way.", "reference": "1182"}
DRAFT, SEND, DISCARD = "email_draft", "email_send_draft", "email_discard"


@pytest.fixture
def mailing(world: World, use_tools: Callable[..., None], monkeypatch: pytest.MonkeyPatch) -> World:
    """A world whose tools are e-mail's, also on the command line; mail server and mailbox are the sandbox's."""
    use_tools(email_send, email_correction, email_draft, email_discard, email_send_draft)
    monkeypatch.setattr(Registry, "load", classmethod(lambda cls, *_: world.registry))
    fast = world.settings.providers["jira"].model_dump(exclude={"staging_transition"})
    own = {"server": world.sandbox.smtp.url, "imap_server": world.sandbox.imap.url, "email": "shop@example.org"}
    email = ProviderSettings.model_validate({**fast, **own, "username": "shop", "token": "sandbox"})
    world.settings = world.settings.model_copy(update={"providers": {**world.settings.providers, "email": email}})
    return world


@pytest.fixture
def alice(database: Any, mailing: World) -> Iterator[Person]:
    person = Person(database.url("operator"), mailing.registry, "alice")
    yield person
    person.ledger.close()


@pytest.fixture
def colleague(mailing: World) -> Iterator[MailProgram]:
    """Somebody at the same mailbox."""
    made = MailProgram(mailing.sandbox)
    yield made
    made.close()


@pytest.fixture
def run(client: Callable[..., Any], mailing: World) -> Run:
    made: Run = client().run("r1", tenant="acme", actor="bot")
    return made


@pytest.fixture
def staged(mailing: World, run: Run) -> Callable[[], str]:
    """One draft in the mailbox: its action."""

    def stage() -> str:
        action_id = run.stage(DRAFT, MAIL, wait_s=0).action_id
        mailing.settle()
        result = run.stage(DRAFT, MAIL, wait_s=0)
        assert (result.action_id, result.status) == (action_id, "succeeded")
        assert action_id is not None
        return action_id

    return stage


@pytest.fixture
def proposed(mailing: World, run: Run, staged: Callable[[], str]) -> Callable[[], Proposal]:
    """The draft is put before a person."""

    def propose() -> Proposal:
        made = run.propose([(SEND, {"of": staged()})], note="the parcel was lost")
        mailing.settle()
        return made

    return propose


def states(world: World) -> dict[str, str]:
    """tool → state."""
    return {name.partition("/")[0]: state for name, state in world.states().items()}


def counts(world: World) -> tuple[int, int, int]:
    """Drafts ever made, drafts in the mailbox, mails that customers have."""
    return tuple(world.sandbox.count(name) for name in ("imap_drafts", "imap_drafts_open", "emails"))  # type: ignore[return-value]


def test_from_draft_to_sent_mail(mailing: World, proposed: Any, alice: Person, cli: Any) -> None:
    """Staged alone, shown whole, sent once after one decision: the mail says what was shown, and the draft is gone."""
    plan = proposed()
    assert (states(mailing), counts(mailing)) == ({DRAFT: "succeeded", SEND: "awaiting_approval"}, (1, 1, 0))
    assert "It is on its way." in cli("proposal", "show", plan.id)[1], "the reviewer reads what will be sent"
    assert alice.approve(plan.id).answer is Answer.APPROVED
    mailing.settle()
    assert plan.result(wait_s=0).status == "succeeded"
    assert counts(mailing) == (1, 0, 1)
    [mail] = mailing.sandbox.smtp.effects("email")
    assert mail.data["to"] == "jo@example.com"
    assert "It is on its way." in mail.data["raw"]


@pytest.mark.parametrize("commit", [True, False])
@pytest.mark.parametrize("fault", ["drop", "rst", "garbage", "half"])
def test_a_lost_answer_is_one_draft(mailing: World, staged: Any, fault: str, commit: bool) -> None:
    """Stored or not, the mailbox is asked by our key, and there is one draft in the end."""
    mailing.sandbox.imap.fault(fault, on="appended", commit=commit)
    staged()
    assert counts(mailing) == (1, 1, 0)


def test_a_draft_that_lands_late_is_one_draft(mailing: World, staged: Any) -> None:
    """The connection ends and the mailbox works on: absence is not believed before it must have landed."""
    mailing.sandbox.imap.fault("drop_then_append_after", on="appended", delay_s=1.0)
    staged()
    assert counts(mailing) == (1, 1, 0)


@pytest.mark.parametrize("point", ["after_claim", "before_settle", "after_settle"])
def test_a_worker_that_dies_over_a_draft(mailing: World, staged: Any, point: Any) -> None:
    """Wherever it dies: one draft, and no person is needed."""
    with mailing.crash_after(point):
        staged()
    assert (states(mailing), counts(mailing)) == ({DRAFT: "succeeded"}, (1, 1, 0))


@pytest.mark.parametrize("point", ["after_claim", "before_settle", "after_settle"])
def test_a_worker_that_dies_over_a_mail(mailing: World, proposed: Any, alice: Person, point: Any) -> None:
    """One mail, or none and a person who decides: as with any mail."""
    plan = proposed()
    alice.approve(plan.id)
    with mailing.crash_after(point):
        mailing.settle()
    assert states(mailing)[SEND] == ("succeeded" if point == "after_settle" else "operator_review")
    assert mailing.sandbox.count("emails") == (0 if point == "after_claim" else 1)


def test_a_draft_that_a_colleague_edits_after_the_approval(
    mailing: World, proposed: Any, alice: Person, colleague: MailProgram, sql: Any
) -> None:
    """What was approved is not what lies there: stale, nothing is sent, and the colleague's words stay."""
    plan = proposed()
    alice.approve(plan.id)
    colleague.edit(b"on its way", b"lost")
    mailing.settle()
    assert states(mailing)[SEND] == "stale"
    assert sql("SELECT last_error_code FROM counterfoil.action WHERE tool = %s", SEND) == [("resource_changed",)]
    assert mailing.sandbox.count("emails") == 0
    assert len(colleague.drafts()) == 1


def test_a_draft_that_a_colleague_edits_before_it_is_shown(
    mailing: World, run: Run, staged: Any, colleague: MailProgram, alice: Person
) -> None:
    """The recorded words are not the draft's any more: nobody is asked to approve what nobody would see."""
    draft = staged()
    colleague.edit(b"on its way", b"lost")
    run.propose([(SEND, {"of": draft})])
    mailing.settle()
    assert states(mailing)[SEND] == "stale"
    assert alice.waiting() == []
    assert mailing.sandbox.count("emails") == 0


def test_a_draft_that_a_colleague_deletes(mailing: World, proposed: Any, alice: Person, colleague: MailProgram) -> None:
    """Who deletes the draft has said no: nothing is sent."""
    plan = proposed()
    alice.approve(plan.id)
    colleague.delete(next(iter(colleague.drafts())))
    mailing.settle()
    assert states(mailing)[SEND] == "stale"
    assert mailing.sandbox.count("emails") == 0


@pytest.mark.parametrize("is_replaced", [False, True])
def test_a_draft_that_a_mail_program_only_marks(
    mailing: World, proposed: Any, alice: Person, colleague: MailProgram, is_replaced: bool
) -> None:
    """A colleague deletes the draft, sends it by hand, or saves it anew under the program's own Message-ID: what is left of
    it until the folder is tidied up is no draft, and the customer gets no other mail."""
    plan = proposed()
    alice.approve(plan.id)
    [(uid, raw)] = colleague.drafts().items()
    if is_replaced:
        colleague.put(raw.replace(b"Message-ID: <cf-", b"Message-ID: <own-").replace(b"on its way", b"lost"))
    colleague.mark_deleted(uid)
    mailing.settle()
    assert states(mailing)[SEND] == "stale"
    assert mailing.sandbox.count("emails") == 0


def test_a_reviewer_who_edits_the_proposal(mailing: World, proposed: Any, alice: Person, sql: Any) -> None:
    """Other words than the draft's are not sent as the draft: refused, with the argument that differs."""
    plan = proposed()
    edited = alice.edit(plan.id, 1, body="It is lost.")
    mailing.settle()
    for proposal in alice.waiting():
        alice.approve(proposal)
    mailing.settle()
    assert edited is not None
    rows = sql("SELECT state, last_error_code FROM counterfoil.action WHERE tool = %s ORDER BY revision", SEND)
    assert rows[-1] == ("permanent_failure", "differs_from_draft")
    assert counts(mailing) == (1, 1, 0)


@pytest.mark.parametrize("fault", [None, "rst", "drop"])
def test_a_rejected_plan_is_taken_back(
    mailing: World, proposed: Any, alice: Person, run: Run, fault: str | None
) -> None:
    """The draft is removed, once, and nobody was written to."""
    plan = proposed()
    alice.reject(plan.id)
    if fault:
        mailing.sandbox.imap.fault(fault, on="expunge")
    run.unwind("rejected")
    mailing.settle()
    assert states(mailing)[DISCARD] == "succeeded"
    assert counts(mailing) == (1, 0, 0)
    assert mailing.sandbox.count("imap_drafts_deleted") == 1


def test_an_unwind_after_the_mail_is_out(mailing: World, proposed: Any, alice: Person, run: Run, cli: Any) -> None:
    """What was sent is not taken back as a draft: a correction waits for a person, to the same reader."""
    plan = proposed()
    alice.approve(plan.id)
    mailing.settle()
    run.unwind("the order was wrong")
    mailing.settle()
    assert DISCARD not in states(mailing)
    [waiting] = json.loads(cli("correction", "list", "--json")[1])
    shown = json.loads(cli("correction", "show", waiting["correction_id"], "--json")[1])
    assert cli("correction", "send", waiting["correction_id"], "--digest", shown["digest"])[0] == 0
    mailing.settle()
    first, second = mailing.sandbox.smtp.effects("email")
    assert second.data["to"] == first.data["to"]
    assert "Subject: Correction: Your order" in second.data["raw"]


def test_a_lost_reply_to_the_mail_goes_to_a_person(mailing: World, proposed: Any, alice: Person) -> None:
    """No second mail leaves, and the draft stays for whoever looks."""
    plan = proposed()
    alice.approve(plan.id)
    mailing.sandbox.smtp.fault("rst", on="dot", commit=True)
    mailing.settle()
    assert states(mailing)[SEND] == "operator_review"
    assert counts(mailing) == (1, 1, 1)
    assert len(mailing.sandbox.smtp.requests("dot")) == 1
