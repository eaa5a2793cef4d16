"""What a person may leave out at the command line, and what is told instead."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest
from tests.integration.test_cli_proposals import Cli, ask, cli

__all__ = ["ask", "cli"]


def listed(cli: Cli) -> str:
    return str(json.loads(cli("list", "--json").out)[0]["proposal_id"])


def test_approve_without_a_digest_says_where_it_stands(cli: Cli, ask: Callable[..., str]) -> None:
    """Usage, with the two commands as they are typed; nothing is decided."""
    ask()
    name = listed(cli)
    told = cli("approve", name)
    assert told.code == 2
    assert f"counterfoil proposal show {name}" in told.err
    assert f"counterfoil proposal approve {name} --digest" in told.err
    assert cli("approve", name, "--dry-run").code in (0, 6)


def test_edit_of_one_step_needs_no_step(cli: Cli, ask: Callable[..., str]) -> None:
    """There is only one that can be meant."""
    ask()
    told = cli("edit", listed(cli), "--set", "amount_minor=300")
    assert (told.code, "step 1 is changed" in told.out) == (0, True), told


def test_edit_of_several_lists_them() -> None:
    """By number, tool and label."""
    from types import SimpleNamespace

    from counterfoil.cli.proposal import _only_step
    from counterfoil.ledger.errors import ArgumentError

    steps = [
        SimpleNamespace(step=SimpleNamespace(place=n, tool=t, step=s)) for n, t, s in ((1, "a", "x"), (2, "b", "2"))
    ]
    shown: Any = SimpleNamespace(steps=steps, proposal=SimpleNamespace(proposal_id="P-1"))
    with pytest.raises(ArgumentError, match=r"P-1 has 2 steps: 1 a \(x\); 2 b \(2\)"):
        _only_step(shown)
