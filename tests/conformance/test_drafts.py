"""Drafts over IMAP, every phase and fault: one draft at most, and it is found by its key."""

from __future__ import annotations

import imaplib
import socket
import threading
import time
from base64 import b64encode
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

import pytest
from tests.conformance.drafting import (
    KEY,
    LATE_TIMEOUT_S,
    LOST,
    MAIL,
    OTHER_KEY,
    RECEIPT,
    SEND_KEY,
    SLOW_TIMEOUT_S,
    TIMEOUT_S,
    TOOLS,
    Drafting,
    call_of,
    config_of,
    discarding,
    sending,
)
from tests.mailbox import MailProgram

from counterfoil.ledger.errors import ConfigError
from counterfoil.providers.contract import Grade
from counterfoil.providers.email.client import EmailAdapter
from counterfoil.providers.email.config import EmailConfig, checked_folder, imap_of
from counterfoil.providers.outcomes import (
    Absent,
    Found,
    Many,
    NotSent,
    Rejected,
    Succeeded,
    Uncertain,
    Unknown,
    Unreadable,
)
from counterfoil.sandbox.client import Sandbox

BEFORE = ("connect", "capability", "login", "select", "search", "append")


@pytest.fixture
def drafting(sandbox: Sandbox) -> Drafting:
    return Drafting(sandbox)


@pytest.fixture
def person(sandbox: Sandbox) -> Iterator[MailProgram]:
    """Somebody at the same mailbox."""
    made = MailProgram(sandbox)
    yield made
    made.close()


def appended(sandbox: Sandbox) -> list[str]:
    """The messages that came to their last byte, stored or not."""
    return [str(attempt.body) for attempt in sandbox.imap.requests("appended")]


def test_a_plain_draft(drafting: Drafting, sandbox: Sandbox) -> None:
    """One draft in Drafts under our Message-ID, marked as such; found by the key, and nobody was written to."""
    assert drafting.find() == Absent()
    assert drafting.send() == Succeeded(RECEIPT, {"id": RECEIPT})
    [effect] = sandbox.imap.effects("draft", key=KEY)
    assert (effect.data["folder"], effect.data["flags"], effect.data["message_id"]) == ("Drafts", ["\\Draft"], RECEIPT)
    assert drafting.find() == Found(Succeeded(RECEIPT, {"id": RECEIPT}))
    assert sandbox.count("emails") == 0
    assert sandbox.smtp.requests() == []


@pytest.mark.parametrize("fault", LOST)
@pytest.mark.parametrize("phase", BEFORE)
def test_whatever_happens_before_the_message_is_not_sent(
    drafting: Drafting, sandbox: Sandbox, phase: str, fault: str
) -> None:
    """A session that ends before the message's last byte has stored nothing, and the next attempt makes the only draft."""
    sandbox.imap.fault(fault, on=phase)
    outcome = drafting.send(timeout_s=SLOW_TIMEOUT_S if fault == "stall" else TIMEOUT_S)
    wanted = "timeout" if fault == "stall" else "connection_lost"
    assert outcome == NotSent(f"before_write_{wanted}")
    assert (len(sandbox.imap.requests("connect")), appended(sandbox)) == (1, [])
    assert isinstance(drafting.send(), Succeeded)
    assert sandbox.count("imap_drafts") == 1


@pytest.mark.parametrize("fault", ["drop", "rst", "stall"])
def test_a_connection_that_ends_within_the_message(drafting: Drafting, sandbox: Sandbox, fault: str) -> None:
    """Nothing is stored; but where our last byte was written before we noticed, we cannot know that."""
    sandbox.imap.fault(fault, on="literal")
    outcome = drafting.send(timeout_s=SLOW_TIMEOUT_S if fault == "stall" else TIMEOUT_S)
    assert isinstance(outcome, NotSent | Uncertain)
    assert outcome.code.startswith("before_write_" if isinstance(outcome, NotSent) else "after_write_")
    assert (appended(sandbox), sandbox.count("imap_drafts")) == ([], 0)


@pytest.mark.parametrize("position", ["rest", "last"])
def test_a_write_that_fails(drafting: Drafting, monkeypatch: pytest.MonkeyPatch, position: str) -> None:
    """Without its last byte a message was not sent; a last byte that could not be written may have left all the same."""
    write = imaplib.IMAP4.send

    def fail(client: imaplib.IMAP4, data: Any) -> None:
        is_rest, is_last = bytes(data).startswith(b"Date: "), data == b"\n"
        if is_rest if position == "rest" else is_last:
            raise BrokenPipeError
        write(client, data)

    monkeypatch.setattr(imaplib.IMAP4, "send", fail)
    assert isinstance(drafting.send(), NotSent if position == "rest" else Uncertain)


