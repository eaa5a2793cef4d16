"""What a worker may do with a proposed action whose resource's version is to be read: take it, write one down, give up.

A reading is no claim: two at once do no harm, since the first one stands.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from counterfoil.ledger.connection import Ledger
from counterfoil.ledger.queries import load

_SQL = load("counterfoil.ledger", "sql/reconciler.sql")

BATCH = 500
"""Rows given up in one statement; the next tick takes the rest."""


@dataclass(frozen=True, slots=True, kw_only=True)
class UnreadAction:
    """A proposed action as far as a reading needs it: it was never claimed, so it has no key and no send time."""

    action_id: str
    tenant: str
    tool: str
    tool_version: int
    target: str
    provider: str
    account: str
    arguments: str = field(repr=False)
    lookup_count: int
    """Which try this is, 1 for the first."""
    of_action_id: str | None
    of_tool: str | None
    of_key: str | None
    of_reach: str | None
    of_receipt: str | None
    of_arguments: str | None = field(repr=False)


def claim_unread(
    ledger: Ledger, *, tools: Sequence[tuple[str, int]], lease_s: float, tries_max: int
) -> UnreadAction | None:
    """The row of `tools` (name, version) that is due first; nobody else gets it for `lease_s`. None when none is due."""
    names, versions = [name for name, _ in tools], [version for _, version in tools]
    row = ledger.row(
        _SQL["claim_unread_version"],
        {"tools": names, "versions": versions, "lease_s": lease_s, "tries_max": tries_max},
    )
    return None if row is None else UnreadAction(**row)


def record_version(ledger: Ledger, action: UnreadAction, *, version: str, by: str) -> str | None:
    """proposed → awaiting_approval or ready, or (a later step of a plan) still proposed, with its version: the state.

    None: it has a version already, was withdrawn, or was superseded.
    """
    row = ledger.row(_SQL["record_version"], {"action_id": action.action_id, "version": version, "by": by})
    return None if row is None else str(row["state"])


def read_later(ledger: Ledger, action: UnreadAction, *, after_s: float) -> bool:
    """The try failed: the next one, or the end of them, in `after_s`."""
    params = {"action_id": action.action_id, "lookup_count": action.lookup_count, "after_s": after_s}
    return ledger.row(_SQL["read_version_later"], params) is not None


def give_up_unread(
    ledger: Ledger, *, tools: Sequence[tuple[str, int]], tries_max: int, older_s: float, by: str, batch: int = BATCH
) -> list[str]:
    """proposed → stale for rows without a try left, and for those `older_s` late whose tool is not in `tools`."""
    names, versions = [name for name, _ in tools], [version for _, version in tools]
    params = {
        "tools": names,
        "versions": versions,
        "tries_max": tries_max,
        "older_s": older_s,
        "by": by,
        "batch": batch,
    }
    return [row["action_id"] for row in ledger.rows(_SQL["stale_unread"], params)]
