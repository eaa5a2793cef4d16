"""Decides how changes of a running fleet's settings are typed: what is in force, who changed what, and the door to it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum

import psycopg

from counterfoil.ledger.connection import Ledger
from counterfoil.ledger.errors import NotAllowed
from counterfoil.ledger.queries import load

_SQL = load("counterfoil.ledger", "sql/changes.sql")

MODE_KEY = "mode"
"""`providers.NAME.mode` is changed like a setting, and is none of the configuration's."""


class Mode(StrEnum):
    """What a provider may be sent. Read by every claim, so it holds from its commit on, whatever becomes of the broker."""

    RUNNING = "running"
    PAUSED = "paused"
    """Nothing is claimed."""
    DRAINING = "draining"
    """Only what was begun before, and what takes something back."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """One change of one key. The newest of a key is in force."""

    change_id: int
    """Higher = later."""
    key: str
    """providers.NAME.key, or providers.NAME.table.key."""
    value: str | None
    """JSON; None = as configured."""
    by_person: str
    db_role: str
    channel: str
    reason: str
    at: datetime

    @property
    def provider(self) -> str:
        """Whose setting it is."""
        return self.key.split(".")[1]

    @property
    def name(self) -> str:
        """The key below the provider's table, such as `rate_per_s` or `breaker.open_s`."""
        return self.key.split(".", 2)[2]


@dataclass(frozen=True, slots=True)
class ModeSince:
    """A provider that does not simply run, and since when."""

    mode: Mode
    since: datetime


def read_changes(ledger: Ledger, *, after: int = 0) -> list[Change]:
    """The newest change of each key that was changed after that change; 0 = of every key. In the order they were made."""
    return sorted(
        (Change(**row) for row in ledger.rows(_SQL["read_changes"], {"after": after})), key=lambda c: c.change_id
    )


def list_changes(ledger: Ledger, *, provider: str | None, limit: int) -> list[Change]:
    """Every change there was, the newest first."""
    return [Change(**row) for row in ledger.rows(_SQL["list_changes"], {"provider": provider, "limit": limit})]


def modes(ledger: Ledger) -> dict[str, ModeSince]:
    """The providers that are paused or draining."""
    return {row["provider"]: ModeSince(Mode(row["mode"]), row["since"]) for row in ledger.rows(_SQL["list_modes"], {})}


def change_settings(ledger: Ledger, values: Mapping[str, str | None], *, by: str, channel: str, reason: str) -> int:
    """Puts these values (JSON by key; None = as configured) in force, all of them or none; returns the last change's id.

    For operators of all tenants; `NotAllowed` for others. Values are the caller's to check: a process that cannot use one
    goes on with what it had. Not repeated after a lost connection, since every change is kept.
    """
    given = {"keys": list(values), "values": list(values.values()), "by": by, "channel": channel, "reason": reason}
    try:
        row = ledger.row(_SQL["change_settings"], given, repeatable=False)
    except psycopg.DatabaseError as error:
        if error.sqlstate != "CF403":
            raise
        raise NotAllowed(
            "settings of the fleet are changed by an operator of all tenants.",
            fix="`counterfoil db check` shows this login's role and tenants.",
        ) from None
    assert row is not None
    return int(row["change_id"])
