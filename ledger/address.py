"""Where the ledger's database is, and what may lie between it and us. Pure: nothing connects here."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

Pooler = Literal["auto", "none", "session", "transaction"]
"""What stands before Postgres. `auto` finds out at each connection whether one does, and takes it for one that hands
another server connection to each transaction, which is always safe."""


@dataclass(frozen=True, slots=True)
class Address:
    """A libpq URL or `key=value` string, and what stands before the server that it names."""

    url: str = field(repr=False)  # it may hold a password
    pooler: Pooler = "auto"

    @property
    def libpq(self) -> str:
        """As libpq reads it: SQLAlchemy's name of the driver is taken out."""
        for prefix in ("postgresql+psycopg://", "postgres+psycopg://"):
            if self.url.startswith(prefix):
                return "postgresql://" + self.url.removeprefix(prefix)
        return self.url


def address_of(database: str | Address) -> Address:
    """A bare URL is one with nothing known of poolers."""
    return Address(database) if isinstance(database, str) else database
