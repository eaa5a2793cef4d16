"""The database's own table of moves: complete, the same as Python's, and refusing everything else even from raw SQL."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import psycopg
import pytest

from counterfoil.ledger.states import ARROWS, CLAIMABLE, IN_DOUBT_REFUSED, NOTHING_DONE, State

if TYPE_CHECKING:
    from tests.integration.conftest import Rows

MOVE = """
UPDATE counterfoil.action
SET state = %(to)s, fence = gen_random_uuid(), ready_at = counterfoil.now(), uncertain_since = counterfoil.now(),
    lease_until = CASE WHEN %(to)s IN ('executing', 'reconciling') THEN counterfoil.now() + interval '1 minute' END,
    next_lookup_at = counterfoil.now(), receipt = coalesce(receipt, 'pi_1'), changed_by = 'someone',
    change_reason = 'because', change_evidence = 'seen'
WHERE action_id = %(id)s
"""
"""A move by raw SQL that satisfies every CHECK, so that only the table of moves can refuse it."""

NEGATIVE = {State.PERMANENT_FAILURE, State.NOT_EXECUTED, State.CANCELLED, State.STALE, State.COMPENSATED}


@pytest.fixture
def rows(shared_rows: Rows) -> Rows:
    """One database for the module: every test here looks at rows of its own."""
    return shared_rows


def sqlstate(connection: psycopg.Connection[Any], query: str, params: Any = None) -> str | None:
    """None when the statement is accepted (and undone), else the SQLSTATE of its refusal."""
    try:
        with connection.transaction(force_rollback=True):
            connection.execute(query.encode(), params)
    except psycopg.Error as error:
        return error.sqlstate
    return None


def test_two_tables_of_moves_are_one(rows: Rows) -> None:
    """The trigger's moves, and those it refuses in doubt, are those of `counterfoil.ledger.states`."""
    found = rows.all("SELECT * FROM counterfoil.arrows()")
    assert len(found) == len({(row["from_state"], row["to_state"]) for row in found})
    assert {(row["from_state"], row["to_state"]) for row in found} == {
        (source.value, target.value) for source, targets in ARROWS.items() for target in targets
    }
    assert {(row["from_state"], row["to_state"]) for row in found if row["refused_in_doubt"]} == {
        (source.value, target.value) for source, target in IN_DOUBT_REFUSED
    }


def test_states_of_the_table_are_python_s(rows: Rows) -> None:
    """The column accepts each of the fourteen states, and no other word."""
    for state in State:
        rows.build(state)
    with pytest.raises(psycopg.errors.CheckViolation):
        rows.build("done")


@pytest.mark.parametrize("in_doubt", [False, True])
def test_every_pair_of_states(rows: Rows, in_doubt: bool) -> None:
    """Of all pairs exactly the table's moves are accepted from raw SQL; others are CF409, or CF423 for doubt's sake."""
    expected: dict[tuple[str, str], str | None] = {}
    answered: dict[tuple[str, str], str | None] = {}
    for source in State:
        if source is State.UNCERTAIN and not in_doubt:
            continue  # there is no uncertain row without doubt
        action_id = rows.build(source, in_doubt=in_doubt)
        for target in set(State) - {source}:
            pair = (source.value, target.value)
            refused = "CF423" if in_doubt and (source, target) in IN_DOUBT_REFUSED else None
            expected[pair] = refused if target in ARROWS[source] else "CF409"
            answered[pair] = sqlstate(rows.owner, MOVE, {"to": target, "id": action_id})
    assert answered == expected
    assert len(expected) == 13 * (14 if in_doubt else 13)


def test_what_follows_from_every_move(rows: Rows) -> None:
    """Each move writes one history row under the login's name, and the wake-up exists exactly in claimable states."""
    for source, targets in ARROWS.items():
        for target in targets:
            action_id = rows.build(source)
            before = rows.read(action_id)
            rows.owner.execute(MOVE.encode(), {"to": target, "id": action_id})
            after = rows.read(action_id)
            claimable = target in CLAIMABLE
            assert after["generation"] == before["generation"] + claimable, (source, target)
            assert rows.wake_ups(action_id) == [after["generation"]] * claimable, (source, target)
            assert after["once_held"] == (target not in NEGATIVE and before["once_held"])
            history = rows.one("SELECT * FROM counterfoil.history WHERE action_id = %s", action_id)
            assert (history["from_state"], history["to_state"]) == (source, target)
            assert history["db_role"] == rows.one("SELECT session_user AS me")["me"]
            assert (history["changed_by"], history["reason"], history["evidence"]) == ("someone", "because", "seen")
            assert history["at"] == after["updated_at"]
            assert history["generation"] == after["generation"]


