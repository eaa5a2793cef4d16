"""Which settled rows are watched, and what a claim of the watch may write: against races, moves and erasures meanwhile."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import TYPE_CHECKING, Any
from uuid import uuid4

import pytest

from counterfoil.ledger import alarms, claims, corrections, reviews, watch
from counterfoil.ledger.states import State
from counterfoil.ledger.watch import Next, WatchedAction, WatchedGroup
from counterfoil.reconciler.watched import CLEAR_VISITS_S, VISITS_S

if TYPE_CHECKING:
    from tests.integration.conftest import Row, Rows

    from counterfoil.ledger.connection import Ledger

CALL = '{"arguments":{"order_id":"1182"},"tool":"tell"}'
DUE = "watched_since = counterfoil.now() - interval '1 hour', watch_at = counterfoil.now() - interval '1 second'"


@pytest.fixture
def rows(shared_rows: Rows) -> Rows:
    """One database for the module: every test here looks at rows of its own tool."""
    return shared_rows


@pytest.fixture(scope="module")
def ledger(shared_rows: Rows) -> Ledger:
    return shared_rows.ledger("worker")


def settled(rows: Rows, tool: str, state: str = "permanent_failure", **columns: object) -> str:
    """A row of this tool that has ended and is due for the watch."""
    given = {"attempt_count": 1, "fence": uuid4(), **columns}
    action_id = rows.build(state, tool=tool, **given)
    rows.execute(action_id, f"first_sent_at = coalesce(first_sent_at, counterfoil.now()), {DUE}")
    return action_id


def claim(ledger: Ledger, tool: str, batch: int = 100, lease_s: float = 60.0) -> list[WatchedAction]:
    """Due rows of this tool, in version 1, at the usual account."""
    group = WatchedGroup(tool=tool, tool_version=1, account="default", provider="stripe", due=0)
    return watch.claim_watched(ledger, group, batch=batch, lease_s=lease_s)


def until_first_s(row: Row) -> float | None:
    """How long after its move the row is watched for the first time; None: it is not watched."""
    return None if row["watch_at"] is None else (row["watch_at"] - row["watched_since"]).total_seconds()


def refused(rows: Rows, ledger: Ledger) -> str:
    made = rows.build("ready")
    assert rows.settle("failed", ledger, rows.claimed(ledger, made))
    return made


def unsure(rows: Rows, ledger: Ledger, *ends: str) -> str:
    """Was in doubt, and then had these verdicts; each resend succeeds."""
    made = rows.build("ready", tool="t_unsure", provider="unsure")
    for end in ends:
        assert rows.settle("uncertain", ledger, rows.claimed(ledger, made))
        [looked] = rows.look(ledger, "t_unsure")
        assert rows.verdict(end, ledger, looked)
    return made


def resent(rows: Rows, ledger: Ledger) -> str:
    made = unsure(rows, ledger, "resend")
    assert rows.settle("succeeded", ledger, rows.claimed(ledger, made))
    return made


def plain(rows: Rows, ledger: Ledger) -> str:
    made = rows.build("ready")
    assert rows.settle("succeeded", ledger, rows.claimed(ledger, made))
    return made


def taken_back(rows: Rows, ledger: Ledger) -> str:
    made = plain(rows, ledger)
    rows.owner.execute(
        "UPDATE counterfoil.action SET state = 'compensated', changed_by = 'x', change_reason = 'x' WHERE action_id = %s",
        (made,),
    )
    return made


def withdrawn(rows: Rows, ledger: Ledger) -> str:
    made = rows.build("ready")
    rows.owner.execute("SELECT counterfoil.request_cancel(%s, 'x', 'x')", (made,))
    return made


def changed(rows: Rows, ledger: Ledger) -> str:
    made = rows.build("ready")
    assert rows.settle("stale", ledger, rows.claimed(ledger, made))
    return made


def never_left(rows: Rows, ledger: Ledger) -> str:
    """Claimed, stopped before its call, and ended by a person."""
    made = rows.build("ready")
    assert rows.settle("person", ledger, rows.claimed(ledger, made))
    rows.owner.execute(
        "UPDATE counterfoil.action SET state = 'not_executed', changed_by = 'x', change_reason = 'x' WHERE action_id = %s",
        (made,),
    )
    return made


CASES: dict[str, tuple[Callable[[Rows, Ledger], str], float | None]] = {
    "refused": (refused, CLEAR_VISITS_S[0]),
    "taken back": (taken_back, CLEAR_VISITS_S[0]),
    "absent": (lambda rows, ledger: unsure(rows, ledger, "failed"), VISITS_S[0]),
    "not executed": (lambda rows, ledger: unsure(rows, ledger, "not_executed"), VISITS_S[0]),
    "resent": (resent, VISITS_S[0]),
    "found": (lambda rows, ledger: unsure(rows, ledger, "succeeded"), None),
    "sent again": (lambda rows, ledger: unsure(rows, ledger, "resend"), None),
    "a person's": (lambda rows, ledger: unsure(rows, ledger, "person"), None),
    "plain success": (plain, None),
    "never sent": (withdrawn, None),
    "stale before sending": (changed, None),
    "stopped before sending": (never_left, None),
}


@pytest.mark.parametrize("case", CASES)
def test_who_is_watched(rows: Rows, ledger: Ledger, case: str) -> None:
    """What was sent and ended without an effect or taken back, and what was sent again after a look-up; nothing else."""
    make, first_s = CASES[case]
    made = rows.read(make(rows, ledger))
    assert until_first_s(made) == first_s
    assert made["watch_count"] == 0


def test_what_moves_on_is_not_watched(rows: Rows, ledger: Ledger) -> None:
    """A row that comes up for a person leaves the watch; its next end begins a new one."""
    made = refused(rows, ledger)
    rows.owner.execute(
        "UPDATE counterfoil.action SET state = 'operator_review', changed_by = 'x', change_reason = 'x' WHERE action_id = %s",
        (made,),
    )
    assert until_first_s(rows.read(made)) is None
    rows.owner.execute(
        "UPDATE counterfoil.action SET state = 'not_executed', watch_count = 4, changed_by = 'x', change_reason = 'x'"
        " WHERE action_id = %s",
        (made,),
    )
    row = rows.read(made)
    assert (until_first_s(row), row["watch_count"]) == (CLEAR_VISITS_S[0], 0)


def test_what_is_erased_is_not_watched(rows: Rows, ledger: Ledger) -> None:
    """Without its arguments nobody can ask about it."""
    made = refused(rows, ledger)
    rows.owner.execute(
        "UPDATE counterfoil.action SET erased_at = counterfoil.now(), arguments = '{}', compensation = NULL"
        " WHERE action_id = %s",
        (made,),
    )
    assert rows.read(made)["watch_at"] is None


def test_two_claim_at_once(rows: Rows, at_once: Callable[[Sequence[Callable[[], Any]]], list[Any]]) -> None:
    """Eight reconcilers at once get every row once, with what it takes to ask about it."""
    made = {settled(rows, "t_race", receipt=None) for _ in range(40)}
    ledgers = [rows.ledger() for _ in range(8)]
    got = at_once([lambda each=each: claim(each, "t_race", batch=10) for each in ledgers])
    got += [claim(ledgers[0], "t_race")]
    ids = [action.action_id for batch in got for action in batch]
    assert sorted(ids) == sorted(made)
    [action] = [action for batch in got for action in batch if action.action_id == ids[0]]
    assert (action.state, action.key) == (State.PERMANENT_FAILURE, rows.read(ids[0])["key"])
    assert 3600 <= action.age_s < 3700


def test_one_group_at_a_time(rows: Rows, ledger: Ledger) -> None:
    """A batch is of one tool, version and account; the group that is due for longest comes first."""
    tools = [("t_group", 1), ("t_other", 1)]
    first = settled(rows, "t_other")
    rows.execute(first, "watch_at = counterfoil.now() - interval '1 minute'")
    mine = {settled(rows, "t_group") for _ in range(3)}
    elsewhere = settled(rows, "t_group", account="second")
    rows.execute(elsewhere, "watch_at = counterfoil.now() - interval '0.5 seconds'")
    unknown = settled(rows, "t_group", tool_version=2)
    batches, due = [], []
    while (group := watch.oldest_group(ledger, tools=tools, batch=2)) is not None:
        due.append(group.due)
        batches.append({action.action_id for action in watch.claim_watched(ledger, group, batch=10, lease_s=60)})
    assert (batches, due) == ([{first}, mine, {elsewhere}], [1, 2, 1])
    assert rows.read(unknown)["watch_at"] < rows.read(first)["watch_at"]


def test_a_lapsed_claim_writes_nothing(rows: Rows, ledger: Ledger) -> None:
    """After another reconciler has claimed the row, neither a next look-up nor a finding of the first one is written."""
    made = settled(rows, "t_lapsed")
    [late] = claim(ledger, "t_lapsed", lease_s=0)
    [owner] = claim(ledger, "t_lapsed")
    assert late.action_id == owner.action_id == made
    assert watch.watched_again(ledger, [Next(late, None, counts=True)]) == 0
    assert not watch.found_after_all(ledger, late, code="found_after_all", evidence="e", by="w")
    assert watch.found_after_all(ledger, owner, code="found_after_all", evidence="e", by="w")
    assert not watch.found_after_all(ledger, owner, code="found_after_all", evidence="e", by="w")
    row = rows.read(made)
    assert (row["state"], row["last_error_code"], row["watch_at"]) == ("operator_review", "found_after_all", None)
    assert rows.history(made)[-1] == ("permanent_failure", "operator_review")


def test_a_late_success_meanwhile(rows: Rows, ledger: Ledger) -> None:
    """A row that a late answer has brought to a person is left to that person, under the code that it has."""
    made = rows.build("ready", tool="t_late")
    action = rows.claimed(ledger, made)
    assert rows.settle("failed", ledger, action)
    rows.execute(made, DUE)
    [watched] = claim(ledger, "t_late")
    assert (
        claims.apply_late_success(ledger, action, receipt="pi_9", result="{}", evidence=None, worker="w") == "to_person"
    )
    assert not watch.found_after_all(ledger, watched, code="found_after_all", evidence="e", by="w")
    assert watch.watched_again(ledger, [Next(watched, watched.as_of, counts=True)]) == 0
    assert rows.read(made)["last_error_code"] == "late_success"


def test_put_off_and_ended(rows: Rows, ledger: Ledger) -> None:
    """Each row of a batch gets its own next time, none ends its watch; only answered look-ups count."""
    made = [settled(rows, "t_next") for _ in range(3)]
    actions = {action.action_id: action for action in claim(ledger, "t_next")}
    hour = actions[made[0]].as_of + timedelta(hours=1)
    visited = [
        Next(actions[made[0]], hour, counts=True),
        Next(actions[made[1]], hour, counts=False),
        Next(actions[made[2]], None, counts=True),
    ]
    assert watch.watched_again(ledger, visited) == 3
    assert [(row["watch_at"], row["watch_count"]) for row in map(rows.read, made)] == [(hour, 1), (hour, 0), (None, 1)]


def test_one_alarm_and_one_correction(rows: Rows, at_once: Callable[[Sequence[Callable[[], Any]]], list[Any]]) -> None:
    """A second effect that many find at once is one open alarm with its receipts; the state stays; one correction."""
    given = {"class": "irreversible", "compensation": None, "correction": CALL}
    made = settled(rows, "t_twice", "succeeded", **given)
    ledgers = [rows.ledger() for _ in range(6)]
    assert corrections.queue(ledgers[0], made, declared=True, by="w") is None  # one effect needs none
    [action] = claim(ledgers[0], "t_twice")

    def tell(ledger: Ledger) -> tuple[bool, str | None]:
        opened = watch.duplicate_found(ledger, action, evidence="pi_1,pi_2")
        return opened, corrections.queue(ledger, made, declared=True, by="w")

    told = at_once([lambda each=each: tell(each) for each in ledgers])
    assert sum(opened for opened, _ in told) == 1
    assert len({queued for _, queued in told}) == 1
    assert None not in {queued for _, queued in told}
    alarm = rows.one("SELECT * FROM counterfoil.alarm WHERE subject = %s", made)
    assert (alarm["kind"], alarm["tenant"], alarm["run"], alarm["evidence"]) == ("duplicate", "acme", "r1", "pi_1,pi_2")
    assert rows.read(made)["state"] == "succeeded"


def test_who_ends_an_alarm(rows: Rows, ledger: Ledger) -> None:
    """An operator ends the alarm about a second effect, once; any other alarm ends by itself."""
    settled(rows, "t_end", "succeeded", tenant="globex")
    [action] = claim(ledger, "t_end")
    assert watch.duplicate_found(ledger, action, evidence="pi_1,pi_2")
    assert alarms.raise_alarm(ledger, "outage", "t_end", tenant="globex")
    by_kind = {row["kind"]: f"A-{row['alarm_id']}" for row in rows.all(
        "SELECT kind, alarm_id FROM counterfoil.alarm WHERE tenant = 'globex'")}  # fmt: skip
    operator = rows.ledger("operator")
    ended = [
        alarms.settle_alarm(operator, by_kind[kind], by="jo", reason="refunded")
        for kind in ("outage", "duplicate", "duplicate")
    ]
    assert ended == [False, True, False]


@pytest.mark.parametrize(
    ("changes", "declared", "queued"),
    [
        ({}, True, True),
        ({"correction": CALL}, False, True),
        ({}, False, False),
        ({"audience": ["agent"]}, True, False),
        ({"audience": ["warehouse"]}, True, True),
    ],
)
def test_who_is_told_of_a_second_effect(
    rows: Rows, ledger: Ledger, changes: dict[str, Any], declared: bool, queued: bool
) -> None:
    """A correction is asked for where the tool declares one and somebody saw the effect."""
    tool = f"t_told_{len(changes)}{declared:d}{queued:d}{'warehouse' in str(changes):d}"
    made = settled(rows, tool, "succeeded", **changes)
    [action] = claim(ledger, tool)
    assert watch.duplicate_found(ledger, action, evidence="pi_2")
    assert (corrections.queue(ledger, made, declared=declared, by="w") is not None) is queued


def test_an_alarm_is_not_about_a_row_that_has_moved(rows: Rows, ledger: Ledger) -> None:
    """A finding that comes after the row was claimed by another reconciler opens nothing."""
    settled(rows, "t_moved", "succeeded")
    [late] = claim(ledger, "t_moved", lease_s=0)
    [_] = claim(ledger, "t_moved")
    assert not watch.duplicate_found(ledger, late, evidence="pi_2")


def test_what_was_found_after_all_is_not_given_up(rows: Rows, ledger: Ledger) -> None:
    """Every request was refused, yet the provider holds it: no person may end it as if nothing had happened."""
    made = refused(rows, ledger)
    rows.execute(made, f"tool = 't_up', {DUE}")
    operator = rows.ledger("operator")
    [action] = claim(ledger, "t_up")
    assert watch.found_after_all(ledger, action, code="found_after_all", evidence="e", by="w")
    said = reviews.give_up(operator, made, by="jo", channel="cli", reason="x", as_happened=False)
    assert said.answer == "unverified_only"


def test_blind_and_orphaned_rows_leave_the_watch(rows: Rows, ledger: Ledger) -> None:
    """Rows whose tool has no look-up go when they are due; those whose tool nobody has, once they are long due."""
    blind = [settled(rows, "t_blind") for _ in range(3)]
    orphan, fresh = settled(rows, "t_orphan"), settled(rows, "t_orphan")
    rows.execute(orphan, "watch_at = counterfoil.now() - interval '2 hours'")
    assert sorted(watch.end_blind(ledger, tools=[("t_blind", 1)])) == sorted(blind)
    assert watch.end_blind(ledger, tools=[("t_blind", 1)]) == []
    others = rows.all("SELECT DISTINCT tool, tool_version FROM counterfoil.action WHERE tool <> 't_orphan'")
    known = [(row["tool"], row["tool_version"]) for row in others]
    assert watch.end_orphaned(ledger, known=known, older_s=3600) == [orphan]
    assert rows.read(fresh)["watch_at"] is not None


def test_uncertain_rows_come_first(rows: Rows, ledger: Ledger) -> None:
    """A provider whose uncertain rows are overdue is left alone, until a watched row of it is overdue by an hour."""
    late = rows.build("uncertain", provider="busy", tool="t_busy")
    rows.execute(late, "next_lookup_at = counterfoil.now() - interval '2 minutes'")
    watched = settled(rows, "t_busy", provider="busy")
    assert "busy" in watch.providers_behind(ledger, behind_s=60)
    assert "busy" not in watch.providers_behind(ledger, behind_s=180)
    rows.execute(watched, "watch_at = counterfoil.now() - interval '61 minutes'")
    assert "busy" not in watch.providers_behind(ledger, behind_s=60)
