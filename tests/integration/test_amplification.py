"""A small fleet through an outage, with the real script in a real server: the bounds of `bench/amplification.py` hold."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

BENCH = Path(__file__).parents[2] / "bench" / "amplification.py"


def test_an_outage_is_not_amplified_also_when_the_store_is_lost_amid_it() -> None:
    """At most 1.10 attempts an action, 1.25 times the arrivals in any second, back within 5 s, one effect each."""
    played = subprocess.run(
        [sys.executable, str(BENCH), "--quick", "--json"], capture_output=True, text=True, check=False, timeout=300
    )
    rows = json.loads(played.stdout)
    assert [row["store_killed"] for row in rows] == [False, True]
    for row in rows:
        assert row["amplification"] <= 1.10
        assert row["worst_second"] <= 1.25
        assert row["goodput_after_s"] <= 5
        assert row["done_once"]
        assert row["attempts_most"] <= 5
    assert played.returncode == 0
