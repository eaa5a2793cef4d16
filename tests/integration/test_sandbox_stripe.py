"""The sandbox's Stripe, through the unmodified client: objects, errors, the idempotency layer, lists and search."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import requests
import stripe

from counterfoil.sandbox.client import Sandbox
from counterfoil.sandbox.process import running

PAYMENT: dict[str, Any] = {
    "amount": 2000,
    "currency": "usd",
    "customer": "cus_1",
    "payment_method": "pm_card_visa",
    "confirm": True,
}
Connect = Callable[..., Any]


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Sandbox]:
    with running(tmp_path_factory.mktemp("sandbox")) as sandbox:
        yield sandbox


@pytest.fixture
def sandbox(world: Sandbox) -> Sandbox:
    world.reset()
    return world


@pytest.fixture
def connect(sandbox: Sandbox) -> Iterator[Connect]:
    """The `v1` services of real clients without retries, by API key."""
    with requests.Session() as session:

        def call(api_key: str = "sk_test_1") -> Any:
            return stripe.StripeClient(
                api_key,
                base_addresses={"api": sandbox.stripe.url},
                http_client=stripe.RequestsClient(session=session, timeout=5),
                max_network_retries=0,
            ).v1

        yield call


@pytest.fixture
def v1(connect: Connect) -> Any:
    return connect()


def test_charge(sandbox: Sandbox, v1: Any) -> None:
    """A confirmed payment moves money once, carries its metadata, and has a charge to look at."""
    intent = v1.payment_intents.create({**PAYMENT, "metadata": {"counterfoil_key": "k"}}, {"idempotency_key": "other"})
    assert (intent.object, intent.status, intent.amount_received) == ("payment_intent", "succeeded", 2000)
    assert v1.payment_intents.retrieve(intent.id).metadata.to_dict() == {"counterfoil_key": "k"}
    charge = v1.charges.retrieve(intent.latest_charge)
    assert (charge.captured, charge.amount_refunded, charge.payment_intent) == (True, 0, intent.id)
    [effect] = sandbox.effects("charge")
    assert (effect.key, effect.amount, effect.currency, effect.object_id) == ("k", 2000, "usd", intent.id)
    assert v1.payment_intents.create(PAYMENT).last_response.headers["Request-Id"].startswith("req_")


@pytest.mark.parametrize(
    ("change", "code", "param"),
    [
        ({"amount": 1}, "amount_too_small", "amount"),
        ({"amount": 100_000_000}, "amount_too_large", "amount"),
        ({"amount": "much"}, "parameter_invalid_integer", "amount"),
        ({"currency": "dollars"}, None, "currency"),
        ({"colour": "red"}, "parameter_unknown", "colour"),
        ({"payment_method": "pm_card_nobody"}, "resource_missing", "payment_method"),
        ({"customer": "someone"}, "resource_missing", "customer"),
        ({"metadata": {"n" * 41: "v"}}, None, "metadata"),
    ],
)
def test_refused_parameters(change: dict[str, Any], code: str | None, param: str, sandbox: Sandbox, v1: Any) -> None:
    """A refused parameter is a 400 that names it; nothing happens and the key stays free."""
    with pytest.raises(stripe.InvalidRequestError) as caught:
        v1.payment_intents.create({**PAYMENT, **change}, {"idempotency_key": "k"})
    assert (caught.value.http_status, caught.value.code, caught.value.param) == (400, code, param)
    assert sandbox.effects() == []
    assert v1.payment_intents.create(PAYMENT, {"idempotency_key": "k"}).status == "succeeded"


def test_decline_leaves_a_failed_intent(sandbox: Sandbox, v1: Any) -> None:
    """A declined card leaves an intent with our metadata and no money moved, and the key replays the 402."""
    declined = {**PAYMENT, "payment_method": "pm_card_chargeDeclinedInsufficientFunds", "metadata": {"k": "v"}}
    ids = set()
    for _ in range(2):
        with pytest.raises(stripe.CardError) as caught:
            v1.payment_intents.create(declined, {"idempotency_key": "k"})
        error: Any = caught.value.error
        assert (caught.value.http_status, error.code, error.decline_code) == (
            402,
            "card_declined",
            "insufficient_funds",
        )
        ids.add(error.payment_intent.id)
    assert len(ids) == 1
    [found] = v1.payment_intents.list({"customer": "cus_1"}).data
    assert (found.id, found.status, found.metadata["k"]) == (ids.pop(), "requires_payment_method", "v")
    assert found.last_payment_error.code == "card_declined"
    assert sandbox.count("charges") == 0


def test_hold_capture_cancel(sandbox: Sandbox, v1: Any) -> None:
    """A hold moves no money; its capture does, once; a captured or cancelled one refuses both verbs."""
    manual = {**PAYMENT, "capture_method": "manual"}
    held, dropped = (v1.payment_intents.create(manual) for _ in range(2))
    assert (held.status, held.amount_capturable, sandbox.count("charges")) == ("requires_capture", 2000, 0)
    captured = v1.payment_intents.capture(held.id, {"amount_to_capture": 1500})
    assert (captured.status, captured.amount_received) == ("succeeded", 1500)
    assert v1.payment_intents.cancel(dropped.id, {"cancellation_reason": "abandoned"}).status == "canceled"
    for verb, intent in (("capture", held), ("cancel", held), ("capture", dropped), ("cancel", dropped)):
        with pytest.raises(stripe.InvalidRequestError) as caught:
            getattr(v1.payment_intents, verb)(intent.id)
        assert caught.value.code == "payment_intent_unexpected_state"
    counts = sandbox.counts()
    assert (counts["charges"], counts["authorizations"], counts["cancellations"]) == (1, 2, 1)


def test_hold_lapses(sandbox: Sandbox, v1: Any) -> None:
    """A hold that nobody captured in seven days is cancelled by itself, and its capture says that it expired."""
    held = v1.payment_intents.create({**PAYMENT, "capture_method": "manual", "expand": ["latest_charge"]})
    ends = held.latest_charge.payment_method_details.card.capture_before
    sandbox.advance(ends - sandbox.now() - 5)
    assert v1.payment_intents.retrieve(held.id).status == "requires_capture"
    sandbox.advance(10)
    with pytest.raises(stripe.InvalidRequestError) as caught:
        v1.payment_intents.capture(held.id)
    assert caught.value.code == "charge_expired_for_capture"
    assert v1.payment_intents.retrieve(held.id).cancellation_reason == "automatic"
    assert sandbox.count("charges") == 0


def test_refunds(sandbox: Sandbox, v1: Any) -> None:
    """Partial refunds add up to what was captured and no further."""
    intent = v1.payment_intents.create(PAYMENT)
    made = [v1.refunds.create({"payment_intent": intent.id, "amount": 500}).id for _ in range(2)]
    assert [refund.id for refund in v1.refunds.list({"payment_intent": intent.id}).data] == made[::-1]
    with pytest.raises(stripe.InvalidRequestError) as caught:
        v1.refunds.create({"charge": intent.latest_charge, "amount": 1001})
    assert caught.value.code == "amount_too_large"
    assert v1.refunds.create({"payment_intent": intent.id, "reason": "duplicate"}).amount == 1000
    with pytest.raises(stripe.InvalidRequestError) as caught:
        v1.refunds.create({"payment_intent": intent.id})
    assert caught.value.code == "charge_already_refunded"
    assert sum(effect.amount or 0 for effect in sandbox.effects("refund")) == 2000
    assert v1.charges.retrieve(intent.latest_charge).refunded is True


def test_steps_of_an_unconfirmed_intent(sandbox: Sandbox, v1: Any) -> None:
    """Create, update, confirm: money moves at the confirmation; authentication that nobody gives moves none."""
    intent = v1.payment_intents.create({"amount": 700, "currency": "eur", "metadata": {"a": "1", "b": "2"}})
    assert intent.status == "requires_payment_method"
    updated = v1.payment_intents.update(intent.id, {"metadata": {"a": "", "c": "3"}})
    assert updated.metadata.to_dict() == {"b": "2", "c": "3"}
    assert sandbox.count("charges") == 0
    assert v1.payment_intents.confirm(intent.id, {"payment_method": "pm_card_visa"}).status == "succeeded"
    needs = {**PAYMENT, "payment_method": "pm_card_authenticationRequired"}
    assert v1.payment_intents.create(needs).status == "requires_action"
    with pytest.raises(stripe.CardError) as caught:
        v1.payment_intents.create({**needs, "off_session": True})
    assert caught.value.code == "authentication_required"
    assert sandbox.count("charges") == 1


def test_key_replays(sandbox: Sandbox, v1: Any) -> None:
    """The same key and parameters answer the same bytes, marked as replayed, and do nothing more."""
    first, again = (v1.payment_intents.create(PAYMENT, {"idempotency_key": "k"}) for _ in range(2))
    assert again.last_response.body == first.last_response.body
    assert again.last_response.headers["Idempotent-Replayed"] == "true"
    assert "Idempotent-Replayed" not in first.last_response.headers
    assert sandbox.count("charges") == 1


def test_key_mismatch(sandbox: Sandbox, v1: Any) -> None:
    """The same key with another amount, card or endpoint is an idempotency error and does nothing."""
    intent = v1.payment_intents.create(PAYMENT, {"idempotency_key": "k"})
    for change in ({"amount": 2001}, {"payment_method": "pm_card_mastercard"}):
        with pytest.raises(stripe.IdempotencyError) as caught:
            v1.payment_intents.create({**PAYMENT, **change}, {"idempotency_key": "k"})
        error: Any = caught.value.error
        assert (caught.value.http_status, error.type) == (400, "idempotency_error")
    with pytest.raises(stripe.IdempotencyError):
        v1.refunds.create({"payment_intent": intent.id}, {"idempotency_key": "k"})
    counts = sandbox.counts()
    assert (counts["charges"], counts["refunds"]) == (1, 0)


def test_key_expires(sandbox: Sandbox, v1: Any) -> None:
    """A key is forgotten after its time, on the virtual clock, and then charges again: that is Stripe's rule."""
    for seconds, charges in ((0, 1), (23 * 3600, 1), (3601, 2)):
        sandbox.advance(seconds)
        v1.payment_intents.create(PAYMENT, {"idempotency_key": "k"})
        assert sandbox.count("charges") == charges


