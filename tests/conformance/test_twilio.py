"""Twilio through its own client: the reference in each text, the statuses, the errors' table, what is read and what not."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from pydantic import ValidationError
from tests.conformance.subjects.twilio import SEND_AT, TEXT, TO
from tests.conformance.twilio_calls import (
    CREATE,
    GET,
    LIST,
    TIMEOUT_S,
    call_of,
    cancel_of,
    find,
    form_of,
    listed,
    planted,
    schedule,
    send,
    sent,
)

from counterfoil.ledger.errors import ArgumentError
from counterfoil.providers.contract import OTHER_KEY, Call
from counterfoil.providers.outcomes import (
    Absent,
    Finding,
    Found,
    Rejected,
    Succeeded,
    Uncertain,
    Unknown,
)
from counterfoil.providers.registry import Registry
from counterfoil.providers.twilio.client import TwilioAdapter
from counterfoil.providers.twilio.config import TwilioConfig
from counterfoil.providers.twilio.outcomes import reference_of
from counterfoil.providers.twilio.reads import PAGE_SIZE
from counterfoil.providers.twilio.tools import BODY_CHARS_MAX, correction_of_sms
from counterfoil.sandbox.client import Sandbox
from counterfoil.settings import Settings
from counterfoil.settings_contracts import contract_in_force

TOOLS = Registry.load(["counterfoil.providers.twilio.tools"])
PROSE = "The number +15550102030 of our customer is not valid."


def test_the_reference_ends_each_text(twilio: TwilioAdapter, sandbox: Sandbox) -> None:
    """What is sent is the recorded text and ten digits of the key, the same on every attempt, to be stored as it is."""
    call = call_of()
    sent(twilio, call)
    sent(twilio, replace(call, first_sent_at=datetime.now(UTC) + timedelta(hours=1)))
    assert reference_of(call.key) == " (ref 1000000000)"
    first, second = form_of(sandbox)
    assert first == second
    assert first == {
        "To": TO,
        "Body": "Your parcel is on its way. (ref 1000000000)",
        "MessagingServiceSid": "MG_1",
        "SmartEncoded": "false",
    }


def test_the_longest_text_fits_with_its_reference(twilio: TwilioAdapter) -> None:
    """1600 characters are what Twilio takes, the reference among them."""
    arguments = TOOLS.get("sms_send").validate({**TEXT, "body": "x" * BODY_CHARS_MAX})
    sent(twilio, call_of(arguments=arguments))
    assert len(f"{arguments['body']}{reference_of('0' * 32)}") == 1600


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("to", "5550102030"),
        ("to", "+0555010203"),
        ("to", "+1 555 010 2030"),
        ("to", "+15550102030\n"),
        ("body", ""),
        ("body", " x"),
        ("body", "x\n"),
        ("body", "a\x00b"),
        ("body", "x" * (BODY_CHARS_MAX + 1)),
        ("body", "\U0001f600" * (BODY_CHARS_MAX // 2 + 1)),
        ("send_at", "2026-02-30T00:00:00Z"),
        ("send_at", "2026-12-01T00:00:00+01:00"),
    ],
)
def test_what_cannot_be_a_text_is_refused_at_the_door(field: str, value: str) -> None:
    """One number in E.164, a text without control characters that fits, a time in UTC that exists."""
    with pytest.raises((ArgumentError, ValidationError)):
        TOOLS.get("sms_schedule").validate({**TEXT, "send_at": SEND_AT, field: value})


def test_equal_texts_are_told_apart(twilio: TwilioAdapter, sandbox: Sandbox) -> None:
    """Two actions that say the same to one person are each found as their own."""
    first, second = call_of(number=1), call_of(number=2)
    receipts = [sent(twilio, call) for call in (first, second)]
    found = [find(twilio, call) for call in (first, second)]
    assert [f.outcome.id for f in found if isinstance(f, Found) and isinstance(f.outcome, Succeeded)] == receipts
    assert find(twilio, call_of(number=3, first_sent_at=datetime.now(UTC) + timedelta(minutes=5))) == Absent()
    assert sandbox.count("sms") == 2


def test_decoys_go_to_a_person(twilio: TwilioAdapter, sandbox: Sandbox) -> None:
    """Our reference under other words, and our words without it: neither is taken for ours, nor for nothing."""
    call = call_of()
    planted(sandbox, f"Something else.{reference_of(call.key)}")
    finding = find(twilio, call)
    assert isinstance(finding, Found)
    assert not finding.as_intended
    plain = call_of(number=2)
    planted(sandbox, TEXT["body"])
    assert find(twilio, plain) == Found(Uncertain("no_reference"), as_intended=False)
    elsewhere = call_of(number=3, arguments={**TEXT, "to": "+15550109999"})
    planted(sandbox, f"{TEXT['body']}{reference_of(elsewhere.key)}")
    assert find(twilio, elsewhere) == Absent(), "what another number got is another text"


def test_a_text_that_is_not_kept_proves_nothing(twilio: TwilioAdapter, sandbox: Sandbox) -> None:
    """Some accounts keep no texts: a message of that time without one may be ours, an older one is not."""
    now = "Mon, 30 Nov 2026 12:00:00 +0000"
    for body in ("", None):
        sandbox.twilio.fault("answer", on=LIST, status=200, body=listed(body=body, date_created=now))
        call = call_of(first_sent_at=datetime(2026, 11, 30, 12, 0, tzinfo=UTC))
        assert find(twilio, call) == Unknown("text_not_kept")
    sandbox.twilio.fault("answer", on=LIST, status=200, body=listed(body="", date_created=now))
    assert find(twilio, call_of(first_sent_at=datetime(2026, 11, 30, 12, 5, tzinfo=UTC))) == Absent()


@pytest.mark.parametrize("status", ["queued", "sending", "sent", "delivered", "undelivered", "failed"])
def test_the_status_decides(twilio: TwilioAdapter, sandbox: Sandbox, status: str) -> None:
    """A text that was handed over is done; one that reached nobody was refused, however present its message is."""
    sandbox.config(twilio_status=status)
    call = call_of()
    receipt = sent(twilio, call)
    finding = find(twilio, call)
    assert isinstance(finding, Found)
    assert (finding.target, finding.as_intended) == (TO, True)
    lost = status in ("undelivered", "failed")
    done = Succeeded(receipt, {"id": receipt, "status": status})
    assert finding.outcome == (Rejected("undelivered") if lost else done)


@pytest.mark.parametrize("status", [200, 201, 400, 404])
def test_an_answer_that_is_too_deep_to_be_read(twilio: TwilioAdapter, sandbox: Sandbox, status: int) -> None:
    """It is no JSON that anybody could read: judged as such, and raised to nobody."""
    sandbox.twilio.fault("answer", on=CREATE, status=status, body="[" * 200_000)
    outcome = send(twilio, call_of())
    assert isinstance(outcome, Uncertain)
    assert outcome.code == f"http_{status}"


def test_a_status_that_nobody_knows_is_uncertain(twilio: TwilioAdapter, sandbox: Sandbox) -> None:
    """Neither a success nor a refusal: a person sees it if it stays."""
    call = call_of()
    body = f"{TEXT['body']}{reference_of(call.key)}"
    for status in ("partially_delivered", "scheduled", "receiving"):
        sandbox.twilio.fault("answer", on=LIST, status=200, body=listed(status=status, body=body))
        finding = find(twilio, call)
        assert isinstance(finding, Found)
        assert finding.outcome == Uncertain("other_status")


@pytest.mark.parametrize(
    ("status", "code", "outcome"),
    [
        (400, 21211, Rejected("invalid_number", field="to")),
        (400, 21610, Rejected("unsubscribed", field="to")),
        (400, 21617, Rejected("too_long", field="body")),
        (400, 21606, Rejected("invalid_sender")),
        (400, 35114, Rejected("send_at_outside_window", field="send_at")),
        (400, 21999, Rejected("invalid_request")),
        (401, 20003, Rejected("unauthenticated")),
        (404, 20404, Rejected("not_found")),
        (429, 20429, Rejected("rate_limited", retryable=True)),
    ],
)
def test_errors_by_their_code(
    twilio: TwilioAdapter, sandbox: Sandbox, status: int, code: int, outcome: Rejected
) -> None:
    """The code and the argument that it is about are ours; what Twilio says of it in words is in no outcome."""
    sandbox.twilio.fault("answer", on=CREATE, status=status, body={"code": code, "message": PROSE, "status": status})
    assert send(twilio, call_of()) == outcome
    assert len(sandbox.twilio.requests(CREATE)) == 1


@pytest.mark.parametrize(
    "body",
    [
        "<html>no</html>",
        {"error": "no"},
        {"code": "21211", "status": 400},
        {"code": 21211, "status": 200},
        {"code": 400, "status": 400},
        {"code": True, "status": 400},
        "[]",
    ],
)
def test_a_gateway_s_refusal_refuses_nothing(twilio: TwilioAdapter, sandbox: Sandbox, body: Any) -> None:
    """What is not in Twilio's own form may come from anybody on the way."""
    sandbox.twilio.fault("answer", on=CREATE, status=400, body=body)
    outcome = send(twilio, call_of())
    assert isinstance(outcome, Uncertain)
    assert outcome.code == "http_400"


