"""Decides what a PaymentIntent does: create, confirm, capture, cancel, and the lapse of a hold that nobody captured.

Amounts are integers in the currency's smallest unit. Money moves when the intent becomes `succeeded`; that, and only that,
records a `charge` effect.
"""

from __future__ import annotations

from counterfoil.sandbox.store import Store
from counterfoil.sandbox.stripe_errors import (
    choice,
    error_body,
    flag,
    integer,
    listing,
    metadata,
    missing,
    only,
    page_bounds,
    refuse,
    text,
)
from counterfoil.sandbox.stripe_events import record_event
from counterfoil.sandbox.wire import Json, Reply, Request

PI, CHARGE, CUSTOMER = "payment_intent", "charge", "customer"
KEY_IN_METADATA = "counterfoil_key"

_AMOUNT_MIN, _AMOUNT_MAX = 50, 99_999_999
_CREATE = frozenset(
    [
        "amount",
        "currency",
        "customer",
        "payment_method",
        "automatic_payment_methods",
        "confirm",
        "off_session",
        "capture_method",
        "confirmation_method",
        "error_on_requires_action",
        "metadata",
        "receipt_email",
        "description",
        "expand",
        "return_url",
        "setup_future_usage",
        "shipping",
        "statement_descriptor",
        "statement_descriptor_suffix",
        "transfer_group",
        "payment_method_options",
    ]
)
_UPDATE = frozenset(["metadata", "description", "receipt_email", "payment_method", "expand"])
_CONFIRM = frozenset(
    [
        "payment_method",
        "off_session",
        "return_url",
        "receipt_email",
        "capture_method",
        "error_on_requires_action",
        "expand",
    ]
)
_CAPTURE = frozenset(["amount_to_capture", "final_capture", "metadata", "statement_descriptor", "expand"])
_CANCEL_REASONS = ("", "duplicate", "fraudulent", "requested_by_customer", "abandoned")
_CANCELLABLE = frozenset({"requires_payment_method", "requires_capture", "requires_confirmation", "requires_action"})
_DECLINES = {
    "pm_card_chargeDeclined": ("card_declined", "generic_decline", "Your card was declined."),
    "pm_card_visa_chargeDeclined": ("card_declined", "generic_decline", "Your card was declined."),
    "pm_card_chargeDeclinedInsufficientFunds": (
        "card_declined",
        "insufficient_funds",
        "Your card has insufficient funds.",
    ),
}
_NEEDS_CUSTOMER = "pm_card_authenticationRequired"
_DISPUTED = "pm_card_createDispute"
_CARDS = frozenset({"pm_card_visa", "pm_card_visa_debit", "pm_card_mastercard", "pm_card_amex", _DISPUTED})


def create(store: Store, request: Request) -> Reply:
    body = request.body
    only(body, _CREATE)
    amount = integer(body, "amount")
    if amount < _AMOUNT_MIN:
        raise refuse(400, "amount_too_small", f"Amount must be at least {_AMOUNT_MIN}.", param="amount")
    if amount > _AMOUNT_MAX:
        raise refuse(400, "amount_too_large", f"Amount must be no more than {_AMOUNT_MAX}.", param="amount")
    currency = text(body, "currency").lower()
    if len(currency) != 3 or not currency.isalpha():
        raise refuse(400, "", f"Invalid currency: {currency}.", param="currency")
    confirm, method = flag(body, "confirm"), body.get("payment_method")
    if confirm and method is None:
        message = "You cannot confirm this PaymentIntent because it's missing a payment method."
        raise refuse(400, "parameter_missing", message, param="payment_method")
    if method is not None:
        _known_method(method)
    intent: Json = {
        "id": store.new_id("pi_"),
        "object": "payment_intent",
        "amount": amount,
        "amount_capturable": 0,
        "amount_received": 0,
        "canceled_at": None,
        "cancellation_reason": None,
        "capture_method": choice(body, "capture_method", ("automatic_async", "automatic", "manual")),
        "client_secret": None,
        "created": int(store.now()),
        "currency": currency,
        "customer": _known_customer(store, request, body.get("customer")),
        "description": body.get("description"),
        "last_payment_error": None,
        "latest_charge": None,
        "livemode": False,
        "metadata": metadata(body),
        "payment_method": method,
        "receipt_email": body.get("receipt_email"),
        "status": "requires_confirmation" if method else "requires_payment_method",
    }
    record_event(store, request, "payment_intent.created", intent)
    if confirm:
        return _confirm(store, request, intent)
    return _saved(store, request, intent)


def retrieve(store: Store, request: Request) -> Reply:
    return Reply(200, expanded(store, request, load(store, request, request.match["id"])))


def update(store: Store, request: Request) -> Reply:
    only(request.body, _UPDATE)
    intent = load(store, request, request.match["id"])
    for name in ("description", "receipt_email", "payment_method"):
        intent[name] = request.body.get(name, intent[name])
    intent["metadata"] = metadata(request.body, intent["metadata"])
    return _saved(store, request, intent)


