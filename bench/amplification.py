"""Measures what a provider's outage becomes: how much a fleet of workers sends during and after it, with whose limits.

The fleet is simulated, its limits are real: see docs/benchmarks.md.
"""

from __future__ import annotations

import argparse
import json
import logging
import math
import shutil
import sys
import tempfile
from bisect import bisect_left
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import structlog
from amplification_fleet import HORIZON_S, Fault, Fleet, Played
from amplification_peers import AwsStandard, Budget, Finagle, Nothing
from amplification_picture import draw

from counterfoil.settings import AdmissionStore
from counterfoil.settings_providers import ProviderSettings
from counterfoil.stack.home import home
from counterfoil.stack.server import HOST
from counterfoil.stack.valkey import SECRET, Valkey
from counterfoil.workers.admission import FleetAdmission, Store, StoreAway
from counterfoil.workers.kinds import Ask
from counterfoil.workers.limiter import Limiter, Limits, Recalled
from counterfoil.workers.setup import limits_of

AMPLIFICATION_MAX = 1.10
WORST_SECOND_MAX = 1.25
GOODPUT_WITHIN_S = 5.0
"""What ours must keep; exit code 1 if it does not."""

START_MS = 1_796_000_000_000.0
WARM_UP_S = 40.0
KILLED_AFTER, AWAY = 0.4, 0.2
"""When the store is killed, and for how long it is away, as parts of the outage."""

EXAMPLES = """\
examples:
  python bench/amplification.py                        everything: 16, 64 and 256 workers; about an hour
  python bench/amplification.py --quick                one small fleet, both fates of the store; seconds
  python bench/amplification.py --workers 64 --faults 5xx --headroom 10 --svg docs/amplification.svg
  python bench/amplification.py --workers 16 --json | jq '.[] | select(.who == "counterfoil")'
"""

PEERS: dict[str, Callable[[], Budget]] = {"finagle 20 %": Finagle, "aws standard": AwsStandard, "none": Nothing}


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One run's figures."""

    who: str
    workers: int
    fault: Fault
    headroom: float
    """The configured rate, as a multiple of the arrivals'."""
    store_killed: bool
    amplification: float
    """Attempts of the actions that arrived during the outage, per action."""
    worst_second: float
    """The most attempts in any second since the outage began, per arrival of a second."""
    goodput_after_s: float
    """From the outage's end until as much succeeds as arrives, and goes on doing so."""
    backlog_done_after_s: float
    attempts_most: int
    """Of any one action."""
    done_once: bool
    """Every action had its effect, once."""

    @property
    def broken(self) -> list[str]:
        """The bounds that this run has not kept."""
        return [
            name
            for name, kept in (
                ("amplification", self.amplification <= AMPLIFICATION_MAX),
                ("worst second", self.worst_second <= WORST_SECOND_MAX),
                ("goodput", self.goodput_after_s <= GOODPUT_WITHIN_S),
                ("effects", self.done_once),
            )
            if not kept
        ]


class Server:
    """A Valkey of this run's own, which can be killed."""

    def __init__(self, folder: Path) -> None:
        self._valkey = Valkey(home(folder, environ={"COUNTERFOIL_HOME": str(folder / "home")}))
        self.start()

    @property
    def url(self) -> str:
        return f"redis://:{self._valkey.home.secret(SECRET)}@{HOST}:{self._valkey.port}/0"

    def start(self) -> None:
        """Starts it where it was before, empty."""
        shutil.rmtree(self._valkey.data, ignore_errors=True)
        self._valkey.launch()
        self._valkey.wait()

    def kill(self) -> None:
        """SIGKILL."""
        process = self._valkey.process()
        assert process is not None
        process.kill()
        process.wait(timeout=10)

    def stop(self) -> None:
        self._valkey.stop()


