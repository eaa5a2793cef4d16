"""The store of the fleet's limits is killed, stopped, emptied or filled up; the oracle is what reached the sandbox."""

from __future__ import annotations

import os
import shutil
import tempfile
import time
import uuid
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING

import psycopg
import pytest
import redis

from counterfoil import Counterfoil
from counterfoil.ledger.changes import change_settings
from counterfoil.ledger.connection import Ledger
from counterfoil.stack.home import home
from counterfoil.stack.server import HOST
from counterfoil.stack.valkey import SECRET, Valkey
from counterfoil.testing import World
from counterfoil.workers.admission import FleetAdmission, Store
from counterfoil.workers.executor import Executor
from counterfoil.workers.setup import executor_from, limits_of

if TYPE_CHECKING:
    from tests.conftest import Database

pytestmark = pytest.mark.chaos

CREATE = "payment_intents.create"
EVER = float("inf")
ATTEMPTS_MAX = 6


@pytest.fixture(scope="module")
def valkey_server() -> Iterator[Valkey]:
    """A server of this module's own, which may be killed."""
    folder = Path(tempfile.mkdtemp(prefix="counterfoil-store-"))
    folder.chmod(0o755)
    server = Valkey(home(folder, environ={**os.environ, "COUNTERFOIL_HOME": str(folder / "home")}))
    server.launch()
    server.wait()
    yield server
    server.stop()
    shutil.rmtree(folder)


class Fleet:
    """Workers and a reconciler in this process that share their limits in that server; all clocks move with the world's."""

    def __init__(self, world: World, database: Database, server: Valkey, *, processes: int = 2) -> None:
        self.world, self.database, self.server = world, database, server
        self.url = f"redis://:{server.home.secret(SECRET)}@{HOST}:{server.port}/0"
        self.prefix = f"cf-store-{uuid.uuid4().hex[:8]}-"
        self.client = redis.Redis.from_url(self.url)
        provider = world.settings.provider("stripe").model_copy(
            update={"attempts_max": ATTEMPTS_MAX, "rate_per_s": 4.0}
        )
        providers = {**world.settings.providers, "stripe": provider}
        world.settings = world.settings.model_copy(update={"providers": providers})
        self.admissions = [self.admission(f"w{number}") for number in range(processes)]
        self.executors = [self._executor(admission) for admission in self.admissions]

    def admission(self, worker: str, *, timeout_s: float = 2.0) -> FleetAdmission:
        limits = limits_of(self.world.settings.provider("stripe"))
        store = Store(
            url=self.url,
            key_prefix=self.prefix,
            timeout_s=timeout_s,
            retry_after_s=1.0,
            monotonic=self._monotonic,
            now_ms=lambda: (time.time() + self.world.moved_s) * 1000,
        )
        return FleetAdmission(limits=lambda _: limits, worker=worker, store=store, monotonic=self._monotonic)

    def _monotonic(self) -> float:
        return time.monotonic() + self.world.moved_s

    def _executor(self, admission: FleetAdmission) -> Executor:
        return executor_from(
            self.world.settings,
            worker=admission.worker,
            registry=self.world.registry,
            admission=admission,
            monotonic=self._monotonic,
        )

    def charge(self, *orders: str, deadline_s: float | None = None) -> None:
        """One charge of 5.00 an order, each in a run of its own."""
        url = self.database.url("agent")
        with closing(Counterfoil(url, settings=self.world.settings, registry=self.world.registry)) as cf:
            for order in orders:
                arguments = {"customer": "cus_1", "amount_minor": 500, "currency": "usd", "order_id": order}
                with cf.run(f"run-{order}", tenant="acme", actor="bot", deadline_s=deadline_s) as run:
                    run.call("stripe_charge", arguments, wait_s=0)

    def turn(self, seconds: int, each: Callable[[], object] = lambda: None) -> None:
        """So many seconds of work."""
        for _ in range(seconds):
            each()
            for executor in self.executors:
                executor.run(self.world.due(), stop_at=EVER)
            self.world.reconcile()
            self.world.advance(1)

    def settled(self, *orders: str) -> bool:
        """All of these have succeeded."""
        query = "SELECT target FROM counterfoil.action WHERE state = 'succeeded'"
        with psycopg.connect(self.database.url("owner")) as connection:
            return {target for (target,) in connection.execute(query).fetchall()} >= set(orders)

    def requests(self) -> Counter[str]:
        """Requests that reached the sandbox, by key."""
        sent = self.world.sandbox.requests("stripe", CREATE)
        return Counter(request.headers["idempotency-key"] for request in sent)

    def effects(self) -> list[int]:
        return list(Counter(effect.key for effect in self.world.sandbox.effects("charge")).values())

    def kill(self) -> None:
        process = self.server.process()
        assert process is not None
        process.kill()
        process.wait(timeout=10)

    def restart(self) -> None:
        """Again where it was, and empty."""
        shutil.rmtree(self.server.data)
        self.server.launch()
        self.server.wait()

    def close(self) -> None:
        self.client.close()
        for admission, executor in zip(self.admissions, self.executors, strict=True):
            assert admission.store is not None
            admission.store.close()
            executor.ledger.close()


@pytest.fixture
def fleet(world: World, database: Database, valkey_server: Valkey) -> Iterator[Fleet]:
    made = Fleet(world, database, valkey_server)
    yield made
    made.close()


