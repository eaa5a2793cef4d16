"""What the tests of Twilio share: calls, messages that others made, and pages of them."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any
from urllib.parse import parse_qs

import requests
from tests.conformance.subjects.twilio import SEND_AT, TEXT, TO

from counterfoil.providers.contract import Call, Of
from counterfoil.providers.outcomes import (
    Finding,
    Json,
    Outcome,
    Succeeded,
)
from counterfoil.providers.twilio.client import TwilioAdapter
from counterfoil.sandbox.client import Sandbox

TIMEOUT_S = 3.0
CREATE, UPDATE, LIST, GET = "messages.create", "messages.update", "messages.list", "messages.retrieve"


def call_of(tool: str = "sms_send", number: int = 1, arguments: Mapping[str, Json] = TEXT, **more: Any) -> Call:
    return Call(
        action_id=f"act_{number}",
        tenant="acme",
        account="main",
        tool=tool,
        key=f"{number:032x}"[::-1],
        arguments=arguments,
        target=str(arguments["to"]),
        **{"first_sent_at": datetime.now(UTC), **more},
    )


def schedule(number: int = 1, send_at: str = SEND_AT, **more: Any) -> Call:
    return call_of("sms_schedule", number, {**TEXT, "send_at": send_at}, **more)


def cancel_of(call: Call, receipt: str | None, number: int = 9) -> Call:
    of = Of(action_id=call.action_id, tool=call.tool, key=call.key, receipt=receipt, arguments=call.arguments)
    return call_of("sms_cancel", number, {"to": TO}, of=of)


def at(moment: datetime) -> str:
    return moment.strftime("%Y-%m-%dT%H:%M:%SZ")


def send(twilio: TwilioAdapter, call: Call) -> Outcome:
    return twilio.send(call, timeout_s=TIMEOUT_S)


def sent(twilio: TwilioAdapter, call: Call) -> str:
    outcome = send(twilio, call)
    assert isinstance(outcome, Succeeded), outcome
    return outcome.id


def find(twilio: TwilioAdapter, call: Call) -> Finding:
    return twilio.lookup([call], timeout_s=TIMEOUT_S)[call.action_id]


def planted(sandbox: Sandbox, body: str, to: str = TO) -> str:
    """A message that somebody else made in the same account; its id."""
    reply = requests.post(
        f"{sandbox.twilio.url}/2010-04-01/Accounts/AC_1/Messages.json",
        data={"To": to, "From": "+15550000001", "Body": body},
        auth=("AC_1", "sandbox"),
        timeout=3,
    )
    reply.raise_for_status()
    return str(reply.json()["sid"])


def listed(**more: Any) -> dict[str, Any]:
    """A page of Twilio's list with one message."""
    message = {
        "sid": f"SM{'0' * 32}",
        "status": "delivered",
        "to": TO,
        "body": TEXT["body"],
        "date_created": "Mon, 30 Nov 2026 00:00:00 +0000",
    }
    return {"messages": [{**message, **more}], "next_page_uri": None}


def form_of(sandbox: Sandbox, operation: str = CREATE) -> list[dict[str, str]]:
    bodies = [request.body or "" for request in sandbox.twilio.requests(operation)]
    return [{name: values[0] for name, values in parse_qs(body).items()} for body in bodies]
