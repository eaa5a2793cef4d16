"""What a worker may do with an action: read the batch, claim one, settle it, or let it go. Each is one statement.

A function that returns False (or None) has changed nothing: somebody else holds or has moved the row.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Literal, TypeVar
from uuid import UUID

import psycopg

from counterfoil.ledger.connection import Ledger, Row
from counterfoil.ledger.errors import LedgerUnavailable
from counterfoil.ledger.queries import load

_SQL = load("counterfoil.ledger", "sql/worker.sql")

NOT_ALLOWED = "CF403"
"""The database's own refusal: among others, of a claim without the approval of exactly this intent."""


class ClaimRefused(Exception):
    """The database lets nobody claim this row as it stands: see `review_if_refused`. Nothing was changed."""


@dataclass(frozen=True, slots=True)
class WakeUp:
    """What a broker message says: this action may be claimable. Nothing else in a message is trusted."""

    action_id: str
    generation: int


@dataclass(frozen=True, slots=True, kw_only=True)
class WaitingAction:
    """A row that could be claimed when it was read; only the claim decides."""

    action_id: str
    generation: int
    tenant: str
    tool: str
    tool_version: int
    provider: str
    account: str
    attempt_count: int
    not_sent_count: int
    in_doubt: bool
    state: str

    @property
    def wake_up(self) -> WakeUp:
        return WakeUp(self.action_id, self.generation)


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordedAction:
    """An action's intent as the ledger holds it; `of_…` is the action that a counter-action is about."""

    action_id: str
    tenant: str
    run: str
    step: str
    revision: int
    phase: str
    tool: str
    tool_version: int
    class_: str
    effect: str
    target: str
    provider: str
    account: str
    reach: str | None
    """Where requests went, and as whom: a keyed digest. None: claimed by a version that wrote none."""
    arguments: str
    arguments_sha256: str
    amount_minor: int | None
    currency: str | None
    expected_resource_version: str | None
    """What the call's resource was when it was decided on; None where nothing reads one."""
    key: str
    fence: UUID
    attempt_count: int
    not_sent_count: int
    in_doubt: bool
    no_resend: bool
    first_sent_at: datetime
    of_action_id: str | None
    of_tool: str | None
    of_key: str | None
    of_reach: str | None
    of_receipt: str | None
    of_arguments: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class ClaimedAction(RecordedAction):
    """A row under this worker's lease, with all that the guards judge by. `key_age_s` is the ledger's time since the first
    claim, at this claim; `approval_…` is what the row's approval says, None where it has none."""

    key_age_s: float
    actor: str
    audience: Sequence[str]
    queue: str
    arguments_codec: str
    once_key: str | None
    repeat_reason: str | None
    compensation: str | None
    correction: str | None
    effect_scope: str
    reads_version: bool
    needs_approval: bool
    proposal_id: str | None
    staged: bool
    parent_action_id: str | None
    created_at: datetime
    approval_id: str | None
    approval_subject_id: str | None
    approval_digest: str | None
    approval_people: int | None
    approval_amount_max_minor: int | None
    approval_expires_at: datetime | None


RecordedT = TypeVar("RecordedT", bound=RecordedAction)


def recorded(kind: type[RecordedT], row: Row) -> RecordedT:
    """The record of `kind` made from a row; columns that the record does not have are left out."""
    values = {("class_" if name == "class" else name): value for name, value in row.items()}
    return kind(**{name: value for name, value in values.items() if name in kind.__dataclass_fields__})


def read_batch(ledger: Ledger, wake_ups: Sequence[WakeUp]) -> list[WaitingAction]:
    """The rows of one message that are claimable now, in the message's order."""
    rows = ledger.rows(
        _SQL["read_batch"],
        {"action_ids": [w.action_id for w in wake_ups], "generations": [w.generation for w in wake_ups]},
    )
    order = {wake_up.action_id: place for place, wake_up in enumerate(wake_ups)}
    return sorted((WaitingAction(**row) for row in rows), key=lambda a: order[a.action_id])


