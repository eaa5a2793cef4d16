"""A fleet under a hostile scheduler: workers and reconcilers are stopped, killed and resumed between any two steps.

One thing runs at a time and both clocks stand still unless the scheduler moves them, so a seed tells the whole story. The
provider is played in this process; what it did is the oracle. `CF_SIMULATION_STEPS` sets the length, `CF_SIMULATION_SEED`
the first seed. A failure names its seed.
"""

from __future__ import annotations

import os
import random
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar

import psycopg
import pytest
import requests
from tests.ends import all_ends

from counterfoil import Counterfoil
from counterfoil.ledger.claims import WakeUp
from counterfoil.ledger.connection import Ledger, Row
from counterfoil.ledger.errors import CounterfoilError, LedgerUnavailable
from counterfoil.ledger.queries import Query, load
from counterfoil.providers.contract import Of
from counterfoil.providers.outcomes import NotSent, Rejected, Unknown
from counterfoil.providers.registry import Registry
from counterfoil.providers.tool import tool
from counterfoil.reconciler.setup import reconciler_from
from counterfoil.reconciler.ticks import Reconciler
from counterfoil.testing import World
from counterfoil.testing.world import Crash
from counterfoil.workers.admission import Unlimited
from counterfoil.workers.executor import Executor
from counterfoil.workers.points import Points
from counterfoil.workers.setup import executor_from

STEPS = int(os.environ.get("CF_SIMULATION_STEPS", "1200"))
SEED = int(os.environ.get("CF_SIMULATION_SEED", "1"))
STEPS_OF_AN_EPISODE = 120
LEASE_S, LANDING_MAX_S, TTL_S, LAG_S = 6.0, 2.0, 40.0, 3.0
STEP_MAX_S = 30.0

_AGENT = load("counterfoil.ledger", "sql/agent.sql")
TOOLS = ["pay", "gift", "note", "tick", "ship"]
MIXES = [TOOLS, ["gift"], ["note", "tick"], ["pay", "note"]]
"""Tools of an episode."""
NEGATIVE = {"permanent_failure", "not_executed", "cancelled", "stale"}
ENDED = NEGATIVE | {"succeeded", "compensated"}


@dataclass
class Effect:
    """One request that got through: it takes effect at `lands_at` and may be found from `visible_at` on."""

    kind: str
    key: str
    lands_at: float
    visible_at: float


class Outside:
    """The provider: what has happened there, and how it answers. Times on the simulation's clock."""

    current: ClassVar[Outside]

    def __init__(self, rng: random.Random, now: Callable[[], float]) -> None:
        self.rng, self.now = rng, now
        self.done: list[Effect] = []
        self.flying: list[Effect] = []
        self.known: dict[str, float] = {}
        self.faulty = rng.choice([0.3, 0.6, 0.9])
        Outside.current = self

    def perform(self, kind: str, key: str, ttl_s: float | None, lag_s: float) -> Any:
        """One request on the wire: what really happens, and what the client gets to see of it."""
        now, rng = self.now(), self.rng
        mode = rng.choices(*zip(*_MODES, strict=True))[0] if rng.random() < self.faulty else "ok"
        if mode == "refused":
            return Rejected("refused")
        if mode == "throttled":
            return Rejected("throttled", retryable=True, retry_after_s=rng.choice([None, 1.0]))
        if mode == "not_sent":
            return NotSent("connection_refused")
        if mode != "lost_before":
            latest_s = {"late": LANDING_MAX_S, "killed": LEASE_S - 2.0 + LANDING_MAX_S}.get(mode, 0.0)
            lands_at = now + rng.uniform(0.0, latest_s)
            self.flying.append(Effect(kind, key, lands_at, lands_at + rng.uniform(0.0, lag_s)))
        self.land(ttl_s)
        if mode == "killed":
            raise Crash("in the call")
        pause("in_call")
        if mode != "ok":
            raise requests.ReadTimeout
        return {"id": f"r_{key}"}

    def land(self, ttl_s: float | None = None) -> None:
        """What is due takes effect, unless the provider still knows its key."""
        now = self.now()
        for effect in sorted(self.flying, key=lambda e: e.lands_at):
            if effect.lands_at <= now:
                self.flying.remove(effect)
                native = effect.kind.removeprefix("un") in _NATIVE
                known_at = self.known.get(effect.key)
                if native and known_at is not None and effect.lands_at - known_at < TTL_S:
                    continue
                self.known[effect.key] = effect.lands_at
                self.done.append(effect)

    def find(self, key: str) -> Any:
        """One look-up, which may fail; what it sees is as of some time while it ran."""
        if self.rng.random() < 0.15:
            return Unknown("outage")
        if self.rng.random() < 0.1:
            raise requests.ReadTimeout
        pause("before_read")
        self.land()
        seen = [{"id": f"r_{e.key}"} for e in self.done if e.key == key and e.visible_at <= self.now()]
        pause("after_read")
        return seen


