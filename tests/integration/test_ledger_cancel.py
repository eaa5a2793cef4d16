"""What a cancel does and answers in each of the fourteen states, in doubt or not."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import pytest

from counterfoil.ledger import sweeps
from counterfoil.ledger.connection import Ledger
from counterfoil.ledger.states import State

if TYPE_CHECKING:
    from tests.integration.conftest import Rows

# state, in doubt: becomes | is sent again: never (.) or by the rules of its state (x) | a line of history: move, note, none
TABLE = """
proposed           -  cancelled          .  move
awaiting_approval  -  cancelled          .  move
ready              -  cancelled          .  move
ready              ?  uncertain          .  move
executing          -  executing          .  note
executing          ?  executing          .  note
retryable_failure  -  cancelled          .  move
retryable_failure  ?  uncertain          .  move
uncertain          ?  uncertain          .  note
reconciling        ?  reconciling        .  note
operator_review    -  operator_review    .  note
operator_review    ?  operator_review    .  note
succeeded          -  succeeded          x  none
permanent_failure  -  permanent_failure  x  none
not_executed       -  not_executed       x  none
cancelled          -  cancelled          x  none
stale              -  stale              x  none
compensated        -  compensated        x  none
"""
CASES = [line.split() for line in TABLE.strip().splitlines()]
CANCEL = "SELECT counterfoil.request_cancel(%s, 'alice', 'wrong order') AS state"


@pytest.fixture
def rows(shared_rows: Rows) -> Rows:
    """One database for the module: every test here looks at rows of its own."""
    return shared_rows


@pytest.fixture(scope="module")
def agent(shared_rows: Rows) -> Any:
    return shared_rows.connect("agent")


def test_the_table_has_every_state() -> None:
    """All fourteen, and in doubt each that can be."""
    assert {case[0] for case in CASES} == set(State)


@pytest.mark.parametrize(("state", "doubt", "becomes", "again", "history"), CASES)
def test_cancel(rows: Rows, agent: Any, state: str, doubt: str, becomes: str, again: str, history: str) -> None:
    """The answer is the state afterwards; what may have been sent is never sent again; the wish is in the history, once."""
    more = {"in_doubt": True, "uncertain_since": "1 second ago"} if doubt == "?" else {}
    action_id = rows.build(state, **more)
    for _ in range(2):
        assert agent.execute(CANCEL, (action_id,)).fetchone()["state"] == becomes
    row = rows.read(action_id)
    assert row["state"] == becomes
    assert row["in_doubt"] is (doubt == "?")
    assert rows.wake_ups(action_id) == []
    assert row["no_resend"] is (again == "." and becomes != "cancelled")
    assert (row["cancel_requested_at"] is not None) is (again == ".")
    written = rows.all("SELECT * FROM counterfoil.history WHERE action_id = %s", action_id)
    if history == "none":
        assert written == []
    else:
        [line] = written
        assert (line["from_state"], line["to_state"], line["changed_by"]) == (state, becomes, "alice")
        assert line["reason"] == ("cancel requested: wrong order" if history == "note" else "wrong order")
        assert line["db_role"] == agent.info.user


ENDS = {
    ("succeeded", False): "succeeded",
    ("retryable", False): "cancelled",
    ("failed", False): "permanent_failure",
    ("uncertain", False): "uncertain",
    ("not_sent", False): "cancelled",
    ("let_go", False): "cancelled",
    ("let_go", True): "uncertain",
    ("uncertain", True): "uncertain",
    ("succeeded", True): "succeeded",
}


@pytest.mark.parametrize(("settle", "in_doubt"), ENDS)
def test_cancelled_during_the_call(rows: Rows, agent: Any, settle: str, in_doubt: bool) -> None:
    """What the call comes to is recorded; what would be sent again is cancelled, in doubt it is looked up instead."""
    ledger = rows.ledger()
    more = {"in_doubt": True, "uncertain_since": "1 second ago"} if in_doubt else {}
    action_id = rows.build("ready", **more)
    action = rows.claimed(ledger, action_id)
    agent.execute(CANCEL, (action_id,))
    assert rows.settle(settle, ledger, action)
    sweeps.finish_cancels(ledger, by="beat")
    row = rows.read(action_id)
    assert row["state"] == ENDS[settle, in_doubt]
    assert rows.wake_ups(action_id) == []
    assert row["no_resend"] or row["state"] in ("succeeded", "cancelled", "permanent_failure")


@pytest.mark.parametrize(
    ("verdict", "becomes"),
    [
        ("succeeded", "succeeded"),
        ("failed", "permanent_failure"),
        ("not_executed", "not_executed"),
        ("ask_later", "uncertain"),
        ("person", "operator_review"),
        ("resend", None),
    ],
)
def test_cancelled_during_the_look_up(rows: Rows, agent: Any, verdict: str, becomes: str | None) -> None:
    """Evidence decides, and the one verdict that would send again is refused."""
    ledger = rows.ledger()
    action_id = rows.build("uncertain", tool=f"look_{verdict}")
    [action] = rows.look(ledger, f"look_{verdict}")
    agent.execute(CANCEL, (action_id,))
    assert rows.verdict(verdict, ledger, action) is (becomes is not None)
    assert rows.read(action_id)["state"] == (becomes or "reconciling")


def test_of_nobody_or_another_tenant(rows: Rows, agent: Any) -> None:
    """NULL, and nothing is changed."""
    other = rows.build("ready", tenant="nobody-s")
    assert agent.execute(CANCEL, (other,)).fetchone()["state"] is None
    assert rows.read(other)["state"] == "ready"
    assert agent.execute(CANCEL, ("act_" + "a" * 26,)).fetchone()["state"] is None


def test_a_cancel_races_the_claim(rows: Rows, agent: Any, at_once: Callable[..., list[Any]]) -> None:
    """Either the action is cancelled and never claimed, or it is claimed and keeps the wish."""
    ledgers: list[Ledger] = [rows.ledger() for _ in range(2)]
    for _ in range(20):
        action_id = rows.build("ready")
        claimed, answer = at_once(
            [
                lambda ledger=ledgers[0], a=action_id: rows.claim(ledger, a),
                lambda a=action_id: agent.execute(CANCEL, (a,)).fetchone()["state"],
            ]
        )
        row = rows.read(action_id)
        assert (row["state"], answer) == (("cancelled",) * 2 if claimed is None else ("executing",) * 2)
        assert row["cancel_requested_at"] is not None
        assert row["attempt_count"] == (0 if claimed is None else 1)
