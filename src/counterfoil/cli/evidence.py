"""Decides how the past of an action is told: one sentence for each attempt, look-up and move, in the order of time.

Pure: works on rows of the history and of attempts. Where the login may not read the history's evidence, what a look-up
showed is told by what came of it.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Literal

from counterfoil.cli.output import clean
from counterfoil.ledger.digests import DIGEST_SHOWN
from counterfoil.ledger.states import State

Row = Mapping[str, Any]

About = Literal["intent", "decision", "attempt", "look_up", "move", "state", "next", "limit", "person"]

LOOK_UP = re.compile(
    r"look-up (?P<number>\d+) as of (?P<as_of>\S+): (?P<kind>found|absent|many|unknown|no look-up) ?(?P<shown>.*)"
)
"""The evidence that the reconciler writes with each verdict."""


def receipts_in(evidence: str | None) -> list[str]:
    """The provider's ids that a look-up came upon, from the evidence of its verdict."""
    said = LOOK_UP.fullmatch(evidence or "")
    if said is None or said["kind"] not in ("found", "many"):
        return []
    shown: str = said["shown"].partition(";")[0]
    return [] if shown.startswith("as ") else [receipt for receipt in shown.split(",") if receipt]


@dataclass(frozen=True, slots=True)
class Sentence:
    """One fact. `at` is when it happened, or the time that it names."""

    about: About
    text: str
    at: datetime | None = None


def past(
    action: Row,
    attempts: Sequence[Row],
    history: Sequence[Row],
    decisions: Sequence[Row] = (),
    approval: Row | None = None,
) -> list[Sentence]:
    """What has happened to the action, in order. `decisions` are those on its proposal, `approval` is its own."""
    told = [
        *_recorded(action, history),
        *map(_decision, decisions),
        *_approval(approval),
        *(_attempt(row, action) for row in attempts),
        *_look_ups(history),
        *_moves(history),
    ]
    return sorted(told, key=lambda sentence: sentence.at or action["created_at"])


def _recorded(action: Row, history: Sequence[Row]) -> Iterator[Sentence]:
    """The row stands before any call; a counter-action says what it is about."""
    first = next((row for row in history if row["from_state"] is None), None)
    at = first["at"] if first else action["created_at"]
    about = f", about {action['parent_action_id']}" if action["parent_action_id"] else ""
    yield Sentence("intent", f"It was recorded by {clean(action['actor'])}{about}, before anything was sent.", at)


def _decision(row: Row) -> Sentence:
    """What a person said; over which digest, where the login may read that."""
    over = f" over {row['digest'][:DIGEST_SHOWN]}" if row.get("digest") else ""
    why = f": {clean(row['reason'])}" if row.get("reason") else ""
    who = f"{clean(row['by_person'])} (login {clean(row['db_role'])}, by {clean(row['channel'])})"
    return Sentence("decision", f"{who} {row['verdict']} it{over}{why}.", row["at"])


def _approval(row: Row | None) -> Iterator[Sentence]:
    if row is None:
        return
    if row["carried_from"]:
        yield Sentence(
            "decision", "It stayed within the bounds of an earlier approval, and took that.", row["created_at"]
        )
    if row["consumed_at"]:
        yield Sentence("decision", "Its approval was used by its first claim: it serves no other.", row["consumed_at"])


def _attempt(row: Row, action: Row) -> Sentence:
    number, worker, code = row["number"], clean(row["worker"]), clean(row["code"])
    if row["finished_at"] is None:
        if action["state"] == State.EXECUTING and number == action["attempt_count"]:
            return Sentence("attempt", f"Attempt {number} is with {worker}, and has no answer yet.", row["started_at"])
        text = f"Attempt {number} was with {worker} and left no answer: what was sent may have taken effect."
        return Sentence("attempt", text, row["started_at"])
    seconds = (row["finished_at"] - row["started_at"]).total_seconds()
    ended, so = _ENDED[row["outcome"]]
    text = f"Attempt {number}, by {worker}, {ended.format(code=code)} after {seconds:.1f} s{so}."
    return Sentence("attempt", text, row["started_at"])


_ENDED = {
    "succeeded": ("was answered with a receipt", ""),
    "rejected": ("was refused by the provider ({code})", ": it did nothing"),
    "not_sent": ("could not be sent ({code})", ": nothing left"),
    "uncertain": ("ended without an answer that proves anything ({code})", ": it may have taken effect"),
    "let_go": ("was given back ({code})", ", before anything was sent"),
}
"""How an attempt ended, and what that means."""


def _look_ups(history: Sequence[Row]) -> Iterator[Sentence]:
    """Each claim by the reconciler, with the move that ended it. It was made as of its claim's time."""
    asked = [i for i, row in enumerate(history) if row["to_state"] == State.RECONCILING and not _is_request(row)]
    for number, i in enumerate(asked, start=1):
        told = "is under way"
        if i + 1 < len(history) and history[i + 1]["reason"] == "look-up lapsed":
            told = "ended without an answer to us: the reconciler died or was too slow"
        elif i + 1 < len(history):
            told = f"{_showed(history[i + 1])}{_so(history[i + 1])}"
        yield Sentence("look_up", f"Look-up {number}, as of this time, {told}.", history[i]["at"])


