"""What others do where Counterfoil shares its limits: a retry budget in each process by itself, or none at all."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from typing import Protocol


class Budget(Protocol):
    """One process's own rule about retries. Times in seconds."""

    def first(self, now: float) -> None:
        """A first attempt goes out."""
        ...

    def may_retry(self, now: float, *, after_timeout: bool) -> bool:
        """Whether a retry may go out now; takes its cost if so."""
        ...

    def succeeded(self, *, cost: float) -> None:
        """An attempt succeeded; `cost` is what it had taken, 0 for a first attempt."""
        ...

    def cost(self, *, after_timeout: bool) -> float:
        """What a retry takes."""
        ...


class Nothing:
    """Every failure is tried again after its backoff."""

    def first(self, now: float) -> None:
        pass

    def may_retry(self, now: float, *, after_timeout: bool) -> bool:
        return True

    def succeeded(self, *, cost: float) -> None:
        pass

    def cost(self, *, after_timeout: bool) -> float:
        return 0.0


@dataclass(slots=True)
class Finagle:
    """Finagle's RetryBudget with its defaults: a fifth of the requests of the last ten seconds, and ten a second besides."""

    percent: float = 0.2
    min_per_s: float = 10.0
    ttl_s: float = 10.0
    _moves: deque[tuple[float, float]] = field(default_factory=deque)
    _sum: float = 0.0

    def first(self, now: float) -> None:
        self._move(now, 1.0)

    def may_retry(self, now: float, *, after_timeout: bool) -> bool:
        self._expire(now)
        price = 1.0 / self.percent
        if self.min_per_s * self.ttl_s * price + self._sum < price:
            return False
        self._move(now, -price)
        return True

    def succeeded(self, *, cost: float) -> None:
        pass

    def cost(self, *, after_timeout: bool) -> float:
        return 1.0

    def _move(self, now: float, amount: float) -> None:
        self._moves.append((now, amount))
        self._sum += amount

    def _expire(self, now: float) -> None:
        while self._moves and self._moves[0][0] <= now - self.ttl_s:
            self._sum -= self._moves.popleft()[1]


@dataclass(slots=True)
class AwsStandard:
    """The AWS SDKs' standard mode: 500 tokens a client, 5 for a retry, 10 after a timeout; a success returns them, or one."""

    tokens: float = 500.0

    def first(self, now: float) -> None:
        pass

    def may_retry(self, now: float, *, after_timeout: bool) -> bool:
        price = self.cost(after_timeout=after_timeout)
        if self.tokens < price:
            return False
        self.tokens -= price
        return True

    def succeeded(self, *, cost: float) -> None:
        self.tokens = min(500.0, self.tokens + (cost or 1.0))

    def cost(self, *, after_timeout: bool) -> float:
        return 10.0 if after_timeout else 5.0
