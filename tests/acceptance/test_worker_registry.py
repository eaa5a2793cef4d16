"""A worker believes its own registry: a row that says otherwise is not executed, it goes to a person."""

from __future__ import annotations

import psycopg
import pytest

from counterfoil.testing import World

CHARGE = {"customer": "cus_1", "amount_minor": 500, "currency": "usd", "order_id": "1182"}


@pytest.mark.parametrize(
    "change",
    [
        "class = 'reversible'",
        "effect = 'nothing'",
        "target = 'other'",
        "amount_minor = 1",
        'compensation = \'{"arguments":{},"tool":"stripe_refund"}\'',
        "arguments = replace(arguments, '500', '900'), "
        "arguments_sha256 = encode(sha256(convert_to(replace(arguments, '500', '900'), 'UTF8')), 'hex')",
        "run = 'other'",
    ],
)
def test_a_forged_row_is_not_executed(world: World, database, enqueue, change: str) -> None:
    """Whatever of an intent was changed behind the ledger's back, nothing is sent and a person is asked."""
    enqueue("stripe_charge", CHARGE)
    with psycopg.connect(database.url("owner")) as connection:
        connection.execute("SET session_replication_role = replica")  # the triggers would refuse it
        connection.execute(f"UPDATE counterfoil.action SET {change}".encode())
    world.settle()
    assert list(world.states().values()) == ["operator_review"]
    assert world.sandbox.count("charges") == 0
