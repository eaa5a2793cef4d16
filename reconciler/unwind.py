"""Decides how a run is taken back: withdraw, wait, compensate inside first and newest first, one after the other.

Durable and resumable: every visit reads the ledger and does the next thing, so it may die anywhere and may run twice.
Compensations are actions with keys of their own; they start from what the ledger knows happened, never from a transcript.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import structlog

from counterfoil.ledger import unwinds
from counterfoil.ledger.canonical import canonical_json, load_stored, sha256_of
from counterfoil.ledger.connection import Ledger
from counterfoil.ledger.errors import ArgumentError, LedgerUnavailable
from counterfoil.ledger.keys import action_id
from counterfoil.ledger.states import UNSETTLED, State
from counterfoil.ledger.unwinds import Step, UndoIntent, UnwindingRun
from counterfoil.providers.registry import Registry

log: structlog.stdlib.BoundLogger = structlog.get_logger("counterfoil.unwind")

OUTSIDE = {"customer": 1, "public": 2, "legal": 2}
"""Audiences outside the company, by blast radius; every other audience is inside, rank 0."""

WITHDRAWABLE = frozenset({State.PROPOSED, State.AWAITING_APPROVAL, State.READY, State.RETRYABLE_FAILURE})
"""Nothing of these is on the wire; those in doubt go to their look-up instead of being cancelled."""

Progress = Literal["waiting", "blocked", "done"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Unwinder:
    """Takes runs back, a step at each visit."""

    ledger: Ledger
    registry: Registry
    by: str

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
                unwinds.block_unwind(self.ledger, run)
        return len(runs)

    def visit(self, run: UnwindingRun) -> Progress:
        """Does what can be done now and tells what the run waits for."""
        steps = unwinds.steps_of_run(self.ledger, run)
        progress = self._advance(steps)
        if progress == "blocked":
            unwinds.block_unwind(self.ledger, run)
        elif progress == "done":
            unwinds.finish_unwind(self.ledger, run)
        if progress != "waiting":
            log.info("unwind_visited", tenant=run.tenant, run=run.run, progress=progress)
        return progress

    def _advance(self, steps: Sequence[Step]) -> Progress:
        withdrawn = [unwinds.withdraw(self.ledger, s.action_id, by=self.by) for s in steps if s.state in WITHDRAWABLE]
        if withdrawn or any(s.state in UNSETTLED and s.state is not State.OPERATOR_REVIEW for s in steps):
            return "waiting"
        blocked = any(s.state is State.OPERATOR_REVIEW for s in steps)
        for step in in_order([s for s in steps if s.state is State.SUCCEEDED]):
            match self._compensate(step):
                case "waiting":
                    return "waiting"
                case "blocked":
                    blocked = True
                case "done":
                    pass
        return "blocked" if blocked else "done"

    def _compensate(self, step: Step) -> Progress:
        """Brings one succeeded step's counter-action a step further."""
        match step.undo_state:
            case None if step.compensation is None or step.superseded:
                return (
                    "blocked"  # nothing was written down that could take it back, or not for it alone: a person decides
                )
            case None:
                return self._propose(step)
            case State.SUCCEEDED:
                unwinds.mark_compensated(self.ledger, step.action_id, by=self.by)
                return "done"
            case State.OPERATOR_REVIEW:
                return "blocked"
            case state if state in UNSETTLED:
                return "waiting"
            case _:
                return "blocked"

    def _propose(self, step: Step) -> Progress:
        intent = self._undo_intent(step)
        if intent is None:
            log.error("undo_impossible", action_id=step.action_id, tool=step.tool)
            return "blocked"
        if unwinds.propose_undo(self.ledger, intent, by=self.by):
            log.info("undo_proposed", action_id=intent.action_id, of=step.action_id, tool=step.tool)
        return "waiting"

    def _undo_intent(self, step: Step) -> UndoIntent | None:
        """The counter-action as it was written down before the call; None when this process does not know its tool."""
        recorded = load_stored(step.compensation or "{}")
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
        place: str | int = int(step.step) if step.step.isdecimal() else step.step
        return UndoIntent(
            action_id=action_id(step.tenant, step.run, place, step.revision, "undo"),
            parent=step.action_id,
            tool_version=spec.version,
            class_=spec.cls.value,
            effect=spec.effect or "",
            target=target,
            provider=spec.provider,
            queue=spec.queue,
            arguments=text,
            arguments_sha256=sha256_of(text),
            audience=tuple(audience),
            amount_minor=amount_minor,
            currency=currency,
        )


def in_order(steps: Sequence[Step]) -> list[Step]:
    """Inside audiences first, customers and the public last; within a rank the newest first."""
    newest_first = sorted(steps, key=lambda s: (s.created_at, s.action_id), reverse=True)
    return sorted(newest_first, key=lambda s: max((OUTSIDE.get(a, 0) for a in s.audience), default=0))
