"""The sandbox's Jira, through the unmodified client: issues, workflow, comments, and a search that lags."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest
import requests
from jira import JIRA, JIRAError

from counterfoil.sandbox.client import Sandbox
from counterfoil.sandbox.process import running

ISSUE: dict[str, Any] = {"project": {"key": "SUP"}, "issuetype": {"name": "Task"}, "summary": "Parcel lost"}


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Sandbox]:
    with running(tmp_path_factory.mktemp("sandbox")) as sandbox:
        yield sandbox


@pytest.fixture
def sandbox(world: Sandbox) -> Sandbox:
    world.reset()
    return world


@pytest.fixture
def client(sandbox: Sandbox) -> Iterator[Any]:
    """A real client without retries; it learns from `serverInfo` that this is Cloud."""
    connected: Any = JIRA(server=sandbox.jira.url, basic_auth=("a", "b"), max_retries=0, timeout=5)
    yield connected
    connected.close()


def create(client: Any, **fields: Any) -> str:
    return str(client.create_issue(fields={**ISSUE, **fields}, prefetch=False).key)


def found(client: Any, jql: str, **more: Any) -> list[str]:
    return [issue.key for issue in client.enhanced_search_issues(jql, **more)]


def test_create_and_read(sandbox: Sandbox, client: Any) -> None:
    """An issue is there by key at once, with its fields, and counts as one open ticket under its label's key."""
    key = create(client, labels=["cf-0123", "other"], description="Where is it?", customfield_10001="x")
    issue = client.issue(key)
    assert (key, issue.fields.summary, issue.fields.labels) == ("SUP-1", "Parcel lost", ["cf-0123", "other"])
    assert (str(issue.fields.status), str(issue.fields.issuetype)) == ("To Do", "Task")
    [effect] = sandbox.effects("ticket")
    assert (effect.key, effect.object_id) == ("0123", "SUP-1")
    assert (sandbox.count("tickets_created"), sandbox.count("tickets_open")) == (1, 1)


def test_no_deduplication(sandbox: Sandbox, client: Any) -> None:
    """Two equal creations are two issues: Jira has no key of its own."""
    assert [create(client, labels=["cf-1"]) for _ in range(2)] == ["SUP-1", "SUP-2"]
    assert len(sandbox.effects("ticket", "1")) == 2


@pytest.mark.parametrize(
    ("change", "field"),
    [
        ({"labels": ["Acme Corp"]}, "labels"),
        ({"labels": ["l" * 256]}, "labels"),
        ({"project": {"key": "NOPE"}}, "project"),
        ({"issuetype": {"name": "Wish"}}, "issuetype"),
        ({"summary": ""}, "summary"),
        ({"summary": "two\nlines"}, "summary"),
        ({"colour": "red"}, "colour"),
        ({"description": {"type": "doc"}}, "description"),
    ],
)
def test_refused_fields(change: dict[str, Any], field: str, sandbox: Sandbox, client: Any) -> None:
    """A refused field is a 400 that names it, and no issue."""
    with pytest.raises(JIRAError) as caught:
        create(client, **change)
    assert caught.value.status_code == 400
    response: Any = caught.value.response
    assert field in response.json()["errors"]
    assert sandbox.effects() == []


def test_missing_things(client: Any) -> None:
    """An issue or project that does not exist is a 404; the old search is gone with 410."""
    for path in ("issue/SUP-9", "issue/SUP-9/comment", "project/NOPE", "nothing/here"):
        with pytest.raises(JIRAError) as caught:
            client._get_json(path)
        assert caught.value.status_code == 404, path
    assert client.project("SUP").key == "SUP"
    with pytest.raises(JIRAError) as caught_search:
        client._get_json("search", params={"jql": "project = SUP"})
    assert caught_search.value.status_code == 410


def test_create_with_properties_and_transition(sandbox: Sandbox, client: Any) -> None:
    """One POST can set properties and start outside the first status: the staged form of a ticket."""
    posted = {
        "fields": ISSUE,
        "properties": [{"key": "counterfoil", "value": {"key": "0123"}}],
        "transition": {"id": "51"},
    }
    client._session.post(client._get_url("issue"), data=json.dumps(posted))
    assert str(client.issue("SUP-1").fields.status) == "Staged"
    assert client.issue_property("SUP-1", "counterfoil").value.key == "0123"
    assert sandbox.effects("ticket", "0123")[0].object_id == "SUP-1"


