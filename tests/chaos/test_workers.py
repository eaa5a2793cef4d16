"""Real Celery workers that are killed, starved and told to stop; the oracle is what the sandbox's Stripe has really done."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psycopg
import pytest
import redis

from counterfoil import Counterfoil
from counterfoil.ledger.connection import Ledger
from counterfoil.outbox.broker import broker_app
from counterfoil.outbox.relay import Relay
from counterfoil.providers.registry import Registry
from counterfoil.sandbox.client import Sandbox
from counterfoil.sandbox.process import running as running_sandbox
from counterfoil.stack.home import home
from counterfoil.stack.valkey import Valkey

if TYPE_CHECKING:
    from tests.conftest import Database

pytestmark = pytest.mark.chaos

TOOLS = "counterfoil.providers.stripe.tools"
PREFIX = "cf-chaos-"
START_S = 120.0
"""A worker needs 2 s to start on an idle machine; ours may be busy."""


def until(condition: Callable[[], object], within_s: float = START_S) -> None:
    """Waits until the condition holds."""
    pause, deadline = threading.Event(), time.monotonic() + within_s
    while not condition():
        assert time.monotonic() < deadline, "the condition did not come true in time"
        pause.wait(0.02)


@dataclass(frozen=True, slots=True)
class Process:
    """A child whose output is in a file."""

    popen: subprocess.Popen[bytes]
    log: Path

    def says(self, text: str) -> bool:
        return text in self.log.read_text()

    def end(self, number: int = signal.SIGKILL) -> int:
        """The exit code after this signal. A prefork child dies with its parent."""
        self.popen.send_signal(number)
        return self.popen.wait(timeout=START_S)


def celery(folder: Path, name: str, *arguments: str, app: str = "counterfoil.workers", **environ: str) -> Process:
    """`celery -A counterfoil.workers …` in a folder with its counterfoil.toml."""
    log = folder / f"{name}.log"
    clean = {key: value for key, value in os.environ.items() if not key.startswith("COUNTERFOIL_")}
    with log.open("wb") as output:
        popen = subprocess.Popen(
            [sys.executable, "-m", "celery", "-A", app, *arguments],
            cwd=folder,
            env={**clean, **environ},
            stdout=output,
            stderr=subprocess.STDOUT,
            stdin=subprocess.DEVNULL,
        )
    return Process(popen, log)


def toml(values: Mapping[str, Mapping[str, object] | object]) -> str:
    """The TOML of two levels; JSON's scalars and lists are TOML's."""
    flat = [f"{key} = {json.dumps(value)}" for key, value in values.items() if not isinstance(value, Mapping)]
    tables = [
        "\n".join([f"[{key}]", *(f"{name} = {json.dumps(entry)}" for name, entry in value.items())])
        for key, value in values.items()
        if isinstance(value, Mapping)
    ]
    return "\n".join([*flat, *tables]) + "\n"


@dataclass(slots=True)
class Site:
    """One installation: a database, a worker, a relay; Stripe is the sandbox."""

    folder: Path
    database: Database
    broker_url: str
    sandbox: Sandbox
    processes: list[Process] = field(default_factory=list)

    def configure(self, **sections: Mapping[str, object]) -> None:
        (self.folder / "secret").write_bytes(b"k" * 32)
        stripe = {"base_url": self.sandbox.stripe.url, "api_key": "sk_test_1", "timeout_s": 1.0}
        self._write(
            {
                "profile": "fast",
                "tools": [TOOLS],
                "database": {"url": self.database.url("worker"), "key_secret_file": "secret"},
                "broker": {"url": self.broker_url, "key_prefix": PREFIX},
                "workers": {"lease_s": 3.6, "pause_allowance_s": 0.2, "guard_s": 0.2},
                "reconciler": {"sweep_every_s": 0.5, "uncertain_after_s": 0.2, "lookup_lease_s": 3.6},
                "providers.stripe": {**stripe, "landing_max_s": 0.3, "lookup_lag_s": 1.0},
            }
            | sections
        )

    def _write(self, values: Mapping[str, Mapping[str, object] | object]) -> None:
        (self.folder / "counterfoil.toml").write_text(toml(values))

    def worker(self, *arguments: str, app: str = "counterfoil.workers", **environ: str) -> Process:
        """A worker that is ready, named `w@test`."""
        quiet = ("--without-gossip", "--without-mingle", "--without-heartbeat", "-O", "fair")
        command = ("worker", "-n", "w@test", "-l", "INFO", *quiet, *arguments)
        process = celery(self.folder, f"worker{len(self.processes)}", *command, app=app, **environ)
        self.processes.append(process)
        until(lambda: process.says("w@test ready") or process.popen.poll() is not None)
        assert process.popen.poll() is None, process.log.read_text()
        return process

    @contextmanager
    def relay(self, *, chunk_max: int = 10) -> Iterator[None]:
        """A relay in a thread."""
        relay = Relay(
            Ledger(self.database.url("worker")),
            broker_app(url=self.broker_url, key_prefix=PREFIX, queues=[], socket_timeout_s=2),
            lost_after_s=2.0,
            chunk_max=chunk_max,
            poll_s=0.1,
        )
        stop = threading.Event()
        thread = threading.Thread(target=relay.run, args=(stop,))
        thread.start()
        try:
            yield
        finally:
            stop.set()
            thread.join()
            relay.close()

    def charge(self, *orders: str) -> None:
        """One charge of 5.00 an order, enqueued in one transaction."""
        url = self.database.url("agent")
        cf, place = Counterfoil(url, registry=Registry.load([TOOLS])), {"tenant": "acme", "run": "run", "actor": "bot"}
        with psycopg.connect(url) as connection:
            for order in orders:
                arguments = {"customer": "cus_1", "amount_minor": 500, "currency": "usd", "order_id": order}
                cf.enqueue(connection, "stripe_charge", arguments, step=f"charge-{order}", **place)

    def cancel(self, order: str) -> None:
        """An operator's cancel of the order's charge."""
        cancel = "SELECT counterfoil.request_cancel(action_id, 'op', 'wrong order') FROM counterfoil.action WHERE target = %s"
        with psycopg.connect(self.database.url("operator")) as connection:
            connection.execute(cancel, (order,))

    def rows(self, query: str) -> Sequence[tuple[Any, ...]]:
        with psycopg.connect(self.database.url("owner")) as connection:
            return connection.execute(query.encode()).fetchall()

    def states(self) -> list[str]:
        return [state for (state,) in self.rows("SELECT state FROM counterfoil.action ORDER BY step")]

    def passed(self) -> list[str]:
        """Every state that the run's actions went through, in order."""
        return [state for (state,) in self.rows("SELECT to_state FROM counterfoil.history ORDER BY history_id")]

    def charged(self) -> list[str]:
        """The orders that were charged, once for each time."""
        order_of = dict(self.rows("SELECT key, target FROM counterfoil.action"))
        return sorted(order_of[effect.key] for effect in self.sandbox.effects("charge"))


