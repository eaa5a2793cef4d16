"""The sandbox as a world: what survives a kill, what its clock and reset do, warehouse and mail, and many at once."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import requests

from counterfoil.sandbox.client import Sandbox, SandboxError
from counterfoil.sandbox.process import running, start

CHARGE = {"amount": "2000", "currency": "usd", "payment_method": "pm_card_visa", "confirm": "true"}
MAIL = {"to": "ann@example.com", "template": "reship"}


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Sandbox]:
    with running(tmp_path_factory.mktemp("sandbox")) as sandbox:
        yield sandbox


@pytest.fixture
def sandbox(world: Sandbox) -> Sandbox:
    world.reset()
    return world


def charge(sandbox: Sandbox, key: str, *, timeout_s: float = 5) -> requests.Response:
    headers = {"Authorization": "Bearer sk_test_1", "Idempotency-Key": key}
    url = f"{sandbox.stripe.url}/v1/payment_intents"
    return requests.post(url, data=CHARGE, headers=headers, timeout=timeout_s)


def test_effects_survive_a_kill(tmp_path: Path) -> None:
    """After kill -9 every committed effect, object, key, setting and the clock are there; faults are not."""
    first = start(tmp_path)
    try:
        first.control.config(idem_ttl_s=5000)
        first.control.advance(1000)
        done = charge(first.control, "done").json()
        first.control.stripe.fault("rst_after_commit")
        with pytest.raises(requests.ConnectionError):
            charge(first.control, "answer lost")
        first.control.stripe.fault("slow", delay_s=60, times=None)
        with pytest.raises(requests.ReadTimeout):
            charge(first.control, "in flight", timeout_s=0.2)
        before = first.control.effects()
    finally:
        first.kill()
    second = start(tmp_path, port=first.port)
    try:
        assert second.control.effects() == before
        assert [effect.key for effect in before] == ["done", "answer lost"]
        assert second.control.now() - time.time() == pytest.approx(1000, abs=5)
        assert second.control.config()["idem_ttl_s"] == 5000
        again = charge(second.control, "done")
        assert (again.json(), again.headers["Idempotent-Replayed"]) == (done, "true")
        assert charge(second.control, "answer lost").headers["Idempotent-Replayed"] == "true"
        assert charge(second.control, "in flight").status_code == 200
        assert second.control.count("charges") == 3
    finally:
        second.stop()


def test_it_ends_with_its_parent(tmp_path: Path) -> None:
    """A sandbox whose parent is gone ends by itself, so that no test run leaves one behind."""
    process = start(tmp_path)
    assert process.child.stdin is not None
    process.child.stdin.close()
    assert process.child.wait(10) == 0
    process.stop()


def test_help() -> None:
    """The command explains itself."""
    command = [sys.executable, "-m", "counterfoil.sandbox", "--help"]
    shown = subprocess.run(command, capture_output=True, text=True, timeout=30, check=True).stdout
    assert "/_sandbox/" in shown
    assert "--data" in shown


def test_clock_moves_forward_only(sandbox: Sandbox) -> None:
    """The clock adds to real time, stamps what is created, and refuses to go back."""
    assert sandbox.now() == pytest.approx(time.time(), abs=5)
    sandbox.advance(86_400)
    assert charge(sandbox, "k").json()["created"] == pytest.approx(time.time() + 86_400, abs=5)
    with pytest.raises(SandboxError, match="never goes back"):
        sandbox.advance(-1)


def test_reset(sandbox: Sandbox) -> None:
    """A reset empties the world and brings real time and default settings back, or keeps the clock if asked."""
    charge(sandbox, "k")
    sandbox.config(reship="accept")
    sandbox.stripe.fault("html_502", times=None)
    sandbox.advance(500)
    sandbox.reset(keep_clock=True)
    assert sandbox.now() == pytest.approx(time.time() + 500, abs=5)
    assert (sandbox.effects(), sandbox.requests(), sandbox.config()["reship"]) == ([], [], "reject")
    assert charge(sandbox, "k").status_code == 200
    sandbox.reset()
    assert sandbox.now() == pytest.approx(time.time(), abs=5)
    assert sandbox.counts()["charges"] == 0


def test_reset_drops_what_is_under_way(sandbox: Sandbox) -> None:
    """What one test sent never lands in the world of the next."""
    sandbox.stripe.fault("slow", delay_s=20)
    with ThreadPoolExecutor(1) as pool:
        slow = pool.submit(charge, sandbox, "slow")
        deadline = time.monotonic() + 5
        while not sandbox.stripe.requests() and time.monotonic() < deadline:
            pass
        sandbox.stripe.fault("504_then_commit_after", delay_s=30)
        assert charge(sandbox, "late").status_code == 504
        sandbox.reset()
        assert slow.result().status_code == 503
    sandbox.advance(60)
    assert sandbox.effects() == []
    assert charge(sandbox, "slow").status_code == 200


def test_settings_are_checked(sandbox: Sandbox) -> None:
    """A setting that does not exist, or a value that makes no sense, is refused by name and changes nothing."""
    for wrong in ({"search_lag": 3}, {"search_lag_s": {"jira": -1}}, {"reship": "maybe"}, {"idem_ttl_s": "day"}):
        with pytest.raises(SandboxError, match=next(iter(wrong))):
            sandbox.config(**wrong)
    before = sandbox.config()["search_lag_s"]
    sandbox.config(search_lag_s={"jira": [2, 9]})
    assert sandbox.config()["search_lag_s"] == {**before, "jira": [2.0, 9.0]}


def test_warehouse(sandbox: Sandbox) -> None:
    """A reship is refused by default; shipments are kept by key, found by it, and cancelled once."""
    url, headers = sandbox.warehouse.url, {"Idempotency-Key": "k"}
    assert requests.post(f"{url}/reship", json={"order": "1182"}, timeout=5).status_code == 422
    assert sandbox.count("shipments") == 0
    sandbox.config(reship="accept")
    sent = [requests.post(f"{url}/reship", json={"order": "1182"}, headers=headers, timeout=5) for _ in range(2)]
    assert [answer.status_code for answer in sent] == [201, 200]
    assert sent[0].json() == sent[1].json()
    other = requests.post(f"{url}/shipments", json={"order": "7"}, headers=headers, timeout=5)
    assert (other.status_code, other.json()["error"]) == (422, "idempotency_key_reused")
    [shipment] = requests.get(f"{url}/shipments", params={"key": "k"}, timeout=5).json()["shipments"]
    assert requests.get(f"{url}/shipments", params={"key": "other"}, timeout=5).json()["shipments"] == []
    for _ in range(2):
        requests.post(f"{url}/shipments/{shipment['id']}/cancel", timeout=5)
    assert requests.get(f"{url}/shipments/{shipment['id']}", timeout=5).json()["status"] == "cancelled"
    assert (sandbox.count("shipments"), sandbox.count("shipments_cancelled")) == (1, 1)


def test_mail(sandbox: Sandbox) -> None:
    """Every accepted message counts, equal or not; the outbox can be read by recipient and key."""
    url = sandbox.mail.url
    for key in ("1", "1", "2"):
        assert requests.post(url, json={**MAIL, "key": key}, timeout=5).status_code == 201
    assert requests.post(url, json={"template": "reship"}, timeout=5).status_code == 422
    assert sandbox.count("customer_messages") == 3
    assert len(requests.get(url, params={"key": "1"}, timeout=5).json()["messages"]) == 2
    assert len(requests.get(url, params={"to": "bob@example.com"}, timeout=5).json()["messages"]) == 0


def test_mail_drafts(sandbox: Sandbox) -> None:
    """A draft is nobody's message until it is sent, once, under a key; a deleted one stays deleted."""
    url = sandbox.mail.url

    def post(path: str, key: str, body: dict[str, str] | None = None) -> requests.Response:
        return requests.post(f"{url}{path}", json=body, headers={"Idempotency-Key": key}, timeout=5)

    made = [post("/drafts", "d1", MAIL) for _ in range(2)]
    assert [(answer.status_code, answer.json()["id"]) for answer in made] == [
        (201, made[0].json()["id"]),
        (200, made[0].json()["id"]),
    ]
    assert post("/drafts", "d1", {**MAIL, "template": "other"}).json()["error"] == "idempotency_key_reused"
    assert post("/drafts", "d2", {"template": "reship"}).status_code == 422
    [draft] = requests.get(f"{url}/drafts", params={"key": "d1"}, timeout=5).json()["drafts"]
    assert requests.get(f"{url}/drafts/{draft['id']}", timeout=5).json() == draft
    assert requests.get(f"{url}/drafts", params={"key": "x"}, timeout=5).json()["drafts"] == []
    assert (sandbox.count("drafts_open"), sandbox.count("customer_messages")) == (1, 0)

    sent = [post(f"/drafts/{draft['id']}/send", "s1") for _ in range(2)]
    assert [answer.status_code for answer in sent] == [201, 200]
    assert sent[0].json() == sent[1].json()
    assert post(f"/drafts/{draft['id']}/send", "s2").json()["error"] == "already_sent"
    assert requests.delete(f"{url}/drafts/{draft['id']}", timeout=5).status_code == 409
    [message] = requests.get(url, params={"key": "s1"}, timeout=5).json()["messages"]
    assert (message["to"], message["draft"]) == (MAIL["to"], draft["id"])
    assert (sandbox.count("drafts_open"), sandbox.count("customer_messages")) == (0, 1)

    other = post("/drafts", "d3", MAIL).json()["id"]
    assert [requests.delete(f"{url}/drafts/{other}", timeout=5).status_code for _ in range(2)] == [200, 200]
    assert post("/drafts", "d3", MAIL).json()["status"] == "deleted", "a late repeat brings nothing back"
    assert post(f"/drafts/{other}/send", "s3").status_code == 410
    assert requests.get(f"{url}/drafts/nothing", timeout=5).status_code == 404
    assert sandbox.counts() | {"drafts_created": 2, "drafts_deleted": 1, "customer_messages": 1} == sandbox.counts()


