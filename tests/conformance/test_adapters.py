"""The one suite that every adapter passes: each fault, one request on the wire, the outcome by the table, then the finding.

A new provider adds a `Subject`. The oracle is the sandbox's durable effects, never the adapter's own answer.
"""

from __future__ import annotations

import time
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
import requests

from counterfoil.providers.contract import Adapter, Call, Of
from counterfoil.providers.http.config import HttpConfig
from counterfoil.providers.jira.config import JiraConfig
from counterfoil.providers.outcomes import (
    Absent,
    Finding,
    Found,
    Json,
    Many,
    NotSent,
    Outcome,
    Rejected,
    Succeeded,
    Uncertain,
    Unknown,
)
from counterfoil.providers.registry import Registry, adapter_of
from counterfoil.providers.stripe.config import StripeConfig
from counterfoil.providers.tool import SPEC_ATTRIBUTE, tool
from counterfoil.providers.zendesk.config import ZendeskConfig
from counterfoil.sandbox.client import Sandbox
from counterfoil.sandbox.faults import FAULTS, Commit
from counterfoil.settings import Settings

TIMEOUT_S = 3.0
SLOW_TIMEOUT_S = 0.4
SLOW_S = 0.8
"""A fault's delay, longer than the client waits."""
WAIT_S = 10.0
HTTP = Settings(**tomllib.loads((Path(__file__).parent / "http_tools.toml").read_text())).http
TOOLS = Registry.load([f"counterfoil.providers.{name}.tools" for name in ("stripe", "jira", "zendesk")], HTTP)
KEY, EARLIER_KEY = "c0" * 16, "ea" * 16

THROTTLED = {"429_retry_after": 2.0, "429_http_date": 60.0, "429_bare": None, "429_lock_timeout": None}
SLOW = frozenset({"stall_headers", "stall_body", "slow", "slow_after_commit"})
READ_FAULTS = frozenset({"search_500", "lookup_429"})
WRITE_FAULTS = sorted(set(FAULTS) - READ_FAULTS - {"answer", "duplicate_delivery"})


@dataclass(frozen=True, kw_only=True)
class Subject:
    """One tool under test: how to call it, and where the sandbox counts what it did."""

    name: str
    arguments: Mapping[str, Json]
    target: str
    provider: str
    operation: str
    effect: str
    after: str | None = None
    """The subject that must have happened first: what this call's `of` is."""
    deduplicates: bool = False
    """A request delivered twice is one effect: the provider knows our key, or the move is no longer offered."""
    unread_success: frozenset[str] = field(default_factory=frozenset)
    """Faults that do not hurt, because the success has no body."""
    lookup_operation: str = ""

    def __str__(self) -> str:
        return self.name


