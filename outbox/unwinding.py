"""What a caller is told about an unwind: derived from the run and its steps, nothing is stored for it."""

from __future__ import annotations

from pydantic_core import to_jsonable_python

from counterfoil.ledger.errors import NotFound
from counterfoil.ledger.queries import load
from counterfoil.ledger.unwind_steps import told
from counterfoil.ledger.unwinds import step_of
from counterfoil.outbox.pool import LedgerPool
from counterfoil.outbox.results import NextStep, Result, Status
from counterfoil.outbox.threads import Threads
from counterfoil.outbox.waiting import POLL_LAST_S, Deadline

_SQL = load("counterfoil.ledger", "sql/agent.sql")
_STEPS = load("counterfoil.ledger", "sql/unwind.sql")["steps_of_run"]


class Unwind:
    """An unwind that was asked for. It goes on whether or not anybody waits for it."""

    def __init__(self, pool: LedgerPool, threads: Threads, tenant: str, run: str) -> None:
        self._pool = pool
        self._threads = threads
        self._key = {"tenant": tenant, "run": run}

    def result(self, wait_s: float = 0) -> Result:
        """`succeeded` when all is taken back but for what a person leaves done (`standing` is `kept`), `pending` while it
        goes on, `blocked` where a person must decide.

        `code` is the run's state. `value` lists the steps of the run and its child runs in the order of the unwind:
        `state`, what is to be done with each (`standing`), and `why` where that is a person's or it stays done; also
        `correction_id`, where those who saw it may have to be told, and `carried_on_by`, the later step that is taken
        back instead of it.
        """
        return self._result(Deadline(wait_s))

    async def aresult(self, wait_s: float = 0) -> Result:
        """`result` for an event loop: it waits in a thread of our own, and a cancelled caller stops the waiting."""
        until = Deadline(wait_s)
        return await self._threads.run(lambda: self._result(until), on_cancel=lambda _: until.give_up())

    def _result(self, until: Deadline) -> Result:
        while True:  # ends at `until`
            with until.bounds():
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