def test_workflow(sandbox: Sandbox, client: Any) -> None:
    """Only the transitions of the present status can be taken; Done and Won't do close the ticket."""
    key = create(client)
    assert {t["name"] for t in client.transitions(key)} == {"Staged", "In Progress", "Done", "Won't do"}
    client.transition_issue(key, "In Progress")
    assert sandbox.count("tickets_open") == 1
    client.transition_issue(key, "Won't do", comment="Made twice")
    assert str(client.issue(key).fields.status) == "Won't do"
    assert client.issue(key).fields.resolution.name == "Won't Do"
    with pytest.raises(JIRAError) as caught:
        client.transition_issue(key, "31")
    assert caught.value.status_code == 400
    counts = sandbox.counts()
    assert (counts["tickets_created"], counts["tickets_open"]) == (1, 0)
    assert (counts["transitions"], counts["comments"]) == (2, 1)
    assert [comment.body for comment in client.comments(key)] == ["Made twice"]


def test_comments(sandbox: Sandbox, client: Any) -> None:
    """Comments carry properties, are listed oldest first, and each is an effect under its property's key."""
    key = create(client)
    url = client._get_url(f"issue/{key}/comment")
    for number in ("1", "2"):
        posted = {"body": f"Note {number}", "properties": [{"key": "counterfoil", "value": {"key": number}}]}
        client._session.post(url, data=json.dumps(posted))
    comments = client.comments(key)
    assert [comment.body for comment in comments] == ["Note 1", "Note 2"]
    read = client._get_json(f"comment/{comments[0].id}/properties/counterfoil")
    assert read["value"] == {"key": "1"}
    assert [effect.key for effect in sandbox.effects("comment")] == ["1", "2"]
    comments[0].delete()
    assert [comment.body for comment in client.comments(key)] == ["Note 2"]
    counts = sandbox.counts()
    assert (counts["comments"], counts["comments_deleted"]) == (2, 1)


def test_edit_and_delete(sandbox: Sandbox, client: Any) -> None:
    """Labels can be added and removed, properties set, and a deleted issue is gone."""
    key = create(client, labels=["cf-1", "a"])
    issue = client.issue(key)
    issue.update(fields={"summary": "Found"}, update={"labels": [{"remove": "cf-1"}, {"add": "b"}]})
    client.add_issue_property(key, "state", {"settled": True})
    issue = client.issue(key)
    assert (issue.fields.summary, issue.fields.labels) == ("Found", ["a", "b"])
    assert client.issue_property(key, "state").value.settled is True
    issue.delete()
    with pytest.raises(JIRAError):
        client.issue(key)
    counts = sandbox.counts()
    assert (counts["tickets_created"], counts["tickets_deleted"], counts["tickets_open"]) == (1, 1, 0)


def test_version_3_wants_documents(sandbox: Sandbox) -> None:
    """Version 3 takes descriptions and comments as Atlassian documents only."""
    url = f"{sandbox.jira.url}/rest/api/3/issue"
    document = {"type": "doc", "version": 1, "content": []}
    assert requests.post(url, json={"fields": {**ISSUE, "description": "text"}}, timeout=5).status_code == 400
    assert requests.post(url, json={"fields": {**ISSUE, "description": document}}, timeout=5).status_code == 201
    assert requests.post(f"{url}/SUP-1/comment", json={"body": document}, timeout=5).status_code == 201
    assert requests.get(f"{url}/SUP-1", timeout=5).json()["fields"]["description"] == document


def test_search_lags(sandbox: Sandbox, client: Any) -> None:
    """A new issue is missing from searches until the lag has passed, and so is a change; reading by key never lags."""
    sandbox.config(search_lag_s={"jira": 120})
    key = create(client, labels=["cf-1"])
    query = 'project = SUP AND labels = "cf-1" AND status = "To Do"'
    assert found(client, query) == []
    assert client.issue(key).key == key
    sandbox.advance(121)
    assert found(client, query) == [key]
    client.transition_issue(key, "Done")
    assert found(client, query) == [key]
    sandbox.advance(121)
    assert found(client, query) == []
    client.issue(key).delete()
    assert found(client, 'labels = "cf-1"') == [key]
    sandbox.advance(121)
    assert found(client, 'labels = "cf-1"') == []


def test_quick_changes_never_hide_an_issue(sandbox: Sandbox, client: Any) -> None:
    """While changes wait for the index, searches go on showing the last state that had reached it."""
    sandbox.config(search_lag_s={"jira": 120})
    key = create(client)
    sandbox.advance(121)
    for status in ("In Progress", "Done", "To Do", "Done"):
        client.transition_issue(key, status)
        assert found(client, "project = SUP AND status = 'To Do'") == [key]
    sandbox.advance(121)
    assert found(client, "project = SUP AND status = Done") == [key]