_MODES = [("ok", 3), ("lost_after", 4), ("lost_before", 3), ("late", 5), ("killed", 3)]
_MODES += [("refused", 2), ("throttled", 2), ("not_sent", 2)]
_NATIVE = frozenset({"pay", "gift"})


def _tools() -> Registry:
    """One tool of each kind that a contract can be, each with a counter-action of the same kind."""
    native = {"native_key_ttl_s": TTL_S}
    kinds: dict[str, Mapping[str, Any]] = {
        "pay": {**native, **_lookup()},
        "gift": native,
        "note": _lookup(),
        "tick": {**_lookup(), "lookup_lag_s": LAG_S, "on_absent": "not_executed"},
        "ship": {"uncertain": "operator_review"},
    }
    registry = Registry()
    for name, contract in kinds.items():
        for function in _pair(name, contract):
            registry.add(function.__counterfoil_tool__)
    registry.resolve()
    return registry


def _lookup() -> dict[str, Any]:
    def find(key: str) -> object:
        return Outside.current.find(key)

    return {"lookup": find}


def _pair(name: str, contract: Mapping[str, Any]) -> tuple[Any, Any]:
    ttl_s, lag_s = contract.get("native_key_ttl_s"), contract.get("lookup_lag_s", 0.0)
    common: Any = {"cls": "compensatable", "target": "order", "provider": name, "landing_max_s": LANDING_MAX_S}
    common |= {"audience": ["team"], **contract}
    once: Any = {"once_per": "order", "once_scope": "tenant"} if name == "pay" else {"once_per": None}

    @tool(name=name, effect=name, undo=f"un{name}", **common, **once)
    def do(order: str, words: str = "", *, key: str) -> dict[str, object]:
        return Outside.current.perform(name, key, ttl_s, lag_s)  # type: ignore[no-any-return]

    @tool(name=f"un{name}", effect=f"un{name}", undo=None, once_per=None, **common)
    def undo(order: str, *, key: str, of: Of) -> dict[str, object]:
        return Outside.current.perform(f"un{name}", key, ttl_s, lag_s)  # type: ignore[no-any-return]

    return do, undo


class Actor:
    """A process that runs only when it is told to, up to its next pause, and dies there when it is told to."""

    local: ClassVar[threading.local] = threading.local()

    def __init__(self, name: str, work: Callable[[], object]) -> None:
        self.name, self.at, self.error = name, "start", None
        self.ended = self.dies = False
        self._go, self._stopped = threading.Semaphore(0), threading.Semaphore(0)
        self._thread = threading.Thread(target=self._run, args=(work,), daemon=True)
        self._thread.start()

    def step(self, *, kill: bool = False) -> None:
        self.dies = kill
        self._go.release()
        assert self._stopped.acquire(timeout=STEP_MAX_S), f"{self.name} hangs after {self.at}"
        if isinstance(self.error, BaseException) and not isinstance(self.error, Crash | LedgerUnavailable):
            raise self.error

    def pause(self, at: str) -> None:
        self.at = at
        self._stopped.release()
        self._go.acquire()
        if self.dies:
            raise Crash(at)

    def _run(self, work: Callable[[], object]) -> None:
        Actor.local.me = self
        self._go.acquire()
        try:
            if not self.dies:
                work()
        except BaseException as error:  # noqa: BLE001 - told to whoever steps
            self.error: BaseException | None = error
        self.ended = True
        self._stopped.release()


def pause(at: str) -> None:
    """Stops here if this is an actor; outside of one nothing pauses."""
    actor = getattr(Actor.local, "me", None)
    if actor is not None:
        actor.pause(at)


class LossyLedger(Ledger):
    """A connection that is lost now and then, before a statement or after its commit."""

    rng: random.Random

    def _run(self, connection: psycopg.Connection[Row], query: Query, params: Mapping[str, object]) -> list[Row]:
        lost = self.rng.choices(["no", "before", "after"], [96, 2, 2])[0]
        if lost == "before":
            raise psycopg.OperationalError("lost before")
        rows = super()._run(connection, query, params)
        if lost == "after":
            raise psycopg.OperationalError("lost after")
        return rows


