"""The one suite that every adapter passes: the checks of `counterfoil.testing.matrix`, one test for each fault and subject.

A new provider adds a module of `Subject`s to `subjects/`. The oracle is the sandbox's durable effects, never the
adapter's own answer.
"""

from __future__ import annotations

import pytest
from tests.conformance.shipped import SUBJECTS

from counterfoil.sandbox.client import Sandbox
from counterfoil.testing import Subject, matrix
from counterfoil.testing.stage import Stage, staged

NEW = [subject for subject in SUBJECTS.values() if matrix.makes_something(subject)]
LOOKED_UP = [subject for subject in SUBJECTS.values() if subject.contract.lookup]
KEPT = [subject for subject in SUBJECTS.values() if subject.fails_with]
REFUSED = [(subject, status) for subject in SUBJECTS.values() for status in subject.refusals]


@pytest.fixture(params=SUBJECTS.values(), ids=str)
def stage(request: pytest.FixtureRequest, sandbox_process: Sandbox) -> Stage:
    return staged(request.param, sandbox_process)


def test_a_plain_call_succeeds_once_and_is_found(stage: Stage) -> None:
    """No fault: one request, one effect under our key, and the look-up finds the same receipt."""
    matrix.plain(stage)


def test_nothing_sent_is_absent(stage: Stage) -> None:
    """A complete look-up before any send shows nothing, and writes nothing."""
    matrix.nothing_sent(stage)


@pytest.mark.parametrize("fault", matrix.WRITE_FAULTS)
@pytest.mark.case("E1")
def test_a_fault_is_one_request_and_is_judged_by_the_table(stage: Stage, fault: str) -> None:
    """Exactly one request leaves; throttling is retryable, all else uncertain; the look-up then finds what is there, and the
    verdict and its resends end with one effect, or with a person where nothing can tell."""
    matrix.fault(stage, fault)


def test_a_request_that_lands_late_meets_what_was_done_meanwhile(stage: Stage) -> None:
    """A 504, and the request arrives a minute later: whatever was sent until then, it is one effect."""
    matrix.late_landing(stage)


def test_a_request_delivered_twice_is_one_effect_or_seen_as_two(stage: Stage) -> None:
    """A provider with our key does it once; one without shows both, and that is nobody's to decide but a person's."""
    matrix.delivered_twice(stage)


@pytest.mark.parametrize("stage", NEW, ids=str, indirect=True)
@pytest.mark.case("A6")
def test_another_call_with_the_same_arguments_is_not_this_one(stage: Stage) -> None:
    """Two calls that differ by their keys alone: neither is found for the other, also when both are asked for at once."""
    matrix.another_call(stage)


@pytest.mark.parametrize("fault", matrix.LOOKUP_FAULTS)
@pytest.mark.parametrize("stage", LOOKED_UP, ids=str, indirect=True)
def test_a_failed_lookup_is_never_absence(stage: Stage, fault: str) -> None:
    """Whatever goes wrong with the look-up, it does not say that nothing is there."""
    matrix.failed_lookup(stage, fault)


def test_a_provider_that_is_down_was_not_sent_to(stage: Stage) -> None:
    """Nobody listens: NotSent from a send, Unknown from a look-up."""
    matrix.nobody_listens(stage)


@pytest.mark.parametrize("status", matrix.UNLISTED)
def test_an_unlisted_status_is_uncertain(stage: Stage, status: int) -> None:
    """A status that is on no list proves nothing, even with the provider's own error body."""
    matrix.unlisted_status(stage, status)


@pytest.mark.parametrize(("stage", "status"), REFUSED, ids=str, indirect=["stage"])
def test_a_listed_refusal_is_definite(stage: Stage, status: int) -> None:
    """The provider's own refusal settles the attempt, for good."""
    matrix.listed_refusal(stage, status)


@pytest.mark.parametrize("stage", KEPT, ids=str, indirect=True)
def test_an_object_that_failed_is_no_success(stage: Stage) -> None:
    """The provider keeps an object under our key whose status says that nothing was done: presence proves nothing."""
    matrix.kept_failure(stage)


def test_every_subject_is_of_a_tool() -> None:
    """A subject without a declaration would have nothing to contradict."""
    assert [name for name, subject in SUBJECTS.items() if subject.spec is None] == []
    assert all(isinstance(subject.after, Subject | None) for subject in SUBJECTS.values())
