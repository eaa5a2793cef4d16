"""What a tool may do alone follows from its contract, class, audience and bounds: a table of declarations and levels."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, assert_never

import pytest

from counterfoil import tool
from counterfoil.ledger.caps import NO_CAPS, Caps
from counterfoil.outbox.intents import DoorRules
from counterfoil.providers.autonomy import Bounds, Level, autonomy
from counterfoil.providers.spec import AUDIENCES_APPROVED, ToolSpec

NEVER = {"cls": "irreversible", "approval": "never"}
BLIND = {"lookup": None, "uncertain": "operator_review"}
BY_KEY = {"lookup": None, "native_key_ttl_s": 86_400}


def find(key: str) -> dict[str, str] | None:
    """The look-up."""
    return None


def apology(arguments: Mapping[str, Any]) -> Mapping[str, object] | None:
    """The correction."""
    return {"tool": "act", "arguments": dict(arguments)}


def declare(**changes: Any) -> ToolSpec:
    """A compensatable tool that support sees and a look-up finds, with what is different here."""
    # fmt: off
    given: dict[str, Any] = {"cls": "compensatable", "provider": "shop", "effect": "thing", "target": "order",
                             "audience": ["support"], "once_per": "order", "lookup": find, "undo": "back", **changes}
    # fmt: on
    if given["cls"] in ("pure", "irreversible"):
        given["undo"] = None
    if given["cls"] == "pure":
        given = {"cls": "pure"}

    def act(order: str, amount_minor: int = 5, currency: str = "usd", *, key: str = "") -> dict[str, str]:
        return {}

    def counter(order: str, amount_minor: int = 5, currency: str = "usd", *, key: str, of: str) -> dict[str, str]:
        return {}

    def pure(order: str) -> dict[str, str]:
        return {}

    is_counter = given.pop("counter", False)
    function: Any = pure if given["cls"] == "pure" else counter if is_counter else act
    spec: ToolSpec = tool(**given)(function).__counterfoil_tool__
    return spec


# fmt: off
LEVELS: list[tuple[str, dict[str, Any], dict[str, Any], Level]] = [
    ("reads", {"cls": "pure"}, {}, Level.FREE),
    ("found by a look-up", {}, {}, Level.ALONE),
    ("found by a look-up that lags", {"lookup_lag_s": 60}, {}, Level.ALONE),
    ("deduplicated by our key", BY_KEY, {}, Level.ALONE),
    ("reversible", {"cls": "reversible"}, {}, Level.ALONE),
    ("seen by the customer", {"audience": ["customer"]}, {}, Level.ALONE),
    ("an amount without a bound", {"amount": "amount_minor"}, {}, Level.ALONE),
    ("an amount with a bound", {"amount": "amount_minor"}, {"asks_above_minor": 100}, Level.BOUNDED),
    ("a bound on an amount that it has not", {}, {"asks_above_minor": 100}, Level.PERSON),
    ("a cap of its own", {}, {"tool_caps": Caps(count_per_run_max=3)}, Level.BOUNDED),
    ("a cap on its effect", {}, {"effect_caps": Caps(amount_per_day_max_minor=3)}, Level.BOUNDED),
    ("audience by arguments", {"audience": lambda arguments: ["support"]}, {}, Level.BOUNDED),
    ("blind", BLIND, {}, Level.ONCE),
    ("blind and reversible", {**BLIND, "cls": "reversible"}, {}, Level.ONCE),
    ("blind within bounds", {**BLIND, "amount": "amount_minor"}, {"asks_above_minor": 100}, Level.ONCE),
    ("blind, gated", {**BLIND, "approval": "always"}, {}, Level.PERSON),
    ("irreversible", {"cls": "irreversible"}, {}, Level.PERSON),
    ("irreversible, never asks", NEVER, {}, Level.BOUNDED),
    ("irreversible and blind, never asks", {**NEVER, **BLIND}, {}, Level.ONCE),
    ("irreversible with a correction, never asks", {**NEVER, "correction": apology}, {}, Level.BOUNDED),
    ("its code asks", {"approval": "always"}, {}, Level.PERSON),
    ("the house asks", {}, {"always_asks": True}, Level.PERSON),
    ("the house asks where code does not", NEVER, {"always_asks": True}, Level.PERSON),
    ("public", {"audience": ["public"]}, {}, Level.PERSON),
    ("legal, whatever code says", {**NEVER, "audience": ["legal"]}, {}, Level.PERSON),
    ("public, whatever the house says", {"audience": ["public"]}, {"audiences_always": frozenset()}, Level.PERSON),
    ("the press, where the house adds it", {"audience": ["press"]}, {"audiences_always": frozenset({"press"})}, Level.PERSON),
    ("two persons", {"cls": "irreversible"}, {"two_persons": True}, Level.TWO_PERSONS),
    ("two persons who are never asked", {}, {"two_persons": True}, Level.ALONE),
    ("two persons above an amount", {"amount": "amount_minor"}, {"two_persons": True, "asks_above_minor": 1}, Level.BOUNDED),
    ("commits what was staged", {"counter": True}, {}, Level.PERSON),
    ("commits what was staged, two persons", {"counter": True}, {"two_persons": True}, Level.TWO_PERSONS),
]
# fmt: on


@pytest.mark.parametrize(
    ("declared", "bounds", "level"), [row[1:] for row in LEVELS], ids=[row[0].replace(" ", "-") for row in LEVELS]
)
def test_levels(declared: dict[str, Any], bounds: dict[str, Any], level: Level) -> None:
    """The level of each declaration, and a reason at least."""
    spec = declare(**declared)
    found = autonomy(spec, spec.contract, Bounds(**bounds))
    assert found.level is level
    assert found.reasons
    assert set(found.missing) <= set(found.reasons)


def test_the_table_has_every_level() -> None:
    """No level is without a declaration that has it."""
    assert {row[3] for row in LEVELS} == set(Level)


@pytest.mark.parametrize(("declared", "level"), [({}, Level.ALONE), (BLIND, Level.ONCE)])
def test_counter_actions_undo_alone(declared: dict[str, Any], level: Level) -> None:
    """What another tool names as its undo runs without a person when a run is taken back, whoever else would be asked."""
    spec = declare(counter=True, approval="always", **declared)
    found = autonomy(spec, spec.contract, Bounds(always_asks=True, two_persons=True), undoes=True)
    assert found.level is level


def test_an_undo_that_can_be_called_is_judged_as_a_call() -> None:
    """To be another's undo frees no tool of an approval that its calls need."""
    spec = declare(approval="always")
    assert autonomy(spec, spec.contract, Bounds(), undoes=True).level is Level.PERSON


