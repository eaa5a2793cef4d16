"""`counterfoil budget list|set|reset|history`: what the fleet may spend at each provider, and changing it while it runs."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from contextlib import closing, redirect_stdout
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from counterfoil.cli import place
from counterfoil.cli.options import AsJson, ConfigPath, DryRun, Limit, Reason, group
from counterfoil.cli.output import as_json, say, table, value_text
from counterfoil.ledger.errors import ArgumentError

if TYPE_CHECKING:
    from counterfoil.cli.budget_page import Page, WhatIf
    from counterfoil.ledger.changes import Change
    from counterfoil.ledger.connection import Ledger, Row
    from counterfoil.people.fleet import Values
    from counterfoil.settings import Settings
    from counterfoil.settings_providers import ProviderSettings
    from counterfoil.workers.admission import Peek
    from counterfoil.workers.live import Check

app = group("Budgets: what the whole fleet may spend at each provider, and changing it while it runs.")

Name = Annotated[str, typer.Argument(metavar="PROVIDER", help="Its name, as in `[providers.NAME]`.")]
MaybeName = Annotated[str | None, typer.Argument(metavar="PROVIDER", help="Only this one, in full.")]
Pairs = Annotated[
    list[str] | None, typer.Argument(metavar="KEY=VALUE", help="Such as rate_per_s=10 or retry_budget.tokens_max=200.")
]
SET, RESET = "changed at the command line", "reset at the command line"

DAY_S = 86_400.0
ATTEMPTS_MAX = 20_000
"""What a replay is made of: two of them take a few seconds."""
SCAN_MAX = 500_000
"""Attempts at all providers that are looked through for one provider's."""


@app.command("list")
def list_budgets(
    provider: MaybeName = None,
    pairs: Pairs = None,
    what_if: Annotated[
        bool, typer.Option("--what-if", help="Show what these values would have meant in the last 24 hours.")
    ] = False,
    json_: AsJson = False,
    config: ConfigPath = None,
) -> None:
    """List what the fleet has spent and may spend at each provider; of one provider every limit, and where it comes from.

    this hour, 24 hours: first attempts + retries. processes: those that have asked within the last minute. Counters are
    the store's (Redis). Where it does not answer, the limits are shown all the same.

    \b
    counterfoil budget list
    counterfoil budget list stripe
    counterfoil budget list --what-if stripe rate_per_s=10 retry_budget.tokens_max=200
    """
    if pairs and not what_if:
        raise ArgumentError("values go with --what-if, or with `budget set`.", path="KEY=VALUE", code="usage")
    if what_if and not (provider and pairs):
        raise ArgumentError("a provider, and at least one KEY=VALUE.", path="--what-if", code="usage")
    if provider and what_if:
        from counterfoil.people.fleet import read_pairs

        with place.open_ledger(config, "reader") as ledger:
            told = _Fleet(ledger, config).what_if(provider, read_pairs(pairs or []))
        return as_json(told.to_json()) if json_ else told.print()
    with place.open_ledger(config, "reader") as ledger:
        pages = _Fleet(ledger, config).pages(provider)
    if json_:
        return as_json([page.to_json() for page in pages])
    if provider:
        return pages[0].print()
    from counterfoil.cli.budget_page import print_overview

    return print_overview(pages)


@app.command("set")
def set_values(
    provider: Name,
    pairs: Pairs = None,
    reason: Reason = SET,
    from_: Annotated[
        str | None,
        typer.Option("--from", metavar="FILE", help="A JSON object with the values; - reads standard input."),
    ] = None,
    dry_run: DryRun = False,
    json_: AsJson = False,
    config: ConfigPath = None,
) -> None:
    """Change limits of a provider for the whole fleet; every process sees it within five seconds. All of the values or none.

    What can be changed so: the retry budget, the breaker, rate, calls in flight, look-ups, attempts, backoff, the time-out
    and when a person is asked. --dry-run says what it would have meant in the last 24 hours, and changes nothing.

    \b
    counterfoil budget set stripe rate_per_s=10 --reason "they have halved our limit"
    counterfoil budget set stripe --from limits.json --dry-run
    """
    from counterfoil.people.fleet import read_document, read_pairs

    values = {**(read_document(_read(from_)) if from_ else {}), **read_pairs(pairs or [])}
    if not values:
        raise ArgumentError("at least one KEY=VALUE, or --from.", path="KEY=VALUE", code="usage")
    _change(provider, values, reason, dry_run=dry_run, json_=json_, config=config)