class Model:
    """The script's model in this process, in place of the server."""

    url = ""

    def __init__(self) -> None:
        self.start()

    def start(self) -> None:
        self.limiters: dict[str, Limiter] | None = {}

    def kill(self) -> None:
        self.limiters = None

    def ask(self, now: float, op: str, key: str, limits: Limits, asked: dict[str, Any]) -> Any:
        """As the script would answer."""
        if self.limiters is None:
            raise StoreAway
        limiter = self.limiters.setdefault(key, Limiter.fresh(now, limits))
        match op:
            case "admit":
                asks, recalled = [Ask(*ask) for ask in asked["asks"]], Recalled(*asked["recalled"])
                said = limiter.admit(now, limits, **{**asked, "asks": asks, "recalled": recalled})
                return {
                    "said": [(s.reason or False, s.wait_ms) for s in said],
                    "processes": len(limiter.workers),
                    "born": limiter.born,
                    "usual_per_s": limiter.usual_per_s(now),
                }
            case "report":
                results = [(Ask(kind, tenant), result) for kind, tenant, result in asked["results"]]
                return {"go_on": limiter.report(now, limits, **{**asked, "results": results})}
            case "look_up":
                granted, wait_ms = limiter.look_up(now, limits, asked["wanted"])
                return {"granted": granted, "wait_ms": wait_ms}
            case _:
                return limiter.seen(now, limits)


@dataclass(slots=True, kw_only=True)
class ModelStore(Store):
    """A process's way to it."""

    model: Model

    def ask(self, op: str, provider: str, limits: Limits, asked: dict[str, Any]) -> Any:
        if self.monotonic() < self._away_until:
            raise StoreAway
        try:
            assert self.now_ms is not None
            return self.model.ask(self.now_ms(), op, self.key_prefix + provider, limits, asked)
        except StoreAway:
            self._gone("model")
            raise


@contextmanager
def server() -> Iterator[Server]:
    """A server in a folder of its own, which is removed."""
    folder = Path(tempfile.mkdtemp(prefix="counterfoil-bench-"))
    folder.chmod(0o755)  # as root the server runs as another user
    try:
        made = Server(folder)
        try:
            yield made
        finally:
            made.stop()
    finally:
        shutil.rmtree(folder, ignore_errors=True)


@dataclass(frozen=True, slots=True, kw_only=True)
class Scenario:
    """What is played: the same arrivals for everybody."""

    workers: int
    rate: float
    outage_s: float
    fault: Fault
    headroom: float
    store_killed: bool
    seed: int
    recovery_s: float

    def fleet(self, **more: object) -> Fleet:
        return Fleet(
            rate=self.rate,
            began=WARM_UP_S,
            ended=WARM_UP_S + self.outage_s,
            fault=self.fault,
            seed=self.seed,
            settings=ProviderSettings(rate_per_s=self.rate * self.headroom),
            workers=self.workers,
            recovery_s=self.recovery_s,
            **more,  # type: ignore[arg-type]
        )


def play_ours(scenario: Scenario, store: Server | Model, progress: Callable[[float, int], None]) -> Played:
    """The fleet under Counterfoil's limits."""
    killed_at = WARM_UP_S + KILLED_AFTER * scenario.outage_s
    fates = [(killed_at, store.kill), (killed_at + AWAY * scenario.outage_s, store.start)]
    fleet = scenario.fleet(progress=progress, at=fates if scenario.store_killed else ())
    limits = limits_of(fleet.settings)
    prefix = f"bench-{scenario.seed}-{scenario.workers}-{scenario.fault}-{scenario.headroom}-{scenario.store_killed}-"

    def admission(worker: str) -> FleetAdmission:
        way: dict[str, Any] = {
            "url": store.url,
            "key_prefix": prefix,
            "timeout_s": 5.0,  # a busy machine is no outage
            "retry_after_s": AdmissionStore().retry_after_s,
            "monotonic": lambda: fleet.now,
            "now_ms": lambda: START_MS + fleet.now * 1000,
        }
        return FleetAdmission(
            limits=lambda _: limits,
            worker=worker,
            monotonic=lambda: fleet.now,
            store=ModelStore(**way, model=store) if isinstance(store, Model) else Store(**way),
        )

    fleet.admissions = [admission(f"w{n}") for n in range(scenario.workers)]
    fleet.relay = admission("relay")
    return fleet.play()


