"""An agent as an episode plays it: a model's loop with a transcript that may be kept, cut or lost, over one run.

It behaves as docs/references.md asks: a token beside each answer; a new turn for each response; in turns, calls in the order
of the response unless their words are the same as ever; without turns one call in a response.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import count
from typing import Any

from tests.acceptance.episode_shop import Wish
from tests.acceptance.test_handle_model import LINES, Deaths, Died

from counterfoil import Counterfoil, NextStep, Result, Run, Status

ENDS = {Status.SUCCEEDED, Status.FAILED, Status.CANCELLED, Status.STALE}


class Violation(AssertionError):
    """A wish done twice, swallowed, or told another one's end as its own."""


@dataclass(frozen=True, slots=True)
class Style:
    """How this agent is built."""

    turns: bool
    explicit: bool
    """Tokens go with each call; else they open the run, and no answer is lost on its way."""
    same_words: bool
    threads: bool
    refs: str
    """Without turns: none, call_0 (repeats), or unique."""
    refs_unique: bool
    child: bool

    @staticmethod
    def any(rng: random.Random) -> Style:
        turns, same = rng.random() < 0.5, rng.random() < 0.4
        refs = rng.choice(["none", "call_0", "unique"])
        return Style(
            turns=turns,
            explicit=turns or rng.random() < 0.6,
            same_words=same,
            threads=turns and same and rng.random() < 0.5,
            refs=refs,
            refs_unique=refs == "unique" and rng.random() < 0.5,
            child=rng.random() < 0.15,
        )


@dataclass(frozen=True, slots=True)
class Asked:
    """One call of a response."""

    wish: Wish
    words: str
    names: dict[str, Any]


@dataclass
class Entry:
    """An answer in the transcript: what it told, and its token."""

    told: tuple[tuple[str, str, str], ...]
    """(wish, action, status) of each end, by the words that really ran."""
    seen: str


