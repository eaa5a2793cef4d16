"""What a model's call waits for, and what it is told of the calls before it: recorded results, once each."""

from __future__ import annotations

import json
import subprocess
import sys
import textwrap
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

import pytest
from tests.integration.model_calls import (
    World,
    done,
    until,
)

from counterfoil import (
    NextStep,
    Result,
    Status,
)

if TYPE_CHECKING:
    from tests.conftest import Database


@pytest.fixture
def world(database: Database) -> Iterator[World]:
    world = World(database)
    yield world
    world.close()


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


def test_ends_that_a_transcript_holds_are_not_replayed(world: World) -> None:
    """A caller that gives back the tokens of its answers gets the other ends only; the last token covers those before."""
    run = world.run()
    first, second = done(world, run), done(world, run)
    assert first.seen
    assert second.seen
    assert world.run(seen=first.seen).call("refund", {"order_id": "o1"}).action_id == second.action_id
    assert world.run(seen=[first.seen, second.seen]).call("refund", {"order_id": "o1"}, wait_s=0).seq == 3
    assert world.run(seen=second.seen).call("refund", {"order_id": "o1"}, wait_s=0).seq == 3


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
        run.ack(str(world.cf.result(str(first.action_id)).seen))
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
