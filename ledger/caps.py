"""Decides whether one more action of a tool or an effect class would be more than the configuration allows."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from counterfoil.ledger.queries import load

CAP_USE = load("counterfoil.ledger", "sql/caps.sql")["cap_use"]
"""What a run and a tenant's day hold already: one row, the `use` of `exceeded`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Caps:
    """At most so many, and so much, in one run and in one tenant's day (UTC, by the ledger's clock); None = no cap.

    Amounts are in minor units and hold for each currency apart. A call whose amount nobody knows exceeds any of them.
    """

    count_per_run_max: int | None = None
    amount_per_run_max_minor: int | None = None
    count_per_day_max: int | None = None
    amount_per_day_max_minor: int | None = None

    @property
    def none(self) -> bool:
        """Nothing is capped."""
        return self == NO_CAPS


NO_CAPS = Caps()


@dataclass(frozen=True, slots=True, kw_only=True)
class CapTable:
    """The caps of an installation, by tool and by effect class."""

    tools: Mapping[str, Caps] = field(default_factory=dict)
    effects: Mapping[str, Caps] = field(default_factory=dict)

    def capped(self, tool: str, effect: str) -> bool:
        """Whether anything caps this tool."""
        return not (self._tool(tool).none and self._effect(effect).none)

    def per_day(self, tool: str, effect: str) -> bool:
        """Whether a cap of a day is among them."""
        both = (self._tool(tool), self._effect(effect))
        return any(c.count_per_day_max is not None or c.amount_per_day_max_minor is not None for c in both)

    def exceeded(self, use: Mapping[str, object], tool: str, effect: str, *, amount_minor: int | None) -> str | None:
        """The setting that one more call of this amount would exceed, beside a row of `CAP_USE`; None = it may go on."""
        for kind, name, caps in (("tool", tool, self._tool(tool)), ("effect", effect, self._effect(effect))):
            for per, count_max, minor_max in (
                ("run", caps.count_per_run_max, caps.amount_per_run_max_minor),
                ("day", caps.count_per_day_max, caps.amount_per_day_max_minor),
            ):
                if count_max is not None and _number(use, f"{per}_{kind}_count") + 1 > count_max:
                    return f"{kind}.{name}.count_per_{per}_max"
                if minor_max is not None and (
                    amount_minor is None or _number(use, f"{per}_{kind}_minor") + max(amount_minor, 0) > minor_max
                ):
                    return f"{kind}.{name}.amount_per_{per}_max_minor"
        return None

    def _tool(self, name: str) -> Caps:
        return self.tools.get(name, NO_CAPS)

    def _effect(self, name: str) -> Caps:
        return self.effects.get(name, NO_CAPS)


def _number(use: Mapping[str, object], column: str) -> int:
    return int(str(use[column]))
