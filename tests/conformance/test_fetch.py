"""What a person names is read at the provider itself, one object, and is ours only where it carries the call's key."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import pytest

from counterfoil import tool
from counterfoil.providers.contract import OTHER_KEY, Call, Fetcher, Of
from counterfoil.providers.functions import FunctionAdapter
from counterfoil.providers.jira.client import JiraAdapter
from counterfoil.providers.outcomes import Absent, Finding, Found, Json, Many, Succeeded, Unknown
from counterfoil.providers.registry import Registry
from counterfoil.providers.spec import ToolSpec
from counterfoil.providers.stripe.client import StripeAdapter
from counterfoil.providers.tool import SPEC_ATTRIBUTE
from counterfoil.sandbox.client import Sandbox

TOOLS = Registry.load(["counterfoil.providers.stripe.tools", "counterfoil.providers.jira.tools"])
TIMEOUT_S = 3.0
PAYMENT: dict[str, Json] = {"customer": "cus_1", "amount_minor": 500, "currency": "usd", "order_id": "1182"}
TICKET: dict[str, Json] = {"project": "SUP", "summary": "Reship 1182", "order_id": "1182"}
OTHER = Unknown(OTHER_KEY)


def call_of(name: str, number: int, arguments: Mapping[str, Json], of: Of | None = None) -> Call:
    return Call(
        action_id=f"act_{name}_{number}",
        tenant="acme",
        account="main",
        tool=name,
        key=f"{number:032x}",
        arguments=TOOLS.get(name).validate(arguments),
        target="1182",
        first_sent_at=datetime.now(UTC),
        of=of,
    )


def about(call: Call, receipt: str | None) -> Of:
    return Of(action_id=call.action_id, tool=call.tool, key=call.key, receipt=receipt, arguments=call.arguments)


def sent(adapter: Any, call: Call) -> str:
    outcome = adapter.send(call, timeout_s=TIMEOUT_S)
    assert isinstance(outcome, Succeeded)
    return outcome.id


def fetched(adapter: Any, call: Call, receipt: str) -> Finding | None:
    assert isinstance(adapter, Fetcher)
    finding = adapter.fetch(call, receipt, timeout_s=TIMEOUT_S)
    if isinstance(finding, Found) and isinstance(finding.outcome, Succeeded):
        assert (finding.outcome.id, finding.as_intended) == (receipt, True)
    return finding


@pytest.mark.parametrize("name", ["stripe_charge", "stripe_authorize"])
def test_a_payment(stripe_adapter: StripeAdapter, sandbox: Sandbox, name: str) -> None:
    """Found by its id, with what Stripe recorded; another call's is not ours; none is absent; an outage is unknown."""
    mine, other = call_of(name, 1, PAYMENT), call_of(name, 2, PAYMENT)
    receipt, theirs = sent(stripe_adapter, mine), sent(stripe_adapter, other)
    finding = fetched(stripe_adapter, mine, receipt)
    assert isinstance(finding, Found)
    assert (finding.amount_minor, finding.currency, finding.target) == (500, "usd", "1182")
    assert fetched(stripe_adapter, mine, theirs) == OTHER
    for nothing in ("pi_none", "../customers/cus_1", "re_1", "ünï"):
        assert fetched(stripe_adapter, mine, nothing) == Absent()
    before = len(sandbox.requests("stripe"))
    sandbox.stripe.fault("lookup_429", times=1)
    assert isinstance(fetched(stripe_adapter, mine, receipt), Unknown)
    assert len(sandbox.requests("stripe")) == before + 1


def test_a_refund_and_the_end_of_a_hold(stripe_adapter: StripeAdapter) -> None:
    """A refund is read by its own id; a capture or release is read on the hold that the call is about, and on no other."""
    charge, hold = call_of("stripe_charge", 1, PAYMENT), call_of("stripe_authorize", 2, PAYMENT)
    charged, held = sent(stripe_adapter, charge), sent(stripe_adapter, hold)
    refund = call_of("stripe_refund", 3, {"order_id": "1182"}, about(charge, charged))
    assert fetched(stripe_adapter, refund, "re_none") == Absent()
    receipt = sent(stripe_adapter, refund)
    assert isinstance(fetched(stripe_adapter, refund, receipt), Found)
    assert fetched(stripe_adapter, replace(refund, key="f" * 32), receipt) == OTHER
    capture = call_of("stripe_capture", 4, {"order_id": "1182"}, about(hold, held))
    assert fetched(stripe_adapter, capture, held) == Absent(), "the hold still stands"
    assert sent(stripe_adapter, capture) == held
    assert isinstance(fetched(stripe_adapter, capture, held), Found)
    assert fetched(stripe_adapter, capture, charged) == OTHER
    assert fetched(
        stripe_adapter, replace(capture, of=about(call_of("stripe_capture", 9, {"order_id": "1182"}), None)), held
    ) == (Unknown("of_unresolved"))


