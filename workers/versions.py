"""Decides whether a claimed action may still be done to what it was decided about: the version guard.

Idempotency keeps one intent from happening twice; it does not keep an old intent from being applied to something new. So
the resource's version is read once more, right before the effect, and compared with the recorded one.

A plan goes stale by its own hand when one of its steps changes the resource of a later one: the later step's version is
part of what was approved, so nothing but a new decision can replace it. Propose such steps one after the other.
"""

from __future__ import annotations

from typing import Literal

import structlog

from counterfoil.ledger import claims
from counterfoil.ledger.claims import ClaimedAction
from counterfoil.ledger.connection import Ledger
from counterfoil.providers.contract import Adapter
from counterfoil.providers.outcomes import Reading, Unreadable, Version
from counterfoil.workers.calls import call_of

log: structlog.stdlib.BoundLogger = structlog.get_logger("counterfoil.versions")


StaleCode = Literal["resource_changed", "version_unreadable"]


def is_versioned(action: ClaimedAction) -> bool:
    """Whether the version is read before this call.

    Only of calls that were decided on by version: a compensation never goes stale. Nor does a call in doubt: its own first
    attempt may be what has changed the version. That one goes only to a provider that answers a repeat of its key from its
    store, or nowhere: the send fence sees to that.
    """
    return action.phase == "do" and action.expected_resource_version is not None and not action.in_doubt


def is_current(ledger: Ledger, adapter: Adapter, action: ClaimedAction, *, timeout_s: float, worker: str) -> bool:
    """Reads the version, within `timeout_s`, and compares. False: nothing is sent, and the row is stale by now.

    Where a late success has put the row in doubt meanwhile, evidence decides on it.
    """
    code: StaleCode
    match read(adapter, action, timeout_s=timeout_s):
        case Version(text) if text == action.expected_resource_version:
            return True
        case Version(text):
            code, evidence = "resource_changed", f"version {text}"
        case Unreadable(evidence):
            code = "version_unreadable"
    if not claims.stale_if_changed(ledger, action, code=code, evidence=evidence, worker=worker):
        claims.hold_for_evidence(ledger, action, code=code, worker=worker)
    log.warning("stale", action_id=action.action_id, tool=action.tool, code=code)
    return False


def read(adapter: Adapter, action: ClaimedAction, *, timeout_s: float) -> Reading:
    """The version now. Whatever an adapter raises, it has read nothing."""
    try:
        return adapter.version(call_of(action, None), timeout_s=timeout_s)
    except Exception as error:  # noqa: BLE001 - an adapter's bug in a read: no version, so no call
        return Unreadable(type(error).__name__)
