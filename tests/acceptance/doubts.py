"""Actions in review, for tests: a charge whose answer was lost, what is on record of it, payments made by hand."""

from __future__ import annotations

import json
from typing import Any

import requests

from counterfoil.testing import World

CHARGE = {"customer": "cus_1", "amount_minor": 500, "currency": "usd", "order_id": "1182"}
CREATE = "payment_intents.create"
LANDED_S = 2.1
"""Past the fast profile's landing window."""


def doubt(
    world: World, enqueue: Any, sql: Any, fault: str = "504_after_commit", step: str = "fee", **changes: Any
) -> str:
    """A charge whose only answer was lost to `fault`, and that has come up for a person."""
    late: dict[str, Any] = {"delay_s": 1.5} if "then_commit" in fault else {}
    world.sandbox.stripe.fault(fault, on=CREATE, **late)
    action_id = enqueue("stripe_charge", CHARGE | changes, step)
    assert world.work() == 1
    to_review(sql, action_id)
    return str(action_id)


def to_review(sql: Any, action_id: str, code: str = "tool_unknown") -> None:
    """As when no reconciler has had its tool for an hour."""
    [[state]] = sql(
        "UPDATE counterfoil.action SET state = 'operator_review', last_error_code = %s, changed_by = 'rescue',"
        " change_reason = 'tool unknown' WHERE action_id = %s AND state = 'uncertain' RETURNING state",
        *(code, action_id),
    )
    assert state == "operator_review"


def shown(cli: Any, action_id: str) -> Any:
    code, told = cli("review", "show", action_id, "--json")
    assert code == 0
    return json.loads(told)


def state_of(sql: Any, action_id: str) -> tuple[str, str | None]:
    [row] = sql("SELECT state, receipt FROM counterfoil.action WHERE action_id = %s", action_id)
    return row[0], row[1]


def charge_ids(world: World) -> list[str]:
    return [effect.object_id for effect in world.sandbox.effects("charge")]


def sends(world: World) -> int:
    return len(world.sandbox.requests("stripe", CREATE))


def made_by_hand(world: World, key: str, amount: int, method: str = "pm_card_visa") -> str:
    """A payment that carries our key and was not made by us."""
    reply = requests.post(
        f"{world.sandbox.stripe.url}/v1/payment_intents",
        headers={"Authorization": "Bearer sk_test_sandbox"},
        data={
            "amount": amount,
            "currency": "usd",
            "customer": "cus_1",
            "payment_method": method,
            "confirm": "true",
            "off_session": "true",
            "metadata[counterfoil_key]": key,
            "metadata[counterfoil_order]": "1182",
        },
        timeout=3,
    )
    answer = reply.json()
    made = answer if reply.ok else answer["error"]["payment_intent"]
    return str(made["id"])
