"""What the suite does at Linear."""

from __future__ import annotations

from tests.conformance.subjects.subject import Subject

from counterfoil.providers.contract import Adapter
from counterfoil.providers.linear.client import LinearAdapter
from counterfoil.providers.linear.config import LinearConfig
from counterfoil.sandbox.client import Sandbox


def adapter(sandbox: Sandbox) -> Adapter:
    return LinearAdapter(LinearConfig(api_key="lin_api_sandbox", base_url=sandbox.linear.url, read_lag_s=0))


SUBJECTS = (
    Subject(
        name="linear_create",
        arguments={"team": "SUP", "title": "Reship 1182", "order_id": "1182", "description": "Parcel lost."},
        target="1182",
        provider="linear",
        adapter=adapter,
        operation="issues.create",
        effect="issue",
        deduplicates=True,
        lookup_operation="issues.list",
        secrets=("lin_api_sandbox",),
    ),
    Subject(
        name="linear_comment",
        arguments={"issue": "SUP-1", "body": "Parcel lost."},
        target="SUP-1",
        provider="linear",
        adapter=adapter,
        operation="comments.create",
        effect="comment",
        after="linear_create",
        deduplicates=True,
        lookup_operation="comments.list",
    ),
    Subject(
        name="linear_close",
        arguments={"order_id": "1182", "reason": "Opened by mistake."},
        target="1182",
        provider="linear",
        adapter=adapter,
        operation="issues.update",
        effect="issue_cancellation",
        after="linear_create",
        deduplicates=True,
        lookup_operation="issues.get",
    ),
    Subject(
        name="linear_delete_comment",
        arguments={"issue": "SUP-1"},
        target="SUP-1",
        provider="linear",
        adapter=adapter,
        operation="comments.delete",
        effect="comment_deletion",
        after="linear_comment",
        deduplicates=True,
        lookup_operation="issues.get",
    ),
)
