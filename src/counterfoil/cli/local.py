"""`counterfoil up|down|demo|relay|webhooks|sandbox`: what runs on this machine."""

from __future__ import annotations

import shlex
import signal
import subprocess
import sys
import time
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from counterfoil.cli import place
from counterfoil.cli.options import AsJson, ConfigPath
from counterfoil.cli.output import as_json, clean, note, say, stop
from counterfoil.ledger.errors import ArgumentError, ConfigError, CounterfoilError, NotFound

if TYPE_CHECKING:
    from counterfoil.stack.home import Home
    from counterfoil.stack.up import Choices

DETACH_WAIT_S = 120.0
"""A first start on a slow machine; the process that starts has shorter waits of its own."""

DemoHalf = Literal["naive", "counterfoil"]
Shell = Literal["agent", "app", "operator", "operator2"]


def up(
    tools: Annotated[
        list[str] | None, typer.Option("--tools", metavar="MODULE", help="A module with tools; may be repeated.")
    ] = None,
    fast: Annotated[bool, typer.Option(help="Seconds instead of minutes, and the sandbox for every provider.")] = True,
    workers: Annotated[int, typer.Option("--workers", min=1, max=64, help="Processes that act.")] = 2,
    tenant: Annotated[
        list[str] | None, typer.Option("--tenant", metavar="TENANT", help="Whom agents act for; may be repeated.")
    ] = None,
    detach: Annotated[
        bool, typer.Option("--detach", help="Return when all is up; `counterfoil down` stops it.")
    ] = False,
    env: Annotated[bool, typer.Option("--env", help="Print what an agent's shell needs, start nothing.")] = False,
    as_: Annotated[
        Shell,
        typer.Option(
            "--as",
            help="With --env: whose shell. app is an application's, an agent's login with a schema `app` for tables of its"
            " own; operator2 a second person's.",
        ),
    ] = "agent",
    json_: AsJson = False,
) -> None:
    """Run the whole stack here: Postgres, Valkey, sandbox, relay, workers, beat. Ctrl-C stops it, data stays.

    Loads counterfoil.toml of this folder for tools, limits and approvals; the database, the broker and (with --fast)
    the providers are local ones.

    \b
    counterfoil up
    counterfoil up --tools myapp.tools --tenant acme --tenant globex
    counterfoil up --detach && eval "$(counterfoil up --env)"
    eval "$(counterfoil up --env --as app)"
    """
    from counterfoil.stack.up import Choices, keeper

    choices = Choices(tools=tools or (), fast=fast, workers=workers, tenants=tenant or ("acme",))
    if env:
        return _print_env(as_, json_=json_)
    if as_ != "agent":
        raise ArgumentError("it goes with --env.", path="--as", code="usage")
    if not detach:
        return _keep_up(choices, json_=json_)
    home = _home()
    if keeper(home) is None:
        _start_detached(home, choices)
    else:
        note("it is up already, as it was started: `counterfoil down` first for other tools or settings")
    _print_up(home, choices, json_=json_)
    return None


def down(json_: AsJson = False) -> None:
    """Stop this folder's stack, wherever it was started. Data stays, in the folder of the configuration that `counterfoil
    up` names; remove that folder to begin anew.

    \b
    counterfoil down
    """
    home = place.local_home()
    if home is None:
        raise NotFound("this folder has no local stack.", fix="`counterfoil up` makes one.")
    from counterfoil.stack.up import stop_stack

    was_running = stop_stack(home)
    if json_:
        return as_json({"was_running": was_running})
    say("stopped; the data stays" if was_running else "nothing was running")
    return None


