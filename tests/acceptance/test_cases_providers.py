"""Handed cases of Stripe and Jira: answers that are late, lost, or about another request."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest
import requests

from counterfoil import Counterfoil
from counterfoil.ledger import roles
from counterfoil.ledger.keys import provider_key
from counterfoil.providers.tool import tool
from counterfoil.testing import World

CHARGE = {"customer": "cus_1", "amount_minor": 500, "currency": "usd", "order_id": "1182"}
TICKET = {"project": "SUP", "summary": "Refund for order 1182", "order_id": "1182"}

CREATE = "payment_intents.create"
HEADERS = {"Authorization": "Bearer sk_test_sandbox"}
"""The test fleet's own account at Stripe."""


def keys_sent(world: World, operation: str = CREATE) -> set[str | None]:
    """The bytes of the Idempotency-Key headers."""
    return {request.headers.get("idempotency-key") for request in world.sandbox.requests("stripe", operation)}


@pytest.mark.case("D1")
def test_charge_that_takes_longer_than_the_client_waits(world: World, enqueue: Any, configure: Any) -> None:
    """The charge takes 40 s, the client gives up before, three deliveries meet the key in use: one PaymentIntent."""
    configure("stripe", timeout_s=1.0, landing_max_s=120)
    world.sandbox.stripe.fault("slow", on=CREATE, delay_s=40)
    enqueue("stripe_charge", CHARGE)
    message = world.due()
    assert world.deliver(message) == 1
    assert world.states() == {"stripe_charge/s1/do": "uncertain"}
    delivered = 0
    for _ in range(100):
        assert world.deliver(message) == 0, "the first message is spent"
        world.reconcile()
        delivered += world.work()
        if delivered == 3:
            break
        world.advance(0.5)
    assert delivered == 3
    assert [r.status for r in world.sandbox.requests("stripe", CREATE)[1:]] == [409] * 3
    assert world.sandbox.count("charges") == 0, "the first request is still running"
    assert world.states() == {"stripe_charge/s1/do": "uncertain"}
    world.advance(40)
    world.settle()
    assert world.states() == {"stripe_charge/s1/do": "succeeded"}
    assert world.sandbox.count("charges") == 1
    assert len(keys_sent(world)) == 1


@pytest.mark.case("D2")
def test_key_when_everything_else_changes(
    world: World, enqueue: Any, configure: Any, other_worker: Any, client: Callable[..., Counterfoil]
) -> None:
    """Token, host, attempt number and the words of the call change between attempts: key and body do not by a byte.

    The token is rolled while nothing is in doubt: what may have landed is asked about and repeated as whom it was sent.
    """
    for fault in ("429_lock_timeout", "504_before_commit"):
        world.sandbox.stripe.fault(fault, on=CREATE)
    enqueue("stripe_charge", CHARGE | {"payment_method": "pm_card_visa"})
    assert other_worker("host-1:1", "stripe") == 1
    with client().run("r1", tenant="acme", actor="another-bot") as run:
        again = run.call("stripe_charge", CHARGE | {"payment_method": "pm_card_mastercard"}, step="s1", wait_s=0)
    assert again.arguments is not None
    assert again.arguments["payment_method"] == "pm_card_visa", "what was recorded is what runs"
    configure("stripe", api_key="sk_test_rolled")
    world.restart()
    for host in ("host-2:7", "host-3:9"):
        for _ in range(100):
            world.reconcile()
            if world.due():
                break
            world.advance(0.2)
        assert other_worker(host, "stripe") == 1
    world.settle()
    attempts = world.sandbox.requests("stripe", CREATE)
    assert [attempt.status for attempt in attempts] == [429, 504, 200]
    assert keys_sent(world) == {provider_key(world.settings.key_secret(), "acme", "stripe_charge", again.action_id)}
    assert len({attempt.body for attempt in attempts}) == 1
    assert world.states() == {"stripe_charge/s1/do": "succeeded"}
    assert world.sandbox.count("charges") == 1
    url, rolled = f"{world.sandbox.stripe.url}/v1/payment_intents", {"Authorization": "Bearer sk_test_rolled"}
    shown = requests.get(url, params={"customer": "cus_1"}, headers=rolled, timeout=10).json()["data"]
    assert len(shown) == 1, "the other token was used"


