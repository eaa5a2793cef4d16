"""Decides what a model's call does and what comes back: the run handle."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from concurrent.futures import Future
from dataclasses import dataclass
from functools import partial
from types import TracebackType
from typing import Self

from pydantic import JsonValue
from pydantic_core import to_jsonable_python

from counterfoil.ledger.errors import ArgumentError, NotFound
from counterfoil.ledger.keys import RUN_CHARS_MAX, check_id, check_step_label
from counterfoil.ledger.queries import load
from counterfoil.ledger.states import SETTLED
from counterfoil.ledger.unwind_steps import told
from counterfoil.ledger.unwinds import step_of
from counterfoil.outbox.intents import (
    REASON_CHARS_MAX,
    REF_CHARS_MAX,
    CheckedCall,
    DoorRules,
    check_call,
    check_index_row,
    check_run,
    checked_arguments,
)
from counterfoil.outbox.memory import Memory
from counterfoil.outbox.pool import LedgerPool, Row
from counterfoil.outbox.recording import Meant, PlacedCall, Recorder, Unseen
from counterfoil.outbox.results import NextStep, Result, Status, refused, result_of
from counterfoil.outbox.steps import Blocked, Limits, WantedCall
from counterfoil.outbox.threads import Threads, in_event_loop
from counterfoil.outbox.waiting import POLL_LAST_S, Deadline, Waiter
from counterfoil.providers.contract import ToolClass
from counterfoil.providers.registry import Registry
from counterfoil.providers.spec import ToolSpec

BLOCKS_MAX = 1000
"""Times that one call is held back; each time another action has ended, and a run has fewer."""

_SQL = load("counterfoil.ledger", "sql/agent.sql")
_STEPS = load("counterfoil.ledger", "sql/unwind.sql")["steps_of_run"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Shared:
    """What the runs of one process share."""

    pool: LedgerPool
    waiter: Waiter
    threads: Threads
    registry: Registry
    rules: DoorRules
    limits: Limits


@dataclass(frozen=True, slots=True)
class _Answer:
    """A result on its way to the caller, and what the memory must hear when it arrives there."""

    result: Result
    awaited: str | None = None
    """The action that the call has waited for; the memory expects it until the answer is handed over or dropped."""
    settled: bool = False
    shown: tuple[str, ...] = ()


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
        arguments: str | bytes | Mapping[str, object],
        *,
        step: str | None = None,
        ref: str | None = None,
        repeat: str | None = None,
        wait_s: float = 20,
    ) -> Result:
        """Performs the call, or finds the recorded one that it means, and tells what is known within `wait_s`.

        A provider's answer, an unknown outcome and a model's bad argument are results, never exceptions; a pure tool runs
        here and raises its own. `step` is a label that code gives, `ref` a framework's name for the call, `repeat` a
        reason for doing again what `once_per` allows once; none of them is the model's to choose. Raises `ConfigError`
        (no such tool), `ArgumentError` (a bad label, ref or reason), `StepConflict`, `NotAllowed`, `RunTakenOver` and
        `LedgerUnavailable`; after the last one the same call again is safe.
        """
        until = Deadline(wait_s)
        seen, had = self._memory.arrive()
        return self._hand_over(self._answered(tool, arguments, step, ref, repeat, seen, had, until))

    async def acall(
        self,
        tool: str,
        arguments: str | bytes | Mapping[str, object],
        *,
        step: str | None = None,
        ref: str | None = None,
        repeat: str | None = None,
        wait_s: float = 20,
    ) -> Result:
        """`call` for an event loop: it waits in a thread of our own.

        A cancelled caller loses and doubles nothing: what was recorded goes on, its result counts as not handed out, and
        the same call again is told of it. A call that had not begun yet is not recorded.
        """
        until = Deadline(wait_s)
        seen, had = self._memory.arrive()

        def drop(work: Future[_Answer]) -> None:
            until.give_up()
            work.add_done_callback(self._drop)

        work = partial(self._answered, tool, arguments, step, ref, repeat, seen, had, until)
        return self._hand_over(await self._shared.threads.run(work, on_cancel=drop))

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
            {"tool": str(row["tool"]), **self._told(row, asked="").model_dump(mode="json", exclude_none=True)}
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

    def _answered(
        self,
        tool: str,
        arguments: str | bytes | Mapping[str, object],
        step: str | None,
        ref: str | None,
        repeat: str | None,
        seen: int,
        had: frozenset[str],
        until: Deadline,
    ) -> _Answer:
        """What `call` does; blocks until `until` at the latest."""
        spec = self._shared.registry.get(tool)
        self._check_names(step, ref, repeat)
        if spec.cls is ToolClass.PURE:
            return _Answer(self._performed_here(spec, arguments))
        try:
            checked = check_call(
                spec, arguments, tenant=self.tenant, run=self.run, actor=self.actor, rules=self._shared.rules
            )
        except ArgumentError as error:
            return _Answer(refused(error))
        return self._met(PlacedCall(checked, _wanted(checked, step, ref, repeat), seen, had), until)

    def _hand_over(self, answer: _Answer) -> Result:
        """The caller has the result from now on."""
        if answer.awaited is not None:
            self._memory.hand_out(answer.awaited, settled=answer.settled)
        self._memory.show(answer.shown)
        return answer.result

    def _drop(self, work: Future[_Answer]) -> None:
        """Nobody takes the result: it counts as not had, and is told to whoever calls next."""
        if not work.cancelled() and work.exception() is None:
            awaited = work.result().awaited
            if awaited is not None:
                self._memory.hand_out(awaited, settled=False)

    def _check_names(self, step: str | None, ref: str | None, repeat: str | None) -> None:
        if step is not None:
            check_index_row(self.tenant, self.run, check_step_label(step), path="step")
        if ref is not None:
            check_index_row(self.tenant, self.run, check_id(ref, "ref", REF_CHARS_MAX), path="ref")
        if repeat is not None:
            check_id(repeat, "repeat", REASON_CHARS_MAX)

    def _performed_here(self, spec: ToolSpec, arguments: str | bytes | Mapping[str, object]) -> Result:
        try:
            bound = spec.bind(checked_arguments(spec, arguments, rules=self._shared.rules))
        except ArgumentError as error:
            return refused(error)
        return Result(status=Status.SUCCEEDED, value=to_jsonable_python(spec.function(**bound)))

    def _met(self, call: PlacedCall, until: Deadline) -> _Answer:
        """Asks the ledger until the call has its action, waiting for others that hold it back."""
        shared = self._shared
        recorder = Recorder(
            shared.pool, self._memory, tenant=self.tenant, run=self.run, epoch=self._open(), limits=shared.limits
        )
        for _ in range(BLOCKS_MAX):
            may_wait = until.left_s > 0
            met = recorder.met(call, may_wait=may_wait)
            if isinstance(met, Meant):
                return self._outcome(call, met, until)
            if isinstance(met, Unseen):
                return self._unseen(met)
            if met.by is None or not (may_wait and met.waits):
                return _Answer(_blocked(met))
            shared.waiter.until_answered(met.by, until)
        raise AssertionError("a run has fewer actions than that")

    def _outcome(self, call: PlacedCall, meant: Meant, until: Deadline) -> _Answer:
        """Waits for the action's end, and no longer than asked."""
        try:
            row = self._shared.waiter.until_answered(meant.action_id, until)
            told = self._told(
                row, asked=call.checked.arguments, replayed=meant.replayed, already_done=meant.already_done
            )
        except BaseException:
            self._memory.hand_out(meant.action_id, settled=False)
            raise
        return _Answer(told, awaited=meant.action_id, settled=row["state"] in SETTLED)

    def _unseen(self, met: Unseen) -> _Answer:
        result = Result(
            status=Status.BLOCKED,
            next_step=NextStep.READ_UNSEEN,
            unseen=tuple(self._told(row, asked="", replayed=True) for row in met.rows),
        )
        return _Answer(result, shown=tuple(str(row["action_id"]) for row in met.rows))

    def _told(self, row: Row, *, asked: str, replayed: bool = False, already_done: bool = False) -> Result:
        spec = self._shared.registry.find(str(row["tool"]))
        return result_of(
            row,
            argument_names=spec.arguments.names if spec is not None else (),
            asked=asked,
            own_run=row.get("run", self.run) == self.run,
            replayed=replayed,
            already_done=already_done,
        )


