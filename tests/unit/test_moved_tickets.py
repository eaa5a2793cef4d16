"""A ticket that people move to another project or team gets another name: it is the one on record, and no second effect."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from counterfoil.ledger.states import State
from counterfoil.providers.contract import Call
from counterfoil.providers.jira.lookups import JiraLookups
from counterfoil.providers.linear.outcomes import issue_finding, mark_of
from counterfoil.providers.outcomes import Finding
from counterfoil.reconciler.watched import Duplicate, NothingNew, meaning

KEY = "0123456789abcdef" * 2


def call(tool: str, **arguments: Any) -> Call:
    return Call(
        action_id="act_1", tenant="acme", account="default", tool=tool, key=KEY, arguments=arguments, target="1182",
        first_sent_at=None,
    )  # fmt: skip


def in_jira(key: str) -> Finding:
    """What is found of a ticket that was made in SUP."""
    ticket = {"id": "1", "key": key, "fields": {"labels": [f"cf-{KEY}"], "status": {"name": "To Do"}}}
    reads: Any = SimpleNamespace(tickets_with_labels=lambda keys: [ticket])
    config: Any = SimpleNamespace(is_cloud=True, staging_status="Staged")
    return JiraLookups(reads, config).find([call("jira_create", project="SUP")])["act_1"]


def in_linear(identifier: str, *earlier: str) -> Finding:
    """What is found of an issue."""
    made = call("linear_create", team="SUP")
    issue = {"id": "1", "identifier": identifier, "previousIdentifiers": list(earlier), "description": mark_of(made),
             "state": {"name": "Todo", "type": "unstarted"}, "createdAt": "2026-01-01T00:00:00.000Z"}  # fmt: skip
    return issue_finding(made, [issue])


@pytest.mark.parametrize("finding", [in_jira("OPS-7"), in_linear("OPS-7", "SUP-1")])
def test_it_was_moved(finding: Finding) -> None:
    assert meaning(State.SUCCEEDED, "SUP-1", finding, moved=False) == NothingNew()


@pytest.mark.parametrize("finding", [in_jira("SUP-2"), in_linear("SUP-2")])
def test_it_is_another(finding: Finding) -> None:
    assert isinstance(meaning(State.SUCCEEDED, "SUP-1", finding, moved=False), Duplicate)
