"""Decides how people move actions in review on: what each verb would do now, and what its answer means to whoever asked.

For the command line, a console and code of your own: it takes a `Ledger` under an operator's login. There is no plain retry.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, Literal

from counterfoil.ledger import reviews as doors
from counterfoil.ledger.connection import Ledger
from counterfoil.ledger.errors import ArgumentError
from counterfoil.ledger.reviews import Answer, Asking, Said
from counterfoil.people.words import check_words
from counterfoil.providers.contract import Contract

Verb = Literal["happened", "not_happened", "ask_again", "give_up"]

RECEIPT_CHARS_MAX = 255
REASON_CHARS_MAX = 500
POLL_S = 0.25
"""Between two looks for the reconciler's answer."""

CameOf = Literal["done", "contradicted", "refused", "waits"]
"""`done`: moved as asked. `contradicted`: the provider shows otherwise. `refused`: nothing was asked. `waits`: for the
reconciler, or for a person again."""

_DONE = frozenset({Answer.SUCCEEDED, Answer.PERMANENT_FAILURE, Answer.NOT_EXECUTED, Answer.READY})
_CONTRADICTS = frozenset(
    {Answer.FOUND, Answer.NOT_FOUND, Answer.OTHER_KEY, Answer.MISMATCH, Answer.MANY_FOUND, Answer.FAILED_THERE}
)
_REFUSES = frozenset({Answer.NOT_IN_REVIEW, Answer.NOTHING_SENT, Answer.UNVERIFIED_ONLY})


@dataclass(frozen=True, slots=True)
class Would:
    """What a verb would do now. `counts_from`: before then it would only be told that it is too early."""

    verb: Verb
    text: str
    counts_from: datetime | None = None


def ask(
    ledger: Ledger,
    action_id: str,
    *,
    verb: Asking,
    receipt: str | None = None,
    by: str,
    channel: str,
    reason: str | None = None,
) -> Said:
    """Has the reconciler ask the provider, with or without a person's word. Raises NotFound, ArgumentError."""
    if verb == "happened":
        receipt = (receipt or "").strip()
        if not 0 < len(receipt) <= RECEIPT_CHARS_MAX or not receipt.isprintable():
            raise ArgumentError(
                f"the provider's id of what happened, 1 to {RECEIPT_CHARS_MAX} characters.",
                path="receipt",
                code="usage",
            )
    reason = _reason(reason)
    check_words(by, channel, reason)
    return doors.ask_provider(ledger, action_id, verb=verb, receipt=receipt, by=by, channel=channel, reason=reason)


def give_up(ledger: Ledger, action_id: str, *, by: str, channel: str, reason: str, as_happened: bool = False) -> Said:
    """Ends the action where evidence allows it, or as a success in this person's name. Raises NotFound, ArgumentError."""
    if not (reason := _reason(reason) or ""):
        raise ArgumentError("giving up needs a reason.", path="reason", code="usage")
    check_words(by, channel, reason)
    return doors.give_up(ledger, action_id, by=by, channel=channel, reason=reason, as_happened=as_happened)


def wait_for_answer(ledger: Ledger, asked: Said, *, wait_s: float, pause: Callable[[float], None] = time.sleep) -> Said:
    """The reconciler's answer, or, after `wait_s`, one whose `answer` is None. What needed no asking is given back."""
    if asked.answer != Answer.ASKED:
        return asked
    until_s = time.monotonic() + wait_s
    said = doors.read_answer(ledger, asked)
    while said.answer is None and (left_s := until_s - time.monotonic()) > 0:
        pause(min(POLL_S, left_s))
        said = doors.read_answer(ledger, asked)
    return said


def came_of(verb: Verb, said: Said) -> CameOf:
    """What became of what the person asked for."""
    if said.answer in _REFUSES:
        return "refused"
    if said.answer in _DONE:
        return "done"
    if said.answer in _CONTRADICTS and verb != "ask_again":
        return "contradicted"
    return "waits"


def told(verb: Verb, said: Said) -> str:
    """The answer in a sentence."""
    if said.answer == Answer.PERMANENT_FAILURE and verb == "give_up":
        return "given up: by evidence nothing has happened, and nothing is sent again"
    if said.answer == Answer.SUCCEEDED and verb == "give_up":
        return "succeeded in your name; where no attempt had recorded a receipt, nothing but your word says so"
    if said.answer == Answer.NOT_IN_REVIEW:
        return f"it is not in review but {said.state}: nothing was asked"
    return _TOLD.get(
        said.answer or Answer.ASKED, f"in review again: the evidence still asks for a person ({said.answer})"
    )