class Unwind:
    """An unwind that was asked for. It goes on whether or not anybody waits for it."""

    def __init__(self, pool: LedgerPool, tenant: str, run: str) -> None:
        self._pool = pool
        self._key = {"tenant": tenant, "run": run}

    def result(self, wait_s: float = 0) -> Result:
        """`succeeded` when all is taken back but for what a person leaves done (`standing` is `kept`), `pending` while it
        goes on, `blocked` where a person must decide.

        `code` is the run's state. `value` lists the steps of the run and its child runs in the order of the unwind:
        `state`, what is to be done with each (`standing`), and `why` where that is a person's.
        """
        until = Deadline(wait_s)
        while True:  # ends at `until`
            row = self._pool.row(_SQL["read_run"], self._key)
            if row is None:
                raise NotFound("there is no such run that this login may see.")
            if row["state"] in _UNWOUND or not until.left_s:
                break
            until.pause(POLL_LAST_S)
        state = str(row["state"])
        status, next_step = _UNWOUND.get(state, (Status.PENDING, NextStep.WAIT))
        steps = told(step_of(row) for row in self._pool.rows(_STEPS, self._key))
        return Result(
            status=status,
            next_step=next_step,
            suspend=next_step is NextStep.PERSON,
            code=state,
            value=to_jsonable_python(steps),
        )


_UNWOUND = {
    "unwound": (Status.SUCCEEDED, NextStep.END_TURN),
    "unwind_blocked": (Status.BLOCKED, NextStep.PERSON),
}


def _wanted(checked: CheckedCall, step: str | None, ref: str | None, repeat: str | None) -> WantedCall:
    spec: ToolSpec = checked.spec
    return WantedCall(
        tool=spec.name,
        effect=spec.effect or "",
        target=checked.target,
        cls=spec.cls,
        arguments_sha256=checked.arguments_sha256,
        once_key=checked.once_key,
        step=step,
        ref=ref,
        repeat=repeat,
    )


def _is_nobodys(_work: object) -> None:
    """What was begun needs no end."""


def _blocked(met: Blocked) -> Result:
    return Result(
        action_id=met.by,
        status=Status.BLOCKED,
        next_step=met.next_step,
        suspend=met.next_step is NextStep.PERSON,
    )
