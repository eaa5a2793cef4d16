"""The one suite for readings of versions: every tool that is about something there already, each through its real client.

A new provider adds a `Resource`. A version must change whenever somebody else's hand changes what the call is about, and
must not for any other reason; a reading that fails is no version.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import pytest
import requests
from tests.conformance.shipped import SUBJECTS

from counterfoil import Of
from counterfoil.providers.contract import Adapter, Call
from counterfoil.providers.outcomes import Succeeded, Unreadable, Version
from counterfoil.providers.registry import Registry, adapter_of
from counterfoil.providers.tool import tool
from counterfoil.sandbox.client import Sandbox
from counterfoil.sandbox.faults import FAULTS
from counterfoil.testing.stage import TIMEOUT_S, call_of, staged

SLOW = frozenset({"stall_headers", "stall_body", "slow", "slow_after_commit"})
HARMLESS = frozenset({"answer", "duplicate_delivery", "slow_after_commit", "504_then_commit_after"})
READ_FAULTS = sorted(set(FAULTS) - HARMLESS)
STRIPE_AUTH = {"Authorization": "Bearer sk_test_sandbox"}

ByHand = Callable[[Sandbox, str], requests.Response]


@dataclass(frozen=True, kw_only=True)
class Resource:
    """One tool, where its reading is seen, and how a person changes what it is about (given the earlier receipt)."""

    tool: str
    provider: str
    operation: str
    by_hand: ByHand

    def __str__(self) -> str:
        return self.tool


def stripe(path: str, **form: str) -> ByHand:
    """A person at Stripe's dashboard; `{id}` is the PaymentIntent."""
    return lambda sandbox, intent: requests.post(
        f"{sandbox.stripe.url}/v1/{path.format(id=intent)}",
        data={name: value.format(id=intent) for name, value in form.items()},
        headers=STRIPE_AUTH,
        timeout=3,
    )


def jira(method: str, path: str, body: dict[str, Any]) -> ByHand:
    """A person in Jira's page; `{id}` is the ticket."""
    return lambda sandbox, issue: requests.request(
        method, f"{sandbox.jira.url}/rest/api/2/issue/{issue}{path}", json=body, auth=("ann", "x"), timeout=3
    )


def zendesk(ticket: dict[str, Any]) -> ByHand:
    """A person at Zendesk's desk."""
    return lambda sandbox, number: requests.put(
        f"{sandbox.zendesk.url}/api/v2/tickets/{number}", json={"ticket": ticket}, timeout=3
    )


def edit_draft(sandbox: Sandbox, draft: str) -> requests.Response:
    return requests.put(f"{sandbox.mail.url}/drafts/{draft}", json={"body": "Other words."}, timeout=3)


RETRIEVE, GET, RETRIEVE_TICKET = "payment_intents.retrieve", "issue.get", "tickets.retrieve"
EDIT = jira("PUT", "", {"fields": {"summary": "Another summary"}})
RESOURCES = [
    Resource(
        tool="stripe_capture", provider="stripe", operation=RETRIEVE, by_hand=stripe("payment_intents/{id}/cancel")
    ),
    Resource(
        tool="stripe_cancel", provider="stripe", operation=RETRIEVE, by_hand=stripe("payment_intents/{id}/capture")
    ),
    Resource(
        tool="stripe_refund",
        provider="stripe",
        operation=RETRIEVE,
        by_hand=stripe("refunds", payment_intent="{id}", amount="100"),
    ),
    Resource(tool="jira_open", provider="jira", operation=GET, by_hand=jira("POST", "/comment", {"body": "Wait."})),
    Resource(tool="jira_close", provider="jira", operation=GET, by_hand=EDIT),
    Resource(tool="jira_comment", provider="jira", operation=GET, by_hand=EDIT),
    Resource(tool="zendesk_note", provider="zendesk", operation=RETRIEVE_TICKET, by_hand=zendesk({"priority": "high"})),
    Resource(
        tool="zendesk_reply",
        provider="zendesk",
        operation=RETRIEVE_TICKET,
        by_hand=zendesk({"comment": {"body": "Where is it?"}}),
    ),
    Resource(
        tool="zendesk_solve", provider="zendesk", operation=RETRIEVE_TICKET, by_hand=zendesk({"status": "pending"})
    ),
    Resource(tool="send_draft", provider="mail", operation="drafts.retrieve", by_hand=edit_draft),
]


@dataclass
class Read:
    """A tool on the sandbox, after what it is about has been made."""

    sandbox: Sandbox
    resource: Resource
    adapter: Adapter
    call: Call
    receipt: str

    def version(self, timeout_s: float = TIMEOUT_S) -> Version | Unreadable:
        return self.adapter.version(self.call, timeout_s=timeout_s)

    def known(self) -> Version:
        """The version, which can be read now; a fault may have left a dead connection in the pool."""
        for _ in range(3):
            reading = self.version()
            if isinstance(reading, Version):
                return reading
        raise AssertionError("unreadable, and no fault is left")

    def requests(self) -> list[Any]:
        return self.sandbox.requests(self.resource.provider)

    def by_hand(self) -> None:
        """Somebody else changes it, a moment later."""
        self.sandbox.advance(1)
        self.resource.by_hand(self.sandbox, self.receipt).raise_for_status()


