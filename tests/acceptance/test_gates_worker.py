"""What the worker checks before it sends: the approval of exactly this, its own rules, caps, bulks; and what time ends."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

import psycopg
import pytest
from tests.acceptance.gates import PRICE, Gates, open_gates

from counterfoil.ledger import sweeps
from counterfoil.ledger.errors import ConfigError
from counterfoil.settings_providers import EffectSettings, ToolSettings
from counterfoil.testing import World

if TYPE_CHECKING:
    from tests.conftest import Database

DAY_S = 86_400.0
MISMATCH = ("operator_review", "approval_mismatch")
POLICY = ("operator_review", "policy_mismatch")


@pytest.fixture
def gates(world: World, database: Database) -> Gates:
    """The world with tools that post to its warehouse."""
    return open_gates(world, database)


@pytest.fixture
def rule(world: World) -> Callable[..., None]:
    """Changes the worker's settings before its first worker is made: `approval`, `tool` or `effect` tables."""

    def change(*, approval: dict[str, Any] | None = None, **tables: Any) -> None:
        before = world.settings
        approved = before.approval.model_copy(update=approval or {})
        world.settings = before.model_copy(update={"approval": approved, **tables})
        world.restart()

    return change


def test_an_approved_call_is_sent_once(gates: Gates, world: World) -> None:
    """What a person has approved is executed without another word, once, and consumes its approval."""
    action_id = gates.approved("gated_parcel", order="1")
    world.settle()
    assert gates.sent == 1
    assert gates.read(action_id)["state"] == "succeeded"
    assert gates.forge("SELECT FROM counterfoil.approval WHERE consumed_at IS NOT NULL") == 1


def test_expiry_between_approval_and_claim(gates: Gates, world: World) -> None:
    """An approval that no worker has used in time is worth nothing: nothing is sent, and the row says so."""
    action_id = gates.approved("gated_parcel", order="1")
    world.advance(DAY_S + 1)
    assert gates.deliver(action_id) == 0, "not claimed, though no tick has come by yet"
    assert gates.read(action_id)["state"] == "ready"
    world.settle()
    assert gates.sent == 0
    assert gates.ended(action_id) == ("stale", "approval_expired")


def test_expiry_binds_the_first_claim_only(gates: Gates, world: World) -> None:
    """A refused first attempt is tried again after the approval's time: the approval was used when it was good."""
    world.sandbox.warehouse.fault("answer", on="shipments.create", status=429, times=1)
    action_id = gates.approved("gated_parcel", order="1")
    world.work()
    assert gates.read(action_id)["state"] == "retryable_failure"
    world.advance(2 * DAY_S)
    world.settle()
    assert gates.sent == 1
    assert gates.read(action_id)["state"] == "succeeded"


def test_nobody_decides_in_time(gates: Gates, world: World) -> None:
    """A proposal that nobody has decided ends by the ledger's clock, and later approvals are told so; settling waits for
    neither."""
    action_id = gates.ask("gated_parcel", order="1")
    world.settle()
    assert gates.read(action_id)["state"] == "awaiting_approval"
    world.advance(DAY_S + 1)
    world.settle()
    assert gates.ended(action_id) == ("stale", "approval_expired")
    assert gates.approve(action_id) == "expired"
    assert gates.sent == 0


def test_nobody_decides_before_the_deadline(gates: Gates, world: World) -> None:
    """The run's deadline is sooner: its proposal has expired, as one that nobody has decided; nobody has withdrawn it."""
    with psycopg.connect(gates.database.url("agent")) as agent:
        agent.execute("SELECT FROM counterfoil.open_run('acme', 'r1', 'bot', 60)")
    action_id = gates.ask("gated_parcel", order="1")
    world.advance(61)
    world.settle()
    assert gates.read(action_id)["state"] == "stale"
    with psycopg.connect(gates.database.url("owner")) as owner:
        assert owner.execute("SELECT state FROM counterfoil.proposal").fetchall() == [("expired",)]
    assert gates.approve(action_id) == "expired"


