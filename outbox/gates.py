"""What of a provider's queue is worth publishing now."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Gate:
    """What the fleet's limits leave room for. Publishing more would only have the workers put it back."""

    open_in_s: float = 0.0
    """Until then nothing; 0 = now."""
    firsts: int
    """First attempts that may go."""
    retries: int
    """Retries that may go besides."""
    known: bool = True
    """False: the store is away, so only first attempts go."""
