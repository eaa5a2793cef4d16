"""Where a test or the demo may kill a worker; a no-op unless the process was started for it.

`COUNTERFOIL_CRASH_AT=before_settle` (or `before_settle:stripe_charge`, for one tool only) makes the process SIGKILL itself
at that point, as a pod's eviction would; with `COUNTERFOIL_CRASH_MARK=FILE` only the first process to create FILE dies.
With `COUNTERFOIL_CRASH_HOLD_S=600` it does not kill itself but stays there, for a person to kill, and goes on after that.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Literal, get_args

from counterfoil.ledger.errors import ConfigError

Point = Literal["before_claim", "after_claim", "before_settle", "after_settle"]
"""after_claim is before the call, before_settle after the provider's answer."""

Points = Callable[[Point, str], None]
"""Called with the point and the tool's name."""


def no_points(point: Point, tool: str) -> None:
    """Production's: nothing happens anywhere."""


def points_from(environ: Mapping[str, str]) -> Points:
    """The crash that the environment asks for, else `no_points`. Only entry points call this."""
    wanted, _, only = environ.get("COUNTERFOIL_CRASH_AT", "").partition(":")
    if not wanted:
        return no_points
    if wanted not in get_args(Point):
        raise ConfigError(
            f"COUNTERFOIL_CRASH_AT={wanted!r} is no point.",
            key="COUNTERFOIL_CRASH_AT",
            fix=f"One of {get_args(Point)}.",
        )
    mark = environ.get("COUNTERFOIL_CRASH_MARK")
    hold_s = float(environ.get("COUNTERFOIL_CRASH_HOLD_S", "0"))

    def crash(point: Point, tool: str) -> None:
        if point == wanted and only in ("", tool) and _first(mark):
            if hold_s and _held(hold_s):
                return
            os.kill(os.getpid(), signal.SIGKILL)

    return crash


def _held(hold_s: float) -> bool:
    """Stays for so long; False as soon as the worker that forked this process is dead: then it is not to live either."""
    worker, until = os.getppid(), time.monotonic() + hold_s
    while time.monotonic() < until:
        if os.getppid() != worker:
            return False
        time.sleep(0.05)
    return True


def _first(mark: str | None) -> bool:
    """Whether this process is the first to get here; always, where no mark was asked for."""
    if mark is None:
        return True
    try:
        with Path(mark).open("x", encoding="ascii") as file:
            file.write(str(os.getpid()))
    except FileExistsError:
        return False
    return True