FORGERIES = {
    "of another run": "UPDATE counterfoil.action SET approval_id = (SELECT approval_id FROM counterfoil.approval"
    " WHERE action_id = %(other)s), state = 'ready', generation = 1, ready_at = counterfoil.now()"
    " WHERE action_id = %(mine)s",
    "that does not exist": "UPDATE counterfoil.action SET approval_id = 'apr_none', state = 'ready', generation = 1,"
    " ready_at = counterfoil.now() WHERE action_id = %(mine)s",
    "that is none at all": "UPDATE counterfoil.action SET state = 'ready', generation = 1, ready_at = counterfoil.now()"
    " WHERE action_id = %(mine)s",
    "of another digest": "WITH given AS (INSERT INTO counterfoil.approval"
    " (subject_id, action_id, tenant, digest, people, expires_at) SELECT a.proposal_id, a.action_id, a.tenant, g.digest, 1,"
    " g.expires_at FROM counterfoil.action AS a, counterfoil.approval AS g WHERE a.action_id = %(mine)s"
    " AND g.action_id = %(other)s RETURNING approval_id)"
    " UPDATE counterfoil.action SET approval_id = given.approval_id, state = 'ready', generation = 1,"
    " ready_at = counterfoil.now() FROM given WHERE action_id = %(mine)s",
}


@pytest.mark.parametrize("forgery", FORGERIES)
def test_a_replayed_approval(gates: Gates, world: World, forgery: str) -> None:
    """An approval that is not of this very row, even where raw SQL has put it there, sends nothing; a person gets the row,
    and what is delivered beside it goes on."""
    other = gates.approved("gated_parcel", order="1", run="r1")
    mine = gates.ask("gated_parcel", order="2", run="r2")
    forged = FORGERIES[forgery].replace("%(other)s", f"'{other}'").replace("%(mine)s", f"'{mine}'")
    assert gates.forge(forged) == 1
    gates.deliver(mine, other)
    world.settle()
    assert [e.data["order"] for e in world.sandbox.effects("shipment")] == ["1"]
    assert gates.ended(mine) == MISMATCH
    assert gates.read(other)["state"] == "succeeded"


def test_a_resend_without_its_approval(gates: Gates, world: World) -> None:
    """What would be sent again, but whose approval is not of it any more, is a person's; the look-ups of others go on."""
    world.sandbox.warehouse.fault("504_before_commit", on="shipments.create", times=2)
    ids = [gates.approved("gated_parcel", order=order, run=f"r{order}") for order in ("1", "2")]
    gates.deliver(*ids)
    assert gates.forge("UPDATE counterfoil.action SET actor = 'somebody' WHERE action_id = %s", ids[0]) == 1
    world.settle()
    assert [e.data["order"] for e in world.sandbox.effects("shipment")] == ["2"]
    assert gates.ended(ids[0]) == MISMATCH


def test_a_success_is_written_whatever_became_of_the_next_step(gates: Gates, world: World) -> None:
    """A plan's second step whose approval is not of it any more keeps the first one's success from nobody; it ends with the
    approval's time, unsent."""
    first, second = gates.planned("gated_parcel", orders=("1", "2"))
    assert gates.forge("UPDATE counterfoil.action SET actor = 'somebody' WHERE action_id = %s", second) == 1
    world.settle()
    assert [e.data["order"] for e in world.sandbox.effects("shipment")] == ["1"]
    assert (gates.read(first)["state"], gates.read(second)["state"]) == ("succeeded", "proposed")
    world.advance(2 * 86_400)
    world.settle()
    assert gates.ended(second) == ("stale", "approval_expired")


def test_a_refused_claim_in_doubt_waits_for_evidence(gates: Gates, world: World) -> None:
    """Where an earlier attempt may have had its effect, a row whose approval no longer fits is looked up, not just parked."""
    world.sandbox.warehouse.fault("504_after_commit", on="shipments.create", times=1)
    action_id = gates.approved("gated_parcel", order="1")
    world.work()
    assert gates.forge(
        "UPDATE counterfoil.action SET state = 'ready', ready_at = counterfoil.now(), actor = 'somebody'"
        " WHERE action_id = %s AND state = 'uncertain'", action_id
    )  # fmt: skip
    gates.deliver(action_id)
    assert gates.ended(action_id) == ("uncertain", "approval_mismatch")
    world.settle()
    assert gates.sent == 1
    assert gates.read(action_id)["state"] == "succeeded"