@pytest.mark.parametrize(
    "changed", [{"sid": "AC1"}, {"sid": 7}, {"status": 7}, {"status": "a status in words"}, {"to": "+15550109999"}]
)
def test_success_needs_a_message(twilio: TwilioAdapter, sandbox: Sandbox, changed: dict[str, Any]) -> None:
    """An id of a message, a status, and the number that was written to."""
    answer = {**listed(status="queued")["messages"][0], **changed}
    sandbox.twilio.fault("answer", on=CREATE, status=201, body=answer)
    assert isinstance(send(twilio, call_of()), Uncertain)


def test_every_page_is_read_and_none_that_is_named_elsewhere(twilio: TwilioAdapter, sandbox: Sandbox) -> None:
    """The first of many texts is found; the cursor is taken, and not the address that it comes in."""
    call = call_of()
    receipt = sent(twilio, call)
    for number in range(PAGE_SIZE):
        planted(sandbox, f"Text {number}")
    finding = find(twilio, call)
    assert isinstance(finding, Found)
    assert isinstance(finding.outcome, Succeeded)
    assert finding.outcome.id == receipt
    assert len(sandbox.twilio.requests(LIST)) == 2
    page = {"messages": [], "next_page_uri": "https://evil.example/x?Page=1&PageToken=PA0"}
    sandbox.twilio.fault("answer", on=LIST, status=200, body=page)
    assert isinstance(find(twilio, call), Found)
    sandbox.twilio.fault("html_502", on=LIST, times=None, nth=2)
    assert isinstance(find(twilio, call), Unknown)


