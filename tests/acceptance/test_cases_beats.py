"""Beats and reconcilers beside each other: every tick is delivered twice, and a row is looked up and judged once."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from concurrent.futures import wait as wait_for
from dataclasses import replace
from typing import Any

import pytest

from counterfoil.providers.contract import Adapter, Call
from counterfoil.providers.outcomes import Finding
from counterfoil.providers.spec import ToolSpec
from counterfoil.reconciler.setup import reconciler_from
from counterfoil.reconciler.ticks import Reconciler
from counterfoil.testing import World
from counterfoil.workers.admission import Unlimited

CHARGE = {"customer": "cus_1", "amount_minor": 500, "currency": "usd", "order_id": "1182"}
TICKET = {"project": "SUP", "summary": "Order 1182", "order_id": "1182"}
LOOKUP_S = 3.0
WAIT_MAX_S = 30.0
TICKS = ("sweep_leases", "sweep_uncertain", "rescue", "expire", "escalate")


class Gate:
    """Stops one look-up between the provider's answer and the verdict."""

    def __init__(self) -> None:
        self.begun, self.go_on = threading.Event(), threading.Event()


class SlowLookUps:
    """Counts the look-ups of several reconcilers; the first ones of any wait at a gate each, until the test opens it."""

    def __init__(self, *gates: Gate) -> None:
        self.gates = gates
        self.look_ups = 0
        self._counting = threading.Lock()

    def slowing(self, reconciler: Reconciler) -> Reconciler:
        """The same reconciler, whose look-ups are counted here."""
        inner = reconciler.look_ups.adapter

        def adapter(spec: ToolSpec, account: str) -> Adapter:
            made: Any = inner(spec, account)
            if "lookup" not in vars(made):
                made.lookup = self._slow(made.lookup)
            return made  # type: ignore[no-any-return]

        return replace(reconciler, look_ups=replace(reconciler.look_ups, adapter=adapter))

    def _slow(self, lookup: Callable[..., Mapping[str, Finding]]) -> Callable[..., Mapping[str, Finding]]:
        def slow(calls: Sequence[Call], *, timeout_s: float) -> Mapping[str, Finding]:
            with self._counting:
                gate = self.gates[self.look_ups] if self.look_ups < len(self.gates) else None
                self.look_ups += 1
            found = lookup(calls, timeout_s=timeout_s)
            if gate is not None:
                gate.begun.set()
                assert gate.go_on.wait(WAIT_MAX_S), "never let go"
            return found

        return slow


@pytest.fixture
def slow() -> Iterator[SlowLookUps]:
    made = SlowLookUps(Gate(), Gate())
    yield made
    for gate in made.gates:
        gate.go_on.set()


@pytest.fixture
def reconcilers(world: World, slow: SlowLookUps) -> Iterator[list[Reconciler]]:
    """Two reconciling processes, each with two ticks of every kind at once: of two beats."""
    made = [
        slow.slowing(
            reconciler_from(world.settings, by=f"reconciler-{n}", registry=world.registry, admission=Unlimited())
        )
        for n in range(4)
    ]
    yield made
    for each in made:
        each.ledger.close()


def tick(reconciler: Reconciler) -> None:
    """Every tick of one beat, once."""
    for name in TICKS:
        getattr(reconciler, name)()


def lose_the_answer(world: World, enqueue: Callable[..., str], tool: str, fault: str) -> str:
    """An action whose effect is there or not, whose answer was lost, and whose look-up is due."""
    arguments, operation = {
        "stripe_charge": (CHARGE, "payment_intents.create"),
        "jira_create": (TICKET, "issue.create"),
    }[tool]
    world.sandbox.fault(fault, operation=operation)
    identity = enqueue(tool, arguments)
    assert world.work() == 1
    world.advance(30)  # past every index lag and every window: whatever one look-up shows is final
    return identity


def moves_of(sql: Callable[..., list[tuple[Any, ...]]], identity: str) -> list[tuple[str, str]]:
    """(from, to), in order, from the first doubt on."""
    moves = sql(
        "SELECT from_state, to_state FROM counterfoil.history WHERE action_id = %s ORDER BY history_id", identity
    )
    return moves[[to for _, to in moves].index("uncertain") :]


