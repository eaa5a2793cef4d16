"""What tests of drafts call, and as whom: one draft, what takes it back, what sends it, at the sandbox's mailbox."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

from counterfoil.providers.contract import Call, Of
from counterfoil.providers.email.client import EmailAdapter
from counterfoil.providers.email.config import EmailConfig, ImapConfig, imap_of, server_of
from counterfoil.providers.outcomes import Finding, Outcome, Reading
from counterfoil.providers.registry import Registry
from counterfoil.sandbox.client import Sandbox

TOOLS = Registry.load(["counterfoil.providers.email.tools"])
TIMEOUT_S, SLOW_TIMEOUT_S = 5.0, 0.3
LATE_TIMEOUT_S = 1.0
"""Long enough for a busy machine to come to the write, for what hangs after it."""
KEY, OTHER_KEY, SEND_KEY, DISCARD_KEY = "d1" * 16, "d2" * 16, "d3" * 16, "d4" * 16
RECEIPT = f"<cf-{KEY}@example.org>"
MAIL: dict[str, Any] = {
    "to": "jo@example.com",
    "subject": "Grüße, your order",
    "body": "It is on its way.\n\n\ttab = sign, 你好\n.\nEnd",
    "reference": "1182",
}
LOST = ("drop", "rst", "stall", "garbage")


def call_of(tool: str = "email_draft", *, key: str = KEY, of: Of | None = None, **changes: Any) -> Call:
    spec = TOOLS.get(tool)
    given = {name: value for name, value in MAIL.items() if name in spec.arguments.names}
    return Call(
        action_id=f"act_{key}",
        tenant="acme",
        account="default",
        tool=tool,
        key=key,
        arguments=spec.validate(given | changes),
        target="jo@example.com",
        first_sent_at=datetime(2026, 11, 30, 10, 0, tzinfo=UTC),
        of=of,
    )


def of_draft(call: Call | None = None) -> Of:
    call = call or call_of()
    receipt = f"<cf-{call.key}@example.org>"
    return Of(action_id=call.action_id, tool=call.tool, key=call.key, receipt=receipt, arguments=call.arguments)


def discarding(call: Call | None = None) -> Call:
    return call_of("email_discard", key=DISCARD_KEY, of=of_draft(call))


def sending(**changes: Any) -> Call:
    return call_of("email_send_draft", key=SEND_KEY, of=of_draft(), **changes)


def config_of(sandbox: Sandbox, **changes: Any) -> EmailConfig:
    host, port, tls = server_of(sandbox.smtp.url, is_loopback=True)
    imap_host, imap_port, imap_tls = imap_of(sandbox.imap.url, is_loopback=True)
    imap = ImapConfig(host=imap_host, port=imap_port, tls=imap_tls, username="shop", password="sandbox")
    own = {name.removeprefix("imap_"): changes.pop(name) for name in list(changes) if name.startswith("imap_")}
    config = EmailConfig(host=host, port=port, tls=tls, sender="shop@example.org", username="shop", password="sandbox")
    return replace(config, imap=replace(imap, **own), **changes)


class Drafting:
    """One mailbox and mail server; each call through an adapter of its own, whose config may differ."""

    def __init__(self, sandbox: Sandbox) -> None:
        self.sandbox = sandbox

    def send(self, call: Call | None = None, *, timeout_s: float = TIMEOUT_S, **changes: Any) -> Outcome:
        """One attempt."""
        return EmailAdapter(config_of(self.sandbox, **changes)).send(call or call_of(), timeout_s=timeout_s)

    def find(self, call: Call | None = None, *, timeout_s: float = TIMEOUT_S, **changes: Any) -> Finding:
        call = call or call_of()
        adapter = EmailAdapter(config_of(self.sandbox, **changes))
        return adapter.lookup([call], timeout_s=timeout_s)[call.action_id]

    def read(self, call: Call | None = None, *, timeout_s: float = TIMEOUT_S, **changes: Any) -> Reading:
        """The version of the draft that is to be sent."""
        return EmailAdapter(config_of(self.sandbox, **changes)).version(call or sending(), timeout_s=timeout_s)

    def count(self, name: str) -> int:
        return self.sandbox.count(name)
