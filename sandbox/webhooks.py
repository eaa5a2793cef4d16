"""Decides how providers tell of what happened: events by HTTP to an address on this machine, signed as the real ones are.

A delivery is made once, whatever it is answered. What the settings say may befall it: `delay_s`, `duplicate` (how often each
is sent), `reorder` (two at a time, the second first), `drop`. `store` announces what was committed, and nothing else.
"""

from __future__ import annotations

import asyncio
import base64
import hashlib
import hmac
import json
import secrets
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime

import aiohttp

from counterfoil.sandbox.config import Endpoint
from counterfoil.sandbox.jira_issues import COMMENT, by_name
from counterfoil.sandbox.store import Announced, Store
from counterfoil.sandbox.wire import Json
from counterfoil.sandbox.zendesk_tickets import TICKET

_TIMEOUT_S = 10.0
_UNDER_WAY_MAX = 1000
_KEPT_MAX = 10_000
_HELD_S = 1.0
"""How long `reorder` waits for a second event."""


@dataclass(slots=True, kw_only=True)
class Delivery:
    """One event on its way. `sent` is virtual; `outcome` is the status, or why there is none; None = not sent yet."""

    seq: int
    provider: str
    type: str
    sent: float | None = None
    outcome: int | str | None = None


class Webhooks:
    """Sends what the store announces to the endpoints of the settings; everything on the event loop, nothing waits for it."""

    def __init__(self, store: Store) -> None:
        self.store = store
        self.deliveries: deque[Delivery] = deque(maxlen=_KEPT_MAX)
        self._count = 0
        self._held: dict[str, list[Json]] = {}
        self._under_way: set[asyncio.Task[None]] = set()
        self._session: aiohttp.ClientSession | None = None
        store.announce_to = self.tell

    def tell(self, announced: Sequence[Announced]) -> None:
        """Takes what one transaction has done."""
        for provider, what in announced:
            endpoint, describe = self.store.config.webhooks.get(provider), _EVENTS.get(provider)
            event = describe(self.store, what) if endpoint is not None and describe is not None else None
            if endpoint is None or event is None:
                continue
            if endpoint.drop:
                self._planned(provider, event).outcome = "dropped"
            elif endpoint.reorder:
                self._hold(provider, event)
            else:
                self._plan(provider, endpoint, event)

    def to_json(self) -> list[Json]:
        return [asdict(delivery) for delivery in self.deliveries]

    def clear(self) -> None:
        self.deliveries.clear()
        self._held.clear()

    async def close(self) -> None:
        for task in list(self._under_way):
            task.cancel()
        if self._session is not None:
            await self._session.close()

    def _hold(self, provider: str, event: Json) -> None:
        held = self._held.setdefault(provider, [])
        held.append(event)
        if len(held) > 1:
            self._release(provider)
        else:
            self.store.clock.call_at(self.store.now() + _HELD_S, lambda: self._release(provider))

    def _release(self, provider: str) -> None:
        endpoint = self.store.config.webhooks.get(provider)
        for event in reversed(self._held.pop(provider, [])):
            if endpoint is not None:
                self._plan(provider, endpoint, event)

    def _plan(self, provider: str, endpoint: Endpoint, event: Json) -> None:
        for _ in range(endpoint.duplicate):
            delivery = self._planned(provider, event)
            if endpoint.delay_s == 0:
                self._send(delivery, endpoint, event)
            else:
                self._send_later(delivery, endpoint, event)

    def _planned(self, provider: str, event: Json) -> Delivery:
        self._count += 1
        name = event.get("type") or event.get("webhookEvent") or ""
        self.deliveries.append(Delivery(seq=self._count, provider=provider, type=str(name)))
        return self.deliveries[-1]

    def _send_later(self, delivery: Delivery, endpoint: Endpoint, event: Json) -> None:
        generation = self.store.generation

        def due() -> None:
            if self.store.generation == generation:
                self._send(delivery, endpoint, event)

        self.store.clock.call_at(self.store.now() + endpoint.delay_s, due)

    def _send(self, delivery: Delivery, endpoint: Endpoint, event: Json) -> None:
        delivery.sent = self.store.now()
        if len(self._under_way) >= _UNDER_WAY_MAX:
            delivery.outcome = "too many under way"
            return
        body = json.dumps(event).encode()
        headers = {"Content-Type": "application/json"} | sign(delivery.provider, endpoint.secret, body, delivery.sent)
        task = asyncio.create_task(self._post(delivery, endpoint.url, headers, body))
        self._under_way.add(task)
        task.add_done_callback(self._under_way.discard)

    async def _post(self, delivery: Delivery, url: str, headers: Mapping[str, str], body: bytes) -> None:
        if self._session is None:
            self._session = aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=_TIMEOUT_S), trust_env=False)
        try:
            async with self._session.post(url, data=body, headers=headers, allow_redirects=False) as answer:
                delivery.outcome = answer.status
        except (aiohttp.ClientError, TimeoutError) as failed:
            delivery.outcome = type(failed).__name__