@dataclass
class Agent:
    cf: Counterfoil
    run: str
    plan: list[Wish]
    style: Style
    rng: random.Random
    deaths: Deaths
    story: list[str] = field(default_factory=list)
    transcript: list[Entry] = field(default_factory=list)
    numbers: Iterator[int] = field(default_factory=count)
    answers: list[tuple[int, Result]] = field(default_factory=list)
    """Every answer that was handed out, for the oracle: (wish, answer)."""

    def __post_init__(self) -> None:
        self.handle = self.opened()

    def opened(self) -> Run:
        """As a process that starts: with the tokens of its transcript, unless each call says them."""
        seen = () if self.style.explicit else self.tokens
        if not self.style.child:
            return self.cf.run(self.run, tenant="acme", actor="bot", seen=seen, refs_unique=self.style.refs_unique)
        parent, _, name = self.run.rpartition("/")
        above = self.cf.run(parent, tenant="acme", actor="bot", refs_unique=self.style.refs_unique)
        return above.child(name, seen=seen)

    @property
    def tokens(self) -> list[str]:
        return [entry.seen for entry in self.transcript]

    @property
    def known(self) -> dict[str, str]:
        """For each wish that the transcript holds an end of, the status."""
        return {wish: status for entry in self.transcript for wish, _, status in entry.told}

    @property
    def open(self) -> list[Wish]:
        known = self.known
        return [wish for wish in self.plan if self.name(wish) not in known and not self._is_taken(wish)]

    def _is_taken(self, wish: Wish) -> bool:
        """What may happen once for an order is one wish, however often it stands in the plan."""
        known = self.known
        return wish.once and any(
            other.once and other.target == wish.target and known.get(self.name(other)) == Status.SUCCEEDED
            for other in self.plan
        )

    def name(self, wish: Wish) -> str:
        return f"{self.run}/{wish.number}{'!' if wish.refused else ''}"

    def respond(self) -> None:
        """One response of the model, with all of its calls."""
        wishes = self.open[: self.rng.randint(1, 3) if self.style.turns else 1]
        turn = f"turn-{next(self.numbers)}"
        calls = [self._asked(wish, turn, place) for place, wish in enumerate(wishes)]
        if self.style.threads:
            with ThreadPoolExecutor(len(calls) or 1) as pool:
                work = [pool.submit(self._call, call) for call in calls]
            answers = [future.result() for future in work]
            for call, answer in zip(calls, answers, strict=True):
                self._receive(call, answer)
        else:
            answers = []
            for call in calls:  # the tokens of its first answers go with its later calls
                answers.append(self._call(call))
                self._receive(call, answers[-1])
        self._are_two_wishes(calls, answers)

    def _asked(self, wish: Wish, turn: str, place: int) -> Asked:
        same = self.style.same_words or wish.label  # a label comes from code, and so do its arguments
        words = self.name(wish) + ("" if same else f"~{next(self.numbers)}")
        names: dict[str, Any] = {"step": f"wish {wish.number}" if wish.label else None}
        if self.style.turns:
            names |= {"turn": turn, "ref": f"call_{place}"}
        else:
            names |= {"ref": {"none": None, "call_0": "call_0", "unique": turn}[self.style.refs]}
        return Asked(wish, words, names)

    def _call(self, asked: Asked) -> Result:
        """The answer, as it arrives; one that is lost on its way may be asked for again under the same reference."""
        result = self._answered(asked)
        if not self.style.explicit or self.rng.random() > 0.12:
            return result
        self.story[-1] += " LOST"
        if asked.names["ref"] is None or self.rng.random() < 0.5:
            return Result(status=Status.PENDING)
        again = self._answered(asked)
        if again.action_id != result.action_id and Status.BLOCKED not in (result.status, again.status):
            raise Violation(f"{asked.names['ref']} again is another action: {again.action_id}")
        return again

    def _answered(self, asked: Asked) -> Result:
        wish, seen = asked.wish, {"seen": self.tokens} if self.style.explicit else {}
        result = self.handle.call(
            wish.tool, {"order": wish.target, "words": asked.words}, wait_s=0, **asked.names, **seen
        )
        self.story.append(
            f"{wish.tool} {wish.target} {asked.words} {asked.names.get('turn', '')}:{asked.names['ref']} -> "
            f"{result.status} {result.next_step} {result.action_id} replayed {result.replayed} ran {result.arguments}"
        )
        return result

    def _receive(self, asked: Asked, result: Result) -> None:
        """The answer reaches the model, and is written down; a node that runs from its top may make the call once more."""
        if result.seen is None:
            return  # lost on its way
        wish, told = asked.wish, []
        self.answers.append((wish.number, result))
        for answer in (result, *(result.unseen or ())):
            if answer.status in ENDS:
                ran = str(answer.arguments["words"]) if answer.arguments else asked.words
                told.append((ran.partition("~")[0], str(answer.action_id), answer.status.value))
                if answer is result and not result.replayed and told[-1][0] != self.name(wish):
                    raise Violation(f"{self.name(wish)} is told the end of {told[-1][0]} as its own")
        if result.next_step is NextStep.READ_UNSEEN and not told:
            raise Violation("read_unseen without an end")
        self.transcript.append(Entry(tuple(told), result.seen))
        if told and result.status in ENDS and asked.names["ref"] and self.rng.random() < 0.2:
            again = self._answered(asked)
            if again.action_id != result.action_id:
                raise Violation(f"the same call under {asked.names['ref']} is another action: {again.action_id}")

    def _are_two_wishes(self, calls: list[Asked], answers: list[Result]) -> None:
        """Of one response, no two calls in different words are told one action that one of them has begun."""
        begun: dict[str, Asked] = {}
        for call, answer in zip(calls, answers, strict=True):
            if answer.action_id and answer.status is not Status.BLOCKED and not answer.replayed:
                begun[answer.action_id] = call
        for call, answer in zip(calls, answers, strict=True):
            other = begun.get(answer.action_id or "")
            if (
                other is not None
                and answer.status is not Status.BLOCKED
                and other.words != call.words
                and not call.wish.once
            ):
                raise Violation(f"{self.name(call.wish)} is merged with {self.name(other.wish)}")

    def dies(self, *, line: str = "") -> None:
        """The process ends, within a call or between two; what is left of its transcript is what the next one knows."""
        if line and self.open:
            self.deaths.at = line
            with suppress(Died):
                self.respond()
            self.deaths.at = ""
        kept = self.rng.choice(["all", "all", "cut", "lost"])
        if kept == "lost":
            self.transcript = []
        elif kept == "cut":
            del self.transcript[self.rng.randint(0, len(self.transcript)) :]
        self.story.append(f"dies {line or 'between calls'}, transcript {kept}: {len(self.transcript)} answers")
        self.handle = self.opened()


def any_plan(rng: random.Random, style: Style) -> list[Wish]:
    """A few wishes, mostly the same calls again; labels only where code calls in order."""
    made = []
    for number in range(rng.randint(2, 6)):
        name = rng.choice(["refund", "refund", "refund", "tag", "tag", "fee", "mail"])
        target = f"mail-{number}" if name == "mail" else rng.choice("112")
        label = not style.turns and name == "refund" and rng.random() < 0.2
        made.append(Wish(number, name, target, label, refused=name in ("refund", "tag") and rng.random() < 0.15))
    return made


__all__ = ["LINES", "Agent", "Deaths", "Died", "Style", "Violation", "any_plan"]
