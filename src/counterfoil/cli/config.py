"""`counterfoil config check|show`: whether the configuration holds together, and what is in force."""

from __future__ import annotations

import shutil
from collections.abc import Iterator, Mapping
from typing import Annotated, Any

import typer

from counterfoil.cli import place
from counterfoil.cli.options import AsJson, ConfigPath, group
from counterfoil.cli.output import as_json, clean, say
from counterfoil.ledger.errors import BrokerUnavailable

app = group("Configuration: counterfoil.toml and COUNTERFOIL_* variables.")

CONNECT_WAIT_S = 5


@app.command()
def check(
    connect: Annotated[bool, typer.Option("--connect", help="Also reach the database and the broker.")] = False,
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
    names = check_tools(settings).names()
    if connect:
        _reach_database(config)
        _reach_broker(config)
    program = settings.notify.command[0] if settings.notify.command else None
    missing = program is not None and shutil.which(program) is None
    warnings = [f"notify.command: {program} is not found on this machine: workers need it on theirs"] * missing
    checked = {"profile": settings.profile, "tools": names, "connected": connect, "warnings": warnings}
    if json_:
        return as_json(checked)
    reached = ", database and broker answer" if connect else ""
    say(f"configuration is sound: profile {settings.profile}, {len(names)} tools{reached}")
    for warning in warnings:
        say(f"warning: {clean(warning)}")
    return None


@app.command()
def show(json_: AsJson = False, config: ConfigPath = None) -> None:
    """Show every setting that is in force, defaults included. Secrets and URLs that hold some show as stars.

    \b
    counterfoil config show
    """
    settings = place.load_settings(config)
    shown = settings.model_dump(mode="json", by_alias=True)
    if json_:
        return as_json(shown)
    for key, value in _flat(shown):
        say(f"{clean(key)} = {clean(value)}")
    return None


def _flat(table: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, object]]:
    for name, value in table.items():
        if isinstance(value, Mapping):
            yield from _flat(value, f"{prefix}{name}.")
        elif value is not None:
            yield prefix + name, ", ".join(map(str, value)) if isinstance(value, list) else value


def _reach_database(config: ConfigPath) -> None:
    from counterfoil.ledger.queries import load

    with place.open_ledger(config, "reader") as ledger:
        ledger.row(load("counterfoil.cli", "sql/check.sql")["check_login"], {})


def _reach_broker(config: ConfigPath) -> None:
    from kombu.connection import Connection
    from kombu.exceptions import OperationalError

    with Connection(place.broker_url(config), connect_timeout=CONNECT_WAIT_S) as connection:
        try:
            connection.ensure_connection(max_retries=1, timeout=CONNECT_WAIT_S)
        except (OperationalError, OSError) as error:
            raise BrokerUnavailable(
                f"the broker {connection.as_uri()} does not answer ({type(error.__cause__ or error).__name__}).",
                fix="Is it running, and is [broker] url right?",
            ) from None  # its text may quote the URL with the password
