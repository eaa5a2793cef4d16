"""Accounts: whose credentials an action goes by, from its row alone; the oracle is what each account holds at Stripe."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import requests

from counterfoil import Counterfoil
from counterfoil.ledger.errors import ConfigError
from counterfoil.providers.zendesk import tools as zendesk
from counterfoil.testing import World

if TYPE_CHECKING:
    from tests.conftest import Database

    from counterfoil.providers.contract import Adapter
    from counterfoil.providers.spec import ToolSpec

CHARGE = {"customer": "cus_1", "amount_minor": 500, "currency": "usd", "order_id": "1182"}
HOUSE, EU, EU_NEW = "sk_test_house", "sk_test_eu", "sk_test_eu_new"


@pytest.fixture
def accounts(world: World, configure: Callable[..., None], tmp_path: Path) -> Callable[..., Path]:
    """Stripe with the house's key and an account `eu`, whose key is in the file that is returned."""
    file = tmp_path / "eu_key"
    file.write_text(EU)

    def configure_accounts(**eu: object) -> Path:
        configure("stripe", api_key=HOUSE, accounts={"eu": {"api_key_file": file, **eu}})
        world.restart()
        return file

    return configure_accounts


@pytest.fixture
def charges(world: World) -> Callable[[str], list[str]]:
    """The orders that were charged under one secret key: an account sees its own objects only."""

    def read(key: str) -> list[str]:
        url = f"{world.sandbox.stripe.url}/v1/payment_intents"
        reply = requests.get(url, params={"customer": "cus_1"}, headers={"Authorization": f"Bearer {key}"}, timeout=3)
        return sorted(item["metadata"]["counterfoil_order"] for item in reply.json()["data"])

    return read


def test_each_tenant_s_money_moves_in_its_own_account(
    accounts: Any, world: World, enqueue: Any, charges: Any, sql: Any
) -> None:
    """The row names the account; whoever has none goes by the provider's own table."""
    accounts(tenants=["acme"])
    enqueue("stripe_charge", CHARGE)
    enqueue("stripe_charge", {**CHARGE, "order_id": "7"}, tenant="globex")
    world.settle()
    assert (charges(EU), charges(HOUSE)) == (["1182"], ["7"])
    assert sql("SELECT tenant, account FROM counterfoil.action ORDER BY tenant") == [
        ("acme", "eu"),
        ("globex", "default"),
    ]


def test_a_lost_answer_is_looked_up_in_the_same_account(
    accounts: Any, world: World, enqueue: Any, charges: Any
) -> None:
    """Two tenants' look-ups of one sweep go to two accounts: each finds its own, none is sent again."""
    accounts(tenants=["acme"])
    world.sandbox.stripe.fault("504_after_commit", on="payment_intents.create", times=2)
    enqueue("stripe_charge", CHARGE)
    enqueue("stripe_charge", {**CHARGE, "order_id": "7"}, tenant="globex")
    world.settle()
    assert (charges(EU), charges(HOUSE)) == (["1182"], ["7"])
    assert set(world.states().values()) == {"succeeded"}


def test_a_replaced_key_is_the_next_call_s(accounts: Any, world: World, enqueue: Any, charges: Any) -> None:
    """No restart, and no row is touched: the file is read at each call."""
    file = accounts(tenants=["acme"])
    enqueue("stripe_charge", CHARGE)
    world.settle()
    file.write_text(f"{EU_NEW}\n")
    enqueue("stripe_charge", {**CHARGE, "order_id": "7"}, "s2", "r2")
    world.settle()
    assert (charges(EU), charges(EU_NEW)) == (["1182"], ["7"])


@pytest.mark.parametrize("fault", ["504_after_commit", "504_before_commit"])
def test_a_key_of_another_account_sends_nothing_again(
    accounts: Any, world: World, enqueue: Any, charges: Any, sql: Any, fault: str
) -> None:
    """While a charge is in doubt its key is replaced by another account's, which knows nothing of it: a person decides."""
    file = accounts(tenants=["acme"])
    world.sandbox.stripe.fault(fault, on="payment_intents.create")
    enqueue("stripe_charge", CHARGE)
    world.work()
    file.write_text(EU_NEW)
    world.settle()
    assert sql("SELECT state, last_error_code FROM counterfoil.action") == [("operator_review", "credentials_changed")]
    assert (charges(EU), charges(EU_NEW)) == (["1182"] if fault == "504_after_commit" else [], [])


def test_a_key_that_is_replaced_right_before_a_repeat(
    accounts: Any, world: World, enqueue: Any, charges: Any, sql: Any
) -> None:
    """The verdict was that the key answers a repeat; by the time it is sent, the key is another account's: it is not sent."""
    file = accounts(tenants=["acme"])
    world.sandbox.stripe.fault("504_before_commit", on="payment_intents.create")
    enqueue("stripe_charge", CHARGE)
    world.work()
    for _ in range(100):
        world.reconcile()
        if world.due():
            break
        world.advance(0.5)
    file.write_text(EU_NEW)
    world.settle()
    assert sql("SELECT state FROM counterfoil.action") == [("operator_review",)]
    assert (charges(EU), charges(EU_NEW)) == ([], [])


