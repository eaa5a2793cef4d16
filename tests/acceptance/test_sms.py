"""SMS end to end: a person approves each, a lost answer is one text or a person, a scheduled one is taken back in time."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from tests.acceptance.people import Person

from counterfoil.ledger.proposals import Answer
from counterfoil.providers.registry import Registry
from counterfoil.providers.twilio.tools import sms_cancel, sms_correction, sms_schedule, sms_send
from counterfoil.settings_providers import ProviderSettings
from counterfoil.testing import World

TEXT = {"to": "+15550102030", "body": "Your parcel is on its way.", "about": "order 1182"}
CREATE, LIST, UPDATE = "messages.create", "messages.list", "messages.update"
LANDING = ["504_after_commit", "rst_after_commit", "fin_after_commit", "504_then_commit_after", "bad_json_2xx"]


@pytest.fixture
def texting(world: World, use_tools: Callable[..., None], monkeypatch: pytest.MonkeyPatch) -> World:
    """A world whose tools are Twilio's, and whose Twilio is the sandbox."""
    use_tools(sms_send, sms_correction, sms_schedule, sms_cancel)
    monkeypatch.setattr(Registry, "load", classmethod(lambda cls, *_: world.registry))
    fast = world.settings.providers["jira"].model_dump(exclude={"server", "email", "staging_transition"})
    own = {
        "base_url": world.sandbox.twilio.url,
        "account_sid": "AC_1",
        "token": "sandbox",
        "messaging_service": "MG_1",
        "timeout_s": 1.0,
    }
    twilio = ProviderSettings.model_validate({**fast, **own})
    world.settings = world.settings.model_copy(update={"providers": {**world.settings.providers, "twilio": twilio}})
    return world


@pytest.fixture
def alice(database: Any, texting: World) -> Iterator[Person]:
    person = Person(database.url("operator"), texting.registry, "alice")
    yield person
    person.ledger.close()


@pytest.fixture
def approved(texting: World, enqueue: Any, alice: Person) -> Callable[..., str]:
    """One text that a person has approved and nobody has sent yet: its action."""

    def approve(tool: str = "sms_send", step: str = "text", **more: str) -> str:
        action_id: str = enqueue(tool, {**TEXT, **more}, step)
        texting.settle()
        assert alice.approve(alice.waiting()[0]).answer is Answer.APPROVED
        return action_id

    return approve


def ended(sql: Any, action_id: str) -> tuple[str, str | None]:
    [row] = sql("SELECT state, last_error_code FROM counterfoil.action WHERE action_id = %s", action_id)
    return row  # type: ignore[no-any-return]


def in_a_day(world: World) -> str:
    moment = datetime.fromtimestamp(world.sandbox.now(), UTC) + timedelta(days=1)
    return moment.strftime("%Y-%m-%dT%H:%M:%SZ")


def test_nothing_leaves_before_a_person_has_said_yes(texting: World, enqueue: Any, alice: Person) -> None:
    """A text at once, and one that would go out by itself later: both wait."""
    enqueue("sms_send", TEXT, "now")
    enqueue("sms_schedule", {**TEXT, "to": "+15550102031", "send_at": in_a_day(texting)}, "later", run="r2")
    texting.settle()
    assert set(texting.states().values()) == {"awaiting_approval"}
    assert len(alice.waiting()) == 2
    assert texting.sandbox.twilio.requests() == []


@pytest.mark.parametrize("fault", LANDING)
def test_a_lost_answer_is_one_text(texting: World, approved: Callable[..., str], sql: Any, fault: str) -> None:
    """Whenever it landed and whatever came back: the customer has one text, and the row says so."""
    texting.sandbox.twilio.fault(fault, on=CREATE)
    action_id = approved()
    texting.settle()
    assert ended(sql, action_id)[0] == "succeeded"
    assert texting.sandbox.count("sms") == 1
    assert len(texting.sandbox.twilio.requests(CREATE)) == 1


@pytest.mark.parametrize("fault", ["504_before_commit", "rst_mid_request", "500_unstored"])
def test_a_text_that_is_on_no_list_is_a_person_s(
    texting: World, approved: Callable[..., str], sql: Any, fault: str
) -> None:
    """Twilio promises nothing about how fresh its list is: two complete ones without it send no second text."""
    texting.sandbox.twilio.fault(fault, on=CREATE)
    action_id = approved()
    texting.settle()
    assert ended(sql, action_id) == ("operator_review", "absent")
    assert texting.sandbox.count("sms") == 0
    assert len(texting.sandbox.twilio.requests(CREATE)) == 1
    assert len(texting.sandbox.twilio.requests(LIST)) >= 2


