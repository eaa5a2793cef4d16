"""Decides what the scheduler's answers and errors prove, and what a schedule is made of. No client is imported here.

A schedule's name is made of our key and unique in its group, and the request carries the key as its client token. How long
AWS keeps a token it does not say for the scheduler, so nothing here rests on it: a repeat that meets the name instead
(ConflictException), or the token with other words, is looked up.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from counterfoil.providers.aws.config import AwsConfig
from counterfoil.providers.contract import Call
from counterfoil.providers.frame import gone, must_show_by
from counterfoil.providers.outcomes import (
    Absent,
    Finding,
    Found,
    NotSent,
    Outcome,
    Rejected,
    Succeeded,
    Uncertain,
    Unknown,
)
from counterfoil.providers.transport import answered_at, classify_exception, classify_status, retry_after_of

ARN = re.compile(
    r"arn:aws[a-z-]*:scheduler:([a-z0-9-]+):[0-9]{12}:schedule/([\w.-]{1,64})/([\w.-]{1,64})",
    re.ASCII,
)
"""A schedule's address: its region, group and name."""
GONE = "ResourceNotFoundException"

_REFUSED: Mapping[str, str] = {
    "ValidationException": "invalid_request",
    "ResourceNotFoundException": "not_found",
    "ServiceQuotaExceededException": "quota_exceeded",
    "AccessDeniedException": "forbidden",
    "UnrecognizedClientException": "unauthenticated",
    "InvalidSignatureException": "unauthenticated",
    "IncompleteSignatureException": "unauthenticated",
    "MissingAuthenticationTokenException": "unauthenticated",
    "ExpiredTokenException": "unauthenticated",
}
_REFUSING = range(400, 405)


@dataclass(frozen=True, slots=True)
class Reply:
    """An answer as it came over the wire. `code` is the error's, by AWS's header or body; None = not in AWS's form."""

    status: int
    headers: Mapping[str, str]
    code: str | None
    body: bytes

    @property
    def at(self) -> datetime | None:
        """When AWS answered, by its own clock."""
        return answered_at(self.headers)


def reply_of(status: int, headers: Mapping[str, str], body: bytes) -> Reply:
    """The answer, with its error's code in short: `com.amazon#ThrottlingException:http://…` is `ThrottlingException`."""
    lowered = {str(name).lower(): str(value) for name, value in headers.items()}
    named: object = lowered.get("x-amzn-errortype")
    if named is None:
        try:
            parsed = json.loads(body)
        except ValueError:
            parsed = None
        named = (parsed.get("code") or parsed.get("__type")) if isinstance(parsed, dict) else None
    code = named.partition(":")[0].rpartition("#")[2] if isinstance(named, str) else ""
    return Reply(status, lowered, code if re.fullmatch(r"[A-Za-z]{1,64}", code) else None, body)


def name_of(key: str) -> str:
    """A schedule's name; 35 of the 64 characters that AWS allows."""
    if not key:
        raise ValueError("no key")
    return f"cf-{key}"


def group_of(call: Call, config: AwsConfig) -> str | None:
    """The group of the schedule that this call takes back: its receipt's, since the configured one may have changed since.
    None where it was made in another region than is asked here."""
    named = ARN.fullmatch(call.of.receipt) if call.of is not None and call.of.receipt else None
    if named is None:
        return config.group
    return named[2] if named[1] == config.region else None


def due_at(call: Call) -> datetime:
    """When the schedule of this call, or of the one that it undoes, is due."""
    arguments = call.of.arguments if call.of is not None else call.arguments
    return datetime.strptime(str(arguments["at"]), "%Y-%m-%dT%H:%M:%S%z")


def schedule_of(call: Call, config: AwsConfig) -> dict[str, Any]:
    """The whole of a schedule, by what is recorded and configured: the same on every attempt.

    It stays after it was due, since one that deletes itself could not be told from one that was never made. The target is
    called at least once, and may know a repeat by the `key` in its input.
    """
    told = {"about": call.arguments["about"], "note": call.arguments["note"], "key": call.key}
    return {
        "Name": name_of(call.key),
        "GroupName": config.group,
        "Description": str(call.arguments["about"]),
        "ScheduleExpression": f"at({str(call.arguments['at']).removesuffix('Z')})",
        "ScheduleExpressionTimezone": "UTC",
        "FlexibleTimeWindow": {"Mode": "OFF"},
        "ActionAfterCompletion": "NONE",
        "State": "ENABLED",
        "Target": {
            "Arn": config.target_arn,
            "RoleArn": config.role_arn,
            # AWS fills in what stands there as `<aws.scheduler.…>`.
            "Input": json.dumps(told, sort_keys=True, separators=(",", ":")).replace("<", r"\u003c"),
        },
    }


