"""Decides what is done to drafts in a mailbox over IMAP, and what the mailbox proves about them.

A draft is found by our key in its Message-ID, at once and exactly. What a session proves when it ends:

    before the last byte of the message, or of the mark as deleted    NotSent
    NO or BAD, read whole (no part of a message is kept then)         Rejected; after a NO the same may be taken later
    OK                                                                Succeeded
    anything else, or nothing, after that byte                        Uncertain
    NO or BAD to the removal of what is marked as deleted             Uncertain: it is marked, and it is there
"""

from __future__ import annotations

import email
import hashlib
import re
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from email.policy import default

from counterfoil.providers.contract import Call, Of
from counterfoil.providers.email.config import EmailConfig, ImapConfig
from counterfoil.providers.email.cut import Cut
from counterfoil.providers.email.imap import Mailbox, NotUnderstood, Refused, Wrote, session
from counterfoil.providers.email.message import message_id_of
from counterfoil.providers.email.outcomes import reason_of
from counterfoil.providers.frame import each_found, gone, judged_send, read_or_unreadable
from counterfoil.providers.outcomes import (
    Absent,
    Finding,
    Found,
    Json,
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

RECEIPTS_MAX = 20
HEAD_BYTES_MAX = 1 << 15
"""Of a draft's headers; `email` may take minutes to take longer ones apart."""
REMOVE_S = 5.0
"""How long the removal of a draft that was sent may take; the mail is out by then, and nothing depends on it."""
_LINE_ENDS = re.compile(rb"\r\n|\r|\n")
_BLANK_LINE = re.compile(rb"\r\n\r\n|\n\n|\r\r")
_MESSAGE_ID = re.compile(r"<cf-[0-9a-f]{32}@[A-Za-z0-9.-]+>")
_NO_FOLDER = "no_imap_server"


class Drafts:
    """The drafts of one mailbox, by a session of its own for each call."""

    def __init__(self, config: EmailConfig) -> None:
        self._config = config

    def put(self, call: Call, data: bytes, *, timeout_s: float) -> Outcome:
        """Stores the draft, unless it is there already: an earlier attempt may have landed late."""
        receipt = message_id_of(call.key, self._config.domain)

        def act(mailbox: Mailbox, folder: str) -> Outcome:
            mailbox.open(folder, to_change=False)
            there = mailbox.find(_ids_of(call.key, receipt))
            if len(there) > 1:
                return Uncertain("many_found")
            if there:
                return _found(mailbox.read(there[0]), call.arguments, receipt)
            mailbox.append(folder, data)
            return Succeeded(receipt, {"id": receipt})

        return self._acted(act, timeout_s)

    def discard(self, call: Call, *, timeout_s: float) -> Outcome:
        """Removes the one draft that the call is about, and no other; one that has gone already is what was wanted."""
        of = call.of
        if of is None:
            return NotSent("of_unresolved")
        receipt = self._receipt(of)

        def act(mailbox: Mailbox, folder: str) -> Outcome:
            mailbox.open(folder, to_change=True)
            there = mailbox.find(_ids_of(of.key, receipt))
            if len(there) > 1:
                return Rejected("many_drafts")
            if there and not mailbox.removes_one:
                return Rejected("no_uidplus")
            removed = Succeeded(receipt, {"id": receipt})
            if not there:
                return gone(call, removed)
            mailbox.remove(there[0])
            return removed

        return self._acted(act, timeout_s)

    def remove_sent(self, call: Call, *, timeout_s: float) -> None:
        """Removes the draft that was sent, as it was shown; at best: whatever goes wrong, the mail is out."""
        imap, of = self._config.imap, call.of
        if imap is None or of is None or timeout_s <= 0:
            return
        with suppress(Exception), Cut(min(REMOVE_S, timeout_s)) as cut, session(imap, cut, Wrote()) as mailbox:
            mailbox.open(imap.folder, to_change=True)
            there = mailbox.find(_ids_of(of.key, self._receipt(of)), marked=False)
            if len(there) == 1 and mailbox.removes_one:
                unchanged = _version_of(mailbox.read(there[0])).text == call.expected_version
                if unchanged:  # what somebody wrote into it meanwhile is theirs
                    mailbox.remove(there[0])

    def find(self, calls: Sequence[Call], *, timeout_s: float) -> Mapping[str, Finding]:
        """One session for all calls; what fails is Unknown."""
        imap = self._config.imap
        if imap is None:
            return {call.action_id: Unknown(_NO_FOLDER) for call in calls}
        with Cut(timeout_s) as cut:

            def name(exc: Exception) -> str:
                return _name(exc, cut)

            try:
                with session(imap, cut, Wrote()) as mailbox:
                    mailbox.open(imap.folder, to_change=False)
                    return each_found(calls, lambda call: self._find(mailbox, call), name=name)
            except Exception as exc:  # noqa: BLE001 - a failed look-up proves nothing, whatever failed in it
                return {call.action_id: Unknown(name(exc)) for call in calls}

    def version(self, call: Call, *, timeout_s: float) -> Reading:
        """The draft's bytes, hashed. Where nothing was shown to anybody yet, it must still say what was recorded: what a
        person has put into it would not be sent."""
        imap, of = self._config.imap, call.of
        if imap is None or of is None:
            return Unreadable("of_unresolved" if of is None else _NO_FOLDER)
        with Cut(timeout_s) as cut:
            return read_or_unreadable(
                lambda: self._version(imap, cut, of, is_new=call.expected_version is None),
                name=lambda exc: _name(exc, cut),
            )

    def _version(self, imap: ImapConfig, cut: Cut, of: Of, *, is_new: bool) -> Reading:
        with session(imap, cut, Wrote()) as mailbox:
            mailbox.open(imap.folder, to_change=False)
            # What is marked as deleted a mail program may leave of a draft that somebody has sent by hand.
            there = mailbox.find(_ids_of(of.key, self._receipt(of)), marked=False)
            if len(there) != 1:
                return Unreadable("many_drafts" if there else "no_draft")
            raw = mailbox.read(there[0])
        return Unreadable("draft_edited") if is_new and not says(raw, of.arguments) else _version_of(raw)

    def _find(self, mailbox: Mailbox, call: Call) -> Finding:
        if call.tool == "email_discard":
            if call.of is None:
                return Unknown("of_unresolved")
            receipt = self._receipt(call.of)
            there = mailbox.find(_ids_of(call.of.key, receipt))
            return Absent() if there else Found(gone(call, Succeeded(receipt, {"id": receipt})), unkeyed=True)
        receipt = message_id_of(call.key, self._config.domain)
        there = mailbox.find(_ids_of(call.key, receipt))
        if len(there) > 1:
            return Many(tuple(there[:RECEIPTS_MAX]))
        if not there:
            return Absent()
        found = _found(mailbox.read(there[0]), call.arguments, receipt)
        return Found(found, as_intended=isinstance(found, Succeeded))

    def _acted(self, act: Callable[[Mailbox, str], Outcome], timeout_s: float) -> Outcome:
        """The outcome of one session that changes something."""
        imap, wrote = self._config.imap, Wrote()
        if imap is None:
            return NotSent(_NO_FOLDER)
        with Cut(timeout_s) as cut:

            def attempt() -> Outcome:
                try:
                    with session(imap, cut, wrote) as mailbox:
                        return act(mailbox, imap.folder)
                except Refused as refused:
                    return _refusal(refused)

            def judge(exc: Exception) -> Outcome:
                return Uncertain(f"after_write_{_name(exc, cut)}", evidence=type(exc).__name__)

            return judged_send(attempt, judge, wrote=lambda: wrote.yes, name=lambda exc: _name(exc, cut))

    def _receipt(self, of: Of) -> str:
        """The draft's Message-ID, as it was recorded where it was."""
        recorded = of.receipt is not None and _MESSAGE_ID.fullmatch(of.receipt)
        return str(of.receipt) if recorded else message_id_of(of.key, self._config.domain)


def says(raw: bytes, arguments: Mapping[str, Json]) -> bool:
    """The stored message is to that one person, with that subject and text and nothing else, however it is written.

    Mailboxes may write a message anew: other headers, another encoding. So its meaning is compared, not its bytes.
    """
    end = _BLANK_LINE.search(raw)
    if (end.start() if end else len(raw)) > HEAD_BYTES_MAX:
        return False
    try:
        message = email.message_from_bytes(raw, policy=default)
        to = [address.addr_spec for header in message.get_all("To", []) for address in header.addresses]
        text = message.get_content() if message.get_content_type() == "text/plain" else None
    except Exception:  # noqa: BLE001 - what cannot be read does not say it
        return False
    return (
        to == [arguments.get("to")]
        and not message.get_all("Cc", [])
        and not message.get_all("Bcc", [])
        and str(message["Subject"] or "").split() == str(arguments.get("subject")).split()
        and isinstance(text, str)
        and _plain(text) == _plain(str(arguments.get("body")))
    )


def _found(raw: bytes, arguments: Mapping[str, Json], receipt: str) -> Succeeded | Uncertain:
    """What the one draft under the key is: ours where it says what was asked for; else somebody has written in it."""
    return Succeeded(receipt, {"id": receipt}) if says(raw, arguments) else Uncertain("other_content")


def _version_of(raw: bytes) -> Version:
    """Of the message as it is stored, but for the kind of its line ends and the empty lines at its end."""
    same = _LINE_ENDS.sub(b"\r\n", raw).rstrip(b"\r\n")
    return Version(f"sha256:{hashlib.sha256(same).hexdigest()}")


def _refusal(refused: Refused) -> NotSent | Rejected:
    """Who does not let us in has not heard what is wanted; any other command is refused for good by BAD, for now by NO."""
    if refused.step in ("login", "capability"):
        return NotSent(refused.code)
    return Rejected(refused.code, retryable=refused.answer == "no")


def _ids_of(key: str, receipt: str) -> tuple[str, str]:
    """What finds the key's draft: all of its Message-ID, without which some mailboxes (iCloud's, Yandex's) find nothing; and
    what every Message-ID of the key holds, whatever the domain was then."""
    return receipt, f"<cf-{key}@"


def _plain(text: str) -> str:
    return text.replace("\r\n", "\n").rstrip("\n")


def _name(exc: Exception, cut: Cut) -> str:
    if isinstance(exc, Refused):
        return exc.code
    return "malformed" if isinstance(exc, NotUnderstood) else reason_of(exc, in_time=cut.in_time)
