"""What the tests of Linear share: calls of its tools, and the other hands in the same workspace."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

import requests

from counterfoil.providers.contract import Call, Of
from counterfoil.providers.linear.client import LinearAdapter
from counterfoil.providers.linear.config import LinearConfig
from counterfoil.providers.outcomes import (
    Finding,
    Found,
    Json,
    Succeeded,
)
from counterfoil.providers.registry import Registry
from counterfoil.sandbox.client import Sandbox

TOOLS = Registry.load(["counterfoil.providers.linear.tools"])
TIMEOUT_S = 3.0
API_KEY = "lin_api_sandbox"
ISSUE: dict[str, Json] = {"team": "SUP", "title": "Reship 1182", "description": "Parcel *lost*.", "order_id": "1182"}
CREATE, UPDATE, COMMENT, DELETE = "issues.create", "issues.update", "comments.create", "comments.delete"
WRITES = (CREATE, UPDATE, COMMENT, DELETE)


def adapter_of(sandbox: Sandbox, read_lag_s: float = 0) -> LinearAdapter:
    return LinearAdapter(LinearConfig(api_key=API_KEY, base_url=sandbox.linear.url, read_lag_s=read_lag_s))


def call_of(
    name: str, number: int, arguments: Mapping[str, Json], of: Of | None = None, at: float | None = None
) -> Call:
    return Call(
        action_id=f"act_{number}",
        tenant="acme",
        account="main",
        tool=name,
        key=f"{number:032x}",
        arguments=TOOLS.get(name).validate(arguments),
        target=str(arguments.get("issue", "1182")),
        first_sent_at=datetime.now(UTC) if at is None else datetime.fromtimestamp(at, UTC),
        of=of,
    )


CREATES = call_of("linear_create", 1, ISSUE)


def about(call: Call, receipt: str | None) -> Of:
    return Of(action_id=call.action_id, tool=call.tool, key=call.key, receipt=receipt, arguments=call.arguments)


def closes(number: int, receipt: str | None, reason: str = "") -> Call:
    return call_of("linear_close", number, {"order_id": "1182", "reason": reason}, about(CREATES, receipt))


def sent(adapter: LinearAdapter, call: Call) -> str:
    outcome = adapter.send(call, timeout_s=TIMEOUT_S)
    assert isinstance(outcome, Succeeded), outcome
    return outcome.id


def find(adapter: LinearAdapter, call: Call) -> Finding:
    return adapter.lookup([call], timeout_s=TIMEOUT_S)[call.action_id]


def fetched(adapter: LinearAdapter, call: Call, receipt: str) -> Finding:
    return adapter.fetch(call, receipt, timeout_s=TIMEOUT_S)


def is_done(finding: Finding, receipt: str) -> bool:
    """Found, as it was asked for, and done."""
    done = isinstance(finding, Found) and finding.as_intended and isinstance(finding.outcome, Succeeded)
    return done and isinstance(finding, Found) and getattr(finding.outcome, "id", None) == receipt


def hand(sandbox: Sandbox, document: str, **variables: Any) -> Any:
    """Somebody else in the same workspace."""
    reply = requests.post(
        f"{sandbox.linear.url}/graphql",
        json={"query": document, "variables": variables},
        headers={"Authorization": API_KEY},
        timeout=3,
    )
    body = reply.json()
    assert "errors" not in body, body
    return next(iter(body["data"].values()))


def team_of(sandbox: Sandbox, key: str = "SUP") -> str:
    [team] = hand(sandbox, "query($k: String!) { teams(filter: {key: {eq: $k}}) { nodes { id } } }", k=key)["nodes"]
    return str(team["id"])


def make(sandbox: Sandbox, **given: Any) -> str:
    """Somebody else's issue; its identifier."""
    document = "mutation($i: IssueCreateInput!) { issueCreate(input: $i) { issue { identifier } } }"
    return str(hand(sandbox, document, i={"teamId": team_of(sandbox), **given})["issue"]["identifier"])


def change(sandbox: Sandbox, issue: str, **given: Any) -> None:
    """Somebody else's edit."""
    document = "mutation($n: String!, $i: IssueUpdateInput!) { issueUpdate(id: $n, input: $i) { success } }"
    hand(sandbox, document, n=issue, i=given)


def state_of(sandbox: Sandbox, issue: str) -> str:
    return str(hand(sandbox, "query($n: String!) { issue(id: $n) { state { name } } }", n=issue)["state"]["name"])


def move(sandbox: Sandbox, issue: str, state: str) -> None:
    """Somebody else moves the issue to that state of its team."""
    document = "query($s: String!) { teams { nodes { states(filter: {name: {eq: $s}}) { nodes { id } } } } }"
    states = hand(sandbox, document, s=state)["nodes"][0]["states"]["nodes"]
    change(sandbox, issue, stateId=states[0]["id"])
