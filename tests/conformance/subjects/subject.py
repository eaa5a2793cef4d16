"""What the one suite needs to know of a tool: how to call it, and where the sandbox counts what it did."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from counterfoil.providers.contract import Adapter
from counterfoil.providers.outcomes import Json
from counterfoil.sandbox.client import Sandbox

NO_BODY = frozenset({"empty_2xx", "204", "html_2xx", "bad_json_2xx", "object_2xx", "truncate_body", "stall_body"})
"""Faults that do not hurt where a success has no body."""


@dataclass(frozen=True, kw_only=True)
class Subject:
    """One tool under test: how to call it, and where the sandbox counts what it did."""

    name: str
    arguments: Mapping[str, Json]
    target: str
    provider: str
    adapter: Callable[[Sandbox], Adapter]
    """A new client that reaches the provider's sandbox; with `Sandbox("http://127.0.0.1:9")`, where nobody listens."""
    operation: str
    effect: str
    after: str | None = None
    """The subject that must have happened first: what this call's `of` is."""
    deduplicates: bool = False
    """A request delivered twice is one effect: the provider knows our key, or the move is no longer offered."""
    unread_success: frozenset[str] = field(default_factory=frozenset)
    """Faults that do not hurt, because the success has no body."""
    lookup_operation: str = ""
    """What the look-up asks; "" = there is none, and only a repeat of the key tells."""

    def __str__(self) -> str:
        return self.name