@tool(
    cls="irreversible",
    provider="till",
    effect="refund",
    target="charge",
    once_per=None,
    audience=["finance"],
    approval="never",
    native_key_ttl_s=86400,
    lookup="find_refund",
)
def give_back(charge: str, amount: int, base: str, *, key: str) -> dict[str, object]:
    """A refund as a step of its own, made by a person's own function."""
    form = {"payment_intent": charge, "amount": str(amount), "metadata[counterfoil_key]": key}
    reply = requests.post(
        f"{base}/v1/refunds", data=form, headers={**HEADERS, "Idempotency-Key": key}, timeout=3, allow_redirects=False
    )
    reply.raise_for_status()
    return dict(reply.json())


def find_refund(charge: str, base: str, *, key: str) -> list[dict[str, object]]:
    reply = requests.get(f"{base}/v1/refunds", params={"payment_intent": charge}, headers=HEADERS, timeout=3)
    reply.raise_for_status()
    return [refund for refund in reply.json()["data"] if refund["metadata"].get("counterfoil_key") == key]


@pytest.mark.case("D3")
@pytest.mark.parametrize("fault", [None, "504_after_commit", "504_before_commit", "rst_after_commit"])
def test_two_refunds_of_one_charge(world: World, enqueue: Any, use_tools: Any, fault: str | None) -> None:
    """Two steps refund 500 each of a charge of 2000, each is delivered twice: two refunds, 1000 in all."""
    base = world.sandbox.stripe.url
    form = {"amount": "2000", "currency": "usd", "confirm": "true", "payment_method": "pm_card_visa"}
    charged = requests.post(f"{base}/v1/payment_intents", data=form, headers=HEADERS, timeout=10).json()
    use_tools(give_back)
    if fault:
        world.sandbox.stripe.fault(fault, on="refunds.create", times=2)
    for step in ("damaged", "late"):
        enqueue("give_back", {"charge": charged["id"], "amount": 500, "base": base}, step)
    message = world.due()
    assert len(message) == 2
    for _ in range(2):
        world.deliver(message)
    world.settle()
    world.deliver(message)
    assert world.states() == {"give_back/damaged/do": "succeeded", "give_back/late/do": "succeeded"}
    refunds = world.sandbox.effects("refund")
    assert [refund.amount for refund in refunds] == [500, 500]
    assert len({refund.key for refund in refunds}) == 2


def earlier_request(world: World, action_id: str, **form: str) -> str:
    """Somebody has used our key for another request; the charge's id."""
    key = provider_key(world.settings.key_secret(), "acme", "stripe_charge", action_id)
    form = {"amount": "700", "currency": "usd", "confirm": "true", "payment_method": "pm_card_visa"} | form
    form = {name: value.replace("KEY", key) for name, value in form.items()}
    url, headers = f"{world.sandbox.stripe.url}/v1/payment_intents", {**HEADERS, "Idempotency-Key": key}
    return str(requests.post(url, data=form, headers=headers, timeout=10).json()["id"])


@pytest.mark.case("D5")
@pytest.mark.parametrize(
    "form",
    [
        pytest.param({"customer": "cus_1"}, id="unmarked"),
        pytest.param({"customer": "cus_1", "metadata[counterfoil_key]": "KEY"}, id="other-amount"),
    ],
)
def test_key_known_with_other_parameters(
    world: World, enqueue: Any, passed: Any, sql: Any, form: dict[str, str]
) -> None:
    """An idempotency error tells of an earlier request: looked up, then a person; never failed, never another key."""
    action_id = enqueue("stripe_charge", CHARGE)
    earlier_request(world, action_id, **form)
    world.settle()
    assert passed(action_id)[:4] == ["ready", "executing", "uncertain", "reconciling"]
    assert passed(action_id)[-1] == "operator_review"
    assert not {"permanent_failure", "not_executed", "succeeded", "retryable_failure"} & set(passed(action_id))
    assert sql("SELECT in_doubt FROM counterfoil.action") == [(True,)]
    assert world.sandbox.count("charges") == 1, "the earlier one"
    assert len(world.sandbox.requests("stripe", CREATE)) == 2, "the earlier one and ours, which is not repeated"
    assert len(keys_sent(world)) == 1


