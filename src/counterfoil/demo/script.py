"""Decides what the demo's model says: the same words to both harnesses, of which it knows nothing but their answers.

It does what models do: takes whatever is no success as a reason to try again in other words, gives up after a few, and
after a crash knows what its transcript says, and nothing else.
"""

from __future__ import annotations

from collections.abc import Generator, Mapping, Sequence
from dataclasses import dataclass

Arguments = Mapping[str, object]
Said = tuple[str, Arguments]
"""A tool and its arguments."""
Answer = tuple[str, object]
"""A status, where `succeeded` is the only good one, and what came with it."""

SUCCEEDED = "succeeded"


@dataclass(frozen=True, slots=True)
class Entry:
    """A call in a transcript; without a status, it was decided on and nothing more is known."""

    tool: str
    arguments: Arguments
    status: str | None = None
    result: object = None


Wordings = tuple[Said, ...]
"""One step in the model's words; each next one is what it tries when the one before did not succeed."""

ORDER = {"order_id": "1182"}
LOOK_UP: Wordings = (("search_orders", ORDER),)
TICKET: Wordings = (
    ("jira_create", {**ORDER, "project": "SUP", "summary": "Refund for order 1182"}),
    ("jira_create", {**ORDER, "project": "SUP", "summary": "Order #1182 refund"}),
)
FEE: Wordings = (
    ("stripe_charge", {**ORDER, "customer": "cus_1182", "amount_minor": 500, "currency": "usd"}),
    (
        "stripe_charge",
        {**ORDER, "customer": "cus_1182", "amount_minor": 500, "currency": "usd", "description": "re-shipping fee"},
    ),
)
RESHIP: Wordings = (("warehouse_reship", ORDER), ("warehouse_reship", {**ORDER, "note": "please, the parcel is lost"}))

PLAN: tuple[tuple[Wordings, ...], ...] = ((LOOK_UP,), (TICKET, FEE), (RESHIP,))
"""Turn by turn: a turn that a crash has cut off is said again from its beginning."""


def play(transcript: Sequence[Entry]) -> Generator[Said, Answer, str | None]:
    """Says one call after the other and is sent the answers; returns what it gave up on, None when all is done."""
    for turn in PLAN[_turns_done(transcript) :]:
        for wordings in turn:
            for said in _from_memory(wordings, transcript):
                status, _ = yield said
                if status == SUCCEEDED:
                    break
            else:
                return wordings[0][0]
    return None


def _turns_done(transcript: Sequence[Entry]) -> int:
    succeeded = {entry.tool for entry in transcript if entry.status == SUCCEEDED}
    done = [all(wordings[0][0] in succeeded for wordings in turn) for turn in PLAN]
    return [*done, False].index(False)


def _from_memory(wordings: Wordings, transcript: Sequence[Entry]) -> Wordings:
    """Word for word what the transcript has last, then the others."""
    said = [entry.arguments for entry in transcript if entry.tool == wordings[0][0]]
    last = next((i for i, (_, arguments) in enumerate(wordings) if said and said[-1] == arguments), 0)
    return wordings[last:] + wordings[:last]
