"""Decides how tests and the demo speak to the control API: a small synchronous client, standard library only."""

from __future__ import annotations

import json
import urllib.error
import urllib.request
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlencode

_TIMEOUT_S = 30.0


@dataclass(frozen=True, slots=True)
class Effect:
    """Something that has really happened at a provider. `amount` in the currency's smallest unit; `created` virtual."""

    seq: int
    provider: str
    kind: str
    key: str | None
    object_id: str
    amount: int | None
    currency: str | None
    created: float
    data: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Attempt:
    """A request that reached the sandbox, whatever became of it; header names in lower case."""

    seq: int
    arrived: float
    provider: str
    operation: str
    method: str
    path: str
    query: str
    headers: Mapping[str, str]
    body: str | None
    status: int | None
    fault: str | None
    executed: int


@dataclass(frozen=True, slots=True)
class Delivery:
    """An event that a provider sends, or was to send. `outcome` is the answer's status, or why there is none; None = none
    yet."""

    seq: int
    provider: str
    type: str
    sent: float | None
    outcome: int | str | None


class SandboxError(RuntimeError):
    """The control API refused: the message says which name or value is wrong."""


class Sandbox:
    """The control API of the sandbox at `base_url`, such as `http://127.0.0.1:8700`."""

    def __init__(self, base_url: str) -> None:
        self.base_url = base_url.rstrip("/")
        # Straight to loopback, whatever proxies the environment names.
        self._http = urllib.request.build_opener(urllib.request.ProxyHandler({}))
        self.stripe = ProviderView(self, "stripe")
        self.jira = ProviderView(self, "jira")
        self.zendesk = ProviderView(self, "zendesk")
        self.linear = ProviderView(self, "linear")
        self.warehouse = ProviderView(self, "warehouse")
        self.mail = ProviderView(self, "mail")
        self.resend = ProviderView(self, "resend")
        self.twilio = ProviderView(self, "twilio")
        self.slack = ProviderView(self, "slack")
        self.aws = ProviderView(self, "aws")
        self.smtp = SmtpView(self, "smtp")
        self.imap = ImapView(self, "imap")

    def provider(self, name: str) -> ProviderView:
        """Any provider that is mounted: one of the attributes, or a double of your own."""
        known = vars(self).get(name)
        return known if isinstance(known, ProviderView) else ProviderView(self, name)

    def fault(
        self,
        name: str,
        *,
        provider: str | None = None,
        operation: str | None = None,
        times: int | None = 1,
        **more: Any,
    ) -> None:
        """The next `times` matching requests meet this fault (None: all of them).

        `more`: method, path_re, nth, probability, seed, delay_s, status, headers, body, commit.
        """
        if "nth" in more or "probability" in more:
            times = None if times == 1 else times
        rule = {"fault": name, "provider": provider, "operation": operation, "times": times, **more}
        self._call("POST", "faults", rule)

    def clear_faults(self) -> None:
        self._call("DELETE", "faults")

    def counts(self) -> dict[str, int]:
        """Durable effects by name: charges, refunds, tickets_created, tickets_open, comments, customer_messages, …"""
        return {name: int(count) for name, count in self._call("GET", "counts").items()}

    def count(self, name: str) -> int:
        """One of `counts()`; a KeyError for any other name."""
        return self.counts()[name]

    def effects(self, kind: str | None = None, key: str | None = None, provider: str | None = None) -> list[Effect]:
        """Durable effects in order, narrowed by kind (`charge`, `ticket`, …), by the caller's key, by provider."""
        given = {"kind": kind, "key": key, "provider": provider}
        query = urlencode({name: value for name, value in given.items() if value is not None})
        return [Effect(**effect) for effect in self._call("GET", f"effects?{query}")["effects"]]

    def requests(self, provider: str | None = None, operation: str | None = None) -> list[Attempt]:
        """Every request on the wire in order of arrival: attempts, not effects."""
        attempts = [Attempt(**attempt) for attempt in self._call("GET", "requests")["requests"]]
        return [a for a in attempts if provider in (None, a.provider) and operation in (None, a.operation)]

    def deliveries(self, provider: str | None = None) -> list[Delivery]:
        """Events to the addresses of `config(webhooks=…)`, in the order in which they were planned."""
        found = [Delivery(**delivery) for delivery in self._call("GET", "deliveries")["deliveries"]]
        return [delivery for delivery in found if provider in (None, delivery.provider)]

    def now(self) -> float:
        return float(self._call("GET", "")["now"])

    def advance(self, seconds: float) -> float:
        """Moves the virtual clock on; late landings and waits that became due are done. Returns the new time."""
        return float(self._call("POST", "clock", {"advance_s": seconds})["now"])

    def config(self, **changes: Any) -> dict[str, Any]:
        """Changes settings and returns all; `search_lag_s={"stripe": 0}` and the like merge per provider."""
        return self._call("POST", "config", changes)

    def reset(self, *, keep_clock: bool = False) -> None:
        """An empty world: no objects, effects, faults, attempts; default settings; real time unless `keep_clock`."""
        self._call("POST", "reset", {"keep_clock": keep_clock})

    def _call(self, method: str, path: str, body: Mapping[str, Any] | None = None) -> dict[str, Any]:
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(f"{self.base_url}/_sandbox/{path}", data=data, method=method)
        try:
            with self._http.open(request, timeout=_TIMEOUT_S) as response:
                answer: dict[str, Any] = json.load(response)
                return answer
        except urllib.error.HTTPError as refused:
            with refused:
                raise SandboxError(refused.read().decode()) from None


@dataclass(frozen=True, slots=True)
class ProviderView:
    """The sandbox as one provider's tests see it."""

    sandbox: Sandbox
    name: str

    @property
    def url(self) -> str:
        """What to give to the provider's client as its base address."""
        return f"{self.sandbox.base_url}/{self.name}"

    def fault(self, name: str, on: str | None = None, times: int | None = 1, **more: Any) -> None:
        """`on` is an operation, such as `payment_intents.create`; None is any of this provider's."""
        self.sandbox.fault(name, provider=self.name, operation=on, times=times, **more)

    def count(self, kind: str) -> int:
        return self.sandbox.count(kind)

    def effects(self, kind: str | None = None, key: str | None = None) -> list[Effect]:
        return self.sandbox.effects(kind, key, self.name)

    def requests(self, operation: str | None = None) -> list[Attempt]:
        return self.sandbox.requests(self.name, operation)


class SmtpView(ProviderView):
    """The mail server, which has a port of its own. `on` is a phase: connect, ehlo, auth, mail, rcpt, data, body, dot."""

    @property
    def url(self) -> str:
        """What to give as `server`: smtp://127.0.0.1 and the port."""
        return f"smtp://127.0.0.1:{self.sandbox._call('GET', '')['smtp_port']}"


class ImapView(ProviderView):
    """The mailbox, which has a port of its own. `on` is a phase: connect, login, select, append, literal, appended, …"""

    @property
    def url(self) -> str:
        """What to give as `imap_server`: imap://127.0.0.1 and the port."""
        return f"imap://127.0.0.1:{self.sandbox._call('GET', '')['imap_port']}"
