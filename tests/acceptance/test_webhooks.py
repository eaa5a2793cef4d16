"""Events from providers, end to end: the sandbox sends them, they are heard over HTTP, and the reconciler looks then."""

from __future__ import annotations

import hashlib
import hmac
import json
import socket
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import requests
import uvicorn
from tests.conftest import SHIPPED_TOOLS

from counterfoil.providers.registry import Registry
from counterfoil.testing import World
from counterfoil.webhooks import app

SECRETS = {"stripe": "whsec_stripe", "jira": "jira's", "zendesk": "zendesk's"}
CHARGE = {"customer": "cus_1182", "amount_minor": 500, "currency": "usd", "order_id": "1182"}
JIRA = {"project": "SUP", "summary": "Reship", "order_id": "1182"}
ZENDESK = {"subject": "Refund", "body": "The parcel was lost.", "order_id": "1182"}
FAR_S = 3600
CREATE = "payment_intents.create"


def until(true: Callable[[], object]) -> None:
    deadline = time.monotonic() + 20
    while not true():
        assert time.monotonic() < deadline, "never"
        threading.Event().wait(0.01)


@pytest.fixture
def hooks(world: World, tmp_path: Path) -> Iterator[str]:
    """A server for the events of the world's providers; the sandbox knows where it is. Gives its address."""
    world.registry = Registry.load((*SHIPPED_TOOLS, "counterfoil.providers.zendesk.tools"))
    providers = dict(world.settings.providers)
    for name, secret in SECRETS.items():
        (tmp_path / name).write_text(secret)
        providers[name] = providers[name].model_copy(update={"webhook_secret_file": tmp_path / name})
    world.settings = world.settings.model_copy(update={"providers": providers})
    config = uvicorn.Config(app(world.settings, now=world.sandbox.now), log_config=None, http="h11", ws="none")
    server = uvicorn.Server(config)
    listening = socket.create_server(("127.0.0.1", 0))
    url = f"http://127.0.0.1:{listening.getsockname()[1]}"
    thread = threading.Thread(target=server.run, args=([listening],))
    thread.start()
    world.sandbox.config(
        webhooks={name: {"url": f"{url}/{name}", "secret": secret} for name, secret in SECRETS.items()}
    )
    yield url
    world.sandbox.config(webhooks=dict.fromkeys(SECRETS))
    server.should_exit = True
    thread.join(30)


@pytest.fixture
def put_off(sql: Callable[..., Any]) -> Callable[[], None]:
    """Has every uncertain row looked at in an hour, as after many look-ups."""
    return lambda: sql(
        "UPDATE counterfoil.action SET lookup_count = 12,"
        f" next_lookup_at = counterfoil.now() + interval '{FAR_S} seconds' WHERE state = 'uncertain'"
    )


def heard(world: World, provider: str) -> list[int | str | None]:
    """How the provider's events were answered, once none is under way."""
    until(lambda: all(d.outcome is not None for d in world.sandbox.deliveries(provider)))
    return [delivery.outcome for delivery in world.sandbox.deliveries(provider)]


@pytest.mark.parametrize(
    ("tool", "arguments", "operation", "count"),
    [
        ("stripe_charge", CHARGE, CREATE, "charges"),
        ("jira_create", JIRA, "issue.create", "tickets_created"),
        ("zendesk_create", ZENDESK, "tickets.create", "zendesk_tickets"),
    ],
)
def test_an_event_ends_the_wait(
    world: World, hooks: str, enqueue: Any, put_off: Any, tool: str, arguments: Any, operation: str, count: str
) -> None:
    """The answer was lost and the next look-up is an hour away: the event comes, and the outcome is known then."""
    provider = tool.partition("_")[0]
    world.sandbox.config(webhooks={provider: {"delay_s": 120}})
    world.sandbox.provider(provider).fault("rst_after_commit", on=operation)
    enqueue(tool, arguments)
    world.work()
    put_off()
    world.advance(20)
    world.reconcile()
    assert world.states() == {f"{tool}/s1/do": "uncertain"}, "it waits"
    world.advance(101)
    assert set(heard(world, provider)) == {204}
    world.reconcile()
    assert world.states() == {f"{tool}/s1/do": "succeeded"}
    assert world.moved_s < FAR_S / 10
    assert world.sandbox.count(count) == 1


def test_a_comment_and_a_note_by_their_tickets(world: World, hooks: str, enqueue: Any, put_off: Any) -> None:
    """Their events show no key of theirs: what waits for an outcome on that ticket is looked at."""
    enqueue("jira_create", JIRA, "jira")
    enqueue("zendesk_create", ZENDESK, "zendesk", "r2")
    world.settle()
    world.sandbox.config(webhooks={"jira": {"delay_s": 30}, "zendesk": {"delay_s": 30}})
    world.sandbox.jira.fault("rst_after_commit", on="issue.comment")
    world.sandbox.zendesk.fault("rst_after_commit", on="tickets.update")
    enqueue("jira_comment", {"issue": "SUP-1", "body": "Reshipped."}, "comment")
    enqueue("zendesk_note", {"ticket": "1", "body": "Reshipped."}, "note", "r2")
    world.work()
    put_off()
    world.advance(31)
    assert set(heard(world, "jira") + heard(world, "zendesk")) == {204}
    world.reconcile()
    assert set(world.states().values()) == {"succeeded"}
    assert (world.sandbox.count("comments"), world.sandbox.count("zendesk_notes")) == (1, 1)


