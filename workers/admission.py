"""Decides which actions of a batch may be tried now, by what the whole fleet has spent at their provider.

The interface; the script and the process's own share follow.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Literal, Protocol
from uuid import uuid4

from counterfoil.ledger.claims import WaitingAction

Reason = Literal["breaker", "concurrency", "rate", "budget", "ratio", "store_away"]
"""Why an action has to wait."""


class Kind(StrEnum):
    """What a try would cost."""

    FIRST = "first"
    AFTER_TIMEOUT = "after_timeout"
    AFTER_THROTTLE = "after_throttle"


class Result(StrEnum):
    """What came of an admitted action, as far as the provider's health goes."""

    OK = "ok"
    REFUSED = "refused"
    """A definite answer that is no success: the provider is well."""
    TIMEOUT = "timeout"
    """Anything uncertain: no answer, a 5xx, a reset."""
    THROTTLE = "throttle"
    NOT_SENT = "not_sent"
    UNUSED = "unused"
    """Nothing was tried."""


@dataclass(frozen=True, slots=True)
class Refusal:
    """Why not now, and for how long at least."""

    reason: Reason
    wait_s: float


@dataclass(slots=True, kw_only=True)
class Ticket:
    """What one batch was allowed, until it is closed."""

    provider: str
    ticket_id: str = field(default_factory=lambda: uuid4().hex)
    admitted: list[WaitingAction] = field(default_factory=list)
    refused: list[tuple[WaitingAction, Refusal]] = field(default_factory=list)
    unreported: dict[str, tuple[WaitingAction, Result]] = field(default_factory=dict)
    """By action id, what is still to be told."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Granted:
    """Requests of look-ups that may be made now; `wait_s` until more are."""

    requests: int
    wait_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Gate:
    """What of a provider's queue is worth publishing now."""

    open_in_s: float = 0.0
    """Until then nothing; 0 = now."""
    firsts: int
    """First attempts that may go."""
    retries: int
    """Retries that may go besides."""
    known: bool = True
    """False: the store is away, so only first attempts go."""


class Admission(Protocol):
    """Used by one thread at a time."""

    def admit(self, provider: str, batch: Sequence[WaitingAction], *, lease_s: float) -> Ticket:
        """What of the batch may be tried now. The ticket holds one of the provider's calls in flight for `lease_s`, or
        until it is closed."""
        ...

    def report(self, ticket: Ticket, action: WaitingAction, result: Result) -> bool:
        """What came of it. False: the breaker has opened, so nothing more of the batch should be tried."""
        ...

    def close(self, ticket: Ticket) -> None:
        """The batch is done; what was not reported was not tried."""
        ...

    def look_ups(self, provider: str, wanted: int) -> Granted:
        """Takes up to `wanted` requests of look-ups from the provider's own rate for them."""
        ...

    def found(self, provider: str, effects: int) -> None:
        """Look-ups have found so many effects of attempts that had timed out: their cost is returned."""
        ...

    def gate(self, provider: str) -> Gate:
        """What is worth publishing; takes nothing."""
        ...


class Unlimited:
    """Admits everything: for tests in one process, where nothing but the ledger's own limits is of interest."""

    def admit(self, provider: str, batch: Sequence[WaitingAction], *, lease_s: float) -> Ticket:
        return Ticket(provider=provider, admitted=list(batch))

    def report(self, ticket: Ticket, action: WaitingAction, result: Result) -> bool:
        return True

    def close(self, ticket: Ticket) -> None:
        pass

    def look_ups(self, provider: str, wanted: int) -> Granted:
        return Granted(requests=wanted, wait_s=0)

    def found(self, provider: str, effects: int) -> None:
        pass

    def gate(self, provider: str) -> Gate:
        return Gate(firsts=1_000_000, retries=1_000_000)


def kind_of(action: WaitingAction) -> Kind:
    """What trying it now would be, by the row."""
    if action.state == "retryable_failure":
        return Kind.AFTER_THROTTLE
    if action.attempt_count > 0 or action.in_doubt:
        return Kind.AFTER_TIMEOUT
    return Kind.AFTER_THROTTLE if action.not_sent_count > 0 else Kind.FIRST
