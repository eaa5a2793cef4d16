"""Each guard of the protocol, in the one situation in which it alone stops a second effect or a false answer.

`make guards` switches them off one at a time and expects the test of the same name to fail.
"""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING

import psycopg
import pytest
import requests
from tests.acceptance.drafts import Mail
from tests.acceptance.gates import Gates, open_gates
from tests.acceptance.office import Office, Plan
from tests.acceptance.people import approve_all

from counterfoil import LedgerLostTime, Rejected
from counterfoil.providers.registry import Registry
from counterfoil.providers.tool import tool
from counterfoil.settings_providers import EffectSettings
from counterfoil.testing import World
from counterfoil.workers import guards

if TYPE_CHECKING:
    from tests.acceptance.shop import Shop
    from tests.conftest import Database

CHARGE = {"customer": "cus_1", "amount_minor": 500, "currency": "usd", "order_id": "1182"}
TICKET = {"project": "SUP", "summary": "Refund for order 1182", "order_id": "1182"}
LEASE_S = 6.0
AGENT = {"tenant": "acme", "actor": "bot"}


@pytest.mark.guard("claim_condition")
def test_claim_condition(world: World, enqueue) -> None:
    """While one worker's call is under way, nobody else may claim the row: one ticket."""
    enqueue("jira_create", TICKET)
    with world.frozen_at("before_claim") as thaw:
        with world.crash_after("before_settle"):
            world.work()  # claims, calls, and dies: the row stays executing under its lease
        thaw()
    world.settle()
    assert world.sandbox.count("tickets_created") == 1
    assert list(world.states().values()) == ["succeeded"]


@pytest.mark.guard("paused")
def test_paused(world: World, database: Database, enqueue) -> None:
    """What is published already when a person pauses its provider is not sent: no charge until it is resumed, then one."""
    enqueue("stripe_charge", CHARGE)
    due = world.due()
    with psycopg.connect(database.url("operator"), autocommit=True) as operator:
        change = (
            "SELECT counterfoil.change_settings(ARRAY['providers.stripe.mode'], ARRAY[%s], 'mara', 'test', 'incident')"
        )
        operator.execute(change, ['"paused"'])
        world.deliver(due)
        assert world.sandbox.count("charges") == 0
        operator.execute(change, ['"running"'])
    world.settle()
    assert world.sandbox.count("charges") == 1


@pytest.mark.guard("settle_token")
def test_settle_token(world: World, enqueue) -> None:
    """A worker whose row was taken over cannot settle it with its own old answer: the new owner's success stands."""
    world.sandbox.jira.fault("answer", on="issue.create", status=403)
    enqueue("jira_create", TICKET)
    with world.frozen_at("before_settle") as thaw_refused:
        _lose_lease_and_earn_absence(world)
        with world.frozen_at("before_settle"):  # the second attempt has made its ticket
            thaw_refused()
    world.settle()
    assert world.sandbox.count("tickets_created") == 1
    assert list(world.states().values()) == ["succeeded"]


@pytest.mark.guard("send_fence")
def test_send_fence(world: World, enqueue) -> None:
    """A worker that slept through its lease after the claim does not send when it wakes up: one ticket."""
    enqueue("jira_create", TICKET)
    with world.frozen_at("after_claim"):
        _lose_lease_and_earn_absence(world)
        world.settle()
    world.settle()
    assert world.sandbox.count("tickets_created") == 1
    assert list(world.states().values()) == ["succeeded"]


@pytest.mark.guard("doubt")
def test_doubt(world: World, enqueue) -> None:
    """A refusal of the second attempt says nothing about the first, which lands late: succeeded, not failed."""
    world.sandbox.stripe.fault("504_then_commit_after", on="payment_intents.create", delay_s=1.5)
    world.sandbox.stripe.fault("answer", on="payment_intents.create", status=403)
    enqueue("stripe_charge", CHARGE)
    world.settle()
    world.advance(5)  # whatever was decided, the first request has landed by now
    assert world.sandbox.count("charges") == 1
    assert list(world.states().values()) == ["succeeded"]


