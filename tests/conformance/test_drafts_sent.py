"""What is done to a draft over IMAP: removed alone, sent word for word, and stale once somebody has edited it."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import replace

import pytest
from tests.conformance.drafting import (
    KEY,
    LATE_TIMEOUT_S,
    LOST,
    OTHER_KEY,
    RECEIPT,
    SEND_KEY,
    TIMEOUT_S,
    Drafting,
    call_of,
    discarding,
    of_draft,
    sending,
)
from tests.mailbox import MailProgram

from counterfoil.providers.email import drafts
from counterfoil.providers.outcomes import Absent, Found, NotSent, Rejected, Succeeded, Uncertain, Unreadable, Version
from counterfoil.sandbox.client import Sandbox


@pytest.fixture
def drafting(sandbox: Sandbox) -> Drafting:
    return Drafting(sandbox)


@pytest.fixture
def person(sandbox: Sandbox) -> Iterator[MailProgram]:
    """Somebody at the same mailbox."""
    made = MailProgram(sandbox)
    yield made
    made.close()


def test_discarding_removes_exactly_one(drafting: Drafting, person: MailProgram, sandbox: Sandbox) -> None:
    """Other drafts stay, also those that somebody has marked as deleted; doing it again is done already."""
    drafting.send()
    drafting.send(call_of(key=OTHER_KEY, reference="1183"))
    mine, other = person.drafts()
    person.mark_deleted(other)
    assert drafting.find(discarding()) == Absent()
    assert drafting.send(discarding()) == Succeeded(RECEIPT, {"id": RECEIPT})
    assert list(person.drafts()) == [other]
    assert [effect.object_id for effect in sandbox.imap.effects("draft_deletion", key=KEY)] == [mine]
    assert drafting.find(discarding()) == Found(Succeeded(RECEIPT, {"id": RECEIPT}))
    assert drafting.send(discarding()) == Succeeded(RECEIPT, {"id": RECEIPT})
    assert sandbox.count("imap_drafts_deleted") == 1


def test_a_draft_that_a_person_has_deleted_is_discarded(drafting: Drafting, person: MailProgram) -> None:
    """It is gone, which is what was wanted; nothing is written."""
    drafting.send()
    person.delete(next(iter(person.drafts())))
    assert isinstance(drafting.find(discarding()), Found)
    assert isinstance(drafting.send(discarding()), Succeeded)


@pytest.mark.parametrize("commit", [True, False])
@pytest.mark.parametrize("fault", [*LOST, "half"])
@pytest.mark.parametrize("phase", ["store", "expunge"])
def test_a_removal_without_an_answer_is_uncertain(
    drafting: Drafting, sandbox: Sandbox, phase: str, fault: str, commit: bool
) -> None:
    """From the mark on something has changed; whether the draft is gone the look-up tells, and a repeat ends it."""
    drafting.send()
    sandbox.imap.fault(fault, on=phase, commit=commit)
    outcome = drafting.send(discarding(), timeout_s=LATE_TIMEOUT_S if fault == "stall" else TIMEOUT_S)
    assert isinstance(outcome, Uncertain), outcome
    gone = phase == "expunge" and commit
    assert isinstance(drafting.find(discarding()), Found if gone else Absent)
    assert isinstance(drafting.send(discarding()), Succeeded)
    assert (sandbox.count("imap_drafts_open"), sandbox.count("imap_drafts_deleted")) == (0, 1)


def test_a_removal_that_is_refused(drafting: Drafting, sandbox: Sandbox) -> None:
    """Before the mark it is a refusal; after it, half of it was done."""
    drafting.send()
    sandbox.imap.fault("no", on="store")
    assert drafting.send(discarding()) == Rejected("store_no", retryable=True)
    sandbox.imap.fault("no", on="expunge")
    assert drafting.send(discarding()) == Uncertain("after_write_malformed", evidence="NotUnderstood")
    assert sandbox.count("imap_drafts_open") == 1


def test_a_mailbox_that_cannot_remove_one_message(drafting: Drafting, sandbox: Sandbox) -> None:
    """Without UIDPLUS every message marked as deleted would go: it is refused before anything is marked."""
    drafting.send()
    sandbox.config(imap_uidplus=False)
    assert drafting.send(discarding()) == Rejected("no_uidplus")
    assert sandbox.imap.requests("store") == []
    assert sandbox.count("imap_drafts_open") == 1


def test_a_mailbox_that_finds_whole_ids_only(drafting: Drafting, person: MailProgram, sandbox: Sandbox) -> None:
    """iCloud and Yandex find a Message-ID by all of it and by no part: a draft is found there as well, so it is not made
    twice, and is not called gone while it is there."""
    sandbox.config(imap_search="whole")
    assert drafting.find() == Absent()
    assert drafting.send() == drafting.send() == Succeeded(RECEIPT, {"id": RECEIPT})
    assert sandbox.count("imap_drafts") == 1
    assert drafting.find() == Found(Succeeded(RECEIPT, {"id": RECEIPT}))
    assert isinstance(drafting.read(), Version)
    assert drafting.find(discarding()) == Absent()
    elsewhere = {"sender": "shop@example.net"}
    assert isinstance(drafting.read(**elsewhere), Version), (
        "by the Message-ID that it was given, whatever is configured now"
    )
    assert drafting.send(discarding(), **elsewhere) == Succeeded(RECEIPT, {"id": RECEIPT})
    assert sandbox.count("imap_drafts_open") == 0


def test_a_draft_of_another_sender(drafting: Drafting, sandbox: Sandbox) -> None:
    """The sender's domain was changed while the answer was away: it is the same draft, by the key alone."""
    sandbox.imap.fault("drop", on="appended", commit=True)
    assert isinstance(drafting.send(), Uncertain)
    assert isinstance(drafting.find(sender="shop@example.net"), Found)
    assert isinstance(drafting.send(sender="shop@example.net"), Succeeded)
    assert sandbox.count("imap_drafts") == 1


