"""`config check --connect`: everything that the processes will use is used once, in the way that they use it."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from counterfoil.cli import place
from counterfoil.entry import NOT_OURS
from counterfoil.ledger.errors import BrokerUnavailable, ConfigError, CounterfoilError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from counterfoil.settings import Settings

WAIT_S = 5
TEXT_CHARS_MAX = 200
"""Of what a client says of a server."""

_IS_IT_UP = "Is it running, and is [broker] url right?"


def reach_database(config: Path | None) -> tuple[dict[str, Any], list[str]]:
    """Logs in, compares the schema's version, and tells who serves this login: facts, and warnings."""
    from counterfoil.ledger.connecting import STATEMENT_S
    from counterfoil.ledger.queries import load

    with place.open_ledger(config, "reader") as ledger:
        found = ledger.row(load("counterfoil.cli", "sql/check.sql")["check_login"], {}) or {}
        is_pooled = ledger.connected().is_pooled
    warnings = []
    if not found["groups"]:
        warnings.append(f"login {found['login']} is in no group of the ledger: `counterfoil db grant` adds it")
    if is_pooled and found["statement_timeout"] == "0":
        warnings.append(
            f"a pooler is before Postgres and {found['login']} has no statement_timeout: ALTER ROLE {found['login']} SET"
            f" statement_timeout = '{STATEMENT_S}s' ends a statement whose client has gone"
        )
    return {"login": found["login"], "server": found["server"], "pooler": is_pooled}, warnings


def reach_broker(settings: Settings, url: str) -> None:
    """Sends a message to a queue of its own and takes it back, with the client, the TLS and the login of the workers."""
    from counterfoil.outbox.broker import broker_app

    app = broker_app(url=url, key_prefix=settings.broker.key_prefix, queues=(), socket_timeout_s=WAIT_S)
    with _told("the broker", "broker.url", url), app.connection_for_write(connect_timeout=WAIT_S) as connection:
        connection.connect()
        _refuse_cluster(connection.default_channel)
        queue = connection.SimpleQueue(f"cf-check-{uuid.uuid4().hex[:12]}")
        try:
            queue.put({"check": True})
            queue.get(timeout=WAIT_S).ack()
            _hear(connection.default_channel)
        finally:
            queue.queue.delete()
            queue.close()


def reach_counters(settings: Settings, url: str) -> None:
    """Runs a script on a key of its own, as each admission does: it needs EVAL, TIME, GET and SET below our prefix."""
    from counterfoil.outbox.addresses import read_redis
    from counterfoil.workers.redis_client import redis_client

    key = f"{settings.broker.key_prefix}admission:check-{uuid.uuid4().hex[:12]}"
    text = "redis.call('TIME') redis.call('SET', KEYS[1], '1', 'PX', 1000) return redis.call('GET', KEYS[1])"
    with (
        _told("the Redis of the fleet's counters", "admission.url", url),
        closing(redis_client(read_redis(url), timeout_s=WAIT_S)) as client,
    ):
        client.register_script(text)(keys=[key])


def check_address_files(settings: Settings) -> None:
    """The files that the addresses of broker and counters name. Raises `ConfigError`."""
    from counterfoil.outbox.addresses import AddressRefused, check_files

    for key, url in (("broker.url", settings.broker.url), ("admission.url", settings.admission.url)):
        try:
            if url is not None:
                check_files(url.get_secret_value())
        except AddressRefused as refused:
            raise ConfigError(f"{key} {refused}.", key=key) from None


def not_ours(environ: Mapping[str, str]) -> list[str]:
    """A warning for each variable of another program that Celery would prefer to our configuration."""
    return [f"{name} is set and is not ours: our processes ignore it" for name in NOT_OURS if environ.get(name)]


def _hear(channel: Any) -> None:
    """Subscribes to what Celery's commands to workers go by: in Redis' ACL a pattern is a right of its own."""
    client = getattr(channel, "client", None)
    if client is None:
        return
    with closing(client.pubsub()) as heard:
        for name in ("celery.pidbox", "celeryev/worker.*"):
            heard.psubscribe(f"{channel.keyprefix_fanout}{name}")
            heard.get_message(timeout=WAIT_S)


def _refuse_cluster(channel: Any) -> None:
    client = getattr(channel, "client", None)
    if client is None:
        return
    from redis.exceptions import ResponseError

    try:
        is_cluster = bool(client.info("cluster").get("cluster_enabled"))
    except ResponseError:  # INFO is not everybody's right; MOVED tells then
        return
    if is_cluster:
        raise ConfigError(
            "the broker is a Redis Cluster, on which Celery's queues do not work.",
            key="broker.url",
            fix="Name one server, or sentinels.",
        )


@contextmanager
def _told(what: str, key: str, url: str) -> Iterator[None]:
    """One line with cause and fix. What a client says of a server is told without the address, which holds a password."""
    try:
        yield
        return
    except CounterfoilError:
        raise
    except Exception as error:  # noqa: BLE001 - each client has its own kinds; all of them mean that it cannot be used
        cause: BaseException = error
        while cause.__cause__ is not None:
            cause = cause.__cause__
        said = " ".join(str(cause).split())[:TEXT_CHARS_MAX]
        secret = _password(url)
        if secret and secret in said:
            said = ""
        name = type(cause).__name__
    problem = BrokerUnavailable(
        f"{what} cannot be used ({name}{': ' if said else ''}{said}).", fix=_fix(said, name, key)
    )
    raise problem


def _password(url: str) -> str:
    from urllib.parse import unquote, urlsplit

    return unquote(urlsplit(url.split(";")[0]).password or "")


def _fix(said: str, name: str, key: str) -> str:
    lower = f"{name} {said}".lower()
    if "certificate" in lower or "ssl" in lower:
        return f"Name the CA in {key} (?ssl_ca_certs=FILE), and the host as the certificate does."
    if "noperm" in lower or "no permissions" in lower or "nopermission" in lower:
        return "docs/production.md lists the rights that a login of Redis needs."
    if "wrongpass" in lower or "noauth" in lower or "access_refused" in lower or "authentication" in lower:
        return f"Are login and password in {key} right?"
    if "read only" in lower or "readonly" in lower:
        return f"It is a replica: {key} must name the server that takes writes, or sentinels."
    return _IS_IT_UP if key == "broker.url" else "Is it running, and is [admission] url right?"
