"""Events that the sandbox's providers send: signed, after the commit only, and what may befall them on the way."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest
import requests
import stripe

from counterfoil.sandbox.client import Sandbox, SandboxError
from counterfoil.sandbox.process import running


@pytest.fixture(scope="module")
def process(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Sandbox]:
    with running(tmp_path_factory.mktemp("sandbox")) as sandbox:
        yield sandbox


class Inbox:
    """An address that keeps what it is sent."""

    def __init__(self) -> None:
        self.got: list[tuple[dict[str, str], bytes]] = []
        inbox = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"]))
                inbox.got.append(({name.lower(): value for name, value in self.headers.items()}, body))
                self.send_response(204)
                self.end_headers()

            def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 - the base class names it so
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.01,))
        self._thread.start()
        self.url = f"http://127.0.0.1:{self._server.server_port}/hook"

    @property
    def keys(self) -> list[str | None]:
        """The idempotency keys of Stripe's events, in order of arrival."""
        return [json.loads(body)["request"]["idempotency_key"] for _, body in self.got]

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


@pytest.fixture
def inbox() -> Iterator[Inbox]:
    made = Inbox()
    yield made
    made.close()


@pytest.fixture
def sandbox(process: Sandbox, inbox: Inbox) -> Sandbox:
    process.reset()
    secrets = {"stripe": "whsec_1", "jira": "j1", "zendesk": "z1"}
    process.config(webhooks={name: {"url": inbox.url, "secret": secret} for name, secret in secrets.items()})
    return process


def until(true: Callable[[], object]) -> None:
    deadline = time.monotonic() + 10
    while not true():
        assert time.monotonic() < deadline, "never"
        threading.Event().wait(0.01)


def hold(sandbox: Sandbox, key: str) -> str:
    """An intent that nobody has confirmed, one event; gives its id."""
    headers = {"Authorization": "Bearer sk_test_1", "Idempotency-Key": key}
    body = {"amount": "2000", "currency": "usd", "payment_method": "pm_card_visa", "metadata[counterfoil_key]": key}
    answer = requests.post(f"{sandbox.stripe.url}/v1/payment_intents", data=body, headers=headers, timeout=5)
    assert answer.status_code == 200
    return str(answer.json()["id"])


def answered(sandbox: Sandbox, count: int) -> None:
    until(lambda: [d.outcome for d in sandbox.deliveries()] == [204] * count)


def test_stripe_s_client_accepts_the_signature(sandbox: Sandbox, inbox: Inbox) -> None:
    """The event is one that Stripe's own client verifies, about the object as it is, caused by our request."""
    hold(sandbox, "k1")
    answered(sandbox, 1)
    [(headers, body)] = inbox.got
    event = stripe.Webhook.construct_event(body, headers["stripe-signature"], "whsec_1")  # type: ignore[no-untyped-call]
    assert (event.type, event.data.object["metadata"]["counterfoil_key"]) == ("payment_intent.created", "k1")
    assert event.request.idempotency_key == "k1"
    with pytest.raises(stripe.SignatureVerificationError):
        stripe.Webhook.construct_event(body, headers["stripe-signature"], "whsec_2")  # type: ignore[no-untyped-call]


def test_jira_and_zendesk_say_what_is_found_by(sandbox: Sandbox, inbox: Inbox) -> None:
    """A ticket's labels, a comment's ticket; a Zendesk ticket's number and external id."""
    fields = {"project": {"key": "SUP"}, "summary": "x", "issuetype": {"name": "Task"}, "labels": ["cf-1"]}
    requests.post(f"{sandbox.jira.url}/rest/api/2/issue", json={"fields": fields}, timeout=5)
    requests.post(f"{sandbox.jira.url}/rest/api/2/issue/SUP-1/comment", json={"body": "hello"}, timeout=5)
    ticket = {"subject": "x", "comment": {"body": "x"}, "external_id": "cf-2"}
    requests.post(f"{sandbox.zendesk.url}/api/v2/tickets", json={"ticket": ticket}, timeout=5)
    answered(sandbox, 3)
    events = {delivery.type for delivery in sandbox.deliveries()}
    assert events == {"jira:issue_created", "comment_created", "zen:event-type:ticket.created"}
    sent = sorted((json.loads(body) for _, body in inbox.got), key=lambda e: str(e.get("webhookEvent", e.get("type"))))
    comment, issue, created = sent
    assert (issue["issue"]["key"], issue["issue"]["fields"]["labels"]) == ("SUP-1", ["cf-1"])
    assert (comment["issue"]["key"], comment["comment"]["body"]) == ("SUP-1", "hello")
    assert (created["detail"]["id"], created["detail"]["external_id"]) == ("1", "cf-2")
    assert all("x-hub-signature" in headers or "x-zendesk-webhook-signature" in headers for headers, _ in inbox.got)


