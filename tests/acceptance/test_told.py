"""What a caller has been told: whoever was not told an end gets it, and nothing is done again for it.

Each was two effects, or an end that nobody was told, while `seen` counted recordings.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import pytest
from tests.acceptance.people import approve_all

from counterfoil import Counterfoil, LedgerLostTime, NextStep, NotAllowed, Rejected, Result, Run, Status, tool
from counterfoil.testing import World

if TYPE_CHECKING:
    from tests.acceptance.shop import Shop
    from tests.conftest import Database

Client = Callable[..., Counterfoil]


@pytest.fixture
def approve(database: Database) -> Callable[[], int]:
    """Alice approves all that waits; how many."""
    return lambda: approve_all(database.url("operator"))


def opened(client: Client, transcript: list[Result] | None = None) -> Run:
    """As a process that has just started does, with what its transcript holds."""
    return client().run("r1", tenant="acme", actor="bot", seen=[str(told.seen) for told in transcript or ()])


@pytest.mark.parametrize("dies", [True, False])
@pytest.mark.parametrize("explicit", [True, False])
@pytest.mark.parametrize("fault", [None, "504_after_commit"])
def test_what_was_answered_without_an_end_is_one_comment(
    world: World, client: Client, enqueue: Any, dies: bool, explicit: bool, fault: str | None
) -> None:
    """The founding incident: answered `pending` or `uncertain`, perhaps a death, done meanwhile, asked in other words."""
    enqueue("jira_create", {"project": "SUP", "summary": "x", "order_id": "1"}, run="other")
    world.settle()
    if fault:
        world.sandbox.jira.fault(fault, on="issue.comment", times=1)
    run, transcript = opened(client), []

    def comment(body: str) -> Result:
        seen = [told.seen for told in transcript] if explicit else None
        transcript.append(run.call("jira_comment", {"issue": "SUP-1", "body": body}, seen=seen, wait_s=0))
        return transcript[-1]

    first = comment("Parcel lost.")
    world.work()
    if fault:
        assert comment("Parcel lost.").status is Status.UNCERTAIN
    world.settle()
    if dies:
        run = opened(client, transcript)
    again = comment("The parcel was lost.")
    assert (again.status, again.action_id, again.replayed) == (Status.SUCCEEDED, first.action_id, True)
    assert again.next_step is NextStep.ALREADY_DONE
    assert again.arguments == {"issue": "SUP-1", "body": "Parcel lost."}, "what really ran"
    another = comment("And a second one.")
    assert another.action_id != first.action_id, "its end was told, so this is another wish"
    world.settle()
    assert len(world.sandbox.effects("comment")) == 2


@pytest.mark.parametrize("names", [{"ref": "turn_7f3a:call_1"}, {"turn": "turn_7f3a", "ref": "call_1"}])
def test_the_same_reference_and_words_are_one_action_for_ever(
    world: World, client: Client, shop: Shop, names: dict[str, str]
) -> None:
    """A node that runs from its top, or a retry policy around the tool, in one handle: one effect, however often."""
    run = opened(client)
    told = []
    for _ in range(4):
        told.append(run.call("refund", {"order": "1"}, wait_s=0, **names))
        world.settle()
    assert {answer.action_id for answer in told} == {told[0].action_id}
    assert [answer.replayed for answer in told] == [False, True, True, True]
    assert shop.count("refund") == 1


def test_each_wording_under_a_reference_is_remembered(world: World, client: Client, shop: Shop) -> None:
    """A reworded poll took the action under `call_0`, too: that very call again is that action, told or not."""
    run = opened(client)
    first = run.call("refund", {"order": "1", "reason": "late"}, ref="call_0", wait_s=0)
    world.settle()
    for _ in range(3):
        again = run.call("refund", {"order": "1", "reason": "too late"}, ref="call_0", wait_s=0)
        assert again.action_id == first.action_id
    world.settle()
    assert shop.count("refund") == 1


def test_what_was_approved_and_sent_meanwhile_is_told_and_nobody_is_asked_again(
    world: World, client: Client, shop: Shop, approve: Callable[[], int]
) -> None:
    """The transcript ends with `awaiting_approval`; then a person approves, and the mail goes out."""
    run = opened(client)
    asked = run.call("ask_customer", {"order": "1", "text": "Size?"}, repeat="x", wait_s=0)
    assert asked.status is Status.AWAITING_APPROVAL
    assert approve() == 1
    world.settle()
    run = opened(client, [asked])
    again = run.call("ask_customer", {"order": "1", "text": "Which size?"}, repeat="x", wait_s=0)
    assert (again.status, again.action_id) == (Status.SUCCEEDED, asked.action_id)
    assert approve() == 0
    assert shop.count("ask_customer") == 1


@pytest.fixture
def failing(use_tools: Any) -> None:
    found: dict[str, Any] = {"cls": "compensatable", "target": "order", "once_per": None, "audience": ["team"],
                             "provider": "p", "lookup": lambda key: []}  # fmt: skip

    @tool(effect="a", undo="take_back", **found)
    def first(order: str, *, key: str) -> object:
        """Is refused."""
        return Rejected("no_such_order")

    @tool(effect="take_back", undo=None, **found)
    def take_back(order: str, *, key: str, of: str) -> object:
        """The counter-action."""
        return {"id": "1"}

    @tool(effect="b", undo="take_back", **found)
    def second(order: str, *, key: str) -> object:
        """Succeeds."""
        return {"id": "2"}

    use_tools(first, take_back, second)


@pytest.mark.parametrize("kept", [True, False])
@pytest.mark.usefixtures("failing")
def test_a_failure_after_pending_is_told_before_anything_else(world: World, client: Client, kept: bool) -> None:
    """`pending` is no end, whether or not the transcript is kept: the next call gets the failure to read first."""
    pending = opened(client).call("first", {"order": "1"}, wait_s=0)
    assert pending.status is Status.PENDING
    world.settle()
    run = opened(client, [pending] if kept else [])
    told = run.call("second", {"order": "1"}, wait_s=0)
    assert (told.status, told.next_step) == (Status.BLOCKED, NextStep.READ_UNSEEN)
    assert [(one.status, one.code) for one in told.unseen or ()] == [(Status.FAILED, "no_such_order")]
    again = run.call("second", {"order": "1"}, seen=str(pending.seen), wait_s=0)
    assert again.unseen == told.unseen, "again, until it is handed back as told"
    assert run.call("second", {"order": "1"}, seen=str(told.seen), wait_s=0).status is Status.PENDING


@pytest.mark.usefixtures("failing")
def test_an_end_that_changes_is_told_again(world: World, client: Client, sql: Any) -> None:
    """Told `failed`, found after all: the token of the failure does not cover the success."""
    run = opened(client)
    run.call("first", {"order": "1"}, wait_s=0)
    world.settle()
    failed = run.call("first", {"order": "1"}, wait_s=0)
    assert failed.status is Status.FAILED
    found = "UPDATE counterfoil.action SET state = {}, receipt = 'r1', result = '{{}}' WHERE action_id = %s"
    for state in ("'operator_review'", "'succeeded'"):
        sql(found.format(state), failed.action_id)
    told = run.call("second", {"order": "1"}, seen=str(failed.seen), wait_s=0)
    assert [one.status for one in told.unseen or ()] == [Status.SUCCEEDED]
    again = run.call("first", {"order": "1"}, seen=str(failed.seen), wait_s=0)
    assert (again.status, again.action_id) == (Status.SUCCEEDED, failed.action_id)


def test_a_token_covers_ends_only(world: World, client: Client, shop: Shop, approve: Callable[[], int]) -> None:
    """A call that passed one that awaits approval: its token does not cover what the person decides later."""
    run = opened(client)
    asked = run.call("ask_customer", {"order": "1", "text": "Size?"}, repeat="y", wait_s=0)
    blocked = run.call("refund", {"order": "9"}, wait_s=0)
    assert (blocked.status, blocked.next_step, blocked.action_id) == (
        Status.BLOCKED, NextStep.PERSON, asked.action_id,
    )  # fmt: skip
    run.ack(str(blocked.seen))
    approve()
    world.settle()
    told = run.call("refund", {"order": "9"}, wait_s=0)
    assert [one.action_id for one in told.unseen or ()] == [asked.action_id]


def test_what_a_call_is_blocked_behind_can_be_waited_for(
    world: World, client: Client, shop: Shop, approve: Callable[[], int]
) -> None:
    """`result` waits for the person's decision on the action that the answer names; the call is made once more then."""
    run = opened(client)
    asked = run.call("ask_customer", {"order": "1", "text": "Size?"}, wait_s=0)
    blocked = run.call("refund", {"order": "9"}, wait_s=0)
    assert blocked.action_id == asked.action_id
    approve()
    world.settle()
    decided = client().result(str(blocked.action_id), wait_s=20)
    assert decided.status is Status.SUCCEEDED
    tokens = [str(blocked.seen), str(decided.seen)]
    assert run.call("refund", {"order": "9"}, seen=tokens, wait_s=0).status is Status.PENDING


