"""How a plan becomes rows: its steps are checked, then all of it is recorded in one transaction under the run's lock.

A person decides on all of it at once (`counterfoil proposal`), and its steps run in their order. The same plan again, after a
crash or a lost COMMIT, is the plan on record; another one takes the place of what nobody has decided yet.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import KW_ONLY, dataclass
from datetime import UTC, datetime, timedelta
from typing import assert_never, cast

from counterfoil.ledger.canonical import load_stored, parse_arguments
from counterfoil.ledger.errors import (
    ArgumentError,
    CounterfoilError,
    LedgerUnavailable,
    LimitReached,
    NotAllowed,
    StepConflict,
    StepRace,
)
from counterfoil.ledger.keys import action_id, is_action_id
from counterfoil.ledger.queries import load
from counterfoil.ledger.states import State
from counterfoil.outbox import backlog
from counterfoil.outbox.calling import Arguments, Calls
from counterfoil.outbox.intents import CheckedCall, check_call, check_note
from counterfoil.outbox.lost_time import check_recorded, reporting_lost_time
from counterfoil.outbox.memory import Visit
from counterfoil.outbox.plan_rules import (
    STEPS_MAX,
    Decided,
    Existing,
    Open,
    PlanStep,
    RecordedPlan,
    Same,
    decide_plan,
)
from counterfoil.outbox.pool import Row, Transaction
from counterfoil.outbox.recording import RACES_MAX, json_rows, over_cap, run_view
from counterfoil.outbox.run_view import HandleView, WantedCall
from counterfoil.outbox.steps import PROPOSALS_OPEN, Refused
from counterfoil.providers.spec import ToolSpec

_SQL = load("counterfoil.ledger", "sql/agent.sql")


@dataclass(frozen=True, slots=True)
class Step:
    """One step of a plan. `arguments` may hold `of`, the id of a succeeded action of the run that the step is about: of what
    it is not given, it takes the arguments of the same name from that one. `step` is a label, else the ledger numbers it."""

    tool: str
    arguments: Arguments
    step: str | None = None
    _: KW_ONLY
    resource_version: str | None = None
    """The version of the resource that the caller has seen."""


StepLike = Step | tuple[str, Arguments] | tuple[str, Arguments, str]


@dataclass(frozen=True, slots=True)
class _Checked:
    """A step that has passed the door, and how the rules see it."""

    call: CheckedCall
    asked: PlanStep


@dataclass(frozen=True, slots=True, kw_only=True)
class Plans:
    """The plans of one handle. Thread-safe."""

    calls: Calls
    epoch: object
    visit: Visit
    """What its caller had been told when it arrived."""

    def propose(self, steps: Sequence[StepLike], note: str) -> str:
        """Records the plan, or finds it; the proposal's id.

        Raises what `Run.propose` tells. After a race or a lost connection the transaction is run again: what the first one
        has recorded is found then.
        """
        checked = self._checked(steps)
        check_note(note)
        pool = self.calls.shared.pool
        with reporting_lost_time(pool, self.calls.tenant, self.calls.run):
            for left in reversed(range(RACES_MAX)):
                try:
                    with pool.transaction() as transaction:
                        return self._recorded(transaction, checked, note)
                except (StepRace, LedgerUnavailable):
                    if not left:
                        raise
        raise AssertionError("unreachable")

    def _checked(self, steps: Sequence[StepLike]) -> list[_Checked]:
        """Every step, as it may be recorded. Raises `ArgumentError` at `$[i]…`, `ConfigError` (no such tool)."""
        if not 1 <= len(steps) <= STEPS_MAX:
            raise ArgumentError(f"holds {len(steps)} steps, of 1 to {STEPS_MAX}.", path="$", code="too_many_steps")
        split = [_split(i, step, self.calls) for i, step in enumerate(steps)]
        ids = [of for _, _, of in split if of is not None]
        params = {"tenant": self.calls.tenant, "run": self.calls.run, "ids": ids}
        about = {str(row["action_id"]): row for row in self.calls.shared.pool.rows(_SQL["succeeded_of_run"], params)}
        checked: list[_Checked] = []
        labels: set[str] = set()
        for i, (step, arguments, of) in enumerate(split):
            spec = self.calls.shared.registry.get(step.tool)
            if step.step is not None:
                if step.step in labels:
                    raise ArgumentError("stands in the plan twice.", path=f"$[{i}].step", code="duplicate")
                labels.add(step.step)
            try:
                checked.append(self._checked_step(spec, step, arguments, of, about))
            except ArgumentError as error:
                raise _at(i, error) from None
        return checked

    def _checked_step(
        self, spec: ToolSpec, step: Step, arguments: Mapping[str, object], of: str | None, about: Mapping[str, Row]
    ) -> _Checked:
        if spec.takes_of and of is None:
            raise ArgumentError("is missing: the action that it is about.", path="$.of", code="missing_argument")
        if spec.takes_of and of not in about:
            raise ArgumentError("is no succeeded action of this run.", path="$.of", code="not_succeeded")
        if spec.takes_of:
            recorded = load_stored(str(about[str(of)]["arguments"]))
            arguments = {k: v for k, v in recorded.items() if k in spec.arguments.names} | dict(arguments)
        call = check_call(
            spec,
            arguments,
            tenant=self.calls.tenant,
            run=self.calls.run,
            actor=self.calls.actor,
            rules=self.calls.shared.rules,
            expected_version=step.resource_version,
            parent=of,
        )
        wanted = WantedCall(
            tool=spec.name,
            effect=spec.effect or "",
            target=call.target,
            cls=spec.cls,
            arguments_sha256=call.arguments_sha256,
            once_key=call.once_key,
            step=step.step,
            gated=True,
        )
        return _Checked(call, PlanStep(wanted, of))

    def _recorded(self, transaction: Transaction, steps: Sequence[_Checked], note: str) -> str:
        """One pass under the run's lock."""
        calls = self.calls
        key = {"tenant": calls.tenant, "run": calls.run}
        read = transaction.row(_SQL["lock_and_read"], {**key, "epoch": self.epoch})
        assert read is not None
        rows = {str(row["action_id"]): row for row in json_rows(read["actions"])}
        check_recorded(self.visit.had, rows, json_rows(read["past"]))
        plans = _plans(transaction.rows(_SQL["plans_of_run"], key))
        handle = HandleView(told=self.visit.had, due=calls.memory.due(self.visit), limits=calls.shared.limits)
        decision = decide_plan(run_view(read, rows), plans, [step.asked for step in steps], handle)
        match decision:
            case Existing():
                return decision.proposal_id
            case Refused():
                raise decision.error
            case Open():
                return self._opened(transaction, steps, decision, note, rows)
            case _:
                assert_never(decision)

    def _opened(
        self, transaction: Transaction, steps: Sequence[_Checked], plan: Open, note: str, rows: Mapping[str, Row]
    ) -> str:
        calls, rules, limits = self.calls, self.calls.shared.rules, self.calls.shared.limits
        first = action_id(calls.tenant, calls.run, plan.places[0].step, plan.places[0].revision, "do")
        proposal = f"P-{first[4:16].upper()}"
        about = [step.asked.of for step in steps if step.asked.of is not None]
        params = {
            "proposal": proposal,
            "tenant": calls.tenant,
            "run": calls.run,
            "actor": calls.actor,
            "note": note,
            "people": max(step.call.people for step in steps),
            "expiry_s": rules.expiry_s,
            "lapses_at": self._lapses_at(transaction, rows, about),
            "open_max": limits.proposals_open_max,
            "step": str(plan.places[0].step),
            "revision": plan.places[0].revision,
        }
        opened = transaction.row(_SQL["open_plan"], params)
        assert opened is not None
        if opened["answer"] == "limit_reached":
            raise LimitReached(
                f"{limits.proposals_open_max} proposals of the run wait for people.",
                limit=PROPOSALS_OPEN,
                fix="Wait for their decisions.",
            )
        if opened["answer"] != "opened":
            raise StepRace("another transaction opened this plan.", fix="Run it again.")
        for i, (step, place) in enumerate(zip(steps, plan.places, strict=True)):
            cap = over_cap(transaction, step.call, place.supersedes)
            if cap is not None:
                raise LimitReached(
                    f"step {i} is more than `{step.call.spec.name}` or its effect may do here.",
                    limit=cap,
                    fix=f"Leave it out of the plan, or raise {cap}.",
                )
            intent = step.call.at(
                place.step,
                place.revision,
                seq=place.seq,
                supersedes=place.supersedes,
                proposal=proposal,
                place=i + 1,
            )
            found = transaction.row(_SQL["propose"], intent.parameters())
            assert found is not None
            if found["found_by"] == "waiting":
                rules.backlog.is_full(calls.tenant)
                raise LimitReached(
                    f"the tenant has {rules.backlog.waiting_max} actions waiting.",
                    limit=backlog.SETTING,
                    fix="Propose it again when some are done.",
                )
            if not found["created"]:
                raise _taken(i, found)
        return proposal

    def _lapses_at(self, transaction: Transaction, rows: Mapping[str, Row], about: Sequence[str]) -> datetime | None:
        """Until when the plan must be decided on, since a hold that it needs lapses by itself; None: nothing does.

        Raises `NotAllowed` when that is too soon for a decision.
        """
        margin = timedelta(seconds=self.calls.shared.hold_margin_s)
        needed: list[tuple[datetime, str]] = []
        others: list[datetime] = []
        for identity, row in rows.items():
            lapses = self._lapse(row) if row["staged"] or identity in about else None
            if lapses is not None and identity in about:
                needed.append((lapses, identity))
            elif lapses is not None:
                others.append(lapses - margin)
        if not needed and not others:
            return None
        now = transaction.row(_SQL["ledger_now"], {})
        assert now is not None
        assert isinstance(now["now"], datetime)
        if needed and min(needed)[0] - margin <= now["now"]:
            lapses, identity = min(needed)
            raise NotAllowed(
                f"what {identity} holds lapses at {lapses:%Y-%m-%dT%H:%M:%SZ}, too soon for a decision.",
                fix='Stage it anew with `repeat="lapses"`, and propose that one.',
            )
        ahead = [at for at in others if at > now["now"]]  # what the plan does not need may have lapsed
        return min([at - margin for at, _ in needed] + ahead, default=None)

    def _lapse(self, row: Row) -> datetime | None:
        """When the effect of a staged action ends by itself, as its result says."""
        spec = self.calls.shared.registry.find(str(row["tool"]))
        if spec is None or spec.lapses is None or row["state"] != State.SUCCEEDED or row["result"] is None:
            return None
        said = json.loads(str(row["result"])).get(spec.lapses)
        try:
            at = datetime.fromisoformat(said) if isinstance(said, str) else None
        except ValueError:
            at = None
        return at.replace(tzinfo=UTC) if at is not None and at.tzinfo is None else at


