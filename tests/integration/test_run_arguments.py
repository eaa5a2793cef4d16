"""What a model is told of an argument that is refused: the validator's own sentence, beside field and code."""

from __future__ import annotations

import traceback
from collections.abc import Callable, Iterator
from typing import Annotated, Any, Literal

import psycopg
import pytest
from pydantic import AfterValidator, BaseModel, Field
from pydantic_core import PydanticCustomError

from counterfoil import ArgumentError, Counterfoil, tool
from counterfoil.providers.arguments import arguments_of
from counterfoil.providers.registry import Registry


def no_card(value: str) -> str:
    if value.isdigit():
        raise ValueError(f"{value} looks like a card's number")
    return value


@pytest.fixture
def cf(database: Any) -> Iterator[Counterfoil]:
    @tool(cls="compensatable", effect="refund", target="order_id", once_per=None, audience=["team"], undo="take_back",
          native_key_ttl_s=86400)  # fmt: skip
    def refund(
        order_id: str,
        amount: Annotated[int, Field(ge=1, le=500)],
        kind: Literal["late", "broken"] = "late",
        words: Annotated[str, AfterValidator(no_card)] = "",
        *,
        key: str,
    ) -> object: ...

    @tool(cls="compensatable", effect="refund", target="order_id", once_per=None, audience=["team"], undo=None,
          native_key_ttl_s=86400)  # fmt: skip
    def take_back(order_id: str, *, key: str, of: str) -> object: ...

    tools = Registry()
    for each in (refund, take_back):
        tools.add(each.__counterfoil_tool__)  # type: ignore[attr-defined]
    tools.resolve()
    made = Counterfoil(database.url("agent"), registry=tools)
    yield made
    made.close()


GOOD = {"order_id": "1", "amount": 5}


@pytest.mark.parametrize(
    ("arguments", "field", "reason"),
    [
        ({**GOOD, "amount": "5"}, "amount", "Input should be a valid integer."),
        ({**GOOD, "amount": 501}, "amount", "Input should be less than or equal to 500."),
        ({**GOOD, "kind": "lost"}, "kind", "Input should be 'late' or 'broken'."),
        ({"order_id": "1"}, "amount", "the tool needs this argument. It takes order_id, amount, kind, words."),
        (
            {**GOOD, "amuont": 5},
            "amuont",
            "the tool has no such argument. Did you mean amount? It takes order_id, amount, kind, words.",
        ),
        ({**GOOD, "words": "4242"}, "words", "4242 looks like a card's number"),
        ({**GOOD, "key": "x"}, "key", "this name is reserved: leave it out."),
        ({**GOOD, "words": "a\0"}, "words", "NUL"),
        ({**GOOD, "order_id": ""}, "order_id", "gives no target of 1 to"),
        ("no JSON", None, "JSON"),
    ],
)
def test_a_model_is_told_what_is_wrong(cf: Counterfoil, arguments: Any, field: str | None, reason: str) -> None:
    """Enough to correct it; nothing is recorded."""
    run = cf.run("r1", tenant="acme", actor="bot")
    told = run.call("refund", arguments)
    assert (told.retry_allowed, told.field) == (True, field)
    assert isinstance(told.value, dict)
    assert reason.lower() in str(told.value["reason"]).lower()
    assert run.so_far() == []


@pytest.mark.parametrize("door", ["validate", "enqueue"])
def test_code_gets_the_reason_and_logs_get_no_value(cf: Counterfoil, database: Any, door: str) -> None:
    """The sentence of a tool's own validator may quote the value: it is an attribute, and in no message or traceback."""
    wrong = {**GOOD, "words": "4242424242424242"}
    doors: dict[str, Callable[[Any], object]] = {
        "validate": lambda _: cf._registry.get("refund").validate(wrong),
        "enqueue": lambda conn: cf.enqueue(conn, "refund", wrong, tenant="acme", run="r1", step="s", actor="bot"),
    }
    with psycopg.connect(database.url("agent")) as conn, pytest.raises(ArgumentError) as caught:
        doors[door](conn)
    assert caught.value.reason == "4242424242424242 looks like a card's number"
    assert "4242" not in "".join(traceback.format_exception(caught.value))


def no_number(value: str) -> str:
    raise PydanticCustomError("card", "{value} looks like a card", {"value": value})


class Late(BaseModel):
    kind: Literal["late"]


class Lost(BaseModel):
    kind: Literal["lost"]


def by_custom_error(value: Annotated[str, AfterValidator(no_number)]) -> None: ...
def by_tag(value: Annotated[Late | Lost, Field(discriminator="kind")]) -> None: ...


@pytest.mark.parametrize(("tool_function", "value"), [(by_custom_error, "4242" * 4), (by_tag, {"kind": "4242" * 4})])
def test_no_kind_of_pydantic_error_quotes_a_value_in_a_log(tool_function: Callable[..., None], value: object) -> None:
    """A custom error is in the tool's own words, and a wrong tag is quoted by pydantic: both are told as the reason alone."""
    arguments, _ = arguments_of(tool_function)
    with pytest.raises(ArgumentError) as caught:
        arguments.validate({"value": value})
    assert "4242" in caught.value.reason
    assert "4242" not in "".join(traceback.format_exception(caught.value))


def test_a_reason_is_one_line_of_bounded_length() -> None:
    """Wherever it is told: an HTTP answer takes it from the error."""
    reason = ArgumentError("no", path="$", code="x", reason="a\x1b\nb " * 100_000).reason
    assert (len(reason) <= 300, reason.isprintable(), reason[:4]) == (True, True, "a b ")
