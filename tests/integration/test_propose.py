"""Plans: recorded whole or not at all, found again, replaced, bounded by what they hold; and what their result tells."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import psycopg
import pytest
from tests.integration.staging import HOLD_S, Desk, Shop, desk, shop

from counterfoil import (
    ArgumentError,
    ConfigError,
    LedgerUnavailable,
    NextStep,
    NotAllowed,
    NotFound,
    RunTakenOver,
    Status,
    Step,
    StepConflict,
)
from counterfoil.ledger.errors import CounterfoilError
from counterfoil.outbox.pool import Transaction
from counterfoil.settings_providers import EffectSettings, ToolSettings

__all__ = ["desk", "shop"]  # fixtures

AtOnce = Callable[[Sequence[Callable[[], Any]]], list[Any]]


def test_a_plan_is_recorded_whole(desk: Desk) -> None:
    """Steps in their order behind one proposal: only the first asks for a decision, no wake-up, the pivot ahead."""
    hold, draft = desk.staged("hold"), desk.staged("draft")
    plan = desk.run.propose([("capture", {"of": hold}), Step("send", {"of": draft}, step="tell them")], note="lost")
    rows = desk.rows("SELECT * FROM counterfoil.action WHERE proposal_id = %s ORDER BY place", plan.id)
    assert [(r["tool"], r["place"], r["state"], r["step"]) for r in rows] == [
        ("capture", 1, "awaiting_approval", "3"),
        ("send", 2, "proposed", "tell them"),
    ]
    assert [r["parent_action_id"] for r in rows] == [hold, draft]
    assert all(r["needs_approval"] and not r["staged"] for r in rows)
    assert desk.rows("SELECT FROM counterfoil.outbox") == []
    assert desk.one("SELECT note, people, is_plan FROM counterfoil.proposal") == {
        "note": "lost",
        "people": 1,
        "is_plan": True,
    }
    assert desk.one("SELECT pivot FROM counterfoil.run")["pivot"] == "ahead"
    assert len(plan.digest) == 64


def test_arguments_that_are_not_given_are_those_of_what_a_step_is_about(desk: Desk) -> None:
    """The person sees the amount of the hold, and a given one wins."""
    hold = desk.staged("hold", order="o1", amount=700)
    desk.run.propose([("capture", {"of": hold})])
    desk.run.propose([("capture", {"of": hold, "amount": 300})])
    rows = desk.rows(
        "SELECT arguments, amount_minor, target FROM counterfoil.action WHERE tool = 'capture' ORDER BY seq"
    )
    assert rows == [
        {"arguments": '{"amount":700,"order":"o1"}', "amount_minor": 700, "target": "o1"},
        {"arguments": '{"amount":300,"order":"o1"}', "amount_minor": 300, "target": "o1"},
    ]


@pytest.mark.parametrize(
    ("steps", "path", "code"),
    [
        ([], "$", "too_many_steps"),
        ([("note", {"order": "o1"})] * 101, "$", "too_many_steps"),
        ([("note", {"order": "o1"}), ("note", {})], "$[1].order", "missing_argument"),
        ([("note", '{"order": 1')], "$[0]", "invalid_json"),
        ([("note", {"order": "o1", "of": "act_x"})], "$[0].of", "invalid_argument"),
        ([("note", {"order": "o1", "of": "act_" + "a" * 26})], "$[0].of", "unknown_argument"),
        ([("capture", {"order": "o1"})], "$[0].of", "missing_argument"),
        ([("capture", {"of": "act_" + "a" * 26})], "$[0].of", "not_succeeded"),
        ([("search", {})], "$[0]", "pure_tool"),
        ([Step("note", {"order": "o1"}, "a"), Step("note", {"order": "o2"}, "a")], "$[1].step", "duplicate"),
        ([Step("note", {"order": "o1"}, "1")], "$[0].step", "digits_only"),
        ([Step("note", {"order": "o1"}, resource_version="7")], "$[0].resource_version", "unknown_argument"),
        ([("note", {"order": "o1"}, "a", "b")], "$[0]", "no_step"),
    ],
)
def test_bad_steps_are_raised_with_their_place(desk: Desk, steps: Any, path: str, code: str) -> None:
    """Nothing is recorded, and the error names the step and the argument."""
    with pytest.raises(ArgumentError) as raised:
        desk.run.propose(steps)
    assert (raised.value.path, raised.value.code) == (path, code)
    assert desk.counted() == (0, 0)


def test_bad_notes_and_unknown_tools_are_raised(desk: Desk) -> None:
    """A note that Postgres or a person could not take, and a tool that is not loaded."""
    for note in ("x" * 2001, "a\x00b", "\ud800"):
        with pytest.raises(ArgumentError) as raised:
            desk.run.propose([("note", {"order": "o1"})], note=note)
        assert raised.value.path == "note"
    with pytest.raises(ConfigError):
        desk.run.propose([("nope", {})])
    assert desk.counted() == (0, 0)


def test_of_another_run_or_tenant_is_no_action_of_this_one(desk: Desk) -> None:
    """A step is about what its own run has done."""
    hold = desk.staged("hold")
    for other in (desk.open("other"), desk.open("task", tenant="globex")):
        with pytest.raises(ArgumentError) as raised:
            other.propose([("capture", {"of": hold})])
        assert raised.value.path == "$[0].of"


@pytest.mark.parametrize("dies_after", ["lock_and_read", "plans_of_run", "open_plan", "propose", "commit"])
def test_a_caller_that_dies_has_recorded_all_or_nothing(
    desk: Desk, monkeypatch: pytest.MonkeyPatch, dies_after: str
) -> None:
    """A process that dies at any statement leaves no half plan, and the same call again gives one plan."""
    hold, draft = desk.staged("hold"), desk.staged("draft")
    steps = [("capture", {"of": hold}), ("send", {"of": draft})]
    row, rows = Transaction.row, Transaction.rows

    def dying(found: Any, query: Any) -> Any:
        if query.name == dies_after:
            raise KeyboardInterrupt
        return found

    with monkeypatch.context() as patch:
        patch.setattr(Transaction, "row", lambda self, query, params: dying(row(self, query, params), query))
        patch.setattr(Transaction, "rows", lambda self, query, params: dying(rows(self, query, params), query))
        if dies_after == "commit":
            desk.run.propose(steps)
        else:
            with pytest.raises(KeyboardInterrupt):
                desk.run.propose(steps)
            assert desk.counted() == (0, 0)
    again = desk.open().propose(steps)
    assert desk.counted() == (1, 2)
    assert again.result().status is Status.AWAITING_APPROVAL


def test_a_lost_commit_is_found(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    """The connection is lost once when the COMMIT has happened: the second pass finds the plan, and makes no other."""
    hold = desk.staged("hold")
    pool = desk.cf._pool
    begun = pool.transaction
    losses = iter([True])

    class Losing:
        def __enter__(self) -> Any:
            self.inner = begun()
            return self.inner.__enter__()

        def __exit__(self, *error: Any) -> None:
            self.inner.__exit__(*error)
            if error[0] is None and next(losses, False):
                raise LedgerUnavailable("lost")

    monkeypatch.setattr(pool, "transaction", Losing)
    plan = desk.run.propose([("capture", {"of": hold})])
    assert desk.counted() == (1, 1)
    assert plan.result().status is Status.AWAITING_APPROVAL


def test_two_threads_propose_one_plan(desk: Desk, at_once: AtOnce) -> None:
    """The same plan from eight threads of one handle: one proposal."""
    hold, draft = desk.staged("hold"), desk.staged("draft")
    steps = [("capture", {"of": hold}), ("send", {"of": draft})]
    plans = at_once([partial(desk.run.propose, steps) for _ in range(8)])
    assert len({plan.id for plan in plans}) == 1
    assert desk.counted() == (1, 2)


def test_another_list_takes_the_place_of_an_undecided_plan(desk: Desk) -> None:
    """The first is withdrawn, its steps never run, a decision over it comes too late; a label goes on as a new revision."""
    hold, draft = desk.staged("hold"), desk.staged("draft")
    first = desk.run.propose([Step("capture", {"of": hold}, step="take")])
    second = desk.run.propose([Step("capture", {"of": hold}, step="take"), ("send", {"of": draft})])
    assert first.id != second.id
    told = first.result()
    assert (told.status, told.code) == (Status.CANCELLED, "superseded")
    assert desk.decide(first) == "decided"
    assert desk.decide(second) == "approved"
    desk.world.settle()
    assert second.result().status is Status.SUCCEEDED
    assert desk.run.propose([Step("capture", {"of": hold}, step="take"), ("send", {"of": draft})]).id == second.id
    assert desk.counted()[0] == 2


def test_a_plan_whose_time_is_over_is_replaced_at_once(desk: Desk) -> None:
    """Also before the reconciler has come by: nobody has to wait for that, and the old one cannot be approved."""
    hold, draft = desk.staged("hold"), desk.staged("draft")
    first = desk.run.propose([("capture", {"of": hold})])
    desk.advance(desk.world.settings.approval.expiry_s + 1)
    second = desk.run.propose([("capture", {"of": hold}), ("send", {"of": draft})])
    assert (first.result().status, second.result().status) == (Status.CANCELLED, Status.AWAITING_APPROVAL)
    assert desk.decide(first) == "decided"
    assert desk.decide(second) == "approved"


def test_a_plan_that_is_carried_out_is_not_replaced(desk: Desk, shop: Shop) -> None:
    """Approved and not ended: another plan is refused by name, nothing of the first is lost."""
    hold, draft = desk.staged("hold"), desk.staged("draft")
    plan = desk.run.propose([("capture", {"of": hold}), ("send", {"of": draft})])
    desk.decide(plan)
    with pytest.raises(NotAllowed, match=plan.id):
        desk.run.propose([("send", {"of": draft})])
    desk.world.settle()
    assert shop.happened[-2:] == ["capture", "send"]


def test_a_decision_and_another_plan_at_one_moment(desk: Desk, at_once: AtOnce, shop: Shop) -> None:
    """Whoever comes first wins: an approved plan is carried out whole, a replaced one not at all."""
    hold, draft = desk.staged("hold"), desk.staged("draft")
    first = desk.run.propose([("capture", {"of": hold}), ("send", {"of": draft})])
    digest = first.digest

    def replace() -> str:
        try:
            return desk.run.propose([("send", {"of": draft})]).id
        except NotAllowed:
            return "refused"

    answer, replaced = at_once([partial(desk.decide, first, digest=digest), replace])
    assert (answer, replaced == "refused") in {("approved", True), ("decided", False), ("changed", False)}
    desk.world.settle()
    assert shop.happened == ["hold", "draft", *(["capture", "send"] if answer == "approved" else [])]


def test_nothing_of_the_run_is_on_its_way(desk: Desk) -> None:
    """A staged call that has not ended, or whose outcome is unknown, comes first; the message says what to do."""
    hold = desk.staged("hold")
    draft = desk.run.stage("draft", {"order": "o1"}, wait_s=0)
    with pytest.raises(NotAllowed, match=str(draft.action_id)):
        desk.run.propose([("capture", {"of": hold})])
    desk.world.settle()
    assert desk.run.propose([("capture", {"of": hold})]).result().status is Status.AWAITING_APPROVAL


def test_an_effect_that_somebody_else_has_under_way(desk: Desk) -> None:
    """Code enqueues another way to the effect, of another run: the whole plan is refused, and an open one stays."""
    hold = desk.staged("hold")
    first = desk.run.propose([("capture", {"of": hold})])
    with psycopg.connect(desk.database.url("agent")) as conn:
        other = desk.cf.enqueue(conn, "pay_by_cheque", {"order": "o2"}, tenant="acme", run="x", step="s", actor="a")
    with pytest.raises(NotAllowed, match=other):
        desk.run.propose([("note", {"order": "o1"}), ("pay", {"order": "o2"})])
    assert first.result().status is Status.AWAITING_APPROVAL
    assert desk.counted() == (1, 1)


def test_a_label_that_was_taken_otherwise(desk: Desk) -> None:
    """Another tool's label, or one that was carried out, is a conflict."""
    hold = desk.staged("hold", step="h")
    with pytest.raises(StepConflict):
        desk.run.propose([Step("capture", {"of": hold}, step="h")])
    assert desk.counted() == (0, 0)


