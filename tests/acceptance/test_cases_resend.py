"""Resend end to end: a lost answer is asked again under the key, within its day only; then a person; one mail throughout."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from tests.acceptance.people import Person

from counterfoil.ledger import health
from counterfoil.ledger.proposals import Answer
from counterfoil.providers.registry import Registry
from counterfoil.providers.resend.tools import resend_correction, resend_send
from counterfoil.settings_providers import ProviderSettings
from counterfoil.testing import World

MAIL = {"to": "jo@example.com", "subject": "Your order", "body": "It is on its way.", "reference": "1182"}
SEND = "emails.send"


@pytest.fixture
def mailing(world: World, use_tools: Callable[..., None], monkeypatch: pytest.MonkeyPatch) -> World:
    """A world whose tools are Resend's, also on the command line."""
    use_tools(resend_send, resend_correction)
    monkeypatch.setattr(Registry, "load", classmethod(lambda cls, *_: world.registry))
    fast = world.settings.providers["jira"].model_dump(exclude={"staging_transition"})
    own = {"server": None, "base_url": world.sandbox.resend.url, "email": "shop@example.org", "api_key": "re_sandbox"}
    resend = ProviderSettings.model_validate({**fast, "token": None, **own})
    world.settings = world.settings.model_copy(update={"providers": {**world.settings.providers, "resend": resend}})
    return world


@pytest.fixture
def alice(database: Any, mailing: World) -> Iterator[Person]:
    person = Person(database.url("operator"), mailing.registry, "alice")
    yield person
    person.ledger.close()


@pytest.fixture
def approved(mailing: World, enqueue: Any, alice: Person) -> Callable[[], str]:
    """One mail that a person has approved and nobody has sent yet: its action."""

    def approve() -> str:
        action_id: str = enqueue("resend_send", MAIL, "mail")
        mailing.settle()
        assert mailing.sandbox.resend.requests() == [], "nothing leaves before a person has said yes"
        [proposal] = alice.waiting()
        assert alice.approve(proposal).answer is Answer.APPROVED
        return action_id

    return approve


def ended(sql: Any, action_id: str) -> tuple[str, str | None]:
    [row] = sql("SELECT state, last_error_code FROM counterfoil.action WHERE action_id = %s", action_id)
    return row  # type: ignore[no-any-return]


@pytest.mark.parametrize(
    "fault",
    ["504_after_commit", "rst_after_commit", "rst_before_commit", "html_2xx", "504_then_commit_after", "409_in_use"],
)
def test_a_lost_answer_is_one_mail(mailing: World, approved: Callable[[], str], sql: Any, fault: str) -> None:
    """Whatever became of the answer: the repeat of the key tells, and there is one mail, which the row names."""
    mailing.sandbox.resend.fault(fault, on=SEND)
    action_id = approved()
    mailing.settle()
    [effect] = mailing.sandbox.resend.effects("email")
    assert sql("SELECT state, receipt FROM counterfoil.action WHERE action_id = %s", action_id) == [
        ("succeeded", effect.object_id)
    ]
    assert len(mailing.sandbox.resend.requests(SEND)) == 2


@pytest.mark.parametrize("point", ["after_claim", "before_settle", "after_settle"])
def test_a_worker_that_dies(mailing: World, approved: Callable[[], str], sql: Any, point: Any) -> None:
    """Wherever it dies: one mail, and no person is needed."""
    action_id = approved()
    with mailing.crash_after(point):
        mailing.settle()
    assert ended(sql, action_id)[0] == "succeeded"
    assert mailing.sandbox.count("resend_emails") == 1


def test_after_the_day_a_person(mailing: World, approved: Callable[[], str], sql: Any, cli: Any) -> None:
    """The answer is lost and nobody works for a day: the key is not repeated, and the mail that a person names is read."""
    mailing.sandbox.resend.fault("504_after_commit", on=SEND)
    action_id = approved()
    assert mailing.work() == 1
    mailing.advance(25 * 3600)
    mailing.settle()
    assert ended(sql, action_id)[0] == "operator_review"
    assert len(mailing.sandbox.resend.requests(SEND)) == 1
    [effect] = mailing.sandbox.resend.effects("email")
    said = ("--receipt", effect.object_id, "--reason", "seen in Resend", "--wait-s", "0")
    assert cli("review", "happened", action_id, *said)[0] == 6, "on record, and not answered yet"
    mailing.settle()
    assert ended(sql, action_id)[0] == "succeeded"
    assert mailing.sandbox.count("resend_emails") == 1


def change_resend(mailing: World, **changes: object) -> None:
    """Other settings for every worker and reconciler that is made from now on."""
    resend = mailing.settings.providers["resend"].model_copy(update=changed_backoff() | changes)
    mailing.settings = mailing.settings.model_copy(
        update={"providers": {**mailing.settings.providers, "resend": resend}}
    )


def changed_backoff() -> dict[str, object]:
    """The usual pauses, instead of the fast profile's."""
    return {"backoff_base_s": 1, "backoff_cap_s": 300}


def let_pass(mailing: World, seconds: float, step_s: float) -> None:
    """So much time, with worker and reconciler at work every `step_s`."""
    for _ in range(round(seconds / step_s)):
        mailing.work()
        mailing.reconcile()
        mailing.advance(step_s)


