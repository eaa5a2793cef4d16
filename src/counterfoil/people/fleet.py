"""Decides how people see and change what a running fleet may do at a provider: its name, its settings in force, a change.

For the command line, a console and code of your own; changes take a `Ledger` under the login of an operator of all tenants.
"""

from __future__ import annotations

import difflib
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from typing import Any

from counterfoil.ledger import changes as doors
from counterfoil.ledger.changes import MODE_KEY, Change, Mode
from counterfoil.ledger.connection import Ledger
from counterfoil.ledger.errors import ArgumentError, ConfigError, CounterfoilError, NotFound
from counterfoil.people.words import check_words
from counterfoil.providers.registry import Registry
from counterfoil.settings import Settings
from counterfoil.settings_contracts import check_provider
from counterfoil.settings_live import LIVE, configured
from counterfoil.workers.live import Check, in_force, nothing_else

SEEN_WITHIN_S = 5
"""Every process has read a change by then: they ask every two seconds, and a busy one asks between two actions."""

AS_CONFIGURED = None
"""In place of a value: the change is taken back."""

Values = Mapping[str, str | None]
"""JSON by key below the provider's table; None = as configured."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Standing:
    """One key of one provider: what is in force, and where it comes from."""

    name: str
    value: object
    configured: object
    change: Change | None
    """The one that is in force; None: the configuration is, or a change was taken back."""
    ignored: Change | None
    """A change that this version and this configuration cannot use, so that every process like this one leaves it out."""
    why_ignored: str | None


def tools_of(settings: Settings) -> Registry | None:
    """The tools, where they can be loaded: whoever pauses a provider may be at a machine without them."""
    try:
        return Registry.load(settings.tools, settings.http)
    except CounterfoilError:
        return None


def check_with(registry: Registry | None) -> Check:
    """What a worker checks of a change, as far as the tools are here."""
    return nothing_else if registry is None else partial(check_provider, registry)


def known_providers(settings: Settings, registry: Registry | None, *others: Iterable[str]) -> list[str]:
    """Every provider that is configured, has a tool, or is among `others` (that have rows, or changes)."""
    tools = () if registry is None else (spec.provider for spec in registry)
    return sorted({*settings.providers, *tools, *(name for names in others for name in names)})


def find_provider(name: str, known: Sequence[str]) -> str:
    """The name itself. Raises `NotFound` with the nearest one."""
    if name in known:
        return name
    close = difflib.get_close_matches(name, known, n=1, cutoff=0.5)
    raise NotFound(
        f"there is no provider {name!r}.",
        fix=f"Did you mean {close[0]}?" if close else f"Known here: {', '.join(known) or 'none'}.",
    )


def standings(
    settings: Settings, provider: str, changes: Iterable[Change], check: Check = nothing_else
) -> list[Standing]:
    """Each key that may be changed while processes run, with what is in force."""
    newest = {change.name: change for change in changes if change.provider == provider}
    now = in_force(settings, provider, newest.values(), check)
    found = []
    for name in [*LIVE, *sorted(newest.keys() - LIVE.keys() - {MODE_KEY})]:
        change = newest.get(name)
        change = None if change is None or change.value is None else change
        why = None if change is None else now.ignored.get(change.change_id)
        if name not in LIVE and change is None:
            continue
        found.append(
            Standing(
                name=name,
                value=_value(now.settings, name) if name in LIVE else None,
                configured=configured(settings, provider, name) if name in LIVE else None,
                change=None if why else change,
                ignored=change if why else None,
                why_ignored=why,
            )
        )
    return found


def read_pairs(pairs: Sequence[str]) -> dict[str, str | None]:
    """`KEY=VALUE` each, the value as JSON or as a plain word. Raises ArgumentError."""
    values: dict[str, object] = {}
    for pair in pairs:
        name, between, text = pair.partition("=")
        if not between or not name:
            raise ArgumentError(f"{pair!r} is not KEY=VALUE.", path="KEY=VALUE", code="usage")
        if name.strip() in values:
            raise ArgumentError(f"{name} is given twice.", path="KEY=VALUE", code="usage")
        values[name.strip()] = _read_json(text.strip())
    return _as_json(values)


def read_document(text: str) -> dict[str, str | None]:
    """A JSON object, tables nested or by dotted keys. Raises ArgumentError."""
    given = _read_json(text)
    if not isinstance(given, dict) or not given:
        raise ArgumentError("a JSON object of keys and values.", path="--from", code="usage")
    values: dict[str, object] = {}
    for name, value in given.items():
        below = {f"{name}.{key}": each for key, each in value.items()} if isinstance(value, dict) else {name: value}
        values.update(below)
    return _as_json(values)


def would_be(provider: str, changes: Iterable[Change], values: Values) -> list[Change]:
    """The newest changes as they would be with these values."""
    kept = {change.name: change for change in changes if change.provider == provider}
    newest = max((change.change_id for change in kept.values()), default=0)
    for place, (name, value) in enumerate(values.items(), 1):
        kept[name] = Change(
            change_id=newest + place,
            key=f"providers.{provider}.{name}",
            value=value,
            by_person="",
            db_role="",
            channel="",
            reason="",
            at=datetime.now(UTC),
        )
    return list(kept.values())


def check_values(
    settings: Settings, provider: str, changes: Sequence[Change], values: Values, check: Check = nothing_else
) -> None:
    """Raises `ConfigError` for a key that is not changed while processes run, a wrong value, or values that do not fit
    together or with the configuration; also where an earlier change would then be left out."""
    for name in values:
        if name not in LIVE:
            raise ConfigError(
                f"providers.{provider}.{name} is not changed while processes run.",
                key=f"providers.{provider}.{name}",
                fix=_nearest(name),
            )
    wanted = would_be(provider, changes, values)
    before = in_force(settings, provider, changes, check).ignored
    for change_id, why in in_force(settings, provider, wanted, check).ignored.items():
        if change_id not in before:
            raise ConfigError(why, key=next(c.key for c in wanted if c.change_id == change_id))


def change_values(ledger: Ledger, provider: str, values: Values, *, by: str, channel: str, reason: str) -> int:
    """Puts values in force that `check_values` has let through; returns the last change's id. Raises NotAllowed,
    ArgumentError."""
    check_words(by, channel, reason)
    keys = {f"providers.{provider}.{name}": value for name, value in values.items()}
    return doors.change_settings(ledger, keys, by=by, channel=channel, reason=reason)


def change_mode(ledger: Ledger, provider: str, mode: Mode, *, by: str, channel: str, reason: str) -> int:
    """From its commit on no claim does what the mode forbids. Raises NotAllowed, ArgumentError."""
    return change_values(ledger, provider, {MODE_KEY: json.dumps(mode)}, by=by, channel=channel, reason=reason)


def _value(section: object, name: str) -> object:
    for part in name.split("."):
        section = getattr(section, part)
    return section


def _read_json(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        return text


def _as_json(values: Mapping[str, object]) -> dict[str, str | None]:
    """NaN and the like are no JSON, and no value of any setting."""
    try:
        return {name: json.dumps(value, allow_nan=False) for name, value in values.items()}
    except ValueError:
        raise ArgumentError("no value is NaN or infinite.", path="KEY=VALUE", code="usage") from None


def _nearest(name: str) -> str:
    """Also for a key without its table's name."""
    if name == MODE_KEY:
        return "That is `counterfoil provider pause|drain|resume`."
    ends = [full for full in LIVE if full.rpartition(".")[2] == name]
    close = ends or difflib.get_close_matches(name, LIVE, n=1, cutoff=0.6)
    return f"Did you mean {' or '.join(close)}?" if close else f"One of: {', '.join(LIVE)}."
