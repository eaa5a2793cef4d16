"""Drafts over IMAP, every phase and fault: one draft at most, found by its key, removed alone, stale once it was edited."""

from __future__ import annotations

import imaplib
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import pytest

from counterfoil.ledger.errors import ConfigError
from counterfoil.providers.contract import Call, Grade, Of
from counterfoil.providers.email import drafts
from counterfoil.providers.email.client import EmailAdapter
from counterfoil.providers.email.config import EmailConfig, ImapConfig, checked_folder, imap_of, server_of
from counterfoil.providers.outcomes import (
    Absent,
    Finding,
    Found,
    Many,
    NotSent,
    Outcome,
    Reading,
    Rejected,
    Succeeded,
    Uncertain,
    Unknown,
    Unreadable,
    Version,
)
from counterfoil.providers.registry import Registry
from counterfoil.sandbox.client import Sandbox, SandboxError

TOOLS = Registry.load(["counterfoil.providers.email.tools"])
TIMEOUT_S, SLOW_TIMEOUT_S = 5.0, 0.3
KEY, OTHER_KEY, SEND_KEY, DISCARD_KEY = "d1" * 16, "d2" * 16, "d3" * 16, "d4" * 16
RECEIPT = f"<cf-{KEY}@example.org>"
MAIL: dict[str, Any] = {
    "to": "jo@example.com",
    "subject": "Grüße, your order",
    "body": "It is on its way.\n\n\ttab = sign, 你好\n.\nEnd",
    "reference": "1182",
}
PASSWORD = "sandbox"
BEFORE = ("connect", "capability", "login", "select", "search", "append")
LOST = ("drop", "rst", "stall", "garbage")


def call_of(tool: str = "email_draft", *, key: str = KEY, of: Of | None = None, **changes: Any) -> Call:
    spec = TOOLS.get(tool)
    given = {name: value for name, value in MAIL.items() if name in spec.arguments.names}
    return Call(
        action_id=f"act_{key}",
        tenant="acme",
        account="default",
        tool=tool,
        key=key,
        arguments=spec.validate(given | changes),
        target="jo@example.com",
        first_sent_at=datetime(2026, 11, 30, 10, 0, tzinfo=UTC),
        of=of,
    )


def of_draft(call: Call | None = None) -> Of:
    call = call or call_of()
    receipt = f"<cf-{call.key}@example.org>"
    return Of(action_id=call.action_id, tool=call.tool, key=call.key, receipt=receipt, arguments=call.arguments)


def discarding(call: Call | None = None) -> Call:
    return call_of("email_discard", key=DISCARD_KEY, of=of_draft(call))


def sending(**changes: Any) -> Call:
    return call_of("email_send_draft", key=SEND_KEY, of=of_draft(), **changes)


def config_of(sandbox: Sandbox, **changes: Any) -> EmailConfig:
    host, port, tls = server_of(sandbox.smtp.url, is_loopback=True)
    imap_host, imap_port, imap_tls = imap_of(sandbox.imap.url, is_loopback=True)
    imap = ImapConfig(host=imap_host, port=imap_port, tls=imap_tls, username="shop", password="sandbox")
    own = {name.removeprefix("imap_"): changes.pop(name) for name in list(changes) if name.startswith("imap_")}
    config = EmailConfig(host=host, port=port, tls=tls, sender="shop@example.org", username="shop", password="sandbox")
    return replace(config, imap=replace(imap, **own), **changes)


Act = Callable[..., Outcome]


@pytest.fixture
def send(sandbox: Sandbox) -> Act:
    """One attempt of the call."""

    def attempt(call: Call | None = None, *, timeout_s: float = TIMEOUT_S, **changes: Any) -> Outcome:
        return EmailAdapter(config_of(sandbox, **changes)).send(call or call_of(), timeout_s=timeout_s)

    return attempt


@pytest.fixture
def find(sandbox: Sandbox) -> Callable[..., Finding]:
    def ask(call: Call | None = None, **changes: Any) -> Finding:
        call = call or call_of()
        adapter = EmailAdapter(config_of(sandbox, **changes))
        return adapter.lookup([call], timeout_s=TIMEOUT_S)[call.action_id]

    return ask


