"""Decides how one message's actions are executed: read, admit, then claim, guard, fence, call and settle each in turn.

At most one call is in flight for an action under one lease, and a worker that dies leaves at most one call in doubt: each
action is claimed just before its own call. Nothing here decides what an answer means (`settle`, the provider's tables).
"""

from __future__ import annotations

import time
from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import assert_never
from uuid import UUID, uuid4

import structlog

from counterfoil.ledger import claims
from counterfoil.ledger.claims import ClaimedAction, ClaimRefused, WaitingAction, WakeUp
from counterfoil.ledger.connection import Ledger
from counterfoil.ledger.errors import ConfigError, LedgerUnavailable
from counterfoil.ledger.keys import provider_key
from counterfoil.outbox.intents import DoorRules
from counterfoil.providers.contract import Adapter, Contract
from counterfoil.providers.outcomes import NotSent, Outcome, Rejected, Succeeded, Uncertain
from counterfoil.providers.reach import MOVED
from counterfoil.providers.registry import Registry
from counterfoil.providers.spec import ToolSpec
from counterfoil.workers.admission import Admission, Refusal, Result, Ticket
from counterfoil.workers.calls import call_of
from counterfoil.workers.guards import mismatch
from counterfoil.workers.limits import over_limit
from counterfoil.workers.points import Points, no_points
from counterfoil.workers.policy import Policy, limits_for, send_needs_s
from counterfoil.workers.settle import Settler
from counterfoil.workers.versions import is_current, is_versioned

log: structlog.stdlib.BoundLogger = structlog.get_logger("counterfoil.executor")

ELSEWHERE_S = 30.0
"""A wake-up for a tool or client that this worker lacks comes back after this long, for a worker that has it."""