NO_BODY = frozenset({"empty_2xx", "204", "html_2xx", "bad_json_2xx", "object_2xx", "truncate_body", "stall_body"})
SUBJECTS = {
    subject.name: subject
    for subject in (
        Subject(
            name="stripe_charge",
            arguments={"customer": "cus_1", "amount_minor": 500, "currency": "usd", "order_id": "1182"},
            target="1182",
            provider="stripe",
            operation="payment_intents.create",
            effect="charge",
            deduplicates=True,
            lookup_operation="payment_intents.list",
        ),
        Subject(
            name="stripe_refund",
            arguments={"order_id": "1182", "amount_minor": 200},
            target="1182",
            provider="stripe",
            operation="refunds.create",
            effect="refund",
            after="stripe_charge",
            deduplicates=True,
            lookup_operation="refunds.list",
        ),
        Subject(
            name="stripe_authorize",
            arguments={"customer": "cus_1", "amount_minor": 500, "currency": "usd", "order_id": "1182"},
            target="1182",
            provider="stripe",
            operation="payment_intents.create",
            effect="authorization",
            deduplicates=True,
            lookup_operation="payment_intents.list",
        ),
        Subject(
            name="stripe_capture",
            arguments={"order_id": "1182", "amount_minor": 300},
            target="1182",
            provider="stripe",
            operation="payment_intents.capture",
            effect="charge",
            after="stripe_authorize",
            deduplicates=True,
            lookup_operation="payment_intents.retrieve",
        ),
        Subject(
            name="stripe_cancel",
            arguments={"order_id": "1182"},
            target="1182",
            provider="stripe",
            operation="payment_intents.cancel",
            effect="cancellation",
            after="stripe_authorize",
            deduplicates=True,
            lookup_operation="payment_intents.retrieve",
        ),
        Subject(
            name="jira_create",
            arguments={"project": "SUP", "summary": "Reship 1182", "order_id": "1182"},
            target="1182",
            provider="jira",
            operation="issue.create",
            effect="ticket",
            lookup_operation="search",
        ),
        Subject(
            name="jira_stage",
            arguments={"project": "SUP", "summary": "Reship 1182", "order_id": "1182"},
            target="1182",
            provider="jira",
            operation="issue.create",
            effect="ticket",
            lookup_operation="search",
        ),
        Subject(
            name="jira_open",
            arguments={"order_id": "1182"},
            target="1182",
            provider="jira",
            operation="issue.transition",
            effect="transition",
            after="jira_stage",
            deduplicates=True,
            unread_success=NO_BODY,
            lookup_operation="issue.get",
        ),
        Subject(
            name="jira_comment",
            arguments={"issue": "SUP-1", "body": "Parcel lost."},
            target="SUP-1",
            provider="jira",
            operation="issue.comment",
            effect="comment",
            after="jira_create",
            lookup_operation="issue.comments",
        ),
        Subject(
            name="jira_close",
            arguments={"order_id": "1182"},
            target="1182",
            provider="jira",
            operation="issue.transition",
            effect="transition",
            after="jira_create",
            deduplicates=True,
            unread_success=NO_BODY,
            lookup_operation="issue.get",
        ),
        Subject(
            name="zendesk_create",
            arguments={"subject": "Reship 1182", "body": "Parcel lost.", "order_id": "1182"},
            target="1182",
            provider="zendesk",
            operation="tickets.create",
            effect="ticket",
            deduplicates=True,
            lookup_operation="tickets.list",
        ),
        Subject(
            name="zendesk_note",
            arguments={"ticket": "1", "body": "Parcel lost."},
            target="1",
            provider="zendesk",
            operation="tickets.update",
            effect="note",
            after="zendesk_create",
            lookup_operation="tickets.audits",
        ),
        Subject(
            name="zendesk_reply",
            arguments={"ticket": "1", "body": "We send you another."},
            target="1",
            provider="zendesk",
            operation="tickets.update",
            effect="customer_mail",
            after="zendesk_create",
            lookup_operation="tickets.audits",
        ),
        Subject(
            name="zendesk_solve",
            arguments={"order_id": "1182"},
            target="1182",
            provider="zendesk",
            operation="tickets.update",
            effect="solution",
            after="zendesk_create",
            deduplicates=True,
            lookup_operation="tickets.retrieve",
        ),
        Subject(
            name="ship",
            arguments={"order_id": "1182", "sku": "kettle"},
            target="1182",
            provider="warehouse",
            operation="shipments.create",
            effect="shipment",
            deduplicates=True,
            lookup_operation="shipments.list",
        ),
        Subject(
            name="http_ship",
            arguments={"order_id": "1182", "sku": "kettle"},
            target="1182",
            provider="warehouse",
            operation="shipments.create",
            effect="shipment",
            deduplicates=True,
            lookup_operation="shipments.list",
        ),
        Subject(
            name="http_unship",
            arguments={"order_id": "1182"},
            target="1182",
            provider="warehouse",
            operation="shipments.cancel",
            effect="shipment_cancellation",
            after="http_ship",
            deduplicates=True,
            lookup_operation="shipments.retrieve",
        ),
    )
}


@dataclass
class Stage:
    """A subject on the sandbox, with whatever must have happened before it."""

    sandbox: Sandbox
    subject: Subject
    adapter: Adapter
    call: Call

    def send(self, timeout_s: float = TIMEOUT_S) -> Outcome:
        return self.adapter.send(self.call, timeout_s=timeout_s)

    def lookup(self) -> Finding:
        return self.adapter.lookup([self.call], timeout_s=TIMEOUT_S)[self.call.action_id]

    def settled_lookup(self) -> Finding:
        """Asks again after Unknown, as the reconciler does: a fault may have left a dead connection in the pool."""
        for _ in range(3):
            finding = self.lookup()
            if not isinstance(finding, Unknown):
                return finding
        raise AssertionError(finding)

    def attempts(self) -> int:
        return len(self.sandbox.requests(self.subject.provider, self.subject.operation))

    def effects(self) -> int:
        return len(self.sandbox.effects(self.subject.effect, provider=self.subject.provider))

    def wait_for_effects(self, wanted: int) -> None:
        deadline = time.monotonic() + WAIT_S
        while self.effects() != wanted and time.monotonic() < deadline:
            self.sandbox.requests()
        assert self.effects() == wanted


