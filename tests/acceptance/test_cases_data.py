"""Handed cases of data: what JSON, text and numbers do to arguments and answers, and what two tenants share."""

from __future__ import annotations

import json
from collections.abc import Callable
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any

import psycopg
import pytest
import requests

from counterfoil import ArgumentError, Counterfoil, NotAllowed
from counterfoil.ledger.canonical import sha256_of
from counterfoil.ledger.errors import NotFound
from counterfoil.ledger.keys import provider_key
from counterfoil.providers.tool import tool
from counterfoil.testing import World

CHARGE = {"customer": "cus_1", "amount_minor": 500, "currency": "usd", "order_id": "1182"}
TICKET = {"project": "SUP", "summary": "Refund for order 1182", "order_id": "1182"}


@pytest.mark.case("H1")
@pytest.mark.parametrize(
    ("arguments", "path"),
    [
        pytest.param(TICKET | {"description": "a\0b"}, "$.description", id="object"),
        pytest.param(json.dumps(TICKET | {"description": "a\0b"}), "$.description", id="text"),
        pytest.param(TICKET | {"\0": "x"}, '$["\\u0000"]', id="key"),
    ],
)
def test_nul_in_arguments(
    world: World, enqueue: Any, client: Callable[..., Counterfoil], arguments: Any, path: str
) -> None:
    """A NUL in an argument is refused with the field's path, by code's door and the model's, before any row."""
    with pytest.raises(ArgumentError) as refused:
        enqueue("jira_create", arguments)
    assert (refused.value.path, refused.value.code) == (path, "nul")
    with client().run("r1", tenant="acme", actor="bot") as run:
        told = run.call("jira_create", arguments, wait_s=0)
    assert (told.status, told.code, told.field) == ("failed", "nul", path.removeprefix("$").removeprefix("."))
    world.settle()
    assert world.states() == {}
    assert world.sandbox.requests() == []


@pytest.mark.case("H1")
@pytest.mark.parametrize("provider", ["stripe", "jira"])
def test_nul_in_an_answer(world: World, enqueue: Any, sql: Any, provider: str) -> None:
    """A NUL and half a surrogate in the provider's answer are cleaned, and the success is written from that answer."""
    tool, arguments, operation = {
        "stripe": ("stripe_charge", CHARGE, "payment_intents.create"),
        "jira": ("jira_create", TICKET, "issue.create"),
    }[provider]
    action_id = enqueue(tool, arguments)
    answer = {
        "stripe": {
            "object": "payment_intent",
            "id": "pi_\0\ud800clean",
            "status": "succeeded",
            "amount": 500,
            "currency": "us\0d",
            "metadata": {"counterfoil_key": provider_key(world.settings.key_secret(), "acme", tool, action_id)},
        },
        "jira": {"id": "100\x0001", "key": "SUP-\0\ud8001"},
    }[provider]
    world.sandbox.fault(
        "answer", operation=operation, status=201 if provider == "jira" else 200, commit=True, body=json.dumps(answer)
    )
    world.work()
    [(state, receipt, result)] = sql("SELECT state, receipt, result FROM counterfoil.action")
    assert (state, receipt) == ("succeeded", {"stripe": "pi_clean", "jira": "SUP-1"}[provider])
    assert (
        json.loads(result)
        == {
            "stripe": {"id": "pi_clean", "status": "succeeded", "amount": 500, "currency": "usd"},
            "jira": {"id": "10001", "key": "SUP-1"},
        }[provider]
    )
    counts = world.sandbox.counts()
    assert counts["charges"] + counts["tickets_created"] == 1


@tool(
    cls="irreversible",
    provider="scales",
    effect="weighing",
    target="order_id",
    once_per=None,
    audience=["warehouse"],
    approval="never",
    native_key_ttl_s=86400,
)
def weigh(order_id: str, a: float, base: str, *, key: str) -> dict[str, object]:
    reply = requests.post(
        f"{base}/shipments",
        json={"order": order_id, "a": a},
        headers={"Idempotency-Key": key},
        timeout=3,
        allow_redirects=False,
    )
    reply.raise_for_status()
    return dict(reply.json())


@pytest.mark.case("H2")
@pytest.mark.parametrize(
    ("a", "text"), [(1e20, "100000000000000000000"), (-0.0, "0"), (5e-324, "5e-324"), (1e21, "1e+21")]
)
def test_hash_of_odd_numbers(world: World, enqueue: Any, use_tools: Any, sql: Any, a: float, text: str) -> None:
    """The hash that the worker computes at its claim is the recorded one, and the value arrives as it was given."""
    use_tools(weigh)
    given: dict[str, object] = {"order_id": "1182", "a": a, "base": world.sandbox.warehouse.url}
    action_id = enqueue("weigh", given)
    assert enqueue("weigh", json.dumps(given)) == action_id, "a model's text is the same intent"
    [(stored, recorded)] = sql("SELECT arguments, arguments_sha256 FROM counterfoil.action")
    assert f'"a":{text},' in stored
    world.settle()
    assert world.states() == {"weigh/s1/do": "succeeded"}, "a difference would be policy_mismatch, for a person"
    assert sql("SELECT arguments, arguments_sha256 FROM counterfoil.action") == [(stored, recorded)]
    assert sha256_of(stored) == recorded
    [shipment] = world.sandbox.effects("shipment")
    assert shipment.data["a"] == a
    assert enqueue("weigh", given) == action_id


def _deep(levels: int) -> Any:
    value: Any = 1
    for _ in range(levels):
        value = [value]
    return value


_TEXT = json.dumps(TICKET)[:-1]

