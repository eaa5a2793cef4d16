"""The example's page as a newcomer pastes it: its commands, a real stack, and the sandbox that counts."""

from __future__ import annotations

import json
import re
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.acceptance.reship import FOLDER
from tests.acceptance.test_readme import shell

PAGE = (FOLDER / "README.md").read_text(encoding="utf-8")


@pytest.fixture
def folder() -> Iterator[Path]:
    """A copy of the example; whatever was started there is stopped at the end."""
    made = Path(tempfile.mkdtemp(prefix="counterfoil-reship-"))
    made.chmod(0o755)  # as root the servers run as another user, who must get in
    for file in FOLDER.glob("*.py"):
        shutil.copy(file, made)
    yield made
    shell("counterfoil down || true", made)
    shutil.rmtree(made)


def until(command: str) -> str:
    """Again and again, until it succeeds or the shell's time is over."""
    return f"until {command}; do sleep 0.2; done"


def approve(proposal: str) -> str:
    """Over the digest of what is shown then, and when there is something to show: versions are read a moment later."""
    digest = f"$(counterfoil proposal show {proposal} | sed -n 's/^digest //p')"
    return until(f'counterfoil proposal approve {proposal} --digest "{digest}"')


def sections() -> list[list[str]]:
    """The page's commands, section by section: with digests of now, and the approval that it leaves to the reader."""
    found: list[list[str]] = []
    for section in PAGE.split("\n## "):
        lines: list[str] = []
        for line in "".join(re.findall(r"^```sh\n(.*?)^```$", section, re.DOTALL | re.MULTILINE)).splitlines():
            words = line.split()
            if "correction dismiss" in line:
                lines.append(until(f"(counterfoil correction list --json || true) | grep {words[3]}"))
            lines.append(approve(words[3]) if "proposal approve" in line else line)
            if line == "counterfoil proposal show P-C2AQUTHKVVHY":
                lines.append(approve(words[3]))
        found.append(lines)
    return [lines for lines in found if lines]


def test_the_example_runs_as_pasted(folder: Path) -> None:
    """Three orders: one committed, one rejected and taken back, one committed through a 504 and a kill, then taken back."""
    prepare, *others = sections()
    functions = [line for line in prepare if "() {" in line]
    assert others[-1].pop() == "counterfoil down"
    unwound = until("counterfoil run show reship-1184 | grep '^state *unwound$'")
    others.append([unwound, "sandbox counts"])
    told = shell("\n".join(prepare), folder)
    for lines in others:
        told += shell("\n".join([*functions, *lines]), folder)
    assert told.count("captured, opened, sent") == 2
    assert "P-MQ5IXACNCQML cancelled rejected_by_reviewer\ntaken back: unwound" in told
    assert "http_504" in told
    counts = json.loads(told.splitlines()[-1])
    assert (counts["authorizations"], counts["charges"], counts["refunds"], counts["cancellations"]) == (3, 2, 1, 1)
    assert (counts["tickets_created"], counts["tickets_open"], counts["drafts_open"]) == (3, 1, 0)
    assert counts["customer_messages"] == 2
    assert "stopped" in shell("counterfoil down", folder)
