"""How the tests of Slack's adapter call it, ask it, and do by hand what somebody else might."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from typing import Any

import requests

from counterfoil.providers.contract import Call, Of
from counterfoil.providers.outcomes import Finding, Found, Json, Succeeded, Uncertain
from counterfoil.providers.registry import Registry
from counterfoil.providers.slack.client import SlackAdapter
from counterfoil.providers.slack.config import SlackConfig
from counterfoil.sandbox.client import Sandbox

TOOLS = Registry.load(["counterfoil.providers.slack.tools"])
TIMEOUT_S = 5.0
CHANNEL, TOKEN = "C0123456789", "xoxb-s3cret"
POST: dict[str, Json] = {"channel": CHANNEL, "text": "Parcel 1182 was <lost> & found"}
POST_MESSAGE, SCHEDULE, DELETE = "chat.postMessage", "chat.scheduleMessage", "chat.deleteScheduledMessage"
HISTORY, LIST = "conversations.history", "chat.scheduledMessages.list"


def adapter_of(sandbox: Sandbox, token: str = TOKEN, read_lag_s: float = 0) -> SlackAdapter:
    return SlackAdapter(SlackConfig(base_url=f"{sandbox.slack.url}/api/", token=token, read_lag_s=read_lag_s))


def call_of(sandbox: Sandbox, name: str, number: int, arguments: Mapping[str, Json], of: Of | None = None) -> Call:
    return Call(
        action_id=f"act_{number}",
        tenant="acme",
        account="main",
        tool=name,
        key=f"{number:032x}",
        arguments=TOOLS.get(name).validate(arguments),
        target=CHANNEL,
        first_sent_at=datetime.fromtimestamp(sandbox.now(), UTC),
        of=of,
    )


def post_call(sandbox: Sandbox, number: int = 1, **more: Json) -> Call:
    return call_of(sandbox, "slack_post", number, POST | more)


def schedule_call(sandbox: Sandbox, number: int = 1, *, in_s: float = 3600, **more: Json) -> Call:
    at = datetime.fromtimestamp(sandbox.now(), UTC) + timedelta(seconds=in_s)
    return call_of(sandbox, "slack_schedule", number, POST | {"post_at": f"{at:%Y-%m-%dT%H:%M:%SZ}"} | more)


def unschedule_call(sandbox: Sandbox, schedule: Call, receipt: str | None, number: int = 9) -> Call:
    of = Of(
        action_id=schedule.action_id,
        tool=schedule.tool,
        key=schedule.key,
        receipt=receipt,
        arguments=schedule.arguments,
    )
    return call_of(sandbox, "slack_unschedule", number, {"channel": CHANNEL}, of)


def sent(adapter: SlackAdapter, call: Call) -> str:
    outcome = adapter.send(call, timeout_s=TIMEOUT_S)
    assert isinstance(outcome, Succeeded), outcome
    return outcome.id


def find(adapter: SlackAdapter, call: Call) -> Finding:
    return adapter.lookup([call], timeout_s=TIMEOUT_S)[call.action_id]


def found(adapter: SlackAdapter, call: Call) -> Succeeded:
    finding = find(adapter, call)
    assert isinstance(finding, Found), finding
    assert isinstance(finding.outcome, Succeeded), finding
    assert finding.as_intended
    return finding.outcome


def by_hand(sandbox: Sandbox, method: str, token: str = "xoxb-somebody-else", **fields: Any) -> dict[str, Any]:
    """Somebody else's call, or one of ours beside the adapter."""
    headers = {"Authorization": f"Bearer {token}"}
    reply = requests.post(f"{sandbox.slack.url}/api/{method}", json=fields, headers=headers, timeout=5)
    answer: dict[str, Any] = reply.json()
    assert answer["ok"], answer
    return answer


def ours(number: int, target: str = CHANNEL) -> dict[str, Any]:
    payload = {"counterfoil_key": f"{number:032x}", "counterfoil_target": target}
    return {"event_type": "counterfoil_action", "event_payload": payload}


def doubtful(adapter: SlackAdapter, call: Call, code: str) -> None:
    """Found, and nobody's to settle but a person's."""
    finding = find(adapter, call)
    assert isinstance(finding, Found), finding
    assert (finding.as_intended, finding.outcome) == (False, Uncertain(code))
