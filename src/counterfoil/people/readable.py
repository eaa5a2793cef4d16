"""Decides how recorded arguments are told to a person: a line a value, nothing left out, nothing hidden.

Nothing in a value acts on a terminal or can pass for our own words: strings stand in quotes, a text of several lines as
lines that begin with a bar, and every character that is not seen is written out, such as `\\u202e`.
"""

from __future__ import annotations

import json
import re
import unicodedata
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from counterfoil.ledger.canonical import DEPTH_MAX, canonical_json, load_stored
from counterfoil.ledger.errors import ArgumentError
from counterfoil.providers.outcomes import Json

_UNSEEN = frozenset({"Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp"})
"""Control, format (direction overrides among them), surrogates, private, unassigned, line and paragraph separators."""
_CALL_BYTES_MAX = 1_000_000
"""Room for a recorded call: its arguments and its tool."""
_PLAIN_KEY = re.compile(r"[A-Za-z_][A-Za-z0-9_]*", re.ASCII)
_ESCAPES = {"\\": "\\\\", "\t": "\\t", "\r": "\\r", "\n": "\\n"}


@dataclass(frozen=True, slots=True)
class Value:
    """One value: where it stands, such as `items[0].sku`, and its text; a text of several lines has several."""

    name: str
    lines: tuple[str, ...]

    @property
    def text(self) -> str:
        """On one line."""
        return " ".join(self.lines)


def visible(text: str) -> str:
    """The text on one line, with every character that is not seen written out."""
    return "".join(_shown(char) for char in text)


def values_of(arguments: str) -> tuple[Value, ...]:
    """The values of recorded arguments (canonical JSON), in the order of their names."""
    return tuple(_values("", stored(arguments)))


def stored(text: str) -> dict[str, Any]:
    """The recorded object. What no door lets in was written by hand and is never sent: it is told as text, `unreadable`."""
    try:
        value = load_stored(text)
        canonical_json(value, bytes_max=_CALL_BYTES_MAX, depth_max=DEPTH_MAX + 1)
    except (ValueError, ArgumentError):
        return {"unreadable": text}
    return value


def _values(name: str, value: Json) -> Iterator[Value]:
    if isinstance(value, dict) and (value or not name):
        for key, each in value.items():
            plain = _PLAIN_KEY.fullmatch(key) is not None
            place = f"[{_quoted(key)}]" if not plain else f".{key}" if name else key
            yield from _values(f"{name}{place}", each)
    elif isinstance(value, list) and value:
        for index, each in enumerate(value):
            yield from _values(f"{name}[{index}]", each)
    elif isinstance(value, str):
        lines = value.split("\n")
        yield Value(name, (_quoted(value),) if len(lines) == 1 else tuple(f"| {visible(line)}" for line in lines))
    else:
        yield Value(name, (json.dumps(value),))


def _quoted(text: str) -> str:
    return '"' + visible(text).replace('"', '\\"') + '"'


def _shown(char: str) -> str:
    if char in _ESCAPES:
        return _ESCAPES[char]
    if char != " " and unicodedata.category(char) in (*_UNSEEN, "Zs"):
        return f"\\u{ord(char):04x}" if ord(char) < 0x10000 else f"\\U{ord(char):08x}"
    return char
