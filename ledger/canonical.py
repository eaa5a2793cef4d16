"""Decides which values may be arguments, and the one text under which they are stored, hashed and shown.

The text is RFC 8785 (JSON Canonicalization Scheme). A hash is taken over the stored text and never over a text that was
made again: 1e20 is stored as `100000000000000000000`, which reads back as an integer that the door would refuse.

Numbers are JSON numbers: `1` and `1.0` are one value and one text (`1`), and so are `0` and `-0.0`; `"1"` and `true`
are other values with other texts. Whatever tells them apart further is the tool's argument model, which is strict.
"""

from __future__ import annotations

import hashlib
import json
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import rfc8785

from counterfoil.ledger.errors import ArgumentError

BYTES_MAX = 65_536
"""64 KiB of UTF-8: more than any sane tool call, and small enough to hash, store and show without a thought."""

DEPTH_MAX = 32
"""Containers inside containers; deeper is a mistake or an attack on a recursive reader."""

INTEGER_MAX = 2**53 - 1
"""The largest integer that every JSON reader keeps exactly (I-JSON); beyond it, send a string."""

_INTEGER_DIGITS_MAX = 17
_INTEGER_REFUSED = ("integer_out_of_range", "beyond ±(2^53-1); send it as a string")
_KEY_SHOWN_MAX = 40
_PLAIN_KEY = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,63}", re.ASCII)
_STRING_OR_BRACKET = re.compile(r'"(?:[^"\\]++|\\.)*+"?|[\[\]{}]', re.DOTALL)


def canonical_json(value: object, *, bytes_max: int = BYTES_MAX, depth_max: int = DEPTH_MAX) -> str:
    """The RFC 8785 text of `value`; equal values give equal texts, whatever the order of their keys.

    Accepts exactly None, bool, int, float, str, list and dict with string keys: no subclass, tuple, Decimal or date.
    Raises `ArgumentError` whose `path` names the place and whose `code` is one of `not_json`, `key_not_string`,
    `not_finite`, `integer_out_of_range`, `nul`, `lone_surrogate`, `too_deep`, `too_large`. No message holds a value.
    The work is bounded by the limits, not by the input.
    """
    _Door(bytes_max, depth_max).check(value, "$", 1)
    text = rfc8785.dumps(value).decode()  # type: ignore[arg-type]  # the door let only JSON through
    if len(text.encode()) > bytes_max:
        raise _refusal("$", "too_large", f"more than {bytes_max} bytes as JSON")
    return text


def parse_arguments(
    raw: str | bytes | Mapping[str, Any], *, bytes_max: int = BYTES_MAX, depth_max: int = DEPTH_MAX
) -> dict[str, Any]:
    """The arguments of one call, from a model's JSON text or from code, refused at the door as `canonical_json` does.

    Text may be at most `bytes_max` bytes, white space included. Codes beside those of `canonical_json`: `invalid_json`,
    `not_an_object`, and `duplicate_key`, since readers differ on which of two equal keys counts.
    """
    value = _read(raw, bytes_max, depth_max) if isinstance(raw, str | bytes) else raw
    if isinstance(value, Mapping):
        value = dict(value)
    _Door(bytes_max, depth_max).check(value, "$", 1)
    if not isinstance(value, dict):
        raise _refusal("$", "not_an_object", "arguments are a JSON object")
    return value


def load_stored(text: str) -> dict[str, Any]:
    """Reads back the text that `canonical_json` made of arguments, with equal values.

    An integer beyond the door's range can only have been a float, so it becomes that float again. Raises `ValueError` for
    what is no JSON object, or too deep to read.
    """
    try:
        value = json.loads(text, parse_int=_stored_integer)
    except RecursionError:
        raise ValueError("stored arguments are not that deep") from None
    if not isinstance(value, dict):
        raise ValueError("stored arguments are a JSON object")
    return value


def sha256_of(text: str) -> str:
    """64 hex digits over the UTF-8 bytes of exactly this text."""
    return hashlib.sha256(text.encode()).hexdigest()


@dataclass(frozen=True, slots=True)
class _Refused:
    """Stands where the JSON reader met something that the door refuses, so that the refusal can name the path."""

    code: str
    message: str
    key: str | None = None