@pytest.mark.case("D5")
def test_key_known_from_our_own_effect(world: World, enqueue: Any) -> None:
    """Where the look-up finds that the earlier request has made exactly our charge, it is that: one charge, succeeded."""
    action_id = enqueue("stripe_charge", CHARGE)
    metadata = {"metadata[counterfoil_key]": "KEY", "metadata[counterfoil_order]": "1182"}
    charge = earlier_request(world, action_id, customer="cus_1", amount="500", **metadata)
    world.settle()
    assert world.states() == {"stripe_charge/s1/do": "succeeded"}
    assert [effect.object_id for effect in world.sandbox.effects("charge")] == [charge]


@pytest.mark.case("D7")
def test_key_in_use(world: World, enqueue: Any) -> None:
    """409 "key in use": the first request is still running, so the outcome is unknown, and one charge comes of it."""
    world.sandbox.stripe.fault("409_in_use", on=CREATE)
    enqueue("stripe_charge", CHARGE)
    world.work()
    assert world.states() == {"stripe_charge/s1/do": "uncertain"}
    world.settle()
    assert world.states() == {"stripe_charge/s1/do": "succeeded"}
    assert world.sandbox.count("charges") == 1
    assert len(keys_sent(world)) == 1


@pytest.mark.case("D7")
@pytest.mark.parametrize("times", [1, 4, 50])
def test_lock_timeout(world: World, enqueue: Any, sql: Any, times: int) -> None:
    """429 "lock timeout": nothing was done, so it is tried again without doubt, as often as the budget says and no more."""
    attempts_max = world.settings.provider("stripe").attempts_max
    world.sandbox.stripe.fault("429_lock_timeout", on=CREATE, times=times)
    enqueue("stripe_charge", CHARGE)
    world.work()
    assert sql("SELECT state, in_doubt FROM counterfoil.action") == [("retryable_failure", False)]
    world.settle()
    done = times < attempts_max
    assert world.states() == {"stripe_charge/s1/do": "succeeded" if done else "permanent_failure"}
    assert world.sandbox.count("charges") == done
    assert len(world.sandbox.requests("stripe", CREATE)) == min(times + 1, attempts_max)


@pytest.mark.case("E1")
@pytest.mark.parametrize("fault", ["fin_after_commit", "rst_after_commit"])
def test_socket_closed_after_the_issue_was_made(world: World, enqueue: Any, passed: Any, fault: str) -> None:
    """The server makes the issue and closes the socket: exactly one POST reached it, and the label finds the issue."""
    world.sandbox.jira.fault(fault, on="issue.create")
    action_id = enqueue("jira_create", TICKET)
    world.settle()
    assert world.states() == {"jira_create/s1/do": "succeeded"}
    assert len(world.sandbox.requests("jira", "issue.create")) == world.sandbox.count("tickets_created") == 1
    key = provider_key(world.settings.key_secret(), "acme", "jira_create", action_id)
    last = world.sandbox.requests("jira", "search")[-1]
    assert f"cf-{key}" in last.query + (last.body or ""), "the one that found it"
    assert "ready" not in passed(action_id)[1:]