@pytest.fixture
def read(sandbox: Sandbox) -> Callable[..., Reading]:
    """The version of the draft that is to be sent."""

    def ask(call: Call | None = None, **changes: Any) -> Reading:
        return EmailAdapter(config_of(sandbox, **changes)).version(call or sending(), timeout_s=TIMEOUT_S)

    return ask


class Person:
    """Somebody at the same mailbox, in a mail program."""

    def __init__(self, sandbox: Sandbox) -> None:
        host, port, _ = imap_of(sandbox.imap.url, is_loopback=True)
        self.client = imaplib.IMAP4(host, port)
        self.client.login("shop", PASSWORD)
        self.client.select("Drafts")

    def drafts(self) -> dict[str, bytes]:
        self.client.noop()
        self.client.select("Drafts")
        found: dict[str, bytes] = {}
        for uid in self.client.uid("SEARCH", "HEADER", "Message-ID", '"@"')[1][0].decode().split():
            answer = self.client.uid("FETCH", uid, "(BODY.PEEK[])")[1]
            found[uid] = answer[0][1]
        return found

    def put(self, raw: bytes) -> None:
        assert self.client.append("Drafts", "(\\Draft)", "", raw)[0] == "OK"

    def delete(self, uid: str) -> None:
        self.client.uid("STORE", uid, "+FLAGS", "(\\Deleted)")
        assert self.client.uid("EXPUNGE", uid)[0] == "OK"

    def edit(self, old: bytes, new: bytes) -> None:
        """As mail programs do: another message, under the same Message-ID, and the old one is gone."""
        [(uid, raw)] = self.drafts().items()
        assert old in raw
        self.put(raw.replace(old, new))
        self.delete(uid)


@pytest.fixture
def person(sandbox: Sandbox) -> Iterator[Person]:
    made = Person(sandbox)
    yield made
    made.client.shutdown()


def appended(sandbox: Sandbox) -> list[str]:
    """The messages that came to their last byte, stored or not."""
    return [str(attempt.body) for attempt in sandbox.imap.requests("appended")]


def test_a_plain_draft(send: Act, find: Callable[..., Finding], sandbox: Sandbox) -> None:
    """One draft in Drafts under our Message-ID, marked as such; found by the key, and nobody was written to."""
    assert find() == Absent()
    assert send() == Succeeded(RECEIPT, {"id": RECEIPT})
    [effect] = sandbox.imap.effects("draft", key=KEY)
    assert (effect.data["folder"], effect.data["flags"], effect.data["message_id"]) == ("Drafts", ["\\Draft"], RECEIPT)
    assert find() == Found(Succeeded(RECEIPT, {"id": RECEIPT}))
    assert sandbox.count("emails") == 0
    assert sandbox.smtp.requests() == []


@pytest.mark.parametrize("fault", LOST)
@pytest.mark.parametrize("phase", BEFORE)
def test_whatever_happens_before_the_message_is_not_sent(send: Act, sandbox: Sandbox, phase: str, fault: str) -> None:
    """A session that ends before the message's last byte has stored nothing, and the next attempt makes the only draft."""
    sandbox.imap.fault(fault, on=phase)
    outcome = send(timeout_s=SLOW_TIMEOUT_S if fault == "stall" else TIMEOUT_S)
    wanted = "timeout" if fault == "stall" else "connection_lost"
    assert outcome == NotSent(f"before_write_{wanted}")
    assert (len(sandbox.imap.requests("connect")), appended(sandbox)) == (1, [])
    assert isinstance(send(), Succeeded)
    assert sandbox.count("imap_drafts") == 1


@pytest.mark.parametrize("fault", ["drop", "rst", "stall"])
def test_a_connection_that_ends_within_the_message(send: Act, sandbox: Sandbox, fault: str) -> None:
    """Nothing is stored; but where our last byte was written before we noticed, we cannot know that."""
    sandbox.imap.fault(fault, on="literal")
    outcome = send(timeout_s=SLOW_TIMEOUT_S if fault == "stall" else TIMEOUT_S)
    assert isinstance(outcome, NotSent | Uncertain)
    assert outcome.code.startswith("before_write_" if isinstance(outcome, NotSent) else "after_write_")
    assert (appended(sandbox), sandbox.count("imap_drafts")) == ([], 0)


