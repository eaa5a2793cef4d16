"""One call of a run handle from its arrival to its answer: check, record or find, wait, tell."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

from pydantic_core import to_jsonable_python

from counterfoil.ledger.errors import ArgumentError
from counterfoil.ledger.keys import check_id, check_step_label
from counterfoil.outbox.intents import (
    REASON_CHARS_MAX,
    REF_CHARS_MAX,
    CheckedCall,
    DoorRules,
    check_call,
    check_index_row,
    check_note,
    checked_arguments,
)
from counterfoil.outbox.memory import Memory, Visit
from counterfoil.outbox.pool import LedgerPool, Row
from counterfoil.outbox.recording import Meant, PlacedCall, Recorder, Unseen
from counterfoil.outbox.results import NextStep, Result, Status, ends_of, refused, result_of
from counterfoil.outbox.run_view import Limits, WantedCall
from counterfoil.outbox.seen import told
from counterfoil.outbox.steps import Blocked
from counterfoil.outbox.threads import Threads
from counterfoil.outbox.waiting import Deadline, Waiter
from counterfoil.providers.contract import ToolClass
from counterfoil.providers.coroutines import called
from counterfoil.providers.registry import Registry
from counterfoil.providers.spec import ToolSpec

BLOCKS_MAX = 1000
"""Times that one call is held back; each time another action has ended, and a run has fewer."""

HOLD_MARGIN_S = 3600.0
"""Without a configuration."""

Arguments = str | bytes | Mapping[str, object]
"""A model's JSON text, or an object from code."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Shared:
    """What the runs of one process share."""

    pool: LedgerPool
    waiter: Waiter
    threads: Threads
    registry: Registry
    rules: DoorRules
    limits: Limits
    hold_margin_s: float = HOLD_MARGIN_S
    """A plan is decided this long before what it has staged lapses."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """One call as its caller asks for it."""

    tool: str
    arguments: Arguments
    step: str | None = None
    turn: str | None = None
    ref: str | None = None
    repeat: str | None = None
    note: str | None = None
    resource_version: str | None = None
    staged: bool = False
    """Only a reversible form will do, bad arguments are raised, and the run has its pivot ahead then."""


@dataclass(frozen=True, slots=True)
class Answer:
    """A result on its way to the caller, and the rows whose ends it tells."""

    result: Result
    tells: tuple[Row, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Calls:
    """The calls of one handle. Thread-safe."""

    shared: Shared
    memory: Memory
    tenant: str
    run: str
    actor: str
    refs_unique: bool = False

    def answer(self, asked: Asked, visit: Visit, opened: Callable[[], object], until: Deadline) -> Answer:
        """What becomes of the call; blocks until `until` at the latest. The visit ends with `hand_over`, or by its caller.

        `opened` opens the run, unless that was done, and gives its epoch.
        """
        spec = self.shared.registry.get(asked.tool)
        self._check_names(asked)
        if asked.staged and spec.cls is not ToolClass.REVERSIBLE:
            raise ArgumentError(
                f"{spec.name} is {spec.cls.value}: only a reversible form is staged.",
                path="tool",
                code="not_reversible",
                fix="Propose it, with what it needs staged first.",
            )
        if spec.cls is ToolClass.PURE:
            bound = self._bound(spec, asked.arguments)
            return bound if isinstance(bound, Answer) else _performed(called(spec.function, bound))
        try:
            checked = check_call(
                spec,
                asked.arguments,
                tenant=self.tenant,
                run=self.run,
                actor=self.actor,
                rules=self.shared.rules,
                expected_version=asked.resource_version,
            )
        except ArgumentError as error:
            if asked.staged or error.path == "resource_version":
                raise
            return Answer(refused(error))
        call = PlacedCall(checked, _wanted(checked, asked), visit, asked.note or "")
        with until.bounds():
            return self._met(call, opened(), until)

    async def performed_in_loop(self, asked: Asked) -> Answer | None:
        """A pure tool that is a coroutine, in its caller's own event loop; None: it is another kind of tool."""
        spec = self.shared.registry.get(asked.tool)
        if spec.cls is not ToolClass.PURE or not inspect.iscoroutinefunction(spec.function):
            return None
        self._check_names(asked)
        bound = self._bound(spec, asked.arguments)
        return bound if isinstance(bound, Answer) else _performed(await spec.function(**bound))

    def hand_over(self, visit: Visit, answer: Answer) -> Result:
        """The caller has the result from now on, with the token of all that it has been told by then."""
        ends = self.ends(answer.tells)
        self.memory.leave(visit, ends)
        token = visit.had.joined(told(ends, visit.turn)).token(self.tenant, self.run)
        return answer.result.model_copy(update={"seen": token})

    def ends(self, rows: Iterable[Row]) -> list[tuple[str, int]]:
        """The ends that these rows of the run have, as they are told."""
        return ends_of(row for row in rows if row.get("run", self.run) == self.run)

    def told(self, row: Row, *, asked: str, replayed: bool = False, already_done: bool = False) -> Result:
        """The result of a row, for a caller whose arguments were `asked`."""
        spec = self.shared.registry.find(str(row["tool"]))
        return result_of(
            row,
            argument_names=spec.arguments.names if spec is not None else (),
            asked=asked,
            own_run=row.get("run", self.run) == self.run,
            replayed=replayed,
            already_done=already_done,
        )

    def check_label(self, step: str) -> None:
        """Raises `ArgumentError` for a label that no step can have."""
        check_index_row(self.tenant, self.run, check_step_label(step), path="step")

    def _check_names(self, asked: Asked) -> None:
        if asked.step is not None:
            self.check_label(asked.step)
        turn = "" if asked.turn is None else check_id(asked.turn, "turn", REF_CHARS_MAX)
        if asked.ref is not None:
            check_index_row(self.tenant, self.run, turn, check_id(asked.ref, "ref", REF_CHARS_MAX), path="ref")
        elif turn:
            raise ArgumentError(
                "is missing: within a turn each call has a reference of its own.",
                path="ref",
                code="missing_argument",
                fix="Give the id of the model's tool call.",
            )
        if asked.note is not None:
            check_note(asked.note)
        if asked.repeat is not None:
            check_id(asked.repeat, "repeat", REASON_CHARS_MAX)

    def _bound(self, spec: ToolSpec, arguments: Arguments) -> dict[str, object] | Answer:
        """A pure tool's arguments as it takes them, or the answer to a bad one."""
        try:
            return spec.bind(checked_arguments(spec, arguments, rules=self.shared.rules))
        except ArgumentError as error:
            return Answer(refused(error))

    def _met(self, call: PlacedCall, epoch: object, until: Deadline) -> Answer:
        """Asks the ledger until the call has its action, waiting for others that hold it back."""
        shared = self.shared
        recorder = Recorder(
            shared.pool,
            self.memory,
            tenant=self.tenant,
            run=self.run,
            epoch=epoch,
            limits=shared.limits,
            refs_unique=self.refs_unique,
        )
        for _ in range(BLOCKS_MAX):
            may_wait = until.left_s > 0
            met = recorder.met(call, may_wait=may_wait)
            if isinstance(met, Meant):
                return self._outcome(call, met, until)
            if isinstance(met, Unseen):
                return self._unseen(met)
            if met.by is None or not (may_wait and met.waits):
                return Answer(_blocked(met))
            shared.waiter.until_answered(met.by, until)
        raise AssertionError("a run has fewer actions than that")

    def _outcome(self, call: PlacedCall, meant: Meant, until: Deadline) -> Answer:
        """Waits for the action's end, and no longer than asked. A reviewer's revision stands for what it has replaced."""
        row = self.shared.waiter.until_answered(meant.action_id, until)
        result = self.told(row, asked=call.checked.arguments, replayed=meant.replayed, already_done=meant.already_done)
        return Answer(result, tells=(row,))

    def _unseen(self, met: Unseen) -> Answer:
        result = Result(
            status=Status.BLOCKED,
            next_step=NextStep.READ_UNSEEN,
            unseen=tuple(self.told(row, asked="", replayed=True) for row in met.rows),
        )
        return Answer(result, tells=met.rows)


def _performed(value: object) -> Answer:
    """What a pure tool has returned."""
    return Answer(Result(status=Status.SUCCEEDED, value=to_jsonable_python(value)))


def _wanted(checked: CheckedCall, asked: Asked) -> WantedCall:
    spec: ToolSpec = checked.spec
    return WantedCall(
        tool=spec.name,
        effect=spec.effect or "",
        target=checked.target,
        cls=spec.cls,
        arguments_sha256=checked.arguments_sha256,
        once_key=checked.once_key,
        step=asked.step,
        ref=asked.ref,
        turn=asked.turn or "",
        repeat=asked.repeat,
        staged=asked.staged,
        gated=checked.needs_approval,
    )


def _blocked(met: Blocked) -> Result:
    return Result(
        action_id=met.by,
        status=Status.BLOCKED,
        next_step=met.next_step,
        suspend=met.next_step is NextStep.PERSON,
        code=met.limit,
    )
