"""A model's calls: one effect for what it means, however it repeats, rewords, loses or parallelises them."""

from __future__ import annotations

import json
import subprocess
import sys
import textwrap
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from decimal import Decimal
from typing import TYPE_CHECKING, Any

import psycopg
import pytest
from psycopg.rows import dict_row

from counterfoil import (
    ArgumentError,
    ConfigError,
    Counterfoil,
    LedgerUnavailable,
    NextStep,
    NotAllowed,
    NotFound,
    Result,
    Run,
    RunTakenOver,
    Status,
    StepConflict,
    tool,
)
from counterfoil.ledger import claims
from counterfoil.ledger.claims import ClaimedAction, WakeUp
from counterfoil.ledger.connection import Ledger
from counterfoil.ledger.keys import provider_key
from counterfoil.providers.registry import Registry
from counterfoil.providers.tool import SPEC_ATTRIBUTE
from counterfoil.settings import Limits, Settings

if TYPE_CHECKING:
    from tests.conftest import Database

CONTRACT: dict[str, Any] = {"audience": ["customer"], "native_key_ttl_s": 86400}
Body = dict[str, str]


@tool(cls="pure")
def search_orders(order_id: str) -> dict[str, Any]:
    if order_id == "broken":
        raise LookupError("no such order")
    return {"order_id": order_id, "at": Decimal("1.5")}


@tool(cls="compensatable", effect="refund", target="order_id", once_per=None, undo="undo_refund", **CONTRACT)
def refund(order_id: str, amount_minor: int = 500, reason: str = "", *, key: str) -> Body: ...  # type: ignore[empty-body]


@tool(cls="compensatable", effect="refund", target="order_id", once_per=None, undo=None, **CONTRACT)
def undo_refund(order_id: str, *, key: str, of: str) -> Body: ...  # type: ignore[empty-body]


@tool(cls="compensatable", effect="refund", target="order_id", once_per=None, undo="undo_refund", **CONTRACT)
def refund_by_cheque(order_id: str, *, key: str) -> Body: ...  # type: ignore[empty-body]


@tool(cls="reversible", effect="ticket", target="order_id", once_per="order_id", once_scope="tenant", **CONTRACT)
def create_ticket(order_id: str, summary: str = "", *, key: str) -> Body: ...  # type: ignore[empty-body]


@tool(cls="irreversible", effect="mail", target="order_id", once_per=None, **CONTRACT)
def send_mail(order_id: str, *, key: str) -> Body: ...  # type: ignore[empty-body]


def registry() -> Registry:
    found = Registry()
    for function in (search_orders, refund, undo_refund, refund_by_cheque, create_ticket, send_mail):
        found.add(getattr(function, SPEC_ATTRIBUTE))
    found.resolve()
    return found


class World:
    """A ledger with an agent, and a worker's hands."""

    def __init__(self, database: Database) -> None:
        self.database = database
        self.cf = Counterfoil(database.url("agent"), registry=registry())
        self.ledger = Ledger(database.url("worker"))
        self.owner = psycopg.connect(database.url("owner"), autocommit=True, row_factory=dict_row)

    def run(self, run: str = "ticket-1", *, tenant: str = "acme", seen: int = 0) -> Run:
        return self.cf.run(run, tenant=tenant, actor="bot", seen=seen)

    def one(self, query: str, *params: object) -> dict[str, Any]:
        row = self.owner.execute(query.encode(), params).fetchone()
        assert row is not None
        return row

    def actions(self) -> int:
        count: int = self.one("SELECT count(*) AS n FROM counterfoil.action")["n"]
        return count

    def action(self, action_id: str | None) -> dict[str, Any]:
        return self.one("SELECT * FROM counterfoil.action WHERE action_id = %s", action_id)

    def claim(self, action_id: str | None) -> ClaimedAction:
        row = self.action(action_id)
        claimed = claims.claim_if_ready(
            self.ledger,
            WakeUp(row["action_id"], row["generation"]),
            fence=uuid.uuid4(),
            lease_s=60,
            key=provider_key(b"secret", row["tenant"], row["tool"], row["action_id"]),
            reach="",
            key_version=1,
            attempts_max=5,
            worker="w",
        )
        assert claimed is not None
        return claimed

    def succeed(self, action_id: str | None) -> None:
        claimed = self.claim(action_id)
        assert claims.settle_succeeded(
            self.ledger, claimed, receipt="rcpt_1", result='{"id":"rcpt_1"}', evidence=None, worker="w"
        )

    def fail(self, action_id: str | None, code: str = "invalid_request", field: str | None = "amount_minor") -> None:
        claimed = self.claim(action_id)
        assert claims.settle_failed(
            self.ledger, claimed, outcome="rejected", code=code, error_code=code, field=field, reason="refused",
            evidence=None, worker="w",
        )  # fmt: skip

    def lose(self, action_id: str | None) -> None:
        """The answer is lost: uncertain, to be looked at in an hour."""
        claimed = self.claim(action_id)
        assert claims.settle_uncertain(
            self.ledger, claimed, outcome="uncertain", code="read_timeout", evidence=None, no_resend=False, delay_s=0,
            look_after_s=3600, worker="w",
        )  # fmt: skip

    @contextmanager
    def working(self) -> Iterator[None]:
        """A worker that makes whatever becomes ready succeed."""
        stop = threading.Event()

        def work() -> None:
            with psycopg.connect(self.database.url("owner"), autocommit=True) as seen:
                while not stop.wait(0.02):
                    for (action_id,) in seen.execute("SELECT action_id FROM counterfoil.outbox").fetchall():
                        self.succeed(action_id)

        with ThreadPoolExecutor(1) as threads:
            done = threads.submit(work)
            try:
                yield
            finally:
                stop.set()
                done.result(20)

    def close(self) -> None:
        self.owner.close()
        self.ledger.close()
        self.cf.close()