def demo(
    json_: AsJson = False,
    lies: Annotated[
        bool, typer.Option("--504/--no-504", help="Whether the gateway hides a success behind a 504.")
    ] = True,
    pause: Annotated[bool, typer.Option("--pause", help="Wait for you to kill the process with the charge.")] = False,
    tools: Annotated[
        list[str] | None, typer.Option("--tools", metavar="MODULE", help="A module that the workers load as well.")
    ] = None,
    only: Annotated[DemoHalf | None, typer.Option("--only", hidden=True)] = None,
) -> None:
    """Play an incident twice, for real: a gateway that lies, a model that rewords, a kill with a charge in its hands.

    First a naive harness, then Counterfoil, under the same model script. Starts a stack of its own, takes about 15
    seconds after set-up, and removes everything. Ends with what the sandbox counted in both; exit code 1 if ours is not
    one ticket, closed, one charge, one refund and no message to the customer.

    \b
    counterfoil demo
    counterfoil demo --pause
    counterfoil demo --json
    """
    from counterfoil.demo.main import main

    stop(main(as_json=json_, tools=tools or (), lies=lies, pause=pause, only=only))


def relay(config: ConfigPath = None) -> None:
    """Publish what is due from the outbox to the broker, until SIGTERM. Any number may run.

    \b
    counterfoil relay --config /etc/counterfoil.toml
    """
    from counterfoil.ledger.connection import Ledger
    from counterfoil.outbox.relay import run_relay
    from counterfoil.reconciler.setup import notifier_from
    from counterfoil.workers.live import LiveSettings
    from counterfoil.workers.setup import admission_from

    settings = place.load_settings(config)
    with closing(Ledger(settings.database_address(), application_name="counterfoil relay's settings")) as ledger:
        live = LiveSettings(settings, ledger)
        run_relay(
            settings,
            gate=admission_from(settings, live.provider, worker="relay").gate,
            notify=lambda ledger: notifier_from(settings, ledger).tell(),
        )


def webhooks(
    host: Annotated[str, typer.Option("--host", help="The address to listen on; put a proxy with TLS before it.")] = (
        "127.0.0.1"
    ),
    port: Annotated[int, typer.Option("--port", min=0, max=65535, help="0 takes a free one.")] = 8730,
    config: ConfigPath = None,
) -> None:
    """Hear Stripe's, Jira's and Zendesk's events, so that what they are about is looked up now. Until SIGTERM.

    POST /stripe, /jira, /zendesk: those that have a webhook_secret_file. GET /healthz answers while it runs. Logs in as
    the workers do. Any number may run, and none has to: an event only makes the reconciler look sooner.

    \b
    counterfoil webhooks
    counterfoil webhooks --host 0.0.0.0 --port 8730 --config /etc/counterfoil.toml
    """
    from counterfoil.webhooks.server import serve

    settings = place.load_settings(config)
    serve(settings, database=place.database_address(config, "worker"), host=host, port=port, ready=_say_webhooks)


def sandbox(
    port: Annotated[int, typer.Option("--port", min=0, max=65535, help="On 127.0.0.1; 0 takes a free one.")] = 8700,
    data: Annotated[Path, typer.Option("--data", metavar="FOLDER", help="Its own database is there.")] = Path(
        ".counterfoil-sandbox"
    ),
    smtp_port: Annotated[
        int, typer.Option("--smtp-port", min=0, max=65535, help="The mail server's port; 0 takes a free one.")
    ] = 8725,
    imap_port: Annotated[
        int, typer.Option("--imap-port", min=0, max=65535, help="The mailbox's port; 0 takes a free one.")
    ] = 8743,
    provider: Annotated[
        list[str] | None,
        typer.Option("--provider", metavar="MODULE:NAME", help="One more, a double of your own; repeatable."),
    ] = None,
) -> None:
    """Serve the outside world for tests: Stripe, Jira, a warehouse and mail over real HTTP and SMTP, with faults on request.

    A fault is asked for by a POST, and ended by a DELETE; a POST of {} is answered with the names of all.

    \b
    counterfoil sandbox --port 8700 --smtp-port 8725
    counterfoil sandbox --provider mypackage.doubles:PARCELS
    curl -sS localhost:8700/_sandbox/faults -d '{"fault": "504_after_commit", "provider": "stripe", "times": 3}'
    curl -sS localhost:8700/_sandbox/faults -X DELETE
    """
    import asyncio

    from counterfoil.sandbox.server import double_of, serve
    from counterfoil.sandbox.wire import ProviderRefused

    try:
        doubles = [double_of(place) for place in provider or ()]
    except ProviderRefused as refused:
        raise ConfigError(str(refused), key="--provider") from None
    data.mkdir(parents=True, exist_ok=True)
    database = data / "sandbox.db"
    asyncio.run(
        serve(
            "127.0.0.1",
            port,
            database,
            ready=_say_sandbox,
            parent_fd=None,
            smtp_port=smtp_port,
            doubles=doubles,
            imap_port=imap_port,
        )
    )