def test_one_person_where_two_are_needed(gates: Gates, world: World, rule: Callable[..., None]) -> None:
    """An approval that one person gave does not do where this worker's settings ask for two, whatever the proposal said."""
    action_id = gates.approved("gated_parcel", order="1")
    rule(approval={"two_person": ("gated_parcel",)})
    world.settle()
    assert gates.sent == 0
    assert gates.ended(action_id) == POLICY


def test_two_persons(gates: Gates, world: World, rule: Callable[..., None]) -> None:
    """Where two are needed, two different persons' logins let it through, and not before the second."""
    rule(approval={"two_person": ("gated_parcel",)})
    action_id = gates.ask("gated_parcel", order="1")
    assert gates.approve(action_id) == "one_more"
    world.settle()
    assert gates.sent == 0
    assert gates.approve(action_id, "bob") == "same_person", "the same login cannot be two people"
    gates.forge("UPDATE counterfoil.decision SET db_role = 'another_login'")
    assert gates.approve(action_id, "bob") == "approved"
    world.settle()
    assert gates.sent == 1


def test_settings_gate_what_the_row_calls_free(gates: Gates, world: World, rule: Callable[..., None]) -> None:
    """An agent that leaves out an approval which only the settings ask for gets nothing sent: a person looks."""
    rule(tool={"parcel": ToolSettings(approval_above_minor=PRICE - 1)})
    assert gates.intent("parcel", order="0", rules=gates.rules()).needs_approval
    forged = gates.propose(gates.intent("parcel", order="1"), needs_approval=False)
    small = gates.propose(gates.intent("parcel", order="2", price=PRICE - 1))
    world.settle()
    assert [e.data["order"] for e in world.sandbox.effects("shipment")] == ["2"]
    assert gates.ended(forged) == POLICY
    assert gates.read(small)["state"] == "succeeded"


@pytest.mark.parametrize(
    "changes",
    [
        {"needs_approval": False},
        {"compensation": '{"arguments":{"order":"9"},"tool":"call_back"}'},
        {"correction": '{"arguments":{"order":"9"},"tool":"plain_letter"}'},
        {"once_key": "of_another_order"},
        {"audience": ["team"]},
        {"effect_scope": "tenant"},
        {"queue": "cf-stripe"},
    ],
    ids=lambda changes: next(iter(changes)),
)
def test_a_row_that_the_tool_would_not_have_written(gates: Gates, world: World, changes: dict[str, object]) -> None:
    """What a call says about itself is derived again from the worker's own tool, also where a person has approved it."""
    action_id = gates.propose(gates.intent("gated_parcel", order="1"), **changes)
    if changes.get("needs_approval", True):
        assert gates.approve(action_id) == "approved"
    gates.deliver(action_id)
    world.settle()
    assert gates.sent == 0
    assert gates.ended(action_id) == POLICY


CAPS: dict[str, tuple[dict[str, int], int]] = {
    "count": ({"count_per_run_max": 2}, 2),
    "amount": ({"amount_per_run_max_minor": 3 * PRICE - 1}, 2),
    "count a day": ({"count_per_day_max": 3}, 3),
    "amount a day": ({"amount_per_day_max_minor": 3 * PRICE}, 3),
}


@pytest.mark.parametrize("table", ["tool", "effect"])
@pytest.mark.parametrize("cap", CAPS)
def test_caps(gates: Gates, world: World, rule: Callable[..., None], cap: str, table: str) -> None:
    """No more of a tool or an effect is sent than the settings allow, in count and in amount; the rest is a person's."""
    limits, most = CAPS[cap]
    section = {"parcel": ToolSettings(**limits) if table == "tool" else EffectSettings(**limits)}
    rule(**{table: section})
    asked = [gates.ask("parcel", order=str(n)) for n in range(5)]
    world.settle()
    sent = [
        int(e.data["order"]) for e in world.sandbox.effects("shipment")
    ]  # one that a slow worker let go comes later
    assert len(sent) == len(set(sent)) == most
    for n, action_id in enumerate(asked):
        assert gates.ended(action_id) == (("succeeded", None) if n in sent else ("operator_review", "cap_reached"))


