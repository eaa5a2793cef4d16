"""What is particular to HTTP tools by configuration: their key's form, their paths, their secrets, what a look-up shows."""

from __future__ import annotations

import json
import threading
import time
import tomllib
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
import requests

from counterfoil.ledger.errors import ArgumentError
from counterfoil.providers.contract import OTHER_KEY, Call, Fetcher, Of
from counterfoil.providers.http.client import HttpAdapter
from counterfoil.providers.http.config import HttpConfig
from counterfoil.providers.http.outcomes import answered, at, found
from counterfoil.providers.outcomes import (
    Absent,
    Found,
    Many,
    NotSent,
    Outcome,
    Rejected,
    Succeeded,
    Uncertain,
    Unknown,
)
from counterfoil.providers.registry import Registry
from counterfoil.sandbox.client import Sandbox
from counterfoil.settings import Settings
from counterfoil.settings_http import HttpTool

TIMEOUT_S = 3.0
KEY = "c0" * 16
TABLES: dict[str, Any] = tomllib.loads((Path(__file__).parent / "http_tools.toml").read_text())["http"]


def loaded(name: str, table: dict[str, Any]) -> dict[str, HttpTool]:
    values: dict[str, Any] = {"http": {name: table}}
    return Settings(**values).http


def tool_of(name: str = "http_ship", **changes: Any) -> HttpTool:
    return loaded(name, {**TABLES[name], **changes})[name]


def call_of(name: str = "http_ship", *, key: str = KEY, of: Of | None = None, **arguments: Any) -> Call:
    return Call(
        action_id=f"act_{key}",
        tenant="acme",
        account="main",
        tool=name,
        key=key,
        arguments=arguments or {"order_id": "1182", "sku": "kettle", "note": None, "count": None},
        target="1182",
        first_sent_at=datetime.now(UTC),
        of=of,
    )


def adapter_with(sandbox: Sandbox, tool: HttpTool, name: str = "http_ship") -> HttpAdapter:
    return HttpAdapter(HttpConfig(base_url=sandbox.warehouse.url, tools={name: tool}))


def send(sandbox: Sandbox, tool: HttpTool, call: Call) -> Outcome:
    return adapter_with(sandbox, tool, call.tool).send(call, timeout_s=TIMEOUT_S)


def of_shipment(receipt: str | None) -> Of:
    return Of(action_id="act_first", tool="http_ship", key="ea" * 16, receipt=receipt, arguments={})


@pytest.mark.parametrize(("form", "sent"), [("bare", KEY), ("quoted", f'"{KEY}"')])
def test_the_key_has_the_form_that_is_configured(sandbox: Sandbox, form: str, sent: str) -> None:
    """The header holds the key bare or as a quoted string; the body holds the arguments that were given, and no others."""
    tool = tool_of(key_format=form, headers={"X-Team": {"value": "support"}})
    assert isinstance(send(sandbox, tool, call_of()), Succeeded)
    (request,) = sandbox.requests("warehouse")
    assert (request.headers["idempotency-key"], request.headers["x-team"]) == (sent, "support")
    assert json.loads(request.body or "") == {"order": "1182", "sku": "kettle"}
    assert [effect.key for effect in sandbox.effects("shipment")] == [KEY]


def test_a_repeat_is_answered_from_the_store(sandbox: Sandbox) -> None:
    """The same call again is the same receipt and no second effect; only the declared fields come back."""
    first, again = (send(sandbox, tool_of(), call_of()) for _ in range(2))
    assert first == again
    assert isinstance(first, Succeeded)
    assert first.fields == {"id": first.id, "status": "created"}
    assert sandbox.count("shipments") == 1


def test_a_key_with_another_body_is_for_a_person(sandbox: Sandbox) -> None:
    """The service's mismatch says that an earlier request exists: no refusal, and never another key."""
    send(sandbox, tool_of(), call_of())
    other = call_of(order_id="1182", sku="lamp", note=None, count=None)
    assert send(sandbox, tool_of(), other) == Uncertain("idempotency_mismatch", evidence="HTTP 422")
    assert [effect.data["sku"] for effect in sandbox.effects("shipment")] == ["kettle"]


def test_a_twin_in_flight_is_uncertain(sandbox: Sandbox) -> None:
    """While the first request of the key is under way, the second is told so, and there is one effect afterwards."""
    sandbox.warehouse.fault("slow", on="shipments.create", delay_s=1.0)
    outcomes: list[Outcome] = []
    first = threading.Thread(target=lambda: outcomes.append(send(sandbox, tool_of(), call_of())))
    first.start()
    deadline = time.monotonic() + TIMEOUT_S
    while not sandbox.requests("warehouse") and time.monotonic() < deadline:
        continue
    assert send(sandbox, tool_of(), call_of()) == Uncertain("idempotency_key_in_use", evidence="HTTP 409")
    first.join()
    assert isinstance(outcomes[0], Succeeded)
    assert sandbox.count("shipments") == 1


