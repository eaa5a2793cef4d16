"""What a provider's event does to rows: which are looked at sooner, how soon, and that nothing else of them changes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import psycopg
import pytest

from counterfoil.ledger.connection import Ledger
from counterfoil.ledger.errors import NotAllowed
from counterfoil.ledger.events import look_now_by_key

if TYPE_CHECKING:
    from tests.integration.conftest import Rows

KEY, OTHER = "1" * 32, "2" * 32


@pytest.fixture
def ledger(rows: Rows) -> Ledger:
    return rows.ledger()


@pytest.fixture
def uncertain(rows: Rows) -> Callable[..., str]:
    """An uncertain row of an hour's wait, last touched a minute ago."""

    def build(**columns: Any) -> str:
        action_id = rows.build("uncertain", **{"key": KEY, "key_version": 1, "lookup_count": 9} | columns)
        rows.execute(
            action_id,
            "next_lookup_at = counterfoil.now() + interval '1 hour', updated_at = counterfoil.now() - interval '1 minute'",
        )
        return action_id

    return build


def told(ledger: Ledger, **changes: Any) -> int:
    given: dict[str, Any] = {"provider": "stripe", "accounts": ["default"], "keys": [KEY], "targets": [], **changes}
    return look_now_by_key(ledger, **given)


def wait_s(rows: Rows, action_id: str) -> float:
    """Until the row's next look-up."""
    found = rows.one(
        "SELECT extract(epoch FROM next_lookup_at - counterfoil.now())::float8 AS s FROM counterfoil.action"
        " WHERE action_id = %s",
        action_id,
    )
    return float(found["s"])


def test_the_row_is_looked_at_now(rows: Rows, ledger: Ledger, uncertain: Callable[..., str]) -> None:
    """Due at once; its state, its doubt, its history and its absences are as they were."""
    action_id = uncertain()
    before = rows.read(action_id)
    assert told(ledger) == 1
    after = rows.read(action_id)
    assert wait_s(rows, action_id) <= 0
    assert {name for name in before if before[name] != after[name]} == {"next_lookup_at", "lookup_count", "updated_at"}
    assert after["lookup_count"] == before["lookup_count"] - 1, "the look-up to come is none of those that were planned"
    assert rows.history(action_id) == []
    assert [claimed.action_id for claimed in rows.look(ledger, "stripe_charge")] == [action_id]


@pytest.mark.parametrize(
    "given",
    [
        {"provider": "jira"},
        {"accounts": ["eu"]},
        {"accounts": []},
        {"keys": [OTHER]},
        {"keys": []},
        {"keys": [], "targets": ["1183"]},
        {"provider": "jira", "keys": [], "targets": ["1182"]},
        {"accounts": ["eu"], "keys": [], "targets": ["1182"]},
    ],
)
def test_of_others_nothing(rows: Rows, ledger: Ledger, uncertain: Callable[..., str], given: dict[str, Any]) -> None:
    """Another provider's or account's event, another key or object: the row waits on."""
    action_id = uncertain()
    assert told(ledger, **given) == 0
    assert wait_s(rows, action_id) > 3500


def test_by_what_it_is_about(rows: Rows, ledger: Ledger, uncertain: Callable[..., str]) -> None:
    """A capture by its hold's key, a note by its ticket; the hold itself is settled and stays so."""
    hold = rows.build("succeeded", key=KEY, key_version=1, receipt="pi_1")
    capture = uncertain(key=OTHER, parent_action_id=hold)
    assert told(ledger) == 1
    assert wait_s(rows, capture) <= 0
    assert rows.read(hold)["state"] == "succeeded"
    note = uncertain(key="3" * 32, provider="zendesk", queue="cf-zendesk", target="35436")
    assert told(ledger, provider="zendesk", keys=[], targets=["35436"]) == 1
    assert wait_s(rows, note) <= 0


STATES = ("proposed", "awaiting_approval", "ready", "executing", "retryable_failure", "reconciling", "operator_review",
          "succeeded", "permanent_failure", "not_executed", "cancelled", "stale", "compensated")  # fmt: skip


@pytest.mark.parametrize("state", STATES)
def test_other_states_are_left_alone(rows: Rows, ledger: Ledger, state: str) -> None:
    """Only what is uncertain waits for a look-up; nothing at all of another row changes."""
    action_id = rows.build(state, key=KEY, key_version=1)
    before = rows.read(action_id)
    assert told(ledger, targets=["1182"]) == 0
    assert rows.read(action_id) == before


