"""What an unwind makes of effects that nothing takes back: a person decides what those are told who saw them."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest
from tests.acceptance.office import Office

from counterfoil.testing import World

MAIL = {"order": "1182", "to": "c@example.com", "subject": "Your parcel"}


@pytest.fixture
def office(world: World, use_tools: Callable[..., None]) -> Office:
    """The world's only tools."""
    made = Office(world)
    use_tools(*made.tools)
    return made


@pytest.fixture
def corrections(cli: Any) -> Callable[[], list[dict[str, Any]]]:
    """The open ones, as `correction list` tells them."""
    return lambda: json.loads(cli("correction", "list", "--json")[1])


def test_inside_silently_and_a_person_for_the_mail(
    world: World, office: Office, enqueue: Any, unwind: Any, run_state: Any, sql: Any
) -> None:
    """Ticket closed and charge refunded without a word; one correction waits for the mail, none for the charge."""
    enqueue("ticket", {"order": "1182"}, "ticket")
    enqueue("charge", {"order": "1182"}, "charge")
    enqueue("send_mail", MAIL, "mail")
    world.settle()
    handle = unwind()
    world.settle()
    assert office.undone() == ["charge 1182", "ticket 1182"]
    assert office.mail() == ["Your parcel"]
    assert run_state() == "unwind_blocked"
    rows = sql("SELECT correction_id, state, rank, audience FROM counterfoil.correction")
    assert [row[1:] for row in rows] == [("open", 1, ["customer"])]
    stands = {step["step"]: (step["standing"], step["why"], step["correction_id"]) for step in handle.result().value}
    assert stands["mail"] == ("person", "no_compensation", rows[0][0])
