"""Reads the versions of what proposed actions are about, so that a decision is bound to what was there when it was made.

No transaction is open while a provider is asked. Two readings at once do no harm: the first one stands.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

import structlog

from counterfoil.ledger import versions
from counterfoil.ledger.connection import Ledger
from counterfoil.ledger.versions import UnreadAction
from counterfoil.outbox.accounts import Accounts
from counterfoil.providers.contract import Adapter
from counterfoil.providers.outcomes import Reading, Unreadable, Version
from counterfoil.providers.registry import Registry
from counterfoil.providers.spec import ToolSpec
from counterfoil.reconciler.lookups import known_tools
from counterfoil.workers.calls import unsent_call_of
from counterfoil.workers.policy import Policy

log: structlog.stdlib.BoundLogger = structlog.get_logger("counterfoil.versions")

TRIES_MAX = 5
"""Readings of one action; then it is stale: what nobody can compare is not done."""

READS_MAX = 200
"""Readings of one tick; the next tick goes on."""


@dataclass(frozen=True, slots=True, kw_only=True)
class VersionReads:
    """Gives proposed actions their resource's version, which moves them on to a person or to a worker."""

    ledger: Ledger
    registry: Registry
    adapter: Callable[[ToolSpec, str], Adapter]
    policy: Callable[[str], Policy]
    accounts: Accounts
    """Whose credentials an action may be read by, whatever account its row names."""
    lease_s: float
    """Nobody else reads the same row for this long: longer than a request."""
    base_s: float
    """The pause after the first reading that failed; it doubles four times."""
    orphan_after_s: float
    """A row that nobody has read for this long after it was due, and whose tool this process lacks, is given up."""
    by: str

    def sweep(self, *, budget_s: float) -> int:
        """Reads what is due, one after the other, for about `budget_s`; then gives up what has no try left.

        Returns the number of rows read or given up.
        """
        stop_at = time.monotonic() + budget_s
        tools, rows = known_tools(self.registry), 0
        for _ in range(READS_MAX):
            action = versions.claim_unread(self.ledger, tools=tools, lease_s=self.lease_s, tries_max=TRIES_MAX)
            if action is None:
                break
            self._write(action, self._read(action))
            rows += 1
            if time.monotonic() >= stop_at:
                break
        given_up = versions.give_up_unread(
            self.ledger, tools=tools, tries_max=TRIES_MAX, older_s=self.orphan_after_s, by=self.by
        )
        if given_up:
            log.warning("versions_unreadable", actions=given_up)
        return rows + len(given_up)

    def _read(self, action: UnreadAction) -> Reading:
        """The version now; whatever an adapter raises, it has read nothing."""
        spec = self.registry.get(action.tool, action.tool_version)
        if not self.accounts.allow(spec.provider, action.tenant, action.account):
            return Unreadable("account")
        try:
            adapter = self.adapter(spec, action.account)
            return adapter.version(unsent_call_of(action), timeout_s=self.policy(action.provider).timeout_s)
        except Exception as error:  # noqa: BLE001 - no client, unreadable arguments, an adapter's bug: no version
            return Unreadable(type(error).__name__)

    def _write(self, action: UnreadAction, reading: Reading) -> None:
        match reading:
            case Version(text):
                state = versions.record_version(self.ledger, action, version=text, by=self.by)
                log.info("version_read", action_id=action.action_id, tool=action.tool, state=state)
            case Unreadable(code):
                last = action.lookup_count >= TRIES_MAX
                after_s = 0.0 if last else self.base_s * 2 ** (action.lookup_count - 1)
                versions.read_later(self.ledger, action, after_s=after_s)
                log.warning("version_unread", action_id=action.action_id, tool=action.tool, code=code)
