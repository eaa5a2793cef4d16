"""Unwinds that are killed, raced, asked for twice and done by eight at once: everything is taken back once."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from threading import Barrier
from typing import TYPE_CHECKING, Any

import pytest

from counterfoil import Counterfoil
from counterfoil.ledger import unwinds
from counterfoil.ledger.errors import NotAllowed
from counterfoil.ledger.unwinds import UnwindingRun
from counterfoil.outbox.results import Status
from counterfoil.reconciler.setup import reconciler_from
from counterfoil.testing import World
from counterfoil.workers.admission import Unlimited
from counterfoil.workers.points import Point

if TYPE_CHECKING:
    from counterfoil.reconciler.unwind import Unwinder

CHARGE = {"customer": "cus_1", "amount_minor": 500, "currency": "usd"}
TICKET = {"project": "SUP", "summary": "Refund for order 1182", "order_id": "1182"}
LEASE_S = 6.0


class Died(BaseException):
    """Plays a reconciler's SIGKILL; nothing may catch it."""


def together(calls: list[Callable[[], object]]) -> list[object]:
    """Runs all calls in threads that start together."""
    barrier = Barrier(len(calls), timeout=20)

    def start(call: Callable[[], object]) -> object:
        barrier.wait()
        return call()

    with ThreadPoolExecutor(len(calls)) as pool:
        return [future.result(timeout=60) for future in [pool.submit(start, call) for call in calls]]


@pytest.fixture
def dies_at(monkeypatch: pytest.MonkeyPatch) -> Callable[[str, str], list[str]]:
    """The reconciler dies once, before or after it writes; the value tells whether it did."""

    def arm(name: str, when: str) -> list[str]:
        real: Callable[..., object] = getattr(unwinds, name)
        deaths: list[str] = []

        def dying(*args: object, **named: object) -> object:
            if deaths:
                return real(*args, **named)
            deaths.append(name)
            if when == "after":
                real(*args, **named)
            raise Died

        monkeypatch.setattr(unwinds, name, dying)
        return deaths

    return arm


WRITES = ("withdraw", "propose_undo", "mark_compensated", "review_undo", "set_state", "finish_unwind")


@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize("name", WRITES)
def test_the_reconciler_dies_at_each_write(
    world: World,
    ship: Any,
    unwind: Any,
    decide: Any,
    dies_at: Any,
    taken_back: Any,
    run_state: Any,
    name: str,
    when: str,
) -> None:
    """Whatever write of a visit was its last, the next visit goes on: one cancellation a shipment, one review."""
    for order in ("a", "b", "c"):
        ship(order)
    world.settle()
    ship("unsent")
    world.sandbox.warehouse.fault("answer", on="shipments.cancel", nth=2, status=403)
    deaths = dies_at(name, when)
    unwind()
    with suppress(Died):
        world.settle()
    world.settle()
    if name != "finish_unwind":
        assert deaths == [name]
    assert (run_state(), taken_back()) == ("unwind_blocked", ["c", "a"])
    decide("happened", "cancel_shipment")
    with suppress(Died):
        world.settle()
    world.settle()
    assert deaths == [name]
    assert (run_state(), taken_back()) == ("unwound", ["c", "a"])
    assert len(world.sandbox.requests("warehouse", "shipments.cancel")) == 3
    assert world.states()["create_shipment/unsent/do"] == "cancelled"


@pytest.mark.parametrize("point", ["before_claim", "after_claim", "before_settle", "after_settle"])
@pytest.mark.parametrize("tool", ["stripe_refund", "jira_close"])
def test_the_worker_dies_in_a_compensation(
    world: World, enqueue: Any, unwind: Any, run_state: Any, tool: str, point: Point
) -> None:
    """A counter-action is an action like any other: killed at any point of it, there is one refund, one ticket closed."""
    enqueue("jira_create", TICKET, "ticket")
    enqueue("stripe_charge", CHARGE | {"order_id": "1182"}, "fee")
    world.settle()
    unwind()
    with world.crash_after(point, tool=tool):
        world.settle()
    assert world.crashes == [point]
    counts = world.sandbox.counts()
    assert (counts["charges"], counts["refunds"], counts["tickets_created"], counts["tickets_open"]) == (1, 1, 1, 0)
    assert run_state() == "unwound"


@pytest.fixture
def unwinders(world: World) -> Iterator[list[Unwinder]]:
    """Eight, each with a connection of its own."""
    made = [
        reconciler_from(world.settings, by=f"reconciler-{n}", registry=world.registry, admission=Unlimited())
        for n in range(8)
    ]
    yield [each.unwinder for each in made]
    for each in made:
        each.ledger.close()


def test_eight_unwinders_at_once(
    world: World, enqueue: Any, unwind: Any, unwinders: list[Unwinder], sql: Any, run_state: Any
) -> None:
    """They visit the same run at the same moment, again and again: each step is taken back once and marked once."""
    enqueue("jira_create", TICKET, "ticket")
    for order in "abc":
        enqueue("stripe_charge", CHARGE | {"order_id": order}, order)
    world.settle()
    unwind()
    for _ in range(30):
        run = UnwindingRun("acme", "r1", run_state())
        together([partial(each.visit, run) for each in unwinders])
        world.work()
        world.reconcile()
        if run_state() == "unwound":
            break
    assert run_state() == "unwound"
    counts = world.sandbox.counts()
    assert (counts["charges"], counts["refunds"], counts["tickets_open"]) == (3, 3, 0)
    assert len(world.sandbox.requests("stripe", "refunds.create")) == 3
    assert sql("SELECT count(*) FROM counterfoil.action WHERE phase = 'undo'") == [(4,)]
    assert sql("SELECT count(*) FROM counterfoil.history WHERE to_state = 'compensated'") == [(4,)]


