"""People against liars: plans, decisions, edits, reviews and unwinds in any order, with deaths in between.

Gateways lie, workers and reconcilers die at any statement, and two persons may speak at once. The oracle is the sandbox's
own store. People say what they know to be true, or what the provider can refute. `CF_SIMULATION_STEPS` sets the length,
`CF_SIMULATION_SEED` the first seed; a failure names its seed.
"""

from __future__ import annotations

import os
import random
import threading
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import psycopg
import pytest
from tests.acceptance.liars import LANDING_MAX_S, Deaths, more_tools
from tests.acceptance.office import Office
from tests.ends import all_ends

from counterfoil import Counterfoil, Run
from counterfoil.ledger import corrections as letters
from counterfoil.ledger import proposals as doors
from counterfoil.ledger.connection import Ledger, Row
from counterfoil.ledger.errors import CounterfoilError
from counterfoil.ledger.queries import Query, load
from counterfoil.people import corrections, proposals, reviews
from counterfoil.testing import World

_AGENT = load("counterfoil.ledger", "sql/agent.sql")
STEPS = int(os.environ.get("CF_SIMULATION_STEPS", "1200"))
SEED = int(os.environ.get("CF_SIMULATION_SEED", "1"))
STEPS_OF_AN_EPISODE = 120
EPISODES = -(-STEPS // 240)
ROUNDS_MAX = 40

LIES = ["504_before_commit", "504_after_commit", "504_then_commit_after", "html_502", "rst_before_commit", "429_bare",
        "rst_after_commit", "truncate_body", "empty_2xx", "503_retry_after", "500_unstored", "500_stored"]  # fmt: skip
WRITES = [("warehouse", "shipments.create"), ("warehouse", "shipments.cancel"), ("mail", "messages.send")]
READS = [("warehouse", "shipments.list"), ("mail", "messages.list")]
SINGLE = ["ticket", "charge", "send_mail", "post", "gated", "keyed", "blind", "lagging", "versioned"]
BY_RECEIPT = {"hold", "draft", "ticket", "charge", "capture"}
"""What takes these back needs the receipt, so nobody calls them done without one."""
NEGATIVE = {"permanent_failure", "not_executed", "cancelled", "stale"}
SETTLED = NEGATIVE | {"succeeded", "compensated"}
CUSTOMER = "customer_message"


@dataclass(kw_only=True)
class Episode:
    """One story: two runs, an agent with a plan, and everybody who may speak about them."""

    world: World
    client: Counterfoil
    people: Ledger
    database: psycopg.Connection[tuple[Any, ...]]
    """The owner's."""
    agent_url: str
    operator_url: str
    deaths: Deaths
    rng: random.Random
    number: int
    story: list[str] = field(default_factory=list)
    steps: int = 0
    unwound: int = 0

    def play(self) -> None:
        moves: list[tuple[Callable[[], object], float]] = [
            (self.enqueue, 4), (self.plan, 6), (self.lie, 5), (self.work, 14), (self.reconcile, 14), (self.advance, 8),
            (self.decide, 5), (self.edit, 2), (self.review, 8), (self.both_at_once, 2), (self.orphan, 3),
            (self.unwind, 2.0), (self.cancel, 0.6), (self.correct, 4), (self.freeze, 1),
        ]  # fmt: skip
        actions, weights = zip(*moves, strict=True)
        for _ in range(STEPS_OF_AN_EPISODE):
            move = self.rng.choices(actions, weights)[0]
            self.story.append(f"{self.world.moved_s:.2f} {move.__name__}")
            try:
                self.story[-1] += f" {move()}"
            except CounterfoilError as error:
                self.story[-1] += f" {type(error).__name__} {error}"

    # the agent

    @property
    def runs(self) -> list[str]:
        """All of them; the newest plan and the newest calls come last."""
        return [f"e{self.number}-{kind}{n}" for n in range(self.unwound + 1) for kind in ("plan", "calls")]

    @property
    def all_runs(self) -> list[str]:
        """With the child runs."""
        return [run for (run,) in self.owner("SELECT run FROM counterfoil.run WHERE run LIKE %s", f"e{self.number}-%")]

    def run(self, name: str) -> Run:
        seen = self.rng.choice(["", all_ends(self.owner, name)])
        return self.client.run(name, tenant="acme", actor="bot", seen=seen)

    def enqueue(self) -> str:
        name, self.steps = self.rng.choice(SINGLE), self.steps + 1
        order = f"{self.number}-{self.steps}"
        given: dict[str, Any] = {"order": order}
        if name == "send_mail":
            given |= {"to": "ann@example.com", "subject": order}
        if name == "charge":
            given |= {"receipt": self.rng.random() < 0.5}
        run = self.runs[-1]
        if self.rng.random() < 0.3:
            run = self.run(run).child("sub").run
        with psycopg.connect(self.agent_url) as connection:
            made = self.client.enqueue(
                connection, name, given, tenant="acme", run=run, step=f"s{self.steps}", actor="bot"
            )
        return f"{name} {made}"

    def plan(self) -> str:
        """The next thing that the agent would do: stage a hold, stage a draft, propose to commit both."""
        run, order = self.run(self.runs[-2]), {"order": f"{self.number}-{self.unwound}"}
        held = run.stage("hold", order, step="hold", wait_s=0)
        if held.status != "succeeded":
            return f"hold {held.status}"
        draft = run.stage("draft", order, step="draft", wait_s=0)
        if draft.status != "succeeded":
            return f"draft {draft.status}"
        plan = run.propose(
            [("capture", {**order, "of": held.action_id}), ("send_draft", {**order, "of": draft.action_id})]
        )
        return f"{plan.id} {plan.result().status}"

    def unwind(self) -> str:
        run = self.rng.choice(self.runs)
        with closing(Ledger(self.agent_url)) as ledger:
            ledger.row(_AGENT["request_unwind"], {"tenant": "acme", "run": run, "reason": "customer withdrew"})
        if run in self.runs[-2:] and self.owner("SELECT FROM counterfoil.run WHERE run = %s", run):
            self.unwound += 1
        return run

    def cancel(self) -> str:
        return "".join(f"{a} {self.client.cancel(a, 'no').status}" for a in self._some("state NOT IN ('succeeded')"))

    # the fleet

    def lie(self) -> str:
        provider, operation = self.rng.choice(WRITES + READS)
        name = self.rng.choice(["429_bare", "500_unstored", "html_502"] if (provider, operation) in READS else LIES)
        more = {"delay_s": self.rng.uniform(0, LANDING_MAX_S - 0.1)} if name == "504_then_commit_after" else {}
        if (provider, operation) in WRITES and self.rng.random() < 0.15:
            name, more = "answer", {"status": 403}
        self.world.sandbox.fault(name, provider=provider, operation=operation, times=self.rng.randint(1, 2), **more)
        return f"{name} {operation} {more}"

    def work(self) -> object:
        with self.deaths.within(self.rng.choice([0.0, 0.03, 0.1])):
            return self.world.work()
        self._buried()
        return "died"

    def reconcile(self) -> object:
        ticks = self.world.reconciler
        chosen = self.rng.choices(
            [
                ticks.sweep_uncertain,
                ticks.sweep_leases,
                ticks.unwind_runs,
                ticks.expire,
                ticks.rescue,
                ticks.read_versions,
            ],
            [6, 3, 6, 1, 1, 1],
        )[0]
        with self.deaths.within(self.rng.choice([0.0, 0.05, 0.2])):
            return f"{chosen.__name__} {chosen()}"
        self._buried()
        return f"{chosen.__name__} died"

    def freeze(self) -> object:
        """A second worker stops with its answer in hand, and its lease ends meanwhile."""
        reached, go_on = threading.Event(), threading.Event()
        point = self.rng.choice(["after_claim", "before_settle"])

        def stop(here: str, _tool: str) -> None:
            if here == point and not reached.is_set():
                reached.set()
                assert go_on.wait(30)

        worker = self.world.new_worker("frozen", stop)
        thread = threading.Thread(
            target=worker.run, args=(self.world.due(),), kwargs={"stop_at": float("inf")}, daemon=True
        )
        thread.start()
        while thread.is_alive() and not reached.wait(0.002):
            pass
        self.world.advance(7)
        ticks = self.world.reconciler
        moved = ticks.sweep_leases(), ticks.sweep_uncertain(), self.review()
        go_on.set()
        thread.join(30)
        worker.ledger.close()
        return point, moved

    def _buried(self) -> None:
        self.world.restart()

    def advance(self) -> object:
        seconds = self.rng.choice([0.1, 0.5, 1.0, 2.1, 4.0, 7.0])
        self.world.advance(seconds)
        return seconds

    def orphan(self) -> object:
        """As when no reconciler has had the tool for an hour."""
        for action_id in self._some("state = 'uncertain'"):
            return self.owner(
                "UPDATE counterfoil.action SET state = 'operator_review', last_error_code = 'tool_unknown',"
                " changed_by = 'rescue', change_reason = 'tool unknown' WHERE action_id = %s RETURNING action_id",
                action_id,
            )
        return "none"

    # people

    def decide(self) -> object:
        for each in doors.list_proposals(self.people):
            if each.waits:
                shown = proposals.show(self.people, each.proposal_id, registry=self.world.registry)
                if self.rng.random() < 0.2:
                    return proposals.reject(self.people, each.proposal_id, by="alice", channel="t", reason="no").answer
                return proposals.approve(
                    self.people, each.proposal_id, digest=shown.digest, by="alice", channel="t",
                    registry=self.world.registry,
                ).answer  # fmt: skip
        return "none"

    def edit(self) -> object:
        for each in doors.list_proposals(self.people):
            if each.waits and not each.is_plan and each.proposal_id in self._proposed("gated"):
                proposals.edit(
                    self.people, each.proposal_id, place=1, changes={"words": self.rng.choice("abc")}, by="bob",
                    channel="t", registry=self.world.registry,
                )  # fmt: skip
                return each.proposal_id
        return "none"

    def review(self) -> object:
        for action_id in self._some("state = 'operator_review'"):
            return f"{action_id} {self.word(action_id)(self.people)}"
        return "none"

    def word(self, action_id: str) -> Callable[[Ledger], str]:
        """What somebody says: true where nobody could refute it, else anything."""
        row = self.row(action_id)
        made, rng, asks = self.made(row), self.rng, self.world.registry.get(row["tool"]).lookup is not None
        other = [r["receipt"] for r in self.rows("receipt IS NOT NULL")]
        verb = rng.choice(["happened", "happened", "not_happened", "ask_again", "give_up", "as_happened"])
        said: dict[str, Any] = {"by": rng.choice(["alice", "bob"]), "channel": "test"}
        if verb == "as_happened" and (not made or (row["tool"] in BY_RECEIPT and row["receipt"] not in made)):
            verb = "happened"
        if verb == "not_happened" and made and not asks:
            verb = "happened"
        if verb in ("give_up", "as_happened"):
            given_up = partial(reviews.give_up, reason="enough", as_happened=verb == "as_happened", **said)
            return lambda ledger: f"{verb} {given_up(ledger, action_id).answer}"
        if verb == "happened":
            true = made and rng.random() < 0.6
            said["receipt"] = rng.choice(made if true else [*other, "../shipments", "a&b=c", "%00", "x" * 255, "none"])
        asked = partial(reviews.ask, verb=verb, **said)
        return lambda ledger: f"{verb} {asked(ledger, action_id).answer}"

    def both_at_once(self) -> object:
        for action_id in self._some("state = 'operator_review'"):
            with closing(Ledger(self.operator_url)) as other, ThreadPoolExecutor(2) as threads:
                words = (self.word(action_id), self.people), (self.word(action_id), other)
                said = [threads.submit(word, ledger) for word, ledger in words]
                return [each.result(20) for each in said]
        return "none"

    def correct(self, name: str | None = None) -> object:
        for each in letters.list_corrections(self.people, state=letters.CorrectionState.OPEN):
            shown = letters.read_correction(self.people, each.correction_id)
            given: dict[str, Any] = {"by": "carol", "channel": "test"}
            if self.rng.random() < 0.3:
                return letters.dismiss(self.people, each.correction_id, reason="told by phone", **given).answer
            if shown.call is None or self.rng.random() < 0.3:
                changes = {"order": f"{self.number}", "to": "ann@example.com", "subject": self.rng.choice("abc")}
                shown = corrections.edit(
                    self.people, each.correction_id, tool="send_mail", changes=changes, registry=self.world.registry, **given
                )  # fmt: skip
            return corrections.send(
                self.people, each.correction_id, digest=shown.digest or "", registry=self.world.registry, **given
            ).answer  # fmt: skip
        return "none"

    # the end

    def conclude(self) -> None:
        """The gateways are honest again; people say what is true until nothing waits for them."""
        self.world.sandbox.clear_faults()
        self.world.advance(10)
        self.world.settle()
        self.check()
        for _ in range(ROUNDS_MAX):
            waits = self.rows("state = 'operator_review'")
            for row in waits:
                self.story.append(f"conclude {row['action_id']} {row['tool']} {self.tell_the_truth(row)}")
            for each in doors.list_proposals(self.people):
                if each.waits:
                    proposals.reject(self.people, each.proposal_id, by="alice", channel="test", reason="late")
            self.story.append(f"correct {self.correct()}")
            self.world.settle()
            self.world.advance(5)
            left = letters.list_corrections(self.people, state=letters.CorrectionState.OPEN)
            if not waits and not left:
                break
        self.check()
        open_rows = [row for row in self.rows("true") if row["state"] not in SETTLED]
        assert not open_rows, f"stuck: {open_rows}"
        for run, state in self.owner("SELECT run, state FROM counterfoil.run WHERE run LIKE %s", f"e{self.number}-%"):
            assert state in ("open", "unwound"), f"{run} {state}"

    def tell_the_truth(self, row: Row) -> str:
        said: dict[str, Any] = {"by": "alice", "channel": "test"}
        made = self.made(row)
        if not made:
            answer = reviews.ask(self.people, row["action_id"], verb="not_happened", **said)
        elif self.world.registry.get(row["tool"]).lookup is None:
            answer = reviews.give_up(self.people, row["action_id"], reason="seen", as_happened=True, **said)
        else:
            answer = reviews.ask(self.people, row["action_id"], verb="happened", receipt=made[0], **said)
        return str(answer.answer)

    def check(self) -> None:
        """What the rows say is what the world holds."""
        for row in self.rows("true"):
            made, state = self.made(row), row["state"]
            assert len(made) <= 1, f"{len(made)} effects of {row}"
            assert state in SETTLED | {"operator_review", "awaiting_approval", "proposed"}, f"not settled: {row}"
            assert state not in ("succeeded", "compensated") or len(made) == 1, f"no effect of {row}"
            assert state not in NEGATIVE or not made, f"an effect of {row}"
        assert self.owner("SELECT * FROM counterfoil.review WHERE answered_at IS NULL") == []
        assert (
            self.owner(
                "SELECT r.review_id FROM counterfoil.review AS r JOIN counterfoil.attempt AS t ON t.action_id = r.action_id"
                " WHERE r.verb IN ('happened', 'not_happened') AND t.started_at > r.asked_at AND t.outcome <> 'let_go'"
            )
            == []
        ), "sent after a person's word"
        assert (
            self.owner(
                "SELECT a.action_id FROM counterfoil.action AS a JOIN counterfoil.attempt AS t ON t.action_id = a.action_id"
                " JOIN counterfoil.run AS r ON r.tenant = a.tenant AND r.run = a.run"
                " WHERE a.phase = 'do' AND t.started_at > r.unwind_requested_at"
            )
            == []
        ), "begun while its run was taken back"
        assert (
            self.owner(
                "SELECT a.action_id FROM counterfoil.action AS a LEFT JOIN counterfoil.approval AS g"
                " ON g.action_id = a.action_id AND g.consumed_at IS NOT NULL"
                " WHERE a.needs_approval AND a.attempt_count > 0 AND g.approval_id IS NULL"
            )
            == []
        ), "sent without an approval"
        for run in self.all_runs:
            self.check_run(run)

    def check_run(self, run: str) -> None:
        states = self.owner("SELECT state FROM counterfoil.run WHERE run = %s", run)
        if states not in ([("unwound",)], [("unwind_blocked",)]):
            assert states in ([], [("open",)]), f"{run} {states}"
            return
        rows = self.rows("run = %s", run)
        undone = {effect.object_id for effect in self.world.sandbox.effects("shipment_cancellation")}
        told = self.owner("SELECT action_id, state, sent_as FROM counterfoil.correction WHERE run = %s", run)
        waits = [row for row in rows if row["state"] == "operator_review"] + [c for c in told if c[1] == "open"]
        if states == [("unwind_blocked",)]:
            below = self.owner(
                "SELECT run FROM counterfoil.run WHERE parent_run = %s AND state = 'unwind_blocked'", run
            )
            assert waits or below, f"{run} is blocked by nothing"
            return
        kept = {
            row["parent_action_id"] for row in rows if row["phase"] == "undo" and row["state"] == "permanent_failure"
        }
        kept |= {c[0] for c in told}
        captured = {
            r["parent_action_id"] for r in rows if r["tool"] == "capture" and r["state"] in ("compensated", "succeeded")
        }
        captured |= {r["parent_action_id"] for r in rows if r["tool"] == "send_draft" and r["state"] == "succeeded"}
        for row in rows:
            if row["phase"] == "do" and row["action_id"] in captured:
                assert not undone & set(self.made(row)), f"released although it was committed: {row}"
            elif row["phase"] == "do" and row["action_id"] not in kept:
                assert set(self.made(row)) <= undone, f"{run} is unwound, and this stands: {row}"
        assert not [row for row in rows if row["state"] not in SETTLED], f"{run} is unwound, and {rows}"

    # reading

    def made(self, row: Row) -> list[str]:
        """The provider's ids of what the action has really done."""
        if row["tool"] in ("take_back", "give_back"):
            parent = self.row(row["parent_action_id"])
            undone = self.world.sandbox.effects("shipment_cancellation")
            receipts = set(self.made(parent))
            mine = [e.object_id for e in undone if e.object_id in receipts and e.key == row["key"]]
            revisions = self.rows("parent_action_id = %s AND phase = 'undo'", row["parent_action_id"])
            other = {r["key"] for r in revisions if r["action_id"] != row["action_id"]}
            return mine or [e.object_id for e in undone if e.object_id in receipts and e.key not in other]
        kind = CUSTOMER if row["provider"] == "mail" else "shipment"
        return [effect.object_id for effect in self.world.sandbox.effects(kind, row["key"] or "never sent")]

    def row(self, action_id: str) -> Row:
        return self.rows("action_id = %s", action_id)[0]

    def rows(self, where: str, *params: object) -> list[Row]:
        columns = "action_id, run, step, revision, phase, tool, provider, state, key, receipt, parent_action_id"
        found = self.owner(
            f"SELECT {columns} FROM counterfoil.action WHERE run LIKE %s AND {where} ORDER BY created_at, action_id",
            f"e{self.number}-%", *params,
        )  # fmt: skip
        return [dict(zip(columns.split(", "), row, strict=True)) for row in found]

    def _some(self, where: str) -> list[str]:
        found = [row["action_id"] for row in self.rows(where)]
        return [self.rng.choice(found)] if found else []

    def _proposed(self, name: str) -> set[str]:
        return {p for (p,) in self.owner("SELECT proposal_id FROM counterfoil.action WHERE tool = %s", name)}

    def owner(self, statement: str, *params: object) -> list[tuple[Any, ...]]:
        return self.database.execute(statement.encode(), params or None).fetchall()


def test_people_and_liars(
    world: World, use_tools: Callable[..., None], database: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever people, gateways and deaths do in whatever order: one effect, no lie on record, nobody left waiting."""
    rng, versions = random.Random(), dict[str, int]()
    use_tools(*Office(world).tools, *more_tools(world, rng, versions))
    client = Counterfoil(database.url("agent"), settings=world.settings, registry=world.registry)
    people = Ledger(database.url("operator"))
    deaths, real = Deaths(rng), Ledger._run

    def run(self: Ledger, connection: Any, query: Query, params: Any) -> list[Row]:
        deaths.meet("before")
        rows = real(self, connection, query, params)
        deaths.meet("after")
        return rows

    monkeypatch.setattr(Ledger, "_run", run)
    seen: Counter[str] = Counter()
    owner = psycopg.connect(world.owner_url, autocommit=True)
    with closing(client), closing(people), owner:
        for number in range(SEED, SEED + EPISODES):
            rng.seed(number)
            episode = Episode(
                world=world, client=client, people=people, database=owner, agent_url=database.url("agent"),
                operator_url=database.url("operator"), deaths=deaths, rng=rng, number=number,
            )  # fmt: skip
            try:
                episode.play()
                episode.conclude()
            except BaseException as error:
                told = "\n".join(episode.story)
                raise AssertionError(f"CF_SIMULATION_SEED={number} CF_SIMULATION_STEPS=1\n{told}") from error
            seen.update(f"{row['tool']}/{row['phase']} {row['state']}" for row in episode.rows("true"))
    kinds = {row.split("/")[0] for row in seen}
    assert kinds >= {*SINGLE, "hold", "draft", "capture", "take_back"} or EPISODES < 5, seen
