"""E-mail over SMTP, every phase and fault: one message at most, the outcome by the table, and bytes that never change."""

from __future__ import annotations

import email
import random
import re
import smtplib
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from datetime import UTC, datetime, timedelta, timezone
from email.header import decode_header
from email.message import EmailMessage
from email.policy import default
from typing import Any, cast

import pytest

from counterfoil.ledger.errors import ArgumentError, ConfigError
from counterfoil.providers.contract import Call, Grade
from counterfoil.providers.email.client import EmailAdapter
from counterfoil.providers.email.config import EmailConfig, server_of
from counterfoil.providers.email.message import bytes_of
from counterfoil.providers.outcomes import NotSent, Outcome, Rejected, Succeeded, Uncertain, Unknown, Unreadable
from counterfoil.providers.registry import Registry, adapter_of
from counterfoil.sandbox.client import Sandbox, SandboxError

TOOLS = Registry.load(["counterfoil.providers.email.tools"])
TIMEOUT_S, SLOW_TIMEOUT_S = 5.0, 0.3
KEY = "e1" * 16
MAIL: dict[str, Any] = {
    "to": "jo@example.com",
    "subject": "Your order",
    "body": "It is on its way.",
    "reference": "1182",
}
BEFORE = ("connect", "ehlo", "auth", "mail", "rcpt", "data")
ASKED = ("mail", "rcpt", "data")
LOST = ("drop", "rst", "stall", "garbage")
PHASES = {"ehlo": "hello", "auth": "login"}
"""What the adapter calls the phase, where it is not the command's name."""


def call_of(arguments: dict[str, Any] = MAIL, *, tool: str = "email_send", key: str = KEY) -> Call:
    valid = TOOLS.get(tool).validate(arguments)
    return Call(
        action_id=f"act_{key}",
        tenant="acme",
        account="default",
        tool=tool,
        key=key,
        arguments=valid,
        target=str(valid["to"]),
        first_sent_at=datetime(2026, 11, 30, 10, 0, tzinfo=UTC),
    )


def config_of(sandbox: Sandbox, **changes: Any) -> EmailConfig:
    host, port, tls = server_of(sandbox.smtp.url, is_loopback=True)
    config = EmailConfig(host=host, port=port, tls=tls, sender="shop@example.org", username="shop", password="sandbox")
    return replace(config, **changes)


@pytest.fixture
def send(sandbox: Sandbox) -> Callable[..., Outcome]:
    """One attempt of the call."""

    def attempt(call: Call | None = None, *, timeout_s: float = TIMEOUT_S, **changes: Any) -> Outcome:
        adapter = adapter_of(TOOLS.get("email_send"), config_of(sandbox, **changes))
        return adapter.send(call or call_of(), timeout_s=timeout_s)

    return attempt


def accepted(sandbox: Sandbox) -> list[str]:
    """The messages that the server has taken, whole."""
    return [str(effect.data["raw"]) for effect in sandbox.smtp.effects("email")]


def sent(sandbox: Sandbox) -> list[str]:
    """The messages that came to their final dot, taken or not."""
    return [str(attempt.body) for attempt in sandbox.smtp.requests("dot")]


def parsed(raw: str) -> EmailMessage:
    return cast("EmailMessage", email.message_from_string(raw.replace("\r\n", "\n"), policy=default))


def test_a_plain_mail(send: Callable[..., Outcome], sandbox: Sandbox) -> None:
    """One session, one message to one recipient, under a Message-ID made of the key, which is the receipt."""
    receipt = f"<cf-{KEY}@example.org>"
    assert send() == Succeeded(receipt, {"id": receipt})
    [effect] = sandbox.smtp.effects("email", key=KEY)
    assert (effect.data["to"], effect.data["message_id"]) == ("jo@example.com", receipt)
    message = parsed(str(effect.data["raw"]))
    assert (message["From"], message["To"], message["Subject"]) == ("shop@example.org", "jo@example.com", "Your order")
    assert message["Date"] == "Mon, 30 Nov 2026 10:00:00 +0000"
    assert message.get_content() == "It is on its way.\n"
    assert len(sandbox.smtp.requests("connect")) == 1