def _say_webhooks(host: str, port: int) -> None:
    print(f"webhooks ready on http://{f'[{host}]' if ':' in host else host}:{port}", flush=True)


def _say_sandbox(port: int) -> None:
    print(f"sandbox ready on http://127.0.0.1:{port}", flush=True)


def _keep_up(choices: Choices, *, json_: bool) -> None:
    """Start, tell where things are, and keep the children running until a signal."""
    from counterfoil.stack.up import LocalStack, announce

    started_at = time.monotonic()
    signal.signal(signal.SIGTERM, _interrupt)  # a `down` while it starts stops what has been started
    stack = LocalStack(Path.cwd(), choices, say=lambda line: note(f"{time.monotonic() - started_at:5.1f} s  {line}"))
    with stack:
        announce(stack)
        _print_up(stack.home, choices, json_=json_)
        if not json_:
            note("Ctrl-C stops everything; the data stays.")
        sys.stdout.flush()
        stack.children.run_until_signal(lambda name: note(f"{name} had died and was restarted"), poll=stack.poll)
        note("stopping")
    note("stopped")


def _interrupt(_signum: int, _frame: object) -> None:
    raise KeyboardInterrupt


def _start_detached(home: Home, choices: Choices) -> None:
    from counterfoil.stack.errors import StackError
    from counterfoil.stack.processes import open_log
    from counterfoil.stack.up import keeper, last_words

    log = home.log / "up.log"
    argv = [sys.executable, "-m", "counterfoil.cli", "up", "--workers", str(choices.workers)]
    argv += ["--fast" if choices.fast else "--no-fast"]
    for name, values in (("--tools", choices.tools), ("--tenant", choices.tenants)):
        argv += [part for value in values for part in (name, value)]
    with open(open_log(log), "wb") as output:
        process = subprocess.Popen(argv, stdin=subprocess.DEVNULL, stdout=output, stderr=output, start_new_session=True)
    deadline = time.monotonic() + DETACH_WAIT_S
    while keeper(home) != process.pid:
        if process.poll() is not None or time.monotonic() > deadline:
            why, fix = last_words(log)
            kind: type[CounterfoilError] = ConfigError if process.returncode == ConfigError.exit_code else StackError
            raise kind(f"the stack does not start: {why}", fix=f"{fix}See {log}.")
        time.sleep(0.1)
    process.returncode = 0  # it is to outlive this one


def _print_up(home: Home, choices: Choices, *, json_: bool) -> None:
    """Where things are; no password is in it."""
    from counterfoil.stack.up import places

    found = places(home)
    if json_:
        return as_json(found)
    say()
    for name, value in found.items():
        say(f"  {name:<9} {clean(value)}")
    say()
    say("In another terminal, in this folder:")
    say("  counterfoil action list")
    say("  counterfoil proposal list          # what waits for you; see `review list` and `correction list`, too")
    say("  counterfoil outbox list            # what holds work back; see `budget list` and `provider list`, too")
    needs = f"what an agent for {clean(', '.join(choices.tenants))} needs; it cannot decide"
    say(f'  eval "$(counterfoil up --env)"     # {needs}')
    say()
    return None


def _print_env(role: Shell, *, json_: bool) -> None:
    from counterfoil.stack.errors import StackError
    from counterfoil.stack.up import env_for, keeper

    home = place.local_home()
    urls = place.local_urls(home) if home else None
    if home is None or urls is None or keeper(home) is None:
        raise StackError("the local stack of this folder is not up.", fix="Start it: `counterfoil up`.")
    env = env_for(home, urls, role)
    if json_:
        return as_json(env)
    for name, value in env.items():
        say(f"export {name}={shlex.quote(value)}")
    return None


def _home() -> Home:
    from counterfoil.stack.home import home

    return home(Path.cwd())
