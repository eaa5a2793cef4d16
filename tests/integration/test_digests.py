"""The digests of people's decisions: Python and the database compute the same, and no two intents share one."""

from __future__ import annotations

import json
from dataclasses import fields, replace
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from counterfoil.ledger.digests import BoundIntent, intent_digest, proposal_digest

if TYPE_CHECKING:
    from tests.integration.conftest import Rows

TEXT = st.text(
    st.one_of(
        st.characters(exclude_categories=["Cs"], exclude_characters="\0"), st.sampled_from(",:-'\"\\\n\u202e\u00e9{}0")
    ),
    max_size=20,
)
"""Anything that a column of text can hold, and often what a joined string would be misread at."""

SMALL = st.integers(1, 2**31 - 1)
INTENTS = st.builds(
    BoundIntent,
    tool=TEXT, tool_version=SMALL, class_=TEXT, effect=TEXT, target=TEXT, provider=TEXT, account=TEXT,
    arguments_sha256=TEXT, audience=st.lists(TEXT, max_size=4).map(tuple),
    amount_minor=st.none() | st.integers(-(2**63), 2**63 - 1), currency=st.none() | TEXT, compensation=st.none() | TEXT,
    correction=st.none() | TEXT,
    expected_resource_version=st.none() | TEXT, actor=TEXT, tenant=TEXT, run=TEXT, step=TEXT, action_id=TEXT,
    revision=SMALL, phase=TEXT, parent_action_id=st.none() | TEXT,
)  # fmt: skip
EXPIRIES = st.datetimes(datetime(1960, 1, 1), datetime(2200, 1, 1)).map(lambda at: at.replace(tzinfo=UTC))
"""To the microsecond, before and after the epoch."""

SAME = settings(max_examples=300, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])


@pytest.fixture
def rows(shared_rows: Rows) -> Rows:
    """One database for the module."""
    return shared_rows


def in_database(rows: Rows, intent: BoundIntent, expires_at: datetime) -> str:
    row = {field.name.rstrip("_"): getattr(intent, field.name) for field in fields(intent)}
    query = """SELECT counterfoil.intent_digest(
                 jsonb_populate_record(NULL::counterfoil.action, CAST(%s AS jsonb)), %s) AS digest"""
    return str(rows.one(query, json.dumps(row), expires_at)["digest"])


@given(intent=INTENTS, expires_at=EXPIRIES)
@SAME
def test_intent_digest_is_the_database_s(rows: Rows, intent: BoundIntent, expires_at: datetime) -> None:
    """Any intent and any expiry, to the microsecond: one digest on both sides."""
    assert intent_digest(intent, expires_at) == in_database(rows, intent, expires_at)


@given(one=INTENTS, other=INTENTS, name=st.sampled_from([field.name for field in fields(BoundIntent)]))
@SAME
def test_every_field_of_an_intent_is_bound(one: BoundIntent, other: BoundIntent, name: str) -> None:
    """Change one field, and it is another digest."""
    at = datetime(2026, 1, 1, tzinfo=UTC)
    changed = replace(one, **{name: getattr(other, name)})  # type: ignore[arg-type]
    assert (intent_digest(one, at) == intent_digest(changed, at)) == (changed == one)
    assert intent_digest(one, at) != intent_digest(one, at + timedelta(microseconds=1))


@given(
    audience=st.lists(TEXT, max_size=3).map(tuple),
    other=st.lists(TEXT, max_size=3).map(tuple),
    intent=INTENTS,
)
@SAME
def test_a_list_reads_in_one_way_only(
    rows: Rows, audience: tuple[str, ...], other: tuple[str, ...], intent: BoundIntent
) -> None:
    """("a,b") is not ("a", "b"), whatever stands in the names."""
    at = datetime(2026, 1, 1, tzinfo=UTC)
    pair = [replace(intent, audience=each) for each in (audience, other)]
    assert (intent_digest(pair[0], at) == intent_digest(pair[1], at)) == (audience == other)
    joined = replace(intent, audience=(",".join(audience),) if audience else ())
    assert in_database(rows, joined, at) == intent_digest(joined, at)


PLAN = """
INSERT INTO counterfoil.proposal (proposal_id, tenant, run, actor, is_plan, note, people, expires_at)
VALUES ('P-AAAAAAAAAAAA', 'acme', %s, %s, %s, %s, %s, %s)
"""


@given(
    run=TEXT.filter(bool), actor=TEXT, note=TEXT, is_plan=st.booleans(), people=st.sampled_from([1, 2]),
    expires_at=EXPIRIES, targets=st.lists(TEXT, min_size=1, max_size=4), receipts=st.lists(TEXT, max_size=3),
)  # fmt: skip
@settings(SAME, max_examples=60)
def test_proposal_digest_is_the_database_s(
    rows: Rows, run: str, actor: str, note: str, is_plan: bool, people: int, expires_at: datetime,
    targets: list[str], receipts: list[str],
) -> None:  # fmt: skip
    """Any plan with any steps and anything staged; of a single call, what the run has staged is no part."""
    rows.owner.execute("BEGIN")
    try:
        ids = build_plan(rows, run, targets, receipts)
        rows.owner.execute(PLAN.encode(), (run, actor, is_plan, note, people, expires_at))
        got = rows.one("SELECT counterfoil.proposal_digest('P-AAAAAAAAAAAA') AS digest")["digest"]
        made = [rows.read(action_id) for action_id in ids]
    finally:
        rows.owner.execute("ROLLBACK")
    steps = [intent_digest(bound(row), expires_at) for row in made if row["proposal_id"]]
    staged = [(row["action_id"], row["receipt"]) for row in made if row["staged"] and is_plan]
    assert got == proposal_digest(
        proposal_id="P-AAAAAAAAAAAA", tenant="acme", run=run, actor=actor, note=note, people=people, steps=steps,
        staged=staged,
    )  # fmt: skip


def build_plan(rows: Rows, run: str, targets: list[str], receipts: list[str]) -> list[str]:
    """Steps, one of them replaced, and what is staged, in the order in which they count."""
    plan = {"run": run, "proposal_id": "P-AAAAAAAAAAAA", "needs_approval": True}
    ids = [
        rows.build("proposed", **plan, step=f"c{place}", target=target or "t", place=place)
        for place, target in enumerate(targets, 1)
    ]
    rows.build("cancelled", **plan, step="old", place=1, superseded_by=ids[0])
    return ids + [
        rows.build("succeeded", run=run, step=f"s{seq}", seq=seq, staged=True, receipt=receipt or "r")
        for seq, receipt in enumerate(receipts, 1)
    ]


def bound(row: dict[str, Any]) -> BoundIntent:
    values = {field.name: row[field.name.rstrip("_")] for field in fields(BoundIntent)}
    return BoundIntent(**{**values, "audience": tuple(row["audience"])})
