"""`counterfoil correction list|show|edit|send|dismiss`: what to tell people who saw what nothing takes back."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any

import typer

from counterfoil.cli import place
from counterfoil.cli.options import AsJson, ConfigPath, DryRun, Limit, Tenant, group
from counterfoil.cli.output import as_json, clean, facts, say, stop, table
from counterfoil.ledger.errors import ArgumentError, ConfigError, DecisionRefused

if TYPE_CHECKING:
    from pathlib import Path

    from counterfoil.ledger.corrections import Correction, ListedCorrection, Message
    from counterfoil.outbox.intents import DoorRules
    from counterfoil.people.readable import Value
    from counterfoil.providers.outcomes import Json
    from counterfoil.providers.registry import Registry

CHANNEL = "cli"

app = group("Corrections: what to tell those who saw what nothing takes back. A person decides each one.")

CorrectionId = Annotated[
    str, typer.Argument(metavar="CORRECTION", help="The correction's id, or its first signs: `C-…`.")
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
            empty="no corrections",
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
        found = corrections.read_correction(ledger, corrections.find_correction(ledger, correction))
    _tell(found, _reach(found, config), json_=json_)


@app.command()
def edit(
    correction: CorrectionId,
    set_: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="NAME=VALUE", help="One argument of what would be said; may be repeated."),
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
        raise ConfigError("nothing to write.", key="--set", fix="Give --set NAME=VALUE, or --tool.")
    with place.open_ledger(config, "operator") as ledger:
        edited = people.edit(
            ledger,
            corrections.find_correction(ledger, correction),
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
        str | None, typer.Option("--digest", metavar="HEX", help="As `show` ended with: at least 16 digits.")
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
        name = corrections.find_correction(ledger, correction)
        if dry_run:
            found = corrections.read_correction(ledger, name)
            return _would_send(found, people.message_of(found, registry, rules), json_=json_)
        if digest is None:
            raise ConfigError("which text?", key="--digest", fix=f"`counterfoil correction show {name}` ends with it.")
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
    facts([("correction", name), ("sent as", answered.sent_as), ("by", answered.by)])
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
        name = corrections.find_correction(ledger, correction)
        answered = people.dismiss(ledger, name, by=place.person(), channel=CHANNEL, reason=reason)
    if json_:
        return as_json({"correction_id": name, "state": "dismissed", "by": answered.by})
    facts([("correction", name), ("dismissed by", answered.by)])
    return None


def _tools(config: Path | None) -> tuple[Registry, DoorRules]:
    from counterfoil.outbox.setup import door_rules
    from counterfoil.providers.registry import Registry

    settings = place.load_settings(config)
    return Registry.load(settings.tools), door_rules(settings)


@dataclass(frozen=True, slots=True)
class _Reach:
    """Who would see the message, by its tool's word; or why it cannot be sent from here as it is."""

    audience: tuple[str, ...] | None = None
    target: str | None = None
    why_not: str | None = None


def _reach(found: Correction, config: Path | None) -> _Reach:
    from counterfoil.people.corrections import message_of

    if found.call is None or found.state.value != "open":
        return _Reach()
    try:
        message = message_of(found, *_tools(config))
    except (ConfigError, ArgumentError, DecisionRefused) as error:
        return _Reach(why_not=error.message)
    return _Reach(message.audience, message.target)


def _changes(given: list[str]) -> dict[str, str]:
    changes = {}
    for each in given:
        name, equals, value = each.partition("=")
        if not equals or not name:
            raise ConfigError(f"{clean(each)!r} is no NAME=VALUE.", key="--set")
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


def _tell(found: Correction, reach: _Reach, *, json_: bool) -> None:
    from counterfoil.people.corrections import said
    from counterfoil.people.readable import values_of

    written = said(found)
    if json_:
        decisions = [
            {"verdict": d.verdict, "by": d.by_person, "db_role": d.db_role, "channel": d.channel, "reason": d.reason,
             "at": d.at} for d in found.decisions
        ]  # fmt: skip
        seen = {"arguments": _read(found.arguments), "receipt": found.receipt, "at": found.seen_at,
                "state": found.action_state.value}  # fmt: skip
        call = {"tool": written[0], "arguments": written[1]} if written else None
        return as_json({**_listed(found), "seen": seen, "call": call, "would_be_seen_by": reach.audience,
                        "why_not": reach.why_not, "digest": found.digest, "decisions": decisions})  # fmt: skip
    line = _listed(found)
    facts([("correction", found.correction_id), ("state", found.state.value), ("rank", line["rank"]), ("run", found.run),
           ("tenant", found.tenant), ("since", found.open_since)])  # fmt: skip
    say()
    facts([("seen by", ", ".join(found.audience) or "nobody"), ("at", found.seen_at), ("done by", found.tool),
           ("step", found.step), ("action", found.action_id), ("now", found.action_state.value),
           ("receipt", found.receipt)])  # fmt: skip
    _lines(values_of(found.arguments))
    say()
    if written is None:
        say(
            f"nobody has written what to say: counterfoil correction edit {found.correction_id} --tool TOOL --set NAME=VALUE"
        )
    else:
        seen_by = None if reach.audience is None else ", ".join(reach.audience) or "nobody"
        facts([("would be said by", written[0]), ("about", reach.target), ("to be seen by", seen_by),
               ("cannot be sent", reach.why_not)])  # fmt: skip
        _lines(values_of(_text(written[1])))
    for decision in found.decisions:
        facts([(decision.verdict, f"by {decision.by_person} ({decision.channel}) {decision.reason or ''}")])
    if found.sent_as is not None:
        facts([("sent as", found.sent_as), ("message is", found.message_state.value if found.message_state else None)])
    if found.digest is not None:
        facts([("digest", found.digest[:16])])
    return None


def _lines(values: tuple[Value, ...]) -> None:
    for value in values:
        if len(value.lines) == 1:
            say(f"  {clean(value.name)}  {value.text}")
        else:
            say(f"  {clean(value.name)}")
            for line in value.lines:
                say(f"    {line}")


def _text(arguments: dict[str, Json]) -> str:
    from counterfoil.ledger.canonical import canonical_json

    return canonical_json(arguments)


def _read(arguments: str) -> object:
    from counterfoil.ledger.canonical import load_stored

    return load_stored(arguments)
