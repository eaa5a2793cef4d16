"""A run and the child runs of its sub-agents are taken back together: one request, one order, the parent last."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from threading import Barrier
from typing import Any

import pytest

from counterfoil import Counterfoil
from counterfoil.ledger.errors import NotAllowed
from counterfoil.outbox.results import Status
from counterfoil.testing import World

PLACE = {"tenant": "acme", "actor": "bot"}


@pytest.fixture
def family(client: Callable[..., Counterfoil]) -> Any:
    """A run, its child `r1/a`, and that one's child `r1/a/b`; the root's handle."""
    root = client().run("r1", **PLACE)
    child = root.child("a")
    child.so_far()
    child.child("b").so_far()
    return root


def test_one_request_one_order_the_parent_last(
    world: World, family: Any, ship: Any, cli: Any, taken_back: Any, run_state: Any
) -> None:
    """Children unwind from the same moment on; all steps come in one order; no parent is unwound before its children."""
    ship("root-old", run="r1")
    ship("child-customer", "customer", run="r1/a")
    ship("child", run="r1/a")
    ship("grandchild", run="r1/a/b")
    ship("root-new", run="r1")
    world.settle()
    ship("unsent", run="r1/a/b")
    handle = family.unwind("customer withdrew")
    runs = ("r1", "r1/a", "r1/a/b")
    assert {run_state(run) for run in runs} == {"unwinding"}
    for _ in range(40):
        world.work()
        world.reconcile()
        world.reconciler.unwind_runs()
        unwound = [run_state(run) == "unwound" for run in runs]
        assert unwound == sorted(unwound), "an older run before a younger one"
        if all(unwound):
            break
    assert all(unwound)
    assert taken_back() == ["root-new", "grandchild", "child", "root-old", "child-customer"]
    assert world.states()["create_shipment/unsent/do"] == "cancelled"
    told = handle.result()
    assert told.status is Status.SUCCEEDED
    assert {step["run"] for step in told.value} == set(runs)
    assert "r1/a/b" in cli("run", "show", "r1")[1]


def test_a_child_that_waits_for_a_person_blocks_its_parents(
    world: World, family: Any, ship: Any, decide: Any, taken_back: Any, run_state: Any
) -> None:
    """All of its ancestors are blocked with it, other steps go on, and the decision about it ends them all."""
    ship("root", run="r1")
    ship("grandchild", run="r1/a/b")
    world.settle()
    world.sandbox.warehouse.fault("answer", on="shipments.cancel", status=403)
    family.unwind("customer withdrew")
    world.settle()
    assert [run_state(run) for run in ("r1", "r1/a", "r1/a/b")] == ["unwind_blocked"] * 3
    assert taken_back() == ["root"]
    decide("gave up", "cancel_shipment")
    world.settle()
    assert [run_state(run) for run in ("r1", "r1/a", "r1/a/b")] == ["unwound"] * 3


def test_a_child_alone(world: World, family: Any, ship: Any, taken_back: Any, run_state: Any) -> None:
    """Taking back a child leaves its parent open and takes its own children along."""
    ship("root", run="r1")
    ship("child", run="r1/a")
    ship("grandchild", run="r1/a/b")
    world.settle()
    family.child("a").unwind("wrong turn")
    world.settle()
    assert [run_state(run) for run in ("r1", "r1/a", "r1/a/b")] == ["open", "unwound", "unwound"]
    assert taken_back() == ["grandchild", "child"]


def test_a_late_success_in_a_child_opens_its_parents_again(
    world: World, family: Any, ship: Any, sql: Any, decide: Any, taken_back: Any, run_state: Any
) -> None:
    """Found after all, it comes up for a person: no ancestor stays unwound meanwhile, and all are in the end."""
    action_id = ship("late", run="r1/a/b")
    world.sandbox.warehouse.fault("answer", on="shipments.create", status=403)
    family.unwind("customer withdrew")
    world.settle()
    runs = ("r1", "r1/a", "r1/a/b")
    assert [run_state(run) for run in runs] == ["unwound"] * 3
    sql("UPDATE counterfoil.action SET state = 'operator_review', changed_by = 'watch' WHERE action_id = %s", action_id)
    assert [run_state(run) for run in runs] == ["unwinding"] * 3
    world.settle()
    assert [run_state(run) for run in runs] == ["unwind_blocked"] * 3
    decide("did not happen", "create_shipment")
    world.settle()
    assert [run_state(run) for run in runs] == ["unwound"] * 3
    assert taken_back() == []


def test_cancelling_a_run_closes_its_children(
    world: World, family: Any, ship: Any, cli: Any, taken_back: Any, run_state: Any
) -> None:
    """What was not sent anywhere below is withdrawn, what was done stays, and no run of the tree takes a call."""
    ship("done", run="r1/a")
    world.settle()
    ship("unsent", run="r1/a/b")
    code, shown = cli("run", "cancel", "r1")
    assert (code, "r1/a/b" in shown) == (0, True)
    assert [run_state(run) for run in ("r1", "r1/a", "r1/a/b")] == ["closed"] * 3
    world.settle()
    assert world.states() == {"create_shipment/done/do": "succeeded", "create_shipment/unsent/do": "cancelled"}
    assert taken_back() == []


def test_a_child_that_is_opened_at_this_moment(client: Callable[..., Counterfoil], run_state: Any) -> None:
    """It is refused, or it is taken back with its parent: never left open below it."""
    cf = client()
    for n in range(15):
        root, barrier = cf.run(f"p{n}", **PLACE), Barrier(2, timeout=20)

        def open_child(root: Any = root, barrier: Barrier = barrier) -> bool:
            barrier.wait()
            try:
                root.child("c").so_far()
            except NotAllowed:
                return False
            return True

        with ThreadPoolExecutor(1) as pool:
            child = pool.submit(open_child)
            barrier.wait()
            root.unwind("stop")
            if child.result(20):
                assert run_state(f"p{n}/c") == "unwinding"
