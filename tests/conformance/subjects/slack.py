"""What the suite does at Slack."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from tests.conformance.subjects.subject import Subject

from counterfoil.providers.contract import Adapter
from counterfoil.providers.slack.client import SlackAdapter
from counterfoil.providers.slack.config import SlackConfig
from counterfoil.sandbox.client import Sandbox

CHANNEL = "C0123456789"
POST_AT = (datetime.now(UTC) + timedelta(days=30)).strftime("%Y-%m-%dT%H:%M:%SZ")


def adapter(sandbox: Sandbox) -> Adapter:
    return SlackAdapter(SlackConfig(base_url=f"{sandbox.slack.url}/api/", token="xoxb-sandbox", read_lag_s=0))


SUBJECTS = (
    Subject(
        name="slack_post",
        arguments={"channel": CHANNEL, "text": "Order 1182 & its parcel: <lost>, see https://shop.example/1182 👍"},
        target=CHANNEL,
        provider="slack",
        adapter=adapter,
        operation="chat.postMessage",
        effect="message",
        lookup_operation="conversations.history",
    ),
    Subject(
        name="slack_schedule",
        arguments={"channel": CHANNEL, "text": "The sale & more begins: https://shop.example 🎉", "post_at": POST_AT},
        target=CHANNEL,
        provider="slack",
        adapter=adapter,
        operation="chat.scheduleMessage",
        effect="scheduled_message",
        lookup_operation="chat.scheduledMessages.list",
    ),
    Subject(
        name="slack_unschedule",
        arguments={"channel": CHANNEL},
        target=CHANNEL,
        provider="slack",
        adapter=adapter,
        operation="chat.deleteScheduledMessage",
        effect="scheduled_deletion",
        after="slack_schedule",
        deduplicates=True,
        lookup_operation="chat.scheduledMessages.list",
    ),
)
