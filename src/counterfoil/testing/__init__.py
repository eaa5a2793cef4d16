"""For tests of agents and of Counterfoil itself: the fleet in this process, and a clock that is moved by hand."""

from counterfoil.testing.world import Crash, World, advance_ledger

__all__ = ["Crash", "World", "advance_ledger"]
