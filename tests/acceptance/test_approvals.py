"""Approvals from the agent's call to the effect: bound to what was shown, used once, in time, by people of their own."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from threading import Barrier
from typing import Any

import pytest
from tests.acceptance.people import Person

from counterfoil.ledger.errors import ArgumentError, DecisionRefused
from counterfoil.ledger.proposals import Answer
from counterfoil.settings_providers import ToolSettings
from counterfoil.testing import World

CHARGE = {"customer": "cus_1", "amount_minor": 500, "currency": "usd", "order_id": "1182"}
TOO_MUCH = (
    '{"error": {"type": "invalid_request_error", "code": "amount_too_large", "param": "amount", "message": "no"}}'
)
DAY_S = 86_400


@pytest.fixture
def person(database: Any, world: World) -> Iterator[Callable[..., Person]]:
    """Makes a person: a name, and a login."""
    made: list[Person] = []

    def make(name: str = "alice", role: str = "operator") -> Person:
        made.append(Person(database.url(role), world.registry, name))
        return made[-1]

    yield make
    for each in made:
        each.ledger.close()


@pytest.fixture(autouse=True)
def gated(world: World) -> None:
    """Each charge needs an approval."""
    tools = {"stripe_charge": ToolSettings(approval="always")}
    world.settings = world.settings.model_copy(update={"tool": tools})


@pytest.fixture
def two_person(world: World) -> None:
    """Each charge needs two."""
    approval = world.settings.approval.model_copy(update={"two_person": ("stripe_charge",)})
    world.settings = world.settings.model_copy(update={"approval": approval})


@pytest.fixture
def charged(world: World) -> Callable[[], list[int | None]]:
    """The amounts that were really charged."""
    return lambda: [effect.amount for effect in world.sandbox.effects("charge")]


def refused(decide: Callable[[], object]) -> DecisionRefused:
    with pytest.raises(DecisionRefused) as error:
        decide()
    return error.value


def test_expiry_between_page_and_click(world: World, enqueue: Any, person: Any, cli: Any) -> None:
    """Shown a day ago, approved now: nothing is sent, and the person is told when it expired (exit 4)."""
    action_id = enqueue("stripe_charge", CHARGE)
    [proposal] = person().waiting()
    shown = person().show(proposal)
    world.advance(DAY_S + 1)
    code, _ = cli("proposal", "approve", proposal, "--digest", shown.digest_shown)
    assert code == 4
    late = refused(lambda: person().approve(proposal, shown.digest))
    assert late.code == "expired"
    assert shown.proposal.expires_at.strftime("%Y-%m-%dT%H:%M:%SZ") in late.message
    world.settle()
    assert world.states() == {"stripe_charge/s1/do": "stale"}
    assert world.sandbox.count("charges") == 0
    assert cli("action", "show", action_id)[0] == 0


def test_identical_retry_after_the_approval_asks_nobody(world: World, client: Any, person: Any, charged: Any) -> None:
    """The same call again, after the approval and after its end, is the same action; nobody is asked twice."""
    run = client().run("r1", tenant="acme", actor="bot")
    first = run.call("stripe_charge", CHARGE, wait_s=0)
    [proposal] = person().waiting()
    person().approve(proposal)
    assert run.call("stripe_charge", CHARGE, wait_s=0).action_id == first.action_id
    world.settle()
    assert run.call("stripe_charge", CHARGE, wait_s=0).status == "succeeded"
    assert (person().waiting(), charged()) == ([], [500])


def test_an_actor_does_not_approve_its_own(enqueue: Any, person: Any, world: World) -> None:
    """Not by another case either, nor with blanks around its name."""
    enqueue("stripe_charge", CHARGE)
    [proposal] = person().waiting()
    for name in ("bot", "BOT", "  Bot ", "b o t", "bot\u00a0", "bot\t", "\uff42\uff4f\uff54"):
        own = refused(lambda name=name: person(name).approve(proposal))
        assert (own.code, "'bot'" in own.message) == ("own", True)
    world.settle()
    assert world.sandbox.count("charges") == 0
    assert person("bot").reject(proposal).answer is Answer.REJECTED  # saying no is anybody's


@pytest.mark.usefixtures("two_person")
def test_two_people_have_two_names_and_two_logins(world: World, enqueue: Any, person: Any, charged: Any) -> None:
    """One login with two names, or one name at two logins, is one person; two of each approve, and it is done once."""
    enqueue("stripe_charge", CHARGE)
    [proposal] = person().waiting()
    first = person("alice").approve(proposal)
    assert (first.answer, first.missing) == (Answer.ONE_MORE, 1)
    for same in (person("alice"), person("bob"), person(" ALICE", "operator2")):
        assert refused(lambda same=same: same.approve(proposal)).code == "same_person"
    world.settle()
    assert charged() == []
    assert person().show(proposal).approved_by == ("alice",)
    assert person("bob", "operator2").approve(proposal).answer is Answer.APPROVED
    world.settle()
    assert charged() == [500]


@pytest.mark.usefixtures("two_person")
def test_an_edit_voids_the_first_of_two(world: World, enqueue: Any, person: Any, charged: Any) -> None:
    """Alice approves 500, Bob makes it 300: Alice's word counts no more, and both must say it again over 300."""
    enqueue("stripe_charge", CHARGE)
    [proposal] = person().waiting()
    alice, bob = person("alice"), person("bob", "operator2")
    old = alice.show(proposal).digest
    alice.approve(proposal)
    edited = bob.edit(proposal, amount_minor=300)
    assert edited.shown.approved_by == ()
    assert refused(lambda: bob.approve(proposal, old)).code == "changed"
    assert bob.approve(proposal).answer is Answer.ONE_MORE
    assert alice.approve(proposal).answer is Answer.APPROVED
    world.settle()
    assert charged() == [300]
    with pytest.raises(ArgumentError):  # the first of two has not seen the bounds of the second
        alice.approve(proposal, amount_max_minor=900)


