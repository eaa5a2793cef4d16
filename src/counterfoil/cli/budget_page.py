"""Decides what `counterfoil budget` shows of one provider, of all of them, and of a change that is not made yet."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Any

from counterfoil.cli.output import clean, facts, say, stamp, table, value_text

if TYPE_CHECKING:
    from counterfoil.ledger.changes import Change
    from counterfoil.people.fleet import Standing, Values
    from counterfoil.people.replay import Told
    from counterfoil.settings_providers import ProviderSettings, RetryBudget
    from counterfoil.workers.admission import HourSeen, Peek

AWAY = "the store of the fleet's counters does not answer: first attempts go by each process's own share, retries wait"
NO_STORE = "there is no store of the fleet's counters ([admission] url): each process goes by the limits alone"
HIDDEN = (
    "this login does not serve all tenants, so changes of the limits are not shown; the values are the configuration's"
)

UNKNOWN = (
    "attempts that were held back and never made are in no record, so looser limits may let more through than is shown",
    "outcomes are taken as they were: a provider that is asked less, or more, may answer otherwise",
    "it begins with a full budget and a closed breaker, takes each attempt as a batch of its own, and knows no look-ups",
)
"""What a replay cannot tell, said beside it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Page:
    """One provider: what it may be sent, what was spent, what is in force and why."""

    provider: str
    mode: str
    has_store: bool
    peek: Peek | None
    settings: ProviderSettings
    standings: Sequence[Standing]
    sees_changes: bool
    now: datetime

    @property
    def store(self) -> str:
        if not self.has_store:
            return "none"
        return "away" if self.peek is None else "answers"

    def hours(self, count: int) -> Mapping[str, Any]:
        """First attempts, retries and waits of the last `count` hours of the clock, the present one included."""
        this_hour_ms = self.now.timestamp() // 3600 * 3_600_000
        kept = () if self.peek is None else self.peek.hours
        return _sum([hour for hour in kept if hour.hour_ms > this_hour_ms - count * 3_600_000])

    def to_json(self) -> dict[str, Any]:
        peek = self.peek
        return {
            "provider": self.provider,
            "mode": self.mode,
            "store": self.store,
            "breaker": peek and peek.breaker,
            "open_in_s": peek and peek.open_in_s,
            "tokens": peek and peek.tokens,
            "tokens_max": self.settings.retry_budget.tokens_max,
            "in_flight": peek and peek.in_flight,
            "concurrency_max": self.settings.concurrency_max,
            "rate_per_s": self.settings.rate_per_s,
            "rate_in_use_per_s": peek and peek.rate_per_s,
            "processes": peek and peek.processes,
            "last_minute": peek and {"firsts": peek.firsts_last_minute, "retries": peek.retries_last_minute},
            "this_hour": peek and self.hours(1),
            "last_24_h": peek and self.hours(24),
            "sees_changes": self.sees_changes,
            "settings": [_shown(standing) for standing in self.standings],
        }

    def print(self) -> None:
        peek, settings = self.peek, self.settings
        facts([("provider", self.provider), ("mode", self.mode), *([] if peek is None else _facts(peek, settings))])
        if self.store != "answers":
            say(AWAY if self.has_store else NO_STORE)
        if peek is not None:
            say()
            table(
                ("", "first attempts", "retries", "waited"),
                [
                    ("last minute", peek.firsts_last_minute, peek.retries_last_minute, ""),
                    *((name, *_cells(self.hours(count))) for name, count in (("this hour", 1), ("24 hours", 24))),
                ],
                empty="",
            )
        say()
        table(
            ("limit", "in force", "configured", "changed by", "when", "why"),
            [_row(standing) for standing in self.standings],
            empty="",
        )
        for standing in self.standings:
            if standing.ignored is not None:
                say(f"change {standing.ignored.change_id} is left out: {clean(standing.why_ignored)}")
        if not self.sees_changes:
            say(HIDDEN)


def print_overview(pages: Sequence[Page]) -> None:
    """A line for each provider."""
    table(
        (
            "provider",
            "mode",
            "breaker",
            "tokens",
            "in flight",
            "rate/s",
            "this hour",
            "24 hours",
            "waited in 24 h",
            "changed",
        ),
        [_overview(page) for page in pages],
        empty="no providers: neither tables nor tools name one",
    )
    if pages and pages[0].store != "answers":
        say(AWAY if pages[0].has_store else NO_STORE)
    if pages and not pages[0].sees_changes:
        say(HIDDEN)


