"""The door for arguments: what is refused and where, and that equal values have one text and one hash."""

from __future__ import annotations

import json
import math
from collections import OrderedDict
from collections.abc import Callable
from datetime import UTC, datetime
from decimal import Decimal
from enum import IntEnum, StrEnum
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from counterfoil.ledger.canonical import (
    BYTES_MAX,
    DEPTH_MAX,
    INTEGER_MAX,
    canonical_json,
    load_stored,
    parse_arguments,
    sha256_of,
)
from counterfoil.ledger.errors import ArgumentError


class _Word(StrEnum):
    A = "a"


class _Number(IntEnum):
    ONE = 1


def _names(refusals: list[tuple[Any, str | None, str]]) -> list[str]:
    return [f"{number}-{code}" for number, (_, _, code) in enumerate(refusals)]


def nested(depth: int) -> Any:
    value: Any = 1
    for _ in range(depth):
        value = [value]
    return value


def cyclic() -> Any:
    value: dict[str, Any] = {}
    value["self"] = value
    return value


REFUSED_VALUES: list[tuple[Any, str | None, str]] = [
    ({"a": math.nan}, "$.a", "not_finite"),
    ({"a": {"b": [1, 2, math.inf]}}, "$.a.b[2]", "not_finite"),
    ({"a": -math.inf}, "$.a", "not_finite"),
    ({"a": INTEGER_MAX + 1}, "$.a", "integer_out_of_range"),
    ({"a": -INTEGER_MAX - 1}, "$.a", "integer_out_of_range"),
    ({"a": 10**5000}, "$.a", "integer_out_of_range"),
    ({"a": "x\0y"}, "$.a", "nul"),
    ({"a": {"\0": 1}}, '$.a["\\u0000"]', "nul"),
    ({"a": "\ud800"}, "$.a", "lone_surrogate"),
    ({"a": "\udc00\ud800"}, "$.a", "lone_surrogate"),
    ({"\udfff": 1}, '$["\\udfff"]', "lone_surrogate"),
    ({"a": Decimal("1")}, "$.a", "not_json"),
    ({"a": datetime(2026, 1, 1, tzinfo=UTC)}, "$.a", "not_json"),
    ({"a": b"x"}, "$.a", "not_json"),
    ({"a": {1}}, "$.a", "not_json"),
    ({"a": (1, 2)}, "$.a", "not_json"),
    ({"a": OrderedDict()}, "$.a", "not_json"),
    ({"a": _Word.A}, "$.a", "not_json"),
    ({"a": _Number.ONE}, "$.a", "not_json"),
    ({"a": object()}, "$.a", "not_json"),
    ({1: 1}, "$", "key_not_string"),
    ({"a": {None: 1}}, "$.a", "key_not_string"),
    ({_Word.A: 1}, "$", "key_not_string"),
    ({"a": "x" * 1_000_000}, "$.a", "too_large"),
    ({"a": [0] * 1_000_000}, None, "too_large"),
    ({"a": nested(2000)}, "$.a" + "[0]" * (DEPTH_MAX - 1), "too_deep"),
    (cyclic(), "$" + ".self" * DEPTH_MAX, "too_deep"),
]


@pytest.mark.case("H1")
@pytest.mark.case("H4")
@pytest.mark.parametrize("door", [canonical_json, parse_arguments])
@pytest.mark.parametrize(("value", "path", "code"), REFUSED_VALUES, ids=_names(REFUSED_VALUES))
def test_a_value_that_is_not_plain_json_is_refused_with_its_path(
    door: Callable[[Any], object], value: Any, path: str | None, code: str
) -> None:
    """Whatever is not plain, bounded JSON is refused with the field's path and a stable code."""
    with pytest.raises(ArgumentError) as refused:
        door(value)
    assert refused.value.code == code
    if path is not None:
        assert refused.value.path == path


REFUSED_TEXTS: list[tuple[Any, str | None, str]] = [
    ('{"a": NaN}', "$.a", "not_finite"),
    ('{"a": [0, -Infinity]}', "$.a[1]", "not_finite"),
    ('{"a": 1e999}', "$.a", "not_finite"),
    ('{"a": 9007199254740992}', "$.a", "integer_out_of_range"),
    ('{"a": -9007199254740992}', "$.a", "integer_out_of_range"),
    ('{"a": ' + "9" * 5000 + "}", "$.a", "integer_out_of_range"),
    ('{"a": "x\\u0000"}', "$.a", "nul"),
    ('{"a": "\\ud800"}', "$.a", "lone_surrogate"),
    ('{"a": "\ud800"}', "$.a", "lone_surrogate"),
    ('{"a": 1, "b": 2, "a": 1}', "$.a", "duplicate_key"),
    ('{"x": [{"a": 1, "\\u0061": 2}]}', "$.x[0].a", "duplicate_key"),
    ("[" * 2000 + "]" * 2000, "$", "too_deep"),
    ('{"a":' * 2000 + "1" + "}" * 2000, "$", "too_deep"),
    ("[" * BYTES_MAX, "$", "too_deep"),
    (" " * 1_000_000 + "{}", "$", "too_large"),
    ("", "$", "invalid_json"),
    ('{"a": 1,}', "$", "invalid_json"),
    ('{"a": "unfinished \\', "$", "invalid_json"),
    ("{'a': 1}", "$", "invalid_json"),
    ("\ufeff{}", "$", "invalid_json"),
    (b'{"a": "\xff"}', "$", "invalid_json"),
    ("[1]", "$", "not_an_object"),
    ("null", "$", "not_an_object"),
    ('"{}"', "$", "not_an_object"),
]