def test_an_edited_draft_is_another_version(sandbox: Sandbox) -> None:
    """A draft that somebody edits gets a new version; sending under the old one is refused, and nothing goes out."""
    drafts = f"{sandbox.mail.url}/drafts"
    draft = requests.post(drafts, json=MAIL, timeout=5).json()
    edited = requests.put(f"{drafts}/{draft['id']}", json={"to": "bob@example.com"}, timeout=5).json()
    assert (draft["version"], edited["version"], edited["to"]) == (1, 2, "bob@example.com")
    sent = [
        requests.post(f"{drafts}/{draft['id']}/send", headers={"If-Match": str(version)}, timeout=5).status_code
        for version in (1, 2)
    ]
    assert sent == [412, 201]
    assert [effect.data["to"] for effect in sandbox.mail.effects("customer_message")] == ["bob@example.com"]
    assert requests.put(f"{drafts}/{draft['id']}", json=MAIL, timeout=5).status_code == 409


def test_mail_drafts_meet_faults(sandbox: Sandbox) -> None:
    """A gateway that lies about a draft or its sending hides one effect; the key finds it, and a resend is no second."""
    url, key = sandbox.mail.url, {"Idempotency-Key": "k"}
    sandbox.mail.fault("504_after_commit", on="drafts.create")
    assert requests.post(f"{url}/drafts", json=MAIL, headers=key, timeout=5).status_code == 504
    [draft] = requests.get(f"{url}/drafts", params={"key": "k"}, timeout=5).json()["drafts"]
    sandbox.mail.fault("504_after_commit", on="drafts.send")
    answers = [requests.post(f"{url}/drafts/{draft['id']}/send", headers=key, timeout=5) for _ in range(2)]
    assert [answer.status_code for answer in answers] == [504, 200]
    sandbox.mail.fault("504_before_commit", on="drafts.delete")
    assert requests.delete(f"{url}/drafts/{draft['id']}", timeout=5).status_code == 504
    assert (sandbox.count("drafts_created"), sandbox.count("customer_messages")) == (1, 1)


