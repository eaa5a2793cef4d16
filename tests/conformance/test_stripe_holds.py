"""Stripe in two steps: holds that lapse, captures whose answer was lost, releases that come too late."""

from __future__ import annotations

import urllib.parse
import urllib.request
from collections.abc import Mapping
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from counterfoil.providers.contract import Call, Of, ToolClass
from counterfoil.providers.outcomes import Absent, Found, Json, Outcome, Rejected, Succeeded, Uncertain
from counterfoil.providers.registry import Registry
from counterfoil.providers.stripe.client import StripeAdapter
from counterfoil.providers.stripe.outcomes import authorization_outcome, cancel_outcome, capture_outcome
from counterfoil.sandbox.client import Sandbox

TOOLS = Registry.load(["counterfoil.providers.stripe.tools"])
TIMEOUT_S = 3.0
WEEK_S = 7 * 86_400
HOLD: dict[str, Json] = {"customer": "cus_1", "amount_minor": 500, "currency": "usd", "order_id": "1182"}
OURS = f"{2:032x}"


def call_of(tool: str, number: int, arguments: Mapping[str, Json], of: Of | None = None) -> Call:
    return Call(
        action_id=f"act_{tool}_{number}",
        tenant="acme",
        account="main",
        tool=tool,
        key=f"{number:032x}",
        arguments=TOOLS.get(tool).validate(arguments),
        target="1182",
        first_sent_at=datetime.now(UTC),
        of=of,
    )


AUTHORIZE = call_of("stripe_authorize", 1, HOLD)


def sent(adapter: StripeAdapter, call: Call) -> Any:
    return adapter.send(call, timeout_s=TIMEOUT_S)


def found(adapter: StripeAdapter, call: Call) -> Any:
    return adapter.lookup([call], timeout_s=TIMEOUT_S)[call.action_id]


def about(call: Call, receipt: str | None) -> Of:
    return Of(action_id=call.action_id, tool=call.tool, key=call.key, receipt=receipt, arguments=call.arguments)


@pytest.fixture
def hold(stripe_adapter: StripeAdapter) -> Of:
    """An authorisation of 500 that was made."""
    made = sent(stripe_adapter, AUTHORIZE)
    assert isinstance(made, Succeeded)
    return about(AUTHORIZE, made.id)


def capture(of: Of, number: int = 2, **arguments: Json) -> Call:
    return call_of("stripe_capture", number, {"order_id": "1182", **arguments}, of)


def cancel(of: Of, number: int = 3) -> Call:
    return call_of("stripe_cancel", number, {"order_id": "1182"}, of)


def by_hand(sandbox: Sandbox, path: str, **form: str) -> None:
    """What a person, or a program that knows nothing of us, does with the account."""
    data = urllib.parse.urlencode(form).encode()
    headers = {"Authorization": "Bearer sk_test_sandbox"}
    url = f"{sandbox.stripe.url}/v1/payment_intents/{path}"
    with urllib.request.urlopen(urllib.request.Request(url, data=data, headers=headers), timeout=5):
        pass


def test_a_hold_takes_nothing_and_says_until_when(stripe_adapter: StripeAdapter, sandbox: Sandbox) -> None:
    """Answer and look-up tell the same end of the hold, which is the charge's; no money has moved."""
    made = sent(stripe_adapter, AUTHORIZE)
    assert set(made.fields) == {"id", "status", "amount", "currency", "capture_before"}
    ends = datetime.fromisoformat(made.fields["capture_before"])
    assert abs(ends - datetime.now(UTC) - timedelta(seconds=WEEK_S)) < timedelta(minutes=1)
    finding = found(stripe_adapter, AUTHORIZE)
    assert (finding.outcome, finding.amount_minor, finding.target) == (made, 500, "1182")
    assert sandbox.count("charges") == 0


@pytest.mark.case("D13")
def test_already_captured_by_us_is_succeeded(stripe_adapter: StripeAdapter, sandbox: Sandbox, hold: Of) -> None:
    """The answer was lost and Stripe has forgotten the key: the refusal is looked up, and the look-up finds our key."""
    sandbox.stripe.fault("504_after_commit", on="payment_intents.capture")
    assert isinstance(sent(stripe_adapter, capture(hold)), Uncertain)
    sandbox.config(idem_ttl_s=0)
    assert sent(stripe_adapter, capture(hold)) == Uncertain("unexpected_state", evidence="InvalidRequestError HTTP 400")
    finding = found(stripe_adapter, capture(hold))
    assert isinstance(finding.outcome, Succeeded)
    assert (finding.outcome.id, finding.amount_minor) == (hold.receipt, 500)
    assert (sandbox.count("charges"), sandbox.count("refunds")) == (1, 0)