def test_an_edited_call_runs_as_edited_once(world: World, client: Any, person: Any, charged: Any, sql: Any) -> None:
    """A person makes 500 300 and approves that: 300 is charged once, its refund is of that, and the model is told."""
    run = client().run("r1", tenant="acme", actor="bot")
    asked = run.call("stripe_charge", CHARGE, wait_s=0)
    [proposal] = person().waiting()
    edited = person().edit(proposal, amount_minor=300)
    assert (edited.before.action_id, edited.after.edited_from) == (asked.action_id, asked.action_id)
    assert (edited.after.revision, edited.after.amount_minor) == (2, 300)
    assert "500" not in str(edited.after.compensation)
    person().approve(proposal)
    world.settle()
    told = run.call("stripe_charge", CHARGE, wait_s=0)
    assert (told.status, told.next_step) == ("succeeded", "edited_by_reviewer")
    assert told.arguments is not None
    assert told.arguments["amount_minor"] == 300
    assert charged() == [300]
    states = sql("SELECT revision, state, last_error_code FROM counterfoil.action ORDER BY revision")
    assert states == [(1, "cancelled", "edited_by_reviewer"), (2, "succeeded", None)]


def test_edited_and_approved_at_the_same_moment(
    world: World, enqueue: Any, person: Any, charged: Any, sql: Any
) -> None:
    """Twenty times: either the approval stands and the edit is told, or the edit does and the old digest is; what was
    approved is charged, once."""
    alice, bob = person("alice"), person("bob", "operator2")
    for number in range(20):
        enqueue("stripe_charge", CHARGE | {"order_id": f"o{number}"}, run=f"r{number}")
    digests = {proposal: alice.show(proposal).digest for proposal in alice.waiting()}
    barrier = Barrier(2, timeout=20)

    def at_once(decide: Callable[[], object]) -> str:
        barrier.wait()
        try:
            decide()
        except DecisionRefused as no:
            return no.code
        return "done"

    approved = 0
    with ThreadPoolExecutor(2) as threads:
        for proposal, digest in digests.items():
            one = threads.submit(at_once, partial(alice.approve, proposal, digest))
            other = threads.submit(at_once, partial(bob.edit, proposal, amount_minor=300))
            told = one.result(30), other.result(30)
            assert told in [("done", "decided"), ("changed", "done")], told
            approved += told[0] == "done"
    world.settle()
    assert charged() == [500] * approved
    assert sql("SELECT count(*) FROM counterfoil.action WHERE state = 'awaiting_approval'") == [(20 - approved,)]


def test_what_an_edit_is_refused(world: World, enqueue: Any, person: Any) -> None:
    """Nothing changed, an argument that the tool refuses, a step that is not there, one that somebody has decided, and
    what another action may do once only."""
    enqueue("stripe_charge", CHARGE)
    [proposal] = person().waiting()
    alice = person()
    enqueue("stripe_charge", CHARGE | {"order_id": "1183"}, step="s2")
    assert refused(lambda: alice.edit(proposal, order_id="1183")).code == "once_taken"
    assert refused(lambda: alice.edit(proposal, amount_minor=500)).code == "unchanged"
    for place, changes in ((1, {"amount_minor": -1}), (1, {"amount": 3}), (1, {"tenant": "globex"}), (2, {})):
        with pytest.raises(ArgumentError):
            alice.edit(proposal, place, **changes)
    alice.reject(proposal)
    assert refused(lambda: alice.edit(proposal, amount_minor=300)).code == "decided"
    world.settle()
    assert world.sandbox.count("charges") == 0