def sign(provider: str, secret: str, body: bytes, now: float) -> dict[str, str]:
    """The headers that the provider signs a delivery at `now` with."""

    def digest(message: bytes) -> bytes:
        return hmac.new(secret.encode(), message, hashlib.sha256).digest()

    match provider:
        case "stripe":
            seconds = str(int(now))
            return {"Stripe-Signature": f"t={seconds},v1={digest(seconds.encode() + b'.' + body).hex()}"}
        case "zendesk":
            when = _iso(now)
            signature = base64.b64encode(digest(when.encode() + body)).decode()
            return {"X-Zendesk-Webhook-Signature": signature, "X-Zendesk-Webhook-Signature-Timestamp": when}
        case _:
            return {"X-Hub-Signature": f"sha256={digest(body).hex()}"}


def _stripe(_store: Store, what: Json) -> Json | None:
    return what if what.get("object") == "event" else None


_JIRA = {
    "ticket": "jira:issue_created",
    "transition": "jira:issue_updated",
    "ticket_deletion": "jira:issue_deleted",
    "comment": "comment_created",
    "comment_deletion": "comment_deleted",
}
"""By kind of effect."""


def _jira(store: Store, what: Json) -> Json | None:
    """The issue with its labels; no properties, as Jira sends none unless told to."""
    name = _JIRA.get(what["kind"])
    if name is None:
        return None
    event: Json = {"timestamp": int(store.now() * 1000), "webhookEvent": name}
    key = what["data"].get("issue", what["object_id"])
    if name.startswith("comment"):
        comment = store.get(COMMENT, what["object_id"]) or {}
        event["comment"] = {"id": what["object_id"], "body": comment.get("body")}
    issue = by_name(store, key) or {"id": None, "fields": {}}
    fields = {name: issue["fields"].get(name) for name in ("summary", "labels")}
    return event | {"issue": {"id": issue["id"], "key": key, "fields": fields}}


_ZENDESK = {
    "ticket": "ticket.created",
    "note": "ticket.comment_added",
    "reply": "ticket.comment_added",
    "solution": "ticket.status_changed",
}


def _zendesk(store: Store, what: Json) -> Json | None:
    name = _ZENDESK.get(what["kind"])
    ticket = store.get(TICKET, what["data"].get("ticket", what["object_id"])) if name else None
    if ticket is None:
        return None
    detail = {name: ticket[name] for name in ("external_id", "subject", "status", "updated_at")}
    return {
        "id": secrets.token_hex(13),
        "type": f"zen:event-type:{name}",
        "subject": f"zen:ticket:{ticket['id']}",
        "time": _iso(store.now()),
        "zendesk_event_version": "2022-11-06",
        "detail": detail | {"id": str(ticket["id"])},
        "event": {},
    }


def _iso(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


_EVENTS: Mapping[str, Callable[[Store, Json], Json | None]] = {"stripe": _stripe, "jira": _jira, "zendesk": _zendesk}
"""What a provider sends of what was announced; None: nothing."""