@pytest.mark.parametrize("fault", LOST)
@pytest.mark.parametrize("phase", BEFORE)
def test_whatever_happens_before_the_dot_is_not_sent(
    send: Callable[..., Outcome], sandbox: Sandbox, phase: str, fault: str
) -> None:
    """A session that ends before its final dot was written has sent no message, and the next attempt sends the only one."""
    sandbox.smtp.fault(fault, on=phase, times=None if phase == "ehlo" else 1)
    outcome = send(timeout_s=SLOW_TIMEOUT_S if fault == "stall" else TIMEOUT_S)
    wanted = {"stall": "timeout", "garbage": "malformed"}.get(fault, "connection_lost")
    assert outcome == NotSent(f"{PHASES.get(phase, phase)}_{wanted}")
    assert (len(sandbox.smtp.requests("connect")), sent(sandbox), accepted(sandbox)) == (1, [], [])
    sandbox.clear_faults()
    assert isinstance(send(), Succeeded)
    assert sandbox.count("emails") == 1


@pytest.mark.parametrize("fault", ["drop", "rst", "stall"])
def test_a_connection_that_ends_within_the_message(send: Callable[..., Outcome], sandbox: Sandbox, fault: str) -> None:
    """Nothing is accepted; but where our dot was written before we noticed, we cannot know that."""
    sandbox.smtp.fault(fault, on="body")
    outcome = send(timeout_s=SLOW_TIMEOUT_S if fault == "stall" else TIMEOUT_S)
    wanted = "timeout" if fault == "stall" else "connection_lost"
    assert isinstance(outcome, NotSent | Uncertain)
    assert outcome.code == (f"body_{wanted}" if isinstance(outcome, NotSent) else f"dot_{wanted}")
    assert (sent(sandbox), accepted(sandbox)) == ([], [])


@pytest.mark.parametrize(("begins", "outcome"), [(b"Date: ", NotSent), (b".\r\n", Uncertain)])
def test_a_write_that_fails(
    send: Callable[..., Outcome], monkeypatch: pytest.MonkeyPatch, begins: bytes, outcome: type[Outcome]
) -> None:
    """A message that could not be written whole was not sent; a dot that could not be may have left all the same."""
    write = smtplib.SMTP.send

    def fail(smtp: smtplib.SMTP, data: Any) -> None:
        if isinstance(data, bytes) and data.startswith(begins):
            raise BrokenPipeError
        write(smtp, data)

    monkeypatch.setattr(smtplib.SMTP, "send", fail)
    assert isinstance(send(), outcome)


@pytest.mark.parametrize("status", [421, 450, 550])
@pytest.mark.parametrize("phase", BEFORE)
def test_a_refusal_before_the_dot_is_definite(
    send: Callable[..., Outcome], sandbox: Sandbox, phase: str, status: int
) -> None:
    """MAIL, RCPT and DATA are refused for now (4xx) or for good (5xx); before them it is the server that is not ready."""
    sandbox.smtp.fault("answer", on=phase, status=status, times=None)
    code = f"{PHASES.get(phase, phase)}_{status}"
    field = "to" if phase == "rcpt" else None
    assert send() == (Rejected(code, field=field, retryable=status < 500) if phase in ASKED else NotSent(code))
    assert (sent(sandbox), accepted(sandbox)) == ([], [])


@pytest.mark.parametrize(("phase", "status"), [("mail", 354), ("rcpt", 354), ("data", 250)])
def test_a_reply_out_of_place_before_the_dot(
    send: Callable[..., Outcome], sandbox: Sandbox, phase: str, status: int
) -> None:
    """Only a 354 lets a message begin, and only a 2xx what comes before it."""
    sandbox.smtp.fault("answer", on=phase, status=status)
    assert send() == NotSent(f"{phase}_{status}")
    assert (sent(sandbox), accepted(sandbox)) == ([], [])


