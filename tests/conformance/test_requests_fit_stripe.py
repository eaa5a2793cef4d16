"""What goes over the wire to and from Stripe, against its client's own types, which are made from Stripe's description.

The sandbox and the adapters have one author, so they could agree on something that no provider does. Here each request is
held against the provider's description of it, and each of the sandbox's answers as well.
"""

from __future__ import annotations

import re
import types
from collections.abc import Iterator, Mapping
from functools import cache
from typing import Any, Literal, NotRequired, Required, Union, get_args, get_origin, get_type_hints
from urllib.parse import parse_qsl

import pytest
import stripe
import stripe.params
from stripe import RequestOptions
from tests.conformance import test_stripe as payments
from tests.conformance import test_stripe_holds as holds
from tests.conformance.exchanges import Exchange, operation_in, recorded
from typing_extensions import is_typeddict

from counterfoil.providers.outcomes import Rejected, Version
from counterfoil.providers.stripe.client import StripeAdapter
from counterfoil.sandbox import stripe_payments, stripe_refunds
from counterfoil.sandbox.client import Sandbox
from counterfoil.sandbox.wire import nested

TIMEOUT_S = 3.0

PARAMETERS: dict[str, type] = {
    "POST v1/payment_intents": stripe.params.PaymentIntentCreateParams,
    "GET v1/payment_intents": stripe.params.PaymentIntentListParams,
    "GET v1/payment_intents/search": stripe.params.PaymentIntentSearchParams,
    "GET v1/payment_intents/{}": stripe.params.PaymentIntentRetrieveParams,
    "POST v1/payment_intents/{}/capture": stripe.params.PaymentIntentCaptureParams,
    "POST v1/payment_intents/{}/cancel": stripe.params.PaymentIntentCancelParams,
    "POST v1/refunds": stripe.params.RefundCreateParams,
    "GET v1/refunds": stripe.params.RefundListParams,
    "GET v1/refunds/{}": stripe.params.RefundRetrieveParams,
    "GET v1/events": stripe.params.EventListParams,
}
OBJECTS: dict[str, type] = {
    "payment_intent": stripe.PaymentIntent,
    "charge": stripe.Charge,
    "refund": stripe.Refund,
    "event": stripe.Event,
    "list": stripe.ListObject,
    "search_result": stripe.SearchResultObject,
}
ALSO = {stripe.SearchResultObject: ("object", "url")}
"""Fields of Stripe's that the client's class does not declare, beside the kind of each object."""
OPTIONS = frozenset(RequestOptions.__annotations__)


@pytest.fixture
def wire(monkeypatch: pytest.MonkeyPatch) -> list[Exchange]:
    """Everything that goes over the wire in this test."""
    return recorded(monkeypatch)


def misfits(value: object, kind: Any, at: str = "") -> Iterator[str]:
    """Where a form's value, all text, does not fit a type of the client's parameters."""
    origin, members = get_origin(kind), get_args(kind)
    if origin in (Union, types.UnionType):
        tried = [list(misfits(value, member, at)) for member in narrowed(members)]
        yield from [] if [] in tried else min(tried, key=len)
    elif origin in (NotRequired, Required):
        yield from misfits(value, members[0], at)
    elif origin is Literal:
        yield from [] if value in members else [f"{at}: {value!r} is none of {members}"]
    elif origin is list:
        items = value.values() if isinstance(value, dict) else [value]
        yield from (fault for item in items for fault in misfits(item, members[0], f"{at}[]"))
    elif origin is dict:
        yield from [] if isinstance(value, dict) else [f"{at}: no hash"]
    elif is_typeddict(kind):
        hints = fields_of(kind)
        given = value if isinstance(value, dict) else {"": value}
        yield from (f"{at}.{name} is missing" for name in kind.__required_keys__ - set(given) - OPTIONS)
        for name, inner in given.items():
            known = name in hints and not (at == "" and name in OPTIONS)
            yield from misfits(inner, hints[name], f"{at}.{name}") if known else [f"{at}.{name} is no parameter"]
    elif kind is int:
        yield from [] if re.fullmatch(r"-?\d+", str(value)) else [f"{at}: {value!r} is no integer"]
    elif kind is bool:
        yield from [] if value in ("true", "false") else [f"{at}: {value!r} is no boolean"]
    elif isinstance(value, dict):
        yield f"{at}: a hash where {kind} is wanted"


def strangers(value: object, kind: Any, at: str) -> Iterator[str]:
    """Fields of the sandbox's object that the client's class for it does not know, and values that it excludes."""
    members = get_args(kind)
    if get_origin(kind) is Literal:
        yield from [] if value in members else [f"{at}: {value!r} is none of {members}"]
    elif isinstance(value, list):
        yield from (fault for item in value for fault in strangers(item, members[0] if members else Any, f"{at}[]"))
    elif members and value is not None:
        tried = [list(strangers(value, member, at)) for member in narrowed(members) if member is not type(None)]
        yield from [] if [] in tried or not tried else min(tried, key=len)
    elif isinstance(value, dict):
        own = OBJECTS.get(str(value.get("object")), kind)
        if isinstance(own, type) and issubclass(own, stripe.StripeObject) and own is not stripe.StripeObject:
            known = fields_of(own)
            for name, inner in value.items():
                if name not in ALSO.get(own, ("object",)):
                    yield from strangers(inner, known[name], f"{at}.{name}") if name in known else [f"{at}.{name}"]


def narrowed(members: tuple[Any, ...]) -> tuple[Any, ...]:
    """A choice of words without "or any other", which the client allows for the words of later years."""
    words = any(get_origin(member) is Literal and any(get_args(member)) for member in members)
    return tuple(member for member in members if member is not str) if words else members


