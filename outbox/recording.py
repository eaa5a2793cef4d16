"""How a call becomes a row: lock the run, read it, ask the step rules, write; two statements, one transaction."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import assert_never

from counterfoil.ledger.caps import CAP_USE
from counterfoil.ledger.errors import LedgerUnavailable, StepConflict, StepRace
from counterfoil.ledger.queries import load
from counterfoil.ledger.states import State
from counterfoil.outbox import backlog
from counterfoil.outbox.intents import CheckedCall
from counterfoil.outbox.lost_time import check_recorded, reporting_lost_time
from counterfoil.outbox.memory import Memory, Visit
from counterfoil.outbox.pool import LedgerPool, Row, Transaction
from counterfoil.outbox.results import NextStep
from counterfoil.outbox.run_view import ActionView, HandleView, Limits, RunView, Take, WantedCall
from counterfoil.outbox.steps import Attach, Blocked, ReadUnseen, Record, Refused, blocked_by, decide

RACES_MAX = 3
"""Runs of a call's transaction after a lost connection or a race; a repeated one finds what the first recorded."""

_SQL = load("counterfoil.ledger", "sql/agent.sql")


@dataclass(frozen=True, slots=True)
class PlacedCall:
    """A checked call, what the step rules see of it, and what the handle's caller had been told when it arrived."""

    checked: CheckedCall
    wanted: WantedCall
    visit: Visit
    note: str = ""
    """For the person who approves it."""


@dataclass(frozen=True, slots=True)
class Meant:
    """The recorded action that the call means."""

    action_id: str
    replayed: bool = False
    """An earlier call has recorded it."""
    already_done: bool = False


@dataclass(frozen=True, slots=True)
class Unseen:
    """Recorded results that come first."""

    rows: tuple[Row, ...]


Met = Meant | Blocked | Unseen


class Recorder:
    """Records calls of one handle. Thread-safe."""

    def __init__(
        self,
        pool: LedgerPool,
        memory: Memory,
        *,
        tenant: str,
        run: str,
        epoch: object,
        limits: Limits,
        refs_unique: bool,
    ) -> None:
        self._pool = pool
        self._memory = memory
        self._tenant = tenant
        self._run = run
        self._epoch = epoch
        self._limits = limits
        self._refs_unique = refs_unique

    def met(self, call: PlacedCall, *, may_wait: bool) -> Met:
        """What the call meets in the ledger; a new action is recorded. The call counts once, unless it `may_wait` and will.

        Raises what the step rules refuse, `LedgerLostTime`, and what `raise_told` tells. After a race or a lost connection
        the transaction is run again: whatever the first one recorded is then found by the rules.
        """
        own: set[str] = set()
        with reporting_lost_time(self._pool, self._tenant, self._run):
            for left in reversed(range(RACES_MAX)):
                try:
                    with self._pool.transaction() as transaction:
                        met = self._decided(transaction, call, may_wait=may_wait)
                        if isinstance(met, Meant):
                            self._memory.expect(call.visit, met.action_id)  # before another call can see the row
                            if not met.replayed:
                                own.add(met.action_id)  # also where the COMMIT is lost
                    if isinstance(met, Meant) and met.action_id in own:
                        return replace(met, replayed=False)
                    return met
                except (StepRace, LedgerUnavailable):
                    if not left:
                        raise
        raise AssertionError("unreachable")

    def _decided(self, transaction: Transaction, call: PlacedCall, *, may_wait: bool) -> Met:
        key = {"tenant": self._tenant, "run": self._run, "epoch": self._epoch}
        read = transaction.row(_SQL["lock_and_read"], key)
        assert read is not None
        rows = {str(row["action_id"]): row for row in json_rows(read["actions"])}
        check_recorded(call.visit.had, rows, json_rows(read["past"]))
        view = run_view(read, rows)
        handle = HandleView(
            told=call.visit.had.before(call.wanted.turn),
            due=self._memory.due(call.visit),
            refs_unique=self._refs_unique,
            limits=self._limits,
        )
        decision = decide(view, call.wanted, handle)
        match decision:
            case Refused():
                raise decision.error
            case Blocked():
                if may_wait and decision.waits:
                    transaction.rollback()
                return decision
            case ReadUnseen():
                return Unseen(tuple(rows[action_id] for action_id in decision.action_ids))
            case Attach():
                self._add_ref(transaction, call, decision.action_id)
                return Meant(decision.action_id, replayed=True, already_done=decision.already_done)
            case Record():
                return self._recorded(transaction, call, decision, may_wait=may_wait)
            case _:
                assert_never(decision)

    def _recorded(self, transaction: Transaction, call: PlacedCall, place: Record, *, may_wait: bool) -> Met:
        """Writes the new action, or finds the one that the ledger holds in its place, or in its way."""
        wanted = call.wanted
        cap = over_cap(transaction, call.checked, place.supersedes)
        if cap is not None:
            return Blocked(NextStep.LIMIT_REACHED, limit=cap)
        intent = call.checked.at(
            place.step,
            place.revision,
            seq=place.seq,
            supersedes=place.supersedes,
            repeat=wanted.repeat,
            staged=wanted.staged,
        )
        found = transaction.row(_SQL["propose"], intent.parameters())
        assert found is not None
        if found["found_by"] == "waiting":
            call.checked.rules.backlog.is_full(self._tenant)
            return Blocked(NextStep.LIMIT_REACHED, limit=backlog.SETTING)
        action_id = str(found["action_id"])
        if found["created"]:
            self._add_ref(transaction, call, action_id)
            if call.note:
                transaction.row(_SQL["note_proposal"], {"action_id": action_id, "note": call.note})
            return Meant(action_id)
        if found["found_by"] == "effect":  # another tool, maybe of another run of the tenant
            blocked = blocked_by(action_id, State(str(found["state"])))
            if may_wait and blocked.waits:
                transaction.rollback()
            return blocked
        by_step = found["found_by"] == "step"  # enqueued by code just now, which takes no lock
        if by_step and found["tool"] != wanted.tool:
            raise StepConflict(f"step {place.step!r} of this run is recorded with tool {found['tool']!r}.")
        return Meant(action_id, replayed=True, already_done=not by_step)

    def _add_ref(self, transaction: Transaction, call: PlacedCall, action_id: str) -> None:
        """The framework's name for this call now stands for the action, too."""
        wanted = call.wanted
        if wanted.ref is not None:
            params = {"tenant": self._tenant, "run": self._run, "turn": wanted.turn, "ref": wanted.ref}
            about = {"action_id": action_id, "arguments_sha256": wanted.arguments_sha256}
            transaction.row(_SQL["add_ref"], {**params, **about})