@pytest.fixture
def world(database: Database) -> Iterator[World]:
    world = World(database)
    yield world
    world.close()


def done(world: World, run: Run, tool: str = "refund", /, **arguments: Any) -> Result:
    """A call that was performed and whose result the caller has been given."""
    asked = {"order_id": "o1", **arguments}
    action_id = run.call(tool, asked, wait_s=0).action_id
    world.succeed(action_id)
    result = run.call(tool, asked, wait_s=0)
    assert (result.action_id, result.status) == (action_id, Status.SUCCEEDED)
    return result


@pytest.mark.case("A5")
def test_succeeded_step_asked_for_five_more_times(world: World) -> None:
    """Five identical bounded results, `succeeded`, no retry offered, one action, no exception."""
    run = world.run()
    world.succeed(run.call("refund", {"order_id": "o1"}, step="fee", wait_s=0).action_id)
    answers = [run.call("refund", {"order_id": "o1"}, step="fee", ref=f"c{n}") for n in range(5)]
    assert len({answer.model_dump_json(exclude_none=True) for answer in answers}) == 1
    assert (answers[0].status, answers[0].retry_allowed, answers[0].value) == ("succeeded", False, {"id": "rcpt_1"})
    assert world.actions() == 1


@pytest.mark.case("A5")
def test_what_may_happen_once_is_already_done_five_times(world: World) -> None:
    """Without a label, `once_per` gives the same five answers, in another run of the tenant, too."""
    done(world, world.run(), "create_ticket")
    other = world.run("ticket-2")
    answers = [other.call("create_ticket", {"order_id": "o1", "summary": f"again {n}"}) for n in range(5)]
    assert {(a.status, a.next_step, a.retry_allowed, a.seq) for a in answers} == {
        (Status.SUCCEEDED, NextStep.ALREADY_DONE, False, None)
    }
    assert answers[0].arguments == {"order_id": "o1", "summary": ""}
    assert world.actions() == 1


@pytest.mark.case("A6")
def test_reworded_call_while_the_first_is_uncertain(world: World) -> None:
    """Same step, new call id, reworded arguments, outcome unknown: that action, its own arguments shown, nothing new."""
    run = world.run()
    first = run.call("refund", {"order_id": "o1"}, ref="t1:c0", wait_s=0)
    world.lose(first.action_id)
    again = run.call("refund", {"order_id": "o1", "reason": "as I said"}, ref="t2:c0", wait_s=0)
    assert (again.action_id, again.status, again.next_step) == (first.action_id, Status.UNCERTAIN, NextStep.WAIT)
    assert again.arguments == {"order_id": "o1", "amount_minor": 500, "reason": ""}
    assert again.code is None
    assert world.actions() == 1


