"""Decides how a mailbox is spoken to: one session a call, in one folder, and whether it may have changed something.

imaplib raises the same exceptions whatever it was doing. So each write is announced before it leaves (`Wrote`). A
message is complete with the last byte of its literal: that byte is written apart.
"""

from __future__ import annotations

import imaplib
import re
import socket
import ssl
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any

from counterfoil.providers.email.config import ImapConfig
from counterfoil.providers.email.cut import Cut

MESSAGE_BYTES_MAX = 1 << 20
"""Of a message as it is read: more than any of ours has. What somebody has made larger is cut, and so is not what it was."""
REPLY_BYTES_MAX = MESSAGE_BYTES_MAX + (1 << 16)
"""Of all that a mailbox says to one command."""
_OK, _NO = "OK", "NO"
_Part = Any
"""A part of an answer, as imaplib gives it: None, bytes, or a pair of a head and its literal."""
_Ask = Callable[[], tuple[str, list[_Part]]]
_UIDS = re.compile(rb"[1-9][0-9]{0,9}(?: [1-9][0-9]{0,9})*", re.ASCII)
_LINE_ENDS = re.compile(rb"\r\n|\r|\n")
_BAD = re.compile(r"[A-Z]+ command error: BAD ")
"""How imaplib words a BAD that it has read whole; its other errors begin otherwise."""


class Refused(Exception):
    """The mailbox has said NO or BAD, in an answer that was read whole: the command was not carried out."""

    def __init__(self, step: str, answer: str) -> None:
        super().__init__(f"{step}_{answer}")
        self.step, self.answer, self.code = step, answer, f"{step}_{answer}"


class NotUnderstood(Exception):
    """The mailbox has answered, and not as it should."""


@dataclass(slots=True)
class Wrote:
    """Whether a change was handed to the network in a session; False proves that none left."""

    yes: bool = False


class Mailbox:
    """One session, logged in. Numbers (uids) hold for this session and folder."""

    def __init__(self, client: _Client, cut: Cut, wrote: Wrote) -> None:
        self._client, self._cut, self._wrote = client, cut, wrote
        self.removes_one = False
        """The mailbox has UIDPLUS: it can remove one message, and leave the others alone."""

    def log_in(self, username: str, password: str) -> None:
        client = self._client
        self._do("login", lambda: client.login(_quoted(username), password))
        answer = self._do("capability", client.capability)  # a mailbox may offer more after the login
        self.removes_one = b"UIDPLUS" in b" ".join(part for part in answer if part).upper().split()

    def open(self, folder: str, *, to_change: bool) -> None:
        """Selects the folder for the other calls."""
        self._do("select", lambda: self._client.select(_quoted(folder), readonly=not to_change))

    def append(self, folder: str, message: bytes) -> None:
        """Stores one message as a draft. ValueError unless its line ends are CRLF: imaplib would write another one."""
        if _LINE_ENDS.sub(b"\r\n", message) != message:
            raise ValueError("a line of the message does not end with CRLF")
        client = self._client
        client.before_last_byte = self._write
        self._do("append", lambda: client.append(_quoted(folder), r"(\Draft)", "", message))
        if not self._wrote.yes:  # it has said OK before there was a message
            raise NotUnderstood

    def find(self, ids: Iterable[str], *, marked: bool = True) -> list[str]:
        """The uids of the messages whose Message-ID is, or contains, one of these texts, with or without those that are
        marked as deleted; complete, or an exception."""
        found = [uid for text in ids for uid in self._search("HEADER", "Message-ID", _quoted(text), marked=marked)]
        return list(dict.fromkeys(found))

    def _search(self, *words: str, marked: bool) -> list[str]:
        words = words if marked else ("UNDELETED", *words)
        answer = self._do("search", lambda: self._client.uid("SEARCH", *words))
        if answer == [None]:
            raise NotUnderstood
        numbers = b" ".join(part.strip() for part in answer if part).strip()
        if numbers and not _UIDS.fullmatch(numbers):
            raise NotUnderstood
        return numbers.decode("ascii").split()

    def read(self, uid: str) -> bytes:
        """The message, of which no more than `MESSAGE_BYTES_MAX`, without marking it as seen."""
        part = f"(BODY.PEEK[]<0.{MESSAGE_BYTES_MAX}>)"
        answer = self._do("fetch", lambda: self._client.uid("FETCH", uid, part))
        parts = [part for part in answer if isinstance(part, tuple)]
        wanted = re.compile(rb"UID %s\b" % uid.encode("ascii"), re.ASCII)
        said = b" ".join(each if isinstance(each, bytes) else each[0] for each in answer if each)
        if len(parts) != 1 or not wanted.search(said):
            raise NotUnderstood
        head, message = parts[0]
        size = re.search(rb"\{(\d+)\}$", head)
        if size is None or len(message) != int(size[1]):
            raise NotUnderstood
        return bytes(message)

    def remove(self, uid: str) -> None:
        """Marks exactly this message as deleted, and removes exactly it."""
        self._write()
        self._do("store", lambda: self._client.uid("STORE", uid, "+FLAGS.SILENT", r"(\Deleted)"))
        try:
            self._do("expunge", lambda: self._client.uid("EXPUNGE", uid))
        except Refused as refused:  # it is marked by now, which is neither done nor nothing
            raise NotUnderstood(refused.code) from None

    def _write(self) -> None:
        self._wrote.yes = True

    def _do(self, step: str, ask: _Ask) -> list[_Part]:
        """One command's answer; Refused for NO and BAD, anything else that is not OK is NotUnderstood."""
        self._client.sock.settimeout(self._cut.left_s())
        self._client.left_bytes = REPLY_BYTES_MAX
        try:
            status, answer = ask()
        except imaplib.IMAP4.abort:
            raise
        except imaplib.IMAP4.error as error:
            if step == "login":  # imaplib raises for a NO as well, with the mailbox's words alone
                raise Refused(step, "no") from None
            if _BAD.match(str(error)):
                raise Refused(step, "bad") from None
            raise
        if status == _NO:
            raise Refused(step, "no")
        if status != _OK:
            raise NotUnderstood
        return list(answer)