@pytest.mark.parametrize("fault", ["504_after_commit", "504_before_commit"])
def test_without_a_reference_a_person_decides(
    texting: World, approved: Callable[..., str], configure: Any, sql: Any, fault: str
) -> None:
    """A text that cannot be told from another is neither taken for sent nor sent again."""
    configure("twilio", reference=False)
    texting.sandbox.twilio.fault(fault, on=CREATE)
    action_id = approved()
    texting.settle()
    assert ended(sql, action_id)[0] == "operator_review"
    assert len(texting.sandbox.twilio.requests(CREATE)) == 1
    assert texting.sandbox.twilio.requests(LIST) == []
    [body] = [request.body for request in texting.sandbox.twilio.requests(CREATE)]
    assert body is not None
    assert "ref" not in body


def test_a_reference_that_was_switched_on_since(
    texting: World, approved: Callable[..., str], configure: Any, sql: Any
) -> None:
    """A text that went out without one is no absence of ours: a person, and no second text."""
    configure("twilio", reference=False)
    texting.sandbox.twilio.fault("504_after_commit", on=CREATE)
    action_id = approved()
    texting.work()
    assert ended(sql, action_id)[0] == "uncertain"
    configure("twilio", reference=True)
    texting.settle()
    assert ended(sql, action_id)[0] == "operator_review"
    assert texting.sandbox.count("sms") == 1


def test_two_of_them_are_a_person_s(texting: World, approved: Callable[..., str], sql: Any) -> None:
    """Twilio deduplicates nothing: what was delivered to it twice is two texts, and nobody calls that a success."""
    texting.sandbox.config(search_lag_s={"twilio": 0})
    texting.sandbox.twilio.fault("duplicate_delivery", on=CREATE, status=504, body="no answer")
    action_id = approved()
    texting.settle()
    assert texting.sandbox.count("sms") == 2
    assert ended(sql, action_id)[0] == "operator_review"


@pytest.mark.parametrize(("status", "code"), [(400, 21610), (429, 20429)])
def test_refusals(texting: World, approved: Callable[..., str], sql: Any, status: int, code: int) -> None:
    """An opt-out ends it at once; throttling costs time only."""
    error = {"code": code, "message": "no", "status": status}
    texting.sandbox.twilio.fault("answer", on=CREATE, status=status, body=error, headers={"Retry-After": "30"})
    action_id = approved()
    texting.settle()
    lost = code == 21610
    assert ended(sql, action_id)[0] == ("permanent_failure" if lost else "succeeded")
    assert texting.sandbox.count("sms") == (0 if lost else 1)


@pytest.mark.parametrize("fault", [None, "504_after_commit", "rst_before_commit"])
def test_an_unwind_cancels_what_waits(
    texting: World, approved: Callable[..., str], unwind: Any, fault: str | None
) -> None:
    """A scheduled text is taken back once, also over a lost answer, and never goes out."""
    approved("sms_schedule", send_at=in_a_day(texting))
    texting.settle(at_most_s=3600)
    assert texting.sandbox.count("sms_scheduled") == 1
    if fault:
        texting.sandbox.twilio.fault(fault, on=UPDATE)
    unwind()
    texting.settle(at_most_s=3600)
    assert texting.states() == {"sms_schedule/text/do": "compensated", "sms_cancel/text/undo": "succeeded"}
    assert texting.sandbox.count("sms_cancelled") == 1
    texting.advance(2 * 86_400)
    assert texting.sandbox.count("sms") == 0


def test_an_unwind_that_comes_too_late(texting: World, approved: Callable[..., str], unwind: Any) -> None:
    """What is out is not taken back, and nobody claims so: a person learns of it."""
    approved("sms_schedule", send_at=in_a_day(texting))
    texting.settle(at_most_s=3600)
    texting.advance(2 * 86_400)
    assert texting.sandbox.count("sms") == 1
    unwind()
    texting.settle()
    assert texting.states() == {"sms_schedule/text/do": "succeeded", "sms_cancel/text/undo": "operator_review"}
    assert texting.sandbox.twilio.requests(UPDATE) == []
