"""A person's own function: what its return value, its exception and its look-up prove."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any, TypedDict

import pytest
import requests

from counterfoil.providers.contract import Call, Of
from counterfoil.providers.functions import FunctionAdapter
from counterfoil.providers.outcomes import (
    Absent,
    Finding,
    Found,
    Many,
    NotSent,
    Outcome,
    Rejected,
    Succeeded,
    Uncertain,
    Unknown,
)
from counterfoil.providers.pool import AdapterPool
from counterfoil.providers.sanitise import ID_CHARS_MAX, TEXT_CHARS_MAX, clean_json
from counterfoil.providers.spec import ToolSpec
from counterfoil.providers.tool import SPEC_ATTRIBUTE, tool

SENT = datetime(2026, 11, 30, 12, 0, tzinfo=UTC)
UNDONE = Of(action_id="act_a", tool="ship", key="0f" * 16, receipt="sh_1", arguments={"order_id": "7"})


class Shipment(TypedDict):
    """The declared result."""

    id: str
    carrier: str


def spec_of(function: Callable[..., object], **more: Any) -> ToolSpec:
    decorate = tool(
        cls="reversible",
        effect="shipment",
        target="order_id",
        audience=[],
        uncertain="operator_review",
        undo=None,
        **more,
    )
    return getattr(decorate(function), SPEC_ATTRIBUTE)  # type: ignore[no-any-return]


def call_of(of: Of | None = None, **arguments: Any) -> Call:
    return Call(
        action_id="act_b",
        tenant="acme",
        account="main",
        tool="ship",
        key="ab" * 16,
        arguments={"order_id": "7", **arguments},
        target="7",
        first_sent_at=SENT,
        of=of,
    )


def send(behaviour: Callable[[], object], **more: Any) -> Outcome:
    """The outcome of a tool that does this."""

    def ship(order_id: str) -> dict[str, object]:
        return behaviour()  # type: ignore[return-value]

    return FunctionAdapter(spec_of(ship, **more)).send(call_of(), timeout_s=1)


def raising(exc: Exception) -> Callable[[], object]:
    def behaviour() -> object:
        raise exc

    return behaviour


def http_error(status: int, *, headers: dict[str, str] | None = None, redirected: bool = False) -> Exception:
    reply = requests.Response()
    reply.status_code = status
    reply.headers.update(headers or {})
    reply.history = [requests.Response()] if redirected else []
    return requests.HTTPError(response=reply)


@pytest.mark.parametrize(
    ("answer", "outcome"),
    [
        ({"id": "sh_1", "secret": "x"}, Succeeded("sh_1", {"id": "sh_1"})),
        (Succeeded("sh_2", {"eta": 3}), Succeeded("sh_2", {"eta": 3})),
        (Rejected("no_stock", field="sku"), Rejected("no_stock", field="sku")),
        (NotSent("queue_full"), NotSent("queue_full")),
        (Uncertain("odd"), Uncertain("odd")),
        ({"id": 17}, Uncertain("no_receipt", evidence="dict")),
        ({"id": ""}, Uncertain("no_receipt", evidence="dict")),
        ({}, Uncertain("no_receipt", evidence="dict")),
        (None, Uncertain("no_receipt", evidence="NoneType")),
        ("sh_1", Uncertain("no_receipt", evidence="str")),
        (Succeeded(""), Uncertain("no_receipt", evidence="Succeeded")),
    ],
)
def test_only_a_receipt_is_a_success(answer: object, outcome: Outcome) -> None:
    """A text under the receipt's name succeeds, an outcome passes through, everything else is uncertain."""
    assert send(lambda: answer) == outcome


def test_the_receipt_may_have_another_name() -> None:
    """`receipt=` names the field."""
    assert send(lambda: {"number": "n1", "id": "x"}, receipt="number") == Succeeded("n1", {"number": "n1"})


def test_a_typed_result_declares_what_the_model_sees() -> None:
    """A TypedDict return annotation names the result fields; others stay with the provider."""

    def ship(order_id: str) -> Shipment:
        return {"id": "sh_1", "carrier": "post", "cost": 5}  # type: ignore[typeddict-unknown-key]

    outcome = FunctionAdapter(spec_of(ship)).send(call_of(), timeout_s=1)
    assert outcome == Succeeded("sh_1", {"id": "sh_1", "carrier": "post"})


