"""Decides what an HTTP API's answers prove, by the tool's own table of statuses and pointers. No client is imported here."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence

from counterfoil.providers.contract import OTHER_KEY, Call
from counterfoil.providers.outcomes import Absent, Finding, Found, Json, Many, Rejected, Succeeded, Uncertain, Unknown
from counterfoil.providers.sanitise import clean_id, clean_json
from counterfoil.providers.transport import REFUSALS, classify_status
from counterfoil.settings_http import HttpLookup, HttpTool

RECEIPTS_MAX = 20
ITEMS_MAX = 1000
_NOT_DONE = Uncertain("not_done_yet")
"""The object is there, and shows by its status that the call has not taken effect."""


def answered(
    tool: HttpTool, call: Call, status: int, body: bytes, *, wait_s: float | None
) -> Succeeded | Rejected | Uncertain:
    """What the answer to the call's own request proves."""
    evidence = f"HTTP {status}"
    if status in tool.mismatch:
        return Uncertain("idempotency_mismatch", evidence=evidence)
    if status in tool.in_flight:
        return Uncertain("idempotency_key_in_use", evidence=evidence)
    if is_page(body) and status != 429 and status in (*tool.retryable, *tool.refused):
        return Uncertain(f"http_{status}", evidence=evidence)
    if status in tool.retryable:
        return Rejected("rate_limited" if status == 429 else f"http_{status}", retryable=True, retry_after_s=wait_s)
    if status in tool.refused:
        # A 412 was no condition of ours: no version is sent.
        return Rejected(f"http_{status}" if status == 412 else REFUSALS.get(status, f"http_{status}"))
    if status not in tool.success:
        known = classify_status(status)
        return known if isinstance(known, Uncertain) else Uncertain(f"http_{status}", evidence=evidence)
    if status == 204:
        receipt = call.of.receipt if call.of is not None else None
        return Succeeded(receipt) if receipt is not None and not body else Uncertain("malformed", evidence=evidence)
    return outcome_of(tool, parsed(body))


def outcome_of(tool: HttpTool, item: object) -> Succeeded | Rejected | Uncertain:
    """What one object of the API shows: its status decides, where the tool has one; its presence alone otherwise."""
    receipt = receipt_of(tool, item)
    if not isinstance(item, Mapping) or receipt is None:
        return Uncertain("malformed", evidence=type(item).__name__)
    if tool.status_field is not None:
        status = at(item, tool.status_field)
        if status in tool.failed:
            return Rejected("failed")
        if tool.lookup is not None and status in tool.lookup.not_done:
            return _NOT_DONE
        if status not in tool.done:
            return Uncertain("unknown_status")
    return Succeeded(receipt, {name: clean_json(at(item, pointer)) for name, pointer in tool.result.items()})


def found(
    tool: HttpTool, lookup: HttpLookup, call: Call, status: int, body: bytes, *, named: str | None = None
) -> Finding:
    """What the answer to a look-up proves; whatever is not complete and of the declared shape proves nothing. Of several
    objects that are the call's, the one with the receipt `named` is meant."""
    answer = parsed(body)
    if lookup.items is None:
        if status in lookup.absent and isinstance(answer, Mapping):
            return Absent()
        if status != 200 or not isinstance(answer, Mapping):
            return Unknown(f"http_{status}" if status != 200 else "malformed")
        if lookup.key_field is not None and not carries(answer, lookup.key_field, call.key):
            return Unknown(OTHER_KEY)
        return finding_of(tool, lookup, call, answer)
    items = at(answer, lookup.items)
    if status != 200 or not isinstance(items, list) or len(items) > ITEMS_MAX:
        return Unknown(f"http_{status}" if status != 200 else "malformed")
    if not items:
        goes_on = lookup.more is not None and bool(at(answer, lookup.more))
        return Unknown("incomplete") if goes_on else Absent()
    ours = [item for item in items if carries(item, lookup.key_field or "", call.key)]
    if named is not None and len(ours) > 1:
        ours = [item for item in ours if receipt_of(tool, item) == named]
    match ours:
        case []:  # nothing is of that receipt, or the filter was ignored: what is further down the list, nobody knows
            return Unknown(OTHER_KEY)
        case [one]:
            return finding_of(tool, lookup, call, one)
        case _:
            return Many(tuple(receipt_of(tool, item) or "" for item in ours[:RECEIPTS_MAX]))


def finding_of(tool: HttpTool, lookup: HttpLookup, call: Call, item: object) -> Finding:
    """The finding for the one object that is the call's. Without our key on it, it is known by the receipt of what is
    undone: where that went elsewhere, the object of that name here is another."""
    outcome = outcome_of(tool, item)
    if outcome is _NOT_DONE:
        return Absent()
    if isinstance(outcome, Uncertain) and outcome.code == "malformed":
        return Unknown("malformed")
    as_intended = all(_same(at(item, pointer), call.arguments.get(name)) for name, pointer in lookup.match.items())
    is_known = lookup.key_field is not None or call.of is None or not call.of.elsewhere
    return Found(
        outcome, as_intended=as_intended and is_known, unkeyed=lookup.key_field is None and call.of is not None
    )


def carries(item: object, pointer: str, key: str) -> bool:
    """The object shows our key there, as it is or as the header quotes it."""
    return bool(key) and at(item, pointer) in (key, f'"{key}"')


def receipt_of(tool: HttpTool, item: object) -> str | None:
    """The object's id as text; None where there is none to keep."""
    value = at(item, tool.receipt)
    return clean_id(str(value) if isinstance(value, int) and not isinstance(value, bool) else value)


def at(document: object, pointer: str) -> object:
    """What is at the JSON pointer (RFC 6901); None where nothing is."""
    for part in pointer.split("/")[1:]:
        name = part.replace("~1", "/").replace("~0", "~")
        if isinstance(document, Mapping):
            document = document.get(name)
        elif isinstance(document, Sequence) and not isinstance(document, str) and name.isascii() and name.isdigit():
            index = int(name[:6])
            document = document[index] if index < len(document) else None
        else:
            return None
    return document


def parsed(body: bytes) -> object:
    """The body as JSON; None for anything else, which no shape takes."""
    try:
        parsed: object = json.loads(body)
    except (ValueError, RecursionError):
        return None
    return parsed


def is_page(body: bytes) -> bool:
    """HTML, which no API of JSON writes: a gateway's own, perhaps in the place of the API's answer."""
    return body[:1000].removeprefix(b"\xef\xbb\xbf").lstrip().startswith(b"<")


def _same(shown: object, meant: Json) -> bool:
    return type(shown) is type(meant) and shown == meant
