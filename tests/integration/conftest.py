"""Rows of the ledger in any state, and connections under each role, for the tests of the ledger.

`rows.build` writes a row as it would stand in a given state, with triggers off; everything else in the tests goes through
the triggers.
"""

from __future__ import annotations

import hashlib
import uuid
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager
from threading import Barrier
from typing import TYPE_CHECKING, Any, TypeVar

import psycopg
import pytest
from psycopg.rows import dict_row

from counterfoil.ledger import claims, verdicts
from counterfoil.ledger.claims import ClaimedAction, WakeUp, claim_if_ready
from counterfoil.ledger.connection import Ledger
from counterfoil.ledger.keys import action_id, provider_key

if TYPE_CHECKING:
    from tests.conftest import Database

T = TypeVar("T")
Row = dict[str, Any]

BY_STATE: dict[str, Row] = {
    "ready": {"ready_at": "1 second ago"},
    "retryable_failure": {"ready_at": "1 second ago", "attempt_count": 1},
    "executing": {"lease_until": "in 60 seconds", "attempt_count": 1},
    "reconciling": {"lease_until": "in 60 seconds", "attempt_count": 1, "in_doubt": True},
    "uncertain": {
        "uncertain_since": "1 second ago",
        "next_lookup_at": "1 second ago",
        "in_doubt": True,
        "attempt_count": 1,
    },
    "succeeded": {"receipt": "pi_1", "result": '{"id":"pi_1"}', "attempt_count": 1},
    "compensated": {"receipt": "pi_1", "result": '{"id":"pi_1"}', "attempt_count": 1},
}
"""What a row of this state has besides the columns that every row has."""

TIMES = {"1 second ago": "-1 second", "in 60 seconds": "60 seconds"}


