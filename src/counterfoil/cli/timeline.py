"""Decides how a run looks over time: a line a step, bars for what it was in, ticks for attempts, look-ups and lost leases.

Pure: rows in, lines out. Time runs to scale, but every tick keeps a column of its own while there are enough of them, and
an idle gap that would fill the picture is drawn short and named.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from itertools import pairwise
from typing import Any

from counterfoil.cli.output import clean, stamp
from counterfoil.ledger.states import SETTLED, State

Row = Mapping[str, Any]

STEPS_MAX = 60
"""Lines of one picture; the rest is counted."""
LABEL_MAX = 26
BAR_MIN = 20
GAP_MIN_S = 30.0
GAPS_MAX = 5
GAP_COLUMNS = 8
LABELS_MAX = 6
"""Times written over the picture."""


@dataclass(frozen=True, slots=True)
class Mark:
    """One sign: for a person's terminal, for plain text, its colour there, and what the legend says."""

    sign: str
    plain: str
    style: str
    means: str


BARS: Mapping[State, Mark] = {
    State.PROPOSED: Mark("‥", ",", "bright_black", "proposed"),
    State.AWAITING_APPROVAL: Mark("◦", "o", "magenta", "awaits approval"),
    State.READY: Mark("·", ".", "cyan", "ready"),
    State.RETRYABLE_FAILURE: Mark("┄", ":", "yellow", "refused for now"),
    State.EXECUTING: Mark("█", "#", "blue", "executing"),
    State.UNCERTAIN: Mark("▒", "%", "yellow", "uncertain"),
    State.RECONCILING: Mark("▓", "&", "cyan", "being looked up"),
    State.OPERATOR_REVIEW: Mark("◆", "@", "red", "waits for an operator"),
}
"""What a step was in, from move to move."""

ENDS: Mapping[State, Mark] = {
    State.SUCCEEDED: Mark("✓", "S", "green", "succeeded"),
    State.PERMANENT_FAILURE: Mark("✗", "F", "red", "failed"),
    State.NOT_EXECUTED: Mark("∅", "N", "yellow", "not executed"),
    State.CANCELLED: Mark("○", "C", "bright_black", "cancelled"),
    State.STALE: Mark("⌀", "T", "bright_black", "stale"),
    State.COMPENSATED: Mark("↶", "U", "magenta", "taken back"),
}
"""Where a step was settled."""

ATTEMPT = Mark("1", "1", "bold", "attempt")
LOOK_UP = Mark("?", "?", "bold cyan", "look-up")
LAPSE = Mark("!", "!", "bold red", "lease ended: a worker died")
GAP = Mark("≈", "~", "bright_black", "not to scale")

_LEGEND = (*BARS.values(), ATTEMPT, LOOK_UP, LAPSE, *ENDS.values(), GAP)

_URGENCY = (
    State.OPERATOR_REVIEW,
    State.UNCERTAIN,
    State.RECONCILING,
    State.EXECUTING,
    State.RETRYABLE_FAILURE,
    State.AWAITING_APPROVAL,
    State.PROPOSED,
    State.READY,
)
"""Which state a column shows that several fall into."""


@dataclass(slots=True)
class Line:
    """Columns of signs with their marks; the text of `plain` or of a terminal is made from it at the end."""

    label: str
    cells: list[Mark | None]
    state: str = ""


@dataclass(frozen=True, slots=True)
class Drawing:
    """What is printed: runs of text, each with a style of rich's or none."""

    lines: list[list[tuple[str, str]]] = field(default_factory=list)

    def text(self) -> str:
        return "\n".join("".join(part for part, _ in line).rstrip() for line in self.lines)


