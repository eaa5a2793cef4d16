"""`counterfoil outbox list|revive`: what waits to be published, what holds it back, and wake-ups that nobody could claim."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from contextlib import closing, redirect_stdout
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from counterfoil.cli import place
from counterfoil.cli.options import AsJson, ConfigPath, DryRun, Limit, Tenant, group
from counterfoil.cli.output import as_json, distance, say, stop, table
from counterfoil.ledger.errors import ArgumentError, NotFound

if TYPE_CHECKING:
    from counterfoil.ledger.connection import Ledger
    from counterfoil.outbox.dead import DeadWakeUp, ListedQueue
    from counterfoil.outbox.gates import Gate
    from counterfoil.settings import Settings

app = group("The outbox: what waits to be published, what holds it back, and wake-ups that nobody could claim.")

Queue = Annotated[str | None, typer.Option("--queue", metavar="QUEUE", help="Only this queue's, such as cf-stripe.")]

REVIVED_MAX = 10_000
"""Wake-ups revived by one command; more take another one."""

HELD = {
    "paused": "paused",
    "draining": "draining: only what was begun, or takes something back",
    "breaker": "breaker open",
    "budget": "no retry budget",
    "ratio": "retries are at their part of a minute's calls",
    "store_away": "limits unknown: first attempts only",
    "high_water": "high water",
    "unserved": "no worker takes it",
}
"""In a person's words."""


@app.command("list")
def list_outbox(
    dead: Annotated[bool, typer.Option("--dead", help="The dead wake-ups one by one, instead of the queues.")] = False,
    queue: Queue = None,
    tenant: Tenant = None,
    limit: Limit = 50,
    json_: AsJson = False,
    config: ConfigPath = None,
) -> None:
    """List the queues: what is due and for how long, what is in the broker, what is dead, and what holds a queue back.

    With --dead the wake-ups that were published often and never claimed, the longest dead first; exit 6 if there are any.

    \b
    counterfoil outbox list
    counterfoil outbox list --dead --queue cf-stripe
    """
    from counterfoil.outbox.dead import list_dead, list_queues

    settings = place.load_settings(config)
    with place.open_ledger(config, "reader") as ledger:
        if dead:
            found = list_dead(ledger, tenant=tenant, queue=queue, limit=limit)
            return _print_dead(found, json_=json_)
        queues = [each for each in list_queues(ledger, tenant=tenant) if queue in (None, each.queue)][:limit]
        limits = _limits([each.queue for each in queues], settings, ledger, config)
    shown = [_listed(each, limits.get(each.queue), settings.relay.high_water) for each in queues]
    if json_:
        return as_json(shown)
    table(
        ("queue", "due", "oldest", "retries due", "later", "in broker", "dead", "held back by"),
        [
            [
                *(row[name] for name in ("queue", "due")),
                distance(row["due_since"], each.now) if row["due_since"] else None,
                *(row[name] for name in ("due_retries", "later", "published", "dead")),
                "; ".join(HELD[why] for why in row["held_by"]) or None,
            ]
            for row, each in zip(shown, queues, strict=True)
        ],
        empty="nothing waits",
    )
    return None


