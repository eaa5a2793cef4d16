"""What a person's own function proves: its return value, its exception and its look-up, as outcome and finding.

The function makes one request per call and leaves retries and redirects of its client off: a refused second request
would say nothing about the first.
"""

from __future__ import annotations

import inspect
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import assert_never, cast

from pydantic import BaseModel

from counterfoil.providers.contract import OTHER_KEY, Call, Of
from counterfoil.providers.coroutines import CoroutineTimeout, called
from counterfoil.providers.outcomes import (
    VERSION_CHARS_MAX,
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
    Version,
)
from counterfoil.providers.sanitise import clean_fields, clean_id, clean_text
from counterfoil.providers.spec import ToolSpec
from counterfoil.providers.transport import EVIDENCE_CHARS_MAX, classify_exception, classify_status, retry_after_of

LOOKUP_INJECTED = frozenset({"key", "of", "sent_at"})
CODE_CHARS_MAX = 64
RETRY_AFTER_CAP_S = 900.0
RECEIPTS_MAX = 20


class FunctionAdapter:
    """Runs one tool's own function, and its look-up. A plain function's time limits are its own: `timeout_s` binds nothing
    there. A coroutine is cancelled after it."""

    def __init__(self, spec: ToolSpec) -> None:
        self._spec = spec

    def send(self, call: Call, *, timeout_s: float) -> Outcome:
        """Calls the function once. Never raises for an answer."""
        try:
            arguments = self._spec.bind(call.arguments)
            injected = self._injected(call)
        except Exception as exc:  # noqa: BLE001 - recorded arguments that this process cannot read: nothing was sent yet
            return NotSent(f"bind_{type(exc).__name__}")
        try:
            answer = called(self._spec.function, {**arguments, **injected}, timeout_s=timeout_s)
        except CoroutineTimeout:
            return Uncertain("read_timeout", evidence="CoroutineTimeout")
        except Exception as exc:  # noqa: BLE001 - whatever a tool's code raises is evidence, and by default it proves nothing
            return outcome_of_exception(exc)
        return self._outcome_of(answer)

    def lookup(self, calls: Sequence[Call], *, timeout_s: float) -> Mapping[str, Finding]:
        """Asks for each call in turn; a look-up that raises is Unknown."""
        return {call.action_id: self._ask(call, timeout_s) for call in calls}

    def fetch(self, call: Call, receipt: str, *, timeout_s: float) -> Finding | None:
        """Looks up what happened under the call's key, and takes the one of that receipt, of several too."""
        lookup = self._spec.lookup
        if not callable(lookup):
            return None
        answer = called(lookup, self._lookup_arguments(lookup, call), timeout_s=timeout_s)
        several = list(cast("Sequence[object]", answer)) if isinstance(answer, list | tuple) else None
        if several:
            answer = next((item for item in several if self._receipt_of(item) == receipt), several)
        finding = self._finding_of(answer)
        match finding:
            case Found(Succeeded(found)) if found != receipt:
                return Unknown(OTHER_KEY)
            case Many(receipts):
                return Found(Succeeded(receipt)) if receipt in receipts and not several else Unknown(OTHER_KEY)
            case _:
                return finding

    def version(self, call: Call, *, timeout_s: float) -> Reading:
        """What the declared function reads: text or an integer. None, anything else and an exception are unreadable.

        So is an answer that took longer than `timeout_s`: what it says may be old by now.
        """
        read, until_s = self._spec.resource_version, time.monotonic() + timeout_s
        if not callable(read):
            return Unreadable("no_version")
        try:
            answer = called(read, self._version_arguments(read, call), timeout_s=timeout_s)
        except Exception as exc:  # noqa: BLE001 - a failed reading is no version, whatever failed in it
            return Unreadable(_code(type(exc).__name__))
        return version_of(answer) if time.monotonic() <= until_s else Unreadable("read_timeout")

    def _injected(self, call: Call) -> dict[str, object]:
        injected: dict[str, object] = {"key": call.key} if self._spec.takes_key else {}
        injected |= {"expected_version": call.expected_version} if self._spec.takes_version else {}
        if self._spec.takes_of:
            if call.of is None:
                raise ValueError("a counter-action without the action that it is about")
            injected["of"] = call.of if self._spec.of_annotation is Of else call.of.key
        return injected

    def _outcome_of(self, answer: object) -> Outcome:
        if isinstance(answer, Succeeded | Rejected | NotSent | Uncertain):
            return clean_outcome(answer)
        if isinstance(answer, BaseModel):
            answer = answer.model_dump(mode="json")
        if isinstance(answer, Mapping):
            receipt = clean_id(answer.get(self._spec.receipt))
            if receipt is not None:
                return Succeeded(receipt, clean_fields(answer, self._spec.result_fields))
        return Uncertain("no_receipt", evidence=type(answer).__name__)

    def _ask(self, call: Call, timeout_s: float) -> Finding:
        lookup = self._spec.lookup
        if not callable(lookup):
            return Unknown("no_lookup")
        try:
            return self._finding_of(called(lookup, self._lookup_arguments(lookup, call), timeout_s=timeout_s))
        except Exception as exc:  # noqa: BLE001 - a failed look-up proves nothing, whatever failed in it
            return Unknown(type(exc).__name__)

    def _lookup_arguments(self, lookup: Callable[..., object], call: Call) -> dict[str, object]:
        offered: dict[str, object] = {"key": call.key, "sent_at": call.first_sent_at}
        if call.of is not None:
            offered["of"] = call.of if self._spec.of_annotation is Of else call.of.key
        wanted = inspect.signature(lookup).parameters
        if any(name in wanted for name in self._spec.arguments.names):
            offered = {**self._spec.bind(call.arguments), **offered}
        return {name: value for name, value in offered.items() if name in wanted}

    def _version_arguments(self, read: Callable[..., object], call: Call) -> dict[str, object]:
        offered: dict[str, object] = self._spec.bind(call.arguments)
        if call.of is not None:
            offered["of"] = call.of if self._spec.of_annotation is Of else call.of.key
        wanted = inspect.signature(read).parameters
        return {name: value for name, value in offered.items() if name in wanted}

    def _finding_of(self, answer: object) -> Finding:
        if answer is None or isinstance(answer, Absent):
            return Absent()
        if isinstance(answer, Unknown):
            return Unknown(_code(answer.code))
        if isinstance(answer, Found):
            if answer.created_at is not None and answer.created_at.tzinfo is None:
                return Unknown("no_time_zone")
            outcome = clean_outcome(answer.outcome)
            return Unknown("not_sent") if isinstance(outcome, NotSent) else replace(answer, outcome=outcome)
        if isinstance(answer, Many):
            return Many(tuple(clean_id(receipt) or "unknown" for receipt in answer.receipts[:RECEIPTS_MAX]))
        if isinstance(answer, list | tuple):
            items = cast("Sequence[object]", answer)
            if not items:
                return Absent()
            if len(items) > 1:
                return Many(tuple(self._receipt_of(item) for item in items[:RECEIPTS_MAX]))
            answer = items[0]
        outcome = self._outcome_of(answer)
        if isinstance(outcome, NotSent):
            return Unknown("not_sent")
        return Found(outcome)

    def _receipt_of(self, item: object) -> str:
        outcome = self._outcome_of(item)
        return outcome.id if isinstance(outcome, Succeeded) else "unknown"


