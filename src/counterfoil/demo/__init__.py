"""`counterfoil demo`: one incident, for real: a lying gateway, a model that rewords, a worker killed with money in hand."""

from counterfoil.demo.main import main

__all__ = ["main"]
