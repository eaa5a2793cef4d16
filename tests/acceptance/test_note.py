"""Why a call is made, as its caller says: shown to the person who approves it, and part of what is approved."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import psycopg
import pytest
from tests.acceptance.people import Person

from counterfoil import ArgumentError, Counterfoil, Status
from counterfoil.testing import World

if TYPE_CHECKING:
    from tests.acceptance.shop import Shop
    from tests.conftest import Database


@pytest.fixture
def alice(world: World, shop: Shop, database: Database) -> Iterator[Person]:
    person = Person(database.url("operator"), world.registry, "alice")
    yield person
    person.ledger.close()


def test_the_approver_reads_why(world: World, client: Callable[..., Counterfoil], shop: Shop, alice: Person) -> None:
    """The note of the call that has recorded it; a repeat's changes nothing, and the digest is over it."""
    run = client().run("r1", tenant="acme", actor="bot")
    asked = run.call("ask_customer", {"order": "1"}, note="the parcel came back twice", wait_s=0)
    again = run.call("ask_customer", {"order": "1"}, note="no reason", wait_s=0)
    assert again.action_id == asked.action_id
    [proposal] = alice.waiting()
    assert alice.show(proposal).proposal.note == "the parcel came back twice"
    alice.approve(proposal)
    world.settle()
    assert shop.count("ask_customer") == 1


def test_a_note_is_written_with_its_proposal_only(
    client: Callable[..., Counterfoil], shop: Shop, alice: Person, database: Database
) -> None:
    """What a person may have been shown is not changed by an agent's login any more."""
    run = client().run("r1", tenant="acme", actor="bot")
    asked = run.call("ask_customer", {"order": "1"}, note="first", wait_s=0)
    [proposal] = alice.waiting()
    digest = alice.show(proposal).digest
    with psycopg.connect(database.url("agent")) as connection:
        connection.execute("SELECT counterfoil.note_proposal(%s, 'second')", (asked.action_id,))
    assert (alice.show(proposal).proposal.note, alice.show(proposal).digest) == ("first", digest)


@pytest.mark.parametrize("note", ["x" * 2001, "a\0b", "\ud800"])
def test_what_nobody_could_read_is_refused(client: Callable[..., Counterfoil], shop: Shop, note: Any) -> None:
    """The caller's mistake, before anything is recorded."""
    run = client().run("r1", tenant="acme", actor="bot")
    with pytest.raises(ArgumentError, match="note"):
        run.call("ask_customer", {"order": "1"}, note=note, wait_s=0)
    assert run.so_far() == []


def test_a_note_of_a_call_that_nobody_approves_is_kept_by_nobody(
    client: Callable[..., Counterfoil], shop: Shop, alice: Person
) -> None:
    """It needs no person, so it asks none."""
    run = client().run("r1", tenant="acme", actor="bot")
    assert run.call("refund", {"order": "1"}, note="late", wait_s=0).status is Status.PENDING
    assert alice.waiting() == []
