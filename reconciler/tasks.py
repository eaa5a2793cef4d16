"""Decides which of the reconciler's methods a tick of beat runs. The tasks take no arguments: a message says only "now"."""

from __future__ import annotations

from celery import shared_task

from counterfoil.reconciler.ticks import Reconciler
from counterfoil.workers.process import Kept, told

_reconciler: Kept[Reconciler] = Kept()


def sweep_leases() -> None:
    """Leases that ended: the outcome is uncertain."""
    with told("sweep_leases", _reconciler):
        _reconciler.get(_new).sweep_leases()


def sweep_uncertain() -> None:
    """Look-ups that are due, and their verdicts."""
    with told("sweep_uncertain", _reconciler):
        _reconciler.get(_new).sweep_uncertain()


def watch() -> None:
    """Settled rows that are looked up again."""
    with told("watch", _reconciler):
        _reconciler.get(_new).watch()


def read_versions() -> None:
    """Versions of what proposed actions are about."""
    with told("read_versions", _reconciler):
        _reconciler.get(_new).read_versions()


def rescue() -> None:
    """Claimable rows without a wake-up: there must be none."""
    with told("rescue", _reconciler):
        _reconciler.get(_new).rescue()


def escalate() -> None:
    """Outages that are to be told, and rows that are a person's by their age."""
    with told("escalate", _reconciler):
        _reconciler.get(_new).escalate()


def expire() -> None:
    """Deadlines that have passed, and cancels that waited."""
    with told("expire", _reconciler):
        _reconciler.get(_new).expire()


def unwind_runs() -> None:
    """Runs that are taken back, a step at each visit."""
    with told("unwind_runs", _reconciler):
        _reconciler.get(_new).unwind_runs()


def notify() -> None:
    """People who are to be told that something waits for them."""
    with told("notify", _reconciler):
        _reconciler.get(_new).notify()


def make_partitions() -> None:
    """The partitions of the months to come."""
    with told("make_partitions", _reconciler):
        _reconciler.get(_new).make_partitions()


TASKS = (
    sweep_leases,
    sweep_uncertain,
    watch,
    read_versions,
    rescue,
    escalate,
    expire,
    unwind_runs,
    notify,
    make_partitions,
)

for _task in TASKS:
    shared_task(name=f"counterfoil.{_task.__name__}")(_task)


def _new() -> Reconciler:
    """Made in the child, after the fork."""
    from counterfoil.reconciler.setup import reconciler_from
    from counterfoil.workers.celery_app import settings

    return reconciler_from(settings)