class Rows:
    """One test's database: rows in any state, connections and ledgers under each role."""

    def __init__(self, database: Database) -> None:
        self.database = database
        self.opened: list[psycopg.Connection[Row] | Ledger] = []
        self.owner = self.connect("owner")
        self._agent: psycopg.Connection[Row] | None = None
        self._count = 0

    def connect(self, role: str) -> psycopg.Connection[Row]:
        """An autocommit connection under this role, with rows as dictionaries."""
        connection = psycopg.connect(self.database.url(role), autocommit=True, row_factory=dict_row)
        self.opened.append(connection)
        return connection

    def close(self) -> None:
        for opened in self.opened:
            opened.close()

    def ledger(self, role: str = "worker", url: str | None = None) -> Ledger:
        ledger = Ledger(url or self.database.url(role))
        self.opened.append(ledger)
        return ledger

    def identity(self, *, tenant: str = "acme", run: str = "r1", step: str | None = None, revision: int = 1) -> Row:
        """tenant, run, step, revision and the id that follows from them; a new step unless one is given."""
        if step is None:
            self._count += 1
            step = f"s{self._count}"
        made = action_id(tenant, run, int(step) if step.isdigit() else step, revision, "do")
        return {"action_id": made, "tenant": tenant, "run": run, "step": step, "revision": revision}

    def intent(self, **changes: object) -> Row:
        """The arguments of `counterfoil.propose`, without p_; any may be changed."""
        names = ("tenant", "run", "step", "revision")
        identity = self.identity(**{n: changes[n] for n in names if n in changes})  # type: ignore[arg-type]
        arguments = str(changes.get("arguments", '{"order_id":"1182"}'))
        return {
            **identity,
            "seq": None,
            "actor": "bot",
            "tool": "stripe_charge",
            "tool_version": 1,
            "class": "compensatable",
            "effect": "charge",
            "target": "1182",
            "provider": "stripe",
            "account": "default",
            "queue": "cf-stripe",
            "arguments": arguments,
            "arguments_sha256": hashlib.sha256(arguments.encode()).hexdigest(),
            "audience": ["customer"],
            "compensation": '{"arguments":{},"tool":"stripe_refund"}',
            **changes,
        }

    def propose(self, connection: psycopg.Connection[Row] | None = None, **changes: object) -> Row:
        """Records an intent as an agent does; the answer of `counterfoil.propose`."""
        intent = self.intent(**changes)
        named = ", ".join(f"p_{name} => %({name})s" for name in intent)
        if connection is None:
            connection = self._agent = self._agent or self.connect("agent")
        row = connection.execute(f"SELECT * FROM counterfoil.propose({named})".encode(), intent).fetchone()
        assert row is not None
        return row

    def build(self, state: str, **columns: object) -> str:
        """Writes a row that stands in `state`, with its wake-up where it has one; any column may be given."""
        row = {
            **self.intent(**{n: v for n, v in columns.items() if n not in BY_STATE_ONLY}),
            "phase": "do",
            "state": state,
            "generation": 1,
            "fence": None,
            **BY_STATE.get(state, {}),
            **columns,
        }
        if state in ("executing", "reconciling") and row["fence"] is None:
            row["fence"] = uuid.uuid4()
        if row.get("attempt_count") and "key" not in columns:
            row["key"] = provider_key(b"secret", row["tenant"], row["tool"], row["action_id"])
        values = [
            f"counterfoil.now() + interval '{TIMES[v]}'" if isinstance(v, str) and v in TIMES else f"%({n})s"
            for n, v in row.items()
        ]
        with self.owner.transaction():
            self.owner.execute("SET LOCAL session_replication_role = replica")
            self.owner.execute(
                "INSERT INTO counterfoil.run (tenant, run, actor) VALUES (%(tenant)s, %(run)s, 'bot') ON CONFLICT DO NOTHING",
                row,
            )
            self.owner.execute(
                f"INSERT INTO counterfoil.action ({', '.join(row)}) VALUES ({', '.join(values)})".encode(), row
            )
            if row.get("fence"):
                self.owner.execute(
                    "INSERT INTO counterfoil.attempt (attempt_id, action_id, tenant, number, worker)"
                    " VALUES (%(fence)s, %(action_id)s, %(tenant)s, 1, 'w')",
                    row,
                )
            if state in ("ready", "retryable_failure"):
                self.owner.execute(
                    "INSERT INTO counterfoil.outbox (action_id, generation, tenant, queue, not_before)"
                    " VALUES (%(action_id)s, %(generation)s, %(tenant)s, %(queue)s, counterfoil.now())",
                    row,
                )
        return str(row["action_id"])

    def read(self, action_id: str) -> Row:
        return self.one("SELECT * FROM counterfoil.action WHERE action_id = %s", action_id)

    def one(self, query: str, *params: object) -> Row:
        found = self.all(query, *params)
        assert len(found) == 1, f"{len(found)} rows"
        return found[0]

    def all(self, query: str, *params: object) -> list[Row]:
        return self.owner.execute(query.encode(), params or None).fetchall()

    def history(self, action_id: str) -> list[tuple[str | None, str]]:
        found = self.all("SELECT * FROM counterfoil.history WHERE action_id = %s ORDER BY history_id", action_id)
        return [(row["from_state"], row["to_state"]) for row in found]

    def wake_ups(self, action_id: str) -> list[int]:
        """The generations of the action's wake-ups: one or none."""
        found = self.all("SELECT generation FROM counterfoil.outbox WHERE action_id = %s", action_id)
        return [row["generation"] for row in found]

    def claim(self, ledger: Ledger, action_id: str, **changes: Any) -> ClaimedAction | None:
        """Claims the row at its present generation, as a worker does; any parameter may be changed."""
        row = self.read(action_id)
        given: Row = {
            "fence": uuid.uuid4(),
            "lease_s": 60.0,
            "key_version": 1,
            "reach": "here",
            "attempts_max": 5,
            "worker": "w",
            "key": provider_key(b"secret", row["tenant"], row["tool"], action_id),
            **changes,
        }
        return claim_if_ready(ledger, given.pop("wake_up", WakeUp(action_id, row["generation"])), **given)

    def claimed(self, ledger: Ledger, action_id: str, **changes: Any) -> ClaimedAction:
        claimed = self.claim(ledger, action_id, **changes)
        assert claimed is not None
        return claimed

    def settles(self) -> list[str]:
        """The names of every way to end an attempt."""
        return list(SETTLES)

    def verdicts(self) -> list[str]:
        """The names of every verdict."""
        return list(VERDICTS)

    def settle(self, name: str, ledger: Ledger, action: ClaimedAction, **changes: Any) -> bool:
        """Ends the attempt in one of the ways of `SETTLES`."""
        return SETTLES[name](ledger, action, **changes)

    def look(self, ledger: Ledger, tool: str, batch: int = 100, **changes: Any) -> list[verdicts.UncertainAction]:
        """Claims due uncertain rows of one tool for a look-up."""
        return look(ledger, tool, batch, **changes)

    def verdict(self, name: str, ledger: Ledger, action: verdicts.UncertainAction) -> bool:
        """Writes one of the verdicts of `VERDICTS`."""
        return VERDICTS[name](ledger, action)

    def execute(self, action_id: str, assignments: str) -> None:
        """Changes a row with the triggers off."""
        with self.owner.transaction():
            self.owner.execute("SET LOCAL session_replication_role = replica")
            self.owner.execute(
                f"UPDATE counterfoil.action SET {assignments} WHERE action_id = %s".encode(), (action_id,)
            )


BY_STATE_ONLY = {
    *(
        "phase",
        "state",
        "generation",
        "fence",
        "ready_at",
        "lease_until",
        "attempt_count",
        "not_sent_count",
        "in_doubt",
    ),
    *("no_resend", "uncertain_since", "next_lookup_at", "receipt", "result", "key", "key_version", "first_sent_at"),
    *("last_sent_at", "quiet_from", "cancel_requested_at", "once_held", "superseded_by", "deadline_at", "absent_count"),
    *("lookup_count", "parent_action_id", "last_error_code", "approval_id"),
}
"""Columns of a row that are no argument of `counterfoil.propose`."""


