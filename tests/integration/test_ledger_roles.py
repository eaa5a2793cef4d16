"""Who may move what: every role and every move, also through a definer function, and whose name the history keeps."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import psycopg
import pytest

from counterfoil.ledger.keys import action_id
from counterfoil.ledger.states import ARROWS, State

if TYPE_CHECKING:
    from tests.integration.conftest import Rows

ROLES = ("agent", "worker", "operator", "reader")

DECIDED_BY_A_PERSON = {("awaiting_approval", "ready")} | {
    ("operator_review", target.value) for target in ARROWS[State.OPERATOR_REVIEW]
}

MOVE = """
UPDATE counterfoil.action
SET state = %(to)s, fence = gen_random_uuid(), ready_at = counterfoil.now(), uncertain_since = counterfoil.now(),
    lease_until = CASE WHEN %(to)s IN ('executing', 'reconciling') THEN counterfoil.now() + interval '1 minute' END,
    next_lookup_at = counterfoil.now(), receipt = coalesce(receipt, 'pi_1'), changed_by = 'someone'
WHERE action_id = %(id)s
"""


@pytest.fixture
def rows(shared_rows: Rows) -> Rows:
    """One database for the module: every test here looks at rows of its own."""
    return shared_rows


@pytest.fixture(scope="module")
def logins(shared_rows: Rows) -> dict[str, psycopg.Connection[Any]]:
    """A connection for each role."""
    return {role: shared_rows.connect(role) for role in ROLES}


def sqlstate(connection: psycopg.Connection[Any], query: str, params: Any = None) -> str | None:
    """None when the statement is accepted (and undone), else the SQLSTATE of its refusal."""
    try:
        with connection.transaction(force_rollback=True):
            connection.execute(query.encode(), params)
    except psycopg.Error as error:
        return error.sqlstate
    return None


@pytest.fixture(scope="module")
def door(shared_rows: Rows) -> str:
    """A definer function that makes any move: what a door with a mistake in it could do under an operator's login."""
    body = MOVE.replace("%(to)s", "p_to").replace("%(id)s", "p_id")
    shared_rows.owner.execute(
        "CREATE FUNCTION public.door(p_to text, p_id text) RETURNS void LANGUAGE sql SECURITY DEFINER"
        f" SET search_path = pg_catalog, pg_temp AS $$ {body} $$".encode()
    )
    return "SELECT public.door(%(to)s, %(id)s)"


def test_every_move_and_role(rows: Rows, logins: dict[str, psycopg.Connection[Any]], door: str) -> None:
    """Decisions are the operator's, through doors; other moves the worker's; both may withdraw a row or call it uncertain."""
    for source, targets in ARROWS.items():
        for target in targets:
            move = {"to": target, "id": rows.build(source)}
            answer = {role: sqlstate(logins[role], MOVE, move) for role in ROLES}
            decision = (source, target) in DECIDED_BY_A_PERSON
            expired = target == State.STALE and source in (State.PROPOSED, State.AWAITING_APPROVAL)
            safe = target in (State.CANCELLED, State.UNCERTAIN)
            assert answer == {
                "agent": "42501",
                "reader": "42501",
                "worker": "CF403" if decision else None,
                "operator": "42501",
            }, (source, target)
            through = sqlstate(logins["operator"], door, move)
            assert through == (None if decision or safe or expired else "CF403"), (source, target)


def test_operator_never_claims(rows: Rows, logins: dict[str, psycopg.Connection[Any]], door: str) -> None:
    """No door of an operator reaches executing, and no statement of a worker leaves operator_review."""
    for state in set(State) - {State.EXECUTING}:
        expected = "CF403" if State.EXECUTING in ARROWS[state] else "CF409"
        assert sqlstate(logins["operator"], door, {"to": "executing", "id": rows.build(state)}) == expected, state
    review = rows.build("operator_review", in_doubt=True)
    for target in set(State) - {State.OPERATOR_REVIEW}:
        assert sqlstate(logins["worker"], MOVE, {"to": target, "id": review}) in ("CF403", "CF409"), target


def test_history_names_the_login_that_moved(rows: Rows, logins: dict[str, psycopg.Connection[Any]]) -> None:
    """`db_role` is the session's login, also through a definer function and whatever the statement claims."""
    action_id = rows.propose(run="named")["action_id"]
    logins["agent"].execute("SELECT counterfoil.request_cancel(%s, 'worker', 'no longer needed')", (action_id,))
    found = rows.all(
        "SELECT db_role, changed_by, reason FROM counterfoil.history WHERE action_id = %s ORDER BY history_id",
        action_id,
    )
    assert [row["db_role"] for row in found] == [logins["agent"].info.user] * 2
    assert (found[1]["changed_by"], found[1]["reason"]) == ("worker", "no longer needed")


def test_worker_cannot_make_an_undo_up(rows: Rows, logins: dict[str, psycopg.Connection[Any]]) -> None:
    """A worker records only the recorded counter-action of a succeeded action whose run unwinds, once."""
    undo = """SELECT counterfoil.propose_undo(%s, %s, 'w', 1, 'compensatable', 'refund', '1182', 'stripe', 'default',
              'cf-stripe', '{}', encode(sha256('{}'), 'hex'), '{}', NULL, NULL) AS created"""

    def created(parent: str, undo_id: str | None = None) -> bool:
        """Under the id that follows from the undone action, unless another is given."""
        undo_id = undo_id or undo_of(parent)
        row = logins["worker"].execute(undo.encode(), (undo_id, parent)).fetchone()
        assert row is not None
        return bool(row["created"])

    def undo_of(parent: str) -> str:
        found = rows.all("SELECT run, step FROM counterfoil.action WHERE action_id = %s", parent)
        return action_id("acme", found[0]["run"], found[0]["step"], 1, "undo") if found else "act_" + "c" * 26

    succeeded = rows.build("succeeded", run="undone")
    assert not created(succeeded), "its run does not unwind"
    rows.owner.execute("UPDATE counterfoil.run SET state = 'unwinding' WHERE run = 'undone'")
    assert not created(rows.build("uncertain", run="undone"))
    assert not created(rows.build("succeeded", run="undone", compensation=None))
    assert not created("act_" + "z" * 26)
    assert not created(succeeded, "act_" + "c" * 26), "an id that does not follow from the action's"
    assert created(succeeded)
    assert not created(succeeded)
    again = action_id("acme", "undone", rows.read(succeeded)["step"], 2, "undo")
    assert not created(succeeded, again), "one live undo a step"
    row = rows.read(undo_of(succeeded))
    assert (row["tool"], row["phase"], row["state"], row["tenant"]) == ("stripe_refund", "undo", "ready", "acme")
