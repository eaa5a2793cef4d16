"""What lands after an action has ended is found within the day, for a person; nothing is sent again, nobody else asks."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import replace
from threading import Barrier, Thread
from types import SimpleNamespace
from typing import Any

import pytest
from tests.acceptance.doubts import to_review

from counterfoil import Counterfoil, Of, tool
from counterfoil.providers.outcomes import Rejected
from counterfoil.reconciler import watch
from counterfoil.reconciler.budget import LookUpBudget
from counterfoil.reconciler.setup import reconciler_from
from counterfoil.reconciler.ticks import Reconciler
from counterfoil.testing import World
from counterfoil.workers.admission import Granted, Unlimited

TICKET = {"project": "SUP", "summary": "Refund for order 1182", "order_id": "1182"}
CHARGE = {"customer": "cus_1", "amount_minor": 500, "currency": "usd", "order_id": "1182"}
LATE_S = 3600.0
"""Far beyond any landing window."""
DAY_S = 86_400.0


@pytest.fixture
def alarms(sql: Any) -> Callable[[], list[tuple[Any, ...]]]:
    """Open alarms about second effects: whose, and what was found."""
    query = (
        "SELECT subject, evidence FROM counterfoil.alarm WHERE kind = 'duplicate' AND ended_at IS NULL ORDER BY since"
    )
    return lambda: sql(query)


@pytest.fixture
def state(sql: Any) -> Callable[[str], tuple[str, str | None]]:
    """State and error code of an action."""

    def read(action_id: str) -> tuple[str, str | None]:
        [row] = sql("SELECT state, last_error_code FROM counterfoil.action WHERE action_id = %s", action_id)
        return row[0], row[1]

    return read


def creations(world: World) -> int:
    return len(world.sandbox.requests("jira", "issue.create"))


def searches(world: World) -> int:
    """Requests at Jira that made nothing."""
    return len(world.sandbox.requests("jira")) - creations(world)


@contextmanager
def second_reconciler(world: World) -> Iterator[Reconciler]:
    """One more reconciler, in this process."""
    other = reconciler_from(world.settings, by="reconciler-2", registry=world.registry, admission=Unlimited())
    with closing(other.ledger):
        yield other


@pytest.fixture
def given_up(world: World, enqueue: Any, client: Callable[..., Counterfoil]) -> Callable[..., str]:
    """A ticket whose request got lost for an hour, and that was cancelled meanwhile: it failed, since it was absent."""

    def end(step: str = "s1", delay_s: float = LATE_S) -> str:
        world.sandbox.jira.fault("504_then_commit_after", on="issue.create", delay_s=delay_s)
        action_id: str = enqueue("jira_create", TICKET, step)
        assert world.work() == 1
        client().cancel(action_id, "wrong order")
        world.settle()
        return action_id

    return end


@pytest.fixture
def sent_twice(world: World, enqueue: Any) -> Callable[..., str]:
    """Tickets whose requests got lost for an hour, and that were sent again after absence was earned; the first one."""

    def end(*steps: str, fault: str = "504_then_commit_after") -> str:
        late: dict[str, Any] = {"delay_s": LATE_S} if "then_commit" in fault else {}
        steps = steps or ("s1",)
        world.sandbox.jira.fault(fault, on="issue.create", times=len(steps), **late)
        action_ids: list[str] = [enqueue("jira_create", TICKET | {"order_id": step}, step) for step in steps]
        world.settle()
        return action_ids[0]

    return end


def test_it_lands_after_its_absence_was_earned(
    world: World, given_up: Any, state: Any, client: Any, cli: Any, sql: Any
) -> None:
    """The effect of an action that had failed is found within the day and is a person's; asked again, it has succeeded."""
    action_id = given_up()
    assert state(action_id) == ("permanent_failure", "absent")
    assert world.sandbox.count("tickets_created") == 0
    world.advance(LATE_S)
    assert world.sandbox.count("tickets_created") == 1
    for _ in range(3):
        world.advance(7200)
        world.reconcile()
    assert state(action_id) == ("operator_review", "found_after_all")
    assert "found" in cli("action", "explain", action_id)[1]
    [[evidence]] = sql(
        "SELECT evidence FROM counterfoil.history WHERE action_id = %s AND reason = 'found after all'", action_id
    )
    assert "SUP-" in evidence
    cli("review", "ask-again", action_id, "--wait-s", "0")
    world.settle()
    assert state(action_id)[0] == "succeeded"
    assert (creations(world), world.sandbox.count("tickets_created")) == (1, 1)


