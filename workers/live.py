"""Decides which values of a provider's settings are in force now: the configuration's, or what a person has changed since.

Whatever is asked, the answer is at most `refresh_s` old while the database answers, and the last known one while it does
not. A change that this process cannot use is told once and left out.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

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

Check = Callable[[Settings, str], None]
"""Raises `ConfigError` for settings under which the provider's tools could not work."""


def nothing_else(settings: Settings, provider: str) -> None:
    """The check of those who know no tools."""


@dataclass(frozen=True, slots=True)
class InForce:
    """One provider's settings, and which changes are left out."""

    settings: ProviderSettings
    ignored: Mapping[int, str]
    """By the change's id, why."""


class LiveSettings:
    """One process's view, used by one thread at a time."""

    def __init__(
        self,
        settings: Settings,
        ledger: Ledger,
        *,
        refresh_s: float = REFRESH_S,
        monotonic: Callable[[], float] = time.monotonic,
        check: Check = nothing_else,
    ) -> None:
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
            now_in_force = in_force(self._settings, provider, self._changes.values(), self._check)
            self._providers[provider] = now_in_force.settings
            self._tell(now_in_force.ignored)
        log.info("settings_changed", version=self._version, keys=[change.key for change in news])

    def _tell(self, ignored: Mapping[int, str]) -> None:
        keys = {change.change_id: change.key for change in self._changes.values()}
        for change_id in ignored.keys() - self._told:
            self._told.add(change_id)
            log.error("change_ignored", change_id=change_id, key=keys[change_id], why=ignored[change_id])


def in_force(settings: Settings, provider: str, changes: Iterable[Change], check: Check = nothing_else) -> InForce:
    """What the newest change of each key makes of one provider's settings.

    All of them together, or as many as this version and these settings can use, in the order in which they were made.
    """
    wanted = sorted(
        (c for c in changes if c.provider == provider and c.name != MODE_KEY and c.value is not None),
        key=lambda change: change.change_id,
    )
    try:
        return InForce(_changed(settings, provider, wanted, check), {})
    except ConfigError:
        used: list[Change] = []
    ignored: dict[int, str] = {}
    for change in wanted:
        try:
            _changed(settings, provider, [*used, change], check)
            used.append(change)
        except ConfigError as error:
            ignored[change.change_id] = error.message
    return InForce(_changed(settings, provider, used, check), ignored)


def _changed(settings: Settings, provider: str, changes: list[Change], check: Check) -> ProviderSettings:
    if not changes:
        return settings.provider(provider)
    changed = with_changes(settings, provider, {change.name: json.loads(change.value or "null") for change in changes})
    check(changed, provider)
    return changed.provider(provider)