def _split(i: int, step: StepLike, calls: Calls) -> tuple[Step, Mapping[str, object], str | None]:
    """The step, its arguments, and the action that it is about."""
    match step:
        case Step():
            taken = step
        case (tool, arguments):
            taken = Step(tool, arguments)
        case (tool, arguments, label):
            taken = Step(tool, arguments, label)
        case _:  # what the type forbids, from untyped code
            raise ArgumentError("is no Step and no (tool, arguments).", path=f"$[{i}]", code="no_step")
    try:
        given = dict(parse_arguments(taken.arguments, bytes_max=calls.shared.rules.arguments_bytes_max))
        if taken.step is not None:
            calls.check_label(taken.step)
    except ArgumentError as error:
        raise _at(i, error) from None
    of = given.pop("of", None)
    if of is not None and not (isinstance(of, str) and is_action_id(of)):
        raise ArgumentError("is no action id.", path=f"$[{i}].of", code="invalid_argument")
    return taken, given, of


def _at(i: int, error: ArgumentError) -> ArgumentError:
    """The same refusal, of step `i` of the list."""
    inner = error.path.removeprefix("$").removeprefix(".")
    path = f"$[{i}].{inner}" if inner and not inner.startswith("[") else f"$[{i}]{inner}"
    return ArgumentError(
        error.message.removeprefix(f"{error.path}: "), path=path, code=error.code, fix=error.fix, reason=error.reason
    )


def _plans(rows: Sequence[Row]) -> list[RecordedPlan]:
    """The rows are steps as they were proposed, the newest plan first, its steps in their order."""
    steps: dict[tuple[str, Decided], list[Same]] = {}
    for row in rows:
        about = row["parent_action_id"]
        same = (str(row["tool"]), str(row["arguments_sha256"]), None if about is None else str(about))
        steps.setdefault((str(row["proposal_id"]), cast("Decided", row["decision"])), []).append(same)
    return [RecordedPlan(proposal, decision, tuple(same)) for (proposal, decision), same in steps.items()]


def _taken(i: int, found: Row) -> CounterfoilError:
    """Somebody else, who takes no lock of this run, has come before: code that enqueues, or another run of the tenant."""
    identity = str(found["action_id"])
    if found["found_by"] == "step":
        return StepConflict(
            f"the label of step {i} was taken at this moment ({identity}).", fix="Use another label for it."
        )
    if found["found_by"] == "once":
        return NotAllowed(f"step {i} may happen once: {identity}.", fix="Leave it out of the plan.")
    return NotAllowed(
        f"{identity} has the effect of step {i} under way.", fix=f"Wait for it: `cf.result({identity!r}, wait_s=…)`."
    )
