"""Decides how Stripe is called and asked: one POST an attempt, and look-ups by its lists and objects, which do not lag.

The key goes into the Idempotency-Key header and into the object's metadata, because Stripe forgets the header's after a day.
"""

from __future__ import annotations

import logging
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import timedelta
from typing import Any

import requests
import stripe

from counterfoil.providers.contract import OTHER_KEY, Call, Of
from counterfoil.providers.frame import judged_send, read_or_unreadable
from counterfoil.providers.oneshot import OneShot
from counterfoil.providers.outcomes import (
    Absent,
    Finding,
    Found,
    Many,
    NotSent,
    Outcome,
    Reading,
    Rejected,
    Succeeded,
    Uncertain,
    Unknown,
    Unreadable,
)
from counterfoil.providers.sanitise import clean_id
from counterfoil.providers.stripe.config import StripeConfig
from counterfoil.providers.stripe.outcomes import (
    CAPTURE_KEY,
    CAPTURED_ELSEWHERE,
    KEY,
    ORDER,
    amount_received,
    authorization_outcome,
    cancel_outcome,
    capture_outcome,
    charge_outcome,
    error_code,
    error_outcome,
    found,
    is_ours,
    refund_outcome,
    version_of_intent,
    was_captured_under,
)

PAGE_SIZE = 100
PAGES_MAX = 20
SKEW = timedelta(minutes=5)
"""Between the ledger's clock and Stripe's."""
RECEIPTS_MAX = 20
CHARGE = "latest_charge"
"""Expanded where an outcome depends on the charge behind a PaymentIntent."""
_ON_HOLD = ("stripe_capture", "stripe_cancel")
"""Tools that change the PaymentIntent of an authorisation, and are found by reading it."""
_OUTCOMES: Mapping[str, Callable[[Mapping[str, object]], Succeeded | Rejected | Uncertain]] = {
    "stripe_charge": charge_outcome,
    "stripe_authorize": authorization_outcome,
    "stripe_refund": refund_outcome,
}
"""What the status of an object that a tool has made says about it."""

logging.getLogger("stripe").setLevel(logging.WARNING)  # at INFO it logs Stripe's messages, which may quote arguments