def test_while_the_store_is_gone_first_attempts_go_on_and_all_else_waits(fleet: Fleet) -> None:
    """SIGKILL: new work is done within each process's share, retries and look-ups wait; with the store back they go."""
    fleet.charge("before")
    fleet.turn(3)
    assert fleet.settled("before")
    fleet.world.sandbox.stripe.fault("429_bare", on=CREATE, times=None)
    fleet.charge("failed-1", "failed-2")
    for _ in range(5):
        if len(fleet.requests()) < 3:
            fleet.turn(1)
    fleet.world.sandbox.clear_faults()
    sent = sum(fleet.requests().values())
    assert len(fleet.requests()) == 3
    assert not fleet.settled("failed-1")
    fleet.kill()
    orders = [f"new-{number}" for number in range(6)]
    fleet.charge(*orders)
    fleet.turn(1)
    fleet.turn(14)
    assert fleet.settled(*orders)
    assert not fleet.settled("failed-1") and not fleet.settled("failed-2")  # noqa: PT018 - one claim
    assert sum(fleet.requests().values()) == sent + len(orders), "no retry"
    assert fleet.admissions[0].look_ups("stripe", 5).requests == 0
    assert fleet.admissions[0].gate("stripe").retries == 0
    fleet.restart()
    for _ in range(20):
        if fleet.settled("failed-1", "failed-2"):
            break
        fleet.turn(3)
    assert fleet.settled("failed-1", "failed-2")
    assert fleet.effects() == [1] * 9
    assert fleet.admissions[0].look_ups("stripe", 1).requests == 1


def test_a_share_is_no_more_than_a_part_of_the_rate(fleet: Fleet) -> None:
    """With the store gone two processes together send what one fleet may, and each of them no more than half of it."""
    fleet.charge("before")
    fleet.turn(3)
    fleet.kill()
    try:
        fleet.charge(*[f"o{number}" for number in range(40)])
        before = sum(fleet.requests().values())
        began_s = fleet.world.moved_s + time.monotonic()
        fleet.turn(4)
        passed_s = fleet.world.moved_s + time.monotonic() - began_s
        assert 2 <= sum(fleet.requests().values()) - before <= 5.0 * passed_s + 2
    finally:
        fleet.restart()


def refill(fleet: Fleet, how: str) -> None:
    if how == "deleted":
        fleet.client.delete(f"{fleet.prefix}admission:stripe")
        return
    text = """
      local bytes = redis.call('GET', KEYS[1])
      if bytes then
        local state = cmsgpack.unpack(bytes)
        state.tokens, state.minute, state.breaker, state.leases, state.health = 1e9, {}, 'closed', {}, {}
        redis.call('SET', KEYS[1], cmsgpack.pack(state))
      end
    """
    fleet.client.eval(text, 1, f"{fleet.prefix}admission:stripe")


@pytest.mark.parametrize("how", ["deleted", "refilled"])
def test_a_hostile_store_cannot_lift_the_caps_on_attempts(fleet: Fleet, how: str) -> None:
    """Emptied or filled up every second through an outage: no action is sent more often than attempts_max."""
    fleet.world.sandbox.stripe.fault("429_bare", on=CREATE, times=None)
    fleet.charge("a", "b", "c")
    fleet.turn(40, lambda: refill(fleet, how))
    assert list(fleet.requests().values()) == [ATTEMPTS_MAX] * 3
    assert fleet.effects() == []


def test_a_hostile_store_cannot_lift_a_deadline(fleet: Fleet) -> None:
    """Whatever the store says, nothing is sent after the run's deadline."""
    fleet.world.sandbox.stripe.fault("429_retry_after", on=CREATE, times=None, headers={"Retry-After": "30"})
    fleet.charge("a", deadline_s=20)
    fleet.turn(60, lambda: refill(fleet, "refilled"))
    assert sum(fleet.requests().values()) == 1
    assert fleet.effects() == []


def test_a_store_that_hangs_costs_little(fleet: Fleet) -> None:
    """SIGSTOP: one batch waits for the timeout, the next second's batches for nothing; awake, it is used again."""
    asks = fleet.admission("asks", timeout_s=0.3)
    assert asks.gate("stripe").known
    process = fleet.server.process()
    assert process is not None
    process.suspend()
    try:
        for _ in range(2):
            began = time.monotonic()
            for _ in range(20):
                assert not asks.gate("stripe").known
            assert 0.25 < time.monotonic() - began < 1.0
            fleet.world.advance(1.1)
    finally:
        process.resume()
    fleet.world.advance(1.1)
    assert asks.gate("stripe").known
    assert asks.store is not None
    asks.store.close()


def test_a_pause_outlives_the_store(fleet: Fleet) -> None:
    """FLUSHALL ends no pause: it is kept in Postgres, and read in the claim."""

    def say(mode: str) -> None:
        with closing(Ledger(fleet.database.url("operator"))) as operator:
            change_settings(operator, {"providers.stripe.mode": mode}, by="ada", channel="cli", reason="incident")

    say('"paused"')
    fleet.charge("a", "b")
    fleet.turn(5, fleet.client.flushall)
    assert fleet.requests() == Counter()
    say('"running"')
    fleet.turn(30)
    assert fleet.settled("a", "b")
    assert fleet.effects() == [1, 1]