def test_change_without_a_move_writes_no_history(rows: Rows) -> None:
    """History holds moves: a column that changes alone writes none, and makes no second wake-up."""
    action_id = rows.build("ready")
    rows.owner.execute("UPDATE counterfoil.action SET ready_at = counterfoil.now() WHERE action_id = %s", (action_id,))
    assert rows.history(action_id) == []
    assert rows.wake_ups(action_id) == [1]


def test_beginning(rows: Rows) -> None:
    """An action begins proposed, awaiting approval or ready; only ready has a wake-up, and a gated one is not ready."""
    assert rows.propose(step="a")["state"] == "ready"
    ready = rows.identity(step="a")["action_id"]
    assert rows.history(ready) == [(None, "ready")]
    assert rows.wake_ups(ready) == [1]
    assert rows.propose(step="b", needs_approval=True)["state"] == "awaiting_approval"
    assert rows.wake_ups(rows.identity(step="b")["action_id"]) == []
    insert = """
        INSERT INTO counterfoil.action (action_id, tenant, run, step, revision, phase, actor, tool, tool_version, class,
          effect, target, provider, queue, arguments, arguments_sha256, state, needs_approval, receipt, fence, lease_until,
          ready_at, in_doubt, uncertain_since, next_lookup_at, attempt_count, once_held)
        SELECT 'act_' || repeat('a', 26), tenant, run, 'c', 1, 'do', actor, tool, 1, class, effect, target, provider, queue,
          arguments, arguments_sha256, %(state)s, %(gated)s, 'pi_1', gen_random_uuid(),
          CASE WHEN %(state)s IN ('executing', 'reconciling') THEN counterfoil.now() END, counterfoil.now(), true,
          counterfoil.now(), counterfoil.now(), 7, false
        FROM counterfoil.action WHERE step = 'a'"""
    for state in State:
        began = state in (State.PROPOSED, State.AWAITING_APPROVAL, State.READY)
        assert sqlstate(rows.owner, insert, {"state": state, "gated": False}) == (None if began else "CF409"), state
    assert sqlstate(rows.owner, insert, {"state": "ready", "gated": True}) == "CF403"
    rows.owner.execute(insert.encode(), {"state": "proposed", "gated": False})
    row = rows.read("act_" + "a" * 26)
    assert (row["attempt_count"], row["in_doubt"], row["once_held"], row["generation"]) == (0, False, True, 0)


def test_succeeded_leads_to_compensated_only(rows: Rows) -> None:
    """From succeeded no single statement, whatever it sets, reaches a state that could send again."""
    action_id = rows.build("succeeded")
    everything = (
        "in_doubt = false, no_resend = false, once_held = true, attempt_count = 0, generation = 9, fence = NULL"
    )
    for target in set(State) - {State.SUCCEEDED, State.COMPENSATED}:
        query = MOVE.replace("fence = gen_random_uuid()", everything)
        assert sqlstate(rows.owner, query, {"to": target, "id": action_id}) == "CF409", target


def test_doubt_is_not_cleared_by_hand(rows: Rows) -> None:
    """While the state stays, nobody ends a doubt: it is refused, or overruled where the state itself is the doubt."""
    clear = "UPDATE counterfoil.action SET in_doubt = false WHERE action_id = %s"
    for state in set(State) - {State.SUCCEEDED}:
        action_id = rows.build(state, in_doubt=True)
        if state not in (State.UNCERTAIN, State.RECONCILING):
            assert sqlstate(rows.owner, clear, (action_id,)) == "CF423", state
            continue
        rows.owner.execute(clear.encode(), (action_id,))
        assert rows.read(action_id)["in_doubt"]


def test_doubt_ends_with_a_finding_only(rows: Rows) -> None:
    """Of all moves only a success, or the verdict of a look-up or of a person, can end a doubt; a return to ready may."""
    clears = MOVE.replace("receipt = ", "in_doubt = false, receipt = ")
    ended: set[tuple[str, str]] = set()
    for source, targets in ARROWS.items():
        for target in targets:
            if (source, target) in IN_DOUBT_REFUSED:
                continue
            action_id = rows.build(source, in_doubt=True)
            params = {"to": target, "id": action_id}
            refused = sqlstate(rows.owner, clears, params)
            if refused is not None:
                assert refused == "CF423", (source, target)
                continue
            rows.owner.execute(clears.encode(), params)
            if not rows.read(action_id)["in_doubt"]:
                ended.add((source.value, target.value))
    assert ended == {
        ("executing", "succeeded"),
        ("uncertain", "succeeded"),
        ("reconciling", "succeeded"),
        ("operator_review", "succeeded"),
        ("reconciling", "permanent_failure"),
        ("reconciling", "not_executed"),
        ("operator_review", "permanent_failure"),
        ("operator_review", "not_executed"),
        ("reconciling", "ready"),
    }