@pytest.mark.parametrize("commit", [True, False])
@pytest.mark.parametrize("fault", LOST)
def test_no_reply_to_the_dot_is_uncertain(
    send: Callable[..., Outcome], sandbox: Sandbox, fault: str, commit: bool
) -> None:
    """Accepted or lost, the client sees the same: nobody may send again, and nobody can be asked."""
    sandbox.smtp.fault(fault, on="dot", commit=commit)
    outcome = send(timeout_s=SLOW_TIMEOUT_S if fault == "stall" else TIMEOUT_S)
    assert isinstance(outcome, Uncertain), outcome
    wanted = {"stall": "timeout", "garbage": "malformed"}.get(fault, "connection_lost")
    assert outcome.code == f"dot_{wanted}"
    assert (len(sent(sandbox)), len(accepted(sandbox))) == (1, int(commit))


def test_a_message_that_is_accepted_later(send: Callable[..., Outcome], sandbox: Sandbox) -> None:
    """The connection ends, and the server works on: uncertain, while nothing is there and when it is."""
    sandbox.smtp.fault("drop_then_accept_after", on="dot", delay_s=60)
    assert isinstance(send(), Uncertain)
    assert sandbox.count("emails") == 0
    sandbox.advance(61)
    assert sandbox.count("emails") == 1


@pytest.mark.parametrize(
    ("status", "outcome"),
    [
        (250, Succeeded),
        (451, Rejected("dot_451", retryable=True)),
        (452, Rejected("dot_452", retryable=True)),
        (550, Rejected("dot_550")),
        (554, Rejected("dot_554")),
        (421, Uncertain("dot_421", evidence="SMTP 421")),
        (354, Uncertain("dot_354", evidence="SMTP 354")),
    ],
)
def test_the_reply_to_the_dot(send: Callable[..., Outcome], sandbox: Sandbox, status: int, outcome: Any) -> None:
    """2xx is acceptance, 4xx and 5xx refusal; 421 is about the connection, and anything else no answer at all."""
    sandbox.smtp.fault("answer", on="dot", status=status, commit=status == 250)
    found = send()
    assert isinstance(found, Succeeded) if outcome is Succeeded else found == outcome
    assert (len(sent(sandbox)), len(accepted(sandbox))) == (1, int(status == 250))


@pytest.mark.parametrize("fault", LOST)
def test_a_lost_good_bye_hurts_nobody(send: Callable[..., Outcome], sandbox: Sandbox, fault: str) -> None:
    """After the 250 the message is the server's, however the session ends, and soon."""
    sandbox.smtp.fault(fault, on="quit")
    before = time.monotonic()
    assert isinstance(send(), Succeeded)
    assert time.monotonic() - before < 3
    assert sandbox.count("emails") == 1


def test_nobody_listens(send: Callable[..., Outcome], sandbox: Sandbox) -> None:
    """A refused connection and a name that does not exist: not sent."""
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        assert send(port=unused.getsockname()[1]) == NotSent("connect_refused")
    assert send(host="mail.invalid") == NotSent("connect_gaierror")
    assert sandbox.smtp.requests() == []


@contextmanager
def dripping(text: bytes) -> Iterator[int]:
    """A server that says this a byte at a time, for ever: its port."""
    over = threading.Event()

    def drip(server: socket.socket) -> None:
        with suppress(OSError), server.accept()[0] as client:
            while not over.wait(0.02):
                client.sendall(text)

    with socket.create_server(("127.0.0.1", 0)) as server:
        thread = threading.Thread(target=drip, args=(server,))
        thread.start()
        try:
            yield server.getsockname()[1]
        finally:
            over.set()
            server.shutdown(socket.SHUT_RDWR)  # nobody may have come
            thread.join()


