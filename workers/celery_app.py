"""Entry point of `celery -A counterfoil.workers worker` and `… beat`: reads the configuration, once a process.

A mistake in it ends the process with one line that names cause and fix, and the exit code of the command line.
"""

from __future__ import annotations

import importlib
import sys
from contextlib import closing
from typing import Any, NoReturn

import structlog
from celery import Celery, signals

from counterfoil.entry import find_tools_here, keep_to_our_own
from counterfoil.ledger.connection import Ledger
from counterfoil.ledger.errors import ConfigError, CounterfoilError
from counterfoil.logs import configure_logs
from counterfoil.outbox.addresses import AddressRefused, check_files
from counterfoil.outbox.broker import RECONCILE_QUEUE, broker_app
from counterfoil.providers.registry import Registry
from counterfoil.settings import Settings
from counterfoil.workers.beat import end_when_told

log: structlog.stdlib.BoundLogger = structlog.get_logger("counterfoil.worker")

TASKS = ("counterfoil.workers.tasks", "counterfoil.reconciler.tasks")
"""Loaded by name, and by workers only."""

IDLE_BEATS = "counterfoil.workers.tasks:IdleBeats"

SCHEDULE = "counterfoil.reconciler.schedule"
"""By name as well: workers know nothing of the reconciler."""


def worker_app(settings: Settings) -> Celery:
    """The app of workers and beat. Without `-Q` a worker consumes the queues of all its tools, and the reconciler's."""
    app = broker_app(
        url=settings.broker_url(),
        key_prefix=settings.broker.key_prefix,
        queue_type=settings.broker.queue_type,
        queues=queues_of(settings),
        concurrency=settings.workers.concurrency,
        soft_limit_s=settings.workers.soft_limit_s,
        hard_limit_s=settings.workers.hard_limit_s,
        include=TASKS,
        beat_schedule=importlib.import_module(SCHEDULE).beat_schedule(settings),
    )
    steps: Any = app.steps
    steps["consumer"].add(IDLE_BEATS)
    return app


def queues_of(settings: Settings) -> list[str]:
    """A queue for each provider that is configured or that a tool names, then the reconciler's."""
    configured = {f"cf-{provider}" for provider in settings.providers}
    return [
        *sorted(configured | {spec.queue for spec in Registry.load(settings.tools, settings.http)}),
        RECONCILE_QUEUE,
    ]


def _load() -> tuple[Settings, Celery]:
    try:
        settings = Settings.load()
        return settings, worker_app(settings)
    except CounterfoilError as error:
        _give_up(error)


def _give_up(error: CounterfoilError) -> NoReturn:
    print(f"counterfoil: {error.code}: {error}", file=sys.stderr)
    raise SystemExit(error.exit_code) from None


configure_logs()
find_tools_here()
keep_to_our_own()
settings, app = _load()


def _check_what_workers_need(**_: object) -> None:
    """Before the first message, not at the first action: beat needs neither."""
    try:
        address = settings.database_address()
        settings.check_secret_files()
        settings.key_secret()
        _check_counters(settings.admission_url())
        with closing(Ledger(address, application_name="counterfoil worker")) as ledger:
            away = ledger.check_worker()
    except CounterfoilError as error:
        _give_up(error)
    if away is not None:
        log.error("ledger_unavailable", error=away)


def _check_counters(url: str | None) -> None:
    try:
        if url is not None:
            check_files(url)
    except AddressRefused as refused:
        raise ConfigError(f"the address of the fleet's counters {refused}.", key="admission.url") from None


signals.worker_init.connect(_check_what_workers_need, weak=False)
signals.beat_init.connect(end_when_told, weak=False)
