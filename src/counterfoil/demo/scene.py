"""Decides how each half is played: what is watched, at which moment a process is killed, and what the agent comes back to."""

from __future__ import annotations

import math
import signal
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from functools import partial
from operator import itemgetter
from pathlib import Path

import psutil

from counterfoil.demo.ours import RUN, TENANT
from counterfoil.demo.pause import TICK_S, wait_for_kill
from counterfoil.demo.process import Agent, Event
from counterfoil.demo.story import Story
from counterfoil.ledger.connection import Ledger
from counterfoil.ledger.queries import load
from counterfoil.sandbox.client import Sandbox
from counterfoil.settings_sources import SANDBOX_VARIABLE
from counterfoil.stack.up import LocalStack

_SQL = load("counterfoil.demo", "demo.sql")

LIVES_MAX = 2
"""The agent's: it is killed once."""
SILENCE_MAX_S = 60.0
"""No move of the agent takes longer; one that does ends the story, and what is there is counted."""
HOLD_BACK_S = 0.1
"""The ledger's commits and the sandbox's are readable well within this."""


class Stuck(Exception):
    """The story cannot go on."""


class Scene(ABC):
    """One half: an agent under a harness, from its first call to the end of its rollback."""

    harness: str

    def __init__(self, stack: LocalStack, story: Story, *, place: Path, pause: bool) -> None:
        self.killed = 0
        self._stack, self._story, self._place, self._pause = stack, story, place, pause
        self._sandbox = Sandbox(stack.sandbox_url)
        self._effects_read = 0
        self._news: list[tuple[float, Callable[[], None]]] = []

    def play(self) -> None:
        """To the end; raises Stuck, or NobodyCame."""
        transcript, log = self._place / f"{self.harness}.jsonl", self._place / f"{self.harness}.log"
        for _ in range(LIVES_MAX):
            with Agent(self.harness, transcript, self._env(), log) as agent:
                if self._follow(agent, log):
                    return
            self._story.comes_back()

    def _follow(self, agent: Agent, log: Path) -> bool:
        """Watches one life of the agent; False when it was killed."""
        until = time.monotonic() + SILENCE_MAX_S
        while time.monotonic() < until:
            event = agent.next_event(TICK_S)
            self.watch(up_to_now=event is not None)
            if not self.killed and self._is_the_moment(event):
                self.watch(up_to_now=True)
                self._strike(agent)
                self.killed = 1
                return False
            if event is not None:
                until = time.monotonic() + SILENCE_MAX_S
                self._story.event(event, self.harness)
                agent.go()
            elif (code := agent.exit_code()) is not None:
                if code:
                    raise Stuck(f"the agent has ended: {_last_line(log)}")
                return True
        raise Stuck("the agent does not go on")

    def watch(self, *, up_to_now: bool = False) -> None:
        """Restarts what is dead, and tells what is new, in the order in which it happened.

        The newest is kept for the next time, since what came before it may not be readable yet; `up_to_now` tells all.
        """
        for name in self._stack.poll():
            self._story.note(f"{name} is started again")
        self._read()
        self._news.sort(key=itemgetter(0))
        until = math.inf if up_to_now else time.time() - HOLD_BACK_S
        while self._news and self._news[0][0] <= until:
            self._news.pop(0)[1]()

    def _read(self) -> None:
        for effect in self._sandbox.effects():
            if effect.seq > self._effects_read:
                self._effects_read = effect.seq
                self._news.append((effect.created, partial(self._story.world, effect)))

    @abstractmethod
    def close(self) -> None:
        """Lets go of what it holds."""

    @abstractmethod
    def _env(self) -> Mapping[str, str]:
        """What the agent's process is given."""

    @abstractmethod
    def _is_the_moment(self, event: Event | None) -> bool:
        """Whether Stripe has answered, and nobody has written that down."""

    @abstractmethod
    def _strike(self, agent: Agent) -> None:
        """Kill, or let a person do it."""


class NaiveScene(Scene):
    """Its worker is the agent's own process, as in most harnesses."""

    harness = "naive"

    def close(self) -> None:
        """Nothing is held."""

    def _env(self) -> Mapping[str, str]:
        return {SANDBOX_VARIABLE: self._stack.sandbox_url}

    def _is_the_moment(self, event: Event | None) -> bool:
        return event is not None and event["what"] == "answer" and event["tool"] == "stripe_charge"

    def _strike(self, agent: Agent) -> None:
        if self._pause:
            what = "the agent has Stripe's answer and has not written it down"
            wait_for_kill(agent.process, what, self._story, self.watch)
        else:
            agent.kill()
        self.watch(up_to_now=True)
        self._story.killed(agent.process.pid, "Stripe has answered; the transcript was not written yet")


class CounterfoilScene(Scene):
    """Its worker is Celery's; the agent goes down with it."""

    harness = "counterfoil"

    def __init__(self, stack: LocalStack, story: Story, *, place: Path, pause: bool, mark: Path) -> None:
        super().__init__(stack, story, place=place, pause=pause)
        self._mark = mark
        self._moves_read = 0
        self._ledger = Ledger(stack.database_url("agent"), application_name="counterfoil demo")

    def _read(self) -> None:
        read = {"tenant": TENANT, "run": RUN, "read": self._moves_read}
        for row in self._ledger.rows(_SQL["moves"], read):
            self._moves_read = row["history_id"]
            self._news.append((row["at_s"], partial(self._story.move, row)))
        super()._read()

    def close(self) -> None:
        self._ledger.close()

    def _env(self) -> Mapping[str, str]:
        return self._stack.env_for("agent")

    def _is_the_moment(self, event: Event | None) -> bool:
        return self._mark.exists() and self._mark.read_text() != ""

    def _strike(self, agent: Agent) -> None:
        pid = int(self._mark.read_text())
        agent.kill()
        if self._pause:
            self._story.note("the agent's process is gone; its transcript ends before Stripe's answer")
            what = "the worker has Stripe's answer and has not written it down"
            try:
                wait_for_kill(psutil.Process(pid), what, self._story, self.watch)
            except BaseException:  # the held worker would keep the stack from stopping
                self._stack.children.kill("worker", signal.SIGKILL)
                raise
        else:
            self._stack.children.kill("worker", signal.SIGKILL)
        self.watch(up_to_now=True)
        self._story.killed(pid, "Stripe has answered; the ledger was not written yet")


def _last_line(log: Path) -> str:
    lines = log.read_text(encoding="utf-8", errors="replace").strip().splitlines()
    return lines[-1] if lines else "without a word"
