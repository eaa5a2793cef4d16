"""One conversation that several processes may serve: within the block its run is this process's, others wait for it."""

from __future__ import annotations

import threading
import uuid
from collections.abc import Callable
from concurrent.futures import Future
from contextlib import suppress
from types import TracebackType

from counterfoil.ledger.errors import LedgerUnavailable, RunBusy
from counterfoil.ledger.queries import load
from counterfoil.outbox.calling import Shared
from counterfoil.outbox.handle import Run
from counterfoil.outbox.waiting import POLL_FIRST_S, POLL_LAST_S, Deadline

HOLD_S_MAX = 3600.0

_SQL = load("counterfoil.ledger", "sql/agent.sql")


class Conversation:
    """A run that is held for a block, as `Counterfoil.conversation` makes it. Each block opens the run anew.

    The hold is a courtesy between processes that ask for it, not what makes a call safe: whoever opens the run without it,
    or after it has ended, takes the run over, and this handle gets `RunTakenOver` at its next call.
    """

    def __init__(
        self,
        shared: Shared,
        opened: Callable[[], Run],
        *,
        tenant: str,
        run: str,
        actor: str,
        wait_s: float,
        hold_s: float,
    ) -> None:
        self._shared = shared
        self._opened = opened
        self._key: dict[str, object] = {"tenant": tenant, "run": run, "holder": uuid.uuid4().hex}
        self._actor = actor
        self._wait_s = wait_s
        self._hold_s = min(max(hold_s, 1.0), HOLD_S_MAX)

    def __enter__(self) -> Run:
        """Waits for the run's turn. Raises `RunBusy` when another process has it for longer than `wait_s`."""
        return self._enter(Deadline(self._wait_s))

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._release()

    async def __aenter__(self) -> Run:
        until = Deadline(self._wait_s)

        def drop(work: Future[Run]) -> None:
            """Nobody enters: what was got after all is given back, in a thread, since this may be the event loop's."""
            until.give_up()
            work.add_done_callback(lambda _: threading.Thread(target=self._release).start())

        return await self._shared.threads.run(lambda: self._enter(until), on_cancel=drop)

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None
    ) -> None:
        await self._shared.threads.run(self._release, on_cancel=lambda _: None)

    def _enter(self, until: Deadline) -> Run:
        with until.bounds():
            return self._opened_in_turn(until)

    def _opened_in_turn(self, until: Deadline) -> Run:
        params = {**self._key, "actor": self._actor, "hold_s": self._hold_s}
        pause_s = POLL_FIRST_S
        while True:  # ends at `until`
            row = self._shared.pool.row(_SQL["hold_run"], params)
            if row is not None and row["held"]:
                break
            if not until.left_s:
                raise RunBusy(
                    "another process serves this conversation.",
                    fix="Answer the user that the message before is still being worked on, or wait longer (wait_s).",
                )
            until.pause(pause_s)
            pause_s = min(pause_s * 1.5, POLL_LAST_S)
        try:
            return self._opened()
        except BaseException:
            self._release()
            raise

    def _release(self) -> None:
        with suppress(LedgerUnavailable):  # it ends by itself then, after hold_s
            self._shared.pool.row(_SQL["release_run"], self._key)