def test_asked_for_again_while_it_goes_on(world: World, ship: Any, client: Any, sql: Any, taken_back: Any) -> None:
    """A second request changes nothing, whenever it comes; the first reason stands."""
    ship("a")
    ship("b")
    world.settle()
    run = client().run("r1", tenant="acme", actor="bot")
    run.unwind("first")
    for _ in range(12):
        run.unwind("again")
        world.work()
        world.reconcile()
        world.reconciler.unwind_runs()
    assert sql("SELECT state, unwind_reason FROM counterfoil.run") == [("unwound", "first")]
    assert run.unwind("once more").result(wait_s=5).status is Status.SUCCEEDED
    world.settle()
    assert taken_back() == ["b", "a"]


def try_to_charge(run: Any, order: str) -> bool:
    """Whether the call was taken."""
    try:
        return run.call("stripe_charge", CHARGE | {"order_id": order}, wait_s=0).action_id is not None
    except NotAllowed:
        return False


def test_calls_race_the_request(world: World, client: Callable[..., Counterfoil], sql: Any) -> None:
    """A call in flight while the unwind is asked for is refused, withdrawn or taken back; nothing of it stays."""
    cf, place = client(), {"tenant": "acme", "actor": "bot"}
    recorded = 0
    for n in range(12):
        run = cf.run(f"r{n}", **place)

        answers = together([partial(try_to_charge, run, str(n)), partial(run.unwind, "stop"), world.work])
        recorded += bool(answers[0])
    world.settle()
    assert sql("SELECT DISTINCT state FROM counterfoil.run") == [("unwound",)]
    states = [row[0] for row in sql("SELECT state FROM counterfoil.action WHERE phase = 'do'")]
    assert set(states) <= {"cancelled", "compensated"}
    assert len(states) == recorded
    counts = world.sandbox.counts()
    assert counts["charges"] == counts["refunds"] == states.count("compensated")


def test_a_late_success_during_the_unwind(
    world: World, ship: Any, unwind: Any, taken_back: Any, run_state: Any
) -> None:
    """A worker that lost its row tells of its success while the row is unknown: that counts, and is taken back."""
    ship("late")
    with world.frozen_at("before_settle") as thaw:
        world.advance(LEASE_S + 0.1)
        world.reconciler.sweep_leases()
        unwind()
        world.reconciler.unwind_runs()
        assert world.states() == {"create_shipment/late/do": "uncertain"}
        thaw()
        assert world.states() == {"create_shipment/late/do": "succeeded"}
    world.settle()
    assert (run_state(), taken_back()) == ("unwound", ["late"])


@pytest.mark.parametrize("blocked", [False, True], ids=["unwound", "unwind_blocked"])
def test_a_late_success_after_the_unwind(
    world: World, enqueue: Any, unwind: Any, decide: Any, sql: Any, run_state: Any, blocked: bool
) -> None:
    """Look-ups that lied ended the step as absent; its worker knows better: the unwind is open again, and ends."""
    world.sandbox.config(search_lag_s={"jira": 600})
    if blocked:
        enqueue("stripe_charge", CHARGE | {"order_id": "b"}, "b")
        world.settle()
        world.sandbox.stripe.fault("answer", on="refunds.create", status=403)
    enqueue("jira_create", TICKET, "ticket")
    with world.frozen_at("before_settle") as thaw:
        world.advance(LEASE_S + 0.1)
        unwind()
        world.settle()
        assert world.states()["jira_create/ticket/do"] == "permanent_failure"
        assert run_state() == ("unwind_blocked" if blocked else "unwound")
        thaw()
    assert world.states()["jira_create/ticket/do"] == "operator_review"
    assert run_state() == ("unwind_blocked" if blocked else "unwinding")
    world.settle()
    assert run_state() == "unwind_blocked"
    [(receipt,)] = sql("SELECT receipt FROM counterfoil.attempt WHERE receipt IS NOT NULL AND receipt LIKE 'SUP-%%'")
    decide("happened", "jira_create", receipt)
    world.settle()
    assert world.sandbox.count("tickets_created") == 1
    assert world.sandbox.count("tickets_open") == 0
    assert run_state() == ("unwind_blocked" if blocked else "unwound")


def test_reconcilers_and_workers_all_at_once(
    world: World, ship: Any, unwind: Any, unwinders: list[Unwinder], taken_back: Any, run_state: Any
) -> None:
    """Four runs, eight unwinders through the front door, a worker beside them: every shipment is cancelled once."""
    for run in ("r1", "r2", "r3", "r4"):
        for order in ("a", "b"):
            ship(f"{run}-{order}", run=run)
    world.settle()
    for run in ("r1", "r2", "r3", "r4"):
        unwind(run)
    for _ in range(30):
        together([each.visit_all for each in unwinders])
        world.work()
        if {run_state(run) for run in ("r1", "r2", "r3", "r4")} == {"unwound"}:
            break
    assert sorted(taken_back()) == sorted(f"{run}-{order}" for run in ("r1", "r2", "r3", "r4") for order in ("a", "b"))
    assert len(world.sandbox.requests("warehouse", "shipments.cancel")) == 8
