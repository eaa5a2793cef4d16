"""Whether providers answer, as the ledger keeps it for the fleet; the alarms about it; rows too old to ask about."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Literal

from counterfoil.ledger.connection import Ledger
from counterfoil.ledger.queries import load

_SQL = load("counterfoil.ledger", "sql/health.sql")

Way = Literal["look_up", "send", "configuration"]
"""How it was found out: by asking about outcomes; by sending, of tools that have no look-up; or that nothing is configured to
ask with."""

NOTE_EVERY_S = 5.0
"""While nothing changes it is written down this often: one small write for many answers."""

OUTAGE_S = 60.0
"""Failing for as long as that is an outage: a deployment or a failover at the provider is shorter."""

OUTAGE_FAILURES = 3
"""And so many times: two questions ten minutes apart may both have been unlucky."""

FRESH_S = 900.0
"""What was found out longer ago says nothing about now. Longer than a lone row is left alone between two look-ups."""

STEADY_S = 60.0
"""An outage is over once it has answered for as long as that: one answer among failures ends none."""

LAPSE_S = 3600.0
"""An alarm that nobody has tested for as long as that ends, when nothing is left to ask about."""

BATCH = 500
"""Rows that go to a person in one statement; the next tick takes the rest."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Outage:
    """An alarm that this process has opened or ended."""

    kind: Literal["outage", "unreachable"]
    subject: str
    """provider/account"""
    since: datetime | None = None
    lasted_s: float | None = None
    answers: bool = False
    """It has ended since it answers; else since nothing is left to ask about."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Limit:
    """For how long a row of this tool may stay uncertain while its provider answers."""

    tool: str
    version: int
    limit_s: float


def note(ledger: Ledger, provider: str, account: str, way: Way, *, failed: str | None) -> None:
    """Writes down that it answered, or (a code) did not. Two processes at once lose nothing: each is one statement."""
    about = {"provider": provider, "account": account, "way": way, "every_s": NOTE_EVERY_S}
    if failed is None:
        ledger.rows(_SQL["note_answered"], about)
    else:
        more = {"code": failed[:100], "batches": OUTAGE_FAILURES, "outage_s": OUTAGE_S, "fresh_s": FRESH_S}
        ledger.rows(_SQL["note_failed"], {**about, **more})


def answered_for(
    ledger: Ledger, provider: str, account: str, way: Way, *, since: datetime | None, for_s: float
) -> bool:
    """Whether it answers, and has for so long without an outage, counted from `since` at the earliest."""
    params = {"provider": provider, "account": account, "way": way, "since": since, "for_s": for_s, "fresh_s": FRESH_S}
    row = ledger.row(_SQL["answered_for"], params)
    assert row is not None
    return bool(row["answered"])


def open_outages(ledger: Ledger) -> list[Outage]:
    """Opens an alarm for each provider and account that has failed for long; those that this call has opened."""
    params = {"outage_s": OUTAGE_S, "batches": OUTAGE_FAILURES, "fresh_s": FRESH_S}
    return [Outage(**row) for row in ledger.rows(_SQL["open_outages"], params)]


def end_outages(ledger: Ledger) -> list[Outage]:
    """Ends the alarms of those that answer again; those that this call has ended."""
    return [Outage(**row) for row in ledger.rows(_SQL["end_outages"], {"steady_s": STEADY_S, "lapse_s": LAPSE_S})]


def describe(ledger: Ledger, subject: str) -> tuple[str | None, int]:
    """The last code of one that fails, and how many rows wait for it; (None, 0) when it does not fail (any more)."""
    provider, _, account = subject.partition("/")
    row = ledger.row(_SQL["describe_outage"], {"provider": provider, "account": account})
    return (None, 0) if row is None else (row["code"], row["waiting"])


def escalate_too_long(ledger: Ledger, limits: Sequence[Limit], *, by: str, batch: int = BATCH) -> list[str]:
    """uncertain → operator_review, `uncertain_too_long`, for rows whose provider has answered for longer than their limit."""
    return _escalated(ledger, "escalate_too_long", limits, by=by, batch=batch)


def escalate_unreachable(ledger: Ledger, limits: Sequence[Limit], *, by: str, batch: int = BATCH) -> list[str]:
    """uncertain → operator_review, `unreachable`, for rows that nobody could ask about for longer than their limit."""
    return _escalated(ledger, "escalate_unreachable", limits, by=by, batch=batch)


def _escalated(ledger: Ledger, name: str, limits: Sequence[Limit], *, by: str, batch: int) -> list[str]:
    if not limits:
        return []
    params = {
        "tools": [limit.tool for limit in limits],
        "versions": [limit.version for limit in limits],
        "limits_s": [float(limit.limit_s) for limit in limits],  # a default may be an integer, and arrays do not mix
        "least_s": min(limit.limit_s for limit in limits),
        "fresh_s": FRESH_S,
        "by": by,
        "batch": batch,
    }
    return [row["action_id"] for row in ledger.rows(_SQL[name], params)]
