"""Decides the limits under which one provider's actions are tried: times, and attempts."""

from __future__ import annotations

from dataclasses import dataclass


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


def send_needs_s(policy: Policy, pause_allowance_s: float) -> float:
    """Lease that must be left right before the send: the request, and a pause of the process before its first byte."""
    return policy.timeout_s + pause_allowance_s
