"""Decides what agents may do by e-mail: write to one person, and write again about a mail that was wrong.

Nothing can be asked about a mail whose fate is unknown, and nothing takes one back: a person approves each, and a person
decides where the server's last answer was lost. The functions are signatures only; `counterfoil.providers.email.client`
sends, in workers.
"""

from __future__ import annotations

from typing import TypedDict

from counterfoil.providers.messages import Address, Body, Reference, Subject, correction_by
from counterfoil.providers.tool import tool

ADAPTER = "counterfoil.providers.email.client:EmailAdapter"


class MailResult(TypedDict):
    """What the model sees of a mail that the server has accepted: its Message-ID."""

    id: str


@tool(
    cls="irreversible",
    provider="email",
    effect="email",
    target="to",
    once_per=("to", "reference"),
    audience=["customer"],
    uncertain="operator_review",
    correction=correction_by("email_correction"),
    adapter=ADAPTER,
)
def email_send(to: Address, subject: Subject, body: Body, reference: Reference) -> MailResult:
    """Send one e-mail to one person."""
    raise NotImplementedError


# None of its own: a correction of a correction is what a person writes.
@tool(
    cls="irreversible",
    provider="email",
    effect="email_correction",
    target="to",
    once_per=None,
    audience=["customer"],
    uncertain="operator_review",
    adapter=ADAPTER,
)
def email_correction(to: Address, subject: Subject, body: Body, reference: Reference) -> MailResult:
    """Write again to somebody who got a mail that was wrong."""
    raise NotImplementedError
