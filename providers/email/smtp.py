"""Decides how a mail is handed to a server: one session, one recipient, and the phase known at every byte.

smtplib raises the same exception for a connection that is lost before the message and after it. So the session is driven
command by command, and the phase is recorded before each write; the table in `outcomes` judges by it.
"""

from __future__ import annotations

import re
import smtplib
import socket
import ssl
from contextlib import suppress

from counterfoil.providers.email.config import EmailConfig
from counterfoil.providers.email.cut import Cut
from counterfoil.providers.email.outcomes import Phase, broken, final, goes_on, refusal
from counterfoil.providers.outcomes import NotSent, Outcome

QUIT_S = 1.0
"""How long the server may take to say good-bye; the mail is accepted by then."""
_LEADING_DOT = re.compile(rb"^\.", re.MULTILINE)


def deliver(config: EmailConfig, to: str, data: bytes, *, receipt: str, timeout_s: float) -> Outcome:
    """The outcome of one session of at most `timeout_s`, whatever the server does; never raises for an answer."""
    with Cut(timeout_s) as cut:
        return _Session(config, cut).deliver(to, data, receipt=receipt)


class _Refused(Exception):
    """The server, or we, ended the session before its dot."""

    def __init__(self, outcome: Outcome) -> None:
        super().__init__(type(outcome).__name__)
        self.outcome = outcome


class _Plain(smtplib.SMTP):
    """A client that knows before it connects which name a certificate must have, and whose connection can be cut."""

    def __init__(self, host: str, cut: Cut, *, local_hostname: str) -> None:
        self._cut = cut
        super().__init__(local_hostname=local_hostname)
        self._host = host

    def _get_socket(self, host: str, port: int, timeout: float) -> socket.socket:
        return self._cut.connect(host, port)


class _Tls(_Plain):
    """The same, with TLS from the first byte."""

    def _get_socket(self, host: str, port: int, timeout: float) -> socket.socket:
        return ssl.create_default_context().wrap_socket(self._cut.connect(host, port), server_hostname=host)


class _Session:
    """One connection, for one message to one recipient."""

    def __init__(self, config: EmailConfig, cut: Cut) -> None:
        self._config, self._cut = config, cut
        self._phase = Phase.CONNECT
        made = _Tls if config.tls == "implicit" else _Plain
        # Our own name is given: smtplib would ask the name service for it.
        self._smtp: smtplib.SMTP = made(config.host, cut, local_hostname=config.domain)

    def deliver(self, to: str, data: bytes, *, receipt: str) -> Outcome:
        """The outcome of the session."""
        try:
            self._open()
            return self._hand_over(to, data, receipt)
        except _Refused as refused:
            return refused.outcome
        except Exception as exc:  # noqa: BLE001 - judged by the phase, whatever failed in it
            return broken(self._phase, exc, in_time=self._cut.in_time)
        finally:
            self._leave()

    def _open(self) -> None:
        config = self._config
        self._go_on(*self._smtp.connect(config.host, config.port))
        self._enter(Phase.HELLO)
        self._smtp.ehlo_or_helo_if_needed()
        if config.tls == "starttls":
            self._enter(Phase.TLS)
            if not self._smtp.has_extn("starttls"):
                raise _Refused(NotSent("no_tls"))
            self._go_on(*self._smtp.starttls(context=ssl.create_default_context()))
            self._smtp.ehlo_or_helo_if_needed()
        if config.username is not None:
            self._enter(Phase.LOGIN)
            if config.password is None:
                raise _Refused(NotSent("no_password"))
            self._smtp.login(config.username, config.password)

    def _hand_over(self, to: str, data: bytes, receipt: str) -> Outcome:
        smtp = self._smtp
        self._enter(Phase.MAIL)
        self._go_on(*smtp.mail(self._config.sender))
        self._enter(Phase.RCPT)
        self._go_on(*smtp.rcpt(to))
        self._enter(Phase.DATA)
        self._go_on(*smtp.docmd("DATA"))
        self._enter(Phase.BODY)
        smtp.send(_LEADING_DOT.sub(b"..", data))
        if self._has_spoken():  # out of turn: it would be taken for the answer to the dot
            raise _Refused(refusal(self._phase, smtp.getreply()[0]))
        self._enter(Phase.DOT)  # from here on the server may have the whole of it
        smtp.send(b".\r\n")
        code, _ = smtp.getreply()
        return final(code, receipt)

    def _has_spoken(self) -> bool:
        """A reply is there already, to nothing that was asked."""
        sock, replies = self._smtp.sock, self._smtp.file
        if sock is None or replies is None:
            return False
        sock.settimeout(0)
        try:
            return bool(replies.peek(1))
        except OSError:  # nothing yet, of TLS
            return False
        finally:
            sock.settimeout(self._cut.left_s())

    def _enter(self, phase: Phase) -> None:
        left_s = self._cut.left_s()
        if self._smtp.sock is not None:
            self._smtp.sock.settimeout(left_s)
        self._phase = phase

    def _go_on(self, code: int, _reply: bytes) -> None:
        if not goes_on(self._phase, code):
            raise _Refused(refusal(self._phase, code))

    def _leave(self) -> None:
        """Says good-bye where somebody listens; nothing depends on it."""
        with suppress(Exception):
            if self._smtp.sock is not None:
                self._smtp.sock.settimeout(QUIT_S)
                self._smtp.quit()
        self._smtp.close()
