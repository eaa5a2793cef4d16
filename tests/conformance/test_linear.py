"""Linear by GraphQL: what goes over the wire, what becomes of an id that is used again, and what people do with an issue."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
import requests
from tests.conformance.linear_world import (
    CREATE,
    CREATES,
    ISSUE,
    TIMEOUT_S,
    TOOLS,
    WRITES,
    about,
    call_of,
    change,
    closes,
    fetched,
    find,
    hand,
    is_done,
    make,
    sent,
    state_of,
    team_of,
)
from tests.conformance.shipped import SUBJECTS

from counterfoil.providers.attempt import SecondWrite
from counterfoil.providers.contract import OTHER_KEY
from counterfoil.providers.linear.client import LinearAdapter
from counterfoil.providers.linear.config import LinearConfig
from counterfoil.providers.linear.documents import CREATE_ISSUE
from counterfoil.providers.linear.outcomes import id_of, mark_of
from counterfoil.providers.outcomes import (
    Absent,
    Found,
    Many,
    Succeeded,
    Uncertain,
    Unknown,
)
from counterfoil.sandbox.client import Sandbox
from counterfoil.testing import grade


def test_what_goes_over_the_wire(linear: LinearAdapter, sandbox: Sandbox) -> None:
    """An id that follows from our key, and our mark as the last line; what an agent wrote is in variables only."""
    issue = sent(linear, CREATES)
    comment = call_of("linear_comment", 2, {"issue": issue, "body": 'Called. "}) { id }'})
    sent(linear, comment)
    close = closes(3, issue, "Opened by mistake.")
    sent(linear, close)
    made, said, closed = (r for r in sandbox.requests("linear") if r.operation in WRITES)
    body = json.loads(made.body or "")
    assert body["query"] == CREATE_ISSUE
    description = f"Parcel *lost*.\n\n`{mark_of(CREATES)}`"
    given = {"id": id_of(CREATES.key), "teamId": team_of(sandbox), "title": "Reship 1182", "description": description}
    assert body["variables"] == {"input": given}
    assert "Called" not in json.loads(said.body or "")["query"]
    assert json.loads(said.body or "")["variables"]["input"]["body"].endswith(f"\n\n`{mark_of(comment)}`")
    assert json.loads(closed.body or "")["variables"]["comment"]["body"] == f"Opened by mistake.\n\n`{mark_of(close)}`"
    assert not any("cookie" in r.headers for r in sandbox.requests("linear"))
    effects = [(e.kind, e.key) for e in sandbox.effects(provider="linear")]
    assert effects == [
        ("issue", CREATES.key),
        ("comment", comment.key),
        ("issue_cancellation", None),
        ("comment", close.key),
    ]
    assert state_of(sandbox, issue) == "Canceled"


@pytest.mark.parametrize(
    ("given", "header"), [({"api_key": "lin_t0p"}, "lin_t0p"), ({"token": "lin_t0p"}, "Bearer lin_t0p")]
)
def test_credentials(sandbox: Sandbox, given: dict[str, str], header: str) -> None:
    """A personal API key as it is, an OAuth token as a Bearer; neither is in the config's text, both are refused."""
    config = LinearConfig(base_url=sandbox.linear.url, **given)
    adapter = LinearAdapter(config)
    prepared = adapter._session.prepare_request(requests.Request("POST", config.url))
    assert prepared.headers["Authorization"] == header
    sent(adapter, CREATES)
    assert "lin_t0p" not in repr(config)
    for wrong in (LinearConfig(), LinearConfig(api_key="a", token="b")):
        with pytest.raises(ValueError, match="not both"):
            LinearAdapter(wrong)
    assert LinearConfig(api_key="a").url == "https://api.linear.app/graphql"


def test_two_accounts_in_one_process(linear: LinearAdapter, sandbox: Sandbox) -> None:
    """Each adapter has its own workspace: what one has made, the other neither finds nor fetches."""
    other = LinearAdapter(LinearConfig(token="another", base_url=sandbox.linear.url))
    issue = sent(linear, CREATES)
    assert find(other, CREATES) == Absent()
    assert fetched(other, CREATES, issue) == Absent()
    assert sent(other, CREATES) == issue, "SUP-1 there, too"
    assert is_done(find(linear, CREATES), issue)
    assert sandbox.count("linear_issues") == 2


@pytest.mark.parametrize("mode", ["error", "overwrite", "second"])
def test_a_repeat_reads_its_id_first(linear: LinearAdapter, sandbox: Sandbox, mode: str) -> None:
    """What is there under our id is not made again, whatever Linear would do with a second creation."""
    sandbox.config(linear_duplicate_id=mode)
    issue = sent(linear, CREATES)
    change(sandbox, issue, title="Edited by a person")
    assert sent(linear, CREATES) == issue
    assert len(sandbox.requests("linear", CREATE)) == 1
    assert sandbox.count("linear_issues") == 1
    comment = call_of("linear_comment", 2, {"issue": issue, "body": "Called."})
    assert sent(linear, comment) == sent(linear, comment) == id_of(comment.key)
    assert sandbox.count("linear_comments") == 1


