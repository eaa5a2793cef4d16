"""The reordered plan, by the example's own code: prepared without a trace, decided once, committed in order."""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING, Any, get_args

import pytest
import requests
from tests.acceptance.reship import CALLS, COMMITTED, PREPARED, TAKEN_BACK, Killed, Reship, load

from counterfoil.providers.registry import Registry
from counterfoil.testing import World
from counterfoil.workers.points import Point

if TYPE_CHECKING:
    from tests.conftest import Database

DAY_S = 86_400.0
COMMIT_STEPS = {
    "stripe_capture": ("stripe", "payment_intents.capture"),
    "jira_open": ("jira", "issue.transition"),
    "email_send": ("mail", "drafts.send"),
}
IN_ORDER = ["draft", "ticket", "authorization", "charge", "transition", "customer_message"]


@pytest.fixture
def reship(world: World, database: Database, client: Any, working: Any, monkeypatch: pytest.MonkeyPatch) -> Reship:
    """Order 1182. A proposal may wait for a month here, so that the hold's own end is what cuts it short."""
    monkeypatch.setattr(load("tools"), "MAIL", world.sandbox.mail.url)
    settings = world.settings
    mail = settings.provider("mail").model_copy(update={"base_url": world.sandbox.mail.url})
    world.settings = settings.model_copy(
        update={
            "approval": settings.approval.model_copy(update={"expiry_s": 30 * DAY_S}),
            "providers": {**settings.providers, "mail": mail},
        }
    )
    world.registry = Registry.load([*world.settings.tools, "reship_tools"])
    return Reship(world=world, database=database, agent=load("agent"), client=client, working=working)


def ticket_status(world: World) -> str:
    """The one ticket's status, as Jira tells it."""
    [ticket] = world.sandbox.effects("ticket")
    url = f"{world.sandbox.jira.url}/rest/api/3/issue/{ticket.object_id}"
    issue = requests.get(url, auth=("bot@example.test", "t"), timeout=5).json()
    status: str = issue["fields"]["status"]["name"]
    return status


def test_nothing_irreversible_happens_before_the_decision(reship: Reship, sql: Any) -> None:
    """While a person has not decided there is one draft, one ticket in no queue and one hold: no money moved, no mail."""
    proposal = reship.prepare()
    assert proposal.result(wait_s=0).status == "awaiting_approval"
    assert reship.counts() == PREPARED
    assert ticket_status(reship.world) == "Staged"
    assert sql("SELECT pivot FROM counterfoil.run") == [("ahead",)]
    assert sql("SELECT counterfoil.irreversible_before_pivot(tenant, run) FROM counterfoil.run") == [(0,)]
    reship.world.advance(DAY_S)
    reship.world.settle()
    assert reship.counts() == PREPARED, "waiting does nothing"


def test_one_approval_commits_everything_in_order(reship: Reship, sql: Any) -> None:
    """After one approval the hold is captured, the ticket opened and the mail sent, once each, in this order, unasked."""
    proposal = reship.prepare()
    assert reship.decide() == "approved"
    reship.world.settle()
    assert proposal.result(wait_s=0).status == "succeeded"
    assert reship.counts() == COMMITTED
    assert reship.kinds() == IN_ORDER
    assert ticket_status(reship.world) == "To Do"
    [message] = reship.world.sandbox.effects("customer_message")
    assert message.data["to"] == "ann@example.com"
    keys = [effect.key for effect in reship.world.sandbox.effects() if effect.key]
    assert len(set(keys)) == len(keys), "each effect under a key of its own"
    assert sql("SELECT counterfoil.irreversible_before_pivot(tenant, run) FROM counterfoil.run") == [(0,)]
    assert sql("SELECT pivot FROM counterfoil.run") == [("passed",)]


def test_a_person_decides_at_the_command_line(reship: Reship, cli: Any) -> None:
    """One page shows what is staged and what would be committed; approving takes the digest at its end."""
    proposal = reship.prepare()
    code, page = cli("proposal", "show", proposal.id)
    told = (
        "stripe_capture",
        "jira_open",
        "email_send",
        "email_draft",
        "jira_stage",
        "stripe_authorize",
        "ann@example.com",
    )
    assert [word for word in told if word not in page] == []
    assert re.search(r"5\.00", page), "the money, as people write it"
    digest = re.findall(r"digest:? ([0-9a-f]{16,})", page)[-1]
    wrong = cli("proposal", "approve", proposal.id, "--digest", "0" * 16)
    assert (code, wrong[0], reship.counts()) == (0, 4, PREPARED)
    assert cli("proposal", "approve", proposal.id, "--digest", digest)[0] == 0
    reship.world.settle()
    assert reship.counts() == COMMITTED


