"""The checks that every adapter passes: what each fault of the sandbox must become, by durable effects and requests.

Each check is a function over a fresh `Stage`, raises `Violation`, and says in its docstring what it shows.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, replace

from counterfoil.providers.contract import Grade
from counterfoil.providers.functions import FunctionAdapter
from counterfoil.providers.outcomes import (
    Absent,
    Finding,
    Found,
    Json,
    Many,
    NotSent,
    Outcome,
    Rejected,
    Succeeded,
    Uncertain,
    Unknown,
)
from counterfoil.sandbox.client import SandboxError
from counterfoil.sandbox.faults import FAULTS, Commit
from counterfoil.testing.protocol import End, Ended, carried_through
from counterfoil.testing.stage import (
    NOBODY,
    SHORT_TIMEOUT_S,
    SLOW_S,
    TIMEOUT_S,
    Stage,
    Violation,
    hold,
)
from counterfoil.testing.subject import Subject

THROTTLED = {"429_retry_after": 2.0, "429_http_date": 60.0, "429_bare": None, "429_lock_timeout": None}
RETRY_AFTER_OFF_S = 2.0
SLOW = frozenset({"stall_headers", "stall_body", "slow", "slow_after_commit"})
OUTLASTED = frozenset({"slow", "slow_after_commit"})
"""Whoever waits long enough gets the real answer."""
READ_FAULTS = frozenset({"search_500", "lookup_429"})
WRITE_FAULTS = tuple(sorted(set(FAULTS) - READ_FAULTS - {"answer", "duplicate_delivery"}))
LOOKUP_FAULTS = (
    "500_unstored",
    "html_502",
    "429_bare",
    "302_login",
    "rst_after_commit",
    "object_2xx",
    "empty_2xx",
    "html_2xx",
    "bad_json_2xx",
    "truncate_body",
)
UNLISTED = (408, 409, 500, 503, 599)
"""Statuses that are on no list; 503 comes with a Retry-After."""
KEPT = frozenset({"500_stored"})
"""The provider keeps this answer as the key's result, so that no repeat is ever executed: a person decides."""
LATE_MAX_S = 60.0

PROSE = ("The sandbox answers", "<html", "<h1>")
"""What the sandbox writes into the bodies of its faults: an outcome that holds it was copied from the provider's words."""
TELLING_CHARS_MIN = 6
"""Arguments shorter than this may be in an outcome's code by chance."""


def plain(stage: Stage) -> None:
    """A call without a fault: one request, one effect, declared fields only, and the look-up finds the same receipt."""
    outcome = stage.send()
    hold(isinstance(outcome, Succeeded), "plain", f"a call without a fault is {outcome}")
    _one_request(stage, "no fault")
    hold(stage.effects() == 1, "plain", f"one call is {stage.effects()} effects")
    spec = stage.subject.spec
    if spec is not None and isinstance(outcome, Succeeded):
        more = sorted(set(outcome.fields) - set(spec.result_fields))
        hold(not more, "fields", f"result fields that the tool does not declare: {', '.join(more)}")
    if stage.looks_up and isinstance(outcome, Succeeded):
        _found(stage, stage.lookup(), "plain", receipt=outcome.id)


def nothing_sent(stage: Stage) -> None:
    """A complete look-up before any send shows nothing, and writes nothing."""
    if stage.looks_up:
        finding = stage.lookup()
        hold(finding == Absent(), "absent", f"nothing was sent, and the look-up says {finding}")
    hold(not stage.attempts() and stage.effects() == 0, "absent", "the look-up has written something")


def fault(stage: Stage, name: str) -> None:
    """A fault of the write: one request, judged by the table, found as it is, carried to one effect or to a person."""
    more = {"delay_s": SLOW_S} if name in SLOW or FAULTS[name].commit is Commit.LATER else {}
    stage.fault(name, **more)
    outcome = _sent(stage, SHORT_TIMEOUT_S if name in SLOW else TIMEOUT_S, name)
    committed = FAULTS[name].commit
    if committed is Commit.LATER:
        if stage.looks_up:
            early = stage.settled_lookup()
            hold(early == Absent(), "absent", f"after {name}, before it has landed, the look-up says {early}")
        stage.sandbox.advance(SLOW_S)
    there = committed in (Commit.YES, Commit.LATER)
    have = stage.wait_for_effects(int(there))
    hold(have == int(there), "effects", f"{name} makes {have} effects, not {int(there)}")
    if stage.looks_up:
        finding = stage.settled_lookup()
        if there:
            _found(stage, finding, name)
        else:
            hold(finding == Absent(), "absent", f"{name} leaves nothing behind, and the look-up says {finding}")
        hold(len(stage.attempts()) == 1, "one_request", "the look-up has written something")
    _judged(stage, carried_through(stage, outcome), name)