def test_a_storm_costs_one_look_up_in_two_seconds(
    rows: Rows,
    ledger: Ledger,
    uncertain: Callable[..., str],
    at_once: Callable[[Sequence[Callable[[], Any]]], list[Any]],
) -> None:
    """Events at once, and one after another, give one look-up; one just after a look-up waits until 2 s have passed."""
    action_id = uncertain()
    ledgers = [rows.ledger() for _ in range(6)]
    assert sum(at_once([lambda each=each: told(each) for each in ledgers])) == 1  # type: ignore[misc]
    assert [told(ledger) for _ in range(20)] == [0] * 20
    [claimed] = rows.look(ledger, "stripe_charge")
    assert rows.verdict("ask_later", ledger, claimed)
    rows.execute(action_id, "next_lookup_at = counterfoil.now() + interval '1 hour'")
    assert told(ledger) == 1
    assert 1 < wait_s(rows, action_id) <= 2
    planned = rows.read(action_id)["next_lookup_at"]
    assert [told(ledger) for _ in range(20)] == [0] * 20
    assert rows.read(action_id)["next_lookup_at"] == planned, "events do not push it further away"
    assert rows.look(ledger, "stripe_charge") == []


@pytest.mark.parametrize(("before", "after"), [(0, 2), (1, 2), (2, 2), (9, 9)])
def test_a_storm_makes_no_later_look_up_rarer(
    rows: Rows, ledger: Ledger, uncertain: Callable[..., str], before: int, after: int
) -> None:
    """Pauses double with each look-up that was planned. One that an event has asked for is none of those, however many come:
    else a provider that tells much, or somebody who repeats an event, would put the next look-up off by minutes."""
    action_id = uncertain(lookup_count=before, uncertain_since="2020-01-01 00:00:00+00")
    for _ in range(5):
        past = "updated_at = counterfoil.now() - interval '1 minute'"
        rows.execute(action_id, f"next_lookup_at = counterfoil.now() + interval '1 hour', {past}")
        assert told(ledger) == 1
        [claimed] = rows.look(ledger, "stripe_charge")
        assert claimed.lookup_count <= after
        assert rows.verdict("ask_later", ledger, claimed)


def test_a_storm_does_not_keep_a_person_waiting(rows: Rows, ledger: Ledger, uncertain: Callable[..., str]) -> None:
    """What a person has asked for ends after so many look-ups, whoever makes them."""
    action_id = uncertain()
    rows.owner.execute(
        "INSERT INTO counterfoil.review (action_id, tenant, verb, by_person, channel)"
        " VALUES (%s, 'acme', 'ask_again', 'alice', 'test')",
        (action_id,),
    )
    assert told(ledger) == 1
    [claimed] = rows.look(ledger, "stripe_charge")
    assert (claimed.asked, claimed.lookup_count) == ("ask_again", 10)


def test_never_later_than_planned(rows: Rows, ledger: Ledger, uncertain: Callable[..., str]) -> None:
    """A row that is due within the two seconds, or overdue, keeps its time."""
    action_id = uncertain()
    for planned in ("counterfoil.now() + interval '1 second'", "counterfoil.now() - interval '1 hour'"):
        rows.execute(action_id, f"next_lookup_at = {planned}, updated_at = counterfoil.now()")
        before = rows.read(action_id)
        assert told(ledger) == 0
        assert rows.read(action_id) == before


def test_it_waits_for_nobody(rows: Rows, ledger: Ledger, uncertain: Callable[..., str]) -> None:
    """A row that somebody holds is passed over at once, the others are not."""
    held, free = uncertain(), uncertain(key=OTHER)
    with psycopg.connect(rows.database.url("owner")) as connection:
        connection.execute("SELECT FROM counterfoil.action WHERE action_id = %s FOR UPDATE", (held,))
        assert told(ledger, keys=[KEY, OTHER]) == 1
    assert (wait_s(rows, held) > 3500, wait_s(rows, free) <= 0) == (True, True)


@pytest.mark.parametrize("role", ["agent", "operator", "reader"])
def test_workers_only(rows: Rows, uncertain: Callable[..., str], role: str) -> None:
    """No other login hears providers."""
    action_id = uncertain()
    with pytest.raises(NotAllowed):
        told(rows.ledger(role))
    assert wait_s(rows, action_id) > 3500
