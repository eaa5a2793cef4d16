"""Decides how a test runs the fleet: relay, worker and reconciler in this process, one thing at a time, no sleeping.

The ledger's clock and the sandbox's move together when the test moves them, or when `settle` waits for something. Neither
reads the other. Real Postgres, real provider clients, real HTTP; only the processes and the passing of time are played.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

import psycopg

from counterfoil.ledger.claims import WakeUp
from counterfoil.ledger.connection import Ledger
from counterfoil.ledger.queries import load
from counterfoil.outbox.intake import Intake
from counterfoil.providers.registry import Registry
from counterfoil.reconciler.setup import reconciler_from
from counterfoil.reconciler.ticks import Reconciler
from counterfoil.sandbox.client import Sandbox
from counterfoil.settings import Settings
from counterfoil.workers.admission import Unlimited
from counterfoil.workers.executor import Executor
from counterfoil.workers.points import Point, Points
from counterfoil.workers.setup import executor_from

_SQL = load("counterfoil.testing", "world.sql")

ROUNDS_MAX = 2000
"""Rounds of `settle`; a world that still moves then never stops."""

FROZEN_MAX_S = 30.0
"""A second worker that is stopped for longer means a broken test."""

AHEAD_S = 0.01
"""The clock is moved this much beyond what was waited for: windows are open intervals."""


class Crash(BaseException):
    """Plays a SIGKILL at a point of the executor; nothing may catch it."""


@dataclass(kw_only=True)
class World:
    """One test's fleet."""

    settings: Settings
    """The worker's: its database login, the sandbox as every provider's address."""
    owner_url: str
    """The login that may replace the ledger's clock function."""
    sandbox: Sandbox
    registry: Registry
    batch: int = 10
    """Wake-ups in one message."""
    crashes: list[Point] = field(default_factory=list)
    """Points at which crashes were played, in order."""
    moved_s: float = 0.0
    """How far `advance` has moved the clocks."""
    _executor: Executor | None = None
    _reconciler: Reconciler | None = None
    _crash_at: Callable[[Point, str], bool] = field(default=lambda point, tool: False)

    @property
    def executor(self) -> Executor:
        """The worker of this process; a new one after a crash."""
        if self._executor is None:
            self._executor = self.new_worker(f"worker-{len(self.crashes) + 1}", self._point)
        return self._executor

    def new_worker(self, name: str, points: Points) -> Executor:
        """One more worker, with a connection of its own; its monotonic clock moves with `advance`."""
        return executor_from(
            self.settings,
            worker=name,
            registry=self.registry,
            points=points,
            admission=Unlimited(),
            monotonic=self._monotonic,
        )

    @property
    def reconciler(self) -> Reconciler:
        """The reconciler of this process."""
        if self._reconciler is None:
            self._reconciler = reconciler_from(
                self.settings,
                by="reconciler-1",
                registry=self.registry,
                admission=Unlimited(),
                monotonic=self._monotonic,
            )
        return self._reconciler

    @property
    def ledger(self) -> Ledger:
        """The reconciler's connection, for a test's own reads under the worker's role."""
        return self.reconciler.ledger

    @property
    def intake(self) -> Intake:
        """What the relay does with rows that other languages have inserted."""
        return Intake(ledger=self.ledger, registry=self.registry)

    def due(self) -> list[WakeUp]:
        """Wake-ups that the relay would publish now."""
        return [WakeUp(r["action_id"], r["generation"]) for r in self.ledger.rows(_SQL["due"], {"batch": self.batch})]

    def work(self) -> int:
        """Delivers what is due to the worker, once; returns how many actions were claimed."""
        wake_ups = self.due()
        return self.deliver(wake_ups) if wake_ups else 0

    def deliver(self, wake_ups: list[WakeUp]) -> int:
        """Hands one message to the worker, as often as the test likes."""
        try:
            return self.executor.run(wake_ups, stop_at=float("inf"))
        except Crash:
            self.executor.ledger.close()
            self._executor = None
            return 1

    def reconcile(self) -> int:
        """Every tick of beat, once; returns how many rows they moved or looked at."""
        ticks = self.reconciler
        moved = ticks.expire() + ticks.sweep_leases() + ticks.sweep_uncertain() + ticks.read_versions() + ticks.rescue()
        return moved + ticks.escalate() + ticks.watch() + ticks.notify()

    def settle(self, *, at_most_s: float = 7 * 86_400) -> None:
        """Runs workers and reconciler until nothing moves; when all wait for a time, moves the clock there.

        Rows that wait for a person stay. Raises AssertionError when something still moves after `at_most_s` of clock.
        """
        left_over_s = self.settle_within(at_most_s)
        assert left_over_s is None, f"not settled after {at_most_s:.0f} s: {self.open_rows()}"

    def settle_within(self, seconds: float) -> float | None:
        """As `settle`, for this long of the clock; what moves only later stays. The wait that would be next, None = none."""
        moved_s = 0.0
        for _ in range(ROUNDS_MAX):
            before = self._fingerprint()
            self.intake.take()
            self.work()
            self.reconcile()
            self.reconciler.unwind_runs()
            if self._fingerprint() != before:
                continue
            wait_s = self._next_due_s()
            if wait_s is None or moved_s + wait_s > seconds:
                return wait_s
            moved_s += wait_s
            self.advance(max(wait_s, 0.0) + AHEAD_S)
        raise AssertionError(f"not settled after {ROUNDS_MAX} rounds: {self.open_rows()}")

    def advance(self, seconds: float) -> None:
        """Moves the ledger's clock and the sandbox's on, together."""
        advance_ledger(self.owner_url, seconds)
        self.moved_s += seconds
        self.sandbox.advance(seconds)

    @contextmanager
    def frozen_at(self, point: Point) -> Iterator[Callable[[], None]]:
        """A second worker takes what is due and is stopped at `point`, as by a paused machine; the block runs meanwhile.

        The value thaws it and waits until it has ended; leaving the block does the same.
        """
        reached, go_on = threading.Event(), threading.Event()

        def stop(here: Point, tool: str) -> None:
            if here == point:
                reached.set()
                assert go_on.wait(FROZEN_MAX_S), "never thawed"

        worker = self.new_worker("frozen", stop)
        thread = threading.Thread(target=worker.run, args=(self.due(),), kwargs={"stop_at": float("inf")}, daemon=True)
        thread.start()

        def thaw() -> None:
            go_on.set()
            thread.join(FROZEN_MAX_S)
            assert not thread.is_alive()

        try:
            assert reached.wait(FROZEN_MAX_S), f"the second worker never came to {point}"
            yield thaw
        finally:
            thaw()
            worker.ledger.close()

    @contextmanager
    def crash_after(self, point: Point, *, tool: str = "", times: int = 1) -> Iterator[None]:
        """Within the block the worker dies at `point`, `times` times; then a new one takes over."""
        left = times

        def crash_at(here: Point, name: str) -> bool:
            nonlocal left
            if left and here == point and tool in ("", name):
                left -= 1
                return True
            return False

        before, self._crash_at = self._crash_at, crash_at
        try:
            yield
        finally:
            self._crash_at = before

    def states(self) -> dict[str, str]:
        """`tool/step/phase` → state, for every action."""
        return {
            f"{row['tool']}/{row['step']}/{row['phase']}": row["state"] for row in self.ledger.rows(_SQL["states"], {})
        }

    def open_rows(self) -> list[str]:
        """Actions that are not settled, for a failing test's message."""
        return [f"{name} {state}" for name, state in self.states().items()]

    def restart(self) -> None:
        """Ends worker and reconciler; the next ones are made from the settings and tools of then."""
        self.close()
        self._executor = self._reconciler = None

    def close(self) -> None:
        """Closes the connections."""
        if self._executor is not None:
            self._executor.ledger.close()
        if self._reconciler is not None:
            self._reconciler.ledger.close()

    def _point(self, point: Point, tool: str) -> None:
        if self._crash_at(point, tool):
            self.crashes.append(point)
            raise Crash(point)

    def _monotonic(self) -> float:
        """A process's own clock, which moves with `advance`."""
        return time.monotonic() + self.moved_s

    def _fingerprint(self) -> str:
        row = self.ledger.row(_SQL["fingerprint"], {})
        assert row is not None
        return str(row["fingerprint"])

    def _next_due_s(self) -> float | None:
        row = self.ledger.row(_SQL["next_due"], {"uncertain_after_s": self.settings.reconciler.uncertain_after_s})
        return None if row is None or row["wait_s"] is None else float(row["wait_s"])


def advance_ledger(owner_url: str, seconds: float) -> None:
    """Moves a test database's clock on, for every connection, by replacing the function that it is."""
    with psycopg.connect(owner_url) as connection:
        connection.execute(_SQL["advance"].text.replace(":seconds", str(float(seconds))).encode())