@dataclass(kw_only=True)
class StillWorld(World):
    """A world whose clocks move only with `advance`."""

    rng: random.Random
    database_url: str
    agent_url: str
    names: int = 0
    unused: list[Ledger] = field(default_factory=list)

    def close(self) -> None:
        super().close()
        for ledger in self.unused:
            ledger.close()

    def rows(self, statement: str) -> list[Row]:
        return self.ledger.rows(Query("rows", statement, statement, frozenset()), {})

    def new_worker(self, name: str, points: Points) -> Executor:
        executor = executor_from(
            self.settings, worker=name, registry=self.registry, points=points, admission=Unlimited()
        )
        self.unused.append(executor.ledger)  # its live settings are read through it
        ledger = self._ledger()
        settler = replace(executor.settler, ledger=ledger, rng=self.rng)
        return replace(executor, ledger=ledger, settler=settler, monotonic=lambda: self.moved_s)

    def new_reconciler(self, name: str) -> Reconciler:
        made = reconciler_from(self.settings, by=name, registry=self.registry, admission=Unlimited())
        self.unused.append(made.ledger)
        ledger = self._ledger()
        look_ups = replace(made.look_ups, ledger=ledger, rng=self.rng)
        return replace(made, ledger=ledger, look_ups=look_ups, unwinder=replace(made.unwinder, ledger=ledger))

    @property
    def reconciler(self) -> Reconciler:
        if self._reconciler is None:
            made = reconciler_from(self.settings, by="reconciler-1", registry=self.registry, admission=Unlimited())
            self._reconciler = replace(made, look_ups=replace(made.look_ups, rng=self.rng))
        return self._reconciler

    def advance(self, seconds: float) -> None:
        self.moved_s += seconds
        with psycopg.connect(self.owner_url) as connection:
            connection.execute(
                "CREATE OR REPLACE FUNCTION counterfoil.now() RETURNS timestamptz LANGUAGE sql STABLE PARALLEL SAFE AS "
                f"$$ SELECT timestamptz '2030-01-01 00:00:00+00' + interval '{self.moved_s:.6f} seconds' $$".encode()  # type: ignore[arg-type]
            )

    def _ledger(self) -> LossyLedger:
        ledger = LossyLedger(self.database_url)
        ledger.rng = self.rng
        return ledger


