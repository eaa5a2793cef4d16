"""What the watch may do with settled rows: claim those that are due, put them off, and tell what was found after all.

A claim changes no state. Whatever moves a claimed row takes it away: what is written with the claim then changes nothing.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime

from counterfoil.ledger.claims import RecordedAction, recorded
from counterfoil.ledger.connection import Ledger
from counterfoil.ledger.queries import load
from counterfoil.ledger.states import State

_SQL = load("counterfoil.ledger", "sql/watch.sql")

BATCH = 500
"""Rows that one statement ends the watch of; the next tick takes the rest."""

Tools = Sequence[tuple[str, int]]
"""Names and versions."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WatchedAction(RecordedAction):
    """A settled row under the watch's claim. `as_of` is a time before the look-up begins."""

    as_of: datetime
    state: State
    receipt: str | None
    was_in_doubt: bool
    """Its outcome was unknown once, or it was sent again after a look-up; else each request got a definite answer."""
    watched_since: datetime
    watch_at: datetime
    """Until when nobody else claims it; the claim's token."""
    watch_count: int
    """Look-ups that were answered."""

    @property
    def age_s(self) -> float:
        """How long it is watched already."""
        return (self.as_of - self.watched_since).total_seconds()


@dataclass(frozen=True, slots=True, kw_only=True)
class WatchedGroup:
    """Rows that are asked about together, and how many of them are due."""

    tool: str
    tool_version: int
    account: str
    provider: str
    due: int


@dataclass(frozen=True, slots=True)
class Next:
    """What becomes of one claimed row: due again then, or (None) no more. `counts`: the look-up was answered."""

    action: WatchedAction
    at: datetime | None
    counts: bool


def oldest_group(ledger: Ledger, *, tools: Tools, batch: int) -> WatchedGroup | None:
    """The rows of one of the `tools` that are due for longest, counted up to `batch`; None: nothing of theirs is due."""
    row = ledger.row(_SQL["oldest_watched"], {**_named(tools), "batch": batch})
    return None if row is None else WatchedGroup(**row)


def claim_watched(ledger: Ledger, group: WatchedGroup, *, batch: int, lease_s: float) -> list[WatchedAction]:
    """Up to `batch` due rows of the group, none of which another caller gets for `lease_s`."""
    params = {"tool": group.tool, "version": group.tool_version, "account": group.account}
    rows = ledger.rows(_SQL["claim_watched"], {**params, "batch": batch, "lease_s": lease_s})
    return [recorded(WatchedAction, row | {"state": State(row["state"])}) for row in rows]


def providers_behind(ledger: Ledger, *, behind_s: float) -> set[str]:
    """Providers whose uncertain rows are overdue by as much, and whose watched rows are not overdue by an hour."""
    return {row["provider"] for row in ledger.rows(_SQL["providers_behind"], {"behind_s": behind_s})}


def watched_again(ledger: Ledger, visited: Iterable[Next]) -> int:
    """Puts claimed rows off, all in one statement; returns how many were still the caller's."""
    listed = list(visited)
    if not listed:
        return 0
    params = {
        "action_ids": [each.action.action_id for each in listed],
        "claimed": [each.action.watch_at for each in listed],
        "next": [each.at for each in listed],
        "counts": [int(each.counts) for each in listed],
    }
    return len(ledger.rows(_SQL["watched_again"], params))


def found_after_all(ledger: Ledger, action: WatchedAction, *, code: str, evidence: str, by: str) -> bool:
    """Ended without an effect → operator_review. False: the row is not the caller's any more."""
    params = {"action_id": action.action_id, "claimed": action.watch_at, "code": code, "evidence": evidence, "by": by}
    return ledger.row(_SQL["found_after_all"], params) is not None


def duplicate_found(ledger: Ledger, action: WatchedAction, *, evidence: str) -> bool:
    """Opens the alarm about a second effect; the state stays. False: it is open already, or the row has moved."""
    params = {"action_id": action.action_id, "claimed": action.watch_at, "evidence": evidence}
    return ledger.row(_SQL["duplicate_found"], params) is not None


def end_blind(ledger: Ledger, *, tools: Tools, batch: int = BATCH) -> list[str]:
    """Ends the watch of due rows of these tools, which have no look-up; returns their ids."""
    if not tools:
        return []
    return [row["action_id"] for row in ledger.rows(_SQL["end_blind_watches"], {**_named(tools), "batch": batch})]


def end_orphaned(ledger: Ledger, *, known: Tools, older_s: float) -> list[str]:
    """Ends the watch of some rows that are due for `older_s` and whose tool is not `known`; returns their ids."""
    params = {**_named(known), "older_s": older_s}
    return [row["action_id"] for row in ledger.rows(_SQL["end_orphaned_watches"], params)]


def _named(tools: Tools) -> dict[str, list[str] | list[int]]:
    return {"tools": [name for name, _ in tools], "versions": [version for _, version in tools]}