def test_doubt_stays_where_the_statement_does_not_end_it(rows: Rows) -> None:
    """A verdict of ready by native key keeps the doubt; a settled row is never in doubt."""
    kept = rows.build("reconciling")
    rows.owner.execute(MOVE.encode(), {"to": "ready", "id": kept})
    assert rows.read(kept)["in_doubt"]
    for source in ("reconciling", "operator_review"):
        for target in ("succeeded", "permanent_failure", "not_executed"):
            action_id = rows.build(source, in_doubt=True)
            rows.owner.execute(MOVE.encode(), {"to": target, "id": action_id})
            assert not rows.read(action_id)["in_doubt"], (source, target)


INTENT = {
    "action_id": "'act_' || repeat('b', 26)",
    "tenant": "'globex'",
    "run": "'other'",
    "step": "'other'",
    "seq": "77",
    "revision": "2",
    "phase": "'undo'",
    "parent_action_id": "'act_x'",
    "edited_from": "'act_x'",
    "actor": "'mallory'",
    "tool": "'stripe_refund'",
    "tool_version": "2",
    "class": "'reversible'",
    "effect": "'refund'",
    "target": "'9'",
    "provider": "'other'",
    "account": "'other'",
    "queue": "'cf-other'",
    "arguments": "'{}'",
    "arguments_sha256": "repeat('0', 64)",
    "arguments_codec": "'other'",
    "audience": "'{public}'",
    "compensation": "NULL",
    "once_key": "'k2'",
    "repeat_reason": "'again'",
    "amount_minor": "2",
    "currency": "'usd'",
    "needs_approval": "NOT needs_approval",
    "expected_resource_version": "'v2'",
    "deadline_at": "counterfoil.now()",
    "created_at": "counterfoil.now() - interval '1 day'",
    "proposal_id": "'P-AAAAAAAAAAAA'",
    "place": "7",
    "staged": "NOT staged",
    "correction": "'{}'",
    "effect_scope": "'tenant'",
    "reads_version": "NOT reads_version",
}


def test_intent_never_changes(rows: Rows) -> None:
    """Each column of the intent is refused a change, in any state, alone or together with a move."""
    moves = {"proposed": "cancelled", "ready": "operator_review", "permanent_failure": "operator_review"}
    for state in State:
        action_id = rows.build(state)
        for column, value in INTENT.items():
            change = f"UPDATE counterfoil.action SET {column} = {value}"
            assert sqlstate(rows.owner, f"{change} WHERE action_id = %s", (action_id,)) == "CF451", (state, column)
            if state in moves:
                moved = f"{change}, state = '{moves[state]}' WHERE action_id = %s"
                assert sqlstate(rows.owner, moved, (action_id,)) == "CF451", (state, column)


def test_every_column_is_intent_or_may_change(rows: Rows) -> None:
    """A new column must be put on one side or the other: the intent's, or those that follow the action's life."""
    life = {
        *("state", "superseded_by", "approval_id", "once_held", "key", "key_version", "reach", "fence", "generation"),
        *("attempt_count", "not_sent_count", "ready_at", "lease_until", "quiet_from", "first_sent_at", "last_sent_at"),
        *(
            "in_doubt",
            "no_resend",
            "absent_count",
            "last_absent_at",
            "uncertain_since",
            "lookup_count",
            "next_lookup_at",
        ),
        *("receipt", "result", "last_error_code", "last_error_field", "cancel_requested_at", "changed_by"),
        *("change_reason", "change_evidence", "erased_at", "updated_at"),
        *("resent", "watch_at", "watched_since", "watch_count", "ends_count"),
    }
    columns = rows.all(
        "SELECT attname FROM pg_attribute WHERE attrelid = 'counterfoil.action'::regclass AND attnum > 0 AND NOT attisdropped"
    )
    assert {row["attname"] for row in columns} == life | set(INTENT)


