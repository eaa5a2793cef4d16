"""What a model is told in words: a text for its system prompt, and a sentence for each answer.

Both are made from the closed sets of `Result` alone: no provider's prose, no arguments, nothing that a person typed.
"""

from __future__ import annotations

from counterfoil.outbox.results import NextStep, Result, Status

MESSAGE_CHARS_MAX = 300

SYSTEM_TEXT = """\
Your tools act on real systems through a ledger. Every answer has a `status` and a `next_step`; go by these.
- succeeded: it is done. Do not do it again, in whatever words; `arguments`, if there, say what was really done, such as \
what a reviewer has changed.
- pending, uncertain: it was recorded, and may have happened. This is no error. Do not try again with other words, another \
tool or smaller steps: the same action is found, nothing is gained. Go on with what does not depend on it, or end your turn.
- failed: it surely did not happen. Correct `field` only if `retry_allowed` is true (`value.reason` says what is wrong with \
it); else tell the user.
- blocked: nothing was recorded for this call. `next_step` says what comes first: wait for the other action, read `unseen`, \
or end your turn, since a plan is prepared and a person decides before anything goes past it.
- awaiting_approval: a person decides about exactly this. End your turn; never ask for the same thing in another way.
- cancelled, stale: it was withdrawn or came too late, and nothing was sent. Plan anew from what is true now. If a reviewer \
has said no, `value.reason` is for you to read: the same is not asked again, in whatever words.
`replayed` means that this call did nothing new: the answer is that of an earlier call, and `arguments`, if there, say what \
that one did. Use it, and do not apologise or repeat. Only if you wanted something else besides, ask for that once more.
Never invent results, ids or keys, and never tell a user that something has happened unless its status is succeeded.
"""


def message(result: Result) -> str:
    """One sentence for the model or a log, at most `MESSAGE_CHARS_MAX` characters; the same for the same two words.

    A plan that has failed is told apart: it has no action of its own, and some of its steps may be done.
    """
    is_plan = result.action_id is None and result.proposal_id is not None
    status = _PLAN_FAILED if is_plan and result.status is Status.FAILED else _STATUS[result.status]
    return f"{status}{_NEXT[result.next_step]}."


_PLAN_FAILED = "This plan has stopped at a step that did not happen, and `value` says what was done before"

_STATUS: dict[Status, str] = {
    Status.PENDING: "This is recorded and under way",
    Status.UNCERTAIN: "This may have happened, and is being looked up; that is no error",
    Status.SUCCEEDED: "This is done",
    Status.FAILED: "This did not happen",
    Status.AWAITING_APPROVAL: "This waits for a person's approval",
    Status.BLOCKED: "Nothing was recorded for this call, since something else comes first",
    Status.STALE: "This came too late or its object has changed, and nothing was sent",
    Status.CANCELLED: "This was withdrawn, and nothing was sent",
}

_NEXT: dict[NextStep, str] = {
    NextStep.NONE: "",
    NextStep.WAIT: ": wait for the outcome, and do not call again in other words",
    NextStep.END_TURN: ": end your turn, and do not ask for it in another way",
    NextStep.CORRECT_ARGUMENTS: ": correct the named field, and call once more",
    NextStep.READ_UNSEEN: ": read the results in `unseen`, then decide whether the call is still needed",
    NextStep.ALREADY_DONE: ": nothing new was done, since it was asked for before, so use this result",
    NextStep.EDITED_BY_REVIEWER: ": a reviewer has changed it, as `arguments` say, so leave it at that",
    NextStep.REJECTED_BY_REVIEWER: ": a reviewer has said no, so do not ask for the same again",
    NextStep.NEW_PREVIEW: ": look at what is true now, and propose it anew if it is still wanted",
    NextStep.LIMIT_REACHED: ": a limit is reached, which `code` names, so end your turn",
    NextStep.PERSON: ": a person decides, so end your turn",
}
