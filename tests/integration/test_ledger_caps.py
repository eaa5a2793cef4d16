"""What counts against a cap: which rows, in which run and day; and claims at one moment cannot all overlook each other."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Sequence
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import TYPE_CHECKING, Any

import pytest

from counterfoil.ledger import claims
from counterfoil.ledger.caps import CAP_USE, Caps, CapTable
from counterfoil.ledger.claims import ClaimedAction, WakeUp
from counterfoil.ledger.connection import Ledger
from counterfoil.outbox.intents import DoorRules
from counterfoil.workers.limits import OverLimit, over_limit

if TYPE_CHECKING:
    from tests.integration.conftest import Row, Rows

RACERS = 8
CAP = 3
ROUNDS = 12
NOON = datetime(2031, 5, 6, 12, tzinfo=UTC)

RULES = DoorRules(caps=CapTable(effects={"charge": Caps(count_per_run_max=CAP)}))


@pytest.fixture
def rows(shared_rows: Rows) -> Rows:
    """One database for the module: every test here looks at runs and tenants of its own."""
    return shared_rows


@pytest.fixture(scope="module")
def ledgers(shared_rows: Rows) -> list[Ledger]:
    """Workers' connections, one for each racer, already open."""
    made = [shared_rows.ledger() for _ in range(RACERS)]
    for ledger in made:
        claims.beat_heart(ledger, worker="w", queues=["cf-stripe"], claimed=False)
    return made


def claim_and_count(ledger: Ledger, action_id: str) -> tuple[ClaimedAction, OverLimit | None]:
    """What a worker does first: claim, then count."""
    action = claims.claim_if_ready(
        ledger,
        WakeUp(action_id, 1),
        fence=uuid.uuid4(),
        lease_s=60,
        key=uuid.uuid4().hex,
        key_version=1,
        reach="",
        attempts_max=5,
        worker="w",
    )
    assert action is not None
    return action, over_limit(ledger, action, RULES)


def test_claims_at_one_moment(
    rows: Rows, ledgers: list[Ledger], at_once: Callable[[Sequence[Callable[[], Any]]], list[Any]]
) -> None:
    """However many workers claim at once, no more of their calls go on than the cap allows, and none of those for which
    there was room is given up for good."""
    for n in range(ROUNDS):
        made = [rows.build("ready", run=f"race-{n}") for _ in range(RACERS)]
        asked = [partial(claim_and_count, ledger, each) for ledger, each in zip(ledgers, made, strict=True)]
        counted = at_once(asked)
        order = sorted(counted, key=lambda c: (c[0].created_at, c[0].action_id))
        assert sum(over is None for _, over in counted) <= CAP
        assert [over.final for _, over in order[CAP:] if over] == [True] * (RACERS - CAP), "there was no room for these"
        assert not any(over.final for _, over in order[:CAP] if over)


def use_of(rows: Rows, tenant: str, **changes: object) -> Row:
    """What counts against a charge of run r1 that is recorded at noon."""
    given: Row = {
        "tenant": tenant,
        "run": "r1",
        "tool": "stripe_charge",
        "effect": "charge",
        "target": "1182",
        "audience": ["finance"],
        "currency": "usd",
        "action_id": "me",
        "recorded_at": NOON,
        "at": NOON,
        "without_rivals": False,
        "per_day": True,
        "parent": None,
        **changes,
    }
    found = rows.ledger().row(CAP_USE, given)
    assert found is not None
    return found


BEFORE, AFTER = NOON - timedelta(hours=1), NOON + timedelta(hours=1)
YESTERDAY = NOON - timedelta(hours=13)
MINE: Row = {"amount_minor": 500, "currency": "usd", "created_at": BEFORE}
SENT: Row = {**MINE, "first_sent_at": BEFORE, "attempt_count": 1}

COUNTED: dict[str, tuple[str, Row, int, int]] = {
    # name: (state, columns, counted in the run, counted in the day)
    "recorded before": ("ready", MINE, 1, 1),
    "waits for approval": ("awaiting_approval", MINE, 1, 1),
    "recorded later": ("ready", {**MINE, "created_at": AFTER}, 0, 0),
    "recorded later, claimed": ("executing", {**SENT, "created_at": AFTER}, 1, 1),
    "done": ("succeeded", SENT, 1, 1),
    "done and taken back": ("compensated", SENT, 1, 1),
    "refused for now": ("retryable_failure", {**SENT, "created_at": AFTER}, 1, 1),
    "unknown": ("uncertain", {**SENT, "created_at": AFTER}, 1, 1),
    "ended without an effect": ("permanent_failure", SENT, 0, 0),
    "withdrawn": ("cancelled", MINE, 0, 0),
    "too late": ("stale", MINE, 0, 0),
    "in review, never sent": ("operator_review", MINE, 0, 0),
    "in review, in doubt": ("operator_review", {**SENT, "in_doubt": True}, 1, 1),
    "of another run": ("succeeded", {**SENT, "run": "r2"}, 0, 1),
    "of another effect": ("succeeded", {**SENT, "effect": "refund"}, 0, 0),
    "a compensation": ("succeeded", {**SENT, "phase": "undo", "parent_action_id": "x"}, 0, 0),
    "recorded and sent yesterday": ("succeeded", {**SENT, "created_at": YESTERDAY, "first_sent_at": YESTERDAY}, 1, 0),
    "recorded yesterday, sent today": ("succeeded", {**SENT, "created_at": YESTERDAY}, 1, 1),
    "recorded today, sent tomorrow": ("succeeded", {**SENT, "first_sent_at": NOON + timedelta(hours=12)}, 1, 0),
}


