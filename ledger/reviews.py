"""Decides how people's doors to actions in review are typed: what is listed and read, and what comes of each verb.

There is no plain retry. Three verbs make the reconciler ask the provider and are answered by its verdict; giving up ends an
action at once, backed by evidence or in a person's name.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from typing import Literal

from counterfoil.ledger.connection import Ledger, Row
from counterfoil.ledger.errors import NotFound
from counterfoil.ledger.queries import load
from counterfoil.ledger.states import State

_SQL = load("counterfoil.ledger", "sql/reviews.sql")

UNVERIFIED = "unverified"
"""The receipt of a success that no evidence shows and a named person vouches for."""

Asking = Literal["happened", "not_happened", "ask_again"]
"""The verbs that ask the provider."""


class Answer(StrEnum):
    """What a door says, and what the reconciler answers to a request."""

    ASKED = "asked"
    """The reconciler has been asked to look; its answer comes with the review."""
    SUCCEEDED = "succeeded"
    FOUND = "found"
    """The person had said that it did not happen: the provider holds it, so it has succeeded."""
    PERMANENT_FAILURE = "permanent_failure"
    NOT_EXECUTED = "not_executed"
    READY = "ready"
    """Asked again, the evidence allows another attempt."""
    NOT_IN_REVIEW = "not_in_review"
    NOTHING_SENT = "nothing_sent"
    """Nothing has ever left, so nothing can have happened."""
    UNVERIFIED_ONLY = "unverified_only"
    """It may have happened: giving up would be a success unverified by a person."""
    NOT_FOUND = "not_found"
    OTHER_KEY = "other_key"
    """The object that was named exists, and was not made by this action."""
    MISMATCH = "mismatch"
    MANY_FOUND = "many_found"
    FAILED_THERE = "failed_there"
    UNKNOWN = "unknown"
    CANNOT_VERIFY = "cannot_verify"
    TOO_EARLY = "too_early"


@dataclass(frozen=True, slots=True, kw_only=True)
class Said:
    """What a door, or the reconciler, said to a person. `answer` is a code of `Answer`, or that of an ordinary verdict;
    None: not answered yet. `evidence` is what the provider was asked and showed."""

    action_id: str
    review_id: int | None
    answer: str | None
    state: State
    evidence: str | None = None
    answered_at: datetime | None = None


def ask_provider(
    ledger: Ledger,
    action_id: str,
    *,
    verb: Asking,
    receipt: str | None,
    by: str,
    channel: str,
    reason: str | None,
) -> Said:
    """operator_review → reconciling, with a request that its verdict answers. Raises NotFound.

    `happened` and `not_happened` forbid every later send. Where nothing was ever sent, not_happened settles at once.
    """
    params = {"verb": verb, "receipt": receipt, "by": by, "channel": channel, "reason": reason}
    return _through(ledger, "ask_provider", action_id, params)


def give_up(ledger: Ledger, action_id: str, *, by: str, channel: str, reason: str, as_happened: bool) -> Said:
    """operator_review → permanent_failure where by evidence nothing can have happened; with `as_happened` → succeeded,
    unverified, in the person's name. Raises NotFound."""
    params = {"by": by, "channel": channel, "reason": reason, "as_happened": as_happened}
    return _through(ledger, "give_up", action_id, params)


def read_answer(ledger: Ledger, asked: Said) -> Said:
    """What has become of the request by now."""
    row = ledger.row(_SQL["read_answer"], {"review_id": asked.review_id})
    if row is None:
        raise NotFound(f"no review {asked.review_id} that this login may see.")
    return Said(
        action_id=asked.action_id,
        review_id=asked.review_id,
        answer=row["answer"],
        state=State(row["state"]),
        evidence=row["evidence"],
        answered_at=row["answered_at"],
    )


def in_review(ledger: Ledger, *, tenant: str | None, limit: int) -> list[Row]:
    """What waits for a person, the longest waiting first, and what is being asked for one; readers may see it."""
    return ledger.rows(_SQL["list_in_review"], {"tenant": tenant, "limit": limit})


def may_read_in_full(ledger: Ledger) -> bool:
    """Whether this login sees receipts, reasons and evidence."""
    row = ledger.row(_SQL["may_read_in_full"], {})
    return bool(row and row["may"])


def requests_about(ledger: Ledger, action_id: str, *, in_full: bool) -> list[Row]:
    """Earlier requests about the action, with their answers."""
    return ledger.rows(_SQL["requests_in_full" if in_full else "requests_about"], {"action_id": action_id})


def sent_in_full(ledger: Ledger, action_id: str) -> list[Row]:
    """Every attempt, with its receipt and evidence; for operators."""
    return ledger.rows(_SQL["sent_in_full"], {"action_id": action_id})


def evidence_on(ledger: Ledger, action_id: str) -> tuple[str, bool]:
    """What the attempts prove (nothing, refused, happened, unknown), and whether giving up is backed; for operators."""
    row = ledger.row(_SQL["evidence_on"], {"action_id": action_id})
    return ("unknown", False) if row is None else (str(row["sent"]), bool(row["may_give_up"]))


def _through(ledger: Ledger, door: str, action_id: str, params: Mapping[str, object]) -> Said:
    """Not repeated after a lost connection: a second request would find the first one's traces and say so."""
    row = ledger.row(_SQL[door], {"action_id": action_id, **params}, repeatable=False)
    if row is None:
        raise NotFound(
            f"no action {action_id!r} in a tenant that this login decides for.",
            fix="`counterfoil review list` shows what waits.",
        )
    return Said(action_id=action_id, review_id=row["review_id"], answer=row["answer"], state=State(row["state"]))
