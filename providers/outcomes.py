"""What an answer proves (outcome), what a look-up proves (finding), what a version was read as: closed unions, no I/O.

An outcome is evidence about its own attempt only. A failed look-up is never absence.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime

Json = None | bool | int | float | str | list["Json"] | dict[str, "Json"]


@dataclass(frozen=True, slots=True)
class Succeeded:
    """The provider did it: `id` is its receipt, `fields` the declared result fields that the model may see."""

    id: str
    fields: Mapping[str, Json] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Rejected:
    """The provider definitely did nothing. Only whitelisted answers may become this.

    `retryable` says that the same request may be accepted later, after `retry_after_s` seconds where the provider says so.
    """

    code: str
    field: str | None = None
    retryable: bool = False
    retry_after_s: float | None = None


PRECONDITION_FAILED = "precondition_failed"
"""The code of a Rejected for which the provider has compared the version itself: HTTP 412."""


@dataclass(frozen=True, slots=True)
class NotSent:
    """No byte of the request can have left (refused connection, failed name look-up, connect timeout).

    `retry_after_s` is what the provider has asked for when it turned away a reading that comes before the write.
    """

    code: str
    retry_after_s: float | None = None


@dataclass(frozen=True, slots=True)
class Uncertain:
    """The request may have landed. Everything that is not proved to be one of the others is this."""

    code: str
    evidence: str = ""
    """Class names and status codes only, at most 300 characters; never a provider's prose, never an argument."""


Outcome = Succeeded | Rejected | NotSent | Uncertain


@dataclass(frozen=True, slots=True)
class Found:
    """The provider holds exactly one object under our key; `outcome` maps that object's *status*, not its presence.

    `amount_minor`, `currency` and `created_at` are what the provider recorded, None where the kind has none; the
    verdict sends a mismatch with the intent to a person.
    """

    outcome: Succeeded | Rejected | Uncertain
    amount_minor: int | None = None
    currency: str | None = None
    target: str | None = None
    created_at: datetime | None = None
    as_intended: bool = True
    """False: the object shows by itself that this is not what was asked for; a person decides, whatever `outcome` says."""
    renamed: bool = False
    """The provider has given the object another id since it was made: another receipt than before is no other object."""
    unkeyed: bool = field(default=False, compare=False)
    """It does not show our key: what it shows somebody else may have done, or our key was taken off it."""


@dataclass(frozen=True, slots=True)
class Absent:
    """A complete, successful look-up showed nothing under our key. Not yet proof: see the verdict's window."""

    complete: bool = True
    """False: less than everything was read, as was asked for (`Call.presence_only`). It is not counted as an absence."""


@dataclass(frozen=True, slots=True)
class Many:
    """Several objects carry our key: a person decides."""

    receipts: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Unknown:
    """The look-up itself failed or was incomplete: proves nothing."""

    code: str


Finding = Found | Absent | Many | Unknown

VERSION_CHARS_MAX = 255


@dataclass(frozen=True, slots=True)
class Version:
    """What a resource is now, as text of 1 to 255 characters: two readings are equal exactly when nothing changed between."""

    text: str


@dataclass(frozen=True, slots=True)
class Unreadable:
    """The version could not be read, or there is none. Never equal to any version."""

    code: str


Reading = Version | Unreadable
