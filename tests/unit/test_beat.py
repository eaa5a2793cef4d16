"""Beat ends on SIGTERM, also where its own way of ending gets lost."""

from __future__ import annotations

import signal
from contextlib import suppress

from counterfoil.workers.beat import end_when_told


def test_beat_ends_although_its_own_exit_is_replaced() -> None:
    """In the middle of a send the client's clean-up raises something else, which beat logs; its loop ends all the same."""
    told: list[str] = []

    class Service:
        def stop(self) -> None:
            told.append("stop")

    def exits(*_: object) -> None:
        told.append("exit")
        raise SystemExit

    before = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
        signal.signal(signal.SIGTERM, exits)
        end_when_told(Service())
        with suppress(ValueError):
            try:
                signal.raise_signal(signal.SIGTERM)
            finally:
                raise ValueError("I/O operation on closed file")
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
    assert told == ["stop", "exit"]