class _Door:
    """Walks one value, keeps a lower bound of its size, and refuses the first thing that is not plain JSON."""

    def __init__(self, bytes_max: int, depth_max: int) -> None:
        self.bytes_max = bytes_max
        self.depth_max = depth_max
        self.bytes_seen = 0

    def check(self, value: object, path: str, depth: int) -> None:
        """Recursion is bounded by `depth_max`, width by `bytes_max`: every element costs at least a byte."""
        self.count(1, path)
        if value is None or type(value) is bool:
            return
        if type(value) is str:
            self.check_text(value, path)
        elif type(value) is int:
            if not -INTEGER_MAX <= value <= INTEGER_MAX:
                raise _refusal(path, *_INTEGER_REFUSED)
        elif type(value) is float:
            if not math.isfinite(value):
                raise _refusal(path, "not_finite", "NaN and Infinity are not JSON")
        elif type(value) is list or type(value) is dict:
            if depth > self.depth_max:
                raise _refusal(path, "too_deep", f"more than {self.depth_max} levels")
            self.check_container(value, path, depth)
        elif isinstance(value, _Refused):
            raise _refusal(path if value.key is None else path + _place(value.key), value.code, value.message)
        else:
            raise _refusal(path, "not_json", f"{type(value).__name__} is not a JSON type")

    def check_container(self, value: list[object] | dict[object, object], path: str, depth: int) -> None:
        if isinstance(value, list):
            for index, item in enumerate(value):
                self.check(item, f"{path}[{index}]", depth + 1)
            return
        for key, item in value.items():
            if type(key) is not str:
                raise _refusal(path, "key_not_string", f"a key is {type(key).__name__}, not a string")
            place = path + _place(key)
            self.check_text(key, place)
            self.check(item, place, depth + 1)

    def check_text(self, text: str, path: str) -> None:
        self.count(len(text), path)
        if "\0" in text:
            raise _refusal(path, "nul", "holds a NUL character")
        if not text.isascii() and any("\ud800" <= char <= "\udfff" for char in text):
            raise _refusal(path, "lone_surrogate", "holds half of a surrogate pair, which is not a character")

    def count(self, size: int, path: str) -> None:
        self.bytes_seen += size
        if self.bytes_seen > self.bytes_max:
            raise _refusal(path, "too_large", f"the arguments pass {self.bytes_max} bytes here")


def _read(raw: str | bytes, bytes_max: int, depth_max: int) -> object:
    if len(raw) > bytes_max:
        raise _refusal("$", "too_large", f"more than {bytes_max} bytes")
    try:
        text = raw.decode() if isinstance(raw, bytes) else raw
    except UnicodeDecodeError:
        problem = "not UTF-8"
    else:
        # Before the parser, which recurses: its own limit depends on the process, and a raised one ends in a crash.
        if _depth(text) > depth_max:
            raise _refusal("$", "too_deep", f"more than {depth_max} levels")
        try:
            return json.loads(text, object_pairs_hook=_object, parse_int=_integer)
        except json.JSONDecodeError as error:
            problem = f"{error.msg} at line {error.lineno} column {error.colno}"
    # Outside the handlers: their exceptions hold the whole text, and arguments go to no log.
    raise _refusal("$", "invalid_json", f"not valid JSON: {problem}")


def _depth(text: str) -> int:
    deepest = depth = 0
    for token in _STRING_OR_BRACKET.finditer(text):
        if token[0] in "[{":
            depth += 1
            deepest = max(deepest, depth)
        elif token[0] in "]}":
            depth -= 1
    return deepest


def _object(pairs: list[tuple[str, object]]) -> dict[str, object] | _Refused:
    members = dict(pairs)
    if len(members) == len(pairs):
        return members
    seen: set[str] = set()
    repeated = next(key for key, _ in pairs if key in seen or seen.add(key))  # type: ignore[func-returns-value]
    return _Refused("duplicate_key", "the key appears twice", repeated)


def _integer(digits: str) -> int | _Refused:
    if len(digits) > _INTEGER_DIGITS_MAX:
        return _Refused(*_INTEGER_REFUSED)
    return int(digits)


def _stored_integer(digits: str) -> int | float:
    value = int(digits)
    return value if -INTEGER_MAX <= value <= INTEGER_MAX else float(digits)


def _place(key: str) -> str:
    """One step of a path, always short printable ASCII, whatever the key holds."""
    if _PLAIN_KEY.fullmatch(key):
        return f".{key}"
    return f"[{json.dumps(key[:_KEY_SHOWN_MAX])}]"


def _refusal(path: str, code: str, message: str) -> ArgumentError:
    return ArgumentError(message, path=path, code=code)
