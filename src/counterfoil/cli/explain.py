"""Decides how an action is explained: what is known and from which evidence, what comes next and by when, who must act.

Pure: takes rows and the contract in force, reads nothing, and names no argument.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from datetime import datetime, timedelta
from typing import assert_never

from counterfoil.cli.evidence import Row, Sentence, past
from counterfoil.cli.output import clean, distance, stamp
from counterfoil.cli.words import MEANS
from counterfoil.ledger.states import SETTLED, State
from counterfoil.people.amounts import money
from counterfoil.providers.contract import Contract
from counterfoil.reconciler.verdict import ABSENCES_APART_MIN_S, ABSENCES_NEEDED


@dataclass(frozen=True, slots=True, kw_only=True)
class Terms:
    """What holds for the action's tool here. `contract` is None where the tool, in its version, is not loaded."""

    contract: Contract | None
    attempts_max: int | None = None
    ttl_margin_s: float = 0.0
    """A native key is not trusted for this long before its end."""
    uncertain_after_s: float = 0.0
    """The first look-up waits until the outcome has been unknown for this long."""
    can_fetch: bool = False
    """The provider can be asked about an object that a person names."""


NOBODY = (Sentence("person", "Nobody."),)
OVERDUE = timedelta(seconds=15)
"""A worker that runs claims what is due within this, unless all are busy."""
"""Told where no person must act."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Explanation:
    """Sentences, a fact each. `person` is empty where nobody needs to act."""

    what: str
    state: str
    known: list[Sentence]
    next: list[Sentence]
    person: list[Sentence]

    def to_json(self) -> dict[str, object]:
        """The same, for programs."""
        return asdict(self)


def explain(
    action: Row,
    attempts: Sequence[Row],
    history: Sequence[Row],
    terms: Terms,
    *,
    decisions: Sequence[Row] = (),
    approval: Row | None = None,
) -> Explanation:
    """From a row of `show_action`, its attempts and its history, with `evidence` where the login may read it.

    `decisions` are what people said about its proposal, `approval` is its own, where the login may read it.
    """
    return Explanation(
        what=_what(action),
        state=f"{clean(action['state'])}: {MEANS[State(action['state'])]}",
        known=past(action, attempts, history, decisions, approval),
        next=[*_next(action, terms), *_limits(action, terms), *_unused(action, approval)],
        person=list(_person(action, history)),
    )


def _what(action: Row) -> str:
    amount = ""
    if action["amount_minor"] is not None:
        amount = f", {clean(money(action['amount_minor'], action['currency']))}"
    return (
        f"{clean(action['tool'])}: {clean(action['effect'])} on {clean(action['target'])}{amount},"
        f" for run {clean(action['run'])}, step {clean(action['step'])}"
    )


def _next(action: Row, terms: Terms) -> Iterator[Sentence]:
    """What happens without a person, and by when."""
    state = State(action["state"])
    match state:
        case State.PROPOSED if action["next_lookup_at"] is not None:
            yield _due(
                "A worker reads the version of what it changes", action["next_lookup_at"], action, when="from {} on"
            )
        case State.PROPOSED:
            approved = action.get("proposal_state") == "approved"
            yield _due(_TURN if approved else "Its plan is decided, or it expires", _decide_by(action), action)
        case State.AWAITING_APPROVAL:
            yield _due("Nothing is sent until it is approved; undecided, it expires", _decide_by(action), action)
        case State.READY:
            again = "sends it again under the same key" if action["in_doubt"] else "claims and sends it"
            yield _due(f"A worker {again}", action["ready_at"], action, when="from {} on")
        case State.RETRYABLE_FAILURE:
            made = _attempt_after(action, terms)
            yield _due(f"A worker makes {made}", action["ready_at"], action, when="from {} on")
        case State.EXECUTING:
            yield _due("The worker records the answer; its lease ends", action["lease_until"], action)
            yield Sentence("next", "If the lease ends without an answer, the outcome is unknown and is looked up.")
        case State.UNCERTAIN:
            yield from _next_look(action, terms)
        case State.RECONCILING:
            yield _due("The look-up's answer is judged; its lease ends", action["lease_until"], action)
            yield Sentence("next", "If the lease ends without an answer, the provider is asked again.")
        case State.OPERATOR_REVIEW:
            yield Sentence("next", "Nothing happens by itself.")
        case State.SUCCEEDED:
            yield Sentence("next", _SETTLED[state] + _taken_back(action))
            yield from _watched(action)
        case _:
            yield Sentence("next", _SETTLED[state])
            yield from _watched(action)


def _watched(action: Row) -> Iterator[Sentence]:
    """That it is looked up again, in case that its end was wrong."""
    if action.get("watch_at") is not None:
        yield _due("A reconciler looks it up once more", action["watch_at"], action, when="from {} on")


_TURN = "It is approved, and its turn comes when the step before it has succeeded; unclaimed, it expires"


def _decide_by(action: Row) -> datetime | None:
    at: datetime | None = action.get("decide_by") or action["deadline_at"]
    return at


def _unused(action: Row, approval: Row | None) -> Iterator[Sentence]:
    """Until when the first claim may use the approval."""
    if approval is not None and approval["consumed_at"] is None and State(action["state"]) not in SETTLED:
        told = f"Its approval serves until {_time(approval['expires_at'], action)}, for its first claim alone."
        yield Sentence("limit", told, approval["expires_at"])


_SETTLED = {
    State.SUCCEEDED: "Nothing: it is settled.",
    State.PERMANENT_FAILURE: "Nothing: it is settled, and is never sent again.",
    State.NOT_EXECUTED: "Nothing: it is settled, and is never sent again.",
    State.CANCELLED: "Nothing: it is settled, and is never sent.",
    State.STALE: "Nothing: it is settled, and is never sent.",
    State.COMPENSATED: "Nothing: it is settled, and was taken back.",
}


def _taken_back(action: Row) -> str:
    """What taking the run back would do with what was done."""
    if action.get("phase", "do") != "do" or action.get("class") == "pure":
        return ""
    if action.get("class") == "irreversible":
        return " Taking its run back would not undo it, since nothing does: a person decides what those who saw it are told."
    return " Taking its run back would compensate it."


def _next_look(action: Row, terms: Terms) -> Iterator[Sentence]:
    at: datetime = action["next_lookup_at"]
    if not action["lookup_count"] and action["uncertain_since"] is not None:
        at = max(at, action["uncertain_since"] + timedelta(seconds=terms.uncertain_after_s))
    contract = terms.contract
    if contract is None or contract.lookup:
        yield _due("The provider is asked what it holds under the key", at, action, when="at {}")
    elif contract.native_key_ttl_s is not None:
        yield _due(
            "The tool has no look-up: it is sent again under the same key while that holds", at, action, when="at {}"
        )
    else:
        yield _due("The tool has neither a look-up nor a key: it goes to a person", at, action, when="at {}")


def _limits(action: Row, terms: Terms) -> Iterator[Sentence]:
    """The windows and wishes that decide what the evidence may become."""
    state = State(action["state"])
    if state in SETTLED:
        return
    if state in (State.UNCERTAIN, State.RECONCILING):
        yield from _windows(action, terms)
    if action["in_doubt"] and state is not State.OPERATOR_REVIEW:
        yield Sentence("limit", "While it is in doubt it is not cancelled, expired or failed: only evidence ends it.")
    if action["no_resend"]:
        yield Sentence("limit", "Nothing is sent again, whatever a look-up finds.")
    if action["cancel_requested_at"] is not None:
        yield Sentence("limit", "A cancel was asked for.", action["cancel_requested_at"])
    if action["deadline_at"] is not None and state in _CLAIMABLE:
        told = f"No attempt begins after its run's deadline, {_time(action['deadline_at'], action)}."
        yield Sentence("limit", told, action["deadline_at"])


_CLAIMABLE = (State.READY, State.RETRYABLE_FAILURE)


def _windows(action: Row, terms: Terms) -> Iterator[Sentence]:
    """From when on an empty answer counts, and until when the key answers."""
    contract = terms.contract
    if contract is None:
        yield Sentence("limit", "Its tool is not loaded here, so its windows are not known here.")
        return
    if contract.lookup and action["quiet_from"] is not None:
        yield from _absence(action, contract)
    if contract.native_key_ttl_s is not None and action["first_sent_at"] is not None:
        ends = action["first_sent_at"] + timedelta(seconds=contract.native_key_ttl_s - terms.ttl_margin_s)
        if ends > action["now"]:
            told = f"Until {_time(ends, action)} its key is trusted to answer a resend."
        else:
            told = f"Its key is not trusted since {_time(ends, action)}: before a resend, absence must be proved."
        yield Sentence("limit", told, ends)
    if action["in_doubt"] and contract.native_key_ttl_s is not None and not contract.lookup:
        yield Sentence("limit", "Repeats of its key are its look-ups, and use up no attempts.")
    elif terms.attempts_max is not None and not action["no_resend"]:
        left = max(terms.attempts_max - action["attempt_count"], 0)
        yield Sentence("limit", f"{left} of {terms.attempts_max} attempts are left.")


def _absence(action: Row, contract: Contract) -> Iterator[Sentence]:
    opens = action["quiet_from"] + timedelta(seconds=contract.landing_max_s + contract.lookup_lag_s)
    needs = f"what was sent needs up to {contract.landing_max_s:g} s to land"
    if contract.lookup_lag_s:
        needs += f" and {contract.lookup_lag_s:g} s to become visible"
    counts = "from {} on" if opens > action["now"] else "since {}"
    yield Sentence("limit", f"An empty look-up counts {counts.format(_time(opens, action))}: {needs}.", opens)
    counted = min(action["absent_count"], ABSENCES_NEEDED)
    apart_s = max(contract.lookup_lag_s, ABSENCES_APART_MIN_S)
    mean = "prove that it was not done" if contract.absence_is_proof else "leave it to a person"
    yield Sentence(
        "limit",
        f"{ABSENCES_NEEDED} that count, {apart_s:g} s apart, {mean}; {counted} so far.",
    )


def _person(action: Row, history: Sequence[Row]) -> Iterator[Sentence]:
    """Who must act, and why."""
    state = State(action["state"])
    match state:
        case State.OPERATOR_REVIEW:
            last = next((row["reason"] for row in reversed(history) if row["to_state"] == state), None)
            told = why(action["last_error_code"], clean(last) if last else "")
            yield Sentence("person", f"An operator must decide it: {told}.")
        case State.AWAITING_APPROVAL:
            who = "Two persons" if action.get("people") == 2 else "A person"
            yield Sentence(
                "person", f"{who} other than its actor must approve or reject exactly this intent{_of(action)}."
            )
        case State.PROPOSED if action["next_lookup_at"] is not None or action.get("proposal_state") == "approved":
            return
        case State.PROPOSED:
            yield Sentence("person", f"Whoever decides its plan{_of(action)}.")
        case State.READY | State.RETRYABLE_FAILURE:
            due: datetime | None = action["ready_at"]
            if due is not None and action["now"] - due > OVERDUE:
                yield Sentence("person", _OVERDUE)
        case (
            State.EXECUTING
            | State.UNCERTAIN
            | State.RECONCILING
            | State.SUCCEEDED
            | State.PERMANENT_FAILURE
            | State.NOT_EXECUTED
            | State.CANCELLED
            | State.STALE
            | State.COMPENSATED
        ):
            return
        case _:
            assert_never(state)


_OVERDUE = (
    "Whoever runs the workers, if it stays so: does a pause or a limit hold its queue back, which `counterfoil outbox list`"
    " says? Does a worker run that has this tool, and can it use the provider? A secret that it cannot read is"
    " `provider_unusable` in its log."
)


_WHY = {
    "many_found": "the provider holds several objects under its key",
    "mismatch": "what the provider holds under its key is not what was intended",
    "found_unsettled": "the provider holds it, and is not done with it yet",
    "absent": "it is proved that it was not done",
    "no_lookup": "the tool has no look-up, and no key that still answers",
    "credentials_changed": "its credentials or address have changed since it was sent, so nobody can ask where it went",
    "idempotency_mismatch": "the provider knows its key with other parameters",
    "policy_mismatch": "the row is not what the worker's own tools and settings say that it should be",
    "approval_mismatch": "nobody has approved exactly what it says",
    "cap_reached": "it is more than the configured caps allow",
    "bulk_unapproved": "it is one of several that nothing takes back, and nobody has approved it",
    "found_after_all": "it had ended without an effect, and a later look-up has found one",
    "late_success": "an answer came after it had been settled: it was done all the same",
    "uncertain_too_long": "its provider answers, and look-ups have not settled it for as long as uncertain_max_s",
    "unreachable": "its account or secret is not configured where look-ups are made, so nobody could ask",
    "no_worker": "in doubt, and no worker has its tool in this version, or its account",
    "tool_unknown": "no reconciler has its tool in this version",
    "unreadable": "its recorded arguments cannot be read",
}
"""`last_error_code` of a row that waits for an operator."""


def why(code: str | None, otherwise: str = "") -> str:
    """Why an action with this `last_error_code` waits for an operator."""
    return _WHY.get(str(code), otherwise or clean(code))


def _of(action: Row) -> str:
    return f": `counterfoil proposal show {action['proposal_id']}`" if action.get("proposal_id") else ""


def _attempt_after(action: Row, terms: Terms) -> str:
    is_over = terms.attempts_max is None or action["attempt_count"] >= terms.attempts_max
    of = "" if is_over else f" of {terms.attempts_max}"
    return f"attempt {action['attempt_count'] + 1}{of}"


def _due(what: str, at: datetime | None, action: Row, *, when: str = "by {}") -> Sentence:
    """What happens next, with the time that it waits for."""
    if at is None:
        return Sentence("next", f"{what}; no time is set.")
    if at <= action["now"]:
        when = "; it is due since {}"
    else:
        when = f" {when}"
    return Sentence("next", f"{what}{when.format(_time(at, action))}.", at)


def _time(at: datetime, action: Row) -> str:
    return f"{stamp(at)} ({distance(at, action['now'])})"
