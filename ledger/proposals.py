"""Decides how people's doors to proposals are typed: what is listed and read, and what comes of a decision or an edit."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum
from typing import Literal, TypeVar

import psycopg

from counterfoil.ledger.connection import Ledger, Row
from counterfoil.ledger.errors import NotFound
from counterfoil.ledger.queries import Query, load

_SQL = load("counterfoil.ledger", "sql/proposals.sql")
_MANY = 5
"""Ids that an ambiguous prefix is answered with."""

T = TypeVar("T")


class ProposalState(StrEnum):
    """`open` until somebody decides, its time is over, or nothing is left to decide."""

    OPEN = "open"
    APPROVED = "approved"
    REJECTED = "rejected"
    EXPIRED = "expired"
    WITHDRAWN = "withdrawn"


class Answer(StrEnum):
    """What a door says. The first four did something."""

    APPROVED = "approved"
    ONE_MORE = "one_more"
    """It counts, and another person must approve, too."""
    REJECTED = "rejected"
    EDITED = "edited"
    DECIDED = "decided"
    """Somebody else was first, or the agent has withdrawn it."""
    EXPIRED = "expired"
    CHANGED = "changed"
    """It is no longer what the person was shown."""
    OWN = "own"
    """The actor itself does not approve."""
    SAME_PERSON = "same_person"
    """This name or this login has approved already."""
    VERSION_UNREAD = "version_unread"
    UNWINDING = "unwinding"
    GONE = "gone"
    """The step is not one that still waits."""
    EFFECT_TAKEN = "effect_taken"
    """Another tool has the effect on the new target under way."""
    ONCE_TAKEN = "once_taken"
    """Another action has, or has had, what may happen once only."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ListedStep:
    """What a list says of a step: nothing of what was said."""

    place: int
    tool: str
    target: str
    class_: str
    audience: tuple[str, ...]
    amount_minor: int | None
    currency: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class ListedProposal:
    """One line of a list, with the ledger's time `now`."""

    proposal_id: str
    tenant: str
    run: str
    actor: str
    is_plan: bool
    people: int
    state: ProposalState
    expires_at: datetime
    decided_by: str | None
    decided_at: datetime | None
    created_at: datetime
    now: datetime
    steps: tuple[ListedStep, ...]

    @property
    def waits(self) -> bool:
        """Whether a person can still decide on it."""
        return self.state is ProposalState.OPEN and self.expires_at > self.now


@dataclass(frozen=True, slots=True, kw_only=True)
class ProposedStep:
    """One action that a proposal is about, as recorded. `place` is 1 for a single call."""

    place: int
    action_id: str
    step: str
    revision: int
    phase: str
    parent_action_id: str | None
    edited_from: str | None
    superseded_by: str | None
    actor: str
    tool: str
    tool_version: int
    class_: str
    effect: str
    target: str
    provider: str
    account: str
    arguments: str = field(repr=False)
    audience: tuple[str, ...]
    amount_minor: int | None
    currency: str | None
    compensation: str | None = field(repr=False)
    correction: str | None = field(repr=False)
    reads_version: bool
    expected_resource_version: str | None
    repeat_reason: str | None
    state: str
    last_error_code: str | None
    erased_at: datetime | None
    created_at: datetime
    amount_field: str | None
    """Approved within bounds: a later revision may differ in this argument, up to `amount_max_minor`."""
    amount_max_minor: int | None
    carried_from: str | None
    consumed_at: datetime | None
    """When the first claim has used the approval."""
    approval_expires_at: datetime | None


