"""Linear end to end: one issue whatever becomes of an answer and whatever a repeated id does; taken back once."""

from __future__ import annotations

from typing import Any

import pytest
import requests

from counterfoil.ledger.keys import provider_key
from counterfoil.providers.linear import tools
from counterfoil.providers.linear.outcomes import id_of
from counterfoil.sandbox.client import Sandbox
from counterfoil.testing import World

ISSUE = {"team": "SUP", "title": "Refund for order 1182", "order_id": "1182", "description": "The parcel was lost."}
COMMENT = {"issue": "SUP-1", "body": "Called the carrier."}
CREATE, STATE, SAID = "issues.create", "linear_create/s1/do", "linear_comment/s2/do"


@pytest.fixture(autouse=True)
def linear(use_tools: Any) -> None:
    """The world's tools are Linear's."""
    use_tools(tools.linear_create, tools.linear_comment, tools.linear_close, tools.linear_delete_comment)


def hand(sandbox: Sandbox, document: str, **variables: Any) -> Any:
    """Somebody else in the same workspace; the first field of the answer."""
    reply = requests.post(
        f"{sandbox.linear.url}/graphql",
        json={"query": document, "variables": variables},
        headers={"Authorization": "lin_api_t"},
        timeout=3,
    )
    return next(iter(reply.json()["data"].values()))


@pytest.mark.parametrize("mode", ["error", "overwrite", "second"])
@pytest.mark.parametrize("fault", ["504_after_commit", "rst_before_commit", "504_then_commit_after"])
def test_a_lost_answer_is_one_issue(world: World, enqueue: Any, configure: Any, fault: str, mode: str) -> None:
    """Whatever a second creation under one id would do, with a list as late as is allowed for: absence is earned first."""
    configure("linear", lookup_lag_s=60)
    world.sandbox.config(linear_duplicate_id=mode, search_lag_s={"linear": 45})
    world.sandbox.linear.fault(fault, on=CREATE)
    enqueue("linear_create", ISSUE)
    world.settle()
    assert world.states() == {STATE: "succeeded"}
    assert world.sandbox.count("linear_issues") == 1
    creates = world.sandbox.requests("linear", CREATE)
    assert len({request.body for request in creates}) == 1
    assert len(creates) == (2 if fault == "rst_before_commit" else 1)


def test_a_lost_answer_is_one_comment(world: World, enqueue: Any) -> None:
    """The comment is found by its id and our mark, and not said twice."""
    enqueue("linear_create", ISSUE)
    world.settle()
    world.sandbox.linear.fault("504_after_commit", on="comments.create")
    enqueue("linear_comment", COMMENT, step="s2")
    world.settle()
    assert world.states() == {STATE: "succeeded", SAID: "succeeded"}
    assert world.sandbox.count("linear_comments") == 1
    assert len(world.sandbox.requests("linear", "comments.create")) == 1


def test_a_decoy_goes_to_a_person(world: World, enqueue: Any) -> None:
    """Another hand's issue under our id is no success of ours: nothing is made, and a person decides."""
    action_id = enqueue("linear_create", ISSUE)
    world.sandbox.linear.fault("rst_before_commit", on=CREATE)
    world.work()
    key = provider_key(world.settings.key_secret(), "acme", "linear_create", action_id)
    [team] = hand(world.sandbox, "{ teams { nodes { id } } }")["nodes"]
    theirs = {"id": id_of(key), "teamId": team["id"], "title": "Theirs"}
    hand(world.sandbox, "mutation($i: IssueCreateInput!) { issueCreate(input: $i) { success } }", i=theirs)
    world.settle()
    assert world.states() == {STATE: "operator_review"}
    assert [effect.key for effect in world.sandbox.effects("issue")] == [None]


@pytest.mark.parametrize("fault", [None, "504_after_commit"])
def test_an_unwind_closes_the_issue(world: World, enqueue: Any, unwind: Any, fault: str | None) -> None:
    """What a run opened and said is taken back once: the comment is deleted, the issue canceled with a comment of why."""
    enqueue("linear_create", ISSUE)
    world.settle()
    enqueue("linear_comment", COMMENT, step="s2")
    world.settle()
    if fault:
        world.sandbox.linear.fault(fault, on="issues.update")
        world.sandbox.linear.fault(fault, on="comments.delete")
    unwind()
    world.settle()
    assert world.states() == {
        STATE: "compensated",
        SAID: "compensated",
        "linear_close/s1/undo": "succeeded",
        "linear_delete_comment/s2/undo": "succeeded",
    }
    assert (world.sandbox.count("linear_canceled"), world.sandbox.count("linear_comments_deleted")) == (1, 1)
    assert len(world.sandbox.requests("linear", "issues.update")) == 1
    assert len(world.sandbox.requests("linear", "comments.delete")) == 1


def test_an_unwind_right_after_a_comment(world: World, enqueue: Any, unwind: Any, configure: Any) -> None:
    """A list that does not show the comment yet is no proof that it is gone: it is deleted, and only then compensated."""
    configure("linear", lookup_lag_s=60)
    enqueue("linear_create", ISSUE)
    world.settle()
    world.sandbox.config(search_lag_s={"linear": 45})
    enqueue("linear_comment", COMMENT, step="s2")
    world.work()
    world.sandbox.linear.fault("504_before_commit", on="comments.delete")
    unwind()
    world.settle()
    assert world.states()["linear_delete_comment/s2/undo"] == "succeeded"
    assert world.sandbox.count("linear_comments_deleted") == 1


@pytest.mark.parametrize("status", [200, 400])
def test_a_rate_limit_is_tried_again(world: World, enqueue: Any, status: int) -> None:
    """RATELIMITED, at whatever status, is a refusal for now: one issue in the end."""
    error = {"message": "slow down", "extensions": {"code": "RATELIMITED"}}
    body = {"errors": [error]}
    world.sandbox.linear.fault("answer", on=CREATE, status=status, headers={"Retry-After": "30"}, body=body)
    enqueue("linear_create", ISSUE)
    assert world.work() == 1
    assert world.states() == {STATE: "retryable_failure"}
    world.settle()
    assert world.states() == {STATE: "succeeded"}
    assert world.sandbox.count("linear_issues") == 1