@dataclass
class Episode:
    """One story: a few runs of a few actions, and everything that can go wrong with them."""

    world: StillWorld
    client: Counterfoil
    rng: random.Random
    number: int
    tools: list[str]
    actors: list[Actor] = field(default_factory=list)
    ids: list[str] = field(default_factory=list)
    runs: list[str] = field(default_factory=list)
    old: list[WakeUp] = field(default_factory=list)
    log: list[str] = field(default_factory=list)
    move: int = 0
    asleep: dict[str, int] = field(default_factory=dict)
    """Actors that are frozen, and the move at which each may go on."""

    def play(self) -> None:
        moves: list[tuple[Callable[[], str | None], float]] = [
            (self.enqueue, 4), (self.call, 2), (self.start_worker, 12), (self.start_sweep, 5), (self.tick, 4),
            (self.resume, 24), (self.kill, 2), (self.advance, 5), (self.cancel, 0.7), (self.unwind, 0.5),
            (self.redeliver, 2), (self.others, 14), (self.outage, 1),
        ]  # fmt: skip
        actions, weights = zip(*moves, strict=True)
        for self.move in range(STEPS_OF_AN_EPISODE):
            move = self.rng.choices(actions, weights)[0]
            self.log.append(f"{self.world.moved_s:.2f} {move.__name__} {move() or ''}")

    def enqueue(self) -> str:
        run = f"e{self.number}-{self.rng.randrange(2)}"
        name = self.rng.choice(self.tools)
        if run not in self.runs:
            self.runs.append(run)
            deadline_s = self.rng.choice([None, None, 5.0, 20.0])
            self.client.run(run, tenant="acme", actor="bot", deadline_s=deadline_s)
        step = f"s{len(self.ids)}"
        with psycopg.connect(self.world.agent_url) as connection:
            try:
                given = {"order": f"{run}-{step}"}
                self.ids.append(
                    self.client.enqueue(connection, name, given, tenant="acme", run=run, step=step, actor="bot")
                )
            except CounterfoilError as error:
                return f"{name} {type(error).__name__}"
        return f"{name} {self.ids[-1]} in {run}"

    def call(self) -> str:
        """A model's call, or one with a label: it may mean a recorded action, a new revision or a new step."""
        run = f"e{self.number}-{self.rng.randrange(2)}"
        name, order = self.rng.choice(["pay", "note"]), f"o{self.number}-{self.rng.randrange(2)}"
        step = self.rng.choice([None, None, "here", "there"])
        if run not in self.runs:
            self.runs.append(run)
        given = {"order": order, "words": self.rng.choice(["a", "b"])}
        try:
            with psycopg.connect(self.world.owner_url) as owner:
                seen = self.rng.choice(["", all_ends(lambda query, *given: owner.execute(query, given), run)])
            handle = self.client.run(run, tenant="acme", actor="bot", seen=seen)
            result = handle.call(name, given, step=step, wait_s=0)
        except CounterfoilError as error:
            return f"{name} {type(error).__name__}"
        if result.action_id is not None and result.action_id not in self.ids:
            self.ids.append(result.action_id)
        return f"{name} {order} at {step} in {run}: {result.status} {result.next_step} {result.action_id}"

    def start_worker(self) -> str:
        due = self.world.due()
        self.old += due
        return self._worker(self.rng.sample(due, min(len(due), 3)))

    def redeliver(self) -> str:
        return self._worker(self.rng.sample(self.old, min(len(self.old), 2)))

    def _worker(self, wake_ups: list[WakeUp]) -> str:
        if not wake_ups or len(self.actors) > 5:
            return "none"
        self.world.names += 1
        name = f"w{self.world.names}"
        worker = self.world.new_worker(name, lambda point, tool: pause(f"{point} {tool}"))

        def work() -> None:
            with closing(worker.ledger):
                worker.run(wake_ups, stop_at=float("inf"))

        self.actors.append(Actor(name, work))
        return f"{name} {[w.action_id[:9] for w in wake_ups]}"

    def start_sweep(self) -> str:
        if len(self.actors) > 5:
            return "none"
        self.world.names += 1
        name = f"r{self.world.names}"
        reconciler = self.world.new_reconciler(name)
        ticks = self.rng.choice([reconciler.sweep_uncertain, reconciler.sweep_uncertain, reconciler.unwind_runs])

        def work() -> None:
            with closing(reconciler.ledger):
                ticks()

        self.actors.append(Actor(name, work))
        return f"{name} {ticks.__name__}"

    def tick(self) -> str:
        ticks = self.world.reconciler
        chosen = self.rng.choice([ticks.expire, ticks.sweep_leases, ticks.rescue, ticks.unwind_runs])
        return f"{chosen.__name__} {chosen()}"

    def resume(self, *, kill: bool = False) -> str:
        awake = [a for a in self.actors if self.asleep.get(a.name, 0) <= self.move]
        if not awake:
            return "none"
        actor = self.rng.choice(awake)
        at = actor.at
        actor.step(kill=kill)
        long = actor.at.startswith(("after_claim", "before_settle"))
        if self.rng.random() < (0.5 if long else 0.15):
            self.asleep[actor.name] = self.move + self.rng.randrange(100 if long else 20)
        if actor.ended:
            self.actors.remove(actor)
        return f"{actor.name} from {at}"

    def kill(self) -> str:
        return self.resume(kill=True)

    def advance(self) -> str:
        seconds = self.rng.choice([0.1, 0.3, 0.6, 1.0, 2.0, 4.0, 7.0])
        self.world.advance(seconds)
        return f"{seconds}"

    def others(self) -> str:
        """The rest of the fleet goes on for a moment, while the actors stand still."""
        self.world.advance(self.rng.choice([0.3, 0.7, 1.1]))
        self.world.reconcile()
        return f"{self.world.work()}"

    def outage(self) -> str:
        """No worker runs for a long time."""
        self.world.advance(self.rng.choice([10.0, TTL_S * 0.8, TTL_S]))
        return f"{self.world.reconcile()}"

    def cancel(self) -> str:
        if not self.ids:
            return "none"
        action_id = self.rng.choice(self.ids)
        return f"{action_id} {self.client.cancel(action_id, 'changed my mind').status}"

    def unwind(self) -> str:
        if not self.runs:
            return "none"
        run = self.rng.choice(self.runs)
        with closing(Ledger(self.world.agent_url)) as ledger:
            ledger.row(_AGENT["request_unwind"], {"tenant": "acme", "run": run, "reason": "enough"})
        return run

    def drain(self) -> None:
        """Everybody ends what he was at, everything lands, and what can still move by itself does."""
        if self.rng.random() < 0.5:
            self.log.append(f"{self.world.moved_s:.2f} settle around {[f'{a.name} {a.at}' for a in self.actors]}")
            self.world.settle()
        for self.move in range(STEPS_OF_AN_EPISODE, 2000):
            if not self.actors:
                break
            self.log.append(f"{self.world.moved_s:.2f} drain {self.resume()}")
        Outside.current.faulty = 0.2
        self.world.settle()
        self.world.advance(LEASE_S + LANDING_MAX_S)
        Outside.current.land()
        self.world.settle()

    def check(self) -> Counter[str]:
        """The promises, against what the provider really did."""
        effects = Counter((effect.kind, effect.key) for effect in Outside.current.done)
        rows = self.world.rows(
            "SELECT action_id, run, tool, phase, state, key, target, parent_action_id FROM counterfoil.action"
        )
        rows = [row for row in rows if row["run"] in self.runs]
        undone = {r["parent_action_id"] for r in rows if r["phase"] == "undo" and r["state"] == "succeeded"}
        for row in rows:
            state, count = row["state"], effects[row["tool"], row["key"] or ""]
            assert count <= 1, f"{count} effects of {row}"
            assert state in ENDED | {"operator_review"}, f"not ended: {row}"
            assert state not in ("succeeded", "compensated") or count == 1, f"no effect of {row}"
            assert state not in NEGATIVE or count == 0, f"an effect of {row}"
            assert state != "compensated" or row["action_id"] in undone, f"not taken back: {row}"
        paid = Counter(row["target"] for row in rows if row["tool"] == "pay" and effects["pay", row["key"] or ""])
        paid.subtract(row["target"] for row in rows if row["tool"] == "unpay" and effects["unpay", row["key"] or ""])
        assert not paid or max(paid.values()) <= 1, f"paid twice: {paid}"
        states = {r["run"]: r["state"] for r in self.world.rows("SELECT run, state FROM counterfoil.run")}
        for run in self.runs:
            assert states[run] in ("open", "unwound", "unwind_blocked"), f"{run} {states[run]}"
            left = [r for r in rows if r["run"] == run and r["state"] in ("succeeded", "operator_review")]
            left = [r for r in left if r["phase"] == "do" or r["state"] == "operator_review"]
            assert states[run] != "unwound" or not left, f"{run} is unwound, but {left}"
            assert states[run] != "unwind_blocked" or left, f"{run} is blocked by nothing"
        return Counter(f"{row['tool']} {row['state']}" for row in rows)


