"""Decides what the mail server does: accepts each complete message, durably and without looking for earlier ones like it.

One session takes one message after the other; every phase can be hurt. A message is accepted between its final dot and the
reply, in one transaction: a server that is killed there has it or has it not, and keeps what it has.
"""

from __future__ import annotations

import asyncio
import base64
import binascii
import email
import re
from email.policy import default
from functools import partial

from counterfoil.sandbox.attempts import Attempt
from counterfoil.sandbox.damage import reset
from counterfoil.sandbox.gateway import Gateway
from counterfoil.sandbox.listener import Listener, SessionEnded
from counterfoil.sandbox.smtp_faults import SmtpRule, SmtpRules

NAME = "smtp"
EFFECT = "email"
PASSWORD = "sandbox"
"""The one that a login must give; without a login, mail is taken as well."""
_MESSAGE_BYTES_MAX = 1 << 20
_COMMANDS_MAX = 1000
_KEY = re.compile(r"<cf-([0-9a-f]{32})@")
_ADDRESS = re.compile(rb"(?i)(?:FROM|TO):\s*<([^<>\s]*)>")
_OPERATIONS = {b"EHLO": "ehlo", b"HELO": "ehlo", b"AUTH": "auth", b"MAIL": "mail", b"RCPT": "rcpt", b"DATA": "data"}


class SmtpServer:
    """A mail server on a port of its own, over the gateway's store, clock and log."""

    def __init__(self, gateway: Gateway) -> None:
        self.gateway = gateway
        self.rules = SmtpRules()
        self.listener = Listener(lambda reader, writer: _Session(self, reader, writer).run())

    def clear(self) -> None:
        self.rules.rules.clear()

    def accept(self, raw: bytes, to: str, attempt: Attempt, generation: int) -> None:
        """One more message in the recipient's mailbox, unless the world was reset meanwhile."""
        store = self.gateway.store
        if store.generation != generation:
            return
        message_id = str(email.message_from_bytes(raw, policy=default)["Message-ID"] or "")
        key = _KEY.search(message_id)
        data = {"to": to, "message_id": message_id, "raw": raw.decode("ascii", errors="replace")}
        with store.transaction():
            object_id = store.new_id("eml_")
            store.record_effect(NAME, EFFECT, object_id, key=key[1] if key else None, data=data)
        attempt.executed += 1


