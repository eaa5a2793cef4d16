"""Decides which settings of a provider may be changed while the fleet runs, and what a change makes of the whole.

A closed list. What is not on it is read once by each process: addresses, accounts and secrets belong to clients that are
made once; a contract's times (`ttl_margin_s`, `landing_max_s`, `lookup_lag_s`) bound what recorded evidence means.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pydantic import ValidationError

from counterfoil.ledger.errors import ConfigError
from counterfoil.settings import Settings
from counterfoil.settings_providers import Breaker, ProviderSettings, RetryBudget, Section

_RETRIES = "what retries may cost is learned during an incident"
_OUTAGES = "an outage that it takes for none, or the reverse, is seen as it happens"

LIVE: Mapping[str, str] = {
    **{f"retry_budget.{name}": _RETRIES for name in RetryBudget.model_fields},
    **{f"breaker.{name}": _OUTAGES for name in Breaker.model_fields},
    "rate_per_s": "providers raise and lower their limits without asking",
    "concurrency_max": "calls in flight that are too many are seen in the provider's answers",
    "lookups_per_s": "a backlog of doubts may need more questions, a drowning provider fewer",
    "attempts_max": "read before each claim; nothing is undone by it",
    "not_sent_max": "read at each settle; nothing was sent",
    "backoff_base_s": "read at each settle",
    "backoff_cap_s": "read at each settle",
    "retry_after_cap_s": "read at each settle",
    "uncertain_max_s": "a person is asked earlier or later; evidence decides as before",
    "timeout_s": "read before each claim, and refused where leases and margins do not cover it",
}
"""Key below `[providers.NAME]` → why it may change at any time."""

NOT_CALLED = "http://127.0.0.1"
"""For the check of a provider without a table: one with a table must have an address on this machine under "fast"."""


def with_changes(settings: Settings, provider: str, values: Mapping[str, object]) -> Settings:
    """The settings with these values of one provider, checked as a whole as they are at the start.

    Raises `ConfigError` naming the key: not one of `LIVE`, a wrong value, or values that do not fit together.
    """
    for name in values:
        if name not in LIVE:
            key = f"providers.{provider}.{name}"
            raise ConfigError(f"{key} is not changed while processes run.", key=key, fix=f"One of: {', '.join(LIVE)}.")
    try:
        changed = _overlaid(settings.provider(provider), _nested(values))
    except ValidationError as error:
        mistake = _explained(error, provider)
    else:
        given: dict[str, Any] = {name: getattr(settings, name) for name in settings.model_fields_set}
        tried = changed if provider in settings.providers else changed.model_copy(update={"base_url": NOT_CALLED})
        Settings(**{**given, "providers": {**settings.providers, provider: tried}})
        return settings.model_copy(update={"providers": {**settings.providers, provider: changed}})
    raise mistake  # outside the handler: pydantic's exception holds the values


def configured(settings: Settings, provider: str, name: str) -> object:
    """The value of one key of `LIVE` in these settings."""
    value: object = settings.provider(provider)
    for part in name.split("."):
        value = getattr(value, part)
    return value


def _nested(values: Mapping[str, object]) -> dict[str, Any]:
    nested: dict[str, Any] = {}
    for name, value in values.items():
        table, _, key = name.rpartition(".")
        (nested.setdefault(table, {}) if table else nested)[key] = value
    return nested


def _overlaid(section: ProviderSettings, values: Mapping[str, Any]) -> ProviderSettings:
    """A new table, since a copy would not be checked."""
    given = {name: getattr(section, name) for name in section.model_fields_set}
    for name, value in values.items():
        below = getattr(section, name)
        if isinstance(below, Section):
            value = {**{key: getattr(below, key) for key in below.model_fields_set}, **value}
        given[name] = value
    return ProviderSettings(**given)


def _explained(error: ValidationError, provider: str) -> ConfigError:
    first = error.errors(include_input=False, include_url=False, include_context=False)[0]
    key = ".".join(["providers", provider, *(str(part) for part in first["loc"])])
    expected = first["msg"].removeprefix("Value error, ").replace("Input should be", "expected")
    return ConfigError(f"{key}: {expected}.", key=key)
