"""A person in a mail program, at the sandbox's mailbox: reads, edits and deletes drafts as people do."""

from __future__ import annotations

import imaplib
from urllib.parse import urlsplit

from counterfoil.sandbox.client import Sandbox


class MailProgram:
    """One session in Drafts."""

    def __init__(self, sandbox: Sandbox) -> None:
        address = urlsplit(sandbox.imap.url)
        self.client = imaplib.IMAP4(str(address.hostname), address.port or 143)
        self.client.login("shop", "sandbox")

    def drafts(self) -> dict[str, bytes]:
        """By their numbers, oldest first."""
        self.client.select("Drafts")
        found: dict[str, bytes] = {}
        for uid in self.client.uid("SEARCH", "HEADER", "Message-ID", '"@"')[1][0].decode().split():
            answer = self.client.uid("FETCH", uid, "(BODY.PEEK[])")[1]
            found[uid] = answer[0][1]
        return found

    def put(self, raw: bytes) -> None:
        assert self.client.append("Drafts", "(\\Draft)", "", raw)[0] == "OK"

    def mark_deleted(self, uid: str) -> None:
        assert self.client.uid("STORE", uid, "+FLAGS", "(\\Deleted)")[0] == "OK"

    def delete(self, uid: str) -> None:
        self.client.select("Drafts")
        self.mark_deleted(uid)
        assert self.client.uid("EXPUNGE", uid)[0] == "OK"

    def edit(self, old: bytes, new: bytes) -> None:
        """As mail programs do: another message under the same Message-ID, and the old one is gone."""
        [(uid, raw)] = self.drafts().items()
        assert old in raw
        self.put(raw.replace(old, new))
        self.delete(uid)

    def close(self) -> None:
        self.client.shutdown()