def test_a_rejected_plan_is_remembered(desk: Desk) -> None:
    """The reason is told; the same is refused, others are asked once more, then nobody is."""
    hold = desk.staged("hold")
    plan = desk.run.propose([("capture", {"of": hold, "amount": 500})])
    desk.decide(plan, "rejected", reason="too much")
    told = plan.result()
    assert (told.status, told.next_step, told.code, told.value) == (
        Status.CANCELLED,
        NextStep.REJECTED_BY_REVIEWER,
        "rejected_by_reviewer",
        {"reason": "too much"},
    )
    with pytest.raises(NotAllowed, match="rejected"):
        desk.run.propose([("capture", {"of": hold, "amount": 500})])
    again = desk.run.propose([("capture", {"of": hold, "amount": 400})])
    desk.decide(again, "rejected")
    again.result()
    with pytest.raises(NotAllowed, match="rejected"):
        desk.run.propose([("capture", {"of": hold, "amount": 300})])


def test_a_rejected_or_expired_plan_is_told_to_whoever_begins_anew(desk: Desk) -> None:
    """After a crash the same call tells what was decided; a rejected plan may be answered by another one, once, that holds
    steps of it."""
    hold, draft = desk.staged("hold"), desk.staged("draft")
    steps: list[Any] = [("capture", {"of": hold}), ("send", {"of": draft})]
    plan = desk.run.propose(steps)
    desk.decide(plan, "rejected", reason="no mail")
    staged = desk.seen(hold, draft)
    again = desk.open(seen=staged).propose(steps)
    told = again.result()
    assert (again.id, told.value) == (plan.id, {"reason": "no mail"})
    rejected = [*staged, str(told.seen)]
    less = desk.run = desk.open(seen=rejected)
    second = less.propose(steps[:1])
    desk.advance(desk.world.settings.approval.expiry_s + 1)
    desk.world.settle()
    assert desk.open(seen=rejected).propose(steps[:1]).id == second.id
    stale = second.result()
    assert stale.status is Status.STALE
    third = desk.open(seen=[*rejected, str(stale.seen)]).propose(steps[:1])
    assert third.result().status is Status.AWAITING_APPROVAL
    desk.decide(third, "rejected")
    known = [*rejected, str(stale.seen), str(third.result().seen)]
    with pytest.raises(NotAllowed, match="rejected"):
        desk.open(seen=known).propose([("capture", {"of": hold, "amount": 5})])


