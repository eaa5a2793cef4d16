"""`counterfoil run list|show|unwind|cancel`: one agent task, its steps, and taking it back."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Annotated

import typer

from counterfoil.cli import place
from counterfoil.cli.action import request_cancel
from counterfoil.cli.options import AsJson, ConfigPath, DryRun, Limit, Reason, Tenant, group
from counterfoil.cli.output import as_json, facts, is_plain, picture, say, stop, table, width
from counterfoil.cli.staged import pivot_facts, print_plan, read_plan
from counterfoil.cli.words import unwind_words
from counterfoil.ledger.errors import ConfigError, NotAllowed, NotFound
from counterfoil.ledger.states import SETTLED, State
from counterfoil.ledger.unwind_steps import WITHDRAWABLE, told

if TYPE_CHECKING:
    from counterfoil.ledger.connection import Ledger, Row
    from counterfoil.ledger.unwind_steps import Step

UNWINDING = ("unwinding", "unwind_blocked", "unwound")
LEVELS_MAX = 100
"""Times that `cancel` finds child runs which were opened meanwhile; each time they are deeper."""
POLL_S = 0.2
"""Between two looks of `unwind --wait`."""
EVENTS_MAX = 20_000
"""Moves and attempts that a picture is drawn from: far more than it can show."""

app = group("Runs: one agent task each, with its steps.")

RunId = Annotated[str, typer.Argument(metavar="RUN", help="The run's id, as the application gave it.")]


@app.command("list")
def list_runs(
    tenant: Tenant = None,
    state: Annotated[
        str | None,
        typer.Option("--state", metavar="STATE", help="open, closed, unwinding, unwind_blocked or unwound."),
    ] = None,
    limit: Limit = 50,
    json_: AsJson = False,
    config: ConfigPath = None,
) -> None:
    """List runs, the last changed first; with a pivot, how many irreversible effects came before it. That must be 0.

    \b
    counterfoil run list --tenant acme
    counterfoil run list --state unwind_blocked
    """
    from counterfoil.ledger.queries import load

    query = load("counterfoil.ledger", "sql/agent.sql")["list_runs"]
    with place.open_ledger(config, "reader") as ledger:
        rows = ledger.rows(query, {"tenant": tenant, "state": state, "limit": limit})
    if json_:
        return as_json(rows)
    names = ("run", "tenant", "actor", "state", "calls_count", "pivot", "irreversible_before_pivot", "created_at",
             "updated_at")  # fmt: skip
    table(
        ("run", "tenant", "actor", "state", "calls", "pivot", "before it", "created", "updated"),
        [[row[name] for name in names] for row in rows],
        empty="no runs",
    )
    return None


@app.command()
def show(run: RunId, tenant: Tenant = None, json_: AsJson = False, config: ConfigPath = None) -> None:
    """Show a run over time, its plan and its steps; of an unwind, what became of each step, what it waits for, and which
    corrections a person decides.

    In the picture time runs to scale but for idle gaps, and for moments that would fall into one column.

    \b
    counterfoil run show ticket-1182 --tenant acme
    """
    from counterfoil.cli.timeline import draw
    from counterfoil.ledger.queries import load

    query, own = load("counterfoil.ledger", "sql/agent.sql")["actions_of_run"], load("counterfoil.cli", "sql/show.sql")
    with place.open_ledger(config, "reader") as ledger:
        found = find_run(ledger, run, tenant)
        actions = ledger.rows(query, {"tenant": found["tenant"], "run": found["run"]})
        unwinding = told(_steps(ledger, found)) if found["state"] in UNWINDING else []
        plan = read_plan(ledger, found, config)
        wanted = {"action_ids": [action["action_id"] for action in actions], "limit": EVENTS_MAX}
        moves, attempts = ledger.rows(own["moves_of"], wanted), ledger.rows(own["attempts_of"], wanted)
    if json_:
        return as_json({**found, **plan, "actions": actions, "unwind": unwinding})
    names = ("run", "tenant", "actor", "state", "unwind_reason", "parent_run", "created_at", "deadline_at")
    facts([*((name.removesuffix("_at").replace("_", " "), found[name]) for name in names), *pivot_facts(found)])
    say()
    picture(draw(found, actions, moves, attempts, width=width(), plain=is_plain()).lines)
    say()
    columns = ("step", "revision", "phase", "tool", "target", "state", "attempt_count", "last_error_code", "action_id")
    table(
        ("step", "revision", "phase", "tool", "target", "state", "attempts", "code", "action"),
        [[action[name] for name in columns] for action in actions],
        empty="no actions",
    )
    print_plan(found, plan)
    if unwinding:
        say()
        _print_unwind(unwinding, found["state"])
    return None


@app.command()
def unwind(
    run: RunId,
    reason: Reason = "unwound at the command line",
    wait_s: Annotated[
        float,
        typer.Option("--wait", metavar="SECONDS", min=0, max=86_400, help="Wait so long for its end, or for a person."),
    ] = 0,
    tenant: Tenant = None,
    dry_run: DryRun = False,
    json_: AsJson = False,
    config: ConfigPath = None,
) -> None:
    """Take a run and its child runs back: withdraw what was not sent, wait for what is unknown, compensate what was done.

    The wish is recorded at once; the reconciler carries it out and finishes it whatever dies meanwhile, whether or not
    anybody waits. The steps are shown in the order in which they are taken back. Exit 6 when one waits for a person.

    \b
    counterfoil run unwind ticket-1182 --dry-run
    counterfoil run unwind ticket-1182 --reason "customer withdrew" --wait 60
    """
    from counterfoil.ledger.queries import load

    with place.open_ledger(config, "operator") as ledger:
        found = find_run(ledger, run, tenant)
        if not dry_run:
            query = load("counterfoil.ledger", "sql/agent.sql")["request_unwind"]
            ledger.row(query, {"tenant": found["tenant"], "run": found["run"], "reason": reason})
            found = _until_unwound(ledger, found, wait_s)
        plan = told(_steps(ledger, found))
    if json_:
        as_json({"tenant": found["tenant"], "run": found["run"], "state": found["state"], "dry_run": dry_run,
                 "steps": plan})  # fmt: skip
    else:
        facts([("run", found["run"]), ("tenant", found["tenant"]), ("state", found["state"])])
        say()
        _print_unwind(plan, found["state"])
    if found["state"] == "unwind_blocked":
        stop(6)


@app.command()
def cancel(
    run: RunId,
    reason: Reason = "cancelled at the command line",
    tenant: Tenant = None,
    dry_run: DryRun = False,
    json_: AsJson = False,
    config: ConfigPath = None,
) -> None:
    """Close a run and its child runs and withdraw what was not sent; what was done stays done.

    What may have been sent is not sent again, and evidence decides what became of it. Exit 6 when a step waits for a
    person, 4 when the run is being taken back already.

    \b
    counterfoil run cancel ticket-1182 --dry-run
    """
    with place.open_ledger(config, "operator") as ledger:
        found = find_run(ledger, run, tenant)
        if found["state"] not in ("open", "closed"):
            raise NotAllowed(f"run {run!r} is {found['state']}: that goes further than a cancel.")
        plan = cancel_plan(_steps(ledger, found))
        state = found["state"]
        if not dry_run:
            state = _close(ledger, found)
            plan = cancel_plan(_steps(ledger, found))
            for step in plan:
                if step["would"] != "leave":
                    request_cancel(ledger, step["action_id"], reason)
    _tell(found, plan, state=state, dry_run=dry_run, json_=json_)
    if any(step["state"] == State.OPERATOR_REVIEW for step in plan):
        stop(6)


def find_run(ledger: Ledger, run: str, tenant: str | None) -> Row:
    """The one run of that id. Raises NotFound, or ConfigError when several tenants have one."""
    from counterfoil.ledger.queries import load

    rows = ledger.rows(load("counterfoil.cli", "sql/show.sql")["runs_named"], {"run": run, "tenant": tenant})
    if not rows:
        raise NotFound(
            f"no run {run!r} that this login may see.", fix="`counterfoil run list` shows those that there are."
        )
    if len(rows) > 1:
        raise ConfigError(
            f"{len(rows)} tenants have a run {run!r}.", fix=f"Add --tenant: {', '.join(row['tenant'] for row in rows)}."
        )
    return rows[0]


def cancel_plan(steps: list[Step]) -> list[dict[str, str]]:
    """What a cancel would do with each step."""

    def would(step: Step) -> str:
        if step.state in SETTLED:
            return "leave"
        return "withdraw" if step.state in WITHDRAWABLE and not step.in_doubt else "send nothing again"

    return [_planned(step, would(step)) for step in steps]


def _steps(ledger: Ledger, run: Row) -> list[Step]:
    from counterfoil.ledger.unwinds import steps_of_run

    return steps_of_run(ledger, tenant=run["tenant"], run=run["run"])


def _close(ledger: Ledger, run: Row) -> str:
    """Closes the run and those below it, so that no new action comes in behind the cancels; the run's state then.

    Level by level: under a run that is closed no child is opened any more.
    """
    from counterfoil.ledger.queries import load
    from counterfoil.ledger.unwinds import tree_of_run

    close = load("counterfoil.ledger", "sql/agent.sql")["close_run"]
    closed: dict[str, str] = {}
    for _ in range(LEVELS_MAX):
        below = [r.run for r in tree_of_run(ledger, tenant=run["tenant"], run=run["run"]) if r.run not in closed]
        if not below:
            break
        for name in reversed(below):
            row = ledger.row(close, {"tenant": run["tenant"], "run": name})
            closed[name] = row["state"] if row else ""
    return closed[run["run"]]


def _until_unwound(ledger: Ledger, run: Row, wait_s: float) -> Row:
    """The run as it stands once its unwind has ended, a person has to decide, or `wait_s` is over."""
    deadline = time.monotonic() + wait_s
    while True:  # ends at `deadline`
        found = find_run(ledger, run["run"], run["tenant"])
        left_s = deadline - time.monotonic()
        if found["state"] in ("unwound", "unwind_blocked") or left_s <= 0:
            return found
        time.sleep(min(POLL_S, left_s))


def _print_unwind(steps: list[dict[str, str | None]], state: str) -> None:
    _print_steps([{**step, "unwind": unwind_words(step)} for step in steps], "unwind")
    if state == "unwind_blocked" and not any(step["standing"] in ("person", "correct") for step in steps):
        say(
            "a compensation cannot be built: is its tool loaded by the reconciler, in a form that takes what was recorded?"
        )


def _print_steps(steps: Sequence[Mapping[str, str | None]], what: str) -> None:
    """With the run of each step where there are several."""
    columns = ["step", "tool", "state", what, "action_id"]
    if len({step["run"] for step in steps}) > 1:
        columns = ["run", *columns]
    table(
        tuple(name.removesuffix("_id") for name in columns),
        [[step[name] for name in columns] for step in steps],
        empty="no actions",
    )


def _planned(step: Step, would: str) -> dict[str, str]:
    return {
        "action_id": step.action_id,
        "run": step.run,
        "step": step.step,
        "tool": step.tool,
        "state": step.state.value,
        "would": would,
    }


def _tell(run: Row, plan: list[dict[str, str]], *, state: str, dry_run: bool, json_: bool) -> None:
    if json_:
        as_json({"tenant": run["tenant"], "run": run["run"], "state": state, "dry_run": dry_run, "steps": plan})
        return
    facts([("run", run["run"]), ("tenant", run["tenant"]), ("state", state)])
    say()
    _print_steps(plan, "would")
