"""The step rules, one table: which recorded action a call means, or that it is a new one."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

import pytest

from counterfoil.ledger.errors import NotAllowed, StepConflict
from counterfoil.ledger.states import SETTLED, State
from counterfoil.outbox.results import NextStep
from counterfoil.outbox.run_view import ActionView, HandleView, Limits, RunView, Take, WantedCall
from counterfoil.outbox.seen import Seen, told
from counterfoil.outbox.steps import Attach, Blocked, Decision, ReadUnseen, Record, Refused, decide
from counterfoil.providers.contract import ToolClass

S = State


def known(number: int) -> Seen:
    """The ends of actions 1 to `number`, as they are."""
    return told((f"a{n}", 1) for n in range(1, number + 1))


KNOWN = known(9)


def row(
    number: int,
    state: State = S.SUCCEEDED,
    *,
    tool: str = "refund",
    target: str = "o1",
    step: str | None = None,
    sha: str = "same",
    seq: int | None = 0,
    revision: int = 1,
    once: str | None = None,
    said_no: tuple[str, ...] = (),
    code: str | None = None,
    ends: int = 1,
) -> ActionView:
    """Action `a<number>`; its effect is its tool's name up to an underscore, so `refund_fast` has effect `refund`."""
    return ActionView(
        action_id=f"a{number}",
        step=step or str(number),
        seq=number if seq == 0 else seq,
        revision=revision,
        tool=tool,
        effect=tool.partition("_")[0],
        target=target,
        state=state,
        ends_count=ends,
        arguments_sha256=sha,
        once_key=once,
        last_error_code=code,
        rejected_before=said_no,
    )


def no(number: int, **changes: Any) -> ActionView:
    """An action that a reviewer has rejected."""
    return row(number, S.CANCELLED, code="rejected_by_reviewer", **changes)


def wanted(
    tool: str = "refund",
    *,
    target: str = "o1",
    cls: ToolClass = ToolClass.COMPENSATABLE,
    sha: str = "same",
    once: str | None = None,
    step: str | None = None,
    ref: str | None = None,
    turn: str = "",
    repeat: str | None = None,
) -> WantedCall:
    return WantedCall(
        tool=tool,
        effect=tool.partition("_")[0],
        target=target,
        cls=cls,
        arguments_sha256=sha,
        once_key=once,
        step=step,
        ref=ref,
        turn=turn,
        repeat=repeat,
    )


def take(ref: str, action_id: str, sha: str = "same", *, turn: str = "") -> Take:
    """The action that a call under this reference has meant, and what that call asked for."""
    return Take(ref=ref, action_id=action_id, turn=turn, arguments_sha256=sha)


@dataclass(frozen=True)
class Case:
    name: str
    rows: tuple[ActionView, ...]
    call: WantedCall
    decision: Decision
    handle: HandleView = field(default=HandleView(told=KNOWN))
    takes: tuple[Take, ...] = ()
    calls_count: int = 1


LOST = HandleView()
WAIT, PERSON = NextStep.WAIT, NextStep.PERSON

BEHIND_APPROVAL: dict[ToolClass, Decision] = {
    ToolClass.REVERSIBLE: Record(2, 1, 2),
    ToolClass.COMPENSATABLE: Blocked(PERSON, "a1"),
    ToolClass.IRREVERSIBLE: Blocked(PERSON, "a1"),
}

