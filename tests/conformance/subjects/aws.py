"""What the suite does at AWS."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from tests.conformance.subjects.subject import Subject

from counterfoil.providers.aws.client import AwsAdapter
from counterfoil.providers.aws.config import AwsConfig
from counterfoil.providers.contract import Adapter
from counterfoil.sandbox.client import Sandbox

AT = (datetime.now(UTC) + timedelta(days=1)).strftime("%Y-%m-%dT%H:%M:%SZ")
ARGUMENTS = {"about": "order 1182", "at": AT, "note": "Has the parcel come?"}


def config(sandbox: Sandbox, access_key: str = "AKIDEXAMPLE") -> AwsConfig:
    return AwsConfig(
        region="eu-central-1",
        access_key=access_key,
        secret_key="sandbox",
        target_arn="arn:aws:sqs:eu-central-1:123456789012:follow-ups",
        role_arn="arn:aws:iam::123456789012:role/scheduler",
        base_url=sandbox.provider("aws").url,
        read_lag_s=0,
    )


def adapter(sandbox: Sandbox) -> Adapter:
    return AwsAdapter(config(sandbox))


SUBJECTS = (
    Subject(
        name="aws_schedule",
        arguments=ARGUMENTS,
        target="order 1182",
        provider="aws",
        adapter=adapter,
        operation="schedules.create",
        effect="schedule",
        deduplicates=True,
        lookup_operation="schedules.get",
    ),
    Subject(
        name="aws_unschedule",
        arguments={"about": "order 1182"},
        target="order 1182",
        provider="aws",
        adapter=adapter,
        operation="schedules.delete",
        effect="schedule_deletion",
        after="aws_schedule",
        deduplicates=True,
        unread_success=frozenset({"empty_2xx", "object_2xx"}),
        refusals=(400, 401, 403),  # a 404 says that it is gone: the aim, and perhaps an earlier attempt's work
        lookup_operation="schedules.get",
    ),
)
