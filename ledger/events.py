"""Decides what a provider's event does to the ledger: uncertain rows that it names are looked up now. It moves no row."""

from __future__ import annotations

from collections.abc import Sequence

from counterfoil.ledger.connection import Ledger
from counterfoil.ledger.queries import load

_SQL = load("counterfoil.ledger", "sql/events.sql")


def look_now_by_key(
    ledger: Ledger, *, provider: str, accounts: Sequence[str], keys: Sequence[str], targets: Sequence[str]
) -> int:
    """Has uncertain rows of these accounts looked up now, at most every 2 s each; returns how many are sooner than planned.
    A look-up that comes of it makes later ones no rarer.

    `keys` are rows' own, or those of rows that they are about; `targets` are objects that they go to. One statement, and
    safe to repeat. Raises `LedgerUnavailable`.
    """
    given = {"provider": provider, "accounts": list(accounts), "keys": list(keys), "targets": list(targets)}
    row = ledger.row(_SQL["look_now_by_key"], given)
    assert row is not None
    sooner: int = row["sooner"]
    return sooner
