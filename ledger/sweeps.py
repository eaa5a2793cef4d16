"""What moves rows on when nobody else does. Every sweep is idempotent and may run any number of times at once."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from counterfoil.ledger.connection import Ledger
from counterfoil.ledger.queries import load

_SQL = load("counterfoil.ledger", "sql/reconciler.sql")

BATCH = 500
"""Rows that one sweep moves in one statement; the next tick takes the rest."""


def sweep_lapsed_leases(ledger: Ledger, *, by: str, batch: int = BATCH) -> list[str]:
    """executing or reconciling past its lease → uncertain, never ready. Returns the action ids that moved."""
    return _moved(ledger, "sweep_lapsed_executing", by=by, batch=batch) + _moved(
        ledger, "sweep_lapsed_reconciling", by=by, batch=batch
    )


def expire_past_deadline(ledger: Ledger, *, by: str, batch: int = BATCH) -> list[str]:
    """Past its deadline: stale, or (in doubt) uncertain with no_resend, so that evidence decides."""
    return _moved(ledger, "expire_waiting", by=by, batch=batch) + _moved(ledger, "expire_in_doubt", by=by, batch=batch)


def expire_proposals(ledger: Ledger, *, by: str, batch: int = BATCH) -> list[str]:
    """Open proposals past their time, and approved actions whose first claim comes too late: stale, `approval_expired`.

    Returns the ids of the proposals and of those actions.
    """
    return [row["subject_id"] for row in ledger.rows(_SQL["expire_proposals"], {"by": by, "batch": batch})]


def prune_effect_locks(ledger: Ledger, *, older_s: float) -> int:
    """Drops the locks of effects that nobody has proposed for `older_s` (an hour at least); returns how many."""
    row = ledger.row(_SQL["prune_effect_locks"], {"older_s": older_s})
    assert row is not None
    pruned: int = row["pruned"]
    return pruned


def finish_cancels(ledger: Ledger, *, by: str, batch: int = BATCH) -> list[str]:
    """Carries out cancels that had found their row executing, once the row is claimable again."""
    ids = _moved(ledger, "due_cancels", batch=batch)
    for action_id in ids:
        ledger.rows(_SQL["request_cancel"], {"action_id": action_id, "by": by, "reason": "cancel requested"})
    return ids


def rescue_lost_wakeups(ledger: Ledger, *, older_s: float, batch: int = BATCH) -> list[str]:
    """Gives a wake-up to claimable rows that have none. Must return [] always; anything else is worth an alert."""
    return _moved(ledger, "rescue_lost_wakeups", older_s=older_s, batch=batch)


def hand_orphans_to_person(
    ledger: Ledger, *, known: Sequence[tuple[str, int]], older_s: float, by: str, batch: int = BATCH
) -> list[str]:
    """uncertain → operator_review for rows whose tool (name, version) is not `known` and whose look-up is `older_s` late."""
    names, versions = [name for name, _ in known], [version for _, version in known]
    return _moved(ledger, "hand_orphans_to_person", tools=names, versions=versions, older_s=older_s, by=by, batch=batch)


def forget_lacking(ledger: Ledger, *, held_s: float) -> None:
    """What was held back for `held_s`, or is published again and again, is not lacking any more: nobody has tried."""
    ledger.rows(_SQL["forget_lacking"], {"held_s": held_s})


def tools_lacking(ledger: Ledger, *, older_s: float, batch: int = BATCH) -> list[str]:
    """tool/version/account of what no worker could send for `older_s`, although workers had it in their hands."""
    return [row["subject"] for row in ledger.rows(_SQL["tools_lacking"], {"older_s": older_s, "batch": batch})]


def hand_lacking_to_person(ledger: Ledger, *, older_s: float, by: str, batch: int = BATCH) -> list[str]:
    """ready or retryable_failure, in doubt → operator_review for what no worker could send again for `older_s`."""
    return _moved(ledger, "hand_lacking_to_person", older_s=older_s, by=by, batch=batch)


@dataclass(frozen=True, slots=True)
class SentEarly:
    """A run that has sent irreversible effects before its pivot."""

    tenant: str
    run: str
    actions: int


def sent_before_pivot(ledger: Ledger, *, within_s: float, batch: int = BATCH) -> list[SentEarly]:
    """Runs called within the last `within_s` that sent what cannot be taken back before their pivot; must be []."""
    rows = ledger.rows(_SQL["sent_before_pivot"], {"within_s": within_s, "batch": batch})
    return [SentEarly(**row) for row in rows]


def make_partitions(ledger: Ledger, *, ahead: int = 2) -> list[str]:
    """Makes this month's partitions and those of `ahead` months more; returns the names of new ones."""
    row = ledger.row(_SQL["make_partitions"], {"ahead": ahead})
    assert row is not None
    made: list[str] = row["made"]
    return made


def _moved(ledger: Ledger, name: str, **params: object) -> list[str]:
    return [row["action_id"] for row in ledger.rows(_SQL[name], params)]
