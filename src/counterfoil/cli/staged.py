"""Decides what `counterfoil run show` tells of a run's plan: its pivot, what a person has to decide, and what stands staged.

A result may not be shown to every login; when something staged lapses is told where it may.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from counterfoil.cli import place
from counterfoil.cli.output import clean, distance, say, stamp, table

if TYPE_CHECKING:
    from counterfoil.ledger.connection import Ledger, Row


def read_plan(ledger: Ledger, run: Row, config: Path | None) -> dict[str, list[dict[str, Any]]]:
    """The run's open proposals and what it has staged, for an answer in JSON; times as the ledger has them."""
    from counterfoil.ledger.queries import load

    own = load("counterfoil.cli", "sql/show.sql")
    wanted = {"tenant": run["tenant"], "run": run["run"]}
    staged = ledger.rows(own["staged_of_run"], wanted)
    allowed = ledger.row(own["may_read_results"], {}) if staged else None
    results = ledger.rows(own["results_of_staged"], wanted) if allowed and allowed["may"] else []
    lapses = _lapses(results, config)
    return {
        "proposals": [dict(row) for row in ledger.rows(own["open_proposals_of_run"], wanted)],
        "staged": [{**row, "lapses_at": lapses.get(row["action_id"])} for row in staged],
    }


def pivot_facts(run: Row) -> list[tuple[str, object]]:
    """Names and values; none of a run that has staged nothing."""
    passed = run["pivot_passed_at"]
    match run["pivot"]:
        case None:
            return []
        case "ahead" if run["state"] not in ("open", "closed"):
            pivot = "never passed"
        case "ahead":
            pivot = "ahead: until a person has decided, only what can be taken back"
        case _:
            pivot = "passed" if passed is None else f"passed {stamp(passed)}"
    return [("pivot", pivot), ("irreversible before it", run["irreversible_before_pivot"])]


def print_plan(run: Row, plan: Mapping[str, Sequence[Mapping[str, Any]]]) -> None:
    """What waits for a decision, with the command that shows it, and what stands staged; nothing where there is none."""
    for proposal in plan["proposals"]:
        steps = "1 step" if proposal["steps"] == 1 else f"{proposal['steps']} steps"
        what = f"a plan of {steps}" if proposal["is_plan"] else "one call"
        say()
        say(
            f"{proposal['proposal_id']} waits for a person ({what}): expires {distance(proposal['expires_at'], run['now'])}"
        )
        say(f"  counterfoil proposal show {proposal['proposal_id']}")
    if plan["staged"]:
        say()
        table(
            ("staged", "tool", "target", "state", "lapses", "action"),
            [
                [row[name] for name in ("step", "tool", "target", "state", "lapses_at", "action_id")]
                for row in plan["staged"]
            ],
            empty="",
        )


def _lapses(results: Sequence[Row], config: Path | None) -> dict[str, str]:
    """By action: when it lapses by itself, in the provider's words; without those whose tool is not loaded here."""
    from counterfoil.ledger.errors import CounterfoilError
    from counterfoil.providers.registry import Registry

    if not results:
        return {}
    try:
        settings = place.load_settings(config)
        registry = Registry.load(settings.tools, settings.http)
    except CounterfoilError:  # the tools are the workers'; without them this much is left out
        return {}
    found = {}
    for row in results:
        spec = registry.find(row["tool"], row["tool_version"])
        said = json.loads(row["result"]).get(spec.lapses) if spec is not None and spec.lapses is not None else None
        if isinstance(said, str):
            found[str(row["action_id"])] = clean(said)
    return found