@pytest.mark.parametrize(
    ("declared", "bounds", "said"),
    [
        ({}, {}, "compensatable: taken back by back"),
        ({}, {}, "seen by support"),
        (BLIND, {}, "grade D: neither key nor look-up, so an unknown outcome stops at a person"),
        (BY_KEY, {}, "grade A: the provider knows a repeat by our key for 1 d; later, without a look-up, a person"),
        ({"lookup_lag_s": 90}, {}, "grade C: a look-up that lags by up to 1.5 min finds the outcome"),
        (NEVER, {}, 'its code says approval="never"'),
        (NEVER, {"bulk_above": 3}, "beyond 3 of effect thing in a run a person approves"),
        ({**NEVER, "correction": apology}, {}, "where its correction cannot be filled a person approves"),
        ({"audience": lambda arguments: ["support"]}, {}, "where that is legal or public a person approves"),
        ({}, {"tool_caps": Caps(count_per_run_max=3)}, "no more than tool.act.count_per_run_max = 3"),
        ({}, {"effect_caps": Caps(count_per_day_max=9)}, "no more than effect.thing.count_per_day_max = 9"),
        ({}, {"always_asks": True}, '[tool.act] approval = "always"'),
    ],
)
def test_reasons(declared: dict[str, Any], bounds: dict[str, Any], said: str) -> None:
    """Each reason names what it follows from: class, grade, audience, code or setting."""
    spec = declare(**declared)
    assert said in autonomy(spec, spec.contract, Bounds(**bounds)).reasons


@pytest.mark.parametrize(
    ("declared", "bounds", "missing"),
    [
        ({}, {}, ()),
        ({"amount": "amount_minor"}, {}, ("no bound on the amount: set [tool.act] approval_above_minor",)),
        ({"amount": "amount_minor"}, {"asks_above_minor": 0}, ()),
        ({"amount": "amount_minor"}, {"tool_caps": Caps(amount_per_day_max_minor=9)}, ()),
        ({"amount": "amount_minor"}, {"effect_caps": Caps(amount_per_run_max_minor=9)}, ()),
        ({"amount": "amount_minor"}, {"tool_caps": Caps(count_per_run_max=9)}, None),
        ({"amount": "amount_minor", "approval": "always"}, {}, ()),
        ({"once_per": None}, {}, ("no bound on the count: set [tool.act] count_per_run_max",)),
        ({"once_per": None}, {"effect_caps": Caps(count_per_day_max=9)}, ()),
        ({}, {"two_persons": True}, ('approval.two_person asks nobody: set [tool.act] approval = "always"',)),
        ({"counter": True, "amount": "amount_minor", "once_per": None}, {}, ()),
    ],
)
def test_missing_bounds(declared: dict[str, Any], bounds: dict[str, Any], missing: tuple[str, ...] | None) -> None:
    """A bound that nobody has stated is named with the setting that would; where a person looks at each call, none is."""
    spec = declare(**declared)
    found = autonomy(spec, spec.contract, Bounds(**bounds)).missing
    assert found == missing if missing is not None else found


@pytest.mark.parametrize(
    ("declared", "bounds", "level"), [row[1:] for row in LEVELS], ids=[row[0].replace(" ", "-") for row in LEVELS]
)
def test_the_door_agrees(declared: dict[str, Any], bounds: dict[str, Any], level: Level) -> None:
    """What the level says about approvals is what the door asks, for any audience, amount and correction of a call."""
    spec, stated = declare(**declared), Bounds(**bounds)
    rules = DoorRules(
        audiences_always=stated.audiences_always | AUDIENCES_APPROVED,
        approval_tools=frozenset({spec.name} if stated.always_asks else ()),
        approval_above_minor={} if stated.asks_above_minor is None else {spec.name: stated.asks_above_minor},
    )
    audiences = [["support"], ["public"], ["press"]] if callable(spec.audience) else [list(spec.audience)]
    amounts = [None] if spec.amount is None else [None, 0, 10**9]
    asked = {
        rules.needs_approval(spec, audience, amount, has_correction=has_correction)
        for audience in audiences
        for amount in amounts
        for has_correction in (True, False)
    }
    match level:
        case Level.FREE | Level.ALONE:
            assert asked == {False}
        case Level.PERSON | Level.TWO_PERSONS:
            assert asked == {True} or spec.takes_of  # a plan's steps are gated by their plan
        case Level.BOUNDED:
            is_bulk = spec.cls == "irreversible"
            assert asked == {True, False} or is_bulk or stated.tool_caps != NO_CAPS or stated.effect_caps != NO_CAPS
        case Level.ONCE:
            assert False in asked
        case _:
            assert_never(level)
