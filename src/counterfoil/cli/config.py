"""`counterfoil config check|show`: whether the configuration holds together, and what is in force."""

from __future__ import annotations

import os
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from counterfoil.cli import place, reach
from counterfoil.cli.options import AsJson, ConfigPath, group
from counterfoil.cli.output import as_json, clean, say, stamp, table, value_text
from counterfoil.ledger.errors import ConfigError, LedgerUnavailable

if TYPE_CHECKING:
    from counterfoil.people.fleet import Standing
    from counterfoil.settings import Settings

app = group("Configuration: counterfoil.toml and COUNTERFOIL_* variables.")


@app.command()
def check(
    connect: Annotated[
        bool, typer.Option("--connect", help="Also reach the database, the broker and the fleet's counters.")
    ] = False,
    json_: AsJson = False,
    config: ConfigPath = None,
) -> None:
    """Check every setting, secret file and tool as the processes do when they start.

    \b
    counterfoil config check --config /etc/counterfoil.toml
    counterfoil config check --connect
    """
    from counterfoil.cli.tool import check_tools

    settings = place.load_settings(config)
    settings.check_secret_files()
    reach.check_address_files(settings)
    names = check_tools(settings).names()
    reached, warnings = _reach(settings, config) if connect else ({}, [])
    program = settings.notify.command[0] if settings.notify.command else None
    missing = program is not None and shutil.which(program) is None
    warnings += [f"notify.command: {program} is not found on this machine: workers need it on theirs"] * missing
    warnings += reach.not_ours(os.environ)
    checked = {"profile": settings.profile, "tools": names, "connected": connect, **reached, "warnings": warnings}
    if json_:
        return as_json(checked)
    answers = f", {reached['answer']} answer" if connect else ""
    say(f"configuration is sound: profile {settings.profile}, {len(names)} tools{answers}")
    if reached.get("pooler"):
        say("a pooler is before Postgres: no statement is prepared, nothing is set for a session")
    for warning in warnings:
        say(f"warning: {clean(warning)}")
    return None


def _reach(settings: Settings, config: Path | None) -> tuple[dict[str, Any], list[str]]:
    facts, warnings = reach.reach_database(config)
    reach.reach_broker(settings, place.broker_url(config))
    counters = place.admission_url(config)
    if counters is None:
        warnings.append("there is no Redis for the fleet's counters ([admission] url): each process keeps to its share")
    else:
        reach.reach_counters(settings, counters)
    asked = "database and broker" if counters is None else "database, broker and the fleet's counters"
    return {**facts, "answer": asked}, warnings


@app.command()
def show(
    origin: Annotated[bool, typer.Option("--origin", help="Also where each value comes from.")] = False,
    json_: AsJson = False,
    config: ConfigPath = None,
) -> None:
    """Show every setting that is in force, defaults included. Secrets and URLs that hold some show as stars.

    With --origin also where each comes from: the default, the profile, a line of the file, a variable, or a person who has
    changed it for the whole fleet, which the database tells; where that does not answer, the rest is shown.

    \b
    counterfoil config show
    counterfoil config show --origin
    """
    from counterfoil.settings_origins import flat

    settings = place.load_settings(config)
    shown = settings.model_dump(mode="json", by_alias=True)
    if origin:
        return _show_origins(settings, shown, json_=json_, config=config)
    if json_:
        return as_json(shown)
    for key, value in flat(shown):
        if value is not None:
            say(f"{clean('.'.join(key))} = {clean(_text(value))}")
    return None


def _show_origins(settings: Settings, shown: Mapping[str, Any], *, json_: bool, config: Path | None) -> None:
    from counterfoil.settings_origins import flat, origins
    from counterfoil.settings_sources import find_file

    file, over = place.sources(config)
    known = origins(profile=settings.profile, file=find_file(file, os.environ), over=over, environ=os.environ)
    changed, why_unknown = _changed(settings, config)
    keys = [(key, value) for key, value in flat(shown) if value is not None or ".".join(key) in changed]
    rows: list[dict[str, Any]] = []
    for key, value in keys:
        name, origin = ".".join(key), known.of(key)
        change = changed.pop(name, None)
        rows.append(_row(name, value, origin.kind, str(origin), change))
    for name, standing in changed.items():  # of providers without a table, whose keys are not among those shown
        origin = known.of(tuple(name.split(".")))
        rows.append(_row(name, standing.configured, origin.kind, str(origin), standing))
    if json_:
        return as_json({"settings": rows, "changes_unknown": why_unknown})
    table(
        ("key", "value", "from"),
        [[row["key"], _text(row["value"]), row["from"]] for row in rows],
        empty="",
    )
    if why_unknown:
        say(f"what people have changed is not known here: {clean(why_unknown)}")
    return None


def _row(name: str, value: object, kind: str, origin: str, standing: Standing | None) -> dict[str, Any]:
    row = {"key": name, "value": value, "kind": kind, "from": origin}
    if standing is None or standing.change is None:
        return row
    change = standing.change
    said = f"change {change.change_id} by {change.by_person}, {stamp(change.at)}; configured {_text(value)} ({origin})"
    return {
        **row,
        "value": standing.value,
        "kind": "change",
        "from": said,
        "configured": {"value": value, "kind": kind, "from": origin},
        "change": {"change_id": change.change_id, "by": change.by_person, "at": change.at, "reason": change.reason},
    }


def _changed(settings: Settings, config: Path | None) -> tuple[dict[str, Standing], str | None]:
    """By full key, what people have changed and is in force; or why that is not known."""
    from counterfoil.ledger.changes import read_changes
    from counterfoil.ledger.queries import load
    from counterfoil.people.fleet import check_with, standings, tools_of

    try:
        with place.open_ledger(config, "reader") as ledger:
            login = ledger.row(load("counterfoil.cli", "sql/fleet.sql")["serves_everybody"], {})
            changes = read_changes(ledger)
    except (ConfigError, LedgerUnavailable) as error:
        return {}, error.message
    if login is None or not login["serves"]:
        return {}, "this login does not serve all tenants."
    check = check_with(tools_of(settings))
    found = {
        f"providers.{provider}.{standing.name}": standing
        for provider in sorted({change.provider for change in changes})
        for standing in standings(settings, provider, changes, check)
        if standing.change is not None
    }
    return found, None


def _text(value: object) -> str:
    return ", ".join(map(str, value)) if isinstance(value, list) else value_text(value)