def list_all(store: Store, request: Request) -> Reply:
    query = request.query
    only(query, frozenset({"customer", "created", "limit", "starting_after", "expand"}))
    bounds = page_bounds(query)
    rows = store.page(PI, account=request.account, parent=query.get("customer"), **bounds)
    rows = [expanded(store, request, _lapsed(store, request, intent), path="data.latest_charge") for intent in rows]
    return Reply(200, listing("/v1/payment_intents", rows, bounds["limit"] - 1))


def confirm(store: Store, request: Request) -> Reply:
    only(request.body, _CONFIRM)
    intent = load(store, request, request.match["id"])
    if intent["status"] not in ("requires_confirmation", "requires_payment_method", "requires_action"):
        raise _unexpected_state(intent, "confirmed")
    method = request.body.get("payment_method", intent["payment_method"])
    if method is None:
        raise refuse(400, "parameter_missing", "The PaymentIntent has no payment method.", param="payment_method")
    _known_method(method)
    intent["payment_method"] = method
    return _confirm(store, request, intent)


def capture(store: Store, request: Request) -> Reply:
    only(request.body, _CAPTURE)
    intent = load(store, request, request.match["id"])
    if intent["status"] == "canceled" and intent["cancellation_reason"] == "automatic":
        message = "The authorization has expired and can no longer be captured."
        raise refuse(400, "charge_expired_for_capture", message, executed=True, payment_intent=intent)
    if intent["status"] != "requires_capture":
        raise _unexpected_state(intent, "captured")
    amount = integer(request.body, "amount_to_capture", intent["amount_capturable"])
    if not 0 < amount <= intent["amount_capturable"]:
        message = f"The amount could not be captured: at most {intent['amount_capturable']} can be."
        raise refuse(400, "amount_too_large", message, param="amount_to_capture")
    intent["metadata"] = metadata(request.body, intent["metadata"])
    _money_moved(store, request, intent, amount)
    return _saved(store, request, intent)


def cancel(store: Store, request: Request) -> Reply:
    only(request.body, frozenset({"cancellation_reason", "expand"}))
    intent = load(store, request, request.match["id"])
    if intent["status"] not in _CANCELLABLE:
        raise _unexpected_state(intent, "canceled")
    _cancel(store, request, intent, choice(request.body, "cancellation_reason", _CANCEL_REASONS) or None)
    store.record_effect("stripe", "cancellation", intent["id"], key=effect_key(request), amount=intent["amount"])
    return _saved(store, request, intent)


def load(store: Store, request: Request, intent_id: str, *, param: str | None = None) -> Json:
    """The intent as it is now (a hold past its time is canceled), or Stripe's refusal."""
    intent = store.get(PI, intent_id, account=request.account)
    if intent is None:
        raise missing("payment_intent", intent_id, param=param)
    return _lapsed(store, request, intent)


def expanded(store: Store, request: Request, intent: Json, *, path: str = "latest_charge") -> Json:
    """With the charge in place of its id, where the request asks to expand `path`."""
    wanted = {**request.query.get("expand", {}), **request.body.get("expand", {})}.values()
    if path in wanted and intent["latest_charge"]:
        return {**intent, "latest_charge": store.get(CHARGE, intent["latest_charge"], account=request.account)}
    return intent


def effect_key(request: Request) -> str | None:
    """The caller's key for the effect: what it wrote into this request's metadata, else its Idempotency-Key."""
    given = request.body.get("metadata")
    in_metadata = given.get(KEY_IN_METADATA) if isinstance(given, dict) else None
    return in_metadata or request.headers.get("idempotency-key")


def index(store: Store, request: Request, intent: Json) -> None:
    """Shows this state of the intent to searches, after the lag."""
    terms = [f"metadata:{name}={value}" for name, value in intent["metadata"].items()]
    terms.append(f"customer={intent['customer']}")
    store.index("stripe", PI, intent["id"], intent, terms, account=request.account)


def _confirm(store: Store, request: Request, intent: Json) -> Reply:
    method = intent["payment_method"]
    off_session = flag(request.body, "off_session")
    if method in _DECLINES:
        return _declined(store, request, intent, *_DECLINES[method])
    if method == _NEEDS_CUSTOMER and off_session:
        message = "Your card was declined. This transaction requires authentication."
        return _declined(store, request, intent, "authentication_required", "authentication_required", message)
    if method == _NEEDS_CUSTOMER:
        intent["status"] = "requires_action"
        return _saved(store, request, intent)
    intent["last_payment_error"] = None
    charge = _new_charge(store, intent, status="succeeded")
    if intent["capture_method"] == "manual":
        intent |= {"status": "requires_capture", "amount_capturable": intent["amount"]}
        charge["payment_method_details"]["card"]["capture_before"] = int(store.now() + store.config.hold_s)
        _put_charge(store, request, charge)
        amount, currency = intent["amount"], intent["currency"]
        key = effect_key(request)
        store.record_effect("stripe", "authorization", intent["id"], key=key, amount=amount, currency=currency)
    else:
        _put_charge(store, request, charge)
        _money_moved(store, request, intent, intent["amount"])
    return _saved(store, request, intent)


