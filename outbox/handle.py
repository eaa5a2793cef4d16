"""Decides what a model's call does and what comes back: the run handle."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from concurrent.futures import Future
from functools import partial
from types import TracebackType
from typing import Self

from pydantic import JsonValue

from counterfoil.ledger.errors import ArgumentError
from counterfoil.ledger.keys import RUN_CHARS_MAX, check_id
from counterfoil.ledger.queries import load
from counterfoil.ledger.states import SETTLED
from counterfoil.outbox.calling import Answer, Arguments, Asked, Calls, Shared
from counterfoil.outbox.intents import REASON_CHARS_MAX, check_run
from counterfoil.outbox.memory import Memory
from counterfoil.outbox.plans import Plans, StepLike
from counterfoil.outbox.proposals import Proposal
from counterfoil.outbox.results import Result
from counterfoil.outbox.threads import in_event_loop
from counterfoil.outbox.unwinding import Unwind
from counterfoil.outbox.waiting import Deadline

_SQL = load("counterfoil.ledger", "sql/agent.sql")


class Run:
    """One agent task, as `Counterfoil.run` opens it. Thread-safe: parallel calls of a turn queue up behind each other.

    Opening takes the run over from every older handle, which then gets `RunTakenOver`. Leaving the `with` block (or
    `async with`) neither finishes nor unwinds the run. Made inside a running event loop it is opened by `async with`, or
    at its first use, so that the loop never waits for the database.
    """

    def __init__(
        self,
        shared: Shared,
        run: str,
        *,
        tenant: str,
        actor: str,
        seen: int,
        deadline_s: float | None = None,
        parent: Run | None = None,
    ) -> None:
        self.tenant, self.run, self.actor = check_run(tenant, run, actor)
        self._shared = shared
        self._deadline_s = deadline_s
        self._parent = parent
        self._memory = Memory(seen)
        self._calls = Calls(shared=shared, memory=self._memory, tenant=self.tenant, run=self.run, actor=self.actor)
        self._opening = threading.Lock()
        self._epoch: object = None
        if not in_event_loop():
            self._open()

    def __enter__(self) -> Self:
        self._open()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        """The run stays as it is."""

    async def __aenter__(self) -> Self:
        await self._shared.threads.run(self._open, on_cancel=_is_nobodys)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None
    ) -> None:
        """The run stays as it is."""

    def call(
        self,
        tool: str,
        arguments: Arguments,
        *,
        step: str | None = None,
        ref: str | None = None,
        repeat: str | None = None,
        wait_s: float = 20,
        resource_version: str | None = None,
    ) -> Result:
        """Performs the call, or finds the recorded one that it means, and tells what is known within `wait_s`.

        A provider's answer, an unknown outcome and a model's bad argument are results, never exceptions; a pure tool runs
        here and raises its own. `step` is a label that code gives, `ref` a framework's name for the call, `repeat` a
        reason for doing again what `once_per` allows once, `resource_version` the version of what it changes that the
        caller has seen; none of them is the model's to choose. Raises `ConfigError` (no such tool), `ArgumentError` (a bad
        label, ref, reason or version), `StepConflict`, `NotAllowed`, `RunTakenOver` and `LedgerUnavailable`; after the last
        one the same call again is safe.
        """
        return self._done(self._asked(tool, arguments, step, ref, repeat, resource_version), wait_s)

    async def acall(
        self,
        tool: str,
        arguments: Arguments,
        *,
        step: str | None = None,
        ref: str | None = None,
        repeat: str | None = None,
        wait_s: float = 20,
        resource_version: str | None = None,
    ) -> Result:
        """`call` for an event loop: it waits in a thread of our own.

        A cancelled caller loses and doubles nothing: what was recorded goes on, its result counts as not handed out, and
        the same call again is told of it. A call that had not begun yet is not recorded.
        """
        return await self._adone(self._asked(tool, arguments, step, ref, repeat, resource_version), wait_s)

    def stage(
        self,
        tool: str,
        arguments: Arguments,
        *,
        step: str | None = None,
        ref: str | None = None,
        repeat: str | None = None,
        wait_s: float = 20,
        resource_version: str | None = None,
    ) -> Result:
        """As `call`, for what will be committed by a plan: a hold, a draft, a ticket that no queue shows. Runs now.

        From then on, until a person has decided on the run's plan, the run takes reversible calls only. Code stages, so a
        bad argument is raised: `ArgumentError`, also for a tool that is not reversible.
        """
        return self._done(self._asked(tool, arguments, step, ref, repeat, resource_version, staged=True), wait_s)

    async def astage(
        self,
        tool: str,
        arguments: Arguments,
        *,
        step: str | None = None,
        ref: str | None = None,
        repeat: str | None = None,
        wait_s: float = 20,
        resource_version: str | None = None,
    ) -> Result:
        """`stage` for an event loop, as `acall` is `call`."""
        return await self._adone(self._asked(tool, arguments, step, ref, repeat, resource_version, staged=True), wait_s)

    def propose(self, steps: Sequence[StepLike], *, note: str = "") -> Proposal:
        """Puts the steps before a person as one plan: one decision over all of it, then they run in their order.

        All of them are recorded or none. The same steps again (after a crash, say) are the same proposal; other steps take
        the place of a plan that nobody has decided on. `note` (2000 characters at most) is for the person. Raises
        `ArgumentError` (at `$[i]…`), `ConfigError` (no such tool), `StepConflict` (a label that is taken), `NotAllowed`
        (something of the run is on its way or in review, a reviewer has rejected it, a hold lapses too soon), `LimitReached`,
        `RunTakenOver`, `LedgerUnavailable`.
        """
        seen, had = self._memory.arrive()
        return self._proposed(steps, note, seen, had)

    async def apropose(self, steps: Sequence[StepLike], *, note: str = "") -> Proposal:
        """`propose` for an event loop. A cancelled caller finds what was recorded by the same call again."""
        work = partial(self._proposed, steps, note, *self._memory.arrive())
        return await self._shared.threads.run(work, on_cancel=_is_nobodys)

    def child(self, name: str, *, seen: int = 0) -> Run:
        """Opens the run of a sub-agent that works in parallel: its own steps, the same tenant, actor and deadline.

        Its id is this run's, a slash and `name`, so the same name is the same run again. It is taken back with this one.
        Raises `ArgumentError` (the name, or an id that gets too long), `NotAllowed` (this run is closed or unwinds, or
        that id was opened as a run of its own), `RunTakenOver`, `LedgerUnavailable`.
        """
        if "/" in check_id(name, "name", RUN_CHARS_MAX):
            raise ArgumentError("holds a slash, which stands between a run and its child", path="name", code="slash")
        return Run(self._shared, f"{self.run}/{name}", tenant=self.tenant, actor=self.actor, seen=seen, parent=self)

    def so_far(self) -> list[dict[str, JsonValue]]:
        """The recorded results in the order of their recording, with tool and arguments, as JSON for a new prompt.

        They count as handed out: at the next call, what is settled among them has been had.
        """
        self._open()
        params = {"tenant": self.tenant, "run": self.run, "limit": self._shared.limits.actions_max}
        rows = self._shared.pool.rows(_SQL["results_of_run"], params)
        self._memory.show(str(row["action_id"]) for row in rows if row["state"] in SETTLED)
        return [
            {"tool": str(row["tool"]), **self._calls.told(row, asked="").model_dump(mode="json", exclude_none=True)}
            for row in rows
        ]

    def ack(self, seq: int) -> None:
        """The caller has written down the results up to `seq`; a next call says that of all that were handed out."""
        self._memory.ack(seq)

    def unwind(self, reason: str) -> Unwind:
        """Asks for all that the run did to be taken back; workers carry it out. The run takes no call any more."""
        check_id(reason, "reason", REASON_CHARS_MAX)
        self._open()
        self._shared.pool.row(_SQL["request_unwind"], {"tenant": self.tenant, "run": self.run, "reason": reason})
        return Unwind(self._shared.pool, self.tenant, self.run)

    def finish(self) -> None:
        """The task is done: the run takes no call any more, and what it recorded goes on."""
        self._open()
        self._shared.pool.row(_SQL["close_run"], {"tenant": self.tenant, "run": self.run})

    def _open(self) -> object:
        """The epoch under which this handle owns the run; opens the run if that was not done yet."""
        with self._opening:
            if self._epoch is None:
                params = {
                    "tenant": self.tenant,
                    "run": self.run,
                    "actor": self.actor,
                    "deadline_s": self._deadline_s,
                    "parent": None if self._parent is None else self._parent.run,
                    "parent_epoch": None if self._parent is None else self._parent._open(),
                }
                opened = self._shared.pool.row(_SQL["open_run"], params)
                assert opened is not None
                self._epoch = opened["epoch"]
            return self._epoch

    def _asked(
        self,
        tool: str,
        arguments: Arguments,
        step: str | None,
        ref: str | None,
        repeat: str | None,
        resource_version: str | None,
        *,
        staged: bool = False,
    ) -> Asked:
        """The call as it arrives now: what was handed out before counts as had."""
        seen, had = self._memory.arrive()
        return Asked(
            tool=tool,
            arguments=arguments,
            step=step,
            ref=ref,
            repeat=repeat,
            resource_version=resource_version,
            staged=staged,
            seen=seen,
            had=had,
        )

    def _answered(self, asked: Asked, until: Deadline) -> Answer:
        return self._calls.answer(asked, self._open, until)

    def _done(self, asked: Asked, wait_s: float) -> Result:
        return self._calls.hand_over(self._answered(asked, Deadline(wait_s)))

    async def _adone(self, asked: Asked, wait_s: float) -> Result:
        until = Deadline(wait_s)

        def drop(work: Future[Answer]) -> None:
            until.give_up()
            work.add_done_callback(self._calls.drop)

        work = partial(self._answered, asked, until)
        return self._calls.hand_over(await self._shared.threads.run(work, on_cancel=drop))

    def _proposed(self, steps: Sequence[StepLike], note: str, seen: int, had: frozenset[str]) -> Proposal:
        plans = Plans(calls=self._calls, epoch=self._open(), seen=seen, had=had)
        return Proposal(
            plans.propose(steps, note),
            pool=self._shared.pool,
            waiter=self._shared.waiter,
            threads=self._shared.threads,
            tell=partial(self._calls.told, asked=""),
            show=self._memory.show,
        )


def _is_nobodys(_work: object) -> None:
    """What was begun needs no end."""
