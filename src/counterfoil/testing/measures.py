"""Measures what a contract claims: how late a look-up sees an effect, and what a repeat of the key meets, when.

Each measurement is a function over a fresh `Stage`; it raises `Violation` where the claim is contradicted, and otherwise
says in a sentence what was seen.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

from counterfoil.providers.contract import Contract
from counterfoil.providers.outcomes import Found, Outcome, Rejected, Succeeded
from counterfoil.testing.matrix import silent
from counterfoil.testing.stage import WAIT_S, Stage, Violation, hold, lagging
from counterfoil.testing.subject import Subject

REPEATS = 3
EDGE_S = 5.0
"""So long before and after the end of a key's ttl it is repeated: real time passes, too."""
STEPS = 4
"""Looks at an effect before it must be visible."""
BEYOND_S = 0.05
"""An index that lags by 3 s shows the effect when more than 3 s have passed."""
TWIN_S = 30.0
"""How long the first request is under way on the sandbox's clock, while its twin arrives."""


def lag(stage: Stage, index_lag_s: float) -> float:
    """The age in seconds at which the effect was last not seen, with an index that lags by this; 0 = seen at once.

    The effect is looked up on its way there, at the end of the declared lag, and at the end of the index's.
    """
    lagging(stage.subject, stage.sandbox, index_lag_s)
    done, landed = _succeeded(stage.send(), "a call without a fault"), stage.sandbox.now()
    declared_s, unseen_s = stage.contract.lookup_lag_s, 0.0
    ages_s = {index_lag_s * step / STEPS for step in range(STEPS + 1)} | {min(declared_s, index_lag_s)}
    for age_s in sorted(age_s + (BEYOND_S if age_s else 0.0) for age_s in ages_s):
        stage.sandbox.advance(max(age_s - (stage.sandbox.now() - landed), 0.0))
        age_now_s = stage.sandbox.now() - landed
        finding = stage.lookup()
        if isinstance(finding, Found) and isinstance(finding.outcome, Succeeded):
            same = finding.outcome.id == done.id
            hold(same, "receipt", f"the call gave receipt {done.id!r}, and the look-up says {finding}")
            return unseen_s
        unseen_s = age_now_s
        hold(
            unseen_s <= declared_s + BEYOND_S if declared_s else False,
            "lag",
            f"{unseen_s:.2g} s after the effect the look-up says {finding}; declared: lookup_lag_s={declared_s:g}",
        )
    raise Violation("lag", f"the look-up never sees the effect, with an index that lags by {index_lag_s:g} s")


def repeated(stage: Stage) -> str:
    """The key repeated at once, and right before the end of its ttl: one effect, the same receipt each time."""
    ttl_s = _ttl_s(stage.contract)
    outcomes = [stage.send() for _ in range(REPEATS)]
    stage.sandbox.advance(max(ttl_s - EDGE_S, ttl_s / 2))
    outcomes.append(stage.send())
    have = stage.effects()
    hold(have == 1, "key", f"{len(outcomes)} sends under one key within {ttl_s:g} s are {have} effects")
    receipts = {outcome.id if isinstance(outcome, Succeeded) else repr(outcome) for outcome in outcomes}
    hold(len(receipts) == 1, "key", f"a repeat of the key gives another answer: {', '.join(sorted(receipts))}")
    _succeeded(outcomes[0], "a call without a fault")
    return f"{len(outcomes)} sends under one key within {_time(ttl_s)}: 1 effect, the same receipt each time"


def forgotten(stage: Stage) -> str:
    """What a repeat meets when the key's ttl is over; either answer is allowed, and nothing is resent then."""
    ttl_s = _ttl_s(stage.contract)
    stage.send()
    stage.sandbox.advance(ttl_s + EDGE_S)
    silent(stage, stage.send(), "a repeat after the key's end")
    have = stage.effects()
    hold(have >= 1, "effects", "the first effect is gone")
    return f"a repeat after {_time(ttl_s)}: {have} effect{'s' if have > 1 else ''}" + (
        "" if have > 1 else ", so the key lives longer, or the move is no longer offered"
    )


