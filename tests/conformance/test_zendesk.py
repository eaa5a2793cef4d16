"""Zendesk through zenpy: what goes over the wire, what an ambiguous answer means, and what the defaults would do."""

from __future__ import annotations

import json
from base64 import b64encode
from collections.abc import Mapping
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import pytest
import requests
from requests.adapters import HTTPAdapter
from zenpy import Zenpy
from zenpy.lib.api_objects import Comment, Ticket

from counterfoil.providers.contract import OTHER_KEY, Call, Of
from counterfoil.providers.outcomes import (
    PRECONDITION_FAILED,
    Absent,
    Finding,
    Found,
    Json,
    Many,
    Rejected,
    Succeeded,
    Uncertain,
    Unknown,
    Version,
)
from counterfoil.providers.registry import Registry
from counterfoil.providers.zendesk.client import ZendeskAdapter
from counterfoil.providers.zendesk.config import ZendeskConfig
from counterfoil.providers.zendesk.reads import PAGE_SIZE
from counterfoil.sandbox.client import Sandbox

TOOLS = Registry.load(["counterfoil.providers.zendesk.tools"])
TIMEOUT_S = 3.0
TICKET: dict[str, Json] = {"subject": "Reship 1182", "body": "Parcel lost.", "order_id": "1182"}
CREATE, UPDATE = "tickets.create", "tickets.update"


def call_of(name: str, number: int, arguments: Mapping[str, Json], of: Of | None = None) -> Call:
    return Call(
        action_id=f"act_{number}",
        tenant="acme",
        account="main",
        tool=name,
        key=f"{number:032x}",
        arguments=TOOLS.get(name).validate(arguments),
        target="1182",
        first_sent_at=datetime.now(UTC),
        of=of,
    )


def about(call: Call, receipt: str | None) -> Of:
    return Of(action_id=call.action_id, tool=call.tool, key=call.key, receipt=receipt, arguments=call.arguments)


def sent(adapter: ZendeskAdapter, call: Call) -> str:
    outcome = adapter.send(call, timeout_s=TIMEOUT_S)
    assert isinstance(outcome, Succeeded), outcome
    return outcome.id


def find(adapter: ZendeskAdapter, call: Call) -> Finding:
    return adapter.lookup([call], timeout_s=TIMEOUT_S)[call.action_id]


def put(sandbox: Sandbox, number: str, **ticket: Any) -> None:
    """Somebody else's update, a second later."""
    sandbox.advance(1)
    url = f"{sandbox.zendesk.url}/api/v2/tickets/{number}.json"
    requests.put(url, json={"ticket": ticket}, timeout=3).raise_for_status()


def post(sandbox: Sandbox, **ticket: Any) -> str:
    """Somebody else's ticket."""
    url, body = f"{sandbox.zendesk.url}/api/v2/tickets", {"ticket": {"comment": {"body": "Help"}, **ticket}}
    reply = requests.post(url, json=body, timeout=3)
    reply.raise_for_status()
    return str(reply.json()["ticket"]["id"])


def test_what_goes_over_the_wire(zendesk_adapter: ZendeskAdapter, sandbox: Sandbox) -> None:
    """Our key three times on a creation, in the metadata of an update; nothing is public that must not be."""
    create = call_of("zendesk_create", 1, TICKET)
    ticket = sent(zendesk_adapter, create)
    sent(zendesk_adapter, call_of("zendesk_note", 2, {"ticket": ticket, "body": "Called."}))
    sent(zendesk_adapter, call_of("zendesk_reply", 3, {"ticket": ticket, "body": "Sorry."}))
    sent(zendesk_adapter, call_of("zendesk_solve", 4, {"order_id": "1182", "reason": "Mistake"}, about(create, ticket)))
    made, *updates = (r for r in sandbox.requests("zendesk") if r.operation in (CREATE, UPDATE))
    assert (made.headers["idempotency-key"], made.path.endswith("/api/v2/tickets.json")) == (create.key, True)
    ours = {"counterfoil_key": create.key, "counterfoil_target": "1182"}
    comment = {"body": "Parcel lost.", "public": False}
    body = {"subject": "Reship 1182", "comment": comment, "external_id": f"cf-{create.key}", "metadata": ours}
    assert json.loads(made.body or "") == {"ticket": body}
    assert not any("idempotency-key" in request.headers for request in updates)
    note, reply, solve = (json.loads(request.body or "")["ticket"] for request in updates)
    assert (note["comment"], reply["comment"]) == (
        {"body": "Called.", "public": False},
        {"body": "Sorry.", "public": True},
    )
    assert (solve["status"], solve["comment"]) == ("solved", {"body": "Mistake", "public": False})
    assert [each["metadata"]["counterfoil_key"] for each in (note, reply, solve)] == [f"{n:032x}" for n in (2, 3, 4)]
    assert "safe_update" not in note, "nobody has decided on a version"
    assert [mail.key for mail in sandbox.effects("customer_mail")] == [f"{3:032x}"]


