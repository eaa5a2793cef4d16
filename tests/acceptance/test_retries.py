"""What is tried again, when, and what counts as a try: by the requests and effects at the sandbox."""

from __future__ import annotations

import socket
from collections.abc import Callable
from typing import Any

import pytest
import requests

from counterfoil.ledger.claims import WakeUp
from counterfoil.providers.registry import Registry
from counterfoil.testing import World

CHARGE = {"customer": "cus_1", "amount_minor": 500, "currency": "usd", "order_id": "1182"}
CREATE = "payment_intents.create"
RATE_LIMIT = "rate_limit"
"""Stripe's own code for a 429."""


@pytest.fixture
def row(sql: Callable[..., list[tuple[Any, ...]]]) -> Callable[[], dict[str, Any]]:
    """What the ledger says of the only action."""
    names = ("state", "attempt_count", "not_sent_count", "last_error_code", "in_doubt")

    def read() -> dict[str, Any]:
        [values] = sql(f"SELECT {', '.join(names)} FROM counterfoil.action WHERE phase = 'do'")
        return dict(zip(names, values, strict=True))

    return read


def creates(world: World) -> int:
    """How many requests to make a charge have reached the sandbox."""
    return len(world.sandbox.requests("stripe", CREATE))


def nobody_listens() -> str:
    """An address where a connection is refused."""
    with socket.create_server(("127.0.0.1", 0)) as closed:
        return f"http://127.0.0.1:{closed.getsockname()[1]}"


def test_lost_and_repeated_deliveries_are_no_attempts(
    world: World, enqueue: Any, broker: Any, configure: Any, row: Any
) -> None:
    """One attempt is allowed: the broker loses the message four times, the fifth arrives, and all the others after it."""
    configure("stripe", attempts_max=1)
    enqueue("stripe_charge", CHARGE)
    relay = broker.relay(lost_after_s=5.0)
    lost: list[list[WakeUp]] = []
    for _ in range(5):
        assert relay.publish_due() == 1
        lost += broker.take_all("stripe")
        world.advance(500)
    assert len(lost) == 5
    assert (row()["state"], row()["attempt_count"]) == ("ready", 0)
    for message in lost:
        world.deliver(message)
    assert (row()["state"], row()["attempt_count"]) == ("succeeded", 1)
    assert (creates(world), world.sandbox.count("charges")) == (1, 1)


def test_what_was_not_sent_has_a_cap_of_its_own(world: World, enqueue: Any, configure: Any, row: Any, sql: Any) -> None:
    """Nobody listens: one attempt is allowed and four tries are made, then the action has failed, with no request."""
    configure("stripe", attempts_max=1, not_sent_max=4, base_url=nobody_listens())
    enqueue("stripe_charge", CHARGE)
    world.settle()
    assert (row()["state"], row()["last_error_code"]) == ("permanent_failure", "not_sent_exhausted")
    assert sql("SELECT outcome, count(*) FROM counterfoil.attempt GROUP BY 1") == [("not_sent", 4)]
    assert creates(world) == 0


def test_what_was_not_sent_leaves_every_attempt(world: World, enqueue: Any, configure: Any, row: Any) -> None:
    """Three refused connections, then somebody listens: the one attempt that is allowed makes the effect."""
    there = world.settings.providers["stripe"].base_url
    configure("stripe", attempts_max=1, not_sent_max=4, base_url=nobody_listens())
    enqueue("stripe_charge", CHARGE)
    for _ in range(3):
        assert world.work() == 1
        world.advance(60)
    assert (row()["attempt_count"], row()["not_sent_count"]) == (0, 3)
    configure("stripe", base_url=there)
    world.restart()
    world.settle()
    assert (row()["state"], row()["attempt_count"]) == ("succeeded", 1)
    assert (creates(world), world.sandbox.count("charges")) == (1, 1)


@pytest.mark.parametrize(("fault", "ends_as", "charges"), [
    ("504_after_commit", "succeeded", 1),
    ("504_before_commit", "permanent_failure", 0),
])  # fmt: skip
def test_a_deadline_stops_no_reconciling(
    world: World, enqueue: Any, client: Any, row: Any, fault: str, ends_as: str, charges: int
) -> None:
    """The run's deadline passes while an outcome is unknown: it is found out all the same, and nothing is sent again."""
    client().run("r1", tenant="acme", actor="bot", deadline_s=5)
    world.sandbox.stripe.fault(fault, on=CREATE)
    enqueue("stripe_charge", CHARGE)
    assert world.work() == 1
    assert row()["state"] == "uncertain"
    world.advance(6)
    world.settle()
    assert (row()["state"], row()["in_doubt"]) == (ends_as, False)
    assert (creates(world), world.sandbox.count("charges")) == (1, charges)


