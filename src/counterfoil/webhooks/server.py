"""Decides what is served: `POST /<provider>` for events, `GET /healthz`; bounded in size and time, the same answer to all."""

from __future__ import annotations

import asyncio
import signal
import socket
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, closing

import structlog
import uvicorn
from starlette.applications import Starlette
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.routing import Route

from counterfoil.ledger.address import Address
from counterfoil.ledger.connection import Ledger
from counterfoil.ledger.errors import ConfigError
from counterfoil.ledger.keys import DEFAULT_ACCOUNT
from counterfoil.logs import configure_logs
from counterfoil.settings import Settings
from counterfoil.webhooks.listener import Answer, Listener, has_secret
from counterfoil.webhooks.signatures import PROVIDERS

log: structlog.stdlib.BoundLogger = structlog.get_logger("counterfoil.webhooks")

BODY_BYTES_MAX = 1 << 20
"""Far above any event of the three; what is larger is not read."""

READ_S = 10.0
"""For the whole body: whoever sends slower is cut off."""

ANSWER_S = 8.0
"""For everything after it: providers give up after 10 s or more, and send an event again that was not answered."""

CONNECTIONS_MAX = 200
"""Open at once; the next is answered 503 without being read."""


def app(
    settings: Settings | None = None, *, database: str | Address | None = None, now: Callable[[], float] = time.time
) -> Starlette:
    """The ASGI application: `uvicorn --factory counterfoil.webhooks:app`, or mounted into one of your own.

    Without `settings` it reads counterfoil.toml and the environment; `database` is a worker's login, by default the
    configured one; `now` is the clock that signatures are held against, in Unix seconds. Nothing is reached before the
    first event. Mounted, it is for the outer application to run this one's lifespan, which only closes connections.
    """
    settings = Settings.load() if settings is None else settings
    listener = Listener(settings, database=database or settings.database_address(), now=now)

    @asynccontextmanager
    async def lifespan(_app: Starlette) -> AsyncIterator[None]:
        yield
        listener.close()

    async def hear(request: Request) -> Response:
        return await _heard(listener, request)

    routes = [Route("/healthz", _healthy, methods=["GET"]), Route("/{provider}", hear, methods=["POST"])]
    made = Starlette(routes=routes, lifespan=lifespan)
    made.router.redirect_slashes = False  # a redirect would go to the host that the sender has named
    return made


def serve(
    settings: Settings, *, database: str | Address, host: str, port: int, ready: Callable[[str, int], None]
) -> None:
    """Serves until SIGTERM or SIGINT, ends what has begun, and returns. `ready` gets the address; port 0 is a free one.

    Raises `ConfigError` where no provider has a webhook secret, a secret cannot be read, the port is taken, or the schema is
    another version's.
    """
    check_secrets(settings)
    with closing(Ledger(database, application_name="counterfoil webhooks")) as ledger:
        away = ledger.check_worker()
    with _listening(host, port) as listening:
        configure_logs()
        if away is not None:
            log.error("ledger_unavailable", error=away)
        config = uvicorn.Config(
            app(settings, database=database),
            http="h11",
            ws="none",
            lifespan="on",
            log_config=None,
            access_log=False,
            proxy_headers=False,
            server_header=False,
            limit_concurrency=CONNECTIONS_MAX,
            timeout_keep_alive=5,
            timeout_graceful_shutdown=15,
        )
        serving = uvicorn.Server(config)

        def end(_signum: int, _frame: object) -> None:
            serving.should_exit = True

        # uvicorn takes signals itself while it serves, and raises them again afterwards, when this means nothing any more.
        for signum in (signal.SIGTERM, signal.SIGINT):
            signal.signal(signum, end)
        ready(host, listening.getsockname()[1])
        serving.run(sockets=[listening])


def check_secrets(settings: Settings) -> None:
    """Some provider has a webhook secret, and each that is configured can be read. Raises `ConfigError`."""
    heard = [given for name, given in settings.providers.items() if name in PROVIDERS and has_secret(given)]
    if not heard:
        raise ConfigError(
            "no provider has a webhook secret.",
            key="providers.NAME.webhook_secret_file",
            fix=f"Give it for one of: {', '.join(sorted(PROVIDERS))}.",
        )
    for given in heard:
        for account in (DEFAULT_ACCOUNT, *given.accounts):
            given.through(account).webhook_secrets()


async def _heard(listener: Listener, request: Request) -> Response:
    provider = request.path_params["provider"]
    if not listener.hears(provider):
        return Response(status_code=404)
    try:
        async with asyncio.timeout(READ_S):
            body = await _body(request)
    except TimeoutError:
        return _closing(408)
    except ClientDisconnect:
        return _closing(400)
    if body is None:
        return _closing(413)
    headers = {name.lower(): value for name, value in request.headers.items()}
    try:
        async with asyncio.timeout(ANSWER_S):
            answer = await asyncio.wrap_future(listener.take(provider, headers, body))
    except TimeoutError:
        answer = Answer.AWAY
    return Response(status_code=answer.value)


async def _body(request: Request) -> bytes | None:
    """All of it, or None where it is too large; by what is announced before a byte is read."""
    announced = request.headers.get("content-length", "0")
    if not announced.isdecimal() or len(announced) > 18 or int(announced) > BODY_BYTES_MAX:
        return None
    body = bytearray()
    async for chunk in request.stream():
        body += chunk
        if len(body) > BODY_BYTES_MAX:
            return None
    return bytes(body)


def _closing(status: int) -> Response:
    """An answer before the request was read to its end: the connection is of no use any more."""
    return Response(status_code=status, headers={"Connection": "close"})


async def _healthy(_request: Request) -> Response:
    """The process answers. Says nothing about the ledger: starting this anew would not bring that back."""
    return Response("ok\n", media_type="text/plain")


def _listening(host: str, port: int) -> socket.socket:
    try:
        return socket.create_server(
            (host, port), family=socket.AF_INET6 if ":" in host else socket.AF_INET, backlog=256
        )
    except (OSError, OverflowError) as error:
        raise ConfigError(f"cannot listen on {host} port {port} ({error}).", key="--port") from error
