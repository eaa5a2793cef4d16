"""Handed cases of the fleet's shared limits: a store that says nonsense, and failures that are not multiplied."""

from __future__ import annotations

import json
import math
import signal
import subprocess
import sys
import textwrap
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from typing import Any

import pytest
import redis

from counterfoil.ledger.claims import WaitingAction
from counterfoil.settings_providers import ProviderSettings
from counterfoil.testing import World
from counterfoil.workers.admission import FleetAdmission, Kind, Result, Store
from counterfoil.workers.executor import Executor
from counterfoil.workers.fleet_limits import Limits
from counterfoil.workers.setup import executor_from, limits_of

LIMITS = limits_of(ProviderSettings())
START_MS = 1_796_000_000_000.0
HOUR_MS = 3_600_000.0
EVER = float("inf")


WRITE = """
  local function real(value)  -- JSON has no such numbers
    if value == 'NaN' then return 0 / 0 elseif value == 'Infinity' then return math.huge end
    if type(value) == 'table' then for k, v in pairs(value) do value[k] = real(v) end end
    return value
  end
  local state = cmsgpack.unpack(redis.call('GET', KEYS[1]))
  for name, value in pairs(real(cjson.decode(ARGV[1]))) do state[name] = value end
  redis.call('SET', KEYS[1], cmsgpack.pack(state))
"""


def row(kind: Kind = Kind.FIRST, number: int = 1) -> WaitingAction:
    """An action whose next try is of this kind."""
    return WaitingAction(
        action_id=f"a{number}",
        generation=1,
        tenant="acme",
        tool="stripe_charge",
        tool_version=1,
        provider="stripe",
        account="default",
        attempt_count=int(kind is Kind.AFTER_TIMEOUT),
        not_sent_count=int(kind is Kind.AFTER_THROTTLE),
        in_doubt=False,
        state="ready",
    )


@dataclass
class Shared:
    """Processes of one fleet over a real store, whose clock the test moves; and the bytes that the store holds."""

    url: str
    prefix: str
    limits: Limits = LIMITS
    now_ms: float = START_MS
    client: redis.Redis = field(init=False)

    def __post_init__(self) -> None:
        self.client = redis.Redis.from_url(self.url)

    @property
    def key(self) -> str:
        return f"{self.prefix}admission:stripe"

    def process(self, name: str = "w1") -> FleetAdmission:
        store = Store(url=self.url, key_prefix=self.prefix, timeout_s=5, retry_after_s=1, now_ms=lambda: self.now_ms)
        return FleetAdmission(
            limits=lambda _: self.limits, worker=name, store=store, monotonic=lambda: self.now_ms / 1000
        )

    def write(self, **changes: Any) -> None:
        """Puts something else into the state, as a bug or a person would."""
        self.client.eval(WRITE, 1, self.key, json.dumps(changes))

    def goes_after_s(self, kind: Kind = Kind.FIRST) -> float:
        """Seconds until an action of this kind may go, from one that asks every half second, later every five."""
        began, asking = self.now_ms, self.process("asks")
        for _ in range(4000):
            ticket = asking.admit("stripe", [row(kind)], lease_s=1)
            asking.close(ticket)
            if ticket.admitted:
                assert ticket.by_store, "the store is in use again"
                return (self.now_ms - began) / 1000
            self.now_ms += 500 if self.now_ms < began + 10_000 else 5_000
        return math.inf


@pytest.fixture
def shared(valkey: tuple[str, str]) -> Iterator[Shared]:
    made = Shared(*valkey)
    first = made.process()
    first.close(first.admit("stripe", [row()], lease_s=1))
    yield made
    made.client.close()