def test_a_yes_before_the_message(drafting: Drafting, monkeypatch: pytest.MonkeyPatch, sandbox: Sandbox) -> None:
    """A mailbox that says OK to the command alone has stored nothing: no byte of the message has left."""
    monkeypatch.setattr(imaplib.IMAP4, "append", lambda client, *_: client._simple_command("NOOP"))
    assert drafting.send() == NotSent("before_write_malformed")
    assert appended(sandbox) == []


@pytest.mark.parametrize("raw", [b"Subject: x\n\nhi\r\n", b"Subject: x\r\n\r\nh\ri\r\n"])
def test_a_message_that_the_client_would_change_is_not_sent(
    drafting: Drafting, sandbox: Sandbox, monkeypatch: pytest.MonkeyPatch, raw: bytes
) -> None:
    """Its last byte could not be told: whoever renders a line end that is no CRLF gets nothing written."""
    monkeypatch.setattr("counterfoil.providers.email.client.bytes_of", lambda *_: raw)
    assert drafting.send() == NotSent("before_write_ValueError")
    assert sandbox.imap.requests("append") == []


@pytest.mark.parametrize("commit", [True, False])
@pytest.mark.parametrize("fault", [*LOST, "half"])
def test_no_answer_after_the_message_is_uncertain(
    drafting: Drafting, sandbox: Sandbox, fault: str, commit: bool
) -> None:
    """Stored or lost, half a refusal included: the look-up tells which, and a repeat makes no second draft."""
    sandbox.imap.fault(fault, on="appended", commit=commit)
    outcome = drafting.send(timeout_s=LATE_TIMEOUT_S if fault == "stall" else TIMEOUT_S)
    assert isinstance(outcome, Uncertain), outcome
    assert outcome.code == f"after_write_{'timeout' if fault == 'stall' else 'connection_lost'}"
    assert sandbox.count("imap_drafts") == int(commit)
    assert drafting.find() == (Found(Succeeded(RECEIPT, {"id": RECEIPT})) if commit else Absent())
    assert isinstance(drafting.send(), Succeeded)
    assert sandbox.count("imap_drafts") == 1
    assert len(appended(sandbox)) == (1 if commit else 2)


def test_a_draft_that_lands_later(drafting: Drafting, sandbox: Sandbox) -> None:
    """The connection ends, and the mailbox works on: absent while nothing is there, then found."""
    sandbox.imap.fault("drop_then_append_after", on="appended", delay_s=60)
    assert isinstance(drafting.send(), Uncertain)
    assert drafting.find() == Absent()
    sandbox.advance(61)
    assert isinstance(drafting.find(), Found)


@pytest.mark.parametrize("answer", ["no", "bad"])
@pytest.mark.parametrize(
    ("phase", "step"),
    [
        ("capability", None),
        ("login", None),
        ("select", "select"),
        ("search", "search"),
        ("append", "append"),
        ("appended", "append"),
    ],
)
def test_a_refusal_that_was_read_whole_is_definite(
    drafting: Drafting, sandbox: Sandbox, phase: str, step: str | None, answer: str
) -> None:
    """NO for now, BAD for good, after the message too; who does not let us in has not heard what is wanted."""
    sandbox.imap.fault(answer, on=phase, times=None)
    outcome = drafting.send()
    if step is None:
        assert isinstance(outcome, NotSent)
    else:
        assert outcome == Rejected(f"{step}_{answer}", retryable=answer == "no")
    assert sandbox.count("imap_drafts") == 0


def test_a_folder_that_is_not_there(drafting: Drafting) -> None:
    """The mailbox says so; nothing is made, found or read."""
    assert drafting.send(imap_folder="Nowhere") == Rejected("select_no", retryable=True)
    assert drafting.find(imap_folder="Nowhere") == Unknown("select_no")
    assert drafting.read(imap_folder="Nowhere") == Unreadable("select_no")


def test_another_password(drafting: Drafting, sandbox: Sandbox) -> None:
    """Not let in: not sent, and nothing is known. No log of the sandbox's holds the password."""
    assert drafting.send(imap_password="se cret\\\"'") == NotSent("login_no")
    assert drafting.find(imap_password="other") == Unknown("login_no")
    assert all("cret" not in str(attempt) for attempt in sandbox.imap.requests())


def test_nobody_listens(drafting: Drafting) -> None:
    """A refused connection and a name that does not exist: not sent, and unknown."""
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        port = unused.getsockname()[1]
        assert drafting.send(imap_port=port) == NotSent("before_write_refused")
        assert drafting.find(imap_port=port) == Unknown("refused")
    assert drafting.send(imap_host="mail.invalid") == NotSent("before_write_gaierror")


