"""Decides nothing itself: claims uncertain rows, asks their providers, and writes what the verdict says, fenced.

A look-up is a read and may run twice; a verdict is written once, by whoever still holds the row's token.
"""

from __future__ import annotations

import random
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import assert_never
from uuid import uuid4

import structlog

from counterfoil.ledger import verdicts
from counterfoil.ledger.canonical import load_stored
from counterfoil.ledger.connection import Ledger
from counterfoil.ledger.errors import ConfigError
from counterfoil.ledger.verdicts import UncertainAction
from counterfoil.providers.contract import OTHER_KEY, Adapter, Call, Contract, Fetcher, ToolClass
from counterfoil.providers.outcomes import Finding, Found, Many, Succeeded, Unknown
from counterfoil.providers.registry import Registry
from counterfoil.providers.spec import ToolSpec
from counterfoil.reconciler import asked
from counterfoil.reconciler.asked import BackToReview
from counterfoil.reconciler.verdict import (
    AskLater,
    Claimed,
    Fail,
    NotExecuted,
    Person,
    Resend,
    Settle,
    Verdict,
    verdict,
)
from counterfoil.workers.backoff import delay_s
from counterfoil.workers.calls import call_of
from counterfoil.workers.policy import Policy
from counterfoil.workers.settle import result_text

log: structlog.stdlib.BoundLogger = structlog.get_logger("counterfoil.reconciler")

BATCHES_MAX = 50
"""Batches of one sweep; the next tick goes on."""