def call_of(subject: Subject, arguments: Mapping[str, Json], *, key: str = KEY, of: Of | None = None) -> Call:
    return Call(
        action_id=f"act_{subject.name}",
        tenant="acme",
        account="main",
        tool=subject.name,
        key=key,
        arguments=arguments,
        target=subject.target,
        first_sent_at=datetime.now(UTC),
        of=of,
    )


def make_adapter(subject: Subject, sandbox: Sandbox) -> Adapter:
    match subject.provider:
        case "stripe":
            config = StripeConfig(api_key="sk_test_sandbox", base_url=sandbox.stripe.url)
            return adapter_of(TOOLS.get(subject.name), config)
        case "jira":
            site = JiraConfig(
                server=sandbox.jira.url, email="bot@example.test", token="sandbox", staging_transition="51"
            )
            return adapter_of(TOOLS.get(subject.name), site)
        case "zendesk":
            desk = ZendeskConfig(server=sandbox.zendesk.url, email="bot@example.test", token="sandbox")
            return adapter_of(TOOLS.get(subject.name), desk)
        case _ if subject.name in HTTP:
            return adapter_of(TOOLS.get(subject.name), HttpConfig(base_url=sandbox.warehouse.url, tools=HTTP))
        case _:
            return adapter_of(warehouse_tool(sandbox.warehouse.url))


def warehouse_tool(url: str) -> Any:
    """A person's own function, as in the README."""

    def find(key: str, *, sent_at: datetime) -> list[dict[str, object]]:
        answer = requests.get(f"{url}/shipments", params={"key": key}, timeout=2, allow_redirects=False)
        answer.raise_for_status()
        found: list[dict[str, object]] = answer.json()["shipments"]
        return found

    def ship(order_id: str, sku: str, *, key: str) -> dict[str, object]:
        answer = requests.post(
            f"{url}/shipments",
            json={"order": order_id, "sku": sku},
            headers={"Idempotency-Key": key},
            timeout=SLOW_TIMEOUT_S,
            allow_redirects=False,
        )
        answer.raise_for_status()
        shipment: dict[str, object] = answer.json()
        return shipment

    declare = tool(
        cls="reversible",
        effect="shipment",
        target="order_id",
        audience=[],
        undo=None,
        lookup=find,
        native_key_ttl_s=3600,
    )
    return getattr(declare(ship), SPEC_ATTRIBUTE)


@pytest.fixture(params=SUBJECTS.values(), ids=str)
def stage(request: pytest.FixtureRequest, sandbox: Sandbox) -> Stage:
    subject: Subject = request.param
    adapter = make_adapter(subject, sandbox)
    of = None
    if subject.after is not None:
        first = SUBJECTS[subject.after]
        arguments = TOOLS.get(first.name).validate(first.arguments)
        done = adapter.send(call_of(first, arguments, key=EARLIER_KEY), timeout_s=TIMEOUT_S)
        assert isinstance(done, Succeeded)
        of = Of(action_id="act_first", tool=first.name, key=EARLIER_KEY, receipt=done.id, arguments=arguments)
    spec = TOOLS.find(subject.name)
    arguments = spec.validate(subject.arguments) if spec else dict(subject.arguments)
    return Stage(sandbox, subject, adapter, call_of(subject, arguments, of=of))


def test_a_plain_call_succeeds_once_and_is_found(stage: Stage) -> None:
    """No fault: one request, one effect under our key, and the look-up finds the same receipt."""
    outcome = stage.send()
    assert isinstance(outcome, Succeeded)
    assert (stage.attempts(), stage.effects()) == (1, 1)
    finding = stage.lookup()
    assert isinstance(finding, Found)
    assert isinstance(finding.outcome, Succeeded)
    assert finding.outcome.id == outcome.id


def test_nothing_sent_is_absent(stage: Stage) -> None:
    """A complete look-up before any send shows nothing, and writes nothing."""
    assert stage.lookup() == Absent()
    assert (stage.attempts(), stage.effects()) == (0, 0)


