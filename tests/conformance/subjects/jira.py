"""What the suite does at Jira."""

from __future__ import annotations

from tests.conformance.subjects.subject import NO_BODY, Subject

from counterfoil.providers.contract import Adapter
from counterfoil.providers.jira.client import JiraAdapter
from counterfoil.providers.jira.config import JiraConfig
from counterfoil.sandbox.client import Sandbox


def adapter(sandbox: Sandbox) -> Adapter:
    return JiraAdapter(
        JiraConfig(server=sandbox.jira.url, email="bot@example.test", token="sandbox", staging_transition="51")
    )


SUBJECTS = (
    Subject(
        name="jira_create",
        arguments={"project": "SUP", "summary": "Reship 1182", "order_id": "1182"},
        target="1182",
        provider="jira",
        adapter=adapter,
        operation="issue.create",
        effect="ticket",
        lookup_operation="search",
    ),
    Subject(
        name="jira_stage",
        arguments={"project": "SUP", "summary": "Reship 1182", "order_id": "1182"},
        target="1182",
        provider="jira",
        adapter=adapter,
        operation="issue.create",
        effect="ticket",
        lookup_operation="search",
    ),
    Subject(
        name="jira_open",
        arguments={"order_id": "1182"},
        target="1182",
        provider="jira",
        adapter=adapter,
        operation="issue.transition",
        effect="transition",
        after="jira_stage",
        deduplicates=True,
        unread_success=NO_BODY,
        lookup_operation="issue.get",
    ),
    Subject(
        name="jira_comment",
        arguments={"issue": "SUP-1", "body": "Parcel lost."},
        target="SUP-1",
        provider="jira",
        adapter=adapter,
        operation="issue.comment",
        effect="comment",
        after="jira_create",
        lookup_operation="issue.comments",
    ),
    Subject(
        name="jira_delete_comment",
        arguments={"issue": "SUP-1"},
        target="SUP-1",
        provider="jira",
        adapter=adapter,
        operation="issue.comment.delete",
        effect="comment_deletion",
        after="jira_comment",
        deduplicates=True,
        unread_success=NO_BODY,
        refusals=(400, 401, 403),  # 404: it is gone already, by whomever
        lookup_operation="issue.comments",
    ),
    Subject(
        name="jira_close",
        arguments={"order_id": "1182"},
        target="1182",
        provider="jira",
        adapter=adapter,
        operation="issue.transition",
        effect="transition",
        after="jira_create",
        deduplicates=True,
        unread_success=NO_BODY,
        lookup_operation="issue.get",
    ),
)
