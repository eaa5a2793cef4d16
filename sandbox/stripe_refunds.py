"""Decides what a refund does: partial refunds up to what was captured, never more, each a durable effect."""

from __future__ import annotations

from counterfoil.sandbox.store import Store
from counterfoil.sandbox.stripe_errors import (
    choice,
    integer,
    listing,
    metadata,
    missing,
    only,
    page_bounds,
    refuse,
)
from counterfoil.sandbox.stripe_events import record_event
from counterfoil.sandbox.stripe_payments import CHARGE, effect_key, load
from counterfoil.sandbox.wire import Json, Reply, Request

REFUND = "refund"

_CREATE = frozenset(
    ["payment_intent", "charge", "amount", "reason", "metadata", "expand", "currency", "instructions_email"]
)
_REASONS = ("", "duplicate", "fraudulent", "requested_by_customer")


def create(store: Store, request: Request) -> Reply:
    body = request.body
    only(body, _CREATE)
    charge = _charge_of(store, request)
    if charge["disputed"]:
        message = f"Charge {charge['id']} has been charged back; cannot issue a refund."
        raise refuse(400, "charge_disputed", message, executed=True)
    left = charge["amount_captured"] - charge["amount_refunded"]
    if left <= 0:
        message = f"Charge {charge['id']} has already been refunded."
        raise refuse(400, "charge_already_refunded", message, executed=True)
    amount = integer(body, "amount", left)
    if amount <= 0:
        raise refuse(400, "parameter_invalid_integer", "Invalid positive integer", param="amount")
    if amount > left:
        message = f"Refund amount ({amount}) is greater than unrefunded amount on charge ({left})"
        raise refuse(400, "amount_too_large", message, executed=True, param="amount")
    refund: Json = {
        "id": store.new_id("re_"),
        "object": "refund",
        "amount": amount,
        "charge": charge["id"],
        "created": int(store.now()),
        "currency": charge["currency"],
        "metadata": metadata(body),
        "payment_intent": charge["payment_intent"],
        "reason": choice(body, "reason", _REASONS) or None,
        "status": "succeeded" if store.config.refund_pending_s == 0 else "pending",
    }
    charge["amount_refunded"] += amount
    charge["refunded"] = charge["amount_refunded"] == charge["amount_captured"]
    store.put(CHARGE, charge["id"], charge, account=request.account)
    store.put(REFUND, refund["id"], refund, account=request.account, parent=refund["payment_intent"])
    record_event(store, request, "refund.created", refund)
    data = {"payment_intent": refund["payment_intent"], "charge": charge["id"]}
    key, currency = effect_key(request), refund["currency"]
    store.record_effect("stripe", "refund", refund["id"], key=key, amount=amount, currency=currency, data=data)
    return Reply(200, refund)


def retrieve(store: Store, request: Request) -> Reply:
    refund = store.get(REFUND, request.match["id"], account=request.account)
    if refund is None:
        raise missing("refund", request.match["id"])
    return Reply(200, _settled(store, refund))


def update(store: Store, request: Request) -> Reply:
    """Only the metadata of a refund can be changed."""
    only(request.body, frozenset({"metadata"}))
    refund = store.get(REFUND, request.match["id"], account=request.account)
    if refund is None:
        raise missing("refund", request.match["id"])
    refund["metadata"] = metadata(request.body, refund["metadata"])
    store.put(REFUND, refund["id"], refund, account=request.account, parent=refund["payment_intent"])
    return Reply(200, refund)


def list_all(store: Store, request: Request) -> Reply:
    query = request.query
    only(query, frozenset({"payment_intent", "charge", "created", "limit", "starting_after", "expand"}))
    parent = query.get("payment_intent")
    if "charge" in query:
        charge = store.get(CHARGE, query["charge"], account=request.account)
        if charge is None:
            raise missing("charge", query["charge"], param="charge")
        parent = charge["payment_intent"]
    bounds = page_bounds(query)
    rows = store.page(REFUND, account=request.account, parent=parent, **bounds)
    rows = [_settled(store, refund) for refund in rows]
    return Reply(200, listing("/v1/refunds", rows, bounds["limit"] - 1))


def _settled(store: Store, refund: Json) -> Json:
    """The refund as it is now: one that was pending has succeeded once its time has passed."""
    due = refund["status"] == "pending" and store.now() >= refund["created"] + store.config.refund_pending_s
    return {**refund, "status": "succeeded"} if due else refund


def _charge_of(store: Store, request: Request) -> Json:
    intent_id, charge_id = request.body.get("payment_intent"), request.body.get("charge")
    if not charge_id and not intent_id:
        message = "One of the following params should be provided for this request: payment_intent or charge."
        raise refuse(400, "parameter_missing", message, param="payment_intent")
    if not charge_id:
        intent = load(store, request, str(intent_id), param="payment_intent")
        if intent["status"] != "succeeded":
            message = f"This PaymentIntent ({intent_id}) does not have a successful charge to refund."
            raise refuse(400, "payment_intent_unexpected_state", message, executed=True, payment_intent=intent)
        charge_id = str(intent["latest_charge"])
    charge = store.get(CHARGE, charge_id, account=request.account)
    if charge is None:
        raise missing("charge", charge_id, param="charge")
    if not charge["captured"]:
        raise refuse(400, "charge_not_captured", f"Charge {charge_id} was never captured.", executed=True)
    return charge
