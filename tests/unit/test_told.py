"""The step rules against every death, lost answer and changed end of an agent that calls in order: what counts as told.

The agent works through a script of wishes. It is answered, writes its transcript down or not, dies and goes on from what it
had written down, or loses an answer without dying (a thread that a framework's time limit has abandoned). An end may change
after it was told: what failed is found after all.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import pytest
from tests.unit.wishes import Action, Told, Violation, answer, explore, met

from counterfoil.outbox.run_view import Take

SCRIPTS = ("X", "XX", "yX", "yXX", "Xy", "yy", "XyX", "yXy", "XY", "XYX")


class Mind(NamedTuple):
    """A transcript: for each wish None, "open" (answered, no end), or the action whose end it was told; and the token."""

    wishes: tuple[object, ...]
    token: Told = frozenset()
    refs: int = 0
    """Its references so far: a call after an answer that told another wish's end is another call."""


class State(NamedTuple):
    actions: tuple[Action, ...]
    mind: Mind
    written: Mind
    had: Told = frozenset()
    """Of the handle: ends that count as told although no token says so."""
    handed: Told = frozenset()
    """Handed out by the last answer; had when the next call arrives."""
    crashes: int = 0
    losses: int = 0
    changes: int = 0
    takes: tuple[Take, ...] = ()
    called: frozenset[int] = frozenset()


class Agent(NamedTuple):
    """How it works: whether the token goes with each call, and whether a repeat has the first call's reference."""

    script: str
    explicit: bool
    refs: bool
    counts_recordings: bool = False
    """The rule that was wrong: whatever has a place in the run counts as told."""

    def good(self, state: State) -> bool:
        """Each wish done and told. (What changes after the last call is told by the run's next one, if there is any.)"""
        return len(state.actions) == len(self.script) and all(isinstance(wish, int) for wish in state.mind.wishes)

    def steps(self, state: State) -> Iterator[tuple[str, State]]:
        yield from _world(state)
        if state.written != state.mind:
            yield "write", state._replace(written=state.mind)
        if state.crashes:
            fresh = state._replace(mind=state.written, had=state.written.token, handed=frozenset())
            yield "crash", fresh._replace(crashes=state.crashes - 1)
        for wish in self._next(state.mind):
            yield from self._call(state, wish)

    def _next(self, mind: Mind) -> Iterator[int]:
        """The first wish without an end; behind one that waits for a person also the next, if it is another call."""
        for wish, kind in enumerate(self.script):
            if isinstance(mind.wishes[wish], int):
                continue
            if kind not in [self.script[w] for w in range(wish) if not isinstance(mind.wishes[w], int)]:
                yield wish
            if kind.isupper() or mind.wishes[wish] is None:
                return

    def _call(self, state: State, wish: int) -> Iterator[tuple[str, State]]:
        kind, ref = self.script[wish], f"call {wish}.{state.mind.refs}" if self.refs else None
        had = state.mind.token if self.explicit else state.had | state.handed
        words = f"{wish}" if self.refs else "other words"
        decision = answer(state.actions, kind, seen=had, words=words, takes=state.takes, ref=ref)
        actions, action, ends = met(decision, state.actions, Action(kind, words))
        called = state.called | {wish}
        if sum(a.kind == kind for a in actions) > sum(self.script[w] == kind for w in called):
            raise Violation(f"call for wish {wish}: one {kind} more than was wished")
        takes = state.takes
        if (
            ref is not None
            and action is not None
            and not any(t.ref == ref and t.action_id == str(action) for t in takes)
        ):
            takes = (*takes, Take(ref=ref, action_id=str(action), arguments_sha256=words))
        new = state._replace(actions=actions, called=called, had=had, handed=ends, takes=takes)
        if self.explicit:
            new = new._replace(had=frozenset(), handed=frozenset())
        yield f"call {wish}", new._replace(mind=self._told(state.mind, actions, action, wish, ends, had))
        if state.losses:
            yield f"call {wish}, answer lost", new._replace(losses=state.losses - 1)

    def _told(
        self, mind: Mind, actions: tuple[Action, ...], action: int | None, wish: int, ends: Told, had: Told
    ) -> Mind:
        wishes = list(mind.wishes)
        for number, _, _ in sorted(ends):
            if number in wishes:
                continue  # an end that it knows, or that has changed
            kind = actions[number].kind
            mine = [w for w in range(len(wishes)) if self.script[w] == kind and not isinstance(wishes[w], int)]
            if mine and self.script[: mine[0]].count(kind) != sum(a.kind == kind for a in actions[:number]):
                raise Violation(f"wish {mine[0]} is told the end of action {number}")
            if mine:
                wishes[mine[0]] = number
        if action is not None and not ends and wishes[wish] is None:
            wishes[wish] = "open"
        token = had | ends
        if self.counts_recordings:
            token |= {(n, a.ends or 1, "") for n, a in enumerate(actions) if action is not None and n <= action}
        is_others = bool(ends) and not isinstance(wishes[wish], int)
        return Mind(tuple(wishes), token, mind.refs + is_others)


def _world(state: State) -> Iterator[tuple[str, State]]:
    """Workers settle; what failed may be found after all, while the agent still has something to ask."""
    for number, action in enumerate(state.actions):
        before, after = state.actions[:number], state.actions[number + 1 :]
        if not action.ends:
            yield f"settle {number}", state._replace(actions=(*before, action._replace(ends=1), *after))
            if state.changes:
                failed = action._replace(ends=1, failed=True)
                yield f"fail {number}", state._replace(actions=(*before, failed, *after))
        elif action.failed and state.changes and not all(isinstance(wish, int) for wish in state.mind.wishes):
            found = state._replace(actions=(*before, action._replace(ends=2, failed=False), *after))
            yield f"{number} is found after all", found._replace(changes=state.changes - 1)


def explored(agent: Agent, *, crashes: int = 0, losses: int = 0, changes: int = 0) -> tuple[int, str]:
    empty = Mind((None,) * len(agent.script))
    start = State((), empty, empty, crashes=crashes, losses=losses, changes=changes)
    return explore(start, agent.steps, agent.good)


@pytest.mark.parametrize("script", SCRIPTS)
@pytest.mark.parametrize("refs", [False, True], ids=["reworded", "under its reference"])
def test_a_token_with_each_call_survives_deaths_lost_answers_and_changed_ends(script: str, refs: bool) -> None:
    """Every wish is done once, told its own end, and told again when that end changes; no script gets stuck."""
    for crashes, losses, changes in ((2, 0, 0), (1, 1, 0), (0, 2, 0), (1, 0, 1), (0, 1, 1)):
        states, violation = explored(Agent(script, True, refs), crashes=crashes, losses=losses, changes=changes)
        assert not violation
        assert states > 10


@pytest.mark.parametrize("script", SCRIPTS)
def test_a_handle_that_is_told_nothing_survives_deaths(script: str) -> None:
    """Without a token an end counts at the handle's next call: enough while no answer is lost."""
    for crashes, changes in ((2, 0), (1, 1)):
        assert not explored(Agent(script, False, False), crashes=crashes, changes=changes)[1]


def test_a_handle_that_is_told_nothing_does_not_survive_a_lost_answer() -> None:
    """Which is why docs say what a caller in threads must do."""
    assert "one X more than was wished" in explored(Agent("X", False, False), losses=1)[1]


@pytest.mark.parametrize("script", SCRIPTS)
def test_counting_recordings_doubles(script: str) -> None:
    """The first rule, `seen` as the highest place in the run: this search finds its fault in every script."""
    assert explored(Agent(script, True, False, counts_recordings=True), crashes=1)[1]
