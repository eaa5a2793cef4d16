"""Decides which of our keys an event names, and which objects; nothing else of it is read, and nothing of it is kept.

An event may hold whatever people wrote at the provider. A name of ours that a stranger has put there makes us look, which
is a read; it proves nothing.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

from counterfoil.providers.jira.outcomes import OPEN_PROPERTY, PROPERTY, UNDO_PROPERTY
from counterfoil.providers.stripe.outcomes import CAPTURE_KEY, KEY

NAMES_MAX = 50
"""Keys, and objects, that are taken from one event; Jira allows fewer labels than that to be useful."""

_KEY = re.compile(r"[0-9a-f]{32}")
_MARK = re.compile(r"cf-([0-9a-f]{32})")
_TARGET = re.compile(r"[A-Za-z0-9_-]{1,80}")


@dataclass(frozen=True, slots=True)
class Named:
    """What an event is about: keys of ours, and objects that rows of ours may go to."""

    keys: tuple[str, ...] = ()
    targets: tuple[str, ...] = ()


def named_in(provider: str, body: bytes) -> Named | None:
    """What the provider's event names; None if it is no JSON object. Never raises, whatever the body is."""
    try:
        event = json.loads(body)
    except (ValueError, RecursionError):
        return None
    if not isinstance(event, dict):
        return None
    keys, targets = _READERS[provider](event)
    return Named(_clean(keys, _KEY), _clean(targets, _TARGET))


def _stripe(event: Mapping[str, object]) -> tuple[list[object], list[object]]:
    """The object's metadata, and the Idempotency-Key of the request that caused the event: a cancellation has no other."""
    metadata = _inside(event, "data", "object", "metadata")
    return [metadata.get(KEY), metadata.get(CAPTURE_KEY), _inside(event, "request").get("idempotency_key")], []


def _zendesk(event: Mapping[str, object]) -> tuple[list[object], list[object]]:
    """`detail` is an event subscription's ticket, `ticket` that of a trigger whose JSON is as our page says."""
    keys: list[object] = []
    targets: list[object] = []
    for place in ("detail", "ticket"):
        ticket = _inside(event, place)
        keys.append(_unmarked(ticket.get("external_id")))
        number = ticket.get("id")
        targets.append(str(number) if isinstance(number, int) else number)
    return keys, targets


def _jira(event: Mapping[str, object]) -> tuple[list[object], list[object]]:
    """The ticket's labels, and its and a comment's properties where Jira was told to send them."""
    issue, comment = _inside(event, "issue"), _inside(event, "comment")
    labels = _inside(issue, "fields").get("labels")
    keys: list[object] = [_unmarked(label) for label in labels] if isinstance(labels, list) else []
    for given in (issue.get("properties"), comment.get("properties")):
        keys += _keys_in_properties(given)
    return keys, [issue.get("key")]


def _keys_in_properties(given: object) -> list[object]:
    """Jira writes properties as an object by name, or as a list of `key` and `value`."""
    named: dict[object, object] = {}
    if isinstance(given, list):
        named = {
            item["key"]: item.get("value")
            for item in given
            if isinstance(item, dict) and isinstance(item.get("key"), str)
        }
    elif isinstance(given, dict):
        named = given
    values = [named.get(name) for name in (PROPERTY, OPEN_PROPERTY, UNDO_PROPERTY)]
    return [value.get("key") for value in values if isinstance(value, Mapping)]


def _unmarked(value: object) -> str | None:
    """The key in a label or external id that we have written."""
    match = _MARK.fullmatch(value) if isinstance(value, str) else None
    return match[1] if match else None


def _inside(value: Mapping[str, object], *names: str) -> Mapping[str, object]:
    """The object below these names; an empty one where there is none."""
    here: object = value
    for name in names:
        here = here.get(name) if isinstance(here, Mapping) else None
    return here if isinstance(here, Mapping) else {}


def _clean(values: Iterable[object], shape: re.Pattern[str]) -> tuple[str, ...]:
    """Each once, in order, of the shape that ours have."""
    good = dict.fromkeys(value for value in values if isinstance(value, str) and shape.fullmatch(value))
    return tuple(good)[:NAMES_MAX]


_READERS: Mapping[str, Callable[[Mapping[str, object]], tuple[list[object], list[object]]]] = {
    "stripe": _stripe,
    "zendesk": _zendesk,
    "jira": _jira,
}
