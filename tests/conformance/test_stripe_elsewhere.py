"""Stripe, where a list fails: events, then search, may still find what was done, and never that nothing was."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import stripe
from tests.conformance.test_stripe import CHARGE, TIMEOUT_S, charge, found, of, refund, sent
from tests.conformance.test_stripe_holds import AUTHORIZE, about, capture

from counterfoil.providers.outcomes import Absent, Found, Many, Rejected, Succeeded, Uncertain, Unknown
from counterfoil.providers.stripe import reads
from counterfoil.providers.stripe.client import StripeAdapter
from counterfoil.sandbox.client import Sandbox

LIST, EVENTS, SEARCH = "payment_intents.list", "events.list", "payment_intents.search"
HOUR_S = 3600


def asked(sandbox: Sandbox) -> list[str]:
    """The operations of all requests since the last send."""
    operations = [request.operation for request in sandbox.stripe.requests()]
    last = max(at for at, name in enumerate(operations) if name.endswith((".create", ".capture")))
    return operations[last + 1 :]


def test_a_payment_behind_a_failed_list_is_found_by_its_event(stripe_adapter: StripeAdapter, sandbox: Sandbox) -> None:
    """The event names the object, and the object itself is read: status, amount and order as from the list."""
    made = sent(stripe_adapter, charge())
    expected = found(stripe_adapter, charge())
    sandbox.stripe.fault("500_unstored", on=LIST)
    assert found(stripe_adapter, charge()) == expected
    assert expected.outcome == made
    assert asked(sandbox)[1:] == [LIST, EVENTS, "payment_intents.retrieve"]


def test_a_payment_whose_event_is_late_is_found_by_search(stripe_adapter: StripeAdapter, sandbox: Sandbox) -> None:
    """Search is the last resort; what neither shows is unknown, until one of them does."""
    sandbox.config(search_lag_s={"stripe": 60, "stripe_events": HOUR_S})
    sent(stripe_adapter, charge())
    sandbox.stripe.fault("500_unstored", on=LIST, times=None)
    assert isinstance(found(stripe_adapter, charge()), Unknown)
    assert asked(sandbox) == [LIST, EVENTS, SEARCH]
    sandbox.advance(60)
    assert isinstance(found(stripe_adapter, charge()).outcome, Succeeded)


@pytest.mark.parametrize("fault", ["500_unstored", "html_502", "429_bare", "object_2xx", "rst_after_commit"])
def test_events_and_search_never_show_absence(stripe_adapter: StripeAdapter, sandbox: Sandbox, fault: str) -> None:
    """Nothing was sent, and neither shows anything: that proves nothing, whether they answer or fail themselves."""
    sandbox.stripe.fault(fault, on=LIST)
    assert isinstance(found(stripe_adapter, charge()), Unknown)
    for operation in (LIST, EVENTS, SEARCH):
        sandbox.stripe.fault(fault, on=operation)
    assert isinstance(found(stripe_adapter, charge()), Unknown)


def test_an_account_without_search_has_its_events(stripe_adapter: StripeAdapter, sandbox: Sandbox) -> None:
    """India has no search: a refusal of it leaves the call unknown, and an event is enough."""
    sandbox.config(search_lag_s={"stripe_events": 60})
    sent(stripe_adapter, charge())
    sandbox.stripe.fault("500_unstored", on=LIST, times=None)
    sandbox.stripe.fault("answer", on=SEARCH, status=400, times=None)
    assert isinstance(found(stripe_adapter, charge()), Unknown)
    sandbox.advance(60)
    assert isinstance(found(stripe_adapter, charge()), Found)


def test_without_a_send_time_only_search_is_asked(stripe_adapter: StripeAdapter, sandbox: Sandbox) -> None:
    """Events without a beginning are a month's."""
    sent(stripe_adapter, charge())
    sandbox.stripe.fault("500_unstored", on=LIST)
    assert isinstance(found(stripe_adapter, replace(charge(), first_sent_at=None)), Found)
    assert asked(sandbox) == [LIST, SEARCH, "payment_intents.retrieve"]


def test_who_is_throttled_asks_no_further(stripe_adapter: StripeAdapter, sandbox: Sandbox) -> None:
    """A 429 is answered by fewer requests, not by more."""
    sent(stripe_adapter, charge())
    sandbox.stripe.fault("429_bare", on=LIST)
    assert isinstance(found(stripe_adapter, charge()), Unknown)
    assert asked(sandbox) == [LIST]