_TOLD: Mapping[str, str] = {
    Answer.ASKED: "asked; the reconciler has not answered yet, and `review show` tells when it has",
    Answer.SUCCEEDED: "succeeded: the provider holds it, under its key and as intended",
    Answer.FOUND: "it did happen: the provider holds it, so it has succeeded; nothing was sent again",
    Answer.PERMANENT_FAILURE: "failed: the provider shows that it was not done, and nothing is sent again",
    Answer.NOT_EXECUTED: "not executed: nothing was done, and nothing is sent again",
    Answer.READY: "the evidence allows another attempt under the same key; a worker takes it",
    Answer.NOTHING_SENT: "nothing was ever sent, so nothing can have happened; `not-happened` ends it",
    Answer.UNVERIFIED_ONLY: "it may have happened, and nothing proves that it did not",
    Answer.NOT_FOUND: "in review again: the provider has no such object, or it shows no sign of this action",
    Answer.OTHER_KEY: "in review again: this action has made no object of that id",
    Answer.MISMATCH: "in review again: what the provider holds under its key is not what was intended",
    Answer.MANY_FOUND: "in review again: the provider holds several objects under its key",
    Answer.FAILED_THERE: "in review again: the object is there, and its status says that it failed",
    Answer.UNKNOWN: "in review again: the provider could not be asked, or is still working on it",
    Answer.CANNOT_VERIFY: "in review again: this tool's provider cannot be asked; `give-up --as-happened` takes your word",
    Answer.TOO_EARLY: "in review again: a request may still land or become visible, so its absence counts for nothing yet",
}


def would(
    action: Mapping[str, Any], contract: Contract | None, *, can_fetch: bool, sent: str, may_give_up: bool
) -> list[Would]:
    """What each verb would do now with an action in review, from its row, its tool's contract and `evidence_on`."""
    return [
        Would("happened", _happened(action, contract, can_fetch, sent)),
        _not_happened(action, contract, sent),
        Would("ask_again", _ask_again(action, contract, sent)),
        Would("give_up", _give_up(sent, may_give_up=may_give_up)),
    ]


def _happened(action: Mapping[str, Any], contract: Contract | None, can_fetch: bool, sent: str) -> str:
    if _never_sent(action, sent):
        return "refused: nothing was ever sent"
    if contract is not None and not can_fetch:
        return "cannot be verified, since nobody can be asked: see give-up --as-happened"
    return "fetches what --receipt names: a success if it carries this action's key and is what was intended"


def _not_happened(action: Mapping[str, Any], contract: Contract | None, sent: str) -> Would:
    if _never_sent(action, sent):
        return Would("not_happened", "ends it as not executed: nothing was ever sent")
    if contract is None:
        return Would(
            "not_happened", "asks the provider once more; its tool is not loaded here, so its windows are not known"
        )
    window = timedelta(seconds=contract.landing_max_s + contract.lookup_lag_s)
    opens = None if action["quiet_from"] is None else action["quiet_from"] + window
    if opens is not None and opens < action["now"]:
        opens = None
    if not contract.lookup:
        return Would("not_happened", "takes your word and ends it as not executed, since nobody can be asked", opens)
    text = "asks the provider once more: what it holds wins; if it shows nothing, ends it as not executed"
    return Would("not_happened", text, opens)


def _ask_again(action: Mapping[str, Any], contract: Contract | None, sent: str) -> str:
    if _never_sent(action, sent):
        return "refused: nothing was ever sent"
    if contract is not None and not contract.lookup and contract.native_key_ttl_s is None:
        return "asks nobody, since nobody can be asked: it comes back to review"
    after = (
        "nothing is sent again" if action["no_resend"] else "it is sent again only where a look-up or its key allows"
    )
    return f"leaves it to the ordinary look-ups and their verdict; {after}"


def _give_up(sent: str, *, may_give_up: bool) -> str:
    if may_give_up:
        return "ends it as failed: by evidence nothing has happened"
    if sent == "happened":
        return "needs --as-happened: a success with the receipt that an attempt has recorded"
    return "needs --as-happened: a success that nothing verifies, in your name"


def _never_sent(action: Mapping[str, Any], sent: str) -> bool:
    return sent == "nothing" and not action["in_doubt"]


def _reason(reason: str | None) -> str | None:
    reason = (reason or "").strip()
    if len(reason) > REASON_CHARS_MAX:
        raise ArgumentError(f"at most {REASON_CHARS_MAX} characters.", path="reason", code="usage")
    return reason or None