@pytest.mark.case("A6")
def test_two_labels_with_identical_arguments_are_two_actions(world: World) -> None:
    """Two real refunds of 5.00, named by code: two actions, also after a crash; the second waits for the first."""
    run = world.run()
    first = run.call("refund", {"order_id": "o1"}, step="first half", wait_s=0)
    early = run.call("refund", {"order_id": "o1"}, step="second half", wait_s=0)
    assert (early.status, early.next_step, early.action_id) == ("blocked", NextStep.WAIT, first.action_id)
    world.succeed(first.action_id)
    run = world.run()
    assert run.call("refund", {"order_id": "o1"}, step="first half").replayed
    second = run.call("refund", {"order_id": "o1"}, step="second half", wait_s=0)
    assert second.action_id not in (None, first.action_id)
    assert world.actions() == 2


@pytest.mark.case("A7")
@pytest.mark.parametrize("step", ["fee", None])
def test_twenty_threads_call_one_step(world: World, step: str | None) -> None:
    """Twenty threads make the same call at the same time: one row, twenty equal answers, no deadlock."""
    run = world.run()
    barrier = threading.Barrier(20)

    def call(number: int) -> str:
        barrier.wait(20)
        result = run.call("refund", {"order_id": "o1"}, step=step, ref=f"c{number}", wait_s=0)
        return result.model_dump_json(exclude_none=True)

    with ThreadPoolExecutor(20) as threads:
        answers = set(threads.map(call, range(20)))
    assert len(answers) == 1
    assert json.loads(answers.pop())["status"] == "pending"
    assert world.actions() == 1


@pytest.mark.case("A11")
@pytest.mark.parametrize("name", ["idempotency_key", "action_id", "tenant_id", "step", "key", "of", "tenant", "run_id"])
def test_identity_from_the_model_is_refused(world: World, name: str) -> None:
    """A model that supplies identity is told so; there is no new row, and a recorded action's key stays."""
    run = world.run()
    first = run.call("refund", {"order_id": "o1"}, wait_s=0)
    world.lose(first.action_id)
    before = world.action(first.action_id)
    told = run.call("refund", json.dumps({"order_id": "o1", name: "x"}), wait_s=0)
    assert (told.status, told.next_step, told.code, told.field) == (
        Status.FAILED,
        NextStep.CORRECT_ARGUMENTS,
        "reserved_argument",
        name,
    )
    assert world.actions() == 1
    assert world.action(first.action_id) == before


@pytest.mark.case("H1")
@pytest.mark.case("H4")
@pytest.mark.parametrize(
    ("arguments", "code", "field"),
    [
        ('{"order_id": "a\\u0000b"}', "nul", "order_id"),
        ('{"order_id": "1", "amount_minor": NaN}', "not_finite", "amount_minor"),
        ({"order_id": "1", "amount_minor": float("inf")}, "not_finite", "amount_minor"),
        ('{"order_id": "\\ud800"}', "lone_surrogate", "order_id"),
        ('{"order_id": "1", "order_id": "2"}', "duplicate_key", "order_id"),
        ({"order_id": Decimal(1)}, "not_json", "order_id"),
        ({"order_id": "1", "reason": "x" * 1_000_000}, "too_large", "reason"),
        ('{"order_id": ' + "[" * 2000 + "]" * 2000 + "}", "too_deep", None),
        ({"order_id": "1", "amount_minor": 2**53}, "integer_out_of_range", "amount_minor"),
        ({"order_id": "1", "amount_minor": "500"}, "invalid_argument", "amount_minor"),
        ({"order_id": ""}, "no_target", "order_id"),
        ("not json", "invalid_json", None),
    ],
)
def test_bad_argument_is_a_result_and_leaves_no_trace(
    world: World, arguments: Any, code: str, field: str | None
) -> None:
    """A model's bad argument names the field, uses up no step and no call, and leaves no row."""
    run = world.run()
    told = run.call("refund", arguments)
    assert (told.status, told.retry_allowed, told.code, told.field) == (Status.FAILED, True, code, field)
    assert world.actions() == 0
    assert world.one("SELECT calls_count FROM counterfoil.run")["calls_count"] == 0
    assert run.call("refund", {"order_id": "o1"}, wait_s=0).step == "1"


