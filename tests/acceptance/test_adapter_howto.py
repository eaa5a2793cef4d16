"""docs/adapters.md as a reader follows it: its files as they stand, graded by the command and by the test."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "adapters.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"^```python\n(.*?)^```$", PAGE, re.DOTALL | re.MULTILINE)
NAMED = {re.match(r"# (\w+\.py)", block).group(1): block for block in BLOCKS if block.startswith("# ")}  # type: ignore[union-attr]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """The reader's folder, with the page's files."""
    for name, block in NAMED.items():
        (tmp_path / name).write_text(block, encoding="utf-8")
    [by_hand] = [block for block in BLOCKS if block not in NAMED.values()]
    (tmp_path / "test_by_hand.py").write_text(by_hand, encoding="utf-8")
    return tmp_path


def run(folder: Path, *command: str) -> subprocess.CompletedProcess[str]:
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("PYTEST", "COUNTERFOIL"))}
    return subprocess.run(
        [sys.executable, "-m", *command], cwd=folder, env=environment, capture_output=True, text=True, check=False
    )


def test_an_adapter_is_written_and_graded_in_under_80_lines() -> None:
    """Double, tool and grade together, comments and empty lines included."""
    assert sorted(NAMED) == ["doubles.py", "parcels.py", "test_parcels.py"]
    assert sum(len(block.splitlines()) for block in NAMED.values()) < 80


def test_its_tests_pass(folder: Path) -> None:
    """The grade, and the sandbox as a double of its own, by plain pytest in the reader's folder."""
    done = run(folder, "pytest", "-q", "-p", "no:cacheprovider")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "2 passed" in done.stdout


def test_the_command_says_what_the_page_says(folder: Path) -> None:
    """The grade in the page's words, and the lie in the page's words."""
    honest = run(folder, "counterfoil.cli", "tool", "grade", "test_parcels:PARCEL")
    assert (honest.returncode, honest.stderr) == (0, "")
    said = honest.stdout.splitlines()[0]
    assert f"`{said}`" in PAGE
    tool = folder / "parcels.py"
    tool.write_text(tool.read_text().replace('lookup="find_parcels")', 'lookup="find_parcels", native_key_ttl_s=3600)'))
    lying = run(folder, "counterfoil.cli", "tool", "grade", "test_parcels:PARCEL")
    assert lying.returncode == 1
    assert "create_parcel: grade B, declared A: contradicted" in lying.stdout
    [told] = re.findall(r"`(repeated: [^`]+)`", PAGE)
    assert told in lying.stdout