def test_only_what_was_committed_is_told(sandbox: Sandbox, inbox: Inbox) -> None:
    """A request that landed before its answer was lost has its event; one that did not land has none."""
    sandbox.stripe.fault("rst_after_commit", on="payment_intents.create")
    with pytest.raises(requests.ConnectionError):
        hold(sandbox, "landed")
    sandbox.stripe.fault("504_before_commit", on="payment_intents.create")
    with pytest.raises(AssertionError):
        hold(sandbox, "never")
    hold(sandbox, "third")
    answered(sandbox, 2)
    assert sorted(map(str, inbox.keys)) == ["landed", "third"]


def test_drop_and_duplicate(sandbox: Sandbox, inbox: Inbox) -> None:
    """A dropped event is noted, and never sent; the next one comes three times."""
    sandbox.config(webhooks={"stripe": {"drop": True}})
    hold(sandbox, "dropped")
    sandbox.config(webhooks={"stripe": {"drop": False, "duplicate": 3}})
    hold(sandbox, "thrice")
    until(lambda: [d.outcome for d in sandbox.deliveries()] == ["dropped", 204, 204, 204])
    assert inbox.keys == ["thrice"] * 3
    assert len({body for _, body in inbox.got}) == 1


def test_delay_and_reorder(sandbox: Sandbox, inbox: Inbox) -> None:
    """Delayed events come when the clock has got there, signed then; of two that are reordered the second comes first."""
    sandbox.config(webhooks={"stripe": {"delay_s": 600}})
    hold(sandbox, "late")
    assert [d.sent for d in sandbox.deliveries()] == [None]
    sandbox.advance(601)
    answered(sandbox, 1)
    signed_at = int(inbox.got[0][0]["stripe-signature"].partition(",")[0].removeprefix("t="))
    assert signed_at == pytest.approx(sandbox.now(), abs=5)

    sandbox.config(webhooks={"stripe": {"delay_s": 0, "reorder": True}})
    headers = {"Authorization": "Bearer sk_test_1"}
    requests.post(f"{sandbox.stripe.url}/v1/payment_intents/{hold(sandbox, 'two')}/cancel", headers=headers, timeout=5)
    hold(sandbox, "alone")
    sandbox.advance(2)
    answered(sandbox, 4)
    in_order = ["payment_intent.canceled", "payment_intent.created", "payment_intent.created"]
    assert [d.type for d in sandbox.deliveries()[1:]] == in_order
    times = [d.sent or 0 for d in sandbox.deliveries()]
    assert times == sorted(times)


def test_a_reset_ends_them(sandbox: Sandbox, inbox: Inbox) -> None:
    """What was still to be sent is not; no address is left."""
    sandbox.config(webhooks={"stripe": {"delay_s": 60}})
    hold(sandbox, "before")
    sandbox.reset()
    hold(sandbox, "after")
    sandbox.advance(120)
    assert sandbox.deliveries() == []
    assert sandbox.config()["webhooks"] == {}
    assert inbox.got == []


@pytest.mark.parametrize(
    "endpoint",
    [
        {"url": "https://hooks.example.com/stripe", "secret": "s"},
        {"url": "http://127.0.0.1:1"},
        {"url": "http://127.0.0.1:1", "secret": "s", "duplicate": 0},
        {"url": "http://127.0.0.1:1", "secret": "s", "lost": True},
    ],
)
def test_wrong_endpoints_are_refused(process: Sandbox, endpoint: dict[str, object]) -> None:
    """Another machine's address, no secret, an unknown or senseless part: nothing changes."""
    process.reset()
    with pytest.raises(SandboxError):
        process.config(webhooks={"stripe": endpoint})
    assert process.config()["webhooks"] == {}
