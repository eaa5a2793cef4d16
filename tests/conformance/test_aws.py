"""AWS through boto3: our key is name and client token, nothing is read from the process, and what boto3 does by itself."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import boto3.session
import pytest
from botocore.exceptions import ClientError
from tests.conformance.subjects.aws import ARGUMENTS, AT, config

from counterfoil.ledger.errors import ArgumentError
from counterfoil.providers.aws.client import AwsAdapter
from counterfoil.providers.aws.outcomes import reply_of
from counterfoil.providers.contract import OTHER_KEY, Call, Of
from counterfoil.providers.outcomes import (
    Absent,
    Finding,
    Found,
    Json,
    NotSent,
    Outcome,
    Rejected,
    Succeeded,
    Uncertain,
    Unknown,
)
from counterfoil.providers.registry import Registry
from counterfoil.sandbox.client import Sandbox

TIMEOUT_S = 3.0
CREATE, DELETE, GET = "schedules.create", "schedules.delete", "schedules.get"
TOOLS = Registry.load(["counterfoil.providers.aws.tools"])
PROSE = "Schedule for customer Jo failed."


def call_of(
    number: int = 1, tool: str = "aws_schedule", arguments: Mapping[str, Json] = ARGUMENTS, **more: Any
) -> Call:
    return Call(
        action_id=f"act_{number}",
        tenant="acme",
        account="main",
        tool=tool,
        key=f"{number:032x}",
        arguments=arguments,
        target="order 1182",
        **{"first_sent_at": datetime.now(UTC), **more},
    )


def undo(call: Call, receipt: str | None = None) -> Call:
    of = Of(action_id=call.action_id, tool=call.tool, key=call.key, receipt=receipt, arguments=call.arguments)
    return call_of(9, "aws_unschedule", {"about": "order 1182"}, of=of)


@pytest.fixture
def aws(sandbox: Sandbox) -> AwsAdapter:
    return AwsAdapter(config(sandbox))


def send(aws: AwsAdapter, call: Call) -> Outcome:
    return aws.send(call, timeout_s=TIMEOUT_S)


def made(aws: AwsAdapter, call: Call) -> str:
    outcome = send(aws, call)
    assert isinstance(outcome, Succeeded), outcome
    return outcome.id


def find(aws: AwsAdapter, call: Call) -> Finding:
    return aws.lookup([call], timeout_s=TIMEOUT_S)[call.action_id]


def test_the_key_is_name_and_token(aws: AwsAdapter, sandbox: Sandbox) -> None:
    """A repeat is the same bytes, and AWS answers it as it answered the first; the target learns the key, too."""
    call = call_of()
    receipts = {made(aws, call), made(aws, replace(call, first_sent_at=datetime.now(UTC) - timedelta(hours=1)))}
    assert receipts == {f"arn:aws:scheduler:eu-central-1:123456789012:schedule/default/cf-{call.key}"}
    first, second = sandbox.aws.requests(CREATE)
    assert first.body == second.body
    body = json.loads(first.body or "")
    assert (first.path, body["ClientToken"]) == (f"/aws/schedules/cf-{call.key}", call.key)
    assert body["ScheduleExpression"] == f"at({AT.removesuffix('Z')})"
    assert body["Target"]["Input"] == json.dumps(
        {"about": "order 1182", "key": call.key, "note": "Has the parcel come?"}, separators=(",", ":")
    )
    assert sandbox.count("schedules") == 1
    sandbox.advance(2 * 86_400)
    assert sandbox.count("schedule_calls") == 1


@pytest.mark.parametrize("tokens", ["kept", "forgotten"])
def test_a_repeat_makes_no_second_schedule(aws: AwsAdapter, sandbox: Sandbox, tokens: str) -> None:
    """Where the token is forgotten the name is still taken: that refuses nothing, and the look-up tells."""
    sandbox.config(aws_tokens=tokens)
    call = call_of()
    receipt = made(aws, call)
    outcome = send(aws, call)
    assert (
        outcome == Succeeded(receipt, {"id": receipt, "at": AT})
        if tokens == "kept"
        else (isinstance(outcome, Uncertain) and outcome.code == "conflict")
    )
    finding = find(aws, call)
    assert isinstance(finding, Found)
    assert (finding.target, finding.as_intended) == ("order 1182", True)
    assert finding.outcome == Succeeded(receipt, {"id": receipt, "at": AT})
    assert sandbox.count("schedules") == 1


def test_a_token_with_other_words_is_looked_up(aws: AwsAdapter, sandbox: Sandbox) -> None:
    """A key that AWS knows with other parameters goes to a person, and so does what is found under its name."""
    call = call_of()
    made(aws, call)
    other = replace(call, arguments={**ARGUMENTS, "note": "Something else."})
    outcome = send(aws, other)
    assert isinstance(outcome, Uncertain)
    assert outcome.code == "idempotency_mismatch"
    finding = find(aws, other)
    assert isinstance(finding, Found)
    assert not finding.as_intended
    assert sandbox.count("schedules") == 1


def test_the_time_is_checked_by_what_is_recorded(aws: AwsAdapter, sandbox: Sandbox) -> None:
    """A time before the first claim is refused without a request, on every attempt."""
    call = call_of(first_sent_at=datetime.now(UTC) + timedelta(days=2))
    assert send(aws, call) == Rejected("at_is_past", field="at")
    assert sandbox.aws.requests() == []
    for wrong in ("2026-02-30T00:00:00Z", "2026-12-01T00:00:00", "rate(1 minute)"):
        with pytest.raises(ArgumentError):
            TOOLS.get("aws_schedule").validate({**ARGUMENTS, "at": wrong})


def test_taken_back_in_time(aws: AwsAdapter, sandbox: Sandbox) -> None:
    """Deleted once however often it is asked for, and the target is never called."""
    call = call_of()
    receipt = made(aws, call)
    back = undo(call, receipt)
    assert find(aws, back) == Absent()
    for _ in range(2):
        assert send(aws, back) == Succeeded(receipt, {"id": receipt})
    assert find(aws, back) == Found(Succeeded(receipt, {"id": receipt}))
    assert sandbox.count("schedules_deleted") == 1
    sandbox.advance(2 * 86_400)
    assert sandbox.count("schedule_calls") == 0


def test_gone_already_settles_nothing_by_itself(aws: AwsAdapter, sandbox: Sandbox) -> None:
    """A 404 to the deletion may be an earlier attempt's work: the look-up settles it, by AWS's own clock."""
    call = call_of()
    back = undo(call, made(aws, call))
    send(aws, back)
    sandbox.config(aws_tokens="forgotten")
    outcome = send(aws, back)
    assert isinstance(outcome, Uncertain)
    assert outcome.code == "gone"
    assert isinstance(find(aws, back), Found)


def test_taken_back_too_late(aws: AwsAdapter, sandbox: Sandbox) -> None:
    """What was due has called its target: no deletion leaves, and what is gone by then is a person's."""
    call, other = call_of(1), call_of(2)
    back, lost = undo(call, made(aws, call)), undo(other, made(aws, other))
    sandbox.aws.fault("rst_after_commit", on=DELETE)
    assert isinstance(send(aws, lost), Uncertain)
    sandbox.advance(2 * 86_400)
    assert send(aws, back) == Rejected("too_late")
    assert len(sandbox.aws.requests(DELETE)) == 1
    finding = find(aws, back)
    assert isinstance(finding, Found)
    assert finding.outcome == Rejected("too_late")
    assert find(aws, lost) == Found(Uncertain("may_have_run"), as_intended=False)
    assert sandbox.count("schedule_calls") == 1


