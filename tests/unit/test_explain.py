"""What `action explain` says: every state, every kind of evidence, every window, in sentences that hold no argument."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from counterfoil.cli.evidence import past, receipts_in
from counterfoil.cli.explain import Terms, explain
from counterfoil.cli.words import MEANS, what_next
from counterfoil.ledger.states import SETTLED, State
from counterfoil.providers.contract import Contract
from counterfoil.providers.outcomes import Absent, Finding, Found, Many, Rejected, Succeeded, Uncertain, Unknown
from counterfoil.reconciler.conclusions import evidence_of

T0 = datetime(2026, 11, 30, 10, 0, tzinfo=UTC)
EXACT = Contract(native_key_ttl_s=86_400, lookup=True, landing_max_s=120)
LAGGING = Contract(lookup=True, lookup_lag_s=60, landing_max_s=120)
BLIND = Contract()


def at(seconds: float) -> datetime:
    return T0 + timedelta(seconds=seconds)


UNSET = [
    "parent_action_id",
    "deadline_at",
    "ready_at",
    "lease_until",
    "quiet_from",
    "first_sent_at",
    "uncertain_since",
    "next_lookup_at",
    "last_error_code",
    "cancel_requested_at",
]


def action(state: State | str, **changes: Any) -> dict[str, Any]:
    """A row of `show_action`, 100 s after it was recorded."""
    row: dict[str, Any] = {
        **dict.fromkeys(UNSET),
        "action_id": "act_a",
        "run": "r1",
        "step": "2",
        "tool": "stripe_charge",
        "effect": "charge",
        "target": "1182",
        "actor": "bot",
        "amount_minor": 500,
        "currency": "usd",
        "created_at": T0,
        "state": state,
        "attempt_count": 1,
        "absent_count": 0,
        "lookup_count": 0,
        "in_doubt": False,
        "no_resend": False,
        "now": at(100),
    }
    if state in ("uncertain", "reconciling"):
        row |= {"in_doubt": True, "quiet_from": at(10), "first_sent_at": at(1), "uncertain_since": at(10)}
    return row | changes


def attempt(number: int = 1, outcome: str | None = "uncertain", code: str | None = "http_504") -> dict[str, Any]:
    finished = None if outcome is None else at(number + 0.5)
    row = {"number": number, "worker": "w1", "started_at": at(number), "finished_at": finished}
    return row | {"outcome": outcome, "code": code}


def move(seconds: float, before: str | None, after: str, reason: str = "", evidence: str | None = None) -> Any:
    row = {"at": at(seconds), "from_state": before, "to_state": after, "reason": reason, "changed_by": "beat"}
    return row | ({} if evidence is None else {"evidence": evidence})


def text_of(sentences: list[Any]) -> str:
    return " ".join(sentence.text for sentence in sentences)


def said(row: dict[str, Any], contract: Contract | None = EXACT, **more: Any) -> Any:
    terms = Terms(contract=contract, attempts_max=5, ttl_margin_s=21_600, uncertain_after_s=5)
    return explain(row, more.get("attempts", ()), more.get("history", ()), terms)


DECIDED = {"verdict": "approved", "by_person": "alice", "db_role": "op", "channel": "cli", "at": at(20)}


def test_who_decided_is_told() -> None:
    """Name, login, channel and verdict; digest and reason where the login may read them; and when it was used."""
    row = action("executing", proposal_id="P-A", proposal_state="approved", lease_until=at(160))
    terms = Terms(contract=EXACT)
    approval = {"carried_from": None, "consumed_at": at(30), "expires_at": at(900), "created_at": at(20)}
    told = [sentence.text for sentence in explain(row, (), (), terms, decisions=[DECIDED], approval=approval).known]
    assert told[1:] == [
        "alice (login op, by cli) approved it.",
        "Its approval was used by its first claim: it serves no other.",
    ]
    full = {**DECIDED, "digest": "ab" * 32, "reason": "fine"}
    unused = {**approval, "consumed_at": None, "carried_from": "apr_1"}
    said = explain(action("ready", ready_at=at(90)), (), (), terms, decisions=[full], approval=unused)
    assert f"approved it over {'ab' * 8}: fine." in text_of(said.known)
    assert "within the bounds of an earlier approval" in text_of(said.known)
    assert "Its approval serves until 2026-11-30T10:15:00Z" in text_of(said.next)


def test_an_approved_step_waits_for_its_turn() -> None:
    """Before the decision whoever decides its plan must act; after it nobody."""
    row = action("proposed", proposal_id="P-A", decide_by=at(160))
    before = said(row | {"proposal_state": "open", "people": 2})
    assert [s.text for s in before.person] == ["Whoever decides its plan: `counterfoil proposal show P-A`."]
    after = said(row | {"proposal_state": "approved"})
    assert after.person == []
    assert "its turn comes when the step before it has succeeded" in text_of(after.next)


NEXT: dict[State, tuple[dict[str, Any], str]] = {
    State.PROPOSED: ({"deadline_at": at(160)}, "Its plan is decided, or it expires by 2026-11-30T10:02:40Z (in 1 min)."),
    State.AWAITING_APPROVAL: ({}, "Nothing is sent until it is approved; undecided, it expires; no time is set."),
    State.READY: ({"ready_at": at(104)}, "A worker claims and sends it from 2026-11-30T10:01:44Z (in 4 s) on."),
    State.RETRYABLE_FAILURE: ({"ready_at": at(104)}, "A worker makes attempt 2 of 5 from 2026-11-30T10:01:44Z (in 4 s) on."),
    State.EXECUTING: ({"lease_until": at(130)}, "its lease ends by 2026-11-30T10:02:10Z (in 30 s)."),
    State.UNCERTAIN: ({"next_lookup_at": at(107)}, "holds under the key at 2026-11-30T10:01:47Z (in 7 s)."),
    State.RECONCILING: ({"lease_until": at(99)}, "its lease ends; it is due since 2026-11-30T10:01:39Z (1 s ago)."),
    State.OPERATOR_REVIEW: ({}, "Nothing happens by itself."),
}  # fmt: skip


@pytest.mark.parametrize("state", sorted(State))
def test_every_state_says_what_comes_next_and_by_when(state: State) -> None:
    """The time that the row waits for is named, with how far away it is; a settled row waits for nothing."""
    changes, expected = NEXT.get(state, ({}, "Nothing: it is settled"))
    explanation = said(action(state, **changes))
    assert expected in text_of(explanation.next)
    assert (state in NEXT) is (state not in SETTLED)
    assert explanation.state == f"{state}: {MEANS[state]}"
    assert explanation.what == "stripe_charge: charge on 1182, 5.00 USD, for run r1, step 2"


@pytest.mark.parametrize(
    ("of", "expected"),
    [
        ({"class": "compensatable", "phase": "do"}, "Taking its run back would compensate it."),
        ({"class": "irreversible", "phase": "do"}, "would not undo it, since nothing does: a person decides"),
        ({"class": "pure", "phase": "do"}, "Nothing: it is settled."),
        ({"class": "compensatable", "phase": "undo"}, "Nothing: it is settled."),
    ],
)
def test_a_success_says_what_taking_it_back_would_do(of: dict[str, str], expected: str) -> None:
    """Only what something undoes is said to be compensated."""
    [told] = said(action(State.SUCCEEDED, **of)).next
    assert told.text.endswith(expected) or expected in told.text
    assert ("compensate" in told.text) is ("compensate" in expected)


@pytest.mark.parametrize("state", sorted(State))
def test_a_person_is_named_exactly_where_one_must_act(state: State) -> None:
    """Operators, approvers and whoever decides a plan; nobody is asked for what ends by itself."""
    changes = NEXT.get(state, ({}, ""))[0]
    waits = state in (State.OPERATOR_REVIEW, State.AWAITING_APPROVAL, State.PROPOSED)
    assert bool(said(action(state, **changes)).person) is waits


def test_a_version_to_be_read_is_a_worker_s() -> None:
    """While its resource's version is unread, nobody decides it: a worker reads, and by when is told."""
    row = action("proposed", next_lookup_at=at(104), now=at(100))
    explanation = said(row)
    expected = "A worker reads the version of what it changes from 2026-11-30T10:01:44Z (in 4 s) on."
    assert (text_of(explanation.next), explanation.person) == (expected, [])
    assert what_next(row).startswith("a worker reads the version of what it changes in 4 s")


