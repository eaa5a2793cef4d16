"""Decides what people may say about themselves and why: what the ledger can hold, or the door says so before it is asked."""

from __future__ import annotations

from counterfoil.ledger.keys import check_id
from counterfoil.outbox.intents import REASON_CHARS_MAX

PERSON_CHARS_MAX = 200
CHANNEL_CHARS_MAX = 40


def check_words(by: str, channel: str, reason: str | None) -> None:
    """Raises `ArgumentError` at `by` (1 to 200 characters), `channel` (1 to 40) or `reason` (1 to 500)."""
    check_id(by.strip(), "by", PERSON_CHARS_MAX)
    check_id(by, "by", PERSON_CHARS_MAX)
    check_id(channel, "channel", CHANNEL_CHARS_MAX)
    if reason is not None:
        check_id(reason, "reason", REASON_CHARS_MAX)
