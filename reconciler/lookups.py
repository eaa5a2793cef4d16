"""Decides nothing itself: claims uncertain rows, group by group, and asks about them; what that means is `Conclusions`'.

A look-up is a read and may run twice. Rows of one tool and account are asked about together: where the provider allows it,
one request answers many.
"""

from __future__ import annotations

import math
import random
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from uuid import uuid4

import structlog

from counterfoil.ledger import verdicts
from counterfoil.ledger.connection import Ledger
from counterfoil.ledger.verdicts import LookUpGroup, UncertainAction
from counterfoil.providers.attempt import requests_counted
from counterfoil.providers.contract import OTHER_KEY, Adapter, Call, Contract, Fetcher, ToolClass
from counterfoil.providers.outcomes import Finding, Found, Succeeded, Unknown
from counterfoil.providers.registry import Registry
from counterfoil.providers.spec import ToolSpec
from counterfoil.reconciler.budget import LookUpBudget
from counterfoil.reconciler.conclusions import AskedAbout, Conclusions
from counterfoil.reconciler.health import Health
from counterfoil.reconciler.places import Place, place_of
from counterfoil.reconciler.verdict import Person
from counterfoil.workers.calls import call_of
from counterfoil.workers.policy import Policy

log: structlog.stdlib.BoundLogger = structlog.get_logger("counterfoil.reconciler")

BATCHES_MAX = 50
"""Batches of one sweep; the next tick goes on."""

SHARED_MAX = 10
"""Where one request answers many rows, a batch is up to so many times as large: of a list of a hundred, fewer pages are read
in part only. Their verdicts must still fit into the lease."""