@pytest.mark.parametrize("receipt", ['<cf-x@y">\r\nZ LOGOUT', "<cf-é@example.org>", "pi_1"])
def test_a_receipt_that_is_no_message_id(drafting: Drafting, sandbox: Sandbox, receipt: str) -> None:
    """Whoever has written it: nothing of it is said to the mailbox, and the draft is found by the key."""
    drafting.send()
    of = replace(of_draft(), receipt=receipt)
    assert isinstance(drafting.read(replace(sending(), of=of)), Version)
    assert isinstance(drafting.send(replace(discarding(), of=of)), Succeeded)
    assert sandbox.count("imap_drafts_open") == 0


def test_sending_a_draft(drafting: Drafting, sandbox: Sandbox) -> None:
    """One mail, of the draft's words under a key of its own; the draft is gone then."""
    drafting.send()
    version = drafting.read()
    assert isinstance(version, Version)
    receipt = f"<cf-{SEND_KEY}@example.org>"
    assert drafting.send(replace(sending(), expected_version=version.text)) == Succeeded(receipt, {"id": receipt})
    [mail] = sandbox.smtp.effects("email", key=SEND_KEY)
    [draft] = sandbox.imap.effects("draft")
    assert str(mail.data["raw"]).replace(SEND_KEY, KEY) == draft.data["raw"]
    assert sandbox.count("imap_drafts_open") == 0


def test_a_draft_has_a_version(drafting: Drafting, person: MailProgram) -> None:
    """The same as long as nobody touches it; another after an edit, whatever that was; none of what is gone."""
    drafting.send()
    first = drafting.read()
    assert drafting.read() == first
    assert isinstance(first, Version)
    shown = replace(sending(), expected_version=first.text)
    person.edit(b"on its way", b"lost")
    edited = drafting.read(shown)
    assert isinstance(edited, Version)
    assert edited != first
    person.delete(next(iter(person.drafts())))
    assert drafting.read(shown) == Unreadable("no_draft")


