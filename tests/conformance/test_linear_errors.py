"""What Linear's errors mean, which come at HTTP 200 as well, and what a reading proves that fails."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import requests
from tests.conformance.linear_world import (
    API_KEY,
    CREATE,
    CREATES,
    ISSUE,
    TIMEOUT_S,
    WRITES,
    call_of,
    find,
)

from counterfoil.providers.linear.client import LinearAdapter
from counterfoil.providers.linear.outcomes import id_of
from counterfoil.providers.outcomes import (
    Absent,
    NotSent,
    Rejected,
    Uncertain,
    Unknown,
)
from counterfoil.sandbox.client import Sandbox


def refusing(code: str, *, named: list[str] | None = None, message: str = "prose", **more: Any) -> dict[str, Any]:
    """A body with one error of that code."""
    extensions: dict[str, Any] = {"code": code, "type": "x", "userPresentableMessage": message}
    if named is not None:
        extensions["validationErrors"] = [{"property": name, "constraints": {"x": message}} for name in named]
    return {"errors": [{"message": message, "path": ["issueCreate"], "extensions": extensions}], **more}


def answered(linear: LinearAdapter, sandbox: Sandbox, status: int, body: Any, **headers: str) -> Any:
    """What a creation is that gets this answer; nothing was done."""
    sandbox.linear.fault("answer", on=CREATE, status=status, body=body, headers=headers)
    outcome = linear.send(CREATES, timeout_s=TIMEOUT_S)
    assert len(sandbox.requests("linear", CREATE)) == 1
    assert sandbox.count("linear_issues") == 0
    return outcome


@pytest.mark.parametrize(
    ("status", "body", "wanted"),
    [
        (401, refusing("AUTHENTICATION_ERROR"), Rejected("unauthenticated")),
        (400, refusing("AUTHENTICATION_ERROR"), Rejected("unauthenticated")),
        (200, refusing("FORBIDDEN", data=None), Rejected("forbidden")),
        (400, refusing("GRAPHQL_VALIDATION_FAILED"), Rejected("invalid_request")),
        (200, refusing("INPUT_ERROR", named=["title"], data=None), Rejected("invalid_request", field="title")),
        (400, refusing("INPUT_ERROR", named=["teamId"]), Rejected("invalid_request", field="team")),
    ],
)
def test_refusals(linear: LinearAdapter, sandbox: Sandbox, status: int, body: Any, wanted: Rejected) -> None:
    """What is on the list is definite, by its code and the argument that it names, at whatever HTTP status."""
    assert answered(linear, sandbox, status, body) == wanted


@pytest.mark.parametrize(
    ("status", "body"),
    [
        (200, refusing("INPUT_ERROR", message="title is invalid", data=None)),
        (400, refusing("INPUT_ERROR", named=[])),
        (400, refusing("INPUT_ERROR", named=["id"])),
        (400, refusing("INPUT_ERROR", named=["title", "id"])),
        (400, refusing("INPUT_ERROR", named=["somethingNew"])),
        (200, refusing("INTERNAL_SERVER_ERROR")),
        (200, refusing("LOCK_TIMEOUT")),
        (200, refusing("USAGE_LIMIT_EXCEEDED")),
        (500, refusing("FORBIDDEN")),
        (503, refusing("RATELIMITED")),
        (409, refusing("INPUT_ERROR", named=["title"])),
        (200, {"errors": [*refusing("FORBIDDEN")["errors"], *refusing("INTERNAL_SERVER_ERROR")["errors"]]}),
        (200, {"errors": [{"message": "no extensions"}]}),
        (200, {"errors": [{**refusing("FORBIDDEN")["errors"][0], "path": None}], "data": None}),
        (200, {"errors": [{**refusing("FORBIDDEN")["errors"][0], "path": "issueCreate"}]}),
        (200, {"errors": [{**refusing("FORBIDDEN")["errors"][0], "path": ["issueCreate", "issue"]}], "data": None}),
        (400, {"errors": [{**refusing("RATELIMITED")["errors"][0], "path": ["issueCreate", "issue", "state"]}]}),
        (200, {"errors": "prose"}),
        (200, {"errors": [], "data": None}),
        (200, {"data": {"issueCreate": None}}),
        (200, {"data": {"issueCreate": {"success": False, "issue": None}}}),
        (200, {"data": {"issueCreate": {"success": True, "issue": None}}}),
        (200, {"data": {"issueCreate": {"success": True, "issue": {"id": "x", "identifier": "SUP-1"}}}}),
        (200, {"data": {"issueCreate": {"success": True, "issue": {"id": id_of(CREATES.key), "identifier": 3}}}}),
        (201, {"data": {"issueCreate": {"success": True, "issue": {"id": id_of(CREATES.key), "identifier": "SUP-1"}}}}),
        (200, refusing("FORBIDDEN", data={"issueCreate": {"success": True, "issue": None}})),
        (429, refusing("RATELIMITED", data={"issueCreate": {"success": True, "issue": None}})),
        (400, "<html>no</html>"),
        (403, "<html>no</html>"),
        (200, "null"),
    ],
)
def test_everything_else_is_uncertain(linear: LinearAdapter, sandbox: Sandbox, status: int, body: Any) -> None:
    """An error without a listed code, data beside errors, a gateway's page, another's id: any of them may have landed."""
    outcome = answered(linear, sandbox, status, body)
    assert isinstance(outcome, Uncertain), outcome
    assert "prose" not in f"{outcome}"
    assert "title" not in f"{outcome}"


@pytest.mark.parametrize(
    ("status", "headers", "wait_s"),
    [(400, {"Retry-After": "7"}, 7.0), (200, {"Retry-After": "5000"}, 900.0), (429, {}, None)],
)
def test_rate_limits(
    linear: LinearAdapter, sandbox: Sandbox, status: int, headers: dict[str, str], wait_s: float | None
) -> None:
    """RATELIMITED comes with several statuses: tried later, as late as Linear says, within our bound."""
    outcome = answered(linear, sandbox, status, refusing("RATELIMITED"), **headers)
    assert outcome == Rejected("rate_limited", retryable=True, retry_after_s=wait_s)


def test_a_reading_that_fails_before_the_write(linear: LinearAdapter, sandbox: Sandbox) -> None:
    """Nothing was sent, and that is certain."""
    sandbox.linear.fault("429_retry_after", on="teams.list")
    assert linear.send(CREATES, timeout_s=TIMEOUT_S) == NotSent("before_write_rate_limited", retry_after_s=2.0)
    sandbox.linear.fault("answer", on="teams.list", status=200, body=refusing("INTERNAL_SERVER_ERROR"))
    assert linear.send(CREATES, timeout_s=TIMEOUT_S) == NotSent("before_write_malformed")
    assert sandbox.requests("linear", CREATE) == []


def test_what_does_not_exist_is_refused_with_its_argument(linear: LinearAdapter, sandbox: Sandbox) -> None:
    """A team or issue that Linear does not have is the model's mistake, and nothing is written."""
    create = replace(CREATES, arguments=ISSUE | {"team": "NOPE"})
    assert linear.send(create, timeout_s=TIMEOUT_S) == Rejected("not_found", field="team")
    comment = call_of("linear_comment", 2, {"issue": "SUP-99", "body": "Called."})
    assert linear.send(comment, timeout_s=TIMEOUT_S) == Rejected("not_found", field="issue")
    assert not [r for r in sandbox.requests("linear") if r.operation in WRITES]


