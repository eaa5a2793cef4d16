"""Measures what it takes to find out about a backlog of uncertain rows: provider calls, seconds, rows per second.

The ledger, the reconciler and its clients are real; the providers are the sandbox. See docs/benchmarks.md.
"""

from __future__ import annotations

import argparse
import logging
import shutil
import sys
import tempfile
import time
from collections import Counter
from datetime import UTC, datetime, timedelta
from pathlib import Path

import psycopg
import structlog
from backlog import API_KEY, PROVIDERS, Backlog, fill_ledger, fill_sandbox

from counterfoil.providers.registry import Registry
from counterfoil.reconciler.setup import reconciler_from
from counterfoil.sandbox.client import Sandbox
from counterfoil.sandbox.process import start
from counterfoil.settings import Settings
from counterfoil.stack.databases import prepare_database
from counterfoil.stack.home import home
from counterfoil.stack.services import Services
from counterfoil.workers.admission import Unlimited

CALLS_PER_1000_MAX = 11.0
"""What ours must keep where all that was sent has happened; exit code 1 if it does not."""

TOOLS = ("counterfoil.providers.stripe.tools", "counterfoil.providers.jira.tools")
EXAMPLES = """\
examples:
  python bench/reconcile.py                                 2,000 rows, half Stripe, half Jira; seconds
  python bench/reconcile.py --rows 100000                   minutes
  python bench/reconcile.py --rows 10000 --providers stripe --landed 0.5
"""


def main() -> int:
    """One run; 1 when it took more calls than it may."""
    parser = argparse.ArgumentParser(
        description=__doc__, epilog=EXAMPLES, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rows", type=int, default=2000, help="uncertain rows in all (default 2000)")
    parser.add_argument("--providers", type=lambda text: text.split(","), default=list(PROVIDERS))
    parser.add_argument("--landed", type=float, default=1.0, help="the share that has really happened (default 1)")
    parser.add_argument("--sent-per-s", type=float, default=10.0, help="of each provider, when it was (default 10)")
    parser.add_argument("--seconds", type=float, default=300.0, help="ends a run that takes longer (default 300)")
    args = parser.parse_args()
    folder = Path(tempfile.mkdtemp(prefix="counterfoil-bench-"))
    folder.chmod(0o755)  # as root the servers run as another user
    place = home(folder, environ={"COUNTERFOIL_HOME": str(folder / "home")})
    try:
        urls = prepare_database(place, Services.start(place))
        ended_at = datetime.now(UTC) - timedelta(minutes=15)
        each = args.rows // len(args.providers)
        backlogs = [
            Backlog(provider=name, rows=each, landed=args.landed, ended_at=ended_at, rate_per_s=args.sent_per_s)
            for name in args.providers
        ]
        for backlog in backlogs:
            fill_ledger(urls["owner"], backlog)
        fill_sandbox(folder / "sandbox", *backlogs)
        sandbox = start(folder / "sandbox")
        try:
            return measure(urls, sandbox.control, settings_for(urls["worker"], sandbox.control, folder), args)
        finally:
            sandbox.stop()
    finally:
        Services.stop(place)
        shutil.rmtree(folder)


def settings_for(worker_url: str, sandbox: Sandbox, folder: Path) -> Settings:
    """A worker's, with the limits of production; only the providers are at hand."""
    secret = folder / "key"
    secret.write_bytes(b"0123456789abcdef0123456789abcdef")
    return Settings(
        tools=TOOLS,
        database={"url": worker_url, "key_secret_file": secret},
        providers={
            "stripe": {"base_url": sandbox.stripe.url, "api_key": API_KEY},
            "jira": {"server": sandbox.jira.url, "email": "bot@example.test", "token": "t"},
        },
    )


def measure(urls: dict[str, str], sandbox: Sandbox, settings: Settings, args: argparse.Namespace) -> int:
    """Sweeps, as beat's ticks would, until nothing is due."""
    registry, started = Registry.load(TOOLS), time.monotonic()
    reconciler = reconciler_from(settings, by="bench", registry=registry, admission=Unlimited())
    rows = sweeps = 0
    while time.monotonic() - started < args.seconds:
        looked = reconciler.sweep_uncertain()
        rows, sweeps = rows + looked, sweeps + 1
        if not looked:
            break
    took_s = time.monotonic() - started
    reconciler.ledger.close()
    calls = Counter(f"{request.provider} {request.operation}" for request in sandbox.requests())
    with psycopg.connect(urls["owner"]) as connection:
        states = connection.execute("SELECT state, count(*) FROM counterfoil.action GROUP BY state ORDER BY state")
        print(f"states after it      {', '.join(f'{state} {count}' for state, count in states)}")
    per_1000 = 1000 * calls.total() / max(rows, 1)
    print(f"rows looked up       {rows} of {args.rows}, of which {args.landed:.0%} have happened")
    print(
        f"provider calls       {calls.total()}: {', '.join(f'{name} {count}' for name, count in sorted(calls.items()))}"
    )
    print(f"calls per 1,000 rows {per_1000:.1f}")
    print(f"seconds              {took_s:.1f} in {sweeps} sweeps")
    print(f"rows per second      {rows / took_s:.0f}")
    return int(args.landed == 1.0 and args.rows >= 1000 and per_1000 > CALLS_PER_1000_MAX)


if __name__ == "__main__":
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.CRITICAL))
    sys.exit(main())
