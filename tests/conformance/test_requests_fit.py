"""What goes over the wire to and from Jira and Zendesk, against descriptions made by hand after their public references.

The sandbox and the adapters have one author, so they could agree on something that no provider does. Here each request is
held against the provider's description of it, and each of the sandbox's answers as well.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs

import pytest
from jsonschema import Draft202012Validator, ValidationError
from tests.conformance import test_jira as jira
from tests.conformance import test_jira_data_center as data_center
from tests.conformance import test_zendesk as zendesk
from tests.conformance.exchanges import Exchange, operation_in, recorded

from counterfoil.providers.contract import Fetcher
from counterfoil.providers.jira.client import JiraAdapter
from counterfoil.providers.jira.config import JiraConfig
from counterfoil.providers.outcomes import Rejected, Version
from counterfoil.providers.zendesk.client import ZendeskAdapter
from counterfoil.sandbox.client import Sandbox

SCHEMAS = Path(__file__).parent / "schemas"
TIMEOUT_S = 3.0


@pytest.fixture
def wire(monkeypatch: pytest.MonkeyPatch) -> list[Exchange]:
    """Everything that goes over the wire in this test."""
    return recorded(monkeypatch)


def use_jira(adapter: JiraAdapter, *, staging: bool) -> None:
    """Every tool once, everything that can be asked, and one refusal."""
    ticket = jira.sent(adapter, jira.create(description="Parcel lost."))
    first = jira.create()
    comment = jira.call_of("jira_comment", 2, {"issue": ticket.id, "body": "Parcel lost."})
    written = jira.sent(adapter, comment)
    delete = jira.call_of("jira_delete_comment", 3, {"issue": ticket.id}, jira.of(comment, written.id))
    calls = [first, comment, delete, jira.create(9)]
    if staging:
        staged = jira.sent(adapter, jira.stage(4))
        opened = replace(jira.open_(staged, 5), of=jira.of(jira.stage(4), staged.id))
        jira.sent(adapter, opened)
        calls += [jira.stage(4), opened]
    adapter.lookup(calls, timeout_s=TIMEOUT_S)
    adapter.version(comment, timeout_s=TIMEOUT_S)
    adapter.fetch(first, ticket.id, timeout_s=TIMEOUT_S)
    jira.sent(adapter, delete)
    close = jira.call_of("jira_close", 6, {"order_id": "1182", "reason": "Cancelled."}, jira.of(first, ticket.id))
    jira.sent(adapter, close)
    adapter.lookup([close], timeout_s=TIMEOUT_S)
    assert isinstance(jira.sent(adapter, jira.create(7, issue_type="Riddle")), Rejected)


def use_zendesk(adapter: ZendeskAdapter) -> None:
    """Every tool once, everything that can be asked, and one refusal."""
    create = zendesk.call_of("zendesk_create", 1, zendesk.TICKET)
    ticket = zendesk.sent(adapter, create)
    note = zendesk.call_of("zendesk_note", 2, {"ticket": ticket, "body": "Called."})
    zendesk.sent(adapter, note)
    reply = zendesk.call_of("zendesk_reply", 3, {"ticket": ticket, "body": "On its way."})
    version = adapter.version(reply, timeout_s=TIMEOUT_S)
    assert isinstance(version, Version)
    zendesk.sent(adapter, replace(reply, expected_version=version.text))
    solve = zendesk.call_of("zendesk_solve", 4, {"order_id": "1182", "reason": "Done."}, zendesk.about(create, ticket))
    zendesk.sent(adapter, solve)
    adapter.lookup([create, note, reply, solve], timeout_s=TIMEOUT_S)
    assert isinstance(adapter, Fetcher)
    adapter.fetch(create, ticket, timeout_s=TIMEOUT_S)
    gone = zendesk.call_of("zendesk_note", 5, {"ticket": "999", "body": "Called."})
    assert isinstance(adapter.send(gone, timeout_s=TIMEOUT_S), Rejected)


class Description:
    """One provider's requests and answers, as its public reference describes them."""

    def __init__(self, name: str) -> None:
        self._document = json.loads((SCHEMAS / f"{name}.json").read_text())
        self.operations: dict[str, Any] = self._document["operations"]

    def check(self, exchange: Exchange) -> str:
        """Raises for what does not fit; the operation's name."""
        name = operation_in(exchange, self.operations, base=self._document["base"])
        described = self.operations[name]
        self._fits(self._document["error"] if exchange.status >= 400 else described.get("reply"), exchange.reply)
        assert exchange.status in (described["status"], *range(400, 500))
        self._fits(described.get("body"), json.loads(exchange.body) if exchange.body else None)
        query = parse_qs(exchange.query, keep_blank_values=True)
        lists = {n for n, s in described.get("query", {}).get("properties", {}).items() if s.get("type") == "array"}
        flat = {n: values if n in lists else values[0] for n, values in query.items()}
        assert all(len(values) == 1 or n in lists for n, values in query.items())
        self._fits(described.get("query"), flat or ({} if "query" in described else None))
        if "headers" in described:
            keys = {n: value for n, value in exchange.headers.items() if n == "idempotency-key"}
            self._fits(described["headers"], keys)
        return name

    def _fits(self, schema: Any, value: Any) -> None:
        if schema is None:
            assert value is None
        else:
            Draft202012Validator({**schema, "$defs": self._document["$defs"]}).validate(value)


