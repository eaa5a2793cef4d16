"""Decides what a provider is asked, from what the ledger recorded: the same bytes on every attempt and look-up."""

from __future__ import annotations

from counterfoil.ledger.canonical import load_stored
from counterfoil.ledger.claims import RecordedAction
from counterfoil.providers.contract import Call, Of


def call_of(action: RecordedAction) -> Call:
    """The call of a recorded action; a counter-action's `of` is resolved to the undone action's key and receipt."""
    of = None
    if action.of_action_id is not None and action.of_tool is not None and action.of_key is not None:
        of = Of(
            action_id=action.of_action_id,
            tool=action.of_tool,
            key=action.of_key,
            receipt=action.of_receipt,
            arguments=load_stored(action.of_arguments or "{}"),
        )
    return Call(
        action_id=action.action_id,
        tenant=action.tenant,
        account=action.account,
        tool=action.tool,
        key=action.key,
        arguments=load_stored(action.arguments),
        target=action.target,
        first_sent_at=action.first_sent_at,
        of=of,
    )
