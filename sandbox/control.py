"""Decides what tests may ask of the world and do to it: the control API under `/_sandbox/`.

Nobody's client speaks to it; `client.Sandbox` does.
"""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

from aiohttp import web

from counterfoil.sandbox.faults import Rule
from counterfoil.sandbox.gateway import Gateway
from counterfoil.sandbox.imap import NAME as IMAP
from counterfoil.sandbox.imap import ImapServer
from counterfoil.sandbox.imap_faults import ImapRule
from counterfoil.sandbox.imap_mailbox import count_open as count_imap
from counterfoil.sandbox.jira_issues import count_open
from counterfoil.sandbox.mail import count_drafts
from counterfoil.sandbox.smtp import EFFECT as SMTP_EFFECT
from counterfoil.sandbox.smtp import NAME as SMTP
from counterfoil.sandbox.smtp import SmtpServer
from counterfoil.sandbox.smtp_faults import SmtpRule
from counterfoil.sandbox.store import Store
from counterfoil.sandbox.webhooks import Webhooks
from counterfoil.sandbox.wire import Provider

_COUNTED = {
    "charges": ("stripe", "charge"),
    "authorizations": ("stripe", "authorization"),
    "cancellations": ("stripe", "cancellation"),
    "refunds": ("stripe", "refund"),
    "tickets_created": ("jira", "ticket"),
    "tickets_deleted": ("jira", "ticket_deletion"),
    "transitions": ("jira", "transition"),
    "comments": ("jira", "comment"),
    "comments_deleted": ("jira", "comment_deletion"),
    "zendesk_tickets": ("zendesk", "ticket"),
    "zendesk_notes": ("zendesk", "note"),
    "zendesk_replies": ("zendesk", "reply"),
    "zendesk_mails": ("zendesk", "customer_mail"),
    "zendesk_solved": ("zendesk", "solution"),
    "linear_issues": ("linear", "issue"),
    "linear_canceled": ("linear", "issue_cancellation"),
    "linear_comments": ("linear", "comment"),
    "linear_comments_deleted": ("linear", "comment_deletion"),
    "drafts_created": ("mail", "draft"),
    "drafts_deleted": ("mail", "draft_deletion"),
    "customer_messages": ("mail", "customer_message"),
    "emails": (SMTP, SMTP_EFFECT),
    "imap_drafts": (IMAP, "draft"),
    "imap_drafts_deleted": (IMAP, "draft_deletion"),
    "resend_emails": ("resend", "email"),
    "sms": ("twilio", "sms"),
    "sms_scheduled": ("twilio", "sms_scheduled"),
    "sms_cancelled": ("twilio", "sms_cancellation"),
    "slack_messages": ("slack", "message"),
    "slack_scheduled": ("slack", "scheduled_message"),
    "slack_unscheduled": ("slack", "scheduled_deletion"),
    "schedules": ("aws", "schedule"),
    "schedules_deleted": ("aws", "schedule_deletion"),
    "schedule_calls": ("aws", "schedule_call"),
    "shipments": ("warehouse", "shipment"),
    "shipments_cancelled": ("warehouse", "shipment_cancellation"),
}


def counts(store: Store) -> dict[str, int]:
    """Durable effects by name. A charge counts when money moved: on success, or on capture of a hold."""
    have = store.count_effects()
    standing = {"tickets_open": count_open(store), "drafts_open": count_drafts(store)}
    standing |= {"imap_drafts_open": count_imap(store)}
    return {name: have.get(kind, 0) for name, kind in _COUNTED.items()} | standing