@pytest.fixture(scope="module")
def valkey_server() -> Iterator[Valkey]:
    """A Valkey of this file's own, which tests may flush and restart."""
    folder = Path(tempfile.mkdtemp(prefix="counterfoil-chaos-"))
    folder.chmod(0o755)
    made = home(folder, environ={"COUNTERFOIL_HOME": str(folder / "home")})
    server = Valkey(made)
    server.launch()
    server.wait()
    yield server
    server.stop()
    shutil.rmtree(folder)


@pytest.fixture(scope="module")
def broker_url(valkey_server: Valkey) -> str:
    return f"redis://:{valkey_server.home.secret('valkey')}@127.0.0.1:{valkey_server.port}/0"


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Sandbox]:
    with running_sandbox(tmp_path_factory.mktemp("sandbox")) as sandbox:
        yield sandbox


@pytest.fixture(scope="module")
def beat(broker_url: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Process]:
    """`celery -A counterfoil.workers beat`: it knows the broker alone, so one serves every test's installation."""
    folder = tmp_path_factory.mktemp("beat")
    (folder / "counterfoil.toml").write_text(
        toml({"profile": "fast", "broker": {"url": broker_url, "key_prefix": PREFIX}})
    )
    process = celery(folder, "beat", "beat", "-l", "INFO")
    yield process
    assert process.end(signal.SIGTERM) == 0, process.log.read_text()
    assert sorted(path.name for path in folder.iterdir()) == ["beat.log", "counterfoil.toml"], "beat leaves no file"


