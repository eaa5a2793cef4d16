"""Resend over requests: what goes over the wire, what its own answers mean, and that accounts of one process stay apart."""

from __future__ import annotations

import json
import threading
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
import requests

from counterfoil.ledger.errors import ArgumentError
from counterfoil.providers.contract import OTHER_KEY, Call, Fetcher, Grade
from counterfoil.providers.outcomes import (
    Absent,
    Finding,
    Found,
    NotSent,
    Outcome,
    Rejected,
    Succeeded,
    Uncertain,
    Unknown,
    Unreadable,
)
from counterfoil.providers.registry import Registry
from counterfoil.providers.resend.client import ResendAdapter, body_of
from counterfoil.providers.resend.config import API, ResendConfig
from counterfoil.providers.resend.outcomes import ACCEPTED, NEVER_SENT, REFUSED, answered, fetched
from counterfoil.sandbox.client import Sandbox

TOOLS = Registry.load(["counterfoil.providers.resend.tools"])
TIMEOUT_S = 3.0
SEND = "emails.send"
KEY = "e5" * 16
ID = "4ef9a417-02e9-4d39-ad75-9611e0fcc33c"
MAIL: dict[str, Any] = {
    "to": "jo@example.com",
    "subject": "Your order",
    "body": "It is on its way.",
    "reference": "1182",
}


def call_of(arguments: dict[str, Any] = MAIL, *, tool: str = "resend_send", key: str = KEY) -> Call:
    valid = TOOLS.get(tool).validate(arguments)
    return Call(
        action_id=f"act_{key}",
        tenant="acme",
        account="default",
        tool=tool,
        key=key,
        arguments=valid,
        target=str(valid["to"]),
        first_sent_at=datetime(2026, 11, 30, 10, 0, tzinfo=UTC),
    )


def adapter_to(sandbox: Sandbox, api_key: str = "re_sandbox", **changes: Any) -> ResendAdapter:
    config = ResendConfig(api_key=api_key, sender="shop@example.org", base_url=sandbox.resend.url)
    return ResendAdapter(replace(config, **changes))


def sent(adapter: ResendAdapter, call: Call) -> str:
    outcome = adapter.send(call, timeout_s=TIMEOUT_S)
    assert isinstance(outcome, Succeeded), outcome
    return outcome.id


def refusal(status: int, name: str) -> bytes:
    return json.dumps({"statusCode": status, "name": name, "message": "Words of Resend's."}).encode()


def mail(**changes: Any) -> bytes:
    """A mail as Resend shows it to whoever reads it."""
    shown = {
        "object": "email",
        "id": ID,
        "to": ["jo@example.com"],
        "from": "shop@example.org",
        "subject": "Your order",
        "created_at": "2026-11-30 10:00:01.674981+00",
        "last_event": "delivered",
        "tags": [{"name": "counterfoil_key", "value": KEY}],
    }
    return json.dumps({name: value for name, value in (shown | changes).items() if value is not None}).encode()


def test_a_plain_mail(sandbox: Sandbox) -> None:
    """One request with the key as Resend's own and as a tag, one recipient, and nothing that schedules it."""
    receipt = sent(adapter_to(sandbox), call_of())
    [effect] = sandbox.resend.effects("email", key=KEY)
    assert (effect.object_id, effect.data["to"], effect.data["text"]) == (receipt, MAIL["to"], MAIL["body"])
    [request] = sandbox.resend.requests()
    assert request.headers["idempotency-key"] == KEY
    assert json.loads(request.body or "") == {
        "from": "shop@example.org",
        "to": ["jo@example.com"],
        "subject": "Your order",
        "text": "It is on its way.",
        "headers": {"Auto-Submitted": "auto-generated"},
        "tags": [{"name": "counterfoil_key", "value": KEY}],
    }


def test_every_attempt_sends_the_same_bytes(sandbox: Sandbox) -> None:
    """Throttled twice, accepted then: the same body under the same key, in ASCII whatever the language."""
    call = call_of({**MAIL, "subject": "Grüße 🙂", "body": "Grüße, 你好\n\n$5"})
    sandbox.resend.fault("429_bare", on=SEND, times=2)
    outcomes = [adapter_to(sandbox).send(call, timeout_s=TIMEOUT_S) for _ in range(3)]
    assert [type(outcome) for outcome in outcomes] == [Rejected, Rejected, Succeeded]
    assert len({(request.body, request.headers["idempotency-key"]) for request in sandbox.resend.requests()}) == 1
    assert body_of(call, "shop@example.org").isascii()
    assert sandbox.resend.effects()[0].data["subject"] == "Grüße 🙂"


