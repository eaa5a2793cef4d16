"""Decides how the sandbox is served: one process, one event loop, loopback only."""

from __future__ import annotations

import asyncio
import importlib
import os
import re
import signal
import threading
from collections.abc import Callable, Sequence
from pathlib import Path

from aiohttp import web

from counterfoil.sandbox.aws import AWS
from counterfoil.sandbox.control import Control
from counterfoil.sandbox.gateway import Gateway
from counterfoil.sandbox.imap import ImapServer
from counterfoil.sandbox.jira import JIRA
from counterfoil.sandbox.linear import LINEAR
from counterfoil.sandbox.mail import MAIL
from counterfoil.sandbox.resend import RESEND
from counterfoil.sandbox.slack import SLACK
from counterfoil.sandbox.smtp import SmtpServer
from counterfoil.sandbox.store import Store
from counterfoil.sandbox.stripe import STRIPE
from counterfoil.sandbox.twilio import TWILIO
from counterfoil.sandbox.warehouse import WAREHOUSE
from counterfoil.sandbox.wire import Provider, ProviderRefused
from counterfoil.sandbox.zendesk import ZENDESK

PROVIDERS = (STRIPE, JIRA, ZENDESK, LINEAR, WAREHOUSE, MAIL, RESEND, TWILIO, SLACK, AWS)
_BODY_BYTES_MAX = 1 << 20
_BACKLOG = 1024
_NAME = re.compile(r"[a-z][a-z0-9_]{0,63}")  # it is a path's first part, and `_sandbox` is the control API's


def create_app(
    path: Path, *, host: str = "127.0.0.1", smtp_port: int = 0, imap_port: int = 0, doubles: Sequence[Provider] = ()
) -> web.Application:
    """The whole world over one SQLite file; every provider is mounted under `/<its name>`, mail has ports of its own.

    `doubles` are somebody's own, beside ours; one of the same name stands in the place of ours.
    """
    gateway = Gateway(Store(path))
    app = web.Application(client_max_size=_BODY_BYTES_MAX)
    providers = tuple({provider.name: provider for provider in (*PROVIDERS, *doubles)}.values())
    for provider in providers:
        for route in provider.routes:
            handler = gateway.handler(provider, route)
            app.router.add_route(route.method, f"/{provider.name}{route.path}", handler)
    smtp, imap = SmtpServer(gateway), ImapServer(gateway)
    control = Control(gateway, providers, smtp, imap)
    control.add_to(app)

    async def listen(_app: web.Application) -> None:
        await smtp.listener.start(host, smtp_port)
        await imap.listener.start(host, imap_port)

    async def close(_app: web.Application) -> None:
        smtp.listener.stop()
        imap.listener.stop()
        await control.webhooks.close()
        gateway.store.close()

    app.on_startup.append(listen)
    app.on_cleanup.append(close)
    return app


async def serve(
    host: str,
    port: int,
    path: Path,
    *,
    ready: Callable[[int], None],
    parent_fd: int | None,
    smtp_port: int = 0,
    imap_port: int = 0,
    doubles: Sequence[Provider] = (),
) -> None:
    """Serves until SIGTERM or SIGINT; `ready` gets the port (0 = any free one, of SMTP and IMAP as well). With
    `parent_fd`, also until that pipe ends.

    Requests under way at the end are dropped, as a provider's would be.
    """
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for signum in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(signum, stop.set)
    if parent_fd is not None:
        threading.Thread(target=_wait_for_end, args=(parent_fd, loop, stop), daemon=True).start()
    # A client that gives up does not cancel its request's handler: what was sent may still take effect.
    app = create_app(path, host=host, smtp_port=smtp_port, imap_port=imap_port, doubles=doubles)
    runner = web.AppRunner(app, access_log=None, handler_cancellation=False, shutdown_timeout=0.1)
    await runner.setup()
    try:
        site = web.TCPSite(runner, host, port, backlog=_BACKLOG)
        await site.start()
        ready(runner.addresses[0][1])
        await stop.wait()
    finally:
        await runner.cleanup()


def double_of(place: str) -> Provider:
    """The provider at `module:NAME`. Raises ProviderRefused where there is none."""
    module, _, name = place.partition(":")
    try:
        found = getattr(importlib.import_module(module), name, None)
    except ModuleNotFoundError as missing:
        if missing.name is None or not f"{module}.".startswith(f"{missing.name}."):
            raise
        found = None
    if not isinstance(found, Provider):
        raise ProviderRefused(f"{place!r} is no provider: write module:NAME of a counterfoil.sandbox.wire.Provider.")
    if not _NAME.fullmatch(found.name):
        raise ProviderRefused(f"{place}: a provider's name is 1 to 64 of a-z, 0-9 and _, and begins with a letter.")
    return found


def _wait_for_end(fd: int, loop: asyncio.AbstractEventLoop, stop: asyncio.Event) -> None:
    while os.read(fd, 4096):
        pass
    loop.call_soon_threadsafe(stop.set)
