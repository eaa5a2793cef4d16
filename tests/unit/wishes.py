"""What the two models of an agent's memory share: a small ledger, the real step rules, and a search through every state.

A wish is a letter; two wishes of one letter are the same call (tool and target), in other words each time. A small letter
waits for a person (`awaiting_approval`) and holds nothing back; a capital is `ready` until it is settled.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator
from functools import cache
from typing import NamedTuple, TypeVar

from counterfoil.ledger.states import State
from counterfoil.outbox.run_view import ActionView, HandleView, RunView, Take, WantedCall
from counterfoil.outbox.seen import NOTHING, told
from counterfoil.outbox.steps import Attach, Blocked, Decision, ReadUnseen, Record, decide
from counterfoil.providers.contract import ToolClass

S = TypeVar("S", bound=Hashable)


class Action(NamedTuple):
    """One recorded action: settled `ends` times, 0 = not yet."""

    kind: str
    words: str
    ends: int = 0
    failed: bool = False

    @property
    def state(self) -> State:
        if self.ends:
            return State.PERMANENT_FAILURE if self.failed else State.SUCCEEDED
        return State.AWAITING_APPROVAL if self.kind.islower() else State.READY


class Violation(Exception):
    """The rules have done a wish twice, or told one the end of another."""


Told = frozenset[tuple[int, int, str]]
"""Ends: (action, how often it had been settled, the turn that told it)."""


@cache
def answer(
    actions: tuple[Action, ...],
    kind: str,
    *,
    seen: Told,
    words: str,
    takes: tuple[Take, ...] = (),
    turn: str = "",
    ref: str | None = None,
) -> Decision:
    """What the step rules make of the call."""
    view = RunView(
        state="open",
        calls_count=1,
        takes=takes,
        actions=tuple(
            ActionView(
                action_id=str(number),
                step=str(number + 1),
                seq=number + 1,
                revision=1,
                tool=action.kind,
                effect=action.kind,
                target="o1",
                state=action.state,
                arguments_sha256=action.words,
                ends_count=action.ends,
            )
            for number, action in enumerate(actions)
        ),
    )
    call = WantedCall(
        tool=kind,
        effect=kind,
        target="o1",
        cls=ToolClass.REVERSIBLE,
        arguments_sha256=words,
        ref=ref,
        turn=turn,
    )
    had = NOTHING
    for number, count, told_in in seen:
        had = had.joined(told([(str(number), count)], told_in))
    return decide(view, call, HandleView(told=had.before(turn)))


def met(
    decision: Decision, actions: tuple[Action, ...], new: Action, turn: str = ""
) -> tuple[tuple[Action, ...], int | None, Told]:
    """What a decision comes to: the actions then, the one that the call means, and the ends that the answer tells."""
    match decision:
        case Record():
            return (*actions, new), len(actions), frozenset()
        case Attach(action_id):
            ends = actions[int(action_id)].ends
            return actions, int(action_id), frozenset({(int(action_id), ends, turn)} if ends else ())
        case ReadUnseen(action_ids):
            return actions, None, frozenset((int(number), actions[int(number)].ends, turn) for number in action_ids)
        case Blocked():
            return actions, None, frozenset()
        case _:
            raise AssertionError(decision)


def explore(start: S, steps: Callable[[S], Iterator[tuple[str, S]]], is_good: Callable[[S], bool]) -> tuple[int, str]:
    """Goes through every state: (their number, the first violation and the steps to it, or "").

    A state from which no good one can be reached is a violation, too: a wish was swallowed.
    """
    came: dict[S, tuple[S, str] | None] = {start: None}
    before: dict[S, list[S]] = {}
    todo = [start]
    while todo:
        state = todo.pop()
        try:
            for name, following in steps(state):
                before.setdefault(following, []).append(state)
                if following not in came:
                    came[following] = state, name
                    todo.append(following)
        except Violation as violation:
            return len(came), f"{violation} after {_path(came, state)}"
    good = {state for state in came if is_good(state)}
    todo = list(good)
    while todo:
        for state in before.get(todo.pop(), ()):
            if state not in good:
                good.add(state)
                todo.append(state)
    stuck = next((state for state in came if state not in good), None)
    return len(came), "" if stuck is None else f"a wish is swallowed after {_path(came, stuck)}"


def _path(came: dict[S, tuple[S, str] | None], state: S) -> str:
    names: list[str] = []
    step = came[state]
    while step is not None:
        names.append(step[1])
        step = came[step[0]]
    return ", ".join(reversed(names))
