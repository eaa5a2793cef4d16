"""Taking back a run that has staged: before its decision, after it, and where the commit of a staged effect is unknown."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import pytest
from tests.acceptance.office import Office, Plan

from counterfoil import Counterfoil
from counterfoil.ledger import unwinds
from counterfoil.providers.registry import Registry
from counterfoil.testing import World

if TYPE_CHECKING:
    from tests.conftest import Database


@pytest.fixture
def office(world: World, use_tools: Callable[..., None], monkeypatch: pytest.MonkeyPatch) -> Office:
    """The world's only tools, which the command line loads, too."""
    made = Office(world)
    use_tools(*made.tools)
    monkeypatch.setattr(Registry, "load", classmethod(lambda cls, *_: world.registry))
    return made


@pytest.fixture
def plan(world: World, office: Office, client: Callable[..., Counterfoil], database: Database) -> Plan:
    """Staged, and nothing proposed yet."""
    made = Plan(client().run("r1", tenant="acme", actor="bot"), world, database.url("operator"))
    assert office.done() == ["hold 1182", "draft 1182"]
    return made


@pytest.fixture
def state_of(sql: Any) -> Callable[[], dict[str, str]]:
    """tool/phase → state."""
    return lambda: {f"{t}/{p}": s for t, p, s in sql("SELECT tool, phase, state FROM counterfoil.action")}


@pytest.mark.parametrize("proposed", [False, True])
def test_before_the_decision(
    world: World, office: Office, plan: Plan, sql: Any, run_state: Any, state_of: Any, proposed: bool
) -> None:
    """Hold released and draft deleted, the newest first; the plan is withdrawn, nothing of it is sent."""
    if proposed:
        plan.propose()
    plan.run.unwind("rejected")
    world.settle()
    assert office.undone() == ["draft 1182", "hold 1182"]
    assert (office.mail(), office.done(), run_state()) == ([], ["hold 1182", "draft 1182"], "unwound")
    assert sql("SELECT state FROM counterfoil.proposal") == ([("withdrawn",)] if proposed else [])
    if proposed:
        assert (state_of()["capture/do"], state_of()["send_draft/do"]) == ("cancelled", "cancelled")


def test_approved_and_unclaimed(
    world: World, office: Office, plan: Plan, run_state: Any, state_of: Any, sql: Any
) -> None:
    """The unwind is asked for between the approval and the first claim: nothing of the plan is sent."""
    plan.approve()
    assert (state_of()["capture/do"], state_of()["send_draft/do"]) == ("ready", "proposed")
    plan.run.unwind("stop")
    world.settle()
    assert office.undone() == ["draft 1182", "hold 1182"]
    assert (office.mail(), office.done(), run_state()) == ([], ["hold 1182", "draft 1182"], "unwound")
    assert sql("SELECT count(*) FROM counterfoil.approval WHERE consumed_at IS NOT NULL") == [(0,)]


@pytest.mark.parametrize("decision", ["send", "dismiss"])
def test_after_all_of_it(
    world: World, office: Office, plan: Plan, cli: Any, run_state: Any, state_of: Any, sql: Any, decision: str
) -> None:
    """The capture is refunded, the hold is never released; the sent draft stays with its mail, which a person corrects."""
    plan.approve()
    world.settle()
    assert (office.done()[-1], office.mail()) == ("capture 1182", ["draft 1182"])
    handle = plan.run.unwind("wrong parcel")
    code, shown = cli("run", "unwind", "r1", "--dry-run")
    assert (code, shown.count("waits for what was done about it")) == (0, 2)
    world.settle()
    assert office.undone() == ["capture 1182"]
    assert run_state() == "unwind_blocked"
    stands = {step["tool"]: step["standing"] for step in handle.result().value}
    assert stands == {"hold": "nothing", "capture": "nothing", "draft": "carried", "send_draft": "person"}
    [(correction, digest)] = sql("SELECT correction_id, encode(sha256(call::bytea), 'hex') FROM counterfoil.correction")
    how = ("--digest", digest) if decision == "send" else ("--reason", "no need")
    assert cli("correction", decision, correction, *how)[0] == 0
    world.settle()
    assert run_state() == "unwound"
    assert office.undone() == ["capture 1182"]
    assert office.mail() == ["draft 1182", *(["About 1182"] if decision == "send" else [])]
    assert state_of() | {"send_mail/correct": ""} == {
        "hold/do": "compensated", "draft/do": "succeeded", "capture/do": "compensated", "send_draft/do": "succeeded",
        "take_back/undo": "succeeded", "send_mail/correct": "",
    }  # fmt: skip
    stands = {step["tool"]: (step["standing"], step["why"]) for step in handle.result().value}
    assert stands["draft"] == ("kept", "carried")
    evidence = sql("SELECT change_evidence FROM counterfoil.action WHERE tool = 'hold'")
    assert evidence == sql("SELECT action_id FROM counterfoil.action WHERE tool = 'capture'")
    assert "as what carries it on" in cli("run", "show", "r1")[1]


