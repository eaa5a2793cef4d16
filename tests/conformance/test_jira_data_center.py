"""Jira Data Center, through its real client: two nodes with an index each, keys in the text, tokens without an address."""

from __future__ import annotations

import json
import urllib.request
from collections.abc import Mapping
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from tests.conformance.test_jira import TIMEOUT_S, TOOLS, call_of, create, edit, found, of, sent, stage

from counterfoil.ledger.errors import ConfigError
from counterfoil.providers.jira import reads
from counterfoil.providers.jira.client import JiraAdapter
from counterfoil.providers.jira.config import JiraConfig
from counterfoil.providers.outcomes import Absent, Found, Many, NotSent, Rejected, Succeeded, Uncertain, Unknown
from counterfoil.sandbox.client import Sandbox
from counterfoil.settings import Settings
from counterfoil.workers.clients import client_config

LAG_S = 60
UNMARKED = Found(Uncertain("unmarked_ticket"), as_intended=False)
BEARER, PERSON = "Bearer pat", "Basic cDpx"


@pytest.fixture
def site(sandbox: Sandbox) -> JiraConfig:
    """A Data Center site, with a personal access token."""
    sandbox.config(jira_deployment="data_center")
    return JiraConfig(server=sandbox.jira.url, token="pat", deployment="data_center")


@pytest.fixture
def adapter(site: JiraConfig) -> JiraAdapter:
    return JiraAdapter(site)


def asked(sandbox: Sandbox, path: str, *, body: Mapping[str, object], method: str, login: str) -> Any:
    """A request to the site by somebody else's program, or by our own account's."""
    headers = {"Content-Type": "application/json", "Authorization": login}
    url, data = f"{sandbox.jira.url}/rest/api/2/{path}", json.dumps(body).encode()
    with urllib.request.urlopen(
        urllib.request.Request(url, data=data, method=method, headers=headers), timeout=5
    ) as answer:
        return json.loads(answer.read() or "null")


def bare_ticket(sandbox: Sandbox, login: str) -> str:
    """A ticket that carries nobody's key."""
    fields = {"project": {"key": "SUP"}, "issuetype": {"name": "Task"}, "summary": "By another program"}
    return str(asked(sandbox, "issue", body={"fields": fields}, method="POST", login=login)["key"])


def test_the_site_is_what_the_tests_say(adapter: JiraAdapter, sandbox: Sandbox) -> None:
    """A Data Center calls itself a server, and has no other search than the old one."""
    with urllib.request.urlopen(f"{sandbox.jira.url}/rest/api/2/serverInfo", timeout=5) as answer:
        assert json.load(answer)["deploymentType"] == "Server"
    cloud = JiraAdapter(JiraConfig(server=sandbox.jira.url, email="bot@example.test", token="t"))
    assert found(cloud, create()) == Unknown("http_404")


def test_the_key_is_a_label_and_the_description_s_last_line(adapter: JiraAdapter, sandbox: Sandbox) -> None:
    """Both are in the one request that makes the ticket; the words of the description stay as they were."""
    call = create(description="Parcel lost.")
    ticket = sent(adapter, call)
    [request] = sandbox.jira.requests("issue.create")
    fields = json.loads(request.body or "")["fields"]
    assert (fields["labels"], fields["description"]) == ([f"cf-{call.key}"], f"Parcel lost.\n\ncf-{call.key}")
    finding = found(adapter, call)
    assert (finding.outcome, finding.as_intended) == (ticket, True)
    assert abs(finding.created_at - datetime.now(UTC)) < timedelta(minutes=1)


@pytest.mark.case("E4")
def test_a_removed_label_does_not_make_a_ticket_absent_here_either(adapter: JiraAdapter, sandbox: Sandbox) -> None:
    """The description still tells; another call's absence is not touched by that ticket."""
    ticket = sent(adapter, create())
    edit(sandbox, ticket.id, {"fields": {"labels": []}})
    finding = found(adapter, create())
    assert isinstance(finding, Found)
    assert finding.outcome.id == ticket.id
    assert found(adapter, create(2)) == Absent()