@pytest.mark.parametrize(
    "page",
    [
        listed(to="+15550109999"),
        {"messages": [], "next_page_uri": "/x"},
        {"messages": [{"sid": "x"}], "next_page_uri": None},
        {"messages": []},
        {"messages": [], "next_page_uri": "/x?Page=1&PageToken=PA0"},
    ],
)
def test_a_list_that_is_not_what_was_asked_for(twilio: TwilioAdapter, sandbox: Sandbox, page: dict[str, Any]) -> None:
    """Other people's texts, half a page, a list without an end: none of it is absence."""
    sandbox.twilio.fault("answer", on=LIST, status=200, body=page, times=None)
    assert find(twilio, call_of()) == Unknown("Incomplete")


def test_what_a_person_names(twilio: TwilioAdapter, sandbox: Sandbox) -> None:
    """A message is fetched by its id and checked for our reference; none is absent; an outage is unknown."""
    mine, theirs = call_of(number=1), call_of(number=2)
    receipt, other = sent(twilio, mine), sent(twilio, theirs)

    def fetched(call: Call, named: str) -> Finding | None:
        return twilio.fetch(call, named, timeout_s=TIMEOUT_S)

    assert isinstance(fetched(mine, receipt), Found)
    assert fetched(mine, other) == Unknown(OTHER_KEY)
    for nothing in (f"SM{'0' * 32}", "", "SM1", f"{receipt}/Media", "../Calls"):
        assert fetched(mine, nothing) == Absent()
    waits = schedule(3)
    waiting = sent(twilio, waits)
    cancel = cancel_of(waits, waiting)
    assert fetched(cancel, waiting) == Absent()
    sent(twilio, cancel)
    assert isinstance(fetched(cancel, waiting), Found)
    assert fetched(cancel, receipt) == Unknown(OTHER_KEY)
    for fault in ("html_502", "answer"):
        sandbox.twilio.fault(fault, on=GET, **({"status": 404, "body": "<html>"} if fault == "answer" else {}))
        assert isinstance(fetched(mine, receipt), Unknown)


