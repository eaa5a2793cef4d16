"""Two hundred actions through a fleet that is killed, flushed and lied to; the oracle is the sandbox's own store.

Three relays and two beats work at once: nothing is decided twice."""

from __future__ import annotations

import re
import shutil
import signal
import time
from collections import Counter
from collections.abc import Iterator
from itertools import groupby
from operator import itemgetter
from pathlib import Path

import psycopg
import pytest
import redis
from psycopg.rows import dict_row

from counterfoil.client import Counterfoil
from counterfoil.sandbox.client import Sandbox
from counterfoil.stack.children import Child
from counterfoil.stack.up import Choices, LocalStack

ACTIONS = 200
NODES = 4
RELAYS = 3
BEATS = 2
KILLS_MIN = 20
KILL_EVERY_S = 2.0
LATENCY_S = 1.0
SOAK_MAX_S = 300.0

LEFT_ONCE = ("ready", "executing", "retryable_failure")
LOOK_UP = re.compile(r"^look-up (\d+) as of")

HISTORY = """
SELECT action_id, from_state, to_state, generation, evidence FROM counterfoil.history
ORDER BY action_id, history_id
"""

IN_A_CALL = """
SELECT t.worker, t.attempt_id FROM counterfoil.action AS a
JOIN counterfoil.attempt AS t ON t.action_id = a.action_id AND t.attempt_id = a.fence
WHERE a.state = 'executing' AND t.finished_at IS NULL
  AND t.started_at BETWEEN counterfoil.now() - interval '0.8 s' AND counterfoil.now() - interval '0.2 s'
ORDER BY t.started_at DESC
"""


class Fleet(LocalStack):
    """The local stack with more relays, beats and worker nodes; a node is one process, so that there is about a minute of
    work, and the kills find some."""

    def _list_children(self) -> list[Child]:
        children = super()._list_children()
        more = {"relay": RELAYS, "worker": NODES, "beat": BEATS}
        return [
            *children,
            *(_another(child, n) for child in children for n in range(2, more.get(child.name, 1) + 1)),
        ]


def _another(child: Child, n: int) -> Child:
    """The same process once more, under a name of its own."""
    argv = [part.replace(f"{child.name}@", f"{child.name}{n}@") for part in child.argv]
    name = f"{child.name}-{n}"
    return Child(name, argv, child.env, child.log_path.with_name(f"{name}.log"))


@pytest.fixture
def fleet(tmp_path: Path) -> Iterator[Fleet]:
    """A fleet of its own, removed afterwards."""
    with Fleet(tmp_path, Choices(workers=1)) as started:
        yield started
    shutil.rmtree(started.home.path)


@pytest.mark.chaos
def test_two_hundred_actions_survive_kills_flushes_and_lies(fleet: Fleet) -> None:
    """200 actions, 20 and more kills inside a call, two flushes, a third of the calls lied about: 200 effects, no twins; of
    three relays and two beats no two have decided the same."""
    sandbox = Sandbox(fleet.sandbox_url)
    sandbox.config(latency_s={"stripe": LATENCY_S, "jira": LATENCY_S})
    for operation in ("payment_intents.create", "issue.create"):
        sandbox.fault("504_after_commit", operation=operation, probability=1 / 3, seed=7)
    _enqueue(fleet)
    kills = _soak(fleet)
    assert kills >= KILLS_MIN, "the work ended before enough kills landed inside a call"
    with psycopg.connect(fleet.database_url("reader")) as connection:
        states = dict(connection.execute("SELECT state, count(*) FROM counterfoil.actions GROUP BY 1").fetchall())
    assert states == {"succeeded": ACTIONS}
    assert sandbox.counts()["charges"] == sandbox.counts()["tickets_created"] == ACTIONS // 2
    for kind in ("charge", "ticket"):
        keys = Counter(effect.key for effect in sandbox.effects(kind))
        assert len(keys) == ACTIONS // 2
        assert set(keys.values()) == {1}
    _check_history(fleet)


