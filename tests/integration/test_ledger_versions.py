"""What reading a version does to a proposed row: who may read it, how often, and what becomes of it then."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

import psycopg
import pytest

from counterfoil.ledger import versions
from counterfoil.ledger.connection import Ledger

if TYPE_CHECKING:
    from tests.conftest import Database
    from tests.integration.conftest import Rows

AtOnce = Callable[[Sequence[Callable[[], Any]]], list[Any]]

TOOLS = [("stripe_charge", 1)]


@pytest.fixture
def ledger(rows: Rows) -> Ledger:
    return rows.ledger()


def unread(rows: Rows, **changes: Any) -> str:
    return str(rows.propose(reads_version=True, **changes)["action_id"])


def claim(ledger: Ledger, tools: Sequence[tuple[str, int]] = TOOLS) -> versions.UnreadAction | None:
    return versions.claim_unread(ledger, tools=tools, lease_s=60, tries_max=5)


def taken(ledger: Ledger) -> versions.UnreadAction:
    action = claim(ledger)
    assert action is not None
    return action


def record(ledger: Ledger, action: versions.UnreadAction, version: str = "7") -> str | None:
    return versions.record_version(ledger, action, version=version, by="beat")


def give_up(ledger: Ledger, tools: Sequence[tuple[str, int]] = TOOLS) -> list[str]:
    return versions.give_up_unread(ledger, tools=tools, tries_max=5, older_s=3600, by="beat")


def test_many_readers_take_each_row_once(rows: Rows, at_once: AtOnce) -> None:
    """Eight readers at once, five rows: each row is one reader's, for as long as its lease."""
    made = {unread(rows, run=f"r{n}") for n in range(5)}
    ledgers = [rows.ledger() for _ in range(8)]
    got = [action.action_id for action in at_once([partial(claim, each) for each in ledgers]) if action is not None]
    got += [action.action_id for action in iter(lambda: claim(ledgers[0]), None)]
    assert sorted(got) == sorted(made)


@pytest.mark.parametrize(
    ("changes", "state", "wake_ups"),
    [({}, "ready", [1]), ({"needs_approval": True}, "awaiting_approval", [])],
)
def test_where_a_row_goes_when_it_was_read(
    rows: Rows, ledger: Ledger, changes: dict[str, object], state: str, wake_ups: list[int]
) -> None:
    """Ungated it may be claimed at once, with its wake-up in the same statement; gated it waits for a person."""
    action_id = unread(rows, **changes)
    assert (rows.read(action_id)["state"], rows.wake_ups(action_id)) == ("proposed", [])
    assert record(ledger, taken(ledger)) == state
    row = rows.read(action_id)
    assert (row["state"], row["expected_resource_version"], row["lookup_count"]) == (state, "7", 0)
    assert rows.wake_ups(action_id) == wake_ups
    assert rows.history(action_id) == [(None, "proposed"), ("proposed", state)]


def test_a_later_step_waits_for_its_turn(rows: Rows, ledger: Ledger) -> None:
    """Read, and still proposed: only the step before it, and an approval, move it on."""
    later = rows.build("proposed", place=2, reads_version=True, needs_approval=True, next_lookup_at="1 second ago")
    assert record(ledger, taken(ledger)) == "proposed"
    assert rows.read(later)["expected_resource_version"] == "7"
    assert claim(ledger) is None


def test_the_first_reading_stands(rows: Rows, ledger: Ledger, database: Database) -> None:
    """A reader whose lease ended is told that it came too late, whatever it has read."""
    action_id = unread(rows)
    slow = taken(ledger)
    assert claim(ledger) is None
    database.advance(61)
    fast = taken(ledger)
    assert (slow.lookup_count, fast.lookup_count) == (1, 2)
    assert not versions.read_later(ledger, slow, after_s=999), "its failure is no longer the newest"
    assert record(ledger, fast, "8") == "ready"
    assert record(ledger, slow, "7") is None
    assert rows.read(action_id)["expected_resource_version"] == "8"