def over_cap(transaction: Transaction, checked: CheckedCall, supersedes: str | None) -> str | None:
    """The setting of the cap that leaves no room for one more such call. A worker looks again, right before it sends."""
    spec, caps, effect = checked.spec, checked.rules.caps, checked.spec.effect or ""
    if not caps.capped(spec.name, effect):
        return None
    key: dict[str, object] = {"tenant": checked.tenant, "run": checked.run, "tool": spec.name, "effect": effect}
    about = {"target": checked.target, "audience": list(checked.audience)}
    this = {"currency": checked.currency, "action_id": supersedes or "", "recorded_at": None, "at": None}
    use = transaction.row(
        CAP_USE,
        {
            **key,
            **about,
            **this,
            "without_rivals": False,
            "parent": checked.parent,
            "per_day": caps.per_day(spec.name, effect),
        },
    )
    assert use is not None
    return caps.exceeded(use, spec.name, effect, amount_minor=checked.amount_minor)


def run_view(read: Row, rows: Mapping[str, Row]) -> RunView:
    """What the rules see of the run; `rows` are its actions by id, in the order of their recording."""
    fields = (
        *("action_id", "step", "seq", "revision", "tool", "effect", "target", "arguments_sha256", "once_key"),
        *("ends_count", "last_error_code", "proposal_id", "place", "parent_action_id"),
    )
    actions = (
        ActionView(
            **{name: row[name] for name in fields},  # type: ignore[arg-type]
            state=State(str(row["state"])),
            rejected_before=tuple(row["rejected_before"] or ()),  # type: ignore[arg-type]
            edited_before=tuple((target, sha256) for target, sha256 in row["edited_before"] or ()),  # type: ignore[attr-defined]
        )
        for row in rows.values()
    )
    return RunView(
        state=str(read["state"]),
        calls_count=int(str(read["calls_count"])),
        actions=tuple(actions),
        takes=tuple(Take(**take) for take in json_rows(read["refs"])),  # type: ignore[arg-type]
        pivot=None if read["pivot"] is None else str(read["pivot"]),
    )


def json_rows(value: object) -> list[Row]:
    """A jsonb column, which some drivers give as text."""
    found: list[Row] = json.loads(value) if isinstance(value, str) else value  # type: ignore[assignment]
    return found
