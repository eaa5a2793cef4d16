"""Decides what a model's call does and what comes back: the run handle."""

from __future__ import annotations

import time
from collections.abc import Mapping
from types import TracebackType
from typing import Self

from pydantic import JsonValue
from pydantic_core import to_jsonable_python

from counterfoil.ledger.errors import ArgumentError, NotFound
from counterfoil.ledger.keys import check_id, check_step_label
from counterfoil.ledger.queries import load
from counterfoil.ledger.states import SETTLED
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
from counterfoil.outbox.waiting import POLL_LAST_S, Waiter, deadline
from counterfoil.providers.contract import ToolClass
from counterfoil.providers.registry import Registry
from counterfoil.providers.spec import ToolSpec

BLOCKS_MAX = 1000
"""Times that one call is held back; each time another action has ended, and a run has fewer."""

_SQL = load("counterfoil.ledger", "sql/agent.sql")


class Run:
    """One agent task, as `Counterfoil.run` opens it. Thread-safe: parallel calls of a turn queue up behind each other.

    Opening takes the run over from every older handle, which then gets `RunTakenOver`. Leaving the `with` block neither
    finishes nor unwinds the run.
    """

    def __init__(
        self,
        pool: LedgerPool,
        waiter: Waiter,
        registry: Registry,
        run: str,
        *,
        tenant: str,
        actor: str,
        seen: int,
        deadline_s: float | None,
        rules: DoorRules,
        limits: Limits,
    ) -> None:
        self.tenant, self.run, self.actor = check_run(tenant, run, actor)
        self._pool = pool
        self._waiter = waiter
        self._registry = registry
        self._rules = rules
        self._results_max = limits.actions_max
        self._memory = Memory(seen)
        params = {"tenant": tenant, "run": run, "actor": actor, "deadline_s": deadline_s, "parent": None}
        opened = pool.row(_SQL["open_run"], params)
        assert opened is not None
        self._recorder = Recorder(pool, self._memory, tenant=tenant, run=run, epoch=opened["epoch"], limits=limits)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
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
        until = deadline(wait_s)
        seen, had = self._memory.arrive()
        spec = self._registry.get(tool)
        self._check_names(step, ref, repeat)
        if spec.cls is ToolClass.PURE:
            return self._performed_here(spec, arguments)
        try:
            checked = check_call(spec, arguments, tenant=self.tenant, run=self.run, actor=self.actor, rules=self._rules)
        except ArgumentError as error:
            return refused(error)
        wanted = _wanted(checked, step, ref, repeat)
        return self._answer(PlacedCall(checked, wanted, seen, had), until)

    def so_far(self) -> list[dict[str, JsonValue]]:
        """The recorded results in the order of their recording, with tool and arguments, as JSON for a new prompt.

        They count as handed out: at the next call, what is settled among them has been had.
        """
        params = {"tenant": self.tenant, "run": self.run, "limit": self._results_max}
        rows = self._pool.rows(_SQL["results_of_run"], params)
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
        self._pool.row(_SQL["request_unwind"], {"tenant": self.tenant, "run": self.run, "reason": reason})
        return Unwind(self._pool, self.tenant, self.run)

    def finish(self) -> None:
        """The task is done: the run takes no call any more, and what it recorded goes on."""
        self._pool.row(_SQL["close_run"], {"tenant": self.tenant, "run": self.run})

    def _check_names(self, step: str | None, ref: str | None, repeat: str | None) -> None:
        if step is not None:
            check_index_row(self.tenant, self.run, check_step_label(step), path="step")
        if ref is not None:
            check_index_row(self.tenant, self.run, check_id(ref, "ref", REF_CHARS_MAX), path="ref")
        if repeat is not None:
            check_id(repeat, "repeat", REASON_CHARS_MAX)

    def _performed_here(self, spec: ToolSpec, arguments: str | bytes | Mapping[str, object]) -> Result:
        try:
            bound = spec.bind(checked_arguments(spec, arguments, rules=self._rules))
        except ArgumentError as error:
            return refused(error)
        return Result(status=Status.SUCCEEDED, value=to_jsonable_python(spec.function(**bound)))

    def _answer(self, call: PlacedCall, until: float) -> Result:
        """Asks the ledger until the call has its action, waiting for others that hold it back."""
        for _ in range(BLOCKS_MAX):
            may_wait = time.monotonic() < until
            met = self._recorder.met(call, may_wait=may_wait)
            if isinstance(met, Meant):
                return self._outcome(call, met, until)
            if isinstance(met, Unseen):
                return self._unseen(met)
            if met.by is None or not (may_wait and met.waits):
                return _blocked(met)
            self._waiter.until_answered(met.by, until)
        raise AssertionError("a run has fewer actions than that")

    def _outcome(self, call: PlacedCall, meant: Meant, until: float) -> Result:
        """Waits for the action's end, and no longer than asked; then its result is handed out."""
        settled = False
        try:
            row = self._waiter.until_answered(meant.action_id, until)
            settled = row["state"] in SETTLED
        finally:
            self._memory.hand_out(meant.action_id, settled=settled)
        return self._told(row, asked=call.checked.arguments, replayed=meant.replayed, already_done=meant.already_done)

    def _unseen(self, met: Unseen) -> Result:
        self._memory.show(str(row["action_id"]) for row in met.rows)
        return Result(
            status=Status.BLOCKED,
            next_step=NextStep.READ_UNSEEN,
            unseen=tuple(self._told(row, asked="", replayed=True) for row in met.rows),
        )

    def _told(self, row: Row, *, asked: str, replayed: bool = False, already_done: bool = False) -> Result:
        spec = self._registry.find(str(row["tool"]))
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
        """`succeeded` when everything is taken back, `pending` while it goes on, `blocked` where a person must decide.

        `code` is the run's state.
        """
        until = deadline(wait_s)
        while True:  # ends at `until`
            row = self._pool.row(_SQL["read_run"], self._key)
            if row is None:
                raise NotFound("there is no such run that this login may see.")
            left_s = until - time.monotonic()
            if row["state"] in _UNWOUND or left_s <= 0:
                break
            time.sleep(min(POLL_LAST_S, left_s))
        state = str(row["state"])
        status, next_step = _UNWOUND.get(state, (Status.PENDING, NextStep.WAIT))
        return Result(status=status, next_step=next_step, suspend=next_step is NextStep.PERSON, code=state)


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


def _blocked(met: Blocked) -> Result:
    return Result(
        action_id=met.by,
        status=Status.BLOCKED,
        next_step=met.next_step,
        suspend=met.next_step is NextStep.PERSON,
    )