def created(arn: object, call: Call, config: AwsConfig, *, at: datetime | None) -> Succeeded | Uncertain:
    """A success needs the schedule's own address, in our group and under our name, and to have been made before it was due:
    what becomes of it later, AWS does not say. `at` is when it was made, by AWS's clock."""
    found = ARN.fullmatch(arn) if isinstance(arn, str) else None
    if found is None or found.groups() != (config.region, config.group, name_of(call.key)):
        return Uncertain("malformed", evidence=type(arn).__name__)
    if at is not None and at >= due_at(call):
        return Uncertain("made_late")
    return Succeeded(found[0], {"id": found[0], "at": call.arguments["at"]})


def schedule_finding(schedule: Mapping[str, Any], call: Call, config: AwsConfig) -> Finding:
    """What the schedule of our name is: as intended only if all of it is as we would make it."""
    wanted, made = schedule_of(call, config), schedule.get("CreationDate")
    same = all(_value(schedule.get(name)) == value for name, value in wanted.items() if name != "Target")
    target = schedule.get("Target")
    same = same and isinstance(target, Mapping) and all(target.get(n) == v for n, v in wanted["Target"].items())
    about = schedule.get("Description")
    at = made if isinstance(made, datetime) and made.tzinfo is not None else None
    done = created(schedule.get("Arn"), call, config, at=at)
    return Found(
        done,
        target=about if isinstance(about, str) else None,
        created_at=at,
        as_intended=same and done != Uncertain("made_late"),
    )


def deletion_finding(*, exists: bool, answered: datetime | None, call: Call, lag_s: float) -> Finding:
    """What the presence of a schedule says about its deletion, at the time of AWS's own answer.

    One that is gone before it was due can have done nothing, if a reading as old as `lag_s` must have shown it. One that
    is gone later may have, and a person looks.
    """
    late = answered is None or answered >= _runs_from(call)
    if exists:
        return Found(Rejected("too_late")) if late else Absent()
    if late:
        return Found(Uncertain("may_have_run"), as_intended=False, unkeyed=True)
    if not must_show_by(call, answered, lag_s=lag_s):
        return Unknown("too_fresh")
    return Found(gone(call, deleted(call)), unkeyed=True)


def deletion_outcome(answered: datetime | None, call: Call) -> Outcome:
    """What an answered deletion has reached."""
    if answered is None:
        return Uncertain("no_date")
    return deleted(call) if answered < _runs_from(call) else Rejected("too_late")


def deleted(call: Call) -> Succeeded:
    receipt = (call.of.receipt or name_of(call.of.key)) if call.of is not None else ""
    return Succeeded(receipt, {"id": receipt})


def error_outcome(
    exc: Exception, reply: Reply | None, call: Call, *, retry_after_cap_s: float
) -> NotSent | Rejected | Uncertain:
    """What an exception out of the client proves about the write; `reply` is the answer to it, if there was one."""
    if reply is None:
        return classify_exception(exc)
    if reply.status == 429:
        return classify_status(429, retry_after_s=retry_after_of(reply.headers, cap_s=retry_after_cap_s))
    unsure = f"{type(exc).__name__} HTTP {reply.status}"
    match reply.code:
        case "IdempotentParameterMismatch" | "IdempotentParameterMismatchException":
            return Uncertain("idempotency_mismatch", evidence=unsure)
        case "ConflictException":
            return Uncertain("conflict", evidence=unsure)
        case "ResourceNotFoundException" if call.tool == "aws_unschedule":
            return Uncertain("gone", evidence=unsure)  # perhaps by an earlier request of ours
        case str() as code if code in _REFUSED and reply.status in _REFUSING:
            return Rejected(_REFUSED[code])
        case _:
            return Uncertain(f"http_{reply.status}", evidence=unsure)


def _runs_from(call: Call) -> datetime:
    """AWS keeps to the minute: the target may be called from the beginning of the one in which the schedule is due."""
    return due_at(call).replace(second=0)


def _value(value: object) -> object:
    """Without what AWS adds to an object by itself."""
    return {"Mode": value.get("Mode")} if isinstance(value, Mapping) and "Mode" in value else value
