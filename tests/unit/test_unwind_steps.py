"""What an unwind has to do with a step, alone and beside the later steps that are about it."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from counterfoil.ledger.states import SETTLED, UNSETTLED, State
from counterfoil.ledger.unwind_steps import Standing, Step, in_order, standing, standings, told, why

START = datetime(2026, 1, 1, tzinfo=UTC)
ENDED = (State.PERMANENT_FAILURE, State.NOT_EXECUTED, State.CANCELLED, State.STALE)


def step(name: str = "a", age: int = 0, **changes: Any) -> Step:
    """A charge that has succeeded, and can be taken back."""
    made = Step(
        action_id=name,
        tenant="acme",
        run="r1",
        step=name,
        revision=1,
        superseded=False,
        tool="charge",
        class_="compensatable",
        parent_id=None,
        state=State.SUCCEEDED,
        in_doubt=False,
        cancel_requested=False,
        last_error_code=None,
        audience=("finance",),
        undo_tool="refund",
        created_at=START + timedelta(seconds=age),
        undo_id=None,
        undo_state=None,
        undo_revision=None,
        undo_error_code=None,
        undo_by_person=False,
        correction_id=None,
        correction_state=None,
        message_id=None,
        message_state=None,
        message_error_code=None,
    )
    return replace(made, **changes)


def hold(**changes: Any) -> Step:
    return step("hold", 0, class_="reversible", undo_tool="release", **changes)


def capture(**changes: Any) -> Step:
    return step("capture", 1, parent_id="hold", **changes)


def pair(child: Step, **changes: Any) -> tuple[Standing, Standing]:
    """Where the hold and what is about it stand, in whichever order they are given."""
    found = standings([hold(**changes), child])
    assert found == standings([child, hold(**changes)])
    return found["hold"], found[child.action_id]


SEEN = {"undo_tool": None, "class_": "irreversible", "audience": ("customer",)}


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        pytest.param({}, Standing.CORRECT, id="to be queued"),
        pytest.param({"correction_state": "open"}, Standing.PERSON, id="queued"),
        pytest.param({"correction_state": "dismissed"}, Standing.KEPT, id="dismissed"),
        pytest.param({"correction_state": "sent", "message_state": State.READY}, Standing.CORRECTING, id="on its way"),
        pytest.param({"correction_state": "sent", "message_state": State.UNCERTAIN}, Standing.CORRECTING, id="unknown"),
        pytest.param({"correction_state": "sent", "message_state": State.SUCCEEDED}, Standing.KEPT, id="sent"),
        pytest.param(
            {"correction_state": "sent", "message_state": State.OPERATOR_REVIEW}, Standing.PERSON, id="in review"
        ),
        pytest.param({"correction_state": "open", "message_state": State.CANCELLED}, Standing.PERSON, id="open again"),
        pytest.param({"audience": ()}, Standing.KEPT, id="nobody saw it"),
        pytest.param({"audience": ("agent",)}, Standing.KEPT, id="the agent alone saw it"),
        pytest.param({"audience": ("agent", "team")}, Standing.CORRECT, id="the team saw it"),
        pytest.param({"audience": (), "superseded": True}, Standing.CORRECT, id="replaced and found after all"),
        pytest.param({"superseded": True, "undo_tool": "refund"}, Standing.CORRECT, id="replaced, with an undo"),
        pytest.param({"state": State.CANCELLED}, Standing.NOTHING, id="never sent"),
    ],
)
def test_what_nothing_takes_back(changes: dict[str, Any], expected: Standing) -> None:
    """It is a person's as long as anybody saw it and nobody has decided."""
    assert standing(step(**SEEN | changes)) is expected


@pytest.mark.parametrize(
    ("message", "expected"),
    [
        (None, Standing.NOTHING),
        (State.READY, Standing.CORRECTING),
        (State.SUCCEEDED, Standing.NOTHING),
        (State.STALE, Standing.NOTHING),
        (State.OPERATOR_REVIEW, Standing.PERSON),
    ],
)
def test_what_was_taken_back_and_is_told(message: State | None, expected: Standing) -> None:
    """An open correction of what is compensated blocks nothing; a message in review does."""
    assert standing(step(state=State.COMPENSATED, correction_state="open", message_state=message)) is expected


@pytest.mark.parametrize("state", sorted(UNSETTLED))
def test_the_hold_waits_for_its_capture(state: State) -> None:
    """While nobody knows what became of the capture, or nothing has, the hold is left alone."""
    assert pair(capture(state=state))[0] is Standing.CARRIED