LEASE_SHARE = 0.5
"""Of what is left of the lease, for one tool's look-up: the rest is for the batch's other tools. More than one request
may take, or a list of many pages would be begun again and again and never end."""


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
    ttl_margin_s: Callable[[ToolSpec], float]
    uncertain_after_s: float
    """A row is left alone for this long after it turned uncertain: most late landings need no look-up before."""
    base_s: float
    """The shortest pause between two look-ups of a row."""
    batch: int
    """Rows claimed at once: their look-ups share requests where the provider allows it."""
    lease_s: float
    """A lapse costs a second look-up, never a second effect."""
    skew_s: float
    """How far a provider's clock may be from the ledger's when a found object's age is compared with the first send."""
    by: str
    rng: random.Random

    def sweep(self, *, budget_s: float) -> int:
        """Looks up what is due, batch after batch, for about `budget_s`; returns the number of rows."""
        stop_at = time.monotonic() + budget_s
        rows = 0
        for _ in range(BATCHES_MAX):
            lapses_at = time.monotonic() + self.lease_s
            batch = verdicts.claim_uncertain(
                self.ledger,
                fence=uuid4(),
                tools=known_tools(self.registry),
                batch=self.batch,
                lease_s=self.lease_s,
                uncertain_after_s=self.uncertain_after_s,
                by=self.by,
            )
            self._look(batch, lapses_at)
            rows += len(batch)
            if len(batch) < self.batch or time.monotonic() >= stop_at:
                break
        return rows

    def _look(self, batch: Sequence[UncertainAction], lapses_at: float) -> None:
        """Asks and concludes group after group; what the lease is too short for lapses, and is looked at again."""
        groups: defaultdict[tuple[str, int, str], list[UncertainAction]] = defaultdict(list)
        for action in batch:
            groups[action.tool, action.tool_version, action.account].append(action)
        for (tool, version, account), actions in groups.items():
            spec = self.registry.get(tool, version)
            reach = self._reached(spec, account)
            group = [(action, call) for action in actions if (call := self._call(action, reach)) is not None]
            for part in _parts(spec, group):
                if time.monotonic() >= lapses_at:
                    return
                before = self._reached(spec, part[0][0].account)
                findings = self._ask(spec, part, lapses_at)
                asked_at = {before, self._reached(spec, part[0][0].account)}
                for action, _ in part:
                    finding = findings.get(action.action_id, Unknown("no_finding"))
                    if before is None and finding is not None:  # nobody can say where that was asked
                        finding = Unknown("unreachable")
                    moved = None not in (action.reach, before) and asked_at != {action.reach}
                    self._conclude(spec, action, finding, moved=moved)

    def _call(self, action: UncertainAction, reach: str | None) -> Call | None:
        """What the provider is asked about; None when the row cannot be read, which is a person's then."""
        try:
            return call_of(action, reach)
        except ValueError:
            log.error("row_unreadable", action_id=action.action_id, tool=action.tool)
            self._write(action, Person("unreadable"), "the recorded arguments are no JSON object")
            return None

    def _reached(self, spec: ToolSpec, account: str) -> str | None:
        """Where requests of this account go at this moment; None where it cannot be reached at all."""
        try:
            self.adapter(spec, account)
            return self.reach(spec, account)
        except ConfigError:
            return None

    def _ask(
        self, spec: ToolSpec, part: Sequence[tuple[UncertainAction, Call]], lapses_at: float
    ) -> Mapping[str, Finding | None]:
        """A finding for each call; None for all where the tool has no look-up. A look-up that fails proves nothing."""
        calls = [call for _, call in part]
        timeout_s = max(self.policy(spec.provider).timeout_s, LEASE_SHARE * (lapses_at - time.monotonic()))
        try:
            if part[0][0].asked == "happened":
                return {call.action_id: self._fetch(spec, action, call, timeout_s) for action, call in part}
            if not self.contract(spec).lookup:
                return dict.fromkeys((call.action_id for call in calls), None)
            return dict(self.adapter(spec, calls[0].account).lookup(calls, timeout_s=timeout_s))
        except Exception as error:  # noqa: BLE001 - whatever failed in a read, it is Unknown, never absence
            log.warning("look_up_failed", tool=spec.name, rows=len(calls), error=type(error).__name__)
            return {call.action_id: Unknown(type(error).__name__) for call in calls}

    def _fetch(self, spec: ToolSpec, action: UncertainAction, call: Call, timeout_s: float) -> Finding | None:
        """What the object that a person has named says; without a way to fetch it, what a look-up finds under our key."""
        adapter, receipt = self.adapter(spec, action.account), action.asked_receipt or ""
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

    def _conclude(self, spec: ToolSpec, action: UncertainAction, finding: Finding | None, *, moved: bool) -> None:
        """Writes what the finding means. One that cannot be judged is asked for again, and stops no other row.

        `moved`: what was asked is not the place where the requests went.
        """
        try:
            said = self._verdict(spec, action, finding, moved=moved)
        except Exception as error:  # noqa: BLE001 - an adapter's answer of a form that nobody foresaw proves nothing
            log.error("verdict_failed", action_id=action.action_id, tool=action.tool, error=type(error).__name__)
            finding = Unknown(type(error).__name__)
            said = self._verdict(spec, action, finding, moved=moved)
        written = self._write(action, said, evidence_of(action, finding))
        log.info(
            "looked_up",
            action_id=action.action_id,
            tool=action.tool,
            look_up=action.lookup_count,
            finding=type(finding).__name__.lower(),
            verdict=type(said).__name__.lower(),
            written=written,
        )

    def _verdict(
        self, spec: ToolSpec, action: UncertainAction, finding: Finding | None, *, moved: bool
    ) -> Verdict | asked.AskedVerdict:
        said = self._judged(spec, action, finding, moved=moved)
        return said if action.asked is None else asked.in_the_end(said, finding, lookup_count=action.lookup_count)

    def _judged(
        self, spec: ToolSpec, action: UncertainAction, finding: Finding | None, *, moved: bool
    ) -> Verdict | asked.AskedVerdict:
        row, contract = _claimed(action, self.policy(action.provider), moved=moved), self.contract(spec)
        match action.asked:
            case "happened":
                return asked.happened(row, finding, receipt=action.asked_receipt or "", skew_s=self.skew_s)
            case "not_happened":
                return asked.not_happened(
                    row,
                    contract,
                    finding,
                    said_at=action.asked_at or action.as_of,
                    skew_s=self.skew_s,
                    base_s=self.base_s,
                )
            case "ask_again" | None:
                return verdict(
                    row,
                    contract,
                    finding,
                    ttl_margin_s=self.ttl_margin_s(spec),
                    skew_s=self.skew_s,
                    base_s=self.base_s,
                )
            case _:
                assert_never(action.asked)

    def _write(self, action: UncertainAction, said: Verdict | asked.AskedVerdict, evidence: str) -> bool:
        ledger, by = self.ledger, self.by
        match said:
            case Settle(outcome):
                return verdicts.succeeded(
                    ledger, action, receipt=outcome.id, result=result_text(outcome.fields), evidence=evidence, by=by
                )
            case Fail(code):
                return verdicts.failed(ledger, action, code=code, reason="found out", evidence=evidence, by=by)
            case NotExecuted(code, reason):
                return verdicts.not_executed(ledger, action, code=code, reason=reason, evidence=evidence, by=by)
            case Resend(ends_doubt):
                reason = "absence earned" if ends_doubt else "the key answers a resend"
                return (
                    verdicts.resend(
                        ledger,
                        action,
                        ends_doubt=ends_doubt,
                        delay_s=self._delay_s(action),
                        reason=reason,
                        evidence=evidence,
                        by=by,
                    )
                    or verdicts.unapproved(ledger, action, evidence=evidence, by=by)
                    or self._ask_again(action, "resend_forbidden", evidence)
                )
            case AskLater(code, after_s, absent_count, last_absent_at):
                return verdicts.ask_later(
                    ledger,
                    action,
                    after_s=after_s,
                    absent_count=absent_count,
                    last_absent_at=last_absent_at,
                    reason=code,
                    evidence=evidence,
                    by=by,
                )
            case Person(code):
                return verdicts.to_person(ledger, action, code=code, reason=code, evidence=evidence, by=by)
            case BackToReview(answer, counts_from, why):
                if counts_from is not None:
                    evidence = f"{evidence}; counts from {counts_from.isoformat()}"
                return verdicts.back_to_review(ledger, action, answer=answer, code=why, evidence=evidence, by=by)
            case _:
                assert_never(said)

    def _delay_s(self, action: UncertainAction) -> float:
        policy = self.policy(action.provider)
        return delay_s(
            max(1, action.attempt_count),
            base_s=policy.backoff_base_s,
            cap_s=policy.backoff_cap_s,
            retry_after_cap_s=policy.retry_after_cap_s,
            rng=self.rng,
        )

    def _ask_again(self, action: UncertainAction, reason: str, evidence: str) -> bool:
        """A cancel came during the look-up: look once more, under its `no_resend`."""
        return verdicts.ask_later(
            self.ledger,
            action,
            after_s=self.base_s,
            absent_count=action.absent_count,
            last_absent_at=action.last_absent_at,
            reason=reason,
            evidence=evidence,
            by=self.by,
        )


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


