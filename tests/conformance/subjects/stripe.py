"""What the suite does at Stripe."""

from __future__ import annotations

from tests.conformance.subjects.subject import Subject

from counterfoil.providers.contract import Adapter
from counterfoil.providers.stripe.client import StripeAdapter
from counterfoil.providers.stripe.config import StripeConfig
from counterfoil.sandbox.client import Sandbox


def adapter(sandbox: Sandbox) -> Adapter:
    return StripeAdapter(StripeConfig(api_key="sk_test_sandbox", base_url=sandbox.stripe.url))


SUBJECTS = (
    Subject(
        name="stripe_charge",
        arguments={"customer": "cus_1", "amount_minor": 500, "currency": "usd", "order_id": "1182"},
        target="1182",
        provider="stripe",
        adapter=adapter,
        operation="payment_intents.create",
        effect="charge",
        deduplicates=True,
        lookup_operation="payment_intents.list",
        other={"amount_minor": 501},
        fails_with={"payment_method": "pm_card_chargeDeclined"},
    ),
    Subject(
        name="stripe_refund",
        arguments={"order_id": "1182", "amount_minor": 200},
        target="1182",
        provider="stripe",
        adapter=adapter,
        operation="refunds.create",
        effect="refund",
        after="stripe_charge",
        deduplicates=True,
        lookup_operation="refunds.list",
        other={"amount_minor": 201},
    ),
    Subject(
        name="stripe_authorize",
        arguments={"customer": "cus_1", "amount_minor": 500, "currency": "usd", "order_id": "1182"},
        target="1182",
        provider="stripe",
        adapter=adapter,
        operation="payment_intents.create",
        effect="authorization",
        deduplicates=True,
        lookup_operation="payment_intents.list",
        other={"amount_minor": 501},
        fails_with={"payment_method": "pm_card_chargeDeclined"},
    ),
    Subject(
        name="stripe_capture",
        arguments={"order_id": "1182", "amount_minor": 300},
        target="1182",
        provider="stripe",
        adapter=adapter,
        operation="payment_intents.capture",
        effect="charge",
        after="stripe_authorize",
        deduplicates=True,
        lookup_operation="payment_intents.retrieve",
        other={"amount_minor": 301},
    ),
    Subject(
        name="stripe_cancel",
        arguments={"order_id": "1182"},
        target="1182",
        provider="stripe",
        adapter=adapter,
        operation="payment_intents.cancel",
        effect="cancellation",
        after="stripe_authorize",
        deduplicates=True,
        lookup_operation="payment_intents.retrieve",
    ),
)
