"""Stripe, where many calls share lists of the account: what these show, what they may not show, and what they cost."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from datetime import timedelta

import pytest
import requests
from tests.conformance.test_stripe import TIMEOUT_S, charge, of, refund, sent

from counterfoil.providers.contract import Call
from counterfoil.providers.outcomes import Absent, Finding, Found, Many, Succeeded, Uncertain, Unknown
from counterfoil.providers.stripe import shared
from counterfoil.providers.stripe.client import StripeAdapter
from counterfoil.sandbox.client import Sandbox

LIST = "payment_intents.list"


def call(number: int, *, presence_only: bool = False, **changes: object) -> Call:
    made = charge(number, customer=f"cus_{number}", **changes)  # type: ignore[arg-type]
    return replace(made, presence_only=presence_only)


def look(adapter: StripeAdapter, calls: list[Call]) -> Mapping[str, Finding]:
    return adapter.lookup(calls, timeout_s=TIMEOUT_S)


def lists(sandbox: Sandbox) -> int:
    return len(sandbox.stripe.requests(LIST))


def by_hand(sandbox: Sandbox, key: str, customer: str) -> None:
    """Somebody makes a payment with our key in its metadata."""
    form = {"amount": "500", "currency": "usd", "customer": customer, "metadata[counterfoil_key]": key}
    form |= {"payment_method": "pm_card_visa", "confirm": "true", "off_session": "true"}
    requests.post(
        f"{sandbox.stripe.url}/v1/payment_intents",
        data=form,
        headers={"Authorization": "Bearer sk_test_sandbox"},
        timeout=5,
    ).raise_for_status()


@pytest.mark.parametrize("presence_only", [True, False])
def test_one_list_answers_many(stripe_adapter: StripeAdapter, sandbox: Sandbox, presence_only: bool) -> None:
    """Ten calls of ten customers, half of them done: one request, and nothing is done by asking."""
    calls = [call(number, presence_only=presence_only) for number in range(10)]
    made = {each.action_id: sent(stripe_adapter, each) for each in calls[::2]}
    findings = look(stripe_adapter, calls)
    for each in calls:
        finding = findings[each.action_id]
        if each.action_id in made:
            assert isinstance(finding, Found), finding
            assert (finding.outcome, finding.as_intended) == (made[each.action_id], True)
        else:
            assert finding == Absent(complete=not presence_only)
    assert (lists(sandbox), sandbox.count("charges")) == (1, 5)


def test_few_are_asked_customer_by_customer(stripe_adapter: StripeAdapter, sandbox: Sandbox) -> None:
    """A list of the account would cost as much, and show less: absences of few calls are whole."""
    calls = [call(number, presence_only=True) for number in range(shared.CALLS_MIN - 1)]
    assert set(look(stripe_adapter, calls).values()) == {Absent()}
    assert lists(sandbox) == len(calls)


def test_several_under_one_key_go_to_a_person(stripe_adapter: StripeAdapter, sandbox: Sandbox) -> None:
    """Whichever list shows them: two objects under our key are no success."""
    calls = [call(number) for number in range(5)]
    assert isinstance(sent(stripe_adapter, calls[0]), Succeeded)
    by_hand(sandbox, calls[0].key, "cus_0")
    for presence_only in (True, False):
        findings = look(stripe_adapter, [replace(each, presence_only=presence_only) for each in calls])
        assert isinstance(findings[calls[0].action_id], Many)


@pytest.mark.parametrize("presence_only", [True, False])
def test_our_key_on_another_customer_is_not_as_intended(
    stripe_adapter: StripeAdapter, sandbox: Sandbox, presence_only: bool
) -> None:
    """The account's list shows what the customer's would not: never a success, and never an absence either."""
    calls = [call(number, presence_only=presence_only) for number in range(5)]
    by_hand(sandbox, calls[0].key, "cus_9")
    finding = look(stripe_adapter, calls)[calls[0].action_id]
    assert isinstance(finding, Found)
    assert not finding.as_intended


def test_a_payment_that_lost_our_key_is_doubted_for_its_own_customer_only(
    stripe_adapter: StripeAdapter, sandbox: Sandbox
) -> None:
    """Somebody has emptied the metadata: that customer's call goes to a person, the others' absence stays whole."""
    calls = [call(number) for number in range(5)]
    made = sent(stripe_adapter, calls[0])
    requests.post(
        f"{sandbox.stripe.url}/v1/payment_intents/{made.id}",
        data={"metadata[counterfoil_key]": "", "metadata[counterfoil_order]": ""},
        headers={"Authorization": "Bearer sk_test_sandbox"},
        timeout=5,
    ).raise_for_status()
    first, *others = (look(stripe_adapter, calls)[each.action_id] for each in calls)
    assert isinstance(first, Found)
    assert (first.outcome, first.as_intended) == (Uncertain("unmarked_payment"), False)
    assert others == [Absent()] * 4


@pytest.mark.parametrize(("presence_only", "left"), [(False, 8), (True, 4)])
def test_a_list_that_is_too_long_is_given_up(
    stripe_adapter: StripeAdapter, sandbox: Sandbox, monkeypatch: pytest.MonkeyPatch, presence_only: bool, left: int
) -> None:
    """Whole lists of the customers are read then, a little more in all than without; no half list is an absence. What half
    a list has shown is there all the same, where only that is asked."""
    monkeypatch.setattr("counterfoil.providers.stripe.reads.PAGE_SIZE", 2)
    calls = [call(number, presence_only=presence_only) for number in range(8)]
    for each in calls[:6]:
        sent(stripe_adapter, each)
    findings = look(stripe_adapter, calls)
    assert [type(findings[each.action_id]) for each in calls] == [Found] * 6 + [Absent] * 2
    assert findings[calls[7].action_id] == Absent()
    assert lists(sandbox) == len(calls) // shared.CALLS_A_PAGE_MIN + left


def test_what_was_made_at_another_time_is_asked_for_by_itself(stripe_adapter: StripeAdapter, sandbox: Sandbox) -> None:
    """A call whose object does not lie in the seconds of its send is not called absent where its time was not read; and
    calls far apart share no list."""
    early = timedelta(hours=2)
    calls = [call(number, presence_only=True) for number in range(8)]
    calls[4:] = [replace(each, first_sent_at=each.first_sent_at - early) for each in calls[4:] if each.first_sent_at]
    findings = look(stripe_adapter, calls)
    assert set(findings.values()) == {Absent(complete=False)}
    assert lists(sandbox) == 2


@pytest.mark.parametrize("fault", ["500_unstored", "object_2xx", "html_502"])
def test_a_failed_list_leaves_each_its_own(stripe_adapter: StripeAdapter, sandbox: Sandbox, fault: str) -> None:
    """What fails in the shared list proves nothing about anybody; the customers' lists are asked."""
    calls = [call(number, presence_only=True) for number in range(5)]
    sandbox.stripe.fault(fault, on=LIST)
    assert set(look(stripe_adapter, calls).values()) == {Absent()}
    assert lists(sandbox) == 1 + len(calls)