@pytest.mark.parametrize(("text", "tls"), [(b"2", "none"), (b"220-welcome\r\n", "none"), (b"\x16\x03\x03", "implicit")])
def test_a_server_that_drips_holds_nobody(send: Callable[..., Outcome], text: bytes, tls: str) -> None:
    """The time is for the whole session, a TLS handshake included, not for each byte or line."""
    before = time.monotonic()
    with dripping(text) as port:
        outcome = send(port=port, tls=tls, timeout_s=SLOW_TIMEOUT_S)
    assert isinstance(outcome, NotSent)
    assert time.monotonic() - before < 2


def test_nothing_leaves_without_tls_where_it_is_asked_for(send: Callable[..., Outcome], sandbox: Sandbox) -> None:
    """A server that offers no STARTTLS, or cannot speak TLS, gets neither password nor mail."""
    assert send(tls="starttls") == NotSent("no_tls")
    assert isinstance(send(tls="implicit"), NotSent)
    assert (sent(sandbox), accepted(sandbox)) == ([], [])


def test_every_attempt_sends_the_same_bytes(send: Callable[..., Outcome], sandbox: Sandbox) -> None:
    """Refused twice, accepted then: three times the same message, down to Date and Message-ID."""
    sandbox.smtp.fault("answer", on="dot", status=451, times=2)
    outcomes = [send() for _ in range(3)]
    assert [type(outcome) for outcome in outcomes] == [Rejected, Rejected, Succeeded]
    assert len(sent(sandbox)) == 3
    assert set(sent(sandbox)) == set(accepted(sandbox))


@pytest.mark.parametrize(
    "body",
    [
        ".\nMAIL FROM:<a@b.example>\n..\n. x",
        "Grüße, 你好 🙂\n" + "long " * 400,
        "From here\n\n\ttab = sign\n\n",
        "\n.\n" * 50,
    ],
)
def test_any_text_arrives_as_it_is(send: Callable[..., Outcome], sandbox: Sandbox, body: str) -> None:
    """Lines that begin with a dot end no message and begin none; other languages and long lines arrive."""
    assert isinstance(send(call_of({**MAIL, "body": body, "subject": "Grüße " * 30})), Succeeded)
    [raw] = accepted(sandbox)
    assert raw.isascii()
    assert max(len(line) for line in raw.split("\r\n")) <= 998
    message = parsed(raw)
    assert message.get_content().rstrip("\n") == body.rstrip("\n")
    assert message["Subject"] == ("Grüße " * 30)
    assert sandbox.count("emails") == 1


WORDS = (
    "Ваш заказ отправлен и будет доставлен № 1182 (счёт-фактура) Достопримечательность",
    'Ihre Bestellung für Größe Übergröße — (49,90 €) Rindfleischetikettierung Müller\'s "Prämie" https://x.example/?a=b&c=d',
    "ご注文 の商品が 発送されました。 注文番号：1182 株式会社 order",
    "Order 1182 — for Jo Müller, déjà “quoted” it’s 50 % off… 🎉 [Ticket#2026113010000017] x=?y " + "long" * 20,
    "Your order (1Z999AA10123456784) a.b, c; d: <e> = _ ? == \\ ' \" " + "long" * 20 + "  ",
)


@pytest.mark.parametrize("words", WORDS)
def test_a_subject_arrives_as_it_is(words: str) -> None:
    """To the last blank, in any language and of any length, by two decoders; no line is longer than one may be."""
    choose = random.Random(words).choice
    texts = [" ".join(choose(words.split(" ")) for _ in range(n % 22 + 1))[:200] for n in range(300)]
    for subject in (text.replace("=?", "=") for text in texts if text.strip()):
        raw = bytes_of(replace(call_of(), arguments={**MAIL, "subject": subject}), f"shop@{'x' * 50}.example.org")
        assert parsed(raw.decode("ascii"))["Subject"] == subject
        [line] = re.findall(r"^Subject: (.*(?:\r\n .*)*)\r$", raw.decode("ascii"), re.MULTILINE)
        parts = decode_header(line.replace("\r\n", ""))
        assert (
            "".join(part if isinstance(part, str) else part.decode(name or "ascii") for part, name in parts) == subject
        )
        assert all(len(each) <= (76 if "=?" in each else 998) for each in f"Subject: {line}".split("\r\n"))