def test_a_double_under_one_key(world: World, sent_twice: Any, state: Any, alarms: Any, sql: Any) -> None:
    """Two tickets under one key are one alarm with both ids; the state stays, and neither an undo nor a resend follows."""
    action_id = sent_twice()
    assert (state(action_id)[0], world.sandbox.count("tickets_created")) == ("succeeded", 1)
    world.advance(LATE_S)
    world.advance(60)  # in the index, too
    assert world.sandbox.count("tickets_created") == 2
    with second_reconciler(world) as other:
        together(world.reconciler.watch, other.watch)
        world.advance(DAY_S)
        together(world.reconciler.watch, other.watch)
    world.settle()
    [(subject, evidence)] = alarms()
    assert subject == action_id
    assert evidence.count("SUP-") == 2
    assert state(action_id)[0] == "succeeded"
    assert sql("SELECT count(*) FROM counterfoil.action") == [(1,)]  # no undo: which of the two would it hit?
    assert sql("SELECT count(*) FROM counterfoil.correction") == [(0,)]  # Jira's tool declares none
    assert (creations(world), world.sandbox.count("tickets_open")) == (2, 2)


def test_a_person_ends_the_alarm(world: World, sent_twice: Any, alarms: Any, cli: Any, sql: Any) -> None:
    """An operator sees both ids and ends the alarm with what was done; nobody looks for more, and none begins anew."""
    sent_twice()
    world.advance(LATE_S)
    world.advance(60)  # in the index, too
    world.reconcile()
    [[number, evidence]] = sql("SELECT alarm_id, evidence FROM counterfoil.alarm")
    alarm = f"A-{number}"
    assert cli("alarm", "list")[0] == 6
    assert evidence in " ".join(cli("alarm", "show", alarm)[1].split())
    assert cli("alarm", "end", alarm, "--reason", "deleted SUP-2")[0] == 0
    assert cli("alarm", "end", alarm, "--reason", "deleted SUP-2")[0] == 4
    assert "deleted SUP-2" in cli("alarm", "show", alarm)[1]
    before = searches(world)
    world.advance(DAY_S)
    world.reconcile()
    assert (cli("alarm", "list")[0], alarms(), searches(world)) == (0, [], before)


def together(*calls: Callable[[], object]) -> None:
    """Runs them in threads that start at once."""
    barrier = Barrier(len(calls), timeout=20)

    def run(call: Callable[[], object]) -> None:
        barrier.wait()
        call()

    threads = [Thread(target=run, args=(call,)) for call in calls]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
        assert not thread.is_alive()


class Mail:
    """A mail provider that loses the first answer, and delivers that mail whenever the test says."""

    def __init__(self) -> None:
        self.sent: list[tuple[str, str]] = []
        self.lost = ""
        """The key of the mail whose answer got lost."""
        self.calls = 0

        @tool(
            cls="irreversible",
            effect="mail",
            target="order",
            once_per=None,
            provider="post",
            audience=["customer"],
            landing_max_s=1.0,
            approval="never",
            lookup=lambda key: [{"id": name} for k, name in self.sent if k == key],
            correction=lambda a: {"tool": "send_mail", "arguments": {"order": a["order"]}},
        )
        def send_mail(order: str, *, key: str) -> dict[str, str]:
            """Tell a customer."""
            self.calls += 1
            if self.calls == 1:
                self.lost = key
                raise RuntimeError("lost")
            return {"id": self.deliver(key)}

        self.tool = send_mail

    def deliver(self, key: str) -> str:
        self.sent.append((key, f"mail-{len(self.sent) + 1}"))
        return self.sent[-1][1]


def test_a_double_that_a_customer_has_read(
    world: World, use_tools: Any, enqueue: Any, state: Any, alarms: Any, sql: Any
) -> None:
    """Of a double that nothing takes back, a correction is queued once, though one who finds it dies; none is sent."""
    mail = Mail()
    use_tools(mail.tool)
    action_id = enqueue("send_mail", {"order": "1182"})
    world.settle()
    assert (state(action_id)[0], len(mail.sent)) == ("succeeded", 1)
    mail.deliver(mail.lost)
    world.advance(61)
    watcher = world.reconciler.watcher
    dying = replace(watcher, registry=Dying(world.registry))
    with pytest.raises(Killed):
        dying.visit(budget_s=5)  # the alarm is open, and nothing is queued
    assert len(alarms()) == 1
    assert sql("SELECT count(*) FROM counterfoil.correction") == [(0,)]
    world.advance(watcher.lease_s + 1)
    with second_reconciler(world) as other:
        together(world.reconciler.watch, other.watch)
        world.advance(DAY_S)
        together(world.reconciler.watch, other.watch)
    world.settle()
    assert [subject for subject, _ in alarms()] == [action_id]
    assert sql("SELECT action_id, state FROM counterfoil.correction") == [(action_id, "open")]
    assert (state(action_id)[0], mail.calls, len(mail.sent)) == ("succeeded", 2, 2)


