"""A finding that the ledger refuses, of an adapter that is not ours, stops no other row of its batch."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from counterfoil.providers.contract import Call
from counterfoil.providers.outcomes import Finding, Found, Succeeded
from counterfoil.testing import World

TICKET = {"project": "SUP", "summary": "Refund", "order_id": "0"}


class Verbose:
    """Gives one call a receipt that is longer than any may be."""

    def __init__(self, adapter: Any, action_id: str) -> None:
        self._adapter, self._action_id = adapter, action_id

    def lookup(self, calls: Sequence[Call], *, timeout_s: float) -> Mapping[str, Finding]:
        findings = dict(self._adapter.lookup(calls, timeout_s=timeout_s))
        return {
            id_: Found(Succeeded("x" * 300)) if id_ == self._action_id and isinstance(finding, Found) else finding
            for id_, finding in findings.items()
        }


def test_a_receipt_that_is_too_long(world: World, enqueue: Any, sql: Any) -> None:
    """Two tickets of three are settled by the look-up that found all; the third is a person's in the end, sent once."""
    world.sandbox.jira.fault("504_after_commit", on="issue.create", times=3)
    ids = [enqueue("jira_create", TICKET | {"order_id": str(n)}, run=f"r{n}") for n in range(3)]
    world.work()
    made = world.reconciler
    odd = replace(made.look_ups, adapter=lambda spec, account: Verbose(made.look_ups.adapter(spec, account), ids[0]))
    world._reconciler = replace(made, look_ups=odd)
    world.settle_within(1800)
    states = dict(sql("SELECT action_id, state FROM counterfoil.action"))
    assert [states[id_] for id_ in ids] == ["uncertain", "succeeded", "succeeded"]
    for _ in range(20):
        world.advance(300)
        world.reconcile()
    assert sql("SELECT state, last_error_code FROM counterfoil.action WHERE action_id = %s", ids[0]) == [
        ("operator_review", "uncertain_too_long")
    ]
    assert len(world.sandbox.requests("jira", "issue.create")) == 3