@pytest.mark.parametrize(
    "to",
    [
        "jo@example.com\r\nBcc: all@example.com",
        "jo@example.com\n",
        "jo@example.com\x00",
        "jo@example.com, al@example.com",
        "Jo <jo@example.com>",
        "<jo@example.com>",
        '"jo"@example.com',
        "jö@example.com",
        "jo@exämple.com",
        "jo@localhost",
        "jo@[127.0.0.1]",
        "-oq@example.com",
        "=?utf-8?q?al?=@example.com",
        "jo..x@example.com",
        "jo @example.com",
        "jo@example.com.",
        "@example.com",
        "j" * 65 + "@example.com",
        "jo@" + "x" * 64 + ".com",
        "jo@" + "x." * 130 + "com",
        "",
    ],
)
@pytest.mark.parametrize("tool", ["email_send", "email_correction"])
def test_what_is_no_plain_address_is_refused_at_the_door(tool: str, to: str) -> None:
    """One recipient, in ASCII, with nothing that a server or a header could read otherwise."""
    with pytest.raises(ArgumentError) as refused:
        TOOLS.get(tool).validate({**MAIL, "to": to})
    assert refused.value.path.startswith("$.to")


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("subject", "Hello\r\nBcc: all@example.com"),
        ("subject", "Hello\nthere"),
        ("subject", "Hello\x00"),
        ("subject", "Hello\u2028there"),
        ("subject", "Hello\x85there"),
        ("subject", " "),
        ("subject", "x" * 201),
        ("subject", "=?utf-8?q?Hello=0D=0ABcc:_all@example.com?="),
        ("subject", "Your order =?utf-8?b?DQpCY2M6IGFsbEBleGFtcGxlLmNvbQ==?="),
        ("subject", "=?utf-8?q?what_nobody_has_read?="),
        ("subject", {"template": "$a?utf-8?q?=0AX:_y?=", "values": {"a": "="}}),
        ("subject", {"template": "Hello $name", "values": {"name": "Jo\nBcc: all@example.com"}}),
        ("subject", {"template": "Hello $name", "values": {}}),
        ("subject", {"template": "Hello $name", "values": {"name": "Jo", "other": "x"}}),
        ("subject", {"template": "It is $now", "values": {"now": "never"}}),
        ("subject", {"template": "5 $ more"}),
        ("subject", {"template": "Hello", "more": "x"}),
        ("body", "a\x00b"),
        ("body", "a\rb"),
        ("body", "a\x1b[0m"),
        ("body", "\n"),
        ("body", {"template": "$x", "values": {"x": "\x00"}}),
        ("body", {"template": "$x", "values": {"x": 3}}),
        ("body", None),
        ("cc", "al@example.com"),
    ],
)
def test_what_could_begin_a_header_is_refused_at_the_door(name: str, value: Any) -> None:
    """Control characters and line ends of any kind, through a template's value too; and templates that are not filled."""
    with pytest.raises(ArgumentError) as refused:
        TOOLS.get("email_send").validate({**MAIL, name: value})
    assert refused.value.path.startswith(f"$.{name}")


def test_the_zone_of_a_session_changes_no_byte() -> None:
    """The same moment, as two workers' connections show it, is one Date."""
    here = call_of()
    assert here.first_sent_at is not None
    there = replace(here, first_sent_at=here.first_sent_at.astimezone(timezone(timedelta(hours=9))))
    assert bytes_of(there, "shop@example.org") == bytes_of(here, "shop@example.org")


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("subject", "=?utf-8?q?Hello=0D=0A=0D=0AAnother_text?="),
        ("subject", "=?utf-8?q?Hello?="),
        ("to", "=?utf-8?q?al?=@example.com"),
    ],
)
def test_a_header_that_would_be_read_as_something_else_is_not_sent(
    send: Callable[..., Outcome], sandbox: Sandbox, name: str, value: str
) -> None:
    """A row that got past the door: what a mail reader would decode is neither what was recorded nor what was approved."""
    call = replace(call_of(), arguments={**MAIL, name: value})
    outcome = send(call)
    assert isinstance(outcome, NotSent)
    assert outcome.code.startswith("before_connect_")
    assert sandbox.smtp.requests() == []


