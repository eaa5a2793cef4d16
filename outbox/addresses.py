"""Where the broker and the fleet's counters are: one reading of an address for Celery's client and for our own. Pure.

Both spellings of TLS are understood, Celery's (`CERT_REQUIRED`) and redis-py's (`required`). Certificates are verified unless
the address says otherwise.
"""

from __future__ import annotations

import re
import ssl
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import SplitResult, parse_qsl, quote, unquote, urlsplit

REDIS_KINDS = ("redis://", "rediss://", "unix://", "redis+socket://", "sentinel://")
RABBITMQ_KINDS = ("amqp://", "amqps://", "pyamqp://")
KINDS = f"{', '.join((*REDIS_KINDS, *RABBITMQ_KINDS[:2]))}"

_CERT_REQS = {"none": ssl.CERT_NONE, "optional": ssl.CERT_OPTIONAL, "required": ssl.CERT_REQUIRED}
_FILES = ("ssl_ca_certs", "ssl_certfile", "ssl_keyfile")
_TLS = frozenset({"ssl_cert_reqs", "ssl_check_hostname", *_FILES})
_SENTINEL = frozenset({"master_name", "sentinel_username", "sentinel_password"})
_SOCKET = frozenset({"virtual_host", "db"})


class AddressRefused(ValueError):
    """An address that cannot work; the text says why and shows nothing of it."""


@dataclass(frozen=True, slots=True)
class RedisAddress:
    """A Redis: on a host, behind a socket's path, or found by sentinels."""

    hosts: tuple[tuple[str, int], ...] = ()
    """One server, or every sentinel."""
    path: str = ""
    """Of a Unix socket."""
    database: int = 0
    username: str | None = None
    password: str | None = field(default=None, repr=False)
    master_name: str = ""
    """What the sentinels call the server; '' = there are none."""
    sentinel: Mapping[str, str] = field(default_factory=dict, repr=False)
    """`username` and `password` for the sentinels themselves."""
    tls: Mapping[str, Any] | None = None
    """redis-py's arguments; None = in plain text."""

    def celery(self) -> dict[str, Any]:
        """What of Celery's configuration names this broker. Raises `AddressRefused` for a file that is not there."""
        return {
            "broker_url": self._kombu_url(),
            "broker_use_ssl": None if self.tls is None else with_files(self.tls),
            "broker_transport_options": {"master_name": self.master_name} if self.master_name else {},
        }

    def _kombu_url(self) -> str:
        login = _login(self.username, self.password)
        if self.path:
            return f"redis+socket://{login}{self.path}?virtual_host={self.database}"
        kind = "sentinel" if self.master_name else "redis"
        return ";".join(f"{kind}://{login}{_host(host)}:{port}/{self.database}" for host, port in self.hosts)

    def sentinel_options(self) -> dict[str, Any]:
        """redis-py's arguments for the sentinels themselves."""
        return {**({} if self.tls is None else {"ssl": True, **with_files(self.tls)}), **self.sentinel}


@dataclass(frozen=True, slots=True)
class RabbitAddress:
    """A RabbitMQ, by py-amqp."""

    url: str = field(repr=False)
    tls: Mapping[str, Any] | None = None

    def celery(self) -> dict[str, Any]:
        """What of Celery's configuration names this broker. Raises `AddressRefused` for a file that is not there."""
        return {
            "broker_url": self.url,
            "broker_use_ssl": None if self.tls is None else with_files(self.tls),
            "broker_transport_options": {},
        }


def read_redis(url: str) -> RedisAddress:
    """Raises `AddressRefused` with the reason and what would do; the address itself is in no error."""
    kind = kind_of(url)
    if kind not in REDIS_KINDS:
        raise AddressRefused(_not_of(kind, ", ".join(REDIS_KINDS)))
    parts = _split(url, kind)
    last = parts[-1]
    query = dict(parse_qsl(last.query, keep_blank_values=True))
    known = {"redis://": frozenset[str](), "rediss://": _TLS, "sentinel://": _TLS | _SENTINEL}.get(kind, _SOCKET)
    _check_names(query, known | ({"db"} if kind != "sentinel://" else frozenset()))
    login: dict[str, Any] = {name: _one(parts, name) for name in ("username", "password")}
    if kind in ("unix://", "redis+socket://"):
        path = unquote(last.path)
        if not path.startswith("/") or last.hostname:
            raise AddressRefused("names no absolute path of a socket: three slashes, as in unix:///run/redis.sock")
        return RedisAddress(path=path, database=_database(query.get("db", query.get("virtual_host", "0"))), **login)
    if len(parts) > 1 and kind != "sentinel://":
        raise AddressRefused("names several servers; several are named for sentinels only (sentinel://…;sentinel://…)")
    default = 26_379 if kind == "sentinel://" else 6379
    hosts = tuple((unquote(part.hostname or "127.0.0.1"), _port(part, default)) for part in parts)
    master_name = query.get("master_name", "")
    if kind == "sentinel://" and not master_name:
        raise AddressRefused("names sentinels and not their server: add ?master_name=NAME")
    return RedisAddress(
        hosts=hosts,
        database=_database(query.get("db") or (_one(parts, "path") or "").strip("/") or "0"),
        master_name=master_name,
        sentinel={
            name: query[f"sentinel_{name}"] for name in ("username", "password") if query.get(f"sentinel_{name}")
        },
        tls=_tls(query) if kind == "rediss://" or (kind == "sentinel://" and set(query) & _TLS) else None,
        **login,
    )