def test_a_typed_result_may_stand_beside_an_outcome() -> None:
    """A function that may also refuse by itself declares its result fields all the same."""

    def ship(order_id: str) -> Shipment | Rejected:
        return {"id": "sh_1", "carrier": "post", "cost": 5}  # type: ignore[typeddict-unknown-key]

    outcome = FunctionAdapter(spec_of(ship)).send(call_of(), timeout_s=1)
    assert outcome == Succeeded("sh_1", {"id": "sh_1", "carrier": "post"})


@pytest.mark.parametrize("status", [400, 401, 403, 404, 410, 413, 422])
def test_a_listed_refusal_is_rejected(status: int) -> None:
    """raise_for_status() with one of these statuses: the provider did nothing, for good."""
    outcome = send(raising(http_error(status)))
    assert isinstance(outcome, Rejected)
    assert not outcome.retryable


def test_a_throttled_request_is_retryable_after_what_it_says() -> None:
    """429 with Retry-After, in seconds or absent."""
    assert send(raising(http_error(429, headers={"Retry-After": "7"}))) == Rejected(
        "rate_limited", retryable=True, retry_after_s=7.0
    )
    assert send(raising(http_error(429))) == Rejected("rate_limited", retryable=True)


@pytest.mark.parametrize("status", [302, 408, 409, 423, 425, 500, 502, 503, 504])
def test_any_other_status_is_uncertain(status: int) -> None:
    """A gateway may answer for a request that landed."""
    assert send(raising(http_error(status))) == Uncertain(f"http_{status}", evidence=f"HTTP {status}")


def test_a_refusal_after_a_redirect_is_uncertain() -> None:
    """The 404 answers the page that the client was sent to; the first request was taken."""
    assert isinstance(send(raising(http_error(404, redirected=True))), Uncertain)


@pytest.mark.parametrize("exc", [ValueError("secret"), KeyError("secret"), TimeoutError(), RecursionError("x")])
def test_a_bug_in_the_function_is_uncertain(exc: Exception) -> None:
    """It may have raised after the request had left; the text of the exception is not kept."""
    assert send(raising(exc)) == Uncertain("exception", evidence=type(exc).__name__)


def test_key_and_of_are_injected() -> None:
    """The key is the action's own; `of` is the key of the action undone, or all about it where the annotation is `Of`."""
    seen: list[object] = []

    def cancel(order_id: str, *, key: str, of: str) -> dict[str, object]:
        seen.extend((order_id, key, of))
        return {"id": "c1"}

    def cancel_whole(order_id: str, *, of: Of) -> dict[str, object]:
        seen.append(of)
        return {"id": "c2"}

    FunctionAdapter(spec_of(cancel)).send(call_of(UNDONE), timeout_s=1)
    FunctionAdapter(spec_of(cancel_whole)).send(call_of(UNDONE), timeout_s=1)
    assert seen == ["7", "ab" * 16, UNDONE.key, UNDONE]


def test_arguments_that_do_not_fit_are_not_sent() -> None:
    """The function is not called with what its signature refuses, nor a counter-action without its action."""

    def cancel(order_id: str, *, of: str) -> dict[str, object]:
        raise AssertionError("called")

    assert FunctionAdapter(spec_of(cancel)).send(call_of(), timeout_s=1) == NotSent("bind_ValueError")
    surplus = call_of(UNDONE, colour="red")
    assert FunctionAdapter(spec_of(cancel)).send(surplus, timeout_s=1) == NotSent("bind_ArgumentError")