@pytest.mark.parametrize("fault", ["rst_after_commit", "504_after_commit", "html_2xx"])
def test_a_repeat_within_the_day_is_the_first_mail(sandbox: Sandbox, fault: str) -> None:
    """The lost answer is got by the same request, and there is one mail."""
    sandbox.resend.fault(fault, on=SEND)
    adapter = adapter_to(sandbox)
    assert isinstance(adapter.send(call_of(), timeout_s=TIMEOUT_S), Uncertain)
    sandbox.advance(23 * 3600)
    receipt = sent(adapter, call_of())
    [effect] = sandbox.resend.effects("email")
    assert effect.object_id == receipt


def test_a_repeat_after_the_day_is_a_second_mail(sandbox: Sandbox) -> None:
    """What the contract's ttl is about: Resend has forgotten the key, so nothing may repeat it then."""
    adapter = adapter_to(sandbox)
    first = sent(adapter, call_of())
    contract = TOOLS.get("resend_send").contract
    assert contract.native_key_ttl_s is not None
    sandbox.advance(contract.native_key_ttl_s + 1)
    assert sent(adapter, call_of()) != first
    assert sandbox.count("resend_emails") == 2


def test_a_key_with_another_mail(sandbox: Sandbox) -> None:
    """A first mail exists, so it is no refusal: a person looks."""
    adapter = adapter_to(sandbox)
    sent(adapter, call_of())
    outcome = adapter.send(call_of({**MAIL, "subject": "Another"}), timeout_s=TIMEOUT_S)
    assert outcome == Uncertain("idempotency_mismatch", evidence="HTTP 409")
    assert sandbox.count("resend_emails") == 1


def test_a_key_that_is_under_way(sandbox: Sandbox) -> None:
    """The twin of a request that still runs is told so, and proves nothing; the first one lands alone."""
    sandbox.resend.fault("slow", on=SEND, delay_s=60)
    outcomes: list[Outcome] = []

    def first() -> None:
        outcomes.append(adapter_to(sandbox).send(call_of(), timeout_s=20))

    thread = threading.Thread(target=first)
    thread.start()
    while not sandbox.resend.requests(SEND):
        pass
    twin = adapter_to(sandbox).send(call_of(), timeout_s=TIMEOUT_S)
    sandbox.advance(61)
    thread.join(20)
    assert twin == Uncertain("idempotency_key_in_use", evidence="HTTP 409")
    assert [type(outcome) for outcome in outcomes] == [Succeeded]
    assert sandbox.count("resend_emails") == 1


def test_two_accounts_in_one_process(sandbox: Sandbox) -> None:
    """Each adapter sends with its own API key, in turns too: nothing is shared between them but the process."""
    one, two = adapter_to(sandbox, "re_one"), adapter_to(sandbox, "re_two")
    for number, adapter in enumerate((one, two, one, two)):
        sent(adapter, call_of({**MAIL, "reference": str(number)}, key=f"{number:032x}"))
    accounts = [effect.data["account"] for effect in sandbox.resend.effects("email")]
    assert accounts[0] == accounts[2] != accounts[1] == accounts[3]


@pytest.mark.parametrize(("name", "status"), [(name, status) for name, all_ in REFUSED.items() for status in all_])
def test_a_refusal_of_resends_own(name: str, status: int) -> None:
    """Its name, with a status that belongs to it, says that nothing was sent; a word of ours is the code."""
    assert answered(status, refusal(status, name), wait_s=None) == Rejected(name)
    assert isinstance(answered(500, refusal(500, name), wait_s=None), Uncertain)