@pytest.fixture
def still_world(settings: Any, database: Any, sandbox: Any) -> Iterator[StillWorld]:
    fast = {"timeout_s": 3, "backoff_base_s": 0.2, "backoff_cap_s": 2, "attempts_max": 3, "not_sent_max": 4}
    section = type(settings.providers["stripe"])
    settings = settings.model_copy(update={"providers": {name: section(**fast) for name in TOOLS}})
    world = StillWorld(
        settings=settings, owner_url=database.url("owner"), sandbox=sandbox, registry=_tools(),
        rng=random.Random(), database_url=database.url("worker"), agent_url=database.url("agent"),
    )  # fmt: skip
    yield world
    world.close()


def test_no_schedule_breaks_a_promise(still_world: StillWorld) -> None:
    """However the fleet is stopped, killed, resumed, cancelled and unwound: one effect at most, no lie, and an end."""
    still_world.advance(0)
    client = Counterfoil(still_world.agent_url, settings=still_world.settings, registry=still_world.registry)
    seen: Counter[str] = Counter()
    with closing(client):
        for number in range(SEED, SEED + -(-STEPS // STEPS_OF_AN_EPISODE)):
            rng = random.Random(number)
            still_world.rng = rng
            Outside(rng, lambda: still_world.moved_s)
            episode = Episode(still_world, client, rng, number, rng.choice(MIXES))
            try:
                episode.play()
                episode.drain()
                seen += episode.check()
            except BaseException as error:
                story = "\n".join(episode.log)
                raise AssertionError(f"CF_SIMULATION_SEED={number} CF_SIMULATION_STEPS=1\n{story}") from error
    for name in TOOLS:
        assert sum(count for row, count in seen.items() if row.split()[0] == name) or STEPS < 1000, seen