@pytest.mark.parametrize(
    "value",
    ["../reship", "a/b", "a?b=c", "a#b", "a%2F..%2Fb", "%2e%2e", "ä ö", "a;b", "\\..\\", "a&key=x", "http://evil/"],
)
def test_a_value_stays_in_its_place(sandbox: Sandbox, value: str) -> None:
    """Whatever an argument holds, it is one part of the path and adds none: the service sees the value, unchanged."""
    tool = tool_of("http_unship", path="/shipments/{order_id}/cancel", headers={}, success=[200], lookup=None)
    outcome = send(sandbox, tool, call_of("http_unship", order_id=value))
    (request,) = sandbox.requests("warehouse")
    assert (request.operation, outcome) == ("shipments.cancel" if "/" not in value else request.operation, outcome)
    assert request.path.removeprefix("/warehouse/shipments/") == f"{value}/cancel"
    assert (request.query, outcome) == ("", Rejected("not_found"))


@pytest.mark.parametrize("value", [".", "..", ""])
def test_a_part_that_clients_take_away_is_not_sent(sandbox: Sandbox, value: str) -> None:
    """`.` and `..` cannot be escaped: refused at the door, and by the adapter where they come from elsewhere."""
    changes = {"path": "/shipments/{order_id}/cancel", "lookup": None}
    table = {**TABLES["http_unship"], **changes, "undo": "self"}
    with pytest.raises(ArgumentError):
        Registry.load([], loaded("self", table)).get("self").validate({"order_id": value})
    tool = tool_of("http_unship", **changes)
    assert send(sandbox, tool, call_of("http_unship", order_id=value)) == Rejected("unsafe_path")
    assert send(sandbox, tool_of("http_unship"), call_of("http_unship", of=of_shipment(".."), order_id="1")) == (
        Rejected("unsafe_path")
    )
    assert sandbox.requests() == []


def test_a_counter_action_without_a_receipt_is_not_sent(sandbox: Sandbox) -> None:
    """Nothing is guessed in place of the receipt."""
    call = call_of("http_unship", of=of_shipment(None), order_id="1182")
    assert send(sandbox, tool_of("http_unship"), call) == NotSent("of_unresolved")
    assert sandbox.requests() == []


