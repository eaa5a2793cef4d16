"""Jira and Linear, where one request looks up many calls: what it shows, what it may not show, and what it costs."""

from __future__ import annotations

from dataclasses import replace

import pytest
from tests.conformance import linear_world, test_jira
from tests.conformance.linear_world import ISSUE, TIMEOUT_S

from counterfoil.providers.contract import Call
from counterfoil.providers.jira.client import JiraAdapter
from counterfoil.providers.linear.client import LinearAdapter
from counterfoil.providers.linear.outcomes import mark_of
from counterfoil.providers.outcomes import Absent, Found, Many, Unknown
from counterfoil.sandbox.client import Sandbox

STATE = {"state": {"name": "Todo", "type": "unstarted"}}
STRANGER = {"id": "x", "identifier": "SUP-7", "createdAt": "2026-01-01T00:00:00.000Z", "description": None, **STATE}


def tickets(count: int, *, presence_only: bool = False) -> list[Call]:
    return [replace(test_jira.create(number), presence_only=presence_only) for number in range(count)]


def issues(count: int) -> list[Call]:
    return [linear_world.call_of("linear_create", number, ISSUE) for number in range(count)]


def test_a_hundred_tickets_are_one_search(jira_adapter: JiraAdapter, sandbox: Sandbox) -> None:
    """Those that it shows need no more; the query fits into a URL."""
    calls = tickets(101, presence_only=True)
    for call in calls[:3]:
        test_jira.sent(jira_adapter, call)
    sandbox.advance(5)
    findings = jira_adapter.lookup(calls, timeout_s=TIMEOUT_S)
    assert [type(findings[call.action_id]) for call in calls[:3]] == [Found] * 3
    assert {findings[call.action_id] for call in calls[3:]} == {Absent(complete=False)}
    searches = sandbox.jira.requests("search")
    assert len(searches) == 2
    assert max(len(search.path) + len(search.query) for search in searches) < 8_000


def test_a_removed_label_is_found_when_absence_would_count(jira_adapter: JiraAdapter, sandbox: Sandbox) -> None:
    """The project's recent tickets are read once for the batch: the property tells, the others are absent, wholly."""
    calls = tickets(101)
    ticket = test_jira.sent(jira_adapter, calls[0])
    test_jira.edit(sandbox, ticket.id, {"fields": {"labels": []}})
    sandbox.advance(5)
    findings = jira_adapter.lookup(calls, timeout_s=TIMEOUT_S)
    assert isinstance(findings[calls[0].action_id], Found)
    assert {findings[call.action_id] for call in calls[1:]} == {Absent()}
    assert len(sandbox.jira.requests("search")) == 3


def test_one_without_a_time_spoils_no_other(jira_adapter: JiraAdapter) -> None:
    """Of it nothing is known, of the others what their project's tickets say."""
    first, *others = tickets(3)
    findings = jira_adapter.lookup([replace(first, first_sent_at=None), *others], timeout_s=TIMEOUT_S)
    assert findings[first.action_id] == Unknown("no_send_time")
    assert {findings[call.action_id] for call in others} == {Absent()}


def test_a_throttled_jira_is_asked_no_further(jira_adapter: JiraAdapter, sandbox: Sandbox) -> None:
    """One 429 ends the batch: nothing is known, also of those that were not asked about."""
    sandbox.jira.fault("429_bare", times=None)
    findings = jira_adapter.lookup(tickets(250), timeout_s=TIMEOUT_S)
    assert {type(finding) for finding in findings.values()} == {Unknown}
    assert len(sandbox.jira.requests()) == 1


def test_a_hundred_issues_are_one_reading(linear: LinearAdapter, sandbox: Sandbox) -> None:
    """Issues and comments by id or mark; an issue that somebody has copied with our mark is several."""
    calls = issues(101)
    for call in calls[:3]:
        linear_world.sent(linear, call)
    sandbox.advance(120)
    findings = linear.lookup(calls, timeout_s=TIMEOUT_S)
    assert [type(findings[call.action_id]) for call in calls[:3]] == [Found] * 3
    assert {findings[call.action_id] for call in calls[3:]} == {Absent()}
    assert len(sandbox.linear.requests("issues.list")) == 2


def test_a_copy_with_our_mark_is_several(linear: LinearAdapter, sandbox: Sandbox) -> None:
    """Asked about together as asked about alone."""
    calls = issues(3)
    linear_world.sent(linear, calls[0])
    sandbox.advance(120)
    copy = linear_world.call_of("linear_create", 99, ISSUE | {"description": f"Copied.\n\n{mark_of(calls[0])}"})
    linear_world.sent(linear, copy)
    sandbox.advance(120)
    assert isinstance(linear.lookup(calls, timeout_s=TIMEOUT_S)[calls[0].action_id], Many)
    assert isinstance(linear_world.find(linear, calls[0]), Many)


@pytest.mark.parametrize(
    ("nodes", "more"), [([STRANGER], False), ([], True), ([], None)], ids=["unfiltered", "too many", "no page"]
)
def test_an_answer_to_another_question_is_none(
    linear: LinearAdapter, sandbox: Sandbox, nodes: list[object], more: bool | None
) -> None:
    """Strangers, half a list, or no word of whether it is whole: each is asked about by itself, and none is absent for it."""
    calls = issues(3)
    linear_world.sent(linear, calls[0])
    sandbox.advance(120)
    body = {"data": {"issues": {"nodes": nodes, "pageInfo": {"hasNextPage": more}}}}
    sandbox.linear.fault("answer", on="issues.list", status=200, body=body)
    findings = linear.lookup(calls, timeout_s=TIMEOUT_S)
    assert [type(findings[call.action_id]) for call in calls] == [Found, Absent, Absent]
    assert len(sandbox.linear.requests("issues.list")) == 1 + len(calls)


@pytest.mark.parametrize("fault", ["lookup_429", "html_502"])
def test_a_linear_that_cannot_answer_is_asked_once(linear: LinearAdapter, sandbox: Sandbox, fault: str) -> None:
    """Throttled or down: nothing is known of any, and nobody is asked again."""
    sandbox.linear.fault(fault, times=None)
    findings = linear.lookup(issues(5), timeout_s=TIMEOUT_S)
    assert {type(finding) for finding in findings.values()} == {Unknown}
    assert len(sandbox.linear.requests()) == 1