@pytest.mark.parametrize("fault", ["504_after_commit", "504_before_commit", "rst_after_commit", "empty_2xx"])
@pytest.mark.parametrize("tool", COMMIT_STEPS)
def test_a_lost_answer_in_the_commit_phase(reship: Reship, tool: str, fault: str) -> None:
    """Whichever step's answer is lost: the next one waits for the evidence, and the effects are the same."""
    reship.prepare()
    provider, operation = COMMIT_STEPS[tool]
    reship.world.sandbox.fault(fault, provider=provider, operation=operation)
    assert reship.decide() == "approved"
    reship.world.settle()
    assert reship.counts() == COMMITTED
    assert reship.kinds() == IN_ORDER


@pytest.mark.parametrize("point", get_args(Point))
@pytest.mark.parametrize("tool", COMMIT_STEPS)
def test_a_kill_in_the_commit_phase(reship: Reship, tool: str, point: Point) -> None:
    """A worker that dies at any point of any step leaves the same effects, in the same order."""
    reship.prepare()
    assert reship.decide() == "approved"
    with reship.world.crash_after(point, tool=tool):
        reship.world.settle()
    assert reship.world.crashes == [point]
    assert reship.counts() == COMMITTED
    assert reship.kinds() == IN_ORDER


@pytest.mark.parametrize(
    ("provider", "operation"),
    [("mail", "drafts.create"), ("jira", "issue.create"), ("stripe", "payment_intents.create")],
)
def test_a_lost_answer_while_it_is_prepared(reship: Reship, provider: str, operation: str) -> None:
    """A preparation whose answer is lost is found, by look-up or key, and the agent goes on: one of each."""
    reship.world.sandbox.fault("504_after_commit", provider=provider, operation=operation)
    reship.prepare()
    assert reship.counts() == PREPARED
    assert reship.decide() == "approved"
    reship.world.settle()
    assert reship.counts() == COMMITTED


def test_a_rejected_plan_leaves_nothing(reship: Reship) -> None:
    """After a rejection nothing is committed, and the unwind releases the hold, closes the ticket, deletes the draft."""
    proposal = reship.prepare()
    assert reship.decide("rejected") == "rejected"
    reship.world.settle()
    assert (proposal.result(wait_s=0).status, reship.counts()) == ("cancelled", PREPARED)
    again = reship.prepare(note="in other words")
    assert (again.id, again.result(wait_s=0).code) == (proposal.id, "rejected_by_reviewer"), (
        "whoever begins anew is told"
    )
    reship.unwind()
    assert reship.counts() == TAKEN_BACK
    assert reship.decide() == "decided", "nobody can approve it any more"
    reship.world.settle()
    assert reship.counts() == TAKEN_BACK


@pytest.mark.parametrize("calls", range(1, len(CALLS) + 1))
def test_the_agent_is_killed_after_each_of_its_calls(reship: Reship, calls: int) -> None:
    """Started again from nothing, with a model that says everything in other words, it comes to the same single plan."""
    with pytest.raises(Killed):
        reship.prepare(dies_after=calls)
    first = reship.prepare(subject="Good news", body="We ship again.", summary="Parcel lost", note="please approve")
    again = reship.prepare(subject="Hello", body="On its way.", summary="Reship", note="urgent!")
    assert again.id == first.id
    assert reship.counts() == PREPARED
    assert reship.decide() == "approved"
    reship.world.settle()
    assert reship.counts() == COMMITTED
    assert reship.prepare(note="and once more").result(wait_s=0).status == "succeeded"
    assert (reship.counts(), reship.kinds()) == (COMMITTED, IN_ORDER)


