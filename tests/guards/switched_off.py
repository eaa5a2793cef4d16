"""A pytest plugin that switches one guard of the protocol off, named by CF_GUARD_OFF. Used by `make guards` only."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import replace

import psycopg
import pytest

from counterfoil.ledger import claims, unwind_steps
from counterfoil.outbox import calling, plan_rules, recording, steps
from counterfoil.outbox.accounts import Accounts
from counterfoil.outbox.run_view import HandleView
from counterfoil.outbox.seen import Seen
from counterfoil.providers.pool import AdapterPool
from counterfoil.reconciler import verdict
from counterfoil.workers import executor, guards
from counterfoil.workers.executor import Executor
from counterfoil.workers.settle import Settler

Patch = Callable[[pytest.MonkeyPatch], None]


def _without(patch: pytest.MonkeyPatch, prefixes: tuple[str, ...], *conditions: str) -> None:
    """Takes conditions out of the worker's named queries; each must be there."""
    for name, query in list(claims._SQL.items()):
        if name.startswith(prefixes):
            text = query.psycopg
            for condition in conditions:
                assert condition in text, f"{name} has no {condition!r}: the guard's patch is out of date"
                text = text.replace(condition, "")
            patch.setitem(claims._SQL, name, replace(query, psycopg=text))


def _instead(patch: pytest.MonkeyPatch, name: str, condition: str, other: str) -> None:
    query = claims._SQL[name]
    assert condition in query.psycopg, f"{name} has no {condition!r}: the guard's patch is out of date"
    patch.setitem(claims._SQL, name, replace(query, psycopg=query.psycopg.replace(condition, other)))


def claim_condition(patch: pytest.MonkeyPatch) -> None:
    """The claim takes the row in whatever state it is."""
    _without(patch, ("claim_if_ready",), "AND a.state IN ('ready', 'retryable_failure')")


def paused(patch: pytest.MonkeyPatch) -> None:
    """The claim does not look whether its provider is paused."""
    condition = "(m.mode = 'paused' OR a.phase = 'do' AND NOT a.in_doubt AND a.attempt_count + a.not_sent_count = 0)"
    _instead(patch, "claim_if_ready", f"AND {condition}", "AND false")


def settle_token(patch: pytest.MonkeyPatch) -> None:
    """Whoever has an answer settles the row, whoever holds it."""
    _without(patch, ("settle_",), "AND fence = %(fence)s")


def send_fence(patch: pytest.MonkeyPatch) -> None:
    """The worker sends without looking at its lease."""
    patch.setattr(Executor, "_lease_is_enough", lambda *_: True)


def doubt(patch: pytest.MonkeyPatch) -> None:
    """An answer counts for the whole action, and the database lets it."""
    settle = Settler.settle
    patch.setattr(Settler, "settle", lambda self, action, *rest: settle(self, replace(action, in_doubt=False), *rest))
    _without(patch, ("settle_retryable", "settle_failed", "settle_not_sent"), "AND NOT in_doubt")


def absence_window(patch: pytest.MonkeyPatch) -> None:
    """An empty look-up counts at once."""
    patch.setattr(verdict, "window_opens_in_s", lambda *_: -1.0)


def ttl_at_send(patch: pytest.MonkeyPatch) -> None:
    """A resend is sent however old the key is."""
    patch.setattr(Executor, "_key_covers", lambda *_: True)


def approval_gate(_: pytest.MonkeyPatch) -> None:
    """The database lets a gated row be claimed under whatever approval it names."""


def approval_digest(patch: pytest.MonkeyPatch) -> None:
    """The worker sends what is gated without comparing it with its approval."""
    patch.setattr(guards, "_approval_mismatch", lambda *_: None)


def caps(patch: pytest.MonkeyPatch) -> None:
    """The worker sends without counting what it has sent before."""
    patch.setattr(executor, "over_limit", lambda *_: None)


