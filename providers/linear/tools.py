"""Decides what agents may do in Linear: make an issue, comment on one, and take back either.

The functions are signatures only; `counterfoil.providers.linear.client` makes the calls, in workers.
"""

from __future__ import annotations

from typing import Annotated, TypedDict

from pydantic import Field

from counterfoil.providers.contract import Of
from counterfoil.providers.linear.config import READ_LAG_S
from counterfoil.providers.tool import tool

ADAPTER = "counterfoil.providers.linear.client:LinearAdapter"

Team = Annotated[str, Field(pattern=r"^[A-Z][A-Z0-9]{0,9}$", description="The team's key, such as SUP.")]
Issue = Annotated[str, Field(pattern=r"^[A-Z][A-Z0-9]{0,9}-[0-9]{1,9}$", description="The issue, such as SUP-12.")]
Title = Annotated[str, Field(min_length=1, max_length=255, pattern=r"^[^\r\n]*\S[^\r\n]*$")]
Markdown = Annotated[str, Field(max_length=30_000, description="Markdown.")]
OrderId = Annotated[str, Field(min_length=1, max_length=255)]


class IssueResult(TypedDict):
    """What the model sees of a new issue."""

    id: str
    identifier: str


class StateResult(TypedDict):
    """What the model sees of an issue that was closed."""

    identifier: str
    state: str


class CommentResult(TypedDict):
    """What the model sees of a comment."""

    id: str


@tool(
    cls="compensatable",
    provider="linear",
    effect="ticket",
    target="order_id",
    once_per="order_id",
    audience=["support_team"],
    undo="linear_close",
    receipt="identifier",
    lookup=True,
    lookup_lag_s=READ_LAG_S,
    adapter=ADAPTER,
)
def linear_create(team: Team, title: Title, order_id: OrderId, description: Markdown = "") -> IssueResult:
    """Open an issue about an order in a Linear team."""
    raise NotImplementedError


# Neither this nor `linear_delete_comment` reads a version: an unwind calls them, and taking back does not go stale.
@tool(
    cls="compensatable",
    provider="linear",
    effect="ticket_close",
    target="order_id",
    once_per=None,
    audience=["support_team"],
    undo=None,
    receipt="identifier",
    lookup=True,
    lookup_lag_s=READ_LAG_S,
    adapter=ADAPTER,
)
def linear_close(order_id: OrderId, reason: Markdown = "", *, of: Of) -> StateResult:
    """Cancel an issue that Counterfoil opened, with the reason as a comment."""
    raise NotImplementedError


@tool(
    cls="compensatable",
    provider="linear",
    effect="comment",
    target="issue",
    once_per=None,
    audience=["support_team"],
    undo="linear_delete_comment",
    lookup=True,  # and no resource_version: every other comment makes a new one, and a comment overwrites nothing
    lookup_lag_s=READ_LAG_S,
    adapter=ADAPTER,
)
def linear_comment(
    issue: Issue, body: Annotated[str, Field(min_length=1, max_length=30_000, pattern=r"\S")]
) -> CommentResult:
    """Add a comment to an issue, for the team that reads it."""
    raise NotImplementedError


@tool(
    cls="compensatable",
    provider="linear",
    effect="comment_deletion",
    target="issue",
    once_per=None,
    audience=["support_team"],
    undo=None,
    lookup=True,
    lookup_lag_s=READ_LAG_S,
    adapter=ADAPTER,
)
def linear_delete_comment(issue: Issue, *, of: Of) -> CommentResult:
    """Delete a comment that Counterfoil added."""
    raise NotImplementedError
