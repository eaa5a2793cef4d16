"""The one seam to the outside world: what a tool promises (`Contract`), what is called (`Call`), by whom (`Adapter`)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from typing import Literal, Protocol, runtime_checkable

from counterfoil.providers.outcomes import Finding, Json, Outcome, Reading


class ToolClass(StrEnum):
    """How much of an effect can be taken back; everything else about a tool follows from it."""

    PURE = "pure"
    REVERSIBLE = "reversible"
    COMPENSATABLE = "compensatable"
    IRREVERSIBLE = "irreversible"


class Grade(StrEnum):
    """How well the outcome can be discovered; autonomy follows from it."""

    A = "A"
    """The provider deduplicates by our key: end-to-end idempotent."""
    B = "B"
    """Exact look-up, no lag."""
    C = "C"
    """Look-up behind an index that lags."""
    D = "D"
    """Neither, or a look-up whose empty answer proves nothing: what is not found goes to a person."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Contract:
    """What a provider promises for one tool. Times in seconds."""

    native_key_ttl_s: float | None = None
    """The provider answers a repeat of our key from its store for this long; None = it has no such key."""
    native_key_concurrent: bool = True
    """A repeat of the key that arrives while its first request still runs does not run, too. False where the provider does
    not say: then the key is repeated only when whatever was sent must have landed."""
    lookup: bool = False
    """The tool can ask the provider what happened under our key."""
    lookup_lag_s: float = 0.0
    """A finished effect is visible to the look-up at the latest after this long."""
    absence_is_proof: bool = True
    """Two complete empty look-ups after the window prove that it was not done. False where the provider promises nothing
    about its look-up's freshness and a second effect is worse than a question: then a person decides."""
    unique: bool = False
    """A second effect under our key is refused by the provider, for ever."""
    landing_max_s: float = 120.0
    """A request that was sent takes effect within this long after its connection is closed, or never."""
    on_absent: Literal["not_executed", "operator_review"] = "operator_review"
    """What earned absence means when no attempt is left."""

    @property
    def grade(self) -> Grade:
        if self.native_key_ttl_s is not None:
            return Grade.A
        if not self.lookup or not self.absence_is_proof:
            return Grade.D
        return Grade.C if self.lookup_lag_s > 0 else Grade.B


@dataclass(frozen=True, slots=True, kw_only=True)
class Of:
    """The action that a counter-action is about, resolved from the ledger: never an id that the model gave."""

    action_id: str
    tool: str
    key: str
    receipt: str | None
    arguments: Mapping[str, Json]
    elsewhere: bool = False
    """It went by other credentials, or to another address, than this call does: that its object is not there says nothing."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Call:
    """One call of one action, as recorded: the same bytes on every attempt."""

    action_id: str
    tenant: str
    account: str
    tool: str
    key: str
    """32 hex digits, stable over all attempts of the action; "" where only the version is read, before the first claim."""
    arguments: Mapping[str, Json]
    target: str | None
    first_sent_at: datetime | None
    """The ledger's time of the first claim; a look-up by time starts a skew earlier."""
    of: Of | None = None
    expected_version: str | None = None
    """What the resource was when the call was decided on; to be sent as a condition where the provider can check one."""
    presence_only: bool = False
    """This look-up only has to show what is there: that nothing is would not count (yet), and it was sent once at most, so
    that one object under its key is all that there can be. A look-up may then read less, and says `Absent(complete=False)`
    where it has."""


class Adapter(Protocol):
    """Calls one provider through its real client. One attempt is one request on the wire.

    Instances are made in the worker process that uses them (after fork) and used by one thread at a time.
    """

    def send(self, call: Call, *, timeout_s: float) -> Outcome:
        """Makes the call once; returns within `timeout_s` plus a small allowance; never raises for an answer."""
        ...

    def lookup(self, calls: Sequence[Call], *, timeout_s: float) -> Mapping[str, Finding]:
        """Asks what happened to each; the result has one finding for each `action_id`. May raise: that is Unknown.

        `timeout_s` is for the requests of all pages together; how long one may take is the adapter's configuration.
        """
        ...

    def version(self, call: Call, *, timeout_s: float) -> Reading:
        """Reads what the call's resource is now, by one request, never out of a cache; raises for no answer.

        Equal texts mean that nothing which the call depends on has changed. `call.key` may be empty.
        """
        ...


@runtime_checkable
class Sharing(Protocol):
    """What an adapter may offer besides: its look-ups of a tool share requests."""

    def rows_a_request(self, tool: str) -> int:
        """How many calls of this tool one request of a look-up answers, when there are many and nothing is amiss."""
        ...


OTHER_KEY = "other_key"
"""The code of an `Unknown`: the fetched object exists, and is not the one that our call made."""


@runtime_checkable
class Fetcher(Protocol):
    """What an adapter may offer besides: reads the one object that a person has named, to check what they say."""

    def fetch(self, call: Call, receipt: str, *, timeout_s: float) -> Finding | None:
        """Found only for the object of that receipt, and only where it carries our key; one that does not is
        Unknown(OTHER_KEY), none at all Absent. None: this tool's objects can be neither fetched nor looked up.

        `receipt` is what a person has typed. May raise: that is Unknown.
        """
        ...
