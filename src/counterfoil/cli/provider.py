"""`counterfoil provider list|pause|resume|drain`: what each provider may be sent, and stopping it for a while."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from counterfoil.cli import place
from counterfoil.cli.options import AsJson, ConfigPath, group
from counterfoil.cli.output import as_json, note, say, stop, table

if TYPE_CHECKING:
    from counterfoil.ledger.connection import Ledger, Row

app = group("Providers: what each may be sent, and stopping it for a while.")

Name = Annotated[str, typer.Argument(metavar="PROVIDER", help="Its name, as in `[providers.NAME]`.")]
Why = Annotated[str, typer.Option("--reason", metavar="TEXT", help="Why; kept with the change.")]

POLL_S = 0.5
"""Between two looks of `drain --wait`."""

COUNTS = ("ready", "retryable_failure", "executing", "uncertain", "operator_review", "begun")


@dataclass(frozen=True, slots=True)
class Seen:
    """Who may be meant, and what stands where."""

    names: list[str]
    work: Mapping[str, Row]
    """By provider."""


@app.command("list")
def list_providers(json_: AsJson = False, config: ConfigPath = None) -> None:
    """List the providers: what each may be sent, since when, who said so and why, and what stands there.

    begun: may be on the wire, has to be tried again, or takes something back; a draining provider is sent nothing else.

    \b
    counterfoil provider list
    """
    from counterfoil.ledger.changes import MODE_KEY, Mode, modes, read_changes

    with place.open_ledger(config, "reader") as ledger:
        seen = _seen(ledger, config)
        since = modes(ledger)
        said = {change.provider: change for change in read_changes(ledger) if change.name == MODE_KEY}
    shown: list[dict[str, Any]] = []
    for name in seen.names:
        mode, change = since.get(name), said.get(name)
        shown.append(
            {
                "provider": name,
                "mode": Mode.RUNNING if mode is None else mode.mode,
                "since": change.at if mode is None and change else mode.since if mode else None,
                "by": change.by_person if change else None,
                "reason": change.reason if change else None,
                **_counts(seen.work.get(name)),
            }
        )
    if json_:
        return as_json(shown)
    table(
        ("provider", "mode", "since", "by", "why", "ready", "to retry", "executing", "unknown", "in review", "begun"),
        [list(each.values()) for each in shown],
        empty="no providers: neither tables nor tools name one",
    )
    return None


@app.command()
def pause(name: Name, reason: Why, json_: AsJson = False, config: ConfigPath = None) -> None:
    """Send a provider nothing more, from now on and whatever becomes of the broker. Nothing is lost: it waits in Postgres.

    What is on the wire at this moment ends by itself. Look-ups go on, since they only ask.

    \b
    counterfoil provider pause stripe --reason "they told us to stop"
    """
    _change(name, "paused", reason, json_=json_, config=config)


@app.command()
def resume(name: Name, reason: Why, json_: AsJson = False, config: ConfigPath = None) -> None:
    """Send a provider everything again.

    \b
    counterfoil provider resume stripe --reason "they are back"
    """
    _change(name, "running", reason, json_=json_, config=config)


@app.command()
def drain(
    name: Name,
    reason: Why,
    wait_s: Annotated[
        float,
        typer.Option(
            "--wait", metavar="SECONDS", min=0, max=86_400, help="Wait so long until nothing begun is unfinished."
        ),
    ] = 0,
    json_: AsJson = False,
    config: ConfigPath = None,
) -> None:
    """Begin nothing new at a provider, and finish what was begun: retries, doubts, and whatever takes something back.

    Exit 6 when --wait is over and something is still unfinished; it goes on draining. What is in review waits for a
    person and is not waited for.

    \b
    counterfoil provider drain stripe --reason "maintenance at 22:00" --wait 600
    """
    _change(name, "draining", reason, wait_s=wait_s, json_=json_, config=config)


def _change(
    name: str,
    mode: Literal["running", "paused", "draining"],
    reason: str,
    *,
    wait_s: float | None = None,
    json_: bool,
    config: Path | None,
) -> None:
    from counterfoil.ledger.changes import Mode
    from counterfoil.people.fleet import change_mode, find_provider

    with place.open_ledger(config, "operator") as ledger:
        find_provider(name, _seen(ledger, config).names)
        change_id = change_mode(ledger, name, Mode(mode), by=place.person(), channel="cli", reason=reason)
        counts = _until_drained(ledger, name, wait_s or 0) if mode == "draining" else _work(ledger, name)
    begun = counts["begun"]
    if json_:
        as_json({"provider": name, "mode": mode, "change_id": change_id, **counts})
    else:
        say(f"{name} is {mode}: {_told(counts)}")
        if mode == "draining" and begun:
            say(f"  {begun} begun and not finished; `counterfoil provider list` shows when there are none,")
            say("  `counterfoil outbox list` what holds them back")
    if wait_s and begun:
        stop(6)


def _until_drained(ledger: Ledger, name: str, wait_s: float) -> dict[str, int]:
    """What stands there once nothing begun is unfinished, or `wait_s` is over."""
    deadline, before = time.monotonic() + wait_s, ""
    while True:  # ends at `deadline`
        counts = _work(ledger, name)
        left_s = deadline - time.monotonic()
        if not counts["begun"] or left_s <= 0:
            return counts
        if (now := _told(counts)) != before:
            note(f"{name}: {counts['begun']} begun and not finished ({now})")
            before = now
        time.sleep(min(POLL_S, left_s))


def _told(counts: Mapping[str, int]) -> str:
    words = {"ready": "ready", "retryable_failure": "to retry", "executing": "executing", "uncertain": "unknown",
             "operator_review": "in review"}  # fmt: skip
    return ", ".join(f"{counts[state]} {word}" for state, word in words.items() if counts[state]) or "nothing waits"


def _work(ledger: Ledger, name: str) -> dict[str, int]:
    from counterfoil.ledger.queries import load

    return _counts(ledger.row(load("counterfoil.cli", "sql/fleet.sql")["work_by_provider"], {"provider": name}))


def _counts(row: Row | None) -> dict[str, int]:
    return {name: 0 if row is None else int(row[name]) for name in COUNTS}


def _seen(ledger: Ledger, config: Path | None) -> Seen:
    """The providers of the configuration and its tools, and those that have rows or were changed."""
    from counterfoil.ledger.changes import modes, read_changes
    from counterfoil.ledger.queries import load
    from counterfoil.people.fleet import known_providers, tools_of

    settings = place.load_settings(config)
    rows = ledger.rows(load("counterfoil.cli", "sql/fleet.sql")["work_by_provider"], {"provider": None})
    work = {row["provider"]: row for row in rows}
    changed = {change.provider for change in read_changes(ledger)}
    return Seen(known_providers(settings, tools_of(settings), work, changed, modes(ledger)), work)