@pytest.mark.parametrize("email", ["bot@example.test", None])
def test_credentials(sandbox: Sandbox, email: str | None) -> None:
    """An agent's API token, or an OAuth access token; neither is in the config's text."""
    config = ZendeskConfig(server=sandbox.zendesk.url, email=email, token="t0p-secret")
    adapter = ZendeskAdapter(config)
    url = f"{sandbox.zendesk.url}/api/v2/tickets"
    header = adapter._session.prepare_request(requests.Request("GET", url)).headers["Authorization"]
    login = b64encode(f"{email}/token:t0p-secret".encode()).decode()
    assert header == ("Bearer t0p-secret" if email is None else f"Basic {login}")
    sent(adapter, call_of("zendesk_create", 1, TICKET))
    assert "t0p-secret" not in repr(config)


def test_a_repeated_key_within_its_ttl_and_after(zendesk_adapter: ZendeskAdapter, sandbox: Sandbox) -> None:
    """Within two hours the first ticket is answered again; afterwards the same key makes another, and both are seen."""
    create = call_of("zendesk_create", 1, TICKET)
    first = sent(zendesk_adapter, create)
    sandbox.advance(7100)
    assert sent(zendesk_adapter, create) == first
    assert sandbox.count("zendesk_tickets") == 1
    sandbox.advance(101)
    second = sent(zendesk_adapter, create)
    assert find(zendesk_adapter, create) == Many((first, second))


def test_a_key_of_another_request(zendesk_adapter: ZendeskAdapter, sandbox: Sandbox) -> None:
    """The same key with other words is a mismatch, which says nothing about what became of the first."""
    create = call_of("zendesk_create", 1, TICKET)
    sent(zendesk_adapter, create)
    outcome = zendesk_adapter.send(replace(create, arguments=TICKET | {"body": "Other"}), timeout_s=TIMEOUT_S)
    assert isinstance(outcome, Uncertain)
    assert outcome.code == "idempotency_mismatch"
    assert sandbox.count("zendesk_tickets") == 1


def test_a_list_that_lags(zendesk_adapter: ZendeskAdapter, sandbox: Sandbox) -> None:
    """A new ticket may be missing from the list by external id for a while; what is done to a ticket is seen at once."""
    sandbox.config(search_lag_s={"zendesk": 120})
    create = call_of("zendesk_create", 1, TICKET)
    ticket = sent(zendesk_adapter, create)
    assert find(zendesk_adapter, create) == Absent()
    note = call_of("zendesk_note", 2, {"ticket": ticket, "body": "Called."})
    sent(zendesk_adapter, note)
    assert isinstance(find(zendesk_adapter, note), Found)
    assert isinstance(zendesk_adapter.fetch(create, ticket, timeout_s=TIMEOUT_S), Found), "by its number"
    sandbox.advance(121)
    assert isinstance(find(zendesk_adapter, create), Found)


