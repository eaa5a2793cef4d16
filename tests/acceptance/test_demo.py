"""The demo as a user runs it, and that its counts can be wrong: they are read from the outside world, not written down."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

RETRY_504 = """
from counterfoil.providers import transport
from counterfoil.providers.jira import outcomes
from counterfoil.providers.outcomes import Rejected

def classify_status(status, *, retry_after_s=None):
    if status == 504:
        return Rejected("gateway_timeout", retryable=True)
    return transport.classify_status(status, retry_after_s=retry_after_s)

outcomes.classify_status = classify_status
"""

NO_SWEEPS = """
from counterfoil.reconciler.ticks import Reconciler

Reconciler.sweep_leases = Reconciler.sweep_uncertain = lambda self: 0
"""

GOOD = {
    "tickets_created": 1,
    "tickets_open": 0,
    "charges": 1,
    "refunds": 1,
    "customer_messages": 0,
    "workers_killed": 1,
}


def run_demo(*options: str, path: Path | None = None) -> tuple[int, dict]:
    environ = {**os.environ, "PYTHONPATH": str(path or "")}
    command = [sys.executable, "-m", "counterfoil.cli", "demo", "--json", *options]
    run = subprocess.run(command, env=environ, capture_output=True, text=True, timeout=180, check=False)
    assert run.stdout, run.stderr[-3000:]
    return run.returncode, json.loads(run.stdout)


@pytest.mark.chaos
def test_the_demo_counts_one_of_each() -> None:
    """`counterfoil demo --json` prints one JSON object with the right counts, within a minute, and exits 0."""
    code, told = run_demo()
    assert told["counterfoil"] == GOOD
    assert set(told) == {"counterfoil", "seconds"}
    assert told["seconds"] < 60
    assert code == 0


@pytest.mark.chaos
@pytest.mark.parametrize(
    ("what", "wrong"),
    [(RETRY_504, {"tickets_created": 2, "tickets_open": 1}), (NO_SWEEPS, {"tickets_open": 1, "charges": 0})],
    ids=["a 504 is retried", "nobody sweeps"],
)
def test_the_demo_shows_what_a_broken_fleet_does(tmp_path: Path, what: str, wrong: dict[str, int]) -> None:
    """With a 504 taken for retryable, or the sweeps switched off, the counts are wrong and the exit code is 1."""
    tmp_path.chmod(0o755)
    (tmp_path / "broken_fleet.py").write_text(
        what + "\nfrom counterfoil.demo.tools import search_orders  # a module of tools has some\n"
    )
    code, told = run_demo("--tools", "broken_fleet", path=tmp_path)
    assert {name: told["counterfoil"][name] for name in wrong} == wrong
    assert code == 1
