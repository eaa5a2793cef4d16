"""Which process is ours: a process id alone proves nothing, since ids are reused and zombies keep theirs."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path

import psutil

from counterfoil.stack.home import write_private

START_SLACK_S = 2.0
"""psutil computes start times from the boot time, which moves when the clock is set."""

LOG_MAX_BYTES = 10_000_000

Belongs = Callable[[psutil.Process], bool]
"""Whether a live process is the expected one, judged by its command line or working directory."""


def remember(file: Path, pid: int) -> None:
    """Record a process by id and start time."""
    with suppress(psutil.NoSuchProcess):  # already dead: nothing to find again
        write_private(file, json.dumps({"pid": pid, "started_s": psutil.Process(pid).create_time()}))


def recall(file: Path, belongs: Belongs) -> psutil.Process | None:
    """The recorded process if it is alive, is not a zombie, started when the record says, and `belongs`."""
    try:
        record = json.loads(file.read_text())
        process = psutil.Process(int(record["pid"]))
        same = abs(process.create_time() - float(record["started_s"])) <= START_SLACK_S
    except (FileNotFoundError, ValueError, KeyError, TypeError, psutil.Error):
        return None
    return process if same and is_alive(process) and holds(process, belongs) else None


def find(belongs: Belongs) -> list[psutil.Process]:
    """All live processes that `belongs` accepts, whoever started them."""
    return [process for process in psutil.process_iter() if is_alive(process) and holds(process, belongs)]


def is_alive(process: psutil.Process) -> bool:
    """False for one that is gone, replaced under its id, or a zombie; a zombie child of ours is reaped on the way."""
    try:
        if process.status() != psutil.STATUS_ZOMBIE:
            return process.is_running()
        if process.ppid() == os.getpid():
            with suppress(ChildProcessError):
                os.waitpid(process.pid, os.WNOHANG)
    except psutil.Error:
        pass
    return False


def holds(process: psutil.Process, belongs: Belongs) -> bool:
    """`belongs`, with False for a process that dies meanwhile or may not be looked at."""
    try:
        return belongs(process)
    except (psutil.Error, OSError):
        return False


def end(processes: Sequence[psutil.Process], signals: Sequence[tuple[int, float]]) -> bool:
    """Send each signal in turn and wait up to its seconds for all to be gone; True when they are."""
    left = [process for process in processes if is_alive(process)]
    for signum, wait_s in signals:
        for process in left:
            with suppress(psutil.NoSuchProcess):
                process.send_signal(signum)
        deadline = time.monotonic() + wait_s
        while left and time.monotonic() < deadline:
            time.sleep(0.01)
            left = [process for process in left if is_alive(process)]
        if not left:
            return True
    return not left


def open_log(path: Path) -> int:
    """A descriptor to append to the log with; one that has grown past 10 MB is first set aside as `<name>.1`."""
    with suppress(FileNotFoundError):
        if path.stat().st_size > LOG_MAX_BYTES:
            path.replace(path.with_name(f"{path.name}.1"))
    return os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
