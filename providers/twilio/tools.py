"""Decides what agents may do by SMS: write to one person at once or at a set time, cancel what is not out yet, correct.

The functions are signatures only; `counterfoil.providers.twilio.client` makes the calls, in workers.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Mapping
from datetime import datetime
from typing import Annotated, TypedDict

from pydantic import AfterValidator, Field

from counterfoil.providers.contract import Of
from counterfoil.providers.outcomes import Json
from counterfoil.providers.tool import tool

ADAPTER = "counterfoil.providers.twilio.client:TwilioAdapter"
LIST_LAG_S = 900.0
"""How fresh the list of messages is, Twilio does not say. A text to a customer cannot be taken back, so the longest that
any provider's index here is given, three times over."""
REFERENCE_CHARS = 17
"""How long ` (ref 7f3a91c2ab)` is."""
BODY_CHARS_MAX = 1600 - REFERENCE_CHARS
"""Twilio takes 1600 characters; one beyond the 16-bit range counts as two."""
CORRECTION = "Please disregard our earlier message. It was sent by mistake, and nothing is asked of you."
"""What a correction says unless a person writes something better before it is sent."""

_FORBIDDEN = frozenset({"Cc", "Cs", "Zl", "Zp"})


def _text(value: str) -> str:
    """Without control characters but the newline, and without space around it, which the networks may drop."""
    if any(unicodedata.category(sign) in _FORBIDDEN for sign in value.replace("\n", "")):
        raise ValueError("not a text")
    if not value or value != value.strip():
        raise ValueError("a text is not empty and has no space around it")
    if len(value.encode("utf-16-le")) > 2 * BODY_CHARS_MAX:
        raise ValueError(f"over {BODY_CHARS_MAX} characters")
    return value


def _time(value: str) -> str:
    datetime.strptime(value, "%Y-%m-%dT%H:%M:%S%z")
    return value


Phone = Annotated[
    str, Field(pattern=r"^\+[1-9][0-9]{6,14}$", description="One number in E.164 form, such as +15550102030.")
]
Body = Annotated[str, Field(max_length=BODY_CHARS_MAX, description="Plain text."), AfterValidator(_text)]
About = Annotated[str, Field(min_length=1, max_length=255, description="What the text is about, such as order 1182.")]
SendAt = Annotated[
    str,
    Field(
        pattern=r"^20[0-9]{2}-[0-9]{2}-[0-9]{2}T[0-9]{2}:[0-9]{2}:[0-9]{2}Z$",
        description="When it goes out, in UTC, such as 2026-12-01T09:30:00Z; in 15 minutes to 35 days.",
    ),
    AfterValidator(_time),
]


class MessageResult(TypedDict):
    """What the model sees of a message: Twilio's id and what has become of it so far."""

    id: str
    status: str


def correction_of_sms(arguments: Mapping[str, Json]) -> dict[str, object]:
    """The text to the same person that says: not that one."""
    told = {"to": arguments["to"], "about": arguments["about"], "body": CORRECTION}
    return {"tool": "sms_correction", "arguments": told}


@tool(
    cls="irreversible",
    provider="twilio",
    effect="sms",
    target="to",
    once_per=("to", "about"),
    audience=["customer"],
    lookup=True,
    lookup_lag_s=LIST_LAG_S,
    absence_is_proof=False,
    correction=correction_of_sms,
    adapter=ADAPTER,
)
def sms_send(to: Phone, body: Body, about: About) -> MessageResult:
    """Send one text message to one person."""
    raise NotImplementedError


# None of its own: a correction of a correction is what a person writes.
@tool(
    cls="irreversible",
    provider="twilio",
    effect="sms_correction",
    target="to",
    once_per=None,
    audience=["customer"],
    lookup=True,
    lookup_lag_s=LIST_LAG_S,
    absence_is_proof=False,
    adapter=ADAPTER,
)
def sms_correction(to: Phone, body: Body, about: About) -> MessageResult:
    """Write again to somebody who got a text that was wrong."""
    raise NotImplementedError


# It can be taken back until its time, and nobody has to do anything for it to go out: so a person approves each.
@tool(
    cls="reversible",
    provider="twilio",
    effect="sms",
    target="to",
    once_per=("to", "about"),
    audience=["customer"],
    approval="always",
    undo="sms_cancel",
    lookup=True,
    lookup_lag_s=LIST_LAG_S,
    absence_is_proof=False,
    adapter=ADAPTER,
)
def sms_schedule(to: Phone, body: Body, about: About, send_at: SendAt) -> MessageResult:
    """Let one text message go out to one person at a set time; until then it can be cancelled."""
    raise NotImplementedError


@tool(
    cls="compensatable",
    provider="twilio",
    effect="sms_cancellation",
    target="to",
    once_per=None,
    audience=["support_team"],
    undo=None,
    lookup=True,
    adapter=ADAPTER,
)
def sms_cancel(to: Phone, *, of: Of) -> MessageResult:
    """Cancel a text message that waits for its time."""
    raise NotImplementedError