CASES = [
    # 0
    Case(
        "0: calls used up",
        (),
        wanted(),
        Blocked(NextStep.LIMIT_REACHED, limit="limits.calls_per_run_max"),
        calls_count=1001,
    ),
    Case("0: the last call is allowed", (), wanted(), Record(1, 1, 1), calls_count=1000),
    # 1
    Case("1: a recorded label that succeeded", (row(1, step="fee"),), wanted(step="fee", sha="other"), Attach("a1")),
    Case("1: a recorded label under way", (row(1, S.UNCERTAIN, step="fee"),), wanted(step="fee"), Attach("a1")),
    Case(
        "1: a label whose action was taken back is done",
        (row(1, S.COMPENSATED, step="fee"),),
        wanted(step="fee", sha="other"),
        Attach("a1"),
    ),
    Case(
        "1: failed, same arguments: that failure",
        (row(1, S.PERMANENT_FAILURE, step="fee"),),
        wanted(step="fee"),
        Attach("a1"),
    ),
    Case(
        "1: failed, other arguments: a new revision",
        (row(1, S.PERMANENT_FAILURE, step="fee"),),
        wanted(step="fee", sha="other"),
        Record("fee", 2, 2, supersedes="a1"),
    ),
    Case(
        "1: a new revision needs no reading of the one it corrects",
        (row(1, S.NOT_EXECUTED, step="fee"),),
        wanted(step="fee", sha="other"),
        Record("fee", 2, 2, supersedes="a1"),
        handle=LOST,
    ),
    Case(
        "1: stale, same arguments: a new revision",
        (row(1, S.STALE, step="fee", revision=3),),
        wanted(step="fee"),
        Record("fee", 4, 2, supersedes="a1"),
    ),
    Case(
        "1: in a person's hands, other arguments: never revised",
        (row(1, S.OPERATOR_REVIEW, step="fee"),),
        wanted(step="fee", sha="other"),
        Attach("a1"),
    ),
    Case(
        "1: a new label while the last step is open",
        (row(1, S.READY, step="a"),),
        wanted(step="b"),
        Blocked(WAIT, "a1"),
    ),
    Case(
        "1: a new label while the last step waits for a person",
        (row(1, S.AWAITING_APPROVAL, step="a"),),
        wanted(step="b", cls=ToolClass.REVERSIBLE),
        Blocked(PERSON, "a1"),
    ),
    Case("1: two labels, identical arguments: two actions", (row(1, step="a"),), wanted(step="b"), Record("b", 1, 2)),
    Case(
        "1: a label is never taken for a lost result",
        (row(1, step="a"),),
        wanted(step="b"),
        ReadUnseen(("a1",)),
        handle=LOST,
    ),
    # 2
    Case(
        "2: the reference's action, not the newest same call",
        (row(1), row(2)),
        wanted(ref="r1"),
        Attach("a1"),
        handle=LOST,
        takes=(take("r1", "a1"), take("r2", "a2")),
    ),
    Case(
        "2: the same words under the same reference are that action for ever",
        (row(1), row(2, sha="others")),
        wanted(ref="r1"),
        Attach("a1"),
        takes=(take("r1", "a1"), take("r1", "a2", "others")),
    ),
    Case(
        "2: also the words of the call, where others are recorded",
        (row(1),),
        wanted(ref="r1", sha="reworded"),
        Attach("a1"),
        takes=(take("r1", "a1", "reworded"),),
    ),
    Case(
        "2: the reference again in other words, its end told: a later turn's call",
        (row(1),),
        wanted(ref="r1", sha="other"),
        Record(2, 1, 2),
        takes=(take("r1", "a1"),),
    ),
    Case(
        "2: the reference again in other words, its end not told: that action",
        (row(1), row(2)),
        wanted(ref="r2", sha="other"),
        Attach("a2"),
        handle=LOST,
        takes=(take("r1", "a1"), take("r2", "a2")),
    ),
    Case(
        "2: a reference that its caller never reuses",
        (row(1),),
        wanted(ref="r1", sha="other"),
        Attach("a1"),
        handle=HandleView(told=KNOWN, refs_unique=True),
        takes=(take("r1", "a1"),),
    ),
    Case(
        "2: the same reference for another target is another call",
        (row(1),),
        wanted(ref="r1", target="o2"),
        Record(2, 1, 2),
        handle=HandleView(told=KNOWN, refs_unique=True),
        takes=(take("r1", "a1"),),
    ),
    Case(
        "2: within a turn a reference is one call, whatever its words",
        (row(1),),
        wanted(ref="r1", turn="t1", sha="other"),
        Attach("a1"),
        takes=(take("r1", "a1", turn="t1"),),
    ),
    Case(
        "2: in another turn it is another",
        (row(1),),
        wanted(ref="r1", turn="t2"),
        Record(2, 1, 2),
        takes=(take("r1", "a1", turn="t1"),),
    ),
    Case(
        "2: a reference too many is refused, since one that is not kept finds nothing",
        (row(1, S.UNCERTAIN),),
        wanted(ref="r3"),
        Blocked(NextStep.LIMIT_REACHED, limit="limits.refs_per_step_max"),
        handle=HandleView(limits=Limits(refs_per_step_max=2)),
        takes=(take("r1", "a1"), take("r2", "a1")),
    ),
    Case(
        "2: a known reference is none too many",
        (row(1, S.UNCERTAIN),),
        wanted(ref="r2"),
        Attach("a1"),
        handle=HandleView(limits=Limits(refs_per_step_max=2)),
        takes=(take("r1", "a1"), take("r2", "a1")),
    ),
    # 3
    Case("3: reworded while uncertain: that action", (row(1, S.UNCERTAIN),), wanted(sha="other"), Attach("a1")),
    Case("3: repeated while it waits for approval", (row(1, S.AWAITING_APPROVAL),), wanted(), Attach("a1")),
    Case("3: other target: never that action", (row(1, S.UNCERTAIN),), wanted(target="o2"), Blocked(WAIT, "a1")),
    Case("3: another tool, same effect and target", (row(1, S.READY),), wanted("refund_fast"), Blocked(WAIT, "a1")),
    Case(
        "3: another tool to the same effect is held back before approval, too",
        (row(1, S.AWAITING_APPROVAL),),
        wanted("refund_fast", cls=ToolClass.REVERSIBLE),
        Blocked(PERSON, "a1"),
    ),
    Case(
        "3: a label never joins the same call of another step",
        (row(1, S.AWAITING_APPROVAL, step="a"), row(2, tool="note", step="b")),
        wanted(step="c", cls=ToolClass.REVERSIBLE),
        Blocked(PERSON, "a1"),
    ),
    Case("3: an end that was not told, replayed", (row(1),), wanted(sha="other"), Attach("a1"), handle=LOST),
    Case("3: two untold ends, the older first", (row(1), row(2)), wanted(), Attach("a1"), handle=LOST),
    Case(
        "3: an older untold end before one under way",
        (row(1), row(2, S.UNCERTAIN)),
        wanted(),
        Attach("a1"),
        handle=LOST,
    ),
    Case("3: then the other", (row(1), row(2)), wanted(), Attach("a2"), handle=HandleView(told=known(1))),
    Case("3: in any order", (row(1, tool="note"), row(2)), wanted(), Attach("a2"), handle=LOST),
    Case("3: an untold failure is told, too", (row(1, S.PERMANENT_FAILURE),), wanted(), Attach("a1"), handle=LOST),
    Case("3: told, so this is another one", (row(1),), wanted(), Record(2, 1, 2), handle=HandleView(told=known(1))),
    Case("3: what code enqueued counts", (row(1, step="x", seq=None),), wanted(), Attach("a1"), handle=LOST),
    Case("3: an end that has changed is untold", (row(1, ends=2),), wanted(), Attach("a1")),
    Case(
        "3: what its caller has replaced has no end to tell",
        (row(1, S.CANCELLED, code="superseded"),),
        wanted(),
        Record(2, 1, 2),
        handle=LOST,
    ),
    Case(
        "3: two references of a turn are two wishes",
        (row(1),),
        wanted(ref="r2", turn="t1", sha="other"),
        Record(2, 1, 2),
        handle=LOST,
        takes=(take("r1", "a1", turn="t1"),),
    ),
    Case(
        "3: the second waits for the first",
        (row(1, S.EXECUTING),),
        wanted(ref="r2", turn="t1", sha="other"),
        Blocked(WAIT, "a1"),
        handle=LOST,
        takes=(take("r1", "a1", turn="t1"),),
    ),
    Case(
        "3: identical words within a turn are one",
        (row(1),),
        wanted(ref="r2", turn="t1", sha="asked"),
        Attach("a1"),
        takes=(take("r1", "a1", "asked", turn="t1"),),
    ),
    Case(
        "3: nor is what another reference took in other words done again in its own",
        (row(1, sha="700"),),
        wanted(ref="r2", turn="t2", sha="700"),
        Attach("a1"),
        handle=LOST,
        takes=(take("r2", "a1", "700", turn="t1"), take("r1", "a1", "500", turn="t2")),
    ),
    Case(
        "3: a turn finds what a lost one began: the same words first",
        (row(1, sha="first"), row(2, sha="second")),
        wanted(ref="r1", turn="t2", sha="second"),
        Attach("a2"),
        handle=LOST,
        takes=(take("r1", "a1", turn="t1"), take("r2", "a2", turn="t1")),
    ),
    Case(
        "3: else the oldest that no other reference of the turn has taken",
        (row(1, sha="first"), row(2, sha="second"), row(3, sha="third")),
        wanted(ref="r2", turn="t2", sha="reworded"),
        Attach("a2"),
        handle=LOST,
        takes=(take("r1", "a1", turn="t2"),),
    ),
    # 5
    Case(
        "5: other results unseen, all of them",
        (row(1, tool="note"), row(2, S.STALE, tool="mail"), row(3, tool="seen")),
        wanted(),
        ReadUnseen(("a1", "a2")),
        handle=HandleView(told=told([("a3", 1)])),
    ),
    Case(
        "5: a parallel call's result is not a lost one",
        (row(1, tool="note"),),
        wanted(),
        Record(2, 1, 2),
        handle=HandleView(due={"a1"}),
    ),
    Case(
        "5: nor is what another call of the turn has begun",
        (row(1, tool="note"), row(2, tool="mail")),
        wanted(ref="r2", turn="t1"),
        ReadUnseen(("a2",)),
        handle=LOST,
        takes=(take("r1", "a1", turn="t1"), take("r1", "a2", turn="t0")),
    ),
    Case("5: an end that has changed", (row(1, tool="note", ends=2),), wanted(), ReadUnseen(("a1",))),
    Case(
        "5: what was told is not",
        (row(1, tool="note"), row(2, tool="mail")),
        wanted(),
        ReadUnseen(("a2",)),
        handle=HandleView(told=known(1)),
    ),
    # 6
    Case("6: done once", (row(1, once="k"),), wanted(once="k"), Attach("a1", already_done=True)),
    Case(
        "6: under way once, on another target",
        (row(1, S.EXECUTING, target="o2", once="k"),),
        wanted(once="k"),
        Attach("a1", already_done=True),
    ),
    Case("6: failed, so it may happen", (row(1, S.PERMANENT_FAILURE, once="k"),), wanted(once="k"), Record(2, 1, 2)),
    Case("6: taken back, so it may happen", (row(1, S.COMPENSATED, once="k"),), wanted(once="k"), Record(2, 1, 2)),
    Case("6: again with a reason", (row(1, once="k"),), wanted(once="k", repeat="lost"), Record(2, 1, 2)),
    Case(
        "6: a new label, too",
        (row(1, step="a", once="k"),),
        wanted(once="k", step="b"),
        Attach("a1", already_done=True),
    ),
    # 7
    Case("7: a rejection is told before anything else", (no(1),), wanted(sha="other"), Attach("a1"), handle=LOST),
    Case("7: rejected, other arguments: one new proposal", (no(1),), wanted(sha="other"), Record(2, 1, 2)),
    Case("7: rejected, the same arguments: a person", (no(1),), wanted(), Blocked(PERSON, "a1")),
    Case(
        "7: rejected twice: a person, whatever the words",
        (no(1), no(2, sha="other")),
        wanted(sha="third"),
        Blocked(PERSON, "a2"),
    ),
    Case(
        "7: another tool to the same effect counts as one more proposal",
        (no(1), no(2, tool="refund_fast")),
        wanted("refund_slow", sha="third"),
        Blocked(PERSON, "a2"),
    ),
    Case("7: another tool to the same effect is a new proposal", (no(1),), wanted("refund_fast"), Record(2, 1, 2)),
    Case("7: another target was not rejected", (no(1),), wanted(target="o2"), Record(2, 1, 2)),
    Case("7: another effect was not rejected", (no(1),), wanted("note"), Record(2, 1, 2)),
    Case(
        "7: cancelled by code is no rejection",
        (row(1, S.CANCELLED, code="cancelled"), row(2, S.CANCELLED, code="run_cancelled")),
        wanted(),
        Record(3, 1, 3),
    ),
    Case(
        "7: under a label, the rejection itself is told again",
        (no(1, step="fee"),),
        wanted(step="fee"),
        Attach("a1"),
    ),
    Case(
        "7: under a label, other arguments: one new revision",
        (no(1, step="fee"),),
        wanted(step="fee", sha="other"),
        Record("fee", 2, 2, supersedes="a1"),
    ),
    Case(
        "7: under a label, rejected twice: a person",
        (no(2, step="fee", revision=2, sha="other", said_no=("same",)),),
        wanted(step="fee", sha="third"),
        Blocked(PERSON, "a2"),
    ),
    Case(
        "7: under a label, the rejected words again after another revision: a person",
        (row(2, S.STALE, step="fee", revision=2, sha="other", said_no=("same",)),),
        wanted(step="fee"),
        Blocked(PERSON, "a2"),
    ),
    Case(
        "7: a new label does not get around a rejection",
        (no(1, step="fee"),),
        wanted(step="charge"),
        Blocked(PERSON, "a1"),
    ),
    # 8
    *(
        Case(
            f"8: {state} holds back everything",
            (row(1, state, tool="note"),),
            wanted(cls=ToolClass.REVERSIBLE),
            Blocked(step, "a1"),
        )
        for state, step in [
            (S.READY, WAIT),
            (S.EXECUTING, WAIT),
            (S.RETRYABLE_FAILURE, WAIT),
            (S.UNCERTAIN, WAIT),
            (S.RECONCILING, WAIT),
            (S.OPERATOR_REVIEW, PERSON),
        ]
    ),
    *(
        Case(f"8: awaiting approval and {cls}", (row(1, S.AWAITING_APPROVAL, tool="note"),), wanted(cls=cls), decision)
        for cls, decision in BEHIND_APPROVAL.items()
    ),
    Case(
        "8: a revision waits for the others",
        (row(1, S.PERMANENT_FAILURE, step="fee"), row(2, S.EXECUTING, tool="note")),
        wanted(step="fee", sha="other"),
        Blocked(WAIT, "a2"),
    ),
    # 9
    Case("9: the first step", (), wanted(), Record(1, 1, 1)),
    Case("9: the next number, labels apart", (row(1), row(2, step="fee")), wanted(), Record(2, 1, 3)),
    Case("9: a corrected call without a label", (row(1, S.PERMANENT_FAILURE),), wanted(sha="other"), Record(2, 1, 2)),
    Case("9: what code enqueued takes no number", (row(1, step="x", seq=None),), wanted(target="o2"), Record(1, 1, 1)),
    Case(
        "9: superseded revisions count against the cap",
        (row(1, step="fee", revision=3),),
        wanted(target="o2"),
        Blocked(NextStep.LIMIT_REACHED, limit="limits.actions_per_run_max"),
        handle=HandleView(told=KNOWN, limits=Limits(actions_max=3)),
    ),
]


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_first_matching_rule_decides(case: Case) -> None:
    """Each rule decides the calls it is about, and leaves the others to the rules after it."""
    view = RunView(state="open", calls_count=case.calls_count, actions=case.rows, takes=case.takes)
    assert decide(view, case.call, case.handle) == case.decision