@pytest.mark.case("E4")
def test_a_ticket_of_ours_without_any_key_is_not_absence(adapter: JiraAdapter, sandbox: Sandbox) -> None:
    """Somebody has rewritten the description as well; who made the ticket stays, and a person decides, at once."""
    ticket = sent(adapter, create())
    edit(sandbox, ticket.id, {"fields": {"labels": ["urgent"], "description": "Rewritten."}})
    assert found(adapter, create()) == UNMARKED
    assert found(adapter, create(2)) == UNMARKED, "it may be either's"
    later = replace(create(3), first_sent_at=datetime.now(UTC) + timedelta(hours=1))
    assert found(adapter, later) == Absent(), "but not one's that was sent an hour after it was made"


def test_other_people_s_tickets_are_no_doubt(adapter: JiraAdapter, sandbox: Sandbox) -> None:
    """A project where the team works itself can still show absence; a second program on our account cannot."""
    bare_ticket(sandbox, PERSON)
    assert found(adapter, create()) == Absent()
    bare_ticket(sandbox, BEARER)
    assert found(adapter, create()) == UNMARKED


def test_a_copied_ticket_is_many(adapter: JiraAdapter, sandbox: Sandbox) -> None:
    """A clone has the description too."""
    first = sent(adapter, create())
    other = bare_ticket(sandbox, PERSON)
    edit(sandbox, other, {"fields": {"description": f"Copy.\n\ncf-{create().key}", "labels": [f"cf-{create().key}"]}})
    assert found(adapter, create()) == Many((first.id, other))


def test_another_node_does_not_know_yet_and_absence_must_wait(adapter: JiraAdapter, sandbox: Sandbox) -> None:
    """The node that wrote has it at once, the other after the lag: the contract's lag covers the slower."""
    sandbox.config(search_lag_s={"jira": LAG_S})
    sent(adapter, create())
    findings = [found(adapter, create()) for _ in range(4)]
    assert Absent() in findings, "both searches met the other node"
    assert any(isinstance(finding, Found) for finding in findings)
    sandbox.advance(LAG_S)
    assert all(isinstance(found(adapter, create()), Found) for _ in range(4))
    assert TOOLS.get("jira_create").contract.lookup_lag_s >= LAG_S