def test_two_objects_under_one_key_are_many_here_too(stripe_adapter: StripeAdapter, sandbox: Sandbox) -> None:
    """Past its time Stripe executes a key again, and both requests have an event."""
    first = sent(stripe_adapter, charge())
    sandbox.config(idem_ttl_s=0)
    second = sent(stripe_adapter, charge())
    sandbox.stripe.fault("500_unstored", on=LIST)
    finding = found(stripe_adapter, charge())
    assert isinstance(finding, Many)
    assert set(finding.receipts) == {first.id, second.id}


def test_a_declined_payment_found_by_its_event_has_failed(stripe_adapter: StripeAdapter, sandbox: Sandbox) -> None:
    """Presence is not success on any road."""
    call = charge(payment_method="pm_card_chargeDeclined")
    sent(stripe_adapter, call)
    sandbox.stripe.fault("500_unstored", on=LIST)
    assert found(stripe_adapter, call).outcome == Rejected("card_declined")


def test_an_event_of_an_object_without_our_key_proves_nothing(stripe_adapter: StripeAdapter, sandbox: Sandbox) -> None:
    """Somebody has wiped the metadata: the object is no longer provably ours."""
    made = sent(stripe_adapter, charge())
    client = stripe.StripeClient("sk_test_sandbox", base_addresses={"api": sandbox.stripe.url})
    client.v1.payment_intents.update(made.id, {"metadata": {"counterfoil_key": ""}})
    sandbox.stripe.fault("500_unstored", on=LIST)
    assert isinstance(found(stripe_adapter, charge()), Unknown)


def test_a_batch_of_failed_lists_is_one_question(stripe_adapter: StripeAdapter, sandbox: Sandbox) -> None:
    """Of three customers: one list of events for all, one search for those that it does not show."""
    calls = [charge(number, customer=f"cus_{number}") for number in (1, 2, 3)]
    sent(stripe_adapter, calls[0])
    sandbox.config(search_lag_s={"stripe_events": HOUR_S})
    sent(stripe_adapter, calls[1])
    sandbox.stripe.fault("500_unstored", on=LIST, times=None)
    findings = stripe_adapter.lookup(calls, timeout_s=TIMEOUT_S)
    assert [type(findings[call.action_id]) for call in calls] == [Found, Found, Unknown]
    assert [asked(sandbox).count(operation) for operation in (LIST, EVENTS, SEARCH)] == [3, 1, 1]


def test_many_keys_are_searched_in_as_many_clauses_as_stripe_takes(
    stripe_adapter: StripeAdapter, sandbox: Sandbox
) -> None:
    """Twelve payments are two searches of at most ten clauses."""
    sandbox.config(search_lag_s={"stripe_events": HOUR_S})
    calls = [charge(number) for number in range(1, 13)]
    for call in calls:
        sent(stripe_adapter, call)
    sandbox.stripe.fault("500_unstored", on=LIST)
    findings = stripe_adapter.lookup(calls, timeout_s=TIMEOUT_S)
    assert {type(finding) for finding in findings.values()} == {Found}
    assert asked(sandbox).count(SEARCH) == 2


