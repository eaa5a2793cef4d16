"""The errors of the local stack."""

from __future__ import annotations

from counterfoil.ledger.errors import CounterfoilError


class StackError(CounterfoilError):
    """A part of the local stack cannot be started, found or stopped; the message names the place to look at."""

    code = "local_stack"
    exit_code = 5


class AlreadyUp(StackError):
    """Another process keeps this folder's stack; it is left alone."""

    code = "already_up"
    exit_code = 4
