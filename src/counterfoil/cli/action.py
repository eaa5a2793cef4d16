"""`counterfoil action list|show|explain|cancel`: one intent and what became of it."""

from __future__ import annotations

import getpass
import json
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from counterfoil.cli import place
from counterfoil.cli.options import AsJson, ConfigPath, Limit, Reason, Tenant, group
from counterfoil.cli.output import as_json, clean, facts, say, stamp, stop, table
from counterfoil.cli.words import MEANS, remarks, what_next
from counterfoil.ledger.errors import ArgumentError, NotAllowed, NotFound
from counterfoil.ledger.states import SETTLED, State

if TYPE_CHECKING:
    from counterfoil.cli.evidence import Sentence
    from counterfoil.cli.explain import Terms
    from counterfoil.ledger.connection import Ledger, Row

app = group("Actions: one intent each, and what became of it.")

ActionId = Annotated[str, typer.Argument(metavar="ACTION", help="An action's id, act_….")]


@app.command("list")
def list_actions(
    tenant: Tenant = None,
    run: Annotated[str | None, typer.Option("--run", metavar="RUN", help="Only this run's.")] = None,
    state: Annotated[str | None, typer.Option("--state", metavar="STATE", help="Only in this state.")] = None,
    limit: Limit = 50,
    json_: AsJson = False,
    config: ConfigPath = None,
) -> None:
    """List actions, the newest first.

    \b
    counterfoil action list --tenant acme --state uncertain
    counterfoil action list --run ticket-1182 --json
    """
    from counterfoil.ledger.queries import load

    if state is not None and state not in set(State):
        raise ArgumentError(
            f"there is no state {state!r}.", path="--state", code="usage", fix=f"One of: {', '.join(State)}."
        )
    query = load("counterfoil.ledger", "sql/agent.sql")["list_actions"]
    with place.open_ledger(config, "reader") as ledger:
        rows = ledger.rows(query, {"tenant": tenant, "run": run, "state": state, "limit": limit})
    if json_:
        return as_json(rows)
    names = ("action_id", "tenant", "run", "step", "tool", "target", "state", "attempt_count", "last_error_code")
    table(
        ("action", "tenant", "run", "step", "tool", "target", "state", "attempts", "code", "updated"),
        [[*(row[name] for name in names), row["updated_at"]] for row in rows],
        empty="no actions",
    )
    return None


@app.command()
def show(
    action_id: ActionId,
    arguments: Annotated[
        bool,
        typer.Option("--arguments", help="Also arguments, receipt, result and what to search for; readers may not."),
    ] = False,
    json_: AsJson = False,
    config: ConfigPath = None,
) -> None:
    """Show one action: its state in words, what happens next and by when, attempts and history.

    \b
    counterfoil action show act_k3v7…
    counterfoil action show act_k3v7… --arguments
    """
    with place.open_ledger(config, "operator" if arguments else "reader") as ledger:
        action = read_action(ledger, action_id)
        shown = _shown(ledger, action, config, arguments=arguments)
    if json_:
        return as_json(shown)
    _print_action(action)
    for name in ("arguments", "receipt", "result") if arguments else ():
        say(f"{name}: {clean(_compact(shown[name]))}")
    for name, form in (shown.get("search_for") or {}).items():
        say(f"{name.replace('_', '-')}: {form}")
    _print_decisions(shown["decisions"])
    say()
    _print_attempts(shown["attempts"])
    say()
    _print_history(shown["history"])
    return None


@app.command("explain")
def explain_action(action_id: ActionId, json_: AsJson = False, config: ConfigPath = None) -> None:
    """Explain one action in sentences: what is known and from which evidence, what comes next and by when, who must act.

    Windows are those of the contract in force here. No arguments are shown.

    \b
    counterfoil action explain act_k3v7…
    """
    from counterfoil.cli.explain import NOBODY, explain
    from counterfoil.ledger.queries import load

    agent, own = load("counterfoil.ledger", "sql/agent.sql"), load("counterfoil.cli", "sql/show.sql")
    with place.open_ledger(config, "operator") as ledger:
        action = read_action(ledger, action_id)
        wanted = {"action_id": action_id}
        allowed = ledger.row(own["may_read_evidence"], {})
        history = own["proved_in_action"] if allowed and allowed["may"] else agent["read_history"]
        decisions, approval = _decided(ledger, action)
        said = explain(
            action,
            ledger.rows(agent["read_attempts"], wanted),
            ledger.rows(history, wanted),
            terms_of(action, config),
            decisions=decisions,
            approval=approval,
        )
    if json_:
        as_json({"action_id": action_id, **said.to_json()})
    else:
        say(said.what)
        say(said.state)
        print_sentences("What is known", said.known, dated=True)
        print_sentences("What comes next", said.next)
        print_sentences("Who must act", said.person or NOBODY)


