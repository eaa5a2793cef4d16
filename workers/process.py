"""Decides what a worker process keeps between tasks, and that no task fails with more than a log line.

Nothing is lost by a task that ends early: the ledger's row is claimed again, or its lease ends and evidence decides.
"""

from __future__ import annotations

import mmap
import threading
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Generic, TypeVar

import structlog
from billiard.exceptions import SoftTimeLimitExceeded
from celery import signals

from counterfoil.ledger.errors import ConfigError, LedgerUnavailable

log: structlog.stdlib.BoundLogger = structlog.get_logger("counterfoil.worker")

T = TypeVar("T")

FRAMES_MAX = 3

_ending = mmap.mmap(-1, 1)  # shared with the pool's children, who get no signal at a warm shutdown


class Kept(threading.local, Generic[T]):
    """One object for each process and thread, made at first use: connections cross neither forks nor threads."""

    value: T | None = None

    def get(self, make: Callable[[], T]) -> T:
        if self.value is None:
            self.value = make()
        return self.value

    def forget(self) -> None:
        """The next task makes a new one: this one's connection may be in the middle of a statement."""
        self.value = None


def is_ending() -> bool:
    """Whether this worker was asked to end (SIGTERM, SIGINT, SIGQUIT)."""
    return _ending[0] == 1


@contextmanager
def told(task: str, kept: Kept[T]) -> Iterator[None]:
    """Tells why the block ended early instead of raising; the tasks are never retried by Celery."""
    try:
        yield
    except LedgerUnavailable as error:
        log.warning("ledger_unavailable", task=task, error=error.message)
    except ConfigError as error:  # the schema is another version's since this process began
        log.error("cannot_work", task=task, error=str(error))
    except SoftTimeLimitExceeded:
        kept.forget()
        log.error("out_of_time", task=task)
    except Exception as error:  # noqa: BLE001 - Celery would log the message, and a database's holds the row's arguments
        kept.forget()
        log.error("task_failed", task=task, error=type(error).__name__, at=_frames(error))


def _note_end(**_: object) -> None:
    _ending[0] = 1


signals.worker_shutting_down.connect(_note_end, weak=False)


def _frames(error: Exception) -> list[str]:
    frames = traceback.extract_tb(error.__traceback__)[-FRAMES_MAX:]
    return [f"{frame.filename}:{frame.lineno} {frame.name}" for frame in frames]
