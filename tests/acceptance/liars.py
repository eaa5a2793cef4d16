"""What the people simulation's world is made of: tools of every kind of contract, and processes that die at a statement."""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import psycopg
import requests

from counterfoil import Of, tool
from counterfoil.ledger.errors import LedgerUnavailable
from counterfoil.testing import World
from counterfoil.testing.world import Crash

LANDING_MAX_S, LAG_S, TTL_S = 2.0, 3.0, 40.0


def more_tools(world: World, rng: random.Random, versions: dict[str, int]) -> list[Any]:
    """A gated tool, one that only its key answers, one that nobody can ask, one whose index lags, one with versions.

    `versions`: what stands at which version now, by order; reading it fails now and then.
    """
    url = world.sandbox.warehouse.url
    shape: dict[str, Any] = {"cls": "compensatable", "target": "order", "once_per": None, "provider": "warehouse"}
    shape |= {"landing_max_s": LANDING_MAX_S, "audience": ["finance"]}

    def post(path: str, key: str, **more: Any) -> dict[str, Any]:
        reply = requests.post(url + path, headers={"Idempotency-Key": key}, timeout=3, allow_redirects=False, **more)
        reply.raise_for_status()
        answer: dict[str, Any] = reply.json()
        return answer

    def found(key: str) -> list[dict[str, Any]]:
        reply = requests.get(f"{url}/shipments", params={"key": key}, timeout=3)
        reply.raise_for_status()
        shipments: list[dict[str, Any]] = reply.json()["shipments"]
        return shipments

    def late(key: str) -> list[dict[str, Any]]:
        return [each for each in found(key) if each["created"] <= world.sandbox.now() - LAG_S]

    def back(of: Of) -> list[dict[str, Any]]:
        return [each for each in found(of.key) if each["status"] == "cancelled"]

    @tool(effect="gated", approval="always", lookup=found, undo="give_back", **shape)
    def gated(order: str, words: str = "", *, key: str) -> dict[str, Any]:
        """A person decides first."""
        return post("/shipments", key, json={"order": f"gated {order}", "words": words})

    @tool(effect="keyed", native_key_ttl_s=TTL_S, undo="give_back", **shape)
    def keyed(order: str, *, key: str) -> dict[str, Any]:
        """Answered by its key alone."""
        return post("/shipments", key, json={"order": f"keyed {order}"})

    @tool(effect="blind", uncertain="operator_review", undo="give_back", **shape)
    def blind(order: str, *, key: str) -> dict[str, Any]:
        """Nobody can be asked."""
        return post("/shipments", key, json={"order": f"blind {order}"})

    @tool(effect="lagging", lookup=late, lookup_lag_s=LAG_S, on_absent="not_executed", undo="give_back", **shape)
    def lagging(order: str, *, key: str) -> dict[str, Any]:
        """Found some time later."""
        return post("/shipments", key, json={"order": f"lagging {order}"})

    def version(order: str) -> int:
        if rng.random() < 0.3:
            raise requests.ReadTimeout
        return versions.setdefault(order, 1)

    @tool(effect="versioned", approval="always", lookup=found, resource_version=version, undo="give_back", **shape)
    def versioned(order: str, *, key: str) -> dict[str, Any]:
        """Done only to what was there when a person decided."""
        if rng.random() < 0.1:
            versions[order] += 1
        return post("/shipments", key, json={"order": f"versioned {order}"})

    @tool(effect="undo", lookup=back, undo=None, **shape)
    def give_back(order: str, *, key: str, of: Of) -> dict[str, Any]:
        """Take back what was done; without a receipt, what carries its key."""
        made = [of.receipt] if of.receipt else [each["id"] for each in found(of.key)]
        return post(f"/shipments/{made[0] if made else 'none'}/cancel", key)

    return [gated, keyed, blind, lagging, versioned, give_back]


class Deaths:
    """Ends a process at a statement, or loses its connection there, before or after the statement's commit."""

    def __init__(self, rng: random.Random) -> None:
        self.rng, self.chance = rng, 0.0

    @contextmanager
    def within(self, chance: float) -> Iterator[None]:
        self.chance = chance
        try:
            yield
        except (Crash, LedgerUnavailable):
            pass
        finally:
            self.chance = 0.0

    def meet(self, when: str) -> None:
        if self.rng.random() < self.chance:
            raise Crash(when) if self.rng.random() < 0.6 else psycopg.OperationalError(f"lost {when}")
