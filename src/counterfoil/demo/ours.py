"""Decides how the demo's agent uses Counterfoil: as an application would, with nothing but the public API."""

from __future__ import annotations

from collections.abc import Sequence

from counterfoil import Counterfoil
from counterfoil.demo.agent import tell
from counterfoil.demo.script import Answer, Arguments, Entry

TENANT, RUN, ACTOR = "acme", "ticket-1182", "support-bot"

FIRST_WAIT_S = 1.0
"""Short: the model hears of an outcome that is not known yet, and does what models do."""
NEXT_WAIT_S = 12.0
"""Longer than a lease and the look-ups after it take in the fast profile."""
UNWIND_WAIT_S = 20.0


class CounterfoilHarness:
    """Every call goes into the ledger, every answer comes from it; the transcript says what the model was told."""

    def __init__(self, entries: Sequence[Entry]) -> None:
        self._entries = entries
        self._run = Counterfoil.from_settings().run(RUN, tenant=TENANT, actor=ACTOR)
        self._called: set[str] = set()

    def call(self, tool: str, arguments: Arguments) -> Answer:
        wait_s = NEXT_WAIT_S if tool in self._called else FIRST_WAIT_S
        self._called.add(tool)
        result = self._run.call(tool, arguments, seen=_seen(self._entries), wait_s=wait_s)
        return result.status.value, result.model_dump(mode="json", exclude_none=True)

    def unwind(self, reason: str) -> None:
        tell("undo", does="asks for the run to be taken back")
        result = self._run.unwind(reason).result(wait_s=UNWIND_WAIT_S)
        tell("undone", status=result.status.value, code=result.code)


def _seen(entries: Sequence[Entry]) -> list[str]:
    """The tokens of all answers that the transcript holds."""
    return [entry.result["seen"] for entry in entries if isinstance(entry.result, dict) and "seen" in entry.result]
