"""Which correction is written down for a call: a loaded tool that acts, with arguments it takes; else a person decides."""

from __future__ import annotations

from typing import Any

import pytest

from counterfoil import Of, tool
from counterfoil.ledger.errors import ToolDefinitionError
from counterfoil.outbox.intents import check_call
from counterfoil.providers.registry import Registry
from counterfoil.providers.spec import ToolSpec

SHAPE: dict[str, Any] = {"target": "to", "once_per": None, "audience": ["customer"], "uncertain": "operator_review"}
FILLED = {"to": "c@example.com", "body": "Please ignore our mail."}


def sender(correction: Any) -> ToolSpec:
    """A mail tool with this correction, in a registry with a pure tool, a counter-action and itself."""

    @tool(cls="irreversible", effect="mail", provider="mail", correction=correction, approval="never", **SHAPE)
    def send_mail(to: str, body: str) -> dict[str, object]:
        """Write to a customer."""
        return {"id": "m1"}

    @tool(cls="compensatable", effect="recall", provider="mail", undo=None, **SHAPE)
    def recall(to: str, *, of: Of) -> dict[str, object]:
        """Ask for a mail back."""
        return {"id": "m1"}

    @tool(cls="irreversible", effect="payment", provider="bank", amount="cents", **SHAPE)
    def pay_back(to: str, cents: int) -> dict[str, object]:
        """Pay."""
        return {"id": "p1"}

    @tool(cls="pure")
    def search(to: str) -> dict[str, object]:
        """Find mail."""
        return {}

    registry = Registry()
    for function in (send_mail, recall, pay_back, search):
        registry.add(function.__counterfoil_tool__)  # type: ignore[attr-defined]
    registry.resolve()
    return registry.get("send_mail")


def test_written_down_before_the_call() -> None:
    """What could be said is recorded with the intent, defaults filled in, canonical."""
    spec = sender(lambda a: {"tool": "send_mail", "arguments": {"to": a["to"], "body": "Please ignore our mail."}})
    checked = check_call(spec, FILLED, tenant="t", run="r", actor="a")
    assert checked.correction == (
        '{"arguments":{"body":"Please ignore our mail.","to":"c@example.com"},"tool":"send_mail"}'
    )
    assert not checked.needs_approval


@pytest.mark.parametrize(
    "built",
    [
        pytest.param(lambda a: {"tool": "recall", "arguments": {"to": a["to"]}}, id="a counter-action"),
        pytest.param(lambda a: {"tool": "search", "arguments": {"to": a["to"]}}, id="a pure tool"),
        pytest.param(
            lambda a: {"tool": "pay_back", "arguments": {"to": a["to"], "cents": 1}}, id="a tool that moves money"
        ),
        pytest.param(lambda a: {"tool": "fax", "arguments": FILLED}, id="a tool that is not loaded"),
        pytest.param(lambda a: {"tool": "send_mail", "arguments": {"to": a["to"]}}, id="an argument is missing"),
        pytest.param(lambda a: {"tool": "send_mail", "arguments": FILLED | {"cc": "x"}}, id="an argument too many"),
        pytest.param(lambda a: {"tool": "send_mail"}, id="no arguments"),
        pytest.param(lambda a: None, id="none for these arguments"),
        pytest.param(lambda a: {"tool": "send_mail", "arguments": {"to": a["nobody"], "body": ""}}, id="it raises"),
    ],
)
def test_what_cannot_be_filled_is_a_person_s(built: Any) -> None:
    """No correction is recorded, and the call needs an approval, whatever the tool's code says of approvals."""
    checked = check_call(sender(built), FILLED, tenant="t", run="r", actor="a")
    assert (checked.correction, checked.needs_approval) == (None, True)


def test_a_tool_that_has_none() -> None:
    """A tool that declares no correction is not asked for one."""
    checked = check_call(sender(None), FILLED, tenant="t", run="r", actor="a")
    assert (checked.correction, checked.needs_approval) == (None, False)


def test_it_is_a_function() -> None:
    """A name or a text is refused where the tool is declared."""
    with pytest.raises(ToolDefinitionError):
        sender("send_mail")