def test_pages_of_nodes_that_disagree_prove_nothing(
    adapter: JiraAdapter, sandbox: Sandbox, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Between two pages by offset a ticket can slip through, when they come from two indexes: it is never absent."""
    monkeypatch.setattr(reads, "PAGE_SIZE", 2)
    tickets = [sent(adapter, create(number)) for number in range(1, 5)]
    edit(sandbox, tickets[2].id, {"fields": {"labels": []}})
    sandbox.config(search_lag_s={"jira": LAG_S})
    sent(adapter, create(5))
    findings = [found(adapter, create(3)) for _ in range(8)]
    assert Unknown("Incomplete") in findings
    assert {type(finding) for finding in findings} == {Found, Unknown}
    sandbox.advance(LAG_S)
    assert isinstance(found(adapter, create(3)), Found)
    assert found(adapter, create(9)) == Absent()


def test_a_long_list_is_read_to_its_end_or_proves_nothing(
    adapter: JiraAdapter, sandbox: Sandbox, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Pages by offset are followed; a project with more recent tickets than the maximum is Unknown."""
    monkeypatch.setattr(reads, "PAGE_SIZE", 2)
    tickets = [sent(adapter, create(number)) for number in range(1, 6)]
    edit(sandbox, tickets[0].id, {"fields": {"labels": []}})
    assert isinstance(found(adapter, create(1)), Found)
    starts = [request.query.partition("startAt=")[2][0] for request in sandbox.jira.requests("search_by_offset")]
    assert starts == ["0", "0", "2", "4"]
    monkeypatch.setattr(reads, "PAGES_MAX", 2)
    assert found(adapter, create(1)) == Unknown("Incomplete")


@pytest.mark.parametrize(
    "body",
    [
        {"issues": [], "startAt": 0, "maxResults": 100},
        {"issues": [], "startAt": 100, "maxResults": 100, "total": 0},
        {"issues": [], "startAt": 0, "maxResults": 100, "total": 3},
        {"startAt": 0, "maxResults": 100, "total": 0},
        {"issues": [{"key": "SUP-1"}], "startAt": 0, "maxResults": 100, "total": 1},
    ],
)
def test_a_page_that_is_not_whole_is_unknown(adapter: JiraAdapter, sandbox: Sandbox, body: dict[str, object]) -> None:
    """No total, another page than the one asked for, fewer tickets than it says, or tickets without ids."""
    sandbox.jira.fault("answer", on="search_by_offset", status=200, body=body)
    assert found(adapter, create()) == Unknown("Incomplete")


def test_staging_is_not_offered(site: JiraConfig, sandbox: Sandbox) -> None:
    """A creation cannot be relied on to move the ticket in the same request: refused before anything is sent."""
    adapter = JiraAdapter(replace(site, staging_transition="51"))
    assert sent(adapter, stage()) == Rejected("no_staging_in_data_center")
    assert sandbox.jira.requests() == []


def test_a_ticket_is_closed_once(adapter: JiraAdapter, sandbox: Sandbox) -> None:
    """By its receipt or, without one, by its key; its status tells, with or without properties."""
    close = call_of("jira_close", 2, {"order_id": "1182", "reason": "Order was cancelled."}, of(create(), None))
    assert sent(adapter, close) == NotSent("of_unresolved")
    ticket = sent(adapter, create())
    expected = Succeeded(ticket.id, {"key": ticket.id, "status": "Won't do"})
    assert sent(adapter, close) == expected
    assert sent(adapter, close) == expected
    assert found(adapter, close) == Found(expected)
    assert len(sandbox.jira.requests("issue.transition")) == 1


def test_a_comment_is_found_by_its_last_line(adapter: JiraAdapter, sandbox: Sandbox) -> None:
    """It is internal, carries the key in its text, and can be deleted by its receipt or that key."""
    ticket = sent(adapter, create())
    comment = call_of("jira_comment", 2, {"issue": ticket.id, "body": "Parcel lost."})
    assert found(adapter, comment) == Absent()
    written = sent(adapter, comment)
    body = json.loads(sandbox.jira.requests("issue.comment")[0].body or "")
    assert body["body"] == f"Parcel lost.\n\ncf-{comment.key}"
    assert {"key": "sd.public.comment", "value": {"internal": True}} in body["properties"]
    assert found(adapter, comment).outcome == written
    assert adapter.fetch(comment, written.id, timeout_s=TIMEOUT_S) == found(adapter, comment)
    delete = call_of("jira_delete_comment", 3, {"issue": ticket.id}, of(comment, None))
    assert isinstance(sent(adapter, delete), Succeeded)
    assert found(adapter, comment) == Absent()
    assert sandbox.count("comments_deleted") == 1


def test_an_edited_comment_without_any_key_is_not_absence(adapter: JiraAdapter, sandbox: Sandbox) -> None:
    """It may have been this one; one that still names its own key, or that another account has written, is another's."""
    ticket = sent(adapter, create())
    comment = call_of("jira_comment", 2, {"issue": ticket.id, "body": "Parcel lost."})
    written = sent(adapter, comment)
    path = f"issue/{ticket.id}/comment/{written.id}"
    sandbox.advance(60)
    asked(sandbox, path, body={"body": f"Edited. cf-{'a' * 32}"}, method="PUT", login=PERSON)
    assert found(adapter, comment) == Absent()
    asked(sandbox, path, body={"body": "Edited."}, method="PUT", login=PERSON)
    assert found(adapter, comment) == Found(Uncertain("edited_comment"), as_intended=False)


def test_other_people_s_edited_comments_are_no_doubt(adapter: JiraAdapter, sandbox: Sandbox) -> None:
    """They correct their own words all the time."""
    ticket = sent(adapter, create())
    comment = call_of("jira_comment", 2, {"issue": ticket.id, "body": "Parcel lost."})
    path = f"issue/{ticket.id}/comment"
    theirs = asked(sandbox, path, body={"body": "Hallo"}, method="POST", login=PERSON)
    sandbox.advance(60)
    asked(sandbox, f"{path}/{theirs['id']}", body={"body": "Hello"}, method="PUT", login=PERSON)
    assert found(adapter, comment) == Absent()


def test_who_made_it_is_asked_once(adapter: JiraAdapter, sandbox: Sandbox) -> None:
    """And where Jira does not tell it, that is no absence."""
    bare_ticket(sandbox, PERSON)
    for _ in range(2):
        assert found(adapter, create()) == Absent()
    assert len(sandbox.jira.requests("myself")) == 1
    hidden = {"id": "1", "fields": {"labels": [], "created": datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%S.000+0000")}}
    page = {"issues": [hidden], "startAt": 0, "maxResults": 100, "total": 1}
    sandbox.jira.fault("answer", on="search_by_offset", status=200, body=page, times=2)
    assert found(adapter, create()) == UNMARKED


def test_a_failed_question_of_who_we_are_is_unknown(adapter: JiraAdapter, sandbox: Sandbox) -> None:
    """Whatever fails in a look-up, it shows no absence."""
    bare_ticket(sandbox, PERSON)
    sandbox.jira.fault("html_502", on="myself")
    assert found(adapter, create()) == Unknown("http_502")


@pytest.mark.parametrize(("username", "login"), [(None, "Bearer pat"), ("bot", "Basic Ym90OnBhdA==")])
def test_the_login_is_a_token_alone_or_a_password(
    site: JiraConfig, monkeypatch: pytest.MonkeyPatch, username: str | None, login: str
) -> None:
    """No address is needed: a personal access token says whose it is."""
    adapter = JiraAdapter(replace(site, username=username))
    seen: list[str] = []
    send = adapter._transport.send

    def spy(request: Any, *args: Any, **more: Any) -> Any:
        seen.append(request.headers["Authorization"])
        return send(request, *args, **more)

    monkeypatch.setattr(adapter._transport, "send", spy)
    assert isinstance(sent(adapter, create()), Succeeded)
    assert seen == [login]


def test_cloud_wants_an_address() -> None:
    """Its tokens are passwords of an account that has one."""
    with pytest.raises(ValueError, match="email"):
        JiraConfig(server="https://example.test", token="t")


def configured(**given: object) -> object:
    """What the settings of a site make of it."""
    jira = {"server": "https://jira.example.test", "token": "t", **given}
    settings = Settings.model_validate({"providers": {"jira": jira}})
    return client_config(TOOLS.get("jira_create"), "default", settings)


def test_the_settings_say_which_jira_it_is() -> None:
    """Data Center takes a login and no address, Cloud the other way about; Cloud is the default."""
    site = JiraConfig(server="https://jira.example.test", token="t", deployment="data_center")
    assert configured(deployment="data_center") == site
    assert configured(deployment="data_center", username="bot", email="b@example.test") == replace(site, username="bot")
    cloud = JiraConfig(server="https://jira.example.test", token="t", email="b@example.test")
    assert configured(email="b@example.test", username="bot") == cloud
    with pytest.raises(ConfigError, match=r"providers\.jira\.email"):
        configured()


@pytest.mark.parametrize("status", [400, 401, 403, 404])
def test_a_gateway_s_page_is_no_refusal(adapter: JiraAdapter, sandbox: Sandbox, status: int) -> None:
    """Only an answer in Jira's own form says that Jira did nothing; nor is a gateway's 404 a missing ticket."""
    ticket = sent(adapter, create())
    sandbox.jira.fault("answer", on="issue.create", status=status, body="<html>no</html>")
    assert sent(adapter, create(2)) == Uncertain(f"http_{status}", evidence=f"HTTP {status}")
    sandbox.jira.fault("answer", on="issue.get", status=status, body="<html>no</html>")
    assert adapter.fetch(create(), ticket.id, timeout_s=TIMEOUT_S) == Unknown(f"http_{status}")