@pytest.fixture
def mailing(use_tools: Any) -> list[str]:
    sent: list[str] = []
    found: dict[str, Any] = {"once_per": None, "provider": "p", "lookup": lambda key: []}

    @tool(cls="irreversible", effect="mail", target="to", audience=["customer"], approval="always", **found)
    def mail(to: str, body: str = "", *, key: str) -> object:
        """Waits for a person."""
        sent.append(f"mail {body}")
        return {"id": key}

    @tool(cls="irreversible", effect="sms", target="to", audience=["customer"], **found)
    def sms(to: str, body: str = "", *, key: str) -> object:
        """Is refused."""
        return Rejected("bad_number")

    @tool(cls="reversible", effect="tag", target="order", audience=["team"], undo=None, **found)
    def tag(order: str, *, key: str) -> object:
        """Goes past what waits."""
        sent.append("tag")
        return {"id": key}

    use_tools(mail, sms, tag)
    return sent


def test_a_reversible_call_that_passed_one_that_waits_does_not_cover_it(
    world: World, client: Client, mailing: list[str], approve: Callable[[], int]
) -> None:
    """The tag's answer is younger than the mail's; the mail is sent once, and nobody is asked a second time."""
    run = opened(client)
    asked = run.call("mail", {"to": "x@y.example", "body": "a"}, wait_s=0)
    run.call("tag", {"order": "1"}, wait_s=0)
    world.settle()
    tagged = run.call("tag", {"order": "1"}, wait_s=0)
    assert tagged.status is Status.SUCCEEDED
    approve()
    world.settle()
    again = opened(client, [asked, tagged]).call("mail", {"to": "x@y.example", "body": "b"}, wait_s=0)
    assert (again.status, again.action_id) == (Status.SUCCEEDED, asked.action_id)
    assert approve() == 0
    assert mailing == ["tag", "mail a"]


