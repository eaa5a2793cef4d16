"""`counterfoil alarm list|show|end`: what an operator must know although no decision waits for it, such as an outage."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from counterfoil.cli import place
from counterfoil.cli.options import AsJson, ConfigPath, Limit, Tenant, group
from counterfoil.cli.output import as_json, clean, distance, facts, say, stamp, stop, table
from counterfoil.ledger.errors import DecisionRefused, NotFound

if TYPE_CHECKING:
    from counterfoil.ledger.connection import Row

app = group("Alarms: outages, queues that nobody serves, and whatever else keeps work waiting or went wrong.")

Ended = Annotated[bool, typer.Option("--ended", help="Those that are over, too.")]
AlarmId = Annotated[str, typer.Argument(metavar="ALARM", help="Its id, such as A-12.")]


@app.command("list")
def list_alarms(
    tenant: Tenant = None, ended: Ended = False, limit: Limit = 50, json_: AsJson = False, config: ConfigPath = None
) -> None:
    """List open alarms, the newest first. Exit 6 if there are any.

    \b
    counterfoil alarm list
    """
    from counterfoil.ledger import alarms

    with place.open_ledger(config, "reader") as ledger:
        rows = alarms.list_alarms(ledger, tenant=tenant, ended=ended, limit=limit)
    if json_:
        as_json(rows)
    else:
        table(
            ("alarm", "kind", "about", "tenant", "since", "ended"),
            [
                [
                    *(row[name] for name in ("id", "kind", "subject", "tenant")),
                    distance(row["since"], row["now"]),
                    None if row["ended_at"] is None else stamp(row["ended_at"]),
                ]
                for row in rows
            ],
            empty="no alarms",
        )
    if any(row["ended_at"] is None for row in rows):
        stop(6)


@app.command()
def show(alarm_id: AlarmId, json_: AsJson = False, config: ConfigPath = None) -> None:
    """Show one alarm, and what helps.

    \b
    counterfoil alarm show A-12
    """
    from counterfoil.ledger import alarms

    with place.open_ledger(config, "reader") as ledger:
        row = alarms.read_alarm(ledger, alarm_id.strip().upper())
    if row is None:
        raise NotFound(f"there is no alarm {clean(alarm_id)}.", fix="`counterfoil alarm list --ended` lists them.")
    helps = what_helps(row)
    if json_:
        as_json({**row, "what_helps": helps})
        return
    facts(
        [
            ("alarm", row["id"]),
            ("kind", row["kind"]),
            ("about", row["subject"]),
            ("tenant", row["tenant"]),
            ("run", row["run"] or None),
            ("since", stamp(row["since"])),
            ("ended", None if row["ended_at"] is None else stamp(row["ended_at"])),
            ("ended by", row["ended_by"]),
            ("because", row.get("end_reason")),
            ("evidence", row.get("evidence")),
        ]
    )
    say()
    say(helps)


@app.command()
def end(
    alarm_id: AlarmId,
    reason: Annotated[str, typer.Option("--reason", metavar="TEXT", help="What was done about it; kept.")],
    config: ConfigPath = None,
) -> None:
    """End the alarm about a second effect or about lost time, once it is dealt with; all others end by themselves.

    \b
    counterfoil alarm end A-12 --reason "refunded pi_2 in the dashboard"
    """
    from counterfoil.ledger import alarms
    from counterfoil.people.words import check_words

    by, name = place.person(), alarm_id.strip().upper()
    check_words(by, "cli", reason)
    with place.open_ledger(config, "operator") as ledger:
        ended = alarms.settle_alarm(ledger, name, by=by, reason=reason)
    if not ended:
        raise DecisionRefused(
            f"{clean(name)} is no open alarm that a person ends.",
            code="not_open",
            fix="`counterfoil alarm list` shows what is open; all but `duplicate` and `ledger_lost_time` end by themselves.",
        )
    say(f"{name}: ended.")


def what_helps(alarm: Row) -> str:
    """What a person can do about it, in a sentence or two."""
    about = clean(alarm["subject"])
    match alarm["kind"]:
        case "outage":
            return (
                f"{about} does not answer. Nothing is lost: rows wait, are asked about less and less often, and none goes to"
                " a person for it. If its status page says that it is well, look at credentials and network here."
            )
        case "unreachable":
            return (
                f"No reconciler can use {about}: its account or secret is not configured there any more. Put it back, or the"
                " rows go to a person once they have waited for uncertain_max_s."
            )
        case "unwind_blocked":
            return (
                f"What takes {about} back cannot be built: its tool is not loaded in the reconciler. Load it, or take the"
                f" effect back by hand; `counterfoil run show {clean(alarm['run'])}` shows the run."
            )
        case "duplicate":
            return (
                f"Two effects under one key: `counterfoil action show {about}` shows the first, the provider both. Take one"
                " back there, then `counterfoil alarm end`."
            )
        case "ledger_lost_time":
            return (
                f"Callers of tenant {about} were told ends that this ledger does not have, run {clean(alarm['run'])} first."
                " Was the database restored to an earlier time? What was done since then stands at the providers: stop the"
                " agents, compare, give open tasks new runs, then `counterfoil alarm end`."
            )
        case "no_worker":
            return (
                f"Workers had actions of {about} (tool/version/account) and none could send them: start one with this"
                " version and account, or cancel them."
            )
        case "outbox_dead":
            return "A wake-up that nobody took. See what its worker logs, then `counterfoil outbox revive`."
        case "queue_unserved":
            return f"No worker takes from {about}: start one that does, `celery worker -Q {about}`."
        case _:
            return "The reconciler's log says more."