def draw(
    run: Row, actions: Sequence[Row], moves: Sequence[Row], attempts: Sequence[Row], *, width: int, plain: bool
) -> Drawing:
    """The run's picture, at most `width` columns wide; empty for a run without actions.

    `run` is a row of `runs_named`, the others are those of its actions, each in the order of time.
    """
    steps = [_Step(action, moves, attempts) for action in actions[:STEPS_MAX]]
    if not steps:
        return Drawing()
    do, undo, correct = ([step for step in steps if step.phase == phase] for phase in ("do", "undo", "correct"))
    label = min(max(len(step.label) for step in steps), LABEL_MAX, width // 4)
    state = max(len(step.state) for step in steps)
    columns = max(width - label - state - 4, BAR_MIN)
    axis = Axis.over(_times(steps, run), columns)
    pen = _Pen(plain=plain, label=label, state=state)
    pen.axis(axis, stamp(axis.times[0]))
    for step in do:
        pen.step(step, axis)
    if undo:
        pen.rule(f"taken back: {clean(run['unwind_reason'])}" if run["unwind_reason"] else "taken back", columns)
    for step in undo:
        pen.step(step, axis)
    if correct:
        pen.rule("told afterwards", columns)
    for step in correct:
        pen.step(step, axis)
    if len(actions) > STEPS_MAX:
        pen.lines.append([(f"and {len(actions) - STEPS_MAX} more steps, in the table below", "")])
    pen.legend(width)
    return Drawing(pen.lines)


class _Step:
    """One action's spans and ticks."""

    def __init__(self, action: Row, moves: Sequence[Row], attempts: Sequence[Row]) -> None:
        mine = [move for move in moves if move["action_id"] == action["action_id"]]
        self.phase: str = action["phase"]
        self.state: str = action["state"]
        again = f" r{action['revision']}" if action["revision"] > 1 else ""
        self.label = f"{clean(action['step'])}{again} {clean(action['tool'])}"
        self.moves = [(move["at"], State(move["to_state"])) for move in mine]
        if not self.moves:
            self.moves = [(action["created_at"], State(action["state"]))]
        self.lapses: list[datetime] = [move["at"] for move in mine if move["reason"] == "lease lapsed"]
        self.attempts = [
            (row["started_at"], row["number"]) for row in attempts if row["action_id"] == action["action_id"]
        ]

    def spans(self, end: datetime) -> Iterator[tuple[datetime, datetime, State]]:
        ends = [at for at, _ in self.moves[1:]] + [end]
        for (at, state), until in zip(self.moves, ends, strict=True):
            if state in BARS:
                yield at, until, state

    def ticks(self) -> Iterator[tuple[datetime, Mark]]:
        """What is drawn over the bar, the more telling the later: look-ups, attempts, lost leases, ends."""
        yield from ((at, LOOK_UP) for at, state in self.moves if state is State.RECONCILING)
        for at, number in self.attempts:
            sign = str(number) if number < 10 else "+"
            yield at, Mark(sign, sign, ATTEMPT.style, ATTEMPT.means)
        yield from ((at, LAPSE) for at in self.lapses)
        yield from ((at, ENDS[state]) for at, state in self.moves if state in ENDS)


@dataclass(frozen=True, slots=True)
class Axis:
    """Times in order and the column at which each begins. `gaps` are the pieces that are not to scale."""

    times: list[datetime]
    starts: list[int]
    columns: int
    gaps: dict[int, str]
    """Index of the piece between two times → how long it is, in words."""

    @classmethod
    def over(cls, times: Sequence[datetime], columns: int) -> Axis:
        """Pieces between the times share the columns by their length; what is idle for too long gets `GAP_COLUMNS`."""
        times = sorted(set(times))
        if len(times) == 1:
            times = [times[0], times[0] + timedelta(seconds=1)]
        lengths = [(b - a).total_seconds() for a, b in pairwise(times)]
        gaps = _idle(lengths)
        left = columns - GAP_COLUMNS * len(gaps)
        own = 1 if len(lengths) - len(gaps) <= left else 0  # more ticks than columns: no longer kept apart
        shared = left - own * (len(lengths) - len(gaps))
        total_s = sum(s for i, s in enumerate(lengths) if i not in gaps) or 1.0
        starts, reached = [0], 0.0
        for i, length_s in enumerate(lengths):
            reached += GAP_COLUMNS if i in gaps else own + shared * length_s / total_s
            starts.append(min(round(reached), columns))
        return cls(list(times), starts, columns, {i: _span(lengths[i]) for i in gaps})

    def column(self, at: datetime) -> int:
        """The column of a time, the last one for times beyond the end."""
        i = min(bisect_right(self.times, at) - 1, len(self.times) - 2)
        if i < 0:
            return 0
        begin, until = self.times[i], self.times[i + 1]
        share = (at - begin) / (until - begin)
        exact = self.starts[i] + share * (self.starts[i + 1] - self.starts[i])
        return min(int(exact), self.columns - 1)

    def gap_columns(self) -> Iterator[tuple[int, int, str]]:
        for i, length in self.gaps.items():
            yield self.starts[i], self.starts[i + 1], length


def _idle(lengths: Sequence[float]) -> set[int]:
    """Pieces that are longer than everything else together: drawn to scale they would leave nothing of the rest."""
    gaps: set[int] = set()
    for i in sorted(range(len(lengths)), key=lambda i: -lengths[i])[:GAPS_MAX]:
        rest_s = sum(s for j, s in enumerate(lengths) if j not in gaps and j != i)
        if lengths[i] < GAP_MIN_S or lengths[i] <= rest_s or len(lengths) == 1:
            break
        gaps.add(i)
    return gaps


def _times(steps: Sequence[_Step], run: Row) -> list[datetime]:
    """The beginning, every tick, and the end: now, while a step is not settled."""
    moves = [at for step in steps for at, _ in step.moves]
    end = max(moves) if all(State(step.state) in SETTLED for step in steps) else max(run["now"], *moves)
    return [min(moves), *(at for step in steps for at, _ in step.ticks()), end]


def _span(seconds: float) -> str:
    for size, unit in ((86_400, "d"), (3600, "h"), (60, "min")):
        if seconds >= size:
            return f"{seconds / size:.0f} {unit}"
    return f"{seconds:.0f} s"


class _Pen:
    """Puts signs into columns, and remembers which were used, for the legend."""

    def __init__(self, *, plain: bool, label: int, state: int) -> None:
        self.plain, self.label, self.state = plain, label, state
        self.used: set[str] = set()
        self.lines: list[list[tuple[str, str]]] = []

    def step(self, step: _Step, axis: Axis) -> None:
        cells = _cells(step, axis)
        for mark in cells:
            if mark is not None:
                self.used.add(mark.means)
        tag = State(step.state)
        style = (ENDS.get(tag) or BARS[tag]).style
        name = _cut(step.label, self.label, "..." if self.plain else "…")
        row = [(f"{name:<{self.label}}  ", ""), *self._signs(cells), ("  ", ""), (step.state, style)]
        self.lines.append(row)

    def axis(self, axis: Axis, begin: str) -> None:
        """When it began, then how much later each column is; idle gaps by their length."""
        text = [" "] * axis.columns
        for at, until, length in axis.gap_columns():
            sign = GAP.plain if self.plain else GAP.sign
            _put(text, at, f"{sign}{length}{sign}".center(until - at))
        step, free = max(axis.columns // LABELS_MAX, 10), 0
        for i, column in enumerate(axis.starts[:-1]):
            seconds = (axis.times[i] - axis.times[0]).total_seconds()
            label = f"+{_exact(seconds)}" if seconds else "0 s"
            taken = text[column : column + len(label) + 1]
            if column >= free and len(taken) > len(label) and not "".join(taken).strip():
                _put(text, column, label)
                free = column + step
        self.lines.append([(f"{'':<{self.label}}  from {begin}", "bright_black")])
        self.lines.append([(f"{'':<{self.label}}  {''.join(text)}", "bright_black")])

    def rule(self, title: str, columns: int) -> None:
        line = "-" if self.plain else "─"
        title = _cut(title, self.label + columns - 4, "..." if self.plain else "…")
        self.lines.append([(f"{line * 2} {title} ".ljust(self.label + 2 + columns, line), "bright_black")])

    def legend(self, width: int) -> None:
        """Only the signs that are there."""
        self.lines.append([])
        length = width
        for mark in (mark for mark in _LEGEND if mark.means in self.used):
            if length + len(mark.means) + 5 > width:
                self.lines.append([])
                length = 0
            self.lines[-1] += [(mark.plain if self.plain else mark.sign, mark.style), (f" {mark.means}   ", "")]
            length += len(mark.means) + 5

    def _signs(self, cells: Sequence[Mark | None]) -> Iterator[tuple[str, str]]:
        for mark in cells:
            yield (" ", "") if mark is None else ((mark.plain if self.plain else mark.sign), mark.style)


def _cells(step: _Step, axis: Axis) -> list[Mark | None]:
    """The bar, each column with its most urgent state, then the ticks over it."""
    cells: list[Mark | None] = [None] * axis.columns
    urgent = [len(_URGENCY)] * axis.columns
    for begin, until, state in step.spans(axis.times[-1]):
        first = axis.column(begin)
        last = axis.column(until) if until < axis.times[-1] else axis.columns
        for column in range(first, max(last, first + 1)):
            if _URGENCY.index(state) < urgent[column]:
                cells[column], urgent[column] = BARS[state], _URGENCY.index(state)
    for first, last, _ in axis.gap_columns():
        for column in range(first + 1, last - 1):
            cells[column] = GAP if cells[column] is not None else None
    for at, mark in step.ticks():
        cells[axis.column(at)] = mark
    return cells


def _exact(seconds: float) -> str:
    """How much later, in as few signs as tell it: 8.4 s, 17 s, 2:01:50."""
    if seconds < 60:
        return f"{seconds:.1f} s" if seconds < 10 else f"{seconds:.0f} s"
    return str(timedelta(seconds=round(seconds))).removeprefix("0:")


def _put(text: list[str], at: int, word: str) -> None:
    text[at : at + len(word)] = list(word)[: len(text) - at]


def _cut(text: str, width: int, end: str) -> str:
    return text if len(text) <= width else text[: width - len(end)] + end
