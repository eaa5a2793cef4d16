"""What is read of an event: keys of ours and objects that rows may go to, whatever else is in it."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from counterfoil.webhooks.events import NAMES_MAX, Named, named_in
from counterfoil.webhooks.signatures import PROVIDERS

K1, K2, K3 = ("0123456789abcdef" * 2, "a" * 32, "b" * 32)


def named(provider: str, event: Any) -> Named | None:
    return named_in(provider, json.dumps(event).encode())


def test_stripe() -> None:
    """The keys of a payment and of its capture in the metadata, and the key of the request that caused the event."""
    metadata = {"counterfoil_key": K1, "counterfoil_capture_key": K2, "order_id": "1182", "note": K3}
    event = {"object": "event", "data": {"object": {"metadata": metadata}}, "request": {"idempotency_key": K3}}
    assert named("stripe", event) == Named((K1, K2, K3))
    assert named("stripe", event | {"request": None}) == Named((K1, K2))
    assert named("stripe", event | {"request": "req_1", "data": {"object": {"metadata": {}}}}) == Named()
    assert named("stripe", event | {"request": {"idempotency_key": K1}}) == Named((K1, K2)), "each once"


def test_jira() -> None:
    """Our labels, our properties in either form, and the ticket that a comment goes to."""
    issue = {"id": "10001", "key": "SUP-12", "fields": {"labels": ["urgent", f"cf-{K1}", "cf-", "cf-x"]}}
    assert named("jira", {"issue": issue}) == Named((K1,), ("SUP-12",))
    listed = [{"key": "counterfoil", "value": {"key": K2, "target": "SUP-12"}}, {"key": "other", "value": {"key": K3}}]
    comment = {"id": "7", "properties": listed}
    assert named("jira", {"issue": issue, "comment": comment}) == Named((K1, K2), ("SUP-12",))
    odd = [{"key": ["counterfoil"], "value": {"key": K3}}, {"value": 1}, "x", {"key": "counterfoil", "value": K3}]
    assert named("jira", {"issue": {"key": "A-1", "properties": odd}}) == Named((), ("A-1",))
    properties = {"counterfoil_undo": {"key": K2}, "counterfoil_open": {"key": K3}}
    assert named("jira", {"issue": {"key": "A-1", "properties": properties}}) == Named((K3, K2), ("A-1",))


def test_zendesk() -> None:
    """The external id and the number, of an event subscription and of a trigger's own JSON, as text or number."""
    subscription = {"type": "zen:event-type:ticket.created", "detail": {"id": "35436", "external_id": f"cf-{K1}"}}
    assert named("zendesk", subscription) == Named((K1,), ("35436",))
    assert named("zendesk", {"ticket": {"id": 35436, "external_id": ""}}) == Named((), ("35436",))
    assert named("zendesk", {"ticket": {"id": "7", "external_id": K1}}) == Named((), ("7",)), "not as we write it"


@pytest.mark.parametrize("key", [K1.upper(), K1[:-1], K1 + "0", f" {K1}", f"{K1}\n", 7, None, [K1], {"key": K1}])
def test_only_what_has_the_shape_of_ours(key: object) -> None:
    """Another text, or no text, is no key."""
    assert named("stripe", {"data": {"object": {"metadata": {"counterfoil_key": key}}}}) == Named()
    assert (
        named("jira", {"issue": {"key": key if key != [K1] else None, "fields": {"labels": [key]}}}).__class__ is Named
    )


def test_no_more_than_enough() -> None:
    """A ticket with a thousand labels of ours names as many as are looked at, and no more."""
    labels = [f"cf-{number:032x}" for number in range(1000)]
    found = named("jira", {"issue": {"key": "SUP-1", "fields": {"labels": labels}}})
    assert found is not None
    assert len(found.keys) == NAMES_MAX


@pytest.mark.parametrize("provider", sorted(PROVIDERS))
@pytest.mark.parametrize("body", [b"", b"[]", b'"x"', b"null", b"{", b"\xff", b"[" * 200_000, b"1" * 5000, b"NaN"])
def test_no_event(provider: str, body: bytes) -> None:
    """What is no JSON object names nothing, and breaks nothing."""
    assert named_in(provider, body) is None


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(
        ["data", "object", "metadata", "request", "issue", "comment", "fields", "labels", "properties", "key", "value",
         "detail", "ticket", "id", "external_id", "counterfoil", "counterfoil_key"]), inner, max_size=5),
    max_leaves=20,
)  # fmt: skip


@pytest.mark.parametrize("provider", sorted(PROVIDERS))
@given(event=st.dictionaries(st.sampled_from(["data", "request", "issue", "comment", "detail", "ticket"]), JSON))
def test_any_shape(provider: str, event: dict[str, Any]) -> None:
    """An event of another shape than we know is read without breaking."""
    assert named(provider, event) is not None
