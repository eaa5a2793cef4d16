"""Decides what a provider's handler sees of a request, and how it answers: plain values, no HTTP library."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol
from urllib.parse import parse_qsl

from counterfoil.sandbox.store import Store

Json = dict[str, Any]
"""A JSON object of a provider's wire format. `Any`: these documents are the provider's, checked by its own client."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """One request, read completely. Header names are lower case; `account` separates the objects of two API keys."""

    operation: str
    method: str
    path: str
    match: Mapping[str, str] = field(default_factory=dict)
    query: Json = field(default_factory=dict)
    body: Json = field(default_factory=dict)
    headers: Mapping[str, str] = field(default_factory=dict)
    account: str = ""


@dataclass(frozen=True, slots=True)
class Reply:
    """An answer. `body` is sent as JSON; bytes are sent as they are; None sends no body."""

    status: int
    body: Json | list[Json] | bytes | None = None
    headers: Mapping[str, str] = field(default_factory=dict)

    def encoded(self) -> bytes:
        if self.body is None:
            return b""
        return self.body if isinstance(self.body, bytes) else json.dumps(self.body).encode()


class Refused(Exception):
    """A handler's refusal, raised before it has written anything; `executed` says that an idempotency store keeps it."""

    def __init__(self, reply: Reply, *, executed: bool = False) -> None:
        super().__init__(f"HTTP {reply.status}")
        self.reply = reply
        self.executed = executed


class ProviderRefused(ValueError):
    """A place names no provider that can be mounted; the message says what is wrong."""


Handler = Callable[[Store, Request], Reply]


@dataclass(frozen=True, slots=True)
class Route:
    """`operation` is the name that faults select by, such as `payment_intents.create`; `path` may hold `{names}`."""

    method: str
    path: str
    operation: str
    handler: Handler
    reads: bool = False
    """Changes nothing, whatever its HTTP method: faults of readings concern it."""
    choose: Callable[[bytes], str] | None = None
    """Which operation of those `behind` this path a request's body asks for: it is read before a fault is chosen."""
    behind: tuple[Route, ...] = ()

    @property
    def operations(self) -> tuple[Route, ...]:
        """Itself, or every operation behind its path."""
        return self.behind or (self,)

    def chosen(self, body: bytes) -> Route:
        """The operation that this body asks for."""
        assert self.choose is not None
        wanted = self.choose(body)
        return next(route for route in self.behind if route.operation == wanted)


class IdempotencyLayer(Protocol):
    """Stands before the handlers: answers a repeat itself, and keeps what was answered first."""

    def begin(self, store: Store, request: Request) -> Reply | None:
        """The answer when the handler must not run; None = run it, the key is now in flight."""
        ...

    def finish(self, store: Store, request: Request, reply: Reply, *, executed: bool) -> None:
        """Keeps or frees the key; in the same transaction as the handler's writes."""
        ...


ErrorBody = Callable[[int, str, str], Json]
"""Builds an error in the provider's own shape from status, code and message."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Provider:
    """One provider: where it is mounted (`/<name>`), what it serves, how it reads bodies and shapes errors."""

    name: str
    routes: tuple[Route, ...]
    error: ErrorBody
    encoding: Literal["form", "json", "by_type"] = "json"
    """`by_type`: a form or JSON, as each request's Content-Type says."""
    admit: Callable[[Request], Reply | None] = lambda _request: None
    decorate: Callable[[Reply], Mapping[str, str]] = lambda _reply: {}
    idempotency: IdempotencyLayer | None = None


def nested(pairs: Iterable[tuple[str, str]]) -> Json:
    """`metadata[k]=v` and `created[gte]=1` as nested objects; `expand[]=a` and `expand[0]=a` become `{"0": "a"}`."""
    result: Json = {}
    for name, value in pairs:
        head, _, rest = name.partition("[")
        parts = [head, *(rest.removesuffix("]").split("][") if rest else [])]
        node = result
        for part in parts[:-1]:
            below = node.setdefault(part, {})
            if not isinstance(below, dict):
                raise ValueError(f"{head} is both a value and an object")
            node = below
        node[parts[-1] or str(len(node))] = value
    return result


def parse_body(encoding: str, raw: bytes) -> Json:
    """The request's body as an object; ValueError where it is none."""
    if not raw:
        return {}
    if encoding == "form":
        return nested(parse_qsl(raw.decode(), keep_blank_values=True))
    parsed = json.loads(raw)
    if not isinstance(parsed, dict):
        raise ValueError("the body must be a JSON object")
    return parsed
