"""How much of a queue may leave Postgres: arithmetic on what is known, without a database."""

from __future__ import annotations

from dataclasses import replace

import pytest

from counterfoil.outbox.gates import Gate, Load, Room, Window, held_by, room_in

LOAD = Load(
    queue="cf-a",
    mode=None,
    is_served=True,
    due_firsts=100,
    due_retries=100,
    in_flight=10,
    firsts_out=6,
    retries_out=4,
    longest_wait_s=0.0,
)
OPEN = Gate(firsts=1000, retries=1000)


@pytest.mark.parametrize(
    ("load", "gate", "room"),
    [
        (LOAD, OPEN, Room(rows=90, firsts=90, retries=90)),
        (LOAD, Gate(firsts=20, retries=5), Room(rows=90, firsts=14, retries=1)),
        (LOAD, Gate(firsts=1, retries=1), Room(rows=90, firsts=0, retries=0)),
        (LOAD, replace(OPEN, known=False), Room(rows=90, firsts=90, retries=0)),
        (LOAD, replace(OPEN, open_in_s=0.1), Room(rows=0, firsts=0, retries=0)),
        (replace(LOAD, mode="paused"), OPEN, Room(rows=0, firsts=0, retries=0)),
        (replace(LOAD, mode="draining"), OPEN, Room(rows=90, firsts=90, retries=90, taking_back_only=True)),
        (replace(LOAD, in_flight=400), OPEN, Room(rows=0, firsts=0, retries=0)),
    ],
)
def test_room(load: Load, gate: Gate, room: Room) -> None:
    """What is in the broker already counts against the window and against the gate's numbers."""
    assert room_in(load, gate, window=100) == room


def window(rows: int = 100) -> Window:
    return Window(rows=rows, rows_min=20, rows_max=400, wait_max_s=5.0)


def test_a_window_grows_to_the_high_water_mark_while_all_is_claimed_at_once() -> None:
    """Doubled whenever it was full and is half empty at the next look, and no further than the mark."""
    seen, it = [], window()
    for now in range(5):
        rows = it.fit(replace(LOAD, in_flight=0), float(now))
        it.took(replace(LOAD, in_flight=0), rows)
        seen.append(rows)
    assert seen == [100, 200, 400, 400, 400]


def test_a_window_that_is_not_needed_does_not_grow() -> None:
    """An idle queue says nothing about how soon workers claim."""
    it = window()
    for now in range(5):
        it.fit(replace(LOAD, in_flight=0), float(now))
        it.took(replace(LOAD, in_flight=0), 3)
    assert it.rows == 100


def test_a_window_shrinks_once_for_each_wait() -> None:
    """A queue that stands halves it once in `wait_max_s`, however many passes look, down to what idle workers need."""
    it, load = window(400), replace(LOAD, in_flight=400, longest_wait_s=6.0)
    assert [it.fit(load, now) for now in (0.0, 0.1, 4.9)] == [200, 200, 200]
    assert [it.fit(load, now) for now in (5.0, 10.0, 15.0, 20.0, 25.0)] == [100, 50, 25, 20, 20]


def test_what_is_held_by_what() -> None:
    """Every reason is told, and no budget is missed where no retry waits."""

    def held(gate: Gate | None = OPEN, **changes: object) -> list[str]:
        given: dict[str, object] = {"mode": None, "due_retries": 3, "published": 0, "is_served": True, **changes}
        return [*held_by(gate=gate, high_water=400, **given)]  # type: ignore[arg-type]

    assert held() == held(gate=None) == []
    assert held(gate=replace(OPEN, open_in_s=3.0), mode="paused") == ["paused", "breaker"]
    assert held(gate=replace(OPEN, known=False), mode="draining") == ["draining", "store_away"]
    assert held(gate=replace(OPEN, retries=0)) == ["budget"]
    assert held(gate=replace(OPEN, retries=0), due_retries=0) == []
    assert held(published=400, is_served=False) == ["high_water", "unserved"]
