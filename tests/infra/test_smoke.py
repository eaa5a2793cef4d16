"""The fleet over a plain Postgres and a plain Redis: what the other tests of this folder change one thing of."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.infra.brokers import Redis
from tests.infra.fleet import Fleet
from tests.infra.servers import LedgerAt, Place, Postgres

from counterfoil.sandbox.client import Sandbox


@pytest.mark.infra(seconds=12)
def test_plain_servers(place: Place, world: Sandbox, tmp_path: Path) -> None:
    """Nothing stands between the fleet and its servers, and nothing goes wrong."""
    with Postgres(place) as postgres, Redis(place) as broker:
        ledger = LedgerAt.made(postgres)
        with Fleet(tmp_path, ledger.url, ledger.url, broker.url, world) as fleet:
            fleet.send()
            fleet.settle()