def test_without_a_mailbox() -> None:
    """No `imap_server`: no drafts, and it is said."""
    adapter = EmailAdapter(EmailConfig(host="127.0.0.1", port=9, sender="shop@example.org"))
    assert adapter.send(call_of(), timeout_s=1) == NotSent("no_imap_server")
    assert adapter.lookup([call_of()], timeout_s=1) == {call_of().action_id: Unknown("no_imap_server")}
    assert adapter.version(sending(), timeout_s=1) == Unreadable("no_imap_server")


@contextmanager
def speaking(text: bytes, *, drips: bool = True) -> Iterator[int]:
    """A server that says this again and again, or once: its port."""
    over = threading.Event()

    def drip(server: socket.socket) -> None:
        with suppress(OSError), server.accept()[0] as client:
            client.sendall(text)
            while drips and not over.wait(0.02):
                client.sendall(text)
            over.wait(TIMEOUT_S)

    with socket.create_server(("127.0.0.1", 0)) as server:
        thread = threading.Thread(target=drip, args=(server,))
        thread.start()
        try:
            yield server.getsockname()[1]
        finally:
            over.set()
            server.shutdown(socket.SHUT_RDWR)  # nobody may have come
            thread.join()


@pytest.mark.parametrize("tls", [False, True])
@pytest.mark.parametrize("text", [b"*", b"* 1 EXISTS\r\n", b"\x16\x03\x03\x00\x7a\x02", b"\x16"])
def test_a_mailbox_that_drips_holds_nobody(drafting: Drafting, text: bytes, tls: bool) -> None:
    """The time is for the whole session, the TLS handshake included, not for each byte or line."""
    before = time.monotonic()
    with speaking(text) as port:
        assert isinstance(drafting.send(imap_port=port, imap_tls=tls, timeout_s=SLOW_TIMEOUT_S), NotSent)
    assert time.monotonic() - before < 2


