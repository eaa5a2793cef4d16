"""Decides what the IMAP server does: a small part of IMAP4rev1 with UIDPLUS, and every phase can be hurt.

A message is stored between the last byte of its literal and the reply, in one transaction: a server that is killed there has
it or has it not, and keeps what it has. Two messages of one Message-ID are two messages.
"""

from __future__ import annotations

import asyncio
import re
from functools import partial

from counterfoil.sandbox import imap_mailbox as mailbox
from counterfoil.sandbox.attempts import Attempt
from counterfoil.sandbox.damage import reset
from counterfoil.sandbox.gateway import Gateway
from counterfoil.sandbox.imap_faults import WRITES, ImapRule, ImapRules
from counterfoil.sandbox.listener import Listener, SessionEnded

NAME = mailbox.NAME
PASSWORD = "sandbox"
"""The one that a login must give."""
_MESSAGE_BYTES_MAX = 1 << 20
_COMMANDS_MAX = 1000
_TOKEN = re.compile(r'"((?:[^"\\]|\\.)*)"|\(([^)]*)\)|(\S+)')
_LITERAL = re.compile(r"\{(\d{1,9})\}$")
_PARTIAL = re.compile(r"\[\]<(\d{1,9})\.(\d{1,9})>")
"""From which byte on, and how many."""
_ANYWHERE = ("CAPABILITY", "LOGIN", "LOGOUT", "NOOP")
_SELECTED = ("UID SEARCH", "UID FETCH", "UID STORE", "UID EXPUNGE")
_OPERATIONS = {
    "CAPABILITY": "capability",
    "LOGIN": "login",
    "SELECT": "select",
    "EXAMINE": "select",
    "APPEND": "append",
    "UID SEARCH": "search",
    "UID FETCH": "fetch",
    "UID STORE": "store",
    "UID EXPUNGE": "expunge",
    "LOGOUT": "logout",
    "NOOP": "noop",
}


class ImapServer:
    """A mailbox on a port of its own, over the gateway's store, clock and log."""

    def __init__(self, gateway: Gateway) -> None:
        self.gateway = gateway
        self.rules = ImapRules()
        self.listener = Listener(lambda reader, writer: _Session(self, reader, writer).run())

    def clear(self) -> None:
        self.rules.rules.clear()


class _No(Exception):
    """The command is refused: the text after NO."""