def late_landing(stage: Stage) -> None:
    """A request that arrives after its 504 meets what was done meanwhile: one effect, or a person."""
    late_s = min(LATE_MAX_S, stage.contract.landing_max_s / 2)
    stage.fault("504_then_commit_after", delay_s=late_s)
    ended = carried_through(stage, _sent(stage, TIMEOUT_S, "504_then_commit_after"))
    stage.sandbox.advance(late_s)
    _judged(stage, ended, f"a request that lands {late_s:g} s late")


def delivered_twice(stage: Stage) -> None:
    """A request delivered twice is one effect where the provider knows the key, else seen as two: for a person."""
    stage.fault("duplicate_delivery")
    outcome = stage.send()
    _one_request(stage, "duplicate_delivery")
    have = stage.effects()
    if stage.deduplicates:
        hold(have == 1, "key", f"a request delivered twice is {have} effects, though it is said to be one")
        _judged(stage, carried_through(stage, outcome), "duplicate_delivery")
        if stage.looks_up:
            _found(stage, stage.lookup(), "duplicate_delivery")
    elif stage.looks_up:
        hold(have == 2, "deduplicates", "the provider does it once: say `deduplicates=True`, or declare its key")
        finding = stage.lookup()
        several = isinstance(finding, Many) and len(set(finding.receipts)) == 2
        hold(several, "many", f"two effects under one key, and the look-up says {finding}")


def another_call(stage: Stage) -> None:
    """Another call with the same arguments is not this one: neither is found for the other, also when both are asked for."""
    other = replace(stage, call=replace(stage.call, action_id="act_other", key="d0" * 16))
    theirs = other.send()
    if not isinstance(theirs, Succeeded) or other.effects() != 1:
        return  # a double that refuses the second of two says so to the first as well
    finding = stage.lookup()
    mine = isinstance(finding, Many) or (isinstance(finding, Found) and isinstance(finding.outcome, Succeeded))
    taken = mine and not (isinstance(finding, Found) and not finding.as_intended)
    hold(
        not taken,
        "another",
        f"another call has an effect, nothing was sent for this one, and the look-up says {finding}",
    )
    own = stage.send()
    if not isinstance(own, Succeeded):
        return
    found = stage.adapter.lookup([other.call, stage.call], timeout_s=TIMEOUT_S)
    for call, done in ((other.call, theirs), (stage.call, own)):
        each = found.get(call.action_id, Unknown("no_finding"))
        right = isinstance(each, Found) and isinstance(each.outcome, Succeeded) and each.outcome.id == done.id
        hold(right, "another", f"two calls were done, {done.id!r} was {call.action_id}'s, and the look-up says {each}")


def failed_lookup(stage: Stage, name: str) -> None:
    """A look-up that fails or cannot be read says Unknown, whatever is there: never that nothing is."""
    stage.sandbox.fault(name, provider=stage.subject.provider, operation=stage.subject.lookup_operation)
    finding = stage.lookup()
    rule = "failed_lookup_is_absence" if finding == Absent() else "failed_lookup"
    hold(isinstance(finding, Unknown), rule, f"the look-up met {name}, and says {finding}")
    silent(stage, finding, name)


def nobody_listens(stage: Stage) -> None:
    """Nobody listens: NotSent from a send, Unknown from a look-up."""
    adapter = stage.subject.adapter_at(NOBODY)
    outcome = adapter.send(stage.call, timeout_s=TIMEOUT_S)
    hold(isinstance(outcome, NotSent), "not_sent", f"nobody listens, and the call is {outcome}")
    silent(stage, outcome, "nobody listens")
    if stage.looks_up:
        finding = adapter.lookup([stage.call], timeout_s=TIMEOUT_S)[stage.call.action_id]
        rule = "failed_lookup_is_absence" if finding == Absent() else "failed_lookup"
        hold(isinstance(finding, Unknown), rule, f"nobody listens, and the look-up says {finding}")


