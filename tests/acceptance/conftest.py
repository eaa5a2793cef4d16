"""Fixtures of the acceptance tests: an agent that enqueues into the world's ledger."""

from __future__ import annotations

import json
from collections.abc import Callable

import pytest

from counterfoil.ledger.canonical import canonical_json, sha256_of
from counterfoil.ledger.connection import Ledger
from counterfoil.ledger.keys import action_id
from counterfoil.ledger.queries import load
from counterfoil.testing import World

_AGENT = load("counterfoil.ledger", "sql/agent.sql")


def propose(world: World, url: str, tool: str, arguments: dict, step: str, run: str = "r1") -> str:
    spec = world.registry.get(tool)
    args = spec.validate(arguments)
    text = canonical_json(args)
    aid = action_id("acme", run, step, 1, "do")
    comp = spec.compensation_of(args, aid)
    amount, currency = spec.amount_of(args)
    ledger = Ledger(url)
    row = ledger.row(
        _AGENT["propose"],
        {
            "action_id": aid,
            "tenant": "acme",
            "run": run,
            "step": step,
            "seq": None,
            "revision": 1,
            "actor": "bot",
            "tool": tool,
            "tool_version": spec.version,
            "class": spec.cls.value,
            "effect": spec.effect,
            "target": spec.target_of(args),
            "provider": spec.provider,
            "account": "default",
            "queue": spec.queue,
            "arguments": text,
            "arguments_sha256": sha256_of(text),
            "audience": spec.audience_of(args),
            "compensation": canonical_json(comp) if comp else None,
            "once_key": None,
            "repeat_reason": None,
            "amount_minor": amount,
            "currency": currency,
            "needs_approval": False,
            "not_before": None,
            "supersedes": None,
            "ref": None,
        },
    )
    ledger.close()
    assert row is not None, "no answer"
    assert row["created"], json.dumps(row, default=str)
    return aid


@pytest.fixture
def enqueue(world: World, database) -> Callable[..., str]:
    return lambda tool, arguments, step="s1", run="r1": propose(
        world, database.url("agent"), tool, arguments, step, run
    )