def in_flight(stage: Stage) -> str:
    """A twin that arrives while the first request is under way: no second effect, and no refusal for good."""
    twin = stage.twin()
    stage.fault("slow", delay_s=TWIN_S)
    with ThreadPoolExecutor(1) as pool:
        first = pool.submit(stage.send)
        deadline = time.monotonic() + WAIT_S
        ended = False
        while not stage.attempts():  # asked once more after its end
            hold(time.monotonic() < deadline and not ended, "in_flight", "the first request never arrived")
            ended = first.done()
        outcome = twin.send()
        silent(stage, outcome, "a twin of a request under way")
        definite = isinstance(outcome, Rejected) and not outcome.retryable
        stage.sandbox.advance(TWIN_S)
    hold(not definite, "in_flight", f"the first request is under way, and its twin is {outcome}")
    first.result()
    have = stage.wait_for_effects(1)
    hold(have == 1, "key", f"a request and its twin that meets it under way are {have} effects")
    return f"a twin of a request under way: {type(outcome).__name__}, 1 effect"


def other_arguments(stage: Stage) -> str:
    """The same key with other arguments: no second effect, and no refusal, since the first one exists."""
    _succeeded(stage.send(), "a call without a fault")
    outcome = stage.changed(stage.subject.other).send()
    silent(stage, outcome, "the key with other arguments")
    have = stage.effects()
    hold(have == 1, "key", f"one key with two sets of arguments is {have} effects")
    refused = isinstance(outcome, Rejected) and not outcome.retryable
    hold(not refused, "mismatch", f"the key has an effect, and a call with other arguments is {outcome}")
    return f"the key with other arguments: {type(outcome).__name__}, 1 effect"


def unique(stage: Stage) -> str:
    """A second send under the key, however late: never a second effect."""
    done = _succeeded(stage.send(), "a call without a fault")
    stage.sandbox.advance(_ttl_s(stage.contract) + EDGE_S)
    outcome = stage.send()
    silent(stage, outcome, "a second send under the key")
    have = stage.effects()
    hold(have == 1, "unique", f"declared unique, and two sends under one key are {have} effects")
    refused = isinstance(outcome, Rejected) and not outcome.retryable
    hold(not refused, "unique", f"the effect exists, and a second send is {outcome}")
    other = isinstance(outcome, Succeeded) and outcome.id != done.id
    hold(not other, "unique", "a second send under the key gives another receipt")
    return f"a second send under the key: {type(outcome).__name__}, 1 effect"


def lags(stage_of: Callable[[], Stage], subject: Subject) -> str:
    """The look-up's own lag over every index lag to be tried, the declared one among them."""
    tried = sorted({*subject.lags_s, subject.contract.lookup_lag_s})
    unseen_s = max(lag(stage_of(), index_lag_s) for index_lag_s in tried)
    indexes = ", ".join(f"{lag_s:g}" for lag_s in tried)
    seen = f"last not seen {unseen_s:.3g} s after the effect" if unseen_s else "the effect is seen at once"
    return f"look-up with an index that lags by {indexes} s: {seen}"


@dataclass(frozen=True)
class Measurement:
    """One measurement; `needed` says whether the contract, or the subject, claims what it measures."""

    name: str
    measure: Callable[[Stage], str]
    needed: Callable[[Subject], bool]


def _has_key(subject: Subject) -> bool:
    return subject.contract.native_key_ttl_s is not None


MEASUREMENTS = (
    Measurement("repeated", repeated, _has_key),
    Measurement("forgotten", forgotten, _has_key),
    Measurement("in_flight", in_flight, lambda s: _has_key(s) and s.contract.native_key_concurrent),
    Measurement("other_arguments", other_arguments, lambda s: _has_key(s) and bool(s.other)),
    Measurement("unique", unique, lambda s: s.contract.unique),
)
"""Those of the key; the look-up's is `lags`."""


def _ttl_s(contract: Contract) -> float:
    return contract.native_key_ttl_s or 0.0


def _succeeded(outcome: Outcome, when: str) -> Succeeded:
    hold(isinstance(outcome, Succeeded), "plain", f"{when} is {outcome}")
    assert isinstance(outcome, Succeeded)
    return outcome


def _time(seconds: float) -> str:
    size, unit = next((s, u) for s, u in ((86_400, "d"), (3600, "h"), (60, "min"), (1, "s")) if seconds >= s or s == 1)
    return f"{seconds / size:g} {unit}"