@pytest.mark.case("D13")
def test_captured_by_somebody_else_is_not_ours(stripe_adapter: StripeAdapter, sandbox: Sandbox, hold: Of) -> None:
    """Money was taken, but as far as anybody can prove not by this action: a person decides, nothing is sent again."""
    by_hand(sandbox, f"{hold.receipt}/capture")
    assert isinstance(sent(stripe_adapter, capture(hold)), Uncertain)
    assert found(stripe_adapter, capture(hold)) == Found(
        Uncertain("captured_elsewhere"), currency="usd", target="1182", as_intended=False
    )
    other = capture(hold, 9)
    assert found(stripe_adapter, other).outcome == Uncertain("captured_elsewhere"), "nor any other action's"


def test_a_part_is_captured_and_refunded(stripe_adapter: StripeAdapter, sandbox: Sandbox, hold: Of) -> None:
    """300 of 500 are taken; the compensation that was written down gives back these 300, by the capture's receipt."""
    call = capture(hold, amount_minor=300, currency="usd")
    taken = sent(stripe_adapter, call)
    assert taken == Succeeded(
        hold.receipt or "", {"id": hold.receipt, "status": "succeeded", "amount": 300, "currency": "usd"}
    )
    assert found(stripe_adapter, call) == Found(taken, amount_minor=300, currency="usd", target="1182")
    compensation: Any = TOOLS.get("stripe_capture").compensation_of(call.arguments, call.action_id)
    refund = call_of(compensation["tool"], 4, compensation["arguments"], about(call, taken.id))
    given_back = sent(stripe_adapter, refund)
    assert isinstance(given_back, Succeeded)
    assert found(stripe_adapter, refund).outcome == given_back
    assert [effect.amount for effect in sandbox.stripe.effects("refund")] == [300]


def test_a_lapsed_hold_is_not_captured_and_holds_nothing(
    stripe_adapter: StripeAdapter, sandbox: Sandbox, hold: Of
) -> None:
    """A week later: the capture is refused for good, and there is nothing left to release."""
    sandbox.advance(WEEK_S + 1)
    assert sent(stripe_adapter, capture(hold)) == Rejected("charge_expired_for_capture")
    assert found(stripe_adapter, capture(hold)).outcome == Rejected("hold_lapsed")
    assert sent(stripe_adapter, cancel(hold)) == Uncertain("unexpected_state", evidence="InvalidRequestError HTTP 400")
    assert isinstance(found(stripe_adapter, cancel(hold)).outcome, Succeeded)
    assert sandbox.count("charges") == 0


def test_a_hold_released_by_hand_is_released(stripe_adapter: StripeAdapter, sandbox: Sandbox, hold: Of) -> None:
    """Whoever released it: a release has nothing to do, and a capture takes nothing any more."""
    by_hand(sandbox, f"{hold.receipt}/cancel")
    assert isinstance(sent(stripe_adapter, cancel(hold)), Uncertain)
    assert isinstance(found(stripe_adapter, cancel(hold)).outcome, Succeeded)
    assert isinstance(sent(stripe_adapter, capture(hold)), Uncertain)
    assert found(stripe_adapter, capture(hold)).outcome == Rejected("hold_canceled")


def test_what_was_captured_cannot_be_released(stripe_adapter: StripeAdapter, hold: Of) -> None:
    """Only a refund takes it back; after that nothing is held, so that unwinding both steps comes to its end."""
    call = capture(hold)
    taken = sent(stripe_adapter, call)
    assert isinstance(sent(stripe_adapter, cancel(hold)), Uncertain)
    assert found(stripe_adapter, cancel(hold)).outcome == Rejected("captured")
    sent(stripe_adapter, call_of("stripe_refund", 4, {"order_id": "1182"}, about(call, taken.id)))
    assert isinstance(found(stripe_adapter, cancel(hold)).outcome, Succeeded)


def test_a_hold_without_a_receipt_is_found_by_its_key(stripe_adapter: StripeAdapter, sandbox: Sandbox) -> None:
    """The follow-up finds what it is about in the customer's list."""
    sent(stripe_adapter, AUTHORIZE)
    assert isinstance(sent(stripe_adapter, capture(about(AUTHORIZE, None))), Succeeded)
    assert sandbox.count("charges") == 1


