"""Slack end to end: a person approves each message, a lost answer is one message, a scheduled one is taken back in time."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
import requests
from tests.acceptance.people import Person

from counterfoil import Counterfoil
from counterfoil.ledger.proposals import Answer
from counterfoil.providers.slack.tools import slack_post, slack_schedule, slack_unschedule
from counterfoil.testing import World

MESSAGE = {"channel": "C0123456789", "text": "Parcel 1182 has been found."}
POST, SCHEDULE, DELETE = "chat.postMessage", "chat.scheduleMessage", "chat.deleteScheduledMessage"
LANDED = ["504_after_commit", "fin_after_commit", "rst_after_commit", "504_then_commit_after", "object_2xx"]


@pytest.fixture(autouse=True)
def slack(use_tools: Any) -> None:
    """The world's tools are Slack's."""
    use_tools(slack_post, slack_schedule, slack_unschedule)


@pytest.fixture
def alice(database: Any, world: World, slack: None) -> Iterator[Person]:
    person = Person(database.url("operator"), world.registry, "alice")
    yield person
    person.ledger.close()


@pytest.fixture
def approved(world: World, enqueue: Any, alice: Person) -> Callable[..., str]:
    """One message that a person has approved and nobody has sent yet: its action."""

    def approve(tool: str = "slack_post", step: str = "s1", **more: str) -> str:
        action_id: str = enqueue(tool, {**MESSAGE, **more}, step)
        world.settle()
        assert world.states()[f"{tool}/{step}/do"] == "awaiting_approval"
        assert alice.approve(alice.waiting()[0]).answer is Answer.APPROVED
        return action_id

    return approve


def later(world: World, **ahead: float) -> str:
    """That long from now, in UTC."""
    at = datetime.fromtimestamp(world.sandbox.now(), UTC) + timedelta(**ahead)
    return at.strftime("%Y-%m-%dT%H:%M:%SZ")


@pytest.mark.parametrize("fault", [*LANDED, "rst_before_commit", "429_retry_after"])
def test_one_message_whatever_became_of_the_answer(world: World, approved: Any, fault: str) -> None:
    """Lost, late, unreadable or never sent: the history tells, and there is one message."""
    world.sandbox.slack.fault(fault, on=POST)
    approved()
    world.settle()
    assert world.states() == {"slack_post/s1/do": "succeeded"}
    assert world.sandbox.count("slack_messages") == 1
    landed = fault in LANDED
    assert len(world.sandbox.slack.requests(POST)) == (1 if landed else 2)


def test_a_message_with_our_key_that_another_app_posted(world: World, approved: Any, sql: Any) -> None:
    """What carries our key and is not ours settles nothing: a person looks."""
    world.sandbox.slack.fault("504_before_commit", on=POST)
    action_id = approved()
    assert world.work() == 1
    [(key,)] = sql("SELECT key FROM counterfoil.action WHERE action_id = %s", action_id)
    payload = {"counterfoil_key": key, "counterfoil_target": MESSAGE["channel"]}
    metadata = {"event_type": "counterfoil_action", "event_payload": payload}
    headers = {"Authorization": "Bearer xoxb-somebody-else"}
    url = f"{world.sandbox.slack.url}/api/{POST}"
    requests.post(url, json={**MESSAGE, "metadata": metadata}, headers=headers, timeout=5).raise_for_status()
    world.settle()
    assert world.states() == {"slack_post/s1/do": "operator_review"}
    assert len(world.sandbox.slack.requests(POST)) == 2, "ours and theirs"


@pytest.mark.parametrize("fault", [None, "504_after_commit", "504_then_commit_after", "html_502"])
def test_a_scheduled_message_posts_once(world: World, approved: Any, fault: str | None) -> None:
    """A lost answer to the scheduling is looked up on Slack's list, and the channel gets one message."""
    if fault:
        world.sandbox.slack.fault(fault, on=SCHEDULE)
    approved("slack_schedule", post_at=later(world, days=2))
    world.settle()
    assert world.states() == {"slack_schedule/s1/do": "succeeded"}
    assert (world.sandbox.count("slack_scheduled"), world.sandbox.count("slack_messages")) == (1, 0)
    world.advance(2 * 86_400)
    assert world.sandbox.count("slack_messages") == 1


