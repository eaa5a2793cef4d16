"""Decides what an approval binds: one digest over everything that decides what is done, to what, for whom, until when.

The database computes the same (`counterfoil.intent_digest`, `counterfoil.proposal_digest`); a test compares the two. Domain
and version stand first, so that no digest of another kind can be taken for one of these.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from hashlib import sha256

DIGEST_SHOWN = 16
"""Hex digits that a person is shown and repeats: whoever wants another intent under the same ones has 2^64 to try."""

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


@dataclass(frozen=True, slots=True, kw_only=True)
class BoundIntent:
    """The fields of an action that an approval binds; `audience` in its recorded order."""

    tool: str
    tool_version: int
    class_: str
    effect: str
    target: str
    provider: str
    account: str
    arguments_sha256: str
    audience: tuple[str, ...]
    amount_minor: int | None
    currency: str | None
    compensation: str | None
    correction: str | None
    expected_resource_version: str | None
    actor: str
    tenant: str
    run: str
    step: str
    action_id: str
    revision: int
    phase: str
    parent_action_id: str | None


def intent_digest(intent: BoundIntent, expires_at: datetime) -> str:
    """64 hex digits over the intent and the time until which its first attempt may begin."""
    return _digest(
        "cf1-intent",
        intent.tool,
        intent.tool_version,
        intent.class_,
        intent.effect,
        intent.target,
        intent.provider,
        intent.account,
        intent.arguments_sha256,
        ",".join(map(_netstring, intent.audience)) if intent.audience else None,
        intent.amount_minor,
        intent.currency,
        intent.compensation,
        intent.correction,
        intent.expected_resource_version,
        intent.actor,
        intent.tenant,
        intent.run,
        intent.step,
        intent.action_id,
        intent.revision,
        intent.phase,
        intent.parent_action_id,
        (expires_at - _EPOCH) // timedelta(microseconds=1),
    )


def proposal_digest(
    *,
    proposal_id: str,
    tenant: str,
    run: str,
    actor: str,
    note: str,
    people: int,
    steps: Sequence[str],
    staged: Iterable[tuple[str, str | None]],
) -> str:
    """64 hex digits over a proposal: the digests of its steps in their order, and (action id, receipt) of what is staged."""
    head = ("cf1-proposal", proposal_id, tenant, run, actor, note, people)
    tail = (f"{_netstring(action)},{_netstring(receipt)}" for action, receipt in staged)
    return _digest(*head, *steps, *tail)


def _digest(*fields: str | int | None) -> str:
    return sha256(",".join(_netstring(field) for field in fields).encode()).hexdigest()


def _netstring(value: str | int | None) -> str:
    """The text with its length in bytes before it, so that a list of them reads in one way only; "-" for none."""
    if value is None:
        return "-"
    text = str(value)
    return f"{len(text.encode())}:{text}"
