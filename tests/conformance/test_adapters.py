"""The one suite that every adapter passes: each fault, one request on the wire, the outcome by the table, then the finding.

A new provider adds a module of `Subject`s to `subjects/`. The oracle is the sandbox's durable effects, never the
adapter's own answer.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from importlib import import_module
from pathlib import Path

import pytest
from tests.conformance.subjects.subject import Subject
from tests.conformance.subjects.warehouse import HTTP

from counterfoil import providers
from counterfoil.providers.contract import Adapter, Call, Of
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
from counterfoil.providers.registry import Registry
from counterfoil.sandbox.client import Sandbox
from counterfoil.sandbox.faults import FAULTS, Commit

TIMEOUT_S = 3.0
SLOW_TIMEOUT_S = 0.4
SLOW_S = 0.8
"""A fault's delay, longer than the client waits."""
WAIT_S = 10.0
TOOLS = Registry.load(
    [
        f"counterfoil.providers.{folder.name}.tools"
        for folder in sorted(Path(providers.__file__).parent.iterdir())
        if (folder / "tools.py").is_file() and folder.name != "http"
    ],
    HTTP,
)
KEY, EARLIER_KEY = "c0" * 16, "ea" * 16

THROTTLED = {"429_retry_after": 2.0, "429_http_date": 60.0, "429_bare": None, "429_lock_timeout": None}
SLOW = frozenset({"stall_headers", "stall_body", "slow", "slow_after_commit"})
READ_FAULTS = frozenset({"search_500", "lookup_429"})
WRITE_FAULTS = sorted(set(FAULTS) - READ_FAULTS - {"answer", "duplicate_delivery"})


def subjects() -> dict[str, Subject]:
    """Of every module beside `subjects/subject.py`."""
    folder = Path(__file__).parent / "subjects"
    modules = [import_module(f"tests.conformance.subjects.{path.stem}") for path in sorted(folder.glob("*.py"))]
    return {subject.name: subject for module in modules for subject in getattr(module, "SUBJECTS", ())}


SUBJECTS = subjects()
LOOKED_UP = [subject for subject in SUBJECTS.values() if subject.lookup_operation]
REPEATED = [subject for subject in SUBJECTS.values() if not subject.lookup_operation]
"""Tools without a look-up: a repeat of the key is what tells."""


@dataclass
class Stage:
    """A subject on the sandbox, with whatever must have happened before it."""

    sandbox: Sandbox
    subject: Subject
    adapter: Adapter
    call: Call

    def send(self, timeout_s: float = TIMEOUT_S) -> Outcome:
        return self.adapter.send(self.call, timeout_s=timeout_s)

    def lookup(self) -> Finding:
        return self.adapter.lookup([self.call], timeout_s=TIMEOUT_S)[self.call.action_id]

    def settled_lookup(self) -> Finding:
        """Asks again after Unknown, as the reconciler does: a fault may have left a dead connection in the pool."""
        for _ in range(3):
            finding = self.lookup()
            if not isinstance(finding, Unknown):
                return finding
        raise AssertionError(finding)

    def attempts(self) -> int:
        return len(self.sandbox.requests(self.subject.provider, self.subject.operation))

    def effects(self) -> int:
        return len(self.sandbox.effects(self.subject.effect, provider=self.subject.provider))

    def wait_for_effects(self, wanted: int) -> None:
        deadline = time.monotonic() + WAIT_S
        while self.effects() != wanted and time.monotonic() < deadline:
            self.sandbox.requests()
        assert self.effects() == wanted


def call_of(subject: Subject, arguments: Mapping[str, Json], *, key: str = KEY, of: Of | None = None) -> Call:
    return Call(
        action_id=f"act_{subject.name}",
        tenant="acme",
        account="main",
        tool=subject.name,
        key=key,
        arguments=arguments,
        target=subject.target,
        first_sent_at=datetime.now(UTC),
        of=of,
    )


