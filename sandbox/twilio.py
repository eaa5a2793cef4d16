"""Decides which part of Twilio's API exists here: the messages of an account."""

from __future__ import annotations

from counterfoil.sandbox import twilio_messages as messages
from counterfoil.sandbox.store import Store
from counterfoil.sandbox.twilio_errors import error_body, refuse
from counterfoil.sandbox.wire import Provider, Reply, Request, Route

_ACCOUNT = "/2010-04-01/Accounts/{account}"


def _not_found(_store: Store, _request: Request) -> Reply:
    raise refuse(404, 20404, "The requested resource was not found")


def _admit(request: Request) -> Reply | None:
    """Any login is valid; two logins are two accounts."""
    scheme, _, login = request.headers.get("authorization", "").partition(" ")
    return None if scheme == "Basic" and login else Reply(401, error_body(401, "", "Authenticate"))


TWILIO = Provider(
    name="twilio",
    encoding="form",
    error=error_body,
    admit=_admit,
    routes=(
        Route("POST", f"{_ACCOUNT}/Messages.json", "messages.create", messages.create),
        Route("GET", f"{_ACCOUNT}/Messages.json", "messages.list", messages.list_messages),
        Route("GET", f"{_ACCOUNT}/Messages/{{sid}}.json", "messages.retrieve", messages.retrieve),
        Route("POST", f"{_ACCOUNT}/Messages/{{sid}}.json", "messages.update", messages.update),
        Route("*", "/{tail:.*}", "unknown", _not_found),
    ),
)