@pytest.mark.parametrize(
    ("code", "why"),
    [
        ("many_found", "the provider holds several objects under its key"),
        ("mismatch", "what the provider holds under its key is not what was intended"),
        ("late_success", "an answer came after it had been settled: it was done all the same"),
        (None, "compensation ended without an effect"),
        ("new_code", "compensation ended without an effect"),
    ],
)
def test_an_operator_is_told_why(code: str | None, why: str) -> None:
    """By the code where it is a known one, else by the history's reason."""
    history = [move(50, "permanent_failure", "operator_review", "compensation ended without an effect")]
    told = said(action("operator_review", last_error_code=code), history=history).person
    assert [sentence.text for sentence in told] == [f"An operator must decide it: {why}."]


NOTHING = "showed nothing under its key"
NONE = "was not possible: the tool has none"
REPEATED = "it is sent again under the same key, which the provider answers from its store if it was done"
EARLY = "which counts for nothing yet: a request may still land or become visible"
FINDINGS: list[tuple[Finding | None, str, str, str]] = [
    (Found(Succeeded("pi_1")), "succeeded", "found", "found it (pi_1): it is done"),
    (
        Found(Rejected("card_declined")),
        "permanent_failure",
        "found out",
        "found it (as card_declined): it was not done, and is not sent again",
    ),
    (
        Found(Uncertain("processing")),
        "uncertain",
        "processing",
        "found it, not settled yet (as processing); the provider is asked again",
    ),
    (Found(Succeeded("pi_1")), "operator_review", "mismatch", "found it (pi_1): a person must judge (mismatch)"),
    (Absent(), "uncertain", "absent_too_early", f"{NOTHING}, {EARLY}"),
    (Absent(), "uncertain", "absent_once", f"{NOTHING}: one of the two that prove absence is counted"),
    (Absent(), "ready", "absence earned", f"{NOTHING}, which is proof by now: it may be sent again"),
    (Absent(), "ready", "the key answers a resend", f"{NOTHING}: {REPEATED}"),
    (
        Absent(),
        "not_executed",
        "absence earned, no attempt left",
        f"{NOTHING}, which is proof by now: it was not done, and no attempt is left",
    ),
    (Absent(), "permanent_failure", "found out", f"{NOTHING}: it was not done, and is not sent again"),
    (Absent(), "operator_review", "absent", f"{NOTHING}: a person must judge (absent)"),
    (
        Many(("pi_1", "pi_2")),
        "operator_review",
        "many_found",
        "showed several under its key (pi_1,pi_2): a person must judge (many_found)",
    ),
    (
        Unknown("http_503"),
        "uncertain",
        "http_503",
        "failed (http_503), which proves nothing; the provider is asked again",
    ),
    (None, "ready", "the key answers a resend", f"{NONE}: {REPEATED}"),
    (None, "operator_review", "no_lookup", f"{NONE}: a person must judge (no_lookup)"),
]


