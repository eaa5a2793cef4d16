"""Decides what is kept of what goes over the wire: each request as it left the client, and the sandbox's answer to it."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import unquote, urlsplit

import pytest

from counterfoil.providers.oneshot import OneShot


@dataclass(frozen=True, kw_only=True)
class Exchange:
    """A request as it left the client, and the sandbox's answer to it."""

    method: str
    path: str
    query: str
    headers: Mapping[str, str]
    body: str
    status: int
    reply: Any


def recorded(monkeypatch: pytest.MonkeyPatch) -> list[Exchange]:
    """Everything that goes over the wire from now on."""
    seen: list[Exchange] = []
    send = OneShot.send

    def spy(self: OneShot, request: Any, *args: Any, **more: Any) -> Any:
        answer = send(self, request, *args, **more)
        address = urlsplit(request.url)
        body = request.body.decode() if isinstance(request.body, bytes) else request.body or ""
        seen.append(
            Exchange(
                method=request.method,
                path=address.path.partition("/")[2].partition("/")[2],
                query=address.query,
                headers={name.lower(): value for name, value in request.headers.items()},
                body=body,
                status=answer.status_code,
                reply=answer.json() if answer.content else None,
            )
        )
        return answer

    monkeypatch.setattr(OneShot, "send", spy)
    return seen


def operation_in(exchange: Exchange, known: Mapping[str, object], *, base: str = "") -> str:
    """The description's name for what was asked: the method, and the path with `{}` for each id."""
    path = exchange.path.removeprefix(base.strip("/") + "/").removesuffix(".json")
    for name in sorted(known, key=lambda name: name.count("{}")):
        method, _, template = name.partition(" ")
        if method == exchange.method and re.fullmatch(re.escape(template).replace(r"\{\}", "[^/]+"), unquote(path)):
            return name
    raise AssertionError(f"no description of {exchange.method} {path}")