class Incomplete(Exception):
    """A look-up's answer is not a whole list: it proves nothing."""


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

    def send(self, call: Call, *, timeout_s: float) -> Outcome:
        """Makes the one POST of this attempt."""
        with self._transport.attempt(timeout_s=timeout_s, writes_max=1) as transport:
            return judged_send(
                lambda: self._send(call),
                lambda exc: error_outcome(exc, call, retry_after_cap_s=self._config.retry_after_cap_s),
                wrote=lambda: transport.wrote,
            )

    def lookup(self, calls: Sequence[Call], *, timeout_s: float) -> Mapping[str, Finding]:
        """One request for each customer, hold or charge; one that fails or does not end is Unknown for its calls."""
        findings: dict[str, Finding] = {}
        with self._transport.attempt(timeout_s=timeout_s, writes_max=0, request_s=self._config.timeout_s):
            for group in _groups(calls):
                findings |= self._look(group)
        return findings

    def fetch(self, call: Call, receipt: str, *, timeout_s: float) -> Finding:
        """Retrieves the object by its id, and checks the key in its metadata; a change of a hold is read on the hold."""
        with self._transport.attempt(timeout_s=timeout_s, writes_max=0, request_s=self._config.timeout_s):
            try:
                return self._fetch(call, receipt)
            except Exception as exc:  # noqa: BLE001 - only a 404 of Stripe's own says that there is no such object
                missing = getattr(exc, "http_status", None) == 404 and error_code(exc) == "resource_missing"
                return Absent() if missing else Unknown(error_code(exc))

    def version(self, call: Call, *, timeout_s: float) -> Reading:
        """The state of the PaymentIntent that the call is about, by one GET; what makes a PaymentIntent has none."""
        intent = call.of.receipt if call.of else None
        if intent is None:
            return Unreadable("no_version")
        with self._transport.attempt(timeout_s=timeout_s, writes_max=0):
            return read_or_unreadable(lambda: self._version(intent), name=error_code)

    def _version(self, intent: str) -> Reading:
        item = _plain(self._client.v1.payment_intents.retrieve(intent, {"expand": [CHARGE]}))
        return version_of_intent(item) if _is_intent(item, intent) else Unreadable("malformed")

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
        intent = self._intent_of(call)
        if intent is None:
            return NotSent("of_unresolved")
        params: dict[str, object] = {"metadata": {CAPTURE_KEY: call.key}}
        if call.arguments.get("amount_minor"):
            params["amount_to_capture"] = call.arguments["amount_minor"]
        answer = self._client.v1.payment_intents.capture(intent, params, {"idempotency_key": call.key})
        item = _plain(answer)
        if not _is_intent(item, intent) or not was_captured_under(item, call.key):
            return Uncertain("malformed", evidence=type(answer).__name__)
        return capture_outcome(item, call.key) or Uncertain("not_captured")

    def _cancel(self, call: Call) -> Outcome:
        intent = self._intent_of(call)
        if intent is None:
            return NotSent("of_unresolved")
        answer = self._client.v1.payment_intents.cancel(intent, {}, {"idempotency_key": call.key})
        item = _plain(answer)
        if not _is_intent(item, intent):
            return Uncertain("malformed", evidence=type(answer).__name__)
        return cancel_outcome(item) or Uncertain("not_canceled")

    def _refund(self, call: Call) -> Outcome:
        intent = self._intent_of(call)
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

    def _intent_of(self, call: Call) -> str | None:
        """The PaymentIntent that this call is about: the receipt of `of`, else the one that carries its key."""
        of = call.of
        if of is None or of.receipt:
            return of.receipt if of else None
        if "customer" not in of.arguments:  # a capture: its receipt is all that there is
            return None
        listed = self._list(self._client.v1.payment_intents.list, {"customer": of.arguments["customer"]})
        matches = [item for item in listed if is_ours(item, kind="payment_intent", key=of.key)]
        return clean_id(matches[0].get("id")) if len(matches) == 1 else None

    def _look(self, group: Sequence[Call]) -> dict[str, Finding]:
        try:
            return self._find(group)
        except Exception as exc:  # noqa: BLE001 - a failed look-up is never absence, whatever failed in it
            return {call.action_id: Unknown(error_code(exc)) for call in group}

    def _find(self, group: Sequence[Call]) -> dict[str, Finding]:
        first = group[0]
        if first.of is None:
            items = self._list(self._client.v1.payment_intents.list, _payments_query(group))
            return {call.action_id: _finding(call, items) for call in group}
        intent = self._intent_of(first)
        if intent is None:
            return {call.action_id: Unknown("of_unresolved") for call in group}
        if first.tool in _ON_HOLD:
            item = _plain(self._client.v1.payment_intents.retrieve(intent, {"expand": [CHARGE]}))
            if not _is_intent(item, intent):
                raise Incomplete("malformed")
            return {call.action_id: _hold_finding(call, item) for call in group}
        items = self._list(self._client.v1.refunds.list, {"payment_intent": intent})
        return {call.action_id: _finding(call, items) for call in group}

    def _fetch(self, call: Call, receipt: str) -> Finding:
        if call.tool in _ON_HOLD:
            found_one = self._find([call])[call.action_id]
            return (
                Unknown(OTHER_KEY) if isinstance(found_one, Found) and receipt != self._intent_of(call) else found_one
            )
        if _kind(call) == "refund":
            item = _plain(self._client.v1.refunds.retrieve(receipt, {}))
        else:
            item = _plain(self._client.v1.payment_intents.retrieve(receipt, {"expand": [CHARGE]}))
        if item.get("object") != _kind(call) or item.get("id") != receipt:
            raise Incomplete("malformed")
        return _finding(call, [item]) if is_ours(item, kind=_kind(call), key=call.key) else Unknown(OTHER_KEY)

    def _list(self, page: Callable[..., Any], query: Mapping[str, object]) -> list[Mapping[str, object]]:
        """Every item of a list. Raises Incomplete when it is malformed or longer than `PAGES_MAX` pages."""
        items: list[Mapping[str, object]] = []
        params = {**query, "limit": PAGE_SIZE}
        for _ in range(PAGES_MAX):
            answer = _plain(page(params))
            data, more = answer.get("data"), answer.get("has_more")
            if answer.get("object") != "list" or not isinstance(data, list) or not isinstance(more, bool):
                raise Incomplete("malformed")
            rows = [item for item in data if isinstance(item, dict) and isinstance(item.get("id"), str)]
            if len(rows) != len(data) or (more and not rows):
                raise Incomplete("malformed")
            items += rows
            if not more:
                return items
            params["starting_after"] = rows[-1]["id"]
        raise Incomplete("too_many_pages")


