"""How an account is reached at one moment, for those who ask its provider: where, by which adapter, how many rows at once."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from counterfoil.ledger.errors import ConfigError
from counterfoil.providers.contract import Adapter, Sharing
from counterfoil.providers.spec import ToolSpec


@dataclass(frozen=True, slots=True)
class Place:
    """An account as it is reached at one moment."""

    reach: str
    adapter: Adapter

    def answers(self, tool: str) -> int:
        """How many rows of this tool one request of a look-up answers; at least one."""
        return max(1, self.adapter.rows_a_request(tool)) if isinstance(self.adapter, Sharing) else 1


def place_of(
    spec: ToolSpec,
    account: str,
    *,
    adapter: Callable[[ToolSpec, str], Adapter],
    reach: Callable[[ToolSpec, str], str],
) -> Place | None:
    """How requests of this account go now; None where it cannot be reached at all."""
    try:
        made = adapter(spec, account)
        return Place(reach(spec, account), made)
    except ConfigError:
        return None
