"""Whether a provider answers, kept by many processes at once: one alarm for an outage, and nobody grows old in it."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

import pytest

from counterfoil.ledger import alarms, health
from counterfoil.ledger.health import FRESH_S, LAPSE_S, NOTE_EVERY_S, OUTAGE_FAILURES, OUTAGE_S, STEADY_S, Limit

if TYPE_CHECKING:
    from tests.integration.conftest import Rows

    from counterfoil.ledger.connection import Ledger

AtOnce = Callable[[Sequence[Callable[[], Any]]], list[Any]]
HOUR_S = 3600.0
CHARGES = [Limit(tool="stripe_charge", version=1, limit_s=HOUR_S)]


@pytest.fixture
def ledger(rows: Rows) -> Ledger:
    return rows.ledger("worker")


def fail(
    rows: Rows, ledger: Ledger, *, times: int = OUTAGE_FAILURES, apart_s: float = OUTAGE_S, way: Any = "look_up"
) -> None:
    """So many failures, so far apart; the clock stands at the last."""
    for number in range(times):
        if number:
            rows.database.advance(apart_s)
        health.note(ledger, "stripe", "default", way, failed="http_503")


def answer(ledger: Ledger, account: str = "default", way: Any = "look_up") -> None:
    health.note(ledger, "stripe", account, way, failed=None)


def uncertain(rows: Rows, **columns: object) -> str:
    """A row that turned uncertain now, and was looked up just then."""
    return rows.build("uncertain", **{"uncertain_since": "1 second ago", "lookup_count": 3, **columns})


def looked_at(rows: Rows, action_id: str) -> None:
    """A look-up has just asked about it, in vain."""
    rows.execute(action_id, "updated_at = counterfoil.now()")


def escalated(ledger: Ledger, limits: Sequence[Limit] = CHARGES) -> list[str]:
    return health.escalate_too_long(ledger, limits, by="beat")


def alarm_of(rows: Rows) -> list[tuple[str, str, bool]]:
    return [
        (row["kind"], row["subject"], row["ended_at"] is not None)
        for row in rows.all("SELECT * FROM counterfoil.alarm ORDER BY alarm_id")
    ]


def test_an_outage_is_one_alarm(rows: Rows, ledger: Ledger) -> None:
    """Failing for a minute and three times: one alarm since the first failure, however often it is looked for; one end."""
    fail(rows, ledger)
    [opened] = health.open_outages(ledger)
    assert (opened.kind, opened.subject) == ("outage", "stripe/default")
    assert health.open_outages(ledger) == []
    assert health.end_outages(ledger) == []
    assert health.describe(ledger, "stripe/default") == ("http_503", 0)
    rows.database.advance(HOUR_S)
    fail(rows, ledger, times=1)
    answer(ledger)
    rows.database.advance(STEADY_S + 1)
    [ended] = health.end_outages(ledger)
    assert ended.answers
    assert ended.lasted_s == pytest.approx(HOUR_S + (OUTAGE_FAILURES - 1) * OUTAGE_S, abs=5)
    assert health.end_outages(ledger) == []
    assert alarm_of(rows) == [("outage", "stripe/default", True)]


@pytest.mark.parametrize(
    ("times", "apart_s"), [(OUTAGE_FAILURES - 1, OUTAGE_S + 1), (10, OUTAGE_S / 10), (OUTAGE_FAILURES, FRESH_S + 60)]
)
def test_what_is_no_outage(rows: Rows, ledger: Ledger, times: int, apart_s: float) -> None:
    """Two failures; many within a minute; a few that are far apart, between which nobody has asked."""
    fail(rows, ledger, times=times, apart_s=apart_s)
    assert health.open_outages(ledger) == []


def test_an_answer_among_failures_keeps_it_from_being_one(rows: Rows, ledger: Ledger) -> None:
    """One process fails, another gets answers: no outage."""
    for _ in range(10):
        fail(rows, ledger, times=1)
        answer(ledger)
        rows.database.advance(OUTAGE_S / 2)
    assert health.open_outages(ledger) == []


def test_one_answer_ends_no_outage(rows: Rows, ledger: Ledger) -> None:
    """An answer, and failures again: the same alarm, not a second one; it has not answered for any time."""
    fail(rows, ledger)
    health.open_outages(ledger)
    for _ in range(5):
        answer(ledger)
        assert health.end_outages(ledger) == []
        rows.database.advance(STEADY_S / 2)
        fail(rows, ledger, times=1)
        assert (health.end_outages(ledger), health.open_outages(ledger)) == ([], [])
        rows.database.advance(STEADY_S)
    assert alarm_of(rows) == [("outage", "stripe/default", False)]


def test_many_reconcilers_one_alarm(rows: Rows, ledger: Ledger, at_once: AtOnce) -> None:
    """Six of them note, open and end at one moment: one alarm, told by one of them, and ended by one."""
    many = [rows.ledger("worker") for _ in range(6)]
    for number in range(OUTAGE_FAILURES):
        if number:
            rows.database.advance(OUTAGE_S)
        at_once([lambda each=each: health.note(each, "stripe", "default", "look_up", failed="x") for each in many])
    assert sum(len(found) for found in at_once([lambda each=each: health.open_outages(each) for each in many])) == 1
    at_once([lambda each=each: answer(each) for each in many])
    rows.database.advance(STEADY_S + 1)
    assert sum(len(found) for found in at_once([lambda each=each: health.end_outages(each) for each in many])) == 1
    assert len(alarm_of(rows)) == 1


def test_answers_are_written_down_now_and_then(rows: Rows, ledger: Ledger) -> None:
    """While nothing changes, one write in a few seconds, whatever the number of answers."""
    version = "SELECT xmin::text AS x FROM counterfoil.provider_health"
    answer(ledger)
    first = rows.one(version)["x"]
    for _ in range(20):
        answer(ledger)
    assert rows.one(version)["x"] == first
    rows.database.advance(NOTE_EVERY_S + 1)
    answer(ledger)
    assert rows.one(version)["x"] != first


def test_a_row_is_a_persons_after_an_hour_of_answers(rows: Rows, ledger: Ledger) -> None:
    """Not before; and only in the account that answers, of tools in question, that a look-up has asked about."""
    answer(ledger)
    answer(ledger, "eu")
    health.note(ledger, "stripe", "us", "look_up", failed="x")
    mine, eu, us = (uncertain(rows, account=name, run=f"r-{name}") for name in ("default", "eu", "us"))
    other, unasked = uncertain(rows, tool="stripe_refund"), uncertain(rows, lookup_count=0)
    rows.database.advance(HOUR_S - 60)
    answer(ledger)
    for each in (mine, eu, us, other, unasked):
        looked_at(rows, each)
    assert escalated(ledger) == []
    rows.database.advance(120)
    answer(ledger)
    assert escalated(ledger) == [mine], "of eu nothing was heard for an hour"
    assert escalated(ledger) == []
    row = rows.read(mine)
    assert (row["state"], row["last_error_code"], row["in_doubt"]) == ("operator_review", "uncertain_too_long", True)
    assert rows.history(mine) == [("uncertain", "operator_review")]
    answer(ledger, "eu")
    assert escalated(ledger) == [eu]


def test_an_outage_makes_nobody_old(rows: Rows, ledger: Ledger) -> None:
    """Two hours without an answer hand nobody anything, nor does their end: the hour begins with the first answer."""
    answer(ledger)
    row = uncertain(rows)
    for _ in range(12):
        rows.database.advance(600)
        fail(rows, ledger, times=1)
        looked_at(rows, row)
        assert escalated(ledger) == []
    rows.database.advance(60)
    answer(ledger)
    looked_at(rows, row)
    assert escalated(ledger) == []
    for _ in range(7):
        assert escalated(ledger) == []
        rows.database.advance(HOUR_S / 7 + 1)
        answer(ledger)
    assert escalated(ledger) == [row]


def test_nobody_is_handed_over_unasked(rows: Rows, ledger: Ledger) -> None:
    """With a limit of seconds, too, each row is asked about once after the outage before its age counts."""
    limits = [Limit(tool="stripe_charge", version=1, limit_s=10.0)]
    row = uncertain(rows)
    looked_at(rows, row)
    rows.database.advance(60)
    answer(ledger)
    rows.database.advance(60)
    answer(ledger)
    assert escalated(ledger, limits) == []
    looked_at(rows, row)
    assert escalated(ledger, limits) == [row]


def test_a_person_who_has_asked_is_not_cut_short(rows: Rows, ledger: Ledger) -> None:
    """While a person's request is open its answer is the look-up's; and what a look-up holds is left to it."""
    answer(ledger)
    asked, held = uncertain(rows), rows.build("reconciling", uncertain_since="1 second ago", lookup_count=3)
    rows.all(
        "INSERT INTO counterfoil.review (action_id, tenant, verb, by_person, channel)"
        " VALUES (%s, 'acme', 'ask_again', 'mia', 'cli') RETURNING 1",
        asked,
    )
    rows.database.advance(HOUR_S + 60)
    answer(ledger)
    for each in (asked, held):
        looked_at(rows, each)
    assert escalated(ledger) == []


def test_two_reconcilers_hand_a_row_over_once(rows: Rows, ledger: Ledger, at_once: AtOnce) -> None:
    """Six at one moment: each row is moved once."""
    answer(ledger)
    made = {uncertain(rows, run=f"r{number}") for number in range(20)}
    rows.database.advance(HOUR_S + 60)
    answer(ledger)
    for each in made:
        looked_at(rows, each)
    many = [rows.ledger("worker") for _ in range(6)]
    moved = at_once([lambda each=each: escalated(each) for each in many])
    assert sorted(action for found in moved for action in found) == sorted(made)


def unreachable(rows: Rows, ledger: Ledger, *, for_s: float, row: str | None = None) -> None:
    """Nobody can use the account, for so long, as look-ups find out every ten minutes."""
    for _ in range(int(for_s // 600) + 1):
        health.note(ledger, "stripe", "default", "configuration", failed="unreachable")
        if row is not None:
            looked_at(rows, row)
        rows.database.advance(600)


def test_an_account_that_is_not_configured_any_more(rows: Rows, ledger: Ledger) -> None:
    """No outage of the provider's: an alarm of its own, and after the hour a person, since no answer will ever come."""
    row = uncertain(rows)
    unreachable(rows, ledger, for_s=1800, row=row)
    assert [(found.kind, found.subject) for found in health.open_outages(ledger)] == [("unreachable", "stripe/default")]
    assert health.escalate_unreachable(ledger, CHARGES, by="beat") == []
    unreachable(rows, ledger, for_s=1800, row=row)
    assert escalated(ledger) == []
    assert health.escalate_unreachable(ledger, CHARGES, by="beat") == [row]
    assert rows.read(row)["last_error_code"] == "unreachable"


