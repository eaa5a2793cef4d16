"""Decides whose credentials an action goes by: the account's name stands in its row, the secrets stand nowhere there.

Agents, relay and workers derive it alike, from the same tables. A row keeps the account that it was recorded with: what was
sent through it can be found out, and taken back, nowhere else.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from counterfoil.ledger.keys import DEFAULT_ACCOUNT


@dataclass(frozen=True, slots=True, kw_only=True)
class Accounts:
    """Which accounts tenants have at providers; without an entry everybody has the default one."""

    own: Mapping[tuple[str, str], str] = field(default_factory=dict)
    """(provider, tenant) → account."""
    former: frozenset[tuple[str, str, str]] = frozenset()
    """(provider, tenant, account) that the tenant had before."""

    def of(self, provider: str, tenant: str) -> str:
        """The account that the tenant's new actions go through."""
        return self.own.get((provider, tenant), DEFAULT_ACCOUNT)

    def allow(self, provider: str, tenant: str, account: str) -> bool:
        """Whether an action of the tenant may be settled through the account: it is its own, or was."""
        return account == self.of(provider, tenant) or (provider, tenant, account) in self.former


NO_ACCOUNTS = Accounts()