def test_404_is_kept_and_state_errors_are_too(sandbox: Sandbox, v1: Any) -> None:
    """Answers given once execution has begun are replayed, refusals included."""
    done = v1.payment_intents.create(PAYMENT)
    for target in ("pi_missing", done.id):
        for replayed in (None, "true"):
            with pytest.raises(stripe.InvalidRequestError) as caught:
                v1.payment_intents.capture(target, {}, {"idempotency_key": f"k-{target}"})
            assert (caught.value.headers or {}).get("Idempotent-Replayed") == replayed


def test_accounts_are_apart(sandbox: Sandbox, connect: Connect) -> None:
    """Two API keys are two accounts: same idempotency key, two charges, and neither sees the other's."""
    one, two = connect("sk_test_1"), connect("sk_test_2")
    intent = one.payment_intents.create(PAYMENT, {"idempotency_key": "k"})
    two.payment_intents.create(PAYMENT, {"idempotency_key": "k"})
    assert sandbox.count("charges") == 2
    assert len(one.payment_intents.list({"customer": "cus_1"}).data) == 1
    with pytest.raises(stripe.InvalidRequestError) as caught:
        two.payment_intents.retrieve(intent.id)
    assert caught.value.http_status == 404


def test_missing_api_key_is_not_kept(sandbox: Sandbox) -> None:
    """Without an API key the answer is 401 and nothing is stored under the idempotency key."""
    url, headers = f"{sandbox.stripe.url}/v1/payment_intents", {"Idempotency-Key": "k"}
    assert requests.post(url, data={}, headers=headers, timeout=5).status_code == 401
    assert sandbox.stripe.requests()[0].executed == 0


