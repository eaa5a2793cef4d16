"""What people are shown of amounts and arguments: exact, readable, and nothing hidden or acting on a terminal."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import JsonValue

from counterfoil.ledger.canonical import canonical_json
from counterfoil.ledger.connection import Ledger
from counterfoil.ledger.errors import ArgumentError
from counterfoil.people import corrections, proposals, reviews
from counterfoil.people.amounts import money, told, totals
from counterfoil.people.proposals import value_of
from counterfoil.people.readable import values_of, visible
from counterfoil.providers.arguments import arguments_of
from counterfoil.providers.registry import Registry

ROOT = Path(__file__).parents[2]


class NoLedger:
    """No statement is made before the words are checked."""


BAD_WORDS = [
    *({"by": by} for by in ("", " ", "x" * 201, "a\0b", "\ud800")),
    *({"channel": channel} for channel in ("", "x" * 41, "a\0b")),
    *({"reason": reason} for reason in ("a\0b", "\udcff", "x" * 501)),
]


@pytest.mark.parametrize("bad", BAD_WORDS, ids=ascii)
def test_words_that_the_ledger_cannot_hold(bad: dict[str, str]) -> None:
    """Every door for people refuses them by their name: a database's error would hold the row, receipts and all."""
    words: dict[str, Any] = {"by": "alice", "channel": "api", "reason": "seen", **bad}
    ledger, tools, digest = cast("Ledger", NoLedger()), Registry(), "0" * 16
    doors: list[Callable[[], object]] = [
        lambda: proposals.approve(ledger, "P-1", digest=digest, registry=tools, **words),
        lambda: proposals.reject(ledger, "P-1", **words),
        lambda: proposals.edit(ledger, "P-1", place=1, changes={}, registry=tools, **words),
        lambda: reviews.ask(ledger, "act_1", verb="ask_again", **words),
        lambda: reviews.give_up(ledger, "act_1", **words),
        lambda: corrections.edit(ledger, "C-1", changes={}, registry=tools, **words),
        lambda: corrections.send(ledger, "C-1", digest=digest, registry=tools, **words),
        lambda: corrections.dismiss(ledger, "C-1", **words),
    ]
    for door in doors:
        with pytest.raises(ArgumentError) as refused:
            door()
        assert refused.value.path in bad


@pytest.mark.parametrize(
    ("amount_minor", "currency", "shown"),
    [
        (500, "usd", "5.00 USD"),
        (5, "eur", "0.05 EUR"),
        (0, "eur", "0.00 EUR"),
        (-1234, "eur", "-12.34 EUR"),
        (500, "jpy", "500 JPY"),
        (1234567, "bhd", "1234.567 BHD"),
        (500, None, "500 minor units"),
    ],
)
def test_money(amount_minor: int, currency: str | None, shown: str) -> None:
    """Minor units with as many decimals as the currency has."""
    assert money(amount_minor, currency) == shown


def test_totals_are_by_currency() -> None:
    """No currency is added to another; a call without an amount adds nothing."""
    sums = totals([(500, "usd"), (None, None), (300, "eur"), (1, "usd")])
    assert sums == {"eur": 300, "usd": 501}
    assert told(sums) == "3.00 EUR + 5.01 USD"
    assert told({}) is None


def test_values_are_told_one_by_one() -> None:
    """Nested values under their path, texts in quotes, long ones line by line behind a bar."""
    arguments = {"a": [1, {"b": True}], "c": "1", "d": "x\ny", "e": {}, "f f": None, "g": 'say "hi" \\n'}
    told_as = [(value.name, value.lines) for value in values_of(canonical_json(arguments))]
    assert told_as == [
        ("a[0]", ("1",)),
        ("a[1].b", ("true",)),
        ("c", ('"1"',)),
        ("d", ("| x", "| y")),
        ("e", ("{}",)),
        ('["f f"]', ("null",)),
        ("g", ('"say \\"hi\\" \\\\n"',)),
    ]


@given(st.text(st.characters(exclude_categories=["Cs"]), max_size=40))
def test_nothing_unseen_is_left(text: str) -> None:
    """No control, format, private or unassigned character, and no blank but the plain one; it can be read back."""
    shown = visible(text)
    assert all(c == " " or unicodedata.category(c) not in {"Cc", "Cf", "Co", "Cn", "Zl", "Zp", "Zs"} for c in shown)
    assert shown.replace("\\\\", "\\").count("\\") >= text.count("\\")


@given(st.text(max_size=10), st.text(max_size=10))
def test_two_texts_are_told_apart(one: str, other: str) -> None:
    """What is written out stands for one text only."""
    assert (visible(one) == visible(other)) == (one == other)


@pytest.mark.parametrize(
    ("typed", "recorded", "value"),
    [
        ("300", 500, 300),
        ("300", "500", "300"),
        ('"300"', 500, "300"),
        ("true", False, True),
        ("true", "x", "true"),
        ("null", "x", "null"),
        ('"null"', None, "null"),
        ("null", None, None),
        ("two words", 5, "two words"),
        ('{"a": 1}', {}, {"a": 1}),
        ("NaN", 5, "NaN"),
        ('1, "x": 2', 5, '1, "x": 2'),
    ],
)
def test_what_people_type_for_an_argument(typed: str, recorded: object, value: object) -> None:
    """JSON, or a text; where a text stands, what is typed is a text."""
    assert value_of(typed, recorded) == value


KINDS: dict[str, object] = {"int": int, "float": float, "str": str, "bool": bool, "JsonValue": JsonValue}
GIVEN: dict[str, object] = {"`1`": 1, "`1.0`": 1.0, '`"1"`': "1", "`true`": True}


@pytest.mark.case("G5")
def test_the_table_of_values_that_look_alike() -> None:
    """docs/approvals.md says of each kind of argument which of 1, 1.0, "1" and true it lets in, and as which text."""
    rows = re.findall(r"^\| (?:`(\w+)`|declared) \|(.*)\|$", (ROOT / "docs" / "approvals.md").read_text(), re.MULTILINE)
    told = {kind: [cell.strip() for cell in cells.split("|")] for kind, cells in rows}
    columns = told.pop("")
    assert sorted(told) == sorted(KINDS)
    for kind, cells in told.items():

        def function(n: object) -> None: ...

        function.__annotations__["n"] = KINDS[kind]
        model, _ = arguments_of(function)
        for column, cell in zip(columns, cells, strict=True):
            try:
                text = canonical_json(model.validate({"n": GIVEN[column]})["n"])
            except ArgumentError:
                text = "refused"
            assert text == cell, (kind, column)


@pytest.mark.parametrize(
    "text", ["[1]", '{"a":', '{"a":NaN}', '{"a":' + "[" * 2_000 + "]" * 2_000 + "}", '{"a":"\\ud800"}']
)
def test_what_no_door_lets_in_is_told_as_it_stands(text: str) -> None:
    """Text that is no recorded call, written by hand, is shown as text, and stops nobody's page."""
    [value] = values_of(text)
    assert (value.name, value.text) == ("unreadable", '"' + visible(text).replace('"', '\\"') + '"')
