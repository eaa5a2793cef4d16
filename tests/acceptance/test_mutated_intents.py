"""What a person has approved is what runs: whichever field of an approved intent is changed, nothing is sent."""

from __future__ import annotations

import random
import uuid
from collections.abc import Callable, Iterator
from dataclasses import fields, replace
from datetime import UTC, datetime, timedelta
from functools import cache
from itertools import cycle
from typing import TYPE_CHECKING, Any

import psycopg
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from tests.acceptance.gates import Gates, gate_tools, open_gates

from counterfoil.ledger.canonical import canonical_json, sha256_of
from counterfoil.ledger.claims import ClaimedAction, WakeUp
from counterfoil.ledger.digests import BoundIntent, intent_digest
from counterfoil.ledger.keys import action_id
from counterfoil.outbox.enqueue import intent_of
from counterfoil.outbox.intents import DOOR_RULES, once_key
from counterfoil.providers.registry import Registry
from counterfoil.testing import World
from counterfoil.workers import guards

if TYPE_CHECKING:
    from tests.conftest import Database

ROWS = 2100
BATCH = 20

OURS = {
    *("key", "fence", "attempt_count", "not_sent_count", "in_doubt", "no_resend", "first_sent_at", "key_age_s"),
    *("reach", "created_at", "of_tool", "of_key", "of_reach", "of_receipt", "of_arguments"),
}
"""What the ledger itself writes down about an action's execution; no part of what was approved."""

TEXT = st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]), max_size=30)
OTHER: dict[str, st.SearchStrategy[Any]] = {
    "phase": st.sampled_from(["do", "undo", "correct", "redo"]),
    "revision": st.integers(1, 1000),
    "tool_version": st.integers(1, 1000),
    "class_": st.sampled_from(["reversible", "compensatable", "irreversible"]),
    "effect_scope": st.sampled_from(["run", "tenant"]),
    "amount_minor": st.none() | st.integers(-(2**53), 2**53),
    "approval_amount_max_minor": st.integers(0, 499),
    "approval_people": st.none(),
    "approval_expires_at": st.none() | st.datetimes(timezones=st.just(UTC)),
    "audience": st.lists(TEXT, max_size=3),
    **dict.fromkeys(("reads_version", "needs_approval", "staged"), st.booleans()),
    **dict.fromkeys(
        ("currency", "compensation", "correction", "once_key", "repeat_reason", "proposal_id", "approval_subject_id"),
        st.none() | TEXT,
    ),
    **dict.fromkeys(
        ("expected_resource_version", "parent_action_id", "of_action_id", "approval_digest"), st.none() | TEXT
    ),
}
"""Other values than text for the fields that are not, or not always, text."""


@cache
def registry() -> Registry:
    """The tools, never called here."""
    made = Registry()
    for function in gate_tools("http://nowhere.test"):
        made.add(function.__counterfoil_tool__)
    made.resolve()
    return made


@pytest.fixture(scope="module")
def approved() -> ClaimedAction:
    """A claimed call of the gated tool, with the approval of exactly it."""
    spec = registry().get("gated_parcel")
    intent = intent_of(spec, {"order": "1182"}, tenant="acme", run="r1", step="ship", actor="bot")
    given = {name: getattr(intent, name) for name in intent.__dataclass_fields__}
    row = {f.name: given[f.name] for f in fields(ClaimedAction) if f.name in given}
    row |= dict.fromkeys((f.name for f in fields(ClaimedAction) if f.name not in given), None)
    row |= {"phase": "do", "arguments_codec": "rfc8785", "attempt_count": 1, "not_sent_count": 0, "in_doubt": False}
    row |= {"proposal_id": "P-AAAAAAAAAAAA", "approval_subject_id": "P-AAAAAAAAAAAA", "approval_id": "apr_1"}
    row |= {"approval_people": 1, "approval_amount_max_minor": 1000, "key": "k", "fence": uuid.uuid4()}
    row |= {"approval_expires_at": datetime.now(UTC) + timedelta(days=1), "staged": False}
    claimed = ClaimedAction(**row)
    digest = intent_digest(guards._bound(claimed), row["approval_expires_at"])
    return replace(claimed, approval_digest=digest)