SLOT = str(int(START_MS // 5000))
AHEAD = START_MS + 1000 * HOUR_MS
DAMAGE: dict[str, tuple[dict[str, Any], float]] = {
    "no tokens, and counted in the future": ({"tokens": -1e18, "tokens_at": AHEAD}, 65),
    "a rate far below none": ({"rate": -1e18, "rate_at": AHEAD}, 1),
    "look-ups far below none": ({"look": -1e18, "look_at": AHEAD}, 0),
    "open for years": ({"breaker": "open", "open_until": AHEAD, "opened_at": AHEAD, "openings": 1e300}, 5),
    "a probe for years": ({"breaker": "half", "probe": "dead", "probe_until": AHEAD, "probes": {"dead": AHEAD}}, 605),
    "leases for years": ({"leases": {str(n): AHEAD for n in range(100)}}, 0),
    "leases for as long as may be": ({"leases": {str(n): START_MS + 599_000 for n in range(100)}}, 600),
    "retries without end in this minute": ({"minute": {SLOT: [0, 1e18, 0]}}, 65),
    "a minute of the future": ({"minute": {str(int(AHEAD // 5000)): [0, 1e18, 0]}}, 0),
    "a ramp for years": ({"ramp_until": AHEAD, "base_per_s": 1e-300}, 1),
    "no number": ({"tokens": "NaN"}, 0),
    "no number inside": ({"minute": {SLOT: ["NaN", "NaN", "NaN"]}, "hours": {"1": {"firsts": "Infinity"}}}, 0),
    "an unknown state": ({"breaker": "ajar"}, 0),
    "text for a number": ({"tokens": "500"}, 0),
    "text for counts": ({"minute": {SLOT: "many"}, "leases": {"x": "y"}, "tenants": 7}, 0),
    "a tenant in debt": ({"tenants": {"acme": [-1e18, START_MS]}}, 125),
    "a tenant in debt to the future": ({"tenants": {"acme": [-1e18, AHEAD]}}, 0),
}


@pytest.mark.case("K1")
@pytest.mark.parametrize("damage", DAMAGE)
@pytest.mark.parametrize("kind", [Kind.FIRST, Kind.AFTER_TIMEOUT])
def test_a_state_without_expiry_and_at_its_worst(shared: Shared, damage: str, kind: Kind) -> None:
    """A counter without expiry is found at its maximum: calls go again within a stated time, and the expiry is back."""
    changes, within_s = DAMAGE[damage]
    shared.limits = replace(shared.limits, tenant_share=0.5)
    shared.write(**changes)
    shared.client.persist(shared.key)
    assert shared.goes_after_s(kind) <= within_s
    assert shared.client.pttl(shared.key) > 0
    shared.now_ms += 1000
    assert shared.process().look_ups("stripe", 1).requests == 1
    assert shared.process().peek("stripe") is not None


@pytest.mark.case("K1")
@pytest.mark.parametrize("garbage", [b"", b"\xc1\xff\x00", b"[1,2,3]", b"\x93\x01\x02\x03", b"10", b"\x00" * 100_000])
def test_bytes_of_somebody_else(shared: Shared, garbage: bytes) -> None:
    """Whatever bytes lie under the key count as nothing: calls go at once."""
    shared.client.set(shared.key, garbage)
    assert shared.goes_after_s() == 0
    assert shared.goes_after_s(Kind.AFTER_THROTTLE) == 0


@pytest.mark.case("K1")
@pytest.mark.parametrize("make", ["rpush", "sadd", "hset"])
def test_a_key_of_another_type(shared: Shared, make: str) -> None:
    """A list, a set, a hash under the key: replaced, and calls go at once."""
    shared.client.delete(shared.key)
    getattr(shared.client, make)(shared.key, "field", *(["value"] if make == "hset" else []))
    assert shared.goes_after_s() == 0
    assert shared.client.type(shared.key) == b"string"


@pytest.mark.case("K1")
def test_a_clock_that_is_set_back(shared: Shared) -> None:
    """The store's clock falls back by five hours with the breaker open and the bucket empty: five seconds, two minutes."""
    process = shared.process()
    for number in range(10):
        ticket = process.admit("stripe", [row(number=number)], lease_s=30)
        process.report(ticket, ticket.admitted[0], Result.TIMEOUT)
        shared.now_ms += 50
    shared.write(tokens=0.0)
    assert shared.process().gate("stripe").open_in_s > 0
    shared.now_ms -= 5 * HOUR_MS
    assert shared.goes_after_s() <= 5
    assert shared.goes_after_s(Kind.AFTER_TIMEOUT) <= 120


@pytest.mark.case("K1")
def test_processes_that_die_after_they_were_admitted(valkey: tuple[str, str]) -> None:
    """SIGKILL right after the answer: the calls that they were to make count for as long as their lease, and not longer."""
    shared = Shared(*valkey, limits=replace(LIMITS, concurrency_max=1))
    code = f"""
        from tests.acceptance.test_cases_fleet import Shared, LIMITS, replace, row
        shared = Shared({shared.url!r}, {shared.prefix!r}, limits=replace(LIMITS, concurrency_max=1))
        assert shared.process("dies").admit("stripe", [row()], lease_s=40).admitted
        print("admitted", flush=True)
        import signal; signal.pause()
    """
    with subprocess.Popen([sys.executable, "-c", textwrap.dedent(code)], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "admitted\n"
        process.send_signal(signal.SIGKILL)
    assert 38 <= shared.goes_after_s() <= 41
    shared.client.close()


@pytest.mark.case("K1")
def test_a_probe_whose_process_died(shared: Shared) -> None:
    """The one call that was to find out never answers: the next goes four seconds later, and closes the breaker."""
    process = shared.process()
    for number in range(10):
        ticket = process.admit("stripe", [row(number=number)], lease_s=30)
        process.report(ticket, ticket.admitted[0], Result.TIMEOUT)
        process.close(ticket)
        shared.now_ms += 50
    shared.now_ms += 1000
    assert shared.process("dies").admit("stripe", [row()], lease_s=40).admitted
    assert not process.admit("stripe", [row(number=2)], lease_s=40).admitted, "one at a time"
    assert 3.5 <= shared.goes_after_s() <= 4.5
    ticket = process.admit("stripe", [row(number=3)], lease_s=40)
    assert ticket.admitted, "it was given up unused, so the next may go"
    assert process.report(ticket, ticket.admitted[0], Result.OK)
    process.close(ticket)
    peek = process.peek("stripe")
    assert peek is not None
    assert peek.breaker == "closed"


FAILING = 10
TOKENS = 10


@pytest.mark.case("K3")
@pytest.mark.parametrize("fault", ["504_before_commit", "html_503", "429_retry_after"])
def test_a_budget_of_ten_and_ten_failing_actions(
    request: pytest.FixtureRequest,
    world: World,
    enqueue: Callable[..., str],
    sql: Callable[..., Any],
    configure: Callable[..., None],
    valkey: tuple[str, str],
    fault: str,
) -> None:
    """Budget 10, ten failing actions: ten requests reach the provider, not thirty; when it is well again, ten effects."""
    configure("stripe", retry_budget={"tokens_max": TOKENS, "refill_per_min": 1})
    fleet = fleet_of(world, valkey, processes=3)
    request.addfinalizer(lambda: [executor.ledger.close() for executor in fleet])
    for number in range(FAILING):
        charge = {"customer": "cus_1", "amount_minor": 500, "currency": "usd", "order_id": str(number)}
        enqueue("stripe_charge", charge, run=f"r{number}")
    world.sandbox.stripe.fault(fault, on="payment_intents.create", times=None)
    for second in range(0, 60, 4):
        for executor in fleet:
            executor.run(world.due(), stop_at=EVER)
        world.reconcile()
        world.advance(4)
        assert len(world.sandbox.requests("stripe", "payment_intents.create")) <= FAILING, second
    assert len(world.sandbox.requests("stripe", "payment_intents.create")) == FAILING
    world.sandbox.clear_faults()
    states = "SELECT state, count(*) FROM counterfoil.action GROUP BY 1"
    while dict(sql(states)) != {"succeeded": FAILING} and world.moved_s < 7200:
        for executor in fleet:
            executor.run(world.due(), stop_at=EVER)
        world.reconcile()
        world.advance(30)
    assert dict(sql(states)) == {"succeeded": FAILING}
    effects = Counter(effect.key for effect in world.sandbox.effects("charge"))
    assert list(effects.values()) == [1] * FAILING


def fleet_of(world: World, valkey: tuple[str, str], processes: int) -> list[Executor]:
    """Workers in this process that share their limits in the store; all clocks move with the world's."""
    url, prefix = valkey
    limits = limits_of(world.settings.provider("stripe"))

    def executor(name: str) -> Executor:
        store = Store(
            url=url,
            key_prefix=prefix,
            timeout_s=5,
            retry_after_s=1,
            now_ms=lambda: (time.time() + world.moved_s) * 1000,
        )
        monotonic = lambda: time.monotonic() + world.moved_s  # noqa: E731
        return executor_from(
            world.settings,
            worker=name,
            registry=world.registry,
            admission=FleetAdmission(limits=lambda _: limits, worker=name, store=store, monotonic=monotonic),
            monotonic=monotonic,
        )

    return [executor(f"fleet-{number}") for number in range(processes)]
