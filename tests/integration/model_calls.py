"""Tools and a ledger for tests of what a model calls: an agent on one side, a worker's hands on the other."""

from __future__ import annotations

import threading
import time
import uuid
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from decimal import Decimal
from typing import TYPE_CHECKING, Any

import psycopg
from psycopg.rows import dict_row

from counterfoil import (
    Counterfoil,
    Result,
    Run,
    Status,
    tool,
)
from counterfoil.ledger import claims
from counterfoil.ledger.claims import ClaimedAction, WakeUp
from counterfoil.ledger.connection import Ledger
from counterfoil.ledger.keys import provider_key
from counterfoil.outbox.seen import Tokens
from counterfoil.providers.registry import Registry
from counterfoil.providers.tool import SPEC_ATTRIBUTE

if TYPE_CHECKING:
    from tests.conftest import Database


CONTRACT: dict[str, Any] = {"audience": ["customer"], "native_key_ttl_s": 86400}

Body = dict[str, str]


@tool(cls="pure")
def search_orders(order_id: str) -> dict[str, Any]:
    if order_id == "broken":
        raise LookupError("no such order")
    return {"order_id": order_id, "at": Decimal("1.5")}


@tool(cls="compensatable", effect="refund", target="order_id", once_per=None, undo="undo_refund", **CONTRACT)
def refund(order_id: str, amount_minor: int = 500, reason: str = "", *, key: str) -> Body: ...  # type: ignore[empty-body]


@tool(cls="compensatable", effect="refund", target="order_id", once_per=None, undo=None, **CONTRACT)
def undo_refund(order_id: str, *, key: str, of: str) -> Body: ...  # type: ignore[empty-body]


@tool(cls="compensatable", effect="refund", target="order_id", once_per=None, undo="undo_refund", **CONTRACT)
def refund_by_cheque(order_id: str, *, key: str) -> Body: ...  # type: ignore[empty-body]


@tool(cls="reversible", effect="ticket", target="order_id", once_per="order_id", once_scope="tenant", **CONTRACT)
def create_ticket(order_id: str, summary: str = "", *, key: str) -> Body: ...  # type: ignore[empty-body]


@tool(cls="irreversible", effect="mail", target="order_id", once_per=None, **CONTRACT)
def send_mail(order_id: str, *, key: str) -> Body: ...  # type: ignore[empty-body]


def registry() -> Registry:
    found = Registry()
    for function in (search_orders, refund, undo_refund, refund_by_cheque, create_ticket, send_mail):
        found.add(getattr(function, SPEC_ATTRIBUTE))
    found.resolve()
    return found


class World:
    """A ledger with an agent, and a worker's hands."""

    def __init__(self, database: Database) -> None:
        self.database = database
        self.cf = Counterfoil(database.url("agent"), registry=registry())
        self.ledger = Ledger(database.url("worker"))
        self.owner = psycopg.connect(database.url("owner"), autocommit=True, row_factory=dict_row)

    def run(self, run: str = "ticket-1", *, tenant: str = "acme", seen: Tokens = ()) -> Run:
        return self.cf.run(run, tenant=tenant, actor="bot", seen=seen)

    def one(self, query: str, *params: object) -> dict[str, Any]:
        row = self.owner.execute(query.encode(), params).fetchone()
        assert row is not None
        return row

    def actions(self) -> int:
        count: int = self.one("SELECT count(*) AS n FROM counterfoil.action")["n"]
        return count

    def action(self, action_id: str | None) -> dict[str, Any]:
        return self.one("SELECT * FROM counterfoil.action WHERE action_id = %s", action_id)

    def claim(self, action_id: str | None) -> ClaimedAction:
        row = self.action(action_id)
        claimed = claims.claim_if_ready(
            self.ledger,
            WakeUp(row["action_id"], row["generation"]),
            fence=uuid.uuid4(),
            lease_s=60,
            key=provider_key(b"secret", row["tenant"], row["tool"], row["action_id"]),
            reach="",
            key_version=1,
            attempts_max=5,
            worker="w",
        )
        assert claimed is not None
        return claimed

    def succeed(self, action_id: str | None) -> None:
        claimed = self.claim(action_id)
        assert claims.settle_succeeded(
            self.ledger, claimed, receipt="rcpt_1", result='{"id":"rcpt_1"}', evidence=None, worker="w"
        )

    def fail(self, action_id: str | None, code: str = "invalid_request", field: str | None = "amount_minor") -> None:
        claimed = self.claim(action_id)
        assert claims.settle_failed(
            self.ledger, claimed, outcome="rejected", code=code, error_code=code, field=field, reason="refused",
            evidence=None, worker="w",
        )  # fmt: skip

    def lose(self, action_id: str | None) -> None:
        """The answer is lost: uncertain, to be looked at in an hour."""
        claimed = self.claim(action_id)
        assert claims.settle_uncertain(
            self.ledger, claimed, outcome="uncertain", code="read_timeout", evidence=None, no_resend=False, delay_s=0,
            look_after_s=3600, worker="w",
        )  # fmt: skip

    @contextmanager
    def working(self) -> Iterator[None]:
        """A worker that makes whatever becomes ready succeed."""
        stop = threading.Event()

        def work() -> None:
            with psycopg.connect(self.database.url("owner"), autocommit=True) as seen:
                while not stop.wait(0.02):
                    for (action_id,) in seen.execute("SELECT action_id FROM counterfoil.outbox").fetchall():
                        self.succeed(action_id)

        with ThreadPoolExecutor(1) as threads:
            done = threads.submit(work)
            try:
                yield
            finally:
                stop.set()
                done.result(20)

    def close(self) -> None:
        self.owner.close()
        self.ledger.close()
        self.cf.close()


def done(world: World, run: Run, tool: str = "refund", /, **arguments: Any) -> Result:
    """A call that was performed and whose result the caller has been given."""
    asked = {"order_id": "o1", **arguments}
    action_id = run.call(tool, asked, wait_s=0).action_id
    world.succeed(action_id)
    result = run.call(tool, asked, wait_s=0)
    assert (result.action_id, result.status) == (action_id, Status.SUCCEEDED)
    return result


def until(condition: Callable[[], bool], *, wait_s: float = 20) -> None:
    """Waits for the condition, with a deadline."""
    end = time.monotonic() + wait_s
    pause = threading.Event()
    while not condition():
        assert time.monotonic() < end, "it did not happen"
        pause.wait(0.02)