class Killed(BaseException):
    """Plays a SIGKILL."""


class Dying:
    """A registry under which the process dies when it is asked for a tool's correction."""

    def __init__(self, registry: Any) -> None:
        self._registry = registry

    def __iter__(self) -> Any:
        return iter(self._registry)

    def get(self, name: str, version: int) -> Any:
        spec = self._registry.get(name, version)

        class Spec:
            @property
            def correction(self) -> object:
                raise Killed

            def __getattr__(self, attribute: str) -> object:
                return getattr(spec, attribute)

        return Spec()


def test_what_was_taken_back_may_still_be_seen(
    world: World, enqueue: Any, unwind: Any, alarms: Any, state: Any
) -> None:
    """A refunded charge and its closed ticket are looked up for the day, and are what they should be: no alarm."""
    action_id, ticket = enqueue("stripe_charge", CHARGE, "fee"), enqueue("jira_create", TICKET, "ticket")
    world.settle()
    unwind()
    world.settle()
    before = len(world.sandbox.requests())
    for _ in range(4):
        world.advance(DAY_S / 2)
        world.reconcile()
    assert len(world.sandbox.requests()) > before
    assert [state(each)[0] for each in (action_id, ticket)] == ["compensated", "compensated"]
    assert alarms() == []
    assert (world.sandbox.count("charges"), world.sandbox.count("refunds")) == (1, 1)


def test_a_success_without_a_receipt(world: World, enqueue: Any, cli: Any, alarms: Any, state: Any, sql: Any) -> None:
    """What only a person vouches for has no receipt: the one object that is found is it, and no second effect."""
    world.sandbox.jira.fault("504_before_commit", on="issue.create")
    action_id = enqueue("jira_create", TICKET)
    world.work()
    for _ in range(30):
        if state(action_id)[0] == "ready":
            break
        world.advance(1)
        world.reconcile()
    world.sandbox.jira.fault("504_after_commit", on="issue.create")
    world.sandbox.jira.fault("html_503", on="search", times=None)
    world.advance(5)
    world.work()
    to_review(sql, action_id)
    assert cli("review", "give-up", action_id, "--as-happened", "--reason", "seen")[0] == 0
    assert sql("SELECT receipt, resent FROM counterfoil.action") == [("unverified", True)]
    world.sandbox.clear_faults()
    world.advance(61)
    before = searches(world)
    world.reconcile()
    assert searches(world) > before
    assert (alarms(), state(action_id)[0], world.sandbox.count("tickets_created")) == ([], "succeeded", 1)


def test_a_refusal_that_was_none(world: World, enqueue: Any, state: Any) -> None:
    """A provider that refuses for good and does it all the same is found out, too, although nothing was ever in doubt."""
    world.sandbox.jira.fault("answer", on="issue.create", status=400, commit=True)
    action_id = enqueue("jira_create", TICKET)
    world.settle()
    assert state(action_id)[0] == "permanent_failure"
    world.advance(1801)
    world.reconcile()
    assert state(action_id) == ("operator_review", "found_after_all")


