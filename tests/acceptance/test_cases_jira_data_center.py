"""Handed cases at Jira Data Center: two nodes that know a ticket at different times, and keys that somebody takes off it."""

from __future__ import annotations

from typing import Any

import pytest
import requests

from counterfoil.testing import World

TICKET = {"project": "SUP", "summary": "Reship 1182", "order_id": "1182", "description": "Parcel lost."}
INDEX_LAG_S = 2.0
"""More than the world's index needs: what was written over is no longer found."""
STATE = "jira_create/s1/do"


@pytest.fixture(autouse=True)
def data_center(world: World, configure: Any) -> None:
    """The world's Jira is a Data Center, reached with a personal access token."""
    world.sandbox.config(jira_deployment="data_center")
    configure("jira", deployment="data_center", email=None)


def edited(world: World, **fields: object) -> None:
    """What a person writes over the one ticket."""
    [ticket] = world.sandbox.effects("ticket")
    url = f"{world.sandbox.jira.url}/rest/api/2/issue/{ticket.object_id}"
    requests.put(url, json={"fields": fields}, timeout=10).raise_for_status()


@pytest.mark.case("E1")
@pytest.mark.parametrize("fault", ["rst_after_commit", "rst_before_commit", "504_then_commit_after"])
def test_a_lost_answer_is_one_ticket_on_any_node(world: World, enqueue: Any, fault: str) -> None:
    """Whether the ticket was made, was not, or is made a minute later: it ends as one, whichever node is asked."""
    more = {"delay_s": 60} if fault == "504_then_commit_after" else {}
    world.sandbox.config(search_lag_s={"jira": 100})
    world.sandbox.jira.fault(fault, on="issue.create", **more)
    enqueue("jira_create", TICKET)
    world.settle()
    assert world.states() == {STATE: "succeeded"}
    assert world.sandbox.count("tickets_created") == 1


@pytest.mark.case("E4")
def test_a_label_that_somebody_removed(world: World, enqueue: Any, passed: Any) -> None:
    """The row never becomes ready: the description's last line finds the ticket."""
    world.sandbox.jira.fault("504_after_commit", on="issue.create")
    action_id = enqueue("jira_create", TICKET)
    world.work()
    edited(world, labels=[])
    world.advance(INDEX_LAG_S)
    world.settle()
    assert world.states() == {STATE: "succeeded"}
    assert "ready" not in passed(action_id)[1:]
    assert len(world.sandbox.requests("jira", "issue.create")) == world.sandbox.count("tickets_created") == 1


@pytest.mark.case("E4")
def test_a_ticket_on_which_nothing_of_ours_is_left(world: World, enqueue: Any, passed: Any) -> None:
    """Label and description are rewritten: nobody can tell any more, so a person does, and nothing is sent again."""
    world.sandbox.jira.fault("504_after_commit", on="issue.create")
    action_id = enqueue("jira_create", TICKET)
    world.work()
    edited(world, labels=["urgent"], description="Rewritten.")
    world.advance(INDEX_LAG_S)
    world.settle()
    assert world.states() == {STATE: "operator_review"}
    assert "ready" not in passed(action_id)[1:]
    assert len(world.sandbox.requests("jira", "issue.create")) == world.sandbox.count("tickets_created") == 1
