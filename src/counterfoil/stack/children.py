"""The processes of `counterfoil up`: started in order, restarted when they die, stopped in reverse, never left behind.

    supervisor = Supervisor(children, home)
    supervisor.run_until_signal()            # in the foreground
    with Supervisor(children, home) as s:    # or as an object, whose owner calls poll() every now and then
        s.kill("worker", signal.SIGKILL)
        s.poll()

Knows nothing of what the children do.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType
from typing import Self

import psutil

from counterfoil.stack.errors import StackError
from counterfoil.stack.home import Home
from counterfoil.stack.processes import Belongs, end, open_log, recall, remember

BACKOFF_FIRST_S = 0.2
BACKOFF_MAX_S = 10.0
HEALTHY_S = 30.0
"""A child that lived this long starts its backoff anew."""
GRACE_S = 10.0
"""How long a child may take from SIGTERM to its end, before SIGKILL."""
POLL_S = 0.1


@dataclass(frozen=True, slots=True)
class Child:
    """A process to keep running. `env` is added to the supervisor's environment; it may hold secrets, argv may not."""

    name: str
    argv: Sequence[str]
    env: Mapping[str, str] = field(repr=False)
    log_path: Path
    """Standard output and error are appended here."""


@dataclass(slots=True)
class _Kept:
    """A child and what has become of it."""

    child: Child
    process: subprocess.Popen[bytes] | None = None
    started_at: float = 0.0
    due_at: float = 0.0
    backoff_s: float = 0.0
    restarts: int = 0


