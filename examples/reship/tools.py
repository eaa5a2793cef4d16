"""Decides what the re-shipping agent may do beside the shipped tools for Stripe and Jira: look things up, and write mail.

Mail comes in four calls. A draft is reversible: nobody has seen it, and discarding it leaves nothing behind. Sending is
irreversible, so it is about a draft that was staged and needs a person's approval; what could be said afterwards, should it
turn out to be wrong, is written down before it goes out (`apology`).

The mail service is the sandbox's; a shop would put its own address in `MAIL`.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from types import MappingProxyType
from typing import Annotated, TypedDict

import requests
from pydantic import Field

from counterfoil import Of, Rejected, tool

MAIL = os.environ.get("COUNTERFOIL_SANDBOX_URL", "https://mail.example") + "/mail"
TIMEOUT_S = 3
KEY_TTL_S = 30 * 86_400
"""For how long the service answers a repeat of our key from what it did the first time."""

OrderId = Annotated[str, Field(min_length=1, max_length=64)]
Email = Annotated[str, Field(pattern=r"^[^@\s]+@[^@\s]+$", max_length=254)]
Subject = Annotated[str, Field(min_length=1, max_length=200, pattern=r"^[^\r\n]*$")]
Body = Annotated[str, Field(min_length=1, max_length=10_000)]


class Draft(TypedDict):
    """What the model sees of a draft."""

    id: str
    status: str


class Message(TypedDict):
    """What the model sees of a message that went out."""

    id: str
    to: str


@tool(cls="pure")
def search_orders(order_id: OrderId) -> dict[str, str]:
    """Look an order up."""
    return {
        "order_id": order_id,
        "customer": f"cus_{order_id}",
        "email": "ann@example.com",
        "status": "lost in transit",
    }


@tool(cls="pure")
def lookup_policy(topic: Annotated[str, Field(max_length=100)]) -> dict[str, object]:
    """Look up what the shop does in such a case."""
    return {"topic": topic, "reship": True, "fee_minor": 500, "currency": "usd"}


@tool(
    cls="reversible",
    provider="mail",
    effect="customer_email",
    target="order_id",
    once_per="order_id",
    audience=["agent"],
    undo="email_discard",
    native_key_ttl_s=KEY_TTL_S,
    lookup="find_draft",
)
def email_draft(order_id: OrderId, to: Email, subject: Subject, body: Body, *, key: str) -> Draft:
    """Draft a mail to the customer of an order; nobody sees it before it is sent."""
    answer: Draft = _post("/drafts", key, {"to": to, "subject": subject, "body": body, "order": order_id}).json()
    return answer


@tool(
    cls="compensatable",
    provider="mail",
    effect="draft_removal",
    target="order_id",
    once_per=None,
    audience=["agent"],
    undo=None,
    native_key_ttl_s=KEY_TTL_S,
    lookup="find_gone",
)
def email_discard(order_id: OrderId, *, key: str, of: Of) -> Draft:
    """Delete a draft. One that was sent is no draft any more: there is nothing left to delete."""
    reply = requests.delete(f"{MAIL}/drafts/{of.receipt}", headers={"Idempotency-Key": key}, timeout=TIMEOUT_S)
    if reply.status_code == 409:
        reply = requests.get(f"{MAIL}/drafts/{of.receipt}", timeout=TIMEOUT_S, allow_redirects=False)
    reply.raise_for_status()
    answer: Draft = reply.json()
    return answer


def apology(arguments: Mapping[str, object]) -> dict[str, object]:
    """What could be sent after a mail that should not have gone out: template and recipient, known before it does."""
    order = arguments["order_id"]
    message = {
        "order_id": order,
        "to": arguments["to"],
        "subject": f"Correction about your order {order}",
        "body": f"Please disregard our last message about your order {order}. We are sorry for the confusion.",
    }
    return {"tool": "email_direct", "arguments": message}


@tool(
    cls="irreversible",
    provider="mail",
    effect="customer_email",
    target="order_id",
    once_per="order_id",
    audience=["customer"],
    native_key_ttl_s=KEY_TTL_S,
    lookup="find_message",
    resource_version="draft_version",
    correction=apology,
)
def email_send(order_id: OrderId, to: Email, *, key: str, of: Of, expected_version: str | None) -> Message | Rejected:
    """Send a mail that was drafted, to the recipient that the draft names, as it was when it was approved."""
    if of.arguments["to"] != to:
        return Rejected("to_mismatch", field="to")
    unchanged = {} if expected_version is None else {"If-Match": expected_version}
    answer: Message = _post(f"/drafts/{of.receipt}/send", key, None, unchanged).json()
    return answer


def draft_version(of: Of) -> str:
    """Which state of the draft a person decides about: whoever edits it in the mail program makes another one."""
    reply = requests.get(f"{MAIL}/drafts/{of.receipt}", timeout=TIMEOUT_S, allow_redirects=False)
    reply.raise_for_status()
    return str(reply.json()["version"])


@tool(
    cls="irreversible",
    provider="mail",
    effect="customer_email",
    target="order_id",
    once_per=None,
    audience=["customer"],
    lookup="find_message",
)
def email_direct(order_id: OrderId, to: Email, subject: Subject, body: Body, *, key: str) -> Message:
    """Send a mail without a draft, as a correction does. The service would send it twice: the look-up prevents that."""
    answer: Message = _post("", key, {"to": to, "subject": subject, "body": body, "order": order_id}).json()
    return answer


def find_draft(key: str) -> list[Draft]:
    """The draft that carries our key, whatever became of it since: none, one, or more, which a person looks at."""
    drafts: list[Draft] = _get("/drafts", key).json()["drafts"]
    return drafts


def find_gone(of: Of) -> list[Draft]:
    """The draft, if it waits no longer."""
    return [draft for draft in find_draft(of.key) if draft["status"] != "draft"]


def find_message(key: str) -> list[Message]:
    """The message that went out under our key."""
    messages: list[Message] = _get("", key).json()["messages"]
    return messages


def _post(
    path: str, key: str, body: Mapping[str, str] | None, conditions: Mapping[str, str] = MappingProxyType({})
) -> requests.Response:
    """One request, without retries and redirects: what it proves, it proves about this attempt."""
    headers = {"Idempotency-Key": key, **conditions}
    reply = requests.post(MAIL + path, json=body, headers=headers, timeout=TIMEOUT_S, allow_redirects=False)
    reply.raise_for_status()
    return reply


def _get(path: str, key: str) -> requests.Response:
    reply = requests.get(MAIL + path, params={"key": key}, timeout=TIMEOUT_S, allow_redirects=False)
    reply.raise_for_status()
    return reply
