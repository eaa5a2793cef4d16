"""What was decided about one version of a thing is not done to another: stale state stops execution, before any request."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import psycopg
import pytest
from tests.acceptance.drafts import Mail, approve_newest

from counterfoil import Status
from counterfoil.testing import World

if TYPE_CHECKING:
    from tests.conftest import Database

Sql = Callable[..., list[tuple[Any, ...]]]


@pytest.fixture
def mail(world: World, use_tools: Callable[..., None]) -> Mail:
    made = Mail(world)
    use_tools(*made.tools)
    return made


@pytest.fixture
def approve(database: Database) -> Callable[[], str]:
    """Alice approves the newest proposal, over what it says now; what the door answers."""

    return lambda: approve_newest(database.url("operator"))


@pytest.fixture
def approved(world: World, mail: Mail, enqueue: Any, approve: Callable[[], str]) -> Callable[[str], tuple[str, str]]:
    """Proposes to send a new draft, lets its version be read, and approves: the draft and the action."""

    def make(tool: str) -> tuple[str, str]:
        draft = mail.draft()
        action_id = enqueue(tool, {"draft": draft})
        world.settle()
        assert approve() == "approved"
        return draft, action_id

    return make


@pytest.fixture
def ended(sql: Sql) -> Callable[[str], tuple[str, str | None, int]]:
    """State, code and attempts of an action."""
    return lambda action_id: sql(
        "SELECT state, last_error_code, attempt_count FROM counterfoil.action WHERE action_id = %s", action_id
    )[0]


def test_the_version_is_read_while_proposed_and_compared_before_the_effect(
    world: World, mail: Mail, enqueue: Any, approve: Any, sql: Sql, passed: Any
) -> None:
    """proposed, then a reading, then a person; at the claim a second reading finds the same: one message."""
    draft = mail.draft()
    mail.edit(draft)
    action_id = enqueue("send_looked_up", {"draft": draft})
    assert world.states() == {"send_looked_up/s1/do": "proposed"}
    assert approve() == "version_unread", "nobody decides on what nobody has read"
    world.settle()
    assert sql("SELECT state, expected_resource_version, key FROM counterfoil.action") == [
        ("awaiting_approval", "2", None)
    ]
    assert approve() == "approved"
    world.settle()
    assert passed(action_id) == ["proposed", "awaiting_approval", "ready", "executing", "succeeded"]
    assert (mail.sent, mail.requests("drafts.retrieve")) == (1, 2)


@pytest.mark.parametrize("when", ["before the approval", "after the approval"])
def test_a_changed_resource_is_stale(
    world: World, mail: Mail, enqueue: Any, approve: Any, ended: Any, client: Any, when: str
) -> None:
    """Read as version 1, edited to 2 before or after the decision: nothing is sent, and the caller plans anew."""
    draft = mail.draft()
    action_id = enqueue("send_looked_up", {"draft": draft})
    world.settle()
    if when == "before the approval":
        mail.edit(draft)
    assert approve() == "approved"
    if when == "after the approval":
        mail.edit(draft)
    world.settle()
    assert ended(action_id) == ("stale", "resource_changed", 0)
    assert (mail.sent, mail.requests("drafts.send")) == (0, 0)
    result = client().result(action_id)
    assert (result.status, result.next_step, result.code) == (Status.STALE, "new_preview", "resource_changed")


def test_the_digest_covers_the_version(world: World, mail: Mail, enqueue: Any, sql: Sql) -> None:
    """Two readings of different versions are two digests: what a person repeats is about one version alone."""
    enqueue("send_looked_up", {"draft": mail.draft()})
    world.settle()
    [(shown, other)] = sql(
        "SELECT counterfoil.intent_digest(a, p.expires_at),"
        ' counterfoil.intent_digest(jsonb_populate_record(a, \'{"expected_resource_version": "2"}\'), p.expires_at)'
        " FROM counterfoil.action AS a JOIN counterfoil.proposal AS p USING (proposal_id)"
    )
    assert shown != other


@pytest.mark.parametrize("fault", ["504_before_commit", "rst_after_commit", "stall_headers", "object_2xx", "429_bare"])
def test_an_unreadable_version_stops_the_call(world: World, mail: Mail, approved: Any, ended: Any, fault: str) -> None:
    """A reading that fails right before the effect is no version: nothing is sent, and the row is stale."""
    _, action_id = approved("send_looked_up")
    world.sandbox.mail.fault(fault, on="drafts.retrieve")
    world.settle()
    assert ended(action_id) == ("stale", "version_unreadable", 0)
    assert (mail.sent, mail.requests("drafts.send")) == (0, 0)


def test_what_is_never_readable_ends_stale(world: World, mail: Mail, enqueue: Any, ended: Any) -> None:
    """While it is proposed, five readings that fail are enough; each is tried later than the one before."""
    action_id = enqueue("send_at_once", {"draft": "drf_none"})
    world.settle(at_most_s=60)
    assert ended(action_id) == ("stale", "version_unreadable", 0)
    assert mail.requests("drafts.retrieve") == 5


def test_a_reading_that_fails_is_tried_again(world: World, mail: Mail, enqueue: Any) -> None:
    """Four failures, then an answer: the call goes on, and needs nobody where its tool says so."""
    world.sandbox.mail.fault("504_before_commit", on="drafts.retrieve", times=4)
    enqueue("send_at_once", {"draft": mail.draft()})
    world.settle()
    assert list(world.states().values()) == ["succeeded"]
    assert mail.sent == 1


def test_a_resend_by_key_is_not_stale_by_its_own_hand(world: World, mail: Mail, approved: Any, ended: Any) -> None:
    """The first attempt sent the draft, which changed its version, and its answer was lost: the resend finds out."""
    _, action_id = approved("send_keyed")
    world.sandbox.mail.fault("rst_after_commit", on="drafts.send")
    world.settle()
    assert ended(action_id) == ("succeeded", None, 2)
    assert (mail.sent, mail.requests("drafts.send"), mail.requests("drafts.retrieve")) == (1, 2, 2)


@pytest.mark.parametrize("name", ["send_looked_up", "send_keyed", "send_if_match"])
@pytest.mark.parametrize("point", ["before_claim", "after_claim", "before_settle", "after_settle"])
def test_a_worker_that_dies_anywhere(world: World, mail: Mail, approved: Any, point: Any, name: str) -> None:
    """Wherever the worker is killed, the approved draft goes out once."""
    approved(name)
    with world.crash_after(point):
        world.settle()
    world.settle()
    assert world.crashes == [point]
    assert mail.sent == 1
    assert list(world.states().values()) == ["succeeded"]


@pytest.mark.parametrize("point", ["before_claim", "after_claim", "before_settle", "after_settle"])
def test_a_change_after_a_crash(world: World, mail: Mail, approved: Any, ended: Any, point: Any) -> None:
    """Edited while nobody knows whether it was sent: only what had gone out already did, the edited draft never does."""
    draft, action_id = approved("send_looked_up")
    with world.crash_after(point):
        world.work()
    sent = mail.sent
    if not sent:
        mail.edit(draft)
    world.settle()
    assert mail.sent == sent == (1 if point in ("before_settle", "after_settle") else 0)
    assert ended(action_id)[:2] == (("succeeded", None) if sent else ("stale", "resource_changed"))


def test_a_slow_reading_takes_no_time_from_the_send(world: World, mail: Mail, approved: Any, ended: Any) -> None:
    """The lease that a reading has used up is not sent under: the action is let go, and done once under the next one."""
    _, action_id = approved("send_looked_up")
    read = mail.read

    def slowly(draft: str) -> int:
        mail.read = read
        world.advance(3.5)
        return read(draft)

    mail.read = slowly
    assert world.work() == 1
    assert ended(action_id) == ("ready", None, 0)
    assert mail.requests("drafts.send") == 0
    world.settle()
    assert ended(action_id) == ("succeeded", None, 1)
    assert mail.sent == 1


def test_a_retry_is_compared_again(world: World, mail: Mail, approved: Any, ended: Any) -> None:
    """Refused for now, edited, tried again: the second attempt sees another version, and sends nothing."""
    draft, action_id = approved("send_looked_up")
    world.sandbox.mail.fault("429_bare", on="drafts.send")
    assert world.work() == 1
    mail.edit(draft)
    world.settle()
    assert ended(action_id) == ("stale", "resource_changed", 1)
    assert (mail.sent, mail.requests("drafts.send")) == (0, 1)


def test_the_provider_compares_too(world: World, mail: Mail, approved: Any, ended: Any) -> None:
    """Edited between our reading and the request: the service refuses with 412, and that is stale, not failed."""
    draft, action_id = approved("send_if_match")
    mail.before_send = lambda: mail.edit(draft)
    world.settle()
    assert ended(action_id) == ("stale", "resource_changed", 1)
    assert (mail.sent, mail.requests("drafts.send")) == (0, 1)


def test_a_condition_refused_in_doubt_proves_nothing(world: World, mail: Mail, approved: Any, ended: Any) -> None:
    """Killed before its request left, edited, resent by key: the 412 is about the resend alone, the look-up decides."""
    draft, action_id = approved("send_if_match")
    with world.crash_after("after_claim"):
        world.work()
    mail.edit(draft)
    world.settle()
    assert ended(action_id)[0] == "permanent_failure"
    assert mail.sent == 0


@pytest.mark.parametrize(("seen", "state", "sent"), [("1", "succeeded", 1), ("7", "stale", 0)])
def test_the_callers_own_version(
    world: World, mail: Mail, client: Any, database: Database, seen: str, state: str, sent: int
) -> None:
    """A version that the caller gives is not read while proposed; right before the effect it is compared."""
    with psycopg.connect(database.url("agent")) as connection:
        client().enqueue(
            connection,
            "send_at_once",
            {"draft": mail.draft()},
            tenant="acme",
            run="r1",
            step="s1",
            actor="bot",
            resource_version=seen,
        )
    assert list(world.states().values()) == ["ready"]
    world.settle()
    assert list(world.states().values()) == [state]
    assert (mail.sent, mail.requests("drafts.retrieve")) == (sent, 1)


def test_a_tool_that_a_reconciler_lacks_is_left_to_others(
    world: World, mail: Mail, enqueue: Any, ended: Any, use_tools: Any
) -> None:
    """Nobody reads for a tool that this process does not have; when nobody has had it for long, the row is stale."""
    action_id = enqueue("send_at_once", {"draft": mail.draft()})
    known = world.registry
    use_tools(mail.tools[0])
    for _ in range(2):
        world.restart()
        world.reconciler.read_versions()
        assert ended(action_id)[0] == "proposed"
        world.advance(1800)
    world.registry = known
    world.restart()
    world.reconciler.read_versions()
    assert ended(action_id)[0] == "ready", "late, but somebody has it"
    other = enqueue("send_at_once", {"draft": mail.draft()}, run="r2")
    use_tools(mail.tools[0])
    world.restart()
    world.advance(3700)
    world.reconciler.read_versions()
    assert ended(other) == ("stale", "version_unreadable", 0)


@pytest.mark.parametrize("name", ["send_looked_up", "send_if_match"])
@pytest.mark.parametrize("seed", range(6))
def test_whatever_goes_wrong_only_what_was_approved_is_sent(
    world: World, mail: Mail, approved: Any, name: str, seed: int
) -> None:
    """Lost answers, dead workers and an edit at any moment: at most one message, and in the words that were approved."""
    rng = random.Random(seed)
    draft, _ = approved(name)
    for _ in range(rng.randrange(3)):
        operation = rng.choice(["drafts.send", "drafts.retrieve", "messages.list"])
        world.sandbox.mail.fault(rng.choice(["504_before_commit", "504_after_commit", "429_bare"]), on=operation)
    edited_at = rng.randrange(12)
    with world.crash_after(rng.choice(["after_claim", "before_settle"]), times=rng.randrange(3)):
        for moment in range(12):
            if moment == edited_at and not mail.sent:
                mail.edit(draft)
            rng.choice([world.work, world.reconcile, lambda: world.advance(rng.random() * 4)])()
        world.settle()
    bodies = [message["body"] for message in mail.messages()]
    assert bodies in ([], ["Words."])
    [state] = world.states().values()
    assert state in (("succeeded",) if bodies else ("stale", "permanent_failure"))
