"""How one mail server, and the mailbox beside it, are reached. Nothing here reads the environment."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal
from urllib.parse import SplitResult, urlsplit

from counterfoil.ledger.errors import ConfigError

Tls = Literal["implicit", "starttls", "none"]
_SCHEMES: dict[str, tuple[Tls, int]] = {"smtps": ("implicit", 465), "smtp": ("starttls", 587)}
_IMAP_PORTS = {"imaps": 993, "imap": 143}


@dataclass(frozen=True, slots=True, kw_only=True)
class ImapConfig:
    """The mailbox that drafts are put into. In clear (`tls` False) only on this machine."""

    host: str
    port: int
    username: str
    password: str = field(repr=False)
    folder: str = "Drafts"
    tls: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class EmailConfig:
    """`sender` is the address that mail comes from; its domain ends each Message-ID. `username` None = no login.

    The password is never sent in clear: `tls` "none" is for servers on this machine. `imap` None = no drafts.
    """

    host: str
    port: int
    sender: str
    tls: Tls = "starttls"
    username: str | None = None
    password: str | None = field(default=None, repr=False)
    imap: ImapConfig | None = None

    @property
    def domain(self) -> str:
        return self.sender.rpartition("@")[2]


def server_of(address: str, *, is_loopback: bool) -> tuple[str, int, Tls]:
    """Host, port and protection of `smtps://host:465` or `smtp://host:587`, which must offer STARTTLS unless it is this
    machine. Raises ConfigError."""
    key = "providers.email.server"
    parts = _parts_of(address)
    if parts is None or parts.scheme not in _SCHEMES:
        raise ConfigError(
            f"{key} is no address of a mail server.", key=key, fix="Write smtps://HOST or smtp://HOST:PORT."
        )
    tls, usual_port = _SCHEMES[parts.scheme]
    return str(parts.hostname), parts.port or usual_port, "none" if is_loopback and tls == "starttls" else tls


def imap_of(address: str, *, is_loopback: bool) -> tuple[str, int, bool]:
    """Host, port and whether TLS protects it, of `imaps://host:993`; `imap://host:143` only where it is this machine.
    Raises ConfigError."""
    key = "providers.email.imap_server"
    parts = _parts_of(address)
    if parts is None or parts.scheme not in _IMAP_PORTS:
        raise ConfigError(f"{key} is no address of a mailbox.", key=key, fix="Write imaps://HOST or imaps://HOST:PORT.")
    if parts.scheme == "imap" and not is_loopback:
        raise ConfigError(
            f"{key} would be sent the password in the clear.", key=key, fix="Use imaps, except on this machine."
        )
    return str(parts.hostname), parts.port or _IMAP_PORTS[parts.scheme], parts.scheme == "imaps"


def checked_folder(folder: str) -> str:
    """A folder's name as the server has it: printable ASCII. Raises ConfigError."""
    key = "providers.email.drafts_folder"
    if not folder.isascii() or not folder.isprintable():
        fix = "Other letters as the server writes them: Entw&APw-rfe is Entwürfe."
        raise ConfigError(f"{key} is not in ASCII.", key=key, fix=fix)
    return folder


def _parts_of(address: str) -> SplitResult | None:
    """A host and perhaps a port, and nothing else besides the scheme; None for anything else."""
    try:
        parts = urlsplit(address)
        plain = parts.hostname and (parts.port or True) and parts.username is None and parts.path in ("", "/")
    except ValueError:
        return None
    return parts if plain else None
