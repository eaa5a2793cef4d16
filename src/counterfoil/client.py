"""What an application holds in its hands: one object that records intents and tells what became of them."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Self

from sqlalchemy import Engine

from counterfoil.ledger.address import Address
from counterfoil.ledger.errors import NotFound
from counterfoil.ledger.keys import ACTOR_CHARS_MAX, ActionId, check_id, is_action_id
from counterfoil.ledger.queries import load
from counterfoil.outbox import enqueue as by_transaction
from counterfoil.outbox.calling import HOLD_MARGIN_S, Shared
from counterfoil.outbox.conversation import Conversation
from counterfoil.outbox.handle import Run
from counterfoil.outbox.intents import REASON_CHARS_MAX, DoorRules, check_run
from counterfoil.outbox.pool import LedgerPool
from counterfoil.outbox.results import Result, Status, ends_of, result_of
from counterfoil.outbox.run_view import Limits
from counterfoil.outbox.seen import Tokens, told
from counterfoil.outbox.setup import door_rules, run_limits
from counterfoil.outbox.threads import Threads
from counterfoil.outbox.waiting import Deadline, Waiter
from counterfoil.providers.registry import Registry

if TYPE_CHECKING:
    from counterfoil.settings import Settings

_SQL = load("counterfoil.ledger", "sql/agent.sql")


class Counterfoil:
    """The agent's side of the ledger. Thread-safe; may be used on both sides of a fork. Make one for a process.

    Nothing is connected before the first use. It needs a login in the agents' role.
    """

    def __init__(
        self, database: Engine | str | Address, *, settings: Settings | None = None, registry: Registry | None = None
    ) -> None:
        """`database` is the application's Engine, or a URL for a pool of our own.

        The tools are `registry`'s, else those of the modules that `settings` names. Raises `ConfigError` and
        `ToolDefinitionError`; reads no file and no environment.
        """
        self._pool = LedgerPool(database)
        self._waiter = Waiter(self._pool)
        self._threads = Threads()
        if registry is None:
            registry = Registry() if settings is None else Registry.load(settings.tools, settings.http)
        self._registry = registry
        self._rules = DoorRules() if settings is None else door_rules(settings)
        self._shared = Shared(
            pool=self._pool,
            waiter=self._waiter,
            threads=self._threads,
            registry=self._registry,
            rules=self._rules,
            limits=Limits() if settings is None else run_limits(settings),
            hold_margin_s=HOLD_MARGIN_S if settings is None else settings.approval.hold_margin_s,
        )

    @classmethod
    def from_settings(cls, path: Path | str | None = None) -> Self:
        """From `counterfoil.toml` (`path`, or what COUNTERFOIL_CONFIG names, or the one here) and COUNTERFOIL_*."""
        from counterfoil.settings import Settings

        settings = Settings.load(None if path is None else Path(path))
        return cls(settings.database_address(), settings=settings)

    def run(
        self,
        run: str,
        *,
        tenant: str,
        actor: str,
        seen: Tokens = (),
        refs_unique: bool = False,
        deadline_s: float | None = None,
    ) -> Run:
        """Opens the run, or opens it again and takes it over from every older handle.

        `seen` are tokens of the answers that the caller's transcript holds: with none, recorded results come back and
        nothing runs twice. `refs_unique` promises that no `ref` of this run ever stands for two calls (with a `turn`, no
        promise is needed). `deadline_s` from the first opening on no attempt begins any more. Raises `ArgumentError` (an
        id; a token that is malformed or another run's), `NotAllowed`, `LedgerUnavailable`. In an event loop:
        `async with cf.run(…) as run`.
        """
        return Run(
            self._shared,
            run,
            tenant=tenant,
            actor=actor,
            seen=seen,
            refs_unique=refs_unique,
            deadline_s=deadline_s,
        )

    def conversation(
        self,
        run: str,
        *,
        tenant: str,
        actor: str,
        refs_unique: bool = False,
        wait_s: float = 10,
        hold_s: float = 120,
    ) -> Conversation:
        """The run of a conversation that several processes may serve, for `with` and `async with`.

        Within the block no other process that asks in this way has the run: two messages of one user are worked on one
        after the other. It waits up to `wait_s` (else `RunBusy`), and holds the run for at most `hold_s`, an hour at most;
        a process that takes longer, or has died, is taken over then. Read the transcript within the block, and give its
        tokens with each call. Raises what `run` does, too.
        """
        tenant, run, actor = check_run(tenant, run, actor)
        opened = partial(self.run, run, tenant=tenant, actor=actor, refs_unique=refs_unique)
        return Conversation(self._shared, opened, tenant=tenant, run=run, actor=actor, wait_s=wait_s, hold_s=hold_s)

    def enqueue(
        self,
        conn: by_transaction.SyncConnection,
        tool: str,
        arguments: str | bytes | Mapping[str, object],
        *,
        tenant: str,
        run: str,
        step: str,
        actor: str,
        not_before: datetime | None = None,
        resource_version: str | None = None,
    ) -> ActionId:
        """Records the call on the caller's own transaction, by one statement, and never commits.

        `conn` is a Session, a Connection or a psycopg Connection. The same (tenant, run, step) is the same action.
        `resource_version` is the version of what it changes that the caller has seen. Raises `ConfigError` (no such tool),
        `ArgumentError`, `IntentConflict`, `StepConflict`, `StepRace` (run the transaction again), `NotAllowed` (the run takes
        none now, or another tool has the effect under way), `LimitReached` (the tenant has too much waiting),
        `LedgerUnavailable`.
        """
        return by_transaction.enqueue(
            conn,
            self._registry.get(tool),
            arguments,
            tenant=tenant,
            run=run,
            step=step,
            actor=actor,
            not_before=not_before,
            resource_version=resource_version,
            rules=self._rules,
        )

    async def aenqueue(
        self,
        conn: by_transaction.AnyAsyncConnection,
        tool: str,
        arguments: str | bytes | Mapping[str, object],
        *,
        tenant: str,
        run: str,
        step: str,
        actor: str,
        not_before: datetime | None = None,
        resource_version: str | None = None,
    ) -> ActionId:
        """`enqueue` on an AsyncSession, an AsyncConnection or a psycopg AsyncConnection."""
        return await by_transaction.aenqueue(
            conn,
            self._registry.get(tool),
            arguments,
            tenant=tenant,
            run=run,
            step=step,
            actor=actor,
            not_before=not_before,
            resource_version=resource_version,
            rules=self._rules,
        )

    def result(self, action_id: str, *, tenant: str | None = None, wait_s: float = 0) -> Result:
        """What is known about the action, after waiting up to `wait_s` for its end, a person's decision included. Never a
        new call. Its `seen` is the token of this end alone: give it to the run's next call.

        With `tenant`, an action of another one is not found. Raises `NotFound`, `NotAllowed`, `LedgerUnavailable`.
        """
        return self._result(action_id, tenant, Deadline(wait_s))

    async def aresult(self, action_id: str, *, tenant: str | None = None, wait_s: float = 0) -> Result:
        """`result` for an event loop: it waits in a thread of our own, and a cancelled caller stops the waiting."""
        until = Deadline(wait_s)
        work = partial(self._result, action_id, tenant, until)
        return await self._threads.run(work, on_cancel=lambda _: until.give_up())

    def schemas(self) -> list[dict[str, object]]:
        """The tools as a model is shown them; names that carry identity are absent."""
        return self._registry.schemas()

    def cancel(self, action_id: str, reason: str, *, actor: str = "application") -> Result:
        """Withdraws the action where nothing was sent; where something may have been, forbids another attempt.

        The result tells which: `cancelled`, or, with `code="cancel_requested"`, still `pending` or `uncertain` until
        the outcome is recorded or evidence decides. A settled action stays as it is, and its result says so. Raises
        `NotFound`, `NotAllowed`, `ArgumentError`, `LedgerUnavailable`.
        """
        _check_action_id(action_id)
        params = {
            "action_id": action_id,
            "by": check_id(actor, "actor", ACTOR_CHARS_MAX),
            "reason": check_id(reason, "reason", REASON_CHARS_MAX),
        }
        row = self._pool.row(_SQL["request_cancel"], params)
        if row is None or row["state"] is None:
            raise NotFound(f"there is no action {action_id}.")
        found = self.result(action_id)
        is_open = found.status in (Status.PENDING, Status.UNCERTAIN)
        return found.model_copy(update={"code": "cancel_requested"}) if is_open else found

    async def acancel(self, action_id: str, reason: str, *, actor: str = "application") -> Result:
        """`cancel` for an event loop. A cancelled caller may have withdrawn it."""
        return await self._threads.run(partial(self.cancel, action_id, reason, actor=actor), on_cancel=lambda _: None)

    def close(self) -> None:
        """Closes idle connections; the object can be used again."""
        self._threads.close()
        self._pool.close()

    def _result(self, action_id: str, tenant: str | None, until: Deadline) -> Result:
        _check_action_id(action_id)
        with until.bounds():
            row = self._waiter.until_answered(action_id, until, tenant=tenant, for_person=True)
        spec = self._registry.find(str(row["tool"]))
        result = result_of(row, argument_names=spec.arguments.names if spec is not None else ())
        token = told(ends_of([row])).token(str(row["tenant"]), str(row["run"]))
        return result.model_copy(update={"seen": token})


def _check_action_id(action_id: str) -> None:
    if not is_action_id(action_id):
        raise NotFound("that is no action id.", fix="An action id is `act_` and 26 letters or digits.")
