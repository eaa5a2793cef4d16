"""Decides what a tool may do without a person: computed from its contract and bounds, never declared.

Authority follows evidence: what can be found out and taken back, within stated bounds, may be done and retried alone; what
cannot goes to a person. Pure; the executor and the door enforce what is said here, and a test holds each level to it.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum
from typing import assert_never

from counterfoil.ledger.caps import NO_CAPS, Caps
from counterfoil.providers.contract import Contract, Grade, ToolClass
from counterfoil.providers.spec import AUDIENCES_APPROVED, ToolSpec


class Level(StrEnum):
    """How much a tool does without a person, most first."""

    FREE = "free"
    """Changes nothing: runs at once, leaves no row."""
    ALONE = "alone"
    """Acts and retries alone; an unknown outcome is found out."""
    BOUNDED = "bounded"
    """The same within bounds that are stated; beyond them a person, or nothing."""
    ONCE = "once"
    """Acts alone (within its bounds, if any), but an unknown outcome stops at a person and nothing is sent again."""
    PERSON = "person"
    """A person approves each call."""
    TWO_PERSONS = "two_persons"
    """Two persons approve each call."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Bounds:
    """What the installation demands of one tool; as `[tool.NAME]`, `[effect.NAME]` and `[approval]` have it."""

    always_asks: bool = False
    asks_above_minor: int | None = None
    """A call of a larger, or unknown, amount needs an approval."""
    two_persons: bool = False
    """Where it needs an approval, two persons give it."""
    audiences_always: frozenset[str] = AUDIENCES_APPROVED
    bulk_above: int = 1
    """Irreversible calls of one effect in one run beyond this many need an approval."""
    tool_caps: Caps = NO_CAPS
    effect_caps: Caps = NO_CAPS


@dataclass(frozen=True, slots=True)
class Autonomy:
    """A level and why, in short sentences."""

    level: Level
    reasons: tuple[str, ...]
    missing: tuple[str, ...]
    """Bounds that nobody has stated, each with the setting that would; also among the reasons."""


def autonomy(spec: ToolSpec, contract: Contract, bounds: Bounds, *, undoes: bool = False) -> Autonomy:
    """What the tool may do alone under this contract (the one in force) and these bounds. `undoes`: it is another's undo."""
    if spec.cls is ToolClass.PURE:
        return Autonomy(Level.FREE, ("pure: changes nothing",), ())
    about = (_class_reason(spec), grade_reason(contract), _audience_reason(spec))
    if spec.takes_of and undoes:
        level = Level.ONCE if contract.grade is Grade.D else Level.ALONE
        role = "counter-action: undoes a recorded call when its run is taken back, without a person"
        return Autonomy(level, (*about, role), ())
    asked = tuple(_asks_always(spec, bounds))
    if asked:
        level = Level.TWO_PERSONS if bounds.two_persons else Level.PERSON
        two = ("two persons approve: approval.two_person names it",) if bounds.two_persons else ()
        return Autonomy(level, (*about, *asked, *two), ())
    limits = (*_asks_beyond(spec, bounds), *_caps(spec, bounds))
    missing = tuple(_missing(spec, bounds, asks_beyond=any(_asks_beyond(spec, bounds))))
    if contract.grade is Grade.D:
        level = Level.ONCE
    else:
        level = Level.BOUNDED if limits else Level.ALONE
    never = ('its code says approval="never"',) if spec.approval == "never" else ()
    return Autonomy(level, (*about, *never, *limits, *missing), missing)


def _class_reason(spec: ToolSpec) -> str:
    """What becomes of the effect when it should not have been."""
    undo = "by arguments" if callable(spec.undo) else spec.undo
    match spec.cls:
        case ToolClass.IRREVERSIBLE:
            said = "" if spec.correction is None else "; a correction can be said afterwards, which a person decides"
            return f"irreversible: nothing takes it back{said}"
        case ToolClass.REVERSIBLE | ToolClass.COMPENSATABLE | ToolClass.PURE:
            return f"{spec.cls}: taken back by {undo}" if undo else str(spec.cls)
        case _:
            assert_never(spec.cls)


