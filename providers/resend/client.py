"""Decides how Resend is called: one request an attempt, with our key as its own, and the same bytes each time. Workers only.

`requests` is used and not Resend's library: that keeps the key of the account in a global of its module, so that two
accounts of one process would send as each other, and it turns every failure of the connection into one error (2.52.0).
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from http.cookiejar import DefaultCookiePolicy

import requests

from counterfoil.providers.contract import Call
from counterfoil.providers.frame import found_or_unknown, judged_send
from counterfoil.providers.oneshot import OneShot
from counterfoil.providers.outcomes import Absent, Finding, NotSent, Outcome, Reading, Unknown, Unreadable
from counterfoil.providers.resend.config import ResendConfig
from counterfoil.providers.resend.outcomes import KEY_TAG, answered, fetched, is_id
from counterfoil.providers.transport import classify_exception, retry_after_of

_TOOLS = ("resend_send", "resend_correction")


class ResendAdapter:
    """Sends through one Resend account. Used by one thread at a time, in the process that made it."""

    def __init__(self, config: ResendConfig) -> None:
        self._config = config
        self._mails = f"{config.base_url.rstrip('/')}/emails"
        self._transport = OneShot()
        self._session = requests.Session()
        self._session.headers.clear()
        self._session.headers.update({"User-Agent": "counterfoil", "Authorization": f"Bearer {config.api_key}"})
        self._session.cookies.set_policy(DefaultCookiePolicy(allowed_domains=()))
        self._transport.mount_on(self._session)

    def send(self, call: Call, *, timeout_s: float) -> Outcome:
        """Makes the one request of this attempt."""
        if call.tool not in _TOOLS:
            return NotSent("unknown_tool")
        with self._transport.attempt(timeout_s=timeout_s, writes_max=1) as transport:
            return judged_send(lambda: self._send(call), classify_exception, wrote=lambda: transport.wrote)

    def lookup(self, calls: Sequence[Call], *, timeout_s: float) -> Mapping[str, Finding]:
        """Resend lists no mail by a key; within a day the repeat of the key tells."""
        del timeout_s
        return {call.action_id: Unknown("no_lookup") for call in calls}

    def fetch(self, call: Call, receipt: str, *, timeout_s: float) -> Finding:
        """Reads the mail of that id, and checks our tag on it. An API key that may only send cannot read."""
        if not is_id(receipt):
            return Absent()
        with self._transport.attempt(timeout_s=timeout_s, writes_max=0):
            return found_or_unknown(lambda: self._fetch(call, receipt))

    def version(self, call: Call, *, timeout_s: float) -> Reading:
        """A mail changes nothing that has a version."""
        del call, timeout_s
        return Unreadable("no_version")

    def _send(self, call: Call) -> Outcome:
        body = body_of(call, self._config.sender)
        headers = {"Content-Type": "application/json", "Idempotency-Key": call.key}
        reply = self._session.post(self._mails, data=body, headers=headers, allow_redirects=False)
        wait_s = retry_after_of(reply.headers, cap_s=self._config.retry_after_cap_s)
        return answered(reply.status_code, reply.content, wait_s=wait_s)

    def _fetch(self, call: Call, receipt: str) -> Finding:
        reply = self._session.get(f"{self._mails}/{receipt}", allow_redirects=False)
        return fetched(call, receipt, reply.status_code, reply.content)


def body_of(call: Call, sender: str) -> bytes:
    """The mail as Resend takes it, in ASCII. ValueError without a key: a mail without one could be sent twice."""
    if not call.key:
        raise ValueError("a mail needs its key")
    mail = {
        "from": sender,
        "to": [call.arguments["to"]],
        "subject": call.arguments["subject"],
        "text": call.arguments["body"],
        "headers": {"Auto-Submitted": "auto-generated"},  # so that no absence notice answers it
        "tags": [{"name": KEY_TAG, "value": call.key}],
    }
    return json.dumps(mail, separators=(",", ":")).encode("ascii")