def test_rejection_is_remembered(world: World, client: Any, person: Any, charged: Any) -> None:
    """Rejected: the same call is not asked again, another proposal says what was rejected before, and then it is a
    person's; nothing was charged."""
    run = client().run("r1", tenant="acme", actor="bot")
    run.call("stripe_charge", CHARGE, wait_s=0)
    alice = person()
    [first] = alice.waiting()
    alice.reject(first, "too much")
    same = run.call("stripe_charge", CHARGE, wait_s=0)
    assert (same.status, same.next_step) == ("cancelled", "rejected_by_reviewer")
    assert alice.waiting() == []
    other = run.call("stripe_charge", CHARGE | {"amount_minor": 300}, wait_s=0)
    assert other.status == "awaiting_approval"
    [second] = alice.waiting()
    [before] = alice.show(second).proposal.rejected
    assert (before.proposal_id, before.by_person, before.reason) == (first, "alice", "too much")
    assert '"amount_minor":500' in before.arguments
    alice.reject(second, "still too much")
    run.call("stripe_charge", CHARGE | {"amount_minor": 300}, wait_s=0)
    third = run.call("stripe_charge", CHARGE | {"amount_minor": 100}, wait_s=0)
    assert (third.status, third.next_step) == ("blocked", "person")
    world.settle()
    assert charged() == []


@pytest.mark.parametrize(
    ("corrected", "asks"),
    [({"amount_minor": 300}, False), ({"amount_minor": 501}, True), ({"amount_minor": 300, "customer": "cus_2"}, True)],
)
def test_an_approval_within_bounds(
    world: World, client: Any, person: Any, charged: Any, corrected: dict[str, object], asks: bool
) -> None:
    """Refused by the provider, a lower amount under the same label runs unasked; a higher one, or another customer, asks."""
    run = client().run("r1", tenant="acme", actor="bot")
    run.call("stripe_charge", CHARGE, step="fee", wait_s=0)
    [proposal] = person().waiting()
    with pytest.raises(ArgumentError):
        person().approve(proposal, amount_max_minor=499)
    person().approve(proposal, amount_max_minor=500)
    world.sandbox.stripe.fault("answer", on="payment_intents.create", times=1, status=400, body=TOO_MUCH)
    world.settle()
    assert run.call("stripe_charge", CHARGE, step="fee", wait_s=0).status == "failed"
    run.call("stripe_charge", CHARGE | corrected, step="fee", wait_s=0)
    assert len(person().waiting()) == asks
    world.settle()
    assert charged() == ([] if asks else [300])


def test_worker_that_dies_between_approval_and_claim(world: World, enqueue: Any, person: Any, sql: Any) -> None:
    """Killed before the claim and again after it: the approval is used by the first claim, and one charge is made."""
    enqueue("stripe_charge", CHARGE)
    [proposal] = person().waiting()
    person().approve(proposal)
    with world.crash_after("before_claim"):
        world.work()
    assert sql("SELECT consumed_at FROM counterfoil.approval") == [(None,)]
    with world.crash_after("after_claim"):
        world.settle()
    assert world.crashes == ["before_claim", "after_claim"]
    world.settle()
    assert world.sandbox.count("charges") == 1
    assert sql("SELECT count(*) FROM counterfoil.approval WHERE consumed_at IS NOT NULL") == [(1,)]


def test_approval_that_expires_before_the_claim(world: World, enqueue: Any, person: Any, sql: Any) -> None:
    """Approved, and no worker for a day: nothing is sent, and the action says why."""
    enqueue("stripe_charge", CHARGE)
    [proposal] = person().waiting()
    person().approve(proposal)
    world.advance(DAY_S + 1)
    world.settle()
    assert sql("SELECT state, last_error_code FROM counterfoil.action") == [("stale", "approval_expired")]
    assert world.sandbox.count("charges") == 0


def test_withdrawn_by_the_agent_is_told(client: Any, person: Any, world: World) -> None:
    """The agent cancels what waits: whoever approves then hears that it was withdrawn, and nothing is sent."""
    asked = client().run("r1", tenant="acme", actor="bot").call("stripe_charge", CHARGE, wait_s=0)
    [proposal] = person().waiting()
    digest = person().show(proposal).digest
    client().cancel(asked.action_id, "no longer needed", actor="bot")
    late = refused(lambda: person().approve(proposal, digest))
    assert (late.code, "withdrawn" in late.message) == ("decided", True)
    world.settle()
    assert world.sandbox.count("charges") == 0
