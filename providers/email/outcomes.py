"""Decides what a mail server's reply, or its silence, proves in each phase of a session. No client is imported here.

A server may deliver a message only after its final dot (RFC 5321). Before the dot is written nothing can have happened:

    phase                                reply 2xx (354 to DATA)   4xx                    5xx          anything else, or none
    connect, hello, tls, login           go on                     NotSent                NotSent      NotSent
    mail, rcpt, data                     go on                     Rejected, retryable    Rejected     NotSent
    body (after 354, before the dot)     NotSent                   Rejected, retryable    Rejected     NotSent
    dot                                  Succeeded                 Rejected, retryable    Rejected     Uncertain

421 to the dot is Uncertain, too: it says that the connection ends, not what became of the message.
"""

from __future__ import annotations

from enum import StrEnum

from counterfoil.providers.outcomes import NotSent, Rejected, Succeeded, Uncertain


class Phase(StrEnum):
    """Where a session is; each is entered before its first byte is written."""

    CONNECT = "connect"
    HELLO = "hello"
    TLS = "tls"
    LOGIN = "login"
    MAIL = "mail"
    RCPT = "rcpt"
    DATA = "data"
    BODY = "body"
    DOT = "dot"


CLOSING = 421
_LOST = ("SMTPServerDisconnected", "abort")
"""What smtplib and imaplib raise when the other side has gone, or speaks another language."""
_GO_AHEAD = 354


def goes_on(phase: Phase, code: int) -> bool:
    """Whether the session may enter its next phase after this reply."""
    return code == _GO_AHEAD if phase is Phase.DATA else 200 <= code < 300


def refusal(phase: Phase, code: int) -> NotSent | Rejected:
    """What a reply that stops the session before its dot proves."""
    name = f"{phase}_{_named(code)}"
    if phase in (Phase.MAIL, Phase.RCPT, Phase.DATA, Phase.BODY) and 400 <= code < 600:
        return Rejected(name, field="to" if phase is Phase.RCPT else None, retryable=code < 500)
    return NotSent(name)


def final(code: int, receipt: str) -> Succeeded | Rejected | Uncertain:
    """What the reply to the final dot proves; smtplib gives -1 for one that is none."""
    if 200 <= code < 300:
        return Succeeded(receipt, {"id": receipt})
    if 400 <= code < 600 and code != CLOSING:
        return Rejected(f"{Phase.DOT}_{code}", retryable=code < 500)
    return Uncertain(f"{Phase.DOT}_{_named(code)}", evidence=f"SMTP {code}")


def broken(phase: Phase, exc: BaseException, *, in_time: bool) -> NotSent | Uncertain:
    """What an exception in this phase proves: by the phase alone, since smtplib raises the same class in all of them."""
    reason = reason_of(exc, in_time=in_time)
    if phase is Phase.DOT:
        return Uncertain(f"{phase}_{reason}", evidence=type(exc).__name__)
    code = getattr(exc, "smtp_code", None)
    return NotSent(f"{phase}_{_named(code) if isinstance(code, int) else reason}")


def _named(code: int) -> str:
    return str(code) if code > 0 else "malformed"


def reason_of(exc: BaseException, *, in_time: bool) -> str:
    """A word for what ended a session; one that was cut at its time has timed out, whatever the client calls that."""
    if not in_time:
        return "timeout"
    match exc:
        case ConnectionRefusedError():
            return "refused"
        case TimeoutError():
            return "timeout"
        case ConnectionError():
            return "connection_lost"
        case _:
            return "connection_lost" if type(exc).__name__ in _LOST else type(exc).__name__
