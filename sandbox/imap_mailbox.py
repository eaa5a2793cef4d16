"""Decides what a mailbox holds: messages in folders, each with a number that is never given again; durable, with effects."""

from __future__ import annotations

import email
import operator
import re
from collections.abc import Callable
from email.policy import default

from counterfoil.sandbox.store import Store
from counterfoil.sandbox.wire import Json

NAME = "imap"
FOLDERS = ("INBOX", "Drafts", "Sent", "Entw&APw-rfe")
DRAFT, DELETION = "draft", "draft_deletion"
_MESSAGE = "imap_message"
_KEY = re.compile(r"<cf-([0-9a-f]{32})@")


def append(store: Store, folder: str, flags: list[str], raw: bytes) -> int:
    """One more message; nothing looks for earlier ones like it."""
    with store.transaction():
        uid = store.next_number("imap_uid", 1)
        text = raw.decode("latin-1")
        store.put(_MESSAGE, str(uid), {"uid": uid, "raw": text, "flags": flags}, parent=folder)
        data = {"folder": folder, "flags": flags, "message_id": header(text, "Message-ID"), "raw": text}
        store.record_effect(NAME, DRAFT, str(uid), key=_key(text), data=data)
    return uid


def messages(store: Store, folder: str) -> list[Json]:
    """Oldest first."""
    return store.page(_MESSAGE, parent=folder)[::-1]


def search(store: Store, folder: str, name: str, text: str, *, marked: bool) -> list[int]:
    """The numbers of the messages whose header `name` contains `text`, upper and lower case alike, with or without those
    that are marked as deleted."""
    fits: Callable[[str, str], bool] = operator.contains if store.config.imap_search == "part" else operator.eq
    looked_at = [m for m in messages(store, folder) if marked or "\\Deleted" not in m["flags"]]
    return [m["uid"] for m in looked_at if fits(header(m["raw"], name).lower(), text.lower())]


def flag(store: Store, folder: str, uid: int, flags: list[str]) -> Json | None:
    """Adds flags to one message; None where there is none."""
    found = _one(store, folder, uid)
    if found is not None:
        found |= {"flags": sorted({*found["flags"], *flags})}
        store.put(_MESSAGE, str(uid), found)
    return found


def expunge(store: Store, folder: str, uids: list[int] | None) -> list[int]:
    """Removes the messages marked as deleted, of these numbers only, or all of them; the numbers of those removed."""
    gone = []
    with store.transaction():
        for message in messages(store, folder):
            uid = message["uid"]
            if "\\Deleted" in message["flags"] and (uids is None or uid in uids):
                store.delete(_MESSAGE, str(uid))
                data = {"folder": folder, "message_id": header(message["raw"], "Message-ID")}
                store.record_effect(NAME, DELETION, str(uid), key=_key(message["raw"]), data=data)
                gone.append(uid)
    return gone


def header(raw: str, name: str) -> str:
    """A header's text, "" where there is none."""
    return str(email.message_from_string(raw, policy=default)[name] or "")


def count_open(store: Store) -> int:
    """Messages in Drafts."""
    return len(messages(store, "Drafts"))


def _one(store: Store, folder: str, uid: int) -> Json | None:
    return next((message for message in messages(store, folder) if message["uid"] == uid), None)


def _key(raw: str) -> str | None:
    found = _KEY.search(header(raw, "Message-ID"))
    return found[1] if found else None
