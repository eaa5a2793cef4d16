"""Decides what agents may do in Zendesk: make a ticket, add an internal note, answer the customer, solve what they made.

The functions are signatures only; `counterfoil.providers.zendesk.client` makes the calls, in workers.
"""

from __future__ import annotations

from typing import Annotated, TypedDict

from pydantic import Field

from counterfoil.providers.contract import Of
from counterfoil.providers.tool import tool

ADAPTER = "counterfoil.providers.zendesk.client:ZendeskAdapter"
KEY_TTL_S = 2 * 3600
"""Zendesk forgets a key of a ticket's creation after 2 h; see "Idempotency" in its ticketing API's introduction."""
LIST_LAG_S = 300.0
"""How fresh the list by external id is, Zendesk does not say; of its search it says "up to a few minutes"."""

TicketId = Annotated[str, Field(pattern=r"^[1-9][0-9]{0,17}$", description="The ticket's number, such as 35436.")]
Subject = Annotated[str, Field(min_length=1, max_length=255, pattern=r"^[^\r\n]*$")]
Text = Annotated[str, Field(min_length=1, max_length=30_000)]
OrderId = Annotated[str, Field(min_length=1, max_length=255)]


class TicketResult(TypedDict):
    """What the model sees of a ticket that was made or solved."""

    id: str
    status: str


class CommentResult(TypedDict):
    """What the model sees of a note or reply."""

    id: str


@tool(
    cls="compensatable",
    provider="zendesk",
    effect="ticket",
    target="order_id",
    once_per="order_id",
    audience=["support_team"],
    undo="zendesk_solve",
    native_key_ttl_s=KEY_TTL_S,
    native_key_concurrent=False,
    lookup=True,
    lookup_lag_s=LIST_LAG_S,
    adapter=ADAPTER,
)
def zendesk_create(subject: Subject, body: Text, order_id: OrderId) -> TicketResult:
    """Open a ticket about an order that only the support team sees; no customer is told."""
    raise NotImplementedError


# Nothing takes a note back: an agent has read it, and Zendesk deletes no comments. It goes to colleagues, so nobody needs to
# approve it; and it reads no version: every other comment would make a new one, and a note overwrites nothing.
@tool(
    cls="irreversible",
    provider="zendesk",
    effect="note",
    target="ticket",
    once_per=None,
    audience=["support_team"],
    approval="never",
    lookup=True,
    adapter=ADAPTER,
)
def zendesk_note(ticket: TicketId, body: Text) -> CommentResult:
    """Add an internal note to a ticket; the customer does not see it."""
    raise NotImplementedError


@tool(
    cls="irreversible",
    provider="zendesk",
    effect="reply",
    target="ticket",
    once_per=None,
    audience=["customer"],
    approval="always",
    lookup=True,
    resource_version=True,  # what the customer or a colleague has written meanwhile may make the answer a wrong one
    adapter=ADAPTER,
)
def zendesk_reply(ticket: TicketId, body: Text) -> CommentResult:
    """Answer the customer on a ticket: Zendesk mails this to the requester, and nothing takes it back."""
    raise NotImplementedError


# Reads no version: an unwind calls it, and taking back does not go stale.
@tool(
    cls="compensatable",
    provider="zendesk",
    effect="ticket_close",
    target="order_id",
    once_per=None,
    audience=["support_team"],
    undo=None,
    lookup=True,
    adapter=ADAPTER,
)
def zendesk_solve(order_id: OrderId, reason: Annotated[str, Field(max_length=30_000)] = "", *, of: Of) -> TicketResult:
    """Solve a ticket that Counterfoil opened, with the reason as an internal note."""
    raise NotImplementedError
