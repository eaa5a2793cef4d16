"""The words of admission: what a try would cost, why it has to wait, and what came of it."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Literal

Reason = Literal["breaker", "concurrency", "rate", "budget", "ratio"]
"""Why an action has to wait: the provider fails; too many calls are in flight; too many in this second; what the fleet may
spend on retries is spent; too many calls of this minute are retries."""


class Kind(StrEnum):
    """What a try is, by what went before it."""

    FIRST = "first"
    AFTER_TIMEOUT = "after_timeout"
    """The last answer was lost, or an error that proves nothing."""
    AFTER_THROTTLE = "after_throttle"
    """The provider said "not now", or could not be connected to."""


class Result(StrEnum):
    """What came of a call, as far as the provider's health goes."""

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
class Ask:
    """One action that would be tried."""

    kind: Kind
    tenant: str
