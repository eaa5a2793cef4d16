"""Decides how corrections are typed: what is queued, listed and read, and what comes of a person's decision on one.

A correction is one message at most, to those who saw one effect. Nothing here sends any without a person.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum

import psycopg

from counterfoil.ledger.canonical import sha256_of
from counterfoil.ledger.connection import Ledger, Row
from counterfoil.ledger.errors import NotFound
from counterfoil.ledger.proposals import Decision
from counterfoil.ledger.queries import Query, load
from counterfoil.ledger.states import State

_SQL = load("counterfoil.ledger", "sql/corrections.sql")
_MANY = 5
"""Ids that an ambiguous prefix is answered with."""


class CorrectionState(StrEnum):
    """`open` until a person decides, and again when the message that was sent ended without an effect."""

    OPEN = "open"
    SENT = "sent"
    DISMISSED = "dismissed"


class Answer(StrEnum):
    """What a door says. The first three did something."""

    EDITED = "edited"
    SENT = "sent"
    DISMISSED = "dismissed"
    DECIDED = "decided"
    """Somebody else was first."""
    UNWRITTEN = "unwritten"
    """Nobody has written yet what would be said."""
    CHANGED = "changed"
    """It is no longer what the person was shown."""
    OWN = "own"
    """The run's actor does not decide."""
    TAKEN = "taken"
    """Another message about the same step stands."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ListedCorrection:
    """One line of a list: nothing of what was or would be said. `rank` is 0 inside, 1 customer, 2 public, 3 legal."""

    correction_id: str
    tenant: str
    run: str
    action_id: str
    """The effect that they saw."""
    step: str
    tool: str
    target: str
    audience: tuple[str, ...]
    rank: int
    state: CorrectionState
    sent_as: str | None
    """The message, as an action; the last one, where one ended without an effect."""
    message_state: State | None
    decided_by: str | None
    decided_at: datetime | None
    open_since: datetime
    created_at: datetime


@dataclass(frozen=True, slots=True, kw_only=True)
class Correction(ListedCorrection):
    """A correction with all that a person decides on."""

    call: str | None = field(repr=False)
    """What would be said, canonical JSON `{"arguments": …, "tool": …}`; None: nobody has written it."""
    revision: int
    actor: str
    action_state: State
    arguments: str = field(repr=False)
    """What was done, as recorded."""
    receipt: str | None = field(repr=False)
    seen_at: datetime | None
    """When it was known to have happened."""
    next_revision: int
    """Of a message that is sent now."""
    decisions: tuple[Decision, ...]

    @property
    def digest(self) -> str | None:
        """64 hex digits over what would be said; whoever sends it repeats them."""
        return None if self.call is None else sha256_of(self.call)


@dataclass(frozen=True, slots=True, kw_only=True)
class Message:
    """What a correction becomes when it is sent: an action, derived by its tool from the text that a person was shown."""

    action_id: str
    tool: str
    tool_version: int
    class_: str
    effect: str
    effect_scope: str
    target: str
    provider: str
    account: str
    queue: str
    arguments: str = field(repr=False)
    arguments_sha256: str
    audience: tuple[str, ...]
    amount_minor: int | None
    currency: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Answered:
    """What came of a decision; `by` is whose decision stands, `sent_as` the message that stands."""

    answer: Answer
    by: str | None = None
    sent_as: str | None = None


def queue(ledger: Ledger, action_id: str, *, declared: bool, by: str) -> str | None:
    """Writes down once that a person decides what those are told who saw the action; None: there is nothing to tell.

    `declared`: the action's tool has a correction, whether or not it could be written down before the call.
    """
    row = ledger.row(_SQL["queue_correction"], {"action_id": action_id, "by": by, "declared": declared})
    return row["correction_id"] if row else None


def list_corrections(
    ledger: Ledger,
    *,
    tenant: str | None = None,
    run: str | None = None,
    state: CorrectionState | None = CorrectionState.OPEN,
    limit: int = 50,
) -> list[ListedCorrection]:
    """Corrections in this state (None: any) that the login may see: inside first, then by age."""
    params = {"tenant": tenant, "run": run, "state": state, "limit": limit}
    return [ListedCorrection(**_typed(row)) for row in ledger.rows(_SQL["list_corrections"], params)]


def find_correction(ledger: Ledger, prefix: str) -> str:
    """The id that begins so, among those that the login may see. Raises `NotFound`: none, or several."""
    found = [str(row["correction_id"]) for row in ledger.rows(_SQL["corrections_named"], {"prefix": prefix})]
    if len(found) == 1:
        return found[0]
    if found:
        raise NotFound(f"several corrections begin with {prefix}.", fix=f"One of: {', '.join(found[:_MANY])}.")
    raise _not_found(prefix)


def read_correction(ledger: Ledger, correction_id: str) -> Correction:
    """The correction. Raises `NotFound`."""
    row = ledger.row(_SQL["read_correction"], {"correction_id": correction_id})
    if row is None:
        raise _not_found(correction_id)
    said = tuple(Decision(**d | {"at": datetime.fromisoformat(d["at"])}) for d in row["decisions"])
    return Correction(**_typed(row) | {"decisions": said, "action_state": State(row["action_state"])})


def edit(
    ledger: Ledger, correction_id: str, *, call: str, by: str, channel: str, reason: str | None = None
) -> Answered:
    """Writes what would be said; `call` is canonical and has passed its tool. Raises `NotFound`, `NotAllowed`."""
    params = {"correction_id": correction_id, "call": call, "by": by, "channel": channel, "reason": reason}
    return _answered(ledger, _SQL["edit_correction"], params, correction_id)


def dismiss(ledger: Ledger, correction_id: str, *, by: str, channel: str, reason: str | None = None) -> Answered:
    """Leaves it unsaid. Raises `NotFound`, `NotAllowed`."""
    params = {"correction_id": correction_id, "by": by, "channel": channel, "reason": reason}
    return _answered(ledger, _SQL["dismiss_correction"], params, correction_id)


def send(
    ledger: Ledger,
    correction_id: str,
    message: Message,
    *,
    digest: str,
    by: str,
    channel: str,
    reason: str | None = None,
) -> Answered:
    """Records the message, approved by the same decision; takes at least 16 digits of the digest that was shown.

    After a lost connection the same decision again is told what stands. Raises `NotFound`, `NotAllowed`.
    """
    params = {
        "correction_id": correction_id,
        "digest": digest,
        "by": by,
        "channel": channel,
        "reason": reason,
        "action_id": message.action_id,
        "tool": message.tool,
        "tool_version": message.tool_version,
        "class": message.class_,
        "effect": message.effect,
        "effect_scope": message.effect_scope,
        "target": message.target,
        "provider": message.provider,
        "account": message.account,
        "queue": message.queue,
        "arguments": message.arguments,
        "arguments_sha256": message.arguments_sha256,
        "audience": list(message.audience),
        "amount_minor": message.amount_minor,
        "currency": message.currency,
    }
    return _answered(ledger, _SQL["send_correction"], params, correction_id)


def _answered(ledger: Ledger, query: Query, params: Mapping[str, object], subject: str) -> Answered:
    try:
        row = ledger.row(query, params)
    except psycopg.DatabaseError as error:
        if error.sqlstate != "CF404":
            raise
        raise _not_found(subject) from None
    assert row is not None
    return Answered(answer=Answer(row["answer"]), by=row["decided_by"], sent_as=row.get("sent_as"))


def _not_found(subject: str) -> NotFound:
    return NotFound(
        f"no correction {subject!r} that this login may see.",
        fix="`counterfoil correction list --all` shows those there are.",
    )


def _typed(row: Row) -> Row:
    return {
        **row,
        "audience": tuple(row["audience"]),
        "state": CorrectionState(row["state"]),
        "message_state": State(row["message_state"]) if row["message_state"] else None,
    }