@pytest.fixture(params=RESOURCES, ids=str)
def read(request: pytest.FixtureRequest, sandbox: Sandbox) -> Read:
    resource: Resource = request.param
    return mail_read(sandbox, resource) if resource.provider == "mail" else client_read(sandbox, resource)


def client_read(sandbox: Sandbox, resource: Resource) -> Read:
    """A shipped tool, by its adapter. As while it is proposed, the call has no key yet."""
    on_stage = staged(SUBJECTS[resource.tool], sandbox)
    of = on_stage.call.of
    assert of is not None
    assert of.receipt is not None
    return Read(sandbox, resource, on_stage.adapter, replace(on_stage.call, key=""), of.receipt)


def mail_read(sandbox: Sandbox, resource: Resource) -> Read:
    """A person's own function, which reads by `of` and by an argument."""
    url = f"{sandbox.mail.url}/drafts"

    def version_of_draft(of: Of, to: str) -> int:
        reply = requests.get(f"{url}/{of.receipt}", timeout=0.4, allow_redirects=False)
        reply.raise_for_status()
        assert reply.status_code == 200
        draft = reply.json()
        assert draft["to"] == to
        version: int = draft["version"]
        return version

    @tool(
        cls="irreversible",
        provider="mail",
        effect="mail",
        target="to",
        once_per=None,
        audience=["customer"],
        uncertain="operator_review",
        resource_version=version_of_draft,
    )
    def send_draft(to: str, *, of: Of) -> dict[str, object]:
        """Send a draft."""
        raise NotImplementedError(to, of)

    registry = Registry()
    registry.add(send_draft.__counterfoil_tool__)  # type: ignore[attr-defined]
    registry.resolve()
    made = requests.post(url, json={"to": "ann@example.test", "body": "Words."}, timeout=3)
    made.raise_for_status()
    receipt = str(made.json()["id"])
    call = Call(
        action_id="act_send",
        tenant="acme",
        account="main",
        tool="send_draft",
        key="",
        arguments={"to": "ann@example.test"},
        target="ann@example.test",
        first_sent_at=None,
        of=Of(action_id="act_first", tool="draft", key="ea" * 16, receipt=receipt, arguments={}),
    )
    return Read(sandbox, resource, adapter_of(registry.get("send_draft")), call, receipt)


def test_a_foreign_change_is_another_version(read: Read) -> None:
    """Whatever somebody else does to it, the text is another one afterwards, and a storable one."""
    before = read.known()
    read.by_hand()
    after = read.known()
    assert before.text != after.text
    assert all(0 < len(version.text) <= 255 for version in (before, after))


def test_nothing_else_changes_the_version(read: Read) -> None:
    """Time, readings and other things of the same kind leave the text as it is."""
    before = read.known()
    read.sandbox.advance(3600)
    other = SUBJECTS["stripe_authorize" if read.resource.provider == "stripe" else "jira_create"]
    made = other.adapter_at(read.sandbox).send(call_of(other, key="0b" * 16), timeout_s=TIMEOUT_S)
    assert isinstance(made, Succeeded)
    assert read.known() == before


def test_a_reading_is_one_get_and_no_effect(read: Read) -> None:
    """One request on the wire, each time: nothing is cached, nothing is written."""
    requests_before, effects = len(read.requests()), len(read.sandbox.effects())
    for number in (1, 2):
        read.known()
        seen = read.requests()[requests_before:]
        assert [(request.method, request.operation) for request in seen] == [("GET", read.resource.operation)] * number
    assert len(read.sandbox.effects()) == effects


@pytest.mark.parametrize("fault", READ_FAULTS)
def test_a_reading_that_fails_is_no_version(read: Read, fault: str) -> None:
    """Whatever goes wrong, by one request, and the next one reads the version that there was."""
    before, requests_before = read.known(), len(read.requests())
    more: dict[str, Any] = {"delay_s": 0.8} if fault in SLOW else {}
    read.sandbox.fault(fault, provider=read.resource.provider, operation=read.resource.operation, **more)
    assert isinstance(read.version(0.4 if fault in SLOW else TIMEOUT_S), Unreadable)
    assert len(read.requests()) - requests_before == 1
    read.sandbox.clear_faults()
    assert read.known() == before


def test_what_makes_its_object_has_no_version(sandbox: Sandbox) -> None:
    """A call about nothing that is there reads nothing, and asks nobody."""
    for name in ("stripe_charge", "stripe_authorize", "jira_create", "jira_stage", "zendesk_create", "ship"):
        subject = SUBJECTS[name]
        reading = subject.adapter_at(sandbox).version(call_of(subject), timeout_s=TIMEOUT_S)
        assert isinstance(reading, Unreadable)
    assert sandbox.requests() == []


def test_our_own_key_on_a_payment_is_no_change(sandbox: Sandbox) -> None:
    """Metadata that a call of ours or of anybody writes on a PaymentIntent moves no money: the version stays."""
    read = client_read(sandbox, RESOURCES[0])
    before = read.known()
    stripe("payment_intents/{id}", **{"metadata[note]": "seen"})(sandbox, read.receipt).raise_for_status()
    assert read.known() == before