def version(patch: pytest.MonkeyPatch) -> None:
    """The worker sends without reading what its call is about once more."""
    patch.setattr(executor, "is_versioned", lambda _: False)


def carried_on(patch: pytest.MonkeyPatch) -> None:
    """An unwind takes a staged step back beside the step that committed it, and the database lets it."""
    patch.setattr(unwind_steps, "_carried", lambda *_: None)


def key_in_flight(patch: pytest.MonkeyPatch) -> None:
    """A key is repeated while its first request may still be running."""
    patch.setattr(verdict, "_lands_in_s", lambda *_: None)


def account(patch: pytest.MonkeyPatch) -> None:
    """The worker takes whatever credentials a row names."""
    patch.setattr(Accounts, "allow", lambda *_: True)


def reach(patch: pytest.MonkeyPatch) -> None:
    """Nobody notices that an action's credentials or address are others than when it was sent."""
    patch.setattr(AdapterPool, "reach", lambda *_: "")


def untold_end(patch: pytest.MonkeyPatch) -> None:
    """Every end counts as told, whoever was told it."""
    patch.setattr(HandleView, "was_told", lambda _, action: action.settled)


def turn_memory(patch: pytest.MonkeyPatch) -> None:
    """An end counts as told for the other calls of the turn that told it."""
    patch.setattr(Seen, "before", lambda seen, _: seen)


def turn_wish(patch: pytest.MonkeyPatch) -> None:
    """A call's turn is not looked at."""
    wanted = calling._wanted
    patch.setattr(calling, "_wanted", lambda *given: replace(wanted(*given), turn="", ref=None))


def same_reference(patch: pytest.MonkeyPatch) -> None:
    """A reference that was seen before is not looked for."""
    patch.setattr(steps, "RULES", tuple(rule for rule in steps.RULES if rule is not steps._ref_is_known))


def part_done(patch: pytest.MonkeyPatch) -> None:
    """A plan that has ended may be proposed again, whatever of it was done."""
    patch.setattr(plan_rules, "_was_told_to_be_in_vain", lambda _, plan, __: plan.decision != "open")


def lost_time(patch: pytest.MonkeyPatch) -> None:
    """Nobody compares what a caller was told with what is on record."""
    patch.setattr(recording, "check_recorded", lambda *_: None)


GUARDS: dict[str, Patch] = {
    patch.__name__: patch
    for patch in (
        *(claim_condition, settle_token, send_fence, doubt, absence_window, ttl_at_send),
        *(approval_gate, approval_digest, caps, version, carried_on, key_in_flight, account, reach, paused),
        *(untold_end, turn_memory, turn_wish, same_reference, part_done, lost_time),
    )
}

DOUBT_IN_THE_DATABASE = """
DO $do$ BEGIN
  EXECUTE replace(pg_get_functiondef('counterfoil.arrows'::regproc), ', true)', ', false)');
  EXECUTE replace(pg_get_functiondef('counterfoil.action_guard'::regproc),
                  'OLD.in_doubt AND NOT NEW.in_doubt', 'false');
END $do$
"""

CARRIED_ON_IN_THE_DATABASE = """
CREATE OR REPLACE FUNCTION counterfoil.is_carried_on(p_parent counterfoil.action, p_child counterfoil.action)
RETURNS boolean LANGUAGE sql STABLE AS 'SELECT false'
"""

IN_THE_DATABASE = {
    "doubt": DOUBT_IN_THE_DATABASE,
    "carried_on": CARRIED_ON_IN_THE_DATABASE,
    "approval_gate": "ALTER TABLE counterfoil.action DISABLE TRIGGER approval_gate",
}


@pytest.fixture(autouse=True)
def _switched_off(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    name = os.environ["CF_GUARD_OFF"]
    GUARDS[name](monkeypatch)
    if name in IN_THE_DATABASE:
        database = request.getfixturevalue("database")
        with psycopg.connect(database.url("owner")) as connection:
            connection.execute(IN_THE_DATABASE[name].encode())