REFUSED = {
    "nan": (TICKET | {"description": float("nan")}, "$.description", "not_finite"),
    "nan-text": (_TEXT + ', "description": NaN}', "$.description", "not_finite"),
    "infinity": (TICKET | {"description": float("inf")}, "$.description", "not_finite"),
    "infinity-text": (_TEXT + ', "description": -Infinity}', "$.description", "not_finite"),
    "overflow-text": (_TEXT + ', "description": 1e999}', "$.description", "not_finite"),
    "surrogate": (TICKET | {"description": "\ud800"}, "$.description", "lone_surrogate"),
    "surrogate-text": (_TEXT + ', "description": "\\ud800"}', "$.description", "lone_surrogate"),
    "duplicate-key": (_TEXT + ', "order_id": "1183"}', "$.order_id", "duplicate_key"),
    "decimal": (TICKET | {"description": Decimal("5.00")}, "$.description", "not_json"),
    "datetime": (TICKET | {"description": datetime(2026, 1, 1, tzinfo=UTC)}, "$.description", "not_json"),
    "megabyte": (TICKET | {"description": "x" * 1_000_000}, "$.description", "too_large"),
    "megabyte-text": (_TEXT + ', "description": "' + "x" * 1_000_000 + '"}', "$", "too_large"),
    "depth-2000": (TICKET | {"description": _deep(2000)}, "$.description" + "[0]" * 31, "too_deep"),
    "depth-2000-text": (_TEXT + ', "description": ' + "[" * 2000 + "]" * 2000 + "}", "$", "too_deep"),
}


@pytest.mark.case("H4")
def test_values_that_are_refused_at_the_door(
    world: World, enqueue: Any, client: Callable[..., Counterfoil], sql: Any
) -> None:
    """What is not plain, bounded JSON is refused with its path, by code's door and the model's, before any row."""
    for name, (arguments, path, code) in REFUSED.items():
        with pytest.raises(ArgumentError) as refused:
            enqueue("jira_create", arguments)
        assert (name, refused.value.path, refused.value.code) == (name, path, code)
    assert sql("SELECT count(*) FROM counterfoil.run") == [(0,)]
    with client().run("r1", tenant="acme", actor="bot") as run:
        for name, (arguments, path, code) in REFUSED.items():
            told = run.call("jira_create", arguments, wait_s=0)
            assert (name, told.status, told.code, told.action_id) == (name, "failed", code, None)
            assert told.field == (path.removeprefix("$").removeprefix(".") or None)
    world.settle()
    assert world.states() == {}
    assert world.sandbox.requests() == []


@pytest.mark.case("J1")
def test_two_tenants_with_everything_else_alike(
    world: World, enqueue: Any, client: Callable[..., Counterfoil], database: Any, sql: Any
) -> None:
    """Same run, step, tool and arguments: two rows, two keys, two effects; neither tenant can read or touch the other's."""
    sql("DELETE FROM counterfoil.principal WHERE role_name = 'cf_agent' AND tenant_id <> 'acme'")
    mine = enqueue("stripe_charge", CHARGE)
    globex = client("agent2")
    place = {"run": "r1", "step": "s1", "actor": "bot"}
    with psycopg.connect(database.url("agent2")) as connection:
        theirs = globex.enqueue(connection, "stripe_charge", CHARGE, tenant="globex", **place)
    world.settle()
    assert mine != theirs
    assert sql("SELECT count(*), count(DISTINCT key), count(DISTINCT receipt) FROM counterfoil.action") == [(2, 2, 2)]
    assert len({effect.key for effect in world.sandbox.effects("charge")}) == world.sandbox.count("charges") == 2
    for cf, tenant, own, other in ((client(), "acme", mine, theirs), (globex, "globex", theirs, mine)):
        assert cf.result(own).status == "succeeded"
        with pytest.raises(NotFound):
            cf.result(other)
        with pytest.raises((NotFound, NotAllowed)):
            cf.cancel(other, "not mine")
        foreign = "globex" if tenant == "acme" else "acme"
        with pytest.raises(NotAllowed):
            cf.run("r1", tenant=foreign, actor="bot")
        assert [told["action_id"] for told in cf.run("r1", tenant=tenant, actor="bot").so_far()] == [own]
    for role, tenant in (("agent", "acme"), ("agent2", "globex")):
        with psycopg.connect(database.url(role)) as connection:
            seen = connection.execute("SELECT DISTINCT tenant FROM counterfoil.action").fetchall()
        assert seen == [(tenant,)]
    with psycopg.connect(database.url("agent2")) as connection, pytest.raises(NotAllowed):
        globex.enqueue(connection, "stripe_charge", CHARGE, tenant="acme", **place)
    world.settle()
    assert world.sandbox.count("charges") == 2


@pytest.mark.case("J1")
@pytest.mark.parametrize(
    ("one", "other"),
    [
        pytest.param(("a:b", "c", "s1"), ("a", "b:c", "s1"), id="tenant-and-run"),
        pytest.param(("acme", "a:b", "c"), ("acme", "a", "b:c"), id="run-and-step"),
    ],
)
def test_ids_that_would_be_one_when_joined(
    world: World, enqueue: Any, sql: Any, one: tuple[str, str, str], other: tuple[str, str, str]
) -> None:
    """Twin: ("a:b", "c") and ("a", "b:c") are two actions under two keys, with two effects."""
    for tenant, run, step in (one, other):
        sql("INSERT INTO counterfoil.principal VALUES ('cf_agent', %s) ON CONFLICT DO NOTHING", tenant)
        enqueue("stripe_charge", CHARGE, step, run, tenant)
    world.settle()
    assert sql("SELECT count(*), count(DISTINCT action_id), count(DISTINCT key) FROM counterfoil.action") == [(2, 2, 2)]
    assert set(world.states().values()) == {"succeeded"}
    assert len({effect.key for effect in world.sandbox.effects("charge")}) == world.sandbox.count("charges") == 2
