"""Letters and shipments to a real warehouse, for tests about what a worker checks before it sends."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import psycopg
import requests
from psycopg.rows import dict_row

from counterfoil import Counterfoil, tool
from counterfoil.ledger.claims import WakeUp
from counterfoil.outbox.enqueue import intent_of
from counterfoil.outbox.intents import DOOR_RULES, DoorRules, Intent
from counterfoil.outbox.setup import door_rules
from counterfoil.providers.registry import Registry
from counterfoil.testing import World

if TYPE_CHECKING:
    from tests.conftest import Database

PRICE = 500


def gate_tools(url: str) -> tuple[Any, ...]:
    """A gated parcel, a priced one that only settings gate, letters that cannot be taken back, and their counter-action."""

    def post(path: str, key: str, **more: Any) -> dict[str, object]:
        headers = {"Idempotency-Key": key}
        reply = requests.post(url + path, headers=headers, timeout=3, allow_redirects=False, **more)
        reply.raise_for_status()
        answer: dict[str, object] = reply.json()
        return answer

    def find(key: str) -> list[dict[str, object]]:
        reply = requests.get(f"{url}/shipments", params={"key": key}, timeout=3)
        reply.raise_for_status()
        found: list[dict[str, object]] = reply.json()["shipments"]
        return found

    shape: dict[str, Any] = {"provider": "warehouse", "target": "order", "landing_max_s": 2.0, "lookup": find}
    priced: dict[str, Any] = {**shape, "amount": "price", "audience": ["customer"], "undo": "call_back"}

    def sorry(arguments: Any) -> dict[str, object]:
        return {"tool": "plain_letter", "arguments": {"order": arguments["order"]}}

    @tool(cls="compensatable", effect="parcel", once_per="order", approval="always", correction=sorry, **priced)
    def gated_parcel(order: str, price: int = PRICE, currency: str = "eur", *, key: str) -> dict[str, object]:
        """A person decides first."""
        return post("/shipments", key, json={"order": order})

    @tool(cls="compensatable", effect="parcel", once_per=None, **priced)
    def parcel(order: str, price: int = PRICE, currency: str = "eur", *, key: str) -> dict[str, object]:
        """Nobody need be asked, unless the settings say so."""
        return post("/shipments", key, json={"order": order})

    @tool(cls="compensatable", effect="call_back", once_per=None, audience=["customer"], undo=None, **shape)
    def call_back(order: str, *, key: str, of: str) -> dict[str, object]:
        """Takes a parcel back."""
        return post("/shipments", key, json={"order": order, "of": of})

    @tool(cls="irreversible", effect="letter", once_per=None, audience=["customer"], approval="never", **shape)
    def plain_letter(order: str, *, key: str) -> dict[str, object]:
        """Cannot be taken back, and is sent unasked."""
        return post("/shipments", key, json={"order": order})

    return gated_parcel, parcel, call_back, plain_letter


def open_gates(world: World, database: Database) -> Gates:
    """Gives the world these tools as its only ones; before its first worker is made."""
    world.registry = Registry()
    for function in gate_tools(world.sandbox.warehouse.url):
        world.registry.add(function.__counterfoil_tool__)
    world.registry.resolve()
    return Gates(world=world, database=database)


@dataclass(kw_only=True)
class Gates:
    """One test's ledger, with these tools; people and raw SQL at hand."""

    world: World
    database: Database

    @property
    def sent(self) -> int:
        """How many parcels and letters have really left."""
        return self.world.sandbox.count("shipments")

    def rules(self) -> DoorRules:
        """What the agent's settings say, by default the worker's own."""
        return door_rules(self.world.settings)

    def intent(
        self, name: str, *, order: str, rules: DoorRules = DOOR_RULES, run: str = "r1", **arguments: Any
    ) -> Intent:
        """What an agent under these rules would record, as step `order`."""
        spec = self.world.registry.get(name)
        given = {"order": order, **arguments}
        return intent_of(spec, given, tenant="acme", run=run, step=f"s-{order}", actor="bot", rules=rules)

    def propose(self, intent: Intent, **changes: object) -> str:
        """Calls the database's door by hand, as an agent may that has code of its own."""
        params = {**intent.parameters(), **changes}
        named = ", ".join(f"p_{name} => %({name})s" for name in params)
        with psycopg.connect(self.database.url("agent"), row_factory=dict_row) as agent:
            row = agent.execute(f"SELECT * FROM counterfoil.propose({named})".encode(), params).fetchone()
        assert row is not None
        return str(row["action_id"])

    def ask(self, name: str, *, order: str, **changes: Any) -> str:
        """Records a call under the worker's own rules."""
        return self.propose(self.intent(name, order=order, rules=self.rules(), **changes))

    def approve(self, action_id: str, by: str = "alice", role: str = "operator") -> str:
        """One person's approval of the action's proposal, over what stands there; the answer."""
        with psycopg.connect(self.database.url(role), autocommit=True) as operator:
            row = operator.execute(
                "SELECT d.answer FROM counterfoil.action AS a, counterfoil.decide(a.proposal_id, 'approved',"
                " counterfoil.proposal_digest(a.proposal_id), %s, 'test') AS d WHERE a.action_id = %s",
                (by, action_id),
            ).fetchone()
        assert row is not None
        return str(row[0])

    def approved(self, name: str, *, order: str, **changes: Any) -> str:
        """Records a call, and a person approves it."""
        action_id = self.ask(name, order=order, **changes)
        assert self.approve(action_id) == "approved"
        return action_id

    def planned(self, name: str, *, orders: Sequence[str], run: str = "r1") -> list[str]:
        """A plan of one call for each order, which a person has approved; its actions in order."""
        with closing(
            Counterfoil(self.database.url("agent"), settings=self.world.settings, registry=self.world.registry)
        ) as cf:
            cf.run(run, tenant="acme", actor="bot").propose([(name, {"order": order}) for order in orders])
        with psycopg.connect(self.database.url("owner")) as owner:
            ids = [row[0] for row in owner.execute("SELECT action_id FROM counterfoil.action ORDER BY place")]
        assert self.approve(ids[0]) == "approved"
        return ids

    def forge(self, statement: str, *params: object) -> int:
        """What only the database's owner can do: a statement with every trigger off; the rows that it changed."""
        with psycopg.connect(self.database.url("owner")) as owner:
            owner.execute("SET LOCAL session_replication_role = replica")
            return owner.execute(statement.encode(), params or None).rowcount

    def read(self, action_id: str) -> dict[str, Any]:
        """The row."""
        with psycopg.connect(self.database.url("owner"), row_factory=dict_row) as owner:
            row = owner.execute("SELECT * FROM counterfoil.action WHERE action_id = %s", (action_id,)).fetchone()
        assert row is not None
        return row

    def ended(self, action_id: str) -> tuple[str, str | None]:
        """The action's state and why."""
        row = self.read(action_id)
        return row["state"], row["last_error_code"]

    def deliver(self, *action_ids: str) -> int:
        """Hands the actions to a worker as they stand, due or not; returns how many it claimed."""
        return self.world.deliver([WakeUp(a, self.read(a)["generation"]) for a in action_ids])
