"""A reconciler that tells people, a hook that hears it, and what there is to be told."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from counterfoil.reconciler.hooks import Hook
from counterfoil.reconciler.notify import Notifier

if TYPE_CHECKING:
    from tests.integration.conftest import Rows

SECRET = "the customer's secret"

TIMEOUT_S = 20.0
"""Of deliveries that are to work; nothing waits for it."""


@dataclass
class Heard:
    """A hook that hears, or fails as it is told."""

    documents: list[dict[str, Any]] = field(default_factory=list)
    failing: str | None = None

    def deliver(self, document: bytes) -> str | None:
        self.documents.append(json.loads(document))
        return self.failing


def notifier_of(rows: Rows) -> Callable[..., Notifier]:
    """Makes a reconciler's notifier, with a connection of its own."""

    def make(*hooks: Hook, **changes: Any) -> Notifier:
        given = {"timeout_s": TIMEOUT_S, "batch": 50, "remind_ratio": 0.8, **changes}
        return Notifier(ledger=rows.ledger("worker"), hooks=lambda: hooks, **given)

    return make


def propose(rows: Rows, **changes: Any) -> tuple[str, str]:
    """A gated call; (its action's id, its proposal's)."""
    arguments = json.dumps({"order_id": "1182", "text": SECRET})
    given = {"amount_minor": 500, "currency": "usd", "needs_approval": True, "arguments": arguments, **changes}
    action_id = rows.propose(**given)["action_id"]
    return action_id, f"P-{action_id[4:16].upper()}"
