"""Decides what may stand in a mail, whoever carries it: one plain address, a subject of one line, a text; and its correction.

What is recorded is what is sent. So a template is filled once, at the door, when the call is proposed, and the row holds
the text: a person reads that, and every attempt sends it. Whatever could begin another header, or is no plain address, is
refused.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Mapping
from datetime import UTC, datetime
from string import Template
from typing import Annotated

from pydantic import AfterValidator, BaseModel, ConfigDict, Field

from counterfoil.providers.outcomes import Json
from counterfoil.providers.spec import Correction

SUBJECT_CHARS_MAX = 200
BODY_CHARS_MAX = 50_000
VALUE_CHARS_MAX = 2_000
CORRECTION_SUBJECT = "Correction: $subject"
CORRECTION_BODY = """Hello,

please disregard our earlier message "$subject". It was sent by mistake, and nothing is asked of you.
We are sorry for the trouble.
"""
"""What a correction says unless a person writes something better before it is sent."""
NOW = "now"
"""The name by which a template has the time of the proposal, in UTC."""

_LOCAL = r"[A-Za-z0-9!#$%&'*+/=?^_`{|}~][A-Za-z0-9!#$%&'*+/=?^_`{|}~-]*"
_LABEL = r"[A-Za-z0-9](?:[A-Za-z0-9-]*[A-Za-z0-9])?"
ADDRESS = re.compile(rf"{_LOCAL}(?:\.{_LOCAL})*@{_LABEL}(?:\.{_LABEL})+")
_LOCAL_CHARS_MAX, _LABEL_CHARS_MAX = 64, 63
_ENCODED_WORD = "=?"
"""Begins what a header shows as another text, line ends included (RFC 2047): nobody would have read what is sent."""
_FORBIDDEN = frozenset({"Cc", "Cs", "Zl", "Zp"})


class Filled(BaseModel):
    """A template and what to put into it: `$name` takes the value of that name, `$now` the time, `$$` is a dollar sign."""

    model_config = ConfigDict(strict=True, extra="forbid", frozen=True)

    template: Annotated[str, Field(min_length=1, max_length=BODY_CHARS_MAX)]
    values: Annotated[dict[str, Annotated[str, Field(max_length=VALUE_CHARS_MAX)]], Field(max_length=100)] = {}


def clock() -> datetime:
    """The time that templates show: of the process that proposes."""
    return datetime.now(UTC)


def text_of(value: str | Filled) -> str:
    """The text itself, or the template filled. ValueError where a value is missing, too many, or named `now`."""
    if isinstance(value, str):
        return value
    template = Template(value.template)
    if not template.is_valid():
        raise ValueError("a `$` of the template names nothing; write `$$` for the sign")
    names = set(template.get_identifiers())
    if set(value.values) != names - {NOW}:
        raise ValueError("the values are not those that the template names")
    now = {NOW: clock().strftime("%Y-%m-%d %H:%M UTC")} if NOW in names else {}
    return template.substitute({**value.values, **now})


def checked_address(value: str) -> str:
    """One address in ASCII without a name, its domain in lower case. ValueError for anything else."""
    local, _, domain = value.rpartition("@")
    labels = domain.split(".")
    if (
        ADDRESS.fullmatch(value) is None
        or _ENCODED_WORD in value
        or len(local) > _LOCAL_CHARS_MAX
        or any(len(label) > _LABEL_CHARS_MAX for label in labels)
    ):
        raise ValueError("not one plain e-mail address")
    return f"{local}@{domain.lower()}"


def correction_by(tool: str) -> Correction:
    """What makes, out of a mail's arguments, the call of `tool` that tells the same person: not that one."""

    def correction(arguments: Mapping[str, Json]) -> dict[str, object]:
        subject = str(arguments["subject"])
        shortened = subject[: SUBJECT_CHARS_MAX - len(CORRECTION_SUBJECT)]
        told: dict[str, object] = {
            "to": arguments["to"],
            "reference": arguments["reference"],
            "subject": {"template": CORRECTION_SUBJECT, "values": {"subject": shortened}},
            "body": {"template": CORRECTION_BODY, "values": {"subject": subject}},
        }
        return {"tool": tool, "arguments": told}

    return correction


def _subject(value: str | Filled) -> str:
    text = text_of(value)
    if not text.strip() or len(text) > SUBJECT_CHARS_MAX or not _is_clean(text) or _ENCODED_WORD in text:
        raise ValueError("not a subject of one line")
    return text


def _body(value: str | Filled) -> str:
    text = text_of(value)
    if not text.strip() or len(text) > BODY_CHARS_MAX or not _is_clean(text.replace("\n", "").replace("\t", "")):
        raise ValueError("not a text")
    return text


def _is_clean(text: str) -> bool:
    """Without control characters, line ends of any kind and lone surrogates."""
    return not any(unicodedata.category(sign) in _FORBIDDEN for sign in text)


Address = Annotated[
    str,
    Field(max_length=254, description="One plain address, such as jo@example.com."),
    AfterValidator(checked_address),
]
Subject = Annotated[
    str | Filled, Field(description="One line: text, or a template with its values."), AfterValidator(_subject)
]
Body = Annotated[str | Filled, Field(description="Plain text, or a template with its values."), AfterValidator(_body)]
Reference = Annotated[
    str, Field(min_length=1, max_length=255, description="What the mail is about, such as order 1182.")
]
