"""How beat ends when it is told to, wherever the signal meets it."""

from __future__ import annotations

import signal
from types import FrameType
from typing import Any


def end_when_told(sender: Any, **_: object) -> None:
    """Beat's own handler raises SystemExit wherever it is. In the middle of a send the client's clean-up may put another
    exception in its place, which beat logs, and goes on. So its loop is told, too."""
    handlers = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)}

    def end(number: int, frame: FrameType | None) -> None:
        sender.stop()
        handler = handlers[signal.Signals(number)]
        if callable(handler):
            handler(number, frame)

    for number in handlers:
        signal.signal(number, end)
