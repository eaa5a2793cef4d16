"""Decides what agents may do by e-mail: write to one person, at once or by a draft, and write again about a wrong mail.

Nothing can be asked about a mail whose fate is unknown, and nothing takes one back: a person approves each, and a person
decides where the server's last answer was lost. A draft lies in the team's own mailbox, where it can be looked up, edited by
people and taken back. The functions are signatures only; `counterfoil.providers.email.client` acts, in workers.
"""

from __future__ import annotations

from typing import TypedDict

from counterfoil.providers.contract import Of
from counterfoil.providers.messages import Address, Body, Reference, Subject, correction_by
from counterfoil.providers.tool import tool

ADAPTER = "counterfoil.providers.email.client:EmailAdapter"


class MailResult(TypedDict):
    """What the model sees of a mail that the server has accepted, or of a draft: its Message-ID."""

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


@tool(
    cls="reversible",
    provider="email",
    effect="email_draft",
    target="to",
    once_per=("to", "reference"),
    audience=["support_team"],
    undo="email_discard",
    lookup=True,
    adapter=ADAPTER,
)
def email_draft(to: Address, subject: Subject, body: Body, reference: Reference) -> MailResult:
    """Draft an e-mail to one person in the team's mailbox; nobody else sees it before it is sent."""
    raise NotImplementedError


# Reads no version: an unwind calls it, and taking back does not go stale.
@tool(
    cls="compensatable",
    provider="email",
    effect="email_draft_removal",
    target="to",
    once_per=None,
    audience=["support_team"],
    undo=None,
    lookup=True,
    adapter=ADAPTER,
)
def email_discard(to: Address, *, of: Of) -> MailResult:
    """Delete a draft that Counterfoil made."""
    raise NotImplementedError


@tool(
    cls="irreversible",
    provider="email",
    effect="email",
    target="to",
    once_per=("to", "reference"),
    audience=["customer"],
    uncertain="operator_review",
    resource_version=True,  # what somebody has written into the draft meanwhile would not be sent
    correction=correction_by("email_correction"),
    adapter=ADAPTER,
)
def email_send_draft(to: Address, subject: Subject, body: Body, reference: Reference, *, of: Of) -> MailResult:
    """Send a draft that Counterfoil made, word for word."""
    raise NotImplementedError
