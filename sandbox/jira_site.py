"""Decides how Jira's two deployments differ here: who is asking, what a creation keeps, and which node's index is asked."""

from __future__ import annotations

import base64
import binascii

from counterfoil.sandbox.store import Store
from counterfoil.sandbox.wire import Json, Request

NODES = (0, 1)
"""Data Center's, behind a load balancer that knows no sessions."""


def is_cloud(store: Store) -> bool:
    return store.config.jira_deployment == "cloud"


def user(store: Store, request: Request) -> Json:
    """The account that a request's login belongs to, as this deployment shows it."""
    scheme, _, given = request.headers.get("authorization", "").partition(" ")
    name = "sandbox"
    if scheme == "Basic":
        try:
            name = base64.b64decode(given).decode().partition(":")[0]
        except (binascii.Error, UnicodeDecodeError):
            name = "unreadable"
    elif given:
        name = f"token-{request.account}"
    shown: Json = {"displayName": name, "active": True}
    return {**shown, "accountId": name} if is_cloud(store) else {**shown, "name": name, "key": name}


def index(store: Store, kind: str, object_id: str, data: Json | None, terms: list[str]) -> None:
    """Shows this state to searches after the lag; in Data Center the node that wrote it has it at once."""
    if is_cloud(store):
        store.index("jira", kind, object_id, data, terms)
        return
    here = _node(store)
    for node in NODES:
        store.index("jira_own_node" if node == here else "jira", f"{kind}@{node}", object_id, data, terms)


def indexed(store: Store, kind: str, terms: list[str]) -> list[Json]:
    """What the index that is asked has now."""
    return store.indexed(kind if is_cloud(store) else f"{kind}@{_node(store)}", terms=terms)


def _node(store: Store) -> int:
    """Where the next request goes: in a fixed order that has every short run of equal and of different nodes."""
    return NODES[store.next_number("jira:node", 0).bit_count() % len(NODES)]