def test_a_key_that_is_away_while_it_is_replaced(
    accounts: Any, world: World, enqueue: Any, charges: Any, sql: Any
) -> None:
    """The file is missing when a look-up begins and is there, with another account's key, when it ends: nobody is asked by
    either, and nothing is sent again."""
    file = accounts(tenants=["acme"])
    world.sandbox.stripe.fault("504_after_commit", on="payment_intents.create")
    enqueue("stripe_charge", CHARGE)
    world.work()
    world.advance(25 * 3600)  # longer than Stripe would answer a repeat from its store
    file.write_text(EU_NEW)
    look_ups, asked = world.reconciler.look_ups, 0

    def adapter(spec: ToolSpec, account: str) -> Adapter:
        nonlocal asked
        asked += 1
        if asked % 2 == 1:  # before the look-up, not after it
            raise ConfigError("it is being replaced.", key="providers.stripe.api_key")
        return look_ups.adapter(spec, account)

    object.__setattr__(world.reconciler, "look_ups", replace(look_ups, adapter=adapter))
    for _ in range(20):
        world.reconcile()
        world.work()
        world.advance(5)
    assert asked > 3
    assert not world.sandbox.stripe.requests("payment_intents.list")
    assert charges(EU_NEW) == []
    assert sql("SELECT state, attempt_count FROM counterfoil.action") == [("uncertain", 1)]


def test_an_address_that_changes_while_in_doubt(
    accounts: Any, configure: Any, world: World, enqueue: Any, sql: Any
) -> None:
    """The same credentials at another address: what was sent to the first is not sent to the second."""
    accounts()
    world.sandbox.stripe.fault("504_after_commit", on="payment_intents.create")
    enqueue("stripe_charge", CHARGE)
    world.work()
    empty = {"object": "list", "data": [], "has_more": False}
    world.sandbox.stripe.fault("answer", on="payment_intents.list", status=200, body=empty, times=None)
    configure("stripe", base_url=world.sandbox.stripe.url.replace("127.0.0.1", "localhost"))
    world.restart()
    world.settle()
    assert sql("SELECT state, last_error_code FROM counterfoil.action") == [("operator_review", "credentials_changed")]
    assert world.sandbox.count("charges") == 1


def test_what_is_found_by_rotated_credentials_is_done(world: World, configure: Any, enqueue: Any) -> None:
    """A secret rotated within one account: the object under our key is there, and nobody has to be asked."""
    world.sandbox.jira.fault("504_after_commit", on="issue.create")
    enqueue("jira_create", {"project": "SUP", "summary": "x", "order_id": "1182"})
    world.work()
    configure("jira", token="rotated")
    world.restart()
    world.settle()
    assert list(world.states().values()) == ["succeeded"]
    assert world.sandbox.count("tickets_created") == 1


def test_what_was_refused_goes_on_with_new_credentials(accounts: Any, world: World, enqueue: Any, charges: Any) -> None:
    """A 429 leaves no doubt: the next attempt goes by whatever the file holds then."""
    file = accounts(tenants=["acme"])
    world.sandbox.stripe.fault("429_bare", on="payment_intents.create")
    enqueue("stripe_charge", CHARGE)
    world.work()
    file.write_text(EU_NEW)
    world.settle()
    assert (charges(EU), charges(EU_NEW)) == ([], ["1182"])


@pytest.mark.parametrize("broken", ["gone", "empty", "no text"])
def test_a_key_that_cannot_be_read_is_no_attempt(
    accounts: Any, world: World, enqueue: Any, charges: Any, sql: Any, broken: str
) -> None:
    """The action waits, other accounts' go on; once the file is there, it is done."""
    file = accounts(tenants=["acme"])
    if broken == "gone":
        file.unlink()
    else:
        file.write_bytes(b"" if broken == "empty" else b"\xff\xfe")
    enqueue("stripe_charge", CHARGE)
    enqueue("stripe_charge", {**CHARGE, "order_id": "7"}, tenant="globex")
    world.work()
    assert sql("SELECT tenant, state, attempt_count FROM counterfoil.action ORDER BY tenant") == [
        ("acme", "ready", 0),
        ("globex", "succeeded", 1),
    ]
    file.write_text(EU)
    world.settle()
    assert (charges(EU), charges(HOUSE)) == (["1182"], ["7"])


def test_an_address_that_is_none_stops_nobody_else(
    configure: Any, world: World, use_tools: Any, enqueue: Any, sql: Any
) -> None:
    """A client that cannot be made is no attempt, and no other account's actions wait behind it."""
    use_tools(zendesk.zendesk_create, zendesk.zendesk_solve)
    configure("zendesk", accounts={"eu": {"server": "https://[::1", "token": "t", "tenants": ["acme"]}})
    world.restart()
    ticket = {"subject": "Refund", "body": "The parcel was lost."}
    enqueue("zendesk_create", {**ticket, "order_id": "1182"})
    enqueue("zendesk_create", {**ticket, "order_id": "7"}, tenant="globex")
    world.work()
    assert sql("SELECT tenant, state, attempt_count FROM counterfoil.action ORDER BY tenant") == [
        ("acme", "ready", 0),
        ("globex", "succeeded", 1),
    ]