def use_jira_cloud(sandbox: Sandbox) -> None:
    site = JiraConfig(server=sandbox.jira.url, email="bot@example.test", token="t", staging_transition="51")
    use_jira(JiraAdapter(site), staging=True)


def use_jira_data_center(sandbox: Sandbox) -> None:
    sandbox.config(jira_deployment="data_center")
    data_center.bare_ticket(sandbox, data_center.PERSON)
    use_jira(JiraAdapter(JiraConfig(server=sandbox.jira.url, token="t", deployment="data_center")), staging=False)


USES: dict[str, Callable[[Sandbox], None]] = {
    "jira_cloud": use_jira_cloud,
    "jira_data_center": use_jira_data_center,
}


@pytest.mark.parametrize("name", USES)
def test_jira_is_asked_and_played_as_atlassian_describes_it(name: str, sandbox: Sandbox, wire: list[Exchange]) -> None:
    """Every request and every answer fits the public reference, and every described operation was used."""
    USES[name](sandbox)
    description = Description(name)
    assert {description.check(exchange) for exchange in wire} == set(description.operations)


def test_zendesk_is_asked_and_played_as_zendesk_describes_it(
    zendesk_adapter: ZendeskAdapter, wire: list[Exchange]
) -> None:
    """Likewise; the key is a header of creations alone."""
    use_zendesk(zendesk_adapter)
    description = Description("zendesk")
    assert {description.check(exchange) for exchange in wire} == set(description.operations)


@pytest.mark.parametrize(
    ("name", "change"),
    [
        ("jira_cloud", {"body": '{"fields": {"summary": "x"}, "colour": "red"}'}),
        ("jira_cloud", {"reply": {"id": "1", "key": "SUP-1", "self": "", "colour": "red"}}),
        ("jira_cloud", {"reply": {"id": 1, "key": "SUP-1", "self": ""}}),
        ("jira_cloud", {"query": "colour=red"}),
        ("zendesk", {"headers": {}}),
        ("zendesk", {"body": '{"ticket": {"comment": {"body": "x", "public": false, "colour": "red"}}}'}),
        ("zendesk", {"reply": {"ticket": {"id": 1}}}),
    ],
)
def test_what_is_not_described_is_seen(
    name: str, change: dict[str, Any], sandbox: Sandbox, zendesk_adapter: ZendeskAdapter, wire: list[Exchange]
) -> None:
    """The comparison finds what it is there for."""
    use_jira_cloud(sandbox) if name == "jira_cloud" else use_zendesk(zendesk_adapter)
    description = Description(name)
    assert description.check(wire[0]).startswith("POST ")
    with pytest.raises((ValidationError, AssertionError)):
        description.check(replace(wire[0], **change))
