"""Rows that nothing will settle go to a person: in an account that nobody can use any more, or after an hour of answers."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import psycopg
import pytest

from counterfoil import Of, tool
from counterfoil.ledger import health
from counterfoil.providers.registry import Registry
from counterfoil.testing import World

Cli = Callable[..., tuple[int, str]]
CHARGE = {"customer": "cus_1", "amount_minor": 500, "currency": "usd", "order_id": "1"}
HOUR_S = 3600.0


def let_pass(world: World, seconds: float, step_s: float) -> None:
    """So much time, with worker and reconciler at work every `step_s`."""
    for _ in range(round(seconds / step_s)):
        world.work()
        world.reconcile()
        world.reconciler.unwind_runs()
        world.advance(step_s)


def ended(sql: Any, action_id: str) -> tuple[str, str | None]:
    [row] = sql("SELECT state, last_error_code FROM counterfoil.action WHERE action_id = %s", action_id)
    return row  # type: ignore[no-any-return]


def alarms(sql: Any) -> list[tuple[str, str, bool]]:
    return list(sql("SELECT kind, subject, ended_at IS NOT NULL FROM counterfoil.alarm ORDER BY alarm_id"))


def test_an_account_that_is_taken_away(
    world: World, enqueue: Callable[..., str], configure: Callable[..., None], sql: Any
) -> None:
    """Its row is a person's after the hour; another account's settles meanwhile. Nothing is sent again."""
    account = {"eu": {"api_key": "sk_test_eu", "tenants": ["globex"]}}
    configure("stripe", accounts=account)
    world.sandbox.stripe.fault("504_after_commit", times=2)
    taken = enqueue("stripe_charge", CHARGE, tenant="globex")
    other = enqueue("stripe_charge", CHARGE, run="r2")
    world.work()
    world.restart()
    configure("stripe", accounts={})
    let_pass(world, HOUR_S / 2, 300)
    assert ended(sql, other)[0] == "succeeded"
    assert ended(sql, taken)[0] == "uncertain"
    assert alarms(sql) == [("unreachable", "stripe/eu", False)]
    let_pass(world, HOUR_S, 300)
    assert ended(sql, taken) == ("operator_review", "unreachable")
    assert world.sandbox.count("charges") == 2


def test_an_account_that_is_put_back_in_time(
    world: World, enqueue: Callable[..., str], configure: Callable[..., None], sql: Any
) -> None:
    """The row settles, nobody is asked, and the alarm ends."""
    account = {"eu": {"api_key": "sk_test_eu", "tenants": ["globex"]}}
    configure("stripe", accounts=account)
    world.sandbox.stripe.fault("504_after_commit")
    taken = enqueue("stripe_charge", CHARGE, tenant="globex")
    world.work()
    world.restart()
    configure("stripe", accounts={})
    let_pass(world, HOUR_S / 2, 300)
    world.restart()
    configure("stripe", accounts=account)
    let_pass(world, HOUR_S / 2, 300)
    assert ended(sql, taken)[0] == "succeeded"
    assert alarms(sql) == [("unreachable", "stripe/eu", True)]


@tool(
    cls="compensatable",
    effect="parcel",
    target="order_id",
    once_per=None,
    audience=["warehouse"],
    provider="warehouse",
    lookup="parcels",
    undo="unpack",
)
def pack(order_id: str, *, key: str) -> dict[str, str]:
    """Pack an order. Of all but one the answer is lost."""
    if order_id != "fine":
        raise TimeoutError
    return {"id": "p1"}


@tool(
    cls="compensatable",
    effect="parcel",
    target="order_id",
    once_per=None,
    audience=["warehouse"],
    provider="warehouse",
    lookup="unpacked",
    undo=None,
)
def unpack(order_id: str, *, key: str, of: Of) -> dict[str, str]:
    """Unpack it."""
    return {"id": "u1"}


def parcels(key: str) -> list[dict[str, str]]:
    """The warehouse cannot be asked about any of them."""
    raise ConnectionResetError


def unpacked(of: Of) -> list[dict[str, str]]:
    return []


@pytest.fixture
def packing(world: World, use_tools: Callable[..., None]) -> World:
    """A world whose tools are the warehouse's."""
    use_tools(pack, unpack)
    return world


def test_people_see_an_outage(packing: World, enqueue: Callable[..., str], cli: Cli, sql: Any) -> None:
    """`alarm list` exits with 6 while it lasts, `alarm show` says what helps; the row waits."""
    assert cli("alarm", "list")[0] == 0
    row = enqueue("pack", {"order_id": "1"})
    let_pass(packing, 600, 60)
    code, out = cli("alarm", "list")
    assert (code, "warehouse/default" in out) == (6, True)
    [alarm] = json.loads(cli("alarm", "list", "--json")[1])
    assert (alarm["kind"], alarm["subject"], alarm["ended_at"]) == ("outage", "warehouse/default", None)
    code, out = cli("alarm", "show", alarm["id"])
    assert (code, "does not answer" in out) == (0, True)
    assert cli("alarm", "show", "A-999")[0] == 3
    assert ended(sql, row)[0] == "uncertain"


@pytest.mark.parametrize(("changed_to", "at_step"), [(None, 12), ("1200", 4)])
def test_a_row_that_no_look_up_settles(
    packing: World, enqueue: Callable[..., str], sql: Any, database: Any, changed_to: str | None, at_step: int
) -> None:
    """The provider answers about others, and about this one never: a person's after an hour, or as people set it."""
    row = enqueue("pack", {"order_id": "1"})
    if changed_to is not None:
        with psycopg.connect(database.url("operator2")) as connection:
            connection.execute(
                "SELECT counterfoil.change_settings(%s, %s, 'mia', 'cli', 'shorter')",
                (["providers.warehouse.uncertain_max_s"], [changed_to]),
            )
    states = []
    for _ in range(15):
        health.note(packing.ledger, "warehouse", "default", "look_up", failed=None)  # by whoever asks about the others
        let_pass(packing, 300, 300)
        states.append(ended(sql, row)[0])
    assert states.index("operator_review") == at_step
    assert ended(sql, row) == ("operator_review", "uncertain_too_long")
    assert alarms(sql) == []


def test_a_counter_action_that_cannot_be_built(
    packing: World, enqueue: Callable[..., str], use_tools: Callable[..., None], unwind: Any, sql: Any
) -> None:
    """Its tool is not loaded any more: one alarm for the step, however often the run is visited; loaded again, it ends."""
    done = enqueue("pack", {"order_id": "fine"})
    packing.work()
    both = packing.registry
    packing.restart()
    packing.registry = Registry()
    packing.registry.add(pack.__counterfoil_tool__)  # type: ignore[attr-defined]
    unwind()
    let_pass(packing, 60, 20)
    assert sql("SELECT state FROM counterfoil.run") == [("unwind_blocked",)]
    assert alarms(sql) == [("unwind_blocked", done, False)]
    packing.restart()
    packing.registry = both
    let_pass(packing, 60, 20)
    assert sql("SELECT state FROM counterfoil.run") == [("unwound",)]
    assert alarms(sql) == [("unwind_blocked", done, True)]