@pytest.mark.parametrize("status", [400, 401, 403, 404, 405, 409, 410, 413, 422, 451])
@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"<html><h1>Forbidden</h1></html>",
        b"[]",
        b'{"message": "no"}',
        b'{"name": "validation_error"}',
        refusal(400, "security_error"),
        refusal(400, "application_error"),
        refusal(400, "a_new_name"),
    ],
)
def test_a_refusal_of_somebody_elses(status: int, body: bytes) -> None:
    """A gateway's page, or a name that is not known, proves nothing."""
    assert answered(status, body, wait_s=None) == Uncertain(f"http_{status}", evidence=f"HTTP {status}")


@pytest.mark.parametrize("name", ["daily_quota_exceeded", "monthly_quota_exceeded", "rate_limit_exceeded", "new"])
def test_429_is_for_now(name: str) -> None:
    """Whatever the limit, a later attempt may be accepted; which quota it was is told."""
    code = name if name.endswith("quota_exceeded") else "rate_limited"
    assert answered(429, refusal(429, name), wait_s=7.0) == Rejected(code, retryable=True, retry_after_s=7.0)


@pytest.mark.parametrize(
    "body", [b'{"id": 5}', b'{"id": ""}', b'{"id": "pi_1"}', b'{"id": "4EF9A417"}', b'{"data": {}}', b"null"]
)
def test_a_success_needs_resends_kind_of_id(body: bytes) -> None:
    """What has no UUID is no receipt; a 201 is none of Resend's answers to a send."""
    assert answered(200, body, wait_s=None) == Uncertain("malformed", evidence="HTTP 200")
    assert isinstance(answered(201, json.dumps({"id": ID}).encode(), wait_s=None), Uncertain)


def test_a_mail_that_a_person_names(sandbox: Sandbox) -> None:
    """Found by its id and our tag; another call's is not ours; none is absent; what fails is unknown."""
    adapter, other = adapter_to(sandbox), call_of({**MAIL, "reference": "1183"}, key="0" * 32)
    receipt, theirs = sent(adapter, call_of()), sent(adapter, other)

    def fetch(named: str, by: ResendAdapter = adapter) -> Finding | None:
        return by.fetch(call_of(), named, timeout_s=TIMEOUT_S)

    assert isinstance(adapter, Fetcher)
    found = fetch(receipt)
    assert isinstance(found, Found)
    assert (found.outcome, found.as_intended) == (Succeeded(receipt, {"id": receipt}), True)
    assert found.created_at is not None
    assert found.created_at > datetime.now(UTC) - timedelta(minutes=1)
    assert fetch(theirs) == Unknown(OTHER_KEY)
    before = len(sandbox.resend.requests())
    for nothing in ("", "../api-keys", "re_123", f"{receipt}/cancel", receipt.upper()):
        assert fetch(nothing) == Absent()
    assert len(sandbox.resend.requests()) == before, "what is no id is not asked for"
    assert fetch(ID) == Absent()
    sandbox.resend.fault("html_502", on="emails.retrieve")
    assert fetch(receipt) == Unknown("http_502")
    assert fetch(receipt, adapter_to(sandbox, "re_send_only")) == Unknown("restricted_api_key")
    sandbox.resend.fault("rst_before_commit", on="emails.retrieve")
    assert isinstance(fetch(receipt), Unknown)


def test_a_mail_whose_tags_are_not_shown(sandbox: Sandbox) -> None:
    """Resend need not show tags; without them nothing says whose mail it is, so a person's word is not borne out."""
    receipt = sent(adapter_to(sandbox), call_of())
    sandbox.config(resend_tags="hidden")
    assert adapter_to(sandbox).fetch(call_of(), receipt, timeout_s=TIMEOUT_S) == Unknown("key_not_shown")


@pytest.mark.parametrize("event", sorted(ACCEPTED | NEVER_SENT | {"scheduled", "new"}))
def test_the_status_of_a_mail(event: str) -> None:
    """Taken to send is success, whatever became of it there; a mail that Resend gave up was never sent."""
    found = fetched(call_of(), ID, 200, mail(last_event=event))
    assert isinstance(found, Found)
    assert found.created_at == datetime(2026, 11, 30, 10, 0, 1, 674981, tzinfo=UTC)
    if event in ACCEPTED:
        assert found.outcome == Succeeded(ID, {"id": ID})
    elif event in NEVER_SENT:
        assert found.outcome == Rejected(event)
    else:
        assert found.outcome == Uncertain("unknown_status")