@pytest.mark.parametrize("position", ["rest", "last"])
def test_a_write_that_fails(send: Act, monkeypatch: pytest.MonkeyPatch, position: str) -> None:
    """Without its last byte a message was not sent; a last byte that could not be written may have left all the same."""
    write = imaplib.IMAP4.send

    def fail(client: imaplib.IMAP4, data: Any) -> None:
        is_rest, is_last = bytes(data).startswith(b"Date: "), data == b"\n"
        if is_rest if position == "rest" else is_last:
            raise BrokenPipeError
        write(client, data)

    monkeypatch.setattr(imaplib.IMAP4, "send", fail)
    assert isinstance(send(), NotSent if position == "rest" else Uncertain)


@pytest.mark.parametrize("commit", [True, False])
@pytest.mark.parametrize("fault", [*LOST, "half"])
def test_no_answer_after_the_message_is_uncertain(
    send: Act, find: Callable[..., Finding], sandbox: Sandbox, fault: str, commit: bool
) -> None:
    """Stored or lost, half a refusal included: the look-up tells which, and a repeat makes no second draft."""
    sandbox.imap.fault(fault, on="appended", commit=commit)
    outcome = send(timeout_s=SLOW_TIMEOUT_S if fault == "stall" else TIMEOUT_S)
    assert isinstance(outcome, Uncertain), outcome
    assert outcome.code == f"after_write_{'timeout' if fault == 'stall' else 'connection_lost'}"
    assert sandbox.count("imap_drafts") == int(commit)
    assert find() == (Found(Succeeded(RECEIPT, {"id": RECEIPT})) if commit else Absent())
    assert isinstance(send(), Succeeded)
    assert sandbox.count("imap_drafts") == 1
    assert len(appended(sandbox)) == (1 if commit else 2)


def test_a_draft_that_lands_later(send: Act, find: Callable[..., Finding], sandbox: Sandbox) -> None:
    """The connection ends, and the mailbox works on: absent while nothing is there, then found."""
    sandbox.imap.fault("drop_then_append_after", on="appended", delay_s=60)
    assert isinstance(send(), Uncertain)
    assert find() == Absent()
    sandbox.advance(61)
    assert isinstance(find(), Found)


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
    send: Act, sandbox: Sandbox, phase: str, step: str | None, answer: str
) -> None:
    """NO for now, BAD for good, after the message too; who does not let us in has not heard what is wanted."""
    sandbox.imap.fault(answer, on=phase, times=None)
    outcome = send()
    if step is None:
        assert isinstance(outcome, NotSent)
    else:
        assert outcome == Rejected(f"{step}_{answer}", retryable=answer == "no")
    assert sandbox.count("imap_drafts") == 0


def test_a_folder_that_is_not_there(send: Act, find: Callable[..., Finding], read: Callable[..., Reading]) -> None:
    """The mailbox says so; nothing is made, found or read."""
    assert send(imap_folder="Nowhere") == Rejected("select_no", retryable=True)
    assert find(imap_folder="Nowhere") == Unknown("select_no")
    assert read(imap_folder="Nowhere") == Unreadable("select_no")


def test_another_password(send: Act, find: Callable[..., Finding], sandbox: Sandbox) -> None:
    """Not let in: not sent, and nothing is known. No log of the sandbox's holds the password."""
    assert send(imap_password="se cret\\\"'") == NotSent("login_no")
    assert find(imap_password="other") == Unknown("login_no")
    assert all("cret" not in str(attempt) for attempt in sandbox.imap.requests())


def test_nobody_listens(send: Act, find: Callable[..., Finding]) -> None:
    """A refused connection and a name that does not exist: not sent, and unknown."""
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        port = unused.getsockname()[1]
        assert send(imap_port=port) == NotSent("before_write_refused")
        assert find(imap_port=port) == Unknown("refused")
    assert send(imap_host="mail.invalid") == NotSent("before_write_gaierror")


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
        client, _ = server.accept()
        with client, suppress(OSError):
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
            thread.join()


@pytest.mark.parametrize("tls", [False, True])
@pytest.mark.parametrize("text", [b"*", b"* 1 EXISTS\r\n", b"\x16\x03\x03\x00\x7a\x02", b"\x16"])
def test_a_mailbox_that_drips_holds_nobody(send: Act, text: bytes, tls: bool) -> None:
    """The time is for the whole session, the TLS handshake included, not for each byte or line."""
    before = time.monotonic()
    with speaking(text) as port:
        assert isinstance(send(imap_port=port, imap_tls=tls, timeout_s=SLOW_TIMEOUT_S), NotSent)
    assert time.monotonic() - before < 2