class Supervisor:
    """Keeps the children of one home running; a home has at most one at a time.

    Call it from one thread that lives as long as the supervisor. If it is killed, Linux kills its children with it;
    elsewhere (and for safety there, too) the next `start` ends those whose records it finds. Children run in sessions
    of their own: a Ctrl-C in the terminal reaches the supervisor alone, which stops them in order. A child that starts
    processes ends them itself; only after a missed grace its whole process group is killed.
    """

    def __init__(
        self,
        children: Sequence[Child],
        home: Home,
        *,
        grace_s: float = GRACE_S,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        names = [child.name for child in children]
        if len(set(names)) != len(names):
            raise ValueError(f"two children have the same name: {names}")
        self._kept = {child.name: _Kept(child) for child in children}
        self._home = home
        self._grace_s = grace_s
        self._clock = clock
        self._lock: AbstractContextManager[None] | None = None
        self._signal: int | None = None
        self._hurry = False

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def start(self) -> None:
        """End orphans of an earlier supervisor, then start all children in order.

        Raises StackError if another supervisor of this home is alive, or if a program cannot be started at all.
        """
        if self._lock is not None:
            raise StackError("This supervisor has been started already.")
        lock = self._home.lock("children", wait_s=0.0)
        lock.__enter__()
        self._lock = lock
        try:
            self._end_orphans()
            for kept in self._kept.values():
                self._launch(kept)
        except BaseException:
            self.stop()
            raise

    def poll(self) -> list[str]:
        """Notice the dead and restart those whose backoff is over; the names of the restarted. Does not wait."""
        restarted = []
        for name, kept in self._kept.items():
            if kept.process is not None and kept.process.poll() is not None:
                self._note_death(kept)
            if kept.process is None and self._lock is not None and self._clock() >= kept.due_at:
                self._launch(kept)
                kept.restarts += 1
                restarted.append(name)
        return restarted

    def stop(self) -> None:
        """Stop all children, last first: SIGTERM, and SIGKILL to the group after the grace. Idempotent."""
        for kept in reversed(self._kept.values()):
            if kept.process is not None:
                self._end(kept.process)
                kept.process = None
            self._record(kept.child).unlink(missing_ok=True)
        lock, self._lock = self._lock, None
        if lock is not None:
            lock.__exit__(None, None, None)

    def pid(self, name: str) -> int | None:
        """The child's process id; None while it is dead and waits for its restart."""
        process = self._kept[name].process
        return process.pid if process is not None and process.poll() is None else None

    def restarts(self, name: str) -> int:
        """How often the child was restarted."""
        return self._kept[name].restarts

    def kill(self, name: str, signum: int) -> None:
        """Send the child a signal; nothing happens while it is dead. What it dies of is restarted by `poll`."""
        process = self._kept[name].process
        if process is not None:
            process.send_signal(signum)

    def run_until_signal(
        self, on_restart: Callable[[str], None] | None = None, *, poll: Callable[[], list[str]] | None = None
    ) -> int:
        """Start unless started, keep the children running until SIGTERM, SIGINT or SIGHUP, stop them, give the signal.

        `poll` is for an owner who watches over more than the children; it calls the supervisor's own. A second signal
        ends the grace at once. Main thread only; the handlers of before are put back.
        """
        watched = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
        before = {signum: signal.signal(signum, self._on_signal) for signum in watched}
        try:
            if self._lock is None:
                self.start()
            while self._signal is None:
                for name in (poll or self.poll)():
                    if on_restart is not None:
                        on_restart(name)
                time.sleep(POLL_S)
            return self._signal
        finally:
            self.stop()
            self._signal, self._hurry = None, False
            for signum, handler in before.items():
                signal.signal(signum, handler)

    def _on_signal(self, signum: int, _frame: FrameType | None) -> None:
        self._hurry = self._signal is not None
        self._signal = signum

    def _launch(self, kept: _Kept) -> None:
        child = kept.child
        log = open_log(child.log_path)
        try:
            kept.process = subprocess.Popen(
                [*_dies_with_us(), *child.argv],
                env={**os.environ, **child.env},
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        except OSError as error:
            raise StackError(
                f"{child.name} cannot be started: {error.strerror}.", fix=f"It is {child.argv[0]}."
            ) from error
        finally:
            os.close(log)
        kept.started_at = self._clock()
        remember(self._record(child), kept.process.pid)

    def _note_death(self, kept: _Kept) -> None:
        lived_s = self._clock() - kept.started_at
        doubled = min(BACKOFF_MAX_S, kept.backoff_s * 2)
        kept.backoff_s = doubled if kept.backoff_s and lived_s < HEALTHY_S else BACKOFF_FIRST_S
        kept.due_at = self._clock() + kept.backoff_s
        kept.process = None

    def _end(self, process: subprocess.Popen[bytes]) -> None:
        process.send_signal(signal.SIGTERM)
        deadline = time.monotonic() + self._grace_s
        while process.poll() is None and time.monotonic() < deadline and not self._hurry:
            time.sleep(0.01)
        if process.poll() is None:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)  # not reaped yet, so the number is still its own
            process.wait()

    def _end_orphans(self) -> None:
        """End children that outlived a killed supervisor; one that changed its command line is not recognised."""
        for kept in reversed(self._kept.values()):
            record = self._record(kept.child)
            orphan = recall(record, _runs(kept.child.argv))
            if orphan and not end([orphan], [(signal.SIGTERM, self._grace_s), (signal.SIGKILL, 5.0)]):
                raise StackError(
                    f"{kept.child.name} of an earlier run cannot be ended.", fix=f"Its id is {orphan.pid}."
                )
            record.unlink(missing_ok=True)

    def _record(self, child: Child) -> Path:
        return self._home.run / f"child-{child.name}.json"


def _dies_with_us() -> list[str]:
    if sys.platform != "linux":
        return []
    script = Path(__file__).with_name("exec_child.py")
    return [sys.executable, "-I", "-S", str(script), str(os.getpid())]


def _runs(argv: Sequence[str]) -> Belongs:
    """Whether a process has these arguments; its program may be an interpreter that a `#!` line has put before."""

    def belongs(process: psutil.Process) -> bool:
        return process.cmdline()[-len(argv) :][1:] == list(argv[1:])

    return belongs
