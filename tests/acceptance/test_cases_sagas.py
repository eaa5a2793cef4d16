"""Handed cases of runs that are interrupted."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from counterfoil import Counterfoil
from counterfoil.testing import World

CHARGE = {"customer": "cus_1", "amount_minor": 500, "currency": "usd", "order_id": "1182"}
TICKET = {"project": "SUP", "summary": "Refund for order 1182", "order_id": "1182"}


@pytest.mark.case("F1")
@pytest.mark.parametrize(
    ("tool", "arguments", "operation", "kind"),
    [
        pytest.param("stripe_charge", CHARGE, "payment_intents.create", "charges", id="stripe"),
        pytest.param("jira_create", TICKET, "issue.create", "tickets_created", id="jira"),
    ],
)
def test_pod_evicted_between_effect_and_record(
    world: World,
    client: Callable[..., Counterfoil],
    passed: Any,
    tool: str,
    arguments: Any,
    operation: str,
    kind: str,
) -> None:
    """Agent and worker are gone after the effect: the resumed run calls nothing, evidence decides first, one effect."""
    place = {"tenant": "acme", "actor": "bot"}
    with client().run("r1", **place) as run, world.crash_after("before_settle"):
        first = run.call(tool, arguments, ref="turn-1:call_0", wait_s=0)
        world.work()
    assert first.action_id is not None
    assert world.crashes == ["before_settle"]
    assert world.sandbox.count(kind) == 1, "done, and nobody has written it down"
    resumed = client().run("r1", **place)
    for _ in range(2):
        again = resumed.call(tool, arguments, ref="turn-1:call_0", wait_s=0)
        assert (again.action_id, again.status) == (first.action_id, "pending")
        assert world.work() == 0, "the dead worker's lease still holds"
    world.advance(world.settings.workers.lease_s + 0.1)
    assert world.reconciler.sweep_leases() == 1
    unknown = resumed.call(tool, arguments, ref="turn-1:call_1", wait_s=0)
    assert (unknown.action_id, unknown.status, unknown.retry_allowed) == (first.action_id, "uncertain", False)
    assert world.work() == 0
    world.settle()
    known = resumed.call(tool, arguments, ref="turn-1:call_1", wait_s=0)
    assert (known.action_id, known.status) == (first.action_id, "succeeded")
    assert passed(first.action_id)[:4] == ["ready", "executing", "uncertain", "reconciling"]
    assert "ready" not in passed(first.action_id)[1:]
    assert world.sandbox.count(kind) == len(world.sandbox.requests(operation=operation)) == 1
