"""An office's tools against the sandbox: tickets, charges, holds and drafts at the warehouse; mail that nothing takes back.

What is done is a shipment whose `order` says what and of whom ("charge 1182"); what takes it back cancels that shipment.
Mail goes to the mail service, which deduplicates nothing that is sent directly: a second request is a second message.
"""

from __future__ import annotations

from contextlib import closing
from typing import Any

import requests

from counterfoil import Of, Run, tool
from counterfoil.ledger.connection import Ledger
from counterfoil.people import proposals
from counterfoil.testing import World

ORDER = {"order": "1182"}
NO_ADDRESS = "nobody"
"""An order for which no letter of correction can be written."""


class Office:
    """The tools, and what they have really done."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._warehouse, self._mail = world.sandbox.warehouse.url, world.sandbox.mail.url
        self.tools = self._declared()

    def done(self) -> list[str]:
        """What was done, oldest first; each as often as it was done."""
        return [str(effect.data["order"]) for effect in self._world.sandbox.effects("shipment")]

    def undone(self) -> list[str]:
        """What was taken back, oldest first; each as often as it was taken back."""
        what = {effect.object_id: str(effect.data["order"]) for effect in self._world.sandbox.effects("shipment")}
        return [what[effect.object_id] for effect in self._world.sandbox.effects("shipment_cancellation")]

    def mail(self) -> list[str]:
        """The subjects of every message that was delivered, oldest first."""
        messages = self._ask("GET", self._mail)["messages"]
        return [str(message["subject"]) for message in reversed(messages)]

    def keys_of_mail(self) -> list[str]:
        """Under which key each message went out."""
        return [str(m["key"]) for m in reversed(self._ask("GET", self._mail)["messages"])]

    @staticmethod
    def _ask(method: str, url: str, **more: Any) -> dict[str, Any]:
        reply = requests.request(method, url, timeout=3, allow_redirects=False, **more)
        reply.raise_for_status()
        answer: dict[str, Any] = reply.json()
        return answer

    def _declared(self) -> list[Any]:
        shape: dict[str, Any] = {"target": "order", "once_per": None, "landing_max_s": 2.0}
        house: dict[str, Any] = {**shape, "provider": "warehouse"}

        def put(what: str, order: str, key: str) -> dict[str, Any]:
            return self._ask("POST", f"{self._warehouse}/shipments", json={"order": f"{what} {order}"},
                             headers={"Idempotency-Key": key})  # fmt: skip

        def cancel(of: Of, key: str) -> dict[str, Any]:
            return self._ask(
                "POST", f"{self._warehouse}/shipments/{of.receipt}/cancel", headers={"Idempotency-Key": key}
            )

        def made(key: str) -> list[dict[str, Any]]:
            found: list[dict[str, Any]] = self._ask("GET", f"{self._warehouse}/shipments", params={"key": key})[
                "shipments"
            ]
            return found

        def taken_back(of: Of) -> list[dict[str, Any]]:
            return [shipment for shipment in made(of.key) if shipment["status"] == "cancelled"]

        def mailed(key: str) -> list[dict[str, Any]]:
            found: list[dict[str, Any]] = self._ask("GET", self._mail, params={"key": key})["messages"]
            return found

        def sorry(a: Any) -> dict[str, Any]:
            to = None if a["order"] == NO_ADDRESS else f"customer-{a['order']}@example.com"
            return {"tool": "send_mail", "arguments": {"order": a["order"], "to": to, "subject": f"About {a['order']}"}}

        @tool(cls="compensatable", effect="ticket", audience=["support_team"], lookup=made, undo="take_back", **house)
        def ticket(order: str, *, key: str) -> dict[str, Any]:
            """Open a ticket."""
            return put("ticket", order, key)

        @tool(cls="compensatable", effect="charge", audience=lambda a: ["customer"] if a["receipt"] else ["finance"],
              lookup=made, undo="take_back", correction=sorry, amount="cents", **house)  # fmt: skip
        def charge(order: str, receipt: bool = False, cents: int = 500, *, key: str) -> dict[str, Any]:
            """Charge the customer's card."""
            return put("charge", order, key)

        @tool(cls="reversible", effect="charge", audience=["finance"], lookup=made, undo="take_back", **house)
        def hold(order: str, *, key: str) -> dict[str, Any]:
            """Hold money on the customer's card."""
            return put("hold", order, key)

        @tool(cls="compensatable", effect="charge", audience=["finance"], lookup=made, undo="take_back", **house)
        def capture(order: str, *, key: str, of: Of) -> dict[str, Any]:
            """Take the money that is held."""
            return put("capture", order, key)

        @tool(cls="reversible", effect="mail", audience=["agent"], lookup=made, undo="take_back", **house)
        def draft(order: str, *, key: str) -> dict[str, Any]:
            """Write a letter without sending it."""
            return put("draft", order, key)

        @tool(cls="irreversible", effect="mail", audience=["customer"], lookup=mailed, correction=sorry,
              provider="mail", approval="never", **shape)  # fmt: skip
        def send_draft(order: str, *, key: str, of: Of) -> dict[str, Any]:
            """Send the letter."""
            return self._ask("POST", self._mail, json={"to": "c@example.com", "subject": f"draft {order}",
                                                                      "key": key})  # fmt: skip

        @tool(cls="compensatable", effect="undo", audience=["finance"], lookup=taken_back, undo=None, **house)
        def take_back(order: str, *, key: str, of: Of) -> dict[str, Any]:
            """Take back what was done."""
            return cancel(of, key)

        @tool(cls="irreversible", effect="mail", audience=["customer"], lookup=mailed, correction=sorry,
              provider="mail", approval="never", **shape)  # fmt: skip
        def send_mail(order: str, to: str, subject: str, *, key: str) -> dict[str, Any]:
            """Write to a customer."""
            return self._ask("POST", self._mail, json={"to": to, "subject": subject, "key": key})

        @tool(cls="irreversible", effect="memo", audience=["agent"], lookup=mailed, provider="mail", approval="never",
              **shape)  # fmt: skip
        def memo(order: str, *, key: str) -> dict[str, Any]:
            """Write a note that nobody but the agent reads."""
            return self._ask("POST", self._mail, json={"to": "agent@example.com",
                                                                      "subject": f"memo {order}", "key": key})  # fmt: skip

        @tool(cls="irreversible", effect="post", audience=["public"], lookup=mailed, provider="mail", **shape)
        def post(order: str, *, key: str) -> dict[str, Any]:
            """Post where everybody reads it."""
            return self._ask("POST", self._mail, json={"to": "all@example.com", "subject": f"post {order}",
                                                                      "key": key})  # fmt: skip

        return [ticket, charge, hold, capture, draft, send_draft, take_back, send_mail, memo, post]


class Plan:
    """A run that has staged a hold and a draft, and proposed to capture the one and send the other."""

    def __init__(self, run: Run, world: World, operator_url: str) -> None:
        self.run, self._world, self._operator_url = run, world, operator_url
        self.hold, self.draft = self._staged("hold"), self._staged("draft")

    def _staged(self, tool: str) -> str:
        self.run.stage(tool, ORDER, wait_s=0)
        self._world.settle()
        told = self.run.stage(tool, ORDER, wait_s=0)
        assert (told.status, told.action_id is not None) == ("succeeded", True)
        return str(told.action_id)

    def propose(self) -> str:
        """The proposal's id."""
        steps = [("capture", {**ORDER, "of": self.hold}), ("send_draft", {**ORDER, "of": self.draft})]
        return self.run.propose(steps, note="customer's parcel was lost").id

    def approve(self) -> None:
        """A person decides on all of it."""
        name, registry = self.propose(), self._world.registry
        with closing(Ledger(self._operator_url)) as ledger:
            digest = proposals.show(ledger, name, registry=registry).digest
            proposals.approve(ledger, name, digest=digest, by="alice", channel="api", registry=registry)
