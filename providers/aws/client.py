"""Decides how the scheduler is called and asked: one write an attempt, our key as name and client token; look-ups by name."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any

from counterfoil.providers.aws.config import AwsConfig
from counterfoil.providers.aws.outcomes import (
    ARN,
    GONE,
    created,
    deletion_finding,
    deletion_outcome,
    due_at,
    error_outcome,
    group_of,
    name_of,
    schedule_finding,
    schedule_of,
)
from counterfoil.providers.aws.session import open_scheduler
from counterfoil.providers.contract import OTHER_KEY, Call
from counterfoil.providers.frame import each_found, found_or_unknown, judged_send
from counterfoil.providers.oneshot import OneShot
from counterfoil.providers.outcomes import (
    Absent,
    Finding,
    Found,
    NotSent,
    Outcome,
    Reading,
    Rejected,
    Uncertain,
    Unknown,
    Unreadable,
)


class AwsAdapter:
    """Calls one account's scheduler. Used by one thread at a time, in the process that made it."""

    def __init__(self, config: AwsConfig) -> None:
        self._config = config
        self._transport = OneShot()
        self._client, self._answers = open_scheduler(config, self._transport)

    def send(self, call: Call, *, timeout_s: float) -> Outcome:
        """Makes the one write of this attempt, after the reading that a deletion needs."""
        with self._transport.attempt(timeout_s=timeout_s, writes_max=1) as transport:
            return judged_send(
                lambda: self._send(call),
                lambda exc: error_outcome(
                    exc, self._answers.reply, call, retry_after_cap_s=self._config.retry_after_cap_s
                ),
                wrote=lambda: transport.wrote,
                name=self._name,
            )

    def lookup(self, calls: Sequence[Call], *, timeout_s: float) -> Mapping[str, Finding]:
        """The schedule of each call's name; what fails is Unknown."""
        with self._transport.attempt(timeout_s=timeout_s, writes_max=0, request_s=self._config.timeout_s):
            return each_found(calls, self._find, name=self._name)

    def fetch(self, call: Call, receipt: str, *, timeout_s: float) -> Finding:
        """The schedule at that address, which holds our key in its name."""
        undoes = call.tool == "aws_unschedule" and call.of is not None
        about = call.of.key if undoes and call.of is not None else call.key
        group = group_of(call, self._config) if undoes else self._config.group
        named = ARN.fullmatch(receipt)
        if named is None:
            return Absent()
        if named.groups() != (self._config.region, group, name_of(about)):
            return Unknown(OTHER_KEY)
        with self._transport.attempt(timeout_s=timeout_s, writes_max=0, request_s=self._config.timeout_s):
            finding = found_or_unknown(lambda: self._find(call), name=self._name)
        other = isinstance(finding, Found) and isinstance(finding.outcome, Uncertain) and finding.as_intended
        return Unknown("malformed") if other else finding

    def version(self, call: Call, *, timeout_s: float) -> Reading:
        """A schedule is made and deleted, never changed."""
        del call, timeout_s
        return Unreadable("no_version")

    def _send(self, call: Call) -> Outcome:
        match call.tool:
            case "aws_schedule":
                return self._create(call)
            case "aws_unschedule":
                return self._delete(call)
            case _:
                return NotSent("unknown_tool")

    def _create(self, call: Call) -> Outcome:
        if call.first_sent_at is None:
            return NotSent("no_first_sent_at")
        if due_at(call) <= call.first_sent_at:
            return Rejected("at_is_past", field="at")
        answer = self._client.create_schedule(ClientToken=call.key, **schedule_of(call, self._config))
        return self._unsure() or created(answer.get("ScheduleArn"), call, self._config, at=self._answered_at())

    def _delete(self, call: Call) -> Outcome:
        if call.of is None:
            return NotSent("of_unresolved")
        group = group_of(call, self._config)
        if group is None:
            return NotSent("other_region")
        if self._read(call.of.key, group) is not None:
            finding = self._deleted(call, exists=True)
            if isinstance(finding, Found):
                return finding.outcome
        # Also where it does not show (yet): the deletion itself says what is there.
        self._client.delete_schedule(Name=name_of(call.of.key), GroupName=group, ClientToken=call.key)
        return self._unsure(no_body=True) or deletion_outcome(self._answered_at(), call)

    def _find(self, call: Call) -> Finding:
        if call.tool == "aws_schedule":
            schedule = self._read(call.key, self._config.group)
            return Absent() if schedule is None else schedule_finding(schedule, call, self._config)
        if call.of is None:
            return Unknown("of_unresolved")
        group = group_of(call, self._config)
        if group is None:
            return Unknown("other_region")
        return self._deleted(call, exists=self._read(call.of.key, group) is not None)

    def _deleted(self, call: Call, *, exists: bool) -> Finding:
        answered, lag_s = self._answered_at(), self._config.read_lag_s
        return deletion_finding(exists=exists, answered=answered, call=call, lag_s=lag_s)

    def _read(self, key: str, group: str) -> Mapping[str, Any] | None:
        """The schedule of that key's name; None only where AWS itself says that there is none. Raises for the rest."""
        try:
            schedule: Mapping[str, Any] = self._client.get_schedule(Name=name_of(key), GroupName=group)
        except self._client.exceptions.ResourceNotFoundException:
            reply = self._answers.reply
            if reply is None or reply.status != 404 or reply.code != GONE:
                raise
            return None
        if self._unsure() is not None or schedule.get("Name") != name_of(key):
            raise ValueError("malformed")
        return schedule

    def _unsure(self, *, no_body: bool = False) -> Uncertain | None:
        """Why the answer, which boto3 took for a success, proves nothing: it is not a 200, or says what it should not."""
        reply = self._answers.reply
        if reply is None or reply.status != 200:
            code = "no_answer" if reply is None else f"http_{reply.status}"
            return Uncertain(code, evidence=code)
        return Uncertain("malformed") if no_body and reply.body.strip() not in (b"", b"{}") else None

    def _answered_at(self) -> datetime | None:
        return None if self._answers.reply is None else self._answers.reply.at

    def _name(self, exc: Exception) -> str:
        """A short name for a failed call: the status of its answer, where that is what failed."""
        reply = self._answers.reply
        return type(exc).__name__ if reply is None or reply.status == 200 else f"http_{reply.status}"
