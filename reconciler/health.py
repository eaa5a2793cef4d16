"""Decides what the findings of one look-up say about their provider: that it answers, that it does not, or nothing.

An answer about one row is an answer, whatever it says. What failed before anything was asked says nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from datetime import datetime

from counterfoil.ledger import health
from counterfoil.ledger.connection import Ledger
from counterfoil.providers.contract import OTHER_KEY
from counterfoil.providers.outcomes import Absent, Finding, Found, Many, Unknown

UNREACHABLE = "unreachable"
"""The code of a look-up that could not begin: no such account, no secret. Our configuration, not the provider."""

ANSWERS = frozenset({OTHER_KEY, "about_to_post", "incomplete", "key_not_shown", "other_region", "too_fresh"})
"""Codes of `Unknown` with which the provider has answered, about a row that it cannot settle (yet)."""

NOT_ASKED = frozenset(
    {"no_lookup", "no_reference", "no_send_time", "no_time", "no_time_zone", "not_sent", "of_unresolved"}
    | {"text_not_kept", "unknown_tool"}
)
"""Codes of `Unknown` that a row gets by itself: the provider was not asked about it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Health:
    """Keeps what look-ups say about providers."""

    ledger: Ledger
    uncertain_max_s: Callable[[str], float]
    """By provider: for how long it may answer without settling a row."""

    def note(self, provider: str, account: str, findings: Iterable[Finding | None], *, reachable: bool) -> None:
        """Writes down what the findings of one part of a batch say, which went by this account. Cheap while it stays so."""
        if not reachable:
            health.note(self.ledger, provider, account, "configuration", failed=UNREACHABLE)
            return
        failed = None
        for finding in findings:
            match finding:
                case Found() | Absent() | Many():
                    break
                case Unknown(code) if code in ANSWERS:
                    break
                case Unknown(code) if code not in NOT_ASKED:
                    failed = failed or code
                case _:
                    pass
        else:
            if failed is not None:
                health.note(self.ledger, provider, account, "look_up", failed=failed)
            return
        health.note(self.ledger, provider, account, "look_up", failed=None)

    def took_too_long(self, provider: str, account: str, *, since: datetime | None) -> bool:
        """Of a tool whose look-up is the repeat of its key: whether the provider has answered others for so long since then
        that one more repeat will tell nothing."""
        for_s = self.uncertain_max_s(provider)
        return health.answered_for(self.ledger, provider, account, "send", since=since, for_s=for_s)