@pytest.mark.parametrize(
    ("answer", "finding"),
    [
        (None, Absent()),
        ([], Absent()),
        ({"id": "sh_1"}, Found(Succeeded("sh_1", {"id": "sh_1"}))),
        ([{"id": "sh_1"}], Found(Succeeded("sh_1", {"id": "sh_1"}))),
        ([{"id": "sh_1"}, {"id": "sh_2"}], Many(("sh_1", "sh_2"))),
        ({}, Found(Uncertain("no_receipt", evidence="dict"))),
        (Rejected("cancelled"), Found(Rejected("cancelled"))),
        (Unknown("index_down"), Unknown("index_down")),
        (Found(Succeeded("a\x00")), Found(Succeeded("a"))),
        (Found(Rejected("no\x00")), Found(Rejected("no"))),
        (Many(("a\x00", "b")), Many(("a", "b"))),
    ],
)
def test_a_lookup_answers_with_what_it_found(answer: object, finding: Finding) -> None:
    """None is absence, one thing is found, two are many; an uncertain shape is found and still uncertain."""

    def find(key: str, *, sent_at: datetime) -> object:
        assert (key, sent_at) == ("ab" * 16, SENT)
        return answer

    assert looked_up(find) == finding


def test_a_failed_lookup_is_unknown() -> None:
    """An exception in a look-up is never absence."""

    def find(key: str) -> object:
        raise requests.ConnectionError("down")

    assert looked_up(find) == Unknown("ConnectionError")


def test_a_lookup_may_use_the_tools_arguments() -> None:
    """A provider that knows no key of ours is asked by what was sent."""

    def find(order_id: str) -> object:
        return {"id": order_id}

    assert looked_up(find) == Found(Succeeded("7", {"id": "7"}))


def looked_up(find: Callable[..., object]) -> Finding:
    def ship(order_id: str, *, key: str) -> dict[str, object]:
        raise AssertionError("called")

    spec = replace(spec_of(ship), lookup=find)
    return FunctionAdapter(spec).lookup([call_of()], timeout_s=1)["act_b"]


@pytest.mark.case("H1")
def test_a_success_can_always_be_written() -> None:
    """NUL, lone surrogates, NaN, huge numbers and long texts in an answer are cleaned, and the success stays one."""

    def ship(order_id: str) -> Shipment:
        return {"id": "sh\x00_1\ud800" + "x" * 500, "carrier": "po\x00st" + "y" * 5000}

    outcome = FunctionAdapter(spec_of(ship)).send(call_of(), timeout_s=1)
    assert isinstance(outcome, Succeeded)
    assert outcome.id.startswith("sh_1xxx")
    assert len(outcome.id) == ID_CHARS_MAX
    carrier = outcome.fields["carrier"]
    assert isinstance(carrier, str)
    assert carrier.startswith("postyyy")
    assert len(carrier) == TEXT_CHARS_MAX


def test_cleaned_json_is_storable_at_any_depth() -> None:
    """What our storage or our hashes would refuse becomes text or None; nothing nested is followed for ever."""
    loop: list[object] = []
    loop.append(loop)
    answer = {"n": float("nan"), "big": 2**60, "bytes": b"x", "deep": loop, "k\x00ey": ["a\ud800"], "ok": [True, 1.5]}
    assert clean_json(answer) == {
        "n": None,
        "big": str(2**60),
        "bytes": None,
        "deep": [[[None]]],
        "key": ["a"],
        "ok": [True, 1.5],
    }


def test_tools_from_one_factory_keep_their_own_functions() -> None:
    """Functions of one name, made in one place, are two tools: neither is called for the other."""

    def made(name: str) -> ToolSpec:
        def ship(order_id: str) -> dict[str, object]:
            return {"id": name}

        return spec_of(ship, name=name)

    pool = AdapterPool(lambda spec, account: None)
    answers = [pool.adapter(made(name), "default").send(call_of(order_id="7"), timeout_s=1) for name in ("air", "sea")]
    assert [answer.id for answer in answers if isinstance(answer, Succeeded)] == ["air", "sea"]


def test_an_argument_may_have_any_name_that_a_tool_gives_it() -> None:
    """Also those of what calls it."""

    def ship(order_id: str, function: str, timeout_s: int, arguments: str) -> dict[str, object]:
        return {"id": f"{function} {timeout_s} {arguments}"}

    call = call_of(function="f", timeout_s=3, arguments="a")
    assert FunctionAdapter(spec_of(ship)).send(call, timeout_s=1) == Succeeded("f 3 a", {"id": "f 3 a"})