@pytest.mark.parametrize(("finding", "after", "reason", "expected"), FINDINGS)
def test_every_finding_is_told_with_its_time_and_what_followed(
    finding: Finding | None, after: str, reason: str, expected: str
) -> None:
    """From the evidence that the reconciler itself writes."""
    looked: Any = type("Looked", (), {"lookup_count": 1, "as_of": at(20), "asked_by": None})
    history = [
        move(20, "uncertain", "reconciling", "look-up"),
        move(21, "reconciling", after, reason, evidence_of(looked, finding)),
    ]
    [told] = [s for s in past(action(after), [], history) if s.about == "look_up"]
    assert (told.text, told.at) == (f"Look-up 1, as of this time, {expected}.", at(20))


@pytest.mark.parametrize(
    ("after", "reason", "expected"),
    [
        ("succeeded", "found", "found it: it is done"),
        ("operator_review", "many_found", "showed several under its key: a person must judge (many_found)"),
        ("uncertain", "absent_once", f"{NOTHING}: one of the two that prove absence is counted"),
        ("uncertain", "http_503", "settled nothing (http_503); the provider is asked again"),
        ("permanent_failure", "found out", "settled nothing (found out): it was not done, and is not sent again"),
    ],
)
def test_a_reader_is_told_by_what_followed(after: str, reason: str, expected: str) -> None:
    """Logins that may not read receipts get no evidence; what came of the look-up still tells."""
    history = [move(20, "uncertain", "reconciling"), move(21, "reconciling", after, reason)]
    assert f"Look-up 1, as of this time, {expected}." in text_of(past(action(after), [], history))