def test_a_plan_that_stopped_in_the_middle(
    world: World, office: Office, plan: Plan, run_state: Any, state_of: Any
) -> None:
    """The mail is refused after the capture: the draft is deleted, the capture refunded, the hold left alone."""
    world.sandbox.mail.fault("answer", on="messages.send", status=403)
    plan.approve()
    world.settle()
    assert state_of()["send_draft/do"] == "permanent_failure"
    plan.run.unwind("no mail")
    world.settle()
    assert sorted(office.undone()) == ["capture 1182", "draft 1182"]
    assert (run_state(), office.mail()) == ("unwound", [])
    assert (state_of()["hold/do"], state_of()["draft/do"]) == ("compensated", "compensated")


def test_a_capture_that_was_refused(world: World, office: Office, plan: Plan, run_state: Any) -> None:
    """The commit had no effect: the hold is released as if it had never been proposed."""
    world.sandbox.warehouse.fault("answer", on="shipments.create", status=403)
    plan.approve()
    world.settle()
    plan.run.unwind("declined")
    world.settle()
    assert office.undone() == ["draft 1182", "hold 1182"]
    assert (office.done(), run_state()) == (["hold 1182", "draft 1182"], "unwound")


@pytest.mark.parametrize(
    ("fault", "landed"),
    [("504_after_commit", True), ("rst_after_commit", True), ("504_before_commit", False)],
)
def test_a_capture_of_which_nobody_knows(
    world: World, office: Office, plan: Plan, run_state: Any, fault: str, landed: bool
) -> None:
    """Until evidence is in, the hold is left alone; then what really stands is taken back, and nothing else."""
    world.sandbox.warehouse.fault(fault, on="shipments.create")
    world.sandbox.warehouse.fault("lookup_429", times=None)
    plan.approve()
    world.work()
    plan.run.unwind("stop")
    for _ in range(6):
        world.work()
        world.reconcile()
        world.reconciler.unwind_runs()
        world.advance(1)
    assert (office.undone(), run_state()) == ([], "unwinding")
    world.sandbox.clear_faults()
    world.settle()
    assert office.undone() == (["capture 1182", "draft 1182"] if landed else ["draft 1182", "hold 1182"])
    assert (run_state(), office.mail()) == ("unwound", [])


@pytest.mark.parametrize("point", ["before_claim", "after_claim", "before_settle", "after_settle"])
def test_whatever_dies_on_the_way(world: World, office: Office, plan: Plan, run_state: Any, point: Any) -> None:
    """A worker that dies while the capture is refunded: one refund, and the hold stays."""
    plan.approve()
    world.work()
    plan.run.unwind("stop")
    with world.crash_after(point, tool="take_back"):
        world.settle()
    assert world.crashes == [point]
    assert sorted(office.undone()) == ["capture 1182", "draft 1182"]
    assert run_state() == "unwound"


def test_a_refund_that_a_person_gave_up(
    world: World, office: Office, plan: Plan, decide: Any, run_state: Any, state_of: Any
) -> None:
    """What a person leaves captured stays held: neither is touched again, and the run ends."""
    plan.approve()
    world.work()
    world.sandbox.warehouse.fault("answer", on="shipments.cancel", status=403, times=1)
    handle = plan.run.unwind("stop")
    world.settle()
    assert (run_state(), office.undone()) == ("unwind_blocked", ["draft 1182"])
    decide("gave up", "take_back")
    world.settle()
    assert (run_state(), office.undone()) == ("unwound", ["draft 1182"])
    stands = {step["tool"]: (step["standing"], step["why"]) for step in handle.result().value}
    assert (stands["capture"], stands["hold"]) == (("kept", "given_up"), ("kept", "carried"))
    assert state_of()["hold/do"] == "succeeded"


def test_the_ledger_refuses_to_release_what_was_captured(world: World, office: Office, plan: Plan, sql: Any) -> None:
    """Not even a worker of another mind can record a release of a hold that was captured."""
    plan.approve()
    world.settle()
    plan.run.unwind("stop")
    steps = {step.tool: step for step in unwinds.steps_of_run(world.ledger, tenant="acme", run="r1")}
    intent = world.reconciler.unwinder._undo_intent(steps["hold"])
    assert intent is not None
    assert not unwinds.propose_undo(world.ledger, intent, by="rogue")
    assert sql("SELECT count(*) FROM counterfoil.action WHERE phase = 'undo'") == [(0,)]
    capture = world.reconciler.unwinder._undo_intent(steps["capture"])
    assert capture is not None
    assert unwinds.propose_undo(world.ledger, capture, by="rogue"), "the refund is what the ledger takes"
