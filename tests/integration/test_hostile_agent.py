"""An agent's login that calls the ledger's doors by hand, with lies: it gets nothing decided, moved or blocked that way."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import psycopg
import pytest

from counterfoil.ledger import proposals as doors
from counterfoil.ledger import sweeps
from counterfoil.ledger.errors import NotAllowed

if TYPE_CHECKING:
    from tests.integration.conftest import Rows

OPEN = (
    "SELECT answer FROM counterfoil.open_plan(%(id)s, %(tenant)s, %(run)s, 'bot', '', 1, 3600,"
    " CAST(%(lapses)s AS timestamptz), 3, %(step)s)"
)


@pytest.fixture
def rows(shared_rows: Rows) -> Rows:
    """One database for the module: every test here looks at rows of its own."""
    return shared_rows


def plan_id(rows: Rows, run: str, step: str = "p1", tenant: str = "acme") -> str:
    return f"P-{rows.identity(tenant=tenant, run=run, step=step)['action_id'][4:16].upper()}"


def open_plan(agent: psycopg.Connection[Any], proposal: str, run: str, **changes: object) -> None:
    given = {"id": proposal, "tenant": "acme", "run": run, "lapses": None, "step": "p1", **changes}
    agent.execute("SELECT counterfoil.open_run(%(tenant)s, %(run)s, 'bot')", given)
    agent.execute(OPEN, given)


def add(rows: Rows, agent: psycopg.Connection[Any], run: str, place: int, **changes: object) -> dict[str, Any]:
    given = {"step": f"p{place}", "target": f"{run}-{place}", "proposal": plan_id(rows, run), **changes}
    return rows.propose(agent, run=run, place=place, **given)


def planned(rows: Rows, run: str, steps: int) -> tuple[psycopg.Connection[Any], str, list[str]]:
    """An open plan: its agent, its id, its steps' ids."""
    agent, proposal = rows.connect("agent"), plan_id(rows, run)
    open_plan(agent, proposal, run)
    return agent, proposal, [add(rows, agent, run, place)["action_id"] for place in range(1, steps + 1)]


def approve(rows: Rows, proposal: str) -> str:
    operator = rows.connect("operator")
    query = "SELECT answer FROM counterfoil.decide(%(p)s, 'approved', counterfoil.proposal_digest(%(p)s), 'mia', 'cli')"
    row = operator.execute(query, {"p": proposal}).fetchone()
    assert row is not None
    return str(row["answer"])


def test_nobody_takes_the_id_of_anothers_proposal(rows: Rows) -> None:
    """A plan has the id that follows from its first step: one made up would stand in the way of another tenant's call."""
    theirs, proposal = rows.connect("agent2"), plan_id(rows, "victim")
    with pytest.raises(psycopg.Error) as refused:
        open_plan(theirs, proposal, "evil", tenant="globex")
    assert refused.value.sqlstate == "CF403"
    found = rows.propose(run="victim", step="p1", needs_approval=True)
    assert (found["created"], rows.read(found["action_id"])["proposal_id"]) == (True, proposal)


@pytest.mark.parametrize("approved", [True, False])
def test_a_plan_is_not_thinned_out(rows: Rows, approved: bool) -> None:
    """No call takes the place of a plan's step that waits: a plan runs as it was shown, or stops."""
    run = f"thin-{approved}"
    agent, proposal, ids = planned(rows, run, 3)
    if approved:
        assert approve(rows, proposal) == "approved"
    found = rows.propose(
        agent, run=run, step="p2", revision=2, target="x", supersedes=ids[1], **{"class": "reversible"}
    )
    assert (found["created"], found["found_by"], found["action_id"]) == (False, "step", ids[1])
    assert rows.read(ids[1])["state"] == "proposed"


def test_a_step_that_comes_at_the_moment_of_the_decision(rows: Rows) -> None:
    """A step is added in a transaction that is still open: the decision waits for it, and is about another digest then."""
    agent, proposal, ids = planned(rows, "moment", 2)
    operator = rows.connect("operator")
    operator.execute("SET lock_timeout = '200ms'")
    digest = doors.read_proposal(rows.ledger("operator"), proposal).digest
    decide = "SELECT answer FROM counterfoil.decide(%s, 'approved', %s, 'mia', 'cli')"
    with agent.transaction():
        late = add(rows, agent, "moment", 3)["action_id"]
        with pytest.raises(psycopg.errors.LockNotAvailable):
            operator.execute(decide, (proposal, digest))
    assert operator.execute(decide, (proposal, digest)).fetchone() == {"answer": "changed"}
    assert {rows.read(action_id)["approval_id"] for action_id in [*ids, late]} == {None}


def test_a_place_is_taken_once(rows: Rows) -> None:
    """Two steps at one place would run in an order that nobody was shown; nor is a plan longer than anybody reads."""
    agent, _, ids = planned(rows, "places", 2)
    with pytest.raises(psycopg.errors.SerializationFailure):
        add(rows, agent, "places", 2, step="other", target="other")
    with pytest.raises(psycopg.errors.CheckViolation):
        add(rows, agent, "places", 101)
    assert [
        row["action_id"] for row in rows.all("SELECT action_id FROM counterfoil.action WHERE run = 'places'")
    ] == ids