def test_counters_of_the_trigger_are_nobody_else_s(rows: Rows) -> None:
    """`generation`, `once_held` and `updated_at` are the trigger's; a statement that sets them is overruled."""
    action_id = rows.build("ready")
    rows.owner.execute(
        "UPDATE counterfoil.action SET generation = 99, once_held = true, updated_at = '2000-01-01' WHERE action_id = %s",
        (action_id,),
    )
    row = rows.read(action_id)
    assert row["generation"] == 1
    assert row["updated_at"].year > 2000
    ended = rows.build("cancelled", once_held=False)
    rows.owner.execute("UPDATE counterfoil.action SET once_held = true WHERE action_id = %s", (ended,))
    assert not rows.read(ended)["once_held"]


def test_key_is_written_once(rows: Rows) -> None:
    """The first key stays, with its version, through every later statement."""
    action_id = rows.build("ready", key=None)
    rows.owner.execute("UPDATE counterfoil.action SET key = 'k1', key_version = 1 WHERE action_id = %s", (action_id,))
    for change in ("key = 'k2'", "key = NULL", "key_version = 2", "key_version = NULL"):
        assert (
            sqlstate(rows.owner, f"UPDATE counterfoil.action SET {change} WHERE action_id = %s", (action_id,))
            == "CF451"
        )


def test_receipt_of_a_success_is_settled(rows: Rows) -> None:
    """Neither the receipt nor the result of a succeeded action changes, and succeeded without a receipt does not exist."""
    action_id = rows.build("succeeded")
    for change in ("receipt = 'pi_2'", "receipt = NULL", "result = NULL", "state = 'compensated', receipt = 'pi_2'"):
        assert (
            sqlstate(rows.owner, f"UPDATE counterfoil.action SET {change} WHERE action_id = %s", (action_id,))
            == "CF451"
        )
    executing = rows.build("executing")
    move = "UPDATE counterfoil.action SET state = 'succeeded', lease_until = NULL WHERE action_id = %s"
    assert sqlstate(rows.owner, move, (executing,)) == "23514"


def test_erasure(rows: Rows) -> None:
    """What was said can be erased once, from settled rows only, and nothing can be put in its place."""
    erase = (
        "UPDATE counterfoil.action SET erased_at = counterfoil.now(), arguments = %s, compensation = NULL"
        " WHERE action_id = %s"
    )
    for state in State:
        action_id = rows.build(state)
        settled = state in NEGATIVE | {State.SUCCEEDED}
        assert sqlstate(rows.owner, erase, ("{}", action_id)) == (None if settled else "CF451"), state
        assert sqlstate(rows.owner, erase, ('{"to":"mallory"}', action_id)) == "CF451", state
    action_id = rows.build("succeeded")
    rows.owner.execute(
        "UPDATE counterfoil.action SET erased_at = counterfoil.now(), arguments = '{}', compensation = NULL, receipt = NULL,"
        " result = NULL WHERE action_id = %s",
        (action_id,),
    )
    again = "UPDATE counterfoil.action SET {} WHERE action_id = %s"
    for change in ("erased_at = NULL", "erased_at = counterfoil.now()", "arguments = '{\"a\":1}'", "receipt = 'pi_2'"):
        assert sqlstate(rows.owner, again.format(change), (action_id,)) == "CF451", change
    with_move = again.format("state = 'operator_review', erased_at = counterfoil.now(), arguments = '{}'")
    assert sqlstate(rows.owner, with_move, (rows.build("stale"),)) == "CF451"


def test_superseded(rows: Rows) -> None:
    """Only an intent that did nothing is superseded, once; it gives its once-key free and can never be sent again."""
    supersede = "UPDATE counterfoil.action SET superseded_by = 'act_new' WHERE action_id = %s"
    for state in State:
        action_id = rows.build(state)
        assert sqlstate(rows.owner, supersede, (action_id,)) == (None if state in NOTHING_DONE else "CF409"), state
    waiting = rows.build("awaiting_approval")
    rows.owner.execute(supersede.encode(), (waiting,))
    assert sqlstate(rows.owner, MOVE, {"to": "ready", "id": waiting}) == "CF409"
    for change in ("superseded_by = NULL", "superseded_by = 'act_other'"):
        query = f"UPDATE counterfoil.action SET {change} WHERE action_id = %s"
        assert sqlstate(rows.owner, query, (waiting,)) == "CF409"
    assert not rows.read(waiting)["once_held"]


