"""Decides what became of a call at Stripe: by whole lists and objects; where those fail, by events, then by search.

Only a whole list, or the object itself, can show that nothing happened. Events and searches lag, and Indian accounts have no
search: an object that they lead to is read and judged like any other, and where they lead to none, nothing is known.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import datetime

from counterfoil.providers.contract import OTHER_KEY, Call, Of
from counterfoil.providers.outcomes import Absent, Finding, Found, Many, Rejected, Succeeded, Uncertain, Unknown
from counterfoil.providers.sanitise import clean_token
from counterfoil.providers.stripe.outcomes import (
    CAPTURED_ELSEWHERE,
    UNMARKED,
    amount_received,
    authorization_outcome,
    cancel_outcome,
    capture_outcome,
    charge_outcome,
    error_code,
    found,
    is_ours,
    may_be_ours,
    refund_outcome,
)
from counterfoil.providers.stripe.reads import SKEW, StripeReads
from counterfoil.providers.stripe.shared import SharedLists

RECEIPTS_MAX = 20
OBJECTS_MAX = 5
"""Read of one key: already two are a person's to decide on."""
ON_HOLD = ("stripe_capture", "stripe_cancel")
"""Tools that change the PaymentIntent of an authorisation, and are found by reading it."""
OUTCOMES: Mapping[str, Callable[[Mapping[str, object]], Succeeded | Rejected | Uncertain]] = {
    "stripe_charge": charge_outcome,
    "stripe_authorize": authorization_outcome,
    "stripe_refund": refund_outcome,
}
"""What the status of an object that a tool has made says about it."""
_EVENT_OF_KIND = {"payment_intent": "payment_intent.created", "refund": "refund.created"}
"""The one event that each new object has, in the same request that makes it."""


class StripeLookups:
    """What Stripe says of calls. Raises nothing in `find`."""

    def __init__(self, reads: StripeReads) -> None:
        self._reads = reads
        self._shared = SharedLists(reads, whole=_listed_finding, seen=_finding)

    def find(self, calls: Sequence[Call]) -> dict[str, Finding]:
        """Lists of the account for many calls at once; for what these do not answer one request for each customer, hold or
        charge; for all whose list fails, one list of events and one search.

        Who is throttled asks no further.
        """
        findings, throttled = self._find_together(calls)
        failed: dict[str, tuple[Call, str]] = {}
        for group in _groups([call for call in calls if call.action_id not in findings]):
            if throttled is not None:
                failed |= {call.action_id: (call, throttled) for call in group}
                continue
            try:
                findings |= self._find(group)
            except Exception as exc:  # noqa: BLE001 - a failed look-up is never absence, whatever failed in it
                failed |= {call.action_id: (call, error_code(exc)) for call in group}
                throttled = error_code(exc) if _is_throttle(exc) else None
        made = [] if throttled is not None else [call for call, _ in failed.values() if call.tool in OUTCOMES]
        elsewhere = self._find_elsewhere(made) if made else {}
        return findings | {id_: elsewhere.get(id_, Unknown(code)) for id_, (_, code) in failed.items()}

    def _find_together(self, calls: Sequence[Call]) -> tuple[dict[str, Finding], str | None]:
        """What lists of the account answer, and the code of Stripe's throttle. Whatever else fails in one, says nothing."""
        findings: dict[str, Finding] = {}
        for ask in self._shared.questions(calls):
            try:
                findings |= ask()
            except Exception as exc:  # noqa: BLE001 - each call's own list is asked next
                if _is_throttle(exc):
                    return findings, error_code(exc)
        return findings, None

    def fetch(self, call: Call, receipt: str) -> Finding:
        """The object of this id, where it is the one that the call is about. Raises what the client raises."""
        if call.tool in ON_HOLD:
            seen = self._find([call])[call.action_id]
            return Unknown(OTHER_KEY) if isinstance(seen, Found) and receipt != self.intent_of(call) else seen
        item = self._object(call, receipt)
        return _finding(call, [item]) if is_ours(item, kind=kind_of(call), key=call.key) else Unknown(OTHER_KEY)

    def intent_of(self, call: Call) -> str | None:
        """The PaymentIntent that this call is about: the receipt of `of`, else the one that carries its key."""
        of = call.of
        if of is None or of.receipt:
            return of.receipt if of else None
        if "customer" not in of.arguments:  # a capture: its receipt is all that there is
            return None
        listed = self._reads.payments(of.arguments["customer"], since=None, charges=False)
        matches = [item for item in listed if is_ours(item, kind="payment_intent", key=of.key)]
        return clean_token(matches[0].get("id")) if len(matches) == 1 else None

    def _find(self, group: Sequence[Call]) -> dict[str, Finding]:
        first = group[0]
        if first.of is None:
            charges = first.tool == "stripe_authorize"
            items = self._reads.payments(first.arguments["customer"], since=_since(group), charges=charges)
            return {call.action_id: _listed_finding(call, items) for call in group}
        intent = self.intent_of(first)
        if intent is None:
            return {call.action_id: Unknown("of_unresolved") for call in group}
        if first.tool in ON_HOLD:
            item = self._reads.intent(intent)
            return {call.action_id: _hold_finding(call, item) for call in group}
        items = self._reads.refunds(intent)
        return {call.action_id: _listed_finding(call, items) for call in group}

    def _find_elsewhere(self, calls: Sequence[Call]) -> dict[str, Finding]:
        """By the events since the earliest send, then, for what can be searched, by the index. Never Absent."""
        findings = self._led_to(calls, lambda: self._ids_by_event(calls))
        left = [c for c in calls if c.action_id not in findings and kind_of(c) == "payment_intent"]
        if left:
            findings |= self._led_to(left, lambda: self._reads.ids_by_search([call.key for call in left]))
        return findings

    def _ids_by_event(self, calls: Sequence[Call]) -> Mapping[str, set[str]]:
        timed = [call for call in calls if call.first_sent_at is not None]
        since = _since(timed)
        if since is None:
            return {}
        types = sorted({_EVENT_OF_KIND[kind_of(call)] for call in timed})
        return self._reads.ids_by_event(types, since, [call.key for call in timed])

    def _led_to(self, calls: Sequence[Call], ids: Callable[[], Mapping[str, set[str]]]) -> dict[str, Finding]:
        """The findings for those calls whose objects could be named and read, and carry our key."""
        findings: dict[str, Finding] = {}
        try:
            named = ids()
            for call in calls:
                objects = [self._object(call, object_id) for object_id in sorted(named.get(call.key, ()))[:OBJECTS_MAX]]
                finding = _finding(call, objects)
                if not isinstance(finding, Absent):
                    findings[call.action_id] = finding
        except Exception:  # noqa: BLE001 - what was not found here stays as unknown as it was
            return findings
        return findings

    def _object(self, call: Call, object_id: str) -> dict[str, object]:
        return self._reads.refund(object_id) if kind_of(call) == "refund" else self._reads.intent(object_id)