def test_the_watch_ends(world: World, sent_twice: Any, sql: Any) -> None:
    """A row is looked up six times in a day, the last time at its end, and never again."""
    action_id = sent_twice(fault="504_before_commit")
    [[since]] = sql("SELECT watched_since FROM counterfoil.action WHERE action_id = %s", action_id)
    visited = []
    for step_s in (59, 2, 240, 1500, 5400, 21_600, 28_800, 28_800, DAY_S, DAY_S):
        before = searches(world)
        world.advance(step_s)
        world.reconcile()
        [[now]] = sql("SELECT counterfoil.now()")
        if searches(world) > before:
            visited.append(round((now - since).total_seconds()) // 60)
    assert visited == [1, 5, 30, 120, 480, 1440]
    assert sql("SELECT watch_at, watch_count FROM counterfoil.action WHERE action_id = %s", action_id) == [(None, 6)]


def test_many_rows_are_one_question(world: World, sent_twice: Any, sql: Any) -> None:
    """Watched rows are asked about together, by the watch alone, and only when they are due."""
    sent_twice(*"abcdefgh", fault="504_before_commit")
    before = searches(world)
    world.reconciler.watch()
    assert searches(world) == before
    world.advance(60)
    before = searches(world)
    for tick in (world.reconciler.sweep_uncertain, world.reconciler.rescue, world.reconciler.unwind_runs):
        tick()
    assert searches(world) == before
    assert world.reconciler.watch() == 8
    assert searches(world) - before <= 3
    assert sql("SELECT count(*) FROM counterfoil.action WHERE watch_count = 1") == [(8,)]


def test_uncertain_actions_come_first(world: World, sent_twice: Any, enqueue: Any) -> None:
    """While look-ups of what is uncertain are overdue, what has ended waits."""
    sent_twice(fault="504_before_commit")
    world.sandbox.jira.fault("504_after_commit", on="issue.create")
    enqueue("jira_create", TICKET | {"order_id": "1183"}, "s2")
    world.work()
    world.advance(130)
    before = searches(world)
    assert (world.reconciler.watch(), searches(world)) == (0, before)
    world.reconciler.sweep_uncertain()
    assert world.reconciler.watch() == 1


def test_an_outage_proves_nothing(world: World, given_up: Any, state: Any, sql: Any) -> None:
    """Look-ups that fail are repeated soon and count for nothing; after the outage the effect is found."""
    action_id = given_up()
    world.sandbox.jira.fault("html_503", on="search", times=None)
    world.advance(LATE_S)
    for _ in range(3):
        world.advance(600)
        world.reconcile()
    counted = "SELECT watch_count, watch_at - counterfoil.now() < '1 hour' FROM counterfoil.action WHERE action_id = %s"
    assert sql(counted, action_id) == [(0, True)]
    world.sandbox.clear_faults()
    world.advance(3600)
    world.reconcile()
    assert state(action_id) == ("operator_review", "found_after_all")


def test_a_provider_that_never_answers_is_given_up(world: World, given_up: Any, state: Any, sql: Any) -> None:
    """After twice the watch's length nobody asks any more; the state stays."""
    action_id = given_up()
    world.sandbox.jira.fault("html_503", on="search", times=None)
    for _ in range(5):
        world.advance(DAY_S / 2)
        world.reconcile()
    assert sql("SELECT watch_at, watch_count FROM counterfoil.action WHERE action_id = %s", action_id) == [(None, 0)]
    assert state(action_id)[0] == "permanent_failure"


def test_another_account_proves_nothing(world: World, given_up: Any, configure: Any, sql: Any) -> None:
    """What is not seen with other credentials than the request went out with does not count as a look-up."""
    action_id = given_up(delay_s=10 * DAY_S)
    configure("jira", token="another")
    world.restart()
    world.advance(61)
    world.reconcile()
    assert sql("SELECT watch_count FROM counterfoil.action WHERE action_id = %s", action_id) == [(0,)]
    assert sql("SELECT watch_at > counterfoil.now() FROM counterfoil.action") == [(True,)]


class Sparing(Unlimited):
    """Grants so many requests, and then none."""

    def __init__(self, requests: int) -> None:
        self.left = requests

    def look_ups(self, provider: str, wanted: int) -> Granted:
        granted = min(wanted, self.left)
        self.left -= granted
        return Granted(requests=granted, wait_s=5)


@pytest.fixture
def five_mails(world: World, use_tools: Any, enqueue: Any) -> list[str]:
    """Five mails of a function, each sent again after a look-up; the keys that it is asked about from now on."""
    asked: list[str] = []
    lost: set[str] = set()

    def absent(key: str) -> list[str]:
        asked.append(key)
        return []

    @tool(cls="irreversible", effect="mail", target="order", once_per=None, provider="post", audience=["customer"],
          landing_max_s=1.0, approval="never", lookup=absent)  # fmt: skip
    def send_mail(order: str, *, key: str) -> dict[str, str]:
        """Tell a customer."""
        if key not in lost:
            lost.add(key)
            raise RuntimeError("lost")
        return {"id": key[:8]}

    use_tools(send_mail)
    for order in "abcde":
        enqueue("send_mail", {"order": order}, order, order)
    world.settle()
    assert world.moved_s < 60  # nothing is settled later because it is watched
    asked.clear()
    return asked


def test_only_what_is_granted_is_asked(world: World, five_mails: list[str], sql: Any) -> None:
    """Rows beyond the provider's rate of look-ups wait, uncounted, and are the next tick's."""
    watcher, asked = world.reconciler.watcher, five_mails

    def looked_up(granted: int) -> int:
        """How many the watch asks about a minute later."""
        world.advance(61)
        asked.clear()
        rows = replace(watcher, budget=LookUpBudget(admission=Sparing(granted))).visit(budget_s=5)
        assert rows == len(set(asked)) == len(asked)
        return rows

    assert [looked_up(2), looked_up(0), looked_up(9)] == [2, 0, 3]
    assert sql("SELECT sum(watch_count) FROM counterfoil.action") == [(5,)]


def test_a_slow_look_up_holds_no_answer_back(
    world: World, five_mails: list[str], monkeypatch: pytest.MonkeyPatch, sql: Any
) -> None:
    """What a function answers is written before the claim lapses, row by row; the others are due again after it."""
    watcher = world.reconciler.watcher
    took_s = watcher.lease_s * 0.6  # two of five
    slow = SimpleNamespace(monotonic=lambda: len(five_mails) * took_s)
    monkeypatch.setattr(watch, "time", slow)
    world.advance(61)
    world.reconcile()
    assert len(five_mails) == 2
    assert sql("SELECT sum(watch_count) FROM counterfoil.action") == [(2,)]
    world.advance(watcher.lease_s + 1)
    world.reconcile()
    assert sql("SELECT sum(watch_count) FROM counterfoil.action") == [(4,)]


def test_nobody_can_be_asked(world: World, use_tools: Any, enqueue: Any, sql: Any) -> None:
    """A tool without a look-up is not watched: that ends when its row is due for the first time."""

    @tool(cls="irreversible", effect="call", target="order", once_per=None, provider="phone", audience=["customer"],
          approval="never", uncertain="operator_review")  # fmt: skip
    def ring(order: str, *, key: str) -> Rejected:
        """Ring a customer."""
        return Rejected("engaged")

    use_tools(ring)
    enqueue("ring", {"order": "1182"})
    world.settle()
    watched = "SELECT state, watch_at IS NOT NULL FROM counterfoil.action"
    assert sql(watched) == [("permanent_failure", True)]
    world.advance(1801)
    world.reconcile()
    assert sql(watched) == [("permanent_failure", False)]


def test_an_undo_that_landed_after_all(
    world: World, use_tools: Any, enqueue: Any, unwind: Any, configure: Any, cli: Any, run_state: Any, sql: Any
) -> None:
    """A counter-action that was given up and landed later is a person's; once confirmed, its run is visited again."""
    effects: list[str] = []

    def find(key: str) -> list[dict[str, str]]:
        return [{"id": key[:8]}] if key in effects else []

    def undone(of: Of) -> list[dict[str, str]]:
        return [{"id": "undone"}] if f"undo {of.key}" in effects else []

    made: dict[str, Any] = {"provider": "shop", "landing_max_s": 1.0, "target": "order", "audience": ["customer"]}

    @tool(cls="compensatable", effect="sale", once_per=None, undo="unsell", lookup=find, **made)
    def sell(order: str, *, key: str) -> dict[str, str]:
        """Sell."""
        effects.append(key)
        return {"id": key[:8]}

    lost: list[Of] = []

    @tool(cls="compensatable", effect="sale", once_per=None, undo=None, lookup=undone, **made)
    def unsell(order: str, *, key: str, of: Of) -> dict[str, str]:
        """Take it back."""
        lost.append(of)
        raise RuntimeError("lost")

    use_tools(sell, unsell)
    providers = {**world.settings.providers, "shop": world.settings.provider("shop")}
    world.settings = world.settings.model_copy(update={"providers": providers})
    configure("shop", attempts_max=1)
    enqueue("sell", {"order": "1182"})
    world.settle()
    unwind()
    world.settle()
    [[undo_id, before]] = sql("SELECT action_id, state FROM counterfoil.action WHERE phase = 'undo'")
    assert before == "operator_review"
    sql(
        "UPDATE counterfoil.action SET state = 'permanent_failure', in_doubt = false, changed_by = 'jo',"
        " change_reason = 'given up' WHERE action_id = %s",
        undo_id,
    )
    world.settle()
    assert run_state() == "unwound"  # it stays sold
    effects.append(f"undo {lost[0].key}")
    world.advance(61)
    world.reconcile()
    [[after, code]] = sql("SELECT state, last_error_code FROM counterfoil.action WHERE action_id = %s", undo_id)
    assert (after, code) == ("operator_review", "found_after_all")
    cli("review", "ask-again", undo_id, "--wait-s", "0")
    world.settle()
    assert (world.states(), run_state()) == ({"sell/s1/do": "compensated", "unsell/s1/undo": "succeeded"}, "unwound")
    assert len(lost) == 1