def grade_reason(contract: Contract) -> str:
    """What the contract's grade rests on, in a sentence."""
    match contract.grade:
        case Grade.A:
            beyond = "" if contract.lookup else "; later, without a look-up, a person"
            return (
                f"grade A: the provider knows a repeat by our key for {_time(contract.native_key_ttl_s or 0)}{beyond}"
            )
        case Grade.B:
            return "grade B: an exact look-up finds the outcome"
        case Grade.C:
            return f"grade C: a look-up that lags by up to {_time(contract.lookup_lag_s)} finds the outcome"
        case Grade.D if contract.lookup:
            return (
                "grade D: a look-up finds what was done, and proves nothing where it finds none: then a person decides"
            )
        case Grade.D:
            return "grade D: neither key nor look-up, so an unknown outcome stops at a person"
        case _:
            assert_never(contract.grade)


def _audience_reason(spec: ToolSpec) -> str:
    if callable(spec.audience):
        return "seen by whom its arguments say"
    return f"seen by {', '.join(spec.audience)}" if spec.audience else "seen by nobody it names"


def _asks_always(spec: ToolSpec, bounds: Bounds) -> Iterator[str]:
    """Why each call needs an approval."""
    if spec.takes_of:
        yield "about another call: runs as a step of a plan only, which a person approves"
    if spec.approval == "always":
        yield 'its code says approval="always"'
    elif spec.cls is ToolClass.IRREVERSIBLE and spec.approval != "never":
        yield 'irreversible, and its code does not say approval="never": a person approves'
    if bounds.always_asks:
        yield f'[tool.{spec.name}] approval = "always"'
    if not callable(spec.audience):
        seen_by = sorted(set(spec.audience) & (AUDIENCES_APPROVED | bounds.audiences_always))
        if seen_by:
            yield f"what {' or '.join(seen_by)} sees a person approves"
    if bounds.asks_above_minor is not None and spec.amount is None:
        yield f"[tool.{spec.name}] approval_above_minor: its amount is not known, so a person approves"


def _asks_beyond(spec: ToolSpec, bounds: Bounds) -> Iterator[str]:
    """Which calls need an approval, where not all do."""
    if callable(spec.audience):
        names = " or ".join(sorted(AUDIENCES_APPROVED | bounds.audiences_always))
        yield f"where that is {names} a person approves"
    if bounds.asks_above_minor is not None:
        yield f"above {bounds.asks_above_minor} minor units, or where the amount is unknown, a person approves"
    if spec.cls is ToolClass.IRREVERSIBLE:
        yield f"beyond {bounds.bulk_above} of effect {spec.effect} in a run a person approves"
        if spec.correction is not None:
            yield "where its correction cannot be filled a person approves"


def _caps(spec: ToolSpec, bounds: Bounds) -> Iterator[str]:
    for name, caps in ((f"tool.{spec.name}", bounds.tool_caps), (f"effect.{spec.effect}", bounds.effect_caps)):
        for setting in Caps.__dataclass_fields__:
            most = getattr(caps, setting)
            if most is not None:
                yield f"no more than {name}.{setting} = {most}"


def _missing(spec: ToolSpec, bounds: Bounds, *, asks_beyond: bool) -> Iterator[str]:
    caps = (bounds.tool_caps, bounds.effect_caps)
    has_amount_cap = any(c.amount_per_run_max_minor is not None or c.amount_per_day_max_minor is not None for c in caps)
    has_count_cap = any(c.count_per_run_max is not None or c.count_per_day_max is not None for c in caps)
    if spec.amount is not None and bounds.asks_above_minor is None and not has_amount_cap:
        yield f"no bound on the amount: set [tool.{spec.name}] approval_above_minor"
    repeats = spec.cls is ToolClass.COMPENSATABLE and spec.once_per is None
    if repeats and not has_count_cap:
        yield f"no bound on the count: set [tool.{spec.name}] count_per_run_max"
    if bounds.two_persons and not asks_beyond:
        yield f'approval.two_person asks nobody: set [tool.{spec.name}] approval = "always"'


def _time(seconds: float) -> str:
    size, unit = next((s, u) for s, u in ((86_400, "d"), (3600, "h"), (60, "min"), (1, "s")) if seconds >= s or s == 1)
    return f"{seconds / size:g} {unit}"
