"""The run handle: what a model's calls go through, with what its caller has been told."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from functools import partial
from types import TracebackType
from typing import Self, TypeVar

from pydantic import JsonValue

from counterfoil.ledger.connecting import within
from counterfoil.ledger.errors import ArgumentError
from counterfoil.ledger.keys import RUN_CHARS_MAX, check_id
from counterfoil.ledger.queries import load
from counterfoil.outbox.calling import Answer, Arguments, Asked, Calls, Shared
from counterfoil.outbox.intents import REASON_CHARS_MAX, check_run
from counterfoil.outbox.memory import Memory, Visit
from counterfoil.outbox.plans import Plans, StepLike
from counterfoil.outbox.pool import OPERATION_S, Row
from counterfoil.outbox.proposals import Proposal
from counterfoil.outbox.results import Result
from counterfoil.outbox.seen import Tokens, told
from counterfoil.outbox.threads import in_event_loop
from counterfoil.outbox.unwinding import Unwind
from counterfoil.outbox.waiting import Deadline

T = TypeVar("T")

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
        seen: Tokens = (),
        refs_unique: bool = False,
        deadline_s: float | None = None,
        parent: Run | None = None,
    ) -> None:
        self.tenant, self.run, self.actor = check_run(tenant, run, actor)
        self._shared = shared
        self._deadline_s = deadline_s
        self._parent = parent
        self._memory = Memory(self.tenant, self.run, seen)
        self._calls = Calls(
            shared=shared,
            memory=self._memory,
            tenant=self.tenant,
            run=self.run,
            actor=self.actor,
            refs_unique=refs_unique,
        )
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
        turn: str | None = None,
        ref: str | None = None,
        seen: Tokens | None = None,
        repeat: str | None = None,
        note: str | None = None,
        wait_s: float = 20,
        resource_version: str | None = None,
    ) -> Result:
        """Performs the call, or finds the recorded one that it means, and tells what is known within `wait_s`.

        A provider's answer, an unknown outcome and a model's bad argument are results, never exceptions; a pure tool runs
        here and raises its own. None of the rest is the model's to choose:

        - `seen`: tokens of the answers that the transcript holds; then nothing else counts as told. Without it, an end
          counts from the handle's next call on, which does not survive an answer that is lost on its way.
        - `turn` and `ref`: the model's response that the call stands in, an id that is new each time the model is asked,
          and the framework's name for the call. Within a turn each ref is a wish of its own.
        - `step`: a label that code gives. `repeat`: a reason for doing again what `once_per` allows once. `note`: why, for
          the person who approves it. `resource_version`: the version of what it changes that the caller has seen.

        Raises `ConfigError` (no such tool), `ArgumentError` (one of these), `StepConflict`, `NotAllowed` (`LedgerLostTime`
        among them), `RunTakenOver` and `LedgerUnavailable`; after the last one the same call again is safe.
        """
        asked = Asked(
            tool=tool,
            arguments=arguments,
            step=step,
            turn=turn,
            ref=ref,
            repeat=repeat,
            note=note,
            resource_version=resource_version,
        )
        return self._done(asked, seen, wait_s)

    async def acall(
        self,
        tool: str,
        arguments: Arguments,
        *,
        step: str | None = None,
        turn: str | None = None,
        ref: str | None = None,
        seen: Tokens | None = None,
        repeat: str | None = None,
        note: str | None = None,
        wait_s: float = 20,
        resource_version: str | None = None,
    ) -> Result:
        """`call` for an event loop: it waits in a thread of our own.

        A cancelled caller loses and doubles nothing: what was recorded goes on, its end counts as not told, and the same
        call again is told of it. A call that had not begun yet is not recorded.
        """
        asked = Asked(
            tool=tool,
            arguments=arguments,
            step=step,
            turn=turn,
            ref=ref,
            repeat=repeat,
            note=note,
            resource_version=resource_version,
        )
        return await self._adone(asked, seen, wait_s)

    def stage(
        self,
        tool: str,
        arguments: Arguments,
        *,
        step: str | None = None,
        turn: str | None = None,
        ref: str | None = None,
        seen: Tokens | None = None,
        repeat: str | None = None,
        note: str | None = None,
        wait_s: float = 20,
        resource_version: str | None = None,
    ) -> Result:
        """As `call`, for what will be committed by a plan: a hold, a draft, a ticket that no queue shows. Runs now.

        From then on, until a person has decided on the run's plan, the run takes reversible calls only. Code stages, so a
        bad argument is raised: `ArgumentError`, also for a tool that is not reversible.
        """
        asked = Asked(
            tool=tool,
            arguments=arguments,
            step=step,
            turn=turn,
            ref=ref,
            repeat=repeat,
            note=note,
            resource_version=resource_version,
            staged=True,
        )
        return self._done(asked, seen, wait_s)

    async def astage(
        self,
        tool: str,
        arguments: Arguments,
        *,
        step: str | None = None,
        turn: str | None = None,
        ref: str | None = None,
        seen: Tokens | None = None,
        repeat: str | None = None,
        note: str | None = None,
        wait_s: float = 20,
        resource_version: str | None = None,
    ) -> Result:
        """`stage` for an event loop, as `acall` is `call`."""
        asked = Asked(
            tool=tool,
            arguments=arguments,
            step=step,
            turn=turn,
            ref=ref,
            repeat=repeat,
            note=note,
            resource_version=resource_version,
            staged=True,
        )
        return await self._adone(asked, seen, wait_s)

    def propose(self, steps: Sequence[StepLike], *, note: str = "", seen: Tokens | None = None) -> Proposal:
        """Puts the steps before a person as one plan: one decision over all of it, then they run in their order.

        All of them are recorded or none. The same steps again (after a crash, say) are the same proposal, unless it ended
        without any effect and the caller knows; other steps take the place of a plan that nobody has decided on. `note`
        (2000 characters at most) is for the person; `seen` as for `call`. Raises `ArgumentError` (at `$[i]…`),
        `ConfigError` (no such tool), `StepConflict` (a label that is taken), `NotAllowed` (something of the run is on its
        way, in review or was not told to the caller; a reviewer has rejected it; a hold lapses too soon), `LimitReached`,
        `RunTakenOver`, `LedgerUnavailable`.
        """
        return self._proposed(steps, note, self._memory.arrive(seen))

    async def apropose(self, steps: Sequence[StepLike], *, note: str = "", seen: Tokens | None = None) -> Proposal:
        """`propose` for an event loop. A cancelled caller finds what was recorded by the same call again."""
        visit = self._memory.arrive(seen)

        def drop(work: Future[Proposal]) -> None:
            work.add_done_callback(lambda _: self._memory.leave(visit))

        return await self._shared.threads.run(partial(self._proposed, steps, note, visit), on_cancel=drop)

    def child(self, name: str, *, seen: Tokens = ()) -> Run:
        """Opens the run of a sub-agent that works in parallel: its own steps, the same tenant, actor and deadline.

        Its id is this run's, a slash and `name`, so the same name is the same run again; `seen` holds tokens of its own
        answers. It is taken back with this one. Raises `ArgumentError` (the name, a token, or an id that gets too long),
        `NotAllowed` (this run is closed or unwinds, or that id was opened as a run of its own), `RunTakenOver`,
        `LedgerUnavailable`.
        """
        if "/" in check_id(name, "name", RUN_CHARS_MAX):
            raise ArgumentError("holds a slash, which stands between a run and its child", path="name", code="slash")
        return Run(
            self._shared,
            f"{self.run}/{name}",
            tenant=self.tenant,
            actor=self.actor,
            seen=seen,
            refs_unique=self._calls.refs_unique,
            parent=self,
        )

    def so_far(self) -> list[dict[str, JsonValue]]:
        """The recorded results in the order of their recording, with tool and arguments, as JSON for a new prompt.

        Each holds the token (`seen`) of its own end, the last one that of all. They count as told from the handle's next
        call on, or where these tokens are given with it.
        """
        self._open()
        params = {"tenant": self.tenant, "run": self.run, "limit": self._shared.limits.actions_max}
        rows = self._shared.pool.rows(_SQL["results_of_run"], params)
        self._memory.show(self._calls.ends(rows))
        tokens = [self._token([row]) for row in rows[:-1]] + [self._token(rows)]
        return [
            {
                "tool": str(row["tool"]),
                **self._calls.told(row, asked="").model_dump(mode="json", exclude_none=True),
                "seen": token,
            }
            for row, token in zip(rows, tokens, strict=False)
        ]

    async def aso_far(self) -> list[dict[str, JsonValue]]:
        """`so_far` for an event loop."""
        return await self._in_thread(self.so_far)

    def ack(self, seen: Tokens) -> None:
        """The caller has written down the ends in these tokens: they count for its calls that give no `seen`."""
        self._memory.ack(seen)

    def unwind(self, reason: str) -> Unwind:
        """Asks for all that the run did to be taken back; workers carry it out. The run takes no call any more."""
        check_id(reason, "reason", REASON_CHARS_MAX)
        self._open()
        self._shared.pool.row(_SQL["request_unwind"], {"tenant": self.tenant, "run": self.run, "reason": reason})
        return Unwind(self._shared.pool, self._shared.threads, self.tenant, self.run)

    async def aunwind(self, reason: str) -> Unwind:
        """`unwind` for an event loop. A cancelled caller may have asked for it."""
        return await self._in_thread(partial(self.unwind, reason))

    def finish(self) -> None:
        """The task is done: the run takes no call any more, and what it recorded goes on."""
        self._open()
        self._shared.pool.row(_SQL["close_run"], {"tenant": self.tenant, "run": self.run})

    async def afinish(self) -> None:
        """`finish` for an event loop."""
        await self._in_thread(self.finish)

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

    def _done(self, asked: Asked, seen: Tokens | None, wait_s: float) -> Result:
        visit = self._memory.arrive(seen, asked.turn or "")
        try:
            answer = self._calls.answer(asked, visit, self._open, Deadline(wait_s))
        except BaseException:
            self._memory.leave(visit)
            raise
        return self._calls.hand_over(visit, answer)

    async def _adone(self, asked: Asked, seen: Tokens | None, wait_s: float) -> Result:
        visit, until = self._memory.arrive(seen, asked.turn or ""), Deadline(wait_s)

        def drop(work: Future[Answer]) -> None:
            """Nobody takes the answer: it is told to whoever calls next."""
            until.give_up()
            work.add_done_callback(lambda _: self._memory.leave(visit))

        work = partial(self._calls.answer, asked, visit, self._open, until)
        try:
            answer = await self._calls.performed_in_loop(asked)
            if answer is None:
                answer = await self._shared.threads.run(work, on_cancel=drop)
        except asyncio.CancelledError:
            raise
        except BaseException:
            self._memory.leave(visit)
            raise
        return self._calls.hand_over(visit, answer)

    def _proposed(self, steps: Sequence[StepLike], note: str, visit: Visit) -> Proposal:
        try:
            with within(OPERATION_S):
                proposal = Plans(calls=self._calls, epoch=self._open(), visit=visit).propose(steps, note)
        finally:
            self._memory.leave(visit)
        return Proposal(
            proposal,
            pool=self._shared.pool,
            waiter=self._shared.waiter,
            threads=self._shared.threads,
            tell=partial(self._calls.told, asked=""),
            told=self._shown,
        )

    def _shown(self, rows: Sequence[Row]) -> str:
        """The token of these rows' ends, which count from the next call on."""
        self._memory.show(self._calls.ends(rows))
        return self._token(rows)

    def _token(self, rows: Sequence[Row]) -> str:
        return told(self._calls.ends(rows)).token(self.tenant, self.run)

    async def _in_thread(self, work: Callable[[], T]) -> T:
        """What was begun for a caller that is cancelled goes on to its end."""
        return await self._shared.threads.run(work, on_cancel=_is_nobodys)


def _is_nobodys(_work: object) -> None:
    """What was begun needs no end."""
