"""A database that is killed, a worker that freezes, a provider that is away; the oracle is the sandbox's own store."""

from __future__ import annotations

import shutil
import signal
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import psutil
import psycopg
import pytest

from counterfoil.client import Counterfoil
from counterfoil.sandbox.client import Sandbox
from counterfoil.stack.children import Child
from counterfoil.stack.postgres import Postgres
from counterfoil.stack.up import Choices, LocalStack
from counterfoil.stack.valkey import Valkey

pytestmark = pytest.mark.chaos

ACTIONS = 12
LATENCY_S = 1.0
RECOVERY_MAX_S = 60.0
MARK = "Argument-7319"
"""Stands in every action's arguments, and must stand in no log."""


class TwoNodes(LocalStack):
    """The local stack with a second worker node."""

    def _list_children(self) -> list[Child]:
        children = super()._list_children()
        (worker,) = (child for child in children if child.name == "worker")
        argv = [part.replace("worker@", "worker2@") for part in worker.argv]
        return [*children, Child("worker-2", argv, worker.env, worker.log_path.with_name("worker-2.log"))]

    def until(self, condition: Callable[[], object], *, poll: bool = True) -> None:
        """Waits for the condition; restarts what dies meanwhile unless `poll` is off."""
        pause, deadline = threading.Event(), time.monotonic() + RECOVERY_MAX_S
        while not condition():
            assert time.monotonic() < deadline, "the condition did not come true in time"
            if poll:
                self.poll()
            pause.wait(0.05)

    def rows(self, query: str, *params: object) -> Sequence[tuple[Any, ...]]:
        with psycopg.connect(self.database_url("owner")) as connection:
            return connection.execute(query.encode(), params).fetchall()

    def states(self, run: str) -> dict[str, int]:
        """How many of the run's actions are in which state; empty while the database is away."""
        try:
            return dict(self.rows("SELECT state, count(*) FROM counterfoil.action WHERE run = %s GROUP BY 1", run))
        except psycopg.OperationalError:
            return {}

    def calls(self, node: str = "", *, younger_s: float = RECOVERY_MAX_S) -> list[str]:
        """The attempts that are under way on this node, and began so recently."""
        query = """
          SELECT t.attempt_id::text FROM counterfoil.attempt AS t JOIN counterfoil.action AS a ON a.fence = t.attempt_id
          WHERE a.state = 'executing' AND t.finished_at IS NULL AND t.worker LIKE %s || '%%'
            AND t.started_at > counterfoil.now() - %s * interval '1 second'
        """
        return [attempt for (attempt,) in self.rows(query, node, younger_s)]


@pytest.fixture(scope="module")
def stack(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TwoNodes]:
    with TwoNodes(tmp_path_factory.mktemp("outages"), Choices(workers=2)) as started:
        Sandbox(started.sandbox_url).config(latency_s={"stripe": LATENCY_S, "jira": LATENCY_S / 2})
        yield started
    shutil.rmtree(started.home.path)


def enqueue(stack: TwoNodes, run: str) -> None:
    """Charges and tickets, half and half, in one transaction."""
    cf = Counterfoil(stack.database_url("agent"), settings=stack.settings_for("agent"))
    with psycopg.connect(stack.database_url("agent")) as connection:
        for n in range(ACTIONS):
            place = {"tenant": "acme", "run": run, "step": f"step-{n}", "actor": "outages"}
            order = f"{run}-{n}"
            if n % 2:
                ticket = {"project": "SUP", "summary": f"{MARK} {n}", "order_id": order}
                cf.enqueue(connection, "jira_create", ticket, **place)
            else:
                charge = {"customer": f"cus_{n}", "amount_minor": 500, "currency": "usd", "order_id": order}
                cf.enqueue(connection, "stripe_charge", {**charge, "description": MARK}, **place)
    cf.close()


def check(stack: TwoNodes, run: str) -> None:
    """All end in success within a minute, with one effect each; no argument and no password is in any log."""
    stack.until(lambda: stack.states(run) == {"succeeded": ACTIONS})
    done = Counter(effect.key for effect in Sandbox(stack.sandbox_url).effects() if effect.kind in ("charge", "ticket"))
    keys = [key for (key,) in stack.rows("SELECT key FROM counterfoil.action WHERE run = %s", run)]
    assert [done[key] for key in keys] == [1] * ACTIONS
    told = "".join(log.read_text(errors="replace") for log in stack.home.log.glob("*.log"))
    secrets = [file.read_text() for file in (stack.home.path / "secrets").iterdir()]
    assert [part for part in (MARK, *secrets) if part in told] == []


def test_killed_servers_come_back_where_they_were(stack: TwoNodes) -> None:
    """SIGKILL to Postgres and Valkey in the middle of calls: both are launched again, and nothing is done twice."""
    enqueue(stack, "servers")
    stack.until(lambda: len(stack.calls()) >= 2)
    ports = Postgres(stack.home).port, Valkey(stack.home).port
    for server in (Postgres(stack.home), Valkey(stack.home)):
        process = server.process()
        assert process is not None
        process.kill()
        process.wait(timeout=10)
    restarted: list[str] = []
    stack.until(lambda: restarted.extend(stack.poll()) or {"postgres", "valkey-server"} <= set(restarted), poll=False)
    check(stack, "servers")
    assert (Postgres(stack.home).port, Valkey(stack.home).port) == ports


def test_a_node_that_freezes_in_a_call_changes_nothing_when_it_wakes(stack: TwoNodes) -> None:
    """SIGSTOP for longer than the lease: the others finish its work; what it does after SIGCONT is refused."""
    enqueue(stack, "frozen")
    stack.until(lambda: stack.calls("worker2@", younger_s=LATENCY_S / 4))
    pid = stack.children.pid("worker-2")
    assert pid is not None
    main = psutil.Process(pid)
    node = [*main.children(recursive=True), main]
    for process in node:
        process.suspend()
    held = stack.calls("worker2@")
    try:
        stack.until(lambda: not stack.calls("worker2@"))  # their leases are over
        stack.until(lambda: stack.states("frozen") == {"succeeded": ACTIONS})
    finally:
        for process in node:
            process.resume()
    unfinished = "SELECT FROM counterfoil.attempt WHERE attempt_id = ANY(%s::uuid[]) AND finished_at IS NULL"
    stack.until(lambda: not stack.rows(unfinished, held))  # awake, and its outcomes told
    check(stack, "frozen")
    assert held, "no call was frozen"


def test_a_provider_that_is_away_costs_no_attempt(stack: TwoNodes) -> None:
    """While connections are refused nothing was sent: attempts are given back, and all is done when it returns."""
    stack.until(lambda: stack.children.pid("sandbox") is not None)
    stack.children.kill("sandbox", signal.SIGKILL)
    stack.until(lambda: stack.children.pid("sandbox") is None, poll=False)
    enqueue(stack, "away")
    twice = "SELECT FROM counterfoil.action WHERE run = 'away' AND not_sent_count < 2"
    stack.until(lambda: not stack.rows(twice), poll=False)
    attempts = "SELECT max(attempt_count) FROM counterfoil.action WHERE run = 'away' AND state <> 'executing'"
    assert stack.rows(attempts) == [(0,)]
    check(stack, "away")
