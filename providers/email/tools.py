"""Decides what agents may do by e-mail: write to one person, and write again about a mail that was wrong.

Nothing can be asked about a mail whose fate is unknown, and nothing takes one back: a person approves each, and a person
decides where the server's last answer was lost. The functions are signatures only; `counterfoil.providers.email.client`
sends, in workers.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TypedDict

from counterfoil.providers.email.arguments import SUBJECT_CHARS_MAX, Address, Body, Reference, Subject
from counterfoil.providers.outcomes import Json
from counterfoil.providers.tool import tool

ADAPTER = "counterfoil.providers.email.client:EmailAdapter"
CORRECTION_SUBJECT = "Correction: $subject"
CORRECTION_BODY = """Hello,

please disregard our earlier message "$subject". It was sent by mistake, and nothing is asked of you.
We are sorry for the trouble.
"""
"""What a correction says unless a person writes something better before it is sent."""


class MailResult(TypedDict):
    """What the model sees of a mail that the server has accepted: its Message-ID."""

    id: str


def correction_of_mail(arguments: Mapping[str, Json]) -> dict[str, object]:
    """The mail to the same person that says: not that one."""
    subject = str(arguments["subject"])
    shortened = subject[: SUBJECT_CHARS_MAX - len(CORRECTION_SUBJECT)]
    told: dict[str, object] = {
        "to": arguments["to"],
        "reference": arguments["reference"],
        "subject": {"template": CORRECTION_SUBJECT, "values": {"subject": shortened}},
        "body": {"template": CORRECTION_BODY, "values": {"subject": subject}},
    }
    return {"tool": "email_correction", "arguments": told}


@tool(
    cls="irreversible",
    provider="email",
    effect="email",
    target="to",
    once_per=("to", "reference"),
    audience=["customer"],
    uncertain="operator_review",
    correction=correction_of_mail,
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
