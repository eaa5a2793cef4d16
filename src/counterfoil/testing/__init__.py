"""For tests of agents and of adapters: the fleet in this process with a clock moved by hand, and the grade of a tool.

Names are loaded at first use: a grade needs neither database nor broker.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from counterfoil.testing.grading import Report, grade
    from counterfoil.testing.subject import NO_BODY, Subject
    from counterfoil.testing.world import Crash, World, advance_ledger

_MODULE_OF = {
    "Crash": "world",
    "World": "world",
    "advance_ledger": "world",
    "NO_BODY": "subject",
    "Subject": "subject",
    "Report": "grading",
    "grade": "grading",
}

__all__ = ["NO_BODY", "Crash", "Report", "Subject", "World", "advance_ledger", "grade"]


def __getattr__(name: str) -> object:
    if name not in _MODULE_OF:
        raise AttributeError(f"module 'counterfoil.testing' has no attribute {name!r}")
    value = getattr(import_module(f"counterfoil.testing.{_MODULE_OF[name]}"), name)
    globals()[name] = value
    return value
