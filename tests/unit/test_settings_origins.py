"""Where each value of a configuration comes from, as it is told afterwards."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from counterfoil.settings import Settings
from counterfoil.settings_origins import Key, flat, lines_in, origins

FILE = '''# a comment
profile = "fast"
tools = ["a.tools",
         "b.tools"]

[workers]
lease_s = 7

[providers.stripe]
base_url = "http://127.0.0.1:1"
note = """
lease_s = 1
[relay]
"""
retry_budget = { tokens_max = 5, ratio_max = 0.2 }
accounts."eu.west".tenants = ["acme"]

[[odd]]
[providers . "jira"]  # spaces and quotes are TOML's
server = 'http://127.0.0.1:1'
'''


@pytest.mark.parametrize(
    ("key", "line"),
    [
        (("profile",), 2),
        (("tools",), 3),
        (("workers",), 6),
        (("workers", "lease_s"), 7),
        (("providers", "stripe", "retry_budget"), 15),
        (("providers", "stripe", "accounts", "eu.west", "tenants"), 16),
        (("odd",), 18),
        (("providers", "jira", "server"), 20),
    ],
)
def test_lines(key: Key, line: int) -> None:
    """Each key has the line where a person finds it, and what only looks like one has none."""
    found = lines_in(FILE)
    assert found[key] == line
    assert ("providers", "stripe", "lease_s") not in found
    assert ("relay",) not in found


def made(tmp_path: Path, text: str, environ: dict[str, str], over: dict[str, Any] | None = None) -> dict[str, str]:
    """The origin of each key, by its dotted name."""
    file = tmp_path / "counterfoil.toml"
    file.write_text(text)
    settings = Settings.load(file, environ, over=over)
    known = origins(profile=settings.profile, file=file, over=over, environ=environ)
    return {
        ".".join(key): str(known.of(key)).replace(str(file), "FILE")
        for key, value in flat(settings.model_dump(mode="json", by_alias=True))
        if value is not None
    }


TEXT = """profile = "fast"
[workers]
lease_s = 7
[providers.stripe]
base_url = "http://127.0.0.1:1"
retry_budget = { tokens_max = 5 }
"""


def test_who_wins_is_who_is_told(tmp_path: Path) -> None:
    """Default, profile, file and variable, each where its value is the one in force."""
    found = made(tmp_path, TEXT, {"COUNTERFOIL_WORKERS__GUARD_S": "0.5", "counterfoil_relay__poll_s": "0.2"})
    assert found["profile"] == "FILE:1"
    assert found["workers.lease_s"] == "FILE:3"
    assert found["workers.guard_s"] == "COUNTERFOIL_WORKERS__GUARD_S"
    assert found["relay.poll_s"] == "COUNTERFOIL_RELAY__POLL_S"
    assert found["workers.pause_allowance_s"] == "profile fast"
    assert found["workers.soft_limit_s"] == "default"
    assert found["providers.stripe.base_url"] == "FILE:5"
    assert found["providers.stripe.retry_budget.tokens_max"] == "FILE:6"
    assert found["providers.stripe.retry_budget.ratio_max"] == "default"
    assert found["providers.stripe.breaker.open_s"] == "profile fast"
    assert found["providers.stripe.attempts_max"] == "default"


def test_a_variable_may_hold_a_table(tmp_path: Path) -> None:
    """The variable that holds it is told for each key in it."""
    found = made(tmp_path, "", {"COUNTERFOIL_WORKERS": '{"lease_s": 100}'})
    assert found["workers.lease_s"] == "COUNTERFOIL_WORKERS"


def test_what_stands_over_the_file(tmp_path: Path) -> None:
    """Tables that the local stack puts in place of the file's are the stack's, and nothing in them is the file's."""
    over = {"profile": "fast", "providers": {"stripe": {"base_url": "http://127.0.0.1:2"}}}
    found = made(tmp_path, TEXT, {}, over)
    assert found["providers.stripe.base_url"] == "local stack"
    assert found["providers.stripe.retry_budget.tokens_max"] == "default"
    assert found["workers.lease_s"] == "FILE:3"


def test_without_a_file() -> None:
    """All of it is defaults."""
    known = origins(profile="standard", file=None, over=None, environ={})
    assert {str(known.of(key)) for key, _ in flat(Settings().model_dump(mode="json"))} == {"default"}
