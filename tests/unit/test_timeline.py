"""How a run looks over time: the picture at two widths, to the sign, and what no picture may do."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from counterfoil.cli.timeline import ATTEMPT, BARS, ENDS, GAP, LAPSE, LOOK_UP, STEPS_MAX, Axis, draw
from counterfoil.ledger.states import SETTLED, UNSETTLED

T0 = datetime(2026, 11, 30, 10, 0, tzinfo=UTC)
Move = tuple[float, str] | tuple[float, str, str]


def at(seconds: float) -> datetime:
    return T0 + timedelta(seconds=seconds)


class Story:
    """A run's rows, written down step by step."""

    def __init__(self, *, now: float, unwind_reason: str | None = None) -> None:
        self.run = {"unwind_reason": unwind_reason, "now": at(now)}
        self.actions: list[dict[str, Any]] = []
        self.moves: list[dict[str, Any]] = []
        self.attempts: list[dict[str, Any]] = []

    def step(self, step: str, tool: str, *moves: Move, phase: str = "do", attempts: tuple[float, ...] = ()) -> None:
        """A step with its moves (seconds, state, reason) and the beginnings of its attempts."""
        made = f"act_{len(self.actions)}"
        last = moves[-1][1]
        self.actions.append(
            {"action_id": made, "step": step, "revision": 1, "phase": phase, "tool": tool, "state": last}
            | {"created_at": at(moves[0][0])}
        )
        for seconds, state, *reason in moves:
            row = {"action_id": made, "at": at(seconds), "to_state": state, "reason": reason[0] if reason else ""}
            self.moves.append(row)
        for number, seconds in enumerate(attempts, start=1):
            self.attempts.append({"action_id": made, "number": number, "started_at": at(seconds)})

    def lines(self, width: int, *, plain: bool = True) -> list[str]:
        return self.drawn(width, plain=plain).text().splitlines()

    def drawn(self, width: int, *, plain: bool) -> Any:
        return draw(self.run, self.actions, self.moves, self.attempts, width=width, plain=plain)


@pytest.fixture
def incident() -> Story:
    """A ticket behind a lost answer, a worker that dies with a charge, an approval that nobody gave, and an unwind."""
    story = Story(now=9000, unwind_reason="customer withdrew")
    story.step(
        "1",
        "jira_create",
        (0, "ready"),
        (0.4, "executing"),
        (0.5, "uncertain"),
        (3, "reconciling"),
        (3.1, "uncertain"),
        (8, "reconciling"),
        (8.1, "succeeded"),
        (7330, "compensated"),
        attempts=(0.4,),
    )
    story.step(
        "2",
        "stripe_charge",
        (8.2, "ready"),
        (8.4, "executing"),
        (14.4, "uncertain", "lease lapsed"),
        (15, "reconciling"),
        (15.2, "ready"),
        (15.5, "executing"),
        (16, "succeeded"),
        (7325, "compensated"),
        attempts=(8.4, 15.5),
    )
    story.step("3", "warehouse_reserve_pallet", (16.1, "awaiting_approval"), (7310, "stale"))
    story.step(
        "4",
        "hold",
        (16.5, "ready"),
        (17, "executing"),
        (17.5, "retryable_failure"),
        (27, "executing"),
        (27.5, "permanent_failure"),
        attempts=(17, 27),
    )
    story.step(
        "2", "stripe_refund", (7320, "ready"), (7321, "executing"), (7324, "succeeded"), phase="undo", attempts=(7321,)
    )
    story.step(
        "1",
        "jira_close",
        (7325.5, "ready"),
        (7326, "executing"),
        (7326.4, "uncertain"),
        (7328, "operator_review"),
        phase="undo",
        attempts=(7326,),
    )
    return story


AT_80 = """
                      from 2026-11-30T10:00:00Z
                      0 s       +16 s ~2 h~          ~28 min~
1 jira_create         .1?%?S                         U         compensated
2 stripe_charge            .1#!?2S                U            compensated
3 warehouse_reser...             ooooo~~~~~~oT                 stale
4 hold                           .1:2F                         permanent_failure
-- taken back: customer withdrew ----------------------------
2 stripe_refund                                .1S             succeeded
1 jira_close                                      .1@@~~~~~~@  operator_review

o awaits approval   . ready   : refused for now   # executing   % uncertain
@ waits for an operator   1 attempt   ? look-up
! lease ended: a worker died   S succeeded   F failed   T stale
U taken back   ~ not to scale
"""

AT_120 = """
                            from 2026-11-30T10:00:00Z
                            0 s         +8.4 s      +17 s       ~2 h~  +2:01:50              ~28 min~
1 jira_create               .1%%%?%%%%?S                                                     U         compensated
2 stripe_charge                        .1#####!%?2S                                    U               compensated
3 warehouse_reserve_pallet                        oooooooooooooo~~~~~~oT                               stale
4 hold                                             .1:::::::::2F                                       permanent_failure
-- taken back: customer withdrew --------------------------------------------------------------------
2 stripe_refund                                                                 .1###S                 succeeded
1 jira_close                                                                            .1%@@@~~~~~~@  operator_review

o awaits approval   . ready   : refused for now   # executing   % uncertain   @ waits for an operator   1 attempt
? look-up   ! lease ended: a worker died   S succeeded   F failed   T stale   U taken back   ~ not to scale
"""

