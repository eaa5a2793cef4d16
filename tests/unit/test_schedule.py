"""Beat and workers speak of the same tasks."""

from __future__ import annotations

from counterfoil.reconciler import tasks
from counterfoil.reconciler.schedule import beat_schedule
from counterfoil.reconciler.ticks import Reconciler
from counterfoil.settings import Settings


def test_every_tick_is_a_task_and_every_task_ticks() -> None:
    """What beat sends is what the workers have, each under the name of the reconciler's method."""
    named = {str(entry["task"]) for entry in beat_schedule(Settings()).values()}
    assert named == {f"counterfoil.{task.__name__}" for task in tasks.TASKS}
    for task in tasks.TASKS:
        assert callable(getattr(Reconciler, task.__name__)), task.__name__