def test_a_template_is_recorded_as_text() -> None:
    """What the row holds is what is sent; read back, it is the same: a `$` in it is a sign like any other."""
    body = {"template": "Dear $name, you owe $$5, or $sum.", "values": {"name": "Jo", "sum": "$now"}}
    recorded = TOOLS.get("email_send").validate({**MAIL, "to": "Jo@Example.COM", "body": body})
    assert (recorded["to"], recorded["body"]) == ("Jo@example.com", "Dear Jo, you owe $5, or $now.")
    assert TOOLS.get("email_send").validate(recorded) == recorded


def test_what_can_be_said_afterwards() -> None:
    """Each mail has its correction, to the same person and filled in beforehand, however long its subject is."""
    spec = TOOLS.get("email_send")
    for subject in ("Your $order", "x" * 200):
        correction: Any = spec.correction_of(spec.validate({**MAIL, "subject": subject}))
        assert correction["tool"] == "email_correction"
        told = correction["arguments"]
        assert (told["to"], told["reference"]) == ("jo@example.com", "1182")
        assert told["subject"].startswith("Correction: " + subject[:150])
        assert subject in told["body"]
    teller = TOOLS.get("email_correction")
    assert teller.can_tell
    assert teller.correction is None


@pytest.mark.parametrize("name", ["email_send", "email_correction"])
def test_nobody_can_be_asked(name: str, sandbox: Sandbox) -> None:
    """Grade D: no look-up, no version, a person's approval before and a person's verdict in doubt."""
    spec = TOOLS.get(name)
    assert (spec.contract.grade, spec.uncertain, spec.needs_approval(["customer"])) == (
        Grade.D,
        "operator_review",
        True,
    )
    adapter, call = EmailAdapter(config_of(sandbox)), call_of(tool=name)
    assert adapter.lookup([call], timeout_s=1) == {call.action_id: Unknown("no_lookup")}
    assert adapter.version(call, timeout_s=1) == Unreadable("no_version")
    assert adapter.send(replace(call, tool="email_other"), timeout_s=1) == NotSent("unknown_tool")
    assert adapter.send(replace(call, first_sent_at=None), timeout_s=1) == NotSent("before_connect_ValueError")
    assert sandbox.smtp.requests() == []


def test_what_a_server_s_address_is() -> None:
    """TLS from the first byte or by STARTTLS, in clear on this machine alone; anything else is a mistake."""
    assert server_of("smtps://mail.example.com", is_loopback=False) == ("mail.example.com", 465, "implicit")
    assert server_of("smtp://mail.example.com:2525", is_loopback=False) == ("mail.example.com", 2525, "starttls")
    assert server_of("smtp://127.0.0.1:25", is_loopback=True) == ("127.0.0.1", 25, "none")
    for wrong in ("mail.example.com", "http://x.example", "smtp://", "smtp://a:b@x.example", "smtp://x.example:no"):
        with pytest.raises(ConfigError):
            server_of(wrong, is_loopback=False)


def test_accepted_mail_is_counted_for_ever(send: Callable[..., Outcome], sandbox: Sandbox) -> None:
    """The same Message-ID twice is two mails: servers do not deduplicate, so the sandbox does not."""
    send()
    send()
    assert sandbox.count("emails") == 2
    assert len({effect.data["message_id"] for effect in sandbox.smtp.effects("email")}) == 1
    for wrong in ({"on": "teapot"}, {"on": "mail", "commit": True}, {"on": "dot", "status": 99}, {"on": "dot", "x": 1}):
        with pytest.raises(SandboxError):
            sandbox.smtp.fault("answer", **cast("Any", wrong))
    with pytest.raises(SandboxError):
        sandbox.smtp.fault("504_after_commit", on="dot")
