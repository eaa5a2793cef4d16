"""Decides whether two attempts go to the same place: a keyed digest of the address, login and secrets of a client's config.

What was sent to one place can be found out, and repeated under its key, at no other: an empty look-up there proves nothing,
and a repeat is a second effect. Whoever replaces a secret by another account's, changes an address, or rewrites the table of
an HTTP tool, changes the place. A secret that was rotated within one account does, too: nobody can tell the two apart.
"""

from __future__ import annotations

import hmac
import json
from collections.abc import Iterator, Mapping
from dataclasses import MISSING, Field, fields, is_dataclass
from hashlib import sha256
from typing import Any, Protocol, runtime_checkable

REACH_CHARS = 16
MOVED = "credentials_changed"
"""The code of a row that was sent elsewhere than where one could ask, or repeat, now."""
TUNING = frozenset(
    {
        *("timeout_s", "retry_after_cap_s", "read_lag_s"),
        *("staging_transition", "staging_status", "queue_status"),
        *("sender", "messaging_service", "reference", "target_arn", "role_arn"),
    }
)
"""Fields of configs that say how, and not where or as whom."""
ADDRESSES = frozenset({"server", "base_url"})
"""With or without a slash at the end they are the same place."""


@runtime_checkable
class Reaching(Protocol):
    """A config that says itself what a tool's requests depend on."""

    def reach_of(self, tool: str) -> tuple[Mapping[str, object], Mapping[str, object]]:
        """The place, which all its tools share, and what else makes this tool's requests; values that JSON can hold."""
        ...


def reach_of(config: object, tool: str, secret: bytes) -> str:
    """16 hex digits that tell nothing of what they were made of, and 16 more where a tool's requests are made of its own
    table; "" where there is no config, as for a person's function."""
    if config is None:
        return ""
    if isinstance(config, Reaching):
        place, more = config.reach_of(tool)
        return _digest(place, secret) + _digest(more, secret)
    return _digest(dict(_parts(config)), secret)


def is_elsewhere(one: str | None, other: str | None) -> bool:
    """Whether the two are surely not of one place; the tools may differ."""
    return bool(one and other) and str(one)[:REACH_CHARS] != str(other)[:REACH_CHARS]


def _digest(parts: Mapping[str, object], secret: bytes) -> str:
    text = json.dumps(["cf1-reach", parts], sort_keys=True, ensure_ascii=True)
    return hmac.new(secret, text.encode(), sha256).hexdigest()[:REACH_CHARS]


def _parts(config: Any) -> Iterator[tuple[str, object]]:
    """What is given, and is not tuning. Not what is as by default: a later version may have more fields, and every action
    that is in doubt while it is installed would seem to have gone elsewhere."""
    for each in fields(config):
        value = getattr(config, each.name)
        if isinstance(value, str) and each.name in ADDRESSES:
            value = value.rstrip("/")
        if each.name not in TUNING and value != _default(each):
            yield each.name, dict(_parts(value)) if is_dataclass(value) else value


def _default(each: Field[Any]) -> object:
    default = each.default if each.default_factory is MISSING else each.default_factory()
    return default.rstrip("/") if isinstance(default, str) and each.name in ADDRESSES else default