def _is_throttle(exc: Exception) -> bool:
    return getattr(exc, "http_status", None) == 429


def kind_of(call: Call) -> str:
    """The kind of object that the call makes or changes."""
    return "refund" if call.tool == "stripe_refund" else "payment_intent"


def _listed_finding(call: Call, items: Sequence[Mapping[str, object]]) -> Finding:
    """What a whole list says; where one of it may have lost our key, no further look-up will tell: a person decides."""
    finding = _finding(call, items)
    if not isinstance(finding, Absent) or call.first_sent_at is None:
        return finding
    kind, since = kind_of(call), call.first_sent_at - SKEW
    doubted = any(may_be_ours(item, call, kind=kind, since=since) for item in items)
    return Found(UNMARKED, as_intended=False, unkeyed=True) if doubted else finding


def _finding(call: Call, items: Iterable[Mapping[str, object]]) -> Finding:
    kind = kind_of(call)
    matches = [item for item in items if is_ours(item, kind=kind, key=call.key)]
    if not matches:
        return Absent()
    if len(matches) > 1:
        return Many(tuple(clean_token(item.get("id")) or "" for item in matches[:RECEIPTS_MAX]))
    return found(matches[0], OUTCOMES[call.tool](matches[0]))


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
        unkeyed=not is_capture or outcome == CAPTURED_ELSEWHERE,
    )


def _groups(calls: Sequence[Call]) -> Iterable[list[Call]]:
    """Calls that one request answers: payments of a customer, changes of an authorisation, refunds of a charge."""
    groups: defaultdict[tuple[str, str], list[Call]] = defaultdict(list)
    for call in calls:
        about = call.of.key if isinstance(call.of, Of) else str(call.arguments.get("customer"))
        groups[call.tool, about].append(call)
    return groups.values()


def _since(calls: Sequence[Call]) -> datetime | None:
    """The earliest send; None where one has no time, or there is none."""
    times = [call.first_sent_at for call in calls]
    known = [at for at in times if at is not None]
    return min(known) if known and len(known) == len(times) else None
