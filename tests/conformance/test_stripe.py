"""Stripe, through its real client: statuses, refusals, keys that expire, refunds that are already done."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from counterfoil.ledger.errors import ArgumentError
from counterfoil.providers.contract import Call, Grade, Of
from counterfoil.providers.outcomes import Absent, Found, Json, Many, NotSent, Rejected, Succeeded, Uncertain, Unknown
from counterfoil.providers.registry import Registry
from counterfoil.providers.stripe import reads as stripe_reads
from counterfoil.providers.stripe.client import StripeAdapter
from counterfoil.providers.stripe.config import StripeConfig
from counterfoil.providers.stripe.outcomes import charge_outcome, refund_outcome
from counterfoil.sandbox.client import Sandbox

TOOLS = Registry.load(["counterfoil.providers.stripe.tools"])
TIMEOUT_S = 3.0
CHARGE: dict[str, Json] = {"customer": "cus_1", "amount_minor": 500, "currency": "usd", "order_id": "1182"}


def charge(number: int = 1, **changes: Json) -> Call:
    return call_of("stripe_charge", number, {**CHARGE, **changes})


def refund(number: int, of: Of, **arguments: Json) -> Call:
    return replace(call_of("stripe_refund", number, {"order_id": "1182", **arguments}), of=of)


def call_of(tool: str, number: int, arguments: Mapping[str, Json]) -> Call:
    return Call(
        action_id=f"act_{tool}_{number}",
        tenant="Acme Corp",
        account="main",
        tool=tool,
        key=f"{number:032x}",
        arguments=TOOLS.get(tool).validate(arguments),
        target="1182",
        first_sent_at=datetime.now(UTC),
    )


def of(call: Call, receipt: str | None) -> Of:
    return Of(action_id=call.action_id, tool=call.tool, key=call.key, receipt=receipt, arguments=call.arguments)


def sent(adapter: StripeAdapter, call: Call) -> Any:
    return adapter.send(call, timeout_s=TIMEOUT_S)


def found(adapter: StripeAdapter, call: Call) -> Any:
    return adapter.lookup([call], timeout_s=TIMEOUT_S)[call.action_id]


def test_the_finding_carries_what_stripe_recorded(stripe_adapter: StripeAdapter) -> None:
    """Amount, currency, order and time come from the object, for the match with the intent."""
    assert isinstance(sent(stripe_adapter, charge()), Succeeded)
    finding = found(stripe_adapter, charge())
    assert (finding.amount_minor, finding.currency, finding.target) == (500, "usd", "1182")
    assert abs(finding.created_at - datetime.now(UTC)) < timedelta(minutes=1)
    assert set(finding.outcome.fields) == {"id", "status", "amount", "currency"}


@pytest.mark.parametrize(
    ("card", "code"),
    [
        ("pm_card_chargeDeclined", "card_declined"),
        ("pm_card_chargeDeclinedInsufficientFunds", "card_declined"),
        ("pm_card_authenticationRequired", "authentication_required"),
    ],
)
def test_a_declined_payment_is_found_and_failed(
    stripe_adapter: StripeAdapter, sandbox: Sandbox, card: str, code: str
) -> None:
    """The object exists and carries our key, yet no money moved: presence is not success."""
    call = charge(payment_method=card)
    assert sent(stripe_adapter, call) == Rejected(code)
    assert found(stripe_adapter, call).outcome == Rejected(code)
    assert sandbox.count("charges") == 0


@pytest.mark.case("D2")
def test_a_repeat_sends_the_same_bytes(stripe_adapter: StripeAdapter, sandbox: Sandbox) -> None:
    """Another adapter, another attempt: the key and body do not change, and the receipt is the same."""
    first = sent(stripe_adapter, charge())
    other = StripeAdapter(StripeConfig(api_key="sk_test_sandbox", base_url=sandbox.stripe.url))
    assert sent(other, charge()) == first
    requests = sandbox.stripe.requests("payment_intents.create")
    assert len({(request.headers["idempotency-key"], request.body) for request in requests}) == 1
    assert sandbox.count("charges") == 1


@pytest.mark.case("D5")
def test_the_same_key_with_other_parameters_is_uncertain(stripe_adapter: StripeAdapter, sandbox: Sandbox) -> None:
    """An earlier request with this key exists: that is no refusal of it."""
    sent(stripe_adapter, charge())
    outcome = sent(stripe_adapter, charge(amount_minor=600))
    assert isinstance(outcome, Uncertain)
    assert outcome.code == "idempotency_mismatch"
    assert found(stripe_adapter, charge(amount_minor=600)).amount_minor == 500
    assert sandbox.count("charges") == 1


@pytest.mark.case("D7")
def test_key_in_use_is_uncertain_and_a_lock_timeout_is_retryable(
    stripe_adapter: StripeAdapter, sandbox: Sandbox
) -> None:
    """In use: the first request still runs. Lock timeout: nothing was done."""
    sandbox.stripe.fault("409_in_use", on="payment_intents.create")
    outcome = sent(stripe_adapter, charge())
    assert isinstance(outcome, Uncertain)
    assert outcome.code == "idempotency_key_in_use"
    sandbox.stripe.fault("429_lock_timeout", on="payment_intents.create")
    assert sent(stripe_adapter, charge()) == Rejected("lock_timeout", retryable=True)


def test_a_gateways_throttling_page_keeps_its_retry_after(stripe_adapter: StripeAdapter, sandbox: Sandbox) -> None:
    """For a reply that is not JSON the client hands the headers over in another place."""
    sandbox.stripe.fault("answer", on="payment_intents.create", status=429, headers={"Retry-After": "5"}, body="<html>")
    assert sent(stripe_adapter, charge()) == Rejected("rate_limit", retryable=True, retry_after_s=5.0)


def test_a_refused_parameter_names_our_argument(stripe_adapter: StripeAdapter) -> None:
    """Stripe's `amount` is our `amount_minor`; its prose is not kept."""
    assert sent(stripe_adapter, charge(amount_minor=1)) == Rejected("amount_too_small", field="amount_minor")


