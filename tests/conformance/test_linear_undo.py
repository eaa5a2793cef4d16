"""Linear's issues closed and comments deleted: once, whoever does it, and never what is not ours."""

from __future__ import annotations

from dataclasses import replace

import pytest
from tests.conformance.linear_world import (
    CREATES,
    DELETE,
    TIMEOUT_S,
    UPDATE,
    about,
    adapter_of,
    call_of,
    change,
    closes,
    find,
    hand,
    is_done,
    make,
    move,
    sent,
    state_of,
)

from counterfoil.providers.linear.client import CLOSED_TEXT, LinearAdapter
from counterfoil.providers.linear.outcomes import id_of
from counterfoil.providers.outcomes import (
    Absent,
    Found,
    NotSent,
    Rejected,
    Succeeded,
    Uncertain,
    Unknown,
)
from counterfoil.sandbox.client import Sandbox


def test_closing(linear: LinearAdapter, sandbox: Sandbox) -> None:
    """Moved to the team's canceled state with a comment that says why; one that is closed already stays as it is."""
    issue = sent(linear, CREATES)
    close = closes(2, None)
    assert find(linear, close) == Absent()
    move(sandbox, issue, "Done")
    outcome = linear.send(close, timeout_s=TIMEOUT_S)
    assert outcome == Succeeded(issue, {"identifier": issue, "state": "Done"})
    assert sandbox.count("linear_canceled") == 0
    move(sandbox, issue, "In Progress")
    outcome = linear.send(close, timeout_s=TIMEOUT_S)
    assert outcome == Succeeded(issue, {"identifier": issue, "state": "Canceled"})
    assert find(linear, close) == Found(outcome)
    assert sandbox.count("linear_canceled") == 1
    [comment] = sandbox.effects("comment")
    assert comment.key == close.key
    assert sent(linear, close) == issue, "and not again"
    assert (sandbox.count("linear_canceled"), sandbox.count("linear_comments")) == (1, 1)
    bodies = hand(sandbox, "{ comments { nodes { body } } }")["nodes"]
    assert [each["body"].splitlines()[0] for each in bodies] == [CLOSED_TEXT]


def test_an_issue_that_a_person_has_opened_again(linear: LinearAdapter, sandbox: Sandbox) -> None:
    """Our comment says that we closed it: nobody closes it a second time but a person."""
    issue = sent(linear, CREATES)
    close = closes(2, issue)
    sent(linear, close)
    move(sandbox, issue, "Todo")
    assert find(linear, close) == Found(Uncertain("opened_again"), as_intended=False)
    assert linear.send(close, timeout_s=TIMEOUT_S) == Uncertain("opened_again")
    assert state_of(sandbox, issue) == "Todo"


def test_half_a_closing_is_uncertain(linear: LinearAdapter, sandbox: Sandbox) -> None:
    """Moved but not commented on: the answer shows an error and no data, and the look-up finds it closed."""
    issue = sent(linear, CREATES)
    close = closes(2, issue)
    document = "mutation($i: CommentCreateInput!) { commentCreate(input: $i) { success } }"
    sandbox.config(search_lag_s={"linear": 30})
    hand(sandbox, document, i={"id": id_of(close.key), "issueId": make(sandbox, title="x"), "body": "taken"})
    outcome = linear.send(close, timeout_s=TIMEOUT_S)
    assert isinstance(outcome, Uncertain)
    assert state_of(sandbox, issue) == "Canceled"
    assert is_done(find(linear, close), issue)


@pytest.mark.parametrize("code", ["FORBIDDEN", "RATELIMITED", "AUTHENTICATION_ERROR"])
@pytest.mark.parametrize(("field", "is_definite"), [("issueUpdate", True), ("commentCreate", False)])
def test_a_refusal_of_the_comment_is_none_of_the_closing(
    linear: LinearAdapter, sandbox: Sandbox, code: str, field: str, is_definite: bool
) -> None:
    """The fields run one after the other, and a failed one hides the data of those before it: its error refuses nothing."""
    issue = sent(linear, CREATES)
    error = {"message": "x", "path": [field], "extensions": {"code": code}}
    sandbox.linear.fault(
        "answer", on=UPDATE, status=200, body={"errors": [error], "data": None}, commit=not is_definite
    )
    outcome = linear.send(closes(2, issue), timeout_s=TIMEOUT_S)
    assert isinstance(outcome, Rejected if is_definite else Uncertain), outcome


