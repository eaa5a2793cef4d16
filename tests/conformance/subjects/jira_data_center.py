"""What the suite does at Jira Data Center."""

from __future__ import annotations

from tests.conformance.subjects.subject import NO_BODY, Subject

from counterfoil.providers.contract import Adapter
from counterfoil.providers.jira import tools
from counterfoil.providers.jira.client import JiraAdapter
from counterfoil.providers.jira.config import JiraConfig
from counterfoil.sandbox.client import Sandbox

DATA_CENTER = {"jira_deployment": "data_center"}


def adapter(sandbox: Sandbox) -> Adapter:
    return JiraAdapter(JiraConfig(server=sandbox.jira.url, token="pat", deployment="data_center"))


SUBJECTS = (
    Subject(
        name="jira_create_data_center",
        tool=tools.jira_create,
        arguments={"project": "SUP", "summary": "Reship 1182", "order_id": "1182"},
        provider="jira",
        world=DATA_CENTER,
        adapter=adapter,
        operation="issue.create",
        effect="ticket",
        lookup_operation="search_by_offset",
    ),
    Subject(
        name="jira_comment_data_center",
        tool=tools.jira_comment,
        arguments={"issue": "SUP-1", "body": "Parcel lost."},
        provider="jira",
        world=DATA_CENTER,
        adapter=adapter,
        operation="issue.comment",
        effect="comment",
        after="jira_create_data_center",
        lookup_operation="issue.comments",
    ),
    Subject(
        name="jira_close_data_center",
        tool=tools.jira_close,
        arguments={"order_id": "1182"},
        provider="jira",
        world=DATA_CENTER,
        adapter=adapter,
        operation="issue.transition",
        effect="transition",
        after="jira_create_data_center",
        deduplicates=True,
        unread_success=NO_BODY,
        lookup_operation="issue.get",
    ),
)