def test_a_ticket(jira_adapter: JiraAdapter, sandbox: Sandbox) -> None:
    """Read from the ticket itself, which no index delays; another call's is not ours; none is absent."""
    sandbox.config(search_lag_s={"jira": 3600})
    mine, other = call_of("jira_create", 1, TICKET), call_of("jira_create", 2, TICKET)
    receipt, theirs = sent(jira_adapter, mine), sent(jira_adapter, other)
    finding = fetched(jira_adapter, mine, receipt)
    assert isinstance(finding, Found)
    assert finding.target == "1182"
    assert fetched(jira_adapter, mine, theirs) == OTHER
    for nothing in ("SUP-999", "SUP-1/comment", "SUP 1?x=#y"):
        assert fetched(jira_adapter, mine, nothing) == Absent()
    sandbox.jira.fault("html_502", on="issue.get")
    assert isinstance(fetched(jira_adapter, mine, receipt), Unknown)


def test_what_is_done_to_a_ticket(jira_adapter: JiraAdapter) -> None:
    """A closing is read on the ticket that the call is about; a comment among its ticket's, by its id and our key."""
    create = call_of("jira_create", 1, TICKET)
    issue = sent(jira_adapter, create)
    close = call_of("jira_close", 2, {"order_id": "1182"}, about(create, issue))
    assert fetched(jira_adapter, close, issue) == Absent()
    sent(jira_adapter, close)
    assert isinstance(fetched(jira_adapter, close, issue), Found)
    assert fetched(jira_adapter, close, "SUP-999") == OTHER
    comments = [call_of("jira_comment", number, {"issue": issue, "body": "Hello"}) for number in (3, 4)]
    mine, theirs = (sent(jira_adapter, comment) for comment in comments)
    assert isinstance(fetched(jira_adapter, comments[0], mine), Found)
    assert fetched(jira_adapter, comments[0], theirs) == OTHER
    assert fetched(jira_adapter, comments[0], "1") == Absent()
    delete = call_of("jira_delete_comment", 5, {"issue": issue}, about(comments[0], mine))
    assert fetched(jira_adapter, delete, mine) == Absent()
    sent(jira_adapter, delete)
    assert isinstance(fetched(jira_adapter, delete, mine), Found)
    assert fetched(jira_adapter, delete, theirs) == OTHER


@pytest.mark.parametrize(
    ("answer", "finding"),
    [
        (None, Absent()),
        ([], Absent()),
        ({"id": "r1"}, Found(Succeeded("r1", {"id": "r1"}))),
        ([{"id": "r1"}], Found(Succeeded("r1", {"id": "r1"}))),
        ([{"id": "r2"}, {"id": "r1"}], Found(Succeeded("r1", {"id": "r1"}))),
        (Many(("r2", "r1")), Found(Succeeded("r1"))),
        ({"id": "r2"}, OTHER),
        ([{"id": "r2"}, {"id": "r3"}], OTHER),
        (Many(("r2", "r3")), OTHER),
        (Unknown("busy"), Unknown("busy")),
        (Found(Succeeded("r1"), amount_minor=4), Found(Succeeded("r1"), amount_minor=4)),
    ],
)
def test_a_person_s_own_function(answer: object, finding: Finding) -> None:
    """Its look-up by key tells what exists; of several it is the one that was named."""

    def find(key: str) -> Any:
        return answer

    assert fetched(FunctionAdapter(spec_of(find)), shipment(), "r1") == finding


def test_a_function_without_a_look_up() -> None:
    """Nobody can be asked, which is no finding at all."""
    assert fetched(FunctionAdapter(spec_of(None)), shipment(), "r1") is None


def shipment() -> Call:
    arguments = {"order": "7"}
    return replace(call_of("stripe_charge", 1, PAYMENT), tool="ship", arguments=arguments, target="7")


def spec_of(find: Callable[..., Any] | None) -> ToolSpec:
    @tool(
        cls="reversible",
        effect="shipment",
        target="order",
        audience=[],
        undo=None,
        lookup=find,
        uncertain="operator_review",
    )
    def ship(order: str, *, key: str) -> dict[str, str]:
        """Ship an order."""
        return {"id": order + key}

    spec: ToolSpec = getattr(ship, SPEC_ATTRIBUTE)
    return spec
