"""Follow-ups at AWS end to end: one schedule over every lost answer, taken back in time, and the example of the docs."""

from __future__ import annotations

import re
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from counterfoil.providers.aws.tools import aws_schedule, aws_unschedule
from counterfoil.settings_providers import ProviderSettings
from counterfoil.testing import World

CREATE, DELETE, GET = "schedules.create", "schedules.delete", "schedules.get"
STATE = "aws_schedule/s1/do"
PAGE = Path(__file__).parents[2] / "docs" / "client-tokens.md"


@pytest.fixture
def scheduling(world: World, use_tools: Callable[..., None]) -> World:
    """A world whose tools are AWS's, and whose AWS is the sandbox."""
    use_tools(aws_schedule, aws_unschedule)
    fast = world.settings.providers["jira"].model_dump(exclude={"server", "email", "staging_transition"})
    own = {
        "base_url": world.sandbox.aws.url,
        "region": "eu-central-1",
        "username": "AKIDEXAMPLE",
        "token": "sandbox",
        "schedule_target": "arn:aws:sqs:eu-central-1:123456789012:follow-ups",
        "schedule_role": "arn:aws:iam::123456789012:role/scheduler",
        "timeout_s": 1.0,
    }
    aws = ProviderSettings.model_validate({**fast, **own})
    world.settings = world.settings.model_copy(update={"providers": {**world.settings.providers, "aws": aws}})
    return world


@pytest.fixture
def follow_up(scheduling: World, enqueue: Any) -> Callable[[], str]:
    """Records one follow-up, due in a day."""

    def record() -> str:
        due = datetime.fromtimestamp(scheduling.sandbox.now(), UTC) + timedelta(days=1)
        arguments = {"about": "order 1182", "at": due.strftime("%Y-%m-%dT%H:%M:%SZ"), "note": "Has it come?"}
        action_id: str = enqueue("aws_schedule", arguments)
        return action_id

    return record


@pytest.mark.parametrize("tokens", ["kept", "forgotten"])
@pytest.mark.parametrize(
    "fault", [None, "504_after_commit", "504_before_commit", "504_then_commit_after", "rst_after_commit", "429_bare"]
)
def test_one_follow_up(scheduling: World, follow_up: Callable[[], str], fault: str | None, tokens: str) -> None:
    """Whatever became of the answer, and however long AWS keeps a token: one schedule, and its target is called once."""
    scheduling.sandbox.config(aws_tokens=tokens)
    if fault:
        scheduling.sandbox.aws.fault(fault, on=CREATE)
    follow_up()
    scheduling.settle(at_most_s=3600)
    assert scheduling.states() == {STATE: "succeeded"}
    assert len({request.body for request in scheduling.sandbox.aws.requests(CREATE)}) == 1
    scheduling.advance(2 * 86_400)
    assert (scheduling.sandbox.count("schedules"), scheduling.sandbox.count("schedule_calls")) == (1, 1)


@pytest.mark.parametrize("fault", [None, "504_after_commit", "504_before_commit", "rst_after_commit"])
def test_an_unwind_deletes_it(scheduling: World, follow_up: Callable[[], str], unwind: Any, fault: str | None) -> None:
    """Taken back once, also over a lost answer, and nothing is called."""
    follow_up()
    scheduling.settle(at_most_s=3600)
    if fault:
        scheduling.sandbox.aws.fault(fault, on=DELETE)
    unwind()
    scheduling.settle(at_most_s=3600)
    assert scheduling.states() == {STATE: "compensated", "aws_unschedule/s1/undo": "succeeded"}
    assert scheduling.sandbox.count("schedules_deleted") == 1
    scheduling.advance(2 * 86_400)
    assert scheduling.sandbox.count("schedule_calls") == 0


def test_an_unwind_that_comes_too_late(scheduling: World, follow_up: Callable[[], str], unwind: Any) -> None:
    """What has called its target is not taken back by deleting it: a person learns of it."""
    follow_up()
    scheduling.settle(at_most_s=3600)
    scheduling.advance(2 * 86_400)
    unwind()
    scheduling.settle()
    assert scheduling.states() == {STATE: "succeeded", "aws_unschedule/s1/undo": "operator_review"}
    assert scheduling.sandbox.aws.requests(DELETE) == []


@pytest.mark.parametrize("fault", [None, "504_after_commit", "504_before_commit", "html_502", "429_bare", "403"])
def test_the_example_of_the_docs(
    world: World, use_tools: Any, enqueue: Any, configure: Any, monkeypatch: pytest.MonkeyPatch, fault: str | None
) -> None:
    """The page's function, as it stands: one effect over a lost answer, a refusal that is one."""
    monkeypatch.setenv("AWS_ENDPOINT_URL", world.sandbox.aws.url)
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "AKIDEXAMPLE")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "sandbox")
    monkeypatch.setenv("AWS_DEFAULT_REGION", "eu-central-1")
    [code] = re.findall(r"^```python\n(.*?)^```$", PAGE.read_text(encoding="utf-8"), re.DOTALL | re.MULTILINE)
    names: dict[str, Any] = {"__name__": "example"}
    exec(compile(code, str(PAGE), "exec"), names)  # the page is ours
    use_tools(names["remind"])
    if fault == "403":
        body = {"code": "AccessDeniedException"}
        world.sandbox.aws.fault("answer", on=CREATE, status=403, body=body)
    elif fault:
        world.sandbox.aws.fault(fault, on=CREATE)
    enqueue("remind", {"order_id": "1182", "at": "2030-01-01T09:30:00"})
    world.settle()
    refused = fault == "403"
    assert world.states() == {"remind/s1/do": "permanent_failure" if refused else "succeeded"}
    assert world.sandbox.count("schedules") == (0 if refused else 1)
    requests = world.sandbox.aws.requests(CREATE)
    assert len({request.body for request in requests}) == 1
    assert len(requests) == (2 if fault in ("504_before_commit", "html_502", "429_bare") else 1)
