"""Decides what agents may do at AWS: have something looked at later, and take that back in time.

The functions are signatures only; `counterfoil.providers.aws.client` makes the calls, in workers.
"""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, TypedDict

from pydantic import AfterValidator, Field

from counterfoil.providers.aws.config import READ_LAG_S
from counterfoil.providers.contract import Of
from counterfoil.providers.tool import tool

ADAPTER = "counterfoil.providers.aws.client:AwsAdapter"


def _time(value: str) -> str:
    datetime.strptime(value, "%Y-%m-%dT%H:%M:%S%z")
    return value


About = Annotated[str, Field(min_length=1, max_length=255, description="What it is about, such as order 1182.")]
At = Annotated[
    str,
    Field(
        pattern=r"^20[0-9]{2}-[0-9]{2}-[0-9]{2}T[0-9]{2}:[0-9]{2}:[0-9]{2}Z$",
        description="When, in UTC, such as 2026-12-01T09:30:00Z.",
    ),
    AfterValidator(_time),
]
Note = Annotated[str, Field(max_length=8000, description="What to do then.")]


class ScheduleResult(TypedDict):
    """What the model sees of a schedule."""

    id: str
    at: str


class UnscheduleResult(TypedDict):
    """What the model sees of a schedule that was deleted."""

    id: str


@tool(
    cls="reversible",
    provider="aws",
    effect="schedule",
    target="about",
    once_per=("about", "at"),
    audience=["agent"],
    undo="aws_unschedule",
    lookup=True,
    lookup_lag_s=READ_LAG_S,
    unique=True,
    adapter=ADAPTER,
)
def aws_schedule(about: About, at: At, note: Note = "") -> ScheduleResult:
    """Schedule a follow-up: at that time the note is handed to whoever follows up here."""
    raise NotImplementedError


@tool(
    cls="compensatable",
    provider="aws",
    effect="schedule_deletion",
    target="about",
    once_per=None,
    audience=["agent"],
    undo=None,
    lookup=True,
    lookup_lag_s=READ_LAG_S,
    adapter=ADAPTER,
)
def aws_unschedule(about: About, *, of: Of) -> UnscheduleResult:
    """Delete a follow-up that is not due yet."""
    raise NotImplementedError
