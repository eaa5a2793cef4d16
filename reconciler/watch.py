"""Decides nothing itself: claims settled rows that are watched, asks their providers again, and writes what that means.

It runs any number of times at once. What dies between two statements is done again when the claim has lapsed: an alarm is
opened once, a correction queued once, and a row that has moved is left alone.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import assert_never

import structlog

from counterfoil.ledger import corrections, watch
from counterfoil.ledger.connection import Ledger
from counterfoil.ledger.reviews import UNVERIFIED
from counterfoil.ledger.watch import Next, WatchedAction, WatchedGroup
from counterfoil.providers.attempt import requests_counted
from counterfoil.providers.contract import Adapter, Call, Contract
from counterfoil.providers.outcomes import Finding, Unknown
from counterfoil.providers.registry import Registry
from counterfoil.providers.spec import ToolSpec
from counterfoil.reconciler.budget import LookUpBudget
from counterfoil.reconciler.lookups import LEASE_SHARE, SHARED_MAX, known_tools
from counterfoil.reconciler.places import Place, place_of
from counterfoil.reconciler.watched import (
    Duplicate,
    FoundAfterAll,
    Meaning,
    NothingNew,
    Unanswered,
    again_s,
    meaning,
    next_visit_s,
)
from counterfoil.workers.calls import call_of
from counterfoil.workers.policy import Policy

log: structlog.stdlib.BoundLogger = structlog.get_logger("counterfoil.watch")

BATCHES_MAX = 50
"""Batches of one tick; the next tick goes on."""

BEHIND_S = 60.0
"""Uncertain rows that are overdue by more than this are looked up first: somebody waits for those."""

ORPHAN_AFTER_S = 3600.0
"""A row that is due for this long, of a tool that nobody has any more, is not watched further."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Watch:
    """Looks settled actions up again, until `watch_s` after they were settled."""

    ledger: Ledger
    registry: Registry
    adapter: Callable[[ToolSpec, str], Adapter]
    reach: Callable[[ToolSpec, str], str]
    """Where that adapter goes, and as whom."""
    policy: Callable[[str], Policy]
    contract: Callable[[ToolSpec], Contract]
    budget: LookUpBudget
    """Grants the requests: uncertain rows take theirs from the same one."""
    watch_s: float
    uncertain_after_s: float
    """An uncertain row is overdue only after that."""
    batch: int
    """Rows claimed at once where each needs a request of its own."""
    lease_s: float
    """A lapse costs a second look-up."""
    by: str

    def visit(self, *, budget_s: float) -> int:
        """Looks up what is due, batch after batch, for about `budget_s`; returns the number of rows asked about."""
        stop_at = time.monotonic() + budget_s
        specs = [self.registry.get(name, version) for name, version in known_tools(self.registry)]
        self._end_what_nobody_can_ask(specs)
        left_out = watch.providers_behind(self.ledger, behind_s=BEHIND_S + self.uncertain_after_s)
        rows = 0
        for _ in range(BATCHES_MAX):
            tools = [(s.name, s.version) for s in specs if self.contract(s).lookup and s.provider not in left_out]
            group = watch.oldest_group(self.ledger, tools=tools, batch=self.batch * SHARED_MAX)
            if group is None:
                break
            looked = self._look_up(group)
            rows += looked
            if not looked:  # nothing more is granted, or others have claimed it: the next tick goes on
                left_out.add(group.provider)
            if time.monotonic() >= stop_at:
                break
        return rows

    def _end_what_nobody_can_ask(self, specs: Sequence[ToolSpec]) -> None:
        blind = [(spec.name, spec.version) for spec in specs if not self.contract(spec).lookup]
        watch.end_blind(self.ledger, tools=blind)
        known = [(spec.name, spec.version) for spec in specs]
        orphans = watch.end_orphaned(self.ledger, known=known, older_s=ORPHAN_AFTER_S)
        if orphans:
            log.error("watched_tools_unknown", actions=orphans)

    def _look_up(self, group: WatchedGroup) -> int:
        """Looks up one batch of the group; returns the number of rows. What it may ask is granted before any is claimed."""
        spec = self.registry.get(group.tool, group.tool_version)
        place = self._reached(spec, group.account)
        answers = place.answers(spec.name) if place is not None else 1
        rows = min(group.due, self.batch * min(answers, SHARED_MAX))
        granted = 0
        if place is not None:
            granted = self.budget.take(spec.provider, math.ceil(rows / answers))
            rows = min(rows, granted * answers)
        if rows < 1:
            return 0
        lapses_at = time.monotonic() + self.lease_s
        batch = watch.claim_watched(self.ledger, group, batch=rows, lease_s=self.lease_s)
        with requests_counted() as requests:
            self._look(spec, place, batch, lapses_at)
        self.budget.spent(spec.provider, granted=granted, made=requests.made)
        return len(batch)

    def _look(self, spec: ToolSpec, place: Place | None, batch: Sequence[WatchedAction], lapses_at: float) -> None:
        """Asks and concludes, part after part; what the claim is too short for is due again when it has lapsed.

        `place`: how the account is reached, read before the batch was claimed; it is read again after each part.
        """
        readable = [(action, call) for action in batch if (call := self._call(action, place)) is not None]
        for part in _parts(spec, readable):
            if time.monotonic() >= lapses_at:
                break
            before, actions = place, [action for action, _ in part]
            findings = self._ask(spec, place, [call for _, call in part], lapses_at)
            place = self._reached(spec, actions[0].account)
            self._conclude(
                spec, actions, findings, {each.reach if each is not None else None for each in (before, place)}
            )

    def _call(self, action: WatchedAction, place: Place | None) -> Call | None:
        """What the provider is asked about; None when the row cannot be read: then nobody can ask."""
        try:
            return call_of(action, place.reach if place is not None else None)
        except ValueError:
            log.error("watched_row_unreadable", action_id=action.action_id, tool=action.tool)
            watch.watched_again(self.ledger, [Next(action, None, counts=False)])
            return None

    def _reached(self, spec: ToolSpec, account: str) -> Place | None:
        return place_of(spec, account, adapter=self.adapter, reach=self.reach)

    def _ask(
        self, spec: ToolSpec, place: Place | None, calls: Sequence[Call], lapses_at: float
    ) -> Mapping[str, Finding]:
        """A finding for each call; a look-up that fails proves nothing."""
        timeout_s = max(self.policy(spec.provider).timeout_s, LEASE_SHARE * (lapses_at - time.monotonic()))
        if place is None:
            return {}
        try:
            return dict(place.adapter.lookup(calls, timeout_s=timeout_s))
        except Exception as error:  # noqa: BLE001 - whatever failed in a read, it is Unknown, never absence
            log.warning("look_up_failed", tool=spec.name, rows=len(calls), error=type(error).__name__)
            return {call.action_id: Unknown(type(error).__name__) for call in calls}

    def _conclude(
        self,
        spec: ToolSpec,
        actions: Sequence[WatchedAction],
        findings: Mapping[str, Finding],
        asked_at: set[str | None],
    ) -> None:
        """Writes what was found, row by row, then when each is due again, at once."""
        visited = list[Next]()
        failed = 0
        for action in actions:
            said = _meaning(action, findings.get(action.action_id, Unknown("no_finding")), asked_at)
            failed += isinstance(said, Unanswered)
            if (following := self._write(spec, action, said)) is not None:
                visited.append(following)
        watch.watched_again(self.ledger, visited)
        log.info("watched", tool=spec.name, rows=len(actions), failed=failed)

    def _write(self, spec: ToolSpec, action: WatchedAction, said: Meaning) -> Next | None:
        """When the row is due again; None where its state has changed."""
        match said:
            case NothingNew():
                age_s = next_visit_s(action.age_s, self.watch_s, was_in_doubt=action.was_in_doubt)
                return _next(action, age_s, counts=True)
            case Unanswered(code):
                age_s = again_s(action.age_s, self.watch_s)
                if age_s is None:
                    log.error("watch_unanswered", action_id=action.action_id, tool=action.tool, code=code)
                return _next(action, age_s, counts=False)
            case FoundAfterAll(code, shown):
                evidence = _evidence(action, shown)
                if watch.found_after_all(self.ledger, action, code=code, evidence=evidence, by=self.by):
                    log.error("found_after_all", action_id=action.action_id, tool=action.tool, was=action.state.value)
                return None
            case Duplicate(shown):
                if watch.duplicate_found(self.ledger, action, evidence=_evidence(action, shown)):
                    log.error("duplicate_found", action_id=action.action_id, tool=action.tool)
                self._queue_correction(spec, action)
                return _next(action, None, counts=True)  # a person has it now
            case _:
                assert_never(said)

    def _queue_correction(self, spec: ToolSpec, action: WatchedAction) -> None:
        """Where the tool has one to say; an undo is no answer, since nobody knows which of the two it would take back."""
        queued = corrections.queue(self.ledger, action.action_id, declared=spec.correction is not None, by=self.by)
        if queued is not None:
            log.warning("correction_queued", correction_id=queued, of=action.action_id, tool=action.tool)