@pytest.mark.parametrize(("name", "value"), [("order_id", "1183"), ("currency", "eur")])
def test_a_capture_of_another_order_s_hold_is_not_sent(
    stripe_adapter: StripeAdapter, sandbox: Sandbox, hold: Of, name: str, value: str
) -> None:
    """Order and currency are those of the authorisation, or nothing leaves."""
    call = capture(hold)
    wrong = replace(call, arguments={**call.arguments, name: value})
    assert sent(stripe_adapter, wrong) == Rejected(f"{name}_mismatch", field=name)
    assert sandbox.stripe.requests("payment_intents.capture") == []


@pytest.mark.parametrize(
    "answer", [{"id": "pi_other"}, {"metadata": {}}, {"object": "charge"}, {"status": "requires_capture"}]
)
def test_a_capture_counts_only_as_the_hold_under_our_key(
    stripe_adapter: StripeAdapter, sandbox: Sandbox, hold: Of, answer: dict[str, object]
) -> None:
    """A 200 about another object, or one that our request cannot have written, is no success."""
    body = {
        "id": hold.receipt,
        "object": "payment_intent",
        "status": "succeeded",
        "metadata": {"counterfoil_capture_key": capture(hold).key},
        **answer,
    }
    sandbox.stripe.fault("answer", on="payment_intents.capture", status=200, body=body)
    assert isinstance(sent(stripe_adapter, capture(hold)), Uncertain)


def intent(status: str, **more: object) -> dict[str, object]:
    return {"id": "pi_1", "object": "payment_intent", "status": status, **more}


DECLINED = {"last_payment_error": {"code": "card_declined"}}
STATUSES = [
    (intent("requires_capture"), "Succeeded", None, None),
    (intent("succeeded", metadata={"counterfoil_capture_key": OURS}), "Succeeded", "Succeeded", "!captured"),
    (intent("succeeded", metadata={"counterfoil_capture_key": "x"}), "Succeeded", "captured_elsewhere", "!captured"),
    (intent("succeeded", latest_charge={"refunded": True}), "Succeeded", "captured_elsewhere", "Succeeded"),
    (intent("succeeded", latest_charge="ch_1"), "Succeeded", "captured_elsewhere", "!captured"),
    (intent("canceled", cancellation_reason="automatic"), "!canceled", "!hold_lapsed", "Succeeded"),
    (intent("canceled", cancellation_reason="abandoned"), "!canceled", "!hold_canceled", "Succeeded"),
    (intent("requires_payment_method", **DECLINED), "!card_declined", "requires_payment_method", None),
    (intent("requires_action"), "requires_action", "requires_action", None),
    (intent("processing"), "processing", "processing", "processing"),
    (intent("something_new"), "something_new", "something_new", "something_new"),
]
"""A PaymentIntent, and what it says about authorisation, our capture, release: "!" before the code of a refusal."""


@pytest.mark.parametrize(("seen", "authorized", "captured", "canceled"), STATUSES)
def test_every_status_of_a_hold(
    seen: dict[str, object], authorized: str, captured: str | None, canceled: str | None
) -> None:
    """Only a settled status settles, and each of the three questions has its own settled ones."""
    assert said(authorization_outcome(seen)) == authorized
    assert said(capture_outcome(seen, OURS)) == captured
    assert said(cancel_outcome(seen)) == canceled


def said(outcome: Outcome | None) -> str | None:
    match outcome:
        case None:
            return None
        case Rejected(code):
            return f"!{code}"
        case Uncertain(code):
            return code
    return type(outcome).__name__


def test_a_batch_is_one_request_for_each_hold(stripe_adapter: StripeAdapter, sandbox: Sandbox, hold: Of) -> None:
    """Two questions about one hold by one tool share its reading."""
    findings = stripe_adapter.lookup([capture(hold, 5), capture(hold, 6), cancel(hold, 7)], timeout_s=TIMEOUT_S)
    assert [type(finding) for finding in findings.values()] == [Absent, Absent, Absent]
    assert len(sandbox.stripe.requests("payment_intents.retrieve")) == 2


def test_the_tools_declare_how_a_hold_is_taken_back() -> None:
    """An authorisation is reversible, by a release; a capture is not, by a refund; both are the order's one charge."""
    authorize, take = TOOLS.get("stripe_authorize"), TOOLS.get("stripe_capture")
    assert (authorize.cls, take.cls) == (ToolClass.REVERSIBLE, ToolClass.COMPENSATABLE)
    assert authorize.effect == take.effect == TOOLS.get("stripe_charge").effect
    assert authorize.compensation_of(authorize.validate(HOLD), "act_1") == {
        "tool": "stripe_cancel",
        "arguments": {"order_id": "1182"},
    }
    assert {tool["name"] for tool in TOOLS.schemas()} == {"stripe_authorize", "stripe_charge"}
