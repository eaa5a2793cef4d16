"""Decides what Stripe's objects and errors prove: the status maps and the error table. No client is imported here.

A status is mapped, never presence: a declined PaymentIntent exists, carries our metadata, and moved no money.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from datetime import UTC, datetime
from hashlib import sha256

from counterfoil.providers.contract import Call
from counterfoil.providers.outcomes import Found, NotSent, Rejected, Succeeded, Uncertain, Unreadable, Version
from counterfoil.providers.sanitise import clean_fields, clean_token
from counterfoil.providers.transport import REFUSALS, classify_exception, retry_after_of

KEY = "counterfoil_key"
CAPTURE_KEY = "counterfoil_capture_key"
"""Beside the authorisation's own key: the request that captures writes it, so whoever captured otherwise did not."""
CAPTURED_ELSEWHERE = Uncertain("captured_elsewhere")
UNMARKED = Uncertain("unmarked_payment")
ORDER = "counterfoil_order"
FIELDS = ("id", "status", "amount", "currency")
CODE = re.compile(r"[a-z][a-z0-9_]{0,63}", re.ASCII)
"""The form of Stripe's statuses and codes; what has another is a sentence, which is told to nobody."""

_ARGUMENT_OF_PARAM = {"amount": "amount_minor", "receipt_email": "receipt_email"}
_ALREADY_DONE = {
    "charge_already_refunded": "already_refunded",
    "charge_already_captured": "already_captured",
    "payment_intent_unexpected_state": "unexpected_state",
}
"""Refusals of a counter-action or capture that only a look-up can tell from our own earlier success."""
_MOVES = ("succeeded", "processing", "requires_capture", "pending", "requires_action")
"""Statuses of payments and refunds that moved money, hold it, or are about to."""
_AMOUNTS = ("amount", "amount_received", "amount_capturable")
_LAPSED = ("automatic", "expired")
"""A PaymentIntent's `cancellation_reason` when nobody captured the hold in time."""


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


def authorization_outcome(intent: Mapping[str, object]) -> Succeeded | Rejected | Uncertain:
    """What a PaymentIntent's status says about the hold; one that was captured since did hold."""
    if intent.get("status") not in ("requires_capture", "succeeded"):
        return charge_outcome(intent)
    return _succeeded(intent, capture_before=_capture_before(intent))


def capture_outcome(intent: Mapping[str, object], key: str) -> Succeeded | Rejected | Uncertain | None:
    """What a PaymentIntent says about the capture under `key`; None while the hold still stands.

    A hold is captured once. Captured without our key: somebody else did, or wiped our key, and only a person can tell.
    """
    status = str(intent.get("status"))
    if status == "requires_capture":
        return None
    if status == "canceled":
        return Rejected("hold_lapsed" if intent.get("cancellation_reason") in _LAPSED else "hold_canceled")
    if status != "succeeded":
        return Uncertain(_code(status) or "unknown_status")
    if not was_captured_under(intent, key):
        return CAPTURED_ELSEWHERE
    return _succeeded(intent, amount=amount_received(intent))


def cancel_outcome(intent: Mapping[str, object]) -> Succeeded | Rejected | Uncertain | None:
    """What a PaymentIntent says about the release of its hold; None while it can still be released.

    Canceled by whomever, lapsed, or captured and given back in full: nothing is held. Captured: a refund takes that back.
    """
    status = str(intent.get("status"))
    charge = intent.get("latest_charge")
    given_back = isinstance(charge, Mapping) and charge.get("refunded") is True
    if status == "canceled" or (status == "succeeded" and given_back):
        return _succeeded(intent)
    if status == "succeeded":
        return Rejected("captured")
    if status.startswith("requires_"):
        return None
    return Uncertain(_code(status) or "unknown_status")


def was_captured_under(intent: Mapping[str, object], key: str) -> bool:
    """The capture's own request wrote this key on the PaymentIntent."""
    metadata = intent.get("metadata")
    return isinstance(metadata, Mapping) and metadata.get(CAPTURE_KEY) == key


def amount_received(intent: Mapping[str, object]) -> int | None:
    """What was captured, in minor units."""
    amount = intent.get("amount_received")
    return amount if isinstance(amount, int) else None