@pytest.fixture(params=SUBJECTS.values(), ids=str)
def stage(request: pytest.FixtureRequest, sandbox: Sandbox) -> Stage:
    subject: Subject = request.param
    adapter = subject.adapter(sandbox)
    of = None
    if subject.after is not None:
        first = SUBJECTS[subject.after]
        arguments = TOOLS.get(first.name).validate(first.arguments)
        done = adapter.send(call_of(first, arguments, key=EARLIER_KEY), timeout_s=TIMEOUT_S)
        assert isinstance(done, Succeeded)
        of = Of(action_id="act_first", tool=first.name, key=EARLIER_KEY, receipt=done.id, arguments=arguments)
    spec = TOOLS.find(subject.name)
    arguments = spec.validate(subject.arguments) if spec else dict(subject.arguments)
    return Stage(sandbox, subject, adapter, call_of(subject, arguments, of=of))


@pytest.mark.parametrize("stage", LOOKED_UP, ids=str, indirect=True)
def test_a_plain_call_succeeds_once_and_is_found(stage: Stage) -> None:
    """No fault: one request, one effect under our key, and the look-up finds the same receipt."""
    outcome = stage.send()
    assert isinstance(outcome, Succeeded)
    assert (stage.attempts(), stage.effects()) == (1, 1)
    finding = stage.lookup()
    assert isinstance(finding, Found)
    assert isinstance(finding.outcome, Succeeded)
    assert finding.outcome.id == outcome.id


@pytest.mark.parametrize("stage", LOOKED_UP, ids=str, indirect=True)
def test_nothing_sent_is_absent(stage: Stage) -> None:
    """A complete look-up before any send shows nothing, and writes nothing."""
    assert stage.lookup() == Absent()
    assert (stage.attempts(), stage.effects()) == (0, 0)


@pytest.mark.parametrize("fault", WRITE_FAULTS)
@pytest.mark.case("E1")
def test_a_fault_is_one_request_and_is_judged_by_the_table(stage: Stage, fault: str) -> None:
    """Exactly one request leaves; throttling is retryable, all else uncertain; the look-up then finds what is there."""
    more = {"delay_s": SLOW_S} if fault in SLOW or FAULTS[fault].commit is Commit.LATER else {}
    stage.sandbox.fault(fault, provider=stage.subject.provider, operation=stage.subject.operation, **more)
    outcome = stage.send(SLOW_TIMEOUT_S if fault in SLOW else TIMEOUT_S)
    assert stage.attempts() == 1
    if fault in THROTTLED:
        assert isinstance(outcome, Rejected)
        assert outcome.retryable
        assert outcome.retry_after_s == (pytest.approx(THROTTLED[fault], abs=2) if THROTTLED[fault] else None)
    elif fault in stage.subject.unread_success:
        assert isinstance(outcome, Succeeded)
    else:
        assert isinstance(outcome, Uncertain), outcome
    committed = FAULTS[fault].commit
    if committed is Commit.LATER:
        assert stage.effects() == 0
        assert not stage.subject.lookup_operation or stage.settled_lookup() == Absent()
        stage.sandbox.advance(SLOW_S)
    stage.wait_for_effects(1 if committed in (Commit.YES, Commit.LATER) else 0)
    if not stage.subject.lookup_operation:
        return
    finding = stage.settled_lookup()
    if committed in (Commit.YES, Commit.LATER):
        assert isinstance(finding, Found)
        assert isinstance(finding.outcome, Succeeded)
    else:
        assert finding == Absent()
    assert stage.attempts() == 1