def claim_if_ready(
    ledger: Ledger,
    wake_up: WakeUp,
    *,
    fence: UUID,
    lease_s: float,
    key: str,
    key_version: int,
    reach: str,
    attempts_max: int,
    worker: str,
) -> ClaimedAction | None:
    """Takes the row if it is claimable: at most one caller gets it.

    `reach` says where this attempt would go; a row in doubt keeps that of its earlier one. `fence` must be fresh. When the
    connection is lost during the statement, the row is read again: it is the caller's only if it holds `fence`. Raises
    `LedgerUnavailable` when that cannot be found out, then nothing may be sent; and `ClaimRefused` when the row has no
    approval of exactly what it says.
    """
    try:
        row = ledger.row(
            _SQL["claim_if_ready"],
            {
                "action_id": wake_up.action_id,
                "generation": wake_up.generation,
                "fence": fence,
                "lease_s": lease_s,
                "key": key,
                "key_version": key_version,
                "reach": reach,
                "attempts_max": attempts_max,
                "worker": worker,
            },
            repeatable=False,
        )
    except LedgerUnavailable:
        row = ledger.row(_SQL["reread_mine"], {"action_id": wake_up.action_id, "fence": fence})
    except psycopg.DatabaseError as error:
        if error.sqlstate != NOT_ALLOWED:
            raise
        raise ClaimRefused from error
    return None if row is None else recorded(ClaimedAction, row)


def review_if_refused(ledger: Ledger, wake_up: WakeUp, *, worker: str) -> bool:
    """A claimable row that the database lets nobody claim → operator_review, or (in doubt) uncertain with no_resend."""
    params = {"action_id": wake_up.action_id, "generation": wake_up.generation, "worker": worker}
    return ledger.row(_SQL["review_if_refused"], params) is not None


def settle_succeeded(
    ledger: Ledger, action: ClaimedAction, *, receipt: str, result: str, evidence: str | None, worker: str
) -> bool:
    """executing → succeeded, with the receipt; False when the row was lost (then see `record_late_success`)."""
    return _changed(
        ledger, "settle_succeeded", action, receipt=receipt, result=result, evidence=evidence, worker=worker
    )


def settle_retryable(
    ledger: Ledger,
    action: ClaimedAction,
    *,
    code: str,
    field: str | None,
    evidence: str | None,
    delay_s: float,
    worker: str,
) -> bool:
    """executing → retryable_failure, claimable in `delay_s`; refused while in doubt."""
    return _changed(
        ledger, "settle_retryable", action, code=code, field=field, evidence=evidence, delay_s=delay_s, worker=worker
    )


def settle_failed(
    ledger: Ledger,
    action: ClaimedAction,
    *,
    outcome: Literal["rejected", "not_sent"],
    code: str,
    error_code: str,
    field: str | None,
    reason: str,
    evidence: str | None,
    worker: str,
) -> bool:
    """executing → permanent_failure: `code` is what the provider said, `error_code` why it is final; not in doubt."""
    return _changed(
        ledger,
        "settle_failed",
        action,
        outcome=outcome,
        code=code,
        error_code=error_code,
        field=field,
        reason=reason,
        evidence=evidence,
        worker=worker,
    )


def settle_uncertain(
    ledger: Ledger,
    action: ClaimedAction,
    *,
    outcome: Literal["uncertain", "rejected", "not_sent"],
    code: str,
    evidence: str | None,
    no_resend: bool,
    delay_s: float,
    look_after_s: float,
    worker: str,
) -> bool:
    """executing → uncertain; the caller's connection to the provider must be closed. First look in `look_after_s`.

    `delay_s` is the earliest resend (a Retry-After); `no_resend` forbids one for good.
    """
    return _changed(
        ledger,
        "settle_uncertain",
        action,
        outcome=outcome,
        code=code,
        evidence=evidence,
        no_resend=no_resend,
        delay_s=delay_s,
        look_after_s=look_after_s,
        worker=worker,
    )


def settle_not_sent(
    ledger: Ledger, action: ClaimedAction, *, code: str, evidence: str | None, delay_s: float, worker: str
) -> bool:
    """executing → ready with the attempt given back; refused while in doubt."""
    return _changed(ledger, "settle_not_sent", action, code=code, evidence=evidence, delay_s=delay_s, worker=worker)


def let_go(ledger: Ledger, action: ClaimedAction, *, code: str, delay_s: float, worker: str) -> bool:
    """executing → ready before anything was sent; the attempt is given back, doubt stays as it was.

    A row in doubt that may not be sent again turns uncertain instead.
    """
    return _changed(ledger, "let_go", action, code=code, delay_s=delay_s, worker=worker)


def hold_for_evidence(ledger: Ledger, action: ClaimedAction, *, code: str, worker: str) -> bool:
    """executing → uncertain with no_resend, before sending, for a row in doubt that may not be sent again."""
    return _changed(ledger, "hold_for_evidence", action, code=code, worker=worker)


