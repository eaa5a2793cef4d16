"""Texts that wait at Twilio: the window, what a lost schedule becomes, a cancellation and when it is too late."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest
import requests
from tests.conformance.subjects.twilio import SEND_AT, TEXT, TO
from tests.conformance.twilio_calls import (
    CREATE,
    LIST,
    UPDATE,
    at,
    call_of,
    cancel_of,
    find,
    form_of,
    listed,
    schedule,
    send,
    sent,
)

from counterfoil.providers.outcomes import (
    Absent,
    Found,
    NotSent,
    Rejected,
    Succeeded,
    Uncertain,
    Unknown,
)
from counterfoil.providers.twilio.client import TwilioAdapter
from counterfoil.providers.twilio.config import TwilioConfig
from counterfoil.providers.twilio.outcomes import reference_of
from counterfoil.sandbox.client import Sandbox

PROSE = "This message cannot be canceled."


@pytest.mark.parametrize(
    ("lead", "taken"),
    [
        (timedelta(minutes=15), True),
        (timedelta(minutes=14, seconds=59), False),
        (timedelta(days=35), True),
        (timedelta(days=35, seconds=1), False),
        (timedelta(days=-1), False),
    ],
)
def test_the_window_counts_from_the_first_claim(
    twilio: TwilioAdapter, sandbox: Sandbox, lead: timedelta, taken: bool
) -> None:
    """15 minutes to 35 days, by what is recorded: the same on every attempt, and no request for what is outside."""
    claimed = datetime.now(UTC).replace(microsecond=0) + timedelta(seconds=2 if lead < timedelta(days=1) else -2)
    outcome = send(twilio, schedule(send_at=at(claimed + lead), first_sent_at=claimed))
    assert isinstance(outcome, Succeeded) is taken
    assert len(sandbox.twilio.requests()) == int(taken)
    if not taken:
        assert outcome == Rejected("send_at_outside_window", field="send_at")


def test_scheduling_without_a_service_would_send_at_once(sandbox: Sandbox) -> None:
    """Twilio ignores the time then, so no request leaves; the sandbox does as Twilio does."""
    config = TwilioConfig(account_sid="AC_1", token="t", sender="+15550000001", base_url=sandbox.twilio.url)
    assert send(TwilioAdapter(config), schedule()) == NotSent("no_messaging_service")
    assert sandbox.twilio.requests() == []
    requests.post(
        f"{sandbox.twilio.url}/2010-04-01/Accounts/AC_1/Messages.json",
        data={"To": TO, "From": "+15550000001", "Body": "x", "ScheduleType": "fixed", "SendAt": SEND_AT},
        auth=("AC_1", "t"),
        timeout=3,
    ).raise_for_status()
    assert sandbox.count("sms") == 1
    assert send(TwilioAdapter(replace(config, sender=None)), call_of()) == NotSent("no_sender")
    sent(TwilioAdapter(config), call_of())
    assert form_of(sandbox)[-1]["From"] == "+15550000001"


def test_a_scheduled_text_that_went_out_at_once(twilio: TwilioAdapter, sandbox: Sandbox) -> None:
    """An answer that does not say `scheduled` proves no schedule, and a text that is out before its time is a person's."""
    call = schedule()
    sent(twilio, call)
    sandbox.twilio.fault("answer", on=CREATE, status=201, body=listed(status="accepted")["messages"][0])
    assert send(twilio, call) == Uncertain("not_scheduled")
    body = f"{TEXT['body']}{reference_of(call.key)}"
    page = listed(body=body, date_sent=datetime.now(UTC).strftime("%a, %d %b %Y %H:%M:%S +0000"))
    sandbox.twilio.fault("answer", on=LIST, status=200, body=page)
    finding = find(twilio, call)
    assert isinstance(finding, Found)
    assert not finding.as_intended


def test_a_scheduled_text_over_its_life(twilio: TwilioAdapter, sandbox: Sandbox) -> None:
    """Found while it waits, found when it is out; cancelled it was refused."""
    call, other = schedule(1), schedule(2)
    receipt, cancelled = sent(twilio, call), sent(twilio, other)
    sent(twilio, cancel_of(other, cancelled))
    finding = find(twilio, other)
    assert isinstance(finding, Found)
    assert finding.outcome == Rejected("canceled")
    assert sandbox.count("sms") == 0
    sandbox.advance(2 * 86_400)
    assert [effect.object_id for effect in sandbox.twilio.effects("sms")] == [receipt]
    finding = find(twilio, call)
    assert isinstance(finding, Found)
    assert finding.as_intended
    assert finding.outcome == Succeeded(receipt, {"id": receipt, "status": "delivered"})


@pytest.mark.parametrize("known", [True, False])
def test_a_cancellation(twilio: TwilioAdapter, sandbox: Sandbox, known: bool) -> None:
    """Found by the receipt, or by the reference of what is undone; done once however often it is asked for."""
    call = schedule()
    receipt = sent(twilio, call)
    cancel = cancel_of(call, receipt if known else None)
    assert find(twilio, cancel) == Absent()
    for _ in range(2):
        assert send(twilio, cancel) == Succeeded(receipt, {"id": receipt, "status": "canceled"})
    assert len(sandbox.twilio.requests(UPDATE)) == 1
    finding = find(twilio, cancel)
    assert isinstance(finding, Found)
    sandbox.advance(2 * 86_400)
    assert sandbox.count("sms") == 0


def test_a_cancellation_that_comes_too_late(twilio: TwilioAdapter, sandbox: Sandbox) -> None:
    """A text that is out is not taken back: that is known without a request, and said by the look-up, too."""
    call = schedule()
    cancel = cancel_of(call, sent(twilio, call))
    sandbox.advance(2 * 86_400)
    assert send(twilio, cancel) == Rejected("too_late")
    assert sandbox.twilio.requests(UPDATE) == []
    finding = find(twilio, cancel)
    assert isinstance(finding, Found)
    assert finding.outcome == Rejected("too_late")


@pytest.mark.parametrize("code", [30409, 35115])
def test_not_scheduled_is_what_an_earlier_attempt_may_have_caused(
    twilio: TwilioAdapter, sandbox: Sandbox, code: int
) -> None:
    """Twilio refuses to cancel what is cancelled: so its refusal settles nothing, and the message is read."""
    call = schedule()
    cancel = cancel_of(call, sent(twilio, call))
    sandbox.twilio.fault("answer", on=UPDATE, status=400, body={"code": code, "message": PROSE, "status": 400})
    assert send(twilio, cancel) == Uncertain("not_scheduled", evidence=f"code {code}")
    assert find(twilio, cancel) == Absent()


def test_nothing_to_cancel(twilio: TwilioAdapter, sandbox: Sandbox) -> None:
    """An action that left no message, or none that can be told, is nothing to send about."""
    assert send(twilio, cancel_of(schedule(), None)) == NotSent("of_unresolved")
    assert find(twilio, cancel_of(schedule(), "../Calls")) == Unknown("of_unresolved")
    assert send(twilio, cancel_of(schedule(), f"SM{'0' * 32}")) == NotSent("before_write_http_404")
    assert sandbox.twilio.requests(UPDATE) == []
