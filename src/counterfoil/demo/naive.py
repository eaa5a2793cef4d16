"""Decides how the demo's other agent works: as many do, with a cache by arguments and a transcript to roll back by.

Real clients, configured as they come out of the box: a random idempotency key for each call, and an error for whatever is
no success. Nothing in here is a mistake that a review would find.
"""

from __future__ import annotations

import hashlib
import json
import os
import uuid
from collections.abc import Sequence
from typing import Any

import requests
import stripe
from jira import JIRA, JIRAError

from counterfoil.demo.agent import tell
from counterfoil.demo.script import SUCCEEDED, Answer, Arguments, Entry

TIMEOUT_S = 5.0
CUSTOMER_MAIL = "customer-1182@shop.example"
APOLOGY = "We charged you a re-shipping fee by mistake, and it has been refunded."
"""Written long before, for the day when it is needed."""


class NaiveHarness:
    """Deduplicates by a hash of the arguments; believes what the transcript says."""

    def __init__(self, entries: Sequence[Entry]) -> None:
        world = os.environ["COUNTERFOIL_SANDBOX_URL"]
        self._world = world
        self._entries = entries
        self._cache = {_hash(e.tool, e.arguments): e.result for e in entries if e.status == SUCCEEDED}
        self._jira: Any = JIRA(f"{world}/jira", basic_auth=("bot@shop.example", "sandbox"), get_server_info=False)
        self._stripe: Any = stripe.StripeClient("sk_test_sandbox", base_addresses={"api": f"{world}/stripe"})

    def call(self, tool: str, arguments: Arguments) -> Answer:
        digest = _hash(tool, arguments)
        if digest in self._cache:
            tell("cached", tool=tool)
            return SUCCEEDED, self._cache[digest]
        try:
            result = self._send(tool, arguments)
        except JIRAError as error:
            return "error", f"HTTP {error.status_code}"
        except stripe.StripeError as error:
            return "error", f"HTTP {error.http_status}"
        except requests.HTTPError as error:
            return "error", f"HTTP {error.response.status_code}"
        self._cache[digest] = result
        return SUCCEEDED, result

    def unwind(self, reason: str) -> None:
        """Closes every ticket and refunds every charge of the transcript, and apologises for the charges."""
        done = [(e.tool, e.result) for e in self._entries if e.status == SUCCEEDED and isinstance(e.result, dict)]
        for tool, result in done:
            if tool == "jira_create":
                self._close(result["id"])
            elif tool == "stripe_charge":
                tell("undo", does="refunds the charge", id=result["id"])
                self._stripe.v1.refunds.create({"payment_intent": result["id"]})
        if any(tool == "stripe_charge" for tool, _ in done):
            tell("undo", does="sends the apology that was written for this")
            self._post("mail", {"to": CUSTOMER_MAIL, "subject": "Your order 1182", "text": APOLOGY})
        tell("undone", status=SUCCEEDED, code="rolled back, for all that the transcript knows")

    def _close(self, issue: str) -> None:
        tell("undo", does="closes the ticket", id=issue)
        try:
            self._jira.transition_issue(issue, "Done")
        except JIRAError:
            tell("believed", text=f"{issue} is closed already, counted as done: the cache's echo")

    def _send(self, tool: str, arguments: Arguments) -> dict[str, object]:
        match tool:
            case "search_orders":
                return {**arguments, "customer": "cus_1182", "status": "lost in transit"}
            case "jira_create":
                project, issue_type = {"key": arguments["project"]}, {"name": "Task"}
                fields = {"project": project, "issuetype": issue_type, "summary": arguments["summary"]}
                return {"id": self._jira.create_issue(fields).key}
            case "stripe_charge":
                return {"id": self._charge(arguments)}
            case _:
                return self._post("warehouse/reship", {"order_id": arguments["order_id"]})

    def _charge(self, arguments: Arguments) -> str:
        params = {
            "amount": arguments["amount_minor"],
            "currency": arguments["currency"],
            "customer": arguments["customer"],
            "payment_method": "pm_card_visa",
            "confirm": True,
        }
        return str(self._stripe.v1.payment_intents.create(params).id)

    def _post(self, path: str, body: Arguments) -> dict[str, object]:
        headers = {"Idempotency-Key": str(uuid.uuid4())}
        reply = requests.post(f"{self._world}/{path}", json=body, headers=headers, timeout=TIMEOUT_S)
        reply.raise_for_status()
        answer: dict[str, object] = reply.json()
        return answer


def _hash(tool: str, arguments: Arguments) -> str:
    return hashlib.sha256(json.dumps([tool, arguments], sort_keys=True).encode()).hexdigest()
