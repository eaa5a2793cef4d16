"""What the suite does at Twilio."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from tests.conformance.subjects.subject import Subject

from counterfoil.providers.contract import Adapter
from counterfoil.providers.twilio.client import TwilioAdapter
from counterfoil.providers.twilio.config import TwilioConfig
from counterfoil.sandbox.client import Sandbox

TO = "+15550102030"
TEXT = {"to": TO, "body": "Your parcel is on its way.", "about": "order 1182"}
SEND_AT = (datetime.now(UTC) + timedelta(days=1)).strftime("%Y-%m-%dT%H:%M:%SZ")


def adapter(sandbox: Sandbox) -> Adapter:
    return TwilioAdapter(
        TwilioConfig(account_sid="AC_1", token="sandbox", messaging_service="MG_1", base_url=sandbox.twilio.url)
    )


SUBJECTS = (
    *(
        Subject(
            name=name,
            arguments=TEXT,
            target=TO,
            provider="twilio",
            adapter=adapter,
            operation="messages.create",
            effect="sms",
            lookup_operation="messages.list",
        )
        for name in ("sms_send", "sms_correction")
    ),
    Subject(
        name="sms_schedule",
        arguments={**TEXT, "send_at": SEND_AT},
        target=TO,
        provider="twilio",
        adapter=adapter,
        operation="messages.create",
        effect="sms_scheduled",
        lookup_operation="messages.list",
    ),
    Subject(
        name="sms_cancel",
        arguments={"to": TO},
        target=TO,
        provider="twilio",
        adapter=adapter,
        operation="messages.update",
        effect="sms_cancellation",
        after="sms_schedule",
        deduplicates=True,
        lookup_operation="messages.retrieve",
    ),
)
