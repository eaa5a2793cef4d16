"""Decides how Twilio is called and asked: one write an attempt, our reference in its text; look-ups by that reference.

Twilio has no key for messages: a repeated request is a second text. So what is not known is looked for in the list of all
texts that the number ever got, and by nothing but the reference.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from counterfoil.providers.contract import OTHER_KEY, Call
from counterfoil.providers.frame import each_found, judged_send
from counterfoil.providers.oneshot import OneShot
from counterfoil.providers.outcomes import (
    Absent,
    Finding,
    NotSent,
    Outcome,
    Reading,
    Rejected,
    Succeeded,
    Uncertain,
    Unknown,
    Unreadable,
)
from counterfoil.providers.twilio.config import TwilioConfig
from counterfoil.providers.twilio.outcomes import (
    SID,
    Reply,
    cancellation_finding,
    error_outcome,
    lead_refusal,
    message_finding,
    message_outcome,
    reference_of,
    sid_of,
    status_of,
    text_of,
)
from counterfoil.providers.twilio.reads import Incomplete, TwilioReads, open_client


class TwilioAdapter:
    """Calls one Twilio account. Used by one thread at a time, in the process that made it."""

    def __init__(self, config: TwilioConfig) -> None:
        self._config = config
        self._transport = OneShot()
        self._client, self._http = open_client(config, self._transport)
        self._reads = TwilioReads(self._client, self._http)

    def send(self, call: Call, *, timeout_s: float) -> Outcome:
        """Makes the one write of this attempt, after the reads that a cancellation needs."""
        with self._transport.attempt(timeout_s=timeout_s, writes_max=1) as transport:
            return judged_send(
                lambda: self._send(call),
                lambda exc: error_outcome(exc, self._http.reply, retry_after_cap_s=self._config.retry_after_cap_s),
                wrote=lambda: transport.wrote,
                name=self._name,
            )

    def lookup(self, calls: Sequence[Call], *, timeout_s: float) -> Mapping[str, Finding]:
        """The list of what each number got, or the message that was to be cancelled; what fails is Unknown."""
        with self._transport.attempt(timeout_s=timeout_s, writes_max=0, request_s=self._config.timeout_s):
            return each_found(calls, self._find, name=self._name)

    def fetch(self, call: Call, receipt: str, *, timeout_s: float) -> Finding | None:
        """Reads the message of that id, and checks our reference in it; None where texts are sent without one."""
        if not self._config.reference and call.tool != "sms_cancel":
            return None
        if not SID.fullmatch(receipt):
            return Absent()
        with self._transport.attempt(timeout_s=timeout_s, writes_max=0, request_s=self._config.timeout_s):
            try:
                message = self._reads.message(receipt)
                if call.tool == "sms_cancel":
                    return cancellation_finding(message, call) if receipt == self._about(call) else Unknown(OTHER_KEY)
                ours = str(message["body"]).endswith(reference_of(call.key))
                return message_finding([message], call) if ours else Unknown(OTHER_KEY)
            except Exception as exc:  # noqa: BLE001 - a failed reading says nothing, but for Twilio's own 404
                reply = self._http.reply
                error = error_outcome(exc, reply, retry_after_cap_s=0.0)
                missing = reply is not None and reply.status == 404 and isinstance(error, Rejected)
                return Absent() if missing else Unknown(self._name(exc))

    def version(self, call: Call, *, timeout_s: float) -> Reading:
        """A message changes nothing that has a version."""
        del call, timeout_s
        return Unreadable("no_version")

    def _send(self, call: Call) -> Outcome:
        match call.tool:
            case "sms_send" | "sms_correction":
                return self._create(call, self._sender())
            case "sms_schedule":
                return self._schedule(call)
            case "sms_cancel":
                return self._cancel(call)
            case _:
                return NotSent("unknown_tool")

    def _sender(self) -> dict[str, str]:
        config = self._config
        if config.messaging_service:
            return {"messaging_service_sid": config.messaging_service}
        return {"from_": config.sender} if config.sender else {}

    def _schedule(self, call: Call) -> Outcome:
        refusal = lead_refusal(call)
        if refusal is not None:
            return refusal
        if not self._config.messaging_service:  # Twilio would send it at once
            return NotSent("no_messaging_service")
        when = {"schedule_type": "fixed", "send_at": str(call.arguments["send_at"])}
        return self._create(call, {**self._sender(), **when})

    def _create(self, call: Call, more: Mapping[str, str]) -> Outcome:
        if not more:
            return NotSent("no_sender")
        text = text_of(call, reference=self._config.reference)
        # Whatever the account's setting: a text in which signs were replaced is not what was approved, nor found again.
        self._client.messages.create(to=str(call.arguments["to"]), body=text, smart_encoded=False, **more)
        return self._answered(201, call, to=str(call.arguments["to"]))

    def _cancel(self, call: Call) -> Outcome:
        sid = self._about(call)
        if sid is None:
            return NotSent("of_unresolved")
        message = self._reads.message(sid)
        if status_of(message) != "scheduled":
            return message_outcome(message, call)
        self._client.messages(sid).update(status="canceled")
        return self._answered(200, call, sid=sid)

    def _answered(self, status: int, call: Call, **named: str) -> Succeeded | Rejected | Uncertain:
        """What the answer to the write says; it must be about what was named."""
        reply: Reply | None = self._http.reply
        if reply is None or reply.status != status:
            code = "no_answer" if reply is None else f"http_{reply.status}"
            return Uncertain(code, evidence=code)
        message: Any = reply.body()
        if sid_of(message) is None or any(message.get(name) != value for name, value in named.items()):
            return Uncertain("malformed", evidence=type(message).__name__)
        return message_outcome(message, call)

    def _find(self, call: Call) -> Finding:
        if call.tool != "sms_cancel":
            if not self._config.reference:
                return Unknown("no_reference")
            return message_finding(self._reads.messages_to(str(call.arguments["to"])), call)
        sid = self._about(call)
        return Unknown("of_unresolved") if sid is None else cancellation_finding(self._reads.message(sid), call)

    def _about(self, call: Call) -> str | None:
        """The message to cancel: the receipt of the action undone, else the one text with its reference."""
        if call.of is None:
            return None
        if call.of.receipt:
            return call.of.receipt if SID.fullmatch(call.of.receipt) else None
        ending = reference_of(call.of.key)
        sent = self._reads.messages_to(str(call.of.arguments["to"]))
        found = [sid_of(message) for message in sent if str(message["body"]).endswith(ending)]
        return found[0] if len(found) == 1 else None

    def _name(self, exc: Exception) -> str:
        """A short name for a failed call: the status of its answer, where that is what failed."""
        reply = self._http.reply
        is_answer = reply is not None and reply.status != 200 and not isinstance(exc, Incomplete)
        return f"http_{reply.status}" if is_answer and reply is not None else type(exc).__name__