def test_texts_without_a_reference(sandbox: Sandbox) -> None:
    """Then a text is as it was written, nothing is looked for, and the contract says so: a person decides."""
    config = TwilioConfig(account_sid="AC_1", token="t", sender="Acme", reference=False, base_url=sandbox.twilio.url)
    twilio, call = TwilioAdapter(config), call_of()
    receipt = sent(twilio, call)
    assert form_of(sandbox)[0]["Body"] == TEXT["body"]
    assert find(twilio, call) == Unknown("no_reference")
    assert twilio.fetch(call, receipt, timeout_s=TIMEOUT_S) is None
    settings = Settings.model_validate({"providers": {"twilio": {"reference": False}}})
    in_force = {name: contract_in_force(TOOLS.get(name).contract, "twilio", settings) for name in TOOLS.names()}
    assert {name: str(contract.grade) for name, contract in in_force.items()} == {
        "sms_send": "D",
        "sms_correction": "D",
        "sms_schedule": "D",
        "sms_cancel": "B",
    }


def test_nothing_is_read_from_the_environment(sandbox: Sandbox, monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither a region, nor credentials, nor a proxy of the process; two accounts live in it side by side."""
    for name, value in {
        "TWILIO_REGION": "au1",
        "TWILIO_EDGE": "sydney",
        "TWILIO_ACCOUNT_SID": "AC_other",
        "TWILIO_AUTH_TOKEN": "other",
        "HTTP_PROXY": "http://127.0.0.1:9",
    }.items():
        monkeypatch.setenv(name, value)
    configs = [
        TwilioConfig(account_sid=sid, token=f"t_{sid}", username=username, sender="Acme", base_url=sandbox.twilio.url)
        for sid, username in (("AC_1", None), ("AC_2", "SK_2"))
    ]
    first, second = (TwilioAdapter(config) for config in configs)
    call = call_of()
    sent(first, call)
    assert find(second, call) == Absent()
    assert isinstance(find(first, call), Found)
    paths = [request.path for request in sandbox.twilio.requests()]
    assert [path.split("/")[-2] for path in paths] == ["AC_1", "AC_2", "AC_1"]
    assert "t_AC_1" not in repr(configs)


def test_a_correction_can_always_be_filled() -> None:
    """Whatever a text said, the message that takes it back is one that can be sent."""
    spec = TOOLS.get("sms_send")
    built = correction_of_sms(spec.validate({**TEXT, "body": "x" * BODY_CHARS_MAX, "about": "y" * 255}))
    assert spec.correction_of(TEXT) is not None
    arguments = built["arguments"]
    assert isinstance(arguments, dict)
    assert TOOLS.get("sms_correction").validate(arguments)["to"] == TO