def test_a_draft_that_is_marked_as_deleted_is_none(drafting: Drafting, person: MailProgram, sandbox: Sandbox) -> None:
    """Many mail programs only mark what somebody deletes, or has saved anew: that is not to be sent, and what is saved anew
    is the draft."""
    drafting.send()
    [(uid, raw)] = person.drafts().items()
    first = drafting.read()
    assert isinstance(first, Version)
    person.mark_deleted(uid)
    assert drafting.read() == drafting.read(replace(sending(), expected_version=first.text)) == Unreadable("no_draft")
    person.put(raw.replace(b"on its way", b"lost"))
    assert drafting.read() == Unreadable("draft_edited")
    assert drafting.read(replace(sending(), expected_version=first.text)) != first
    person.put(raw)
    assert drafting.read() == Unreadable("many_drafts")
    assert sandbox.count("imap_drafts_deleted") == 0


@pytest.mark.parametrize("line_end", [b"\n", b"\r\n", b"\r"])
def test_line_ends_are_no_version(line_end: bytes) -> None:
    """However a mailbox ends lines, and however many empty ones are last: the same text is the same version."""
    lines = [b"Subject: x", b"", b"a ", b"", b"b"]
    one = drafts._version_of(line_end.join(lines))
    assert one == drafts._version_of(b"\r\n".join([*lines, b"", b""]))
    assert one != drafts._version_of(b"\r\n".join([*lines[:2], b"a", *lines[3:]]))


@pytest.mark.parametrize("name", ["to", "subject", "body", "reference"])
def test_only_the_draft_s_own_words_are_sent(drafting: Drafting, sandbox: Sandbox, name: str) -> None:
    """What somebody has changed in the proposal is no longer the draft: refused before anything is connected to."""
    other = "al@example.com" if name == "to" else "Another"
    assert drafting.send(sending(**{name: other})) == Rejected("differs_from_draft", field=name)
    assert drafting.send(replace(sending(), of=None)) == NotSent("of_unresolved")
    assert drafting.send(replace(sending(), of=replace(of_draft(), tool="email_send"))) == Rejected("no_draft")
    assert sandbox.smtp.requests() == sandbox.imap.requests() == []


@pytest.mark.parametrize(
    ("phase", "fault"),
    [
        *(("connect", fault) for fault in LOST),
        *(
            (phase, fault)
            for phase in ("login", "select", "search", "fetch", "store", "expunge")
            for fault in ("no", "bad", *LOST)
        ),
    ],
)
def test_what_becomes_of_the_draft_changes_no_outcome(
    drafting: Drafting, sandbox: Sandbox, phase: str, fault: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The mail is out with the server's 250: a draft that cannot be removed stays, and soon."""
    monkeypatch.setattr(drafts, "REMOVE_S", 0.3)
    drafting.send()
    version = drafting.read()
    assert isinstance(version, Version)
    sandbox.imap.fault(fault, on=phase)
    before = time.monotonic()
    assert isinstance(drafting.send(replace(sending(), expected_version=version.text)), Succeeded)
    assert time.monotonic() - before < 3
    assert sandbox.count("emails") == 1


def test_a_draft_that_is_edited_while_it_is_sent_stays(drafting: Drafting, person: MailProgram) -> None:
    """What somebody writes after the version was compared is theirs: it is not removed with the draft."""
    drafting.send()
    version = drafting.read()
    assert isinstance(version, Version)
    person.edit(b"on its way", b"lost")
    assert isinstance(drafting.send(replace(sending(), expected_version=version.text)), Succeeded)
    assert len(person.drafts()) == 1


@pytest.mark.parametrize(("fault", "kind"), [("rst", Uncertain), ("garbage", Uncertain), ("answer", Rejected)])
def test_a_mail_that_is_not_surely_out_keeps_its_draft(
    drafting: Drafting, sandbox: Sandbox, fault: str, kind: type
) -> None:
    """Only after the 250 is the draft touched."""
    drafting.send()
    before = len(sandbox.imap.requests("connect"))
    sandbox.smtp.fault(fault, on="dot")
    assert isinstance(drafting.send(sending()), kind)
    assert len(sandbox.imap.requests("connect")) == before
    assert sandbox.count("imap_drafts_open") == 1