@pytest.mark.parametrize(
    ("finding", "after", "reason", "expected"),
    [
        (Found(Succeeded("pi_1")), "succeeded", "found", "found it (pi_1; asked by alice): it is done"),
        (Absent(), "operator_review", "not_found", "was for an object that the provider does not have, or that"),
        (
            Unknown("other_key"),
            "operator_review",
            "other_key",
            "was for an object that this action has not made",
        ),
        (Absent(), "operator_review", "too_early", f"{NOTHING}: a person must judge (too_early)"),
        (None, "not_executed", "a person's word; nobody can be asked", f"{NONE}, and a person vouches for it"),
        (Absent(), "not_executed", "a person's word, and absent", f"{NOTHING}, and a person vouches for it"),
    ],
)
def test_what_a_person_asks_for_is_told(finding: Finding | None, after: str, reason: str, expected: str) -> None:
    """Who had the provider asked, that this was no look-up yet, and what it led to; a reader is told the same."""
    looked: Any = type("Looked", (), {"lookup_count": 1, "as_of": at(20), "asked_by": "alice"})
    history = [
        move(18, "operator_review", "reconciling", "not happened") | {"changed_by": "alice"},
        move(19, "reconciling", "uncertain", "look-up lapsed"),
        move(20, "uncertain", "reconciling", "look-up"),
        move(21, "reconciling", after, reason, evidence_of(looked, finding)),
    ]
    told = past(action(after), [], history)
    assert "alice said that it did not happen: the provider is asked." in text_of(told)
    [look_up] = [s.text for s in told if s.about == "look_up"]
    assert look_up.startswith(f"Look-up 1, as of this time, {expected}")
    if after == "not_executed":
        del history[-1]["evidence"]
        assert f"Look-up 1, as of this time, {expected}" in text_of(past(action(after), [], history))


def test_receipts_are_read_from_the_evidence() -> None:
    """What several look-ups came upon is what a person may choose from."""
    looked: Any = type("Looked", (), {"lookup_count": 1, "as_of": at(20), "asked_by": "alice"})
    assert receipts_in(evidence_of(looked, Many(("pi_1", "pi_2")))) == ["pi_1", "pi_2"]
    assert receipts_in(evidence_of(looked, Found(Succeeded("pi_1")))) == ["pi_1"]
    for nothing in (Absent(), Unknown("http_503"), None, Found(Rejected("card_declined"))):
        assert receipts_in(evidence_of(looked, nothing)) == []
    assert receipts_in(None) == []


