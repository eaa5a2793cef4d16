"""Jira Cloud, through its real client: labels that go missing, an index that lags, tickets that are closed already."""

from __future__ import annotations

import json
import urllib.request
from collections.abc import Mapping
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from jira import JIRA, JIRAError

from counterfoil.ledger.errors import ArgumentError
from counterfoil.providers.contract import Call, Grade, Of
from counterfoil.providers.jira import reads
from counterfoil.providers.jira.client import JiraAdapter
from counterfoil.providers.jira.config import JiraConfig
from counterfoil.providers.outcomes import Absent, Found, Json, Many, NotSent, Rejected, Succeeded, Uncertain, Unknown
from counterfoil.providers.registry import Registry
from counterfoil.sandbox.client import Sandbox

TOOLS = Registry.load(["counterfoil.providers.jira.tools"])
TIMEOUT_S = 3.0
TICKET: dict[str, Json] = {"project": "SUP", "summary": "Reship 1182", "order_id": "1182"}


def create(number: int = 1, **changes: Json) -> Call:
    return call_of("jira_create", number, {**TICKET, **changes})


def call_of(tool: str, number: int, arguments: Mapping[str, Json], of: Of | None = None) -> Call:
    return Call(
        action_id=f"act_{tool}_{number}",
        tenant="Acme Corp",
        account="main",
        tool=tool,
        key=f"{number:032x}",
        arguments=TOOLS.get(tool).validate(arguments),
        target="1182",
        first_sent_at=datetime.now(UTC),
        of=of,
    )


def of(call: Call, receipt: str | None) -> Of:
    return Of(action_id=call.action_id, tool=call.tool, key=call.key, receipt=receipt, arguments=call.arguments)


def sent(adapter: JiraAdapter, call: Call) -> Any:
    return adapter.send(call, timeout_s=TIMEOUT_S)


def found(adapter: JiraAdapter, call: Call) -> Any:
    return adapter.lookup([call], timeout_s=TIMEOUT_S)[call.action_id]


def edit(sandbox: Sandbox, issue: str, body: Mapping[str, object]) -> None:
    """What a person does to a ticket in the browser."""
    data = json.dumps(body).encode()
    url = f"{sandbox.jira.url}/rest/api/2/issue/{issue}"
    headers = {"Content-Type": "application/json", "Authorization": "Basic cDpx"}
    with urllib.request.urlopen(urllib.request.Request(url, data=data, method="PUT", headers=headers), timeout=5):
        pass


@pytest.mark.case("E4")
def test_only_our_key_is_written_on_the_ticket(jira_adapter: JiraAdapter, sandbox: Sandbox) -> None:
    """A tenant with a space and a target with quotes and unicode reach neither the label nor a query."""
    call = replace(create(), target='order "7" – ünï')
    ticket = sent(jira_adapter, call)
    body = json.loads(sandbox.jira.requests("issue.create")[0].body or "")
    assert body["fields"]["labels"] == [f"cf-{call.key}"]
    assert "Acme" not in json.dumps(body)
    finding = found(jira_adapter, call)
    assert (finding.outcome.id, finding.target) == (ticket.id, call.target)
    assert abs(finding.created_at - datetime.now(UTC)) < timedelta(minutes=1)


@pytest.mark.case("E4")
def test_a_removed_label_does_not_make_a_ticket_absent(jira_adapter: JiraAdapter, sandbox: Sandbox) -> None:
    """The property that was set with it still tells."""
    ticket = sent(jira_adapter, create())
    edit(sandbox, ticket.id, {"fields": {"labels": []}})
    finding = found(jira_adapter, create())
    assert isinstance(finding, Found)
    assert finding.outcome.id == ticket.id
    assert found(jira_adapter, create(2)) == Absent()