@pytest.mark.parametrize("fault", WRITE_FAULTS)
@pytest.mark.parametrize("stage", REPEATED, ids=str, indirect=True)
def test_without_a_lookup_a_repeat_of_the_key_tells(stage: Stage, fault: str) -> None:
    """Nobody can be asked; but whatever became of the first request, the same one again ends in one effect and its receipt.

    Where the provider keeps its own failure as the key's answer, it stays uncertain: nothing is there, and nothing comes.
    """
    assert stage.lookup() == Unknown("no_lookup")
    more = {"delay_s": SLOW_S} if fault in SLOW or FAULTS[fault].commit is Commit.LATER else {}
    stage.sandbox.fault(fault, provider=stage.subject.provider, operation=stage.subject.operation, **more)
    stage.send(SLOW_TIMEOUT_S if fault in SLOW else TIMEOUT_S)
    stage.sandbox.advance(SLOW_S)
    stage.wait_for_effects(1 if FAULTS[fault].commit in (Commit.YES, Commit.LATER) else 0)
    told = [stage.send(), stage.send()]
    if FAULTS[fault].commit is Commit.STORED_ANSWER:
        assert [type(outcome) for outcome in told] == [Uncertain, Uncertain]
        assert stage.effects() == 0
        return
    [effect] = stage.sandbox.effects(stage.subject.effect, provider=stage.subject.provider)
    assert [outcome.id for outcome in told if isinstance(outcome, Succeeded)] == [effect.object_id] * 2


def test_a_request_delivered_twice_is_one_effect_or_seen_as_two(stage: Stage) -> None:
    """A provider with our key does it once; one without shows both, and that is nobody's to decide but a person's."""
    stage.sandbox.fault("duplicate_delivery", provider=stage.subject.provider, operation=stage.subject.operation)
    stage.send()
    assert stage.attempts() == 1
    if not stage.subject.lookup_operation:
        assert stage.effects() == 1
        return
    finding = stage.lookup()
    if stage.subject.deduplicates:
        assert stage.effects() == 1
        assert isinstance(finding, Found)
    else:
        assert stage.effects() == 2
        assert isinstance(finding, Many)
        assert len(set(finding.receipts)) == 2


@pytest.mark.parametrize(
    "fault", ["500_unstored", "html_502", "429_bare", "302_login", "rst_after_commit", "object_2xx"]
)
@pytest.mark.parametrize("stage", LOOKED_UP, ids=str, indirect=True)
def test_a_failed_lookup_is_never_absence(stage: Stage, fault: str) -> None:
    """Whatever goes wrong with the look-up, it does not say that nothing is there."""
    stage.sandbox.fault(fault, provider=stage.subject.provider, operation=stage.subject.lookup_operation)
    assert isinstance(stage.lookup(), Unknown)


def test_a_provider_that_is_down_was_not_sent_to(stage: Stage) -> None:
    """Nobody listens: NotSent from a send, Unknown from a look-up."""
    adapter = stage.subject.adapter(Sandbox("http://127.0.0.1:9"))
    assert isinstance(adapter.send(stage.call, timeout_s=TIMEOUT_S), NotSent)
    finding = adapter.lookup([stage.call], timeout_s=TIMEOUT_S)[stage.call.action_id]
    assert isinstance(finding, Unknown)


@pytest.mark.parametrize(
    ("status", "headers"), [(408, {}), (409, {}), (500, {}), (503, {"Retry-After": "1"}), (599, {})]
)
def test_an_unlisted_status_is_uncertain(stage: Stage, status: int, headers: dict[str, str]) -> None:
    """A status that is on no list proves nothing, even with the provider's own error body."""
    subject = stage.subject
    stage.sandbox.fault(
        "answer", provider=subject.provider, operation=subject.operation, status=status, headers=headers
    )
    assert isinstance(stage.send(), Uncertain)
    assert stage.attempts() == 1


@pytest.mark.parametrize("status", [400, 401, 403, 404])
def test_a_listed_refusal_is_definite(stage: Stage, status: int) -> None:
    """The provider's own refusal settles the attempt, for good."""
    subject = stage.subject
    stage.sandbox.fault("answer", provider=subject.provider, operation=subject.operation, status=status)
    outcome = stage.send()
    assert isinstance(outcome, Rejected)
    assert not outcome.retryable
    assert (stage.attempts(), stage.effects()) == (1, 0)
