"""Switches the protocol's guards off one at a time and expects the suite to go red each time; exits 1 if one stays green.

`python tests/guards/run.py` runs, for each guard, the tests that are marked with its name; `--list` prints the table.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

AT_ONCE = 3
"""Runs of pytest beside each other, over the same services: most of a run is waiting for processes to start."""

HERE = Path(__file__).parent
sys.path[:0] = [str(HERE), str(HERE.parents[1])]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("guards", nargs="*", help="only these (default: all)")
    parser.add_argument("--list", action="store_true", help="print guard and what is switched off, and stop")
    options = parser.parse_args()
    from switched_off import GUARDS

    if options.list:
        for name, patch in GUARDS.items():
            print(f"{name:16} {patch.__doc__}")
        return 0
    names = options.guards or list(GUARDS)
    with shared_services(), ThreadPoolExecutor(AT_ONCE) as threads:
        green = [name for name, red in zip(names, threads.map(_is_red, names), strict=True) if not red]
    print(f"{len(names) - len(green)} of {len(names)} guards are held by a test", flush=True)
    for name in green:
        print(f"NOT HELD: {name} can be switched off and no test fails", file=sys.stderr)
    return 1 if green else 0


@contextmanager
def shared_services() -> Iterator[None]:
    """Every run starts them in one folder, or finds them there; each test has a database of its own anyway."""
    from tests import run_folder

    folder = run_folder.make()
    try:
        yield
    finally:
        run_folder.remove(folder)


def _is_red(name: str) -> bool:
    """Runs the guard's tests without it. Red means that tests ran and failed; a run that broke is repeated once."""
    for _ in range(2):
        run = _without(name)
        failures = [line for line in run.stdout.splitlines() if line.startswith("FAILED")]
        red = run.returncode == 1 and bool(failures) and "ERROR" not in run.stdout.split("short test summary")[-1]
        said = "; ".join(failures) or f"exit {run.returncode}\n{run.stdout[-2000:]}{run.stderr[-2000:]}"
        print(f"{'red' if red else 'green' if run.returncode == 0 else 'BROKEN':6} {name}: {said}", flush=True)
        if red or run.returncode == 0:
            return red
    return False


def _without(name: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "pytest", "-q", "-p", "switched_off", "-p", "no:cacheprovider", "--tb=line"]
    command += [str(HERE.parent / "acceptance" / "test_guards.py"), "-k", f"test_{name}"]
    environ = {**os.environ, "CF_GUARD_OFF": name, "PYTHONPATH": str(HERE)}
    with tempfile.TemporaryDirectory(prefix=f"guard-{name}-") as own:  # pytest's shared folder is pruned by each run
        command += ["--basetemp", f"{own}/tests"]
        return subprocess.run(command, env=environ, capture_output=True, text=True, check=False)


if __name__ == "__main__":
    sys.exit(main())