def at_once(calls: Sequence[Callable[[], T]]) -> list[T]:
    """Runs all calls in threads that start together; their answers in order. An exception is raised here."""
    barrier = Barrier(len(calls), timeout=20)

    def run(call: Callable[[], T]) -> T:
        barrier.wait()
        return call()

    with ThreadPoolExecutor(len(calls)) as pool:
        return [future.result(timeout=30) for future in [pool.submit(run, call) for call in calls]]


def succeed(ledger: Ledger, action: ClaimedAction, receipt: str = "pi_1") -> bool:
    return claims.settle_succeeded(ledger, action, receipt=receipt, result="{}", evidence=None, worker="w")


def be_unsure(ledger: Ledger, action: ClaimedAction, **changes: Any) -> bool:
    given: dict[str, Any] = {"outcome": "uncertain", "code": "timeout", "no_resend": False, "delay_s": 0.0, **changes}
    return claims.settle_uncertain(ledger, action, evidence=None, look_after_s=0.0, worker="w", **given)


def look(
    ledger: Ledger, tool: str = "stripe_charge", batch: int = 100, **changes: Any
) -> list[verdicts.UncertainAction]:
    given: dict[str, Any] = {"fence": uuid.uuid4(), "lease_s": 60.0, "uncertain_after_s": 0.0, "by": "beat", **changes}
    return verdicts.claim_uncertain(ledger, tool=tool, version=1, account="default", batch=batch, **given)


SETTLES: dict[str, Callable[..., bool]] = {
    "succeeded": succeed,
    "retryable": lambda ledger, a: claims.settle_retryable(
        ledger, a, code="429", field=None, evidence=None, delay_s=1.0, worker="w"
    ),
    "failed": lambda ledger, a: claims.settle_failed(
        ledger, a, outcome="rejected", code="x", error_code="x", field=None, reason="refused", evidence=None, worker="w"
    ),
    "uncertain": be_unsure,
    "not_sent": lambda ledger, a: claims.settle_not_sent(
        ledger, a, code="connect", evidence=None, delay_s=1.0, worker="w"
    ),
    "let_go": lambda ledger, a: claims.let_go(ledger, a, code="shutdown", delay_s=0.0, worker="w"),
    "hold": lambda ledger, a: claims.hold_for_evidence(ledger, a, code="key_too_old", worker="w"),
    "stale": lambda ledger, a: claims.stale_if_changed(
        ledger, a, code="resource_changed", evidence="version 8", worker="w"
    ),
    "refused_stale": lambda ledger, a: claims.settle_stale(ledger, a, code="precondition_failed", worker="w"),
    "person": lambda ledger, a: claims.hand_to_person(ledger, a, code="policy_mismatch", evidence=None, worker="w"),
}

VERDICTS: dict[str, Callable[[Ledger, verdicts.UncertainAction], bool]] = {
    "succeeded": lambda ledger, a: verdicts.succeeded(ledger, a, receipt="pi_2", result="{}", evidence="e", by="b"),
    "failed": lambda ledger, a: verdicts.failed(ledger, a, code="declined", reason="r", evidence="e", by="b"),
    "not_executed": lambda ledger, a: verdicts.not_executed(ledger, a, code="absent", reason="r", evidence="e", by="b"),
    "resend": lambda ledger, a: verdicts.resend(
        ledger, a, ends_doubt=True, delay_s=0.0, reason="r", evidence="e", by="b"
    ),
    "ask_later": lambda ledger, a: verdicts.ask_later(
        ledger, a, after_s=1.0, absent_count=1, last_absent_at=None, reason="r", evidence="e", by="b"
    ),
    "person": lambda ledger, a: verdicts.to_person(ledger, a, code="many", reason="r", evidence="e", by="b"),
    "back_to_review": lambda ledger, a: verdicts.back_to_review(
        ledger, a, answer="unknown", code=None, evidence="e", by="b"
    ),
}


@pytest.fixture
def rows(database: Database) -> Iterator[Rows]:
    """The ledger's rows in this test's database."""
    made = Rows(database)
    yield made
    made.close()


@pytest.fixture(scope="module")
def shared_rows(clone_database: Callable[[], AbstractContextManager[Database]]) -> Iterator[Rows]:
    """The same in one database for all tests of a module: for tests that look at rows of their own only."""
    with clone_database() as database:
        made = Rows(database)
        yield made
        made.close()


@pytest.fixture(name="at_once")
def at_once_fixture() -> Callable[[Sequence[Callable[[], Any]]], list[Any]]:
    """Runs calls in threads that start together."""
    return at_once
