"""Decides what is remembered of each request on the wire: the log that tests read to count attempts, not effects."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

_SECRET = frozenset({"authorization", "proxy-authorization", "cookie", "x-amz-security-token"})
_KEPT_MAX = 10_000


@dataclass(slots=True, kw_only=True)
class Attempt:
    """One request. `status` is what was sent; None = none (yet). `executed` counts how often the handler ran for it."""

    seq: int
    arrived: float
    provider: str
    operation: str
    method: str
    path: str
    query: str
    headers: dict[str, str]
    body: str | None = None
    status: int | None = None
    fault: str | None = None
    executed: int = 0


@dataclass(slots=True)
class Attempts:
    """The newest attempts in order of arrival; in memory, so a killed sandbox forgets them (but no effect)."""

    kept: deque[Attempt] = field(default_factory=lambda: deque(maxlen=_KEPT_MAX))
    count: int = 0

    def arrived(self, *, headers: Mapping[str, str], **known: Any) -> Attempt:
        self.count += 1
        shown = {name.lower(): value for name, value in headers.items() if name.lower() not in _SECRET}
        attempt = Attempt(seq=self.count, headers=shown, **known)
        self.kept.append(attempt)
        return attempt

    def to_json(self) -> list[dict[str, Any]]:
        return [asdict(attempt) for attempt in self.kept]

    def clear(self) -> None:
        self.kept.clear()
        self.count = 0