def test_a_schedule_that_does_not_show_yet_is_deleted_all_the_same(aws: AwsAdapter, sandbox: Sandbox) -> None:
    """A read that lags is not taken for an absence."""
    sandbox.config(search_lag_s={"aws": 60})
    call = call_of()
    receipt = made(aws, call)
    assert find(aws, call) == Absent()
    assert send(aws, undo(call, receipt)) == Succeeded(receipt, {"id": receipt})
    assert sandbox.count("schedules_deleted") == 1


def test_a_read_that_need_not_show_it_yet(sandbox: Sandbox) -> None:
    """A schedule that was made just now and does not show is not called deleted: it would call its target."""
    aws = AwsAdapter(replace(config(sandbox), read_lag_s=60))
    sandbox.config(search_lag_s={"aws": 50})
    call = call_of(first_sent_at=datetime.fromtimestamp(sandbox.now(), UTC))
    back = replace(undo(call, made(aws, call)), first_sent_at=datetime.fromtimestamp(sandbox.now(), UTC))
    sandbox.aws.fault("504_before_commit", on=DELETE)
    assert isinstance(send(aws, back), Uncertain)
    assert find(aws, back) == Unknown("too_fresh")
    sandbox.advance(58)
    assert find(aws, back) == Absent(), "it is there, as the read has come to show"
    made(aws, back)
    sandbox.advance(51)
    assert isinstance(find(aws, back), Found)
    sandbox.advance(2 * 86_400)
    assert (sandbox.count("schedules_deleted"), sandbox.count("schedule_calls")) == (1, 0)


