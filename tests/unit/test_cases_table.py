"""The table of the handed cases: it tells what is held, and a case that no test holds fails the run."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]


def test_case_without_a_test_fails_the_run() -> None:
    """Two cases are held by one file; the run passes its tests, lists them, names the missing cases and exits with 1."""
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "tests.cases", "-m", "case"]
    run = subprocess.run(
        [*command, "tests/unit/test_keys.py"], cwd=ROOT, check=False, capture_output=True, text=True, timeout=60
    )
    assert run.returncode == 1, run.stdout + run.stderr
    lines = run.stdout.splitlines()
    [row] = [line.split() for line in lines if line.startswith("D2 ")]
    assert (row[2], row[-1].partition("::")[0]) == ("passed", "unit/test_keys.py")
    [missing] = [line for line in lines if line.startswith("NOT HELD by any test: ")]
    assert "A9, A11, B1, B3," in missing
    assert "D2" not in missing
    assert "failed" not in run.stdout
