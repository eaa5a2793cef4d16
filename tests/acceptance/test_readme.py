"""README's example as a newcomer pastes it: its files, its commands, a real stack, and the warehouse that counts."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from counterfoil.sandbox.client import Sandbox

README = (Path(__file__).parents[2] / "README.md").read_text(encoding="utf-8")


def blocks(language: str) -> list[str]:
    """README's fenced code in this language, as it is pasted."""
    return re.findall(rf"^```{language}\n(.*?)^```$", README, re.DOTALL | re.MULTILINE)


@pytest.fixture
def folder() -> Iterator[Path]:
    """A newcomer's folder with README's files; whatever was started there is stopped at the end."""
    made = Path(tempfile.mkdtemp(prefix="counterfoil-readme-"))
    made.chmod(0o755)  # as root the servers run as another user, who must get in
    for block in blocks("python"):
        (made / block.splitlines()[0].removeprefix("# ")).write_text(block)
    yield made
    shell("counterfoil down || true", made)
    shutil.rmtree(made)


def shell(script: str, folder: Path) -> str:
    """Runs it in the folder, with this environment's `counterfoil` and `python`; gives what was printed."""
    environ = {name: value for name, value in os.environ.items() if not name.startswith("COUNTERFOIL_")}
    environ |= {
        "COUNTERFOIL_HOME": str(folder / "home"),
        "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
    }
    command = ["bash", "-euo", "pipefail", "-c", script]
    run = subprocess.run(command, cwd=folder, env=environ, capture_output=True, text=True, timeout=120, check=False)
    assert run.returncode == 0, run.stdout + run.stderr
    return run.stdout


def test_the_example_runs_as_pasted(folder: Path) -> None:
    """One shipment for each order, through a 504 that hides a success and a lost transcript; the unwind cancels one."""
    [script] = [block for block in blocks("sh") if "agent.py" in block]
    *commands, down = script.splitlines()
    assert down == "counterfoil down"
    told = shell("\n".join([*commands, "python handler.py", 'echo "$COUNTERFOIL_SANDBOX_URL"']), folder)
    sandbox = Sandbox(told.split()[-1])

    ended = re.findall(r"^succeeded \{'id': '(shp_\w+)'\} (new|replayed)", told, re.MULTILINE)
    assert len(ended) >= 3
    assert ended[-1] == (ended[-2][0], "replayed"), "the transcript was lost, the shipment is the same"
    assert "\nsucceeded\n" in told, "the handler's own"
    assert 504 in [request.status for request in sandbox.warehouse.requests("shipments.create")]
    assert sandbox.count("shipments") == 3
    until = time.monotonic() + 30
    while sandbox.count("shipments_cancelled") == 0:
        assert time.monotonic() < until, shell("counterfoil run show ticket-1183", folder)
    assert sandbox.count("shipments_cancelled") == 1
    assert "stopped" in shell(down, folder)