@pytest.mark.parametrize("text", [b"* OK " + b"x" * 100, b"* OK ready\r\n* 1 FETCH (BODY[] {9999999999}\r\n"])
def test_a_mailbox_that_says_too_much(send: Act, text: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    """No more than a bound is read of all that is said, whatever the size that is announced."""
    monkeypatch.setattr("counterfoil.providers.email.imap.REPLY_BYTES_MAX", 64)
    with speaking(text, drips=False) as port:
        assert send(imap_port=port) == NotSent("before_write_connection_lost")


def test_every_attempt_writes_the_same_bytes(send: Act, sandbox: Sandbox) -> None:
    """Refused twice, stored then: three times the same message, down to Date and Message-ID."""
    sandbox.imap.fault("no", on="appended", times=2)
    assert [type(send()) for _ in range(3)] == [Rejected, Rejected, Succeeded]
    assert len(appended(sandbox)) == 3
    assert len(set(appended(sandbox))) == 1


def test_two_drafts_under_one_key(
    send: Act, find: Callable[..., Finding], read: Callable[..., Reading], person: Person, sandbox: Sandbox
) -> None:
    """Nobody but a person decides which: none is added, sent or removed."""
    send()
    [raw] = person.drafts().values()
    person.put(raw)
    finding = find()
    assert isinstance(finding, Many)
    assert len(set(finding.receipts)) == 2
    assert send() == Uncertain("many_found")
    assert send(discarding()) == Rejected("many_drafts")
    assert read() == Unreadable("many_drafts")
    assert len(person.drafts()) == 2


@pytest.mark.parametrize(
    ("old", "new"),
    [
        (b"To: jo@example.com", b"To: al@example.com"),
        (b"To: jo@example.com", b"To: jo@example.com, al@example.com"),
        (b"To: jo@example.com", b"To: jo@example.com\r\nCc: al@example.com"),
        (b"To: jo@example.com", b"To: jo@example.com\r\nBcc: al@example.com"),
        (b"To: jo@example.com\r\n", b""),
        (b"your order", b"another"),
        (b"on its way", b"lost"),
        (b"Content-Type: text/plain", b"Content-Type: text/html"),
        (b'charset="utf-8"', b'charset="nonsense"'),
    ],
)
def test_a_decoy_under_our_key(
    send: Act, find: Callable[..., Finding], read: Callable[..., Reading], person: Person, old: bytes, new: bytes
) -> None:
    """What does not say what was asked for is no success: a person decides, nothing is added, and nobody approves it."""
    send()
    person.edit(old, new)
    finding = find()
    assert isinstance(finding, Found)
    assert not finding.as_intended
    assert send() == Uncertain("other_content")
    assert read() == Unreadable("draft_edited")


def test_a_mailbox_that_writes_messages_anew(send: Act, find: Callable[..., Finding], person: Person) -> None:
    """Another header, another encoding: the same draft, since it says the same."""
    send()
    person.edit(b"Message-ID:", b"X-Mailbox: 7\r\nmessage-id:")
    assert find() == Found(Succeeded(RECEIPT, {"id": RECEIPT}))


@pytest.mark.parametrize("fault", ["no", "bad", *LOST, "half"])
@pytest.mark.parametrize("phase", ["connect", "login", "select", "search", "fetch"])
def test_a_failed_lookup_is_never_absence(
    send: Act,
    find: Callable[..., Finding],
    read: Callable[..., Reading],
    sandbox: Sandbox,
    phase: str,
    fault: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Whatever goes wrong with it, a look-up does not say that nothing is there, nor a reading what is."""
    monkeypatch.setattr(f"{__name__}.TIMEOUT_S", SLOW_TIMEOUT_S if fault == "stall" else 5.0)
    if phase == "connect" and fault in ("no", "bad", "half"):
        with pytest.raises(SandboxError):
            sandbox.imap.fault(fault, on=phase)
        return
    send()
    for ask, kind in ((find, Unknown), (read, Unreadable)):
        sandbox.imap.fault(fault, on=phase)
        assert isinstance(ask(), kind)


def test_many_are_asked_about_in_one_session(send: Act, sandbox: Sandbox) -> None:
    """One login for all; a mail's own fate stays unknown."""
    send()
    before = len(sandbox.imap.requests("connect"))
    calls = [call_of(), call_of(key=OTHER_KEY), call_of("email_send", key=SEND_KEY)]
    found = EmailAdapter(config_of(sandbox)).lookup(calls, timeout_s=TIMEOUT_S)
    assert [type(found[call.action_id]) for call in calls] == [Found, Absent, Unknown]
    assert len(sandbox.imap.requests("connect")) == before + 1


def test_discarding_removes_exactly_one(
    send: Act, find: Callable[..., Finding], person: Person, sandbox: Sandbox
) -> None:
    """Other drafts stay, also those that somebody has marked as deleted; doing it again is done already."""
    send()
    send(call_of(key=OTHER_KEY, reference="1183"))
    mine, other = person.drafts()
    person.client.uid("STORE", other, "+FLAGS", "(\\Deleted)")
    assert find(discarding()) == Absent()
    assert send(discarding()) == Succeeded(RECEIPT, {"id": RECEIPT})
    assert list(person.drafts()) == [other]
    assert [effect.object_id for effect in sandbox.imap.effects("draft_deletion", key=KEY)] == [mine]
    assert find(discarding()) == Found(Succeeded(RECEIPT, {"id": RECEIPT}))
    assert send(discarding()) == Succeeded(RECEIPT, {"id": RECEIPT})
    assert sandbox.count("imap_drafts_deleted") == 1


def test_a_draft_that_a_person_has_deleted_is_discarded(
    send: Act, find: Callable[..., Finding], person: Person
) -> None:
    """It is gone, which is what was wanted; nothing is written."""
    send()
    person.delete(next(iter(person.drafts())))
    assert isinstance(find(discarding()), Found)
    assert isinstance(send(discarding()), Succeeded)


@pytest.mark.parametrize("commit", [True, False])
@pytest.mark.parametrize("fault", [*LOST, "half"])
@pytest.mark.parametrize("phase", ["store", "expunge"])
def test_a_removal_without_an_answer_is_uncertain(
    send: Act, find: Callable[..., Finding], sandbox: Sandbox, phase: str, fault: str, commit: bool
) -> None:
    """From the mark on something has changed; whether the draft is gone the look-up tells, and a repeat ends it."""
    send()
    sandbox.imap.fault(fault, on=phase, commit=commit)
    outcome = send(discarding(), timeout_s=SLOW_TIMEOUT_S if fault == "stall" else TIMEOUT_S)
    assert isinstance(outcome, Uncertain), outcome
    gone = phase == "expunge" and commit
    assert isinstance(find(discarding()), Found if gone else Absent)
    assert isinstance(send(discarding()), Succeeded)
    assert (sandbox.count("imap_drafts_open"), sandbox.count("imap_drafts_deleted")) == (0, 1)


def test_a_removal_that_is_refused(send: Act, sandbox: Sandbox) -> None:
    """Before the mark it is a refusal; after it, half of it was done."""
    send()
    sandbox.imap.fault("no", on="store")
    assert send(discarding()) == Rejected("store_no", retryable=True)
    sandbox.imap.fault("no", on="expunge")
    assert send(discarding()) == Uncertain("after_write_malformed", evidence="NotUnderstood")
    assert sandbox.count("imap_drafts_open") == 1


def test_a_mailbox_that_cannot_remove_one_message(send: Act, sandbox: Sandbox) -> None:
    """Without UIDPLUS every message marked as deleted would go: it is refused before anything is marked."""
    send()
    sandbox.config(imap_uidplus=False)
    assert send(discarding()) == Rejected("no_uidplus")
    assert sandbox.imap.requests("store") == []
    assert sandbox.count("imap_drafts_open") == 1


def test_sending_a_draft(send: Act, read: Callable[..., Reading], sandbox: Sandbox) -> None:
    """One mail, of the draft's words under a key of its own; the draft is gone then."""
    send()
    version = read()
    assert isinstance(version, Version)
    receipt = f"<cf-{SEND_KEY}@example.org>"
    assert send(replace(sending(), expected_version=version.text)) == Succeeded(receipt, {"id": receipt})
    [mail] = sandbox.smtp.effects("email", key=SEND_KEY)
    [draft] = sandbox.imap.effects("draft")
    assert str(mail.data["raw"]).replace(SEND_KEY, KEY) == draft.data["raw"]
    assert sandbox.count("imap_drafts_open") == 0


def test_a_draft_has_a_version(send: Act, read: Callable[..., Reading], person: Person) -> None:
    """The same as long as nobody touches it; another after an edit, whatever that was; none of what is gone."""
    send()
    first = read()
    assert read() == first
    assert isinstance(first, Version)
    shown = replace(sending(), expected_version=first.text)
    person.edit(b"on its way", b"lost")
    edited = read(shown)
    assert isinstance(edited, Version)
    assert edited != first
    person.delete(next(iter(person.drafts())))
    assert read(shown) == Unreadable("no_draft")


@pytest.mark.parametrize("line_end", [b"\n", b"\r\n", b"\r"])
def test_line_ends_are_no_version(line_end: bytes) -> None:
    """However a mailbox ends lines, and however many empty ones are last: the same text is the same version."""
    lines = [b"Subject: x", b"", b"a ", b"", b"b"]
    one = drafts._version_of(line_end.join(lines))
    assert one == drafts._version_of(b"\r\n".join([*lines, b"", b""]))
    assert one != drafts._version_of(b"\r\n".join([*lines[:2], b"a", *lines[3:]]))


@pytest.mark.parametrize("name", ["to", "subject", "body", "reference"])
def test_only_the_draft_s_own_words_are_sent(send: Act, sandbox: Sandbox, name: str) -> None:
    """What somebody has changed in the proposal is no longer the draft: refused before anything is connected to."""
    other = "al@example.com" if name == "to" else "Another"
    assert send(sending(**{name: other})) == Rejected("differs_from_draft", field=name)
    assert send(replace(sending(), of=None)) == NotSent("of_unresolved")
    assert send(replace(sending(), of=replace(of_draft(), tool="email_send"))) == Rejected("no_draft")
    assert sandbox.smtp.requests() == sandbox.imap.requests() == []


@pytest.mark.parametrize("fault", ["no", "bad", *LOST])
@pytest.mark.parametrize("phase", ["connect", "login", "select", "search", "fetch", "store", "expunge"])
def test_what_becomes_of_the_draft_changes_no_outcome(
    send: Act,
    read: Callable[..., Reading],
    sandbox: Sandbox,
    phase: str,
    fault: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The mail is out with the server's 250: a draft that cannot be removed stays, and soon."""
    monkeypatch.setattr(drafts, "REMOVE_S", 0.3)
    send()
    version = read()
    assert isinstance(version, Version)
    if (phase, fault) not in (("connect", "no"), ("connect", "bad")):
        sandbox.imap.fault(fault, on=phase)
    before = time.monotonic()
    assert isinstance(send(replace(sending(), expected_version=version.text)), Succeeded)
    assert time.monotonic() - before < 3
    assert sandbox.count("emails") == 1


def test_a_draft_that_is_edited_while_it_is_sent_stays(send: Act, read: Callable[..., Reading], person: Person) -> None:
    """What somebody writes after the version was compared is theirs: it is not removed with the draft."""
    send()
    version = read()
    assert isinstance(version, Version)
    person.edit(b"on its way", b"lost")
    assert isinstance(send(replace(sending(), expected_version=version.text)), Succeeded)
    assert len(person.drafts()) == 1


@pytest.mark.parametrize(("fault", "kind"), [("rst", Uncertain), ("garbage", Uncertain), ("answer", Rejected)])
def test_a_mail_that_is_not_surely_out_keeps_its_draft(send: Act, sandbox: Sandbox, fault: str, kind: type) -> None:
    """Only after the 250 is the draft touched."""
    send()
    before = len(sandbox.imap.requests("connect"))
    sandbox.smtp.fault(fault, on="dot")
    assert isinstance(send(sending()), kind)
    assert len(sandbox.imap.requests("connect")) == before
    assert sandbox.count("imap_drafts_open") == 1


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


def test_a_folder_of_another_language(send: Act, sandbox: Sandbox) -> None:
    """As the server writes it; letters that it would not understand are a mistake of the configuration."""
    assert isinstance(send(imap_folder=checked_folder("Entw&APw-rfe")), Succeeded)
    assert sandbox.imap.effects("draft")[0].data["folder"] == "Entw&APw-rfe"
    for folder in ("Entwürfe", "Drafts\r\nA1 LOGOUT"):
        with pytest.raises(ConfigError):
            checked_folder(folder)