def test_an_issue_that_was_not_moved_is_not_closed(linear: LinearAdapter, sandbox: Sandbox) -> None:
    """The answer shows the state that the issue is in now: an open one, or none at all, is no closing."""
    issue = sent(linear, CREATES)
    close = closes(2, issue)
    said = {"success": True, "comment": {"id": id_of(close.key)}}
    for state in ({"name": "Done", "type": "completed"}, {"name": "Todo", "type": "unstarted"}, None):
        now = {"id": id_of(CREATES.key), "identifier": issue, "state": state}
        done = {"data": {"issueUpdate": {"success": True, "issue": now}, "commentCreate": said}}
        sandbox.linear.fault("answer", on=UPDATE, status=200, body=done)
        assert linear.send(close, timeout_s=TIMEOUT_S) == Uncertain("not_closed")


def test_closing_what_is_in_the_trash_or_unknown(linear: LinearAdapter, sandbox: Sandbox) -> None:
    """An issue in the trash is taken back already; one that is not ours, or not there, is not touched."""
    issue = sent(linear, CREATES)
    hand(sandbox, "mutation($n: String!) { issueDelete(id: $n) { success } }", n=issue)
    outcome = linear.send(closes(2, issue), timeout_s=TIMEOUT_S)
    assert outcome == Succeeded(issue, {"identifier": issue, "state": "trashed"})
    never = replace(CREATES, key="f" * 32)
    unmade = call_of("linear_close", 3, {"order_id": "1182"}, about(never, None))
    assert linear.send(unmade, timeout_s=TIMEOUT_S) == Rejected("not_found")
    assert isinstance(find(linear, unmade), Unknown)
    make(sandbox, id=id_of(never.key), title="Theirs")
    assert linear.send(unmade, timeout_s=TIMEOUT_S) == NotSent("of_unresolved")
    assert find(linear, unmade) == Unknown("of_unresolved")
    assert sandbox.requests("linear", UPDATE) == []


def test_a_receipt_that_names_another_issue_by_now(linear: LinearAdapter, sandbox: Sandbox) -> None:
    """Teams change their keys, and others take them: what the identifier names must be what we made, also when edited."""
    sent(linear, CREATES)
    theirs = make(sandbox, title="Theirs", description="Not ours.")
    close = closes(2, theirs)
    assert linear.send(close, timeout_s=TIMEOUT_S) == NotSent("of_unresolved")
    assert find(linear, close) == Unknown("of_unresolved")
    assert state_of(sandbox, theirs) == "Backlog"
    change(sandbox, "SUP-1", description="Without our mark.")
    assert sent(linear, closes(3, "SUP-1")) == "SUP-1"


@pytest.mark.parametrize("fault", [None, "504_after_commit", "504_before_commit"])
def test_deleting_a_comment(linear: LinearAdapter, sandbox: Sandbox, fault: str | None) -> None:
    """Gone is done, by whomever; the list tells after a lost answer, and a second deletion finds nothing to do."""
    issue = sent(linear, CREATES)
    comment = call_of("linear_comment", 2, {"issue": issue, "body": "Called."})
    receipt = sent(linear, comment)
    delete = call_of("linear_delete_comment", 3, {"issue": issue}, about(comment, receipt))
    assert find(linear, delete) == Absent()
    if fault is not None:
        sandbox.linear.fault(fault, on=DELETE)
        assert isinstance(linear.send(delete, timeout_s=TIMEOUT_S), Uncertain)
        assert isinstance(find(linear, delete), Found if fault == "504_after_commit" else Absent)
    assert sent(linear, delete) == receipt
    assert sandbox.count("linear_comments_deleted") == 1
    assert is_done(find(linear, delete), receipt)
    assert find(linear, comment) == Absent()
    assert sent(linear, delete) == receipt
    assert len(sandbox.requests("linear", DELETE)) == (2 if fault == "504_before_commit" else 1)