def test_open_proposals_of_a_run_are_few(desk: Desk) -> None:
    """Three wait for people: a plan is refused, and the next gated call is told the limit."""
    for number in range(3):
        assert desk.run.call("ask", {"order": f"o{number}"}, wait_s=0).status is Status.AWAITING_APPROVAL
    with pytest.raises(NotAllowed, match="3 proposals"):
        desk.run.propose([("note", {"order": "o1"})])
    told = desk.run.call("ask", {"order": "o9"}, wait_s=0)
    assert (told.status, told.next_step) == (Status.BLOCKED, NextStep.LIMIT_REACHED)


def test_one_step_that_takes_two_persons_is_a_plan_that_does(desk: Desk) -> None:
    """The strictest step decides for all: one person's word moves nothing."""
    hold, draft = desk.staged("hold"), desk.staged("draft")
    approval = desk.world.settings.approval.model_copy(update={"two_person": ["send"]})
    desk.world.settings = desk.world.settings.model_copy(update={"approval": approval})
    desk.cf = desk.client()
    plan = desk.open(seen=desk.seen(hold, draft)).propose([("capture", {"of": hold}), ("send", {"of": draft})])
    assert desk.decide(plan) == "one_more"
    desk.world.settle()
    assert plan.result().status is Status.AWAITING_APPROVAL
    assert desk.one("SELECT state FROM counterfoil.action WHERE place = 1")["state"] == "awaiting_approval"