def version_of_intent(intent: Mapping[str, object]) -> Version | Unreadable:
    """Changes with every movement of the money: status, amounts, and the charge behind it, which must be expanded.

    The status stands in clear, for the person who decides; a short hash holds the rest. What a call of ours writes into
    the metadata of a PaymentIntent changes nothing.
    """
    charge = intent.get("latest_charge")
    status, numbers = intent.get("status"), [intent.get(name) for name in _AMOUNTS]
    if isinstance(charge, Mapping):
        numbers.append(charge.get("amount_refunded"))
    if not _code(status) or not isinstance(charge, Mapping | None) or not all(map(_is_amount, numbers)):
        return Unreadable("malformed")
    charge_id = charge.get("id") if isinstance(charge, Mapping) else None
    text = "|".join(map(str, (intent.get("id"), status, *numbers, charge_id)))
    return Version(f"{_code(status)} {sha256(text.encode()).hexdigest()[:16]}")


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
    if not isinstance(item, Mapping) or item.get("object") != kind or clean_token(item.get("id")) is None:
        return False
    metadata = item.get("metadata")
    return isinstance(metadata, Mapping) and metadata.get(KEY) == key


def key_on(item: Mapping[str, object]) -> str | None:
    """The key of ours that an object carries, whosesoever action's."""
    metadata = item.get("metadata")
    key = metadata.get(KEY) if isinstance(metadata, Mapping) else None
    return key if isinstance(key, str) else None


def may_be_ours(item: Mapping[str, object], call: Call, *, kind: str, since: datetime) -> bool:
    """`item` carries nobody's key, and moved or holds just the money that this call is about since it was sent.

    Anybody may take our key off a payment: in the Dashboard, or by an update that empties its metadata.
    """
    metadata, created, wanted = item.get("metadata"), item.get("created"), call.arguments
    if item.get("object") != kind or item.get("status") not in _MOVES:
        return False
    if isinstance(metadata, Mapping) and (KEY in metadata or metadata.get(ORDER, call.target) != call.target):
        return False
    if isinstance(created, int) and datetime.fromtimestamp(created, UTC) < since:
        return False
    stated = ((item.get("amount"), wanted.get("amount_minor")), (item.get("currency"), wanted.get("currency")))
    return all(ours is None or theirs == ours for theirs, ours in stated)


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
    if status == 402 and not _shows_a_decline(error, call):
        return Uncertain("other_payment", evidence=unsure.evidence)
    if status == 402 or status in REFUSALS:
        param = error.get("param")
        return Rejected(code or REFUSALS.get(status, "declined"), field=_argument(param, call))
    return unsure


def _shows_a_decline(error: Mapping[str, object], call: Call) -> bool:
    """The PaymentIntent inside a decline, where there is one, is the one that this call has made, and it has failed."""
    intent = error.get("payment_intent")
    if call.of is not None or intent is None:
        return True
    if not isinstance(intent, Mapping) or not is_ours(intent, kind="payment_intent", key=call.key):
        return False
    return isinstance(charge_outcome(intent), Rejected)


def error_code(exc: Exception) -> str:
    """A short name for a failed look-up."""
    return _code(_error_body(exc).get("code")) or type(exc).__name__


def _succeeded(item: Mapping[str, object], **more: int | str | None) -> Succeeded | Uncertain:
    receipt = clean_token(item.get("id"))
    if receipt is None:
        return Uncertain("no_receipt")
    fields = clean_fields({**item, **more}, (*FIELDS, *more))
    # Words of Stripe's are tokens; a sentence in the place of one is told to nobody.
    return Succeeded(receipt, {n: clean_token(v) if isinstance(v, str) else v for n, v in fields.items()})


def _capture_before(intent: Mapping[str, object]) -> str | None:
    """Until when the hold can be captured, in UTC: the expanded charge says."""
    at: object = intent.get("latest_charge")
    for name in ("payment_method_details", "card", "capture_before"):
        at = at.get(name) if isinstance(at, Mapping) else None
    return datetime.fromtimestamp(at, UTC).strftime("%Y-%m-%dT%H:%M:%SZ") if isinstance(at, int) else None


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
    return value if isinstance(value, str) and CODE.fullmatch(value) else ""


def _is_amount(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _argument(param: object, call: Call) -> str | None:
    """The tool's argument that Stripe's parameter was made from."""
    name = _ARGUMENT_OF_PARAM.get(str(param), str(param))
    return name if name in call.arguments else None