@pytest.mark.case("J1")
def test_two_tenants_have_nothing_in_common(world: World) -> None:
    """Same run id, step, tool: two rows, two keys; neither login reads the other's. Ids with the separator inside, too."""
    mine = world.run().call("refund", {"order_id": "o1"}, step="fee", wait_s=0)
    other = Counterfoil(world.database.url("agent2"), registry=registry())
    theirs = other.run("ticket-1", tenant="globex", actor="bot").call(
        "refund", {"order_id": "o1"}, step="fee", wait_s=0
    )
    assert mine.action_id is not None
    assert mine.action_id != theirs.action_id
    assert world.claim(mine.action_id).key != world.claim(theirs.action_id).key
    with pytest.raises(NotFound):
        other.result(mine.action_id)
    with pytest.raises(NotFound):
        world.cf.result(mine.action_id, tenant="globex")
    with pytest.raises(NotFound):
        other.cancel(mine.action_id, "not mine")
    with pytest.raises(NotAllowed):
        other.run("ticket-1", tenant="acme", actor="bot")
    other.close()


@pytest.mark.case("J1")
def test_separators_in_ids_join_nothing(world: World) -> None:
    """("a:b", "c") and ("a", "b:c") are two steps of two runs."""
    first = world.run("a:b").call("refund", {"order_id": "o1"}, step="c", wait_s=0)
    second = world.run("a").call("refund", {"order_id": "o1"}, step="b:c", wait_s=0)
    assert first.action_id != second.action_id
    assert world.actions() == 2


@pytest.mark.case("E4")
def test_run_id_of_three_hundred_characters(world: World) -> None:
    """A long run id with quotes and unicode is stored, locked, read and unwound like any other."""
    name = ('O\'Brien "Ω" %s :run \\ 𝄞 ' * 20)[:300]
    run = world.run(name)
    result = run.call("refund", {"order_id": "it's %(x)s :o1"}, step='it\'s "quoted" :step', ref="r'1", wait_s=0)
    assert world.action(result.action_id)["run"] == name
    assert run.call("refund", {"order_id": "it's %(x)s :o1"}, step='it\'s "quoted" :step', wait_s=0) == result
    assert run.unwind("it's over").result().status is Status.PENDING


def test_waits_for_the_worker_and_gets_the_outcome(world: World) -> None:
    """A call returns as soon as a worker has settled it."""
    with world.working():
        result = world.run().call("refund", {"order_id": "o1"}, wait_s=20)
    assert (result.status, result.value, result.replayed, result.seq) == (
        Status.SUCCEEDED,
        {"id": "rcpt_1"},
        False,
        1,
    )


def test_parallel_calls_of_a_turn_queue_up(world: World) -> None:
    """Three calls at once are performed one after the other, and none is told of the others' results as lost ones."""
    run = world.run()
    done(world, run, order_id="before")
    barrier = threading.Barrier(3)

    def call(order_id: str) -> Result:
        barrier.wait(20)
        return run.call("refund", {"order_id": order_id}, ref=order_id, wait_s=20)

    with world.working(), ThreadPoolExecutor(3) as threads:
        results = list(threads.map(call, ["a", "b", "c"]))
    assert {r.status for r in results} == {Status.SUCCEEDED}
    assert sorted(str(r.seq) for r in results) == ["2", "3", "4"]
    assert world.one("SELECT calls_count FROM counterfoil.run")["calls_count"] == 5, "waiting counts as a call"


def test_call_that_is_held_back_too_long_is_blocked(world: World) -> None:
    """A call that must wait for another one answers `blocked` when its time is up, and records nothing."""
    run = world.run()
    first = run.call("refund", {"order_id": "o1"}, wait_s=0)
    began = time.monotonic()
    second = run.call("refund", {"order_id": "o2"}, wait_s=0.2)
    cheque = run.call("refund_by_cheque", {"order_id": "o1"}, wait_s=0)
    assert time.monotonic() - began >= 0.2
    for told in (second, cheque):
        assert (told.status, told.next_step, told.action_id) == ("blocked", NextStep.WAIT, first.action_id)
        assert not told.suspend
    assert world.actions() == 1