def test_a_copied_ticket_is_many(jira_adapter: JiraAdapter, sandbox: Sandbox) -> None:
    """Two tickets under one key: a person decides."""
    first, other = sent(jira_adapter, create()), sent(jira_adapter, create(2))
    edit(sandbox, other.id, {"fields": {"labels": [f"cf-{create().key}"]}})
    assert found(jira_adapter, create()) == Many((first.id, other.id))


def test_the_index_lags_and_absence_must_wait(jira_adapter: JiraAdapter, sandbox: Sandbox) -> None:
    """Within the lag both searches are empty: the contract's lag is what makes absence count."""
    sandbox.config(search_lag_s={"jira": 60})
    sent(jira_adapter, create())
    assert found(jira_adapter, create()) == Absent()
    sandbox.advance(60)
    assert isinstance(found(jira_adapter, create()), Found)
    contract = TOOLS.get("jira_create").contract
    assert (contract.grade, contract.lookup_lag_s >= 60) == (Grade.C, True)


def test_a_search_that_was_not_made_is_unknown(jira_adapter: JiraAdapter, sandbox: Sandbox) -> None:
    """The client returns None, without a request, for a site that it does not take for Jira Cloud."""
    jira_adapter._client.deploymentType = None
    assert found(jira_adapter, create()) == Unknown("Incomplete")
    assert sandbox.jira.requests() == []


