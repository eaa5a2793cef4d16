"""A person's own function that reads a version: what its answer is worth, what it is given, and how it is declared."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from counterfoil.ledger.errors import ArgumentError, ToolDefinitionError
from counterfoil.providers.contract import Call, Of
from counterfoil.providers.functions import FunctionAdapter, version_of
from counterfoil.providers.outcomes import PRECONDITION_FAILED, Reading, Rejected, Succeeded, Unreadable, Version
from counterfoil.providers.registry import Registry
from counterfoil.providers.spec import ToolSpec
from counterfoil.providers.tool import SPEC_ATTRIBUTE, tool
from counterfoil.providers.transport import classify_status

PAID = Of(action_id="act_a", tool="pay", key="0f" * 16, receipt="pay_1", arguments={"invoice": "7"})


def spec_of(function: Callable[..., object], **more: Any) -> ToolSpec:
    """The tool as a worker has it."""
    decorate = tool(
        cls="reversible",
        effect="invoice",
        target="invoice",
        audience=[],
        uncertain="operator_review",
        undo=None,
        **more,
    )
    registry = Registry()
    registry.add(getattr(decorate(function), SPEC_ATTRIBUTE))
    registry.resolve()
    return registry.get(function.__name__)


def call_of(of: Of | None = None, expected_version: str | None = None, **arguments: Any) -> Call:
    return Call(
        action_id="act_b",
        tenant="acme",
        account="main",
        tool="settle",
        key="",
        arguments=arguments,
        target=None,
        first_sent_at=None,
        of=of,
        expected_version=expected_version,
    )


def settle(invoice: str, *, key: str) -> dict[str, str]:
    """Settle an invoice."""
    return {"id": invoice + key}


@pytest.mark.parametrize(
    ("answer", "reading"),
    [
        ("7", Version("7")),
        (7, Version("7")),
        (0, Version("0")),
        ("v" * 255, Version("v" * 255)),
        ("v" * 256, Unreadable("not_a_version")),
        ("", Unreadable("not_a_version")),
        ("a\x00b", Unreadable("not_a_version")),
        ("\ud800", Unreadable("not_a_version")),
        (None, Unreadable("no_version")),
        (True, Unreadable("not_a_version")),
        (7.0, Unreadable("not_a_version")),
        ({"version": 7}, Unreadable("not_a_version")),
        (10**300, Unreadable("not_a_version")),
        pytest.param(10**5000, Unreadable("not_a_version"), id="huge"),
    ],
)
def test_what_is_a_version(answer: object, reading: Reading) -> None:
    """Text or an integer, as it is: nothing is cut or cleaned, or two versions could become equal."""
    assert version_of(answer) == reading


def test_a_reading_is_given_arguments_and_of() -> None:
    """It gets the tool's arguments by name, and the whole `of` of a counter-action; it needs no key."""

    def version(invoice: str, of: Of) -> str:
        return f"{invoice} {of.receipt}"

    def refund(invoice: str, amount: int, *, of: Of) -> dict[str, str]:
        """Refund."""
        raise NotImplementedError(invoice, amount, of)

    adapter = FunctionAdapter(spec_of(refund, resource_version=version))
    assert adapter.version(call_of(PAID, invoice="7", amount=5), timeout_s=1) == Version("7 pay_1")


@pytest.mark.parametrize("error", [ValueError("7"), KeyError("version"), OSError()])
def test_a_reading_that_raises_is_none(error: Exception) -> None:
    """Whatever its code raises is unreadable, and says only of what class it was."""

    def version(invoice: str) -> str:
        raise error

    adapter = FunctionAdapter(spec_of(settle, resource_version=version))
    assert adapter.version(call_of(invoice="7"), timeout_s=1) == Unreadable(type(error).__name__)


def test_an_answer_that_came_too_late_is_none() -> None:
    """What was read beyond the time that there is may be old by now."""
    adapter = FunctionAdapter(spec_of(settle, resource_version=lambda_version))
    assert adapter.version(call_of(invoice="7"), timeout_s=1) == Version("7")
    assert adapter.version(call_of(invoice="7"), timeout_s=-1) == Unreadable("read_timeout")


def lambda_version(invoice: str) -> str:
    return invoice


def test_a_tool_without_one_has_none() -> None:
    """Nothing is called."""
    assert FunctionAdapter(spec_of(settle)).version(call_of(invoice="7"), timeout_s=1) == Unreadable("no_version")


@pytest.mark.parametrize("expected", ["7", None])
def test_the_expected_version_is_injected(expected: str | None) -> None:
    """A function that takes it keyword-only gets it; no schema has it, and no caller may give it."""

    def pay(invoice: str, *, expected_version: str | None) -> dict[str, str]:
        """Pay."""
        return {"id": f"{invoice} at {expected_version}"}

    spec = spec_of(pay, resource_version=lambda_version)
    outcome = FunctionAdapter(spec).send(call_of(invoice="7", expected_version=expected), timeout_s=1)
    assert outcome == Succeeded(f"7 at {expected}", {"id": f"7 at {expected}"})
    assert "expected_version" not in str(spec.schema())
    with pytest.raises(ArgumentError):
        spec.validate({"invoice": "7", "expected_version": "8"})


def test_an_argument_of_that_name_stays_one() -> None:
    """Only keyword-only is injected: a tool may have an argument of this name, for its own ends."""

    def pay(invoice: str, expected_version: str) -> dict[str, str]:
        """Pay."""
        return {"id": f"{invoice} {expected_version}"}

    spec = spec_of(pay)
    assert spec.validate({"invoice": "7", "expected_version": "x"}) == {"invoice": "7", "expected_version": "x"}
    outcome = FunctionAdapter(spec).send(call_of(invoice="7"), timeout_s=1)
    assert not isinstance(outcome, Succeeded)


def conditional(invoice: str, *, expected_version: str | None) -> dict[str, str]:
    """Takes a version."""
    return {"id": f"{invoice} {expected_version}"}


@pytest.mark.parametrize(
    ("function", "more", "said"),
    [
        (settle, {"resource_version": True}, "the function that reads it"),
        (settle, {"resource_version": lambda_version, "adapter": "x:Y"}, "True"),
        (settle, {"resource_version": "missing"}, "no function of the same module"),
        (settle, {"resource_version": lambda other: other}, "takes 'other'"),
        (conditional, {}, "nothing reads one"),
    ],
)
def test_declarations_that_are_refused(function: Callable[..., object], more: dict[str, Any], said: str) -> None:
    """A version that nobody could read, or that would be read twice over, is refused where the tool is declared."""
    with pytest.raises(ToolDefinitionError, match=said):
        spec_of(function, **more)


def test_http_412_is_the_providers_own_comparison() -> None:
    """412 says that nothing was done, since the version was another; 409 and 428 say nothing for certain."""
    assert classify_status(412) == Rejected(PRECONDITION_FAILED)
    assert not any(isinstance(classify_status(status), Rejected) for status in (409, 423, 428))
