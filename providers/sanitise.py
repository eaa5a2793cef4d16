"""Decides what of a provider's text may be stored: cleaned and capped, so that writing a success can never fail on it.

Postgres refuses NUL and lone surrogates, and our hashes refuse NaN and integers beyond ±(2^53 - 1); a provider's answer
may hold any of them, at any length. A receipt that has to be cut is still a receipt: the row is written, a person can look.
"""

from __future__ import annotations

import math
import unicodedata
from collections.abc import Iterable, Mapping

from counterfoil.providers.outcomes import Json

ID_CHARS_MAX = 255
TEXT_CHARS_MAX = 2000
ITEMS_MAX = 100
DEPTH_MAX = 4
EXACT_INT_MAX = 2**53 - 1


def clean_text(value: str, *, chars_max: int = TEXT_CHARS_MAX) -> str:
    """`value` without control characters (tab and newline stay) and lone surrogates, at most `chars_max` characters."""
    kept = (c for c in value[: chars_max * 2] if c in "\t\n" or unicodedata.category(c) not in ("Cc", "Cs"))
    return "".join(kept)[:chars_max]


def clean_id(value: object) -> str | None:
    """A receipt fit to be stored, or None when `value` is not text or nothing of it remains."""
    if not isinstance(value, str):
        return None
    return clean_text(value, chars_max=ID_CHARS_MAX).strip() or None


def clean_token(value: object) -> str | None:
    """An id or a code of a provider's own, which has no blanks; None for anything else, such as a sentence in its place."""
    text = clean_id(value)
    return None if text is None or any(c.isspace() for c in text) else text


def clean_fields(answer: Mapping[str, object], names: Iterable[str]) -> dict[str, Json]:
    """The named fields that `answer` has, each made storable."""
    return {name: clean_json(answer[name]) for name in names if name in answer}


def clean_json(value: object, *, depth: int = 0) -> Json:
    """`value` as storable JSON: unknown types and what is nested deeper than `DEPTH_MAX` become None."""
    match value:
        case None | bool():
            return value
        case int():
            return value if abs(value) <= EXACT_INT_MAX else str(value)[:ID_CHARS_MAX]
        case float():
            return value if math.isfinite(value) else None
        case str():
            return clean_text(value)
        case list() | tuple() if depth < DEPTH_MAX:
            return [clean_json(item, depth=depth + 1) for item in value[:ITEMS_MAX]]
        case Mapping() if depth < DEPTH_MAX:
            items = list(value.items())[:ITEMS_MAX]
            return {clean_text(str(k), chars_max=ID_CHARS_MAX): clean_json(v, depth=depth + 1) for k, v in items}
        case _:
            return None