@pytest.mark.parametrize("state", ["closed", "unwinding", "unwind_blocked", "unwound"])
def test_run_that_is_not_open_takes_no_call(state: str) -> None:
    """Rule 0 is before everything, a recorded label included."""
    decision = decide(RunView(state=state, calls_count=1, actions=(row(1, step="fee"),)), wanted(step="fee"), LOST)
    assert isinstance(decision, Refused)
    assert isinstance(decision.error, NotAllowed)


def test_label_with_another_tool_is_a_conflict() -> None:
    """A label means one tool for ever, even when the recorded action did nothing."""
    view = RunView(state="open", calls_count=1, actions=(row(1, S.PERMANENT_FAILURE, step="fee"),))
    decision = decide(view, wanted("note", step="fee"), LOST)
    assert isinstance(decision, Refused)
    assert isinstance(decision.error, StepConflict)


@pytest.mark.parametrize("state", list(State))
def test_same_unlabelled_call_is_never_recorded_twice_by_a_caller_that_lost_its_results(state: State) -> None:
    """Whatever the state of the first, a caller that begins again meets it before anything new is recorded."""
    view = RunView(state="open", calls_count=1, actions=(row(1, state),))
    assert decide(view, wanted(sha="reworded", ref="new"), LOST) == Attach("a1")


@pytest.mark.parametrize("state", sorted(SETTLED))
def test_two_labels_are_two_actions_whatever_became_of_the_first(state: State) -> None:
    """Two refunds of 5.00 that code names differently are two, with identical arguments."""
    view = RunView(state="open", calls_count=1, actions=(row(1, state, step="a"),))
    call = wanted(step="b")
    assert decide(view, call, HandleView(told=told([("a1", 1)]))) == Record("b", 1, 2)
    assert decide(view, replace(call, ref="r"), HandleView(told=told([("a1", 1)]))) == Record("b", 1, 2)