def test_a_twin_under_way_where_zendesk_runs_it(zendesk_adapter: ZendeskAdapter, sandbox: Sandbox) -> None:
    """Zendesk does not say what a repeat meets while the first is under way; if both run, both are seen."""
    sandbox.config(zendesk_in_flight="execute")
    create = call_of("zendesk_create", 1, TICKET)
    sandbox.zendesk.fault("slow", on=CREATE, delay_s=60)
    assert isinstance(zendesk_adapter.send(create, timeout_s=0.4), Uncertain)
    sent(zendesk_adapter, create)
    sandbox.advance(61)
    assert sandbox.count("zendesk_tickets") == 2
    assert isinstance(find(zendesk_adapter, create), Many)


def test_decoys(zendesk_adapter: ZendeskAdapter, sandbox: Sandbox) -> None:
    """A ticket with our external id that another hand made, or that a customer saw, is nobody's to settle but a person's."""
    create = call_of("zendesk_create", 1, TICKET)
    number = post(sandbox, external_id=f"cf-{create.key}")
    for finding in (find(zendesk_adapter, create), zendesk_adapter.fetch(create, number, timeout_s=TIMEOUT_S)):
        assert isinstance(finding, Found)
        assert (finding.as_intended, isinstance(finding.outcome, Uncertain)) == (False, True)
    public = call_of("zendesk_create", 2, TICKET)
    post(sandbox, external_id=f"cf-{public.key}", metadata={"counterfoil_key": public.key})
    assert find(zendesk_adapter, public) == Found(
        Uncertain("other_audience"),
        created_at=getattr(find(zendesk_adapter, public), "created_at", None),
        as_intended=False,
    )
    other = call_of("zendesk_create", 3, TICKET)
    post(
        sandbox,
        external_id=f"cf-{other.key}",
        comment={"body": "x", "public": False},
        metadata={"counterfoil_key": other.key, "counterfoil_target": "9999"},
    )
    finding = find(zendesk_adapter, other)
    assert isinstance(finding, Found)
    assert finding.target == "9999", "which is not what the intent says"


def test_a_list_that_ignores_the_external_id_proves_nothing(zendesk_adapter: ZendeskAdapter, sandbox: Sandbox) -> None:
    """All tickets instead of ours are no several of ours, and no absence."""
    page = {"tickets": [{"id": 5, "external_id": None}], "meta": {"has_more": False}}
    sandbox.zendesk.fault("answer", on="tickets.list", status=200, body=page)
    assert find(zendesk_adapter, call_of("zendesk_create", 1, TICKET)) == Unknown("Incomplete")


def test_an_audit_beyond_the_first_page(zendesk_adapter: ZendeskAdapter, sandbox: Sandbox) -> None:
    """Every page of a long ticket is read, and a page that cannot be read is no absence."""
    ticket = sent(zendesk_adapter, call_of("zendesk_create", 1, TICKET))
    with requests.Session() as session:
        for number in range(PAGE_SIZE):
            body = {"ticket": {"priority": str(number)}}
            session.put(f"{sandbox.zendesk.url}/api/v2/tickets/{ticket}", json=body, timeout=3).raise_for_status()
    note = call_of("zendesk_note", 2, {"ticket": ticket, "body": "Called."})
    assert find(zendesk_adapter, note) == Absent()
    receipt = sent(zendesk_adapter, note)
    finding = find(zendesk_adapter, note)
    assert isinstance(finding, Found)
    assert isinstance(finding.outcome, Succeeded)
    assert finding.outcome.id == receipt
    sandbox.clear_faults()
    sandbox.zendesk.fault("html_502", on="tickets.audits", times=None, nth=2)
    assert isinstance(find(zendesk_adapter, note), Unknown)


def test_a_reply_on_a_ticket_that_has_changed(zendesk_adapter: ZendeskAdapter, sandbox: Sandbox) -> None:
    """Zendesk itself compares the version, also with what came after our reading, and no mail goes out."""
    ticket = sent(zendesk_adapter, call_of("zendesk_create", 1, TICKET))
    reply = call_of("zendesk_reply", 2, {"ticket": ticket, "body": "Sorry."})
    version = zendesk_adapter.version(reply, timeout_s=TIMEOUT_S)
    assert isinstance(version, Version)
    decided = replace(reply, expected_version=version.text)
    put(sandbox, ticket, comment={"body": "It has come!", "public": False})
    assert zendesk_adapter.send(decided, timeout_s=TIMEOUT_S) == Rejected(PRECONDITION_FAILED)
    assert sandbox.count("zendesk_mails") == 0
    now = zendesk_adapter.version(reply, timeout_s=TIMEOUT_S)
    assert isinstance(now, Version)
    sent(zendesk_adapter, replace(reply, expected_version=now.text))
    assert sandbox.count("zendesk_mails") == 1


