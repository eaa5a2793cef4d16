"""Decides which settings and which login a command works with.

What is configured wins. Without a configured database, the stack that `counterfoil up` keeps in this folder is used, under
the login of the role that the verb needs.
"""

from __future__ import annotations

import getpass
import os
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from counterfoil.ledger.address import Address
from counterfoil.ledger.errors import ConfigError, LedgerUnavailable

if TYPE_CHECKING:
    from counterfoil.ledger.connection import Ledger
    from counterfoil.settings import Settings
    from counterfoil.stack.home import Home
    from counterfoil.stack.services import Urls

PERSON_VARIABLE = "COUNTERFOIL_PERSON"
PERSON_CHARS_MAX = 200
"""What the ledger's columns of persons hold."""

Role = Literal["agent", "worker", "operator", "reader", "owner"]


def load_settings(config: Path | None) -> Settings:
    """The settings in force here; those of the local stack where nothing is configured. Raises ConfigError.

    Where the folder's own file configures no database and its stack runs, the file is read as the stack's processes read
    it: with their tools and providers in place, so that people see what was proposed with the tools that proposed it.
    """
    from counterfoil.settings import Settings  # here, not above: `--help` needs no pydantic

    file, over = sources(config)
    return Settings.load(file, over=over)


def sources(config: Path | None) -> tuple[Path | None, Mapping[str, Any] | None]:
    """The file of the settings in force here (None: the usual one), and what stands in place of its tables."""
    from counterfoil.settings import Settings

    home = None if config is not None or os.environ.get("COUNTERFOIL_CONFIG") else local_home()
    generated = home.path / "counterfoil.toml" if home else None
    if home is None or generated is None or not generated.is_file():
        return config, None
    if not Path("counterfoil.toml").exists():
        return generated, None
    if Settings.load().database.url is not None or not _runs(home):
        return None, None
    from counterfoil.stack.project import local_parts

    return None, local_parts(home, Path())


def database_address(config: Path | None, role: Role) -> Address:
    """The configured address, else that of this role in the local stack.

    Raises ConfigError if there is neither, LedgerUnavailable if the local stack is not up.
    """
    settings = load_settings(config)
    if settings.database.url is not None:
        return settings.database_address()
    home = local_home()
    urls = local_urls(home) if home else None
    if home is None or urls is None:
        raise ConfigError(
            "no database is configured.",
            key="database.url",
            fix="Set [database] url in counterfoil.toml or COUNTERFOIL_DATABASE__URL; `counterfoil up` starts a local one.",
        )
    from counterfoil.stack import databases
    from counterfoil.stack.services import Services
    from counterfoil.stack.up import DATABASE

    if not Services.running(home):
        raise LedgerUnavailable("the local stack of this folder is not up.", fix="Start it: `counterfoil up`.")
    return Address(databases.database_url(home, urls, DATABASE, role))


def broker_url(config: Path | None) -> str:
    """The configured URL, else that of the local stack. Raises ConfigError if there is neither."""
    settings = load_settings(config)
    home = local_home() if settings.broker.url is None else None
    urls = local_urls(home) if home else None
    return urls.valkey if urls else settings.broker_url()


def admission_url(config: Path | None) -> str | None:
    """Where the fleet's counters are, if they are in a store: what is configured, else the local stack's."""
    settings = load_settings(config)
    home = local_home() if settings.admission.url is None and settings.broker.url is None else None
    urls = local_urls(home) if home else None
    return urls.valkey if urls else settings.admission_url()


@contextmanager
def open_ledger(config: Path | None, role: Role, *, needs_schema: bool = True) -> Iterator[Ledger]:
    """A connection for this command, made at its first statement."""
    from counterfoil.ledger.connection import Ledger

    address = database_address(config, role)
    with closing(Ledger(address, application_name="counterfoil cli", needs_schema=needs_schema)) as ledger:
        yield ledger


def person() -> str:
    """Under which name whoever sits here decides: COUNTERFOIL_PERSON, else the name of the system's user.

    A name is as good as the login that it comes through: the ledger records both. Raises ConfigError.
    """
    name = os.environ.get(PERSON_VARIABLE, "").strip() or getpass.getuser()
    if len(name) > PERSON_CHARS_MAX or not name.isprintable():
        raise ConfigError(
            f"{PERSON_VARIABLE} is no name: at most {PERSON_CHARS_MAX} printable characters.", key=PERSON_VARIABLE
        )
    return name


def local_home() -> Home | None:
    """The local stack's home of this folder if one was made; none is made by looking."""
    if not Path(".counterfoil").exists() and not os.environ.get("COUNTERFOIL_HOME"):
        return None
    from counterfoil.stack.home import home

    return home(Path.cwd())


def _runs(home: Home) -> bool:
    try:
        from counterfoil.stack.services import Services
    except ModuleNotFoundError:
        return False
    return Services.running(home)


def local_urls(home: Home) -> Urls | None:
    """Where the home's servers were last; None if they never ran, or the local extra is not installed."""
    try:
        from counterfoil.stack.services import Services
    except ModuleNotFoundError:
        return None
    return Services.last(home)