def _meaning(action: WatchedAction, finding: Finding, asked_at: set[str | None]) -> Meaning:
    """What the finding means; one of a form that nobody foresaw proves nothing."""
    if None in asked_at:  # nobody can say where that was asked
        return Unanswered("unreachable")
    moved = action.reach is not None and asked_at != {action.reach}
    receipt = None if action.receipt == UNVERIFIED else action.receipt
    try:
        return meaning(action.state, receipt, finding, moved=moved, was_in_doubt=action.was_in_doubt)
    except Exception as error:  # noqa: BLE001 - an adapter's answer that is none of ours stops no other row
        log.error("finding_unreadable", action_id=action.action_id, tool=action.tool, error=type(error).__name__)
        return Unanswered(type(error).__name__)


def _parts(
    spec: ToolSpec, rows: Sequence[tuple[WatchedAction, Call]]
) -> Iterator[Sequence[tuple[WatchedAction, Call]]]:
    """What is asked together. A function is asked for one row at a time: all of them may take longer than the claim."""
    if spec.adapter:
        if rows:
            yield rows
    else:
        yield from ([row] for row in rows)


def _next(action: WatchedAction, age_s: float | None, *, counts: bool) -> Next:
    at = None if age_s is None else action.watched_since + timedelta(seconds=age_s)
    return Next(action, at, counts)


def _evidence(action: WatchedAction, shown: str) -> str:
    """One line: which look-up after its end, as of when, and what it showed; receipts and codes only."""
    text = (
        f"look-up {action.watch_count + 1} after it was {action.state.value}, as of {action.as_of.isoformat()}: {shown}"
    )
    return text[:500]
