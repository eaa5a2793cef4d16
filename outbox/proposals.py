"""What a caller is told about a plan: derived from the proposal and its steps, nothing is stored for it."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from pydantic import JsonValue

from counterfoil.ledger.errors import NotFound
from counterfoil.ledger.queries import load
from counterfoil.ledger.states import SETTLED, State
from counterfoil.outbox.pool import LedgerPool, Row
from counterfoil.outbox.results import NextStep, Result, Status
from counterfoil.outbox.threads import Threads
from counterfoil.outbox.waiting import POLL_LAST_S, Deadline, Waiter

_SQL = load("counterfoil.ledger", "sql/agent.sql")

Tell = Callable[[Row], Result]
Told = Callable[[Sequence[Row]], str]


class Proposal:
    """A plan that a person decides on, whole. After an approval its steps run in their order by themselves.

    It goes on whether or not anybody holds this object: the same `propose` again gives the same proposal.
    """

    def __init__(
        self,
        proposal_id: str,
        *,
        pool: LedgerPool,
        waiter: Waiter,
        threads: Threads,
        tell: Tell,
        told: Told,
    ) -> None:
        """`told` is given the rows whose results the caller is told, and gives the token of their ends."""
        self.id = proposal_id
        self._pool = pool
        self._waiter = waiter
        self._threads = threads
        self._tell = tell
        self._told = told

    def __repr__(self) -> str:
        return f"Proposal({self.id!r})"

    @property
    def digest(self) -> str:
        """64 hex digits over all that is decided on, as it is now: the steps, what is staged, the time left. A read."""
        row = self._pool.row(_SQL["proposal_digest"], {"proposal": self.id})
        if row is None or row["digest"] is None:
            raise NotFound(f"there is no proposal {self.id} that this login may see.")
        return str(row["digest"])

    def result(self, wait_s: float = 0) -> Result:
        """What has become of it, after waiting up to `wait_s` for its end.

        `awaiting_approval` until somebody decides; `cancelled` (rejected, with the `reason`, or withdrawn); `stale` (expired,
        changed: nothing was sent); then `pending`, `uncertain`, and `succeeded` when every step has, with the steps' results
        as `value`. `failed`: a step has, its code is told, the steps after it were not begun, and `value` tells what was
        done. Raises `NotFound`, `LedgerUnavailable`.
        """
        return self._result(Deadline(wait_s))

    async def aresult(self, wait_s: float = 0) -> Result:
        """`result` for an event loop: it waits in a thread of our own, and a cancelled caller stops the waiting."""
        until = Deadline(wait_s)
        return await self._threads.run(lambda: self._result(until), on_cancel=lambda _: until.give_up())

    def _result(self, until: Deadline) -> Result:
        """The result at the end of the plan, or at `until`."""
        while True:  # ends at `until`
            with until.bounds():
                rows = self._pool.rows(_SQL["read_plan"], {"proposal": self.id})
            if not rows:
                raise NotFound(f"there is no proposal {self.id} that this login may see.")
            for row in rows:
                self._waiter.look(row)
            told = plan_result(rows, self._tell)
            if told.status in _ENDED or not until.left_s:
                break
            until.pause(POLL_LAST_S)
        return told.model_copy(update={"seen": self._told(rows)})


def plan_result(rows: Sequence[Row], tell: Tell) -> Result:
    """The result of a plan: `rows` are its steps in their order, each with the `decision` of their proposal."""
    steps = [tell(row) for row in rows]
    listed: JsonValue = [
        {"tool": str(row["tool"]), **step.model_dump(mode="json", exclude_none=True, exclude={"proposal_id"})}
        for row, step in zip(rows, steps, strict=True)
    ]
    status, next_step, code, value = _standing(str(rows[0]["decision"]), rows, steps)
    return Result(
        status=status,
        next_step=next_step,
        suspend=status is Status.AWAITING_APPROVAL or next_step is NextStep.PERSON,
        value=listed if value is None and status not in _NOTHING_DONE else value,
        code=code,
        proposal_id=str(rows[0]["proposal_id"]),
    )


Standing = tuple[Status, NextStep, str | None, JsonValue]


def _standing(decision: str, rows: Sequence[Row], steps: Sequence[Result]) -> Standing:
    states = [State(str(row["state"])) for row in rows]
    if State.OPERATOR_REVIEW in states:
        return Status.UNCERTAIN, NextStep.PERSON, None, None
    match decision:
        case "open":
            return Status.AWAITING_APPROVAL, NextStep.END_TURN, None, None
        case "rejected":
            why: JsonValue = next((step.value for step in steps if step.code == _REJECTED), None)
            return Status.CANCELLED, NextStep.REJECTED_BY_REVIEWER, _REJECTED, why
        case "expired":
            return Status.STALE, NextStep.NEW_PREVIEW, "approval_expired", None
        case _:  # approved, or withdrawn: its steps tell
            return _course(states, steps)


def _course(states: Sequence[State], steps: Sequence[Result]) -> Standing:
    """How far a plan has come, or where it has stopped."""
    if any(state in (State.UNCERTAIN, State.RECONCILING) for state in states):
        return Status.UNCERTAIN, NextStep.WAIT, None, None
    done = [step for step in steps if step.status is Status.SUCCEEDED]
    if len(done) == len(steps):
        undone = State.COMPENSATED in states
        return Status.SUCCEEDED, NextStep.END_TURN if undone else NextStep.NONE, "compensated" if undone else None, None
    if any(state not in SETTLED for state in states):
        return Status.PENDING, NextStep.WAIT, None, None
    cause = next((s for s in steps if s not in done and s.code != _STOPPED), None)
    if cause is None:
        return Status.CANCELLED, NextStep.NONE, _STOPPED, None
    if done or cause.status is Status.FAILED:  # the rest was not begun; what was done stands in `value`
        return Status.FAILED, NextStep.NONE, cause.code, None
    return cause.status, cause.next_step, cause.code, cause.value


_REJECTED = "rejected_by_reviewer"
_STOPPED = "plan_stopped"
"""The code of a step that was not begun since one before it had ended without its effect."""

_ENDED = frozenset({Status.SUCCEEDED, Status.FAILED, Status.CANCELLED, Status.STALE})
_NOTHING_DONE = frozenset({Status.AWAITING_APPROVAL, Status.CANCELLED, Status.STALE})