@pytest.fixture
def site(database: Database, broker_url: str, world: Sandbox, tmp_path: Path) -> Iterator[Site]:
    world.reset()
    with redis.Redis.from_url(broker_url) as client:
        client.flushall()
    made = Site(tmp_path, database, broker_url, world)
    made.configure()
    yield made
    for process in made.processes:
        if process.popen.poll() is None:
            process.end()


@pytest.mark.case("B3")
@pytest.mark.parametrize(
    ("point", "passed"),
    [
        ("before_claim", ["ready", "executing", "succeeded"]),
        ("after_claim", ["ready", "executing", "uncertain", "reconciling"]),
        ("before_settle", ["ready", "executing", "uncertain", "reconciling"]),
        ("after_settle", ["ready", "executing", "succeeded"]),
    ],
)
def test_killed_worker(site: Site, beat: Process, point: str, passed: list[str]) -> None:
    """A worker process killed at any of four points leaves one effect: redelivered, or uncertain and reconciled, or done."""
    mark = site.folder / "died"
    worker = site.worker("-c", "1", COUNTERFOIL_CRASH_AT=point, COUNTERFOIL_CRASH_MARK=str(mark))
    site.charge("1182")
    with site.relay():
        until(lambda: site.states() == ["succeeded"])
    assert mark.exists(), "nobody was killed"
    until(lambda: worker.says("signal 9"))
    assert site.passed()[: len(passed)] == passed
    assert site.charged() == ["1182"]
    assert site.rows("SELECT count(*) FROM counterfoil.outbox") == [(0,)]


@pytest.mark.case("B1")
def test_backoff_longer_than_the_visibility_timeout(site: Site) -> None:
    """A backoff of four visibility timeouts, four processes: there is one second attempt, and one effect."""
    (site.folder / "short_sighted.py").write_text(
        "from counterfoil.workers import app\n"
        "app.conf.broker_transport_options['visibility_timeout'] = 1\n"
        "app.conf.broker_transport_options['unacked_restore_interval'] = 0.5\n"
    )
    site.sandbox.stripe.fault("429_retry_after", on="payment_intents.create", headers={"Retry-After": "4"})
    site.worker("-c", "4", app="short_sighted")
    site.charge("1182")
    with site.relay():
        until(lambda: site.states() == ["succeeded"])
    assert site.charged() == ["1182"]
    assert len(site.sandbox.requests("stripe", "payment_intents.create")) == 2
    [(waited_s,)] = site.rows(
        "SELECT extract(epoch FROM max(started_at) - min(started_at))::float8 FROM counterfoil.attempt"
    )
    assert 4 <= waited_s < 7


@pytest.mark.case("B5")
def test_cancelled_while_no_worker_is_up(site: Site) -> None:
    """Published, then cancelled by an operator, then a worker comes up: it takes the message and sends nothing."""
    site.charge("cancelled", "wanted")
    with site.relay(), redis.Redis.from_url(site.broker_url) as client:
        until(lambda: client.llen(f"{PREFIX}cf-stripe"))
        site.cancel("cancelled")
        site.worker("-c", "1")
        until(lambda: site.states() == ["cancelled", "succeeded"])
        until(lambda: not client.llen(f"{PREFIX}cf-stripe"))
    assert site.charged() == ["wanted"]
    assert len(site.sandbox.requests("stripe")) == 1


@pytest.mark.case("B5")
def test_cancelled_while_a_worker_is_sending(site: Site) -> None:
    """The wish is recorded while the request is on the wire, and the outcome is recorded all the same."""
    site.sandbox.config(latency_s={"stripe": 0.7})
    site.worker("-c", "1")
    site.charge("1182")
    with site.relay():
        until(lambda: site.states() == ["executing"])
        site.cancel("1182")
        until(lambda: site.states() == ["succeeded"])
    assert site.passed() == ["ready", "executing", "executing", "succeeded"]
    assert site.charged() == ["1182"]


