"""Decides which part of Stripe's v1 API exists here, who may call it, and what every answer carries."""

from __future__ import annotations

import secrets

from counterfoil.sandbox import stripe_payments as payments
from counterfoil.sandbox import stripe_refunds as refunds
from counterfoil.sandbox.store import Store
from counterfoil.sandbox.stripe_errors import error_body, metadata, missing, only
from counterfoil.sandbox.stripe_events import list_events
from counterfoil.sandbox.stripe_idempotency import StripeIdempotency
from counterfoil.sandbox.stripe_search import search
from counterfoil.sandbox.wire import Json, Provider, Reply, Request, Route

_CUSTOMER = frozenset({"email", "name", "description", "metadata", "phone", "expand", "payment_method"})


def _create_customer(store: Store, request: Request) -> Reply:
    only(request.body, _CUSTOMER)
    customer: Json = {
        "id": store.new_id("cus_"),
        "object": "customer",
        "created": int(store.now()),
        "email": request.body.get("email"),
        "name": request.body.get("name"),
        "description": request.body.get("description"),
        "metadata": metadata(request.body),
    }
    store.put(payments.CUSTOMER, customer["id"], customer, account=request.account)
    return Reply(200, customer)


def _retrieve_customer(store: Store, request: Request) -> Reply:
    return _by_id(store, request, payments.CUSTOMER)


def _retrieve_charge(store: Store, request: Request) -> Reply:
    return _by_id(store, request, payments.CHARGE)


def _by_id(store: Store, request: Request, kind: str) -> Reply:
    found = store.get(kind, request.match["id"], account=request.account)
    if found is None:
        raise missing(kind, request.match["id"])
    return Reply(200, found)


def _not_found(_store: Store, request: Request) -> Reply:
    return Reply(404, error_body(404, "", f"Unrecognized request URL ({request.method}: {request.path})."))


def _admit(request: Request) -> Reply | None:
    """Any secret key is valid; two keys are two accounts."""
    scheme, _, key = request.headers.get("authorization", "").partition(" ")
    if scheme in ("Bearer", "Basic") and key:
        return None
    return Reply(401, error_body(401, "", "You did not provide an API key."))


def _decorate(reply: Reply) -> dict[str, str]:
    headers = {"Request-Id": f"req_{secrets.token_hex(7)}", "Stripe-Version": "2026-10-28.endive"}
    if reply.status == 409 or reply.status >= 500:
        headers["Stripe-Should-Retry"] = "true"
    return headers


STRIPE = Provider(
    name="stripe",
    encoding="form",
    error=error_body,
    admit=_admit,
    decorate=_decorate,
    idempotency=StripeIdempotency(),
    routes=(
        Route("POST", "/v1/customers", "customers.create", _create_customer),
        Route("GET", "/v1/customers/{id}", "customers.retrieve", _retrieve_customer),
        Route("POST", "/v1/payment_intents", "payment_intents.create", payments.create),
        Route("GET", "/v1/payment_intents", "payment_intents.list", payments.list_all),
        Route("GET", "/v1/payment_intents/search", "payment_intents.search", search),
        Route("GET", "/v1/payment_intents/{id}", "payment_intents.retrieve", payments.retrieve),
        Route("POST", "/v1/payment_intents/{id}", "payment_intents.update", payments.update),
        Route("POST", "/v1/payment_intents/{id}/confirm", "payment_intents.confirm", payments.confirm),
        Route("POST", "/v1/payment_intents/{id}/capture", "payment_intents.capture", payments.capture),
        Route("POST", "/v1/payment_intents/{id}/cancel", "payment_intents.cancel", payments.cancel),
        Route("POST", "/v1/refunds", "refunds.create", refunds.create),
        Route("GET", "/v1/refunds", "refunds.list", refunds.list_all),
        Route("GET", "/v1/refunds/{id}", "refunds.retrieve", refunds.retrieve),
        Route("POST", "/v1/refunds/{id}", "refunds.update", refunds.update),
        Route("GET", "/v1/events", "events.list", list_events),
        Route("GET", "/v1/charges/{id}", "charges.retrieve", _retrieve_charge),
        Route("*", "/{tail:.*}", "unknown", _not_found),
    ),
)
