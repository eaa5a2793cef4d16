"""Decides which values of a provider's settings are in force now: the configuration's, or what a person has changed since.

Whatever is asked, the answer is at most `refresh_s` old while the database answers, and the last known one while it does
not. A change that this process cannot use is told once and left out.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable

import structlog

from counterfoil.ledger.changes import MODE_KEY, Change, Mode, read_changes
from counterfoil.ledger.connection import Ledger
from counterfoil.ledger.errors import ConfigError, LedgerUnavailable
from counterfoil.settings import Settings
from counterfoil.settings_live import with_changes
from counterfoil.settings_providers import ProviderSettings

log: structlog.stdlib.BoundLogger = structlog.get_logger("counterfoil.live")

REFRESH_S = 2.0
"""A change is in force everywhere within this, and one small query each: nobody notices either."""


class LiveSettings:
    """One process's view, used by one thread at a time."""

    def __init__(
        self,
        settings: Settings,
        ledger: Ledger,
        *,
        refresh_s: float = REFRESH_S,
        monotonic: Callable[[], float] = time.monotonic,
        check: Callable[[Settings, str], None] = lambda settings, provider: None,
    ) -> None:
        """`check` raises `ConfigError` for settings under which the provider's tools could not work here."""
        self._settings = settings
        self._ledger = ledger
        self._refresh_s = refresh_s
        self._monotonic = monotonic
        self._check = check
        self._refresh_at = float("-inf")
        self._version = 0
        self._changes: dict[str, Change] = {}
        self._providers: dict[str, ProviderSettings] = {}
        self._told: set[int] = set()

    @property
    def version(self) -> int:
        """The newest change that this process has seen; 0 = there was none."""
        self._refresh()
        return self._version

    def provider(self, name: str) -> ProviderSettings:
        """What is in force for the provider."""
        self._refresh()
        return self._providers.get(name) or self._settings.provider(name)

    def mode(self, name: str) -> Mode:
        """Whether the provider is paused or draining. For those who hold something back: the claim itself reads the table."""
        self._refresh()
        change = self._changes.get(f"providers.{name}.{MODE_KEY}")
        value = None if change is None or change.value is None else json.loads(change.value)
        return Mode.RUNNING if value is None else Mode(value)

    def _refresh(self) -> None:
        now = self._monotonic()
        if now < self._refresh_at:
            return
        try:
            news = read_changes(self._ledger, after=self._version)
        except LedgerUnavailable as error:
            log.warning("settings_unread", error=error.message)
            news = []
        self._refresh_at = (
            self._monotonic() + self._refresh_s
        )  # after the query: one that hangs is not asked at once again
        if not news:
            return
        self._changes.update({change.key: change for change in news})
        self._version = news[-1].change_id
        for provider in {change.provider for change in news}:
            self._providers[provider] = self._in_force(provider)
        log.info("settings_changed", version=self._version, keys=[change.key for change in news])

    def _in_force(self, provider: str) -> ProviderSettings:
        """All changes together, or as many as can be used, in the order they were made."""
        changes = sorted(
            (
                c
                for c in self._changes.values()
                if c.provider == provider and c.name != MODE_KEY and c.value is not None
            ),
            key=lambda change: change.change_id,
        )
        try:
            return self._with(provider, changes)
        except ConfigError:
            used: list[Change] = []
        for change in changes:
            try:
                self._with(provider, [*used, change])
                used.append(change)
            except ConfigError as error:
                if change.change_id not in self._told:
                    self._told.add(change.change_id)
                    log.error("change_ignored", change_id=change.change_id, key=change.key, why=error.message)
        return self._with(provider, used)

    def _with(self, provider: str, changes: list[Change]) -> ProviderSettings:
        if not changes:
            return self._settings.provider(provider)
        values = {change.name: json.loads(change.value or "null") for change in changes}
        changed = with_changes(self._settings, provider, values)
        self._check(changed, provider)
        return changed.provider(provider)