@pytest.mark.parametrize(
    ("mode", "outcome", "issues"),
    [
        ("error", Uncertain("provider_error", evidence="HTTP 200 INPUT_ERROR"), 1),
        ("overwrite", Succeeded("SUP-1", {"id": id_of(CREATES.key), "identifier": "SUP-1"}), 1),
        ("second", Uncertain("other_id"), 2),
    ],
)
def test_a_repeat_before_the_first_can_be_seen(
    linear: LinearAdapter, sandbox: Sandbox, mode: str, outcome: object, issues: int
) -> None:
    """Which is why nothing is repeated before absence is earned: a repeated id is no refusal, and two are seen as two."""
    sandbox.config(linear_duplicate_id=mode, search_lag_s={"linear": 30})
    sent(linear, CREATES)
    assert find(linear, CREATES) == Absent(), "a list that lags"
    assert linear.send(CREATES, timeout_s=TIMEOUT_S) == outcome
    assert sandbox.count("linear_issues") == issues
    sandbox.advance(31)
    finding = find(linear, CREATES)
    assert isinstance(finding, Many) if issues == 2 else is_done(finding, "SUP-1")


@pytest.mark.parametrize(("mode", "deduplicates"), [("overwrite", True), ("second", False)])
def test_every_fault_where_a_repeated_id_is_no_error(sandbox: Sandbox, mode: str, deduplicates: bool) -> None:
    """The whole suite once more, in a Linear that refuses no id: never two issues of ours, and the grade stays what it is."""
    subject = replace(SUBJECTS["linear_create"], world={"linear_duplicate_id": mode}, deduplicates=deduplicates)
    report = grade(subject, sandbox)
    assert report.passed, str(report)
    assert report.grade == report.declared


def test_the_contract_waits_for_what_a_list_does_not_show_yet() -> None:
    """No native key and no uniqueness is claimed, and the look-up's lag is stated."""
    for spec in TOOLS:
        contract = spec.contract
        assert (contract.native_key_ttl_s, contract.unique, contract.lookup) == (None, False, True)
        assert contract.lookup_lag_s == 60


@pytest.mark.parametrize("mode", ["error", "overwrite", "second"])
def test_decoys(linear: LinearAdapter, sandbox: Sandbox, mode: str) -> None:
    """What another hand made under our id is nobody's to settle but a person's, and is not written over."""
    sandbox.config(linear_duplicate_id=mode)
    other = replace(CREATES, arguments=ISSUE | {"title": "Refund 9"})
    words = {"": "other_origin", "Somebody's": "other_origin", f"`{mark_of(other)}`": "other_content"}
    for number, (description, code) in enumerate(words.items()):
        create = replace(CREATES, key=f"{number + 10:032x}")
        text = description.replace(CREATES.key, create.key)
        issue = make(sandbox, id=id_of(create.key), title="Theirs", description=text)
        for finding in (find(linear, create), fetched(linear, create, issue)):
            assert isinstance(finding, Found)
            assert (finding.as_intended, finding.outcome, finding.target) == (False, Uncertain(code), None)
        assert linear.send(create, timeout_s=TIMEOUT_S) == Uncertain("id_in_use")
    assert {e.key for e in sandbox.effects("issue")} <= {None, f"{12:032x}"}
    assert len(sandbox.requests("linear", CREATE)) == len(words), "theirs"


def test_a_decoy_among_comments(linear: LinearAdapter, sandbox: Sandbox) -> None:
    """A comment under our id with other words, or ours on another issue, is for a person."""
    first, second = make(sandbox, title="One"), make(sandbox, title="Two")
    comment = call_of("linear_comment", 2, {"issue": first, "body": "Called."})
    document = "mutation($i: CommentCreateInput!) { commentCreate(input: $i) { success } }"
    hand(sandbox, document, i={"id": id_of(comment.key), "issueId": first, "body": "Hello"})
    assert linear.send(comment, timeout_s=TIMEOUT_S) == Uncertain("id_in_use")
    moved = call_of("linear_comment", 3, {"issue": first, "body": "Called."})
    hand(sandbox, document, i={"id": id_of(moved.key), "issueId": second, "body": f"Called. `{mark_of(moved)}`"})
    for each, code in ((comment, "other_origin"), (moved, "other_content")):
        finding = find(linear, each)
        assert isinstance(finding, Found)
        assert (finding.as_intended, finding.outcome) == (False, Uncertain(code))


