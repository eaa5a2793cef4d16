"""Decides what agents may do in Slack: post a message, schedule one for later, take a scheduled one back.

The functions are signatures only; `counterfoil.providers.slack.client` makes the calls, in workers.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Annotated, Literal, TypedDict

from pydantic import AfterValidator, Field

from counterfoil.providers.contract import Of
from counterfoil.providers.outcomes import Json
from counterfoil.providers.slack.config import READ_LAG_S
from counterfoil.providers.tool import tool

ADAPTER = "counterfoil.providers.slack.client:SlackAdapter"
TEXT_CHARS_MAX = 40_000
"""Slack cuts what is longer, and recommends 4,000."""
SCHEDULED_TEXT_CHARS_MAX = 3_000
"""Of one section block, which is what a scheduled message is shown as."""


def _real_time(text: str) -> str:
    datetime.fromisoformat(text)
    return text


ChannelId = Annotated[
    str, Field(pattern=r"^[CGD][A-Z0-9]{8,30}$", description="The channel's id, such as C0123456789; never its name.")
]
Text = Annotated[str, Field(min_length=1, max_length=TEXT_CHARS_MAX, pattern=r"\S")]
ScheduledText = Annotated[str, Field(min_length=1, max_length=SCHEDULED_TEXT_CHARS_MAX, pattern=r"\S")]
ThreadTs = Annotated[
    str,
    Field(pattern=r"^[1-9][0-9]{9}\.[0-9]{6}$", description="The `ts` of a thread's first message, to answer in it."),
]
PostAt = Annotated[
    str,
    Field(
        pattern=r"^20[0-9]{2}-[0-9]{2}-[0-9]{2}T[0-9]{2}:[0-9]{2}:[0-9]{2}Z$",
        description="When it is posted, in UTC, such as 2026-12-07T10:00:00Z: in 5 minutes at the earliest, within 120 days.",
    ),
    AfterValidator(_real_time),
]
Reader = Annotated[
    Literal["team", "customer"],
    Field(description="`team` only for channels that nobody outside the company is in; it is checked."),
]


class MessageResult(TypedDict):
    """What the model sees of a message: `id` is its `ts`."""

    id: str
    channel: str


class ScheduledResult(TypedDict):
    """What the model sees of a scheduled message. `status` is `scheduled`, or `posted` when it was found after its time."""

    id: str
    channel: str
    post_at: str
    status: str


class UnscheduledResult(TypedDict):
    """What the model sees of a scheduled message that was taken back."""

    id: str
    status: str


def readers(arguments: Mapping[str, Json]) -> list[str]:
    """As the call says; a worker checks with Slack before it writes to the team only."""
    return [str(arguments["audience"])]


@tool(
    cls="irreversible",
    provider="slack",
    effect="slack_message",
    target="channel",
    once_per=None,
    audience=readers,
    lookup=True,
    lookup_lag_s=READ_LAG_S,
    adapter=ADAPTER,
)
def slack_post(
    channel: ChannelId, text: Text, thread_ts: ThreadTs | None = None, audience: Reader = "customer"
) -> MessageResult:
    """Post a message to a Slack channel, or as an answer in a thread. Nothing takes it back."""
    raise NotImplementedError


# Without an approval it would be a way round that of `slack_post`: five minutes later everybody has read it.
@tool(
    cls="reversible",
    provider="slack",
    effect="slack_scheduled_message",
    target="channel",
    once_per=None,
    audience=readers,
    undo="slack_unschedule",
    approval="always",
    lookup=True,
    lookup_lag_s=READ_LAG_S,
    lapses="post_at",
    adapter=ADAPTER,
)
def slack_schedule(
    channel: ChannelId,
    text: ScheduledText,
    post_at: PostAt,
    thread_ts: ThreadTs | None = None,
    audience: Reader = "customer",
) -> ScheduledResult:
    """Schedule a message to a Slack channel. It posts by itself at `post_at`, and can be taken back until a minute before."""
    raise NotImplementedError


@tool(
    cls="compensatable",
    provider="slack",
    effect="slack_unscheduling",
    target="channel",
    once_per=None,
    audience=["team"],
    undo=None,
    lookup=True,
    lookup_lag_s=READ_LAG_S,
    adapter=ADAPTER,
)
def slack_unschedule(channel: ChannelId, *, of: Of) -> UnscheduledResult:
    """Take back a message that Counterfoil scheduled, before it is posted."""
    raise NotImplementedError