class Names(dict[str, Any]):
    """What the client's modules import for type checkers only."""

    def __missing__(self, name: str) -> Any:
        if name == "Mapping":
            return Mapping
        for known in (name, name.removesuffix("Resource")):
            if hasattr(stripe, known):
                return getattr(stripe, known)
        raise KeyError(name)


@cache
def fields_of(kind: type) -> dict[str, Any]:
    """The type of each field of one of the client's classes."""
    return get_type_hints(kind, localns=Names())


def use_stripe(adapter: StripeAdapter, sandbox: Sandbox) -> None:
    """Every tool once, with all that it can be given, and everything that can be asked."""
    receipt = {"receipt": True, "receipt_email": "a@example.test", "description": "Order 1182"}
    paid = payments.charge(1, **receipt)
    charged = payments.sent(adapter, paid)
    declined = payments.charge(2, payment_method="pm_card_chargeDeclined")
    assert isinstance(payments.sent(adapter, declined), Rejected)
    refund = payments.refund(3, payments.of(paid, charged.id), amount_minor=200, reason="duplicate")
    refunded = payments.sent(adapter, refund)
    held = holds.call_of("stripe_authorize", 4, {**holds.HOLD, "description": "Hold"})
    hold = holds.about(held, holds.sent(adapter, held).id)
    capture = holds.capture(hold, 5, amount_minor=300)
    assert isinstance(adapter.version(capture, timeout_s=TIMEOUT_S), Version)
    holds.sent(adapter, capture)
    other = holds.call_of("stripe_authorize", 6, holds.HOLD)
    cancel = holds.cancel(holds.about(other, holds.sent(adapter, other).id), 7)
    holds.sent(adapter, cancel)
    adapter.lookup([paid, declined, refund, held, capture, cancel], timeout_s=TIMEOUT_S)
    adapter.fetch(refund, refunded.id, timeout_s=TIMEOUT_S)
    for operation in ("payment_intents.list", "refunds.list"):
        sandbox.stripe.fault("500_unstored", on=operation, times=None)
    adapter.lookup([paid, payments.charge(9), refund], timeout_s=TIMEOUT_S)


def test_what_stripe_is_sent_fits_the_client_s_own_types(
    stripe_adapter: StripeAdapter, sandbox: Sandbox, wire: list[Exchange]
) -> None:
    """Each parameter, nested ones too, is known to Stripe's description of that request, with such a value."""
    use_stripe(stripe_adapter, sandbox)
    asked = set()
    for exchange in wire:
        operation = operation_in(exchange, PARAMETERS)
        asked.add(operation)
        form = nested(parse_qsl(exchange.query or exchange.body, keep_blank_values=True))
        assert list(misfits(form, PARAMETERS[operation])) == [], operation
        assert ("idempotency-key" in exchange.headers) == (exchange.method == "POST")
    assert asked == set(PARAMETERS)


def test_what_the_sandbox_answers_for_stripe_fits_the_client_s_own_types(
    stripe_adapter: StripeAdapter, sandbox: Sandbox, wire: list[Exchange]
) -> None:
    """The sandbox invents no field and no status that Stripe's description does not have."""
    use_stripe(stripe_adapter, sandbox)
    shown = [exchange for exchange in wire if exchange.status == 200]
    assert {exchange.reply["object"] for exchange in shown} == set(OBJECTS) - {"event", "charge"}
    for exchange in shown:
        assert list(strangers(exchange.reply, Any, exchange.reply["object"])) == [], exchange.path


@pytest.mark.parametrize(
    ("operation", "taken"),
    [
        ("POST v1/payment_intents", stripe_payments._CREATE),
        ("POST v1/payment_intents/{}/capture", stripe_payments._CAPTURE),
        ("POST v1/refunds", stripe_refunds._CREATE),
    ],
)
def test_the_sandbox_takes_no_parameter_that_stripe_does_not_have(operation: str, taken: frozenset[str]) -> None:
    """What a newer version of Stripe's API has dropped is refused here, too."""
    assert taken - set(fields_of(PARAMETERS[operation])) == set()


@pytest.mark.parametrize(
    ("operation", "form", "fault"),
    [
        ("POST v1/refunds", {"payment_intent": "pi_1", "reason": "changed_mind"}, "none of"),
        ("POST v1/payment_intents", {"amount": "5", "currency": "usd", "colour": "red"}, "no parameter"),
        ("POST v1/payment_intents", {"amount": "5"}, "missing"),
        ("POST v1/payment_intents", {"amount": "5.0", "currency": "usd"}, "no integer"),
        ("POST v1/payment_intents", {"amount": "5", "currency": "usd", "idempotency_key": "k"}, "no parameter"),
        ("GET v1/events", {"created": {"since": "1"}}, "no parameter"),
        ("GET v1/payment_intents", {"metadata": {"a": "1"}}, "no parameter"),
    ],
)
def test_a_request_that_stripe_does_not_describe_is_seen(operation: str, form: dict[str, Any], fault: str) -> None:
    """The comparison finds what it is there for."""
    assert fault in " ".join(misfits(form, PARAMETERS[operation]))


@pytest.mark.parametrize(
    "answer",
    [
        {"object": "payment_intent", "colour": "red"},
        {"object": "payment_intent", "status": "paid"},
        {"object": "payment_intent", "last_payment_error": {"colour": "red"}},
        {"object": "payment_intent", "latest_charge": {"object": "charge", "colour": "red"}},
        {"object": "list", "data": [{"object": "refund", "colour": "red"}]},
    ],
)
def test_an_answer_that_stripe_does_not_describe_is_seen(answer: dict[str, Any]) -> None:
    """Also inside of lists and of other objects."""
    assert list(strangers(answer, Any, "answer")) != []