@app.command()
def revive(
    actions: Annotated[list[str] | None, typer.Argument(metavar="[ACTION]...", help="Action ids, act_….")] = None,
    queue: Queue = None,
    all_dead: Annotated[bool, typer.Option("--all-dead", help="Every dead wake-up that this login may see.")] = False,
    dry_run: DryRun = False,
    json_: AsJson = False,
    config: ConfigPath = None,
) -> None:
    """Return dead wake-ups to the outbox: due now, and counted anew. First see to what stopped the workers.

    The actions are as they were: claimed by one worker each, under their own keys. Exit 3 when a named one is not dead,
    and then nothing is revived.

    \b
    counterfoil outbox revive act_k3v7…
    counterfoil outbox revive --queue cf-stripe --dry-run
    """
    from counterfoil.outbox import dead

    if sum([bool(actions), queue is not None, all_dead]) != 1:
        raise ArgumentError(
            "say which.",
            path="ACTION",
            code="usage",
            fix="Give action ids, or --queue QUEUE, or --all-dead: one of them.",
        )
    with place.open_ledger(config, "operator") as ledger:
        found = dead.list_dead(ledger, queue=queue, action_ids=actions or None, limit=REVIVED_MAX)
        missing = sorted(set(actions or ()) - {each.action_id for each in found})
        if missing:
            raise NotFound(
                f"no dead wake-up of {', '.join(missing)} that this login may see.",
                fix="`counterfoil outbox list --dead` lists those that there are.",
            )
        revived = [each.action_id for each in found if not dry_run and dead.revive(ledger, each.action_id)]
    if json_:
        return as_json(
            {
                "dry_run": dry_run,
                "revived": revived,
                "would_revive": [each.action_id for each in found] if dry_run else [],
            }
        )
    for each in found:
        said = "would be revived" if dry_run else "revived" if each.action_id in revived else "had moved on by itself"
        say(f"{each.action_id}: {said} ({each.tool}, {each.queue})")
    if not found:
        say("nothing is dead")
    return None


def _listed(each: ListedQueue, limits: _Limits | None, high_water: int) -> dict[str, Any]:
    from counterfoil.outbox.gates import held_by

    gate = None if limits is None else limits.gate
    held: list[str] = list(
        held_by(
            mode=each.mode,
            due_retries=each.due_retries,
            published=each.published,
            is_served=each.is_served,
            gate=gate,
            high_water=high_water,
        )
    )
    if limits is not None and limits.is_ratio:
        held = ["ratio" if why == "budget" else why for why in held]
    return {
        "queue": each.queue,
        "due": each.due,
        "due_since": each.due_since,
        "due_retries": each.due_retries,
        "later": each.later,
        "published": each.published,
        "dead": each.dead,
        "is_served": each.is_served,
        "mode": each.mode or "running",
        "held_by": held,
    }


@dataclass(frozen=True, slots=True)
class _Limits:
    """What the fleet's limits leave of a queue."""

    gate: Gate
    is_ratio: bool
    """Retries have had their part of the last minute's calls: more tokens would let none through."""


def _limits(queues: Sequence[str], settings: Settings, ledger: Ledger, config: Path | None) -> dict[str, _Limits]:
    """By queue; none where nobody here knows the store that the limits are counted in."""
    from counterfoil.cli.budget_page import retries_left
    from counterfoil.ledger.changes import read_changes
    from counterfoil.outbox.gates import provider_of
    from counterfoil.workers.admission import FleetAdmission, Store
    from counterfoil.workers.live import in_force
    from counterfoil.workers.setup import limits_of

    url = place.admission_url(config)
    if url is None or not queues:
        return {}
    given, changes = settings.admission, read_changes(ledger)
    by_name = {name: in_force(settings, name, changes).settings for name in map(provider_of, queues)}
    store = Store(
        url=url,
        key_prefix=settings.broker.key_prefix,
        timeout_s=given.timeout_s,
        retry_after_s=given.retry_after_s,
    )
    admission = FleetAdmission(limits=lambda name: limits_of(by_name[name]), worker="", store=store)
    found: dict[str, _Limits] = {}
    with closing(store), redirect_stdout(sys.stderr):  # what it logs is no part of the answer
        for queue in queues:
            name = provider_of(queue)
            gate, peek = admission.gate(name), admission.peek(name)
            is_ratio = peek is not None and retries_left(peek, by_name[name].retry_budget) < 1
            found[queue] = _Limits(gate, is_ratio)
    return found


def _print_dead(found: list[DeadWakeUp], *, json_: bool) -> None:
    names = ("action_id", "tenant", "run", "tool", "queue", "publish_count", "state", "waited_since", "died_at")
    if json_:
        as_json([{name: getattr(each, name) for name in names} for each in found])
    else:
        table(
            ("action", "tenant", "run", "tool", "queue", "published", "state", "waits since", "died"),
            [[*(getattr(each, name) for name in names[:-1]), distance(each.died_at, each.now)] for each in found],
            empty="nothing is dead",
        )
    if found:
        stop(6)
