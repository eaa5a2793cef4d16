"""How the fleet's counters are reached: redis-py's client at an address that Celery's client reads alike."""

from __future__ import annotations

from typing import Any

from redis import Redis, sentinel
from redis.backoff import NoBackoff
from redis.retry import Retry

from counterfoil.outbox.addresses import RedisAddress, with_files


def redis_client(address: RedisAddress, *, timeout_s: float) -> Redis:
    """A client that tries nothing twice: a repeated admission would count twice. Connects at its first command.

    Raises `AddressRefused` for a file of the address that cannot be read.
    """
    common: dict[str, Any] = {"db": address.database, "socket_timeout": timeout_s, "retry": Retry(NoBackoff(), 0)}
    login: dict[str, Any] = {"username": address.username, "password": address.password}
    if address.path:
        return Redis(unix_socket_path=address.path, **login, **common)
    common["socket_connect_timeout"] = timeout_s
    if address.tls is not None:
        common |= {"ssl": True, **with_files(address.tls)}
    if not address.master_name:
        [(host, port)] = address.hosts
        return Redis(host=host, port=port, **login, **common)
    asked = {**common, **address.sentinel, "db": 0}
    found: Any = sentinel.Sentinel(list(address.hosts), sentinel_kwargs=asked)  # type: ignore[no-untyped-call]
    client: Redis = found.master_for(address.master_name, **login, **common)
    return client