def test_what_was_withdrawn_is_not_read(rows: Rows, ledger: Ledger) -> None:
    """Withdrawn or superseded while the provider was asked: the reading changes nothing."""
    withdrawn = unread(rows, run="r1")
    reading = taken(ledger)
    rows.connect("agent").execute("SELECT counterfoil.request_cancel(%s, 'bot', 'no')", (withdrawn,))
    assert record(ledger, reading) is None
    superseded = unread(rows, run="r2", step="pay")
    reading = taken(ledger)
    unread(rows, run="r2", step="pay", revision=2, supersedes=superseded)
    assert record(ledger, reading) is None
    assert [rows.read(action)["state"] for action in (withdrawn, superseded)] == ["cancelled", "cancelled"]


def test_tries_end(rows: Rows, ledger: Ledger, database: Database) -> None:
    """Readers that die are tries, too: after the fifth nobody takes the row again, and it is stale."""
    action_id = unread(rows)
    for _ in range(5):
        assert give_up(ledger) == []
        taken(ledger)
        database.advance(61)
    assert claim(ledger) is None
    assert give_up(ledger) == [action_id]
    row = rows.read(action_id)
    assert (row["state"], row["last_error_code"]) == ("stale", "version_unreadable")


def test_rows_of_other_tools_are_left_alone(rows: Rows, ledger: Ledger, database: Database) -> None:
    """Who lacks the tool neither reads nor gives up, unless nobody has read it for very long."""
    action_id = unread(rows)
    others = [("jira_open", 1), ("stripe_charge", 2)]
    assert claim(ledger, others) is None
    database.advance(3599)
    assert give_up(ledger, others) == []
    database.advance(2)
    assert give_up(ledger) == [], "late, but this one can read it"
    assert give_up(ledger, others) == [action_id]


def test_a_plan_stops_with_what_cannot_be_read(rows: Rows, ledger: Ledger) -> None:
    """One step's version is unreadable: the open proposal is withdrawn, and its other steps with it."""
    agent = rows.connect("agent")
    agent.execute("SELECT FROM counterfoil.open_run('acme', 'r1', 'bot')")
    proposal = f"P-{rows.identity(step='first')['action_id'][4:16].upper()}"
    query = "SELECT FROM counterfoil.open_plan(%s, 'acme', 'r1', 'bot', '', 1, 3600, NULL::timestamptz, 5, 'first')"
    agent.execute(query, (proposal,))
    plan: dict[str, Any] = {"run": "r1", "proposal": proposal}
    first = str(rows.propose(**plan, step="first", place=1, target="1")["action_id"])
    second = unread(rows, **plan, place=2, target="2")
    rows.execute(second, "lookup_count = 5")
    assert give_up(ledger) == [second]
    assert (rows.read(first)["state"], rows.read(first)["last_error_code"]) == ("cancelled", "plan_stopped")
    assert rows.one("SELECT state FROM counterfoil.proposal")["state"] == "withdrawn"


@pytest.mark.parametrize("role", ["agent", "reader"])
def test_nobody_else_writes_a_version(rows: Rows, role: str) -> None:
    """An agent that could write the version would decide what is compared."""
    action_id = unread(rows)
    with pytest.raises(psycopg.errors.InsufficientPrivilege):
        rows.connect(role).execute(
            "UPDATE counterfoil.action SET expected_resource_version = '8' WHERE action_id = %s", (action_id,)
        )


def test_a_version_is_written_once(rows: Rows, ledger: Ledger) -> None:
    """Once read, not even a worker can change it: the approval is over it."""
    action_id = unread(rows, needs_approval=True)
    record(ledger, taken(ledger))
    with pytest.raises(psycopg.DatabaseError, match="never changes"):
        rows.connect("worker").execute(
            "UPDATE counterfoil.action SET expected_resource_version = '8' WHERE action_id = %s", (action_id,)
        )
