"""Decides which part of Zendesk's ticketing API exists here; each path with and without `.json`."""

from __future__ import annotations

from collections.abc import Mapping

from counterfoil.sandbox import zendesk_tickets as tickets
from counterfoil.sandbox.store import Store
from counterfoil.sandbox.wire import Handler, Provider, Reply, Request, Route
from counterfoil.sandbox.zendesk_errors import error_body, refuse
from counterfoil.sandbox.zendesk_idempotency import ZendeskIdempotency


def _me(_store: Store, _request: Request) -> Reply:
    return Reply(200, {"user": {"id": 7001, "name": "Sandbox", "role": "agent"}})


def _not_found(_store: Store, _request: Request) -> Reply:
    raise refuse(404, "Not found", code="InvalidEndpoint")


def _limits(_reply: Reply) -> Mapping[str, str]:
    return {"X-Rate-Limit": "700", "X-Rate-Limit-Remaining": "699"}


def _at(method: str, path: str, operation: str, handler: Handler) -> Route:
    return Route(method, f"/api/v2/{path}" + r"{json:(\.json)?}", operation, handler)


ZENDESK = Provider(
    name="zendesk",
    error=error_body,
    decorate=_limits,
    idempotency=ZendeskIdempotency(),
    routes=(
        _at("GET", "users/me", "users.me", _me),
        _at("POST", "tickets", "tickets.create", tickets.create),
        _at("GET", "tickets", "tickets.list", tickets.list_tickets),
        _at("GET", "tickets/{id:[0-9]+}", "tickets.retrieve", tickets.retrieve),
        _at("PUT", "tickets/{id:[0-9]+}", "tickets.update", tickets.update),
        _at("GET", "tickets/{id:[0-9]+}/audits", "tickets.audits", tickets.list_audits),
        _at("GET", "tickets/{id:[0-9]+}/comments", "tickets.comments", tickets.list_comments),
        Route("*", "/{tail:.*}", "unknown", _not_found),
    ),
)
