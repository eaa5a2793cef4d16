"""Counterfoil: one recorded intent, one bounded effect, one discoverable outcome for the side effects of LLM agents.

Names are loaded at first use: a module that only declares tools loads no database driver.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from counterfoil.client import Counterfoil
    from counterfoil.ledger.errors import (
        ArgumentError,
        ConfigError,
        CounterfoilError,
        IntentConflict,
        LedgerLostTime,
        LedgerUnavailable,
        LimitReached,
        NotAllowed,
        NotFound,
        RunBusy,
        RunTakenOver,
        StepConflict,
        StepRace,
        ToolDefinitionError,
    )
    from counterfoil.ledger.keys import ActionId
    from counterfoil.outbox.handle import Run
    from counterfoil.outbox.plans import Step
    from counterfoil.outbox.proposals import Proposal
    from counterfoil.outbox.results import NextStep, Result, Status
    from counterfoil.outbox.unwinding import Unwind
    from counterfoil.providers.contract import Of
    from counterfoil.providers.outcomes import (
        Absent,
        Found,
        Many,
        NotSent,
        Rejected,
        Succeeded,
        Uncertain,
        Unknown,
    )
    from counterfoil.providers.tool import tool

_HOMES = {
    "client": ("Counterfoil",),
    "ledger.errors": (
        "ArgumentError",
        "ConfigError",
        "CounterfoilError",
        "IntentConflict",
        "LedgerLostTime",
        "LedgerUnavailable",
        "LimitReached",
        "NotAllowed",
        "NotFound",
        "RunBusy",
        "RunTakenOver",
        "StepConflict",
        "StepRace",
        "ToolDefinitionError",
    ),
    "ledger.keys": ("ActionId",),
    "outbox.handle": ("Run",),
    "outbox.plans": ("Step",),
    "outbox.proposals": ("Proposal",),
    "outbox.results": ("NextStep", "Result", "Status"),
    "outbox.unwinding": ("Unwind",),
    "providers.contract": ("Of",),
    "providers.outcomes": ("Absent", "Found", "Many", "NotSent", "Rejected", "Succeeded", "Uncertain", "Unknown"),
    "providers.tool": ("tool",),
}
_MODULE_OF = {name: f"counterfoil.{module}" for module, names in _HOMES.items() for name in names}

__all__ = [
    "Absent",
    "ActionId",
    "ArgumentError",
    "ConfigError",
    "Counterfoil",
    "CounterfoilError",
    "Found",
    "IntentConflict",
    "LedgerLostTime",
    "LedgerUnavailable",
    "LimitReached",
    "Many",
    "NextStep",
    "NotAllowed",
    "NotFound",
    "NotSent",
    "Of",
    "Proposal",
    "Rejected",
    "Result",
    "Run",
    "RunBusy",
    "RunTakenOver",
    "Status",
    "Step",
    "StepConflict",
    "StepRace",
    "Succeeded",
    "ToolDefinitionError",
    "Uncertain",
    "Unknown",
    "Unwind",
    "tool",
]


def __getattr__(name: str) -> object:
    module = _MODULE_OF.get(name)
    if module is None:
        raise AttributeError(f"module 'counterfoil' has no attribute {name!r}")
    value = getattr(import_module(module), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
