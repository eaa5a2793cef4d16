"""What the suite does at Zendesk."""

from __future__ import annotations

from tests.conformance.subjects.subject import Subject

from counterfoil.providers.contract import Adapter
from counterfoil.providers.zendesk.client import ZendeskAdapter
from counterfoil.providers.zendesk.config import ZendeskConfig
from counterfoil.sandbox.client import Sandbox


def adapter(sandbox: Sandbox) -> Adapter:
    return ZendeskAdapter(ZendeskConfig(server=sandbox.zendesk.url, email="bot@example.test", token="sandbox"))


SUBJECTS = (
    Subject(
        name="zendesk_create",
        arguments={"subject": "Reship 1182", "body": "Parcel lost.", "order_id": "1182"},
        target="1182",
        provider="zendesk",
        adapter=adapter,
        operation="tickets.create",
        effect="ticket",
        deduplicates=True,
        lookup_operation="tickets.list",
        other={"body": "The parcel is lost."},
    ),
    Subject(
        name="zendesk_note",
        arguments={"ticket": "1", "body": "Parcel lost."},
        target="1",
        provider="zendesk",
        adapter=adapter,
        operation="tickets.update",
        effect="note",
        after="zendesk_create",
        lookup_operation="tickets.audits",
    ),
    Subject(
        name="zendesk_reply",
        arguments={"ticket": "1", "body": "We send you another."},
        target="1",
        provider="zendesk",
        adapter=adapter,
        operation="tickets.update",
        effect="customer_mail",
        after="zendesk_create",
        lookup_operation="tickets.audits",
    ),
    Subject(
        name="zendesk_solve",
        arguments={"order_id": "1182"},
        target="1182",
        provider="zendesk",
        adapter=adapter,
        operation="tickets.update",
        effect="solution",
        after="zendesk_create",
        deduplicates=True,
        lookup_operation="tickets.retrieve",
    ),
)
