"""A handed case: a provider is away for two hours. One alarm, rows that are asked about within the budget, and no person."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

import psycopg
import pytest
from structlog.testing import capture_logs

from counterfoil.reconciler.notify import Notifier
from counterfoil.reconciler.setup import reconciler_from
from counterfoil.testing import World
from counterfoil.workers.admission import FleetAdmission
from counterfoil.workers.limiter import LOOK_BURST_S
from counterfoil.workers.setup import limits_of

ROWS = 300
LANDED = 150
"""Of them: the effect is there, and its answer was lost on the way."""
TWO_HOURS_S = 7200.0
CHARGE = {"customer": "cus_1", "amount_minor": 500, "currency": "usd"}


@dataclass
class Heard:
    """A hook of people's."""

    documents: list[dict[str, Any]] = field(default_factory=list)

    def deliver(self, document: bytes) -> str | None:
        self.documents.append(json.loads(document))
        return None

    def alarms(self) -> list[tuple[str, str, str]]:
        return [(d["kind"], d["why"], d["subject"]) for d in self.documents if d["kind"].startswith("alarm")]


@pytest.fixture
def people(world: World) -> Heard:
    """Who is told by the world's reconciler, which asks within the fleet's rate for look-ups."""
    heard = Heard()
    clock: Callable[[], float] = world._monotonic
    admission = FleetAdmission(
        limits=lambda name: limits_of(world.settings.provider(name)), worker="w", store=None, monotonic=clock
    )
    made = reconciler_from(
        world.settings, by="reconciler-1", registry=world.registry, admission=admission, monotonic=clock
    )
    notifier = Notifier(ledger=made.ledger, hooks=lambda: (heard,), timeout_s=10.0, batch=50, remind_ratio=1.0)
    world._reconciler = replace(made, notifier=notifier)
    return heard


@pytest.fixture
def uncertain_charges(world: World, client: Any, database: Any, sql: Any) -> None:
    """As many charges whose answer was lost, half of them landed; from here on the provider is away altogether."""
    cf = client()
    with psycopg.connect(database.url("agent")) as connection:
        for number in range(ROWS):
            arguments = {**CHARGE, "order_id": str(number)}
            cf.enqueue(connection, "stripe_charge", arguments, tenant="acme", run=f"r{number}", step="s", actor="bot")
    world.sandbox.stripe.fault("504_after_commit", times=LANDED)
    world.sandbox.stripe.fault("504_before_commit", times=ROWS - LANDED)
    world.batch = 100
    while world.work():
        pass
    assert states(sql) == {"uncertain": ROWS}
    assert world.sandbox.count("charges") == LANDED
    world.sandbox.clear_faults()
    world.sandbox.stripe.fault("500_unstored", times=None)


def states(sql: Any) -> dict[str, int]:
    return dict(sql("SELECT state, count(*) FROM counterfoil.action GROUP BY 1"))


def moves(sql: Any, to_state: str) -> int:
    """Moves into the state out of a look-up, or out of waiting for one."""
    query = (
        "SELECT count(*) FROM counterfoil.history WHERE from_state IN ('reconciling', 'uncertain') AND to_state = %s"
    )
    [(count,)] = sql(query, to_state)
    return int(count)


def let_pass(world: World, seconds: float, step_s: float) -> None:
    """So much time, with worker and reconciler at work every `step_s`."""
    for _ in range(round(seconds / step_s)):
        world.work()
        world.reconcile()
        world.advance(step_s)


@pytest.mark.case("K4")
def test_the_provider_is_away_for_two_hours(world: World, people: Heard, uncertain_charges: None, sql: Any) -> None:
    """One alarm at its beginning and its end; questions within the rate; nothing is sent and nobody is asked because of it;
    then each charge is made once."""
    before = len(world.sandbox.stripe.requests())
    with capture_logs() as logs:
        let_pass(world, 60, 15)
        asked_in_a_minute = len(world.sandbox.stripe.requests()) - before
        let_pass(world, TWO_HOURS_S - 60, 340)
    assert states(sql) == {"uncertain": ROWS}
    assert (moves(sql, "ready"), moves(sql, "operator_review")) == (0, 0)
    assert people.alarms() == [("alarm", "outage", "stripe/default")]
    told = [entry for entry in logs if entry["event"] == "provider_outage"]
    assert [(e["provider"], e["account"], e["actions"]) for e in told] == [("stripe", "default", ROWS)]
    [(least, most)] = sql("SELECT min(lookup_count), max(lookup_count) FROM counterfoil.action")
    assert 10 <= least <= most <= 30, "asked about all the time, and less and less often"
    asked = len(world.sandbox.stripe.requests()) - before
    per_s = world.settings.provider("stripe").lookups_per_s
    assert asked_in_a_minute <= per_s * 60 + per_s * LOOK_BURST_S
    assert ROWS / 100 * least <= asked <= ROWS, "many rows share a request"

    world.sandbox.clear_faults()
    with capture_logs() as logs:
        let_pass(world, 1800, 120)
    assert moves(sql, "operator_review") == 0
    assert states(sql) == {"succeeded": ROWS}
    assert world.sandbox.count("charges") == ROWS
    assert people.alarms()[1:] == [("alarm_ended", "outage", "stripe/default")]
    [ended] = [entry for entry in logs if entry["event"] == "provider_answers_again"]
    assert TWO_HOURS_S - 120 <= ended["lasted_s"] <= TWO_HOURS_S + 900
