"""What each provider's client makes of Retry-After: one request, one reading of the header, whatever stands in it."""

from __future__ import annotations

import time

import pytest
from tests.conformance.shipped import SUBJECTS

from counterfoil.providers.outcomes import NotSent, Rejected, Succeeded
from counterfoil.sandbox.client import Sandbox
from counterfoil.testing import Subject
from counterfoil.testing.stage import Stage, staged

HTTP = {subject.provider: subject for subject in reversed(SUBJECTS.values())}
"""One tool of each provider."""

READS_FIRST = {
    *("aws_unschedule", "sms_cancel", "zendesk_solve"),
    *("jira_open", "jira_close", "jira_close_data_center", "jira_delete_comment"),
    *("linear_create", "linear_comment", "linear_close", "linear_delete_comment"),
}
"""Tools that read something before they write."""

PAST, ABSURD = "Wed, 01 Jan 2020 00:00:00 GMT", "9" * 20

HEADERS = {
    "7": 7.0,
    "<date>": 60.0,
    "1.5": 1.5,
    ABSURD: 900.0,
    "-5": None,
    "nan": None,
    "soon": None,
    "": None,
    PAST: 0.0,
}
"""What a 429 asks for, and what an adapter makes of it."""


@pytest.fixture(params=HTTP.values(), ids=str)
def stage(request: pytest.FixtureRequest, sandbox_process: Sandbox) -> Stage:
    return staged(request.param, sandbox_process)


def test_every_provider_is_here() -> None:
    """Nobody's client reads the header in a way of its own without a test."""
    assert set(HTTP) >= {"stripe", "jira", "zendesk", "linear", "slack", "twilio", "resend", "warehouse", "aws"}


def test_both_forms_and_nonsense(stage: Stage) -> None:
    """Seconds or a date, capped; a past date asks for nothing, neither does nonsense; no client waits or tries by itself."""
    started = time.monotonic()
    for made, (header, wait_s) in enumerate(HEADERS.items(), start=1):
        stage.fault("429_retry_after", headers={"Retry-After": header})
        outcome = stage.send()
        assert isinstance(outcome, Rejected), (header, outcome)
        assert outcome.retryable
        if header == "<date>":
            assert outcome.retry_after_s is not None
            assert abs(outcome.retry_after_s - 60) <= 2
        else:
            assert outcome.retry_after_s == wait_s, header
        assert len(stage.attempts()) == made
    assert stage.effects() == 0
    assert time.monotonic() - started < 30, "a client has waited by itself"


@pytest.mark.parametrize("subject", SUBJECTS.values(), ids=str)
def test_a_reading_that_is_turned_away_before_the_write(subject: Subject, sandbox_process: Sandbox) -> None:
    """Nothing was sent, and what the provider asked for is kept; of a tool that reads nothing first, nothing is lost."""
    stage = staged(subject, sandbox_process)
    sandbox_process.fault("lookup_429", provider=subject.provider, headers={"Retry-After": "30"})
    outcome = stage.send()
    if isinstance(outcome, Succeeded):
        assert subject.name not in READS_FIRST
        return
    assert isinstance(outcome, NotSent | Rejected)
    assert outcome.retry_after_s == 30
    assert stage.attempts() == []
    assert subject.name in READS_FIRST