@app.command()
def reset(
    provider: Name,
    keys: Annotated[list[str], typer.Argument(metavar="KEY", help="Such as rate_per_s.")],
    reason: Reason = RESET,
    dry_run: DryRun = False,
    json_: AsJson = False,
    config: ConfigPath = None,
) -> None:
    """Take changes back: what the configuration says is in force again.

    \b
    counterfoil budget reset stripe rate_per_s --reason "the old limit again"
    """
    from counterfoil.people.fleet import AS_CONFIGURED

    _change(provider, dict.fromkeys(keys, AS_CONFIGURED), reason, dry_run=dry_run, json_=json_, config=config)


@app.command()
def history(
    provider: Annotated[str | None, typer.Argument(metavar="PROVIDER", help="Only this one's.")] = None,
    limit: Limit = 50,
    json_: AsJson = False,
    config: ConfigPath = None,
) -> None:
    """List every change of limits and modes, the newest first: who, through which login, when and why.

    \b
    counterfoil budget history stripe
    """
    from counterfoil.cli.budget_page import shown_change
    from counterfoil.ledger.changes import list_changes

    with place.open_ledger(config, "reader") as ledger:
        changes = list_changes(ledger, provider=provider, limit=limit)
    if json_:
        return as_json([shown_change(change) for change in changes])
    table(
        ("id", "at", "provider", "key", "value", "by", "login", "why"),
        [
            [c.change_id, c.at, c.provider, c.name, "as configured" if c.value is None else c.value.strip('"'), c.by_person,
             c.db_role, c.reason]
            for c in changes
        ],
        empty="nothing was changed, or this login does not serve all tenants",
    )  # fmt: skip
    return None


def _change(provider: str, values: Values, reason: str, *, dry_run: bool, json_: bool, config: Path | None) -> None:
    from counterfoil.people.fleet import SEEN_WITHIN_S, change_values

    with place.open_ledger(config, "operator") as ledger:
        fleet = _Fleet(ledger, config)
        before = fleet.check(provider, values)
        if dry_run:
            told = fleet.what_if(provider, values)
            return as_json({"dry_run": True, **told.to_json()}) if json_ else told.print()
        change_id = change_values(ledger, provider, values, by=place.person(), channel="cli", reason=reason)
        after = _Fleet(ledger, config).values(provider)
    if json_:
        changed = [{"key": name, "before": before[name], "value": after[name]} for name in values]
        return as_json({"provider": provider, "change_id": change_id, "changed": changed})
    for name in values:
        say(f"{provider} {name}: {value_text(before[name])} -> {value_text(after[name])}")
    say(f"every process has it within {SEEN_WITHIN_S} s; `counterfoil budget list {provider}` shows what comes of it")
    return None