def _check_history(fleet: Fleet) -> None:
    """Each action went one way: every move begins where the one before it ended, no state that is left once a generation was
    left twice, and every look-up that was begun has ended once, with one verdict."""
    with psycopg.connect(fleet.database_url("owner"), row_factory=dict_row) as connection:
        moves = connection.execute(HISTORY).fetchall()
        rows = connection.execute("SELECT action_id, lookup_count FROM counterfoil.action").fetchall()
    begun = {row["action_id"]: row["lookup_count"] for row in rows}
    ways = {action_id: list(way) for action_id, way in groupby(moves, key=itemgetter("action_id"))}
    assert len(ways) == ACTIONS
    judged = 0
    for action_id, way in ways.items():
        assert [move["from_state"] for move in way] == [None, *(move["to_state"] for move in way[:-1])], way
        left = Counter((m["from_state"], m["generation"]) for m in way if m["from_state"] in LEFT_ONCE)
        assert set(left.values()) == {1}, way
        verdicts = [move["evidence"] or "" for move in way if move["from_state"] == "reconciling"]
        looked = sum(move["to_state"] == "reconciling" for move in way)
        assert looked == len(verdicts) == begun[action_id], way
        numbers = [found[0] for found in map(LOOK_UP.findall, verdicts) if found]
        assert len(numbers) == len(set(numbers)), way
        judged += len(numbers)
    assert judged, "nothing was looked up"


def _enqueue(fleet: Fleet) -> None:
    """Every action in one transaction of the application's."""
    cf = Counterfoil(fleet.database_url("agent"), settings=fleet.settings_for("agent"))
    with psycopg.connect(fleet.database_url("agent")) as connection:
        for n in range(ACTIONS):
            place = {"tenant": "acme", "run": f"run-{n % 20}", "step": f"step-{n}", "actor": "soak"}
            if n % 2:
                ticket = {"project": "SUP", "summary": f"Order {n}", "order_id": str(n)}
                cf.enqueue(connection, "jira_create", ticket, **place)
            else:
                charge = {"customer": f"cus_{n % 20}", "amount_minor": 500, "currency": "usd", "order_id": str(n)}
                cf.enqueue(connection, "stripe_charge", charge, **place)
    cf.close()


def _soak(fleet: Fleet) -> int:
    """Kills a node in the middle of a call every two seconds, flushes the broker twice, until all is settled."""
    broker = redis.Redis.from_url(fleet.broker_url)
    kills, flushes = 0, 0
    next_kill_at = time.monotonic() + KILL_EVERY_S
    until = time.monotonic() + SOAK_MAX_S
    with psycopg.connect(fleet.database_url("worker"), autocommit=True, row_factory=dict_row) as connection:
        while time.monotonic() < until:
            fleet.poll()
            if kills < KILLS_MIN and time.monotonic() >= next_kill_at and _kill_in_a_call(fleet, connection):
                kills += 1
                next_kill_at = time.monotonic() + KILL_EVERY_S
            if flushes < 2 and kills >= KILLS_MIN * (flushes + 1) // 3:
                broker.flushall()
                flushes += 1
            left = connection.execute(
                "SELECT count(*) AS n FROM counterfoil.action WHERE state <> 'succeeded'"
            ).fetchone()
            if left is not None and left["n"] == 0:
                break
            _pause(connection)
    broker.close()
    assert flushes == 2
    return kills


def _kill_in_a_call(fleet: Fleet, connection: psycopg.Connection) -> bool:
    """SIGKILLs a node whose call is under way; whether its attempt was really left unfinished."""
    for row in connection.execute(IN_A_CALL).fetchall():
        name = (
            "worker"
            if row["worker"].startswith("worker@")
            else row["worker"].split("@")[0].replace("worker", "worker-")
        )
        if fleet.children.pid(name) is not None:
            fleet.children.kill(name, signal.SIGKILL)
            attempt = connection.execute(
                "SELECT finished_at FROM counterfoil.attempt WHERE attempt_id = %s", (row["attempt_id"],)
            ).fetchone()
            return attempt is not None and attempt["finished_at"] is None
    return False


def _pause(connection: psycopg.Connection) -> None:
    """Lets the fleet work for a moment, in the database, so that the test itself spends no CPU."""
    connection.execute("SELECT pg_sleep(0.05)")
