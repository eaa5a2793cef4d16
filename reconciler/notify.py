"""Decides when people are told that something waits for them, and what they are told: at least once, one after another.

A hook that fails or hangs costs one tick a few timeouts, and the ticks of the next while nothing.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime

import structlog

from counterfoil.ledger import notices
from counterfoil.ledger.connection import Ledger
from counterfoil.ledger.errors import ConfigError
from counterfoil.ledger.notices import Notice, Subject
from counterfoil.reconciler.hooks import Hook

log: structlog.stdlib.BoundLogger = structlog.get_logger("counterfoil.notify")

PAUSE_S = 30.0
"""After a failure nothing is told for this long; also the first notice's own delay, which doubles."""

DELAY_MAX_S = 3600.0
"""A hook that is back is noticed within an hour even by the notice that has failed most often."""

_SHOW = {"P-": "proposal show", "C-": "correction show", "ac": "review show", "A-": "alarm show"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Notifier:
    """Tells people through the hooks that are configured; without one it writes nothing."""

    ledger: Ledger
    hooks: Callable[[], Sequence[Hook]]
    """Asked at each tick, so that a secret address may change; ConfigError where it cannot be read."""
    timeout_s: float
    """Of one delivery."""
    batch: int
    """Notices that one tick tells."""
    remind_ratio: float
    """The share of a proposal's time after which there is one reminder; 1 = none."""
    monotonic: Callable[[], float] = time.monotonic

    def tell(self) -> int:
        """Tells what is due, until a delivery fails or the tick's time is over; returns how many were told."""
        try:
            hooks = self.hooks()
        except ConfigError as error:  # only this tick is the worse for it
            log.error("notify_unusable", setting=error.key)
            return 0
        return self._tell(hooks) if hooks else 0

    def _tell(self, hooks: Sequence[Hook]) -> int:
        notices.record(self.ledger, remind_ratio=self.remind_ratio, pause_s=PAUSE_S)
        stop_at = self.monotonic() + self.timeout_s
        told = 0
        for _ in range(self.batch):
            if self.monotonic() >= stop_at:
                break
            # Held for longer than all hooks may take: while this process lives, nobody else tells the same.
            notice = notices.claim(self.ledger, hold_s=len(hooks) * self.timeout_s + PAUSE_S)
            if notice is None:
                break
            about = notices.subject(self.ledger, notice)
            code = None if about is None else _deliver(hooks, notice, about)
            if code is not None:
                self._failed(notice, code)
                break
            notices.told(self.ledger, notice)
            if about is not None:
                told += 1
                log.info("notice_told", subject_id=notice.subject_id, kind=notice.kind, why=about.why)
        return told

    def _failed(self, notice: Notice, code: str) -> None:
        delay_s = min(PAUSE_S * 2.0 ** min(notice.tries - 1, 16), DELAY_MAX_S)
        notices.failed(self.ledger, notice, delay_s=delay_s, pause_s=PAUSE_S)
        log.error("notice_failed", subject_id=notice.subject_id, kind=notice.kind, code=code, tries=notice.tries)


def _deliver(hooks: Sequence[Hook], notice: Notice, about: Subject) -> str | None:
    """Hands it to every hook, so that one that fails silences no other; the first code of failure, after which all get it
    again."""
    text = json.dumps(document(notice, about), ensure_ascii=True, separators=(",", ":")).encode()
    codes = [hook.deliver(text) for hook in hooks]
    return next((code for code in codes if code is not None), None)


def document(notice: Notice, about: Subject) -> dict[str, object]:
    """What a hook gets. `notice` is the same for each repetition of one notice, so that receivers can tell it is one."""
    return {
        "notice": f"{notice.kind}:{notice.subject_id}:{_stamp(notice.since)}",
        "kind": notice.kind,
        "id": about.id,
        "tenant": notice.tenant,
        "run": about.run,
        "why": about.why,
        "since": _stamp(notice.since),
        "expires_at": None if about.expires_at is None else _stamp(about.expires_at),
        "subject": about.subject,
        "steps": about.steps,
        "tool": about.tool,
        "effect": about.effect,
        "amount_minor": about.amount_minor,
        "currency": about.currency,
        "audience": about.audience,
        "command": f"counterfoil {_SHOW[about.id[:2]]} {about.id}",
    }


def _stamp(at: datetime) -> str:
    return at.astimezone(UTC).isoformat().replace("+00:00", "Z")