class Control:
    """The control API over one gateway, its store and the providers behind it."""

    def __init__(self, gateway: Gateway, providers: Sequence[Provider], smtp: SmtpServer, imap: ImapServer) -> None:
        self.gateway, self.store, self.providers = gateway, gateway.store, providers
        self.smtp, self.imap = smtp, imap
        self.webhooks = Webhooks(gateway.store)

    def add_to(self, app: web.Application) -> None:
        get, post, router = app.router.add_get, app.router.add_post, app.router
        get("/_sandbox/", self._state)
        get("/_sandbox/login", _login)
        get("/_sandbox/faults", self._faults)
        post("/_sandbox/faults", _answering(self._add_fault))
        router.add_delete("/_sandbox/faults", self._clear_faults)
        post("/_sandbox/clock", _answering(self._advance))
        post("/_sandbox/config", _answering(self._configure))
        get("/_sandbox/effects", self._effects)
        get("/_sandbox/counts", self._counts)
        get("/_sandbox/requests", self._requests)
        get("/_sandbox/deliveries", self._deliveries)
        post("/_sandbox/reset", _answering(self._reset))

    async def _state(self, _http: web.Request) -> web.Response:
        config = self.store.config.to_json()
        state = {"now": self.store.now(), "offset_s": self.store.clock.offset_s, "config": config}
        return web.json_response({**state, "smtp_port": self.smtp.listener.port, "imap_port": self.imap.listener.port})

    async def _faults(self, _http: web.Request) -> web.Response:
        rules: list[Rule | SmtpRule | ImapRule] = [*self.gateway.rules.rules, *self.smtp.rules.rules]
        rules += self.imap.rules.rules
        return web.json_response({"faults": [rule.to_json() for rule in rules]})

    def _add_fault(self, posted: dict[str, Any]) -> dict[str, Any]:
        if posted.get("provider") == SMTP:
            smtp_rule = SmtpRule.from_json(posted)
            self.smtp.rules.rules.append(smtp_rule)
            return smtp_rule.to_json()
        if posted.get("provider") == IMAP:
            imap_rule = ImapRule.from_json(posted)
            self.imap.rules.rules.append(imap_rule)
            return imap_rule.to_json()
        rule = Rule.from_json(posted)
        known = [(p.name, operation) for p in self.providers for route in p.routes for operation in route.operations]
        if not any(rule.selects(provider, operation) for provider, operation in known):
            own = {(provider, operation) for provider, operation in known if provider == rule.provider} or set(known)
            names = ", ".join(sorted({f"{provider} {operation.operation}" for provider, operation in own}))
            raise ValueError(f"no such operation: {rule.provider} {rule.operation}. Operations: {names}.")
        self.gateway.rules.rules.append(rule)
        return rule.to_json()

    async def _clear_faults(self, _http: web.Request) -> web.Response:
        self.gateway.rules.rules.clear()
        self.smtp.clear()
        self.imap.clear()
        return web.json_response({})

    def _advance(self, posted: dict[str, Any]) -> dict[str, Any]:
        """What became due has happened when this answers."""
        seconds = posted.get("advance_s")
        if not isinstance(seconds, int | float) or seconds < 0:
            raise ValueError("advance_s must be seconds, 0 or more: the clock never goes back.")
        self.store.advance(seconds)
        return {"now": self.store.now()}

    def _configure(self, posted: dict[str, Any]) -> dict[str, Any]:
        self.store.configure(posted)
        return self.store.config.to_json()

    async def _effects(self, http: web.Request) -> web.Response:
        wanted = {name: http.query.get(name) for name in ("kind", "key", "provider", "object_id")}
        return web.json_response({"effects": self.store.effects(**wanted)})

    async def _counts(self, _http: web.Request) -> web.Response:
        return web.json_response(counts(self.store))

    async def _requests(self, _http: web.Request) -> web.Response:
        return web.json_response({"requests": self.gateway.attempts.to_json()})

    async def _deliveries(self, _http: web.Request) -> web.Response:
        return web.json_response({"deliveries": self.webhooks.to_json()})

    def _reset(self, posted: dict[str, Any]) -> dict[str, Any]:
        self.gateway.rules.rules.clear()
        self.smtp.clear()
        self.imap.clear()
        self.gateway.attempts.clear()
        self.webhooks.clear()
        self.store.reset(keep_clock=bool(posted.get("keep_clock")))
        return {"now": self.store.now()}


async def _login(http: web.Request) -> web.Response:
    """A sign-on page that lets everybody through, back to where they came from: now as a GET."""
    raise web.HTTPFound(http.query.get("next", "/_sandbox/"))


def _answering(
    act: Callable[[dict[str, Any]], dict[str, Any]],
) -> Callable[[web.Request], Awaitable[web.Response]]:
    """An HTTP handler for an act on a JSON object; its ValueError and TypeError are the caller's 400."""

    async def handle(http: web.Request) -> web.Response:
        try:
            posted = json.loads(await http.read() or b"{}")
            if not isinstance(posted, dict):
                raise ValueError("the body must be a JSON object")
            return web.json_response(act(posted))
        except (ValueError, TypeError) as problem:
            return web.json_response({"error": str(problem)}, status=400)

    return handle
