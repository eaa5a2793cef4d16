"""Decides which part of Linear's API exists here: one path, where a document's first field says what is asked."""

from __future__ import annotations

from collections.abc import Mapping
from email.utils import formatdate

from counterfoil.sandbox import linear_issues as issues
from counterfoil.sandbox.linear_errors import error_body
from counterfoil.sandbox.store import Store
from counterfoil.sandbox.wire import Provider, Reply, Request, Route

_READS = {
    "issue": "issues.get",
    "issues": "issues.list",
    "comments": "comments.list",
    "teams": "teams.list",
    "viewer": "viewer",
}
_WRITES = {
    "issueCreate": "issues.create",
    "issueUpdate": "issues.update",
    "issueArchive": "issues.archive",
    "issueDelete": "issues.delete",
    "commentCreate": "comments.create",
    "commentDelete": "comments.delete",
}
_OTHER = "other"
"""What is no document at all, or asks for nothing that exists here."""
_PATH = "/graphql"


def _answer(store: Store, request: Request) -> Reply:
    """Every answer says what time it is here, which the tests move."""
    from counterfoil.sandbox import linear_graphql  # see its first lines: not at the sandbox's start

    reply = linear_graphql.answer(request.body, issues.resolvers(store, request.account))
    return Reply(reply.status, reply.body, {"Date": formatdate(store.now(), usegmt=True)})


def _operation(raw: bytes) -> str:
    from counterfoil.sandbox import linear_graphql

    return {**_READS, **_WRITES}.get(linear_graphql.root_field(raw) or "", _OTHER)


def _not_found(_store: Store, _request: Request) -> Reply:
    return Reply(404, b"Not found", {"Content-Type": "text/plain"})


def _admit(request: Request) -> Reply | None:
    if request.headers.get("authorization"):
        return None
    return Reply(401, error_body(401, "AUTHENTICATION_ERROR", "Authentication required, not authenticated"))


def _limits(_reply: Reply) -> Mapping[str, str]:
    return {"X-RateLimit-Requests-Limit": "2500", "X-RateLimit-Requests-Remaining": "2499"}


LINEAR = Provider(
    name="linear",
    error=error_body,
    admit=_admit,
    decorate=_limits,
    routes=(
        Route(
            "POST",
            _PATH,
            "graphql",
            _answer,
            choose=_operation,
            behind=(
                *(Route("POST", _PATH, operation, _answer, reads=True) for operation in _READS.values()),
                *(Route("POST", _PATH, operation, _answer) for operation in (*_WRITES.values(), _OTHER)),
            ),
        ),
        Route("*", "/{tail:.*}", "unknown", _not_found),
    ),
)
