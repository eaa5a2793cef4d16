"""Decides how a sandbox is started and ended as a process of its own, by tests and by the demo."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from counterfoil.sandbox.client import Sandbox, SandboxError

_STOP_S = 10.0


@dataclass(frozen=True, slots=True)
class SandboxProcess:
    """A running sandbox. It also ends when this process does, however that ends."""

    child: subprocess.Popen[bytes]
    control: Sandbox

    @property
    def port(self) -> int:
        return int(self.control.base_url.rsplit(":", 1)[1])

    def stop(self) -> None:
        """Orderly; killed after 10 s."""
        self.child.terminate()
        try:
            self.child.wait(_STOP_S)
        except subprocess.TimeoutExpired:
            self.kill()
        self._close()

    def kill(self) -> None:
        """`kill -9`: what was committed stays, everything else is lost."""
        self.child.kill()
        self.child.wait()
        self._close()

    def _close(self) -> None:
        for pipe in (self.child.stdin, self.child.stdout):
            if pipe is not None:
                pipe.close()


def start(data: Path, *, port: int = 0, providers: Sequence[str] = ()) -> SandboxProcess:
    """Starts a sandbox on a free port (or `port`) over the database in `data`; it answers when this returns.

    `providers` are doubles of your own, each `module:NAME`, which is imported where this process would import it.
    """
    command = [sys.executable, "-m", "counterfoil.sandbox", "--port", str(port), "--data", str(data), "--with-stdin"]
    command += [word for place in providers for word in ("--provider", place)]
    # An empty entry is the working directory, which the child shares.
    paths = os.pathsep.join(path or os.getcwd() for path in sys.path)
    environment = {**os.environ, "PYTHONPATH": paths} if providers else None
    child = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=environment)
    assert child.stdout is not None
    words = child.stdout.readline().decode().split()
    if not words:
        SandboxProcess(child, Sandbox("http://127.0.0.1")).kill()
        raise SandboxError(f"the sandbox did not start (exit code {child.returncode}); its error is above")
    return SandboxProcess(child, Sandbox(words[-1]))


@contextmanager
def running(data: Path, *, providers: Sequence[str] = ()) -> Iterator[Sandbox]:
    """A sandbox for the length of a block, with doubles of your own: `providers=["mypackage.doubles:PARCELS"]`."""
    process = start(data, providers=providers)
    try:
        yield process.control
    finally:
        process.stop()