@pytest.mark.case("B7")
@pytest.mark.parametrize("tool", ["stripe_charge", "jira_create"])
def test_two_beats_and_two_reconcilers_look_once(
    world: World, reconcilers: list[Reconciler], slow: SlowLookUps, enqueue: Any, sql: Any, tool: str
) -> None:
    """All tick at the same moment, and again while the look-up takes 3 s: one look-up, one transition, one effect."""
    identity = lose_the_answer(world, enqueue, tool, "504_after_commit")
    start = threading.Barrier(len(reconcilers))

    def both_ticks(reconciler: Reconciler) -> None:
        start.wait(WAIT_MAX_S)
        tick(reconciler)

    with ThreadPoolExecutor(len(reconcilers)) as threads:
        first = [threads.submit(both_ticks, each) for each in reconcilers]
        assert slow.gates[0].begun.wait(WAIT_MAX_S)
        waiting = len(first) - 1
        while sum(each.done() for each in first) < waiting:
            wait_for([each for each in first if not each.done()], WAIT_MAX_S, return_when="FIRST_COMPLETED")
        others = [each for each, done in zip(reconcilers, first, strict=True) if done.done()]
        for _ in range(3):
            world.advance(LOOKUP_S / 3)
            for again in [threads.submit(tick, each) for each in others]:
                again.result(WAIT_MAX_S)
        slow.gates[0].go_on.set()
        for each in first:
            each.result(WAIT_MAX_S)
    assert moves_of(sql, identity) == [
        ("executing", "uncertain"),
        ("uncertain", "reconciling"),
        ("reconciling", "succeeded"),
    ]
    assert slow.look_ups == 1
    assert max(readings(world, tool).values()) == 1, "a reading was made twice"
    assert len(world.sandbox.effects()) == 1


def test_a_look_up_that_outlives_its_lease_decides_nothing(
    world: World, reconcilers: list[Reconciler], slow: SlowLookUps, enqueue: Any, sql: Any
) -> None:
    """Its lease ends and another reconciler looks up; what the first one then brings is refused by the other's fence."""
    identity = lose_the_answer(world, enqueue, "stripe_charge", "504_after_commit")
    with ThreadPoolExecutor(2) as threads:
        late = threads.submit(tick, reconcilers[0])
        assert slow.gates[0].begun.wait(WAIT_MAX_S)
        world.advance(world.settings.reconciler.lookup_lease_s + 1)
        holder = threads.submit(tick, reconcilers[1])
        assert slow.gates[1].begun.wait(WAIT_MAX_S)
        before = moves_of(sql, identity)
        slow.gates[0].go_on.set()
        late.result(WAIT_MAX_S)
        assert moves_of(sql, identity) == before
        slow.gates[1].go_on.set()
        holder.result(WAIT_MAX_S)
    moves = Counter(moves_of(sql, identity))
    assert moves["uncertain", "reconciling"] == slow.look_ups == 2
    assert (moves["reconciling", "uncertain"], moves["reconciling", "succeeded"]) == (1, 1)
    assert world.sandbox.count("charges") == 1


@pytest.mark.case("B7")
def test_the_absence_is_counted_once(
    world: World, reconcilers: list[Reconciler], slow: SlowLookUps, enqueue: Any, sql: Any
) -> None:
    """Four ticks at once find nothing: one empty look-up is one, and the second that is needed comes later, by itself."""
    identity = lose_the_answer(world, enqueue, "jira_create", "504_before_commit")
    slow.gates[0].go_on.set()
    start = threading.Barrier(len(reconcilers))

    def at_once(reconciler: Reconciler) -> None:
        start.wait(WAIT_MAX_S)
        tick(reconciler)

    with ThreadPoolExecutor(len(reconcilers)) as threads:
        for each in [threads.submit(at_once, each) for each in reconcilers]:
            each.result(WAIT_MAX_S)
    assert slow.look_ups == 1
    [(state, absent, looked)] = sql(
        "SELECT state, absent_count, lookup_count FROM counterfoil.action WHERE action_id = %s", identity
    )
    assert (state, absent, looked) == ("uncertain", 1, 1)
    world.settle()
    assert world.sandbox.count("tickets_created") == 1


def readings(world: World, tool: str) -> Counter[str]:
    """How often each request that only reads has reached the sandbox."""
    provider = tool.partition("_")[0]
    return Counter(
        f"{seen.method} {seen.path}?{seen.query} {seen.body if seen.operation == 'search' else ''}"
        for seen in world.sandbox.requests(provider)
        if not seen.operation.endswith("create")
    )
