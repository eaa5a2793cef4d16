"""What a caller gives back that has been told everything: the token of all ends of a run, read from the ledger."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from counterfoil.outbox.seen import told

_ENDS = "SELECT action_id, ends_count FROM counterfoil.action WHERE tenant = %s AND run = %s AND phase = 'do'"


def all_ends(sql: Callable[..., Iterable[Any]], run: str, *, tenant: str = "acme") -> str:
    """`sql` runs a statement with its parameters and gives the rows as tuples."""
    return told(sql(_ENDS, tenant, run)).token(tenant, run)
