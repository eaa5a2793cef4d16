"""Decides how Stripe is called: one POST an attempt, under a key that Stripe keeps for a day and its objects keep for ever.

The key goes into the Idempotency-Key header and into the object's metadata, because Stripe forgets the header's after a day.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from typing import Any

import requests
import stripe

from counterfoil.providers.contract import Call
from counterfoil.providers.frame import judged_send, read_or_unreadable
from counterfoil.providers.oneshot import OneShot
from counterfoil.providers.outcomes import (
    Absent,
    Finding,
    NotSent,
    Outcome,
    Reading,
    Rejected,
    Uncertain,
    Unknown,
    Unreadable,
)
from counterfoil.providers.stripe.config import StripeConfig
from counterfoil.providers.stripe.lookups import OUTCOMES, StripeLookups, kind_of
from counterfoil.providers.stripe.outcomes import (
    CAPTURE_KEY,
    KEY,
    ORDER,
    cancel_outcome,
    capture_outcome,
    error_code,
    error_outcome,
    is_ours,
    version_of_intent,
    was_captured_under,
)
from counterfoil.providers.stripe.reads import CHARGE, PAGE_SIZE, StripeReads, is_object, plain
from counterfoil.providers.stripe.shared import KINDS

logging.getLogger("stripe").setLevel(logging.WARNING)  # at INFO it logs Stripe's messages, which may quote arguments


class StripeAdapter:
    """Calls one Stripe account. Used by one thread at a time, in the process that made it."""

    def __init__(self, config: StripeConfig) -> None:
        self._config = config
        self._transport = OneShot()
        session = requests.Session()
        self._transport.mount_on(session)
        self._client: Any = stripe.StripeClient(
            config.api_key,
            base_addresses={"api": config.base_url} if config.base_url else None,
            http_client=stripe.RequestsClient(timeout=config.timeout_s, session=session),
            max_network_retries=0,
        )
        self._reads = StripeReads(self._client)
        self._lookups = StripeLookups(self._reads)

    def send(self, call: Call, *, timeout_s: float) -> Outcome:
        """Makes the one POST of this attempt."""
        with self._transport.attempt(timeout_s=timeout_s, writes_max=1) as transport:
            return judged_send(
                lambda: self._send(call),
                lambda exc: error_outcome(exc, call, retry_after_cap_s=self._config.retry_after_cap_s),
                wrote=lambda: transport.wrote,
            )

    def lookup(self, calls: Sequence[Call], *, timeout_s: float) -> Mapping[str, Finding]:
        """Lists of the account for many calls; else one request for each customer, hold or charge; where that fails, events
        and search may still find the call."""
        with self._transport.attempt(timeout_s=timeout_s, writes_max=0, request_s=self._config.timeout_s):
            return self._lookups.find(calls)

    def rows_a_request(self, tool: str) -> int:
        """A page's objects, for what can be listed by the time of its making; a change of a hold is read on the hold."""
        return PAGE_SIZE if tool in KINDS else 1

    def fetch(self, call: Call, receipt: str, *, timeout_s: float) -> Finding:
        """Retrieves the object by its id, and checks the key in its metadata; a change of a hold is read on the hold."""
        with self._transport.attempt(timeout_s=timeout_s, writes_max=0, request_s=self._config.timeout_s):
            try:
                return self._lookups.fetch(call, receipt)
            except Exception as exc:  # noqa: BLE001 - only a 404 of Stripe's own says that there is no such object
                missing = getattr(exc, "http_status", None) == 404 and error_code(exc) == "resource_missing"
                return Absent() if missing else Unknown(error_code(exc))

    def version(self, call: Call, *, timeout_s: float) -> Reading:
        """The state of the PaymentIntent that the call is about, by one GET; what makes a PaymentIntent has none."""
        intent = call.of.receipt if call.of else None
        if intent is None:
            return Unreadable("no_version")
        with self._transport.attempt(timeout_s=timeout_s, writes_max=0):
            return read_or_unreadable(lambda: version_of_intent(self._reads.intent(intent)), name=error_code)

    def _send(self, call: Call) -> Outcome:
        field = _contradiction(call)
        if field is not None:
            return Rejected(f"{field}_mismatch", field=field)
        match call.tool:
            case "stripe_charge":
                return self._pay(call, {})
            case "stripe_authorize":
                return self._pay(call, {"capture_method": "manual", "expand": [CHARGE]})
            case "stripe_capture":
                return self._capture(call)
            case "stripe_cancel":
                return self._cancel(call)
            case "stripe_refund":
                return self._refund(call)
            case _:
                return NotSent("unknown_tool")

    def _pay(self, call: Call, more: Mapping[str, object]) -> Outcome:
        arguments = call.arguments
        params: dict[str, object] = {
            "amount": arguments["amount_minor"],
            "currency": arguments["currency"],
            "customer": arguments["customer"],
            "payment_method": arguments["payment_method"],
            # Else Stripe may want an address to send the customer back to.
            "automatic_payment_methods": {"enabled": True, "allow_redirects": "never"},
            "confirm": True,
            "off_session": True,
            "metadata": {KEY: call.key, ORDER: arguments["order_id"]},
            **more,
        }
        if arguments.get("description"):
            params["description"] = arguments["description"]
        if arguments.get("receipt"):
            params["receipt_email"] = arguments["receipt_email"]
        return _answer(self._client.v1.payment_intents.create(params, {"idempotency_key": call.key}), call)

    def _capture(self, call: Call) -> Outcome:
        intent = self._lookups.intent_of(call)
        if intent is None:
            return NotSent("of_unresolved")
        params: dict[str, object] = {"metadata": {CAPTURE_KEY: call.key}}
        if call.arguments.get("amount_minor"):
            params["amount_to_capture"] = call.arguments["amount_minor"]
        answer = self._client.v1.payment_intents.capture(intent, params, {"idempotency_key": call.key})
        item = plain(answer)
        if not is_object(item, "payment_intent", intent) or not was_captured_under(item, call.key):
            return Uncertain("malformed", evidence=type(answer).__name__)
        return capture_outcome(item, call.key) or Uncertain("not_captured")

    def _cancel(self, call: Call) -> Outcome:
        intent = self._lookups.intent_of(call)
        if intent is None:
            return NotSent("of_unresolved")
        answer = self._client.v1.payment_intents.cancel(intent, {}, {"idempotency_key": call.key})
        item = plain(answer)
        if not is_object(item, "payment_intent", intent):
            return Uncertain("malformed", evidence=type(answer).__name__)
        return cancel_outcome(item) or Uncertain("not_canceled")

    def _refund(self, call: Call) -> Outcome:
        intent = self._lookups.intent_of(call)
        if intent is None:
            return NotSent("of_unresolved")
        arguments = call.arguments
        params: dict[str, object] = {
            "payment_intent": intent,
            "metadata": {KEY: call.key, ORDER: arguments["order_id"]},
        }
        params |= {"amount": arguments["amount_minor"]} if arguments.get("amount_minor") else {}
        params |= {"reason": arguments["reason"]} if arguments.get("reason") else {}
        return _answer(self._client.v1.refunds.create(params, {"idempotency_key": call.key}), call)


def _answer(answer: object, call: Call) -> Outcome:
    """A 2xx counts only as the typed object, with an id, that carries our key."""
    item = plain(answer)
    if not is_ours(item, kind=kind_of(call), key=call.key):
        return Uncertain("malformed", evidence=type(answer).__name__)
    return OUTCOMES[call.tool](item)


def _contradiction(call: Call) -> str | None:
    """The argument in which this call and the action that it is about name different things."""
    of = call.of.arguments if call.of else {}
    both = (name for name in ("order_id", "currency") if of.get(name) and call.arguments.get(name))
    return next((name for name in both if of[name] != call.arguments[name]), None)