def test_the_minute_in_which_it_is_due_is_too_late(aws: AwsAdapter, sandbox: Sandbox) -> None:
    """AWS calls a target in the minute that it was given, perhaps before the second: what is deleted then may have run."""
    minute = datetime.fromtimestamp(sandbox.now(), UTC).replace(second=0, microsecond=0) + timedelta(hours=1)
    call, other = (
        call_of(number, arguments={**ARGUMENTS, "at": f"{minute + timedelta(seconds=40):%Y-%m-%dT%H:%M:%SZ}"})
        for number in (1, 2)
    )
    back, lost = undo(call, made(aws, call)), undo(other, made(aws, other))
    sandbox.advance(minute.timestamp() - sandbox.now() - 5)
    sandbox.aws.fault("rst_after_commit", on=DELETE)
    assert isinstance(send(aws, lost), Uncertain)
    assert find(aws, back) == Absent()
    sandbox.advance(minute.timestamp() - sandbox.now() + 5)
    assert send(aws, back) == Rejected("too_late")
    assert find(aws, lost) == Found(Uncertain("may_have_run"), as_intended=False)


def test_a_schedule_is_deleted_where_it_was_made(aws: AwsAdapter, sandbox: Sandbox) -> None:
    """The receipt names group and region: settings that have changed since make nobody look elsewhere and call it gone."""
    call = call_of()
    receipt = made(aws, call)
    back = undo(call, receipt)
    elsewhere = AwsAdapter(replace(config(sandbox), region="us-east-1"))
    assert send(elsewhere, back) == NotSent("other_region")
    assert find(elsewhere, back) == Unknown("other_region")
    moved = AwsAdapter(replace(config(sandbox), group="new"))
    assert find(moved, back) == Absent()
    assert isinstance(moved.fetch(back, receipt, timeout_s=TIMEOUT_S), Absent)
    assert send(moved, back) == Succeeded(receipt, {"id": receipt})
    assert isinstance(find(moved, back), Found)
    sandbox.advance(2 * 86_400)
    assert (sandbox.count("schedules_deleted"), sandbox.count("schedule_calls")) == (1, 0)


def test_a_schedule_that_was_made_after_its_time(aws: AwsAdapter, sandbox: Sandbox) -> None:
    """A repeat may come so late; AWS does not say whether it then calls at once or never: it is a person's."""
    due = datetime.fromtimestamp(sandbox.now(), UTC) + timedelta(seconds=90)
    arguments = {**ARGUMENTS, "at": f"{due:%Y-%m-%dT%H:%M:%SZ}"}
    call = call_of(arguments=arguments, first_sent_at=datetime.fromtimestamp(sandbox.now(), UTC))
    sandbox.advance(300)
    assert send(aws, call) == Uncertain("made_late")
    finding = find(aws, call)
    assert isinstance(finding, Found)
    assert (finding.outcome, finding.as_intended) == (Uncertain("made_late"), False)


def test_nothing_in_a_note_is_a_placeholder(aws: AwsAdapter, sandbox: Sandbox) -> None:
    """AWS writes its own words for `<aws.scheduler.…>` in a target's input: none is there to be read, whatever was said."""
    note = "Look at <aws.scheduler.schedule-arn>"
    call = call_of(arguments={**ARGUMENTS, "note": note})
    made(aws, call)
    [request] = sandbox.aws.requests(CREATE)
    told = json.loads(request.body or "")["Target"]["Input"]
    assert "<" not in told
    assert json.loads(told)["note"] == note
    finding = find(aws, call)
    assert isinstance(finding, Found)
    assert finding.as_intended