def test_lost_transcript_gets_recorded_results(world: World) -> None:
    """After a crash with nothing written down, the same calls give the recorded results, in any order, then new steps."""
    run = world.run()
    first, second = done(world, run), done(world, run, amount_minor=200)
    other = done(world, run, order_id="o2")
    run = world.run()
    assert run.call("refund", {"order_id": "o2"}).action_id == other.action_id
    assert run.call("refund", {"order_id": "o1"}).action_id == first.action_id
    again = run.call("refund", {"order_id": "o1"})
    assert (again.action_id, again.replayed) == (second.action_id, True)
    assert again.arguments == {"order_id": "o1", "amount_minor": 200, "reason": ""}
    assert world.actions() == 3
    assert run.call("refund", {"order_id": "o1"}, wait_s=0).seq == 4


def test_transcript_up_to_seen_is_not_replayed(world: World) -> None:
    """A caller that holds the results up to `seen` gets the later ones only."""
    run = world.run()
    done(world, run)
    second = done(world, run)
    assert world.run(seen=1).call("refund", {"order_id": "o1"}).action_id == second.action_id
    assert world.run(seen=2).call("refund", {"order_id": "o1"}, wait_s=0).seq == 3


def test_unseen_results_come_before_another_call(world: World) -> None:
    """A caller that asks for something else is first shown all results it has not had, once; then it may act."""
    run = world.run()
    done(world, run)
    done(world, run, order_id="o2")
    run = world.run()
    told = run.call("refund", {"order_id": "o3"}, wait_s=0)
    assert (told.status, told.next_step, told.action_id) == ("blocked", NextStep.READ_UNSEEN, None)
    assert told.unseen is not None
    assert [(u.seq, u.status, u.value) for u in told.unseen] == [
        (1, "succeeded", {"id": "rcpt_1"}),
        (2, "succeeded", {"id": "rcpt_1"}),
    ]
    assert world.actions() == 2
    assert run.call("refund", {"order_id": "o3"}, wait_s=0).seq == 3


@pytest.mark.parametrize("said", ["next call", "ack"])
def test_result_is_had_when_the_next_call_arrives(world: World, said: str) -> None:
    """A pending answer is no result: what became of it is still told; a result handed out is had at the next call."""
    run = world.run()
    first = run.call("refund", {"order_id": "o1"}, wait_s=0)
    assert first.status is Status.PENDING
    world.succeed(first.action_id)
    if said == "ack":
        run.ack(1)
    else:
        told = run.call("refund", {"order_id": "o2"}, wait_s=0)
        assert told.unseen is not None
        assert [u.action_id for u in told.unseen] == [first.action_id]
    assert run.call("refund", {"order_id": "o1"}, wait_s=0).seq == 2


def test_so_far_is_for_a_new_prompt(world: World) -> None:
    """On the first visit nothing; later each result with its tool and arguments, and these count as handed out."""
    run = world.run()
    assert run.so_far() == []
    done(world, run)
    run = world.run()
    (told,) = run.so_far()
    assert (told["tool"], told["status"], told["seq"]) == ("refund", "succeeded", 1)
    assert told["arguments"] == {"order_id": "o1", "amount_minor": 500, "reason": ""}
    assert json.loads(json.dumps(told)) == told
    assert run.call("refund", {"order_id": "o1"}, wait_s=0).seq == 2


def test_correction_is_a_new_revision_under_a_label(world: World) -> None:
    """A refusal about an argument may be corrected: the label gets a second revision and the first stays on record."""
    run = world.run()
    first = run.call("refund", {"order_id": "o1", "amount_minor": 1}, step="fee", wait_s=0)
    world.fail(first.action_id)
    told = run.call("refund", {"order_id": "o1", "amount_minor": 1}, step="fee", wait_s=0)
    assert (told.status, told.retry_allowed, told.code, told.field) == (
        Status.FAILED,
        True,
        "invalid_request",
        "amount_minor",
    )
    second = run.call("refund", {"order_id": "o1", "amount_minor": 2}, step="fee", wait_s=0)
    assert (second.step, second.revision, second.seq) == ("fee", 2, 2)
    assert world.action(first.action_id)["superseded_by"] == second.action_id
    with pytest.raises(StepConflict):
        run.call("create_ticket", {"order_id": "o1"}, step="fee")


