"""Decides how the demo is watched: the stack is kept alive, the worker killed, and every move of the ledger told at once."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TypeVar

from counterfoil.demo.story import Story
from counterfoil.ledger.connection import Ledger
from counterfoil.ledger.queries import load
from counterfoil.stack.up import LocalStack

T = TypeVar("T")

_SQL = load("counterfoil.demo", "demo.sql")

TICK_S = 0.05
DEED_MAX_S = 60.0
"""No call or unwind of the demo takes longer; one that does is told, and counted as it stands."""


class Scene:
    """The stage of one run. Everything happens in the thread that started the stack, but the agent's own calls."""

    def __init__(self, stack: LocalStack, story: Story, *, tenant: str, run: str, mark: Path) -> None:
        self.workers_killed = 0
        self._stack, self._story, self._mark = stack, story, mark
        self._run = {"tenant": tenant, "run": run}
        self._told = 0
        self._ledger = Ledger(stack.database_url("agent"), application_name="counterfoil demo")
        self._agent = ThreadPoolExecutor(1, thread_name_prefix="agent")

    def close(self) -> None:
        """Lets the agent's thread and the connection go."""
        self._agent.shutdown(wait=True)
        self._ledger.close()

    def play(self, deed: Callable[[], T]) -> T | None:
        """Lets the agent do something, and shows what the ledger sees meanwhile; None when it takes too long."""
        doing = self._agent.submit(deed)
        until = time.monotonic() + DEED_MAX_S
        while time.monotonic() < until:
            ended = doing.done()
            self.watch()
            if ended:
                return doing.result()
            time.sleep(TICK_S)
        return None

    def watch(self) -> None:
        """Kills the worker when it has come to its point, restarts what is dead, tells new moves."""
        if not self.workers_killed and self._mark.exists():
            self._stack.children.kill("worker", signal.SIGKILL)
            self.workers_killed = 1
            self._story.trouble("the worker is killed: Stripe has answered, nothing is written down yet")
        for name in self._stack.poll():
            self._story.note(f"{name} is started again")
        for row in self._ledger.rows(_SQL["moves"], {**self._run, "told": self._told}):
            self._told = row["history_id"]
            self._story.move(row)