@pytest.mark.parametrize("told_all", [True, False])
def test_a_plan_from_the_top_does_not_hold_its_done_step_again(
    world: World, client: Client, mailing: list[str], approve: Callable[[], int], told_all: bool
) -> None:
    """A program that resumes from its top, whose second step failed: the same proposal, also for one that was told all."""
    plan = [("mail", {"to": "x", "body": "a"}), ("sms", {"to": "x", "body": "a"})]
    run = opened(client)
    first = run.propose(plan)
    run.call("tag", {"order": "2"}, wait_s=0)  # while the plan waits
    world.settle()
    tagged = run.call("tag", {"order": "2"}, wait_s=0)
    approve()
    world.settle()
    transcript = [tagged, first.result()] if told_all else [tagged]
    again = opened(client, transcript).propose(plan)
    assert again.id == first.id
    assert again.result().status is Status.FAILED
    reworded = [("mail", {"to": "x", "body": "in other words"}), ("sms", {"to": "x", "body": "b"})]
    if not told_all:
        with pytest.raises(NotAllowed, match="so_far"):
            opened(client, [tagged]).propose(reworded)
    rest = opened(client, [tagged, first.result()]).propose(plan[1:])
    assert rest.id != first.id
    approve()
    world.settle()
    assert mailing == ["tag", "mail a"]


def test_ends_that_the_ledger_does_not_have_are_refused_with_an_alarm(
    world: World, client: Client, shop: Shop, sql: Any
) -> None:
    """Restored to an earlier time, the ledger must not do again what its callers know to be done."""
    run = opened(client)
    run.call("refund", {"order": "1"}, wait_s=0)
    world.settle()
    done = run.call("refund", {"order": "1"}, wait_s=0)
    for statement in (
        "ALTER TABLE counterfoil.action DISABLE TRIGGER ALL",
        "UPDATE counterfoil.action SET ends_count = 0, state = 'cancelled'",
        "ALTER TABLE counterfoil.action ENABLE TRIGGER ALL",
    ):
        sql(statement)
    for ask in (
        lambda: opened(client, [done]).call("refund", {"order": "2"}, wait_s=0),
        lambda: opened(client).call("refund", {"order": "2"}, seen=str(done.seen), wait_s=0),
        lambda: opened(client, [done]).propose([("ask_customer", {"order": "2"})]),
    ):
        with pytest.raises(LedgerLostTime):
            ask()
    assert sql("SELECT kind, subject, tenant, run FROM counterfoil.alarm WHERE ended_at IS NULL") == [
        ("ledger_lost_time", "acme", "acme", "r1")
    ]
    assert shop.count("refund") == 1