LEASE_SHARE = 0.5
"""Of what is left of the lease, for the look-up: the rest is for writing the verdicts. More than one request may take, or a
list of many pages would be begun again and again and never end."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LookUps:
    """Finds out what became of uncertain actions."""

    ledger: Ledger
    registry: Registry
    adapter: Callable[[ToolSpec, str], Adapter]
    reach: Callable[[ToolSpec, str], str]
    """Where that adapter goes, and as whom."""
    policy: Callable[[str], Policy]
    contract: Callable[[ToolSpec], Contract]
    conclusions: Conclusions
    budget: LookUpBudget
    health: Health
    uncertain_after_s: float
    """A row is left alone for this long after it turned uncertain: most late landings need no look-up before."""
    batch: int
    """Rows claimed at once where each needs a request of its own."""
    lease_s: float
    """A lapse costs a second look-up, never a second effect."""
    by: str
    rng: random.Random

    def sweep(self, *, budget_s: float) -> int:
        """Looks up what is due, group after group, for about `budget_s`; returns the number of rows."""
        stop_at = time.monotonic() + budget_s
        rows = batches = 0
        ended: set[tuple[str, int, str]] = set()
        while groups := [group for group in self._in_turn() if group.name not in ended]:
            for group in groups:
                looked, is_more = self._look_up(group)
                rows, batches = rows + looked, batches + 1
                if not is_more:
                    ended.add(group.name)
                if batches >= BATCHES_MAX or time.monotonic() >= stop_at:
                    return rows
        return rows

    def _in_turn(self) -> list[LookUpGroup]:
        """The longest due group first, then the others in any order, so that several reconcilers share the work."""
        groups = verdicts.due_groups(
            self.ledger,
            tools=known_tools(self.registry),
            batch=self.batch * SHARED_MAX,
            uncertain_after_s=self.uncertain_after_s,
        )
        others = groups[1:]
        self.rng.shuffle(others)
        return [*groups[:1], *others]

    def _look_up(self, group: LookUpGroup) -> tuple[int, bool]:
        """Looks up one batch of the group: the rows, and whether there may be more for this sweep.

        What it may ask is taken before anything is claimed: rows that must wait stay due, and no look-up of theirs is spent.
        """
        spec = self.registry.get(group.tool, group.tool_version)
        place = self._reached(spec, group.account)
        answers = place.answers(spec.name) if place is not None else 1
        rows = min(group.due, self.batch * min(answers, SHARED_MAX))
        granted = None  # nobody will be asked: there is no look-up, or no way there
        if place is not None and self.contract(spec).lookup:
            granted = self.budget.take(spec.provider, math.ceil(rows / answers))
            rows = min(rows, granted * answers)
        if rows < 1:
            return 0, False
        lapses_at = time.monotonic() + self.lease_s
        batch = verdicts.claim_uncertain(
            self.ledger,
            fence=uuid4(),
            tool=group.tool,
            version=group.tool_version,
            account=group.account,
            batch=rows,
            lease_s=self.lease_s,
            uncertain_after_s=self.uncertain_after_s,
            by=self.by,
        )
        with requests_counted() as requests:
            effects = self._look(spec, place, batch, lapses_at)
        self.budget.spent(spec.provider, granted=granted or 0, made=requests.made)
        self.budget.found(spec.provider, effects)
        return len(batch), len(batch) == rows

    def _look(self, spec: ToolSpec, place: Place | None, batch: Sequence[UncertainAction], lapses_at: float) -> int:
        """Asks and concludes; what the lease is too short for lapses, and is looked at again. How many effects it found.

        `place`: how the account is reached, read before the batch was claimed; it is read again after each part.
        """
        effects = 0
        group = [(action, call) for action in batch if (call := self._call(spec, action, place)) is not None]
        for part in _parts(spec, group):
            if time.monotonic() >= lapses_at:
                break
            before = place
            findings = self._ask(spec, place, part, lapses_at)
            place = self._reached(spec, part[0][0].account)
            self.health.note(spec.provider, part[0][0].account, findings.values(), reachable=before is not None)
            asked_at = {each.reach if each is not None else None for each in (before, place)}
            found = []
            for action, _ in part:
                finding = findings.get(action.action_id, Unknown("no_finding"))
                if before is None and finding is not None:  # nobody can say where that was asked
                    finding = Unknown("unreachable")
                moved = action.reach is not None and before is not None and asked_at != {action.reach}
                found.append(AskedAbout(action, finding, moved))
            effects += self.conclusions.conclude(spec, found)
        return effects

    def _call(self, spec: ToolSpec, action: UncertainAction, place: Place | None) -> Call | None:
        """What the provider is asked about; None when the row cannot be read, which is a person's then."""
        try:
            call = call_of(action, place.reach if place is not None else None)
        except ValueError:
            log.error("row_unreadable", action_id=action.action_id, tool=action.tool)
            self.conclusions.write(action, Person("unreadable"), "the recorded arguments are no JSON object")
            return None
        moved = place is not None and action.reach not in (None, place.reach)
        return replace(call, presence_only=self.conclusions.needs_presence_only(spec, action, moved=moved))

    def _reached(self, spec: ToolSpec, account: str) -> Place | None:
        return place_of(spec, account, adapter=self.adapter, reach=self.reach)

    def _ask(
        self,
        spec: ToolSpec,
        place: Place | None,
        part: Sequence[tuple[UncertainAction, Call]],
        lapses_at: float,
    ) -> Mapping[str, Finding | None]:
        """A finding for each call; None for all where the tool has no look-up. A look-up that fails proves nothing."""
        calls = [call for _, call in part]
        timeout_s = max(self.policy(spec.provider).timeout_s, LEASE_SHARE * (lapses_at - time.monotonic()))
        is_named = part[0][0].asked == "happened"
        if not is_named and not self.contract(spec).lookup:
            return dict.fromkeys((call.action_id for call in calls), None)
        if place is None:
            return {call.action_id: Unknown("unreachable") for call in calls}
        try:
            if is_named:
                return {
                    call.action_id: self._fetch(spec, place.adapter, action, call, timeout_s) for action, call in part
                }
            return dict(place.adapter.lookup(calls, timeout_s=timeout_s))
        except Exception as error:  # noqa: BLE001 - whatever failed in a read, it is Unknown, never absence
            log.warning("look_up_failed", tool=spec.name, rows=len(calls), error=type(error).__name__)
            return {call.action_id: Unknown(type(error).__name__) for call in calls}

    def _fetch(
        self, spec: ToolSpec, adapter: Adapter, action: UncertainAction, call: Call, timeout_s: float
    ) -> Finding | None:
        """What the object that a person has named says; without a way to fetch it, what a look-up finds under our key."""
        receipt = action.asked_receipt or ""
        if isinstance(adapter, Fetcher):
            return adapter.fetch(call, receipt, timeout_s=timeout_s)
        if not self.contract(spec).lookup:
            return None
        finding = adapter.lookup([call], timeout_s=timeout_s).get(call.action_id, Unknown("no_finding"))
        match finding:
            case Found(Succeeded(found)) if found != receipt:
                return Unknown(OTHER_KEY)
            case _:
                return finding


def known_tools(registry: Registry) -> list[tuple[str, int]]:
    """Name and version of every tool that leaves rows: old rows are judged by their own version's contract or not at all."""
    return [(spec.name, spec.version) for spec in registry if spec.cls is not ToolClass.PURE]


def _parts(
    spec: ToolSpec, group: Sequence[tuple[UncertainAction, Call]]
) -> Iterator[Sequence[tuple[UncertainAction, Call]]]:
    """What is asked together. A function is asked for one row at a time: all of them together may take longer than the
    lease. So is what a person has named, which is fetched by itself."""
    alone = [not spec.adapter or action.asked == "happened" for action, _ in group]
    together = [row for row, is_alone in zip(group, alone, strict=True) if not is_alone]
    if together:
        yield together
    yield from ([row] for row, is_alone in zip(group, alone, strict=True) if is_alone)