def test_409_without_a_condition_is_uncertain(zendesk_adapter: ZendeskAdapter, sandbox: Sandbox) -> None:
    """A conflict that answers no condition of ours refuses nothing."""
    ticket = sent(zendesk_adapter, call_of("zendesk_create", 1, TICKET))
    conflict = {"error": "UpdateConflict", "description": "x"}
    sandbox.zendesk.fault("answer", on=UPDATE, status=409, body=conflict)
    note = call_of("zendesk_note", 2, {"ticket": ticket, "body": "Called."})
    assert isinstance(zendesk_adapter.send(note, timeout_s=TIMEOUT_S), Uncertain)


@pytest.mark.parametrize("status", [400, 403, 404, 413])
def test_a_gateway_s_refusal_refuses_nothing(zendesk_adapter: ZendeskAdapter, sandbox: Sandbox, status: int) -> None:
    """A page that is not in Zendesk's own form may come from anybody on the way."""
    sandbox.zendesk.fault("answer", on=CREATE, status=status, body="<html>no</html>")
    assert isinstance(zendesk_adapter.send(call_of("zendesk_create", 1, TICKET), timeout_s=TIMEOUT_S), Uncertain)


def test_refused_fields_and_closed_tickets(zendesk_adapter: ZendeskAdapter, sandbox: Sandbox) -> None:
    """A refusal names the model's argument and quotes no prose; a closed ticket takes no note, and counts as solved."""
    details = {"error": "RecordInvalid", "description": "prose", "details": {"subject": [{"description": "prose"}]}}
    sandbox.zendesk.fault("answer", on=CREATE, status=422, body=details)
    create = call_of("zendesk_create", 1, TICKET)
    assert zendesk_adapter.send(create, timeout_s=TIMEOUT_S) == Rejected("unprocessable", field="subject")
    ticket = sent(zendesk_adapter, create)
    put(sandbox, ticket, status="closed")
    note = call_of("zendesk_note", 2, {"ticket": ticket, "body": "Called."})
    assert zendesk_adapter.send(note, timeout_s=TIMEOUT_S) == Rejected("unprocessable")
    solve = call_of("zendesk_solve", 3, {"order_id": "1182"}, about(create, ticket))
    assert zendesk_adapter.send(solve, timeout_s=TIMEOUT_S) == Succeeded(ticket, {"id": ticket, "status": "closed"})


def test_a_solved_ticket_that_was_opened_again(zendesk_adapter: ZendeskAdapter, sandbox: Sandbox) -> None:
    """A customer's answer opens a solved ticket: we did solve it, and do not do it again."""
    create = call_of("zendesk_create", 1, TICKET)
    ticket = sent(zendesk_adapter, create)
    solve = call_of("zendesk_solve", 2, {"order_id": "1182"}, about(create, None))
    assert find(zendesk_adapter, solve) == Absent()
    assert sent(zendesk_adapter, solve) == ticket, "found by the key of what is undone"
    put(sandbox, ticket, status="open")
    assert isinstance(find(zendesk_adapter, solve), Found)
    assert find(zendesk_adapter, replace(solve, key="f" * 32)) == Absent()


def test_a_ticket_that_stays_open_is_not_solved(zendesk_adapter: ZendeskAdapter, sandbox: Sandbox) -> None:
    """An update that leaves out the status proves nothing by its 200; its audit, which solved nothing, is for a person."""
    create = call_of("zendesk_create", 1, TICKET)
    ticket = sent(zendesk_adapter, create)
    solve = call_of("zendesk_solve", 2, {"order_id": "1182"}, about(create, ticket))
    sandbox.zendesk.fault("answer", on=UPDATE, status=200, body={"ticket": {"id": int(ticket), "status": "open"}})
    assert zendesk_adapter.send(solve, timeout_s=TIMEOUT_S) == Uncertain("not_solved")
    put(sandbox, ticket, metadata={"counterfoil_key": solve.key}, priority="high")
    finding = find(zendesk_adapter, solve)
    assert isinstance(finding, Found)
    assert (finding.outcome, finding.as_intended) == (Uncertain("not_solved"), False)