def test_what_people_do_with_an_issue_afterwards(linear: LinearAdapter, sandbox: Sandbox) -> None:
    """Edited, moved to another team, archived or in the trash: it is still the one that our call has made."""
    sandbox.config(linear_teams=["SUP", "OPS"])
    issue = sent(linear, CREATES)
    found = find(linear, CREATES)
    assert isinstance(found, Found)
    assert found.target == "1182"
    assert found.created_at is not None
    text = f"Somebody has written\n* more\n\n`{mark_of(CREATES)}`\nand still more"
    change(sandbox, issue, title="Other", description=text)
    assert is_done(find(linear, CREATES), "SUP-1")
    change(sandbox, issue, teamId=team_of(sandbox, "OPS"))
    assert is_done(find(linear, CREATES), "OPS-1")
    comment = call_of("linear_comment", 2, {"issue": "SUP-1", "body": "Called."})
    sent(linear, comment)
    finding = find(linear, comment)
    assert is_done(finding, id_of(comment.key)), "on the issue that was SUP-1"
    for verb in ("issueArchive", "issueDelete"):
        hand(sandbox, f"mutation($n: String!) {{ {verb}(id: $n) {{ success }} }}", n=issue)
        assert is_done(find(linear, CREATES), "OPS-1")
        assert is_done(fetched(linear, CREATES, "SUP-1"), "OPS-1")
    change(sandbox, issue, description="without our mark")
    finding = find(linear, CREATES)
    assert isinstance(finding, Found)
    assert not finding.as_intended


def test_every_issue_that_carries_our_mark_is_seen(linear: LinearAdapter, sandbox: Sandbox) -> None:
    """One that Linear has put under another id, in place of ours or beside it."""
    theirs = make(sandbox, title="Reship 1182", description=f"Parcel lost.\n\n`{mark_of(CREATES)}`")
    assert is_done(find(linear, CREATES), theirs)
    ours = sent(linear, CREATES)
    finding = find(linear, CREATES)
    assert isinstance(finding, Many)
    assert set(finding.receipts) == {ours, theirs}


def test_what_a_person_names(linear: LinearAdapter, sandbox: Sandbox) -> None:
    """An issue by its identifier, a comment by its id, checked for our mark; none is absent; an outage is unknown."""
    issue, theirs = sent(linear, CREATES), make(sandbox, title="Theirs")
    assert is_done(fetched(linear, CREATES, issue), issue)
    assert is_done(fetched(linear, CREATES, id_of(CREATES.key)), issue)
    assert fetched(linear, CREATES, theirs) == Unknown(OTHER_KEY)
    for nothing in ("SUP-99", "sup", "", "²", 'SUP-1" }'):
        assert fetched(linear, CREATES, nothing) == Absent()
    comment = call_of("linear_comment", 2, {"issue": issue, "body": "Called."})
    receipt = sent(linear, comment)
    assert is_done(fetched(linear, comment, receipt), receipt)
    assert fetched(linear, comment, id_of("f" * 32)) == Absent()
    assert fetched(linear, comment, "comment") == Absent()
    assert fetched(linear, replace(comment, key="f" * 32), receipt) == Unknown(OTHER_KEY)
    close = closes(3, issue)
    assert fetched(linear, close, issue) == Absent()
    sent(linear, close)
    assert is_done(fetched(linear, close, issue), issue)
    assert fetched(linear, close, theirs) == Unknown(OTHER_KEY)
    delete = call_of("linear_delete_comment", 4, {"issue": issue}, about(comment, receipt))
    assert fetched(linear, delete, receipt) == Absent()
    assert fetched(linear, delete, id_of("f" * 32)) == Unknown(OTHER_KEY)
    sandbox.linear.fault("html_502", on="issues.get")
    assert isinstance(fetched(linear, CREATES, issue), Unknown)


def test_no_second_write_leaves_in_an_attempt(linear: LinearAdapter, sandbox: Sandbox) -> None:
    """Readings are POSTs, too: what is not exactly one of our readings counts as a write, and the second is refused."""
    post = linear._reads.post
    reading = {"issue": "SUP-1", "comment": id_of("f" * 32)}
    with linear._transport.attempt(timeout_s=3, writes_max=1) as transport:
        assert isinstance(linear._reads.issues_of(CREATES), list)
        assert not transport.wrote
        post("{ viewer { id } }", {})
        assert transport.wrote
        for document in (CREATE_ISSUE, "{ viewer { id } }"):
            with pytest.raises(SecondWrite):
                post(document, reading)
    assert len(sandbox.requests("linear", "viewer")) == 1
    assert sandbox.requests("linear", CREATE) == []
