"""What a caller and a model are told about an action: one bounded value, made from the ledger's row alone."""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Iterable, Mapping
from enum import StrEnum

from pydantic import BaseModel, ConfigDict, JsonValue

from counterfoil.ledger.canonical import load_stored
from counterfoil.ledger.errors import ArgumentError
from counterfoil.ledger.states import SETTLED, State

FIELD_CHARS_MAX = 200


class Status(StrEnum):
    """What is known about the effect. An unknown outcome is a status of its own, never an error."""

    PENDING = "pending"
    UNCERTAIN = "uncertain"
    SUCCEEDED = "succeeded"
    FAILED = "failed"
    AWAITING_APPROVAL = "awaiting_approval"
    BLOCKED = "blocked"
    STALE = "stale"
    CANCELLED = "cancelled"


class NextStep(StrEnum):
    """What the caller can usefully do now; a closed set."""

    NONE = "none"
    WAIT = "wait"
    END_TURN = "end_turn"
    CORRECT_ARGUMENTS = "correct_arguments"
    READ_UNSEEN = "read_unseen"
    ALREADY_DONE = "already_done"
    EDITED_BY_REVIEWER = "edited_by_reviewer"
    REJECTED_BY_REVIEWER = "rejected_by_reviewer"
    NEW_PREVIEW = "new_preview"
    LIMIT_REACHED = "limit_reached"
    PERSON = "person"


class Result(BaseModel):
    """One answer. Send it to a model with `model_dump_json(exclude_none=True)`: fields that say nothing are left out.

    `seq` counts the actions of a run; `arguments` is there when something else ran than was asked for; `unseen` holds
    recorded results that the caller was not told; `suspend` says that a person decides next, so the turn can end.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    action_id: str | None = None
    seq: int | None = None
    seen: str | None = None
    """A token of all ends that the caller has been told up to and with this answer: keep it beside the transcript, and give
    it back as `seen`. It is the caller's; the model need not see it (`for_model`)."""
    step: str | None = None
    revision: int | None = None
    status: Status
    next_step: NextStep = NextStep.NONE
    retry_allowed: bool = False
    """Nothing happened, and a corrected call may be made."""
    suspend: bool = False
    value: JsonValue = None
    """The tool's declared result fields; where a reviewer has rejected it, or an argument is refused, the `reason`."""
    code: str | None = None
    field: str | None = None
    arguments: dict[str, JsonValue] | None = None
    unseen: tuple[Result, ...] | None = None
    replayed: bool = False
    """An earlier call has recorded it: this one did nothing new."""
    proposal_id: str | None = None
    """What a person decides, or has decided, about it."""

    def for_model(self) -> str:
        """The answer as JSON for the model: what says nothing is left out, and so is `seen`."""
        return self.model_dump_json(exclude_none=True, exclude={"seen"})


def result_of(
    row: Mapping[str, object],
    *,
    argument_names: Collection[str] = (),
    asked: str | None = None,
    own_run: bool = True,
    replayed: bool = False,
    already_done: bool = False,
) -> Result:
    """The result for an action's row.

    `argument_names` are the tool's own: a field that a provider names is passed on only if it is one of them. `asked` is
    the canonical text of the arguments of this call; recorded ones that differ are shown, and so are a reviewer's. A row
    of another run (`own_run` false) has a place in that run only, so its step and seq are left out.
    """
    state = State(str(row["state"]))
    status, next_step = _ANSWERS[state]
    code, field = _code(row["last_error_code"]), row["last_error_field"]
    if status is Status.SUCCEEDED:
        code, field = ("compensated" if state is State.COMPENSATED else None), None
        if already_done and state is State.SUCCEEDED:
            next_step = NextStep.ALREADY_DONE
    elif status not in _TOLD_WHY:
        code, field = None, None
    elif status is Status.CANCELLED and code in _REVIEWED:
        next_step = _REVIEWED[code]
    edited = row.get("edited_from") is not None
    if edited and next_step is NextStep.NONE and status in _RAN:
        next_step = NextStep.EDITED_BY_REVIEWER
    if replayed and state is State.SUCCEEDED and next_step is NextStep.NONE:
        next_step = NextStep.ALREADY_DONE
    field = field if isinstance(field, str) and field in argument_names else None
    correctable = (
        not edited
        and state is State.PERMANENT_FAILURE
        and field is not None
        and bool(_CORRECTABLE.fullmatch(code or ""))
    )
    return Result(
        action_id=str(row["action_id"]),
        seq=_number(row["seq"]) if own_run else None,
        step=str(row["step"]) if own_run else None,
        revision=_number(row["revision"]) if own_run else None,
        status=status,
        next_step=NextStep.CORRECT_ARGUMENTS if correctable else next_step,
        retry_allowed=correctable,
        suspend=state in WAITS_FOR_PERSON,
        value=_value(row["result"]) if status is Status.SUCCEEDED else _reason(row, next_step),
        code=code,
        field=field,
        arguments=_recorded_arguments(row["arguments"]) if _is_other(row["arguments"], asked, edited=edited) else None,
        replayed=replayed,
        proposal_id=_text(row.get("proposal_id")),
    )


