"""Corrections when something dies, when several decide at once, and past the front door: each message goes out once."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import psycopg
import pytest
from tests.acceptance.office import Office

from counterfoil.ledger import corrections as doors
from counterfoil.ledger import unwinds
from counterfoil.ledger.canonical import sha256_of
from counterfoil.ledger.connection import Ledger
from counterfoil.ledger.corrections import Message, read_correction
from counterfoil.ledger.errors import ConfigError, DecisionRefused
from counterfoil.ledger.keys import action_id
from counterfoil.outbox.intents import DoorRules
from counterfoil.people import corrections as people
from counterfoil.providers.registry import Registry
from counterfoil.reconciler.unwind import Unwinder
from counterfoil.testing import World
from counterfoil.testing.world import Crash

if TYPE_CHECKING:
    from tests.conftest import Database

MAIL = {"order": "1182", "to": "c@example.com", "subject": "Your parcel"}
POINTS = ("before_claim", "after_claim", "before_settle", "after_settle")


@pytest.fixture
def office(world: World, use_tools: Callable[..., None], monkeypatch: pytest.MonkeyPatch) -> Office:
    """The world's only tools, which the command line loads, too."""
    made = Office(world)
    use_tools(*made.tools)
    monkeypatch.setattr(Registry, "load", classmethod(lambda cls, *_: world.registry))
    return made


@pytest.fixture
def open_ones(cli: Any) -> Callable[[], list[dict[str, Any]]]:
    """The corrections that wait, as `correction list` tells them."""

    def found() -> list[dict[str, Any]]:
        code, shown = cli("correction", "list", "--json")
        told: list[dict[str, Any]] = json.loads(shown)
        assert code == (6 if told else 0)
        return told

    return found


@pytest.fixture
def shown(cli: Any) -> Callable[[str], dict[str, Any]]:
    """A correction as `correction show` tells it."""
    return lambda name: json.loads(cli("correction", "show", name, "--json")[1])


@pytest.fixture
def mailed(world: World, office: Office, enqueue: Any, unwind: Any, open_ones: Any) -> str:
    """A run that has sent one mail is being taken back; its open correction."""
    enqueue("send_mail", MAIL, "mail")
    world.settle()
    unwind()
    world.settle()
    [correction] = open_ones()
    return str(correction["correction_id"])


@pytest.mark.parametrize("point", POINTS)
def test_sent_once_whatever_dies(
    world: World, office: Office, mailed: str, shown: Any, cli: Any, run_state: Any, point: Any
) -> None:
    """A worker that dies at any point of sending leaves one message, and the run unwound."""
    assert cli("correction", "send", mailed, "--digest", shown(mailed)["digest"])[0] == 0
    with world.crash_after(point):
        world.settle()
    assert world.crashes == [point]
    assert office.mail() == ["Your parcel", "About 1182"]
    assert run_state() == "unwound"


@pytest.mark.parametrize("fault", ["504_after_commit", "504_before_commit", "rst_after_commit", "empty_2xx"])
def test_sent_once_whatever_the_gateway_says(
    world: World, office: Office, mailed: str, shown: Any, cli: Any, run_state: Any, fault: str
) -> None:
    """A message whose outcome is unknown is looked up: one message."""
    world.sandbox.mail.fault(fault, on="messages.send")
    assert cli("correction", "send", mailed, "--digest", shown(mailed)["digest"])[0] == 0
    world.settle()
    assert office.mail() == ["Your parcel", "About 1182"]
    assert run_state() == "unwound"


def test_two_persons_at_one_moment(world: World, office: Office, mailed: str, shown: Any, database: Database) -> None:
    """Two clicks on one correction at one moment: one message, and the second is told who was first."""
    digest, barrier = shown(mailed)["digest"], threading.Barrier(2)

    def click(by: str, role: str) -> str:
        with closing(Ledger(database.url(role))) as ledger:
            read_correction(ledger, mailed)  # connects
            barrier.wait(10)
            try:
                return people.send(ledger, mailed, digest=digest, by=by, channel="api", registry=world.registry).answer
            except DecisionRefused as refused:
                return refused.code

    with ThreadPoolExecutor(2) as threads:
        answers = list(threads.map(click, ["alice", "bob"], ["operator", "operator2"]))
    world.settle()
    assert sorted(answers) == ["decided", "sent"]
    assert office.mail() == ["Your parcel", "About 1182"]


@pytest.mark.parametrize("query", ["queue_correction", "mark_compensated"])
@pytest.mark.parametrize("after", [False, True])
def test_a_reconciler_that_dies(
    world: World, office: Office, enqueue: Any, unwind: Any, run_state: Any, open_ones: Any,
    monkeypatch: pytest.MonkeyPatch, query: str, after: bool,
) -> None:  # fmt: skip
    """Right before or right after it writes: the next visit goes on, and each correction is queued once."""
    enqueue("charge", {"order": "1182", "receipt": True}, "charge")
    enqueue("send_mail", MAIL, "mail")
    world.settle()
    unwind()
    real, deaths = Ledger.row, []

    def row(self: Ledger, asked: Any, params: Any, **more: Any) -> Any:
        if asked.name != query or deaths:
            return real(self, asked, params, **more)
        deaths.append(query)
        if after:
            real(self, asked, params, **more)
        raise Crash("before_settle")

    with monkeypatch.context() as patched:
        patched.setattr(Ledger, "row", row)
        with pytest.raises(Crash):
            world.settle()
    world.restart()
    world.settle()
    assert deaths == [query]
    assert sorted((c["step"], c["state"]) for c in open_ones()) == [("charge", "open"), ("mail", "open")]
    assert (office.undone(), office.mail(), run_state()) == (["charge 1182"], ["Your parcel"], "unwind_blocked")