def _answer(answer: object, call: Call) -> Outcome:
    """A 2xx counts only as the typed object, with an id, that carries our key."""
    item = _plain(answer)
    if not is_ours(item, kind=_kind(call), key=call.key):
        return Uncertain("malformed", evidence=type(answer).__name__)
    return _OUTCOMES[call.tool](item)


def _finding(call: Call, items: Iterable[Mapping[str, object]]) -> Finding:
    kind = _kind(call)
    matches = [item for item in items if is_ours(item, kind=kind, key=call.key)]
    if not matches:
        return Absent()
    if len(matches) > 1:
        return Many(tuple(clean_id(item.get("id")) or "" for item in matches[:RECEIPTS_MAX]))
    return found(matches[0], _OUTCOMES[call.tool](matches[0]))


def _hold_finding(call: Call, intent: Mapping[str, object]) -> Finding:
    """What an authorisation's PaymentIntent, which is older than this call, says about it."""
    is_capture = call.tool == "stripe_capture"
    outcome = capture_outcome(intent, call.key) if is_capture else cancel_outcome(intent)
    if outcome is None:
        return Absent()
    recorded = found(intent, outcome)
    return Found(
        outcome,
        amount_minor=amount_received(intent) if is_capture and isinstance(outcome, Succeeded) else None,
        currency=recorded.currency,
        target=recorded.target,
        as_intended=outcome != CAPTURED_ELSEWHERE,
    )


def _contradiction(call: Call) -> str | None:
    """The argument in which this call and the action that it is about name different things."""
    of = call.of.arguments if call.of else {}
    both = (name for name in ("order_id", "currency") if of.get(name) and call.arguments.get(name))
    return next((name for name in both if of[name] != call.arguments[name]), None)


def _is_intent(item: Mapping[str, object], intent: str) -> bool:
    return item.get("object") == "payment_intent" and item.get("id") == intent


def _groups(calls: Sequence[Call]) -> Iterable[list[Call]]:
    """Calls that one request answers: payments of a customer, changes of an authorisation, refunds of a charge."""
    groups: defaultdict[tuple[str, str], list[Call]] = defaultdict(list)
    for call in calls:
        about = call.of.key if isinstance(call.of, Of) else str(call.arguments.get("customer"))
        groups[call.tool, about].append(call)
    return groups.values()


def _payments_query(group: Sequence[Call]) -> dict[str, object]:
    """Since the earliest send; every payment of the customer where one send has no time."""
    query: dict[str, object] = {"customer": group[0].arguments["customer"]}
    if group[0].tool == "stripe_authorize":
        query["expand"] = [f"data.{CHARGE}"]
    sent = [call.first_sent_at for call in group]
    times = [at for at in sent if at is not None]
    if len(times) == len(sent):
        query["created"] = {"gte": int((min(times) - SKEW).timestamp())}
    return query


def _kind(call: Call) -> str:
    return "refund" if call.tool == "stripe_refund" else "payment_intent"


def _plain(answer: object) -> dict[str, object]:
    """A client object as a plain dict, {} for anything else."""
    to_dict = getattr(answer, "to_dict", None)
    plain = to_dict() if callable(to_dict) else None
    return plain if isinstance(plain, dict) else {}