def hand_to_person(ledger: Ledger, action: ClaimedAction, *, code: str, evidence: str | None, worker: str) -> bool:
    """executing → operator_review, before sending, not in doubt."""
    return _changed(ledger, "hand_to_person", action, code=code, evidence=evidence, worker=worker)


def stale_if_changed(
    ledger: Ledger,
    action: ClaimedAction,
    *,
    code: Literal["resource_changed", "version_unreadable"],
    evidence: str,
    worker: str,
) -> bool:
    """executing → stale, before sending, not in doubt; the attempt is given back."""
    return _changed(ledger, "stale_if_changed", action, code=code, evidence=evidence, worker=worker)


def settle_stale(ledger: Ledger, action: ClaimedAction, *, code: str, worker: str) -> bool:
    """executing → stale: the provider refused since the version was another; `code` is what it said. Not in doubt."""
    return _changed(ledger, "settle_stale", action, code=code, worker=worker)


def record_attempt(
    ledger: Ledger,
    action: ClaimedAction,
    *,
    outcome: Literal["succeeded", "rejected", "not_sent", "uncertain"],
    code: str | None,
    evidence: str | None,
    receipt: str | None = None,
    result: str | None = None,
) -> None:
    """Writes down what the answer proved, also when the row is another worker's by now."""
    ledger.rows(
        _SQL["record_attempt"],
        {
            "action_id": action.action_id,
            "fence": action.fence,
            "outcome": outcome,
            "code": code,
            "evidence": evidence,
            "receipt": receipt,
            "result": result,
        },
    )


def apply_late_success(
    ledger: Ledger, action: ClaimedAction, *, receipt: str, result: str, evidence: str | None, worker: str
) -> Literal["settled", "to_verdict", "to_person", "kept"]:
    """A success that was learnt after the row was lost; its attempt must be recorded already.

    An unknown outcome is settled; a row that waits for a resend, or is being sent again, goes to the verdict, which
    reads the attempt; a row that ended without an effect goes to a person. In any other state the attempt's record is
    enough ("kept").
    """
    params: dict[str, object] = {"receipt": receipt, "result": result, "evidence": evidence, "worker": worker}
    for _ in range(3):  # the row may move between two of these; each move is one of the four again
        if _changed(ledger, "late_success_on_unknown", action, **params):
            return "settled"
        if _changed(ledger, "late_success_on_waiting", action, **params):
            return "to_verdict"
        if _changed(ledger, "late_success_on_executing", action, **params):
            return "to_verdict"
        if _changed(ledger, "late_success_on_negative", action, **params):
            return "to_person"
    return "kept"


def end_used_up(ledger: Ledger, action_id: str, *, attempts_max: int, worker: str) -> bool:
    """A claimable row without an attempt left: failed for good, or (in doubt) evidence decides."""
    params: dict[str, object] = {"action_id": action_id, "attempts_max": attempts_max, "worker": worker}
    return any(
        ledger.row(_SQL[name], params) is not None for name in ("fail_if_attempts_used_up", "look_if_attempts_used_up")
    )


def postpone_wakeup(ledger: Ledger, wake_up: WakeUp, *, delay_s: float) -> None:
    """Lets the relay publish it again after `delay_s`; not an attempt."""
    _put_back(ledger, "postpone_wakeup", wake_up, delay_s)


def leave_to_others(ledger: Ledger, wake_up: WakeUp, *, delay_s: float) -> None:
    """The same for what this worker lacks the tool, version or account for."""
    _put_back(ledger, "leave_to_others", wake_up, delay_s)


def _put_back(ledger: Ledger, name: str, wake_up: WakeUp, delay_s: float) -> None:
    params = {"action_id": wake_up.action_id, "generation": wake_up.generation, "delay_s": delay_s}
    ledger.rows(_SQL[name], params)


def beat_heart(ledger: Ledger, *, worker: str, queues: Sequence[str], claimed: bool) -> None:
    """Tells that this worker is up, and whether it claimed something just now."""
    ledger.rows(_SQL["heartbeat"], {"worker": worker, "queues": list(queues), "claimed": claimed})


def _changed(ledger: Ledger, name: str, action: RecordedAction, **params: object) -> bool:
    """Runs the query with the row's id and this claim's token, where the query asks for them."""
    query = _SQL[name]
    everything: dict[str, object] = {"action_id": action.action_id, "fence": action.fence, **params}
    return ledger.row(query, {k: v for k, v in everything.items() if k in query.parameters}) is not None
