"""What the reconciler may do with an action: claim uncertain ones for a look-up, then write one verdict each, fenced."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Literal
from uuid import UUID

import psycopg

from counterfoil.ledger.claims import RecordedAction, recorded
from counterfoil.ledger.connection import Ledger
from counterfoil.ledger.queries import load

_SQL = load("counterfoil.ledger", "sql/reconciler.sql")


class Unwritable(Exception):
    """The database refuses this verdict on this row, however often it is tried; nothing was written."""


@dataclass(frozen=True, slots=True, kw_only=True)
class UncertainAction(RecordedAction):
    """A row under a look-up's lease. `as_of` is a time before the look-up begins; `late_…` is a success that some attempt
    recorded after it had lost the row; `asked…` is what a person has asked for about it, while that is not answered."""

    as_of: datetime
    quiet_from: datetime | None
    absent_count: int
    last_absent_at: datetime | None
    lookup_count: int
    last_error_code: str | None
    late_receipt: str | None
    late_result: str | None
    asked: Literal["happened", "not_happened", "ask_again"] | None
    asked_receipt: str | None
    asked_at: datetime | None
    asked_by: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class LookUpGroup:
    """Uncertain rows that one look-up can share: those of one tool, in one version, at one account."""

    tool: str
    tool_version: int
    account: str
    due: int
    """Rows that may be looked up now; of many only as many as fill a batch or two."""
    since: datetime
    """When the first of them became due."""

    @property
    def name(self) -> tuple[str, int, str]:
        """What makes it another group."""
        return self.tool, self.tool_version, self.account


def due_groups(
    ledger: Ledger, *, tools: Sequence[tuple[str, int]], batch: int, uncertain_after_s: float
) -> list[LookUpGroup]:
    """The groups of `tools` (name, version) that have due rows, the longest due first. Takes nothing."""
    rows = ledger.rows(
        _SQL["due_groups"],
        {
            "tools": [name for name, _ in tools],
            "versions": [version for _, version in tools],
            "batch": batch,
            "uncertain_after_s": uncertain_after_s,
        },
    )
    return [LookUpGroup(**row) for row in rows]


def claim_uncertain(
    ledger: Ledger,
    *,
    fence: UUID,
    tool: str,
    version: int,
    account: str,
    batch: int,
    lease_s: float,
    uncertain_after_s: float,
    by: str,
) -> list[UncertainAction]:
    """uncertain → reconciling for up to `batch` due rows of one group, fair between tenants; nobody else gets them."""
    rows = ledger.rows(
        _SQL["claim_uncertain"],
        {
            "fence": fence,
            "tool": tool,
            "version": version,
            "account": account,
            "batch": batch,
            "lease_s": lease_s,
            "uncertain_after_s": uncertain_after_s,
            "by": by,
        },
    )
    return [recorded(UncertainAction, row) for row in rows]


def succeeded(ledger: Ledger, action: RecordedAction, *, receipt: str, result: str, evidence: str, by: str) -> bool:
    """reconciling → succeeded: the provider holds our effect."""
    return _written(ledger, "verdict_succeeded", action, receipt=receipt, result=result, evidence=evidence, by=by)


@dataclass(frozen=True, slots=True, kw_only=True)
class FoundRow:
    """One of many successes."""

    action: RecordedAction
    receipt: str
    result: str
    evidence: str


@dataclass(frozen=True, slots=True, kw_only=True)
class LaterRow:
    """One of many rows that are asked about again."""

    action: RecordedAction
    after_s: float
    absent_count: int
    last_absent_at: datetime | None
    reason: str
    evidence: str


def succeeded_all(ledger: Ledger, rows: Sequence[FoundRow], *, by: str) -> frozenset[str] | None:
    """As `succeeded`, for rows of one claim at once: the ids of those that were written. None: one of them could not be
    written, so none was."""
    return _all_written(
        ledger,
        "verdicts_succeeded",
        [row.action for row in rows],
        receipts=[row.receipt for row in rows],
        results=[row.result for row in rows],
        evidences=[row.evidence for row in rows],
        by=by,
    )


def ask_later_all(ledger: Ledger, rows: Sequence[LaterRow], *, by: str) -> frozenset[str] | None:
    """As `ask_later`, likewise."""
    return _all_written(
        ledger,
        "verdicts_ask_later",
        [row.action for row in rows],
        after_s=[row.after_s for row in rows],
        absent_counts=[row.absent_count for row in rows],
        last_absent_at=[row.last_absent_at for row in rows],
        reasons=[row.reason for row in rows],
        evidences=[row.evidence for row in rows],
        by=by,
    )


def failed(ledger: Ledger, action: RecordedAction, *, code: str, reason: str, evidence: str, by: str) -> bool:
    """reconciling → permanent_failure: found and failed, or absent and never to be sent again. Ends the doubt."""
    return _written(ledger, "verdict_failed", action, code=code, reason=reason, evidence=evidence, by=by)


def not_executed(ledger: Ledger, action: RecordedAction, *, code: str, reason: str, evidence: str, by: str) -> bool:
    """reconciling → not_executed: it was not done, and no attempt is left or wanted. Ends the doubt."""
    return _written(ledger, "verdict_not_executed", action, code=code, reason=reason, evidence=evidence, by=by)


def resend(
    ledger: Ledger,
    action: RecordedAction,
    *,
    ends_doubt: bool,
    delay_s: float,
    reason: str,
    evidence: str,
    by: str,
) -> bool:
    """reconciling → ready, same key and bytes; False also when a cancel, or an approval that is not of it, forbids it."""
    return _written(
        ledger,
        "verdict_resend",
        action,
        ends_doubt=ends_doubt,
        delay_s=delay_s,
        reason=reason,
        evidence=evidence,
        by=by,
    )


def unapproved(ledger: Ledger, action: RecordedAction, *, evidence: str, by: str) -> bool:
    """reconciling → operator_review, if what would be sent again has no approval of exactly what it says."""
    return _written(ledger, "verdict_unapproved", action, evidence=evidence, by=by)


def ask_later(
    ledger: Ledger,
    action: RecordedAction,
    *,
    after_s: float,
    absent_count: int,
    last_absent_at: datetime | None,
    reason: str,
    evidence: str,
    by: str,
) -> bool:
    """reconciling → uncertain, to be looked up again in `after_s`."""
    return _written(
        ledger,
        "verdict_ask_later",
        action,
        after_s=after_s,
        absent_count=absent_count,
        last_absent_at=last_absent_at,
        reason=reason,
        evidence=evidence,
        by=by,
    )


def to_person(ledger: Ledger, action: RecordedAction, *, code: str, reason: str, evidence: str, by: str) -> bool:
    """reconciling → operator_review: evidence is contradictory, or there is no way to get any."""
    return _written(ledger, "verdict_person", action, code=code, reason=reason, evidence=evidence, by=by)


def back_to_review(
    ledger: Ledger, action: RecordedAction, *, answer: str, code: str | None, evidence: str, by: str
) -> bool:
    """reconciling → operator_review again: what a person said was not borne out. No `code`: the old reason stays."""
    return _written(ledger, "verdict_back_to_review", action, answer=answer, code=code, evidence=evidence, by=by)


def _all_written(
    ledger: Ledger, name: str, actions: Sequence[RecordedAction], **params: object
) -> frozenset[str] | None:
    [fence] = {action.fence for action in actions}
    ids = [action.action_id for action in actions]
    try:
        return frozenset(r["action_id"] for r in ledger.rows(_SQL[name], {"action_ids": ids, "fence": fence, **params}))
    except psycopg.DatabaseError:
        return None


def _written(ledger: Ledger, name: str, action: RecordedAction, **params: object) -> bool:
    everything: dict[str, object] = {"action_id": action.action_id, "fence": action.fence, **params}
    try:
        return ledger.row(_SQL[name], everything) is not None
    except psycopg.DatabaseError as error:
        raise Unwritable(type(error).__name__) from error
