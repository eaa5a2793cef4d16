"""Relay, workers and beat as the processes that they are in production, and actions for them; nothing restarts them.

The oracle is the sandbox's own count of effects. A process that ends by itself fails the test, whatever became of the work.
"""

from __future__ import annotations

import os
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from subprocess import DEVNULL, STDOUT, Popen
from typing import Any, TypeVar

import psutil
import psycopg
from tests.infra.servers import READY_S, until

from counterfoil import Counterfoil, LedgerUnavailable, Status
from counterfoil.sandbox.client import Sandbox
from counterfoil.settings import Settings
from counterfoil.settings_sources import merge
from counterfoil.stack.project import to_toml

ROOT = Path(__file__).parents[2]
ACTIONS = int(os.environ.get("CF_INFRA_ACTIONS", "200"))
SETTLED_S = 180.0
"""Two hundred actions take ten seconds; after an outage a redelivery and a lease come on top, and machines are busy."""
CALLED_S = 60.0
"""No test takes a server away for longer."""
LATENCY_S = 0.1
"""Of the provider, so that there is work for some seconds, and what a test does lands in its middle."""
RUNS = 20
TOOLS = ("counterfoil.providers.stripe.tools", "tests.infra.shop")
KINDS = ("charge", "shipment")
PREFIX = "cf-infra-"

T = TypeVar("T")

DULL = ("] Task counterfoil.", "Sending due task", '"event": "settled"')
"""In lines about work that goes on as it should."""

Url = Callable[[str], str]
"""The libpq URL of a role."""


@dataclass(frozen=True, slots=True)
class Process:
    """One of the fleet's, with its output in a file."""

    name: str
    popen: Popen[bytes]
    log: Path

    def says(self, text: str) -> bool:
        return text in self.log.read_text(errors="replace")

    def last_words(self, lines: int = 8) -> str:
        """The end of its log, without what says that all is well."""
        told = self.log.read_text(errors="replace").splitlines()
        return "\n".join([line for line in told if not any(dull in line for dull in DULL)][-lines:])

    def end(self) -> None:
        """SIGKILL to it and its children."""
        with suppress(psutil.NoSuchProcess):
            main = psutil.Process(self.popen.pid)
            for process in [main, *main.children(recursive=True)]:
                with suppress(psutil.NoSuchProcess):
                    process.kill()
        self.popen.wait(timeout=READY_S)


