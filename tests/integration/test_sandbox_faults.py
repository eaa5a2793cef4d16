"""Every fault of the sandbox: how many durable effects it leaves, and what the unmodified clients see of it."""

from __future__ import annotations

import socket
from collections.abc import Callable, Iterator
from email.utils import parsedate_to_datetime
from pathlib import Path
from typing import Any

import pytest
import requests
import stripe
from jira import JIRA, JIRAError

from counterfoil.sandbox.client import Sandbox, SandboxError
from counterfoil.sandbox.faults import FAULTS
from counterfoil.sandbox.process import running

TIMEOUT_S, PATIENCE_S = 0.4, 20.0
SILENT = frozenset({"stall_headers", "stall_body", "slow", "slow_after_commit"})
PAYMENT: dict[str, Any] = {
    "amount": 2000,
    "currency": "usd",
    "customer": "cus_1",
    "payment_method": "pm_card_visa",
    "confirm": True,
}
ISSUE: dict[str, Any] = {"project": {"key": "SUP"}, "issuetype": {"name": "Task"}, "summary": "Parcel lost"}

# What a charge that meets the fault does: effects, the exception of the client (None: an answer), its HTTP status.
CHARGE_MEETS: dict[str, tuple[int, type[Exception] | None, int | None]] = {
    "504_before_commit": (0, stripe.APIError, 504),
    "504_after_commit": (1, stripe.APIError, 504),
    "504_then_commit_after": (0, stripe.APIError, 504),
    "html_502": (0, stripe.APIError, 502),
    "html_503": (0, stripe.APIError, 503),
    "302_login": (0, None, 200),
    "307_self": (1, None, 200),
    "rst_mid_request": (0, stripe.APIConnectionError, None),
    "rst_before_commit": (0, stripe.APIConnectionError, None),
    "rst_after_commit": (1, stripe.APIConnectionError, None),
    "fin_after_commit": (1, stripe.APIConnectionError, None),
    "stall_headers": (1, stripe.APIConnectionError, None),
    "stall_body": (1, stripe.APIConnectionError, None),
    "truncate_body": (1, stripe.APIConnectionError, None),
    "slow": (0, stripe.APIConnectionError, None),
    "slow_after_commit": (1, stripe.APIConnectionError, None),
    "duplicate_delivery": (1, None, 200),
    "empty_2xx": (1, stripe.APIError, 200),
    "204": (1, stripe.APIError, 204),
    "html_2xx": (1, stripe.APIError, 200),
    "bad_json_2xx": (1, stripe.APIError, 200),
    "object_2xx": (1, None, 200),
    "500_stored": (0, stripe.APIError, 500),
    "500_unstored": (0, stripe.APIError, 500),
    "409_in_use": (0, stripe.APIError, 409),
    "429_retry_after": (0, stripe.RateLimitError, 429),
    "429_http_date": (0, stripe.RateLimitError, 429),
    "429_bare": (0, stripe.RateLimitError, 429),
    "429_lock_timeout": (0, stripe.RateLimitError, 429),
    "503_retry_after": (0, stripe.APIError, 503),
    "search_500": (1, None, 200),
    "lookup_429": (1, None, 200),
    "answer": (0, stripe.InvalidRequestError, 400),
}
ISSUE_MEETS: dict[str, tuple[int, type[Exception] | None]] = {
    "504_after_commit": (1, JIRAError),
    "504_before_commit": (0, JIRAError),
    "rst_after_commit": (1, requests.ConnectionError),
    "rst_mid_request": (0, requests.ConnectionError),
    "fin_after_commit": (1, requests.ConnectionError),
    "stall_headers": (1, requests.ReadTimeout),
    "stall_body": (1, requests.ConnectionError),
    "truncate_body": (1, requests.exceptions.ChunkedEncodingError),
    "duplicate_delivery": (2, None),
    "bad_json_2xx": (1, requests.JSONDecodeError),
    "object_2xx": (1, JIRAError),
    "429_http_date": (0, JIRAError),
    "503_retry_after": (0, JIRAError),
    "500_unstored": (0, JIRAError),
}


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Sandbox]:
    with running(tmp_path_factory.mktemp("sandbox")) as sandbox:
        yield sandbox


