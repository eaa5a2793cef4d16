"""People are told of an alarm once when it begins, and of an outage once more when it is over."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import pytest

from counterfoil.ledger import alarms, notices
from counterfoil.ledger.claims import beat_heart
from counterfoil.outbox.relay import Relay
from counterfoil.reconciler.hooks import Hook
from counterfoil.reconciler.notify import PAUSE_S, Notifier

if TYPE_CHECKING:
    from tests.integration.conftest import Rows

AtOnce = Callable[[Sequence[Callable[[], Any]]], list[Any]]
DAY_S = 86_400.0


@dataclass
class Heard:
    """A hook that hears, or fails as it is told."""

    documents: list[dict[str, Any]] = field(default_factory=list)
    failing: str | None = None

    def deliver(self, document: bytes) -> str | None:
        self.documents.append(json.loads(document))
        return self.failing


@pytest.fixture
def notifier(rows: Rows) -> Callable[..., Notifier]:
    """Makes a reconciler's notifier, with a connection of its own."""

    def make(*hooks: Hook) -> Notifier:
        return Notifier(ledger=rows.ledger("worker"), hooks=lambda: hooks, timeout_s=20.0, batch=50, remind_ratio=0.8)

    return make


def kinds(heard: Heard) -> list[tuple[str, str]]:
    return [(document["kind"], document["why"]) for document in heard.documents]


def raised(rows: Rows, kind: str, subject: str) -> None:
    assert alarms.raise_alarm(rows.ledger("worker"), kind, subject)


def test_an_alarm_is_told_once_when_it_begins_and_once_when_it_ends(
    rows: Rows, notifier: Callable[..., Notifier], at_once: AtOnce
) -> None:
    """Six reconcilers at one moment: one document for each, with what it is about and what to type; the next outage, too."""
    raised(rows, "outage", "stripe/default")
    heard = Heard()
    many = [notifier(heard) for _ in range(6)]
    at_once([each.tell for each in many])
    assert kinds(heard) == [("alarm", "outage")]
    document = heard.documents[0]
    assert (document["subject"], document["tenant"], document["tool"]) == ("stripe/default", "*", None)
    assert document["command"] == f"counterfoil alarm show {document['id']}"
    rows.database.advance(600)
    assert notifier(heard).tell() == 0
    alarms.end_alarm(rows.ledger("worker"), "outage", "stripe/default")
    at_once([each.tell for each in many])
    assert kinds(heard) == [("alarm", "outage"), ("alarm_ended", "outage")]
    raised(rows, "outage", "stripe/default")
    assert notifier(heard).tell() == 1
    assert kinds(heard)[-1] == ("alarm", "outage")
    assert len({document["notice"] for document in heard.documents}) == 3


def test_the_end_of_what_people_have_ended_is_not_told(rows: Rows, notifier: Callable[..., Notifier]) -> None:
    """Whoever has revived a wake-up, or built what takes a step back, knows."""
    raised(rows, "unwind_blocked", "act_1")
    heard = Heard()
    assert notifier(heard).tell() == 1
    alarms.end_alarm(rows.ledger("worker"), "unwind_blocked", "act_1")
    assert notifier(heard).tell() == 0


def test_an_alarm_that_ended_while_nobody_listened(rows: Rows, notifier: Callable[..., Notifier]) -> None:
    """The hook was away for the whole outage: its end is told, its beginning is not told after it; a day later neither."""
    raised(rows, "outage", "stripe/default")
    raised(rows, "outage", "jira/default")
    heard = Heard(failing="exit_1")
    notifier(heard).tell()
    for name in ("stripe", "jira"):
        alarms.end_alarm(rows.ledger("worker"), "outage", f"{name}/default")
    heard.failing, heard.documents = None, []
    rows.database.advance(PAUSE_S + 1)
    assert notifier(heard).tell() == 2
    assert kinds(heard) == [("alarm_ended", "outage")] * 2
    raised(rows, "outage", "linear/default")
    alarms.end_alarm(rows.ledger("worker"), "outage", "linear/default")
    rows.database.advance(DAY_S + 60)
    assert notifier(heard).tell() == 0


def test_the_notice_of_an_open_alarm_is_kept(rows: Rows, notifier: Callable[..., Notifier]) -> None:
    """An outage of months is told once."""
    raised(rows, "outage", "stripe/default")
    heard = Heard()
    assert notifier(heard).tell() == 1
    rows.database.advance(100 * DAY_S)
    assert notices.prune(rows.ledger("worker"), older_s=90 * DAY_S) == 0
    assert notifier(heard).tell() == 0
    alarms.end_alarm(rows.ledger("worker"), "outage", "stripe/default")
    assert notices.prune(rows.ledger("worker"), older_s=90 * DAY_S) == 1


def test_with_all_workers_gone_the_relay_tells_people(rows: Rows, notifier: Callable[..., Notifier]) -> None:
    """Notices are told by workers, so that the alarm about their absence would never be; while one is up it is theirs."""
    heard, ledger = Heard(), rows.ledger("worker")
    relay = Relay(ledger, None, lost_after_s=20, notify=notifier(heard).tell)  # type: ignore[arg-type]
    raised(rows, "outage", "stripe/default")
    beat_heart(ledger, worker="w", queues=["cf-stripe", "cf-reconcile"], claimed=False)
    relay._visit()
    assert heard.documents == [], "a worker tells it"
    rows.database.advance(DAY_S / 2)
    relay._visit()
    assert kinds(heard) == [("alarm", "outage")]
    relay._visit()
    assert len(heard.documents) == 1, "once"