@pytest.mark.case("E2")
@pytest.mark.parametrize(
    ("tool", "arguments", "operation", "kind"),
    [
        pytest.param("stripe_charge", CHARGE, CREATE, "charges", id="stripe"),
        pytest.param("jira_create", TICKET, "issue.create", "tickets_created", id="jira"),
    ],
)
@pytest.mark.parametrize("asked_s", [60, 900_000])
def test_date_in_retry_after(
    world: World, enqueue: Any, sql: Any, tool: str, arguments: Any, operation: str, kind: str, asked_s: int
) -> None:
    """429 with a date: the row leaves executing at once and is claimable when the date comes, or at the cap."""
    cap_s = world.settings.provider(tool.partition("_")[0]).retry_after_cap_s
    world.sandbox.fault("429_http_date", operation=operation, delay_s=asked_s)
    enqueue(tool, arguments)
    world.work()
    row = sql(
        "SELECT a.state, a.lease_until, extract(epoch FROM a.ready_at - counterfoil.now())::float8,"
        " o.not_before = a.ready_at FROM counterfoil.action AS a JOIN counterfoil.outbox AS o USING (action_id)"
    )
    assert [(state, lease, has_wake_up) for state, lease, _, has_wake_up in row] == [("retryable_failure", None, True)]
    assert min(asked_s, cap_s) - 5 < row[0][2] <= min(asked_s, cap_s)
    assert world.work() == 0
    world.advance(min(asked_s, cap_s))
    assert world.work() == 1
    assert world.states() == {f"{tool}/s1/do": "succeeded"}
    assert world.sandbox.count(kind) == 1


ODD_RUN = ("Rückgabe \"1182\" 'x' \\ AND labels is EMPTY -- ü漢🚚 " * 10)[:300]


@pytest.mark.case("E4")
@pytest.mark.parametrize("fault", ["rst_after_commit", "rst_before_commit"])
def test_tenant_and_run_with_odd_characters(world: World, enqueue: Any, database: Any, fault: str) -> None:
    """Tenant "Acme Corp", a run of 300 odd characters, an order of quotes: labels and queries stay valid, one issue."""
    roles.grant(database.url("owner"), "cf_agent", as_="agent", tenant="Acme Corp")
    world.sandbox.jira.fault(fault, on="issue.create")
    arguments = TICKET | {"order_id": "\"1182\" OR 'x'\\ ü"}
    action_id = enqueue("jira_create", arguments, "pay \"now\" 'ü'", ODD_RUN, "Acme Corp")
    world.settle()
    assert list(world.states().values()) == ["succeeded"]
    [ticket] = world.sandbox.effects("ticket")
    assert ticket.key == provider_key(world.settings.key_secret(), "Acme Corp", "jira_create", action_id)
    creates, searches = (world.sandbox.requests("jira", operation) for operation in ("issue.create", "search"))
    assert searches
    assert {search.status for search in searches} == {200}
    for create in creates:
        fields = json.loads(create.body or "")["fields"]
        assert fields["labels"] == [f"cf-{ticket.key}"]
    everything = "".join(f"{r.query}{r.body}" for r in [*creates, *searches])
    assert "Acme" not in everything, "tenants' names stay out"


@pytest.mark.case("E4")
def test_label_that_somebody_removed(world: World, enqueue: Any, passed: Any) -> None:
    """Twin: someone takes the label off before the look-up: the row never becomes ready, the property finds the issue."""
    world.sandbox.jira.fault("504_after_commit", on="issue.create")
    action_id = enqueue("jira_create", TICKET)
    world.work()
    [ticket] = world.sandbox.effects("ticket")
    url = f"{world.sandbox.jira.url}/rest/api/2/issue/{ticket.object_id}"
    edit = {"update": {"labels": [{"remove": f"cf-{ticket.key}"}]}}
    requests.put(url, json=edit, timeout=10).raise_for_status()
    assert requests.get(url, timeout=10).json()["fields"]["labels"] == []
    world.settle()
    assert world.states() == {"jira_create/s1/do": "succeeded"}
    assert "ready" not in passed(action_id)[1:]
    assert len(world.sandbox.requests("jira", "issue.create")) == world.sandbox.count("tickets_created") == 1
