"""`counterfoil correction list|show|edit|send|dismiss`: what to tell people who saw what nothing takes back."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from counterfoil.cli import place
from counterfoil.cli.options import AsJson, ConfigPath, DryRun, Limit, Tenant, group, id_typed
from counterfoil.cli.output import as_json, facts, say, stop, table
from counterfoil.ledger.errors import ArgumentError, ConfigError, DecisionRefused

if TYPE_CHECKING:
    from pathlib import Path

    from counterfoil.cli.correction_page import Reach
    from counterfoil.ledger.corrections import Correction, ListedCorrection, Message
    from counterfoil.outbox.intents import DoorRules
    from counterfoil.providers.registry import Registry

CHANNEL = "cli"

app = group("Corrections: what to tell those who saw what nothing takes back. A person decides each one.")

CorrectionId = Annotated[
    str, typer.Argument(metavar="CORRECTION", help="A correction's id, C-…, or its first signs, at least four.")
]
Why = Annotated[str, typer.Option("--reason", metavar="TEXT", help="Why; kept with the decision.")]


@app.command("list")
def list_corrections(
    tenant: Tenant = None,
    run: Annotated[str | None, typer.Option("--run", metavar="RUN", help="Only this run's.")] = None,
    all_: Annotated[bool, typer.Option("--all", help="Those that are decided, too.")] = False,
    limit: Limit = 50,
    json_: AsJson = False,
    config: ConfigPath = None,
) -> None:
    """List corrections that wait for a person: inside first, then customers, the public, what has legal weight.

    Exit 6 when one waits.

    \b
    counterfoil correction list --tenant acme
    """
    from counterfoil.ledger import corrections
    from counterfoil.ledger.corrections import CorrectionState

    with place.open_ledger(config, "reader") as ledger:
        state = None if all_ else CorrectionState.OPEN
        found = corrections.list_corrections(ledger, tenant=tenant, run=run, state=state, limit=limit)
    if json_:
        as_json([_listed(each) for each in found])
    else:
        rows = [_listed(each) for each in found]
        names = ("correction_id", "rank", "run", "step", "tool", "target", "audience", "state", "open_since")
        table(
            ("correction", "rank", "run", "step", "tool", "target", "seen by", "state", "since"),
            [[", ".join(row[n]) if n == "audience" else row[n] for n in names] for row in rows],
            empty="no corrections" if all_ else "no correction waits for a person",
        )
    if any(each.state is CorrectionState.OPEN for each in found):
        stop(6)


@app.command()
def show(correction: CorrectionId, json_: AsJson = False, config: ConfigPath = None) -> None:
    """Show what was seen by whom and when, and what would be said to whom; ends with the digest that `send` takes.

    \b
    counterfoil correction show C-7Q2
    """
    from counterfoil.ledger import corrections

    with place.open_ledger(config, "operator") as ledger:
        found = corrections.read_correction(
            ledger, corrections.find_correction(ledger, id_typed(correction, "CORRECTION"))
        )
    _tell(found, _reach(found, config), json_=json_)


@app.command()
def edit(
    correction: CorrectionId,
    set_: Annotated[
        list[str] | None,
        typer.Option(
            "--set",
            metavar="NAME=VALUE",
            help="An argument of it: text, or JSON where the tool takes no text. Repeatable.",
        ),
    ] = None,
    tool: Annotated[
        str | None, typer.Option("--tool", metavar="TOOL", help="Say it with this tool, written anew.")
    ] = None,
    reason: Why = "edited at the command line",
    json_: AsJson = False,
    config: ConfigPath = None,
) -> None:
    """Write what would be said; the tool checks it. Nothing is sent, and the digest is another one then.

    \b
    counterfoil correction edit C-7Q2 --set "body=Please ignore our last mail."
    counterfoil correction edit C-7Q2 --tool send_mail --set to=jo@example.com --set subject=Sorry
    """
    from counterfoil.ledger import corrections
    from counterfoil.people import corrections as people

    changes, (registry, rules) = _changes(set_ or []), _tools(config)
    if not changes and tool is None:
        raise ArgumentError("nothing to write.", path="--set", code="usage", fix="Give --set NAME=VALUE, or --tool.")
    with place.open_ledger(config, "operator") as ledger:
        edited = people.edit(
            ledger,
            corrections.find_correction(ledger, id_typed(correction, "CORRECTION")),
            tool=tool,
            changes=changes,
            by=place.person(),
            channel=CHANNEL,
            registry=registry,
            reason=reason,
            rules=rules,
        )
    _tell(edited, _reach(edited, config), json_=json_)


@app.command()
def send(
    correction: CorrectionId,
    digest: Annotated[
        str | None,
        typer.Option(
            "--digest", metavar="HEX", help="What `show` ended with: 16 digits or all. Needed but for --dry-run."
        ),
    ] = None,
    reason: Why = "sent at the command line",
    dry_run: DryRun = False,
    json_: AsJson = False,
    config: ConfigPath = None,
) -> None:
    """Send one correction: exactly what was shown, once, as an action of its own. Exit 4 when anything has changed.

    \b
    counterfoil correction send C-7Q2 --digest 7f3a91c04b5e66d2
    """
    from counterfoil.ledger import corrections
    from counterfoil.people import corrections as people

    registry, rules = _tools(config)
    with place.open_ledger(config, "operator") as ledger:
        name = corrections.find_correction(ledger, id_typed(correction, "CORRECTION"))
        if dry_run:
            found = corrections.read_correction(ledger, name)
            return _would_send(found, people.message_of(found, registry, rules), json_=json_)
        if digest is None:
            raise ArgumentError(
                "say which text, by its digest.",
                path="--digest",
                code="usage",
                fix=f"`counterfoil correction show {name}` ends with it.",
            )
        answered = people.send(
            ledger,
            name,
            digest=digest,
            by=place.person(),
            channel=CHANNEL,
            registry=registry,
            reason=reason,
            rules=rules,
        )
    if json_:
        return as_json({"correction_id": name, "state": "sent", "sent_as": answered.sent_as, "by": answered.by})
    say(f"{name}: recorded as {answered.sent_as}, which a worker sends.")
    return None


@app.command()
def dismiss(
    correction: CorrectionId,
    reason: Annotated[str, typer.Option("--reason", metavar="TEXT", help="Why nobody is told; kept.")],
    json_: AsJson = False,
    config: ConfigPath = None,
) -> None:
    """Leave it unsaid, for good; the run's unwind goes on.

    \b
    counterfoil correction dismiss C-7Q2 --reason "told them by phone"
    """
    from counterfoil.ledger import corrections
    from counterfoil.people import corrections as people

    with place.open_ledger(config, "operator") as ledger:
        name = corrections.find_correction(ledger, id_typed(correction, "CORRECTION"))
        answered = people.dismiss(ledger, name, by=place.person(), channel=CHANNEL, reason=reason)
    if json_:
        return as_json({"correction_id": name, "state": "dismissed", "by": answered.by})
    say(f"{name}: dismissed; nobody is told.")
    return None


def _tools(config: Path | None) -> tuple[Registry, DoorRules]:
    from counterfoil.outbox.setup import door_rules
    from counterfoil.providers.registry import Registry

    settings = place.load_settings(config)
    return Registry.load(settings.tools, settings.http), door_rules(settings)


def _reach(found: Correction, config: Path | None) -> Reach:
    from counterfoil.cli.correction_page import Reach
    from counterfoil.people.corrections import message_of

    if found.call is None or found.state.value != "open":
        return Reach()
    try:
        message = message_of(found, *_tools(config))
    except (ConfigError, ArgumentError, DecisionRefused) as error:
        return Reach(why_not=error.message)
    return Reach(message.audience, message.target)


def _changes(given: list[str]) -> dict[str, str]:
    changes = {}
    for each in given:
        name, equals, value = each.partition("=")
        if not equals or not name:
            raise ArgumentError(f"{each!r} is not NAME=VALUE.", path="--set", code="usage")
        changes[name] = value
    return changes


def _would_send(found: Correction, message: Message, *, json_: bool) -> None:
    name = found.correction_id
    if json_:
        as_json({"correction_id": name, "dry_run": True, "tool": message.tool, "target": message.target,
                 "audience": message.audience, "digest": found.digest})  # fmt: skip
        return
    facts([("correction", name), ("would be sent by", message.tool), ("about", message.target),
           ("to be seen by", ", ".join(message.audience) or "nobody"), ("digest", (found.digest or "")[:16])])  # fmt: skip


def _listed(each: ListedCorrection) -> dict[str, Any]:
    from counterfoil.people.corrections import RANK_NAMES

    return {
        "correction_id": each.correction_id,
        "tenant": each.tenant,
        "run": each.run,
        "action_id": each.action_id,
        "step": each.step,
        "tool": each.tool,
        "target": each.target,
        "audience": list(each.audience),
        "rank": RANK_NAMES[each.rank],
        "state": each.state.value,
        "sent_as": each.sent_as,
        "message_state": each.message_state.value if each.message_state else None,
        "decided_by": each.decided_by,
        "decided_at": each.decided_at,
        "open_since": each.open_since,
    }


def _tell(found: Correction, reach: Reach, *, json_: bool) -> None:
    from counterfoil.cli.correction_page import page
    from counterfoil.people.corrections import said

    if json_:
        written = said(found)
        decisions = [
            {"verdict": d.verdict, "by": d.by_person, "db_role": d.db_role, "channel": d.channel, "reason": d.reason,
             "at": d.at} for d in found.decisions
        ]  # fmt: skip
        seen = {"arguments": _read(found.arguments), "receipt": found.receipt, "at": found.seen_at,
                "state": found.action_state.value}  # fmt: skip
        call = {"tool": written[0], "arguments": written[1]} if written else None
        return as_json({**_listed(found), "seen": seen, "call": call, "would_be_seen_by": reach.audience,
                        "why_not": reach.why_not, "digest": found.digest, "decisions": decisions})  # fmt: skip
    for line in page(found, reach):
        say(line)
    return None


def _read(arguments: str) -> object:
    from counterfoil.ledger.canonical import load_stored

    return load_stored(arguments)