def play_peer(scenario: Scenario, budget: Callable[[], Budget], progress: Callable[[float, int], None]) -> Played:
    """The fleet where each process has a budget of its own."""
    return scenario.fleet(budgets=[budget() for _ in range(scenario.workers)], progress=progress).play()


def measure(who: str, scenario: Scenario, played: Played) -> Row:
    """The figures of a run."""
    hit = [a for a in played.actions if played.began <= a.arrived_at < played.ended]
    done = sorted(a.succeeded_at for a in played.actions if math.isfinite(a.succeeded_at))
    arrived = [a.arrived_at for a in played.actions]
    return Row(
        who=who,
        workers=scenario.workers,
        fault=scenario.fault,
        headroom=scenario.headroom,
        store_killed=scenario.store_killed,
        amplification=sum(a.attempts + a.not_sent for a in hit) / len(hit),
        worst_second=most_in_a_second([t for t in sorted(played.attempts) if t >= played.began]) / played.rate,
        goodput_after_s=_goodput_after_s(played, done),
        backlog_done_after_s=_backlog_done_after_s(played, arrived, done),
        attempts_most=max(a.attempts for a in played.actions),
        done_once=all(a.effects == 1 for a in played.actions),
    )


def most_in_a_second(times: Sequence[float]) -> int:
    """The most of these sorted times within any one second, wherever it begins."""
    most = first = 0
    for place, time in enumerate(times):
        while times[first] <= time - 1.0:
            first += 1
        most = max(most, place - first + 1)
    return most


def _goodput_after_s(played: Played, done: Sequence[float]) -> float:
    """The next second, and the ten from then on, have as many successes as arrivals."""
    for tenth in range(int((played.actions[-1].arrived_at - played.ended - 10) * 10)):
        start = played.ended + tenth / 10
        if all(bisect_left(done, start + s) - bisect_left(done, start) >= played.rate * s for s in (1, 10)):
            return tenth / 10
    return math.inf


def _backlog_done_after_s(played: Played, arrived: Sequence[float], done: Sequence[float]) -> float:
    """No more is under way than arrives in a second."""
    for second in range(int(played.actions[-1].arrived_at - played.ended)):
        at = played.ended + second
        if bisect_left(arrived, at) - bisect_left(done, at) <= played.rate:
            return float(second)
    return math.inf


def scenarios(args: argparse.Namespace) -> Iterator[Scenario]:
    """All combinations that are asked for."""
    for workers in args.workers:
        for fault in args.faults:
            for headroom in args.headroom:
                for killed in (False, True):
                    yield Scenario(
                        workers=workers,
                        rate=args.rate,
                        outage_s=args.outage,
                        fault=fault,
                        headroom=headroom,
                        store_killed=killed,
                        seed=args.seed,
                        recovery_s=args.recovery,
                    )


def run(args: argparse.Namespace) -> list[Row]:
    """Plays everything, tells each row as it comes, and draws the picture."""
    rows: list[Row] = []
    drawn: dict[str, Played] = {}
    todo = list(scenarios(args))
    with nullcontext(Model()) if args.model else server() as store:
        for n, scenario in enumerate(todo):
            players: dict[str, Callable[[Callable[[float, int], None]], Played]] = {
                "counterfoil": lambda progress, s=scenario: play_ours(s, store, progress)  # type: ignore[misc]
            }
            if not scenario.store_killed and not args.ours_only:  # the others keep nothing in it
                for name, budget in PEERS.items():
                    players[name] = lambda progress, s=scenario, b=budget: play_peer(s, b, progress)  # type: ignore[misc]
            for who, player in players.items():
                played = player(_teller(f"{n + 1}/{len(todo)} {who}, {scenario.workers} workers, {scenario.fault}"))
                rows.append(measure(who, scenario, played))
                if not args.json:
                    _print(rows[-1], head=len(rows) == 1)
                if scenario == todo[0] or (scenario.store_killed and scenario == todo[1]):
                    drawn[who + (", Redis killed" if scenario.store_killed else "")] = played
    if args.svg is not None:
        args.svg.write_text(draw(drawn), encoding="utf-8")
    return rows