@pytest.mark.parametrize("point", ["before_claim", "after_claim"])
@pytest.mark.parametrize("first", [0, 1])
def test_caps_race(gates: Gates, world: World, rule: Callable[..., None], point: Any, first: int) -> None:
    """Two workers with a call each and room for one send one, whichever of them is stopped on the way and wherever."""
    rule(effect={"parcel": EffectSettings(count_per_run_max=1)})
    asked = [gates.ask("parcel", order=str(n)) for n in range(2)]
    world.batch = 1
    gates.forge(
        "UPDATE counterfoil.outbox SET not_before = not_before - interval '1 hour' WHERE action_id = %s", asked[first]
    )
    with world.frozen_at(point) as thaw:
        gates.deliver(asked[1 - first])
        assert gates.sent <= 1
        thaw()
    world.settle()
    assert gates.sent == 1
    assert sorted(gates.ended(a) for a in asked) == [("operator_review", "cap_reached"), ("succeeded", None)]


def test_a_worker_that_died_before_it_counted(gates: Gates, world: World, rule: Callable[..., None]) -> None:
    """A claim whose worker died before it looked at the caps gets no place by that: its second attempt is counted, too."""
    rule(effect={"parcel": EffectSettings(count_per_run_max=1)})
    first, second = (gates.ask("parcel", order=str(n)) for n in range(2))
    gates.deliver(first)
    with world.crash_after("after_claim"):
        gates.deliver(second)
    world.settle()
    assert gates.sent == 1
    assert gates.ended(second) == ("operator_review", "cap_reached")


def test_what_was_sent_keeps_its_place(gates: Gates, world: World, rule: Callable[..., None]) -> None:
    """A call that was refused for now is tried again under a full cap, also while another one that will not fit is being
    counted."""
    rule(effect={"parcel": EffectSettings(count_per_run_max=1)})
    world.sandbox.warehouse.fault("answer", on="shipments.create", status=429, times=1)
    first, second = (gates.ask("parcel", order=str(n)) for n in range(2))
    gates.deliver(first)
    assert gates.read(first)["state"] == "retryable_failure"
    with world.frozen_at("after_claim"):
        assert gates.read(second)["state"] == "executing"
        world.advance(3)
        gates.deliver(first)
    world.settle()
    assert [e.data["order"] for e in world.sandbox.effects("shipment")] == ["0"]
    assert [gates.read(a)["state"] for a in (first, second)] == ["succeeded", "operator_review"]


def test_caps_a_day_end_at_midnight(
    gates: Gates, world: World, rule: Callable[..., None], sql: Callable[..., Any]
) -> None:
    """The day is the ledger's, in UTC: what was sent before midnight does not count after it, what is sent after does."""
    rule(effect={"parcel": EffectSettings(count_per_day_max=1)})
    ((now,),) = sql("SELECT counterfoil.now()")
    midnight = datetime.combine(now.date() + timedelta(days=1), datetime.min.time(), UTC)
    world.advance((midnight - now).total_seconds() - 60)
    asked = [gates.ask("parcel", order="1", run="evening"), gates.ask("parcel", order="2", run="evening")]
    world.settle()
    assert gates.sent == 1
    world.advance(120)
    asked += [gates.ask("parcel", order="3", run="morning"), gates.ask("parcel", order="4", run="morning")]
    world.settle()
    assert gates.sent == 2
    assert [gates.ended(a)[0] for a in asked] == ["succeeded", "operator_review", "succeeded", "operator_review"]


