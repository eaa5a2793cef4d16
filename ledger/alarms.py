"""What an operator must know, told once: raised by whoever finds it, ended when it is over; notices tell people."""

from __future__ import annotations

from collections.abc import Sequence

from counterfoil.ledger.connection import Ledger, Row
from counterfoil.ledger.queries import load

_SQL = load("counterfoil.ledger", "sql/alarms.sql")

FLEET = "*"
"""The tenant of an alarm about the whole fleet."""


def raise_alarm(ledger: Ledger, kind: str, subject: str, *, tenant: str = FLEET, run: str = "") -> bool:
    """True for the one caller that has opened it; False while it is open."""
    params = {"kind": kind, "subject": subject, "tenant": tenant, "run": run}
    return ledger.row(_SQL["raise_alarm"], params) is not None


def end_alarm(ledger: Ledger, kind: str, subject: str) -> bool:
    """True for the one caller that has ended it."""
    return ledger.row(_SQL["end_alarm"], {"kind": kind, "subject": subject}) is not None


def keep_alarms(ledger: Ledger, kind: str, subjects: Sequence[str]) -> list[str]:
    """Of one kind, opens those about these subjects and ends all others; returns the subjects of new ones."""
    ledger.rows(_SQL["end_other_alarms"], {"kind": kind, "subjects": list(subjects)})
    return [subject for subject in subjects if raise_alarm(ledger, kind, subject)]


def end_settled_unwinds(ledger: Ledger) -> int:
    """Ends the alarms about runs whose unwinding is not held up any more; how many."""
    return len(ledger.rows(_SQL["end_settled_unwinds"], {}))


def settle_alarm(ledger: Ledger, alarm_id: str, *, by: str, reason: str) -> bool:
    """A person has dealt with a second effect. False: that alarm is not open, ends by itself, or is another tenant's."""
    row = ledger.row(_SQL["settle_alarm"], {"id": alarm_id, "by": by, "reason": reason})
    return bool(row and row["ended"])


def list_alarms(ledger: Ledger, *, tenant: str | None, ended: bool, limit: int) -> list[Row]:
    """Open alarms, and with `ended` those that are over, the newest first; of a tenant also those of the whole fleet."""
    return ledger.rows(_SQL["list_alarms"], {"tenant": tenant, "ended": ended, "limit": limit})


def read_alarm(ledger: Ledger, alarm_id: str) -> Row | None:
    """One alarm; with its evidence, where this login may read that."""
    found = ledger.row(_SQL["read_alarm"], {"id": alarm_id})
    may = ledger.row(_SQL["may_read_evidence"], {})
    if found is None or may is None or not may["may"]:
        return found
    return {**found, **(ledger.row(_SQL["read_evidence"], {"id": alarm_id}) or {})}
