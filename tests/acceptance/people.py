"""People for tests: each with a name and a login of their own, deciding by the same doors as the command line."""

from __future__ import annotations

from contextlib import closing
from typing import Any

from counterfoil.ledger import proposals as doors
from counterfoil.ledger.connection import Ledger
from counterfoil.ledger.proposals import Decided
from counterfoil.people import proposals
from counterfoil.people.proposals import Edited, Shown
from counterfoil.providers.registry import Registry


class Person:
    """One person at one login."""

    def __init__(self, url: str, registry: Registry, name: str) -> None:
        self.ledger = Ledger(url)
        self.name = name
        self._registry = registry

    def waiting(self) -> list[str]:
        """The proposals that wait, the soonest to expire first."""
        return [each.proposal_id for each in doors.list_proposals(self.ledger) if each.waits]

    def show(self, proposal: str) -> Shown:
        return proposals.show(self.ledger, proposal, registry=self._registry)

    def approve(self, proposal: str, digest: str | None = None, **more: Any) -> Decided:
        """Over `digest`, else over what is shown now."""
        return proposals.approve(
            self.ledger, proposal, digest=digest or self.show(proposal).digest_shown, registry=self._registry,
            **{"by": self.name, "channel": "console", **more},
        )  # fmt: skip

    def reject(self, proposal: str, reason: str = "wrong order") -> Decided:
        return proposals.reject(self.ledger, proposal, by=self.name, channel="console", reason=reason)

    def edit(self, proposal: str, place: int = 1, **changes: object) -> Edited:
        return proposals.edit(
            self.ledger, proposal, place=place, changes=changes, by=self.name, channel="console",
            registry=self._registry, reason="less is enough",
        )  # fmt: skip


def approve_all(url: str) -> int:
    """Alice, at this operator's login, approves all that waits for tenant acme; how many."""
    with closing(Ledger(url)) as ledger:
        waiting = doors.list_proposals(ledger, tenant="acme", run=None, state="open", limit=50)
        for found in waiting:
            digest = doors.read_proposal(ledger, found.proposal_id).digest
            doors.decide(ledger, found.proposal_id, verdict="approved", digest=digest, by="alice", channel="cli")
    return len(waiting)