def test_a_payment_that_lands_late(world: World, hooks: str, enqueue: Any, put_off: Any) -> None:
    """The gateway said 504, the payment landed a minute later: its event makes us look, and the look-up finds it."""
    world.sandbox.stripe.fault("504_then_commit_after", on=CREATE, delay_s=60)
    enqueue("stripe_charge", CHARGE)
    world.work()
    put_off()
    assert world.sandbox.count("charges") == 0
    world.advance(61)
    until(lambda: world.sandbox.deliveries("stripe"))
    assert set(heard(world, "stripe")) == {204}
    world.reconcile()
    assert world.states() == {"stripe_charge/s1/do": "succeeded"}
    assert world.sandbox.count("charges") == 1


@pytest.mark.parametrize(
    "befalls",
    [{"drop": True}, {"duplicate": 5}, {"reorder": True}, {"delay_s": 7200}, {"duplicate": 3, "reorder": True, "delay_s": 3}],
    ids=str,
)  # fmt: skip
def test_no_outcome_depends_on_events(world: World, hooks: str, enqueue: Any, befalls: dict[str, Any]) -> None:
    """Dropped, repeated, out of order, after everything has ended: each call is one effect, and is known to be."""
    world.sandbox.config(webhooks={"stripe": befalls})
    for number, fault in enumerate(("rst_after_commit", "504_after_commit", "504_before_commit", "fin_after_commit")):
        world.sandbox.stripe.fault(fault, on=CREATE)
        enqueue("stripe_charge", CHARGE | {"order_id": str(number)}, f"s{number}")
        world.work()
    world.settle()
    before = world.states()
    assert set(before.values()) == {"succeeded"}
    world.advance(7201)
    assert set(heard(world, "stripe")) == ({"dropped"} if "drop" in befalls else {204})
    world.reconcile()  # what was sent again after a look-up is watched for a day, whatever events say
    looked = len(world.sandbox.requests("stripe"))
    world.settle()
    assert world.states() == before
    assert world.sandbox.count("charges") == 4
    assert len(world.sandbox.requests("stripe")) == looked, "events of what is settled ask nobody anything"


def signed(world: World, key: str, secret: str) -> dict[str, Any]:
    """An event of Stripe's about this key, as somebody with this secret would send it."""
    event = {"object": "event", "data": {"object": {"metadata": {"counterfoil_key": key}}}}
    body, seconds = json.dumps(event).encode(), str(int(world.sandbox.now()))
    digest = hmac.new(secret.encode(), f"{seconds}.".encode() + body, hashlib.sha256).hexdigest()
    return {"data": body, "headers": {"Stripe-Signature": f"t={seconds},v1={digest}"}, "timeout": 20}


def test_a_storm_of_events(world: World, hooks: str, enqueue: Any, put_off: Any, sql: Any) -> None:
    """A hundred events in ten seconds about a payment that the provider cannot tell about: five look-ups, and one more."""
    for operation in ("payment_intents.list", "payment_intents.search", "events.list"):
        world.sandbox.stripe.fault("500_unstored", on=operation, times=None)
    world.sandbox.config(webhooks={"stripe": {"drop": True}})
    world.sandbox.stripe.fault("rst_after_commit", on=CREATE)
    enqueue("stripe_charge", CHARGE)
    world.work()
    [(key,)] = sql("SELECT key FROM counterfoil.action")
    put_off()
    began, looks = time.monotonic(), 0
    moved_s = world.moved_s
    for _ in range(20):
        for _ in range(5):
            answer = requests.post(f"{hooks}/stripe", **signed(world, key, SECRETS["stripe"]))
            assert answer.status_code == 204
        looks += world.reconcile()
        world.advance(0.5)
    passed_s = world.moved_s - moved_s + time.monotonic() - began
    assert 3 <= looks <= passed_s / 2 + 1
    assert world.states() == {"stripe_charge/s1/do": "uncertain"}


def test_a_forged_event_moves_nothing(world: World, hooks: str, enqueue: Any, put_off: Any, sql: Any) -> None:
    """The key is right, the secret is not, or is another provider's: nobody looks."""
    world.sandbox.config(webhooks={"stripe": {"drop": True}})
    world.sandbox.stripe.fault("rst_after_commit", on=CREATE)
    enqueue("stripe_charge", CHARGE)
    world.work()
    [(key,)] = sql("SELECT key FROM counterfoil.action")
    put_off()
    world.advance(10)
    asked = len(world.sandbox.requests("stripe"))
    for secret in ("guess", SECRETS["jira"], ""):
        assert requests.post(f"{hooks}/stripe", **signed(world, key, secret)).status_code == 400
    world.reconcile()
    assert len(world.sandbox.requests("stripe")) == asked
    assert world.states() == {"stripe_charge/s1/do": "uncertain"}
    assert requests.post(f"{hooks}/stripe", **signed(world, key, SECRETS["stripe"])).status_code == 204
    world.reconcile()
    assert world.states() == {"stripe_charge/s1/do": "succeeded"}