def test_caps_hold_for_the_steps_of_a_plan(desk: Desk) -> None:
    """Two of a kind where one is allowed: refused, whole; another plan in place of the first counts the first no more."""
    desk.world.settings = desk.world.settings.model_copy(update={"tool": {"note": ToolSettings(count_per_run_max=1)}})
    desk.cf = desk.client()
    run = desk.open()
    with pytest.raises(NotAllowed, match="step 1"):
        run.propose([("note", {"order": "o1"}), ("note", {"order": "o2"})])
    assert desk.counted() == (0, 0)
    run.propose([("note", {"order": "o1"})])
    run.propose([("note", {"order": "o2"})])
    assert desk.counted() == (2, 2)


def test_a_hold_and_its_capture_are_one_under_a_cap(desk: Desk, shop: Shop) -> None:
    """One payment is allowed: it can be held, captured by its plan, and no second one can be held."""
    desk.world.settings = desk.world.settings.model_copy(
        update={"effect": {"payment": EffectSettings(count_per_run_max=1)}}
    )
    desk.cf = desk.client()
    hold = desk.staged("hold")
    run = desk.open(seen=desk.seen(hold))
    plan = run.propose([("capture", {"of": hold})])
    assert run.stage("hold", {"order": "o2"}, wait_s=0).next_step is NextStep.LIMIT_REACHED
    assert desk.decide(plan) == "approved"
    desk.world.settle()
    assert shop.happened == ["hold", "capture"]


