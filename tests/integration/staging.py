"""A shop that holds before it takes, an agent that stages there, and a person who decides: for the tests of plans."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, TypedDict

import psycopg
import pytest
import requests
from psycopg.rows import dict_row

from counterfoil import Counterfoil, Of, Proposal, Result, Run, Status, tool
from counterfoil.ledger.canonical import canonical_json
from counterfoil.ledger.keys import action_id
from counterfoil.outbox.seen import Tokens
from counterfoil.providers.registry import Registry
from counterfoil.testing import World

if TYPE_CHECKING:
    from tests.conftest import Database

HOLD_S = 7 * 86_400.0
"""A hold lapses by itself after this long."""


class Held(TypedDict):
    """What a hold returns."""

    id: str
    until: str


class Shop:
    """Tools whose effects are counted here. `hold` and `draft` are reversible forms, the others commit."""

    def __init__(self) -> None:
        self.happened: list[str] = []
        """Effects in order, by tool."""
        self.amounts: list[int] = []
        self.loses_answers = 0
        self.version = "7"
        """The version of every order."""
        self._receipts: dict[str, str] = {}

        def find(key: str) -> object:
            return {"id": self._receipts[key]} if key in self._receipts else None

        made: dict[str, Any] = {"provider": "shop", "landing_max_s": 1.0, "target": "order", "lookup": find}
        inside: dict[str, Any] = {**made, "audience": ["finance"]}

        @tool(cls="pure")
        def search() -> dict[str, str]:
            return {}

        @tool(cls="reversible", effect="payment", once_per=None, undo="let_go", lapses="until",
              amount="amount", **inside)  # fmt: skip
        def hold(order: str, amount: int = 500, *, key: str) -> Held:
            until = datetime.fromtimestamp(time.time() + HOLD_S, UTC)
            self.amounts.append(amount)
            return {"id": self._happens(key, "hold")["id"], "until": f"{until:%Y-%m-%dT%H:%M:%SZ}"}

        @tool(cls="compensatable", effect="payment", once_per="order", undo="let_go", amount="amount", **inside)
        def capture(order: str, amount: int | None = None, *, key: str, of: Of) -> dict[str, str]:
            self.amounts.append(amount or 0)
            return self._happens(key, "capture")

        @tool(cls="compensatable", effect="letting_go", once_per=None, undo=None, **inside)
        def let_go(order: str, *, key: str, of: Of) -> dict[str, str]:
            return self._happens(key, "let_go")

        @tool(cls="reversible", effect="mail", once_per=None, undo="let_go", **inside)
        def draft(order: str, *, key: str) -> dict[str, str]:
            return self._happens(key, "draft")

        @tool(cls="irreversible", effect="mail", once_per=None, **made, audience=["customer"])
        def send(order: str, *, key: str, of: Of) -> dict[str, str]:
            return self._happens(key, "send")

        @tool(cls="compensatable", effect="note", once_per=None, undo="let_go", **inside)
        def note(order: str, *, key: str) -> dict[str, str]:
            return self._happens(key, "note")

        @tool(cls="reversible", effect="question", once_per=None, approval="always", undo="let_go", **inside)
        def ask(order: str, *, key: str) -> dict[str, str]:
            return self._happens(key, "ask")

        @tool(cls="compensatable", effect="transfer", effect_scope="tenant", once_per=None, undo="let_go", **inside)
        def pay(order: str, *, key: str) -> dict[str, str]:
            return self._happens(key, "pay")

        @tool(cls="compensatable", effect="transfer", effect_scope="tenant", once_per=None, undo="let_go", **inside)
        def pay_by_cheque(order: str, *, key: str) -> dict[str, str]:
            return self._happens(key, "pay_by_cheque")

        def version(order: str) -> str:
            return self.version

        @tool(cls="reversible", effect="amendment", once_per=None, undo="let_go", resource_version=version, **inside)
        def amend(order: str, *, key: str) -> dict[str, str]:
            return self._happens(key, "amend")

        self.tools: tuple[Any, ...] = (
            amend,
            search, hold, capture, let_go, draft, send, note, ask, pay, pay_by_cheque,
        )  # fmt: skip

    def _happens(self, key: str, name: str) -> dict[str, str]:
        self.happened.append(name)
        self._receipts[key] = f"r{len(self.happened)}"
        if self.loses_answers:
            self.loses_answers -= 1
            raise requests.ReadTimeout
        return {"id": self._receipts[key]}


class Desk:
    """An agent's run, its fleet in this process, and alice, who decides."""

    def __init__(self, world: World, database: Database) -> None:
        self.world = world
        self.database = database
        self._clients: list[Counterfoil] = []
        self.cf = self.client()
        self.run = self.open()
        self._owner = psycopg.connect(database.url("owner"), autocommit=True, row_factory=dict_row)

    def client(self, role: str = "agent") -> Counterfoil:
        made = Counterfoil(self.database.url(role), settings=self.world.settings, registry=self.world.registry)
        self._clients.append(made)
        return made

    def open(self, run: str = "task", *, tenant: str = "acme", seen: Tokens = ()) -> Run:
        return self.cf.run(run, tenant=tenant, actor="bot", seen=seen)

    def staged(self, tool: str, *, step: str | None = None, order: str = "o1", **arguments: object) -> str:
        """Stages and lets the fleet work; the action's id."""
        told = self.run.stage(tool, {"order": order, **arguments}, step=step, wait_s=0)
        assert told.status is Status.PENDING, told
        self.world.settle()
        assert told.action_id is not None
        done = self.cf.result(told.action_id)
        assert done.status is Status.SUCCEEDED
        self.ack(done)
        return told.action_id

    def seen(self, *action_ids: str) -> list[str]:
        """The tokens of these actions' ends."""
        return [str(self.cf.result(action_id).seen) for action_id in action_ids]

    def ack(self, *results: Result) -> None:
        """The agent has written these answers down."""
        self.run.ack([result.seen for result in results if result.seen])

    def decide(
        self, plan: Proposal, verdict: str = "approved", *, digest: str | None = None, reason: str | None = None
    ) -> str:
        """What the ledger answers to alice."""
        with psycopg.connect(self.database.url("operator")) as connection:
            row = connection.execute(
                "SELECT answer FROM counterfoil.decide(%s, %s, %s, 'alice', 'test', %s)",
                (plan.id, verdict, digest or plan.digest, reason),
            ).fetchone()
        assert row is not None
        return str(row[0])

    def edit(self, plan: Proposal, old: str, arguments: dict[str, Any]) -> str:
        """Alice puts other arguments in the place of a step's; the new action's id."""
        row = self.one("SELECT * FROM counterfoil.action WHERE action_id = %s", old)
        step = int(row["step"]) if row["step"].isdigit() else row["step"]
        new = action_id(row["tenant"], row["run"], step, row["revision"] + 1, "do")
        text = canonical_json(arguments)
        spec = self.world.registry.get(row["tool"])
        amount, currency = spec.amount_of(arguments)
        compensation = spec.compensation_of(arguments, new)
        undo = None if compensation is None else canonical_json(compensation)
        with psycopg.connect(self.database.url("operator")) as connection:
            answer = connection.execute(
                "SELECT answer FROM counterfoil.edit_step(%s, %s, %s, 'alice', 'test', 'less', %s, %s, %s, %s, %s, NULL,"
                " %s, %s, %s)",
                (
                    *(old, new, plan.digest, spec.target_of(arguments), text),
                    *(hashlib.sha256(text.encode()).hexdigest(), spec.audience_of(arguments), undo),
                    *(row["once_key"], amount, currency),
                ),
            ).fetchone()
        assert answer == ("edited",)
        return new

    def advance(self, seconds: float) -> None:
        self.world.advance(seconds)

    def rows(self, query: str, *params: object) -> list[dict[str, Any]]:
        return self._owner.execute(query.encode(), params or None).fetchall()

    def one(self, query: str, *params: object) -> dict[str, Any]:
        [row] = self.rows(query, *params)
        return row

    def counted(self) -> tuple[int, int]:
        """(proposals, steps of plans) on record."""
        row = self.one(
            "SELECT (SELECT count(*) FROM counterfoil.proposal) AS p,"
            " (SELECT count(*) FROM counterfoil.action WHERE place IS NOT NULL) AS a"
        )
        return row["p"], row["a"]

    def close(self) -> None:
        self._owner.close()
        for client in self._clients:
            client.close()


@pytest.fixture
def shop() -> Shop:
    return Shop()


@pytest.fixture
def desk(world: World, shop: Shop, database: Database) -> Iterator[Desk]:
    """An agent with a shop's tools, its fleet, and a person."""
    world.registry = Registry()
    for function in shop.tools:
        world.registry.add(function.__counterfoil_tool__)
    world.registry.resolve()
    made = Desk(world, database)
    yield made
    made.close()