@pytest.mark.parametrize("failed", [None, "http_503"])
def test_another_process_that_can_use_it(rows: Rows, ledger: Ledger, failed: str | None) -> None:
    """A process of another deployment asks by that account, answered or not: it is configured, and nobody is handed over."""
    row = uncertain(rows)
    for _ in range(12):
        unreachable(rows, ledger, for_s=0, row=row)
        health.note(ledger, "stripe", "default", "look_up", failed=failed)
    assert health.escalate_unreachable(ledger, CHARGES, by="beat") == []
    assert ("unreachable", "stripe/default", False) not in alarm_of(rows)


def test_an_alarm_that_nobody_tests_any_more_lapses(rows: Rows, ledger: Ledger) -> None:
    """Nothing is left to ask about: it ends after an hour, though nobody knows of an answer; with a row left it does not."""
    fail(rows, ledger)
    row = uncertain(rows)
    health.open_outages(ledger)
    rows.database.advance(LAPSE_S + 60)
    assert health.end_outages(ledger) == []
    rows.execute(row, "state = 'operator_review'")
    [ended] = health.end_outages(ledger)
    assert not ended.answers
    assert health.open_outages(ledger) == []


def test_two_ways_are_one_outage(rows: Rows, ledger: Ledger) -> None:
    """Look-ups and sends fail: one alarm, which ends when both work."""
    fail(rows, ledger)
    fail(rows, ledger, way="send")
    assert len(health.open_outages(ledger)) == 1
    answer(ledger)
    rows.database.advance(STEADY_S + 1)
    assert health.end_outages(ledger) == []
    answer(ledger, way="send")
    rows.database.advance(STEADY_S + 1)
    assert len(health.end_outages(ledger)) == 1