class _Fleet:
    """What is configured here, and what people have changed."""

    def __init__(self, ledger: Ledger, config: Path | None) -> None:
        from counterfoil.ledger.changes import read_changes
        from counterfoil.people.fleet import check_with, tools_of

        self.ledger = ledger
        self.config = config
        self.settings: Settings = place.load_settings(config)
        self.registry = tools_of(self.settings)
        self.check_provider: Check = check_with(self.registry)
        self.changes: list[Change] = read_changes(ledger)

    def names(self) -> list[str]:
        from counterfoil.ledger.queries import load
        from counterfoil.people.fleet import known_providers

        query = load("counterfoil.cli", "sql/fleet.sql")["work_by_provider"]
        rows = [row["provider"] for row in self.ledger.rows(query, {"provider": None})]
        return known_providers(self.settings, self.registry, rows, {change.provider for change in self.changes})

    def check(self, provider: str, values: Values) -> dict[str, object]:
        """Raises unless the values can be put in force; what is in force now."""
        from counterfoil.people.fleet import check_values, find_provider

        find_provider(provider, self.names())
        check_values(self.settings, provider, self.changes, values, self.check_provider)
        return self.values(provider)

    def values(self, provider: str) -> dict[str, object]:
        from counterfoil.people.fleet import standings

        found = standings(self.settings, provider, self.changes, self.check_provider)
        return {standing.name: standing.value for standing in found}

    def in_force(self, provider: str, changes: Sequence[Change] | None = None) -> ProviderSettings:
        from counterfoil.workers.live import in_force

        wanted = self.changes if changes is None else changes
        return in_force(self.settings, provider, wanted, self.check_provider).settings

    def pages(self, provider: str | None) -> list[Page]:
        """One for each provider, or for this one."""
        from counterfoil.cli.budget_page import Page
        from counterfoil.ledger.changes import modes
        from counterfoil.people.fleet import find_provider, standings

        names = self.names()
        names = names if provider is None else [find_provider(provider, names)]
        peeks, stopped = self._peeks(names), modes(self.ledger)
        login = self._login()
        return [
            Page(
                provider=name,
                mode=stopped[name].mode if name in stopped else "running",
                has_store=peeks is not None,
                peek=None if peeks is None else peeks[name],
                settings=self.in_force(name),
                standings=standings(self.settings, name, self.changes, self.check_provider),
                sees_changes=login["serves"],
                now=login["now"],
            )
            for name in names
        ]

    def what_if(self, provider: str, values: Values) -> WhatIf:
        """What these values would have meant for the attempts that were recorded."""
        from counterfoil.cli.budget_page import WhatIf
        from counterfoil.ledger.queries import load
        from counterfoil.people.fleet import would_be
        from counterfoil.people.replay import could_pass, replay, tried_of
        from counterfoil.workers.setup import limits_of

        self.check(provider, values)
        now = limits_of(self.in_force(provider))
        then = limits_of(self.in_force(provider, would_be(provider, self.changes, values)))
        wanted = {"provider": provider, "seconds": DAY_S, "scan": SCAN_MAX, "limit": ATTEMPTS_MAX}
        rows = self.ledger.rows(load("counterfoil.cli", "sql/fleet.sql")["attempts_at"], wanted)
        tried, lease_ms = tried_of(rows), self.settings.workers.lease_s * 1000
        peek = (self._peeks([provider]) or {}).get(provider)
        counted = None if peek is None else _denied(peek)
        return WhatIf(
            provider=provider,
            values=values,
            since=rows[0]["started_at"] if rows else None,
            until=rows[-1]["started_at"] if rows else None,
            is_capped=len(rows) == ATTEMPTS_MAX or bool(rows and rows[0]["scanned"] == SCAN_MAX),
            now=replay(tried, now, lease_ms=lease_ms),
            then=replay(tried, then, lease_ms=lease_ms),
            counted=counted,
            could_pass=None if counted is None else could_pass(counted, now, then),
            sees_all=self._login()["serves"],
        )

    def _login(self) -> Row:
        from counterfoil.ledger.queries import load

        return self.ledger.rows(load("counterfoil.cli", "sql/fleet.sql")["serves_everybody"], {})[0]

    def _peeks(self, names: Sequence[str]) -> dict[str, Peek | None] | None:
        """What the store has of each provider, None where it does not answer; None in place of all: there is no store."""
        from counterfoil.workers.admission import FleetAdmission, Store
        from counterfoil.workers.setup import limits_of

        url = place.admission_url(self.config)
        if url is None:
            return None
        given = self.settings.admission
        store = Store(
            url=url,
            key_prefix=self.settings.broker.key_prefix,
            timeout_s=given.timeout_s,
            retry_after_s=given.retry_after_s,
        )
        admission = FleetAdmission(limits=lambda name: limits_of(self.in_force(name)), worker="", store=store)
        with closing(store), redirect_stdout(sys.stderr):  # what it logs is no part of the answer
            return {name: admission.peek(name) for name in names}


def _denied(peek: Peek) -> dict[str, int]:
    denied: dict[str, int] = {}
    for hour in peek.hours[-24:]:
        for reason, count in hour.denied.items():
            denied[reason] = denied.get(reason, 0) + count
    return denied


def _read(source: str) -> str:
    if source == "-":
        return sys.stdin.read()
    try:
        return Path(source).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ArgumentError(f"{source} cannot be read.", path="--from", code="usage") from error