@pytest.mark.case("H4")
@pytest.mark.parametrize(("raw", "path", "code"), REFUSED_TEXTS, ids=_names(REFUSED_TEXTS))
def test_a_models_text_is_refused_with_its_path(raw: str | bytes, path: str, code: str) -> None:
    """A model's JSON text is refused for the same reasons, and for repeated keys, never with another exception."""
    with pytest.raises(ArgumentError) as refused:
        parse_arguments(raw)
    assert (refused.value.path, refused.value.code) == (path, code)


def test_brackets_inside_strings_are_not_depth() -> None:
    """Only real containers count as depth."""
    assert parse_arguments('{"a": "' + "[" * 500 + '\\"{"}') == {"a": "[" * 500 + '"{'}


def test_exactly_the_limits_are_accepted() -> None:
    """The last allowed size, depth and integer pass; one more is refused."""
    assert len(canonical_json("x" * (BYTES_MAX - 2))) == BYTES_MAX
    canonical_json(nested(DEPTH_MAX))
    canonical_json([INTEGER_MAX, -INTEGER_MAX])
    with pytest.raises(ArgumentError, match="bytes"):
        canonical_json("x" * (BYTES_MAX - 1))
    with pytest.raises(ArgumentError, match="bytes"):
        canonical_json("é" * (BYTES_MAX // 2))
    with pytest.raises(ArgumentError, match="levels"):
        canonical_json(nested(DEPTH_MAX + 1))


def test_a_refusal_never_shows_a_value() -> None:
    """Neither the message nor any chained exception holds an argument's value."""
    for raw in ('{"card": "4242424242424242", "x": NaN}', '{"card": "4242424242424242"', b'{"card": "4242\xff"}'):
        with pytest.raises(ArgumentError) as refused:
            parse_arguments(raw)
        assert "4242" not in str(refused.value)
        assert refused.value.__context__ is None


@pytest.mark.case("H2")
@pytest.mark.parametrize("number", ["1e20", "-0.0", "1.0", "1e-7", "9007199254740993.0"])
def test_the_hash_over_stored_text_is_stable(number: str) -> None:
    """The hash at claim equals the hash approved, because both are over the stored text and nothing is made again."""
    text = canonical_json(parse_arguments('{"a": ' + number + "}"))
    approved = sha256_of(text)
    stored = text.encode().decode()
    load_stored(stored)
    assert sha256_of(stored) == approved


@pytest.mark.case("H2")
def test_making_the_text_again_would_not_be_safe() -> None:
    """Why the rule exists: 1e20 reads back from its text as an integer that the door refuses."""
    text = canonical_json({"a": 1e20})
    assert text == '{"a":100000000000000000000}'
    with pytest.raises(ArgumentError):
        canonical_json(json.loads(text))
    assert canonical_json(load_stored(text)) == text


@pytest.mark.case("G5")
def test_the_rule_for_one() -> None:
    """1 and 1.0 are one number and one text; "1" and true are different values with different texts."""
    assert canonical_json(1) == canonical_json(1.0) == "1"
    assert canonical_json(-0.0) == canonical_json(0) == "0"
    assert len({canonical_json(value) for value in (1, "1", True)}) == 3
    assert canonical_json({"notify": True}) != canonical_json({"notify": 1})
    assert canonical_json({"b": 1, "a": 2}) == canonical_json({"a": 2, "b": 1}) == '{"a":2,"b":1}'


def test_known_text() -> None:
    """Keys sort by UTF-16 units and nothing but control characters, quotes and backslashes is escaped (RFC 8785)."""
    assert (
        canonical_json({"\U0001f600": 1, "\ufb33": 2, "é": '\x1f"\\/'}) == '{"é":"\\u001f\\"\\\\/","😀":1,"\ufb33":2}'
    )
    assert sha256_of("{}") == "44136fa355b3678a1146ad16f7e8649e94fb4fc21fe77e8310c060f61caaff8a"


json_values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-INTEGER_MAX, INTEGER_MAX)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), max_size=20),
    lambda inner: (
        st.lists(inner, max_size=5)
        | st.dictionaries(
            st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), max_size=8), inner, max_size=5
        )
    ),
    max_leaves=20,
)


@given(st.dictionaries(st.sampled_from("abc"), json_values))
def test_every_plain_value_keeps_its_meaning(value: dict[str, Any]) -> None:
    """What the door accepts reads back as an equal value, from code as from a model's text."""
    assert load_stored(canonical_json(value)) == value
    assert parse_arguments(json.dumps(value)) == value
    assert parse_arguments(value) == value


@given(st.text() | st.binary())
def test_any_text_is_read_or_refused(raw: str | bytes) -> None:
    """Whatever a model sends, the answer is a dict or an ArgumentError with a printable ASCII path."""
    try:
        assert isinstance(parse_arguments(raw), dict)
    except ArgumentError as refused:
        path = refused.path
    else:
        path = "$"
    assert path.startswith("$")
    assert path.isascii()
    assert path.isprintable()