@pytest.mark.parametrize("at", ["-infinity", "4713-01-01 BC", "infinity", "294000-01-01"])
def test_times_that_nobody_can_read(rows: Rows, at: str) -> None:
    """Times beyond every calendar blind no list, and stop no worker."""
    run = f"times{at}"
    agent, proposal = rows.connect("agent"), plan_id(rows, run)
    open_plan(agent, proposal, run, lapses=at)
    add(rows, agent, run, 1)
    single = rows.propose(agent, run=f"{run}-2", not_before=at)["action_id"]
    assert len(doors.list_proposals(rows.ledger("operator"), run=run, state=None)) == 1
    assert doors.read_proposal(rows.ledger("operator"), proposal).proposal_id == proposal
    worker = rows.ledger()
    assert (rows.claim(worker, single) is not None) == (at in ("-infinity", "4713-01-01 BC"))


@pytest.mark.parametrize("ending", ["cancelled", "given up", "cancelled while it was sent", "refused"])
def test_bounds_end_with_a_no(rows: Rows, ending: str) -> None:
    """An approval within bounds goes on after a provider's refusal, not after anybody's cancel or a person's word."""
    run = f"bounds-{ending}"
    given: dict[str, Any] = {"run": run, "step": "pay", "needs_approval": True, "currency": "usd"}
    first = rows.propose(**given, amount_minor=500, arguments='{"amount":500}')["action_id"]
    proposal = rows.read(first)["proposal_id"]
    digest = doors.read_proposal(rows.ledger("operator"), proposal).digest
    rows.connect("operator").execute(
        "SELECT counterfoil.decide(%s, 'approved', %s, 'mia', 'cli', NULL, 'amount', 500)", (proposal, digest)
    )
    assert rows.read(first)["state"] == "ready"
    match ending:
        case "cancelled":
            rows.connect("operator").execute("SELECT counterfoil.request_cancel(%s, 'mia', 'no')", (first,))
        case "given up":
            rows.execute(first, "state = 'permanent_failure', last_error_code = 'given_up', once_held = false")
        case "cancelled while it was sent":
            code = "state = 'permanent_failure', last_error_code = 'refused', once_held = false"
            rows.execute(first, f"{code}, cancel_requested_at = counterfoil.now()")
        case _:
            rows.execute(first, "state = 'permanent_failure', last_error_code = 'refused', once_held = false")
    again = rows.propose(**given, revision=2, supersedes=first, amount_minor=300, arguments='{"amount":300}')
    assert again["created"]
    assert again["state"] == ("ready" if ending == "refused" else "awaiting_approval")


def test_an_agent_cannot_decide_by_any_door(rows: Rows) -> None:
    """Whoever proposes has no door to a decision."""
    _, proposal, _ = planned(rows, "own", 1)
    with pytest.raises(NotAllowed):
        doors.decide(rows.ledger("agent"), proposal, verdict="approved", digest="0" * 64, by="bot", channel="cli")


@pytest.mark.parametrize(
    "said",
    [
        {"arguments": "[1]"},
        {"arguments": "1182"},
        {"arguments": '{"a":'},
        {"compensation": "stripe_refund"},
        {"correction": "[]"},
        {"audience": ["customer", None]},
    ],
    ids=str,
)
def test_what_no_person_can_read_is_no_call(rows: Rows, said: dict[str, object]) -> None:
    """It would blind the list of everything that waits."""
    with pytest.raises(psycopg.Error) as refused:
        rows.propose(run="unread", needs_approval=True, **said)
    assert refused.value.sqlstate == "CF403"


def test_a_plan_of_nothing_passes_no_pivot(rows: Rows) -> None:
    """Steps that may come later are none that anybody was shown."""
    _, proposal, _ = planned(rows, "empty", 0)
    assert approve(rows, proposal) == "changed"
    assert rows.one("SELECT pivot FROM counterfoil.run WHERE run = 'empty'")["pivot"] == "ahead"


def test_bounds_decide_nothing_in_review(rows: Rows) -> None:
    """An approval that was carried on lets the agent's transaction free the call; later on only a person decides on it."""
    given: dict[str, Any] = {"run": "carried", "step": "pay", "needs_approval": True, "currency": "usd"}
    first = rows.propose(**given, amount_minor=500, arguments='{"amount":500}')["action_id"]
    digest = doors.read_proposal(rows.ledger("operator"), plan_id(rows, "carried", "pay")).digest
    rows.connect("operator").execute(
        "SELECT counterfoil.decide(%s, 'approved', %s, 'mia', 'cli', NULL, 'amount', 500)",
        (plan_id(rows, "carried", "pay"), digest),
    )
    rows.execute(first, "state = 'permanent_failure', last_error_code = 'refused', once_held = false")
    again = rows.propose(**given, revision=2, supersedes=first, amount_minor=300, arguments='{"amount":300}')[
        "action_id"
    ]
    rows.execute(again, "state = 'operator_review'")
    with pytest.raises(psycopg.Error) as refused:
        rows.connect("worker").execute(
            "UPDATE counterfoil.action SET state = 'permanent_failure' WHERE action_id = %s", (again,)
        )
    assert refused.value.sqlstate == "CF403"


def test_many_long_plans_that_expire_at_once(rows: Rows) -> None:
    """One tick ends some of them, the next ones the others: no heap of plans makes a tick too long to end."""
    worker = rows.ledger()
    rows.database.advance(86_401)
    while sweeps.expire_proposals(worker, by="clock"):
        pass  # what other tests have left
    proposals = [planned(rows, f"heap-{number}", 20)[1] for number in range(4)]
    rows.database.advance(3601)
    ended = [sweeps.expire_proposals(worker, by="clock", batch=40) for _ in range(3)]
    assert [len(each) for each in ended] == [2, 2, 0]
    assert {subject for each in ended for subject in each} == set(proposals)
    left = "SELECT FROM counterfoil.action WHERE run LIKE 'heap-%%' AND state <> 'stale' AND tenant = %s"
    assert rows.all(left, "acme") == []