@pytest.mark.parametrize("refused", [False, True], ids=["never tried", "refused for now"])
def test_a_deadline_stops_claims(world: World, enqueue: Any, client: Any, row: Any, refused: bool) -> None:
    """After the run's deadline nothing is sent for the first time, nor again after a refusal, though its wake-up arrives."""
    client().run("r1", tenant="acme", actor="bot", deadline_s=5)
    world.sandbox.stripe.fault("429_retry_after", on=CREATE, headers={"Retry-After": "20"})
    enqueue("stripe_charge", CHARGE)
    assert not refused or world.work() == 1
    world.advance(30)
    assert len(world.due()) == 1
    assert world.work() == 0
    world.settle()
    assert row()["state"] == "stale"
    assert (creates(world), world.sandbox.count("charges")) == (int(refused), 0)


@pytest.mark.parametrize(("codes", "ends_as", "sent"), [
    (None, "succeeded", 2),
    ((RATE_LIMIT, "lock_timeout"), "succeeded", 2),
    (("lock_timeout",), "permanent_failure", 1),
    ((), "permanent_failure", 1),
])  # fmt: skip
def test_only_listed_refusals_are_tried_again(
    world: World, enqueue: Any, configure: Any, row: Any, codes: tuple[str, ...] | None, ends_as: str, sent: int
) -> None:
    """A refusal whose code is not among `retryable_codes` ends the action at once, under its own code."""
    configure("stripe", retryable_codes=codes)
    world.sandbox.stripe.fault("429_retry_after", on=CREATE)
    enqueue("stripe_charge", CHARGE)
    world.settle()
    assert row()["state"] == ends_as
    assert sent == 2 or row()["last_error_code"] == RATE_LIMIT
    assert (creates(world), world.sandbox.count("charges")) == (sent, sent - 1)


def test_an_unlisted_refusal_ends_no_doubt(world: World, enqueue: Any, configure: Any, row: Any, passed: Any) -> None:
    """The first attempt has made its effect and its answer was lost; a refused resend says nothing of it."""
    configure("stripe", retryable_codes=())
    world.sandbox.config(search_lag_s={"stripe": 3600, "stripe_events": 3600})
    world.sandbox.stripe.fault("504_after_commit", on=CREATE)
    action_id = enqueue("stripe_charge", CHARGE)
    world.work()
    world.sandbox.stripe.fault("429_retry_after", on=CREATE)
    world.settle()
    assert row()["state"] == "succeeded"
    assert "permanent_failure" not in passed(action_id)
    assert world.sandbox.count("charges") == 1


def test_a_reading_that_is_turned_away_is_asked_again_when_the_provider_says(
    world: World, enqueue: Any, sql: Any, row: Any
) -> None:
    """429 on what is read before the write: no attempt, and no request before the time that was asked for."""
    world.registry = Registry.load(("counterfoil.providers.linear.tools",))
    requests.post(
        f"{world.sandbox.linear.url}/graphql", json={"query": "{ viewer { id } }"}, timeout=30
    )  # loads slowly
    before = len(world.sandbox.requests("linear"))
    world.sandbox.linear.fault("429_retry_after", on="teams.list", headers={"Retry-After": "600"})
    enqueue("linear_create", {"team": "SUP", "title": "Reship 1182", "order_id": "1182"})
    assert world.work() == 1
    assert (row()["attempt_count"], row()["not_sent_count"], row()["in_doubt"]) == (0, 1, False)
    [(wait_s,)] = sql("SELECT extract(epoch FROM ready_at - counterfoil.now())::float8 FROM counterfoil.action")
    cap_s = world.settings.provider("linear").retry_after_cap_s
    assert min(600, cap_s) - 5 < wait_s <= min(600, cap_s)
    assert row()["last_error_code"] == "before_write_rate_limited"
    assert world.work() == 0
    assert len(world.sandbox.requests("linear")) == before + 1
    world.advance(min(600, cap_s))
    world.settle()
    assert row()["state"] == "succeeded"
    assert len(world.sandbox.effects("issue", provider="linear")) == 1