def test_list_pages(sandbox: Sandbox, v1: Any) -> None:
    """Lists are complete at once, newest first, filtered by customer and creation time, and page by the last id."""
    made = [v1.payment_intents.create(PAYMENT).id for _ in range(5)]
    v1.payment_intents.create({**PAYMENT, "customer": "cus_2"})
    sandbox.advance(100)
    late = v1.payment_intents.create(PAYMENT).id
    page = v1.payment_intents.list({"customer": "cus_1", "limit": 4})
    rest = v1.payment_intents.list({"customer": "cus_1", "limit": 4, "starting_after": page.data[-1].id})
    assert [intent.id for intent in (*page.data, *rest.data)] == [late, *made[::-1]]
    assert (page.has_more, rest.has_more) == (True, False)
    assert len(list(v1.payment_intents.list({"customer": "cus_1", "limit": 2}).auto_paging_iter())) == 6
    recent = v1.payment_intents.list({"customer": "cus_1", "created": {"gte": int(sandbox.now()) - 50}})
    assert [intent.id for intent in recent.data] == [late]


def test_search_lags(sandbox: Sandbox, v1: Any) -> None:
    """Search finds by metadata after the lag only, and shows a changed status only after another lag."""
    sandbox.config(search_lag_s={"stripe": 60})
    held = v1.payment_intents.create({**PAYMENT, "capture_method": "manual", "metadata": {"k": "it's"}})
    query = {"query": "metadata['k']:\"it's\" AND status:'requires_capture'"}
    assert v1.payment_intents.search(query).data == []
    sandbox.advance(61)
    assert [intent.id for intent in v1.payment_intents.search(query).data] == [held.id]
    v1.payment_intents.capture(held.id)
    assert len(v1.payment_intents.search(query).data) == 1
    sandbox.advance(61)
    assert v1.payment_intents.search(query).data == []
    assert v1.payment_intents.search({"query": "status:'succeeded' OR amount>5000"}).data[0].id == held.id


