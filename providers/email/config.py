"""How one mail server is reached. Nothing here reads the environment."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal
from urllib.parse import urlsplit

from counterfoil.ledger.errors import ConfigError

Tls = Literal["implicit", "starttls", "none"]
_SCHEMES: dict[str, tuple[Tls, int]] = {"smtps": ("implicit", 465), "smtp": ("starttls", 587)}


@dataclass(frozen=True, slots=True, kw_only=True)
class EmailConfig:
    """`sender` is the address that mail comes from; its domain ends each Message-ID. `username` None = no login.

    The password is never sent in clear: `tls` "none" is for servers on this machine.
    """

    host: str
    port: int
    sender: str
    tls: Tls = "starttls"
    username: str | None = None
    password: str | None = field(default=None, repr=False)

    @property
    def domain(self) -> str:
        return self.sender.rpartition("@")[2]


def server_of(address: str, *, is_loopback: bool) -> tuple[str, int, Tls]:
    """Host, port and protection of `smtps://host:465` or `smtp://host:587`, which must offer STARTTLS unless it is this
    machine. Raises ConfigError."""
    key = "providers.email.server"
    try:
        parts = urlsplit(address)
        host, port = parts.hostname, parts.port
    except ValueError:
        parts, host, port = urlsplit(""), None, None
    if not host or parts.scheme not in _SCHEMES or parts.username is not None or parts.path not in ("", "/"):
        raise ConfigError(
            f"{key} is no address of a mail server.", key=key, fix="Write smtps://HOST or smtp://HOST:PORT."
        )
    tls, usual_port = _SCHEMES[parts.scheme]
    return host, port or usual_port, "none" if is_loopback and tls == "starttls" else tls
