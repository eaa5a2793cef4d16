"""What models do to their calls: repeat, reword, interleave, lose and invoke them again. Counted by effects."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any

import pytest
from tests.ends import all_ends

from counterfoil import (
    ArgumentError,
    Counterfoil,
    NextStep,
    NotAllowed,
    Rejected,
    Result,
    Run,
    RunTakenOver,
    Status,
    tool,
)
from counterfoil.testing import World

if TYPE_CHECKING:
    from tests.acceptance.conftest import Shop

Open = Callable[..., Run]
Working = Callable[[], AbstractContextManager[None]]


@pytest.fixture
def open_run(shop: Shop, client: Callable[..., Counterfoil]) -> Open:
    """Opens run r1 anew, as a process that has just started does."""
    return lambda run="r1", *, seen=(): client().run(run, tenant="acme", actor="bot", seen=seen)


@pytest.fixture
def done(world: World) -> Callable[..., Result]:
    """Makes a call, lets the fleet do its work, and gives the result that the same call gets then."""

    def call(run: Run, tool: str, arguments: Any, **names: Any) -> Result:
        asked = run.call(tool, arguments, wait_s=0, **names)
        world.settle()
        return run.call(tool, arguments, wait_s=0, **names) if asked.status is Status.PENDING else asked

    return call


@pytest.mark.case("A3")
def test_a_question_beside_a_send_suspends_and_resumes(world: World, shop: Shop, open_run: Open, done: Any) -> None:
    """The send before the question that suspends the run happens once, also when all begins again after a crash."""
    for visit in range(3):
        run = open_run()
        sent = done(run, "send_note", {"order": "1", "text": f"on its way {visit}"}, ref=f"v{visit}:call_0")
        asked = run.call(
            "ask_customer", {"order": "1", "text": f"still wanted? {visit}"}, ref=f"v{visit}:call_1", wait_s=0
        )
        assert (sent.status, sent.seq) == (Status.SUCCEEDED, 1)
        assert (asked.status, asked.suspend, asked.seq) == (Status.AWAITING_APPROVAL, True, 2)
    assert shop.effects == [("send_note", "1", "on its way 0")]


@pytest.mark.case("A5")
@pytest.mark.parametrize("step", ["fee", None])
def test_a_succeeded_step_is_asked_for_five_more_times(
    world: World, shop: Shop, open_run: Open, done: Any, step: str | None
) -> None:
    """A label or `once_per`: five identical results that offer no retry, one effect, no exception."""
    run = open_run()
    done(run, "charge_fee", {"order": "1"}, step=step)
    answers = [done(run, "charge_fee", {"order": "1", "amount": 500 + n}, step=step, ref=f"c{n}") for n in range(5)]
    assert {(a.action_id, a.status, a.retry_allowed, str(a.value)) for a in answers} == {
        (answers[0].action_id, Status.SUCCEEDED, False, str(answers[0].value))
    }
    assert shop.effects == [("charge_fee", "1", "500")]


@pytest.mark.case("A6")
def test_reworded_while_the_first_outcome_is_unknown(world: World, shop: Shop, open_run: Open) -> None:
    """New reference, other words, outcome unknown: nothing is called, and what was found is the answer to both."""
    run = open_run()
    shop.loses_answers = 1
    first = run.call("refund", {"order": "1"}, ref="t1:c0", wait_s=0)
    world.work()
    again = run.call("refund", {"order": "1", "reason": "please"}, ref="t2:c0", wait_s=0)
    assert (again.action_id, again.status, again.retry_allowed) == (first.action_id, Status.UNCERTAIN, False)
    world.settle()
    known = run.call("refund", {"order": "1", "reason": "now please"}, ref="t3:c0", wait_s=0)
    assert (known.action_id, known.status) == (first.action_id, Status.SUCCEEDED)
    assert known.arguments == {"order": "1", "amount": 500, "reason": ""}
    assert shop.effects == [("refund", "1", "500")]


@pytest.mark.case("A6")
@pytest.mark.parametrize("steps", [("first half", "second half"), (None, None)], ids=["labels", "may be repeated"])
def test_two_wishes_with_identical_arguments(
    world: World, shop: Shop, open_run: Open, done: Any, steps: tuple[str | None, str | None]
) -> None:
    """Two real refunds of 5.00 are two effects: told apart by labels, or because the tool may be repeated."""
    run = open_run()
    results = [done(run, "refund", {"order": "1"}, step=step) for step in steps]
    assert len({result.action_id for result in results}) == 2
    assert shop.effects == [("refund", "1", "500")] * 2


@pytest.mark.case("A7")
@pytest.mark.parametrize("step", ["fee", None])
def test_twenty_threads_ask_for_one_step(world: World, shop: Shop, open_run: Open, step: str | None) -> None:
    """Twenty threads make one call at the same moment: one row, twenty equal answers, one effect. All but one of them say
    that they did nothing new."""
    run, barrier = open_run(), threading.Barrier(20, timeout=20)

    def call(number: int) -> Result:
        barrier.wait()
        return run.call("charge_fee", {"order": "1"}, step=step, ref=f"c{number}", wait_s=0)

    with ThreadPoolExecutor(20) as threads:
        answers = list(threads.map(call, range(20)))
    assert len({answer.model_dump_json(exclude={"replayed"}) for answer in answers}) == 1
    assert sorted(answer.replayed for answer in answers) == [False] + [True] * 19
    world.settle()
    assert shop.effects == [("charge_fee", "1", "500")]


def test_two_refunds_in_one_turn(world: World, shop: Shop, open_run: Open, working: Working) -> None:
    """Two parallel refunds of two orders both happen, and each call is answered about its own."""
    run = open_run()
    with working(), ThreadPoolExecutor(2) as threads:
        results = list(threads.map(lambda order: run.call("refund", {"order": order}, ref=order), ["1", "2"]))
    assert [result.status for result in results] == [Status.SUCCEEDED] * 2
    assert sorted(shop.effects) == [("refund", "1", "500"), ("refund", "2", "500")]
    for order, result in zip(["1", "2"], results, strict=True):
        assert result.arguments is None, "what was asked for is what ran"
        assert result.value == {"id": f"r{1 + shop.effects.index(('refund', order, '500'))}"}


def test_invoked_again_from_the_first_message(world: World, shop: Shop, open_run: Open, done: Any) -> None:
    """A new handle that has seen nothing, with fresh references, gets every recorded result and no second effect."""
    wishes = [("refund", "1"), ("send_note", "1"), ("refund", "1"), ("charge_fee", "2")]
    for visit in range(3):
        run = open_run()
        results = [
            done(run, tool, {"order": order}, ref=f"{visit}-{number}") for number, (tool, order) in enumerate(wishes)
        ]
        assert [result.seq for result in results] == [1, 2, 3, 4]
        assert [result.replayed for result in results] == [True] * 4
    assert [(tool, order) for tool, order, _ in shop.effects] == wishes


def test_reworded_after_a_delivered_success(world: World, shop: Shop, open_run: Open, done: Any) -> None:
    """What may happen once for an order converges on the done one, however it is worded; the true arguments are shown."""
    run = open_run()
    done(run, "charge_fee", {"order": "1", "amount": 500})
    again = done(run, "charge_fee", {"order": "1", "amount": 700})
    assert (again.status, again.next_step) == (Status.SUCCEEDED, NextStep.ALREADY_DONE)
    assert again.arguments == {"order": "1", "amount": 500, "reason": ""}
    assert shop.effects == [("charge_fee", "1", "500")]


@pytest.mark.parametrize("step", ["fee", None])
def test_an_invalid_field_is_corrected(
    world: World, use_tools: Any, client: Callable[..., Counterfoil], step: str | None
) -> None:
    """A corrected call is a new revision under a label, else a new step; the refused one stays on record."""
    sent = []

    @tool(cls="reversible", effect="ticket", target="order", once_per=None, audience=["team"], provider="shop",
          uncertain="operator_review")  # fmt: skip
    def open_ticket(order: str, kind: str) -> object:
        """Refuses a kind that it does not know."""
        sent.append(kind)
        return {"id": "t1"} if kind == "task" else Rejected("invalid_value", field="kind")

    use_tools(open_ticket)
    run = client().run("r1", tenant="acme", actor="bot")
    told = []
    for kind in ("chore", "task"):
        run.call("open_ticket", {"order": "1", "kind": kind}, step=step, wait_s=0)
        world.settle()
        told.append(run.call("open_ticket", {"order": "1", "kind": kind}, step=step, wait_s=0))
    assert (told[0].status, told[0].retry_allowed, told[0].code, told[0].field) == (
        Status.FAILED, True, "invalid_value", "kind",
    )  # fmt: skip
    assert (told[1].status, told[1].step, told[1].revision) == (Status.SUCCEEDED, step or "2", 2 if step else 1)
    assert sent == ["chore", "task"]


def test_a_redeployed_prompt_meets_no_dead_end(world: World, shop: Shop, open_run: Open, done: Any) -> None:
    """Labels renamed, calls in another order: each ends with a result, and what may happen once is not done twice."""
    run = open_run()
    for name, step in (("charge_fee", "fee"), ("send_note", "note"), ("refund", "refund")):
        done(run, name, {"order": "1"}, step=step)
    run = open_run()
    for name, step in (("send_note", "tell"), ("charge_fee", "pay"), ("send_note", "tell")):
        for _ in range(3):  # reads what it has not seen, then has its answer
            result = done(run, name, {"order": "1"}, step=step)
            if result.next_step is not NextStep.READ_UNSEEN:
                break
        assert result.status is Status.SUCCEEDED
    assert [effect[0] for effect in shop.effects] == ["charge_fee", "send_note", "refund"]
    assert done(run, "refund", {"order": "1"}, step="another refund").status is Status.SUCCEEDED


def test_what_waits_for_approval_holds_back_only_what_it_must(
    world: World, use_tools: Any, shop: Shop, client: Callable[..., Counterfoil]
) -> None:
    """Behind a call that awaits approval, reversible work goes on; what cannot be undone for free waits for the person."""

    @tool(cls="reversible", effect="draft", target="order", once_per=None, audience=["team"], provider="shop",
          uncertain="operator_review")  # fmt: skip
    def draft(order: str) -> object:
        """Changes nothing for anybody."""
        return {"id": "d1"}

    use_tools(*shop.tools, draft)
    run = client().run("r1", tenant="acme", actor="bot")
    asked = run.call("ask_customer", {"order": "1"}, wait_s=0)
    assert asked.status is Status.AWAITING_APPROVAL
    held = run.call("refund", {"order": "2"}, wait_s=20)
    assert (held.status, held.next_step, held.action_id) == (Status.BLOCKED, NextStep.PERSON, asked.action_id)
    run.call("draft", {"order": "2"}, wait_s=0)
    world.settle()
    assert run.call("draft", {"order": "2"}, wait_s=0).status is Status.SUCCEEDED
    other = client().run("r2", tenant="acme", actor="bot").call("refund", {"order": "1"}, wait_s=0)
    assert other.status is Status.PENDING, "another run is not concerned"


def test_a_reviewer_s_no_is_respected(world: World, shop: Shop, open_run: Open, sql: Any) -> None:
    """After a rejection one more proposal with other arguments is recorded; from the second no on, a person must begin."""
    run = open_run()
    texts = iter(["now?", "now?", "later?", "ever?"])

    def ask(step: str | None = None) -> Result:
        return run.call("ask_customer", {"order": "1", "text": next(texts)}, step=step, wait_s=0)

    def reject() -> None:
        sql("UPDATE counterfoil.action SET state = 'cancelled', last_error_code = 'rejected_by_reviewer'"
            " WHERE state = 'awaiting_approval'")  # fmt: skip

    ask(step="question")
    reject()
    told = ask(step="question")
    assert (told.status, told.next_step) == (Status.CANCELLED, NextStep.REJECTED_BY_REVIEWER)
    assert (ask(step="question").status, run.so_far()[-1]["revision"]) == (Status.AWAITING_APPROVAL, 2)
    reject()
    again = ask(step="question")
    assert (again.status, again.next_step, again.suspend) == (Status.BLOCKED, NextStep.PERSON, True)
    for text, step in (("now?", "other"), ("later?", None), ("please?", None)):
        run.ack(all_ends(sql, "r1"))
        told = run.call("ask_customer", {"order": "1", "text": text}, step=step, wait_s=0)
        assert told.next_step is NextStep.PERSON, text
    assert sql("SELECT count(*) FROM counterfoil.action") == [(2,)]


def test_children_work_side_by_side(world: World, shop: Shop, open_run: Open, sql: Any) -> None:
    """A child run has steps of its own: neither its parent nor another child waits for it; the ledger knows the parent."""
    run = open_run()
    results = [run.call("refund", {"order": "0"}, wait_s=0)]
    results += [run.child(name).call("refund", {"order": name}, wait_s=0) for name in ("a", "b")]
    assert [result.status for result in results] == [Status.PENDING] * 3
    assert run.child("a").child("c").run == "r1/a/c"
    world.settle()
    again = run.child("a").call("refund", {"order": "a"}, wait_s=0)
    assert (again.status, again.seq, again.replayed) == (Status.SUCCEEDED, 1, True)
    assert run.child("a", seen=str(again.seen)).call("refund", {"order": "a"}, wait_s=0).seq == 2
    assert sql("SELECT run, parent_run, tenant, actor FROM counterfoil.run ORDER BY run") == [
        ("r1", None, "acme", "bot"), ("r1/a", "r1", "acme", "bot"),
        ("r1/a/c", "r1/a", "acme", "bot"), ("r1/b", "r1", "acme", "bot"),
    ]  # fmt: skip


@pytest.mark.parametrize("end", ["finish", "unwind"])
def test_an_ended_run_gets_no_children(world: World, shop: Shop, open_run: Open, end: str) -> None:
    """A run that is closed or taken back opens no child, neither a new one nor one that was there."""
    run = open_run()
    run.child("a")
    run.finish() if end == "finish" else run.unwind("changed my mind")
    for name in ("a", "b"):
        with pytest.raises(NotAllowed):
            run.child(name)


def test_a_child_belongs_to_its_parent_s_newest_handle(world: World, shop: Shop, open_run: Open) -> None:
    """A handle that was taken over opens no child, so it takes none over from the newer one."""
    older = open_run()
    child = open_run().child("a")
    with pytest.raises(RunTakenOver):
        older.child("a")
    assert child.call("refund", {"order": "1"}, wait_s=0).status is Status.PENDING


def test_a_child_s_id_is_no_other_run_s(world: World, shop: Shop, open_run: Open) -> None:
    """A name with a slash or without characters is refused, and so is an id that was opened as a run of its own."""
    run = open_run()
    for name in ("a/b", "", "x" * 400):
        with pytest.raises(ArgumentError):
            run.child(name)
    open_run("r1/a")
    with pytest.raises(NotAllowed):
        run.child("a")


def test_a_run_is_taken_back_with_its_children(world: World, shop: Shop, open_run: Open, done: Any, sql: Any) -> None:
    """Unwinding the parent takes back what every run below it did, and their handles take no call any more."""
    run = open_run()
    child = run.child("a")
    grandchild = child.child("b")
    for each, order in ((run, "1"), (child, "2"), (grandchild, "3")):
        done(each, "refund", {"order": order})
    run.unwind("customer withdrew")
    with pytest.raises(NotAllowed):
        grandchild.call("refund", {"order": "4"})
    world.settle()
    assert sql("SELECT DISTINCT state FROM counterfoil.run") == [("unwound",)]
    assert sorted(order for tool, order, *_ in shop.effects if tool == "take_back") == ["1", "2", "3"]