def test_worker_killed_in_the_refund_of_an_unwind(site: Site, beat: Process) -> None:
    """Beat takes the run back by itself; the worker is killed with the refund in its hands: one refund, one run unwound."""
    mark = site.folder / "died"
    site.worker("-c", "1", COUNTERFOIL_CRASH_AT="before_settle:stripe_refund", COUNTERFOIL_CRASH_MARK=str(mark))
    site.charge("1182")
    with site.relay():
        until(lambda: site.states() == ["succeeded"])
        with psycopg.connect(site.database.url("operator")) as connection:
            connection.execute("SELECT counterfoil.request_unwind('acme', 'run', 'customer withdrew')")
        until(lambda: site.rows("SELECT state FROM counterfoil.run") == [("unwound",)])
    assert mark.exists(), "nobody was killed"
    counts = site.sandbox.counts()
    assert (counts["charges"], counts["refunds"]) == (1, 1)


def test_broker_that_forgets_everything(site: Site) -> None:
    """FLUSHALL in the middle of twenty actions: each is done once, without anybody's help."""
    orders = [f"{number:02}" for number in range(20)]
    site.sandbox.config(latency_s={"stripe": 0.1})
    site.worker("-c", "2")
    site.charge(*orders)
    with site.relay(), redis.Redis.from_url(site.broker_url) as client:
        until(lambda: len(site.charged()) >= 3)
        assert client.llen(f"{PREFIX}cf-stripe"), "nothing was left to lose"
        client.flushall()
        until(lambda: site.states() == ["succeeded"] * 20)
    assert site.charged() == orders


def test_broker_that_is_away_while_every_slot_is_busy(site: Site, valkey_server: Valkey) -> None:
    """A broker that goes away under a busy worker and is back after the action's end: the worker goes on consuming."""
    site.sandbox.config(latency_s={"stripe": 0.7})
    site.worker("-c", "1")
    site.charge("before")
    with site.relay():
        until(lambda: site.states() == ["executing"])
        valkey_server.stop()
        until(lambda: site.states() == ["succeeded"])
        valkey_server.launch()
        valkey_server.wait()
        site.charge("after")
        until(lambda: site.states() == ["succeeded", "succeeded"])
    assert site.charged() == ["after", "before"]


def test_sigterm_between_two_actions_of_a_message(site: Site) -> None:
    """SIGTERM lets the action under way finish, gives the rest of the message back at once, and the worker exits with 0."""
    orders = [f"{number:02}" for number in range(9)]
    site.sandbox.config(latency_s={"stripe": 0.5})
    worker = site.worker("-c", "1")
    site.charge(*orders)
    with site.relay(chunk_max=3):
        until(site.charged)
    assert worker.end(signal.SIGTERM) == 0, worker.log.read_text()
    states, charged = site.states(), site.charged()
    assert set(states) == {"ready", "succeeded"}
    assert states.count("succeeded") == len(charged) < 3, "it stops within the message"
    assert len(site.sandbox.requests("stripe")) == len(charged)
    given_back = site.rows("SELECT count(*) FROM counterfoil.outbox WHERE not_before <= counterfoil.now()")
    assert given_back[0][0] >= 3 - len(charged)
    heartbeats = site.rows("SELECT worker, queues, last_claim_at IS NOT NULL FROM counterfoil.worker_heartbeat")
    assert heartbeats == [("w@test", ["cf-reconcile", "cf-stripe"], True)]


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"broker": {}}, "broker.url is not configured. Set it in counterfoil.toml or as COUNTERFOIL_BROKER__URL"),
        ({"database": {}}, "database.url is not configured."),
    ],
)
def test_configuration_that_is_wrong(site: Site, changes: Mapping[str, object], told: str) -> None:
    """A worker whose configuration is wrong says so in one line, with the fix, and exits with 2."""
    site.configure(**changes)  # type: ignore[arg-type]
    process = celery(site.folder, "wrong", "worker")
    assert process.popen.wait(timeout=START_S) == 2
    assert not process.says("Traceback")
    *before, line = process.log.read_text().splitlines()  # Celery warns a superuser
    assert not any(earlier.startswith("counterfoil") for earlier in before)
    assert line.startswith(f"counterfoil: config: {told}")
