"""A handed case about waiting: whom an unknown outcome holds up, and whom it does not."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from counterfoil.testing import World

CHARGE = {"customer": "cus_1", "amount_minor": 500, "currency": "usd"}
TICKET = {"project": "SUP", "summary": "Refund"}


@pytest.mark.case("F3")
def test_one_uncertain_row_holds_up_its_own_run_alone(world: World, client: Any) -> None:
    """One outcome stays unknown: that run's next step waits for it; other runs, and another tenant's, are done meanwhile."""

    def call(tenant: str, run: str, tool: str, arguments: Mapping[str, object]) -> Any:
        return runs[tenant, run].call(tool, {**arguments, "order_id": run}, wait_s=0)

    others = [("acme", "r2"), ("globex", "r1")]
    runs = {(tenant, run): client().run(run, tenant=tenant, actor="bot") for tenant, run in [("acme", "r1"), *others]}
    world.sandbox.jira.fault("504_after_commit", on="issue.create")
    world.sandbox.jira.fault("search_500", times=None)
    first = call("acme", "r1", "jira_create", TICKET)
    world.work()
    held = call("acme", "r1", "stripe_charge", CHARGE)
    assert (held.status, held.action_id, world.sandbox.count("charges")) == ("blocked", first.action_id, 0)

    for tenant, run in others:
        for tool, arguments in (("jira_create", TICKET), ("stripe_charge", CHARGE)):
            call(tenant, run, tool, arguments)
            world.work()
            world.reconcile()
            assert call(tenant, run, tool, arguments).status == "succeeded"
    assert call("acme", "r1", "jira_create", TICKET).status == "uncertain", "all that happened meanwhile"
    assert call("acme", "r1", "stripe_charge", CHARGE).status == "blocked"
    assert (world.sandbox.count("charges"), world.sandbox.count("tickets_created")) == (2, 3)

    world.sandbox.clear_faults()
    world.settle()
    assert call("acme", "r1", "jira_create", TICKET).status == "succeeded"
    call("acme", "r1", "stripe_charge", CHARGE)
    world.settle()
    assert call("acme", "r1", "stripe_charge", CHARGE).status == "succeeded"
    assert (world.sandbox.count("charges"), world.sandbox.count("tickets_created")) == (3, 3)