def test_ended_and_found_after_all_is_never_sent_again(rows: Rows) -> None:
    """A row that had ended goes through review and look-up to evidence or an end, never to ready."""
    for ended in NEGATIVE:
        action_id = rows.build(ended, once_held=False)
        for target in ("operator_review", "reconciling"):
            rows.owner.execute(MOVE.encode(), {"to": target, "id": action_id})
        assert rows.read(action_id)["no_resend"]
        for change in ("", "no_resend = false, once_held = true, "):
            query = MOVE.replace("SET state", f"SET {change}state")
            assert sqlstate(rows.owner, query, {"to": "ready", "id": action_id}) == "CF409"
            assert sqlstate(rows.owner, query, {"to": "permanent_failure", "id": action_id}) is None


APPROVE = """
INSERT INTO counterfoil.approval (subject_id, action_id, tenant, digest, people, expires_at)
SELECT 'P-AAAAAAAAAAAA', a.action_id, a.tenant, {digest}, 1, t
FROM counterfoil.action AS a CROSS JOIN LATERAL (SELECT counterfoil.now() + interval '{lasts}') AS x (t)
WHERE a.action_id = %s RETURNING approval_id
"""
OWNER = "SELECT action_id FROM counterfoil.approval WHERE approval_id = %s"


def test_gated_row_needs_its_approval(rows: Rows) -> None:
    """Without the approval of exactly this intent a gated row neither turns ready nor is claimed, whoever asks."""
    waiting = rows.build("awaiting_approval", needs_approval=True)
    ready = rows.build("ready", needs_approval=True)
    assert sqlstate(rows.owner, MOVE, {"to": "ready", "id": waiting}) == "CF403"
    assert sqlstate(rows.owner, MOVE, {"to": "executing", "id": ready}) == "CF403"
    assert sqlstate(rows.owner, MOVE, {"to": "ready", "id": rows.build("proposed", needs_approval=True)}) == "CF403"
    given = {
        name: rows.one(APPROVE.format(digest=digest, lasts=lasts), action)["approval_id"]
        for name, action, digest, lasts in (
            ("own", waiting, "counterfoil.intent_digest(a, t)", "1 minute"),
            ("another's", ready, "counterfoil.intent_digest(a, t)", "1 minute"),
            ("of another intent", rows.build("awaiting_approval"), "repeat('0', 64)", "1 minute"),
            ("expired", rows.build("awaiting_approval"), "counterfoil.intent_digest(a, t)", "-1 minute"),
        )
    }
    owner_of = {name: rows.one(OWNER, approval)["action_id"] for name, approval in given.items()}
    approved = MOVE.replace("SET state", "SET approval_id = %(approval)s, state")
    for name, action in {**owner_of, "another's": waiting, "made up": waiting}.items():
        rows.execute(action, "needs_approval = true")
        answer = sqlstate(rows.owner, approved, {"to": "ready", "id": action, "approval": given.get(name, "apr_1")})
        assert answer == (None if name == "own" else "CF403"), name


def test_history_is_append_only_for_the_owner_too(rows: Rows) -> None:
    """UPDATE, DELETE and TRUNCATE of history are refused to the superuser, on the table and on each partition."""
    action_id = rows.propose()["action_id"]
    assert rows.history(action_id)
    partitions = rows.all(
        "SELECT inhrelid::regclass::text AS name FROM pg_inherits WHERE inhparent = 'counterfoil.history'::regclass"
    )
    assert len(partitions) >= 4
    columns = rows.all(
        "SELECT attname FROM pg_attribute"
        " WHERE attrelid = 'counterfoil.history'::regclass AND attnum > 0 AND attidentity = ''"
    )
    for column in (row["attname"] for row in columns):
        assert sqlstate(rows.owner, f"UPDATE counterfoil.history SET {column} = {column}") == "CF403", column
    assert sqlstate(rows.owner, "DELETE FROM counterfoil.history") == "CF403"
    for name in ("counterfoil.history", *(row["name"] for row in partitions)):
        assert sqlstate(rows.owner, f"TRUNCATE {name}") == "CF403", name
    assert sqlstate(rows.owner, "TRUNCATE counterfoil.history, counterfoil.action CASCADE") == "CF403"


def test_actions_are_not_deleted(rows: Rows) -> None:
    """No DELETE and no TRUNCATE takes an action away, not through its run either."""
    rows.propose()
    assert sqlstate(rows.owner, "DELETE FROM counterfoil.action") == "CF403"
    assert sqlstate(rows.owner, "TRUNCATE counterfoil.action") == "CF403"
    assert sqlstate(rows.owner, "TRUNCATE counterfoil.run CASCADE") == "CF403"
    assert sqlstate(rows.owner, "DELETE FROM counterfoil.run") == "23503"