@pytest.mark.parametrize("margin", [60.0, -60.0])
def test_a_hold_that_lapses_bounds_the_plan(desk: Desk, margin: float) -> None:
    """The decision must come before the hold lapses, less the margin; when that is too soon, the time is told."""
    hold = desk.staged("hold")
    until_margin = HOLD_S - desk.world.settings.approval.hold_margin_s
    desk.advance(until_margin - margin)
    if margin < 0:
        with pytest.raises(NotAllowed, match=r"lapses at \d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ"):
            desk.run.propose([("capture", {"of": hold})])
        assert isinstance(desk.run.propose([("note", {"order": "o1"})]).id, str), "it needs no hold"
        return
    plan = desk.run.propose([("capture", {"of": hold})])
    left = desk.one("SELECT extract(epoch FROM expires_at - counterfoil.now()) AS s FROM counterfoil.proposal")["s"]
    assert 0 < left <= margin
    desk.advance(margin)
    desk.world.settle()
    told = plan.result()
    assert (told.status, told.next_step) == (Status.STALE, NextStep.NEW_PREVIEW)


def test_a_handle_that_was_taken_over_proposes_nothing(desk: Desk) -> None:
    """The other handle goes on with the run."""
    old = desk.run
    desk.open()
    with pytest.raises(RunTakenOver):
        old.propose([("note", {"order": "o1"})])


def test_proposals_of_others_are_not_found(desk: Desk) -> None:
    """A proposal is read under the login's own tenants."""
    plan = desk.run.propose([("note", {"order": "o1"})])
    plan._pool = desk.client("agent2")._pool
    for read in (plan.result, lambda: plan.digest):
        with pytest.raises(NotFound):
            read()


def test_in_an_event_loop(desk: Desk) -> None:
    """`astage`, `apropose` and `aresult` do what their plain forms do."""

    async def main() -> Any:
        async with desk.open() as run:
            held = await run.astage("hold", {"order": "o1"}, wait_s=0)
            await asyncio.to_thread(desk.world.settle)
            plan = await run.apropose([("capture", {"of": held.action_id})])
            return await plan.aresult(), plan

    told, plan = asyncio.run(main())
    assert (told.status, told.proposal_id) == (Status.AWAITING_APPROVAL, plan.id)


def test_refusals_say_what_to_do(desk: Desk) -> None:
    """An unwound run takes no plan, told as our own error."""
    desk.run.unwind("customer withdrew")
    with pytest.raises(CounterfoilError, match="unwind"):
        desk.run.propose([("note", {"order": "o1"})])