def test_the_guards_let_the_approved_call_pass(approved: ClaimedAction) -> None:
    """Nothing is refused of a row that is what it was when it was approved: the tests below can tell a change."""
    assert guards.mismatch(registry().get("gated_parcel"), approved, DOOR_RULES) is None


GUARDED = sorted(f.name for f in fields(ClaimedAction) if f.name not in OURS | {"approval_id"})


@pytest.mark.parametrize("name", GUARDED)
def test_the_guards_refuse_any_other_value(approved: ClaimedAction, name: str) -> None:
    """Whatever else a field says, the worker's own check finds it, with no help from the database."""
    spec, was = registry().get("gated_parcel"), getattr(approved, name)

    @settings(max_examples=120, deadline=None)
    @given(OTHER.get(name, TEXT))
    def refused(value: object) -> None:
        assume(value != was)
        assert guards.mismatch(spec, replace(approved, **{name: value}), DOOR_RULES) is not None

    refused()


def test_the_guards_refuse_other_arguments_with_their_own_hash(approved: ClaimedAction) -> None:
    """Arguments that were changed together with their hash, target, amount and all that follows are another intent."""
    spec = registry().get("gated_parcel")

    @settings(max_examples=500, deadline=None)
    @given(st.from_regex(r"[0-9a-z]{1,12}", fullmatch=True), st.integers(0, 2**53 - 1), st.sampled_from(["eur", "usd"]))
    def refused(order: str, price: int, currency: str) -> None:
        assume((order, price, currency) != ("1182", 500, "eur"))
        values = spec.validate({"order": order, "price": price, "currency": currency})
        text = canonical_json(values)
        compensation, correction = spec.compensation_of(values, "a"), spec.correction_of(values)
        other = replace(
            approved,
            arguments=text,
            arguments_sha256=sha256_of(text),
            target=order,
            amount_minor=price,
            currency=currency,
            compensation=None if compensation is None else canonical_json(compensation),
            correction=None if correction is None else canonical_json(correction),
            once_key=once_key(spec, values, approved.run),
        )
        assert guards.mismatch(spec, other, DOOR_RULES) in ("approval_digest", "approval_amount")

    refused()


# In the database: one field of each row is changed as only the owner can, with every trigger off.


def mutations(pick: random.Random) -> Iterator[tuple[str, Callable[[str], object]]]:
    """(column, what it becomes), round after round; the value is another for every row."""

    def word(_: str) -> str:
        return "".join(pick.choices("abcdefghijklmnop0123456789", k=pick.randint(1, 20)))

    def other_id(_: str) -> str:
        return action_id("acme", "r1", f"x{pick.random()}", 1, "do")

    def reference(kind: str) -> Callable[[str], str]:
        return lambda _: kind + "".join(pick.choices("ABCDEFGHIJKLMNOPQRSTUVWXYZ234567", k=12))

    changes: dict[str, Callable[[str], object]] = {
        "action_id": other_id,
        **dict.fromkeys(("tenant", "run", "step", "actor", "effect", "target", "provider", "account", "queue"), word),
        **dict.fromkeys(("repeat_reason", "compensation", "correction", "arguments_codec"), word),
        "once_key": lambda _: f"{word('')}{pick.random()}",  # no two rows the same
        "arguments": lambda _: canonical_json({"currency": "eur", "order": word(""), "price": 500}),
        "revision": lambda _: pick.randint(2, 10**6),
        "phase": lambda _: pick.choice(["undo", "correct"]),
        "parent_action_id": other_id,
        "tool": lambda _: pick.choice(["parcel", "call_back", "plain_letter"]),
        "class": lambda _: pick.choice(["reversible", "irreversible"]),
        "audience": lambda _: [word("") for _ in range(pick.randint(0, 3))],
        "amount_minor": lambda _: pick.choice([None, pick.randint(501, 10**9), -pick.randint(1, 500)]),
        "currency": lambda _: pick.choice([None, "usd", word("")[:3]]),
        "needs_approval": lambda _: False,
        "staged": lambda _: True,
        "reads_version": lambda _: True,
        "expected_resource_version": word,
        "effect_scope": lambda _: "tenant",
        "proposal_id": reference("P-"),
        "approval_id": lambda a: pick.choice([None, "apr_" + word(""), a]),
    }
    yield from cycle(changes.items())