SETTLE_TRIES_MAX = 200
"""Settles tried when the database is away, whatever the lease; then the reconciler finds the outcome."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Executor:
    """One worker process's hands. Used by one thread at a time, made after the fork."""

    ledger: Ledger
    registry: Registry
    adapter: Callable[[ToolSpec, str], Adapter]
    reach: Callable[[ToolSpec, str], str]
    """Where that adapter goes, and as whom."""
    policy: Callable[[str], Policy]
    """By provider."""
    contract: Callable[[ToolSpec], Contract]
    ttl_margin_s: Callable[[ToolSpec], float]
    """A native key is trusted until this long before its end."""
    rules: DoorRules
    """What these settings demand of calls, whoever has recorded them under which settings."""
    settler: Settler
    secret: bytes
    key_version: int
    lease_s: float
    pause_allowance_s: float
    """How long this process may be stopped between the send fence and the request's first byte."""
    guard_s: float
    """Kept free in every lease for what is checked between claim and send."""
    worker: str
    admission: Admission
    """The fleet's limits at each provider."""
    points: Points = no_points
    monotonic: Callable[[], float] = time.monotonic
    fresh_fence: Callable[[], UUID] = uuid4
    stopping: Callable[[], bool] = field(default=lambda: False)
    """True once the process was asked to end: no further action is started."""

    def run(self, wake_ups: Sequence[WakeUp], *, stop_at: float) -> int:
        """Executes the actions of one message, as far as time allows; returns how many were claimed.

        No action is started that might not end by `stop_at` (of `monotonic`); what is left is given back at once.
        """
        batches: defaultdict[str, list[WaitingAction]] = defaultdict(list)
        for action in claims.read_batch(self.ledger, wake_ups):
            batches[action.provider].append(action)
        return sum(self._run_batch(provider, batch, stop_at) for provider, batch in batches.items())

    def _run_batch(self, provider: str, batch: Sequence[WaitingAction], stop_at: float) -> int:
        """What the fleet's limits admit of one provider's actions; the rest waits in the outbox until it may be asked about
        again."""
        policy, claimed = self.policy(provider), 0
        ticket = self.admission.admit(provider, batch, lease_s=self._holds_s(policy, len(batch), stop_at))
        try:
            self._put_off(ticket.refused)
            for place, action in enumerate(ticket.admitted):
                if self.stopping() or self.monotonic() + self._needs_s(policy) > stop_at:
                    self._give_back(ticket.admitted[place:])
                    break
                result = self._execute(ticket, action, policy, stop_at)
                claimed += result is not None
                if not self.admission.report(ticket, action, result or Result.UNUSED):
                    self._give_back(ticket.admitted[place + 1 :])
                    break
        finally:
            self.admission.close(ticket)
        return claimed

    def _holds_s(self, policy: Policy, actions: int, stop_at: float) -> float:
        """How long a batch may take: for as long a process that dies keeps one of the provider's calls in flight taken."""
        return min(actions * (self._needs_s(policy) + self.guard_s), max(stop_at - self.monotonic(), 1.0))

    def _put_off(self, refused: Sequence[tuple[WaitingAction, Refusal]]) -> None:
        """Back to the outbox, unclaimed. Spread out, or all would come back in the same moment."""
        for action, refusal in refused:
            wait_s = refusal.wait_s * self.settler.rng.uniform(1.0, 1.5)
            claims.postpone_wakeup(self.ledger, action.wake_up, delay_s=wait_s)
        if refused:
            reasons = dict(Counter(refusal.reason for _, refusal in refused))
            log.info("put_off", provider=refused[0][0].provider, actions=len(refused), reasons=reasons)

    def _execute(self, ticket: Ticket, waiting: WaitingAction, policy: Policy, stop_at: float) -> Result | None:
        """One action: claim → guards → version → send fence → call → settle. None when there was nothing to claim."""
        able = self._able(waiting)
        if able is None:
            claims.leave_to_others(self.ledger, waiting.wake_up, delay_s=ELSEWHERE_S)
            return None
        spec, adapter, reach = able
        policy = limits_for(policy, self.contract(spec), in_doubt=waiting.in_doubt)
        self.points("before_claim", spec.name)
        claimed_at = self.monotonic()  # before the statement, so that our idea of the lease ends first
        action = self._claim(waiting, policy, reach)
        if action is None:
            return None
        self.points("after_claim", spec.name)
        until = min(claimed_at + self.lease_s, stop_at)
        if (
            self._guarded(spec, action)
            and self._within_limits(action, policy)
            and self._current(adapter, action, policy, claimed_at=claimed_at, until=until)
            and self._fenced(spec, action, policy, claimed_at, reach)
        ):
            outcome = self._call(adapter, action, policy, reach)
            self.points("before_settle", spec.name)
            try:
                self._settle(action, outcome, policy, until=claimed_at + self.lease_s)
            except Exception:  # it was sent, and counts, whether or not that can be written down
                self.admission.report(ticket, waiting, result_of(outcome))
                raise
            self.points("after_settle", spec.name)
            return result_of(outcome)
        return Result.UNUSED

    def _able(self, waiting: WaitingAction) -> tuple[ToolSpec, Adapter, str] | None:
        """The tool, its client and where that goes, before anything is claimed; None = this worker lacks one of them, another
        may not."""
        spec = self.registry.find(waiting.tool, waiting.tool_version)
        if spec is None:
            log.warning("tool_elsewhere", action_id=waiting.action_id, tool=waiting.tool, version=waiting.tool_version)
            return None
        try:
            return spec, self.adapter(spec, waiting.account), self.reach(spec, waiting.account)
        except ConfigError as error:
            log.error("provider_unusable", action_id=waiting.action_id, tool=waiting.tool, setting=error.key)
            return None

    def _claim(self, waiting: WaitingAction, policy: Policy, reach: str) -> ClaimedAction | None:
        """The row under our lease, or None: somebody else has it, no attempt is left, or (then a person gets it) it has no
        approval of exactly what it says."""
        try:
            action = claims.claim_if_ready(
                self.ledger,
                waiting.wake_up,
                fence=self.fresh_fence(),
                lease_s=self.lease_s,
                key=provider_key(self.secret, waiting.tenant, waiting.tool, waiting.action_id),
                key_version=self.key_version,
                reach=reach,
                attempts_max=policy.attempts_max,
                worker=self.worker,
            )
        except ClaimRefused:
            log.error("approval_mismatch", action_id=waiting.action_id, tool=waiting.tool)
            claims.review_if_refused(self.ledger, waiting.wake_up, worker=self.worker)
            return None
        if action is None and waiting.attempt_count >= policy.attempts_max:
            claims.end_used_up(self.ledger, waiting.action_id, attempts_max=policy.attempts_max, worker=self.worker)
        return action

    def _guarded(self, spec: ToolSpec, action: ClaimedAction) -> bool:
        """Whether the row is what this worker's tools and settings say; else a person (or, in doubt, evidence) decides."""
        wrong = mismatch(spec, action, self.rules)
        if wrong is not None:
            self._hold(action, "policy_mismatch", wrong)
        return wrong is None

    def _within_limits(self, action: ClaimedAction, policy: Policy) -> bool:
        """Whether caps, and the rule about bulks, leave room; else a person decides, or it is tried again where claims
        beside it are being counted at this moment."""
        over = over_limit(self.ledger, action, self.rules)
        if over is None:
            return True
        if over.final:
            self._hold(action, over.code, over.evidence)
        else:
            claims.let_go(
                self.ledger, action, code="rivals_for_a_cap", delay_s=policy.backoff_base_s, worker=self.worker
            )
            log.warning("rivals_for_a_cap", action_id=action.action_id, tool=action.tool)
        return False

    def _hold(self, action: ClaimedAction, code: str, evidence: str) -> None:
        """Nothing is sent: a person, or (in doubt) evidence, decides."""
        log.error(code, action_id=action.action_id, tool=action.tool, what=evidence)
        if action.in_doubt or not claims.hand_to_person(
            self.ledger, action, code=code, evidence=evidence, worker=self.worker
        ):
            claims.hold_for_evidence(self.ledger, action, code=code, worker=self.worker)

    def _current(
        self, adapter: Adapter, action: ClaimedAction, policy: Policy, *, claimed_at: float, until: float
    ) -> bool:
        """The version guard: what the call is about is what was decided on. The reading takes none of the send's time."""
        if not is_versioned(action):
            return True
        now = self.monotonic()
        left_s = until - now - self._needs_s(policy)
        if left_s < self.guard_s / 2:  # no fair chance to read
            self._let_go(action, policy, now - claimed_at)
            return False
        return is_current(self.ledger, adapter, action, timeout_s=min(policy.timeout_s, left_s), worker=self.worker)

    def _fenced(self, spec: ToolSpec, action: ClaimedAction, policy: Policy, claimed_at: float, reach: str) -> bool:
        """The send fence, the last check before the write: enough lease left, and a resend that the key still covers."""
        elapsed_s = self.monotonic() - claimed_at
        moved = action.reach not in (None, reach)
        if action.in_doubt and (moved or not self._key_covers(spec, action, elapsed_s)):
            code = MOVED if moved else "key_expired"
            claims.hold_for_evidence(self.ledger, action, code=code, worker=self.worker)
            log.warning("held_for_evidence", action_id=action.action_id, tool=action.tool, code=code)
            return False
        if not self._lease_is_enough(policy, elapsed_s):
            self._let_go(action, policy, elapsed_s)
            return False
        return True

    def _let_go(self, action: ClaimedAction, policy: Policy, elapsed_s: float) -> None:
        """Given back before the send; after a pause, since a slow database must not make this a hot loop."""
        delay_s = policy.backoff_base_s
        claims.let_go(self.ledger, action, code="lease_too_short", delay_s=delay_s, worker=self.worker)
        log.warning("let_go", action_id=action.action_id, tool=action.tool, elapsed_s=round(elapsed_s, 3))

    def _lease_is_enough(self, policy: Policy, elapsed_s: float) -> bool:
        """Whether the request, and a pause before its first byte, end before our idea of the lease does."""
        return elapsed_s + send_needs_s(policy, self.pause_allowance_s) < self.lease_s

    def _key_covers(self, spec: ToolSpec, action: ClaimedAction, elapsed_s: float) -> bool:
        """Whether the provider will still answer a repeat of the key from its store when it arrives."""
        ttl_s = self.contract(spec).native_key_ttl_s
        return ttl_s is not None and action.key_age_s + elapsed_s + self.ttl_margin_s(spec) < ttl_s

    def _call(self, adapter: Adapter, action: ClaimedAction, policy: Policy, reach: str) -> Outcome:
        """The one request of this attempt. Whatever an adapter raises after it was entered proves nothing."""
        try:
            return adapter.send(call_of(action, reach), timeout_s=policy.timeout_s)
        except Exception as error:  # noqa: BLE001 - an adapter's bug or a time limit: the request may have left
            log.error("adapter_raised", action_id=action.action_id, tool=action.tool, error=type(error).__name__)
            return Uncertain("adapter_error", evidence=type(error).__name__)

    def _settle(self, action: ClaimedAction, outcome: Outcome, policy: Policy, *, until: float) -> None:
        """Writes the outcome; every settle may be repeated, since the fence lets it through once.

        While the database is away it is tried until the lease has ended: most failovers are shorter, and then no look-up is
        needed to learn what this process knows.
        """
        for left in reversed(range(SETTLE_TRIES_MAX)):
            try:
                return self.settler.settle(action, outcome, policy)
            except LedgerUnavailable:
                log.error("settle_unwritten", action_id=action.action_id, tool=action.tool)
                if not left or self.monotonic() >= until:
                    raise
                time.sleep(min(1.0, self.lease_s / 20))
        return None

    def _give_back(self, rest: Sequence[WaitingAction]) -> None:
        """Lets the relay publish the rest again now: they were never claimed."""
        for action in rest:
            claims.postpone_wakeup(self.ledger, action.wake_up, delay_s=0)
        log.info("given_back", actions=len(rest))

    def _needs_s(self, policy: Policy) -> float:
        return send_needs_s(policy, self.pause_allowance_s)


def result_of(outcome: Outcome) -> Result:
    """What an answer says about its provider's health."""
    match outcome:
        case Succeeded():
            return Result.OK
        case Rejected():
            return Result.THROTTLE if outcome.retryable else Result.REFUSED
        case NotSent():
            return Result.NOT_SENT
        case Uncertain():
            return Result.TIMEOUT
        case _:
            assert_never(outcome)