@pytest.fixture
def sandbox(world: Sandbox) -> Sandbox:
    world.reset()
    return world


@pytest.fixture
def charge(sandbox: Sandbox) -> Iterator[Callable[..., Any]]:
    """Charges through a real client without retries, under the key given."""
    with requests.Session() as session:

        def call(key: str = "k1", *, timeout_s: float = PATIENCE_S) -> Any:
            client: Any = stripe.StripeClient(
                "sk_test_1",
                base_addresses={"api": sandbox.stripe.url},
                http_client=stripe.RequestsClient(session=session, timeout=timeout_s),
                max_network_retries=0,
            )
            return client.v1.payment_intents.create(PAYMENT, {"idempotency_key": key})

        yield call


@pytest.fixture
def connect(sandbox: Sandbox) -> Iterator[Callable[..., Any]]:
    """Real Jira clients with the given settings, closed at the end."""
    clients: list[Any] = []

    def call(**settings: Any) -> Any:
        clients.append(JIRA(server=sandbox.jira.url, basic_auth=("a", "b"), get_server_info=False, **settings))
        return clients[-1]

    yield call
    for client in clients:
        client.close()


def test_the_table_knows_every_fault() -> None:
    """No fault of the sandbox is without a test."""
    assert set(CHARGE_MEETS) == set(FAULTS)


@pytest.mark.parametrize("name", CHARGE_MEETS)
def test_a_charge_meets_the_fault(name: str, sandbox: Sandbox, charge: Callable[..., Any]) -> None:
    """The count of charges after each fault is what the fault's name says, and Stripe's client sees what it should."""
    effects, error, status = CHARGE_MEETS[name]
    sandbox.stripe.fault(name)
    timeout_s = TIMEOUT_S if name in SILENT else PATIENCE_S
    if error is None:
        charge()
    else:
        with pytest.raises(error) as caught:
            charge(timeout_s=timeout_s)
        assert getattr(caught.value, "http_status", None) == status
    assert sandbox.stripe.count("charges") == effects
    first = sandbox.stripe.requests("payment_intents.create")[0]
    assert first.fault == (None if name in ("search_500", "lookup_429") else name)
    assert "authorization" not in first.headers


@pytest.mark.parametrize("name", ISSUE_MEETS)
def test_an_issue_meets_the_fault(name: str, sandbox: Sandbox, connect: Callable[..., Any]) -> None:
    """The count of issues after each fault is what the fault's name says, and Jira's client sees what it should."""
    effects, error = ISSUE_MEETS[name]
    client = connect(max_retries=0, timeout=TIMEOUT_S if name in SILENT else PATIENCE_S)
    sandbox.jira.fault(name, on="issue.create")
    if error is None:
        client.create_issue(fields=ISSUE, prefetch=False)
    else:
        with pytest.raises(error):
            client.create_issue(fields=ISSUE, prefetch=False)
    assert sandbox.jira.count("tickets_created") == effects
    assert len(sandbox.jira.requests("issue.create")) == 1


def test_connections_end_as_named(sandbox: Sandbox) -> None:
    """On the wire a reset is a reset, an early end is an orderly end, and a stall has sent what its name says."""

    def received(name: str) -> bytes:
        sandbox.mail.fault(name, delay_s=60)
        with socket.create_connection(("127.0.0.1", port), timeout=TIMEOUT_S if name in SILENT else PATIENCE_S) as wire:
            body = b'{"to": "a@b.c"}'
            wire.sendall(b"POST /mail HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n" % len(body) + body)
            return wire.makefile("rb").read()

    port = int(sandbox.base_url.rsplit(":", 1)[1])
    for name in ("rst_mid_request", "rst_before_commit", "rst_after_commit"):
        with pytest.raises(ConnectionResetError):
            received(name)
    assert received("fin_after_commit") == b""
    head, _, half = received("truncate_body").partition(b"\r\n\r\n")
    promised = int(head.lower().split(b"content-length: ")[1].split()[0])
    assert head.startswith(b"HTTP/1.1 201 Created")
    assert 0 < len(half) < promised
    for name in ("stall_headers", "stall_body", "slow", "slow_after_commit"):
        with pytest.raises(TimeoutError):
            received(name)
    assert sandbox.count("customer_messages") == 6
    sandbox.advance(61)
    assert sandbox.count("customer_messages") == 7


