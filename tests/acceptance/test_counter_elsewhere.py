"""Counter-actions where the same name is somebody else's ticket or comment by now: a site was restored, or replaced."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
import requests

from counterfoil.providers.jira import tools as jira
from counterfoil.providers.zendesk import tools as zendesk

if TYPE_CHECKING:
    from counterfoil.testing import World

LOGIN = ("bot@example.test", "t")


def posted(url: str, body: object) -> None:
    """What another person makes there."""
    requests.post(url, json=body, auth=LOGIN, timeout=5).raise_for_status()


def theirs_in_jira(world: World, *, comment: bool = False) -> None:
    """Another team's SUP-1, which has a comment of theirs."""
    url = f"{world.sandbox.jira.url}/rest/api/2/issue"
    posted(url, {"fields": {"project": {"key": "SUP"}, "issuetype": {"name": "Task"}, "summary": "Theirs"}})
    if comment:
        posted(f"{url}/SUP-1/comment", {"body": "Theirs."})


def replaced(world: World) -> None:
    """The site is empty again, and counts from one."""
    world.sandbox.config(search_lag_s={"jira": 0})
    world.sandbox.reset(keep_clock=True)


@pytest.mark.parametrize("deployment", ["cloud", "data_center"])
def test_no_stranger_s_jira_ticket_is_closed(
    world: World, configure: Any, enqueue: Any, client: Any, deployment: str
) -> None:
    """SUP-1 carries no key of ours: nothing is written to it, and a person decides."""
    world.sandbox.config(jira_deployment=deployment)
    configure("jira", deployment=deployment)
    enqueue("jira_create", {"project": "SUP", "summary": "Reship 1182", "order_id": "1182"})
    world.settle()
    replaced(world)
    world.sandbox.config(jira_deployment=deployment)
    theirs_in_jira(world)
    client().run("r1", tenant="acme", actor="bot").unwind("wrong order")
    world.settle()
    assert world.states()["jira_close/s1/undo"] == "operator_review"
    assert world.sandbox.requests("jira", "issue.transition") == []


def test_no_stranger_s_jira_comment_is_deleted(world: World, enqueue: Any, client: Any, use_tools: Any) -> None:
    """Comment 10001 of SUP-1 is another's: it stays."""
    use_tools(jira.jira_create, jira.jira_close, jira.jira_comment, jira.jira_delete_comment)
    theirs_in_jira(world)
    enqueue("jira_comment", {"issue": "SUP-1", "body": "Parcel lost."})
    world.settle()
    replaced(world)
    theirs_in_jira(world, comment=True)
    client().run("r1", tenant="acme", actor="bot").unwind("wrong order")
    world.settle()
    assert world.states()["jira_delete_comment/s1/undo"] == "operator_review"
    assert world.sandbox.requests("jira", "issue.comment.delete") == []


@pytest.mark.parametrize("fault", [None, "504_before_commit"])
def test_no_stranger_s_zendesk_ticket_is_solved(
    world: World, enqueue: Any, client: Any, use_tools: Any, fault: str | None
) -> None:
    """Ticket 1 is another customer's, also where a request has failed before: no look-up takes it for ours, either."""
    use_tools(zendesk.zendesk_create, zendesk.zendesk_solve)
    enqueue("zendesk_create", {"subject": "Refund", "body": "The parcel was lost.", "order_id": "1182"})
    world.settle()
    client().run("r1", tenant="acme", actor="bot").unwind("wrong order")
    if fault is not None:
        world.reconciler.unwind_runs()
        world.sandbox.zendesk.fault(fault, on="tickets.update")
        world.work()
    replaced(world)
    posted(f"{world.sandbox.zendesk.url}/api/v2/tickets.json", {"ticket": {"subject": "A", "comment": {"body": "B"}}})
    world.settle()
    assert world.states()["zendesk_solve/s1/undo"] == "operator_review"
    assert world.sandbox.requests("zendesk", "tickets.update") == []
