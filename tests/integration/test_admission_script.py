"""The script in Redis does what the model says: the same answers and the same state, whatever is asked in which order."""

from __future__ import annotations

import json
from importlib.resources import files
from typing import Any

import pytest
import redis
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from counterfoil.workers.kinds import Ask, Kind, Result
from counterfoil.workers.limiter import Limiter, Limits, Recalled

START_MS = 1_796_000_000_000.0

limits_drawn = st.builds(
    Limits,
    tokens_max=st.sampled_from([0.0, 10.0, 37.5, 500.0]),
    refill_per_success=st.sampled_from([0.0, 0.1, 1.0]),
    refill_per_min=st.sampled_from([0.0, 10.0, 333.3]),
    cost_after_timeout=st.sampled_from([1.0, 10.0]),
    cost_after_throttle=st.sampled_from([0.5, 5.0]),
    ratio_max=st.sampled_from([0.0, 0.1, 1.0]),
    retries_per_min_min=st.sampled_from([0.0, 1.0, 10.0]),
    tenant_share=st.sampled_from([None, 0.2, 1.0]),
    rate_per_s=st.sampled_from([0.3, 5.0, 25.0, 1000.0]),
    concurrency_max=st.sampled_from([1, 3, 16]),
    lookups_per_s=st.sampled_from([0.7, 5.0]),
    failures_min=st.sampled_from([1, 3, 10]),
    failure_ratio=st.sampled_from([0.3, 0.5, 1.0]),
    window_ms=st.sampled_from([1000.0, 10_000.0]),
    open_ms=st.sampled_from([200.0, 1000.0]),
    open_max_ms=st.sampled_from([1000.0, 4000.0]),
)
tickets = st.sampled_from(["t1", "t2", "t3", "t4"])
asks = st.tuples(st.sampled_from(list(Kind)), st.sampled_from(["acme", "globex", "x"]))
steps = st.one_of(
    st.fixed_dictionaries(
        {
            "op": st.just("admit"),
            "ticket": tickets,
            "worker": st.sampled_from(["w1", "w2"]),
            "lease_ms": st.sampled_from([500.0, 30_000.0]),
            "asks": st.lists(asks, min_size=1, max_size=6),
            "recalled": st.one_of(
                st.none(),
                st.tuples(st.sampled_from([0.0, START_MS, 5.0]), st.sampled_from([0.0, 2.0, 90.0]), st.booleans()),
            ),
        }
    ),
    st.fixed_dictionaries(
        {
            "op": st.just("report"),
            "ticket": tickets,
            "results": st.lists(st.tuples(asks, st.sampled_from(list(Result))), max_size=6),
            "done": st.booleans(),
        }
    ),
    st.fixed_dictionaries({"op": st.just("look_up"), "wanted": st.integers(0, 9)}),
    st.fixed_dictionaries({"op": st.just("found"), "effects": st.integers(0, 9)}),
)
pauses = st.sampled_from([0.0, 1.0, 37.0, 250.0, 1100.0, 6000.0, 61_000.0, 3_700_000.0, -5000.0])


@pytest.fixture
def script(valkey: tuple[str, str]) -> Any:
    """Asks the script under a key of the test's own."""
    url, prefix = valkey
    client = redis.Redis.from_url(url)
    run = client.register_script((files("counterfoil.workers") / "admission.lua").read_text())

    def ask(op: str, limits: Limits, asked: dict[str, Any], now: float, *, key: str = "p") -> Any:
        plain = {name: getattr(limits, name) for name in limits.__dataclass_fields__}
        return json.loads(run(keys=[prefix + key], args=[op, json.dumps(plain), json.dumps(asked), repr(now)]))

    ask.client, ask.prefix = client, prefix  # type: ignore[attr-defined]
    return ask


@given(limits=limits_drawn, played=st.lists(st.tuples(pauses, steps), min_size=1, max_size=40))
@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_the_script_is_the_model(script: Any, limits: Limits, played: list[tuple[float, dict[str, Any]]]) -> None:
    """Every answer, and what there is to see after it, is the model's."""
    script.client.delete(script.prefix + "p")
    now = START_MS
    model: Limiter | None = None
    for pause, step in played:
        now += pause
        model = model or Limiter.fresh(now, limits)
        wanted, got = _both(script, model, limits, now, dict(step))
        assert got == pytest.approx(wanted), (step, now)
        got, wanted = script("seen", limits, {}, now), model.seen(now, limits)
        assert _close(got, wanted), (got, wanted)


def _both(script: Any, model: Limiter, limits: Limits, now: float, step: dict[str, Any]) -> tuple[Any, Any]:
    op = step.pop("op")
    match op:
        case "admit":
            said = script("admit", limits, step, now)
            recalled = None if step["recalled"] is None else Recalled(*step["recalled"])
            asks = [Ask(*ask) for ask in step["asks"]]
            want = model.admit(now, limits, **{**step, "asks": asks, "recalled": recalled})
            return [x for s in want for x in (s.reason or "", s.wait_ms)], [
                x for reason, wait in said["said"] for x in (reason or "", wait)
            ]
        case "report":
            flat = [[*ask, result] for ask, result in step["results"]]
            said = script("report", limits, {**step, "results": flat}, now)
            results = [(Ask(*ask), result) for ask, result in step["results"]]
            return model.report(now, limits, **{**step, "results": results}), said["go_on"]
        case "look_up":
            said = script("look_up", limits, step, now)
            return list(model.look_up(now, limits, step["wanted"])), [said["granted"], said["wait_ms"]]
        case _:
            script("found", limits, step, now)
            model.found(now, limits, step["effects"])
            return True, True


def _close(got: Any, wanted: Any) -> bool:
    if isinstance(wanted, dict):
        return got.keys() == wanted.keys() and all(_close(got[k], wanted[k]) for k in wanted)
    return bool(got == pytest.approx(wanted))
