"""Decides the bytes of a mail: from the recorded call and the sender's address alone, so that every attempt sends the same.

The Date is the ledger's time of the first claim, which no later attempt changes. The Message-ID is made of our key.
"""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Iterator
from datetime import UTC
from email.headerregistry import Address
from email.message import EmailMessage
from email.policy import SMTP
from email.utils import format_datetime

from counterfoil.providers.contract import Call

_ENCODED_BYTES_MAX = 39
"""Of text in one encoded word: with its frame, and the header's name, 73 characters of the 76 that RFC 2047 allows a line."""


def message_id_of(key: str, domain: str) -> str:
    """Unique by our key; relays do not deduplicate by it, people and their logs can."""
    return f"<cf-{key}@{domain}>"


def bytes_of(call: Call, sender: str) -> bytes:
    """The whole message, in ASCII with CRLF line ends. ValueError where the call cannot be a mail, or would be read as
    something else than it says: `email` decodes what looks encoded in a header, line ends included."""
    if call.first_sent_at is None or not call.key:
        raise ValueError("a mail needs its key and the time of its first claim")
    message = EmailMessage(policy=SMTP)
    message["Date"] = format_datetime(call.first_sent_at.astimezone(UTC))  # the same text whatever zone a session has
    message["From"] = Address(addr_spec=sender)
    message["To"] = Address(addr_spec=str(call.arguments["to"]))
    message["Message-ID"] = message_id_of(call.key, sender.rpartition("@")[2])
    message["Subject"] = str(call.arguments["subject"])
    message["Auto-Submitted"] = "auto-generated"  # so that no absence notice answers it
    if (str(message["To"]), str(message["Subject"])) != (str(call.arguments["to"]), str(call.arguments["subject"])):
        raise ValueError("a header would not say what was recorded")
    message.set_content(str(call.arguments["body"]), cte="quoted-printable")
    del message["Subject"]
    head, blank, text = message.as_bytes().partition(b"\r\n\r\n")
    return head + b"\r\nSubject: " + _header_of(str(call.arguments["subject"])) + blank + text


def _header_of(subject: str) -> bytes:
    """What every mail program shows as exactly this line. `email` loses blanks where it folds what it encodes (3.11 to 3.13),
    so nothing is left to it: plain words are one line (of at most 998 characters), all else is encoded as a whole."""
    if subject.isascii() and subject == " ".join(subject.split()):
        return subject.encode("ascii")
    return b"\r\n ".join(b"=?utf-8?b?%s?=" % b64encode(part) for part in _parts_of(subject))


def _parts_of(text: str) -> Iterator[bytes]:
    """Whole characters in UTF-8, as many as one encoded word may have."""
    part = b""
    for sign in text:
        more = sign.encode()
        if len(part) + len(more) > _ENCODED_BYTES_MAX:
            yield part
            part = b""
        part += more
    yield part