def test_a_list_that_need_not_show_it_yet(sandbox: Sandbox) -> None:
    """A comment that was made just now may be missing from a list: it is deleted all the same, and not called gone."""
    linear = adapter_of(sandbox, read_lag_s=60)
    issue = sent(linear, CREATES)
    sandbox.config(search_lag_s={"linear": 50})
    comment = call_of("linear_comment", 2, {"issue": issue, "body": "Called."}, at=sandbox.now())
    receipt = sent(linear, comment)
    delete = call_of("linear_delete_comment", 3, {"issue": issue}, about(comment, receipt), at=sandbox.now())
    sandbox.linear.fault("504_before_commit", on=DELETE)
    assert isinstance(linear.send(delete, timeout_s=TIMEOUT_S), Uncertain), "it is asked for"
    assert find(linear, delete) == Unknown("too_fresh")
    sandbox.advance(58)
    assert find(linear, delete) == Absent(), "it is there, as the list has come to show"
    assert sent(linear, delete) == receipt
    sandbox.advance(51)
    assert is_done(find(linear, delete), receipt)
    assert sandbox.count("linear_comments_deleted") == 1


def test_a_fresh_comment_is_deleted_once(sandbox: Sandbox) -> None:
    """What the list does not show yet is deleted, and one without our receipt cannot be known for ours then."""
    linear = adapter_of(sandbox, read_lag_s=60)
    issue = sent(linear, CREATES)
    sandbox.config(search_lag_s={"linear": 50})
    comment = call_of("linear_comment", 2, {"issue": issue, "body": "Called."}, at=sandbox.now())
    receipt = sent(linear, comment)
    blind = call_of("linear_delete_comment", 3, {"issue": issue}, about(comment, None), at=sandbox.now())
    assert linear.send(blind, timeout_s=TIMEOUT_S) == NotSent("of_unresolved")
    delete = replace(blind, of=about(comment, receipt))
    assert sent(linear, delete) == receipt
    again = linear.send(delete, timeout_s=TIMEOUT_S)
    assert isinstance(again, Uncertain), "not to be told from one that was never there"
    assert sandbox.count("linear_comments_deleted") == 1


def test_somebody_else_s_comment_is_not_deleted(linear: LinearAdapter, sandbox: Sandbox) -> None:
    """Without a receipt the id must hold what our call wrote."""
    issue = sent(linear, CREATES)
    comment = call_of("linear_comment", 2, {"issue": issue, "body": "Called."})
    document = "mutation($i: CommentCreateInput!) { commentCreate(input: $i) { success } }"
    hand(sandbox, document, i={"id": id_of(comment.key), "issueId": issue, "body": "Hello"})
    delete = call_of("linear_delete_comment", 3, {"issue": issue}, about(comment, None))
    assert linear.send(delete, timeout_s=TIMEOUT_S) == NotSent("of_unresolved")
    assert sandbox.count("linear_comments_deleted") == 0


def test_a_deletion_of_another_comment_is_not_ours(linear: LinearAdapter, sandbox: Sandbox) -> None:
    """The answer must name the comment that was to go: one about something else proves nothing."""
    sent(linear, CREATES)
    comment = call_of("linear_comment", 2, {"issue": "SUP-1", "body": "Parcel lost."})
    delete = call_of("linear_delete_comment", 3, {"issue": "SUP-1"}, about(comment, sent(linear, comment)))
    for entity in (id_of("f" * 32), None):
        done = {"data": {"commentDelete": {"success": True, "entityId": entity}}}
        sandbox.linear.fault("answer", on=DELETE, status=200, body=done)
        assert isinstance(linear.send(delete, timeout_s=TIMEOUT_S), Uncertain)