def test_revision_that_another_run_has_done_keeps_the_one_before(world: World) -> None:
    """A corrected call that `once_per` finds done elsewhere supersedes nothing: the label still has its action."""
    run = world.run()
    first = run.call("create_ticket", {"order_id": "bad"}, step="t", wait_s=0)
    world.fail(first.action_id)
    elsewhere = world.run("ticket-2").call("create_ticket", {"order_id": "good"}, wait_s=0)
    world.succeed(elsewhere.action_id)
    told = run.call("create_ticket", {"order_id": "good"}, step="t", wait_s=0)
    assert (told.action_id, told.next_step) == (elsewhere.action_id, NextStep.ALREADY_DONE)
    assert world.action(first.action_id)["superseded_by"] is None
    assert run.call("create_ticket", {"order_id": "bad"}, step="t", wait_s=0).action_id == first.action_id


def test_repeat_with_a_reason_is_a_second_action(world: World) -> None:
    """Code may do again what `once_per` allows once, and the reason is recorded."""
    run = world.run()
    first = done(world, run, "create_ticket")
    second = run.call("create_ticket", {"order_id": "o1"}, repeat="the first was deleted", wait_s=0)
    assert second.action_id != first.action_id
    assert world.action(second.action_id)["repeat_reason"] == "the first was deleted"


def test_irreversible_call_ends_the_turn(world: World) -> None:
    """What needs a person's approval is recorded, not waited for, and not ready for any worker."""
    run = world.run()
    told = run.call("send_mail", {"order_id": "o1"}, wait_s=20)
    assert (told.status, told.next_step, told.suspend) == (Status.AWAITING_APPROVAL, NextStep.END_TURN, True)
    assert world.one("SELECT count(*) AS n FROM counterfoil.outbox")["n"] == 0
    held = run.call("refund", {"order_id": "o1"}, wait_s=20)
    assert (held.status, held.next_step, held.suspend) == (Status.BLOCKED, NextStep.PERSON, True)


def test_pure_tool_runs_here_and_leaves_no_row(world: World) -> None:
    """A pure tool's value comes at once as JSON; its exception is its own; its bad argument is a result."""
    run = world.run()
    assert run.call("search_orders", '{"order_id": "o1"}').value == {"order_id": "o1", "at": "1.5"}
    with pytest.raises(LookupError):
        run.call("search_orders", {"order_id": "broken"})
    assert run.call("search_orders", {"order": "o1"}).status is Status.FAILED
    assert world.actions() == 0


def test_older_handle_is_taken_over(world: World) -> None:
    """Opening a run again ends the older handle at its next call, before it records anything."""
    older = world.run()
    newer = world.run()
    with pytest.raises(RunTakenOver):
        older.call("refund", {"order_id": "o1"})
    assert world.actions() == 0
    assert newer.call("refund", {"order_id": "o1"}, wait_s=0).status is Status.PENDING


@pytest.mark.parametrize("end", ["finish", "unwind"])
def test_ended_run_takes_no_call(world: World, end: str) -> None:
    """After finish or unwind a call is not allowed; leaving the block is neither."""
    with world.run() as run:
        pass
    run.call("refund", {"order_id": "o1"}, wait_s=0)
    run.finish() if end == "finish" else run.unwind("changed my mind")
    with pytest.raises(NotAllowed):
        run.call("refund", {"order_id": "o2"})
    assert world.actions() == 1


def test_unwind_tells_how_far_it_is(world: World) -> None:
    """An unwind is pending, then done, or blocked where a person must decide."""
    unwind = world.run().unwind("customer cancelled")
    assert (unwind.result().status, unwind.result().code) == (Status.PENDING, "unwinding")
    world.owner.execute("UPDATE counterfoil.run SET state = 'unwind_blocked'")
    assert (unwind.result(5).status, unwind.result().suspend) == (Status.BLOCKED, True)
    world.owner.execute("UPDATE counterfoil.run SET state = 'unwound'")
    assert unwind.result(5).status is Status.SUCCEEDED


def test_calls_and_actions_of_a_run_are_capped(world: World) -> None:
    """A model in a loop reaches the limit and is told so; held-back calls count once each."""
    settings = Settings(limits=Limits(calls_per_run_max=3))
    cf = Counterfoil(world.database.url("agent"), settings=settings, registry=registry())
    run = cf.run("loop", tenant="acme", actor="bot")
    run.call("refund", {"order_id": "o1"}, wait_s=0)
    assert run.call("refund", {"order_id": "o2"}, wait_s=0.3).next_step is NextStep.WAIT
    assert run.call("refund", {"order_id": "o1"}, wait_s=0).status is Status.PENDING
    assert run.call("refund", {"order_id": "o1"}, wait_s=0).next_step is NextStep.LIMIT_REACHED
    cf.close()


