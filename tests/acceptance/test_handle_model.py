"""Any order of calls, crashes, resumptions and takeovers, against a simple model of an agent with a plan.

The agent wants some things done, one after the other, and writes each result down. It may die on any line, start again with
or without what it had written down, reword, poll, or be taken over by another process. Each wish is named in its arguments,
so that the effects tell whose they are: never two for one wish, and none missing unless the agent kept its transcript and
did not give its tokens back.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import count
from typing import TYPE_CHECKING, Any, ClassVar

import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from counterfoil import Counterfoil, NextStep, Result, Run, RunTakenOver, Status
from counterfoil.ledger.queries import Query
from counterfoil.outbox.pool import Transaction
from counterfoil.outbox.recording import Recorder
from counterfoil.outbox.waiting import Waiter
from counterfoil.testing import World

if TYPE_CHECKING:
    from tests.acceptance.shop import Shop

EXAMPLES = int(os.environ.get("CF_HANDLE_EXAMPLES", "0"))
"""More than the usual ones, and other ones each time."""

LINES = ("before the lock", "after the lock", "before the commit", "after the commit", "while it waits")
TRIES_MAX = 12
"""Calls for one wish at the end; each finds its action, reads what it has not seen, or waits for a worker."""


class Died(BaseException):
    """The agent's process is gone; nothing catches it."""


@dataclass
class Wish:
    """One thing that the agent wants done."""

    tool: str
    order: str
    label: bool


PLANS = st.lists(
    st.builds(
        Wish,
        st.sampled_from(["refund", "refund", "refund", "charge_fee"]),
        st.sampled_from("1112"),
        st.sampled_from([False, False, True]),
    ),
    min_size=2,
    max_size=5,
)
"""Mostly the same again: what differs is easy to tell apart."""

SAYS = st.sampled_from([True, True, True, True, False])


@dataclass
class Deaths:
    """Lets the process die at the next line of a name."""

    at: str = ""
    seen: Counter[str] = field(default_factory=Counter)

    def line(self, name: str) -> None:
        if name and self.at == name:
            self.at = ""
            self.seen[name] += 1
            raise Died

    def install(self, patch: pytest.MonkeyPatch) -> None:
        row, met, answered = Transaction.row, Recorder.met, Waiter.until_answered

        def dying_row(transaction: Transaction, query: Query, params: Any) -> Any:
            if query.name == "lock_and_read":
                self.line("before the lock")
            found = row(transaction, query, params)
            self.line({"lock_and_read": "after the lock", "propose": "before the commit"}.get(query.name, ""))
            return found

        def dying_met(*given: Any, **names: Any) -> Any:
            found = met(*given, **names)
            self.line("after the commit")
            return found

        def dying_wait(*given: Any, **names: Any) -> Any:
            self.line("while it waits")
            return answered(*given, **names)

        patch.setattr(Transaction, "row", dying_row)
        patch.setattr(Recorder, "met", dying_met)
        patch.setattr(Waiter, "until_answered", dying_wait)