def test_who_is_throttled_asks_no_further(stripe_adapter: StripeAdapter, sandbox: Sandbox) -> None:
    """One 429 ends the look-up of the batch: nothing is known, and nothing else is asked."""
    calls = [call(number, presence_only=True) for number in range(5)]
    sandbox.stripe.fault("429_bare", times=None)
    assert {type(each) for each in look(stripe_adapter, calls).values()} == {Unknown}
    assert len(sandbox.stripe.requests()) == 1


def test_refunds_share_a_list_too(stripe_adapter: StripeAdapter, sandbox: Sandbox) -> None:
    """By the refunds of the account, each of which must be one of the charge that the call is about."""
    charges = [call(number) for number in range(5)]
    receipts = [sent(stripe_adapter, each).id for each in charges]
    calls = [
        replace(refund(50 + number, of(each, receipt)), presence_only=True)
        for number, (each, receipt) in enumerate(zip(charges, receipts, strict=True))
    ]
    assert isinstance(sent(stripe_adapter, calls[0]), Succeeded)
    findings = look(stripe_adapter, calls)
    assert isinstance(findings[calls[0].action_id], Found)
    assert [findings[each.action_id] for each in calls[1:]] == [Absent(complete=False)] * 4
    assert len(sandbox.stripe.requests("refunds.list")) == 1
    assert sandbox.count("refunds") == 1