@pytest.mark.parametrize("case", COUNTED)
def test_what_counts(rows: Rows, case: str) -> None:
    """A call takes room from others from its recording or its claim on until it has surely had no effect, in its run, and
    on the day of its first attempt."""
    state, columns, in_run, in_day = COUNTED[case]
    tenant = f"t {case}"
    rows.build(state, tenant=tenant, **columns)
    use = use_of(rows, tenant)
    assert (use["run_effect_count"], use["day_effect_count"]) == (in_run, in_day)
    assert (use["run_effect_minor"], use["day_effect_minor"]) == (500 * in_run, 500 * in_day)
    assert (use["run_tool_count"], use["day_tool_minor"]) == (in_run, 500 * in_day)


def test_amounts_and_tools_apart(rows: Rows) -> None:
    """Another currency, no amount, or one below zero adds nothing to an amount; another tool counts for the effect alone."""
    for changes in ({"currency": "eur"}, {"amount_minor": None}, {"amount_minor": -700}, {"tool": "stripe_capture"}):
        rows.build("succeeded", tenant="apart", **{**SENT, **changes})
    use = use_of(rows, "apart")
    assert (use["run_effect_count"], use["run_tool_count"]) == (4, 3)
    assert (use["run_effect_minor"], use["run_tool_minor"]) == (500, 0)
    assert use_of(rows, "apart", currency=None)["run_effect_minor"] == 0
    assert use_of(rows, "apart", tool="other")["day_effect_minor"] == 500


def test_what_carries_an_effect_on_takes_over_its_place(rows: Rows) -> None:
    """A hold and its capture are one charge, and every further capture is another; a capture that failed is none."""
    hold = rows.build("succeeded", tenant="hold", **{**SENT, "tool": "stripe_authorize"})
    assert use_of(rows, "hold", parent=hold)["run_effect_count"] == 0, "its capture has its place"
    rows.build("permanent_failure", tenant="hold", **SENT, parent_action_id=hold)
    assert use_of(rows, "hold")["run_effect_count"] == 1
    for count in (1, 2):
        rows.build("succeeded", tenant="hold", **SENT, parent_action_id=hold)
        use = use_of(rows, "hold", parent=hold)
        assert (use["run_effect_count"], use["run_effect_minor"], use["day_effect_count"]) == (
            count,
            500 * count,
            count,
        )
    assert use_of(rows, "hold", tool="stripe_authorize")["run_tool_count"] == 1, "of its tool it counts"


def test_the_day_is_utc(rows: Rows) -> None:
    """A day begins at midnight in UTC, whatever the session's time zone."""
    midnight = NOON.replace(hour=0)
    rows.build("succeeded", tenant="utc", **{**SENT, "first_sent_at": midnight})
    rows.build("succeeded", tenant="utc", **{**SENT, "first_sent_at": midnight - timedelta(microseconds=1)})
    assert use_of(rows, "utc")["day_effect_count"] == 1
    assert use_of(rows, "utc", at=NOON - timedelta(days=1))["day_effect_count"] == 1


def test_the_day_is_counted_for_its_caps_only(rows: Rows) -> None:
    """A day may hold very many: they are read where a cap of the day asks, and of a bulk the run tells enough."""
    rows.build("succeeded", tenant="quiet", **SENT)
    asked, not_asked = use_of(rows, "quiet"), use_of(rows, "quiet", per_day=False)
    assert (asked["day_effect_count"], not_asked["day_effect_count"]) == (1, 0)
    assert asked["run_effect_count"] == not_asked["run_effect_count"] == 1
    table = CapTable(tools={"t": Caps(count_per_run_max=1)}, effects={"e": Caps(amount_per_day_max_minor=1)})
    assert [table.per_day(tool, effect) for tool in "tu" for effect in "ef"] == [True, False, True, False]


@pytest.mark.parametrize(
    ("target", "audience", "bulk"),
    [("1182", ["finance"], 0), ("1182", ["finance", "customer"], 1), ("1183", ["finance"], 1)],
)
def test_what_is_a_bulk(rows: Rows, target: str, audience: list[str], bulk: int) -> None:
    """Beside one that cannot be taken back: another one to another target, or that is seen outside the company."""
    tenant = f"bulk {target} {audience}"
    rows.build("succeeded", tenant=tenant, **{**SENT, "class": "irreversible"})
    assert use_of(rows, tenant, target=target, audience=audience)["bulk"] == bulk