class _Session:
    """One client's connection."""

    def __init__(self, server: SmtpServer, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.server, self.reader, self.writer = server, reader, writer
        self.generation = server.gateway.store.generation
        self.sender: str | None = None
        self.to: list[str] = []

    async def run(self) -> None:
        """Commands until QUIT; the greeting comes first."""
        self._note("connect")
        await self._answer("connect", 220, "sandbox ready")
        for _ in range(_COMMANDS_MAX):
            line = (await self.reader.readuntil(b"\n")).rstrip(b"\r\n")
            verb = line[:4].upper()
            if verb == b"QUIT":
                return await self._answer("quit", 221, "bye")
            if verb == b"DATA" and self.to:
                await self._take_message()
            elif verb in (b"RSET", b"NOOP"):
                self.sender, self.to = (None, []) if verb == b"RSET" else (self.sender, self.to)
                await self._reply(250, "ok")
            elif verb in _OPERATIONS:
                await self._answer(_OPERATIONS[verb], *self._take(verb, line))
            else:
                await self._reply(502, "no such command")
        return None

    def _take(self, verb: bytes, line: bytes) -> tuple[int, str]:
        """Does what the command says; the reply of a healthy server."""
        match verb:
            case b"EHLO":
                return 250, f"sandbox\nAUTH PLAIN\nSIZE {_MESSAGE_BYTES_MAX}"
            case b"AUTH":
                return (235, "welcome") if _password_of(line) == PASSWORD else (535, "not that password")
            case b"MAIL" | b"RCPT":
                found = _ADDRESS.search(line)
                if found is None or (verb == b"RCPT" and self.sender is None):
                    return 501, "no address, or out of order"
                address = found[1].decode("ascii", errors="replace")
                self.sender = address if verb == b"MAIL" else self.sender
                self.to = [] if verb == b"MAIL" else [*self.to, address]
                return 250, "ok"
            case b"DATA":
                return 503, "no recipient"
            case _:
                return 250, "sandbox"

    async def _take_message(self) -> None:
        await self._answer("data", 354, "go ahead")
        rule = self.server.rules.choose("body")
        first = await self.reader.readuntil(b"\n")
        if rule is not None:
            await self._hurt(rule)
        lines, size = [first], len(first)
        while lines[-1] != b".\r\n":
            lines.append(await self.reader.readuntil(b"\n"))
            size += len(lines[-1])
            if size > _MESSAGE_BYTES_MAX:
                await self._reply(552, "too large")
                raise SessionEnded
        raw = b"".join(line[1:] if line.startswith(b".") else line for line in lines[:-1])
        await self._finish(raw)
        self.sender, self.to = None, []

    async def _finish(self, raw: bytes) -> None:
        """The dot was read: the message is accepted, or it is not, and then the client is told, or it is not."""
        rule = self.server.rules.choose("dot")
        attempt = self._note("dot", raw, rule)
        commits = "yes" if rule is None else rule.commits
        accept = partial(self._accept, raw, list(self.to), attempt)
        if commits == "yes":
            accept()
        elif commits == "later" and rule is not None:
            clock = self.server.gateway.store.clock
            clock.call_at(clock.now() + rule.delay_s, accept)
        if rule is not None:
            attempt.status = rule.status if rule.name == "answer" else None
            await self._hurt(rule)
        else:
            attempt.status = 250
            await self._reply(250, "accepted")

    def _accept(self, raw: bytes, to: list[str], attempt: Attempt) -> None:
        for address in to:
            self.server.accept(raw, address, attempt, self.generation)

    async def _answer(self, operation: str, code: int, text: str) -> None:
        """The healthy reply, or the phase's fault in its place."""
        rule = self.server.rules.choose(operation)
        if rule is None:
            return await self._reply(code, text)
        await self._hurt(rule)
        if operation == "data":
            raise SessionEnded  # whatever was answered in place of the 354, no message comes now
        return None

    async def _hurt(self, rule: SmtpRule) -> None:
        match rule.name:
            case "answer":
                return await self._reply(rule.status, f"the sandbox answers {rule.status}")
            case "garbage":
                self.writer.write(b"?? what\r\n")
                return await self.writer.drain()
            case "stall":
                await self.server.gateway.store.clock.sleep(rule.delay_s)
                self._cut()
            case "rst":
                self._cut()
            case _:
                self.writer.close()
        raise SessionEnded

    def _cut(self) -> None:
        transport = self.writer.transport
        assert isinstance(transport, asyncio.Transport)
        reset(transport)

    async def _reply(self, code: int, text: str) -> None:
        *first, last = text.split("\n")
        self.writer.write("".join([*(f"{code}-{line}\r\n" for line in first), f"{code} {last}\r\n"]).encode())
        await self.writer.drain()

    def _note(self, operation: str, raw: bytes | None = None, rule: SmtpRule | None = None) -> Attempt:
        gateway = self.server.gateway
        attempt = gateway.attempts.arrived(
            arrived=gateway.store.now(),
            provider=NAME,
            operation=operation,
            method="SMTP",
            path="",
            query="",
            headers={},
            fault=rule.name if rule else None,
        )
        attempt.body = None if raw is None else raw.decode("ascii", errors="replace")
        return attempt


def _password_of(line: bytes) -> str | None:
    """Out of `AUTH PLAIN <base64 of NUL, name, NUL, password>`."""
    try:
        return base64.b64decode(line.split()[2], validate=True).split(b"\0")[2].decode()
    except (IndexError, ValueError, binascii.Error):
        return None