def test_another_ticket_in_the_answer_is_not_ours(zendesk_adapter: ZendeskAdapter, sandbox: Sandbox) -> None:
    """The answer to a creation shows our external id, or it is the answer to another request."""
    other = {"ticket": {"id": 9, "status": "new", "external_id": f"cf-{'f' * 32}"}}
    sandbox.zendesk.fault("answer", on=CREATE, status=201, body=other)
    outcome = zendesk_adapter.send(call_of("zendesk_create", 1, TICKET), timeout_s=TIMEOUT_S)
    assert outcome == Uncertain("other_key")


def test_what_a_person_names(zendesk_adapter: ZendeskAdapter, sandbox: Sandbox) -> None:
    """A ticket or comment is fetched by its number and checked for our key; none is absent; an outage is unknown."""
    creates = [call_of("zendesk_create", number, TICKET) for number in (1, 2)]
    mine, theirs = (sent(zendesk_adapter, create) for create in creates)

    def fetched(call: Call, receipt: str) -> Finding:
        return zendesk_adapter.fetch(call, receipt, timeout_s=TIMEOUT_S)

    finding = fetched(creates[0], mine)
    assert isinstance(finding, Found)
    assert (finding.target, finding.as_intended) == ("1182", True)
    assert fetched(creates[0], theirs) == Unknown(OTHER_KEY)
    for nothing in ("999", "../users/1", "1/comments", "²", "", "0"):
        assert fetched(creates[0], nothing) == Absent()
    notes = [call_of("zendesk_note", number, {"ticket": mine, "body": "Hello"}) for number in (3, 4)]
    note, other = (sent(zendesk_adapter, each) for each in notes)
    assert isinstance(fetched(notes[0], note), Found)
    assert fetched(notes[0], other) == Unknown(OTHER_KEY)
    assert fetched(notes[0], "5") == Absent()
    solve = call_of("zendesk_solve", 5, {"order_id": "1182"}, about(creates[0], mine))
    assert fetched(solve, mine) == Absent()
    sent(zendesk_adapter, solve)
    assert isinstance(fetched(solve, mine), Found)
    assert fetched(solve, theirs) == Unknown(OTHER_KEY)
    sandbox.zendesk.fault("html_502", on="tickets.retrieve")
    assert isinstance(fetched(creates[0], mine), Unknown)


def test_by_default_zenpy_sends_again(sandbox: Sandbox, monkeypatch: pytest.MonkeyPatch) -> None:
    """Why the adapter takes over its transport: one update whose answer is lost is four mails to the customer."""
    number = post(sandbox)
    monkeypatch.setenv("ZENPY_FORCE_SCHEME", "http")
    monkeypatch.setenv("ZENPY_FORCE_NETLOC", sandbox.zendesk.url.removeprefix("http://"))
    session = requests.Session()
    session.mount("http://", HTTPAdapter(**Zenpy.http_adapter_kwargs()))  # what it mounts by itself, on https only
    client: Any = Zenpy(subdomain="acme", email="bot@example.test", token="t", session=session)
    mails = sandbox.count("zendesk_mails")
    sandbox.zendesk.fault("fin_after_commit", on=UPDATE, times=3)
    client.tickets.update(Ticket(id=int(number), comment=Comment(body="Sorry.", public=True)))
    assert sandbox.count("zendesk_mails") - mails == 4
    reads = len(sandbox.requests("zendesk", "tickets.retrieve"))
    for _ in range(2):
        client.tickets(id=int(number))
    assert len(sandbox.requests("zendesk", "tickets.retrieve")) - reads < 2, "and answers from its cache"
    session.close()
