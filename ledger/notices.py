"""What people are told about: notices of what waits for them, each told at least once, and what a notice may say."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Literal

from counterfoil.ledger.connection import Ledger
from counterfoil.ledger.queries import load

_SQL = load("counterfoil.ledger", "sql/notices.sql")

BATCH = 500
"""Notices that one tick records in one statement; the next tick records the rest."""

Kind = Literal["proposal", "review", "correction", "expiring", "expired", "alarm", "alarm_ended"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Notice:
    """One thing to tell, under the claim of one reconciler. The first three are its identity."""

    subject_id: str
    """A proposal, an action in review, a correction or an alarm."""
    kind: Kind
    since: datetime
    """It has waited since then, or (expired, ended) waits no more; the same subject may wait again."""
    tenant: str
    tries: int
    """This one included."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Subject:
    """What a notice says: ids, codes and sums, never arguments, targets (an address may be one) or receipts. Of a plan
    neither tool nor effect."""

    id: str
    why: str
    """new, one_more, edited; expiring; undecided or unclaimed (expired); no_effect (correction); a review's error code; an
    alarm's kind."""
    run: str
    expires_at: datetime | None
    subject: str | None
    """What an alarm is about: a provider and its account, a queue, or an action."""
    steps: int
    tool: str | None
    effect: str | None
    amount_minor: int | None
    """Of a plan the sum, if it has one currency."""
    currency: str | None
    audience: list[str]


def record(ledger: Ledger, *, remind_ratio: float, pause_s: float, batch: int = BATCH) -> list[str]:
    """Notes what is to be told and was not noted yet; returns the subjects' ids.

    `remind_ratio`: the share of a proposal's time after which there is one reminder. `pause_s`: while others have failed,
    new notices wait for at most as long.
    """
    wanted = {"remind_ratio": remind_ratio, "pause_s": pause_s, "batch": batch}
    return [row["subject_id"] for row in ledger.rows(_SQL["record_notices"], wanted)]


def claim(ledger: Ledger, *, hold_s: float) -> Notice | None:
    """The notice that is due first, for `hold_s`: then somebody else may have it, and until it is told or has failed nobody
    gets another. None: nothing is due, or somebody has one."""
    row = ledger.row(_SQL["claim_notice"], {"hold_s": hold_s})
    return None if row is None else Notice(**row)


def subject(ledger: Ledger, notice: Notice) -> Subject | None:
    """What there is to say; None: it does not wait any more."""
    row = ledger.row(_SQL["read_notice"], _identity(notice))
    return None if row is None else Subject(**row)


def told(ledger: Ledger, notice: Notice) -> bool:
    """It was told, or need not be any more. False: somebody else has told it, too."""
    return ledger.row(_SQL["mark_told"], _identity(notice)) is not None


def failed(ledger: Ledger, notice: Notice, *, delay_s: float, pause_s: float) -> None:
    """It is told again after `delay_s`, any other after `pause_s` at the earliest."""
    ledger.rows(_SQL["try_later"], {**_identity(notice), "tries": notice.tries, "delay_s": delay_s})
    ledger.rows(_SQL["pause_notices"], {"pause_s": pause_s})


def prune(ledger: Ledger, *, older_s: float) -> int:
    """Forgets what was told as long ago as that (thirty days at least) and waits no more; returns how many notices went."""
    row = ledger.row(_SQL["prune_notices"], {"older_s": older_s})
    assert row is not None
    return int(row["pruned"])


def _identity(notice: Notice) -> dict[str, object]:
    return {"subject_id": notice.subject_id, "kind": notice.kind, "since": notice.since}