@app.command()
def cancel(
    action_id: ActionId,
    reason: Reason = "cancelled at the command line",
    json_: AsJson = False,
    config: ConfigPath = None,
) -> None:
    """Withdraw an action if nothing of it was sent; else see that nothing is sent again.

    What may have been sent is not undone: evidence decides what became of it. `counterfoil run unwind` takes back what
    was done. Exit 4 when it is settled already, 6 when only a person can move it on.

    \b
    counterfoil action cancel act_k3v7… --reason "wrong order"
    """
    with place.open_ledger(config, "operator") as ledger:
        before = State(read_action(ledger, action_id)["state"])
        if before in SETTLED and before is not State.CANCELLED:
            raise NotAllowed(
                f"{action_id} is {before}: {MEANS[before]}.",
                fix="`counterfoil run unwind` takes back what was done." if before is State.SUCCEEDED else "",
            )
        after = State(request_cancel(ledger, action_id, reason))
    if json_:
        as_json({"action_id": action_id, "state": after, "cancelled": after is State.CANCELLED})
    else:
        say(f"{action_id} is {after}: {_after_cancel(after)}")
    if after is State.OPERATOR_REVIEW:
        stop(6)


def read_action(ledger: Ledger, action_id: str) -> Row:
    """The action's row of `show_action`. Raises NotFound."""
    from counterfoil.ledger.queries import load

    row = ledger.row(load("counterfoil.cli", "sql/show.sql")["show_action"], {"action_id": action_id})
    if row is None:
        raise NotFound(
            f"no action {action_id!r} that this login may see.",
            fix="`counterfoil action list` shows those that there are; an id is `act_` and 26 signs, never fewer.",
        )
    return row


def request_cancel(ledger: Ledger, action_id: str, reason: str) -> str:
    """Ask for the cancel in the name of whoever sits here; the action's state afterwards."""
    from counterfoil.ledger.queries import load

    query = load("counterfoil.ledger", "sql/agent.sql")["request_cancel"]
    row = ledger.row(query, {"action_id": action_id, "by": f"cli {getpass.getuser()}", "reason": reason})
    return str(row["state"]) if row else ""


def terms_of(action: Row, config: Path | None) -> Terms:
    """The contract of the action's tool under the settings here; without one where the tool cannot be loaded."""
    from counterfoil.cli.explain import Terms
    from counterfoil.ledger.errors import CounterfoilError
    from counterfoil.providers.registry import Registry
    from counterfoil.settings_contracts import contract_in_force, ttl_margin_s

    try:
        settings = place.load_settings(config)
        spec = Registry.load(settings.tools, settings.http).find(action["tool"], action["tool_version"])
        contract = contract_in_force(spec.contract, spec.provider, settings) if spec else None
    except (CounterfoilError, ImportError):
        return Terms(contract=None)
    if contract is None:
        return Terms(contract=None)
    return Terms(
        contract=contract,
        attempts_max=settings.provider(action["provider"]).attempts_max,
        ttl_margin_s=ttl_margin_s(contract, action["provider"], settings),
        uncertain_after_s=settings.reconciler.uncertain_after_s,
        can_fetch=contract.lookup or (spec is not None and spec.adapter is not None),
    )


def print_sentences(title: str, sentences: Sequence[Sentence], *, dated: bool = False) -> None:
    """A block of sentences under a title, after an empty line."""
    say()
    say(title)
    for sentence in sentences:
        at = f"{stamp(sentence.at)}  " if dated and sentence.at else ""
        say(f"  {at}{clean(sentence.text)}")