def unlisted_status(stage: Stage, status: int) -> None:
    """A status that is on no list proves nothing, even with the provider's own error body."""
    stage.fault("answer", status=status, headers={"Retry-After": "1"} if status == 503 else {})
    outcome = stage.send()
    hold(isinstance(outcome, Uncertain), "unproved", f"HTTP {status} proves nothing, and the call is {outcome}")
    silent(stage, outcome, f"HTTP {status}")
    _one_request(stage, f"HTTP {status}")


def listed_refusal(stage: Stage, status: int) -> None:
    """The provider's own refusal settles the attempt, for good."""
    stage.fault("answer", status=status)
    outcome = stage.send()
    definite = isinstance(outcome, Rejected) and not outcome.retryable
    hold(definite, "refusal", f"the provider refuses with HTTP {status}, and the call is {outcome}")
    silent(stage, outcome, f"HTTP {status}")
    _one_request(stage, f"HTTP {status}")
    hold(stage.effects() == 0, "refusal", "the provider refuses, and has an effect")


def kept_failure(stage: Stage) -> None:
    """An object whose status says that nothing was done is no success: presence alone proves nothing."""
    failing = stage.changed(stage.subject.fails_with)
    outcome = failing.send()
    hold(stage.effects() == 0, "fails_with", "these arguments are carried out: the double must keep a failed object")
    hold(not isinstance(outcome, Succeeded), "presence", f"the object's status says that it failed: {outcome}")
    silent(stage, outcome, "an object that failed")
    if stage.looks_up:
        finding = failing.lookup()
        success = isinstance(finding, Found) and finding.as_intended and isinstance(finding.outcome, Succeeded)
        hold(not success, "presence", f"the object's status says that it failed, and the look-up says {finding}")
        hold(finding != Absent(), "presence", "the look-up does not see an object that failed")
        silent(stage, finding, "an object that failed")


def silent(stage: Stage, said: Outcome | Finding, when: str) -> None:
    """Neither the provider's prose nor an argument nor a credential is in what is recorded of a failure."""
    shown = repr(said)
    prose = [text for text in PROSE if text in shown]
    hold(not prose, "prose", f"{when}: the provider's words reach the outcome: {said}")
    for secret in stage.subject.secrets:
        hold(secret not in shown, "secrets", f"{when}: a credential is in the outcome")
    if isinstance(said, Succeeded) or (isinstance(said, Found) and isinstance(said.outcome, Succeeded)):
        return  # its declared fields may well be what was asked for
    if isinstance(said, Found):
        shown = repr(said.outcome)
    leaked = [name for name, value in stage.call.arguments.items() if _telling(value) and str(value) in shown]
    hold(not leaked, "arguments", f"{when}: arguments are in the outcome: {', '.join(leaked)}")


def _sent(stage: Stage, timeout_s: float, name: str) -> Outcome:
    """The outcome of an attempt that met the fault: one request, and what the table says."""
    started = time.monotonic()
    outcome = stage.send(timeout_s)
    took_s = time.monotonic() - started
    _one_request(stage, name)
    silent(stage, outcome, name)
    if name in THROTTLED:
        wait_s = THROTTLED[name]
        hold(isinstance(outcome, Rejected) and outcome.retryable, "throttled", f"{name} is {outcome}")
        given_s = outcome.retry_after_s if isinstance(outcome, Rejected) else None
        near = given_s is None if wait_s is None else given_s is not None and abs(given_s - wait_s) <= RETRY_AFTER_OFF_S
        hold(near, "throttled", f"{name} asks to wait {wait_s} s, understood as {given_s} s")
    elif name in stage.subject.unread_success:
        hold(isinstance(outcome, Succeeded), "outcome", f"{name} does not hurt this call, and it is {outcome}")
    elif isinstance(outcome, Succeeded):
        patient = name in OUTLASTED and isinstance(own(stage), FunctionAdapter) and took_s >= SLOW_S
        hold(patient, "unproved", f"{name} proves no success, and the call is {outcome}")
    else:
        hold(isinstance(outcome, Uncertain), "unproved", f"{name} proves nothing, and the call is {outcome}")
    return outcome


def own(stage: Stage) -> object:
    """The adapter itself, where a tool's function was only placed at the sandbox."""
    return getattr(stage.adapter, "adapter", stage.adapter)


