"""Decides which part of AWS exists here: EventBridge Scheduler, for whoever signs; signatures are not verified."""

from __future__ import annotations

import re

from counterfoil.sandbox import aws_schedules as schedules
from counterfoil.sandbox.aws_errors import error_body
from counterfoil.sandbox.store import Store
from counterfoil.sandbox.wire import Provider, Reply, Request, Route

_SIGNED = re.compile(
    r"AWS4-HMAC-SHA256 Credential=[^/, ]+/\d{8}/[a-z0-9-]+/scheduler/aws4_request, SignedHeaders=[a-z0-9;-]*host[a-z0-9;-]*,"
    r" Signature=[0-9a-f]{64}"
)


def _admit(request: Request) -> Reply | None:
    """Any key is valid; two keys are two accounts. A request has to be signed, with whatever secret."""
    if _SIGNED.fullmatch(request.headers.get("authorization", "")) and "x-amz-date" in request.headers:
        return None
    return Reply(403, error_body(403, "MissingAuthenticationTokenException", "Missing Authentication Token"))


def _not_found(_store: Store, _request: Request) -> Reply:
    return Reply(404, error_body(404, "UnknownOperationException", "No such operation"))


AWS = Provider(
    name="aws",
    error=error_body,
    admit=_admit,
    routes=(
        Route("POST", "/schedules/{name}", "schedules.create", schedules.create),
        Route("GET", "/schedules/{name}", "schedules.get", schedules.get),
        Route("DELETE", "/schedules/{name}", "schedules.delete", schedules.delete),
        Route("*", "/{tail:.*}", "unknown", _not_found),
    ),
)
