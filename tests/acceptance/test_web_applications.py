"""docs/web-applications.md as it is pasted: an error of ours as an HTTP answer."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import counterfoil
from counterfoil import ArgumentError, CounterfoilError, LedgerUnavailable, LimitReached, NotFound, RunTakenOver
from counterfoil.ledger import errors

PAGE = (Path(__file__).parents[2] / "docs" / "web-applications.md").read_text(encoding="utf-8")


@pytest.fixture
def answer() -> Callable[[CounterfoilError], Any]:
    [block] = re.findall(r"^```python\n(# errors\.py.*?)^```$", PAGE, re.DOTALL | re.MULTILINE)
    names: dict[str, Any] = {}
    exec(block, names)
    return lambda error: asyncio.run(names["counterfoil_error"](None, error))


@pytest.mark.parametrize(
    ("error", "status", "body"),
    [
        (NotFound("there is no run."), 404, {"error": "not_found", "message": "there is no run."}),
        (RunTakenOver("another handle."), 409, {"error": "run_taken_over", "message": "another handle."}),
        (
            ArgumentError("is wrong.", path="$.n", code="invalid_argument", reason="7 is no name"),
            422,
            {"error": "invalid_argument", "message": "is wrong.", "field": "$.n", "reason": "7 is no name"},
        ),
        (LimitReached("full.", limit="limits.x"), 429, {"error": "limit_reached", "message": "full."}),
        (LedgerUnavailable("gone: host 10.0.0.1"), 503, {"error": "ledger_unavailable"}),
    ],
)
def test_the_handler_as_pasted(
    answer: Callable[[CounterfoilError], Any], error: CounterfoilError, status: int, body: dict[str, str]
) -> None:
    """Code and message; of the installation's own faults the code alone, and when to come again."""
    told = answer(error)
    found = json.loads(told.body)
    if isinstance(error, ArgumentError):
        assert found.pop("message").endswith(body.pop("message"))
    assert (told.status_code, found) == (status, body)
    assert ("retry-after" in told.headers) == (status in (429, 503))


def test_the_page_has_every_error_with_its_status() -> None:
    """Those that an application can meet, in the table."""
    rows = re.findall(r"^\| (`\w+`.*?) \| (\d{3}) \|", PAGE, re.MULTILINE)
    told = {name: int(status) for names, status in rows for name in re.findall(r"`(\w+)`", names)}
    ours = {
        name: kind.http_status
        for name, kind in vars(errors).items()
        if isinstance(kind, type) and issubclass(kind, CounterfoilError) and kind is not CounterfoilError
    }
    assert told == ours
    assert set(ours) - {"DecisionRefused", "BrokerUnavailable"} <= set(counterfoil.__all__)