def test_look_ups_that_have_no_end_yet_or_lost_it() -> None:
    """One under way, one whose reconciler died."""
    history = [
        move(20, "uncertain", "reconciling"),
        move(80, "reconciling", "uncertain", "look-up lapsed"),
        move(81, "uncertain", "reconciling"),
    ]
    told = [s.text for s in past(action("reconciling"), [], history) if s.about == "look_up"]
    assert told == [
        "Look-up 1, as of this time, ended without an answer to us: the reconciler died or was too slow.",
        "Look-up 2, as of this time, is under way.",
    ]


@pytest.mark.parametrize(
    ("outcome", "expected"),
    [
        ("succeeded", "was answered with a receipt after 0.5 s."),
        ("rejected", "was refused by the provider (x) after 0.5 s: it did nothing."),
        ("not_sent", "could not be sent (x) after 0.5 s: nothing left."),
        ("uncertain", "ended without an answer that proves anything (x) after 0.5 s: it may have taken effect."),
        ("let_go", "was given back (x) after 0.5 s, before anything was sent."),
    ],
)
def test_every_outcome_of_an_attempt_is_told(outcome: str, expected: str) -> None:
    """With its worker and how long it took."""
    assert f"Attempt 1, by w1, {expected}" in text_of(past(action("succeeded"), [attempt(1, outcome, "x")], []))


def test_an_attempt_without_an_answer_is_under_way_or_lost() -> None:
    """The row's newest attempt while it executes has time; any other never gets an answer."""
    running = action("executing", attempt_count=2, lease_until=at(130))
    first, second = (s.text for s in past(running, [attempt(1, None), attempt(2, None)], []) if s.about == "attempt")
    assert first == "Attempt 1 was with w1 and left no answer: what was sent may have taken effect."
    assert second == "Attempt 2 is with w1, and has no answer yet."


def test_the_past_is_told_in_order_and_once() -> None:
    """Moves that an attempt or a look-up tells are not told again; a lost lease and a person's wish are."""
    history = [
        move(0, None, "ready", "recorded"),
        move(1, "ready", "executing", "claimed"),
        move(5, "executing", "uncertain", "outcome unknown"),
        move(6, "uncertain", "reconciling"),
        move(7, "reconciling", "ready", "absence earned"),
        move(8, "ready", "executing", "claimed"),
        move(60, "executing", "uncertain", "lease lapsed"),
        move(61, "uncertain", "operator_review", "given up at the desk"),
    ]
    told = past(action("operator_review"), [attempt(1), attempt(8, None)], history)
    assert [(s.about, s.at) for s in told] == [
        ("intent", at(0)),
        ("attempt", at(1)),
        ("look_up", at(6)),
        ("attempt", at(8)),
        ("move", at(60)),
        ("move", at(61)),
    ]
    assert told[0].text == "It was recorded by bot, before anything was sent."
    assert "the worker died or was too slow" in told[4].text
    assert told[5].text == "Uncertain became operator_review: given up at the desk (by beat)."


def test_a_counter_action_says_what_it_is_about() -> None:
    """By the id of the other action."""
    [told] = past(action("ready", parent_action_id="act_b"), [], [])
    assert told.text == "It was recorded by bot, about act_b, before anything was sent."