@contextmanager
def session(config: ImapConfig, cut: Cut, wrote: Wrote) -> Iterator[Mailbox]:
    """A mailbox that has let us in; the connection ends with the block."""
    client = _Tls(config, cut) if config.tls else _Client(config, cut)
    try:
        mailbox = Mailbox(client, cut, wrote)
        mailbox.log_in(config.username, config.password)
        yield mailbox
    finally:
        with suppress(Exception):
            client.shutdown()


class _Client(imaplib.IMAP4):
    """imaplib's client over a connection that can be cut, which reads no more than `left_bytes`."""

    def __init__(self, config: ImapConfig, cut: Cut) -> None:
        self._cut = cut
        self.left_bytes = REPLY_BYTES_MAX
        self.before_last_byte: Callable[[], None] | None = None
        """Called before the last byte of the next command's literal is written, or of anything else that follows it."""
        self._commanded = False
        super().__init__(config.host, config.port)

    def _create_socket(self, timeout: float | None) -> socket.socket:
        return self._cut.connect(self.host, self.port)

    def read(self, size: int) -> bytes:
        if size > self.left_bytes:
            raise self.abort("the answer is too large")
        self.left_bytes -= size
        return super().read(size)

    def readline(self) -> bytes:
        line = self.file.readline(self.left_bytes + 1)
        assert isinstance(line, bytes)
        self.left_bytes -= len(line)
        if self.left_bytes < 0:
            raise self.abort("the answer is too large")
        return line

    def send(self, data: Any) -> None:
        if self.before_last_byte is None or not self._commanded:
            self._commanded = self.before_last_byte is not None
            return super().send(data)
        super().send(data[:-1])
        self.before_last_byte()
        return super().send(data[-1:])


class _Tls(_Client):
    """The same, with TLS from the first byte."""

    def _create_socket(self, timeout: float | None) -> socket.socket:
        plain = super()._create_socket(timeout)
        return ssl.create_default_context().wrap_socket(plain, server_hostname=self.host)


def _quoted(text: str) -> str:
    return '"' + text.replace("\\", "\\\\").replace('"', '\\"') + '"'
