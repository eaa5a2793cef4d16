"""Decides what a provider is asked, from what the ledger recorded: the same bytes on every attempt and look-up."""

from __future__ import annotations

from counterfoil.ledger.canonical import load_stored
from counterfoil.ledger.claims import RecordedAction
from counterfoil.ledger.reviews import UNVERIFIED
from counterfoil.ledger.versions import UnreadAction
from counterfoil.providers.contract import Call, Of
from counterfoil.providers.reach import is_elsewhere


def call_of(action: RecordedAction, reach: str | None) -> Call:
    """The call of a recorded action; a counter-action's `of` is resolved to the undone action's key and receipt.

    `reach` says where it goes; None: that is not known.
    """
    return Call(
        action_id=action.action_id,
        tenant=action.tenant,
        account=action.account,
        tool=action.tool,
        key=action.key,
        arguments=load_stored(action.arguments),
        target=action.target,
        first_sent_at=action.first_sent_at,
        of=_of(action, reach),
        expected_version=action.expected_resource_version,
    )


def unsent_call_of(action: UnreadAction) -> Call:
    """The call of a proposed action, for reading its resource's version: no claim has given it a key yet."""
    return Call(
        action_id=action.action_id,
        tenant=action.tenant,
        account=action.account,
        tool=action.tool,
        key="",
        arguments=load_stored(action.arguments),
        target=action.target,
        first_sent_at=None,
        of=_of(action, None),
    )


def _of(action: RecordedAction | UnreadAction, reach: str | None) -> Of | None:
    """What the call is about. A success that only a person vouches for has no receipt: it is found by its key, if at all."""
    if action.of_action_id is None or action.of_tool is None or action.of_key is None:
        return None
    return Of(
        action_id=action.of_action_id,
        tool=action.of_tool,
        key=action.of_key,
        receipt=None if action.of_receipt == UNVERIFIED else action.of_receipt,
        arguments=load_stored(action.of_arguments or "{}"),
        elsewhere=is_elsewhere(action.of_reach, reach),
    )
