"""When the deletion of a schedule has come in time, by the time of AWS's answer to it."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest

from counterfoil.providers.aws.outcomes import deleted, deletion_outcome
from counterfoil.providers.contract import Call, Of
from counterfoil.providers.outcomes import Outcome, Rejected, Uncertain

CALL = Call(
    action_id="act_2",
    tenant="acme",
    account="main",
    tool="aws_unschedule",
    key="a2" * 16,
    arguments={"about": "order 1182"},
    target="order 1182",
    first_sent_at=datetime(2026, 11, 30, 10, 0, tzinfo=UTC),
    of=Of(
        action_id="act_1",
        tool="aws_schedule",
        key="a1" * 16,
        receipt=None,
        arguments={"about": "order 1182", "at": "2026-11-30T12:00:30Z", "note": ""},
    ),
)


@pytest.mark.parametrize(
    ("answered", "outcome"),
    [
        (datetime(2026, 11, 30, 11, 59, 59, tzinfo=UTC), deleted(CALL)),
        (datetime(2026, 11, 30, 12, 0, tzinfo=UTC), Rejected("too_late")),
        (datetime(2026, 11, 30, 13, 0, tzinfo=UTC), Rejected("too_late")),
        (None, Uncertain("no_date")),
    ],
)
def test_a_deletion_that_is_answered(answered: datetime | None, outcome: Outcome) -> None:
    """From the minute on in which it was due its target may have been called, though the deletion was carried out."""
    assert deletion_outcome(answered, CALL) == outcome
