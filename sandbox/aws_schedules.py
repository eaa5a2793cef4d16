"""Decides what a schedule does: made under a name that is unique in its group, called at its time, deleted.

A client token answers a repeat of the same request as the first was answered; with other parameters it is a mismatch. How
long AWS keeps it for the scheduler it does not say, so that it can be forgotten here (`aws_tokens`).
"""

from __future__ import annotations

import hashlib
import json
import re
from datetime import UTC, datetime
from email.utils import format_datetime

from counterfoil.sandbox.aws_errors import error_body
from counterfoil.sandbox.store import Store
from counterfoil.sandbox.wire import Json, Refused, Reply, Request

SCHEDULE, TOKEN = "aws_schedule", "aws_token"
_AT = re.compile(r"at\((\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d)\)")
_ACCOUNT_ID = "123456789012"


def create(store: Store, request: Request) -> Reply:
    given = request.body
    name, group, token = request.match["name"], given.get("GroupName") or "default", given.get("ClientToken")
    account, region = _signer(request)
    arn = f"arn:aws:scheduler:{region}:{_ACCOUNT_ID}:schedule/{group}/{name}"
    print_of = _fingerprint("create", name, {n: v for n, v in given.items() if n != "ClientToken"})
    if _is_repeat(store, account, token, print_of):
        return _reply(store, {"ScheduleArn": arn})
    due = _due(store, given)
    if store.get(SCHEDULE, _id(group, name), account=account) is not None:
        raise _refuse(store, 409, "ConflictException", f"Schedule {name} already exists.")
    schedule: Json = {n: v for n, v in given.items() if n != "ClientToken"}
    schedule |= {"Name": name, "GroupName": group, "Arn": arn, "CreationDate": store.now()}
    schedule.setdefault("State", "ENABLED")
    _save(store, account, schedule)
    _remember(store, account, token, print_of)
    data = {"access_key": account, "region": region}
    store.record_effect("aws", "schedule", arn, key=name.removeprefix("cf-"), data=data)
    _wait(store, account, schedule, due)
    return _reply(store, {"ScheduleArn": arn})


def get(store: Store, request: Request) -> Reply:
    """As late as a search shows it (`search_lag_s`)."""
    account, _ = _signer(request)
    name, group = request.match["name"], (request.query.get("groupName") or ["default"])[0]
    found = store.indexed(SCHEDULE, account=account, terms=[_id(group, name)])
    if not found:
        raise _refuse(store, 404, "ResourceNotFoundException", f"Schedule {name} does not exist.")
    return _reply(store, found[0])


def delete(store: Store, request: Request) -> Reply:
    account, _ = _signer(request)
    name, group = request.match["name"], (request.query.get("groupName") or ["default"])[0]
    token = (request.query.get("clientToken") or [None])[0]
    print_of = _fingerprint("delete", name, {"GroupName": group})
    if _is_repeat(store, account, token, print_of):
        return _reply(store, None)
    schedule = store.get(SCHEDULE, _id(group, name), account=account)
    if schedule is None:
        raise _refuse(store, 404, "ResourceNotFoundException", f"Schedule {name} does not exist.")
    store.delete(SCHEDULE, _id(group, name), account=account)
    store.index("aws", SCHEDULE, _id(group, name), None, account=account)
    _remember(store, account, token, print_of)
    store.record_effect("aws", "schedule_deletion", schedule["Arn"], key=name.removeprefix("cf-"))
    return _reply(store, None)


def _signer(request: Request) -> tuple[str, str]:
    """(access key, region) of the signature; its hash differs from request to request."""
    credential = request.headers["authorization"].partition("Credential=")[2].partition(",")[0].split("/")
    return credential[0], credential[2]


def _due(store: Store, given: Json) -> float:
    match = _AT.fullmatch(str(given.get("ScheduleExpression")))
    target = given.get("Target")
    if match is None or not isinstance(target, dict) or not target.get("Arn") or not target.get("RoleArn"):
        raise _refuse(store, 400, "ValidationException", "Only one-time schedules with a target are served here.")
    return datetime.fromisoformat(match[1]).replace(tzinfo=UTC).timestamp()


def _wait(store: Store, account: str, schedule: Json, due: float) -> None:
    """Calls the target at its time unless the schedule is gone; not if the world was reset meanwhile."""
    generation, arn = store.generation, schedule["Arn"]

    def call() -> None:
        if store.generation != generation:
            return
        with store.transaction():
            kept = store.get(SCHEDULE, _id(schedule["GroupName"], schedule["Name"]), account=account)
            if kept is not None and kept["CreationDate"] == schedule["CreationDate"]:
                data = {"input": schedule["Target"].get("Input")}
                key = schedule["Name"].removeprefix("cf-")
                store.record_effect("aws", "schedule_call", arn, key=key, data=data)

    store.clock.call_at(due, call)


def _is_repeat(store: Store, account: str, token: str | None, fingerprint: str) -> bool:
    """The first request of this token was this one; a mismatch where it was another."""
    known = store.get(TOKEN, token or "", account=account)
    if known is None or store.config.aws_tokens == "forgotten":
        return False
    if known["fingerprint"] != fingerprint:
        raise _refuse(store, 400, "IdempotentParameterMismatch", "The token was used with other parameters.")
    return True


def _remember(store: Store, account: str, token: str | None, fingerprint: str) -> None:
    if token:
        store.put(TOKEN, token, {"fingerprint": fingerprint}, account=account)


def _save(store: Store, account: str, schedule: Json) -> None:
    place = _id(schedule["GroupName"], schedule["Name"])
    store.put(SCHEDULE, place, schedule, account=account)
    store.index("aws", SCHEDULE, place, schedule, [place], account=account)


def _id(group: str, name: str) -> str:
    return f"{group}/{name}"


def _fingerprint(*parts: object) -> str:
    return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()


def _reply(store: Store, body: Json | None) -> Reply:
    return Reply(200, body, _date(store))


def _refuse(store: Store, status: int, code: str, message: str) -> Refused:
    headers = {"x-amzn-ErrorType": f"{code}:http://internal.example/", **_date(store)}
    return Refused(Reply(status, error_body(status, code, message), headers))


def _date(store: Store) -> dict[str, str]:
    """Every answer says what time it is here, which the tests move."""
    return {"Date": format_datetime(datetime.fromtimestamp(store.now(), UTC).replace(microsecond=0), usegmt=True)}