def test_events_are_read_by_pages_up_to_a_maximum(
    stripe_adapter: StripeAdapter, sandbox: Sandbox, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An event on a later page is found; one behind the last page is left to the search."""
    monkeypatch.setattr(reads, "PAGE_SIZE", 2)
    for number in range(1, 6):
        sent(stripe_adapter, charge(number))
    monkeypatch.setattr(reads, "PAGES_MAX", 1)
    assert isinstance(found(stripe_adapter, charge(1)), Found)
    assert asked(sandbox) == [LIST, EVENTS, EVENTS, EVENTS, "payment_intents.retrieve"]
    monkeypatch.setattr(reads, "EVENT_PAGES_MAX", 2)
    assert isinstance(found(stripe_adapter, charge(1)), Found)
    assert asked(sandbox)[-2:] == [SEARCH, "payment_intents.retrieve"]


def test_a_refund_has_its_event_and_no_search(stripe_adapter: StripeAdapter, sandbox: Sandbox) -> None:
    """Refunds cannot be searched: what no event shows is unknown."""
    paid = sent(stripe_adapter, charge())
    ours = refund(2, of(charge(), paid.id))
    given_back = sent(stripe_adapter, ours)
    sandbox.stripe.fault("500_unstored", on="refunds.list", times=None)
    assert found(stripe_adapter, ours).outcome == given_back
    assert isinstance(found(stripe_adapter, refund(3, of(charge(), paid.id))), Unknown)
    assert SEARCH not in asked(sandbox)


def test_a_capture_is_read_on_its_hold_or_not_at_all(stripe_adapter: StripeAdapter, sandbox: Sandbox) -> None:
    """An event could not say more than the hold, which cannot be read."""
    made = sent(stripe_adapter, AUTHORIZE)
    call = capture(about(AUTHORIZE, made.id))
    sent(stripe_adapter, call)
    sandbox.stripe.fault("500_unstored", on="payment_intents.retrieve")
    assert isinstance(found(stripe_adapter, call), Unknown)
    assert EVENTS not in asked(sandbox)


def declined(sandbox: Sandbox, **intent: object) -> None:
    """The next creation is answered as a decline, with this PaymentIntent inside."""
    error: dict[str, Any] = {"type": "card_error", "code": "card_declined", "payment_intent": intent}
    sandbox.stripe.fault("answer", on="payment_intents.create", status=402, body={"error": error})


@pytest.mark.parametrize(
    ("intent", "expected"),
    [
        ({}, "card_declined"),
        ({"status": "succeeded"}, "other_payment"),
        ({"status": "processing"}, "other_payment"),
        ({"metadata": {"counterfoil_key": "another"}}, "other_payment"),
    ],
)
def test_a_decline_counts_only_for_our_own_failed_payment(
    stripe_adapter: StripeAdapter, sandbox: Sandbox, intent: dict[str, object], expected: str
) -> None:
    """A 402 carries the PaymentIntent: one that is not ours, or has not failed, settles nothing."""
    ours: dict[str, object] = {
        "id": "pi_1",
        "object": "payment_intent",
        "status": "requires_payment_method",
        "last_payment_error": {"code": "card_declined"},
        "metadata": {"counterfoil_key": charge().key},
    }
    declined(sandbox, **{**ours, **intent})
    outcome = sent(stripe_adapter, charge())
    kind = Rejected if expected == "card_declined" else Uncertain
    assert (type(outcome), outcome.code) == (kind, expected)


def test_a_pending_refund_settles_when_stripe_has_settled_it(stripe_adapter: StripeAdapter, sandbox: Sandbox) -> None:
    """Neither answer nor look-up calls it done before; it is one refund all along."""
    sandbox.config(refund_pending_s=HOUR_S)
    paid = sent(stripe_adapter, charge())
    ours = refund(2, of(charge(), paid.id))
    assert sent(stripe_adapter, ours) == Uncertain("pending")
    assert found(stripe_adapter, ours).outcome == Uncertain("pending")
    sandbox.advance(HOUR_S)
    assert isinstance(found(stripe_adapter, ours).outcome, Succeeded)
    assert sandbox.count("refunds") == 1


def test_a_disputed_charge_is_not_refunded(stripe_adapter: StripeAdapter, sandbox: Sandbox) -> None:
    """The bank has the money back already: a definite refusal, and nothing under our key."""
    disputed = charge(payment_method="pm_card_createDispute")
    paid = sent(stripe_adapter, disputed)
    ours = refund(2, of(disputed, paid.id))
    assert sent(stripe_adapter, ours) == Rejected("charge_disputed")
    assert found(stripe_adapter, ours) == Absent()
    assert sandbox.count("refunds") == 0


def test_the_client_library_alone_sends_hidden_attempts(sandbox: Sandbox, monkeypatch: pytest.MonkeyPatch) -> None:
    """Why retries are off: left alone, the module repeats a failed POST within one attempt, unseen by any budget."""
    monkeypatch.setattr("stripe._http_client.time.sleep", lambda _s: None)
    stripe_default = stripe.max_network_retries
    assert stripe_default == 2
    client = stripe.StripeClient(
        "sk_test_sandbox", base_addresses={"api": sandbox.stripe.url}, max_network_retries=stripe_default
    )
    sandbox.stripe.fault("500_unstored", on="payment_intents.create", times=None)
    payment = {"amount": 500, "currency": "usd", "customer": CHARGE["customer"], "payment_method": "pm_card_visa"}
    with pytest.raises(stripe.APIError):
        client.v1.payment_intents.create(payment)
    requests = sandbox.stripe.requests("payment_intents.create")
    assert len(requests) == 3
    assert len({request.headers["idempotency-key"] for request in requests}) == 1
