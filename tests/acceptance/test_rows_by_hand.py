"""Rows that an agent's login writes by the ledger's door itself: no worker does for them what no library call gets."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from tests.acceptance.gates import Gates, open_gates

from counterfoil.ledger.canonical import sha256_of
from counterfoil.testing import World

if TYPE_CHECKING:
    from tests.conftest import Database

POLICY = ("operator_review", "policy_mismatch")


@pytest.fixture
def gates(world: World, database: Database) -> Gates:
    """The world with tools that post to its warehouse."""
    return open_gates(world, database)


def test_an_agent_takes_nothing_back_by_itself(gates: Gates, world: World) -> None:
    """A tool about another action is called by unwinds, and by plans that a person approves; not by an agent's own code."""
    parcel = gates.ask("parcel", order="1")
    world.settle()
    spec = world.registry.get("call_back")
    by_hand = {"tool": spec.name, "effect": spec.effect, "parent": parcel, "once_key": None, "compensation": None}
    forged = gates.propose(gates.intent("parcel", order="2"), **by_hand, arguments='{"order":"2"}', amount_minor=None,
                           currency=None, arguments_sha256=sha256_of('{"order":"2"}'))  # fmt: skip
    world.settle()
    assert gates.sent == 1
    assert gates.ended(forged) == POLICY


def test_arguments_too_deep_to_read(gates: Gates, world: World) -> None:
    """What no door lets in, written by hand, ends with a person; the worker goes on with the next action."""
    deep = '{"order":' + "[" * 2_000 + "]" * 2_000 + "}"
    forged = gates.propose(gates.intent("parcel", order="1"), arguments=deep, arguments_sha256=sha256_of(deep))
    other = gates.ask("parcel", order="2")
    world.settle()
    assert gates.ended(forged) == POLICY
    assert gates.read(other)["state"] == "succeeded"


def test_an_argument_that_was_left_out(gates: Gates, world: World) -> None:
    """What has a default is recorded and shown; left out by hand, nobody was shown what the tool would put in its place."""
    said = '{"order":"1"}'
    forged = gates.propose(
        gates.intent("gated_parcel", order="1"),
        arguments=said,
        arguments_sha256=sha256_of(said),
        amount_minor=None,
        currency=None,
    )
    assert gates.approve(forged) == "approved"
    world.settle()
    assert gates.sent == 0
    assert gates.ended(forged) == POLICY