@pytest.mark.guard("absence_window")
def test_absence_window(world: World, enqueue) -> None:
    """A request that lands late behind a lagging index is not sent again, however often the look-up is empty."""
    world.sandbox.config(search_lag_s={"jira": 3})
    world.sandbox.jira.fault("504_then_commit_after", on="issue.create", delay_s=1.9)
    enqueue("jira_create", TICKET)
    world.settle()
    assert world.sandbox.count("tickets_created") == 1
    assert list(world.states().values()) == ["succeeded"]


@pytest.mark.guard("ttl_at_send")
def test_ttl_at_send(world: World, enqueue) -> None:
    """A resend that a key was to answer, but that comes up after the key's end, is not sent: a person decides."""
    world.registry = _blind_charges(world)
    world.sandbox.stripe.fault("504_after_commit", on="payment_intents.create")
    enqueue("blind_charge", {"order_id": "1182", "base": world.sandbox.stripe.url})
    world.work()
    world.advance(1)
    world.reconcile()
    assert list(world.states().values()) == ["ready"]  # the key would answer it now, but every worker is down
    world.advance(25 * 3600)
    world.settle()
    assert world.sandbox.count("charges") == 1
    assert list(world.states().values()) == ["operator_review"]


@pytest.mark.guard("approval_gate")
def test_approval_gate(world: World, database: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    """A worker of an earlier version, which compares no digests, cannot claim under another call's approval: one parcel."""
    monkeypatch.setattr(guards, "_approval_mismatch", lambda *_: None)
    _replay_an_approval(open_gates(world, database))
    assert world.sandbox.count("shipments") == 1
    assert sorted(world.states().values()) == ["operator_review", "succeeded"]


@pytest.mark.guard("approval_digest")
def test_approval_digest(world: World, database: Database) -> None:
    """Where the database's own gate is missing, as after a careless restore, the worker itself sends nothing under another
    call's approval: one parcel."""
    gates = open_gates(world, database)
    gates.forge("ALTER TABLE counterfoil.action DISABLE TRIGGER approval_gate")
    _replay_an_approval(gates)
    assert world.sandbox.count("shipments") == 1
    assert sorted(world.states().values()) == ["operator_review", "succeeded"]


@pytest.mark.guard("caps")
def test_caps(world: World, database: Database) -> None:
    """Calls that several transactions have recorded, none of which saw the others, do not exceed a cap: one parcel."""
    gates = open_gates(world, database)
    world.settings = world.settings.model_copy(update={"effect": {"parcel": EffectSettings(count_per_day_max=1)}})
    for n in range(3):
        gates.ask("parcel", order=str(n), run=f"r{n}")
    world.settle()
    assert world.sandbox.count("shipments") == 1
    assert sorted(world.states().values()) == ["operator_review", "operator_review", "succeeded"]


@pytest.mark.guard("version")
def test_version(world: World, use_tools, enqueue) -> None:
    """A draft that somebody edits between the reading that a decision is about and the claim is not sent: no message."""
    mail = Mail(world)
    use_tools(*mail.tools)
    draft = mail.draft()
    enqueue("send_at_once", {"draft": draft})
    world.reconcile()
    mail.edit(draft)
    world.settle()
    assert mail.sent == 0
    assert list(world.states().values()) == ["stale"]


def _replay_an_approval(gates: Gates) -> None:
    """One parcel is approved; raw SQL says that another one has that approval, too."""
    approved = gates.approved("gated_parcel", order="1")
    other = gates.ask("gated_parcel", order="2", run="r2")
    forged = gates.forge(
        "UPDATE counterfoil.action SET state = 'ready', generation = 1, ready_at = counterfoil.now(),"
        " approval_id = (SELECT approval_id FROM counterfoil.approval WHERE action_id = %s) WHERE action_id = %s",
        approved,
        other,
    )
    assert forged == 1
    gates.deliver(approved, other)
    gates.world.settle()


@pytest.mark.guard("carried_on")
def test_carried_on(world: World, client, database: Database) -> None:
    """Of a hold that was captured the capture alone is refunded: the hold is not released on top of it."""
    office = Office(world)
    registry = Registry()
    for function in office.tools:
        registry.add(function.__counterfoil_tool__)
    registry.resolve()
    world.registry = registry
    plan = Plan(client().run("r1", tenant="acme", actor="bot"), world, database.url("operator"))
    plan.approve()
    world.work()
    plan.run.unwind("stop")
    world.settle()
    assert sorted(office.undone()) == ["capture 1182", "draft 1182"]


@pytest.mark.guard("key_in_flight")
def test_key_in_flight(world: World, enqueue, configure) -> None:
    """The creation outlasts the client, and Zendesk would run a repeat beside it: one ticket."""
    world.registry = Registry.load(["counterfoil.providers.zendesk.tools"])
    configure("zendesk", timeout_s=1.0, landing_max_s=120)
    world.sandbox.config(search_lag_s={"zendesk": 0}, zendesk_in_flight="execute")
    world.sandbox.zendesk.fault("slow", on="tickets.create", delay_s=40)
    enqueue("zendesk_create", {"subject": "Order 1182", "body": "Lost.", "order_id": "1182"})
    world.settle()
    world.advance(60)
    assert world.sandbox.count("zendesk_tickets") == 1


@pytest.mark.guard("account")
def test_account(world: World, enqueue, configure, database: Database) -> None:
    """A row that names the account of another tenant moves no money."""
    configure("stripe", accounts={"eu": {"api_key": "sk_test_eu", "tenants": ["globex"]}})
    enqueue("stripe_charge", CHARGE)
    with psycopg.connect(database.url("owner")) as connection:
        connection.execute("SET session_replication_role = replica")  # the triggers would refuse it
        connection.execute("UPDATE counterfoil.action SET account = 'eu'")
    world.settle()
    assert world.sandbox.count("charges") == 0
    assert list(world.states().values()) == ["operator_review"]


@pytest.mark.guard("reach")
def test_reach(world: World, enqueue, configure) -> None:
    """While a charge is in doubt its key is replaced by another account's: one charge."""
    world.sandbox.stripe.fault("504_after_commit", on="payment_intents.create")
    enqueue("stripe_charge", CHARGE)
    world.work()
    configure("stripe", api_key="sk_test_other")
    world.restart()
    world.settle()
    assert world.sandbox.count("charges") == 1
    assert list(world.states().values()) == ["operator_review"]


def _lose_lease_and_earn_absence(world: World) -> None:
    """The lease ends, the look-ups find nothing, and the row may be claimed again."""
    world.advance(LEASE_S + 0.1)
    for _ in range(100):
        world.reconcile()
        if world.due():
            return
        world.advance(0.5)
    raise AssertionError(f"absence was never earned: {world.open_rows()}")


def _blind_charges(world: World) -> Registry:
    """A charge whose provider knows our key for a day and has no look-up: the resend is the look-up."""

    @tool(
        cls="compensatable",
        provider="blind",
        effect="charge",
        target="order_id",
        once_per=None,
        audience=["finance"],
        undo="blind_refund",
        native_key_ttl_s=86400,
    )
    def blind_charge(order_id: str, base: str, *, key: str) -> dict[str, object]:
        form = {"amount": "500", "currency": "usd", "confirm": "true", "payment_method": "pm_card_visa"}
        headers = {"Idempotency-Key": key, "Authorization": "Bearer sk_test"}
        reply = requests.post(
            f"{base}/v1/payment_intents", data=form, headers=headers, timeout=3, allow_redirects=False
        )
        reply.raise_for_status()
        answer: dict[str, object] = reply.json()
        return answer

    @tool(
        cls="compensatable",
        provider="blind",
        effect="refund",
        target="order_id",
        once_per=None,
        audience=["finance"],
        undo=None,
        uncertain="operator_review",
    )
    def blind_refund(order_id: str, *, of: str) -> dict[str, object]:
        return {"id": f"refund of {of}"}

    registry = Registry()
    for function in (blind_charge, blind_refund):
        registry.add(function.__counterfoil_tool__)  # type: ignore[attr-defined]
    registry.resolve()
    return registry


@pytest.mark.guard("untold_end")
def test_untold_end(world: World, shop: Shop, client) -> None:
    """Answered `pending`, then the process dies; the reworded repeat is the same action."""
    first = client().run("r1", **AGENT).call("refund", {"order": "1", "reason": "late"}, wait_s=0)
    world.settle()
    run = client().run("r1", seen=first.seen, **AGENT)
    run.call("refund", {"order": "1", "reason": "too late"}, wait_s=0)
    world.settle()
    assert shop.count("refund") == 1


@pytest.mark.guard("turn_memory")
def test_turn_memory(world: World, shop: Shop, client) -> None:
    """A lost response had done the refund; in the next one another call is told so, and the refund stands there, too."""
    run = client().run("r1", **AGENT)
    run.call("refund", {"order": "1", "reason": "late"}, turn="t1", ref="a", seen=[], wait_s=0)
    world.settle()
    fee = run.call("charge_fee", {"order": "1"}, turn="t2", ref="a", seen=[], wait_s=0)
    run.call("refund", {"order": "1", "reason": "too late"}, turn="t2", ref="b", seen=fee.seen, wait_s=0)
    world.settle()
    assert shop.count("refund") == 1


@pytest.mark.guard("turn_wish")
def test_turn_wish(world: World, shop: Shop, client) -> None:
    """Two refunds of one order in one response, in other words: two."""
    run = client().run("r1", **AGENT)
    for ref in ("a", "b"):
        run.call("refund", {"order": "1", "reason": ref}, turn="t1", ref=ref, seen=[], wait_s=0)
        world.settle()
    assert shop.count("refund") == 2


@pytest.mark.guard("same_reference")
def test_same_reference(world: World, shop: Shop, client) -> None:
    """The same call under the same reference, after it was told its end: a node that runs from its top."""
    run = client().run("r1", **AGENT)
    for _ in range(3):
        run.call("refund", {"order": "1"}, ref="t1:call_1", wait_s=0)
        world.settle()
    assert shop.count("refund") == 1


@pytest.mark.guard("part_done")
def test_part_done(world: World, use_tools, client, database: Database) -> None:
    """The second step of an approved plan was refused; the same plan from the top does not do the first one again."""
    sent: list[str] = []
    gated = {"cls": "irreversible", "target": "to", "audience": ["customer"], "once_per": None, "provider": "post"}

    @tool(effect="mail", lookup=lambda key: [], **gated)
    def mail(to: str, *, key: str) -> dict[str, str]:
        """Is sent."""
        sent.append(to)
        return {"id": key}

    @tool(effect="sms", lookup=lambda key: [], **gated)
    def sms(to: str, *, key: str) -> object:
        """Is refused."""
        return Rejected("bad_number")

    use_tools(mail, sms)
    seen: list[str] = []
    for _ in range(2):
        plan = client().run("r1", seen=seen, **AGENT).propose([("mail", {"to": "ann"}), ("sms", {"to": "ann"})])
        approve_all(database.url("operator"))
        world.settle()
        seen.append(str(plan.result().seen))
    assert sent == ["ann"]


@pytest.mark.guard("lost_time")
def test_lost_time(world: World, shop: Shop, client, sql) -> None:
    """A ledger that was restored to before the refund does not take it again."""
    run = client().run("r1", **AGENT)
    run.call("refund", {"order": "1"}, wait_s=0)
    world.settle()
    told = run.call("refund", {"order": "1"}, wait_s=0)
    sql("ALTER TABLE counterfoil.action DISABLE TRIGGER USER")
    sql("DELETE FROM counterfoil.action")
    sql("ALTER TABLE counterfoil.action ENABLE TRIGGER USER")
    with suppress(LedgerLostTime):
        client().run("r1", **AGENT).call("refund", {"order": "1"}, seen=told.seen, wait_s=0)
    world.settle()
    assert shop.count("refund") == 1