@pytest.mark.parametrize(
    ("child", "expected"),
    [
        pytest.param({}, (Standing.CARRIED, Standing.COMPENSATE), id="captured"),
        pytest.param(
            {"undo_state": State.EXECUTING}, (Standing.CARRIED, Standing.COMPENSATING), id="refund on its way"
        ),
        pytest.param(
            {"undo_state": State.SUCCEEDED}, (Standing.CARRIED, Standing.COMPENSATED), id="refunded, unwritten"
        ),
        pytest.param({"state": State.COMPENSATED}, (Standing.COMPENSATED, Standing.NOTHING), id="refunded"),
        pytest.param({"undo_state": State.CANCELLED}, (Standing.CARRIED, Standing.REFUSED), id="refund refused"),
        pytest.param(
            {"undo_state": State.PERMANENT_FAILURE, "undo_by_person": True},
            (Standing.KEPT, Standing.KEPT),
            id="given up",
        ),
        pytest.param(SEEN, (Standing.CARRIED, Standing.CORRECT), id="irreversible"),
        pytest.param(SEEN | {"correction_state": "open"}, (Standing.CARRIED, Standing.PERSON), id="to be decided"),
        pytest.param(SEEN | {"correction_state": "dismissed"}, (Standing.KEPT, Standing.KEPT), id="dismissed"),
        *(pytest.param({"state": state}, (Standing.COMPENSATE, Standing.NOTHING), id=f"{state}") for state in ENDED),
    ],
)
def test_the_hold_goes_with_its_capture(child: dict[str, Any], expected: tuple[Standing, Standing]) -> None:
    """Captured: only the capture is taken back. Ended without effect: the hold is released as ever."""
    assert pair(capture(**child)) == expected


@given(state=st.sampled_from(sorted(State)), undo=st.none() | st.sampled_from(sorted(State)), by_person=st.booleans())
def test_a_captured_hold_is_never_released(state: State, undo: State | None, by_person: bool) -> None:
    """Whatever else holds: while the capture stands or may stand, no counter-action of the hold begins."""
    child = capture(state=state, undo_state=undo, undo_by_person=by_person)
    if pair(child)[0] is Standing.COMPENSATE:
        assert state in ENDED


def test_a_long_chain() -> None:
    """A thousand steps, each about the one before: the newest is taken back, the others wait for it."""
    chain = [step(f"s{n}", n, parent_id=f"s{n - 1}" if n else None) for n in range(1000)]
    stand = standings(chain)
    assert stand["s999"] is Standing.COMPENSATE
    assert {stand[f"s{n}"] for n in range(999)} == {Standing.CARRIED}


def test_a_note_carries_nothing_on() -> None:
    """A reversible step about a ticket, or any step about what was no staging, is taken back beside it, not instead."""
    note = capture(class_="reversible")
    assert pair(note) == (Standing.CARRIED, Standing.COMPENSATE)
    assert pair(replace(note, state=State.COMPENSATED)) == (Standing.COMPENSATE, Standing.NOTHING)
    about = standings([replace(hold(), class_="compensatable"), capture(state=State.COMPENSATED)])
    assert about["hold"] is Standing.COMPENSATE


def test_its_own_counter_action_decides() -> None:
    """A hold whose release is under way or done stands by that, whatever is found about a capture later."""
    assert pair(capture(state=State.OPERATOR_REVIEW), undo_state=State.SUCCEEDED)[0] is Standing.COMPENSATED
    assert pair(capture(state=State.OPERATOR_REVIEW), undo_state=State.UNCERTAIN)[0] is Standing.COMPENSATING


def test_in_order() -> None:
    """Inside first, then customers, the public, legal weight; the newest first; the later step before what it is about."""
    seen = {"p": "public", "c": "customer", "l": "legal", "t": "team", "f": "finance"}
    steps = [step(name, age, audience=("agent", who)) for age, (name, who) in enumerate(seen.items())]
    assert [s.action_id for s in in_order(steps)] == ["f", "t", "c", "p", "l"]
    assert [s.action_id for s in in_order([hold(), capture()])] == ["capture", "hold"]


def test_why_it_stays() -> None:
    """What stays done says by which decision; what waits says what for."""
    said = {
        "given_up": step(undo_state=State.PERMANENT_FAILURE, undo_by_person=True),
        "correction_sent": step(**SEEN, correction_state="sent", message_state=State.SUCCEEDED),
        "correction_dismissed": step(**SEEN, correction_state="dismissed"),
        "unseen": step(**SEEN | {"audience": ("agent",)}),
        "no_compensation": step(**SEEN, correction_state="open"),
        "replaced": step(superseded=True, correction_state="open"),
        "correction_in_review": step(**SEEN, correction_state="sent", message_state=State.OPERATOR_REVIEW),
    }
    assert {code: why(s, standing(s)) for code, s in said.items()} == {code: code for code in said}
    kept = told([hold(), capture(**SEEN, correction_state="dismissed")])
    assert [(s["action_id"], s["why"], s["carried_on_by"]) for s in kept] == [
        ("hold", "carried", "capture"),
        ("capture", "correction_dismissed", None),
    ]


def test_every_standing_has_a_word() -> None:
    """The command line can tell each standing."""
    from counterfoil.cli.words import unwind_words

    for each in Standing:
        base: dict[str, str | None] = dict.fromkeys(told([step()])[0])
        assert unwind_words({**base, "standing": each.value, "state": sorted(SETTLED)[0].value, "undo_tool": "refund"})