def test_an_account_that_a_worker_does_not_know_is_left_to_others(
    accounts: Any, configure: Any, world: World, enqueue: Any, charges: Any
) -> None:
    """A worker with an older configuration makes no attempt with anybody's credentials."""
    accounts(tenants=["acme"])
    enqueue("stripe_charge", CHARGE)
    configure("stripe", accounts={})
    world.restart()
    world.work()
    assert list(world.states().values()) == ["ready"]
    accounts(tenants=["acme"])
    world.settle()
    assert (charges(EU), charges(HOUSE)) == (["1182"], [])


def test_what_was_begun_in_an_account_ends_there(
    accounts: Any, world: World, client: Callable[..., Counterfoil], enqueue: Any, charges: Any, sql: Any
) -> None:
    """The tenant moves to `eu` with a charge made by the house's key: it is refunded by that key, new ones go by `eu`."""
    accounts()
    enqueue("stripe_charge", CHARGE)
    world.settle()
    accounts(tenants=["acme"])
    enqueue("stripe_charge", {**CHARGE, "order_id": "7"}, run="r2")
    client().run("r1", tenant="acme", actor="bot").unwind("wrong order")
    world.settle()
    states = world.states()
    assert states["stripe_refund/s1/undo"] == "operator_review", "the house's key is not acme's any more"
    assert world.sandbox.count("refunds") == 0
    assert (charges(HOUSE), charges(EU)) == (["1182"], ["7"])
    assert sql("SELECT account FROM counterfoil.action WHERE phase = 'undo'") == [("default",)]


def test_a_former_account_still_settles(
    accounts: Any, configure: Any, world: World, client: Callable[..., Counterfoil], enqueue: Any
) -> None:
    """With `former_tenants` what was begun before the move is found out and taken back."""
    accounts()
    world.sandbox.stripe.fault("504_after_commit", on="payment_intents.create")
    enqueue("stripe_charge", CHARGE)
    world.work()
    accounts(tenants=["acme"])
    configure("stripe", former_tenants=["acme"])
    world.restart()
    client().run("r1", tenant="acme", actor="bot").unwind("wrong order")
    world.settle()
    assert world.states() == {"stripe_charge/s1/do": "compensated", "stripe_refund/s1/undo": "succeeded"}
    assert (world.sandbox.count("charges"), world.sandbox.count("refunds")) == (1, 1)


def test_another_tenant_s_account_cannot_be_named(
    accounts: Any, world: World, enqueue: Any, sql: Any, charges: Any
) -> None:
    """Whoever writes another's account into a row gets a person, and no money moves."""
    accounts(tenants=["globex"])
    enqueue("stripe_charge", CHARGE)
    sql("SET session_replication_role = replica; UPDATE counterfoil.action SET account = 'eu'")
    world.settle()
    assert list(world.states().values()) == ["operator_review"]
    assert (charges(EU), charges(HOUSE)) == ([], [])


def test_another_tenant_s_account_reads_nothing_either(
    configure: Any, world: World, use_tools: Any, enqueue: Any, sql: Any
) -> None:
    """What a proposed call is about is not read by credentials that its tenant has no right to: the row is stale."""
    use_tools(zendesk.zendesk_create, zendesk.zendesk_reply, zendesk.zendesk_solve)
    enqueue("zendesk_create", {"subject": "Refund", "body": "The parcel was lost.", "order_id": "1182"})
    world.settle()
    configure("zendesk", accounts={"eu": {"tenants": ["globex"]}})
    world.restart()
    enqueue("zendesk_reply", {"ticket": "1", "body": "We send you another."}, step="s2")
    sql(
        "SET session_replication_role = replica;"
        " UPDATE counterfoil.action SET account = 'eu' WHERE tool = 'zendesk_reply'"
    )
    world.settle()
    assert world.states()["zendesk_reply/s2/do"] == "stale"
    assert sql("SELECT expected_resource_version FROM counterfoil.action WHERE tool = 'zendesk_reply'") == [(None,)]
    assert world.sandbox.requests("zendesk", "tickets.retrieve") == []


def test_no_secret_reaches_the_ledger_or_a_log(
    accounts: Any, world: World, enqueue: Any, database: Database, capsys: pytest.CaptureFixture[str], sql: Any
) -> None:
    """Neither a success nor a refusal of the credentials writes them down anywhere."""
    accounts(tenants=["acme"])
    world.sandbox.stripe.fault("answer", on="payment_intents.create", status=401)
    enqueue("stripe_charge", CHARGE)
    enqueue("stripe_charge", {**CHARGE, "order_id": "7"}, "s2", "r2")
    world.settle()
    tables = [name for (name,) in sql("SELECT tablename FROM pg_tables WHERE schemaname = 'counterfoil'")]
    written = " ".join(str(sql(f"SELECT t FROM counterfoil.{name} AS t")) for name in tables)
    assert "1182" in written, "the whole ledger was read"
    assert EU not in written
    output = capsys.readouterr()
    assert EU not in output.out + output.err + repr(world.settings)