@pytest.mark.parametrize(
    ("contract", "changes", "expected"),
    [
        (
            LAGGING,
            {},
            "2026-11-30T10:03:10Z (in 2 min) on: what was sent needs up to 120 s to land and 60 s to become visible.",
        ),
        (LAGGING, {}, "2 that count, 60 s apart, prove that it was not done; 0 so far."),
        (
            EXACT,
            {"quiet_from": at(-60)},
            "counts since 2026-11-30T10:01:00Z (40 s ago): what was sent needs up to 120 s to land.",
        ),
        (EXACT, {"absent_count": 1}, "2 that count, 1 s apart, prove that it was not done; 1 so far."),
        (EXACT, {}, "Until 2026-12-01T04:00:01Z (in 18 h) its key is trusted to answer a resend."),
        (
            EXACT,
            {"first_sent_at": at(-90_000)},
            "Its key is not trusted since 2026-11-30T03:00:00Z (7 h ago): before a resend,",
        ),
        (EXACT, {}, "4 of 5 attempts are left."),
        (EXACT, {"attempt_count": 7}, "0 of 5 attempts are left."),
        (Contract(native_key_ttl_s=60), {"attempt_count": 7}, "Repeats of its key are its look-ups, and use up no"),
        (EXACT, {"no_resend": True}, "Nothing is sent again, whatever a look-up finds."),
        (EXACT, {}, "only evidence ends it."),
        (EXACT, {"cancel_requested_at": at(50)}, "A cancel was asked for."),
        (None, {}, "Its tool is not loaded here, so its windows are not known here."),
        (BLIND, {}, "The tool has neither a look-up nor a key: it goes to a person at"),
        (Contract(native_key_ttl_s=60), {}, "The tool has no look-up: it is sent again under the same key"),
    ],
)
def test_the_windows_of_an_unknown_outcome(contract: Contract | None, changes: dict[str, Any], expected: str) -> None:
    """When absence begins to count, when the key ends, what is left, computed from the contract in force."""
    explanation = said(action("uncertain", next_lookup_at=at(107), **changes), contract)
    assert expected in text_of(explanation.next)


@pytest.mark.parametrize("state", ["ready", "executing", "succeeded", "operator_review"])
def test_windows_are_told_only_while_the_outcome_is_unknown(state: str) -> None:
    """Elsewhere they decide nothing."""
    row = action(state, ready_at=at(104), lease_until=at(130), quiet_from=at(10), first_sent_at=at(1))
    assert "look-up counts" not in text_of(said(row).next)


def test_the_first_look_up_waits_for_the_threshold() -> None:
    """`uncertain_after_s` after the outcome became unknown, however soon the row says it is due."""
    row = action("uncertain", next_lookup_at=at(99), uncertain_since=at(99))
    assert "at 2026-11-30T10:01:44Z (in 4 s)" in text_of(said(row).next)
    assert "due since 2026-11-30T10:01:39Z" in text_of(said(row | {"lookup_count": 1}).next)


def test_a_deadline_is_told_while_an_attempt_may_begin() -> None:
    """And the resend of a row in doubt is told as one."""
    row = action("ready", ready_at=at(99), deadline_at=at(3700), in_doubt=True)
    told = text_of(said(row).next)
    assert "A worker sends it again under the same key; it is due since 2026-11-30T10:01:39Z (1 s ago)." in told
    assert "No attempt begins after its run's deadline, 2026-11-30T11:01:40Z (in 1 h)." in told


@pytest.mark.parametrize("state", ["ready", "retryable_failure"])
def test_what_no_worker_takes_is_somebodys(state: str) -> None:
    """Due for longer than a worker takes: those who run them must look. Until then nobody must act."""
    assert said(action(state, ready_at=at(90))).person == []
    [person] = said(action(state, ready_at=at(80))).person
    assert "Whoever runs the workers, if it stays so" in person.text


def test_every_sentence_ends_and_none_is_hostile() -> None:
    """Text from models and providers is inert, and each fact is one sentence."""
    evil = "x\x1b[2J\nact_fake\u202e"
    row = action("operator_review", target=evil, step=evil, actor=evil, last_error_code=evil, currency=evil)
    history = [move(1, None, "ready"), move(2, "uncertain", "operator_review", evil)]
    explanation = said(row, attempts=[attempt(1, "uncertain", evil)], history=history)
    told = [*explanation.known, *explanation.next, *explanation.person]
    assert all(sentence.text.endswith(".") for sentence in told)
    everything = explanation.what + explanation.state + text_of(told)
    assert not set(everything) & set("\x1b\n\u202e")
