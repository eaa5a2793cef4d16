"""What was decided about one version of a thing is not done to another: stale state stops execution, before any request."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import psycopg
import pytest
import requests
from tests.acceptance.drafts import Mail

from counterfoil import Status
from counterfoil.providers.registry import Registry
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

    def by_alice() -> str:
        with psycopg.connect(database.url("operator")) as connection:
            row = connection.execute(
                "SELECT d.answer FROM (SELECT proposal_id FROM counterfoil.proposal ORDER BY created_at DESC LIMIT 1) AS p,"
                " LATERAL counterfoil.decide(p.proposal_id, 'approved', counterfoil.proposal_digest(p.proposal_id),"
                " 'alice', 'cli') AS d"
            ).fetchone()
        assert row is not None
        return str(row[0])

    return by_alice


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


HOLD = {"customer": "cus_1", "amount_minor": 500, "currency": "usd", "order_id": "1182"}
TICKET = {"project": "SUP", "summary": "Reship 1182", "order_id": "1182"}


@pytest.fixture
def plan(world: World, client: Any, working: Any) -> Callable[[], None]:
    """Holds money, stages a ticket, and proposes to capture, then to open; versions are read."""

    def make() -> None:
        with working(), client().run("r1", tenant="acme", actor="bot") as run:
            hold = run.stage("stripe_authorize", HOLD)
            ticket = run.stage("jira_stage", TICKET)
            run.propose(
                [
                    (
                        "stripe_capture",
                        {"order_id": "1182", "amount_minor": 500, "currency": "usd", "of": hold.action_id},
                    ),
                    ("jira_open", {"order_id": "1182", "of": ticket.action_id}),
                ]
            )
        world.settle()

    return make


def stripe_by_hand(world: World, verb: str) -> None:
    [hold] = world.sandbox.stripe.effects("authorization")
    url = f"{world.sandbox.stripe.url}/v1/payment_intents/{hold.object_id}/{verb}"
    requests.post(url, headers={"Authorization": "Bearer sk_test_sandbox"}, timeout=3).raise_for_status()


def jira_by_hand(world: World) -> None:
    [ticket] = world.sandbox.jira.effects("ticket")
    url = f"{world.sandbox.jira.url}/rest/api/2/issue/{ticket.object_id}/comment"
    world.advance(1)
    requests.post(url, json={"body": "Wait."}, auth=("ann", "x"), timeout=3).raise_for_status()


def states(world: World) -> list[str]:
    """Of the plan's two steps."""
    rows = world.states().items()
    return [state for name, state in rows if name.startswith(("stripe_capture", "jira_open"))]


def test_a_plan_on_what_nobody_has_touched(world: World, plan: Any, approve: Any, sql: Sql) -> None:
    """What our own calls do elsewhere makes no step stale: captured, then opened; both versions were in the digest."""
    plan()
    assert states(world) == ["awaiting_approval", "proposed"]
    versions = [v for (v,) in sql("SELECT expected_resource_version FROM counterfoil.action WHERE place IS NOT NULL")]
    assert all(versions)
    assert len(versions) == 2
    assert approve() == "approved"
    world.settle()
    assert states(world) == ["succeeded", "succeeded"]
    assert (world.sandbox.count("charges"), world.sandbox.count("transitions")) == (1, 1)


@pytest.mark.parametrize("verb", ["cancel", "capture"])
def test_a_hold_that_somebody_ended_by_hand(world: World, plan: Any, approve: Any, sql: Sql, verb: str) -> None:
    """Released or captured at the dashboard after the approval: no capture of ours, and the plan's rest stops."""
    plan()
    assert approve() == "approved"
    stripe_by_hand(world, verb)
    charges = world.sandbox.count("charges")
    captures = len(world.sandbox.requests("stripe", "payment_intents.capture"))
    world.settle()
    assert states(world) == ["stale", "cancelled"]
    assert sql("SELECT last_error_code FROM counterfoil.action WHERE place IS NOT NULL ORDER BY place") == [
        ("resource_changed",),
        ("plan_stopped",),
    ]
    assert world.sandbox.count("charges") == charges
    assert len(world.sandbox.requests("stripe", "payment_intents.capture")) == captures
    assert world.sandbox.count("transitions") == 0


def test_a_later_step_goes_stale(world: World, plan: Any, approve: Any) -> None:
    """Somebody writes on the staged ticket after the approval: the capture is done, the ticket is left to people."""
    plan()
    assert approve() == "approved"
    jira_by_hand(world)
    world.settle()
    assert states(world) == ["succeeded", "stale"]
    assert (world.sandbox.count("charges"), world.sandbox.count("transitions")) == (1, 0)


def test_taking_back_does_not_go_stale(world: World, plan: Any, approve: Any, unwind: Any) -> None:
    """Everything has changed since: the refund is made and the ticket closed all the same."""
    plan()
    assert approve() == "approved"
    world.settle()
    jira_by_hand(world)
    unwind()
    world.settle()
    assert (world.sandbox.count("refunds"), world.sandbox.count("tickets_open")) == (1, 0)


def test_one_version_function_serves_a_counter_action(world: World) -> None:
    """The shipped tools that unwinds use read no version, those that a plan commits do."""
    shipped = Registry.load(["counterfoil.providers.stripe.tools", "counterfoil.providers.jira.tools"])
    read = {spec.name for spec in shipped if spec.resource_version}
    assert read == {"stripe_capture", "jira_open"}
    assert read.isdisjoint({str(spec.undo) for spec in shipped})
