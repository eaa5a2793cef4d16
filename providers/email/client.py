"""Decides how mail is sent and drafted: through one mail server, and the mailbox beside it; one change an attempt."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import replace

from counterfoil.providers.contract import Call
from counterfoil.providers.email.config import EmailConfig
from counterfoil.providers.email.drafts import Drafts
from counterfoil.providers.email.message import bytes_of, message_id_of
from counterfoil.providers.email.smtp import deliver
from counterfoil.providers.outcomes import Finding, NotSent, Outcome, Reading, Rejected, Succeeded, Unknown, Unreadable

_LOOKED_UP = ("email_draft", "email_discard")
_OF_THE_DRAFT = ("to", "subject", "body", "reference")
"""The arguments of a draft that is sent; what a person approved is them, word for word."""


class EmailAdapter:
    """Sends through one mail server, and keeps drafts in one mailbox, by a connection of its own for each call."""

    def __init__(self, config: EmailConfig) -> None:
        self._config = config
        self._drafts = Drafts(config)

    def send(self, call: Call, *, timeout_s: float) -> Outcome:
        """One session, which ends within `timeout_s` whatever the server does; a draft that was sent is then removed."""
        match call.tool:
            case "email_discard":
                return self._drafts.discard(call, timeout_s=timeout_s)
            case "email_send_draft":
                return self._send_draft(call, timeout_s)
            case "email_draft" | "email_send" | "email_correction":
                data = self._rendered(call)
                if isinstance(data, NotSent):
                    return data
                if call.tool == "email_draft":
                    return self._drafts.put(call, data, timeout_s=timeout_s)
                return self._deliver(call, data, timeout_s)
            case _:
                return NotSent("unknown_tool")

    def lookup(self, calls: Sequence[Call], *, timeout_s: float) -> Mapping[str, Finding]:
        """The mailbox knows of drafts; a mail server cannot be asked what became of a message."""
        asked = [call for call in calls if call.tool in _LOOKED_UP]
        nobody: dict[str, Finding] = {call.action_id: Unknown("no_lookup") for call in calls if call not in asked}
        return {**nobody, **self._drafts.find(asked, timeout_s=timeout_s)} if asked else nobody

    def version(self, call: Call, *, timeout_s: float) -> Reading:
        """That of the draft that is to be sent; nothing else here has one."""
        if call.tool != "email_send_draft":
            return Unreadable("no_version")
        return self._drafts.version(call, timeout_s=timeout_s)

    def _send_draft(self, call: Call, timeout_s: float) -> Outcome:
        """Sends what was recorded for the draft, and removes it. What a reviewer has edited is another mail."""
        started, of = time.monotonic(), call.of
        if of is None:
            return NotSent("of_unresolved")
        if of.tool != "email_draft":
            return Rejected("no_draft")
        for name in _OF_THE_DRAFT:
            if call.arguments.get(name) != of.arguments.get(name):
                return Rejected("differs_from_draft", field=name)
        data = self._rendered(replace(call, arguments=of.arguments))
        if isinstance(data, NotSent):
            return data
        outcome = self._deliver(call, data, timeout_s)
        if isinstance(outcome, Succeeded):
            self._drafts.remove_sent(call, timeout_s=timeout_s - (time.monotonic() - started))
        return outcome

    def _rendered(self, call: Call) -> bytes | NotSent:
        try:
            return bytes_of(call, self._config.sender)
        except Exception as exc:  # noqa: BLE001 - there is no connection yet, whatever failed
            return NotSent(f"before_connect_{type(exc).__name__}")

    def _deliver(self, call: Call, data: bytes, timeout_s: float) -> Outcome:
        receipt = message_id_of(call.key, self._config.domain)
        return deliver(self._config, str(call.arguments["to"]), data, receipt=receipt, timeout_s=timeout_s)