def alarms(sql: Any) -> list[tuple[str, str, bool]]:
    query = "SELECT kind, subject, ended_at IS NOT NULL FROM counterfoil.alarm ORDER BY alarm_id"
    return [(kind, subject, ended) for kind, subject, ended in sql(query)]


@pytest.mark.case("K4")
@pytest.mark.parametrize(("first", "then"), [("500_unstored", "500_unstored"), ("504_after_commit", "429_bare")])
def test_resend_is_away_for_two_hours(
    mailing: World, approved: Callable[[], str], sql: Any, first: str, then: str
) -> None:
    """Nothing but the repeat can tell, and repeats are no attempts: with the usual five of them nobody is asked, then or when
    it is back; one alarm about the outage; and one mail, whether the first request landed or not."""
    change_resend(mailing)
    mailing.sandbox.resend.fault(first, on=SEND)
    action_id = approved()
    assert mailing.work() == 1
    mailing.sandbox.resend.fault(then, on=SEND, times=None)
    let_pass(mailing, 7200, 240)
    assert ended(sql, action_id)[0] == "ready", "for the next repeat"
    assert 15 <= len(mailing.sandbox.resend.requests(SEND)) <= 200, "less and less often"
    assert alarms(sql) == [("outage", "resend/default", False)]
    mailing.sandbox.clear_faults()
    let_pass(mailing, 600, 120)
    assert ended(sql, action_id)[0] == "succeeded"
    assert mailing.sandbox.count("resend_emails") == 1
    assert alarms(sql) == [("outage", "resend/default", True)]


def test_resend_is_away_for_longer_than_a_key_lasts(mailing: World, approved: Callable[[], str], sql: Any) -> None:
    """The key's time bounds the repeats: none is sent in its last quarter, and a person decides."""
    change_resend(mailing)
    mailing.sandbox.resend.fault("504_after_commit", on=SEND)
    action_id = approved()
    assert mailing.work() == 1
    mailing.sandbox.resend.fault("500_unstored", on=SEND, times=None)
    began = mailing.sandbox.resend.requests(SEND)[0].arrived
    let_pass(mailing, 20 * 3600, 3600)
    assert ended(sql, action_id) == ("operator_review", "no_lookup")
    asked = [request.arrived - began for request in mailing.sandbox.resend.requests(SEND)]
    assert 16 * 3600 <= asked[-1] < 18 * 3600
    assert mailing.sandbox.count("resend_emails") == 1


def test_a_mail_that_resend_never_answers_for(
    mailing: World, approved: Callable[[], str], sql: Any, database: Any
) -> None:
    """Everybody else's mail is answered and this one's is not: after an hour of that a person decides, sent once at most."""
    change_resend(mailing)
    mailing.sandbox.resend.fault("500_unstored", on=SEND, times=None)
    action_id = approved()
    states = []
    for _ in range(34):
        mailing.work()
        health.note(mailing.ledger, "resend", "default", "send", failed=None)  # by whoever sends the others
        mailing.reconcile()
        states.append(ended(sql, action_id)[0])
        mailing.advance(150)
    handed_over = states.index("operator_review")
    assert 24 <= handed_over <= 29, "an hour, and the pause after the newest repeat"
    assert len(mailing.sandbox.resend.requests(SEND)) > 5
    assert ended(sql, action_id) == ("operator_review", "no_lookup")


def test_a_key_that_resend_knows_with_another_mail(mailing: World, approved: Callable[[], str], sql: Any) -> None:
    """Something was sent under it: no second key, no second request, a person."""
    known = {"statusCode": 409, "name": "invalid_idempotent_request", "message": "Same key, other payload."}
    mailing.sandbox.resend.fault("answer", on=SEND, status=409, body=known)
    action_id = approved()
    mailing.settle()
    assert ended(sql, action_id) == ("operator_review", "idempotency_mismatch")
    assert len(mailing.sandbox.resend.requests(SEND)) == 1


def test_a_refusal_is_final(mailing: World, approved: Callable[[], str], sql: Any) -> None:
    """Resend's own word: the end of it, under its name, without another request."""
    mailing.sandbox.resend.fault("answer", on=SEND, status=422)
    action_id = approved()
    mailing.settle()
    assert ended(sql, action_id) == ("permanent_failure", "missing_required_field")
    assert len(mailing.sandbox.resend.requests(SEND)) == 1


def test_the_correction_of_a_mail(mailing: World, approved: Callable[[], str], unwind: Any, cli: Any) -> None:
    """Taking the run back writes to nobody; what a person sends then goes to the same reader, once."""
    approved()
    mailing.settle()
    unwind()
    mailing.settle()
    assert mailing.sandbox.count("resend_emails") == 1
    [waiting] = json.loads(cli("correction", "list", "--json")[1])
    shown = json.loads(cli("correction", "show", waiting["correction_id"], "--json")[1])
    mailing.sandbox.resend.fault("rst_after_commit", on=SEND)
    assert cli("correction", "send", waiting["correction_id"], "--digest", shown["digest"])[0] == 0
    mailing.settle()
    first, second = mailing.sandbox.resend.effects("email")
    assert second.data["to"] == first.data["to"] == "jo@example.com"
    assert second.data["subject"] == "Correction: Your order"
    assert first.key != second.key