def _showed(verdict: Row) -> str:
    """What the provider held under our key, as far as this login may know."""
    if verdict["reason"] in _NAMED:
        return _NAMED[verdict["reason"]]
    said = LOOK_UP.fullmatch(verdict.get("evidence") or "")
    shown = clean(said["shown"]) if said else ""
    match said["kind"] if said else _kind_by_verdict(verdict):
        case "found":
            unsettled = ", not settled yet" if verdict["to_state"] == State.UNCERTAIN else ""
            return f"found it{unsettled} ({shown})" if shown else f"found it{unsettled}"
        case "absent":
            return "showed nothing under its key"
        case "many":
            return f"showed several under its key ({shown})" if shown else "showed several under its key"
        case "unknown":
            return f"failed ({shown}), which proves nothing"
        case "no look-up":
            return "was not possible: the tool has none"
        case _:
            return f"settled nothing ({clean(verdict['reason'])})"


_NAMED = {
    "not_found": "was for an object that the provider does not have, or that shows no sign of this action",
    "other_key": "was for an object that this action has not made",
    "failed_there": "found the object that was named, with a status that says that it failed",
    "cannot_verify": "was not possible: nobody can be asked about an object of this tool",
}
"""What became of a person's word about an object, by the verdict's reason."""


def _kind_by_verdict(verdict: Row) -> str:
    reason = str(verdict["reason"])
    if reason.startswith(f"{_WORD}; nobody"):
        return "no look-up"
    if verdict["to_state"] in (State.SUCCEEDED, State.NOT_EXECUTED) or reason in _ABSENT:
        return "found" if verdict["to_state"] == State.SUCCEEDED else "absent"
    return {"many_found": "many", "mismatch": "found", "no_lookup": "no look-up"}.get(reason, "")


_WORD = "a person's word"
"""So begins the reason of a verdict that a person has vouched for."""
_ABSENT = {"absent", "absent_once", "absent_too_early", "absence earned", "absence earned, no attempt left"}


def _so(verdict: Row) -> str:
    """What followed from it."""
    reason, to = str(verdict["reason"]), State(verdict["to_state"])
    match to:
        case State.SUCCEEDED:
            return ": it is done"
        case State.NOT_EXECUTED if reason.startswith(_WORD):
            return ", and a person vouches for it: it was not done, and is not sent again"
        case State.NOT_EXECUTED:
            return ", which is proof by now: it was not done, and no attempt is left"
        case State.PERMANENT_FAILURE:
            return ": it was not done, and is not sent again"
        case State.READY if reason == "absence earned":
            return ", which is proof by now: it may be sent again"
        case State.READY:
            return ": it is sent again under the same key, which the provider answers from its store if it was done"
        case State.OPERATOR_REVIEW:
            return f": a person must judge ({clean(reason)})"
        case _:
            return _LATER.get(reason, "; the provider is asked again")


_LATER = {
    "absent_too_early": ", which counts for nothing yet: a request may still land or become visible",
    "absent_once": ": one of the two that prove absence is counted",
}


def _moves(history: Sequence[Row]) -> Iterator[Sentence]:
    """The moves that are neither an attempt nor a look-up."""
    for row in history:
        moved = row["from_state"], row["to_state"]
        if _is_request(row):
            said = _SAID.get(row["reason"], f"asked for {clean(row['reason'])}")
            yield Sentence("move", f"{clean(row['changed_by'])} {said}: the provider is asked.", row["at"])
            continue
        if row["from_state"] is None or State.RECONCILING in moved or moved[1] == State.EXECUTING:
            continue
        text = _told_move(row)
        if text is not None:
            yield Sentence("move", text, row["at"])


_SAID = {
    "happened": "said that it happened",
    "not happened": "said that it did not happen",
    "ask again": "left it to the look-ups once more",
}
"""What a person says about an action in review, by the reason of the move that it makes."""


def _is_request(row: Row) -> bool:
    """A person has had the provider asked: the way back to the reconciler begins as a look-up that has lapsed."""
    return bool(row["from_state"] == State.OPERATOR_REVIEW and row["to_state"] == State.RECONCILING)


def _told_move(row: Row) -> str | None:
    reason, by = clean(row["reason"]), clean(row["changed_by"])
    if row["reason"] == "lease lapsed":
        return "The worker's lease ended without an answer: the worker died or was too slow, so nobody knows."
    if row["from_state"] == State.EXECUTING and row["reason"] in _TOLD_BY_ATTEMPT:
        return None
    return f"{_sentence(row['from_state'])} became {row['to_state']}: {reason} (by {by})."


_TOLD_BY_ATTEMPT = {"succeeded", "refused", "refused for now", "outcome unknown", "not sent", "attempts exhausted"}


def _sentence(state: str) -> str:
    return state[:1].upper() + state[1:].replace("_", " ")
