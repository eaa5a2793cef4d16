"""The table of moves: complete, closed, and without a way to do something twice."""

from __future__ import annotations

import ast
import inspect

import pytest

from counterfoil.ledger import states
from counterfoil.ledger.states import ARROWS, CLAIMABLE, IN_DOUBT_REFUSED, NOTHING_DONE, SETTLED, UNSETTLED, State

MOVES = {(source, target) for source, targets in ARROWS.items() for target in targets}


def reachable(start: State, *, without: frozenset[State] = frozenset()) -> set[State]:
    """Every state that some chain of moves leads to from `start`, never passing through `without`."""
    found: set[State] = set()
    todo = {start}
    while todo:
        found |= todo
        todo = {target for state in todo for target in ARROWS[state]} - found - without
    return found - {start}


def test_every_state_has_moves_and_prose() -> None:
    """Each state has a row in the table and, right below its name, a sentence on who moves it on."""
    assert set(ARROWS) == set(State)
    body = next(node for node in ast.parse(inspect.getsource(states)).body if isinstance(node, ast.ClassDef)).body[1:]
    names = [
        node.targets[0].id for node in body if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name)
    ]
    prose = [
        node.value.value
        for node in body
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str)
    ]
    assert names == [state.name for state in State]
    assert len(prose) == len(names)
    assert [type(node) for node in body] == [ast.Assign, ast.Expr] * len(names)
    assert all(len(text) > 20 and text.endswith(".") for text in prose)


def test_names_are_the_values() -> None:
    """A state is written the same in Python, SQL, logs and docs."""
    assert all(state.value == state.name.lower() for state in State)


def test_no_state_moves_to_itself() -> None:
    """A move always changes the state."""
    assert all(source != target for source, target in MOVES)


def test_refusals_in_doubt_are_moves() -> None:
    """Doubt only takes moves away, and every state that doubt touches keeps a way to uncertain."""
    assert IN_DOUBT_REFUSED < MOVES
    assert all(State.UNCERTAIN in ARROWS[source] for source, _ in IN_DOUBT_REFUSED)
    assert all(target is not State.UNCERTAIN for _, target in IN_DOUBT_REFUSED)


def test_doubt_ends_only_by_evidence_or_a_person() -> None:
    """In doubt, a negative end is reached from a look-up or from a person's review, and from nothing else."""
    negative = SETTLED - {State.SUCCEEDED, State.COMPENSATED}
    may_be_in_doubt = {State.READY, State.EXECUTING, State.RETRYABLE_FAILURE, State.UNCERTAIN, State.RECONCILING}
    ends = {(source, target) for source, target in MOVES - IN_DOUBT_REFUSED if target in negative}
    assert {source for source, _ in ends if source in may_be_in_doubt} == {State.RECONCILING}


def test_uncertain_never_becomes_a_negative_or_ready_by_itself() -> None:
    """From uncertain a look-up, a late receipt or a person leads on; nothing fails it or sends it again unseen."""
    assert ARROWS[State.UNCERTAIN] == {State.RECONCILING, State.SUCCEEDED, State.OPERATOR_REVIEW}


def test_success_is_never_undone_by_itself() -> None:
    """From succeeded only a compensation leads on, and without a person no way leads back to a claimable state."""
    assert ARROWS[State.SUCCEEDED] == {State.COMPENSATED}
    assert reachable(State.SUCCEEDED, without=frozenset({State.OPERATOR_REVIEW})) == {State.COMPENSATED}
    assert CLAIMABLE.isdisjoint(ARROWS[State.OPERATOR_REVIEW])


@pytest.mark.parametrize("state", sorted(SETTLED))
def test_settled_states_need_a_person_to_move(state: State) -> None:
    """Without a person no settled row is claimed again."""
    assert reachable(state, without=frozenset({State.OPERATOR_REVIEW})) <= {State.COMPENSATED}


@pytest.mark.parametrize("state", sorted(UNSETTLED))
def test_every_unsettled_state_can_settle(state: State) -> None:
    """No state is a trap: some chain of moves settles every row."""
    assert reachable(state) & SETTLED


def test_executing_is_entered_only_by_a_claim() -> None:
    """Only a claimable row starts to execute, so no row is executed without a wake-up and a fresh fence."""
    assert {source for source, target in MOVES if target is State.EXECUTING} == CLAIMABLE


def test_the_sets_are_what_they_say() -> None:
    """Settled and unsettled split all states; what proves that nothing was done is never a success or in flight."""
    assert set(State) == SETTLED | UNSETTLED
    assert SETTLED.isdisjoint(UNSETTLED)
    assert CLAIMABLE < UNSETTLED
    assert {State.SUCCEEDED, State.COMPENSATED, State.EXECUTING, State.UNCERTAIN, State.RECONCILING}.isdisjoint(
        NOTHING_DONE
    )
