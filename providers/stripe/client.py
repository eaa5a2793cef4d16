"""Decides how Stripe is called and asked: one POST an attempt, and look-ups by its lists, which do not lag.

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

from counterfoil.providers.contract import Call, Of
from counterfoil.providers.oneshot import OneShot
from counterfoil.providers.outcomes import Absent, Finding, Many, NotSent, Outcome, Uncertain, Unknown
from counterfoil.providers.sanitise import clean_id
from counterfoil.providers.stripe.config import StripeConfig
from counterfoil.providers.stripe.outcomes import (
    KEY,
    ORDER,
    charge_outcome,
    error_code,
    error_outcome,
    found,
    is_ours,
    refund_outcome,
)

PAGE_SIZE = 100
PAGES_MAX = 20
SKEW = timedelta(minutes=5)
"""Between the ledger's clock and Stripe's."""
RECEIPTS_MAX = 20

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
            try:
                return self._send(call)
            except Exception as exc:  # noqa: BLE001 - judged by the error table, where everything unknown is Uncertain
                if not transport.wrote:
                    return NotSent(f"before_write_{type(exc).__name__}")
                return error_outcome(exc, call, retry_after_cap_s=self._config.retry_after_cap_s)

    def lookup(self, calls: Sequence[Call], *, timeout_s: float) -> Mapping[str, Finding]:
        """One listing for each customer or charge; a list that fails or does not end is Unknown for its calls."""
        findings: dict[str, Finding] = {}
        with self._transport.attempt(timeout_s=timeout_s, writes_max=0):
            for group in _groups(calls):
                findings |= self._look(group)
        return findings

    def _send(self, call: Call) -> Outcome:
        match call.tool:
            case "stripe_charge":
                return self._charge(call)
            case "stripe_refund":
                return self._refund(call)
            case _:
                return NotSent("unknown_tool")

    def _charge(self, call: Call) -> Outcome:
        arguments = call.arguments
        params: dict[str, object] = {
            "amount": arguments["amount_minor"],
            "currency": arguments["currency"],
            "customer": arguments["customer"],
            "payment_method": arguments["payment_method"],
            "confirm": True,
            "off_session": True,
            "metadata": {KEY: call.key, ORDER: arguments["order_id"]},
        }
        if arguments.get("description"):
            params["description"] = arguments["description"]
        if arguments.get("receipt"):
            params["receipt_email"] = arguments["receipt_email"]
        return _answer(self._client.v1.payment_intents.create(params, {"idempotency_key": call.key}), call)

    def _refund(self, call: Call) -> Outcome:
        charge = self._charge_of(call)
        if charge is None:
            return NotSent("of_unresolved")
        arguments = call.arguments
        params: dict[str, object] = {
            "payment_intent": charge,
            "metadata": {KEY: call.key, ORDER: arguments["order_id"]},
        }
        params |= {"amount": arguments["amount_minor"]} if arguments.get("amount_minor") else {}
        params |= {"reason": arguments["reason"]} if arguments.get("reason") else {}
        return _answer(self._client.v1.refunds.create(params, {"idempotency_key": call.key}), call)

    def _charge_of(self, call: Call) -> str | None:
        """The PaymentIntent that this refund is about: its receipt, else the one that carries its key."""
        of = call.of
        if of is None or of.receipt:
            return of.receipt if of else None
        listed = self._list(self._client.v1.payment_intents.list, {"customer": of.arguments["customer"]})
        matches = [item for item in listed if is_ours(item, kind="payment_intent", key=of.key)]
        return clean_id(matches[0].get("id")) if len(matches) == 1 else None

    def _look(self, group: Sequence[Call]) -> dict[str, Finding]:
        first = group[0]
        try:
            if first.tool == "stripe_charge":
                items = self._list(self._client.v1.payment_intents.list, _charge_query(group))
            else:
                charge = self._charge_of(first)
                if charge is None:
                    return {call.action_id: Unknown("of_unresolved") for call in group}
                items = self._list(self._client.v1.refunds.list, {"payment_intent": charge})
        except Exception as exc:  # noqa: BLE001 - a failed look-up is never absence, whatever failed in it
            return {call.action_id: Unknown(error_code(exc)) for call in group}
        return {call.action_id: _finding(call, items) for call in group}

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
    kind = _kind(call)
    if not is_ours(item, kind=kind, key=call.key):
        return Uncertain("malformed", evidence=type(answer).__name__)
    return charge_outcome(item) if kind == "payment_intent" else refund_outcome(item)


def _finding(call: Call, items: Iterable[Mapping[str, object]]) -> Finding:
    kind = _kind(call)
    matches = [item for item in items if is_ours(item, kind=kind, key=call.key)]
    if not matches:
        return Absent()
    if len(matches) > 1:
        return Many(tuple(clean_id(item.get("id")) or "" for item in matches[:RECEIPTS_MAX]))
    return found(matches[0], charge_outcome(matches[0]) if kind == "payment_intent" else refund_outcome(matches[0]))


def _groups(calls: Sequence[Call]) -> Iterable[list[Call]]:
    """Calls that one listing answers: charges of a customer, refunds of a charge."""
    groups: defaultdict[tuple[str, str], list[Call]] = defaultdict(list)
    for call in calls:
        about = call.of.key if isinstance(call.of, Of) else str(call.arguments.get("customer"))
        groups[call.tool, about].append(call)
    return groups.values()


def _charge_query(group: Sequence[Call]) -> dict[str, object]:
    """Since the earliest send; every charge of the customer where one send has no time."""
    query: dict[str, object] = {"customer": group[0].arguments["customer"]}
    sent = [call.first_sent_at for call in group]
    times = [at for at in sent if at is not None]
    if len(times) == len(sent):
        query["created"] = {"gte": int((min(times) - SKEW).timestamp())}
    return query


def _kind(call: Call) -> str:
    return "payment_intent" if call.tool == "stripe_charge" else "refund"


def _plain(answer: object) -> dict[str, object]:
    """A client object as a plain dict, {} for anything else."""
    to_dict = getattr(answer, "to_dict", None)
    plain = to_dict() if callable(to_dict) else None
    return plain if isinstance(plain, dict) else {}