@pytest.mark.parametrize("fault", WRITE_FAULTS)
@pytest.mark.case("E1")
def test_a_fault_is_one_request_and_is_judged_by_the_table(stage: Stage, fault: str) -> None:
    """Exactly one request leaves; throttling is retryable, all else uncertain; the look-up then finds what is there."""
    more = {"delay_s": SLOW_S} if fault in SLOW or FAULTS[fault].commit is Commit.LATER else {}
    stage.sandbox.fault(fault, provider=stage.subject.provider, operation=stage.subject.operation, **more)
    outcome = stage.send(SLOW_TIMEOUT_S if fault in SLOW else TIMEOUT_S)
    assert stage.attempts() == 1
    if fault in THROTTLED:
        assert isinstance(outcome, Rejected)
        assert outcome.retryable
        assert outcome.retry_after_s == (pytest.approx(THROTTLED[fault], abs=2) if THROTTLED[fault] else None)
    elif fault in stage.subject.unread_success:
        assert isinstance(outcome, Succeeded)
    else:
        assert isinstance(outcome, Uncertain), outcome
    committed = FAULTS[fault].commit
    if committed is Commit.LATER:
        assert stage.settled_lookup() == Absent()
        stage.sandbox.advance(SLOW_S)
    stage.wait_for_effects(1 if committed in (Commit.YES, Commit.LATER) else 0)
    finding = stage.settled_lookup()
    if committed in (Commit.YES, Commit.LATER):
        assert isinstance(finding, Found)
        assert isinstance(finding.outcome, Succeeded)
    else:
        assert finding == Absent()
    assert stage.attempts() == 1


def test_a_request_delivered_twice_is_one_effect_or_seen_as_two(stage: Stage) -> None:
    """A provider with our key does it once; one without shows both, and that is nobody's to decide but a person's."""
    stage.sandbox.fault("duplicate_delivery", provider=stage.subject.provider, operation=stage.subject.operation)
    stage.send()
    assert stage.attempts() == 1
    finding = stage.lookup()
    if stage.subject.deduplicates:
        assert stage.effects() == 1
        assert isinstance(finding, Found)
    else:
        assert stage.effects() == 2
        assert isinstance(finding, Many)
        assert len(set(finding.receipts)) == 2


@pytest.mark.parametrize(
    "fault", ["500_unstored", "html_502", "429_bare", "302_login", "rst_after_commit", "object_2xx"]
)
def test_a_failed_lookup_is_never_absence(stage: Stage, fault: str) -> None:
    """Whatever goes wrong with the look-up, it does not say that nothing is there."""
    stage.sandbox.fault(fault, provider=stage.subject.provider, operation=stage.subject.lookup_operation)
    assert isinstance(stage.lookup(), Unknown)


def test_a_provider_that_is_down_was_not_sent_to(stage: Stage) -> None:
    """Nobody listens: NotSent from a send, Unknown from a look-up."""
    if stage.subject.name == "ship":
        adapter = adapter_of(warehouse_tool("http://127.0.0.1:9"))
    else:
        adapter = make_adapter(stage.subject, Sandbox("http://127.0.0.1:9"))
    assert isinstance(adapter.send(stage.call, timeout_s=TIMEOUT_S), NotSent)
    finding = adapter.lookup([stage.call], timeout_s=TIMEOUT_S)[stage.call.action_id]
    assert isinstance(finding, Unknown)


@pytest.mark.parametrize(
    ("status", "headers"), [(408, {}), (409, {}), (500, {}), (503, {"Retry-After": "1"}), (599, {})]
)
def test_an_unlisted_status_is_uncertain(stage: Stage, status: int, headers: dict[str, str]) -> None:
    """A status that is on no list proves nothing, even with the provider's own error body."""
    subject = stage.subject
    stage.sandbox.fault(
        "answer", provider=subject.provider, operation=subject.operation, status=status, headers=headers
    )
    assert isinstance(stage.send(), Uncertain)
    assert stage.attempts() == 1


@pytest.mark.parametrize("status", [400, 401, 403, 404])
def test_a_listed_refusal_is_definite(stage: Stage, status: int) -> None:
    """The provider's own refusal settles the attempt, for good."""
    subject = stage.subject
    stage.sandbox.fault("answer", provider=subject.provider, operation=subject.operation, status=status)
    outcome = stage.send()
    assert isinstance(outcome, Rejected)
    assert not outcome.retryable
    assert (stage.attempts(), stage.effects()) == (1, 0)