@pytest.mark.parametrize(
    ("status", "code", "outcome"),
    [
        (400, "ValidationException", Rejected("invalid_request")),
        (402, "ServiceQuotaExceededException", Rejected("quota_exceeded")),
        (403, "AccessDeniedException", Rejected("forbidden")),
        (403, "ExpiredTokenException", Rejected("unauthenticated")),
        (404, "ResourceNotFoundException", Rejected("not_found")),
        (429, "ThrottlingException", Rejected("rate_limited", retryable=True)),
    ],
)
@pytest.mark.parametrize("by_header", [True, False])
def test_errors_by_their_code(
    aws: AwsAdapter, sandbox: Sandbox, status: int, code: str, outcome: Rejected, by_header: bool
) -> None:
    """The code is read where AWS writes it, and is ours; what AWS says of it in words is in no outcome."""
    headers = {"x-amzn-ErrorType": f"{code}:http://internal.example/"} if by_header else {}
    body = {"message": PROSE} if by_header else {"__type": f"com.amazonaws#{code}", "message": PROSE}
    sandbox.aws.fault("answer", on=CREATE, status=status, body=body, headers=headers)
    assert send(aws, call_of()) == outcome
    assert len(sandbox.aws.requests(CREATE)) == 1


@pytest.mark.parametrize(
    ("status", "body"),
    [
        (400, "<html>no</html>"),
        (403, "{}"),
        (404, "[]"),
        (400, {"code": "SomethingElse"}),
        (500, {"code": "ValidationException"}),
        (409, {"code": "ConflictException"}),
    ],
)
def test_what_refuses_nothing(aws: AwsAdapter, sandbox: Sandbox, status: int, body: Any) -> None:
    """A gateway's page, an unknown code, a known one under a status that is not its own, a conflict."""
    sandbox.aws.fault("answer", on=CREATE, status=status, body=body)
    assert isinstance(send(aws, call_of()), Uncertain)
    assert len(sandbox.aws.requests(CREATE)) == 1


@pytest.mark.parametrize("arn", ["x", None, "arn:aws:scheduler:eu-central-1:123456789012:schedule/default/other"])
def test_success_needs_our_schedule(aws: AwsAdapter, sandbox: Sandbox, arn: str | None) -> None:
    """An address, in our group and under our name."""
    sandbox.aws.fault("answer", on=CREATE, status=200, body={"ScheduleArn": arn})
    assert send(aws, call_of()) == Uncertain("malformed", evidence=type(arn).__name__)


def test_a_404_of_somebody_else_is_no_absence(aws: AwsAdapter, sandbox: Sandbox) -> None:
    """Only AWS's own word says that there is no schedule of that name."""
    for body in ("<html>", {"code": "NoSuchThing"}):
        sandbox.aws.fault("answer", on=GET, status=404, body=body)
        assert find(aws, call_of()) == Unknown("http_404")
    for status in (400, 502):
        sandbox.aws.fault("answer", on=GET, status=status, body={"__type": "ResourceNotFoundException"})
        assert find(aws, call_of()) == Unknown(f"http_{status}"), "AWS says it with a 404"


def test_what_a_person_names(aws: AwsAdapter, sandbox: Sandbox) -> None:
    """A schedule is fetched by its address, which holds our key; none is absent; an outage is unknown."""
    mine, theirs = call_of(1), call_of(2)
    receipt, other = made(aws, mine), made(aws, theirs)

    def fetched(call: Call, named: str) -> Finding:
        return aws.fetch(call, named, timeout_s=TIMEOUT_S)

    assert isinstance(fetched(mine, receipt), Found)
    assert fetched(mine, other) == Unknown(OTHER_KEY)
    for nothing in ("", "cf-1", f"{receipt}/x", receipt.replace("123456789012", "1")):
        assert fetched(mine, nothing) == Absent()
    back = undo(mine, receipt)
    assert fetched(back, receipt) == Absent()
    made(aws, back)
    assert isinstance(fetched(back, receipt), Found)
    sandbox.aws.fault("html_502", on=GET)
    assert isinstance(fetched(mine, receipt), Unknown)
    assert send(aws, replace(back, of=None)) == NotSent("of_unresolved")


