"""Decides how a person kills the process themselves: what they are told, how long it waits, what Enter and Ctrl-C do."""

from __future__ import annotations

import os
import select
import sys
import time
from collections.abc import Callable

import psutil

from counterfoil.demo.story import Story

PAUSE_MAX_S = 600.0
"""To find another terminal, and to look around in it."""
TICK_S = 0.05


class NobodyCame(Exception):
    """The time is over and the process lives."""


def wait_for_kill(process: psutil.Process, what: str, story: Story, meanwhile: Callable[[], None]) -> None:
    """Returns when the process is dead, by the person's hand or, after Enter, by ours; `meanwhile` runs all the time.

    Raises NobodyCame after PAUSE_MAX_S; a Ctrl-C goes through, and ends the demo.
    """
    story.invite(what, process.pid, PAUSE_MAX_S / 60)
    until = time.monotonic() + PAUSE_MAX_S
    keyboard = _Keyboard()
    while time.monotonic() < until:
        if not _is_alive(process):
            return
        if keyboard.enter(TICK_S) and _is_alive(process):
            process.kill()
        meanwhile()
    raise NobodyCame(f"nobody killed {process.pid} within {PAUSE_MAX_S / 60:.0f} min")


class _Keyboard:
    """Standard input, byte by byte: what is buffered would not be seen by the next wait. Closed, it is never pressed."""

    def __init__(self) -> None:
        try:
            self._fd: int | None = sys.stdin.fileno()
        except (AttributeError, OSError, ValueError):  # none at all, a test's stand-in, or closed
            self._fd = None

    def enter(self, wait_s: float) -> bool:
        """Whether Enter was pressed within the time."""
        if self._fd is None:
            time.sleep(wait_s)
            return False
        if not select.select([self._fd], [], [], wait_s)[0]:
            return False
        byte = os.read(self._fd, 1)
        if not byte:
            self._fd = None
        return byte == b"\n"


def _is_alive(process: psutil.Process) -> bool:
    try:
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False
