"""Drafts at the mail service as a resource with versions, for tests about what is stale."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import psycopg
import requests

from counterfoil import tool
from counterfoil.testing import World


class Mail:
    """Drafts at the mail service, which people edit there; the tools send them. A sent draft has another version, too."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.url = f"{world.sandbox.mail.url}/drafts"
        self.before_send: Callable[[], object] = lambda: None
        """Happens in the worker after all of its guards, before the request leaves."""
        self.read: Callable[[str], int] = self._read
        """How the tools read a draft's version."""

        def version(draft: str) -> int:
            return self.read(draft)

        def sent(key: str) -> list[dict[str, object]]:
            reply = requests.get(world.sandbox.mail.url, params={"key": key}, timeout=1, allow_redirects=False)
            reply.raise_for_status()
            messages: list[dict[str, object]] = reply.json()["messages"]
            return messages

        made: dict[str, Any] = {"cls": "irreversible", "provider": "mail", "effect": "mail", "target": "draft"}
        made |= {"once_per": None, "audience": ["customer"], "landing_max_s": 2.0, "resource_version": version}

        @tool(**made, lookup=sent)
        def send_looked_up(draft: str, *, key: str) -> dict[str, object]:
            """Found by its key, not answered by it."""
            return self._send(draft, key, {})

        @tool(**made, native_key_ttl_s=3600)
        def send_keyed(draft: str, *, key: str) -> dict[str, object]:
            """Answered by its key alone: the resend is the look-up."""
            return self._send(draft, key, {})

        @tool(**made, lookup=sent, native_key_ttl_s=3600)
        def send_if_match(draft: str, *, key: str, expected_version: str | None) -> dict[str, object]:
            """The service compares the version itself."""
            return self._send(draft, key, {"If-Match": str(expected_version)})

        @tool(**made, lookup=sent, approval="never")
        def send_at_once(draft: str, *, key: str) -> dict[str, object]:
            """Asks nobody."""
            return self._send(draft, key, {})

        self.tools = (send_looked_up, send_keyed, send_if_match, send_at_once)

    def draft(self) -> str:
        reply = requests.post(self.url, json={"to": "ann@example.test", "body": "Words."}, timeout=3)
        reply.raise_for_status()
        return str(reply.json()["id"])

    def edit(self, draft: str) -> None:
        """Somebody in the mail program."""
        requests.put(f"{self.url}/{draft}", json={"body": "Other words."}, timeout=3).raise_for_status()

    def _read(self, draft: str) -> int:
        reply = requests.get(f"{self.url}/{draft}", timeout=1, allow_redirects=False)
        reply.raise_for_status()
        number: int = reply.json()["version"]
        return number

    def requests(self, operation: str) -> int:
        """How many of one kind have reached the service."""
        return len(self.world.sandbox.requests("mail", operation))

    def messages(self) -> list[dict[str, Any]]:
        """What customers have, as it was sent."""
        reply = requests.get(self.world.sandbox.mail.url, timeout=3)
        reply.raise_for_status()
        messages: list[dict[str, Any]] = reply.json()["messages"]
        return messages

    @property
    def sent(self) -> int:
        """Messages that customers have."""
        return self.world.sandbox.count("customer_messages")

    def _send(self, draft: str, key: str, more: dict[str, str]) -> dict[str, object]:
        self.before_send()
        headers = {"Idempotency-Key": key, **more}
        reply = requests.post(f"{self.url}/{draft}/send", headers=headers, timeout=1, allow_redirects=False)
        reply.raise_for_status()
        answer: dict[str, object] = reply.json()
        return answer


def approve_newest(operator_url: str) -> str:
    """Alice approves the newest proposal, over what it says now; what the door answers."""
    with psycopg.connect(operator_url) as connection:
        row = connection.execute(
            "SELECT d.answer FROM (SELECT proposal_id FROM counterfoil.proposal ORDER BY created_at DESC LIMIT 1) AS p,"
            " LATERAL counterfoil.decide(p.proposal_id, 'approved', counterfoil.proposal_digest(p.proposal_id),"
            " 'alice', 'cli') AS d"
        ).fetchone()
    assert row is not None
    return str(row[0])