class _Session:
    """One client's connection."""

    def __init__(self, server: ImapServer, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.server, self.reader, self.writer = server, reader, writer
        self.store = server.gateway.store
        self.generation = self.store.generation
        self.in_ = False
        self.folder: str | None = None
        self.writable = False

    async def run(self) -> None:
        """Commands until LOGOUT; the greeting comes first."""
        self._note("connect")
        rule = self.server.rules.choose("connect")
        if rule is not None:
            await self._hurt(rule, "*")
        await self._say("* OK sandbox ready")
        for _ in range(_COMMANDS_MAX):
            line = (await self.reader.readuntil(b"\r\n"))[:-2].decode("latin-1")
            tag, _, rest = line.partition(" ")
            words = rest.split(" ", 2)
            verb = " ".join(words[:2]).upper() if words[0].upper() == "UID" else words[0].upper()
            if verb not in _OPERATIONS:
                await self._say(f"{tag} BAD no such command")
                continue
            await self._obey(tag, verb, rest[len(verb) :].strip())
            if verb == "LOGOUT":
                return

    async def _obey(self, tag: str, verb: str, rest: str) -> None:
        operation = _OPERATIONS[verb]
        self._note(operation)
        rule = self.server.rules.choose(operation)
        if rule is not None:
            if operation in WRITES and rule.commits == "yes":
                self._done(verb, rest)
            return await self._hurt(rule, tag)
        if (verb not in _ANYWHERE and not self.in_) or (verb in _SELECTED and self.folder is None):
            return await self._say(f"{tag} BAD not now")
        if verb == "APPEND":
            return await self._append(tag, rest)
        try:
            lines = self._done(verb, rest)
        except _No as refused:
            return await self._say(f"{tag} NO {refused}")
        for line in lines:
            await self._say(line)
        return await self._say(f"{tag} OK {self._code(verb)}done")

    def _done(self, verb: str, rest: str) -> list[str]:
        """Does what the command says; the untagged lines of a healthy server."""
        words = _words(rest)
        match verb, words:
            case "CAPABILITY", _:
                uidplus = " UIDPLUS" if self.store.config.imap_uidplus and self.in_ else ""
                return [f"* CAPABILITY IMAP4rev1{uidplus}"]
            case "LOGIN", [_, password]:
                if password != PASSWORD:
                    raise _No("[AUTHENTICATIONFAILED] not that password")
                self.in_ = True
                return []
            case (("SELECT" | "EXAMINE"), [folder]):
                self.folder = None
                if folder not in mailbox.FOLDERS:
                    raise _No("[NONEXISTENT] no such folder")
                self.folder, self.writable = folder, verb == "SELECT"
                return [f"* {len(mailbox.messages(self.store, folder))} EXISTS", "* FLAGS (\\Deleted \\Draft \\Seen)"]
            case "UID SEARCH", [*undeleted, "HEADER", name, text] if undeleted in ([], ["UNDELETED"]):
                found = mailbox.search(self.store, self.folder or "", name, text, marked=not undeleted)
                return [" ".join(["* SEARCH", *map(str, found)])]
            case "UID FETCH", [uid, what]:
                return self._fetched(int(uid), _PARTIAL.search(what))
            case "UID STORE", [uid, _, flags] if self.writable:
                mailbox.flag(self.store, self.folder or "", int(uid), flags.split())
                return []
            case "UID EXPUNGE", [uid] if self.writable:
                if not self.store.config.imap_uidplus:
                    raise _No("no UIDPLUS")
                gone = mailbox.expunge(self.store, self.folder or "", [int(uid)])
                return [f"* {number} EXPUNGE" for number, _ in enumerate(gone, 1)]
            case "LOGOUT", _:
                return ["* BYE good-bye"]
            case "NOOP", _:
                return []
            case _:
                raise _No("not such arguments, or not here")

    def _fetched(self, uid: int, partial: re.Match[str] | None) -> list[str]:
        for number, message in enumerate(mailbox.messages(self.store, self.folder or ""), 1):
            if message["uid"] == uid:
                raw: str = message["raw"]
                of = ""
                if partial is not None:
                    of, start = f"<{partial[1]}>", int(partial[1])
                    raw = raw[start : start + int(partial[2])]
                return [f"* {number} FETCH (UID {uid} BODY[]{of} {{{len(raw)}}}\r\n{raw})"]
        return []

    async def _append(self, tag: str, rest: str) -> None:
        size = _LITERAL.search(rest)
        words = _words(rest)
        if size is None or not words:
            return await self._say(f"{tag} BAD no literal")
        if words[0] not in mailbox.FOLDERS:
            return await self._say(f"{tag} NO [TRYCREATE] no such folder")
        if int(size[1]) > _MESSAGE_BYTES_MAX:
            return await self._say(f"{tag} NO [TOOBIG] too large")
        await self._say("+ go ahead")
        rule = self.server.rules.choose("literal")
        if rule is not None:
            await self.reader.readexactly(1)
            await self._hurt(rule, tag)
        raw = await self.reader.readexactly(int(size[1]))
        await self.reader.readuntil(b"\r\n")
        flags = words[1].split() if len(words) > 2 else []
        return await self._finish(tag, words[0], flags, raw)

    async def _finish(self, tag: str, folder: str, flags: list[str], raw: bytes) -> None:
        """The literal was read: the message is stored, or it is not, and then the client is told, or it is not."""
        rule = self.server.rules.choose("appended")
        attempt = self._note("appended", raw, rule)
        commits = "yes" if rule is None else rule.commits
        store = partial(self._store, folder, flags, raw, attempt)
        if commits == "yes":
            store()
        elif commits == "later" and rule is not None:
            self.store.clock.call_at(self.store.now() + rule.delay_s, store)
        if rule is not None:
            await self._hurt(rule, tag)
        else:
            await self._say(f"{tag} OK stored")

    def _store(self, folder: str, flags: list[str], raw: bytes, attempt: Attempt) -> None:
        """Unless the world was reset meanwhile."""
        if self.store.generation == self.generation:
            mailbox.append(self.store, folder, flags, raw)
            attempt.executed += 1

    async def _hurt(self, rule: ImapRule, tag: str) -> None:
        match rule.name:
            case "no" | "bad":
                return await self._say(f"{tag} {rule.name.upper()} the sandbox says so")
            case "garbage":
                return await self._say("?? what")
            case "half":
                self.writer.write(f"{tag} NO the sandbox".encode())
                await self.writer.drain()
                self.writer.close()
            case "stall":
                await self.store.clock.sleep(rule.delay_s)
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

    def _code(self, verb: str) -> str:
        return "[READ-WRITE] " if verb == "SELECT" else "[READ-ONLY] " if verb == "EXAMINE" else ""

    async def _say(self, line: str) -> None:
        self.writer.write(line.encode("latin-1") + b"\r\n")
        await self.writer.drain()

    def _note(self, operation: str, raw: bytes | None = None, rule: ImapRule | None = None) -> Attempt:
        """Never a command's words: a login holds the password."""
        gateway = self.server.gateway
        attempt = gateway.attempts.arrived(
            arrived=gateway.store.now(),
            provider=NAME,
            operation=operation,
            method="IMAP",
            path="",
            query="",
            headers={},
            fault=rule.name if rule else None,
        )
        attempt.body = None if raw is None else raw.decode("latin-1")
        return attempt


def _words(text: str) -> list[str]:
    """Atoms, quoted strings and lists, each as its text."""
    found = _TOKEN.finditer(text)
    return [re.sub(r"\\(.)", r"\1", m[1]) if m[1] is not None else m[2] if m[2] is not None else m[3] for m in found]