@pytest.mark.parametrize("text", [b"* OK " + b"x" * 100, b"* OK ready\r\n* 1 FETCH (BODY[] {9999999999}\r\n"])
def test_a_mailbox_that_says_too_much(drafting: Drafting, text: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    """No more than a bound is read of all that is said, whatever the size that is announced."""
    monkeypatch.setattr("counterfoil.providers.email.imap.REPLY_BYTES_MAX", 64)
    with speaking(text, drips=False) as port:
        assert drafting.send(imap_port=port) == NotSent("before_write_connection_lost")


def test_every_attempt_writes_the_same_bytes(drafting: Drafting, sandbox: Sandbox) -> None:
    """Refused twice, stored then: three times the same message, down to Date and Message-ID."""
    sandbox.imap.fault("no", on="appended", times=2)
    assert [type(drafting.send()) for _ in range(3)] == [Rejected, Rejected, Succeeded]
    assert len(appended(sandbox)) == 3
    assert len(set(appended(sandbox))) == 1


def test_two_drafts_under_one_key(drafting: Drafting, person: MailProgram, sandbox: Sandbox) -> None:
    """Nobody but a person decides which: none is added, sent or removed."""
    drafting.send()
    [raw] = person.drafts().values()
    person.put(raw)
    finding = drafting.find()
    assert isinstance(finding, Many)
    assert len(set(finding.receipts)) == 2
    assert drafting.send() == Uncertain("many_found")
    assert drafting.send(discarding()) == Rejected("many_drafts")
    assert drafting.read() == Unreadable("many_drafts")
    assert len(person.drafts()) == 2


@pytest.mark.parametrize(
    ("old", "new"),
    [
        (b"To: jo@example.com", b"To: al@example.com"),
        (b"To: jo@example.com", b"To: jo@example.com, al@example.com"),
        (b"To: jo@example.com", b"To: jo@example.com\r\nCc: al@example.com"),
        (b"To: jo@example.com", b"To: jo@example.com\r\nBcc: al@example.com"),
        (b"To: jo@example.com\r\n", b""),
        (b64encode("Grüße, your order".encode()), b64encode("Grüße, another order".encode())),
        (b"on its way", b"lost"),
        (b"Content-Type: text/plain", b"Content-Type: text/html"),
        (b'charset="utf-8"', b'charset="nonsense"'),
    ],
)
def test_a_decoy_under_our_key(drafting: Drafting, person: MailProgram, old: bytes, new: bytes) -> None:
    """What does not say what was asked for is no success: a person decides, nothing is added, and nobody approves it."""
    drafting.send()
    person.edit(old, new)
    finding = drafting.find()
    assert isinstance(finding, Found)
    assert not finding.as_intended
    assert drafting.send() == Uncertain("other_content")
    assert drafting.read() == Unreadable("draft_edited")


def test_a_mailbox_that_writes_messages_anew(drafting: Drafting, person: MailProgram) -> None:
    """Another header, another encoding: the same draft, since it says the same."""
    drafting.send()
    person.edit(b"Message-ID:", b"X-Mailbox: 7\r\nmessage-id:")
    assert drafting.find() == Found(Succeeded(RECEIPT, {"id": RECEIPT}))


@pytest.mark.parametrize(
    ("phase", "fault"),
    [
        *(("connect", fault) for fault in LOST),
        *((phase, fault) for phase in ("login", "select", "search", "fetch") for fault in ("no", "bad", *LOST, "half")),
    ],
)
def test_a_failed_lookup_is_never_absence(drafting: Drafting, sandbox: Sandbox, phase: str, fault: str) -> None:
    """Whatever goes wrong with it, a look-up does not say that nothing is there, nor a reading what is."""
    drafting.send()
    timeout_s = SLOW_TIMEOUT_S if fault == "stall" else TIMEOUT_S
    for ask, kind in ((drafting.find, Unknown), (drafting.read, Unreadable)):
        sandbox.imap.fault(fault, on=phase)
        assert isinstance(ask(timeout_s=timeout_s), kind)


def test_many_are_asked_about_in_one_session(drafting: Drafting, sandbox: Sandbox) -> None:
    """One login for all; a mail's own fate stays unknown."""
    drafting.send()
    before = len(sandbox.imap.requests("connect"))
    calls = [call_of(), call_of(key=OTHER_KEY), call_of("email_send", key=SEND_KEY)]
    found = EmailAdapter(config_of(sandbox)).lookup(calls, timeout_s=TIMEOUT_S)
    assert [type(found[call.action_id]) for call in calls] == [Found, Absent, Unknown]
    assert len(sandbox.imap.requests("connect")) == before + 1


def test_the_contracts() -> None:
    """A draft is looked up exactly and taken back; sending one is a person's, by version, with a correction."""
    draft, discard, sent = (TOOLS.get(name) for name in ("email_draft", "email_discard", "email_send_draft"))
    assert (draft.cls, draft.contract.grade, draft.undo) == ("reversible", Grade.B, "email_discard")
    assert not draft.needs_approval(draft.audience_of(MAIL))
    compensation: Any = draft.compensation_of(draft.validate(MAIL), "act_1")
    assert compensation == {"tool": "email_discard", "arguments": {"to": "jo@example.com"}}
    assert (discard.contract.grade, discard.takes_of) == (Grade.B, True)
    assert (sent.contract.grade, sent.resource_version, sent.uncertain) == (Grade.D, True, "operator_review")
    assert sent.needs_approval(["customer"])
    assert sent.effect == TOOLS.get("email_send").effect, "once per reader and reference, whichever way"
    correction: Any = sent.correction_of(sent.validate(MAIL))
    assert correction["tool"] == "email_correction"


@pytest.mark.parametrize(
    ("address", "is_loopback", "found"),
    [
        ("imaps://mail.example.com", False, ("mail.example.com", 993, True)),
        ("imaps://mail.example.com:1993/", False, ("mail.example.com", 1993, True)),
        ("imap://127.0.0.1:143", True, ("127.0.0.1", 143, False)),
        ("imap://mail.example.com", False, None),
        ("http://mail.example.com", False, None),
        ("imaps://shop@mail.example.com", False, None),
        ("imaps://mail.example.com/Drafts", False, None),
        ("imaps://mail.example.com:x", False, None),
        ("mail.example.com:993", False, None),
    ],
)
def test_the_address_of_a_mailbox(address: str, is_loopback: bool, found: tuple[str, int, bool] | None) -> None:
    """TLS, or this machine; everything else is a mistake that is named."""
    if found is None:
        with pytest.raises(ConfigError) as refused:
            imap_of(address, is_loopback=is_loopback)
        assert refused.value.key == "providers.email.imap_server"
    else:
        assert imap_of(address, is_loopback=is_loopback) == found


def test_a_folder_of_another_language(drafting: Drafting, sandbox: Sandbox) -> None:
    """As the server writes it; letters that it would not understand are a mistake of the configuration."""
    assert isinstance(drafting.send(imap_folder=checked_folder("Entw&APw-rfe")), Succeeded)
    assert sandbox.imap.effects("draft")[0].data["folder"] == "Entw&APw-rfe"
    for folder in ("Entwürfe", "Drafts\r\nA1 LOGOUT"):
        with pytest.raises(ConfigError):
            checked_folder(folder)