class Agent(RuleBasedStateMachine):
    """The agent and its model: the plan, how much of it is written down, and the tokens of the answers that say so."""

    world: ClassVar[World]
    shop: ClassVar[Shop]
    cf: ClassVar[Counterfoil]
    deaths: ClassVar[Deaths]
    numbers: ClassVar[Any] = count()

    def __init__(self) -> None:
        super().__init__()
        self.name = f"task-{next(self.numbers)}"
        self.words = count()
        self.written: set[int] = set()
        """The wishes whose results are written down."""
        self.tokens: list[str] = []
        """`seen` of the answers that are written down."""
        self.honest = True
        """It always gave the tokens back that its transcript holds."""
        self.first_effect = len(self.shop.effects)
        self.shop.loses_answers = 0

    @initialize(plan=PLANS, refs=st.sampled_from(["none", "the same in every turn", "never the same"]))
    def begins(self, plan: list[Wish], refs: str) -> None:
        self.plan, self.refs = plan, refs
        self.older: Run | None = None
        self.run = self.opened([])

    @property
    def wish(self) -> int:
        """The first one that has no answer yet."""
        return next(number for number in count() if number not in self.written)

    def opened(self, seen: list[str]) -> Run:
        return self.cf.run(self.name, tenant="acme", actor="bot", seen=seen)

    def call(self) -> Result:
        """Asks for the present wish, in words that were never used before."""
        wish = self.plan[self.wish]
        text = f"{self.name}/{self.wish}/{next(self.words)}"
        ref = {"none": None, "the same in every turn": "call_0"}.get(self.refs, text)
        names = {"step": f"wish {self.wish}" if wish.label else None, "ref": ref}
        return self.run.call(wish.tool, {"order": wish.order, "reason": text}, wait_s=0, **names)

    def writes_down(self, result: Result) -> None:
        """Also results that it had not seen: it knows its own words again, and does not ask for those things any more."""
        for unseen in result.unseen or ():
            assert (unseen.status, unseen.replayed) == (Status.SUCCEEDED, True)
            assert unseen.arguments is not None
            self.written.add(int(str(unseen.arguments["reason"]).split("/")[1]))
        self.tokens.append(str(result.seen))
        if result.status is Status.SUCCEEDED:
            self.written.add(self.wish)
        elif result.status is Status.BLOCKED:
            assert result.next_step in (NextStep.WAIT, NextStep.READ_UNSEEN)
        else:
            assert result.status in (Status.PENDING, Status.UNCERTAIN)

    @property
    def has_wishes(self) -> bool:
        return self.wish < len(self.plan)

    @precondition(lambda self: self.has_wishes)
    @rule(works=st.booleans())
    def calls(self, works: bool) -> None:
        """A call; then the workers may get their turn."""
        self.writes_down(self.call())
        if works:
            self.world.work()

    @precondition(lambda self: self.has_wishes)
    @rule(line=st.sampled_from(LINES), keeps=st.booleans(), says=SAYS, works=st.booleans())
    def dies_in_a_call(self, line: str, keeps: bool, says: bool, works: bool) -> None:
        """The process ends on a line within the call, and another one begins."""
        self.deaths.at = line
        with suppress(Died):
            self.call()  # a line that this call does not reach: it dies when it has the answer in its hands
        self.deaths.at = ""
        if works:
            self.world.work()
        self.begins_again(keeps, says)

    @rule(keeps=st.booleans(), says=SAYS)
    def dies_between_calls(self, keeps: bool, says: bool) -> None:
        """The process ends and another one begins."""
        self.begins_again(keeps, says)

    @precondition(lambda self: self.has_wishes)
    @rule()
    def polls(self) -> None:
        """Waits for the result with the action's id, and says that it has written it down."""
        result = self.call()
        if result.status is Status.PENDING and result.action_id is not None:
            self.world.work()
            result = self.cf.result(result.action_id)
            if result.status is Status.SUCCEEDED:
                self.run.ack(str(result.seen))
        self.writes_down(result)

    @rule()
    def is_taken_over(self) -> None:
        """Another process that has the transcript goes on; the old handle may do nothing any more."""
        self.older, self.run = self.run, self.opened(self.tokens)

    @precondition(lambda self: self.older is not None and self.has_wishes)
    @rule()
    def the_old_process_calls(self) -> None:
        """Whoever was taken over is told so, and records nothing."""
        self.run, newer = self.older, self.run  # type: ignore[assignment]
        try:
            with pytest.raises(RunTakenOver):
                self.call()
        finally:
            self.run = newer

    @rule()
    def an_answer_gets_lost(self) -> None:
        """The next effect's answer does not arrive: unknown, until it is looked up."""
        self.shop.loses_answers = 1

    @rule()
    def workers_work(self) -> None:
        self.world.work()

    @invariant()
    def no_wish_has_two_effects(self) -> None:
        assert max(self.effects().values(), default=0) <= 1, self.shop.effects[self.first_effect :]

    def begins_again(self, keeps: bool, says: bool) -> None:
        """Without its transcript it begins at the first wish; with it, it may forget to pass `seen`."""
        if not keeps:
            self.written, self.tokens = set(), []
        elif self.written and not says:
            self.honest = False
        self.older, self.run = self.run, self.opened(self.tokens if keeps and says else [])

    def effects(self) -> Counter[str]:
        """How often each wish came true. What may happen once for an order is one wish, however often it is in the plan."""
        found: Counter[str] = Counter()
        for tool, order, text in self.shop.effects[self.first_effect :]:
            run, wish, _ = text.split("/")
            if run == self.name:
                found[f"fee {order}" if tool == "charge_fee" else wish] += 1
        return found

    def teardown(self) -> None:
        """The agent finishes its plan; then everything that it wanted has happened, once."""
        if not hasattr(self, "plan"):
            return
        self.world.settle()
        for _ in range(TRIES_MAX * len(self.plan)):
            if not self.has_wishes:
                break
            self.writes_down(self.call())
            self.world.settle()
        assert not self.has_wishes, "the agent never came to the end of its plan"
        self.no_wish_has_two_effects()
        wanted = {f"fee {w.order}" if w.tool == "charge_fee" else str(i) for i, w in enumerate(self.plan)}
        assert set(self.effects()) <= wanted
        if self.honest:
            assert set(self.effects()) == wanted


def test_the_handle_against_its_model(
    world: World, shop: Shop, client: Callable[..., Counterfoil], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever happens: no second effect for one wish, and no lost wish for an agent that gives its tokens back."""
    Agent.world, Agent.shop, Agent.cf, Agent.deaths = world, shop, client(), Deaths()
    Agent.deaths.install(monkeypatch)
    run_state_machine_as_test(  # type: ignore[no-untyped-call]
        Agent,
        settings=settings(
            max_examples=EXAMPLES or 80,
            stateful_step_count=15,
            derandomize=not EXAMPLES,
            database=None,
            deadline=None,
            phases=[Phase.generate, *([Phase.shrink] if EXAMPLES else [])],  # a shorter example takes minutes
            suppress_health_check=list(HealthCheck),
        ),
    )
    assert set(Agent.deaths.seen) == set(LINES), "each line was died on at least once"
