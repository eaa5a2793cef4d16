"""`counterfoil proposal list|show|approve|reject|edit`: what waits for a person, and what people decide."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from counterfoil.cli import place
from counterfoil.cli.options import AsJson, ConfigPath, DryRun, Limit, Tenant, group, id_typed
from counterfoil.cli.output import as_json, clean, note, say, stamp, stop, table
from counterfoil.ledger.errors import ArgumentError, CounterfoilError

if TYPE_CHECKING:
    from counterfoil.ledger.connection import Ledger
    from counterfoil.ledger.proposals import Decided, ListedProposal
    from counterfoil.people.proposals import ContractOf, Shown
    from counterfoil.providers.registry import Registry
    from counterfoil.settings import Settings

CHANNEL = "cli"

app = group("Proposals: calls and plans that wait for a person.")

ProposalId = Annotated[
    str, typer.Argument(metavar="PROPOSAL", help="A proposal's id, P-…, or its first signs, at least four.")
]
Why = Annotated[str | None, typer.Option("--reason", metavar="TEXT", help="Why; kept with the decision.")]


@app.command("list")
def list_proposals(
    tenant: Tenant = None,
    run: Annotated[str | None, typer.Option("--run", metavar="RUN", help="Only this run's.")] = None,
    state: Annotated[
        str | None,
        typer.Option("--state", metavar="STATE", help="open (default), approved, rejected, expired or withdrawn."),
    ] = None,
    all_: Annotated[bool, typer.Option("--all", help="In any state.")] = False,
    limit: Limit = 50,
    json_: AsJson = False,
    config: ConfigPath = None,
) -> None:
    """List what waits for a decision, the soonest to expire first. Exit 6 when something waits.

    \b
    counterfoil proposal list --tenant acme
    counterfoil proposal list --all --run ticket-1182
    """
    from counterfoil.ledger import proposals as doors
    from counterfoil.ledger.proposals import ProposalState

    if state is not None and state not in set(ProposalState):
        raise ArgumentError(
            f"there is no state {state!r}.", path="--state", code="usage", fix=f"One of: {', '.join(ProposalState)}."
        )
    wanted = None if all_ else ProposalState(state or "open")
    with place.open_ledger(config, "reader") as ledger:
        found = doors.list_proposals(ledger, tenant=tenant, run=run, state=wanted, limit=limit)
    if json_:
        as_json([_line_data(each) for each in found])
    else:
        table(
            ("proposal", "tenant", "run", "what", "money", "seen by", "reach", "state"),
            [_line(each) for each in found],
            empty="nothing waits for a decision" if wanted is ProposalState.OPEN else "no proposals",
        )
    if any(each.waits for each in found):
        stop(6)


@app.command()
def show(proposal: ProposalId, json_: AsJson = False, config: ConfigPath = None) -> None:
    """Show everything that an approval binds: what is staged, what commits in which order, money, audience, undo.

    It ends with the digest of exactly that; --json has all of it. Whoever approves repeats at least the 16 digits shown.

    \b
    counterfoil proposal show P-7Q2A
    """
    from counterfoil.cli.proposal_page import as_data, page

    with place.open_ledger(config, "operator") as ledger:
        found = _found(ledger, proposal, config)
    if json_:
        return as_json(as_data(found))
    for line in page(found):
        say(line)
    return None


@app.command()
def approve(
    proposal: ProposalId,
    digest: Annotated[
        str | None,
        typer.Option(
            "--digest", metavar="HEX", help="What `show` ended with: 16 digits or all. Needed but for --dry-run."
        ),
    ] = None,
    reason: Why = None,
    amount_max_minor: Annotated[
        int | None,
        typer.Option(
            "--amount-max-minor",
            metavar="N",
            min=0,
            help="A corrected call may differ in its amount, up to this, without asking again.",
        ),
    ] = None,
    dry_run: DryRun = False,
    json_: AsJson = False,
    config: ConfigPath = None,
) -> None:
    """Approve exactly what was shown; it is then done, in order, each step after the one before has succeeded.

    The name that is recorded is COUNTERFOIL_PERSON's, else the system user's, together with the database login. Exit 4 when
    it has changed, expired, been decided or is your own; 6 when another person must approve, too.

    \b
    counterfoil proposal approve P-7Q2A --digest 7f3a91c2d40be586
    counterfoil proposal approve P-7Q2A --digest 7f3a91c2d40be586 --amount-max-minor 500
    """
    from counterfoil.ledger.proposals import Answer
    from counterfoil.people import proposals as people

    with place.open_ledger(config, "operator") as ledger:
        name = _id_of(ledger, proposal)
        if dry_run:
            return _dry_run(_found(ledger, name, config), "ready when it is its turn", digest=digest, json_=json_)
        if digest is None:
            raise ArgumentError(
                "say which text you approve, by its digest.",
                path="--digest",
                code="usage",
                fix=f"`counterfoil proposal show {name}` ends with it: `counterfoil proposal approve {name} --digest …`.",
            )
        decided = people.approve(
            ledger,
            name,
            digest=digest,
            by=place.person(),
            channel=CHANNEL,
            registry=_tools(config)[0],
            reason=reason,
            amount_max_minor=amount_max_minor,
        )
    one_more = decided.answer is Answer.ONE_MORE
    told = "your approval counts; it waits for another person" if one_more else "approved: its steps are done in order"
    _tell(name, decided, told, json_=json_)
    if one_more:
        stop(6)
    return None


@app.command()
def reject(
    proposal: ProposalId,
    reason: Annotated[str, typer.Option("--reason", metavar="TEXT", help="Why; the agent's next proposal shows it.")],
    unwind: Annotated[bool, typer.Option("--unwind", help="Also take the run back.")] = False,
    digest: Annotated[
        str | None, typer.Option("--digest", metavar="HEX", help="Only if it is still what was shown.")
    ] = None,
    dry_run: DryRun = False,
    json_: AsJson = False,
    config: ConfigPath = None,
) -> None:
    """Reject: nothing of it is sent, and the agent is told. What is staged stays until the run is taken back.

    \b
    counterfoil proposal reject P-7Q2A --reason "wrong order"
    counterfoil proposal reject P-7Q2A --reason "wrong customer" --unwind
    """
    from counterfoil.ledger.proposals import read_proposal
    from counterfoil.ledger.queries import load
    from counterfoil.people import proposals as people

    with place.open_ledger(config, "operator") as ledger:
        name = _id_of(ledger, proposal)
        if dry_run:
            return _dry_run(_found(ledger, name, config), "cancelled", digest=digest, json_=json_)
        decided = people.reject(ledger, name, by=place.person(), channel=CHANNEL, reason=reason, digest=digest)
        if unwind:
            found = read_proposal(ledger, name)
            query = load("counterfoil.ledger", "sql/agent.sql")["request_unwind"]
            ledger.row(query, {"tenant": found.tenant, "run": found.run, "reason": reason})
    told = "rejected: nothing of it is sent" + ("; its run is taken back" if unwind else "")
    _tell(name, decided, told, json_=json_)
    return None


@app.command()
def edit(
    proposal: ProposalId,
    changes: Annotated[
        list[str],
        typer.Option("--set", metavar="NAME=VALUE", help="An argument: JSON, or text where a text stands. Repeatable."),
    ],
    step: Annotated[
        int | None,
        typer.Option(
            "--step", metavar="N", min=1, help="Which step, as `show` numbers them. Needed where it has several."
        ),
    ] = None,
    reason: Why = None,
    digest: Annotated[
        str | None, typer.Option("--digest", metavar="HEX", help="Only if it is still what was shown.")
    ] = None,
    json_: AsJson = False,
    config: ConfigPath = None,
) -> None:
    """Change arguments of a step: a new revision in its place, to be decided over the new digest.

    The tool checks the arguments as it would check an agent's. Who has approved before must approve anew; the agent is
    told what really ran.

    \b
    counterfoil proposal edit P-7Q2A --set amount_minor=300 --reason "half of it"
    counterfoil proposal edit P-7Q2A --step 2 --set amount_minor=300
    """
    from counterfoil.cli.proposal_page import differences
    from counterfoil.outbox.setup import door_rules
    from counterfoil.people import proposals as people

    registry, contract_of, settings = _tools(config)
    with place.open_ledger(config, "operator") as ledger:
        name = _id_of(ledger, proposal)
        shown = people.show(ledger, name, registry=registry)
        step = step or _only_step(shown)
        recorded = next((each.step.arguments for each in shown.steps if each.step.place == step), "{}")
        edited = people.edit(
            ledger,
            name,
            place=step,
            changes=_changes(changes, recorded),
            by=place.person(),
            channel=CHANNEL,
            registry=registry,
            reason=reason,
            digest=digest or shown.digest,
            rules=door_rules(settings),
            contract_of=contract_of,
        )
    changed = list(differences(edited.before, edited.after))
    if json_:
        return as_json({"proposal_id": name, "answer": "edited", "action_id": edited.after.action_id,
                        "digest": edited.shown.digest, "changed": changed})  # fmt: skip
    say(f"{name} step {step} is changed, and recorded as {edited.after.action_id}:")
    for line in changed:
        say(f"  {line}")
    if edited.shown.unread:
        say("A worker reads the resource's version first; then show it again.")
    else:
        say(f"digest {edited.shown.digest_shown}")
    return None


def _only_step(shown: Shown) -> int:
    """The step of a proposal that has one. Raises ArgumentError with all of them where it has several."""
    places = [each.step.place for each in shown.steps]
    if len(places) == 1:
        return int(places[0] or 1)
    steps = "; ".join(f"{each.step.place} {each.step.tool} ({clean(each.step.step)})" for each in shown.steps)
    raise ArgumentError(
        f"{shown.proposal.proposal_id} has {len(places)} steps: {steps}.",
        path="--step",
        code="usage",
        fix="Say which one, `--step N`.",
    )


def _id_of(ledger: Ledger, typed: str) -> str:
    """The whole id of what was typed."""
    from counterfoil.ledger.proposals import find_proposal

    return find_proposal(ledger, id_typed(typed, "PROPOSAL"))


def _found(ledger: Ledger, typed: str, config: Path | None) -> Shown:
    from counterfoil.people import proposals as people

    registry, contract_of, _ = _tools(config)
    shown = people.show(ledger, _id_of(ledger, typed), registry=registry, contract_of=contract_of)
    for each in shown.steps:
        if each.spec is None:
            note(
                f"note: {each.step.tool} version {each.step.tool_version} is not loaded here: this is the row alone."
                " Put its module under `tools`."
            )
    return shown


def _tools(config: Path | None) -> tuple[Registry, ContractOf, Settings]:
    """The tools that can be loaded here, and their contracts in force; none where loading fails, which is told."""
    from counterfoil.providers.registry import Registry
    from counterfoil.settings_contracts import contract_in_force

    settings = place.load_settings(config)
    try:
        registry = Registry.load(settings.tools, settings.http)
    except (CounterfoilError, ImportError) as error:
        note(f"note: the tools cannot be loaded here ({type(error).__name__}).")
        registry = Registry()
    return registry, lambda spec: contract_in_force(spec.contract, spec.provider, settings), settings


def _changes(given: Iterable[str], recorded: str) -> dict[str, object]:
    """`name=value` pairs as arguments; `recorded` says where a text stands."""
    from counterfoil.ledger.canonical import load_stored
    from counterfoil.people.proposals import value_of

    before, changes = load_stored(recorded), {}
    for pair in given:
        name, equals, text = pair.partition("=")
        if not equals or not name:
            raise ArgumentError(f"{pair!r} is not NAME=VALUE.", path="--set", code="usage")
        changes[name] = value_of(text, before.get(name))
    return changes


def _dry_run(shown: Shown, then: str, *, digest: str | None, json_: bool) -> None:
    """What a decision would move, and that it would stand as far as can be told without making it."""
    from counterfoil.people.proposals import refused_now

    refused = refused_now(shown, digest)
    if refused is not None:
        raise refused
    would = [{"action_id": each.step.action_id, "step": each.step.place, "tool": each.step.tool,
              "state": each.step.state, "would": then} for each in shown.steps]  # fmt: skip
    if json_:
        return as_json({"proposal_id": shown.proposal.proposal_id, "dry_run": True, "steps": would})
    table(("step", "tool", "state", "would be", "action"),
          [[w["step"], w["tool"], w["state"], w["would"], w["action_id"]] for w in would], empty="no steps")  # fmt: skip
    return None


def _tell(name: str, decided: Decided, told: str, *, json_: bool) -> None:
    if json_:
        return as_json({"proposal_id": name, "answer": decided.answer.value, "by": decided.by,
                        "at": decided.at, "missing": decided.missing})  # fmt: skip
    say(f"{name}: {told}.")
    return None


def _line(each: ListedProposal) -> list[object]:
    from counterfoil.cli.proposal_page import reach, remaining
    from counterfoil.people.amounts import told, totals
    from counterfoil.people.readable import visible

    audience = sorted({name for step in each.steps for name in step.audience})
    state: str = each.state
    if state == "open":
        left = remaining(each.expires_at, each.now)
        state = left if not each.waits else f"open, expires {left}"
    elif each.decided_at is not None:
        by = "" if state == "expired" else f" by {clean(each.decided_by)}"
        state = f"{state}{by} {stamp(each.decided_at)}"
    return [
        each.proposal_id,
        visible(each.tenant),
        visible(each.run),
        ", ".join(step.tool for step in each.steps),
        told(totals((step.amount_minor, step.currency) for step in each.steps)),
        visible(", ".join(audience)),
        reach(audience),
        state,
    ]


def _line_data(each: ListedProposal) -> dict[str, object]:
    from counterfoil.cli.proposal_page import reach
    from counterfoil.people.amounts import totals

    audience = sorted({name for step in each.steps for name in step.audience})
    sums = totals((step.amount_minor, step.currency) for step in each.steps)
    return {
        **{name: getattr(each, name) for name in each.__dataclass_fields__ if name != "steps"},
        "waits": each.waits,
        "tools": [step.tool for step in each.steps],
        "targets": [step.target for step in each.steps],
        "amounts": [{"amount_minor": n, "currency": currency or None} for currency, n in sums.items()],
        "audience": audience,
        "reach": reach(audience),
    }
