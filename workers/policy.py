"""Decides the limits under which one provider's actions are tried: times, and attempts."""

from __future__ import annotations

from dataclasses import dataclass, replace

from counterfoil.providers.contract import Contract
from counterfoil.providers.outcomes import Rejected

REPEATS_MAX = 1000
"""Repeats of one native key: more than fit into a day at the backoff's usual cap. The key's time is the bound that counts."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Policy:
    """One provider's limits, from the configuration. Times in seconds."""

    timeout_s: float
    """A request is given up after this long."""
    attempts_max: int
    """Calls of one action, resends included; those that surely did not leave are counted apart."""
    not_sent_max: int
    """Calls of one action that surely did not leave (refused connections); larger, since they cost nothing."""
    backoff_base_s: float
    backoff_cap_s: float
    retry_after_cap_s: float
    retryable_codes: frozenset[str] | None = None
    """Refusals that are tried again, of those that the adapter calls retryable; None: all of them."""
    repeats_key: bool = False
    """The tool has a native key and no look-up: what became of a call is found out by sending it again."""

    def retries(self, refusal: Rejected) -> bool:
        """Whether the same request is sent again, later."""
        return refusal.retryable and (self.retryable_codes is None or refusal.code in self.retryable_codes)


def limits_for(policy: Policy, contract: Contract, *, in_doubt: bool) -> Policy:
    """The limits of one tool's action. In doubt, a repeat of the key that is the only look-up is bounded as look-ups are: by
    time, that of the key, and by what the provider answers meanwhile (see the reconciler). An outage uses up no attempts."""
    if contract.native_key_ttl_s is None or contract.lookup:
        return policy
    if not in_doubt:
        return replace(policy, repeats_key=True)
    return replace(policy, repeats_key=True, attempts_max=REPEATS_MAX, not_sent_max=REPEATS_MAX)


def send_needs_s(policy: Policy, pause_allowance_s: float) -> float:
    """Lease that must be left right before the send: the request, and a pause of the process before its first byte."""
    return policy.timeout_s + pause_allowance_s
