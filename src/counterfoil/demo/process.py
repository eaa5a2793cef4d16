"""Decides how the demo holds its agent: a real process, which tells its moves and makes the next one when it may."""

from __future__ import annotations

import json
import os
import queue
import subprocess
import sys
import threading
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import psutil

Event = Mapping[str, Any]


class Agent:
    """One life of the agent. Leaving the block kills it, if it still lives."""

    def __init__(self, harness: str, transcript: Path, env: Mapping[str, str], log: Path) -> None:
        with log.open("ab") as errors:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "counterfoil.demo.agent", harness, str(transcript)],
                env={**os.environ, "NO_PROXY": "127.0.0.1", "no_proxy": "127.0.0.1", **env},
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                text=True,
                start_new_session=True,  # a Ctrl-C reaches the demo alone
            )
        self.process = psutil.Process(self._process.pid)
        self._events: queue.SimpleQueue[Event | None] = queue.SimpleQueue()
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.kill()
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe is not None:
                pipe.close()

    def next_event(self, wait_s: float) -> Event | None:
        """What it tells next, None when it says nothing within `wait_s`. It waits for `go` then."""
        try:
            return self._events.get(timeout=wait_s)
        except queue.Empty:
            return None

    def go(self) -> None:
        """Let it make its next move."""
        if self._process.stdin is not None:
            try:
                self._process.stdin.write("\n")
                self._process.stdin.flush()
            except BrokenPipeError:
                return  # it has died meanwhile, which is seen at its next look

    def exit_code(self) -> int | None:
        """Once it has ended, and all that it told has been read."""
        if self._reader.is_alive() or not self._events.empty():
            return None
        return self._process.poll()

    def kill(self) -> None:
        """`kill -9`, and wait until it is gone."""
        if self._process.poll() is None:
            self._process.kill()
        self._process.wait()
        self._reader.join(timeout=5)

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            self._events.put(json.loads(line))