def test_attempt_log(sandbox: Sandbox) -> None:
    """The log shows each request with body, key and the status sent, and no authorization."""
    charge(sandbox, "k")
    [attempt] = sandbox.requests("stripe", "payment_intents.create")
    assert (attempt.method, attempt.path, attempt.status) == ("POST", "/stripe/v1/payment_intents", 200)
    assert (attempt.headers["idempotency-key"], attempt.executed, attempt.fault) == ("k", 1, None)
    assert "amount=2000" in (attempt.body or "")
    assert "authorization" not in attempt.headers


def test_unreadable_bodies(sandbox: Sandbox) -> None:
    """A body that is no object is a 400, not a crash."""
    for body in ("[1]", "{", '"text"'):
        assert requests.post(sandbox.mail.url, data=body, timeout=5).status_code == 400
    clock = f"{sandbox.base_url}/_sandbox/clock"
    assert requests.post(clock, data="[]", timeout=5).status_code == 400


def test_many_slow_requests_at_once(sandbox: Sandbox) -> None:
    """Two hundred requests of one second each take little more than one second together."""
    sandbox.config(latency_s={"mail": 1})
    requests_sent = 200
    began = time.monotonic()
    with ThreadPoolExecutor(requests_sent) as pool:
        answers = list(pool.map(lambda _: requests.post(sandbox.mail.url, json=MAIL, timeout=20), range(requests_sent)))
    assert {answer.status_code for answer in answers} == {201}
    assert sandbox.count("customer_messages") == requests_sent
    assert time.monotonic() - began < 10