def test_uncertain_action_is_looked_up_now_but_not_all_the_time(world: World) -> None:
    """Whoever waits for an uncertain action has it looked up now, at most once in two seconds however often they ask."""
    first = world.run().call("refund", {"order_id": "o1"}, wait_s=0)
    assert first.action_id is not None
    world.lose(first.action_id)
    due = "SELECT next_lookup_at <= counterfoil.now() AS due FROM counterfoil.action"
    assert not world.one(due)["due"]
    assert world.cf.result(first.action_id).status is Status.UNCERTAIN
    assert world.one(due)["due"]
    world.owner.execute("UPDATE counterfoil.action SET next_lookup_at = counterfoil.now() + interval '1 hour'")
    world.cf.result(first.action_id, wait_s=0.3)
    assert not world.one(due)["due"]
    world.cf.result(first.action_id, wait_s=2.2)
    assert world.one(due)["due"]


def test_no_transaction_is_open_while_waiting(world: World) -> None:
    """A waiting call holds no lock and no snapshot."""
    run = world.run()
    held = (
        "SELECT count(*) AS n FROM pg_stat_activity"
        " WHERE application_name = 'counterfoil-agent' AND datname = current_database() AND xact_start IS NOT NULL"
    )
    with ThreadPoolExecutor(1) as threads:
        call = threads.submit(run.call, "refund", {"order_id": "o1"}, wait_s=3)
        until(lambda: world.actions() == 1)
        open_transactions = [world.one(held)["n"] for _ in range(50)]
        assert not call.done()
        world.succeed(world.one("SELECT action_id FROM counterfoil.action")["action_id"])
        assert call.result(20).status is Status.SUCCEEDED
    assert open_transactions.count(0) >= 40, "a poll may be seen while it runs, a wait may not"


def test_cancel_where_nothing_was_sent_and_where_something_may_have_been(world: World) -> None:
    """A ready action is withdrawn; an uncertain one stays uncertain and is never sent again."""
    first = world.run("a").call("refund", {"order_id": "o1"}, wait_s=0)
    second = world.run("b").call("refund", {"order_id": "o1"}, wait_s=0)
    assert first.action_id is not None
    assert second.action_id is not None
    world.lose(second.action_id)
    assert world.cf.cancel(first.action_id, "wrong order").status is Status.CANCELLED
    assert world.cf.cancel(second.action_id, "wrong order").status is Status.UNCERTAIN
    assert world.action(second.action_id)["no_resend"]
    with pytest.raises(NotFound):
        world.cf.cancel("act_" + "a" * 26, "no such")
    with pytest.raises(NotFound):
        world.cf.result("act_nonsense")


def test_lost_connection_in_a_call_is_survived(world: World) -> None:
    """Every connection of the pool dies: the same call finds what it had recorded, and a new one is recorded once."""
    run = world.run()
    first = run.call("refund", {"order_id": "o1"}, wait_s=0)
    _end_connections(world)
    assert run.call("refund", {"order_id": "o1"}, wait_s=0).action_id == first.action_id
    world.succeed(first.action_id)
    _end_connections(world)
    assert world.cf.result(str(first.action_id)).status is Status.SUCCEEDED
    run.call("refund", {"order_id": "o1"})
    _end_connections(world)
    assert run.call("refund", {"order_id": "o2"}, wait_s=0).seq == 2
    assert world.actions() == 2


@pytest.mark.case("I3")
@pytest.mark.parametrize("landed", [True, False])
def test_answer_to_commit_is_lost(world: World, monkeypatch: pytest.MonkeyPatch, landed: bool) -> None:
    """Whether the COMMIT that was not answered had landed or not, the call is recorded once, and finds itself."""
    import sqlalchemy

    run = world.run()
    commit = sqlalchemy.Connection.commit
    lost: list[int] = []

    def lose_first(connection: sqlalchemy.Connection) -> None:
        if not lost:
            lost.append(1)
            if landed:
                commit(connection)
            raise sqlalchemy.exc.OperationalError(
                "COMMIT", {}, psycopg.OperationalError("server closed the connection")
            )
        commit(connection)

    monkeypatch.setattr(sqlalchemy.Connection, "commit", lose_first)
    result = run.call("refund", {"order_id": "o1"}, wait_s=0)
    assert lost
    assert (result.status, result.seq) == (Status.PENDING, 1)
    assert world.actions() == 1