@pytest.mark.case("D10")
@pytest.mark.parametrize("beat", ["at work", "down until then"])
def test_the_hold_lapses_before_the_approval(reship: Reship, beat: str) -> None:
    """The authorisation lapses on day 7, the approval comes on day 8: refused; no capture, no open ticket, no mail."""
    proposal = reship.prepare()
    reship.world.advance(8 * DAY_S)
    if beat == "at work":
        reship.world.settle()
    assert reship.decide() == "expired"
    reship.world.settle()
    assert (proposal.result(wait_s=0).status, reship.counts()) == ("stale", PREPARED | {"authorizations": 1})
    assert ticket_status(reship.world) == "Staged"
    again = reship.prepare(note="in other words")
    assert (again.id, again.result(wait_s=0).status) == (proposal.id, "stale"), "whoever begins anew is told"
    reship.unwind("the hold lapsed")
    after = reship.counts()
    assert (after["tickets_open"], after["drafts_open"]) == (0, 0)
    assert (after["charges"], after["customer_messages"]) == (0, 0)


def test_workers_are_down_until_the_hold_has_lapsed(reship: Reship) -> None:
    """Approved on day 6, and no worker before day 8: the first step is stale, and the rest of the plan is stopped."""
    proposal = reship.prepare()
    reship.world.advance(6 * DAY_S)
    assert reship.decide() == "approved"
    reship.world.advance(2 * DAY_S)
    reship.world.settle()
    assert (reship.counts(), proposal.result(wait_s=0).status) == (PREPARED, "stale")
    states = reship.states()
    assert states["stripe_capture"] == "stale"
    assert {states[tool] for tool in COMMIT_STEPS} <= {"stale", "cancelled"}


def test_the_hold_is_released_by_hand_after_the_approval(reship: Reship, sql: Any) -> None:
    """Somebody cancels the authorisation at Stripe between approval and capture: nothing further is committed."""
    reship.prepare()
    assert reship.decide() == "approved"
    [(hold,)] = sql("SELECT receipt FROM counterfoil.action WHERE tool = 'stripe_authorize'")
    cancel = f"{reship.world.sandbox.stripe.url}/v1/payment_intents/{hold}/cancel"
    requests.post(cancel, headers={"Authorization": "Bearer sk_test_sandbox"}, timeout=5).raise_for_status()
    reship.world.settle()
    assert reship.counts() == PREPARED | {"cancellations": 1}
    assert ticket_status(reship.world) == "Staged"


def test_the_draft_is_edited_by_hand_after_the_approval(reship: Reship, sql: Any) -> None:
    """Another text than the approved one is not sent; what was committed before it stands, for a person to take back."""
    reship.prepare()
    assert reship.decide() == "approved"
    [(draft,)] = sql("SELECT receipt FROM counterfoil.action WHERE tool = 'email_draft'")
    edit = f"{reship.world.sandbox.mail.url}/drafts/{draft}"
    requests.put(edit, json={"body": "You owe us 5000 USD."}, timeout=5).raise_for_status()
    reship.world.settle()
    assert reship.states()["email_send"] == "stale"
    assert reship.counts() == COMMITTED | {"customer_messages": 0, "drafts_open": 1}
    reship.unwind("the mail was not sent")
    after = reship.counts()
    assert (after["charges"], after["refunds"], after["tickets_open"], after["drafts_open"]) == (1, 1, 0, 0)
    assert after["customer_messages"] == 0


def test_a_committed_plan_is_taken_back(reship: Reship, sql: Any) -> None:
    """The money goes back and the ticket is closed; the mail cannot be recalled, so a correction waits for a person."""
    reship.prepare()
    assert reship.decide() == "approved"
    reship.world.settle()
    reship.unwind("the parcel was found")
    after = reship.counts()
    assert (after["charges"], after["refunds"], after["cancellations"], after["tickets_open"]) == (1, 1, 0, 0)
    assert after["customer_messages"] == 1, "nobody is told anything without a person"
    [(correction, call)] = sql("SELECT correction_id, call FROM counterfoil.correction WHERE state = 'open'")
    assert (json.loads(call)["tool"], json.loads(call)["arguments"]["to"]) == ("email_direct", "ann@example.com")
    assert sql("SELECT state FROM counterfoil.run") == [("unwind_blocked",)]
    assert reship.operator("dismiss_correction", correction, "alice", "cli", "told by phone") == "dismissed"
    reship.world.settle()
    assert sql("SELECT state FROM counterfoil.run") == [("unwound",)]
    assert reship.counts() == after