@dataclass(frozen=True, slots=True, kw_only=True)
class WhatIf:
    """What other values would have meant."""

    provider: str
    values: Values
    since: datetime | None
    until: datetime | None
    is_capped: bool
    now: Told
    then: Told
    counted: Mapping[str, int] | None
    """Waits that the store has counted in 24 hours, by reason; None: it does not answer."""
    could_pass: Mapping[str, int] | None
    sees_all: bool
    """Whether the login serves all tenants: else both the attempts and the changes are a part."""

    def to_json(self) -> dict[str, Any]:
        return {
            "provider": self.provider,
            "values": dict(self.values),
            "from": self.since,
            "to": self.until,
            "is_capped": self.is_capped,
            "sees_all": self.sees_all,
            "now": asdict(self.now),
            "then": asdict(self.then),
            "waits_counted": self.counted,
            "waits_that_could_pass": self.could_pass,
            "not_known": list(UNKNOWN),
        }

    def print(self) -> None:
        wanted = ", ".join(
            f"{name}={'as configured' if value is None else value}" for name, value in self.values.items()
        )
        attempts = self.now.firsts + self.now.retries
        say(f"{self.provider} with {clean(wanted)}, for the {attempts} attempts of the last 24 hours")
        if self.is_capped and self.since is not None:
            say(f"  only the newest of them, since {stamp(self.since)}: no more are replayed at once")
        if not self.sees_all:
            say(f"  only those of this login's tenants; {HIDDEN}")
        if attempts:
            self._print_both()
        if self.counted is None:
            say("How often rows had to wait is not known: the store does not answer, or there is none.")
        elif self.could_pass is not None and self.counted:
            said = ", ".join(f"{self.could_pass[reason]} of {n} for {reason}" for reason, n in self.counted.items())
            say(f"Waits that were counted and would not have been, at most: {said}.")
        say("Not known:")
        for line in UNKNOWN:
            say(f"  - {line}")

    def _print_both(self) -> None:
        both = (self.now, self.then)
        say()
        table(
            ("", "as it is", "with the change"),
            [
                ("first attempts", *(told.firsts for told in both)),
                ("  would have waited", *(_with(told.firsts_waited, told.firsts_by) for told in both)),
                ("retries", *(told.retries for told in both)),
                ("  would have waited", *(_with(told.retries_waited, told.retries_by) for told in both)),
                ("longest wait", *(f"{told.waited_ms_max / 1000:.1f} s" for told in both)),
                ("still waiting at the end", *(told.held for told in both)),
                ("breaker opened", *(f"{told.openings} times" for told in both)),
            ],
            empty="",
        )
        say()


def retries_left(peek: Peek, budget: RetryBudget) -> int:
    """How many more retries the last minute's calls allow, whatever the bucket holds; 0 or less: none."""
    return math.floor(retries_max(peek, budget)) - peek.retries_last_minute


def retries_max(peek: Peek, budget: RetryBudget) -> float:
    """How many retries the last minute's calls allow."""
    return max(budget.ratio_max * peek.firsts_last_minute, budget.retries_per_min_min)


def shown_change(change: Change) -> dict[str, Any]:
    """A change as --json has it."""
    return {**asdict(change), "provider": change.provider, "name": change.name}


def _facts(peek: Peek, settings: ProviderSettings) -> list[tuple[str, object]]:
    breaker = peek.breaker if peek.breaker != "open" else f"open, one call in {peek.open_in_s:.1f} s"
    held = "" if peek.rate_per_s >= settings.rate_per_s else " for now, after an outage"
    return [
        ("breaker", "half open: one call shows whether it answers" if breaker == "half" else breaker),
        ("tokens", f"{peek.tokens:.1f} of {settings.retry_budget.tokens_max:g}"),
        (
            "retries",
            f"{peek.retries_last_minute} of {math.floor(retries_max(peek, settings.retry_budget))} in a minute",
        ),
        ("in flight", f"{peek.in_flight} of {settings.concurrency_max}"),
        ("rate", f"up to {peek.rate_per_s:g} a second{held}"),
        ("processes", peek.processes),
    ]


def _overview(page: Page) -> Sequence[object]:
    changed = sum(standing.change is not None for standing in page.standings)
    peek, rate = page.peek, page.settings.rate_per_s
    if peek is None:
        limit = page.settings.retry_budget.tokens_max
        return (page.provider, page.mode, "-", f"- of {limit:g}", f"- of {page.settings.concurrency_max}", f"{rate:g}",
                "-", "-", "-", changed)  # fmt: skip
    hour, day = page.hours(1), page.hours(24)
    return (
        page.provider,
        page.mode,
        peek.breaker,
        f"{peek.tokens:.0f} of {page.settings.retry_budget.tokens_max:g}",
        f"{peek.in_flight} of {page.settings.concurrency_max}",
        f"{peek.rate_per_s:g}" if peek.rate_per_s >= rate else f"{peek.rate_per_s:g} of {rate:g}",
        f"{hour['firsts']} + {hour['retries']}",
        f"{day['firsts']} + {day['retries']}",
        _by(day["denied"]),
        changed,
    )


def _row(standing: Standing) -> Sequence[object]:
    change = standing.change
    value = value_text(standing.value)
    if change is None:
        return (standing.name, value, value_text(standing.configured), "", "", "")
    return (standing.name, value, value_text(standing.configured), change.by_person, change.at, change.reason)


def _shown(standing: Standing) -> dict[str, Any]:
    return {
        "key": standing.name,
        "value": standing.value,
        "configured": standing.configured,
        "change": None if standing.change is None else shown_change(standing.change),
        "ignored": None
        if standing.ignored is None
        else {**shown_change(standing.ignored), "why": standing.why_ignored},
    }


def _sum(hours: Sequence[HourSeen]) -> dict[str, Any]:
    denied: dict[str, int] = {}
    for hour in hours:
        for reason, count in hour.denied.items():
            denied[reason] = denied.get(reason, 0) + count
    return {"firsts": sum(h.firsts for h in hours), "retries": sum(h.retries for h in hours), "denied": denied}


def _cells(summed: Mapping[str, Any]) -> tuple[object, ...]:
    return summed["firsts"], summed["retries"], _by(summed["denied"])


def _with(count: int, by: Mapping[str, int]) -> str:
    return f"{count} ({_by(by)})" if by else str(count)


def _by(denied: Mapping[str, int]) -> str:
    return ", ".join(f"{reason} {count}" for reason, count in sorted(denied.items(), key=lambda each: -each[1])) or "0"
