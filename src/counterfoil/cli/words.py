"""Decides how a state is told to a person: what it means, what happens next without them, and by when."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Any, assert_never

from counterfoil.cli.output import distance, stamp
from counterfoil.ledger.states import State
from counterfoil.ledger.unwind_steps import Standing

MEANS: Mapping[State, str] = {
    State.PROPOSED: "recorded; its resource's version is still to be read, or its turn in a plan has not come",
    State.AWAITING_APPROVAL: "waits until a person approves exactly this",
    State.READY: "may be done; nothing has been sent by this attempt",
    State.EXECUTING: "a worker holds it; the request may be on the wire",
    State.RETRYABLE_FAILURE: "the provider refused for now; nothing was done",
    State.UNCERTAIN: "the request may have taken effect; nobody knows yet",
    State.RECONCILING: "the provider is being asked what happened",
    State.OPERATOR_REVIEW: "evidence is missing or contradictory; only a person moves it on",
    State.SUCCEEDED: "done; the provider's receipt, or a person's word for it, is on record",
    State.PERMANENT_FAILURE: "refused for good; nothing was done",
    State.NOT_EXECUTED: "proved absent, or a person vouches for it; nothing was done",
    State.CANCELLED: "withdrawn before anything was done",
    State.STALE: "too late, or the target has changed; nothing was done",
    State.COMPENSATED: "was done, and has been taken back",
}

_NEXT: Mapping[State, tuple[str, str | None]] = {
    State.PROPOSED: ("its plan is decided or expires", "decide_by"),
    State.AWAITING_APPROVAL: ("a person approves or rejects it, or it expires", "decide_by"),
    State.READY: ("a worker claims it", "ready_at"),
    State.EXECUTING: ("the worker records the answer, or its lease ends and the provider is asked", "lease_until"),
    State.RETRYABLE_FAILURE: ("the next attempt", "ready_at"),
    State.UNCERTAIN: ("the provider is asked", "next_lookup_at"),
    State.RECONCILING: ("the answer is judged, or the look-up's lease ends and it is asked again", "lease_until"),
    State.OPERATOR_REVIEW: ("nothing by itself: a person decides", None),
}
"""What moves a state on, and the column that says when; settled states have no entry."""


def what_next(action: Mapping[str, Any]) -> str:
    """What happens next and by when, from a row of `show_action`."""
    found = _NEXT.get(State(action["state"]))
    if action["state"] == State.PROPOSED and action["next_lookup_at"] is not None:
        found = "a worker reads the version of what it changes", "next_lookup_at"
    elif action["state"] == State.PROPOSED and action.get("proposal_state") == "approved":
        found = "approved; its turn comes when the step before it has succeeded, or it expires", "decide_by"
    if found is None:
        return "nothing: settled"
    what, column = found
    at: datetime | None = action.get(column) if column else None
    if at is None:
        return what
    now: datetime = action["now"]
    return f"{what}: due since {distance(at, now)}" if at <= now else f"{what} {distance(at, now)} ({stamp(at)})"


def remarks(action: Mapping[str, Any]) -> list[str]:
    """What else decides the way of the action."""
    held = {
        "in doubt: it is not cancelled, expired or failed before evidence is in": action["in_doubt"],
        "nothing is sent again, whatever the look-up finds": action["no_resend"],
        f"a cancel was asked for at {action['cancel_requested_at']}": action["cancel_requested_at"],
        f"replaced by {action['superseded_by']}": action["superseded_by"],
    }
    return [text for text, holds in held.items() if holds]


def unwind_words(step: Mapping[str, str | None]) -> str:
    """What an unwind does, or has done, with a step of `told`."""
    match Standing(str(step["standing"])):
        case Standing.NOTHING if step["correction_id"]:
            return f"taken back; correction {step['correction_id']} is {step['correction']}"
        case Standing.NOTHING:
            return _ENDED.get(State(str(step["state"])), "left: nothing was done")
        case Standing.WITHDRAW:
            return "withdrawn: nothing was sent"
        case Standing.EVIDENCE:
            return "waits for its outcome; nothing is sent again"
        case Standing.COMPENSATE:
            return f"compensated by {step['undo_tool']} when it is its turn"
        case Standing.COMPENSATING:
            return f"{step['undo_tool']} is under way"
        case Standing.COMPENSATED if step["undo_id"] is None:
            return f"taken back with {step['carried_on_by']}"
        case Standing.COMPENSATED:
            return f"taken back by {step['undo_tool']}"
        case Standing.REFUSED:
            return f"goes to a person: {step['undo_tool']} was refused"
        case Standing.PERSON if step["undo_id"]:
            return f"waits for a person: {step['undo_tool']} ({step['why']})"
        case Standing.PERSON if step["correction"] == "sent":
            return f"waits for a person: whether {step['message_id']} was sent ({step['why']})"
        case Standing.PERSON if step["correction_id"]:
            return f"waits for a person: {_WHY.get(str(step['why']), step['why'])}, correction {step['correction_id']}"
        case Standing.PERSON:
            return f"waits for a person: {_WHY.get(str(step['why']), step['why'])}"
        case Standing.CORRECT:
            return "goes to a person: nothing takes it back, and somebody saw it"
        case Standing.CORRECTING:
            return f"correction {step['correction_id']} is being sent"
        case Standing.CARRIED:
            return f"waits for what was done about it ({step['carried_on_by']})" if step["carried_on_by"] else _LATER
        case Standing.KEPT:
            return f"stays done: {_kept_words(step)}"
        case never:
            assert_never(never)


def _kept_words(step: Mapping[str, str | None]) -> str:
    match step["why"]:
        case "correction_sent":
            return f"{step['correction_id']} was sent"
        case "correction_dismissed":
            return f"{step['correction_id']} was dismissed"
        case "carried":
            return f"as what carries it on ({step['carried_on_by']})"
        case "unseen":
            return "nobody has seen it"
        case _:
            return "a person gave its compensation up"


_LATER = "waits for what was done about it"
_ENDED = {State.COMPENSATED: "taken back", State.CANCELLED: "withdrawn"}
_WHY = {"no_compensation": "nothing takes it back", "replaced": "replaced, and then found to have happened"}