def test_search_batches(sandbox: Sandbox, v1: Any) -> None:
    """One search finds several keys joined by OR, and a negated clause excludes."""
    sandbox.config(search_lag_s={"stripe": 0})
    ids = [v1.payment_intents.create({**PAYMENT, "metadata": {"k": str(n)}}).id for n in range(4)]
    either = v1.payment_intents.search({"query": "metadata['k']:'1' OR metadata['k']:'3'"}).data
    assert {intent.id for intent in either} == {ids[1], ids[3]}
    others = v1.payment_intents.search({"query": "customer:'cus_1' AND -metadata['k']:'0'", "limit": 2})
    rest = v1.payment_intents.search(
        {"query": "customer:'cus_1' AND -metadata['k']:'0'", "limit": 2, "page": others.next_page}
    )
    assert {intent.id for intent in (*others.data, *rest.data)} == set(ids[1:])
    assert (others.has_more, rest.has_more, rest.next_page) == (True, False, None)


@pytest.mark.parametrize("query", ["", "nonsense", "colour:'red'", "status:'a' AND amount>1 OR amount<2", "status:'a"])
def test_search_refuses(query: str, v1: Any) -> None:
    """A query that Stripe could not read is a 400, never an empty result."""
    with pytest.raises(stripe.InvalidRequestError):
        v1.payment_intents.search({"query": query})


def test_strict_customers(sandbox: Sandbox, v1: Any) -> None:
    """With `customers="strict"` only a customer that was created can be charged."""
    sandbox.config(customers="strict")
    with pytest.raises(stripe.InvalidRequestError):
        v1.payment_intents.create(PAYMENT)
    customer = v1.customers.create({"email": "a@example.com"})
    assert v1.payment_intents.create({**PAYMENT, "customer": customer.id}).status == "succeeded"
    assert v1.customers.retrieve(customer.id).email == "a@example.com"


def test_unknown_url(sandbox: Sandbox, v1: Any) -> None:
    """What this Stripe does not serve is a 404 in Stripe's shape, and it is in the attempt log."""
    with pytest.raises(stripe.InvalidRequestError) as caught:
        v1.payouts.create({"amount": 1, "currency": "usd"})
    assert caught.value.http_status == 404
    assert sandbox.stripe.requests()[-1].operation == "unknown"
