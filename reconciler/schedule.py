"""Decides how often each sweep ticks. Pure; tasks are named, not imported, so that beat and agents load none of them."""

from __future__ import annotations

from counterfoil.outbox.broker import RECONCILE_QUEUE
from counterfoil.settings import Settings

PARTITIONS_EVERY_S = 6 * 3600.0
"""Partitions are made two months ahead, so this only has to happen now and then."""


def beat_schedule(settings: Settings) -> dict[str, dict[str, object]]:
    """Celery's `beat_schedule`. Every tick is idempotent, so two beats and repeated ticks do no harm."""
    sweep_s = settings.reconciler.sweep_every_s
    every_s = {
        "sweep_leases": sweep_s,
        "sweep_uncertain": sweep_s,
        "read_versions": sweep_s,
        "expire": sweep_s,
        "unwind_runs": sweep_s,
        "notify": settings.notify.every_s,
        "rescue": settings.reconciler.rescue_every_s,
        "escalate": settings.reconciler.rescue_every_s / 4,  # an outage that is a minute old is told soon
        "watch": settings.reconciler.rescue_every_s,
        "make_partitions": PARTITIONS_EVERY_S,
    }
    return {name: _entry(name, seconds) for name, seconds in every_s.items()}


def _entry(name: str, every_s: float) -> dict[str, object]:
    """No tick expires: a worker would judge that by its own clock. A stale one costs one small query, and beat sends no
    more while many wait."""
    return {"task": f"counterfoil.{name}", "schedule": every_s, "options": {"queue": RECONCILE_QUEUE}}
