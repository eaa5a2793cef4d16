"""Decides how a mail is sent: one session and one recipient an attempt, and the phase known at every byte.

smtplib raises the same exception for a connection that is lost before the message and after it. So the session is driven
command by command, and the phase is recorded before each write; the table in `outcomes` judges by it.
"""

from __future__ import annotations

import re
import smtplib
import socket
import ssl
import threading
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress

from counterfoil.providers.contract import Call
from counterfoil.providers.email.config import EmailConfig
from counterfoil.providers.email.message import bytes_of, message_id_of
from counterfoil.providers.email.outcomes import Phase, broken, final, goes_on, refusal
from counterfoil.providers.outcomes import Finding, NotSent, Outcome, Reading, Unknown, Unreadable

QUIT_S = 1.0
"""How long the server may take to say good-bye; the mail is accepted by then."""
_TOOLS = ("email_send", "email_correction")
_LEADING_DOT = re.compile(rb"^\.", re.MULTILINE)


class EmailAdapter:
    """Sends through one mail server, by a connection of its own for each mail."""

    def __init__(self, config: EmailConfig) -> None:
        self._config = config

    def send(self, call: Call, *, timeout_s: float) -> Outcome:
        """One session; it ends within `timeout_s` whatever the server does."""
        if call.tool not in _TOOLS:
            return NotSent("unknown_tool")
        try:
            data = bytes_of(call, self._config.sender)
        except Exception as exc:  # noqa: BLE001 - there is no connection yet, whatever failed
            return NotSent(f"before_connect_{type(exc).__name__}")
        receipt = message_id_of(call.key, self._config.domain)
        session = _Session(self._config, timeout_s=timeout_s)
        return session.deliver(str(call.arguments["to"]), data, receipt=receipt)

    def lookup(self, calls: Sequence[Call], *, timeout_s: float) -> Mapping[str, Finding]:
        """A mail server cannot be asked what became of a message."""
        del timeout_s
        return {call.action_id: Unknown("no_lookup") for call in calls}

    def version(self, call: Call, *, timeout_s: float) -> Reading:
        """A mail changes nothing that has a version."""
        del call, timeout_s
        return Unreadable("no_version")


class _Refused(Exception):
    """The server, or we, ended the session before its dot."""

    def __init__(self, outcome: Outcome) -> None:
        super().__init__(type(outcome).__name__)
        self.outcome = outcome


class _Plain(smtplib.SMTP):
    """A client that knows before it connects which name a certificate must have."""

    def __init__(self, host: str, *, local_hostname: str, timeout: float) -> None:
        super().__init__(local_hostname=local_hostname, timeout=timeout)
        self._host = host


class _Tls(smtplib.SMTP_SSL):
    """The same, with TLS from the first byte."""

    def __init__(self, host: str, *, local_hostname: str, timeout: float, context: ssl.SSLContext) -> None:
        super().__init__(local_hostname=local_hostname, timeout=timeout, context=context)
        self._host = host


class _Session:
    """One connection, for one message to one recipient."""

    def __init__(self, config: EmailConfig, *, timeout_s: float) -> None:
        self._config = config
        self._until = time.monotonic() + timeout_s
        self._phase = Phase.CONNECT
        name, host = config.domain, config.host  # our own name is given: smtplib would ask the name service for it
        self._smtp: smtplib.SMTP = (
            _Tls(host, local_hostname=name, timeout=timeout_s, context=ssl.create_default_context())
            if config.tls == "implicit"
            else _Plain(host, local_hostname=name, timeout=timeout_s)
        )

    def deliver(self, to: str, data: bytes, *, receipt: str) -> Outcome:
        """The outcome of the session; never raises for an answer."""
        # A timeout of the socket begins anew with every byte: a server that drips would hold the worker for ever.
        cut = threading.Timer(max(0.0, self._until - time.monotonic()), self._cut)
        cut.daemon = True
        cut.start()
        try:
            self._open()
            return self._hand_over(to, data, receipt)
        except _Refused as refused:
            return refused.outcome
        except Exception as exc:  # noqa: BLE001 - judged by the phase, whatever failed in it
            return broken(self._phase, exc, in_time=time.monotonic() < self._until)
        finally:
            self._leave()
            cut.cancel()

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
        self._enter(Phase.DOT)  # from here on the server may have the whole of it
        smtp.send(b".\r\n")
        code, _ = smtp.getreply()
        return final(code, receipt)

    def _enter(self, phase: Phase) -> None:
        left_s = self._until - time.monotonic()
        if left_s <= 0:
            raise TimeoutError
        if self._smtp.sock is not None:
            self._smtp.sock.settimeout(left_s)
        self._phase = phase

    def _go_on(self, code: int, _reply: bytes) -> None:
        if not goes_on(self._phase, code):
            raise _Refused(refusal(self._phase, code))

    def _cut(self) -> None:
        if self._smtp.sock is not None:
            with suppress(OSError):
                self._smtp.sock.shutdown(socket.SHUT_RDWR)

    def _leave(self) -> None:
        """Says good-bye where somebody listens; nothing depends on it."""
        with suppress(Exception):
            if self._smtp.sock is not None:
                self._smtp.sock.settimeout(QUIT_S)
                self._smtp.quit()
        self._smtp.close()