def test_default_jira_client_duplicates(
    sandbox: Sandbox, connect: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """With its default of three retries, one lost answer after another makes four issues of one call."""
    monkeypatch.setattr("jira.resilientsession.time.sleep", lambda _seconds: None)
    sandbox.jira.fault("rst_after_commit", on="issue.create", times=None)
    with pytest.raises(requests.ConnectionError):
        connect().create_issue(fields=ISSUE, prefetch=False)
    assert sandbox.jira.count("tickets_created") == 4


def test_default_stripe_retries_share_a_key(sandbox: Sandbox) -> None:
    """Stripe's hidden retries are more requests, yet one charge, since they carry the same key."""
    with requests.Session() as session:
        client: Any = stripe.StripeClient(
            "sk_test_1",
            base_addresses={"api": sandbox.stripe.url},
            http_client=stripe.RequestsClient(session=session),
            max_network_retries=1,
        )
        sandbox.stripe.fault("504_after_commit")
        client.v1.payment_intents.create(PAYMENT)
    assert sandbox.stripe.count("charges") == 1
    assert len({attempt.headers["idempotency-key"] for attempt in sandbox.stripe.requests()}) == 1
    assert len(sandbox.stripe.requests()) == 2


def test_login_redirect_reads_as_success(sandbox: Sandbox, charge: Callable[..., Any]) -> None:
    """A sign-on page on the way turns the charge into a list that the client returns as if all was well."""
    sandbox.stripe.fault("302_login", on="payment_intents.create")
    answer = charge()
    assert answer.object == "list"
    assert sandbox.stripe.count("charges") == 0


def test_slow_charge_lands_after_the_client_left(sandbox: Sandbox, charge: Callable[..., Any]) -> None:
    """A charge takes 40 s and its client gives up; repeats meet the key in use, and there is one charge in the end."""
    sandbox.stripe.fault("slow", on="payment_intents.create", delay_s=40)
    with pytest.raises(stripe.APIConnectionError):
        charge(timeout_s=TIMEOUT_S)
    for _ in range(3):
        with pytest.raises(stripe.APIError) as caught:
            charge()
        assert caught.value.http_status == 409
    assert sandbox.stripe.count("charges") == 0
    sandbox.advance(41)
    assert charge().status == "succeeded"
    assert sandbox.stripe.count("charges") == 1


def test_stored_500_is_replayed(sandbox: Sandbox, charge: Callable[..., Any]) -> None:
    """A stored 500 answers every repeat of its key and asks not to be retried; an unstored one is gone."""
    sandbox.stripe.fault("500_stored")
    for replayed in (None, "true"):
        with pytest.raises(stripe.APIError) as caught:
            charge("stored")
        assert (caught.value.headers or {}).get("Stripe-Should-Retry") == "false"
        assert (caught.value.headers or {}).get("Idempotent-Replayed") == replayed
    sandbox.stripe.fault("500_unstored")
    with pytest.raises(stripe.APIError):
        charge("unstored")
    assert charge("unstored").status == "succeeded"
    assert sandbox.stripe.count("charges") == 1


def test_late_landing(sandbox: Sandbox, charge: Callable[..., Any]) -> None:
    """After a 504 the request lands at its time: not before, and once, also when the same key was resent meanwhile."""
    sandbox.stripe.fault("504_then_commit_after", delay_s=90, times=2)
    for key in ("alone", "resent"):
        with pytest.raises(stripe.APIError):
            charge(key)
    assert charge("resent").status == "succeeded"
    sandbox.advance(89)
    assert len(sandbox.effects(key="alone")) == 0
    sandbox.advance(2)
    assert [len(sandbox.effects("charge", key)) for key in ("alone", "resent")] == [1, 1]


def test_late_landing_without_a_key_duplicates(sandbox: Sandbox, connect: Callable[..., Any]) -> None:
    """Where the provider has no key, a resend before the late landing makes two tickets: nothing can undo that."""
    client = connect(max_retries=0)
    sandbox.jira.fault("504_then_commit_after", delay_s=0.05)
    with pytest.raises(JIRAError):
        client.create_issue(fields=ISSUE, prefetch=False)
    client.create_issue(fields=ISSUE, prefetch=False)
    sandbox.advance(1)
    assert sandbox.jira.count("tickets_created") == 2


def test_rate_limits_name_their_time(sandbox: Sandbox) -> None:
    """Retry-After comes as seconds, as a date ahead of the sandbox's clock, or not at all."""
    sandbox.config(latency_s={"mail": 0})
    seen = []
    for name in ("429_retry_after", "429_http_date", "429_bare"):
        sandbox.mail.fault(name, delay_s=600 if name == "429_http_date" else None)
        seen.append(requests.post(sandbox.mail.url, json={"to": "a@b.c"}, timeout=5).headers.get("Retry-After"))
    assert seen[0] == "2"
    assert abs(parsedate_to_datetime(str(seen[1])).timestamp() - sandbox.now() - 600) < 5
    assert seen[2] is None
    assert sandbox.count("customer_messages") == 0


def test_lookups_fail_alone(sandbox: Sandbox, charge: Callable[..., Any]) -> None:
    """`search_500` and `lookup_429` hit reads and leave writes alone."""
    sandbox.stripe.fault("search_500")
    sandbox.stripe.fault("lookup_429")
    charge()
    get: dict[str, Any] = {"headers": {"Authorization": "Bearer sk_test_1"}, "timeout": 5}
    search = f"{sandbox.stripe.url}/v1/payment_intents/search?query=status:'succeeded'"
    assert requests.get(search, **get).status_code == 500
    listing = [requests.get(f"{sandbox.stripe.url}/v1/payment_intents", **get).status_code for _ in range(2)]
    assert listing == [429, 200]


def test_rules_choose_requests(sandbox: Sandbox) -> None:
    """`nth`, `path_re`, `method` and seeded `probability` choose which requests meet a fault."""

    def statuses(count: int) -> list[int]:
        send = [requests.post(sandbox.mail.url, json={"to": "a@b.c"}, timeout=5) for _ in range(count)]
        return [answer.status_code for answer in send]

    sandbox.mail.fault("500_unstored", nth=2)
    sandbox.mail.fault("html_502", path_re="/elsewhere")
    sandbox.mail.fault("html_502", method="GET")
    assert statuses(4) == [201, 500, 201, 201]
    sandbox.clear_faults()
    sandbox.mail.fault("500_unstored", probability=0.5, seed=7)
    first = statuses(12)
    sandbox.clear_faults()
    sandbox.mail.fault("500_unstored", probability=0.5, seed=7)
    assert statuses(12) == first
    assert {201, 500} == set(first)


def test_commit_can_be_turned(sandbox: Sandbox) -> None:
    """A rule decides whether a fault's effect happens, and what is answered, where the fault's default does not fit."""
    sandbox.mail.fault("html_502", commit=True)
    sandbox.mail.fault("answer", status=403, body='{"why": "blocked"}', headers={"X-Why": "test"})
    post = [requests.post(sandbox.mail.url, json={"to": "a@b.c"}, timeout=5) for _ in range(2)]
    assert [answer.status_code for answer in post] == [502, 403]
    assert (post[1].json(), post[1].headers["X-Why"]) == ({"why": "blocked"}, "test")
    assert sandbox.count("customer_messages") == 1


def test_wrong_rules_are_refused(sandbox: Sandbox) -> None:
    """A fault or field that does not exist is an error: a fault that never fires would make a test pass for nothing."""
    with pytest.raises(SandboxError, match="no such fault"):
        sandbox.fault("504_after_comit")
    with pytest.raises(SandboxError, match="no such field: delay_ms"):
        sandbox.fault("slow", delay_ms=3)
    with pytest.raises(SandboxError, match="no such operation"):
        sandbox.stripe.fault("slow", on="payment_intent.create")
    with pytest.raises(SandboxError, match="path_re"):
        sandbox.fault("slow", path_re="(")
    with pytest.raises(SandboxError, match="seed"):
        sandbox.fault("slow", seed="x")


def test_data_folder_is_made(tmp_path: Path) -> None:
    """A sandbox makes its folder, keeps its database there, and ends when its process is stopped."""
    with running(tmp_path / "new" / "folder") as sandbox:
        assert sandbox.counts()["charges"] == 0
        assert (tmp_path / "new" / "folder" / "sandbox.db").exists()