def test_reconcile_issues_reads_the_store(sandbox: Sandbox, client: Any) -> None:
    """Issues named for reconciliation are seen as they are now, others with the lag."""
    sandbox.config(search_lag_s={"jira": 120})
    create(client, labels=["cf-1"])
    known = client.issue(create(client, labels=["cf-1"]))
    assert found(client, 'labels = "cf-1"', reconcileIssues=[int(known.id)]) == [known.key]
    assert found(client, 'labels = "cf-2"', reconcileIssues=[int(known.id)]) == []
    with pytest.raises(JIRAError):
        found(client, 'labels = "cf-1"', reconcileIssues=list(range(51)))


def test_jql(sandbox: Sandbox, client: Any) -> None:
    """The clauses that a look-up needs select what they say."""
    sandbox.config(search_lag_s={"jira": 0}, projects=["SUP", "OPS"])
    odd = "it's\"odd\\"
    one = create(client, labels=["cf-1", odd])
    sandbox.advance(3600)
    two = create(client, labels=["cf-2"], issuetype={"name": "Bug"})
    other = create(client, project={"key": "OPS"}, labels=["CF-1"])
    client.transition_issue(two, "Done")
    quoted = odd.replace("\\", "\\\\").replace('"', '\\"')
    for jql, keys in {
        "project = SUP": [two, one],
        "project = sup ORDER BY created ASC": [one, two],
        "project in (SUP, OPS) ORDER BY key": [one, two, other],
        'labels = "cf-1"': [one],
        "labels in (cf-1, 'cf-2')": [two, one],
        f'labels = "{quoted}"': [one],
        "project = SUP AND labels != cf-1": [two],
        'project = SUP AND status = "done"': [two],
        "project = SUP AND status not in (Done)": [one],
        "created >= -15m": [other, two],
        "created < -15m AND project = SUP": [one],
        "created >= 2020-01-01 AND created <= '2099/12/31 10:00' AND issuetype = Bug": [two],
        f"issuekey in ({one}, {other})": [other, one],
        f"key = {one}": [one],
    }.items():
        assert found(client, jql) == keys, jql


@pytest.mark.parametrize(
    "jql",
    [
        "",
        "ORDER BY created",
        "project = NOPE",
        "project = SUP OR labels = a",
        "colour = red",
        "labels > a",
        "labels in (a, b",
        "project = SUP AND",
        "project = SUP ORDER created",
        "created >= yesterday",
        'labels = "open',
    ],
)
def test_jql_refuses(jql: str, sandbox: Sandbox, client: Any) -> None:
    """A query without a restriction, or that cannot be read, is a 400, never an empty result."""
    create(client)
    with pytest.raises(JIRAError) as caught:
        client.enhanced_search_issues(jql)
    assert caught.value.status_code == 400


def test_search_pages_fields_properties(sandbox: Sandbox, client: Any) -> None:
    """Pages join by token without gaps, and an answer holds the fields and properties asked for, else only ids."""
    sandbox.config(search_lag_s={"jira": 0})
    keys = [create(client, labels=["cf-1"]) for _ in range(5)]
    client.add_issue_property(keys[0], "counterfoil", {"key": "1"})
    seen: list[str] = []
    token = None
    for _ in range(3):
        page = client.enhanced_search_issues(
            "project = SUP ORDER BY key", nextPageToken=token, maxResults=2, json_result=True, fields="labels"
        )
        seen += [issue["key"] for issue in page["issues"]]
        token = page.get("nextPageToken")
    assert (seen, page["isLast"], token) == (keys, True, None)
    assert page["issues"][0]["fields"] == {"labels": ["cf-1"]}
    url = f"{sandbox.jira.url}/rest/api/3/search/jql"
    assert requests.get(url, params={"jql": f"key = {keys[0]}"}, timeout=5).json()["issues"] == [{"id": "10001"}]
    posted = {"jql": f"key = {keys[0]}", "fields": ["summary"], "properties": ["counterfoil"]}
    [issue] = requests.post(url, json=posted, timeout=5).json()["issues"]
    assert (issue["fields"], issue["properties"]) == ({"summary": "Parcel lost"}, {"counterfoil": {"key": "1"}})


def test_first_issue_number(sandbox: Sandbox, client: Any) -> None:
    """The first number can be set, so that a story can name its tickets."""
    sandbox.config(first_issue=4470)
    assert [create(client) for _ in range(2)] == ["SUP-4470", "SUP-4471"]