@pytest.mark.parametrize(
    "changes",
    [
        {"to": ["al@example.com"]},
        {"to": ["jo@example.com", "al@example.com"]},
        {"to": "jo@example.com"},
        {"subject": "Another"},
    ],
)
def test_our_tag_on_another_mail(changes: dict[str, Any]) -> None:
    """Whoever knows the key can put it on a mail of their own: what was not asked for goes to a person."""
    found = fetched(call_of(), ID, 200, mail(**changes))
    assert isinstance(found, Found)
    assert not found.as_intended


@pytest.mark.parametrize(
    ("changes", "code"),
    [
        ({"tags": None}, "key_not_shown"),
        ({"tags": []}, "key_not_shown"),
        ({"tags": [{"name": "other", "value": KEY}]}, "key_not_shown"),
        ({"tags": [{"name": "counterfoil_key", "value": "f" * 32}]}, OTHER_KEY),
        ({"tags": [{"name": "counterfoil_key", "value": each} for each in (KEY, "f" * 32)]}, OTHER_KEY),
        ({"id": "00000000-0000-0000-0000-000000000000"}, "malformed"),
        ({"object": "domain"}, "malformed"),
    ],
)
def test_a_mail_that_is_not_surely_ours(changes: dict[str, Any], code: str) -> None:
    """Two tags, another key, another object: none of them is a finding."""
    assert fetched(call_of(), ID, 200, mail(**changes)) == Unknown(code)


@pytest.mark.parametrize("to", ["jo@example.com, al@example.com", "Jo <jo@example.com>", "jo@localhost", ""])
@pytest.mark.parametrize("tool", ["resend_send", "resend_correction"])
def test_the_rules_of_e_mail_hold_here_too(tool: str, to: str) -> None:
    """One plain recipient; templates become text at the door."""
    with pytest.raises(ArgumentError):
        TOOLS.get(tool).validate({**MAIL, "to": to})
    filled = TOOLS.get(tool).validate({**MAIL, "body": {"template": "Dear $n", "values": {"n": "Jo"}}})
    assert filled["body"] == "Dear Jo"


def test_the_contract() -> None:
    """Grade A for a day, then a person: there is no look-up. A person approves each; the correction is Resend's, too."""
    for name in ("resend_send", "resend_correction"):
        spec = TOOLS.get(name)
        assert (spec.contract.grade, spec.contract.lookup, spec.needs_approval(["customer"])) == (Grade.A, False, True)
    correction: Any = TOOLS.get("resend_send").correction_of(call_of().arguments)
    assert (correction["tool"], correction["arguments"]["to"]) == ("resend_correction", "jo@example.com")
    assert TOOLS.get("resend_correction").correction is None


def test_nothing_leaves_of_what_cannot_be_a_mail(sandbox: Sandbox) -> None:
    """No key, another provider's tool: not sent. There is no version, and nobody can be asked."""
    adapter, call = adapter_to(sandbox), call_of()
    assert adapter.send(replace(call, tool="email_send"), timeout_s=1) == NotSent("unknown_tool")
    assert adapter.send(replace(call, key=""), timeout_s=1) == NotSent("before_write_ValueError")
    assert adapter.version(call, timeout_s=1) == Unreadable("no_version")
    assert adapter.lookup([call], timeout_s=1) == {call.action_id: Unknown("no_lookup")}
    assert sandbox.resend.requests() == []


def test_the_config_hides_its_key() -> None:
    """No log that shows a config shows the API key; without an address it is the real service."""
    config = ResendConfig(api_key="re_secret", sender="shop@example.org")
    assert "re_secret" not in repr(config)
    assert config.base_url == API
    assert ResendConfig(api_key="re_secret", sender="shop@example.org") == config


def test_without_a_key_the_sandbox_sends_twice(sandbox: Sandbox) -> None:
    """The sandbox deduplicates by the key alone, as Resend does: the suite's one effect is the key's doing."""
    for _ in range(2):
        requests.post(
            f"{sandbox.resend.url}/emails",
            json={"from": "a@example.org", "to": "jo@example.com", "subject": "x", "text": "x"},
            headers={"Authorization": "Bearer re_x"},
            timeout=3,
        ).raise_for_status()
    assert sandbox.count("resend_emails") == 2