def ends_of(rows: Iterable[Mapping[str, object]]) -> list[tuple[str, int]]:
    """The ends that these rows have, as they are told: (action id, count of its settled moves).

    What takes an action back is nobody's call, so its end is not among them.
    """
    return [
        (str(row["action_id"]), int(str(row["ends_count"])))
        for row in rows
        if row["state"] in SETTLED and row.get("phase", "do") == "do"
    ]


def refused(error: ArgumentError) -> Result:
    """The answer to a model's bad argument: nothing was recorded and no step was used up. `value` has the `reason`."""
    field = error.path.removeprefix("$").removeprefix(".")
    printable = "".join(char if char.isprintable() else "?" for char in field[:FIELD_CHARS_MAX])
    return Result(
        status=Status.FAILED,
        next_step=NextStep.CORRECT_ARGUMENTS,
        retry_allowed=True,
        value={"reason": error.reason},
        code=error.code,
        field=printable or None,
    )


WAITS_FOR_PERSON = frozenset({State.AWAITING_APPROVAL, State.OPERATOR_REVIEW})
"""Nothing but a person's decision moves these on: waiting longer in the call is of no use."""

ANSWERED = SETTLED | WAITS_FOR_PERSON
"""States on which a call does not wait any longer."""

_ANSWERS: dict[State, tuple[Status, NextStep]] = {
    State.PROPOSED: (Status.PENDING, NextStep.WAIT),
    State.AWAITING_APPROVAL: (Status.AWAITING_APPROVAL, NextStep.END_TURN),
    State.READY: (Status.PENDING, NextStep.WAIT),
    State.EXECUTING: (Status.PENDING, NextStep.WAIT),
    State.RETRYABLE_FAILURE: (Status.PENDING, NextStep.WAIT),
    State.UNCERTAIN: (Status.UNCERTAIN, NextStep.WAIT),
    State.RECONCILING: (Status.UNCERTAIN, NextStep.WAIT),
    State.OPERATOR_REVIEW: (Status.UNCERTAIN, NextStep.PERSON),
    State.SUCCEEDED: (Status.SUCCEEDED, NextStep.NONE),
    State.PERMANENT_FAILURE: (Status.FAILED, NextStep.NONE),
    State.NOT_EXECUTED: (Status.FAILED, NextStep.NONE),
    State.CANCELLED: (Status.CANCELLED, NextStep.NONE),
    State.STALE: (Status.STALE, NextStep.NEW_PREVIEW),
    State.COMPENSATED: (Status.SUCCEEDED, NextStep.END_TURN),
}

_RAN = frozenset({Status.SUCCEEDED, Status.FAILED})

_TOLD_WHY = frozenset({Status.FAILED, Status.CANCELLED, Status.STALE})
"""Only an end has a code: a code on an open row would invite a caller to act on it."""

_REVIEWED = {
    "rejected_by_reviewer": NextStep.REJECTED_BY_REVIEWER,
    "edited_by_reviewer": NextStep.EDITED_BY_REVIEWER,
}

_CODE = re.compile(r"[A-Za-z0-9_.:-]{1,100}", re.ASCII)
_CORRECTABLE = re.compile(r"(invalid|missing|unknown|parameter|amount_too)_\w+|not_found|unprocessable|too_large")
"""Refusals that are about an argument. A declined card is none: another card is no correction."""


def _code(value: object) -> str | None:
    """A short code as it stands; a provider's prose in its place is not passed on."""
    if value is None:
        return None
    text = str(value)
    return text if _CODE.fullmatch(text) else "refused"


def _number(value: object) -> int | None:
    return value if isinstance(value, int) else None


def _value(text: object) -> JsonValue:
    value: JsonValue = json.loads(text) if isinstance(text, str) else None
    return value


def _text(value: object) -> str | None:
    return None if value is None else str(value)


def _reason(row: Mapping[str, object], next_step: NextStep) -> JsonValue:
    """What the reviewer said who rejected it, at most 500 characters; gone when another revision has taken its place."""
    said = row.get("change_reason")
    is_newest = row.get("superseded_by") is None
    rejected = next_step is NextStep.REJECTED_BY_REVIEWER and is_newest and isinstance(said, str)
    return {"reason": str(said)} if rejected else None


def _is_other(recorded: object, asked: str | None, *, edited: bool) -> bool:
    """Something else than what was asked for; without knowing that, what a reviewer has written."""
    return edited if asked is None else asked != recorded


def _recorded_arguments(text: object) -> dict[str, JsonValue] | None:
    """None where they have been erased."""
    return load_stored(text) if isinstance(text, str) and text.startswith("{") else None