def test_caps_count_each_currency_apart_and_no_amount_as_too_much(
    gates: Gates, world: World, rule: Callable[..., None]
) -> None:
    """An amount of one currency takes no room from another."""
    rule(effect={"parcel": EffectSettings(amount_per_run_max_minor=PRICE)})
    for n, currency in enumerate(("eur", "usd", "eur")):
        gates.ask("parcel", order=str(n), currency=currency)
    world.settle()
    assert [e.data["order"] for e in world.sandbox.effects("shipment")] == ["0", "1"]


def test_what_was_refused_by_a_cap_takes_no_room(gates: Gates, world: World, rule: Callable[..., None]) -> None:
    """One call that is too large for the day does not stop the small ones after it."""
    rule(effect={"parcel": EffectSettings(amount_per_day_max_minor=PRICE)})
    gates.ask("parcel", order="1", price=PRICE + 1)
    world.settle()
    gates.ask("parcel", order="2")
    world.settle()
    assert [e.data["order"] for e in world.sandbox.effects("shipment")] == ["2"]


def test_a_capped_call_is_told_at_the_door(
    gates: Gates, world: World, rule: Callable[..., None], client: Callable[..., Any]
) -> None:
    """The model hears `limit_reached` at once, and nothing is recorded; what a tool's cap does not name goes on."""
    rule(tool={"parcel": ToolSettings(count_per_run_max=1)})
    run = client().run("r1", tenant="acme", actor="bot")
    first = run.call("parcel", {"order": "1"}, wait_s=0)
    world.settle()
    run.call("parcel", {"order": "1"}, wait_s=0)
    second = run.call("parcel", {"order": "2"}, wait_s=0)
    assert (second.status, second.next_step, second.action_id) == ("blocked", "limit_reached", None)
    assert len(world.states()) == 1
    assert first.action_id is not None
    assert gates.sent == 1


def test_a_cap_on_amounts_needs_an_amount(gates: Gates, world: World, rule: Callable[..., None]) -> None:
    """A cap that would stop every call of a tool, since it has no amount, is refused when the worker starts."""
    rule(tool={"plain_letter": ToolSettings(amount_per_day_max_minor=1)})
    with pytest.raises(ConfigError, match="plain_letter"):
        _ = world.executor


def test_a_bulk_that_two_transactions_began(gates: Gates, world: World) -> None:
    """Letters that nothing takes back are a bulk from the second on: one whose agent did not say so waits for a person."""
    first = gates.ask("plain_letter", order="1")
    second = gates.ask("plain_letter", order="2")
    unsaid = gates.propose(gates.intent("plain_letter", order="3"), bulk_above=1000)
    world.settle()
    assert gates.read(second)["state"] == "awaiting_approval"
    assert gates.ended(unsaid) == ("operator_review", "bulk_unapproved")
    assert [e.data["order"] for e in world.sandbox.effects("shipment")] == ["1"]
    assert gates.approve(second) == "approved"
    world.settle()
    assert [e.data["order"] for e in world.sandbox.effects("shipment")] == ["1", "2"]
    assert gates.read(first)["state"] == "succeeded"


def test_a_bulk_recorded_in_the_other_order(gates: Gates, world: World) -> None:
    """Of two letters that did not see each other, the one that is claimed second is held, also if it was recorded first."""
    early = gates.propose(gates.intent("plain_letter", order="1"), bulk_above=1000)
    late = gates.propose(gates.intent("plain_letter", order="2"), bulk_above=1000)
    gates.forge("UPDATE counterfoil.action SET created_at = created_at - interval '1 hour' WHERE action_id = %s", late)
    gates.deliver(late)
    gates.deliver(early)
    world.settle()
    assert gates.sent == 1
    assert gates.ended(early) == ("operator_review", "bulk_unapproved")


def test_effect_locks_are_pruned(gates: Gates, world: World) -> None:
    """The locks that proposing leaves behind do not pile up."""
    gates.ask("parcel", order="1")
    assert sweeps.prune_effect_locks(world.ledger, older_s=0) == 0, "an hour is the least"
    world.advance(2 * DAY_S)
    gates.ask("parcel", order="2")
    world.reconciler.make_partitions()
    assert gates.forge("SELECT FROM counterfoil.effect_lock") == 1