def test_two_objects_under_one_key_are_many(stripe_adapter: StripeAdapter, sandbox: Sandbox) -> None:
    """Past its time Stripe executes a key again; both charges are seen."""
    first = sent(stripe_adapter, charge())
    sandbox.config(idem_ttl_s=0)
    second = sent(stripe_adapter, charge())
    assert set(found(stripe_adapter, charge()).receipts) == {first.id, second.id}
    assert isinstance(found(stripe_adapter, charge()), Many)


def test_a_long_list_is_read_to_its_end_or_shows_no_absence(
    stripe_adapter: StripeAdapter, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Pages are followed; behind a list longer than the maximum a payment may be found otherwise, but is never absent."""
    monkeypatch.setattr(stripe_reads, "PAGE_SIZE", 2)
    for number in range(1, 6):
        sent(stripe_adapter, charge(number))
    assert isinstance(found(stripe_adapter, charge(1)), Found)
    assert found(stripe_adapter, charge(9)) == Absent()
    monkeypatch.setattr(stripe_reads, "PAGES_MAX", 2)
    assert isinstance(found(stripe_adapter, charge(1)), Found)
    assert found(stripe_adapter, charge(9)) == Unknown("Incomplete")


def test_a_batch_is_one_list_for_each_customer(stripe_adapter: StripeAdapter, sandbox: Sandbox) -> None:
    """Three calls for two customers: two requests, three findings, and a failed list leaves only its own in doubt."""
    calls = [charge(1), charge(2), charge(3, customer="cus_2")]
    for call in calls[1:]:
        sent(stripe_adapter, call)
    findings = stripe_adapter.lookup(calls, timeout_s=TIMEOUT_S)
    assert len(sandbox.stripe.requests("payment_intents.list")) == 2
    assert [type(findings[call.action_id]) for call in calls] == [Absent, Found, Found]
    sandbox.stripe.fault("500_unstored", on="payment_intents.list")
    findings = stripe_adapter.lookup(calls, timeout_s=TIMEOUT_S)
    assert [type(findings[call.action_id]) for call in calls] == [Unknown, Found, Found]


@pytest.mark.case("D3")
def test_two_partial_refunds_are_two_and_each_is_one(stripe_adapter: StripeAdapter, sandbox: Sandbox) -> None:
    """Two steps of 500 on a charge of 2000, each delivered twice: 1000 in all."""
    paid = sent(stripe_adapter, charge(amount_minor=2000))
    for number in (2, 2, 3, 3):
        outcome = sent(stripe_adapter, refund(number, of(charge(), paid.id), amount_minor=500))
        assert isinstance(outcome, Succeeded)
    assert [effect.amount for effect in sandbox.stripe.effects("refund")] == [500, 500]


def test_a_charge_without_a_receipt_is_refunded_by_its_key(stripe_adapter: StripeAdapter, sandbox: Sandbox) -> None:
    """The counter-action finds what it undoes; where there is nothing, nothing is sent."""
    assert sent(stripe_adapter, refund(2, of(charge(), None))) == NotSent("of_unresolved")
    assert found(stripe_adapter, refund(2, of(charge(), None))) == Unknown("of_unresolved")
    sent(stripe_adapter, charge())
    assert isinstance(sent(stripe_adapter, refund(2, of(charge(), None))), Succeeded)
    assert isinstance(found(stripe_adapter, refund(2, of(charge(), None))), Found)
    assert sandbox.count("refunds") == 1


def test_already_refunded_is_looked_up(stripe_adapter: StripeAdapter, sandbox: Sandbox) -> None:
    """It may be our own refund, whose answer was lost: the list tells ours from somebody else's."""
    paid = sent(stripe_adapter, charge())
    ours = refund(2, of(charge(), paid.id))
    sent(stripe_adapter, ours)
    sandbox.config(idem_ttl_s=0)
    outcome = sent(stripe_adapter, ours)
    assert isinstance(outcome, Uncertain)
    assert outcome.code == "already_refunded"
    assert isinstance(found(stripe_adapter, ours).outcome, Succeeded)
    assert found(stripe_adapter, refund(3, of(charge(), paid.id))) == Absent()
    assert sandbox.count("refunds") == 1


def test_environment_proxies_are_ignored(stripe_adapter: StripeAdapter, monkeypatch: pytest.MonkeyPatch) -> None:
    """A proxy variable on the worker's host does not redirect money."""
    for name in ("HTTP_PROXY", "http_proxy", "ALL_PROXY"):
        monkeypatch.setenv(name, "http://127.0.0.1:9")
    monkeypatch.setenv("no_proxy", "")
    assert isinstance(sent(stripe_adapter, charge()), Succeeded)


def test_an_answer_about_another_object_is_uncertain(stripe_adapter: StripeAdapter, sandbox: Sandbox) -> None:
    """A 200 with a PaymentIntent that does not carry our key, as from a confused cache, is no success."""
    other = {"id": "pi_other", "object": "payment_intent", "status": "succeeded", "metadata": {"counterfoil_key": "x"}}
    sandbox.stripe.fault("answer", on="payment_intents.create", status=200, body=other)
    outcome = sent(stripe_adapter, charge())
    assert isinstance(outcome, Uncertain)
    assert outcome.code == "malformed"


@pytest.mark.case("H1")
def test_odd_text_from_stripe_cannot_spoil_a_success(stripe_adapter: StripeAdapter, sandbox: Sandbox) -> None:
    """A NUL in the answer is cleaned away."""
    call = charge()
    body = json.dumps(
        {
            "id": "pi_\x001",
            "object": "payment_intent",
            "status": "succeeded",
            "amount": 500,
            "currency": "us\x00d",
            "metadata": {"counterfoil_key": call.key},
        }
    )
    sandbox.stripe.fault("answer", on="payment_intents.create", status=200, body=json.loads(body))
    expected = Succeeded("pi_1", {"id": "pi_1", "status": "succeeded", "amount": 500, "currency": "usd"})
    assert sent(stripe_adapter, call) == expected


@pytest.mark.parametrize(
    ("status", "error", "expected"),
    [
        ("succeeded", None, "Succeeded"),
        ("canceled", None, "Rejected"),
        ("requires_payment_method", {"code": "card_declined"}, "Rejected"),
        ("requires_payment_method", None, "Uncertain"),
        ("requires_confirmation", None, "Uncertain"),
        ("requires_action", None, "Uncertain"),
        ("requires_capture", None, "Uncertain"),
        ("processing", None, "Uncertain"),
        ("something_new", None, "Uncertain"),
    ],
)
def test_every_status_of_a_charge(status: str, error: object, expected: str) -> None:
    """Only a settled status settles; one still processing, or unknown to us, stays uncertain."""
    outcome = charge_outcome({"id": "pi_1", "status": status, "last_payment_error": error})
    assert type(outcome).__name__ == expected


@pytest.mark.parametrize(
    ("status", "expected"),
    [
        ("succeeded", "Succeeded"),
        ("failed", "Rejected"),
        ("canceled", "Rejected"),
        ("pending", "Uncertain"),
        ("requires_action", "Uncertain"),
        ("something_new", "Uncertain"),
    ],
)
def test_every_status_of_a_refund(status: str, expected: str) -> None:
    """A pending refund is not settled."""
    assert type(refund_outcome({"id": "re_1", "status": status})).__name__ == expected


def test_the_tools_declare_what_the_adapter_keeps() -> None:
    """Grade A, a refund as compensation for the same amount, the customer as audience where a receipt is mailed."""
    spec = TOOLS.get("stripe_charge")
    arguments = spec.validate(CHARGE)
    assert spec.contract.grade is Grade.A
    assert spec.queue == "cf-stripe"
    assert spec.amount_of(arguments) == (500, "usd")
    assert spec.compensation_of(arguments, "act_1") == {
        "tool": "stripe_refund",
        "arguments": {"order_id": "1182", "amount_minor": 500, "currency": "usd", "reason": None},
    }
    assert spec.audience_of(arguments) == ["finance"]
    mailed = spec.validate({**CHARGE, "receipt": True, "receipt_email": "a@example.test"})
    assert spec.audience_of(mailed) == ["customer"]
    with pytest.raises(ArgumentError) as caught:
        spec.audience_of(spec.validate({**CHARGE, "receipt": True}))
    assert (caught.value.path, caught.value.code) == ("$.receipt_email", "missing_argument")


@pytest.mark.parametrize(
    ("changes", "path"),
    [
        ({"amount_minor": 0}, "$.amount_minor"),
        ({"amount_minor": -5}, "$.amount_minor"),
        ({"amount_minor": 5.0}, "$.amount_minor"),
        ({"currency": "USD"}, "$.currency"),
        ({"currency": "usdt"}, "$.currency"),
        ({"currency": "usd\n"}, "$.currency"),
        ({"customer": ""}, "$.customer"),
    ],
)
def test_money_is_checked_at_the_door(changes: dict[str, Json], path: str) -> None:
    """Positive whole minor units and a lower-case currency of three letters, or the field is named."""
    with pytest.raises(ArgumentError) as caught:
        TOOLS.get("stripe_charge").validate({**CHARGE, **changes})
    assert caught.value.path == path


def test_the_secret_key_is_in_no_repr() -> None:
    """A config may be logged."""
    assert "sk_live" not in repr(StripeConfig(api_key="sk_live_1"))