def test_a_list_that_ignores_its_filter_proves_nothing(linear: LinearAdapter, sandbox: Sandbox) -> None:
    """All issues instead of ours are no several of ours, and no absence; nor is half an issue."""
    whole = {"id": "x", "identifier": "SUP-7", "createdAt": "2026-01-01T00:00:00.000Z", "description": None}
    state = {"state": {"name": "Todo", "type": "unstarted"}}
    for node, code in ((whole | state, "unfiltered"), (whole, "malformed"), ({}, "malformed"), (None, "malformed")):
        body = {"data": {"issues": {"nodes": [node]}}}
        sandbox.linear.fault("answer", on="issues.list", status=200, body=body)
        assert find(linear, CREATES) == Unknown(code)
    sandbox.linear.fault("answer", on="issues.list", status=200, body={"data": {"issues": None}})
    assert find(linear, CREATES) == Unknown("malformed")
    partial = refusing("INTERNAL_SERVER_ERROR", data={"issues": {"nodes": []}})
    sandbox.linear.fault("answer", on="issues.list", status=200, body=partial)
    assert find(linear, CREATES) == Unknown("malformed")
    assert find(linear, CREATES) == Absent()


def test_faults_of_readings_and_of_operations(linear: LinearAdapter, sandbox: Sandbox) -> None:
    """Behind one path the sandbox tells operations apart by the document: a fault for readings meets no write."""
    sandbox.linear.fault("lookup_429", times=None)
    assert find(linear, CREATES) == Unknown("rate_limited")
    make_only = (
        "mutation M($i: IssueCreateInput!) { made: issueCreate(input: $i) { success } } query Q { viewer { id } }"
    )
    team = "0"
    reply = requests.post(
        f"{sandbox.linear.url}/graphql",
        json={"query": make_only, "variables": {"i": {"teamId": team, "title": "x"}}, "operationName": "M"},
        headers={"Authorization": API_KEY},
        timeout=3,
    )
    [error] = reply.json()["errors"]
    assert error["extensions"]["validationErrors"] == [{"property": "teamId"}]
    assert sandbox.requests("linear")[-1].operation == CREATE
    assert sandbox.requests("linear")[-1].fault is None


@pytest.mark.parametrize(
    ("body", "status", "code"),
    [
        ({"query": "{ nothing }"}, 400, "GRAPHQL_VALIDATION_FAILED"),
        ({"query": "{"}, 400, "GRAPHQL_VALIDATION_FAILED"),
        ({}, 400, "GRAPHQL_VALIDATION_FAILED"),
        ({"query": "query($n: String!) { issue(id: $n) { id } }"}, 400, "BAD_USER_INPUT"),
        ({"query": '{ issue(id: "SUP-9") { id } }'}, 200, "INPUT_ERROR"),
    ],
)
def test_the_sandbox_checks_documents(sandbox: Sandbox, body: dict[str, Any], status: int, code: str) -> None:
    """Only what fits the schema is executed; errors are in Linear's form."""
    headers = {"Authorization": API_KEY}
    reply = requests.post(f"{sandbox.linear.url}/graphql", json=body, headers=headers, timeout=3)
    assert reply.status_code == status
    assert reply.json()["errors"][0]["extensions"]["code"] == code
    reply = requests.post(f"{sandbox.linear.url}/graphql", json=body, timeout=3)
    assert reply.status_code == 401
