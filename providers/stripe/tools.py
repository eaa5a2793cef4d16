"""Decides what agents may do at Stripe: take money from a saved card, at once or in two steps, and give it back.

The functions are signatures only; `counterfoil.providers.stripe.client` makes the calls, in workers.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Literal, TypedDict

from pydantic import Field

from counterfoil.ledger.errors import ArgumentError
from counterfoil.providers.contract import Of
from counterfoil.providers.outcomes import Json
from counterfoil.providers.tool import tool

ADAPTER = "counterfoil.providers.stripe.client:StripeAdapter"
KEY_TTL_S = 24 * 3600
"""Stripe prunes a key once it is 24 h old; the same key then executes again (docs.stripe.com/api/idempotent_requests)."""

Amount = Annotated[int, Field(gt=0, description="Amount in the currency's smallest unit, such as cents.")]
Currency = Annotated[str, Field(pattern=r"^[a-z]{3}$", description="Three lower-case letters, such as usd.")]
Customer = Annotated[str, Field(min_length=1, max_length=255, description="Stripe's customer id, cus_….")]
OrderId = Annotated[str, Field(min_length=1, max_length=255)]
Email = Annotated[str, Field(pattern=r"^[^@\s]+@[^@\s]+$", max_length=254)]


class ChargeResult(TypedDict):
    """What the model sees of a charge."""

    id: str
    status: str
    amount: int
    currency: str


class AuthorizationResult(TypedDict):
    """What the model sees of a hold; `capture_before` is in UTC, as in 2026-12-07T10:00:00Z."""

    id: str
    status: str
    amount: int
    currency: str
    capture_before: str | None


class CaptureResult(TypedDict):
    """What the model sees of a capture; `amount` is what was captured."""

    id: str
    status: str
    amount: int
    currency: str


class CancelResult(TypedDict):
    """What the model sees of a hold that was released; `amount` is what had been held."""

    id: str
    status: str
    amount: int
    currency: str


class RefundResult(TypedDict):
    """What the model sees of a refund."""

    id: str
    status: str
    amount: int
    currency: str


def charge_audience(arguments: Mapping[str, Json]) -> list[str]:
    """Finance; the customer where Stripe mails a receipt, which needs an address in the recorded arguments."""
    if not arguments.get("receipt"):
        return ["finance"]
    if not arguments.get("receipt_email"):
        raise ArgumentError("a receipt needs an address.", path="$.receipt_email", code="missing_argument")
    return ["customer"]


@tool(
    cls="compensatable",
    provider="stripe",
    effect="charge",
    target="order_id",
    once_per="order_id",
    audience=charge_audience,
    undo="stripe_refund",
    amount=("amount_minor", "currency"),
    native_key_ttl_s=KEY_TTL_S,
    lookup=True,
    adapter=ADAPTER,
)
def stripe_charge(
    customer: Customer,
    amount_minor: Amount,
    currency: Currency,
    order_id: OrderId,
    payment_method: Annotated[str, Field(min_length=1, max_length=255)] = "pm_card_visa",
    receipt: bool = False,
    receipt_email: Email | None = None,
    description: Annotated[str, Field(max_length=1000)] = "",
) -> ChargeResult:
    """Charge a customer's saved card for an order. With `receipt`, Stripe mails one to `receipt_email`."""
    raise NotImplementedError


@tool(
    cls="reversible",
    provider="stripe",
    effect="charge",
    target="order_id",
    once_per="order_id",
    audience=["finance"],
    undo="stripe_cancel",
    amount=("amount_minor", "currency"),
    native_key_ttl_s=KEY_TTL_S,
    lookup=True,
    lapses="capture_before",
    adapter=ADAPTER,
)
def stripe_authorize(
    customer: Customer,
    amount_minor: Amount,
    currency: Currency,
    order_id: OrderId,
    payment_method: Annotated[str, Field(min_length=1, max_length=255)] = "pm_card_visa",
    description: Annotated[str, Field(max_length=1000)] = "",
) -> AuthorizationResult:
    """Hold money on a customer's saved card for an order, without taking it. A hold lapses at `capture_before`."""
    raise NotImplementedError


@tool(
    cls="compensatable",
    provider="stripe",
    effect="charge",
    target="order_id",
    once_per="order_id",
    audience=["finance"],
    undo="stripe_refund",
    amount=("amount_minor", "currency"),
    native_key_ttl_s=KEY_TTL_S,
    lookup=True,
    resource_version=True,  # a hold that was released, lapsed or captured by hand meanwhile is not the one that was shown
    adapter=ADAPTER,
)
def stripe_capture(
    order_id: OrderId, amount_minor: Amount | None = None, currency: Currency | None = None, *, of: Of
) -> CaptureResult:
    """Take the money that an authorisation holds, once; without an amount all of it, with one the rest is released."""
    raise NotImplementedError


# Neither this nor `stripe_refund` reads a version: an unwind calls them, and taking back does not go stale.
@tool(
    cls="compensatable",
    provider="stripe",
    effect="charge_cancellation",
    target="order_id",
    once_per=None,
    audience=["finance"],
    undo=None,
    native_key_ttl_s=KEY_TTL_S,
    lookup=True,
    adapter=ADAPTER,
)
def stripe_cancel(order_id: OrderId, *, of: Of) -> CancelResult:
    """Release the money that an authorisation holds."""
    raise NotImplementedError


@tool(
    cls="compensatable",
    provider="stripe",
    effect="refund",
    target="order_id",
    once_per=None,
    audience=["customer"],
    undo=None,
    amount=("amount_minor", "currency"),
    native_key_ttl_s=KEY_TTL_S,
    lookup=True,
    adapter=ADAPTER,
)
def stripe_refund(
    order_id: OrderId,
    amount_minor: Amount | None = None,
    currency: Currency | None = None,
    reason: Literal["duplicate", "fraudulent", "requested_by_customer"] | None = None,
    *,
    of: Of,
) -> RefundResult:
    """Refund a charge or capture that Counterfoil made, whole or in part; without an amount, all that is left of it."""
    raise NotImplementedError
