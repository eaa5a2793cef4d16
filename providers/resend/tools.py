"""Decides what agents may do through Resend: write to one person, and write again about a mail that was wrong.

Resend knows a repeat of our key for a day, and nothing lists mail by a key: within the day a resend is the look-up, later a
person decides. Nothing takes a mail back, so a person approves each. The functions are signatures only;
`counterfoil.providers.resend.client` sends, in workers.
"""

from __future__ import annotations

from typing import TypedDict

from counterfoil.providers.messages import Address, Body, Reference, Subject, correction_by
from counterfoil.providers.tool import tool

ADAPTER = "counterfoil.providers.resend.client:ResendAdapter"
KEY_TTL_S = 24 * 3600.0
"""Resend forgets a key after 24 h; see "Idempotency Keys" in its documentation."""


class MailResult(TypedDict):
    """What the model sees of a mail that Resend has accepted: Resend's id of it."""

    id: str


@tool(
    cls="irreversible",
    provider="resend",
    effect="email",
    target="to",
    once_per=("to", "reference"),
    audience=["customer"],
    native_key_ttl_s=KEY_TTL_S,
    correction=correction_by("resend_correction"),
    adapter=ADAPTER,
)
def resend_send(to: Address, subject: Subject, body: Body, reference: Reference) -> MailResult:
    """Send one e-mail to one person."""
    raise NotImplementedError


# None of its own: a correction of a correction is what a person writes.
@tool(
    cls="irreversible",
    provider="resend",
    effect="email_correction",
    target="to",
    once_per=None,
    audience=["customer"],
    native_key_ttl_s=KEY_TTL_S,
    adapter=ADAPTER,
)
def resend_correction(to: Address, subject: Subject, body: Body, reference: Reference) -> MailResult:
    """Write again to somebody who got a mail that was wrong."""
    raise NotImplementedError