def test_nothing_is_read_from_the_process(
    sandbox: Sandbox, monkeypatch: pytest.MonkeyPatch, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """Neither credentials nor region, profile, address, retries or proxy; two accounts live in it side by side."""
    for name, value in {
        "AWS_ACCESS_KEY_ID": "AKIDOTHER",
        "AWS_SECRET_ACCESS_KEY": "other",
        "AWS_SESSION_TOKEN": "other",
        "AWS_DEFAULT_REGION": "us-east-1",
        "AWS_PROFILE": "nobody",
        "AWS_CONFIG_FILE": str(tmp_path_factory.mktemp("aws") / "none"),
        "AWS_ENDPOINT_URL": "http://127.0.0.1:9",
        "AWS_RETRY_MODE": "adaptive",
        "AWS_MAX_ATTEMPTS": "9",
        "HTTP_PROXY": "http://127.0.0.1:9",
    }.items():
        monkeypatch.setenv(name, value)
    first, second = (AwsAdapter(config(sandbox, key)) for key in ("AKID1", "AKID2"))
    call = call_of()
    made(first, call)
    assert find(second, call) == Absent()
    assert isinstance(find(first, call), Found)
    [effect] = sandbox.aws.effects("schedule")
    assert effect.data == {"access_key": "AKID1", "region": "eu-central-1"}, "signed with what was given"
    sandbox.aws.fault("500_unstored", on=CREATE, times=None)
    assert isinstance(send(second, call), Uncertain)
    assert len(sandbox.aws.requests(CREATE)) == 2
    assert "x-amz-security-token" not in sandbox.aws.requests(CREATE)[0].headers
    secret = replace(config(sandbox), secret_key="s3cret", session_token="s3ssion")
    assert "s3" not in repr(secret)
    real = AwsAdapter(replace(secret, base_url=None))
    assert real._client.meta.endpoint_url == "https://scheduler.eu-central-1.amazonaws.com"


def test_by_default_boto3_hides_attempts_and_makes_up_tokens(sandbox: Sandbox) -> None:
    """Why the adapter passes its own token and one attempt: a second call of boto3's is another request to AWS."""
    given = config(sandbox)
    session: Any = boto3.session.Session(aws_access_key_id="AKID", aws_secret_access_key="s", region_name=given.region)
    client = session.client("scheduler", endpoint_url=given.base_url)
    target = {"Arn": given.target_arn, "RoleArn": given.role_arn}
    wanted: dict[str, Any] = {"ScheduleExpression": "at(2030-01-01T00:00:00)", "FlexibleTimeWindow": {"Mode": "OFF"}}
    sandbox.aws.fault("500_unstored", on=CREATE, times=2)
    client.create_schedule(Name="first", Target=target, **wanted)
    requests = sandbox.aws.requests(CREATE)
    assert len(requests) == 3, "one call, three requests"
    assert len({json.loads(request.body or "")["ClientToken"] for request in requests}) == 1
    with pytest.raises(ClientError, match="ConflictException"):
        client.create_schedule(Name="first", Target=target, **wanted)
    tokens = {json.loads(request.body or "")["ClientToken"] for request in sandbox.aws.requests(CREATE)}
    assert len(tokens) == 2, "to AWS the repeat is somebody else's request"
    client.create_schedule(Name="second", Target=target, **wanted)
    assert sandbox.count("schedules") == 2, "with a name made up on each call there are two"


def test_a_code_is_read_in_each_of_its_forms() -> None:
    """Header or body, with a namespace or an address around it; anything else is none."""
    for headers, body, code in (
        ({"X-Amzn-ErrorType": "AccessDeniedException"}, b"", "AccessDeniedException"),
        ({}, b'{"__type": "com.amazonaws.scheduler#ConflictException"}', "ConflictException"),
        ({}, b'{"code": "ConflictException"}', "ConflictException"),
        ({}, b'{"code": 7}', None),
        ({}, b'{"code": "a sentence about Jo"}', None),
        ({}, b"<html>", None),
        ({}, b"[]", None),
    ):
        assert reply_of(400, headers, body).code == code