IN_A_TERMINAL = """
                            from 2026-11-30T10:00:00Z
                            0 s         +8.4 s      +17 s       ≈2 h≈  +2:01:50              ≈28 min≈
1 jira_create               ·1▒▒▒?▒▒▒▒?✓                                                     ↶         compensated
2 stripe_charge                        ·1█████!▒?2✓                                    ↶               compensated
3 warehouse_reserve_pallet                        ◦◦◦◦◦◦◦◦◦◦◦◦◦◦≈≈≈≈≈≈◦⌀                               stale
4 hold                                             ·1┄┄┄┄┄┄┄┄┄2✗                                       permanent_failure
── taken back: customer withdrew ────────────────────────────────────────────────────────────────────
2 stripe_refund                                                                 ·1███✓                 succeeded
1 jira_close                                                                            ·1▒◆◆◆≈≈≈≈≈≈◆  operator_review

◦ awaits approval   · ready   ┄ refused for now   █ executing   ▒ uncertain   ◆ waits for an operator   1 attempt
? look-up   ! lease ended: a worker died   ✓ succeeded   ✗ failed   ⌀ stale   ↶ taken back   ≈ not to scale
"""


@pytest.mark.parametrize(("width", "expected"), [(80, AT_80), (120, AT_120)])
def test_an_incident_at_two_widths(incident: Story, width: int, expected: str) -> None:
    """To the sign, in plain text: ASCII alone, bars and ticks in their columns, the unwind apart, idle hours drawn short."""
    assert incident.lines(width) == expected.strip("\n").splitlines()
    assert "".join(incident.lines(width)).isascii()


def test_an_incident_in_a_terminal(incident: Story) -> None:
    """The same picture in a terminal's signs, each in the colour of its state."""
    assert incident.lines(120, plain=False) == IN_A_TERMINAL.strip("\n").splitlines()
    [line] = [line for line in incident.drawn(120, plain=False).lines if line and "stripe_charge" in line[0][0]]
    assert {("█", "blue"), ("!", "bold red"), ("▒", "yellow"), ("✓", "green"), ("compensated", "magenta")} <= set(line)


@pytest.mark.parametrize("width", [40, 60, 80, 100, 120, 200])
def test_no_line_is_wider_than_the_terminal(incident: Story, width: int) -> None:
    """Down to where the bars have their least width."""
    assert max(map(len, incident.lines(width))) <= max(width, 60)


def test_every_state_has_its_own_signs() -> None:
    """Distinct in colour terminals and in plain text, and no state is left out."""
    assert set(BARS) == UNSETTLED
    assert set(ENDS) == SETTLED
    marks = [*BARS.values(), *ENDS.values(), ATTEMPT, LOOK_UP, LAPSE, GAP]
    assert len({mark.sign for mark in marks}) == len({mark.plain for mark in marks}) == len(marks)
    assert all(len(mark.sign) == len(mark.plain) == 1 and mark.plain.isascii() for mark in marks)


def test_ticks_are_kept_apart_while_there_is_room() -> None:
    """Five look-ups within a millisecond and one an hour later: each has its column."""
    story = Story(now=10)
    story.step("1", "t", (0, "uncertain"), *((1 + i / 1000, "reconciling") for i in range(5)), (9, "succeeded"))
    assert story.lines(80)[2].count("?") == 5


def test_more_ticks_than_columns_still_draw() -> None:
    """Many look-ups in a narrow window: they share columns, and the end is still shown."""
    story = Story(now=1000)
    story.step("1", "t", *((float(i), "reconciling" if i % 2 else "uncertain") for i in range(400)), (400, "succeeded"))
    line = story.lines(60)[2]
    assert len(line) <= 60
    assert "S  succeeded" in line


def test_an_open_step_reaches_until_now() -> None:
    """Its bar ends at the right edge, at the ledger's time."""
    story = Story(now=20)
    story.step("1", "t", (0, "ready"), (1, "executing"), (2, "uncertain"), attempts=(1,))
    assert story.lines(60)[2].endswith("%%%  uncertain")


@pytest.mark.parametrize(
    ("times", "columns", "gaps"),
    [
        ([0, 1, 2, 3], 30, {}),
        ([0, 1, 2, 7202], 30, {2: "2 h"}),
        ([0, 90_000, 90_001, 90_002], 30, {0: "1 d"}),
        ([0, 1, 602, 603, 4300], 40, {1: "10 min", 3: "1 h"}),
        ([0, 9], 30, {}),
        ([0, 3600], 30, {}),
        ([5], 30, {}),
    ],
)
def test_idle_gaps_are_drawn_short(times: list[float], columns: int, gaps: dict[int, str]) -> None:
    """Longer than all the rest together, and long enough to matter; a run that only waits is drawn as it is."""
    axis = Axis.over([at(seconds) for seconds in times], columns)
    assert axis.gaps == gaps
    assert axis.starts == sorted(axis.starts)
    assert (axis.starts[0], axis.starts[-1]) == (0, columns)
    assert all(0 <= axis.column(at(seconds)) < columns for seconds in (-5, *times, times[-1] + 99))


def test_a_run_without_actions_has_no_picture() -> None:
    """Nothing is printed for it."""
    assert Story(now=1).lines(80) == []


def test_a_long_run_is_cut_and_says_so() -> None:
    """The rest of the steps is counted; the table has them all."""
    story = Story(now=1000)
    for number in range(STEPS_MAX + 7):
        story.step(str(number), "t", (float(number), "ready"), (number + 0.5, "succeeded"))
    lines = story.lines(80)
    assert "and 7 more steps, in the table below" in lines
    assert len(lines) < STEPS_MAX + 8


def test_names_are_cut_and_inert() -> None:
    """Steps and reasons come from models: no control character, and no name that pushes the bars aside."""
    story = Story(now=10, unwind_reason="x" * 300 + "\x1b[2J")
    story.step("s\x1b[31m" * 20, "t" * 64, (0, "ready"), (1, "succeeded"))
    story.step("s", "t", (2, "ready"), (3, "succeeded"), phase="undo")
    lines = story.lines(80)
    assert max(map(len, lines)) <= 80
    assert "\x1b" not in "".join(lines)
