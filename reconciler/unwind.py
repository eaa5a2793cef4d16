"""Decides how a run is taken back, with its child runs: withdraw, wait for evidence, compensate one after the other.

Durable and resumable: every visit reads the ledger and does the next thing, so it may die anywhere and may run twice.
Compensations are actions with keys of their own; they start from what the ledger knows happened, never from a transcript.
What nothing takes back is queued for a person: a message to those who saw it is never sent from here.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from typing import assert_never

import structlog

from counterfoil.ledger import alarms, corrections, unwinds
from counterfoil.ledger.canonical import canonical_json, load_stored, sha256_of
from counterfoil.ledger.connection import Ledger
from counterfoil.ledger.errors import ArgumentError, LedgerUnavailable
from counterfoil.ledger.keys import action_id, step_of
from counterfoil.ledger.states import UNSETTLED, State
from counterfoil.ledger.unwind_steps import WITHDRAWABLE, Progress, Standing, Step, in_order, standings, worst
from counterfoil.ledger.unwinds import TreeRun, UndoIntent, UnwindingRun
from counterfoil.outbox.accounts import NO_ACCOUNTS, Accounts
from counterfoil.providers.registry import Registry

log: structlog.stdlib.BoundLogger = structlog.get_logger("counterfoil.unwind")


@dataclass(frozen=True, slots=True, kw_only=True)
class Unwinder:
    """Takes runs back, a step at each visit."""

    ledger: Ledger
    registry: Registry
    by: str
    accounts: Accounts = NO_ACCOUNTS

    def visit_all(self) -> int:
        """Visits runs that are being taken back; returns how many there were. One that fails is a person's, alone."""
        runs = unwinds.runs_to_unwind(self.ledger)
        for run in runs:
            try:
                self.visit(run)
            except LedgerUnavailable:
                raise
            except Exception as error:  # noqa: BLE001 - a tool's own code, or a row that it never wrote
                log.error("unwind_failed", tenant=run.tenant, run=run.run, error=type(error).__name__)
                unwinds.set_state(self.ledger, run, "unwind_blocked")
        return len(runs)

    def visit(self, run: UnwindingRun) -> Progress:
        """Does what can be done now for the run and its child runs, in one order, and tells what it waits for."""
        steps = self._withdrawn(run)
        waits_for: defaultdict[str, Progress] = defaultdict(lambda: "done")
        stand = standings(steps)
        held = False
        for step in in_order(steps):
            there = stand[step.action_id]
            progress = self._move_on(step, there, held=held)
            held = held or (progress == "waiting" and there is not Standing.CORRECTING)
            waits_for[step.run] = worst(waits_for[step.run], progress)
        for each in unwinds.tree_of_run(self.ledger, tenant=run.tenant, run=run.run):  # children before their parents
            self._write_state(each, waits_for[each.run])
            if each.parent_run is not None:
                waits_for[each.parent_run] = worst(waits_for[each.parent_run], waits_for[each.run])
        return waits_for[run.run]

    def _withdrawn(self, run: UnwindingRun) -> list[Step]:
        """The steps, after all that was never sent was cancelled and everything unsettled kept from being sent again."""
        steps = unwinds.steps_of_run(self.ledger, tenant=run.tenant, run=run.run)
        wanted = [s for s in steps if s.state in UNSETTLED and (s.state in WITHDRAWABLE or not s.cancel_requested)]
        for step in wanted:
            unwinds.withdraw(self.ledger, step.action_id, by=self.by)
        return unwinds.steps_of_run(self.ledger, tenant=run.tenant, run=run.run) if wanted else steps

    def _move_on(self, step: Step, there: Standing, *, held: bool) -> Progress:
        """Brings the step further. `held`: one that comes before it is not settled, so no counter-action begins."""
        match there:
            case Standing.NOTHING:
                if step.state is State.COMPENSATED:
                    self._queue_correction(step)
                return "done"
            case Standing.KEPT | Standing.CARRIED:  # what carries it on has its own place in the order
                return "done"
            case Standing.WITHDRAW | Standing.EVIDENCE | Standing.COMPENSATING | Standing.CORRECTING:
                return "waiting"
            case Standing.COMPENSATED:
                unwinds.mark_compensated(self.ledger, step.action_id, by=self.by)
                self._queue_correction(step)  # whoever has marked it: that one may have died before this
                return "done"
            case Standing.CORRECT:
                self._queue_correction(step)
                return "blocked"
            case Standing.COMPENSATE:
                return "waiting" if held else self._propose(step)
            case Standing.REFUSED:
                assert step.undo_id is not None
                if unwinds.review_undo(self.ledger, step.undo_id, by=self.by):
                    log.warning("undo_refused", action_id=step.undo_id, of=step.action_id, code=step.undo_error_code)
                return "blocked"
            case Standing.PERSON:
                return "blocked"
            case never:
                assert_never(never)

    def _write_state(self, run: TreeRun, progress: Progress) -> None:
        match progress:
            case "done":
                changed = run.state != "unwound" and unwinds.finish_unwind(self.ledger, run)
            case "waiting":
                changed = unwinds.set_state(self.ledger, run, "unwinding")
            case "blocked":
                changed = unwinds.set_state(self.ledger, run, "unwind_blocked")
            case _:
                assert_never(progress)
        if changed:
            log.info("unwind_visited", tenant=run.tenant, run=run.run, progress=progress)

    def _queue_correction(self, step: Step) -> None:
        """Asks a person, once, what those are told who saw the step; of what is taken back only if the tool asks for it."""
        if step.correction_id is not None or (step.state is not State.SUCCEEDED and step.rank == 0):
            return
        spec = self.registry.find(step.tool)
        declared = spec is not None and spec.correction is not None
        queued = corrections.queue(self.ledger, step.action_id, declared=declared, by=self.by)
        if queued is not None:
            log.warning("correction_queued", correction_id=queued, of=step.action_id, tool=step.tool)

    def _propose(self, step: Step) -> Progress:
        intent = self._undo_intent(step)
        if intent is None:
            log.error("undo_impossible", action_id=step.action_id, tool=step.tool)
            alarms.raise_alarm(self.ledger, "unwind_blocked", step.action_id, tenant=step.tenant, run=step.run)
            return "blocked"
        alarms.end_alarm(self.ledger, "unwind_blocked", step.action_id)
        if unwinds.propose_undo(self.ledger, intent, by=self.by):
            log.info("undo_proposed", action_id=intent.action_id, of=step.action_id, tool=step.tool)
        return "waiting"

    def _undo_intent(self, step: Step) -> UndoIntent | None:
        """The counter-action as it was written down before the call; None when this process does not know its tool."""
        recorded = load_stored(unwinds.compensation_of(self.ledger, step.action_id))
        spec = self.registry.find(str(recorded.get("tool")))
        if spec is None:
            return None
        try:
            arguments = spec.validate(recorded["arguments"])
            target, audience = spec.target_of(arguments), spec.audience_of(arguments)
        except ArgumentError as error:
            log.error("undo_arguments_refused", action_id=step.action_id, code=error.code)
            return None
        amount_minor, currency = spec.amount_of(arguments)
        text = canonical_json(arguments)
        revision = step.revision if step.undo_revision is None else step.undo_revision + 1
        return UndoIntent(
            action_id=action_id(step.tenant, step.run, step_of(step.step), revision, "undo"),
            parent=step.action_id,
            tool_version=spec.version,
            class_=spec.cls.value,
            effect=spec.effect or "",
            target=target,
            provider=spec.provider,
            account=self.accounts.of(spec.provider, step.tenant),
            queue=spec.queue,
            arguments=text,
            arguments_sha256=sha256_of(text),
            audience=tuple(audience),
            amount_minor=amount_minor,
            currency=currency,
        )