def version_of(answer: object) -> Reading:
    """A function's answer as a version. What would have to be cut or cleaned is none: two versions could become equal."""
    if isinstance(answer, int) and not isinstance(answer, bool) and abs(answer) < 10**VERSION_CHARS_MAX:
        answer = str(answer)
    if not isinstance(answer, str):
        return Unreadable("no_version" if answer is None else "not_a_version")
    if not answer or len(answer) > VERSION_CHARS_MAX or clean_text(answer, chars_max=VERSION_CHARS_MAX) != answer:
        return Unreadable("not_a_version")
    return Version(answer)


def outcome_of_exception(exc: Exception) -> Outcome:
    """An exception with an HTTP reply (requests, httpx) is judged by its status, any other by the transport table."""
    reply = getattr(exc, "response", None)
    status = getattr(reply, "status_code", None)
    if not isinstance(status, int):
        return classify_exception(exc)
    if getattr(reply, "history", None):
        return Uncertain("redirected", evidence=f"HTTP {status} after a redirect")
    headers = getattr(reply, "headers", None)
    wait_s = retry_after_of(headers, cap_s=RETRY_AFTER_CAP_S) if isinstance(headers, Mapping) else None
    return classify_status(status, retry_after_s=wait_s)


def clean_outcome(outcome: Outcome) -> Outcome:
    """An outcome that the function built itself, storable like any other."""
    match outcome:
        case Succeeded():
            receipt = clean_id(outcome.id)
            if receipt is None:
                return Uncertain("no_receipt", evidence="Succeeded")
            return Succeeded(receipt, clean_fields(outcome.fields, outcome.fields))
        case Uncertain():
            return Uncertain(_code(outcome.code), evidence=clean_text(outcome.evidence, chars_max=EVIDENCE_CHARS_MAX))
        case NotSent():
            return replace(outcome, code=_code(outcome.code))
        case Rejected():
            field = clean_text(str(outcome.field), chars_max=CODE_CHARS_MAX) if outcome.field else None
            return replace(outcome, code=_code(outcome.code), field=field)
    assert_never(outcome)


def _code(code: str) -> str:
    return clean_text(code, chars_max=CODE_CHARS_MAX) or "unnamed"