def test_a_secret_is_read_at_each_call(sandbox: Sandbox, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A rotated secret is in force at once; without it, or with one that no header can hold, nothing is sent."""
    file = tmp_path / "token"
    sources = {
        "X-Token": {"secret_file": file, "prefix": "Bearer "},
        "X-Api-Key": {"secret_env": "CRM_KEY"},
    }
    adapter = adapter_with(sandbox, tool_of(headers=sources))
    assert adapter.send(call_of(), timeout_s=TIMEOUT_S) == NotSent("no_secret")
    monkeypatch.setenv("CRM_KEY", "k1")
    file.write_text("t1\nX-Evil: 1")
    assert adapter.send(call_of(), timeout_s=TIMEOUT_S) == NotSent("no_secret")
    assert sandbox.requests() == []
    for number in (1, 2):
        file.write_text(f"t{number}\n")
        monkeypatch.setenv("CRM_KEY", f"k{number}")
        assert isinstance(adapter.send(call_of(), timeout_s=TIMEOUT_S), Succeeded)
        headers = sandbox.requests("warehouse")[-1].headers
        assert (headers["x-token"], headers["x-api-key"]) == (f"Bearer t{number}", f"k{number}")


def test_the_environment_s_proxies_are_not_asked(sandbox: Sandbox, monkeypatch: pytest.MonkeyPatch) -> None:
    """A proxy of the environment gets neither the call nor its secrets."""
    for name in ("http_proxy", "HTTP_PROXY", "ALL_PROXY"):
        monkeypatch.setenv(name, "http://127.0.0.1:9")
    assert isinstance(send(sandbox, tool_of(), call_of()), Succeeded)


def test_no_call_carries_another_s_cookie(sandbox: Sandbox) -> None:
    """What the API sets at one call is not sent with the next, which may be another tenant's."""
    adapter = adapter_with(sandbox, tool_of())
    sandbox.warehouse.fault("answer", on="shipments.create", status=200, headers={"Set-Cookie": "session=1; Path=/"})
    for number in (1, 2):
        adapter.send(call_of(key=f"{number:032x}"), timeout_s=TIMEOUT_S)
    first, second = sandbox.requests("warehouse")
    assert first.fault == "answer"
    assert "cookie" not in second.headers


def test_another_call_s_object_is_not_ours(sandbox: Sandbox) -> None:
    """A list that ignores the filter proves nothing; our key with other contents goes to a person; two are many."""
    url, foreign = f"{sandbox.warehouse.url}/shipments", {"order": "1", "sku": "x"}
    requests.post(url, json=foreign, timeout=TIMEOUT_S).raise_for_status()
    lookup = TABLES["http_ship"]["lookup"]
    unfiltered = adapter_with(sandbox, tool_of(lookup={**lookup, "path": "/shipments"}))
    call = call_of()
    assert unfiltered.lookup([call], timeout_s=TIMEOUT_S) == {call.action_id: Unknown("other_key")}
    requests.post(url, json=foreign, headers={"Idempotency-Key": KEY}, timeout=TIMEOUT_S).raise_for_status()
    finding = unfiltered.lookup([call], timeout_s=TIMEOUT_S)[call.action_id]
    assert isinstance(finding, Found)
    assert not finding.as_intended
    twins = json.dumps({"shipments": [{"id": number, "key": KEY} for number in (1, 2)]}).encode()
    tool = tool_of()
    assert tool.lookup is not None
    assert found(tool, tool.lookup, call, 200, twins) == Many(("1", "2"))


@pytest.mark.parametrize(("more", "proved"), [("p2", False), (True, False), (None, True), (False, True), ("", True)])
def test_a_list_that_goes_on_proves_no_absence(more: object, proved: bool) -> None:
    """Where an API filters each page by itself, the first may be empty and the second not."""
    tool = tool_of(lookup={**TABLES["http_ship"]["lookup"], "more": "/next"})
    assert tool.lookup is not None
    page = json.dumps({"shipments": [], "next": more}).encode()
    assert found(tool, tool.lookup, call_of(), 200, page) == (Absent() if proved else Unknown("incomplete"))


def test_a_person_s_receipt_is_checked(sandbox: Sandbox) -> None:
    """The object of the named receipt is ours only where the look-up by our key shows it."""
    adapter, call = adapter_with(sandbox, tool_of()), call_of()
    assert isinstance(adapter, Fetcher)
    assert adapter.fetch(call, "shp_1", timeout_s=TIMEOUT_S) == Absent()
    made = adapter.send(call, timeout_s=TIMEOUT_S)
    assert isinstance(made, Succeeded)
    assert isinstance(adapter.fetch(call, made.id, timeout_s=TIMEOUT_S), Found)
    assert adapter.fetch(call, "shp_other", timeout_s=TIMEOUT_S) == Unknown("other_key")
    blind = adapter_with(sandbox, tool_of(lookup=None))
    assert blind.fetch(call, made.id, timeout_s=TIMEOUT_S) is None


@pytest.mark.parametrize(
    ("receipt", "finding"),
    [
        ("1", Found(Rejected("failed"))),
        ("2", Found(Succeeded("2", {"status": "created"}), as_intended=False)),
        ("3", Found(Succeeded("3", {"status": "created"}))),
        ("4", Unknown("other_key")),
    ],
)
def test_a_person_s_receipt_among_several(sandbox: Sandbox, receipt: str, finding: object) -> None:
    """The object that is named is judged by its own status and contents, like any other."""
    tool = tool_of(status_field="/status", done=["created"], failed=["lost"], result={"status": "/status"})
    shown = {"key": KEY, "order": "1182", "sku": "kettle", "status": "created"}
    several = [{**shown, "id": 1, "status": "lost"}, {**shown, "id": 2, "sku": "lamp"}, {**shown, "id": 3}]
    sandbox.warehouse.fault("answer", on="shipments.list", status=200, body={"shipments": several})
    assert adapter_with(sandbox, tool).fetch(call_of(), receipt, timeout_s=TIMEOUT_S) == finding


@pytest.mark.parametrize(
    ("status", "body", "outcome"),
    [
        (200, {"id": "r1", "state": "sent", "text": "prose"}, Succeeded("r1", {"state": "sent"})),
        (201, {"id": 17, "state": "sent"}, Succeeded("17", {"state": "sent"})),
        (200, {"id": "r1", "state": "bounced"}, Rejected("failed")),
        (200, {"id": "r1", "state": "queued"}, Uncertain("unknown_status")),
        (200, {"id": "r1", "state": ["sent"]}, Uncertain("unknown_status")),
        (200, {"id": True, "state": "sent"}, Uncertain("malformed", evidence="dict")),
        (200, {"id": "", "state": "sent"}, Uncertain("malformed", evidence="dict")),
        (200, ["r1"], Uncertain("malformed", evidence="list")),
        (202, {"id": "r1", "state": "sent"}, Uncertain("http_202", evidence="HTTP 202")),
        (204, None, Uncertain("http_204", evidence="HTTP 204")),
        (404, {}, Rejected("not_found")),
        (418, {}, Uncertain("http_418", evidence="HTTP 418")),
        (412, {}, Rejected("http_412")),
        (503, {}, Rejected("http_503", retryable=True, retry_after_s=7.0)),
        (500, {"id": "r1", "state": "sent"}, Uncertain("http_500", evidence="HTTP 500")),
    ],
)
def test_an_answer_is_judged_by_the_table(status: int, body: object, outcome: Outcome) -> None:
    """Statuses, receipt and the object's own status decide; what is on no list proves nothing; prose is nowhere."""
    tool = tool_of(
        status_field="/state",
        done=["sent"],
        failed=["bounced"],
        result={"state": "/state"},
        refused=[404, 412],
        retryable=[429, 503],
    )
    assert answered(tool, call_of(), status, json.dumps(body).encode(), wait_s=7.0) == outcome


@pytest.mark.parametrize("status", [400, 403, 404, 503])
@pytest.mark.parametrize(
    "page", [b"<html><h1>Forbidden</h1></html>", b"\r\n<!DOCTYPE html>\r\n", b"\xef\xbb\xbf<html>"]
)
def test_a_gateway_s_page_refuses_nothing(status: int, page: bytes) -> None:
    """A page in front of the API may stand in the place of its answer, so the request may have had its effect."""
    tool = tool_of(retryable=[429, 503])
    assert answered(tool, call_of(), status, page, wait_s=None) == Uncertain(
        f"http_{status}", evidence=f"HTTP {status}"
    )
    for own in (b"", b"Not Found", b'{"error": "<b>"}'):
        assert isinstance(answered(tool, call_of(), status, own, wait_s=None), Rejected)
    assert isinstance(answered(tool, call_of(), 429, page, wait_s=None), Rejected)


def test_no_content_is_success_of_what_takes_back_only() -> None:
    """A 204 shows no receipt: it is that of the action which is taken back, and a body beside it is no 204."""
    tool = tool_of("http_unship", success=[204])
    call = call_of("http_unship", of=of_shipment("shp_1"), order_id="1182")
    assert answered(tool, call, 204, b"", wait_s=None) == Succeeded("shp_1")
    assert isinstance(answered(tool, call, 204, b"{}", wait_s=None), Uncertain)
    assert isinstance(answered(tool, replace(call, of=None), 204, b"", wait_s=None), Uncertain)


def test_one_object_that_is_asked_for_by_its_address() -> None:
    """Absent needs the service's own 404, with a body of its form; a proxy's page is unknown."""
    tool = tool_of(lookup={"path": "/shipments/{key}", "lag_s": 0})
    assert tool.lookup is not None
    assert found(tool, tool.lookup, call_of(), 404, b'{"error": "not_found"}') == Absent()
    assert found(tool, tool.lookup, call_of(), 404, b"<html>") == Unknown("http_404")
    assert found(tool, tool.lookup, call_of(), 200, b"{}") == Unknown("malformed")
    assert found(tool, tool.lookup, call_of(), 200, b'{"id": 3}') == Found(Succeeded("3", {"id": 3, "status": None}))


def test_one_object_that_shows_whose_it_is() -> None:
    """Where it is said where an object shows its key, one without it, or with another's, is not the call's."""
    tool, call = tool_of(lookup={"path": "/shipments/latest", "key_field": "/key", "lag_s": 0}), call_of()
    assert tool.lookup is not None
    for shown in ({"id": 3}, {"id": 3, "key": None}, {"id": 3, "key": "f" * 32}, {"id": 3, "key": ""}):
        assert found(tool, tool.lookup, call, 200, json.dumps(shown).encode()) == Unknown(OTHER_KEY)
    ours = json.dumps({"id": 3, "key": call.key}).encode()
    assert isinstance(found(tool, tool.lookup, call, 200, ours), Found)


@pytest.mark.parametrize(
    ("pointer", "value"),
    [
        ("", {"a": [{"b/c": 1, "~": 2}]}),
        ("/a/0/b~1c", 1),
        ("/a/0/~0", 2),
        ("/a/1", None),
        ("/a/-1", None),
        ("/x/y", None),
    ],
)
def test_a_pointer(pointer: str, value: object) -> None:
    """As RFC 6901 has it; what is not there is None."""
    assert at({"a": [{"b/c": 1, "~": 2}]}, pointer) == value