def statement(column: str, value: object) -> tuple[str, dict[str, object]]:
    """The owner's UPDATE of one row. What a CHECK of the table would refuse comes with what it needs."""
    assign = f'"{column}" = %(value)s'
    if column == "arguments":
        assign += ", arguments_sha256 = encode(sha256(convert_to(%(value)s, 'UTF8')), 'hex')"
    if column == "phase":
        assign += ", parent_action_id = action_id"
    return f"UPDATE counterfoil.action SET {assign} WHERE action_id = %(id)s", {"value": value}


@pytest.fixture
def gates(world: World, database: Database) -> Gates:
    """The world with tools that post to its warehouse."""
    return open_gates(world, database)


def test_one_changed_field_of_an_approved_intent(gates: Gates, world: World) -> None:
    """Of thousands of approved rows in each of which raw SQL has changed one field, none is executed, and each is in a
    person's hands; one that nobody has touched is executed."""
    seed = random.randrange(2**32)
    pick = random.Random(seed)
    ids = approve_many(gates, ROWS + 1)
    untouched, *changed = ids
    columns = change(gates, changed, pick)
    with psycopg.connect(gates.database.url("owner")) as owner:
        rows = owner.execute("SELECT action_id, generation FROM counterfoil.action ORDER BY created_at").fetchall()
    wake_ups = [WakeUp(*row) for row in rows]
    for start in range(0, len(wake_ups), BATCH):
        world.deliver(wake_ups[start : start + BATCH])
    assert gates.sent == 1, seed
    with psycopg.connect(gates.database.url("owner")) as owner:
        found = owner.execute("SELECT action_id, state, last_error_code FROM counterfoil.action").fetchall()
    states = {action: (state, code) for action, state, code in found}
    assert states.pop(untouched) == ("succeeded", None)
    allowed = {("operator_review", "approval_mismatch"), ("operator_review", "policy_mismatch")}
    wrong = {columns.get(action, "action_id"): end for action, end in states.items() if end not in allowed}
    assert wrong == {}, seed
    assert len(states) == ROWS


def approve_many(gates: Gates, count: int) -> list[str]:
    """So many recorded and approved calls of the gated tool, each of a run of its own."""
    intents = [gates.intent("gated_parcel", order=str(n), run=f"r{n}") for n in range(count)]
    named = ", ".join(f"p_{name} => %({name})s" for name in intents[0].parameters())
    with psycopg.connect(gates.database.url("agent")) as agent, agent.cursor() as cursor:
        cursor.executemany(f"SELECT FROM counterfoil.propose({named})".encode(), [i.parameters() for i in intents])
    with psycopg.connect(gates.database.url("operator")) as operator:
        answers = operator.execute(
            "SELECT d.answer FROM counterfoil.proposal AS p, counterfoil.decide(p.proposal_id, 'approved',"
            " counterfoil.proposal_digest(p.proposal_id), 'alice', 'test') AS d"
        ).fetchall()
    assert answers == [("approved",)] * count
    return [str(intent.action_id) for intent in intents]


def change(gates: Gates, ids: list[str], pick: random.Random) -> dict[str, str]:
    """Changes one field of each row; which, by row. An approval is sometimes replaced by another row's."""
    with psycopg.connect(gates.database.url("owner")) as owner:
        owner.execute("SET LOCAL session_replication_role = replica")
        approvals = dict(owner.execute("SELECT action_id, approval_id FROM counterfoil.approval").fetchall())
        columns: dict[str, str] = {}
        with owner.pipeline():
            for action, (column, other) in zip(ids, mutations(pick), strict=False):
                value = other(approvals[pick.choice([i for i in ids[:50] if i != action])])
                text, params = statement(column, value)
                owner.execute(text.encode(), {**params, "id": action})
                columns[action] = column
    return columns


def test_mutations_cover_the_intent() -> None:
    """Every column that says what is done, to what, for whom and on whose word is among the changed ones."""
    rounds = mutations(random.Random(1))
    changed = {next(rounds)[0] for _ in range(60)}
    bound = {f.name for f in fields(BoundIntent)} - {"class_", "arguments_sha256", "tool_version"}
    assert bound | {"class", "arguments", "needs_approval", "approval_id", "once_key", "correction"} <= changed
    assert len(changed) * 60 < ROWS, "each of them some dozens of times"