def test_unreachable_database_says_cause_and_fix() -> None:
    """No server: what was tried and what to look at, without the password."""
    cf = Counterfoil("postgresql://agent:hunter2@127.0.0.1:9/app", registry=registry())
    with pytest.raises(LedgerUnavailable, match="refused") as down:
        cf.run("r", tenant="acme", actor="bot")
    assert "url" in down.value.fix
    assert "hunter2" not in str(down.value) + str(down.value.__cause__)


@pytest.mark.parametrize("url", ["mysql://u:hunter2@h/db", "postgresql://u:hunter2@h:no/db?bad", "u:hunter2 = x"])
def test_url_that_is_none_is_refused_without_its_password(url: str) -> None:
    """A URL that libpq cannot read is a mistake in the configuration, told without quoting it."""
    with pytest.raises((ConfigError, LedgerUnavailable)) as refusal:
        Counterfoil(url, registry=registry()).run("r", tenant="acme", actor="bot")
    assert "hunter2" not in str(refusal.value) + str(refusal.value.__cause__)


def test_mistakes_of_code_are_raised(world: World) -> None:
    """An unknown tool names the nearest; a label, ref or id that cannot be stored, and a wrong role, are refused."""
    run = world.run()
    with pytest.raises(ConfigError, match="create_ticket"):
        run.call("create_tickets", {})
    for names in ({"step": "7"}, {"step": ""}, {"ref": "r" * 401}, {"repeat": "\0"}):
        with pytest.raises(ArgumentError):
            run.call("refund", {"order_id": "o1"}, **names)  # type: ignore[arg-type]
    with pytest.raises(ArgumentError):
        world.run("")
    worker = Counterfoil(world.database.url("worker"), registry=registry())
    with pytest.raises(NotAllowed, match="--as agent"):
        worker.run("r", tenant="acme", actor="bot")
    worker.close()
    assert world.actions() == 0


def test_database_without_a_ledger_says_what_to_run(world: World) -> None:
    """A database that was never upgraded names the command."""
    name = "postgres"
    url = world.database.urls.postgres_as(world.database.urls.user, world.database.urls.password, name)
    cf = Counterfoil(url, registry=registry())
    with pytest.raises(ConfigError, match="db upgrade"):
        cf.run("r", tenant="acme", actor="bot")
    cf.close()


def test_schemas_hold_no_identity_and_no_counter_action(world: World) -> None:
    """What a model is shown lacks injected arguments and the tools that only an unwind calls."""
    schemas = world.cf.schemas()
    assert "undo_refund" not in {schema["name"] for schema in schemas}
    assert '"key"' not in json.dumps(schemas)


def test_used_on_both_sides_of_a_fork(world: World) -> None:
    """A forked child opens connections of its own, and the parent's go on working."""
    script = textwrap.dedent("""
        import os, sys
        from counterfoil import Counterfoil
        cf = Counterfoil(sys.argv[1])
        cf.run("parent", tenant="acme", actor="bot")
        child = os.fork()
        for n in range(20):
            cf.run(f"{'parent' if child else 'child'}-{n}", tenant="acme", actor="bot")
        if child == 0:
            os._exit(0)
        _, status = os.waitpid(child, 0)
        cf.run("after", tenant="acme", actor="bot")
        sys.exit(os.waitstatus_to_exitcode(status))
        """)
    ran = subprocess.run(
        [sys.executable, "-W", "error", "-c", script, world.database.url("agent")],
        check=False, capture_output=True, text=True, timeout=60,
    )  # fmt: skip
    assert ran.returncode == 0, ran.stderr
    assert world.one("SELECT count(*) AS n FROM counterfoil.run")["n"] == 42


def until(condition: Callable[[], bool], *, wait_s: float = 20) -> None:
    """Waits for the condition, with a deadline."""
    end = time.monotonic() + wait_s
    pause = threading.Event()
    while not condition():
        assert time.monotonic() < end, "it did not happen"
        pause.wait(0.02)


def _end_connections(world: World) -> None:
    world.owner.execute(
        "SELECT pg_terminate_backend(pid, 5000) FROM pg_stat_activity"
        " WHERE application_name = 'counterfoil-agent' AND datname = current_database()"
    )