def test_whoever_marks_it_dies(
    world: World,
    office: Office,
    enqueue: Any,
    unwind: Any,
    run_state: Any,
    open_ones: Any,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """One unwinder marks a step as compensated and dies, another ends the run: the correction is queued all the same."""
    enqueue("charge", {"order": "1182", "receipt": True}, "charge")
    world.settle()
    unwind()
    real = unwinds.mark_compensated

    def after_another(*args: Any, **named: Any) -> bool:
        assert real(*args, **named)
        return real(*args, **named)

    monkeypatch.setattr(unwinds, "mark_compensated", after_another)
    world.settle()
    assert run_state() == "unwound"
    assert [c["step"] for c in open_ones()] == ["charge"]


def test_an_answer_that_was_lost(
    world: World, office: Office, mailed: str, shown: Any, cli: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The connection is lost while the decision commits: it is made once, and its person is told that it stands."""
    digest, real = shown(mailed)["digest"], Ledger._run
    lost: list[str] = []

    def run(self: Ledger, connection: Any, asked: Any, params: Any) -> Any:
        answer = real(self, connection, asked, params)
        if asked.name == "send_correction" and not lost:
            lost.append(asked.name)
            raise psycopg.OperationalError("the server closed the connection unexpectedly")
        return answer

    monkeypatch.setattr(Ledger, "_run", run)
    assert cli("correction", "send", mailed, "--digest", digest)[0] == 0
    world.settle()
    assert (lost, office.mail()) == (["send_correction"], ["Your parcel", "About 1182"])


def test_unwinders_and_people_all_at_once(
    world: World,
    office: Office,
    enqueue: Any,
    unwind: Any,
    run_state: Any,
    open_ones: Any,
    shown: Any,
    database: Database,
) -> None:
    """Unwinders beside each other and beside people who decide: one correction for each mail, one message for each sent."""
    runs = [f"r{n}" for n in range(4)]
    for run in runs:
        enqueue("send_mail", {**MAIL, "order": run}, "mail", run)
    world.settle()
    for run in runs:
        unwind(run)
    unwinders = [replace(world.reconciler.unwinder, ledger=Ledger(database.url("worker"))) for _ in range(3)]

    def visit(unwinder: Unwinder) -> None:
        for _ in range(4):
            unwinder.visit_all()

    def decide(name: str, digest: str) -> None:
        with closing(Ledger(database.url("operator"))) as ledger:
            people.send(ledger, name, digest=digest, by="alice", channel="api", registry=world.registry)

    with ThreadPoolExecutor(7) as threads:
        list(threads.map(visit, unwinders))
        assert sorted(c["run"] for c in open_ones()) == runs
        digests = {c["correction_id"]: shown(c["correction_id"])["digest"] for c in open_ones()}
        work = [threads.submit(visit, each) for each in unwinders]
        work += [threads.submit(decide, *each) for each in digests.items()]
        for asked in work:
            asked.result(30)
    world.settle()
    for each in unwinders:
        each.ledger.close()
    assert {run_state(run) for run in runs} == {"unwound"}
    assert sorted(office.mail()) == sorted(["Your parcel"] * 4 + [f"About {run}" for run in runs])


def test_a_correction_is_no_way_around_the_gates(
    world: World, office: Office, mailed: str, cli: Any, database: Database, sql: Any, run_state: Any
) -> None:
    """No charge as a correction: not by the command line, and not by an operator who writes one past it."""
    assert cli("correction", "edit", mailed, "--tool", "charge", "--set", "order=1182", "--set", "cents=500")[0] == 2
    arguments = '{"cents":500,"order":"1182","receipt":false}'
    call = '{"arguments":' + arguments + ',"tool":"charge"}'
    charge = Message(
        action_id=action_id("acme", "r1", "mail", 1, "correct"),
        tool="charge",
        tool_version=1,
        class_="compensatable",
        effect="charge",
        effect_scope="run",
        target="1182",
        provider="warehouse",
        account="default",
        queue="cf-warehouse",
        arguments=arguments,
        arguments_sha256=sha256_of(arguments),
        audience=("finance",),
        amount_minor=500,
        currency=None,
    )
    with closing(Ledger(database.url("operator"))) as ledger:
        doors.edit(ledger, mailed, call=call, by="eve", channel="sql")
        assert doors.send(ledger, mailed, charge, digest=sha256_of(call), by="eve", channel="sql").answer == "sent"
    world.settle()
    assert (office.done(), run_state()) == ([], "unwind_blocked")
    assert sql("SELECT state, last_error_code FROM counterfoil.action WHERE phase = 'correct'") == [
        ("operator_review", "policy_mismatch")
    ]


def test_a_tool_for_two_persons(
    world: World, office: Office, mailed: str, shown: Any, database: Database, run_state: Any
) -> None:
    """What two persons must approve is not said by one: refused at the door, and by the worker behind it."""
    approval = world.settings.approval.model_copy(update={"two_person": ("send_mail",)})
    digest = shown(mailed)["digest"]
    with closing(Ledger(database.url("operator"))) as ledger:
        decision: dict[str, Any] = {"digest": digest, "by": "alice", "channel": "api", "registry": world.registry}
        with pytest.raises(ConfigError):
            people.send(ledger, mailed, rules=DoorRules(two_person=frozenset(approval.two_person)), **decision)
        people.send(ledger, mailed, **decision)  # by a front door with other settings than the worker's
    world.settings = world.settings.model_copy(update={"approval": approval})
    world.restart()
    world.settle()
    assert (office.mail(), run_state()) == (["Your parcel"], "unwind_blocked")