COLUMNS = (
    ("who", "<13"),
    ("workers", ">7"),
    ("fault", "<8"),
    ("rate", ">5"),
    ("redis", "<7"),
    ("attempts/arrivals", ">17"),
    ("worst second", ">12"),
    ("full goodput", ">12"),
    ("backlog done", ">12"),
    ("bounds", "<8"),
)


def _print(row: Row, *, head: bool) -> None:
    if head:
        print("  ".join(f"{name:{width}}" for name, width in COLUMNS))
    cells = (
        row.who,
        row.workers,
        row.fault,
        f"x{row.headroom:g}",
        "killed" if row.store_killed else "-" if row.who != "counterfoil" else "there",
        f"{row.amplification:.3f}",
        f"{row.worst_second:.2f}",
        f"{row.goodput_after_s:.1f} s",
        f"{row.backlog_done_after_s:.0f} s" if math.isfinite(row.backlog_done_after_s) else "-",
        "kept" if not row.broken else "broken: " + ", ".join(row.broken) if row.who == "counterfoil" else "",
    )
    print("  ".join(f"{cell:{width}}" for cell, (_, width) in zip(cells, COLUMNS, strict=True)), flush=True)


def _teller(name: str) -> Callable[[float, int], None]:
    """Progress, for whoever watches."""

    def tell(now: float, backlog: int) -> None:
        if sys.stderr.isatty() and int(now) % 10 == 0:
            print(f"\r\033[K{name}: second {now:.0f}, {backlog} waiting", end="", file=sys.stderr, flush=True)

    return tell


def main() -> int:
    """0: ours has kept its bounds in every run."""
    parser = argparse.ArgumentParser(
        description=__doc__, epilog=EXAMPLES, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    numbers = lambda text: [float(part) for part in text.split(",")]  # noqa: E731
    parser.add_argument("--workers", type=lambda t: [int(p) for p in t.split(",")], default=[16, 64, 256])
    parser.add_argument("--rate", type=float, default=100.0, help="arrivals per second (default 100)")
    parser.add_argument("--outage", type=float, default=60.0, help="its length in seconds (default 60)")
    parser.add_argument("--faults", type=lambda t: t.split(","), default=["timeout", "5xx", "refused"])
    parser.add_argument(
        "--headroom", type=numbers, default=[10.0, 1.15], help="rate_per_s as multiples of --rate (default 10,1.15)"
    )
    parser.add_argument(
        "--recovery",
        type=float,
        default=HORIZON_S,
        help="seconds of arrivals after the outage, if the backlog takes longer",
    )
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--ours-only", action="store_true", help="without the others")
    parser.add_argument("--quick", action="store_true", help="16 workers, 20 arrivals per second, a 30 s outage")
    parser.add_argument(
        "--model", action="store_true", help="the script's model in this process: no server, for a first look"
    )
    parser.add_argument("--json", action="store_true", help="the rows as JSON")
    parser.add_argument("--svg", type=Path, help="draws the first scenario into this file")
    args = parser.parse_args()
    if args.quick:
        args.workers, args.rate, args.outage, args.headroom = [16], 20.0, 30.0, [10.0]
        args.faults, args.ours_only, args.recovery = ["5xx"], True, 30.0
    rows = run(args)
    if args.json:
        print(json.dumps([{**asdict(row), "broken": row.broken} for row in rows], indent=1))
    return int(any(row.broken for row in rows if row.who == "counterfoil"))


if __name__ == "__main__":
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.CRITICAL))
    sys.exit(main())
