"""Decides whether a claimed action is one that the caps, and the rule about bulks, leave room for."""

from __future__ import annotations

from typing import Literal

from counterfoil.ledger.caps import CAP_USE
from counterfoil.ledger.claims import ClaimedAction
from counterfoil.ledger.connection import Ledger
from counterfoil.outbox.intents import DoorRules
from counterfoil.providers.contract import ToolClass

LimitCode = Literal["cap_reached", "bulk_unapproved"]


def over_limit(ledger: Ledger, action: ClaimedAction, rules: DoorRules) -> tuple[LimitCode, str] | None:
    """What one more call like this would exceed, as a code and in words; None = it may go on.

    Asked after the claim, so that of two claims at once at least the later one sees the other; see `cap_use`. A call whose
    earlier attempt was sent keeps its place; a counter-action or correction needs none.
    """
    bulky = action.class_ == ToolClass.IRREVERSIBLE and not action.needs_approval
    capped = rules.caps.capped(action.tool, action.effect)
    if action.phase != "do" or not (bulky or capped):
        return None
    use = ledger.row(
        CAP_USE,
        {
            "tenant": action.tenant,
            "run": action.run,
            "tool": action.tool,
            "effect": action.effect,
            "currency": action.currency,
            "action_id": action.action_id,
            "recorded_at": action.created_at,
            "at": action.first_sent_at,
        },
    )
    assert use is not None
    if use["has_place"]:
        return None
    over = rules.caps.exceeded(use, action.tool, action.effect, amount_minor=action.amount_minor)
    if over is not None:
        return "cap_reached", over
    if bulky and use["bulk"] >= rules.bulk_above:
        return "bulk_unapproved", f"{use['bulk']} before it in the run"
    return None