def read_broker(url: str) -> RedisAddress | RabbitAddress:
    """The same for a broker, which may be a RabbitMQ."""
    kind = kind_of(url)
    if kind in REDIS_KINDS:
        return read_redis(url)
    if kind not in RABBITMQ_KINDS:
        raise AddressRefused(_not_of(kind, KINDS))
    [parts, *more] = _split(url, kind)
    if more:
        raise AddressRefused("names several servers: name one, a load balancer before them say")
    _port(parts, 5672)
    query = dict(parse_qsl(parts.query, keep_blank_values=True))
    _check_names(query, _TLS if kind == "amqps://" else frozenset())
    if kind != "amqps://":
        return RabbitAddress(parts.geturl())
    given = _tls(query)
    tls = {name.removeprefix("ssl_"): given[name] for name in ("ssl_cert_reqs", *_FILES) if name in given}
    if given["ssl_check_hostname"]:
        tls["server_hostname"] = parts.hostname  # py-amqp checks the name where it is given one
    return RabbitAddress(parts._replace(query="").geturl(), tls)


def kind_of(url: str) -> str:
    """The scheme with its slashes, in lower case."""
    scheme, found, _ = url.strip().partition("://")
    return f"{scheme.lower()}{found}"


def is_redis(url: str) -> bool:
    """Whether the counters can be kept where this address is."""
    return kind_of(url) in REDIS_KINDS


def check_files(url: str) -> None:
    """Raises `AddressRefused` for a file of the address that cannot be read."""
    with_files(read_broker(url).tls or {})


def with_files(tls: Mapping[str, Any]) -> dict[str, Any]:
    """Looks for the files where they are used: an agent with the same configuration needs none of them."""
    for name, path in tls.items():
        if isinstance(path, str) and name.endswith(("ca_certs", "certfile", "keyfile")):
            try:
                with open(path, "rb"):
                    continue
            except OSError as error:
                why = error.strerror or type(error).__name__
            raise AddressRefused(f"has an {name} that cannot be read ({path}: {why})")
    return dict(tls)


def _split(url: str, kind: str) -> list[SplitResult]:
    """Each address of a list. What cannot be split is told without a word of it: it may be a password."""
    texts = [text if "://" in text else f"{kind}{text}" for text in url.strip().split(";")]
    try:
        parts = [urlsplit(text) for text in texts]
        found = [(part.scheme, part.hostname, part.username) for part in parts]  # read here, since they may raise
    except ValueError:
        raise AddressRefused(f"cannot be read: {_ENCODE}") from None
    if any(f"{scheme}://" != kind for scheme, _, _ in found):
        raise AddressRefused("names several kinds of servers")
    return parts


def _one(parts: Sequence[SplitResult], name: str) -> str | None:
    """What one or several addresses of a list say; all of those who say it must say the same."""
    said = {unquote(value) for part in parts if (value := getattr(part, name) or "").strip("/")}
    if len(said) > 1:
        raise AddressRefused(f"has a list whose addresses differ in their {name}: it is the server's, and one")
    return said.pop() if said else None


_ENCODE = "a special character of a password is percent-encoded"


def _not_of(kind: str, kinds: str) -> str:
    if "cluster" in kind:
        return "names a Redis Cluster, on which Celery's queues do not work: name one server, or sentinels"
    return f"is of none of these kinds: {kinds}"


def _check_names(query: Mapping[str, str], known: frozenset[str] | set[str]) -> None:
    for name in query:
        if name in _TLS and not known & _TLS:
            raise AddressRefused(f"has {name}, and is in plain text: TLS is rediss:// and amqps://")
        if name not in known:
            can = f"it can have {', '.join(sorted(known))}" if known else "it has none"
            shown = f" {name}" if re.fullmatch("[a-z_]{1,30}", name) else ""  # else it may be the end of a password
            raise AddressRefused(f"has a parameter{shown} that means nothing here ({can}); {_ENCODE}")


def _tls(query: Mapping[str, str]) -> dict[str, Any]:
    said = query.get("ssl_cert_reqs", "required").lower().removeprefix("cert_")
    if said not in _CERT_REQS:
        raise AddressRefused("has an ssl_cert_reqs that is none of required, optional, none")
    checks = query.get("ssl_check_hostname", "true").lower()
    if checks not in ("true", "false"):
        raise AddressRefused("has an ssl_check_hostname that is neither true nor false")
    files = {name: query[name] for name in _FILES if query.get(name)}
    return {"ssl_cert_reqs": _CERT_REQS[said], "ssl_check_hostname": checks == "true" and said != "none", **files}


def _port(parts: Any, default: int) -> int:
    try:
        return int(parts.port or default)
    except ValueError:
        raise AddressRefused(f"has a port that is none; {_ENCODE}") from None


def _database(text: str) -> int:
    if not text.isascii() or not text.isdigit():
        raise AddressRefused("ends in no number of a database, such as /0")
    return int(text)


def _login(username: str | None, password: str | None) -> str:
    if username is None and password is None:
        return ""
    return f"{quote(username or '', safe='')}:{quote(password or '', safe='')}@"


def _host(host: str) -> str:
    return f"[{host}]" if ":" in host else host