def _one_request(stage: Stage, when: str) -> None:
    """One write on the wire, and nothing of any kind after it."""
    writes = stage.attempts()
    hold(bool(writes), "one_request", f"{when}: nothing reached {stage.subject.provider} {stage.subject.operation}")
    hold(len(writes) == 1, "one_request", f"{when}: {len(writes)} requests on the wire in one attempt")
    after = [seen for seen in stage.sandbox.requests(stage.subject.provider) if seen.seq > writes[0].seq]
    hold(not after, "redirect", f"{when}: after the write came {after[0].method} {after[0].operation}" if after else "")


def _found(stage: Stage, finding: Finding, when: str, *, receipt: str | None = None) -> None:
    hold(isinstance(finding, Found), "found", f"{when}: the effect is there, and the look-up says {finding}")
    outcome = finding.outcome if isinstance(finding, Found) else None
    hold(isinstance(outcome, Succeeded), "found", f"{when}: the effect is there, and was found as {outcome}")
    same = receipt is None or (isinstance(outcome, Succeeded) and outcome.id == receipt)
    hold(same, "receipt", f"{when}: the call gave receipt {receipt!r}, and the look-up {outcome}")


def _judged(stage: Stage, ended: Ended, when: str) -> None:
    """The end that the protocol came to, against what has really happened."""
    have = stage.effects()
    match ended.end:
        case End.SUCCEEDED:
            hold(have == 1, "effects", f"{when}: recorded as succeeded, and there are {have} effects")
        case End.FAILED:
            hold(have == 0, "effects", f"{when}: recorded as failed ({ended.code}), and there are {have} effects")
            hold(False, "given_up", f"{when}: given up ({ended.code}) though a repeat would have been done")
        case End.PERSON:
            hold(have <= 1, "effects", f"{when}: {have} effects after {ended.attempts} attempts")
            unproved = have == 0 and not stage.contract.absence_is_proof
            is_blind = stage.contract.grade is Grade.D and not stage.contract.lookup
            alone = is_blind or unproved or when in KEPT
            hold(alone, "person", f"{when}: ends with a person ({ended.code}), though the outcome could be found out")


def _telling(value: Json) -> bool:
    return isinstance(value, str) and len(value) >= TELLING_CHARS_MIN


@dataclass(frozen=True)
class Check:
    """One check with its cases; `needed` says whether the subject has what it is about."""

    name: str
    run: Callable[..., None]
    cases: tuple[str | int, ...] = ()
    needed: Callable[[Subject], bool] = lambda _subject: True
    missing: str = ""
    """What to give so that it is shown."""

    def __call__(self, stage: Stage, case: str | int | None = None) -> None:
        """Runs one case. What an adapter raises is a violation: it has to answer."""
        try:
            self.run(stage) if case is None else self.run(stage, case)
        except (Violation, SandboxError):  # the latter is the subject's: an operation or a fault that there is not
            raise
        except Exception as exc:
            raise Violation("raised", f"{case or self.name}: the adapter raised {type(exc).__name__}") from exc


def makes_something(subject: Subject) -> bool:
    """Its effects are told apart by their keys; what changes an object that is there may be done by whomever."""
    contract = subject.contract
    by_state = subject.deduplicates and contract.native_key_ttl_s is None and not contract.unique
    return contract.lookup and subject.after is None and not by_state


def _has_lookup(subject: Subject) -> bool:
    return subject.contract.lookup and bool(subject.lookup_operation)


CHECKS = (
    Check("plain", plain),
    Check("nothing_sent", nothing_sent),
    Check("fault", fault, WRITE_FAULTS),
    Check("late_landing", late_landing),
    Check("delivered_twice", delivered_twice),
    Check("another_call", another_call, (), makes_something, "no look-up, or it is about something that is there"),
    Check("failed_lookup", failed_lookup, LOOKUP_FAULTS, _has_lookup, "the tool has no look-up"),
    Check("nobody_listens", nobody_listens),
    Check("unlisted_status", unlisted_status, UNLISTED),
    Check("listed_refusal", listed_refusal, (400, 401, 403, 404)),
    Check("kept_failure", kept_failure, (), lambda s: bool(s.fails_with), "the subject has no `fails_with`"),
)
"""Every check, in the order of a report."""
