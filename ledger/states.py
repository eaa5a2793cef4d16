"""Decides which states an action may have and which moves between them exist.

This table lives once here and once in the trigger of migration 1; a test compares the two. Both refuse every move that is
not listed. `*` in the design, `IN_DOUBT_REFUSED` here: the move is refused while the row is in doubt, that is from the
moment it turns uncertain until a finding proves an effect or absence is earned.
"""

from __future__ import annotations

from enum import StrEnum


class State(StrEnum):
    """Where one action stands. The comment on each says who moves it on, and by when."""

    PROPOSED = "proposed"
    """Recorded; `read_versions` reads what it is about, then its plan's decision or expiry moves it on, if it has one."""

    AWAITING_APPROVAL = "awaiting_approval"
    """A person must approve this exact intent; the approval's expiry makes it stale."""

    READY = "ready"
    """May be claimed once `ready_at` has passed; a wake-up in the outbox brings it to a worker."""

    EXECUTING = "executing"
    """One worker holds the lease and the request may be on the wire; `sweep_leases` moves it on when the lease ends."""

    RETRYABLE_FAILURE = "retryable_failure"
    """The provider definitely refused, for now; claimable again at `ready_at`, like READY."""

    UNCERTAIN = "uncertain"
    """The request may have landed; `sweep_uncertain` asks the provider at `next_lookup_at`."""

    RECONCILING = "reconciling"
    """A look-up is under way, under a lease of its own; `sweep_leases` puts it back when that ends."""

    OPERATOR_REVIEW = "operator_review"
    """Only a person moves it on: evidence is missing, contradictory or asks for judgement."""

    SUCCEEDED = "succeeded"
    """Settled: the provider's receipt is recorded. There is no way back to READY."""

    PERMANENT_FAILURE = "permanent_failure"
    """Settled: the provider definitely refused for good, or absence was earned and nothing may be sent again."""

    NOT_EXECUTED = "not_executed"
    """Settled: absence was earned and no attempt is left, or a person says so and nobody contradicts it."""

    CANCELLED = "cancelled"
    """Settled: withdrawn before anything was sent."""

    STALE = "stale"
    """Settled: the deadline passed, an approval expired, or the target changed, before anything was sent."""

    COMPENSATED = "compensated"
    """Settled: it had succeeded, and its counter-action has succeeded too."""


_S = State

ARROWS: dict[State, frozenset[State]] = {
    _S.PROPOSED: frozenset({_S.AWAITING_APPROVAL, _S.READY, _S.CANCELLED, _S.STALE}),
    _S.AWAITING_APPROVAL: frozenset({_S.READY, _S.CANCELLED, _S.STALE}),
    _S.READY: frozenset({_S.EXECUTING, _S.AWAITING_APPROVAL, _S.CANCELLED, _S.STALE, _S.UNCERTAIN, _S.OPERATOR_REVIEW}),
    _S.EXECUTING: frozenset(
        {
            _S.SUCCEEDED,
            _S.RETRYABLE_FAILURE,
            _S.PERMANENT_FAILURE,
            _S.UNCERTAIN,
            _S.STALE,
            _S.READY,
            _S.OPERATOR_REVIEW,
        }
    ),
    _S.RETRYABLE_FAILURE: frozenset(
        {
            _S.EXECUTING,
            _S.AWAITING_APPROVAL,
            _S.PERMANENT_FAILURE,
            _S.CANCELLED,
            _S.STALE,
            _S.UNCERTAIN,
            _S.OPERATOR_REVIEW,
        }
    ),
    _S.UNCERTAIN: frozenset({_S.RECONCILING, _S.SUCCEEDED, _S.OPERATOR_REVIEW}),
    _S.RECONCILING: frozenset(
        {_S.SUCCEEDED, _S.PERMANENT_FAILURE, _S.READY, _S.NOT_EXECUTED, _S.UNCERTAIN, _S.OPERATOR_REVIEW}
    ),
    _S.OPERATOR_REVIEW: frozenset({_S.RECONCILING, _S.SUCCEEDED, _S.PERMANENT_FAILURE, _S.NOT_EXECUTED}),
    _S.SUCCEEDED: frozenset({_S.COMPENSATED}),
    _S.NOT_EXECUTED: frozenset({_S.OPERATOR_REVIEW}),
    _S.PERMANENT_FAILURE: frozenset({_S.OPERATOR_REVIEW}),
    _S.CANCELLED: frozenset({_S.OPERATOR_REVIEW}),
    _S.STALE: frozenset({_S.OPERATOR_REVIEW}),
    _S.COMPENSATED: frozenset({_S.OPERATOR_REVIEW}),
}
"""Every move that exists: `ARROWS[from]` holds the states it may move to."""

IN_DOUBT_REFUSED: frozenset[tuple[State, State]] = frozenset(
    {
        (_S.READY, _S.AWAITING_APPROVAL),
        (_S.READY, _S.CANCELLED),
        (_S.READY, _S.STALE),
        (_S.EXECUTING, _S.RETRYABLE_FAILURE),
        (_S.EXECUTING, _S.PERMANENT_FAILURE),
        (_S.EXECUTING, _S.STALE),
        (_S.EXECUTING, _S.OPERATOR_REVIEW),
        (_S.RETRYABLE_FAILURE, _S.AWAITING_APPROVAL),
        (_S.RETRYABLE_FAILURE, _S.PERMANENT_FAILURE),
        (_S.RETRYABLE_FAILURE, _S.CANCELLED),
        (_S.RETRYABLE_FAILURE, _S.STALE),
    }
)
"""Moves that are refused while the row is in doubt: such a request sets `no_resend` and moves the row to UNCERTAIN."""

CLAIMABLE = frozenset({_S.READY, _S.RETRYABLE_FAILURE})
"""A worker may claim these; only these have a wake-up."""

UNSETTLED = frozenset(
    {
        _S.PROPOSED,
        _S.AWAITING_APPROVAL,
        _S.READY,
        _S.EXECUTING,
        _S.RETRYABLE_FAILURE,
        _S.UNCERTAIN,
        _S.RECONCILING,
        _S.OPERATOR_REVIEW,
    }
)
"""The effect is not decided yet."""

SETTLED = frozenset(State) - UNSETTLED
"""Nothing moves these on but a compensation, or evidence that they were wrong."""

NOTHING_DONE = frozenset(
    {_S.PROPOSED, _S.AWAITING_APPROVAL, _S.NOT_EXECUTED, _S.PERMANENT_FAILURE, _S.CANCELLED, _S.STALE}
)
"""A revision may be superseded only from these: each proves that nothing was done."""