@dataclass(slots=True)
class Fleet:
    """One installation under the fast profile. `database` is what its processes and agents are given, `ledger` the way
    by which the test reads what is true."""

    folder: Path
    database: Url
    ledger: Url
    broker_url: str
    sandbox: Sandbox
    workers: int = 2
    settings: Mapping[str, Mapping[str, object]] = field(default_factory=dict)
    processes: list[Process] = field(default_factory=list)
    cf: Counterfoil = field(init=False)
    """One agent's process: its connections are from before what happens to the servers."""
    _sent: int = 0
    _batches: int = 0

    def __enter__(self) -> Fleet:
        try:
            self.configure()
            self.cf = self.agent()
            self.sandbox.config(latency_s={"stripe": LATENCY_S, "warehouse": LATENCY_S})
            self.start()
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        for process in self.processes:
            process.end()
        if hasattr(self, "cf"):
            self.cf.close()

    def configure(self) -> None:
        """`counterfoil.toml`, as a worker's host has it."""
        (self.folder / "secret").write_bytes(b"k" * 32)
        stripe = {"base_url": self.sandbox.stripe.url, "api_key": "sk_test_1"}
        values = {
            "profile": "fast",
            "tools": TOOLS,
            "database": {"url": self.database("worker"), "key_secret_file": "secret"},
            "broker": {"url": self.broker_url, "key_prefix": PREFIX},
            "providers": {"stripe": stripe},
        }
        (self.folder / "counterfoil.toml").write_text(to_toml(merge(values, self.settings)))

    def start(self) -> None:
        """All of its processes; returns when the workers take messages."""
        celery = ("-m", "celery", "-A", "counterfoil.workers")
        names = [f"w{n}" for n in range(1, self.workers + 1)]
        self.begin("relay", "-m", "counterfoil.cli", "relay")
        self.begin("beat", *celery, "beat", "-l", "INFO")
        for name in names:
            self.begin(name, *celery, "worker", "-n", f"{name}@infra", "-c", "2", "-l", "INFO")
        ready = [(process, f"{process.name}@infra ready") for process in self.processes if process.name in names]
        self._until(lambda: all(process.says(text) for process, text in ready), READY_S, "the workers' start")

    def begin(self, name: str, *arguments: str) -> Process:
        """One process in the installation's folder."""
        log = self.folder / f"{name}.log"
        with log.open("wb") as output:
            popen = Popen(
                [sys.executable, *arguments],
                cwd=self.folder,
                env=self.environ(),
                stdin=DEVNULL,
                stdout=output,
                stderr=STDOUT,
            )
        process = Process(name, popen, log)
        self.processes.append(process)
        return process

    def environ(self) -> dict[str, str]:
        clean = {key: value for key, value in os.environ.items() if not key.startswith("COUNTERFOIL_")}
        return {**clean, "PYTHONPATH": str(ROOT), "COUNTERFOIL_SANDBOX_URL": self.sandbox.base_url}

    def agent(self) -> Counterfoil:
        """An agent's side, with nothing connected yet."""
        url = {"COUNTERFOIL_DATABASE__URL": self.database("agent")}
        settings = Settings.load(self.folder / "counterfoil.toml", environ=url)
        return Counterfoil(self.database("agent"), settings=settings)

    def send(self, count: int = ACTIONS) -> None:
        """So many actions of two tools: charges in transactions of the application's, shipments by runs' calls.

        What an outage cuts off is repeated under the same step until it is told, as an agent would.
        """
        self._batches += 1
        batch = f"batch-{self._batches}"
        self.again(partial(self._enqueue, batch, range(0, count, 2)))
        for n in range(1, count, 2):
            self.again(partial(self._call, f"{batch}-{n}"))
        self._sent += count

    def recorded(self, count: int) -> None:
        """So many actions more were recorded by other ways, and settle as well."""
        self._sent += count

    def again(self, call: Callable[[], T]) -> T:
        """The call's answer; one that an outage gave up is made again, for as long as an outage here may last."""
        answers: list[T] = []
        errors: list[Exception] = []

        def answered() -> bool:
            try:
                answers.append(call())
            except (LedgerUnavailable, psycopg.OperationalError) as error:
                errors.append(error)
            return bool(answers)

        try:
            self._until(answered, CALLED_S, "a call's answer")
        except AssertionError as error:
            raise AssertionError(f"{error}\nthe last of {len(errors)} errors: {errors[-1:]!r}") from None
        return answers[0]

    def _call(self, order: str) -> None:
        """In a run of its own: a run takes the next call when the one before has ended."""
        run = self.cf.run(order, tenant="acme", actor="infra")
        told = run.call("create_shipment", {"order_id": order, "sku": "std"}, step="ship", wait_s=0)
        assert told.status in (Status.PENDING, Status.UNCERTAIN, Status.SUCCEEDED), told

    def _enqueue(self, batch: str, numbers: Sequence[int]) -> None:
        # The application's own connection, which a pooler in transaction mode may be behind.
        with psycopg.connect(self.database("agent"), connect_timeout=5, prepare_threshold=None) as connection:
            for n in numbers:
                order = f"{batch}-{n}"
                charge = {"customer": f"cus_{n % RUNS}", "amount_minor": 500, "currency": "usd", "order_id": order}
                run, step = f"{batch}-{n % RUNS}", f"step-{n}"
                self.cf.enqueue(connection, "stripe_charge", charge, tenant="acme", run=run, step=step, actor="infra")

    @contextmanager
    def upset(self, *, first: int = ACTIONS // 2) -> Iterator[None]:
        """What the block does happens in the middle of the work; in the end all is settled."""
        self.send(first)
        self.wait_for_effects(first // 10)
        yield
        self.send(ACTIONS - first)
        self.settle()

    def settle(self, within_s: float = SETTLED_S) -> None:
        """Waits until all that was sent has succeeded; then each has its one effect, and every process still runs."""
        self._until(lambda: self.states() == {"succeeded": self._sent}, within_s, "the end of all actions")
        self.check()

    def check(self) -> None:
        """One effect an action and none besides; no process has ended by itself."""
        keys = [key for (key,) in self.rows("SELECT key FROM counterfoil.action")]
        done = Counter(effect.key for effect in self.sandbox.effects() if effect.kind in KINDS)
        assert done == Counter(keys), f"{len(keys)} actions, {done.total()} effects"
        assert self.ended() == [], self.told()

    def outlast(self, seconds: float) -> None:
        """An outage of this length, in which no process may end."""
        over = time.monotonic() + seconds
        self._until(lambda: time.monotonic() > over, seconds + READY_S, "the outage's end")
        assert self.ended() == [], self.told()

    def relay_says(self, text: str) -> None:
        """Waits for the relay's word."""
        self._until(lambda: self.processes[0].says(text), READY_S, f"the relay's {text}")

    def counts_together(self) -> None:
        """The counters' client has reached the Redis that the broker's client uses, in every process and at once."""
        alone = ("admission_is_per_process", "admission_store_away")
        told = [f"{process.name}: {word}" for process in self.processes for word in alone if process.says(word)]
        assert not told, self.told()

    def effects(self) -> int:
        """How many there are by now."""
        return sum(effect.kind in KINDS for effect in self.sandbox.effects())

    def wait_for_effects(self, count: int) -> None:
        """Until there are so many: work is under way."""
        self._until(lambda: self.effects() >= count, READY_S, f"effect {count}")

    def states(self) -> dict[str, int]:
        """How many actions are in which state; empty while the database is away."""
        try:
            return dict(self.rows("SELECT state, count(*) FROM counterfoil.action GROUP BY 1"))
        except psycopg.OperationalError:
            return {}

    def rows(self, query: str, *params: object) -> Sequence[tuple[Any, ...]]:
        with psycopg.connect(self.ledger("owner"), connect_timeout=5) as connection:
            return connection.execute(query.encode(), params).fetchall()

    def ended(self) -> list[str]:
        """The processes that are no more."""
        return [f"{p.name} (rc {p.popen.returncode})" for p in self.processes if p.popen.poll() is not None]

    def told(self) -> str:
        """What has ended, the states, and every process's last lines."""
        logs = (f"--- {process.name}\n{process.last_words()}" for process in self.processes)
        return "\n".join([f"ended: {self.ended()}", f"states: {self.states()}", *logs])

    def _until(self, condition: Callable[[], object], within_s: float, what: str) -> None:
        """Waits for the condition, and gives up at once when a process has ended."""
        try:
            until(lambda: condition() or self.ended(), within_s, what=what)
        except AssertionError as error:
            raise AssertionError(f"{error}\n{self.told()}") from None
        assert condition() or not self.ended(), f"{what} did not come: a process ended by itself\n{self.told()}"