def _money_moved(store: Store, request: Request, intent: Json, amount: int) -> None:
    intent |= {"status": "succeeded", "amount_capturable": 0, "amount_received": amount}
    charge = store.get(CHARGE, intent["latest_charge"], account=request.account)
    assert charge is not None
    charge |= {"captured": True, "amount_captured": amount, "metadata": intent["metadata"]}
    _put_charge(store, request, charge)
    key, currency = effect_key(request), intent["currency"]
    record_event(store, request, "payment_intent.succeeded", intent)
    data = {"charge": charge["id"], "customer": intent["customer"]}
    store.record_effect("stripe", "charge", intent["id"], key=key, amount=amount, currency=currency, data=data)


def _declined(store: Store, request: Request, intent: Json, code: str, decline_code: str, message: str) -> Reply:
    """The intent stays, with the caller's metadata, and nothing was charged."""
    charge = _new_charge(store, intent, status="failed")
    _put_charge(store, request, charge)
    problem = {"type": "card_error", "code": code, "decline_code": decline_code, "message": message}
    intent |= {"status": "requires_payment_method", "last_payment_error": problem, "payment_method": None}
    record_event(store, request, "payment_intent.payment_failed", intent)
    _saved(store, request, intent)
    more = {"decline_code": decline_code, "charge": charge["id"], "payment_intent": intent}
    return Reply(402, error_body(402, code, message, **more))


def _new_charge(store: Store, intent: Json, *, status: str) -> Json:
    charge: Json = {
        "id": store.new_id("ch_"),
        "object": "charge",
        "amount": intent["amount"],
        "amount_captured": 0,
        "amount_refunded": 0,
        "captured": False,
        "created": int(store.now()),
        "currency": intent["currency"],
        "customer": intent["customer"],
        "disputed": intent["payment_method"] == _DISPUTED and status == "succeeded",
        "metadata": intent["metadata"],
        "paid": status == "succeeded",
        "payment_intent": intent["id"],
        "payment_method": intent["payment_method"],
        "payment_method_details": {"type": "card", "card": {"brand": "visa", "capture_before": None}},
        "refunded": False,
        "status": status,
    }
    intent["latest_charge"] = charge["id"]
    return charge


def _put_charge(store: Store, request: Request, charge: Json) -> None:
    store.put(CHARGE, charge["id"], charge, account=request.account, parent=charge["payment_intent"])


def _saved(store: Store, request: Request, intent: Json) -> Reply:
    store.put(PI, intent["id"], intent, account=request.account, parent=intent["customer"] or "")
    index(store, request, intent)
    return Reply(200, expanded(store, request, intent))


def _lapsed(store: Store, request: Request, intent: Json) -> Json:
    if intent["status"] != "requires_capture":
        return intent
    charge = store.get(CHARGE, intent["latest_charge"], account=request.account)
    assert charge is not None
    if store.now() >= charge["payment_method_details"]["card"]["capture_before"]:
        _cancel(store, request, intent, "automatic")
        _saved(store, request, intent)
    return intent


def _cancel(store: Store, request: Request, intent: Json, reason: str | None) -> None:
    intent |= {"status": "canceled", "amount_capturable": 0, "canceled_at": int(store.now())}
    intent["cancellation_reason"] = reason
    record_event(store, request, "payment_intent.canceled", intent)
    charge = intent["latest_charge"] and store.get(CHARGE, intent["latest_charge"], account=request.account)
    if charge and not charge["captured"] and charge["paid"]:
        _put_charge(store, request, charge | {"amount_refunded": charge["amount"], "refunded": True})


def _known_method(method: str) -> None:
    builtin = method in _DECLINES or method in _CARDS or method == _NEEDS_CUSTOMER
    if not builtin and (not method.startswith("pm_") or method.startswith("pm_card_")):
        raise missing("PaymentMethod", method, param="payment_method")


def _known_customer(store: Store, request: Request, customer: str | None) -> str | None:
    if customer is None or store.get(CUSTOMER, customer, account=request.account) is not None:
        return customer
    if store.config.customers == "strict" or not customer.startswith("cus_"):
        raise missing("customer", customer, param="customer")
    made = {"id": customer, "object": "customer", "created": int(store.now()), "metadata": {}, "email": None}
    store.put(CUSTOMER, customer, made, account=request.account)
    return customer


def _unexpected_state(intent: Json, verb: str) -> Exception:
    message = f"This PaymentIntent could not be {verb} because it has a status of {intent['status']}."
    if verb == "captured" and intent["status"] == "succeeded":
        message = "This PaymentIntent could not be captured because it has already been captured."
    return refuse(400, "payment_intent_unexpected_state", message, executed=True, payment_intent=intent)