def test_answered_for(rows: Rows, ledger: Ledger) -> None:
    """Whether it answers, for so long, since then: never heard of, too short, fresh, and long ago."""

    def answered(since: Any = None) -> bool:
        return health.answered_for(ledger, "stripe", "default", "send", since=since, for_s=HOUR_S)

    assert not answered()
    answer(ledger, way="send")
    assert not answered()
    rows.database.advance(HOUR_S + 1)
    assert not answered(), "nothing was heard for an hour"
    answer(ledger, way="send")
    assert answered()
    assert not answered(rows.one("SELECT counterfoil.now() - interval '1 minute' AS at")["at"])
    long_ago = rows.one("SELECT counterfoil.now() - interval '1 day' AS at")["at"]
    assert answered(long_ago)
    fail(rows, ledger, way="send")
    assert not answered(long_ago), "an outage, however recent the newest answer is"


def test_an_alarm_is_raised_once(rows: Rows, ledger: Ledger, at_once: AtOnce) -> None:
    """Six at one moment: one of them; ended, it may be raised again."""
    many = [rows.ledger("worker") for _ in range(6)]
    told = at_once([lambda each=each: alarms.raise_alarm(each, "unwind_blocked", "act_1") for each in many])
    assert sorted(told) == [False] * 5 + [True]
    assert alarms.end_alarm(ledger, "unwind_blocked", "act_1")
    assert not alarms.end_alarm(ledger, "unwind_blocked", "act_1")
    assert alarms.raise_alarm(ledger, "unwind_blocked", "act_1")


def test_an_alarm_that_another_process_is_raising(rows: Rows, ledger: Ledger) -> None:
    """It waits for the other's commit, and then is not the one who has opened it."""
    blocked = "SELECT count(*) AS n FROM pg_locks WHERE NOT granted AND pid <> pg_backend_pid()"
    watcher, deadline = rows.connect("owner"), time.monotonic() + 20
    with ThreadPoolExecutor(1) as pool:
        with rows.owner.transaction():
            rows.owner.execute(
                "INSERT INTO counterfoil.alarm (kind, subject, tenant) VALUES ('unwind_blocked', 'a', '*')"
            )
            told = pool.submit(alarms.raise_alarm, ledger, "unwind_blocked", "a")
            while (row := watcher.execute(blocked).fetchone()) is None or not row["n"]:
                assert time.monotonic() < deadline, "it never waited"
        assert told.result(timeout=20) is False