@pytest.mark.parametrize("minutes", [6, 9])
@pytest.mark.parametrize(("fault", "messages"), [("504_after_commit", 1), ("504_before_commit", 0)])
def test_a_lost_answer_just_before_its_time(
    world: World, approved: Any, configure: Any, minutes: int, fault: str, messages: int
) -> None:
    """However little time there is to find out, and however late Slack shows it: no second message, and the row ends."""
    configure("slack", lookup_lag_s=60)
    world.sandbox.config(search_lag_s={"slack": 50})
    world.sandbox.slack.fault(fault, on=SCHEDULE)
    approved("slack_schedule", post_at=later(world, minutes=minutes))
    world.settle()
    world.advance(2 * 86_400)
    world.settle()
    [state] = world.states().values()
    posted = world.sandbox.count("slack_messages")
    assert posted == world.sandbox.count("slack_scheduled")
    assert (state, posted) in [("succeeded", 1), ("permanent_failure", 0)]
    assert posted >= messages


@pytest.mark.parametrize("fault", [None, "504_after_commit", "504_before_commit"])
def test_an_unwind_takes_it_back(world: World, approved: Any, unwind: Any, fault: str | None) -> None:
    """Before its time a scheduled message is deleted once, without a person, and is never posted."""
    approved("slack_schedule", post_at=later(world, days=2))
    world.settle()
    if fault:
        world.sandbox.slack.fault(fault, on=DELETE)
    unwind()
    world.settle()
    assert world.states() == {"slack_schedule/s1/do": "compensated", "slack_unschedule/s1/undo": "succeeded"}
    world.advance(3 * 86_400)
    assert (world.sandbox.count("slack_unscheduled"), world.sandbox.count("slack_messages")) == (1, 0)


def test_an_unwind_by_another_app_is_a_person_s(
    world: World, approved: Any, unwind: Any, configure: Any, sql: Any
) -> None:
    """To another app what waits looks deleted: nothing is called taken back that will be posted all the same."""
    approved("slack_schedule", post_at=later(world, days=2))
    world.settle()
    configure("slack", token="xoxb-another-app")
    world.restart()
    unwind()
    world.settle()
    assert world.states() == {"slack_schedule/s1/do": "succeeded", "slack_unschedule/s1/undo": "operator_review"}
    assert sql("SELECT last_error_code FROM counterfoil.action WHERE phase = 'undo'") == [("credentials_changed",)]
    world.advance(3 * 86_400)
    assert (world.sandbox.count("slack_unscheduled"), world.sandbox.count("slack_messages")) == (0, 1)


def test_an_unwind_that_comes_too_late(world: World, approved: Any, unwind: Any) -> None:
    """What was posted is not called taken back: the compensation is refused, and the run's end is a person's matter."""
    approved("slack_schedule", post_at=later(world, hours=1))
    world.settle()
    world.advance(2 * 3600)
    unwind()
    world.settle()
    assert world.states() == {"slack_schedule/s1/do": "succeeded", "slack_unschedule/s1/undo": "operator_review"}
    assert world.sandbox.count("slack_messages") == 1


def test_an_approval_that_comes_too_late(world: World, enqueue: Any, alice: Person, sql: Any) -> None:
    """Decided on in the last five minutes, nothing is scheduled: it could hardly be taken back."""
    action_id = enqueue("slack_schedule", {**MESSAGE, "post_at": later(world, minutes=20)})
    world.settle()
    world.advance(16 * 60)
    alice.approve(alice.waiting()[0])
    world.settle()
    row = sql("SELECT state, last_error_code FROM counterfoil.action WHERE action_id = %s", action_id)
    assert row == [("permanent_failure", "too_soon")]
    assert not world.sandbox.slack.requests(SCHEDULE)


def test_a_staged_schedule_lapses(world: World, client: Callable[..., Counterfoil], alice: Person) -> None:
    """A plan about a message that posts by itself has to be decided before it does."""
    run = client().run("r1", tenant="acme", actor="bot")
    arguments = {**MESSAGE, "post_at": later(world, hours=2)}
    run.stage("slack_schedule", arguments, wait_s=0)
    world.settle()
    alice.approve(alice.waiting()[0])
    world.settle()
    staged = run.stage("slack_schedule", arguments, wait_s=0)
    assert staged.status == "succeeded"
    run.propose([("slack_unschedule", {"channel": MESSAGE["channel"], "of": staged.action_id})], note="not needed")
    [proposal] = alice.waiting()
    expires = alice.show(proposal).proposal.expires_at
    assert expires is not None
    assert expires < datetime.fromisoformat(arguments["post_at"])
