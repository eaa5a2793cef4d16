"""Decides what Stripe's objects and errors prove: the status maps and the error table. No client is imported here.

A status is mapped, never presence: a declined PaymentIntent exists, carries our metadata, and moved no money.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime

from counterfoil.providers.contract import Call
from counterfoil.providers.outcomes import Found, NotSent, Rejected, Succeeded, Uncertain
from counterfoil.providers.sanitise import clean_fields, clean_id, clean_text
from counterfoil.providers.transport import REFUSALS, classify_exception, retry_after_of

KEY = "counterfoil_key"
ORDER = "counterfoil_order"
FIELDS = ("id", "status", "amount", "currency")
CODE_CHARS_MAX = 64

_ARGUMENT_OF_PARAM = {"amount": "amount_minor", "receipt_email": "receipt_email"}
_ALREADY_DONE = {"charge_already_refunded": "already_refunded", "payment_intent_unexpected_state": "unexpected_state"}
"""Refusals of a refund that only a look-up can tell from our own earlier success."""


def charge_outcome(intent: Mapping[str, object]) -> Succeeded | Rejected | Uncertain:
    """What a PaymentIntent's status says about the charge."""
    status = str(intent.get("status"))
    if status == "succeeded":
        return _succeeded(intent)
    if status == "canceled":
        return Rejected("canceled")
    error = intent.get("last_payment_error")
    if status == "requires_payment_method" and isinstance(error, Mapping):
        return Rejected(_code(error.get("code")) or "card_declined")
    return Uncertain(_code(status) or "unknown_status")


def refund_outcome(refund: Mapping[str, object]) -> Succeeded | Rejected | Uncertain:
    """What a Refund's status says; a pending one is not settled yet."""
    status = str(refund.get("status"))
    if status == "succeeded":
        return _succeeded(refund)
    if status in ("failed", "canceled"):
        return Rejected(f"refund_{status}")
    return Uncertain(_code(status) or "unknown_status")


def is_ours(item: object, *, kind: str, key: str) -> bool:
    """`item` is an object of this kind, with an id, that carries our key."""
    if not isinstance(item, Mapping) or item.get("object") != kind or clean_id(item.get("id")) is None:
        return False
    metadata = item.get("metadata")
    return isinstance(metadata, Mapping) and metadata.get(KEY) == key


def found(item: Mapping[str, object], outcome: Succeeded | Rejected | Uncertain) -> Found:
    """The finding for the one object that carries our key, with what Stripe recorded for the match with the intent."""
    amount, currency, created = item.get("amount"), item.get("currency"), item.get("created")
    metadata = item.get("metadata")
    order = metadata.get(ORDER) if isinstance(metadata, Mapping) else None
    return Found(
        outcome,
        amount_minor=amount if isinstance(amount, int) else None,
        currency=currency if isinstance(currency, str) else None,
        target=order if isinstance(order, str) else None,
        created_at=datetime.fromtimestamp(created, UTC) if isinstance(created, int) else None,
    )


def error_outcome(exc: Exception, call: Call, *, retry_after_cap_s: float) -> NotSent | Rejected | Uncertain:
    """What an exception out of the stripe client proves. `e.code` is None for most errors: the body's own is read."""
    status = getattr(exc, "http_status", None)
    if not isinstance(status, int):
        return classify_exception(exc)
    error = _error_body(exc)
    code, kind = _code(error.get("code")), _code(error.get("type"))
    unsure = Uncertain(code or f"http_{status}", evidence=f"{type(exc).__name__} HTTP {status}")
    if status == 429 or (status == 400 and code == "rate_limit"):
        wait_s = retry_after_of(_headers(exc), cap_s=retry_after_cap_s)
        return Rejected(code or "rate_limit", retryable=True, retry_after_s=wait_s)
    if not error or code == "idempotency_key_in_use":
        return unsure
    if kind == "idempotency_error":
        return Uncertain("idempotency_mismatch", evidence=unsure.evidence)
    if call.of is not None and code in _ALREADY_DONE:
        return Uncertain(_ALREADY_DONE[code], evidence=unsure.evidence)
    if status == 402 or status in REFUSALS:
        param = error.get("param")
        return Rejected(code or REFUSALS.get(status, "declined"), field=_argument(param, call))
    return unsure


def error_code(exc: Exception) -> str:
    """A short name for a failed look-up."""
    return _code(_error_body(exc).get("code")) or type(exc).__name__


def _succeeded(item: Mapping[str, object]) -> Succeeded | Uncertain:
    receipt = clean_id(item.get("id"))
    return Uncertain("no_receipt") if receipt is None else Succeeded(receipt, clean_fields(item, FIELDS))


def _error_body(exc: Exception) -> Mapping[str, object]:
    """The error object of a reply in Stripe's own form, {} for a gateway's page."""
    body = getattr(exc, "json_body", None)
    error = body.get("error") if isinstance(body, Mapping) else None
    return error if isinstance(error, Mapping) else {}


def _headers(exc: Exception) -> Mapping[str, str]:
    """The reply's headers: for a reply that is not JSON the client hands them over as `json_body`."""
    headers = getattr(exc, "headers", None)
    if isinstance(headers, Mapping) and headers:
        return headers
    body = getattr(exc, "json_body", None)
    return body if isinstance(body, Mapping) and "error" not in body else {}


def _code(value: object) -> str:
    return clean_text(value, chars_max=CODE_CHARS_MAX) if isinstance(value, str) else ""


def _argument(param: object, call: Call) -> str | None:
    """The tool's argument that Stripe's parameter was made from."""
    name = _ARGUMENT_OF_PARAM.get(str(param), str(param))
    return name if name in call.arguments else None