@dataclass(frozen=True, slots=True, kw_only=True)
class StagedStep:
    """An effect that stands staged for the plan."""

    action_id: str
    tool: str
    tool_version: int
    target: str
    arguments: str = field(repr=False)
    audience: tuple[str, ...]
    amount_minor: int | None
    currency: str | None
    receipt: str | None = field(repr=False)
    result: str | None = field(repr=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class Decision:
    """What one person said, over which digest, by which channel and login."""

    verdict: str
    digest: str | None
    by_person: str
    db_role: str
    channel: str
    reason: str | None
    at: datetime


@dataclass(frozen=True, slots=True, kw_only=True)
class Rejected:
    """A call of the same run with an effect and target of this proposal that a person has rejected before."""

    proposal_id: str
    action_id: str
    tool: str
    target: str
    arguments: str = field(repr=False)
    by_person: str | None
    reason: str | None
    at: datetime


@dataclass(frozen=True, slots=True, kw_only=True)
class Proposal:
    """A proposal with all that a person decides on, read at one moment of the ledger, `now`."""

    proposal_id: str
    tenant: str
    run: str
    actor: str
    is_plan: bool
    note: str
    people: int
    state: ProposalState
    expires_at: datetime
    decided_by: str | None
    decided_at: datetime | None
    created_at: datetime
    now: datetime
    digest: str
    """The database's own."""
    all_steps: tuple[ProposedStep, ...]
    """With the revisions that others have replaced."""
    staged: tuple[StagedStep, ...]
    decisions: tuple[Decision, ...]
    rejected: tuple[Rejected, ...]

    @property
    def steps(self) -> tuple[ProposedStep, ...]:
        """What is decided on, in the order in which it commits."""
        return tuple(step for step in self.all_steps if step.superseded_by is None)

    @property
    def waits(self) -> bool:
        """Whether a person can still decide on it."""
        return self.state is ProposalState.OPEN and self.expires_at > self.now


@dataclass(frozen=True, slots=True, kw_only=True)
class Decided:
    """What came of a decision or an edit; `by` and `at` are whose decision stands, `missing` how many must still approve."""

    answer: Answer
    by: str | None = None
    at: datetime | None = None
    missing: int = 0


def list_proposals(
    ledger: Ledger,
    *,
    tenant: str | None = None,
    run: str | None = None,
    state: ProposalState | None = ProposalState.OPEN,
    limit: int = 50,
) -> list[ListedProposal]:
    """Proposals in this state (None: any) that the login may see, the soonest to expire first."""
    params = {"tenant": tenant, "run": run, "state": state, "limit": limit}
    return [_listed(row) for row in ledger.rows(_SQL["list_proposals"], params)]


def find_proposal(ledger: Ledger, prefix: str) -> str:
    """The id that begins so, among those that the login may see. Raises `NotFound`: none, or several."""
    found = [str(row["proposal_id"]) for row in ledger.rows(_SQL["proposals_named"], {"prefix": prefix})]
    if len(found) == 1:
        return found[0]
    if found:
        raise NotFound(f"several proposals begin with {prefix}.", fix=f"One of: {', '.join(found[:_MANY])}.")
    raise NotFound(
        f"no proposal {prefix!r} that this login may see.",
        fix="`counterfoil proposal list --all` shows those there are.",
    )


def read_proposal(ledger: Ledger, proposal_id: str) -> Proposal:
    """The proposal. Raises `NotFound`."""
    row = ledger.row(_SQL["read_proposal"], {"proposal_id": proposal_id})
    if row is None:
        raise _not_found(proposal_id)
    return Proposal(
        **_head(row),
        note=row["note"],
        digest=row["digest"],
        all_steps=tuple(_record(ProposedStep, step) for step in row["steps"]),
        staged=tuple(_record(StagedStep, step) for step in row["staged"]),
        decisions=tuple(_record(Decision, said) for said in row["decisions"]),
        rejected=tuple(_record(Rejected, said) for said in row["rejected"]),
    )


def decide(
    ledger: Ledger,
    proposal_id: str,
    *,
    verdict: Literal["approved", "rejected"],
    digest: str | None,
    by: str,
    channel: str,
    reason: str | None = None,
    amount_field: str | None = None,
    amount_max_minor: int | None = None,
) -> Decided:
    """Records a person's decision; an approval takes at least 16 digits of the digest that the person was shown.

    With bounds, a later revision of a single call may differ in `amount_field`, up to the maximum. After a lost connection
    the same decision again is told what stands. Raises `NotFound`, `NotAllowed`, `LedgerUnavailable`.
    """
    params = {
        "proposal_id": proposal_id,
        "verdict": verdict,
        "digest": digest,
        "by": by,
        "channel": channel,
        "reason": reason,
        "amount_field": amount_field,
        "amount_max_minor": amount_max_minor,
    }
    row = _answered(ledger, _SQL["decide"], params, proposal_id)
    return Decided(
        answer=Answer(row["answer"]), by=row["decided_by"], at=row["decided_at"], missing=row["missing"] or 0
    )


def edit_step(
    ledger: Ledger,
    action_id: str,
    *,
    new_id: str,
    digest: str,
    by: str,
    channel: str,
    reason: str | None,
    target: str,
    arguments: str,
    arguments_sha256: str,
    audience: tuple[str, ...],
    compensation: str | None,
    correction: str | None,
    once_key: str | None,
    amount_minor: int | None,
    currency: str | None,
) -> Decided:
    """Puts a new revision in the place of a step that waits; what was said over the old digest counts no more.

    Everything given must have been derived from `arguments` by the tool in its recorded version. Raises as `decide`.
    """
    params = {
        "action_id": action_id,
        "new_id": new_id,
        "digest": digest,
        "by": by,
        "channel": channel,
        "reason": reason,
        "target": target,
        "arguments": arguments,
        "arguments_sha256": arguments_sha256,
        "audience": list(audience),
        "compensation": compensation,
        "correction": correction,
        "once_key": once_key,
        "amount_minor": amount_minor,
        "currency": currency,
    }
    try:
        row = _answered(ledger, _SQL["edit_step"], params, action_id)
    except psycopg.errors.UniqueViolation as error:  # somebody was first, and nothing was changed
        is_once = error.diag.constraint_name == "action_once"
        return Decided(answer=Answer.ONCE_TAKEN if is_once else Answer.CHANGED)
    return Decided(answer=Answer(row["answer"]))


def _answered(ledger: Ledger, query: Query, params: Mapping[str, object], subject: str) -> Row:
    try:
        row = ledger.row(query, params)
    except psycopg.DatabaseError as error:
        if error.sqlstate != "CF404":
            raise
        raise _not_found(subject) from None
    assert row is not None
    return row


def _not_found(subject: str) -> NotFound:
    return NotFound(
        f"no proposal {subject!r} that this login may see.",
        fix="`counterfoil proposal list --all` shows those there are.",
    )


def _listed(row: Row) -> ListedProposal:
    live = [step for step in row["steps"] if step["superseded_by"] is None] or row["steps"]
    return ListedProposal(**_head(row), steps=tuple(_record(ListedStep, step) for step in live))


def _head(row: Row) -> Row:
    names = (
        *("proposal_id", "tenant", "run", "actor", "is_plan", "people", "expires_at", "decided_by", "decided_at"),
        *("created_at", "now"),
    )
    return {**{name: row[name] for name in names}, "state": ProposalState(row["state"])}


def _record(kind: type[T], row: Row) -> T:
    """A row of a JSON column as its dataclass: times are text there, and `class` is no name."""
    values = {}
    for name in kind.__dataclass_fields__:  # type: ignore[attr-defined]
        value = row[name.rstrip("_")]
        if name == "audience":
            value = tuple(value)
        elif (name == "at" or name.endswith("_at")) and value is not None:
            value = datetime.fromisoformat(value)
        values[name] = value
    return kind(**values)
