"""Decides whether a claimed action is one that the caps, and the rule about bulks, leave room for."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from counterfoil.ledger.caps import CAP_USE
from counterfoil.ledger.claims import ClaimedAction
from counterfoil.ledger.connection import Ledger
from counterfoil.outbox.intents import DoorRules
from counterfoil.providers.contract import ToolClass


@dataclass(frozen=True, slots=True)
class OverLimit:
    """What one more call would exceed. Not `final`: it may fit once the claims beside it are decided; ask again then."""

    code: Literal["cap_reached", "bulk_unapproved"]
    evidence: str
    final: bool


def over_limit(ledger: Ledger, action: ClaimedAction, rules: DoorRules) -> OverLimit | None:
    """What the call would exceed; None = it may go on.

    Asked after the claim, so that of two claims at once at least the later one sees the other; see `cap_use`. Of rivals for
    the last place the one that was recorded first gets it. A call whose earlier attempt was sent keeps its place; a
    counter-action or correction needs none.
    """
    if action.phase != "do" or not (_is_bulky(action) or rules.caps.capped(action.tool, action.effect)):
        return None
    over = _over(action, rules, _use(ledger, action, rules, without_rivals=False), final=False)
    if over is None:
        return None
    return _over(action, rules, _use(ledger, action, rules, without_rivals=True), final=True) or over


def _over(action: ClaimedAction, rules: DoorRules, use: Mapping[str, object], *, final: bool) -> OverLimit | None:
    if use["has_place"]:
        return None
    cap = rules.caps.exceeded(use, action.tool, action.effect, amount_minor=action.amount_minor)
    if cap is not None:
        return OverLimit("cap_reached", cap, final)
    if _is_bulky(action) and int(str(use["bulk"])) >= rules.bulk_above:
        return OverLimit("bulk_unapproved", f"{use['bulk']} before it in the run", final)
    return None


def _use(ledger: Ledger, action: ClaimedAction, rules: DoorRules, *, without_rivals: bool) -> Mapping[str, object]:
    use = ledger.row(
        CAP_USE,
        {
            "tenant": action.tenant,
            "run": action.run,
            "tool": action.tool,
            "effect": action.effect,
            "target": action.target,
            "audience": list(action.audience),
            "currency": action.currency,
            "action_id": action.action_id,
            "recorded_at": action.created_at,
            "at": action.first_sent_at,
            "without_rivals": without_rivals,
            "per_day": rules.caps.per_day(action.tool, action.effect),
            "parent": action.parent_action_id,
        },
    )
    assert use is not None
    return use


def _is_bulky(action: ClaimedAction) -> bool:
    """Nothing takes it back, and nobody has approved it."""
    return action.class_ == ToolClass.IRREVERSIBLE and not action.needs_approval
