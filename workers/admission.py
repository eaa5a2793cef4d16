"""Decides which actions of a batch may be tried now. The seam where the fleet's shared budgets will stand."""

from __future__ import annotations

from collections.abc import Sequence

from counterfoil.ledger.claims import WaitingAction


def admit(batch: Sequence[WaitingAction]) -> list[WaitingAction]:
    """All of them: retries are bounded by each action's own attempts and backoff, kept in Postgres."""
    return list(batch)
