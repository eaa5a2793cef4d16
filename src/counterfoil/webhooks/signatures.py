"""Decides whether a request was signed with one of our secrets, and lately: the three providers' ways of signing.

Each signs an HMAC-SHA256 over the body as it was sent. Ours, and not the clients' own checks: Stripe's takes one secret at
a time, reads the process's clock and accepts any time in the future; Jira's and Zendesk's clients have none.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime

TOLERANCE_S = 300.0
"""How far a signature's time may be from ours, either way: what Stripe's own clients allow. Clocks are kept by NTP."""

PARTS_MAX = 16
"""Parts of one signature header; Stripe sends one for each secret in use, which are two while one is replaced."""

_HEX = re.compile(r"[0-9a-f]{64}")
_SECONDS = re.compile(r"[0-9]{1,12}")


class BadSignature(Exception):
    """The request is not who it says it is, or not of now. `code` is for our log; a sender is told nothing."""

    def __init__(self, code: str) -> None:
        super().__init__(code)
        self.code = code


@dataclass(frozen=True, slots=True)
class Signed:
    """What was signed, the signatures that were sent with it, and when it was (None: the provider does not say)."""

    message: bytes
    digests: tuple[bytes, ...]
    at: float | None

    def fits(self, secret: bytes) -> bool:
        """One of the signatures is this secret's. Takes as long whichever it is."""
        expected = hmac.new(secret, self.message, hashlib.sha256).digest()
        return sum(hmac.compare_digest(expected, digest) for digest in self.digests) > 0


def signers(
    provider: str, headers: Mapping[str, str], body: bytes, *, secrets: Mapping[str, Iterable[bytes]], now: float
) -> tuple[str, ...]:
    """The accounts with a secret that signed this body, at least one. Header names in lower case, `now` in Unix seconds.

    Raises `BadSignature`, also for what is older than `TOLERANCE_S` or lies as far ahead.
    """
    signed = _READERS[provider](headers, body)
    if signed.at is not None and abs(now - signed.at) > TOLERANCE_S:
        raise BadSignature("too_old" if signed.at < now else "ahead_of_time")
    known = {secret: signed.fits(secret) for each in secrets.values() for secret in each}
    found = tuple(account for account, each in secrets.items() if any(known[secret] for secret in each))
    if not found:
        raise BadSignature("not_ours")
    return found


def _stripe(headers: Mapping[str, str], body: bytes) -> Signed:
    """`Stripe-Signature: t=1700000000,v1=<hex>,v1=<hex>`, over the time, a dot and the body; other schemes are ignored."""
    parts = [part.strip().partition("=") for part in _header(headers, "stripe-signature").split(",", PARTS_MAX)]
    if len(parts) > PARTS_MAX:
        raise BadSignature("malformed")
    times = [value for name, _, value in parts if name == "t"]
    digests = tuple(bytes.fromhex(value) for name, _, value in parts if name == "v1" and _HEX.fullmatch(value))
    if len(times) != 1 or not _SECONDS.fullmatch(times[0]) or not digests:
        raise BadSignature("malformed")
    return Signed(times[0].encode() + b"." + body, digests, float(times[0]))


def _zendesk(headers: Mapping[str, str], body: bytes) -> Signed:
    """`X-Zendesk-Webhook-Signature: <base64>`, over the text of the time and the body."""
    text = _header(headers, "x-zendesk-webhook-signature-timestamp")
    try:
        at = datetime.fromisoformat(text)
        digest = base64.b64decode(_header(headers, "x-zendesk-webhook-signature"), validate=True)
    except (ValueError, binascii.Error):
        raise BadSignature("malformed") from None
    if at.tzinfo is None or len(digest) != hashlib.sha256().digest_size or not text.isascii():
        raise BadSignature("malformed")
    return Signed(text.encode() + body, (digest,), at.timestamp())


def _jira(headers: Mapping[str, str], body: bytes) -> Signed:
    """`X-Hub-Signature: sha256=<hex>`, over the body alone: an event that is sent again cannot be told from a new one."""
    scheme, _, value = _header(headers, "x-hub-signature").partition("=")
    if scheme != "sha256" or not _HEX.fullmatch(value):
        raise BadSignature("malformed")
    return Signed(body, (bytes.fromhex(value),), None)


def _header(headers: Mapping[str, str], name: str) -> str:
    value = headers.get(name)
    if not value:
        raise BadSignature("unsigned")
    return value


_READERS: Mapping[str, Callable[[Mapping[str, str], bytes], Signed]] = {
    "stripe": _stripe,
    "zendesk": _zendesk,
    "jira": _jira,
}

PROVIDERS = frozenset(_READERS)
"""Whose events are understood."""
