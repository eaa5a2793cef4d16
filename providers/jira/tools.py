"""Decides what agents may do in Jira: make a ticket, at once or staged, comment where only the team sees it, undo both.

The functions are signatures only; `counterfoil.providers.jira.client` makes the calls, in workers.
"""

from __future__ import annotations

from typing import Annotated, TypedDict

from pydantic import Field

from counterfoil.providers.contract import Of
from counterfoil.providers.tool import tool

ADAPTER = "counterfoil.providers.jira.client:JiraAdapter"
SEARCH_LAG_S = 120.0
"""Jira's search is eventually consistent, "few seconds to minutes"; see Atlassian's search-and-reconcile page."""

Project = Annotated[str, Field(pattern=r"^[A-Z][A-Z0-9_]{1,49}$", description="The project's key, such as SUP.")]
Issue = Annotated[str, Field(pattern=r"^[A-Z][A-Z0-9_]{1,49}-[0-9]{1,12}$", description="The ticket, such as SUP-12.")]
Summary = Annotated[str, Field(min_length=1, max_length=255, pattern=r"^[^\r\n]*$")]
Text = Annotated[str, Field(max_length=30_000)]
OrderId = Annotated[str, Field(min_length=1, max_length=255)]


class TicketResult(TypedDict):
    """What the model sees of a new ticket."""

    id: str
    key: str


class StatusResult(TypedDict):
    """What the model sees of a ticket that was moved."""

    key: str
    status: str


class CommentResult(TypedDict):
    """What the model sees of a comment."""

    id: str


@tool(
    cls="compensatable",
    provider="jira",
    effect="ticket",
    target="order_id",
    once_per="order_id",
    audience=["support_team"],
    undo="jira_close",
    receipt="key",
    lookup=True,
    lookup_lag_s=SEARCH_LAG_S,
    adapter=ADAPTER,
)
def jira_create(
    project: Project,
    summary: Summary,
    order_id: OrderId,
    description: Text = "",
    issue_type: Annotated[str, Field(min_length=1, max_length=100)] = "Task",
) -> TicketResult:
    """Open a ticket about an order in a Jira project."""
    raise NotImplementedError


@tool(
    cls="reversible",
    provider="jira",
    effect="ticket",
    target="order_id",
    once_per="order_id",
    audience=["agent"],
    undo="jira_close",
    receipt="key",
    lookup=True,
    lookup_lag_s=SEARCH_LAG_S,
    adapter=ADAPTER,
)
def jira_stage(
    project: Project,
    summary: Summary,
    order_id: OrderId,
    description: Text = "",
    issue_type: Annotated[str, Field(min_length=1, max_length=100)] = "Task",
) -> TicketResult:
    """Prepare a ticket about an order in a status that no team's queue shows; `jira_open` opens it."""
    raise NotImplementedError


@tool(
    cls="compensatable",
    provider="jira",
    effect="ticket",
    target="order_id",
    once_per="order_id",
    audience=["support_team"],
    undo="jira_close",
    receipt="key",
    lookup=True,
    resource_version=True,  # a ticket that somebody has edited, moved or closed meanwhile is not the one that was shown
    adapter=ADAPTER,
)
def jira_open(order_id: OrderId, *, of: Of) -> StatusResult:
    """Open a ticket that Counterfoil staged: from then on the team has it in its queue."""
    raise NotImplementedError


# Neither this nor `jira_delete_comment` reads a version: an unwind calls them, and taking back does not go stale.
@tool(
    cls="compensatable",
    provider="jira",
    effect="ticket_close",
    target="order_id",
    once_per=None,
    audience=["support_team"],
    undo=None,
    receipt="key",
    lookup=True,
    adapter=ADAPTER,
)
def jira_close(order_id: OrderId, reason: Text = "", *, of: Of) -> StatusResult:
    """Close a ticket that Counterfoil opened, as "Won't do" where the workflow has that."""
    raise NotImplementedError


@tool(
    cls="compensatable",
    provider="jira",
    effect="comment",
    target="issue",
    once_per=None,
    audience=["support_team"],
    undo="jira_delete_comment",
    lookup=True,  # and no resource_version: every other comment makes a new one, and a comment overwrites nothing
    adapter=ADAPTER,
)
def jira_comment(issue: Issue, body: Annotated[str, Field(min_length=1, max_length=30_000)]) -> CommentResult:
    """Add a comment to a ticket that only the team sees."""
    raise NotImplementedError


@tool(
    cls="compensatable",
    provider="jira",
    effect="comment_deletion",
    target="issue",
    once_per=None,
    audience=["support_team"],
    undo=None,
    lookup=True,
    adapter=ADAPTER,
)
def jira_delete_comment(issue: Issue, *, of: Of) -> CommentResult:
    """Delete a comment that Counterfoil added."""
    raise NotImplementedError
