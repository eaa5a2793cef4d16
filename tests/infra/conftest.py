"""Servers of the test's own between the fleet and its ledger and broker. Run by `--infra`: it takes half an hour.

`--infra-sample` runs about a minute of it, another minute at each commit.
"""

from __future__ import annotations

import os
import random
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from tests.conftest import Database
from tests.infra.servers import Place, new_place

from counterfoil.sandbox.client import Sandbox

if TYPE_CHECKING:
    from tests.infra.fleet import Url  # reads how many actions there are, which a sample changes first

SAMPLE_S = 60.0
SAMPLE_ACTIONS = 60


def pytest_addoption(parser: pytest.Parser) -> None:
    """Read where tests/infra is named on the command line."""
    parser.addoption("--infra", action="store_true", help="run the tests of tests/infra, which kill servers")
    parser.addoption("--infra-sample", action="store_true", help="run about a minute of them, chosen by the commit")


def pytest_configure(config: pytest.Config) -> None:
    """A sample has fewer actions. Before the modules are read, which say so."""
    if config.getoption("--infra-sample"):
        os.environ.setdefault("CF_INFRA_ACTIONS", str(SAMPLE_ACTIONS))


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Without one of the options none of them runs, whatever else is chosen."""
    if config.getoption("--infra", default=False):
        return
    ours = [item for item in items if item.get_closest_marker("infra") is not None]
    chosen = sample(ours) if config.getoption("--infra-sample", default=False) else []
    left = [item for item in ours if item not in chosen]
    config.hook.pytest_deselected(items=left)
    items[:] = [item for item in items if item not in left]


def sample(items: list[pytest.Item]) -> list[pytest.Item]:
    """What fits into a minute by the seconds that each test's marker names, in the commit's own order."""
    git = ("git", "rev-parse", "HEAD")
    told = subprocess.run(git, cwd=Path(__file__).parent, capture_output=True, text=True, check=False)
    order = random.Random(told.stdout.strip()).sample(items, len(items))
    chosen: list[pytest.Item] = []
    left_s = SAMPLE_S
    for item in order:
        marker = item.get_closest_marker("infra")
        assert marker is not None
        if marker.kwargs["seconds"] <= left_s:
            chosen.append(item)
            left_s -= marker.kwargs["seconds"]
    return chosen


@pytest.fixture
def place() -> Iterator[Place]:
    """A folder for the test's own servers."""
    with new_place() as made:
        yield made


@pytest.fixture
def world(sandbox: Sandbox) -> Sandbox:
    """The outside world, in which the first charges are throttled: where the fleet counts that, it must be able to."""
    sandbox.fault("429_bare", provider="stripe", operation="payment_intents.create", times=3)
    return sandbox


@pytest.fixture
def ledger(database: Database) -> Url:
    """On the Postgres of all tests, straight: for tests of what is between the fleet and its broker."""
    return database.url