def evidence_of(action: UncertainAction, finding: Finding | None) -> str:
    """One line for the history: which look-up, as of when, and what it showed; receipts and codes only."""
    match finding:
        case Found(outcome):
            shown = outcome.id if isinstance(outcome, Succeeded) else f"as {outcome.code}"
        case Many(receipts):
            shown = ",".join(receipts)
        case Unknown(code):
            shown = code
        case _:
            shown = ""
    name = "no look-up" if finding is None else type(finding).__name__.lower()
    asked_by = f"; asked by {action.asked_by}" if action.asked_by is not None else ""
    return f"look-up {action.lookup_count} as of {action.as_of.isoformat()}: {name} {shown}".strip()[:500] + asked_by


def _claimed(action: UncertainAction, policy: Policy, *, moved: bool) -> Claimed:
    late = None
    if action.late_receipt is not None:
        late = Succeeded(action.late_receipt, load_stored(action.late_result or "{}"))
    return Claimed(
        as_of=action.as_of,
        quiet_from=action.quiet_from,
        first_sent_at=action.first_sent_at,
        absent_count=action.absent_count,
        last_absent_at=action.last_absent_at,
        attempt_count=action.attempt_count,
        attempts_max=policy.attempts_max,
        no_resend=action.no_resend,
        lookup_count=action.lookup_count,
        amount_minor=action.amount_minor,
        currency=action.currency,
        target=action.target,
        late_receipt=late,
        last_error_code=action.last_error_code,
        moved=moved,
    )