def _shown(ledger: Ledger, action: Row, config: Path | None, *, arguments: bool) -> dict[str, Any]:
    from counterfoil.cli.searched import forms_of
    from counterfoil.ledger.queries import load

    agent, own = load("counterfoil.ledger", "sql/agent.sql"), load("counterfoil.cli", "sql/show.sql")
    wanted = {"action_id": action["action_id"]}
    said = (ledger.row(own["said_in_action"], wanted) if arguments else None) or {}
    told = {
        name: json.loads(text) if text and name != "receipt" else text for name, text in said.items() if name != "key"
    }
    if said:
        told["search_for"] = forms_of(said["key"], action["provider"], config)
    return {
        **action,
        "means": MEANS[State(action["state"])],
        "next": what_next(action),
        **told,
        "attempts": ledger.rows(agent["read_attempts"], wanted),
        "history": ledger.rows(agent["read_history"], wanted),
        "decisions": _decided(ledger, action, in_full=False)[0],
    }


def _decided(ledger: Ledger, action: Row, *, in_full: bool = True) -> tuple[list[Row], Row | None]:
    """What people said about the action's proposal, and its approval; reasons and digests where the login may read them."""
    from counterfoil.ledger.queries import load

    doors = load("counterfoil.ledger", "sql/proposals.sql")
    [may] = ledger.rows(load("counterfoil.cli", "sql/show.sql")["may_read_decisions"], {})
    if not may["may"]:
        return [], None
    in_full = in_full and may["in_full"]
    query = doors["said_on"] if in_full else doors["decisions_on"]
    decisions = ledger.rows(query, {"subject_id": action["proposal_id"]}) if action["proposal_id"] else []
    approval = ledger.row(doors["approval_of"], {"action_id": action["action_id"]}) if in_full else None
    return decisions, approval


def _print_action(action: Row) -> None:
    from counterfoil.people.amounts import money

    amount = None if action["amount_minor"] is None else money(action["amount_minor"], action["currency"])
    facts(
        [
            ("action", action["action_id"]),
            ("state", f"{action['state']}: {MEANS[State(action['state'])]}"),
            ("next", what_next(action)),
            *(("note", text) for text in remarks(action)),
            ("code", action["last_error_code"]),
            ("tool", f"{action['tool']} version {action['tool_version']} ({action['class']}, {action['provider']})"),
            ("target", f"{action['effect']} {action['target']}"),
            ("amount", amount),
            ("audience", ", ".join(action["audience"])),
            ("tenant", action["tenant"]),
            ("run", f"{action['run']}, step {action['step']}, revision {action['revision']}, {action['phase']}"),
            ("about", action["parent_action_id"]),
            ("actor", action["actor"]),
            ("proposal", action["proposal_id"] and f"{action['proposal_id']}, {action['proposal_state']}"),
            ("expires", action["decide_by"] if action["proposal_state"] == "open" else None),
            ("recorded", action["created_at"]),
            ("deadline", action["deadline_at"]),
        ]
    )


def _print_decisions(decisions: list[Row]) -> None:
    if decisions:
        say()
        table(
            ("decided", "by", "login", "by way of", "verdict"),
            [[d["at"], d["by_person"], d["db_role"], d["channel"], d["verdict"]] for d in decisions],
            empty="",
        )


def _print_attempts(attempts: list[Row]) -> None:
    table(
        ("attempt", "started", "finished", "outcome", "code", "worker"),
        [[a["number"], a["started_at"], a["finished_at"], a["outcome"], a["code"], a["worker"]] for a in attempts],
        empty="no attempts: nothing was sent",
    )


def _print_history(history: list[Row]) -> None:
    table(
        ("at", "from", "to", "by", "login", "reason"),
        [[h["at"], h["from_state"], h["to_state"], h["changed_by"], h["db_role"], h["reason"]] for h in history],
        empty="no history",
    )


def _compact(value: object) -> str | None:
    return value if value is None or isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def _after_cancel(state: State) -> str:
    match state:
        case State.CANCELLED:
            return "withdrawn, nothing was sent"
        case State.OPERATOR_REVIEW:
            return "only a person can move it on, and nothing is sent again"
        case State.EXECUTING:
            return "cancel requested; the answer to what is being sent is still recorded, and nothing is sent again"
        case _:
            return "cancel requested; it may have been sent: nothing is sent again, and evidence decides"