def test_a_long_list_is_read_to_its_end_or_proves_nothing(
    jira_adapter: JiraAdapter, sandbox: Sandbox, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Pages are followed; a project with more recent tickets than the maximum is Unknown, not absence."""
    monkeypatch.setattr(reads, "PAGE_SIZE", 2)
    tickets = [sent(jira_adapter, create(number)) for number in range(1, 6)]
    edit(sandbox, tickets[-1].id, {"fields": {"labels": []}})
    assert isinstance(found(jira_adapter, create(5)), Found)
    monkeypatch.setattr(reads, "PAGES_MAX", 2)
    assert found(jira_adapter, create(5)) == Unknown("Incomplete")


def test_tickets_of_before_the_send_are_not_read(
    jira_adapter: JiraAdapter, sandbox: Sandbox, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However many tickets the half day before has, absence is seen, and so is a ticket without its label."""
    monkeypatch.setattr(reads, "PAGE_SIZE", 2)
    monkeypatch.setattr(reads, "PAGES_MAX", 2)
    for number in range(1, 8):
        sent(jira_adapter, create(number))
    sandbox.advance(3600)
    late = datetime.now(UTC) + timedelta(hours=1)
    ticket = sent(jira_adapter, create(8))
    edit(sandbox, ticket.id, {"fields": {"labels": []}})
    assert isinstance(found(jira_adapter, replace(create(8), first_sent_at=late)), Found)
    assert found(jira_adapter, replace(create(9), first_sent_at=late)) == Absent()


def test_a_batch_is_one_search(jira_adapter: JiraAdapter, sandbox: Sandbox) -> None:
    """Three tickets that are there take one request; one that is not takes one more for its project."""
    calls = [create(number) for number in (1, 2, 3)]
    for call in calls:
        sent(jira_adapter, call)
    findings = jira_adapter.lookup(calls, timeout_s=TIMEOUT_S)
    assert [type(findings[call.action_id]) for call in calls] == [Found, Found, Found]
    assert len(sandbox.jira.requests("search")) == 1
    findings = jira_adapter.lookup([*calls, create(4)], timeout_s=TIMEOUT_S)
    assert findings[create(4).action_id] == Absent()
    assert len(sandbox.jira.requests("search")) == 3


def test_a_lookup_without_a_send_time_cannot_be_absence(jira_adapter: JiraAdapter) -> None:
    """The second search has no beginning then."""
    assert found(jira_adapter, replace(create(), first_sent_at=None)) == Unknown("no_send_time")


def test_a_refused_field_names_our_argument(jira_adapter: JiraAdapter) -> None:
    """Jira's `issuetype` is our `issue_type`."""
    assert sent(jira_adapter, create(issue_type="Riddle")) == Rejected("invalid_request", field="issue_type")


def test_closing_prefers_wont_do_and_says_why(jira_adapter: JiraAdapter, sandbox: Sandbox) -> None:
    """The ticket ends in a done status, with the reason as a comment; asking again changes nothing."""
    ticket = sent(jira_adapter, create())
    close = call_of("jira_close", 2, {"order_id": "1182", "reason": "Order was cancelled."}, of(create(), ticket.id))
    assert found(jira_adapter, close) == Absent()
    expected = Succeeded(ticket.id, {"key": ticket.id, "status": "Won't do"})
    assert sent(jira_adapter, close) == expected
    assert found(jira_adapter, close) == Found(expected)
    assert sent(jira_adapter, close) == expected
    assert len(sandbox.jira.requests("issue.transition")) == 1
    assert (sandbox.count("tickets_open"), sandbox.count("comments")) == (0, 1)


def test_a_ticket_without_a_receipt_is_closed_by_its_key(jira_adapter: JiraAdapter, sandbox: Sandbox) -> None:
    """The counter-action finds what it undoes; where there is nothing, nothing is sent."""
    close = call_of("jira_close", 2, {"order_id": "1182"}, of(create(), None))
    assert sent(jira_adapter, close) == NotSent("of_unresolved")
    sent(jira_adapter, create())
    assert isinstance(sent(jira_adapter, close), Succeeded)
    assert sandbox.count("tickets_open") == 0


@pytest.mark.parametrize("fault", ["html_502", "rst_before_commit", "429_bare"])
def test_a_failed_read_before_the_write_is_not_sent(jira_adapter: JiraAdapter, sandbox: Sandbox, fault: str) -> None:
    """Closing reads the workflow first; when that fails, no write has left, and that is known."""
    ticket = sent(jira_adapter, create())
    sandbox.jira.fault(fault, on="issue.transitions")
    outcome = sent(jira_adapter, call_of("jira_close", 2, {"order_id": "1182"}, of(create(), ticket.id)))
    assert isinstance(outcome, NotSent)
    assert sandbox.jira.requests("issue.transition") == []


def stage(number: int = 1) -> Call:
    return call_of("jira_stage", number, TICKET)


def open_(ticket: Succeeded, number: int = 2) -> Call:
    return call_of("jira_open", number, {"order_id": "1182"}, of(stage(), ticket.id))


def status_of(sandbox: Sandbox, issue: str) -> str:
    headers = {"Authorization": "Basic cDpx"}
    url = f"{sandbox.jira.url}/rest/api/2/issue/{issue}?fields=status"
    with urllib.request.urlopen(urllib.request.Request(url, headers=headers), timeout=5) as answer:
        return str(json.load(answer)["fields"]["status"]["name"])


def by_hand(sandbox: Sandbox, issue: str, transition: str) -> None:
    """What a person does on the board."""
    data = json.dumps({"transition": {"id": transition}}).encode()
    headers = {"Content-Type": "application/json", "Authorization": "Basic cDpx"}
    url = f"{sandbox.jira.url}/rest/api/2/issue/{issue}/transitions"
    with urllib.request.urlopen(urllib.request.Request(url, data=data, headers=headers), timeout=5):
        pass


def test_a_staged_ticket_is_never_in_the_queue(jira_adapter: JiraAdapter, sandbox: Sandbox) -> None:
    """One request makes it in the staging status; closing takes it back from there."""
    ticket = sent(jira_adapter, stage())
    assert status_of(sandbox, ticket.id) == "Staged"
    assert [effect.data for effect in sandbox.jira.effects("ticket")] == [{"status": "Staged"}]
    assert sandbox.jira.requests("issue.transition") == []
    assert found(jira_adapter, stage()).outcome == ticket
    close = call_of("jira_close", 3, {"order_id": "1182"}, of(stage(), ticket.id))
    assert isinstance(sent(jira_adapter, close), Succeeded)
    assert sandbox.count("tickets_open") == 0


def test_staging_needs_a_transition(sandbox: Sandbox) -> None:
    """A site whose workflow is not configured stages nothing, rather than to make a ticket that everybody sees."""
    adapter = JiraAdapter(JiraConfig(server=sandbox.jira.url, email="bot@example.test", token="sandbox"))
    assert sent(adapter, stage()) == Rejected("no_staging_transition")
    assert sandbox.jira.requests() == []


@pytest.mark.parametrize("nested", [400, 500])
def test_a_ticket_that_missed_its_staging_is_not_settled(
    jira_adapter: JiraAdapter, sandbox: Sandbox, nested: int
) -> None:
    """Jira made the ticket and not the move: the team sees it, so a person decides what to do about it."""
    body = {"id": "1", "key": "SUP-1", "transition": {"status": nested, "errorCollection": {}}}
    sandbox.jira.fault("answer", on="issue.create", status=201, body=body)
    assert sent(jira_adapter, stage()) == Uncertain("not_staged")
    same_key = replace(create(), key=stage().key)
    sent(jira_adapter, same_key)
    finding = found(jira_adapter, stage())
    assert (finding.outcome, finding.as_intended) == (Uncertain("not_staged"), False)


def test_a_staged_ticket_is_found_after_it_was_opened(jira_adapter: JiraAdapter) -> None:
    """The look-up of the staging comes late: the ticket that our own call opened was staged."""
    ticket = sent(jira_adapter, stage())
    sent(jira_adapter, open_(ticket))
    assert found(jira_adapter, stage()).outcome == ticket


def test_opening_moves_into_the_queue_once(jira_adapter: JiraAdapter, sandbox: Sandbox) -> None:
    """Asking again changes nothing; what the team does with the ticket later does not hide that we opened it."""
    ticket = sent(jira_adapter, stage())
    assert found(jira_adapter, open_(ticket)) == Absent()
    expected = Succeeded(ticket.id, {"key": ticket.id, "status": "To Do"})
    assert sent(jira_adapter, open_(ticket)) == expected
    assert found(jira_adapter, open_(ticket)) == Found(expected)
    by_hand(sandbox, ticket.id, "31")
    done = Succeeded(ticket.id, {"key": ticket.id, "status": "Done"})
    assert found(jira_adapter, open_(ticket)) == Found(done)
    assert sent(jira_adapter, open_(ticket)) == done
    assert len(sandbox.jira.requests("issue.transition")) == 2, "ours and the team's"


@pytest.mark.parametrize("transition", ["11", "21"])
def test_a_ticket_that_somebody_opened_is_open(jira_adapter: JiraAdapter, sandbox: Sandbox, transition: str) -> None:
    """It has left the staging status for the queue or for work: nothing is left to do, and nothing is moved back."""
    ticket = sent(jira_adapter, stage())
    by_hand(sandbox, ticket.id, transition)
    status = status_of(sandbox, ticket.id)
    expected = Succeeded(ticket.id, {"key": ticket.id, "status": status})
    assert sent(jira_adapter, open_(ticket)) == expected
    assert found(jira_adapter, open_(ticket)) == Found(expected)
    assert status_of(sandbox, ticket.id) == status


def test_a_ticket_that_somebody_closed_is_not_opened(jira_adapter: JiraAdapter, sandbox: Sandbox) -> None:
    """A person has decided against it."""
    ticket = sent(jira_adapter, stage())
    by_hand(sandbox, ticket.id, "41")
    assert sent(jira_adapter, open_(ticket)) == Rejected("ticket_closed")
    assert found(jira_adapter, open_(ticket)) == Found(Rejected("ticket_closed"))


def test_a_workflow_without_the_way_to_the_queue_is_refused(sandbox: Sandbox) -> None:
    """A queue that no transition leads to is a mistake of the configuration, and nothing is sent."""
    site = JiraConfig(
        server=sandbox.jira.url, email="b@example.test", token="t", staging_transition="51", queue_status="Queue"
    )
    adapter = JiraAdapter(site)
    ticket = sent(adapter, stage())
    assert sent(adapter, open_(ticket)) == Rejected("no_queue_transition")
    assert sandbox.jira.requests("issue.transition") == []


def test_a_comment_is_internal_and_can_be_deleted(jira_adapter: JiraAdapter, sandbox: Sandbox) -> None:
    """The comment is found by its property; deleting it twice is once, and the list proves it gone."""
    ticket = sent(jira_adapter, create())
    comment = call_of("jira_comment", 2, {"issue": ticket.id, "body": "Parcel lost."})
    written = sent(jira_adapter, comment)
    body = json.loads(sandbox.jira.requests("issue.comment")[0].body or "")
    assert {"key": "sd.public.comment", "value": {"internal": True}} in body["properties"]
    delete = call_of("jira_delete_comment", 3, {"issue": ticket.id}, of(comment, written.id))
    assert found(jira_adapter, delete) == Absent()
    expected = Succeeded(written.id, {"id": written.id})
    assert sent(jira_adapter, delete) == expected
    assert sent(jira_adapter, delete) == Uncertain("already_gone", evidence="HTTP 404")
    assert found(jira_adapter, delete) == Found(expected)
    assert found(jira_adapter, comment) == Absent()


def test_the_clients_defaults_would_open_four_tickets(sandbox: Sandbox, monkeypatch: pytest.MonkeyPatch) -> None:
    """Why retries are off: left alone, the client repeats a creation whose answer was lost."""
    monkeypatch.setattr("jira.resilientsession.time.sleep", lambda _s: None)
    client = JIRA(server=sandbox.jira.url, basic_auth=("bot@example.test", "x"), get_server_info=False)
    sandbox.jira.fault("fin_after_commit", on="issue.create", times=None)
    with pytest.raises((JIRAError, OSError)):
        client.create_issue(project={"key": "SUP"}, summary="Reship 1182", issuetype={"name": "Task"})
    client.close()
    assert sandbox.count("tickets_created") == 4


@pytest.mark.parametrize(
    ("tool", "changes", "path"),
    [
        ("jira_create", {"project": 'SUP" OR project = "HR'}, "$.project"),
        ("jira_create", {"summary": "two\nlines"}, "$.summary"),
        ("jira_comment", {"issue": "../user", "body": "x"}, "$.issue"),
        ("jira_comment", {"issue": "SUP-1?x", "body": "x"}, "$.issue"),
    ],
)
def test_nothing_from_a_model_can_bend_a_query_or_a_path(tool: str, changes: dict[str, Json], path: str) -> None:
    """Projects and tickets have one form."""
    arguments = {**TICKET, **changes} if tool == "jira_create" else changes
    with pytest.raises(ArgumentError) as caught:
        TOOLS.get(tool).validate(arguments)
    assert caught.value.path == path


def test_every_compensation_can_be_built() -> None:
    """Closing a ticket and deleting a comment take nothing that the first call did not have."""
    for name, arguments in (("jira_stage", TICKET), ("jira_open", {"order_id": "1182"})):
        spec = TOOLS.get(name)
        assert spec.compensation_of(spec.validate(arguments), "act_1") == {
            "tool": "jira_close",
            "arguments": {"order_id": "1182", "reason": ""},
        }
    ticket, comment = TOOLS.get("jira_create"), TOOLS.get("jira_comment")
    assert ticket.compensation_of(ticket.validate(TICKET), "act_1") == {
        "tool": "jira_close",
        "arguments": {"order_id": "1182", "reason": ""},
    }
    assert comment.compensation_of(comment.validate({"issue": "SUP-1", "body": "x"}), "act_1") == {
        "tool": "jira_delete_comment",
        "arguments": {"issue": "SUP-1"},
    }


def test_the_token_is_in_no_repr() -> None:
    """A config may be logged."""
    assert "hush" not in repr(JiraConfig(server="https://example.test", email="a@example.test", token="hush"))
