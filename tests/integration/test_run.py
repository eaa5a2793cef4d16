"""A model's calls: one effect for what it means, however it repeats, rewords, loses or parallelises them."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from decimal import Decimal
from typing import TYPE_CHECKING, Any

import pytest
from tests.integration.model_calls import (
    World,
    done,
    registry,
)

from counterfoil import (
    Counterfoil,
    NextStep,
    NotAllowed,
    NotFound,
    Result,
    RunTakenOver,
    Status,
    StepConflict,
)
from counterfoil.settings import Limits, Settings

if TYPE_CHECKING:
    from tests.conftest import Database


@pytest.fixture
def world(database: Database) -> Iterator[World]:
    world = World(database)
    yield world
    world.close()


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
    """Twenty threads make the same call at the same time: one row, twenty equal answers, no deadlock. All but the one that
    has recorded it say that they did nothing new."""
    run = world.run()
    barrier = threading.Barrier(20)

    def call(number: int) -> Result:
        barrier.wait(20)
        return run.call("refund", {"order_id": "o1"}, step=step, ref=f"c{number}", wait_s=0)

    with ThreadPoolExecutor(20) as threads:
        answers = list(threads.map(call, range(20)))
    assert len({answer.model_dump_json(exclude={"replayed"}) for answer in answers}) == 1
    assert answers[0].status is Status.PENDING
    assert sorted(answer.replayed for answer in answers) == [False] + [True] * 19
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
    again = run.call("refund", {"order_id": "it's %(x)s :o1"}, step='it\'s "quoted" :step', wait_s=0)
    assert again == result.model_copy(update={"replayed": True})
    assert run.unwind("it's over").result().status is Status.PENDING


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


def test_schemas_hold_no_identity_and_no_counter_action(world: World) -> None:
    """What a model is shown lacks injected arguments and the tools that only an unwind calls."""
    schemas = world.cf.schemas()
    assert "undo_refund" not in {schema["name"] for schema in schemas}
    assert '"key"' not in json.dumps(schemas)
